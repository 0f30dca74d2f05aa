"""What ``scalewise score`` shows of the kept rehearsals, which the docs show too."""

import os
from pathlib import Path

import pytest

from fakes.kept_sweep import analysis_of, kept
from scalewise.cli import main

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs/rehearsal.md"
KEPT = sorted((ROOT / "docs/results/rehearsal").iterdir())


@pytest.mark.parametrize(
    ("mark", "words"),
    [
        ("score", ["score", *map(str, KEPT)]),
        ("advice", ["advise", *(str(path) for path in KEPT if path.name == "gpt2_p2p_off.zip")]),
    ],
)
def test_the_docs_show_what_is_said_of_the_kept_sweeps(
    mark: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    begin, end = f"<!-- {mark}: begin -->\n```\n", f"```\n<!-- {mark}: end -->"
    assert main(words) == 0
    said = "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines())
    text = DOCS.read_text()
    before, _, rest = text.partition(begin)
    made = f"{before}{begin}{said}{end}{rest.partition(end)[2]}"
    if "UPDATE_DOCS" in os.environ:
        DOCS.write_text(made)
    else:
        assert made == text, "UPDATE_DOCS=1 pytest tests/unit/report/test_score.py"


def test_a_folder_of_sweeps_is_read_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    two = sorted((ROOT / "docs/results/rehearsal").glob("gpt2_[8f]*.zip"))
    assert main(["score", *map(str, two)]) == 0
    each = capsys.readouterr().out
    for archive in two:
        (tmp_path / archive.stem).symlink_to(kept(f"rehearsal/{archive.stem}"))
    assert main(["score", str(tmp_path)]) == 0
    assert capsys.readouterr().out == each
    assert len([line for line in each.splitlines() if "──" in line]) == 2, "a table in one piece"


def test_the_readme_shows_an_answer_of_a_kept_sweep() -> None:
    found = analysis_of(kept("rehearsal/gpt2_x4_weak_nvlink"))
    (four,) = (one for one in found.rehearsals if one.record.ranks == 4)
    assert " ".join(str(four).split()) in " ".join((ROOT / "README.md").read_text().split())
