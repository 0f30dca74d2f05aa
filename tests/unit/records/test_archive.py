"""An archive has every figure of its sweep, and leads nowhere when it is unpacked."""

import math
import stat
import zipfile
from pathlib import Path

import pytest

from fakes.recorded import DDP, Spec, repeats, write_sweep
from scalewise.analysis import analyse, load_sweep
from scalewise.cli import main
from scalewise.cli.exits import Exit
from scalewise.records import RecordError, archive, unpacked, write_archive
from scalewise.report import results_json
from scalewise.report.findings import resume_words


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    factors = [1.0, 1.02, 0.99]
    specs = [*repeats(Spec(), factors), *repeats(DDP, factors), Spec(model="own", outcome="failed")]
    folder = write_sweep(tmp_path_factory.mktemp("sweep"), specs)
    for name in ("logs/rank0.err", "checkpoints/last.pt", "wandb/run.wandb", "notes.json"):
        path = next(folder.glob("*own*")) / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("hush")
    return folder


@pytest.fixture
def packed(sweep: Path, tmp_path: Path) -> Path:
    write_archive(sweep, tmp_path / "a.zip")
    return tmp_path / "a.zip"


def test_it_holds_records_alone_with_all_figures_and_the_same_bytes_again(
    sweep: Path, packed: Path, tmp_path: Path
) -> None:
    of_folder, of_archive = (results_json(analyse(load_sweep(p))) for p in (sweep, packed))
    assert of_archive == of_folder
    assert '"interval"' in of_archive
    with zipfile.ZipFile(packed) as held:
        names = held.namelist()
        assert all(b"hush" not in held.read(name) for name in names)
        assert {entry.external_attr >> 16 for entry in held.infolist()} == {stat.S_IFREG | 0o644}
    assert names == sorted(names) and len(names) == write_archive(sweep, tmp_path / "b.zip")
    assert (tmp_path / "b.zip").read_bytes() == packed.read_bytes()


def test_every_command_that_reads_a_sweep_reads_it(
    packed: Path, sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(packed.parent)
    assert main(["report", "a.zip"]) == Exit.DONE
    assert (packed.parent / "a/report/results.json").is_file()
    assert main(["compare", "a.zip", str(sweep)]) == Exit.DONE
    assert "A: a," in capsys.readouterr().out
    found = analyse(load_sweep(packed))
    assert resume_words(found, "more=1") == "scalewise resume FOLDER more=1", "it is not there"
    (packed.parent / "a/sweep.json").touch()
    assert (resume_words(found), main(["export", "a.zip"])) == ("scalewise resume a", Exit.DONE)
    assert [*(packed.parent / "a").glob("*ddp*/gpu_timeline.csv")]
    assert main(["bundle", "a", "--out", "a.zip"]) == Exit.WRONG_INPUT, "it is there already"


@pytest.mark.parametrize("limit", ["_MOST_BYTES", "_MOST_FILES", "_MOST_TIMES"])
def test_an_archive_that_would_fill_the_disk_is_refused(
    sweep: Path, packed: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    with zipfile.ZipFile(packed) as held:
        sizes = [entry.file_size for entry in held.infolist()]
    times = math.ceil(sum(sizes) / packed.stat().st_size)
    most = {"_MOST_BYTES": sum(sizes), "_MOST_FILES": len(sizes), "_MOST_TIMES": times}[limit]
    monkeypatch.setattr(archive, limit, most)
    assert unpacked(packed).is_dir()
    monkeypatch.setattr(archive, limit, most - 1)
    with pytest.raises(RecordError, match="allowed: up to"):
        unpacked(packed)
    with pytest.raises(RecordError, match="allowed: up to"):
        write_archive(sweep, packed.with_name("b.zip"))
    assert list(packed.parent.iterdir()) == [packed]


@pytest.mark.parametrize("name", ["../out.json", "/out.json", "link"])
def test_an_archive_that_leads_elsewhere_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK if name == "link" else stat.S_IFREG) << 16
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as held:
        held.writestr(entry, "/etc/passwd")
    assert main(["report", str(tmp_path / "b.zip")]) == Exit.WRONG_INPUT
    assert "plain files inside the archive" in capsys.readouterr().err
    (tmp_path / "b.zip").write_text("no archive")
    assert main(["report", str(tmp_path / "b.zip")]) == Exit.WRONG_INPUT
    assert "no whole archive" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["b.zip"]
