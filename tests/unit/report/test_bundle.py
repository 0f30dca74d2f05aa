"""A bundle has every figure of its sweep, and nothing that names a person or a machine."""

from __future__ import annotations

import getpass
import json
import re
import socket
import stat
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.recorded import DDP, START, Spec, repeats, write_sweep
from scalewise.analysis import analyse, load_sweep
from scalewise.cli import main
from scalewise.host import CLASS_FILES
from scalewise.records import CellFolder, RankError
from scalewise.report import BundleError, bundle, results_json, unpack_bundle, write_bundle

HOST = "gpu-9f8e7d6c5b4a"
SECRETS = ("jane.doe", "acme_labs", "node17.acme", "/mnt/vault", "my data", "10.1.2.3", HOST,
           "9f8e7d6c5b4a", "moonshot", "GPU-0000", "hush", "zq81", "qv93")  # fmt: skip
TRACE = """Traceback (most recent call last):
  File "/home/jane.doe/work/train.py", line 3, in <module>
  File "/home/jane.doe/venv/lib/python3.11/site-packages/torch/nn/module.py", line 9, in call
OSError: /mnt/vault/my data: hush on node17.acme (10.1.2.3), token=zq81-secret, by qv93-secret"""


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = {
        "tracking": {"name": "wandb", "project": "moonshot", "entity": "acme_labs", "tags": []},
        "dataset": {"name": "text", "root": "/mnt/vault/my data"},
    }
    one = Spec(host=HOST, config=config)
    two = replace(DDP, host=HOST, config=config)
    factors = [1.0, 1.02, 0.99]
    specs = [*repeats(one, factors), *repeats(two, factors[::-1])]
    specs.append(replace(one, model="own", outcome="failed"))
    folder = write_sweep(tmp_path_factory.mktemp("sweep"), specs)
    failed = CellFolder(next(folder.glob("*own*")))
    failed.save_rank_error(RankError(0, START + 1, "exception", TRACE.splitlines()[-1], TRACE))
    (attempt,) = failed.attempts()
    failed.save_attempt(replace(attempt, message=TRACE.splitlines()[-1], last_lines=(TRACE,)))
    for name in ("logs/rank0.err", "checkpoints/last.pt", "wandb/run.wandb", "notes.json"):
        (failed.path / name).parent.mkdir(exist_ok=True)
        (failed.path / name).write_text("hush")
    done = CellFolder(next(folder.glob("*ddp*")))
    known = done.load_provenance()
    files = {CLASS_FILES: {"bluebird/nets.py": "0" * 64}}
    done.save_provenance(replace(known, code={**known.code, **files}))
    return folder


@pytest.fixture(scope="module")
def sent(sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: "node17.acme")
        patch.setenv("ACME_API_KEY", "qv93-secret")
        out = tmp_path_factory.mktemp("sent") / "b.zip"
        return write_bundle(sweep, out, hide=["hush"]).path


def _content(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        return "\n".join([*names, *(archive.read(one).decode("latin-1") for one in names)])


def _numbers(value: Any) -> Any:
    """The same structure, without its texts."""
    match value:
        case dict():
            return [_numbers(one) for one in value.values()]
        case list():
            return list(map(_numbers, value))
        case _:
            return type(value) if isinstance(value, str) else value


def test_its_figures_are_those_of_the_folder(sweep: Path, sent: Path, tmp_path: Path) -> None:
    assert unpack_bundle(sent, tmp_path) == ()
    here, there = (json.loads(results_json(analyse(load_sweep(p)))) for p in (sweep, tmp_path))
    assert _numbers(there) == _numbers(here)
    assert here["configurations"][1]["comparison"]["speedup"]["interval"]
    assert [c["label"] for c in there["configurations"]] == [
        c["label"] for c in here["configurations"]
    ]


def test_nothing_in_it_names_a_person_or_a_machine(sweep: Path, sent: Path) -> None:
    content = _content(sent)
    user = getpass.getuser()
    for secret in (*SECRETS, str(sweep), sweep.name, *([user] if user != "root" else [])):
        assert secret not in content
    assert "torch/nn/module.py" in content, "public code helps whoever reads the traceback"
    assert "large" in content and "own" in content


def test_names_of_the_subject_are_hashed_on_request(sweep: Path, tmp_path: Path) -> None:
    written = write_bundle(sweep, tmp_path / "b.zip", hash_names=True)
    assert not re.search(r"\b(large|own|bluebird|nets)\b", _content(written.path))
    assert written.hidden["model"] == 2
    unpack_bundle(written.path, tmp_path / "there")
    (pair,) = analyse(load_sweep(tmp_path / "there")).pairs
    assert pair.devices == 2


def test_it_stays_below_its_limit_and_says_so(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "MOST_BYTES", 90_000)
    written = write_bundle(sweep, tmp_path / "b.zip")
    assert written.size_bytes <= 90_000
    assert written.left_out
    assert all(one.split(" ")[1] == "of" for one in written.left_out)
    assert unpack_bundle(written.path, tmp_path / "there") == written.left_out
    with pytest.raises(BundleError, match="allowed: a new one"):
        write_bundle(sweep, written.path)


@pytest.mark.parametrize(
    ("limit", "most"), [("MOST_BYTES", 100), ("_MOST_UNPACKED", 1000), ("_MOST_FILES", 2)]
)
def test_an_archive_that_would_fill_the_memory_is_refused(
    sent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(bundle, limit, most)
    with pytest.raises(BundleError, match=r"allowed: (records of )?up to"):
        unpack_bundle(sent, tmp_path / "there")
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("name", ["../out.json", "/out.json", "link"])
def test_an_archive_that_leads_elsewhere_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK if name == "link" else stat.S_IFREG) << 16
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr(entry, "/etc/passwd")
    assert main(["report", str(tmp_path / "b.zip"), "--out", str(tmp_path / "r")]) == 2
    assert "plain files inside the bundle" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()
    assert not (tmp_path.parent / "out.json").exists()
    (tmp_path / "b.zip").write_text("no archive")
    with pytest.raises(BundleError, match="no whole bundle"):
        unpack_bundle(tmp_path / "b.zip", tmp_path / "r")
