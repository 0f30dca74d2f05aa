"""What is written and drawn of kept sweeps, line by line; of long fractions four digits."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fakes.golden import hold
from fakes.kept_sweep import RESULTS, analysis_of, kept
from scalewise.cli import main
from scalewise.report import build_study, builder
from scalewise.report.page import page_data

SWEEPS = (
    "cpu2_matrix", "h100x2_thresholds", "h100x4_slow_rank", "h200x2_mlp_study", "h200x2_planted",
    "h200x2_strategies", "rehearsal/gpt2_x4_nvlink", "scripts_cpu2",
)  # fmt: skip


COMMANDS = (
    "status cpu2_matrix.zip",
    "advise h100x2_thresholds.zip --samples 1e9",
    "advise rehearsal/gpt2_x4_nvlink.zip --samples 1e9 --price usd_per_hour=2",
    "score rehearsal/gpt2_x4_nvlink.zip rehearsal/medium_x4_nvlink.zip",
    "compare h200x2_anatomy/nvlink.zip h200x2_anatomy/p2p_off.zip",
    "compare h200x2_gpt2.zip h200x2_gpt2_nop2p.zip --factor link",
    "compare rehearsal/gpt2_medium_nvlink.zip rehearsal/gpt2_large_nvlink.zip",
    "compare cpu2_matrix.zip h200x2_small.zip",
)


def thinned(every: Sequence[Any], most: int) -> list[Any]:
    return [every[i] for i in dict.fromkeys(np.linspace(0, len(every) - 1, most).astype(int))]


def drawn(axes: Axes) -> Iterator[object]:
    """Words, limits, and each line, bar and text in units of the data."""
    yield axes.get_title("left"), axes.get_title(), axes.get_xlabel(), axes.get_ylabel()
    yield np.array([axes.get_xlim(), axes.get_ylim()]).tolist(), axes.get_xscale()
    for line in axes.get_lines():
        yield str(line.get_label()).partition("_child")[0], line.get_linestyle(), line.get_marker()
        yield from (thinned(np.asarray(ends, float).tolist(), 20) for ends in line.get_data())
    for patch in axes.patches:
        extent = patch.get_path().get_extents(patch.get_patch_transform()).bounds
        yield patch.get_label(), np.array([*patch.get_facecolor(), *extent]).tolist()
    for text in axes.texts:
        yield [float(at) for at in text.get_position()], text.get_text()


def told(name: str, folder: Path, figures: dict[str, Figure]) -> Iterator[object]:
    analysis = analysis_of(kept(name))
    builder.build(analysis, folder)
    build_study(analysis, folder)
    for path in sorted(folder.rglob("*.*")):
        if path.suffix in (".csv", ".md", ".tex", ".txt"):
            lines = path.read_text().splitlines()
            most = 60 if path.suffix == ".csv" else 3000
            yield from (f"# {path.name}: {len(lines)} lines", *thinned(lines, most))
    for picture, figure in sorted(figures.items()):
        yield f"# {picture}", figure.get_size_inches().tolist(), figure.get_suptitle()
        yield from (one for axes in figure.axes for one in drawn(axes))
    yield from ("# page", *thinned(json.dumps(page_data(analysis), indent=1).splitlines(), 500))


@pytest.mark.parametrize("name", SWEEPS)
def test_reports_and_studies_of_kept_sweeps_stay(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: dict[str, Figure]
) -> None:
    monkeypatch.chdir(kept(name).parent)  # from where its name is all there is of its path
    hold(name, "\n".join(map(str, told(name, tmp_path, figures))))


@pytest.mark.parametrize("command", COMMANDS)
def test_what_commands_say_of_kept_sweeps_stays(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(RESULTS)
    monkeypatch.setenv("COLUMNS", "110")
    main(command.split())
    hold(re.sub(r"\W+", "_", command), "".join(capsys.readouterr()))
