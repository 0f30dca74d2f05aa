"""What kept sweeps come to stays, number by number: a change of one is seen, and on purpose."""

import io
import json
import os
import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from rich.console import Console

from fakes.kept_sweep import NAMES, RESULTS, analysis_of, kept
from scalewise.cli import main
from scalewise.config import ConfigError
from scalewise.report import advise, box, build_study, builder
from scalewise.report.export import results_csv
from scalewise.report.page import page_data
from scalewise.report.sections import markdown

GOLDEN = Path(__file__).parents[2] / "golden"
SWEEPS = (
    "cpu2_matrix", "h100x2_thresholds", "h100x4_slow_rank", "h200_measuring/x1/precisions",
    "h200_measuring/x1/trace", "h200x2_anatomy/nvlink", "h200x2_medium_cudagraph",
    "h200x2_mlp_study", "h200x2_planted", "h200x2_strategies", "rehearsal/gpt2_x4_nvlink",
    "rehearsal/gpt2_x4_weak_nvlink", "rehearsal/gpt2_xl_x4_busy_host",
    "rehearsal/mlp_x2_graphs_nvlink", "rehearsal/sized_x4_nvlink", "rehearsal/text_x4_h100",
    "scripts_cpu2",
)  # fmt: skip


def stays(found: pd.DataFrame, path: Path, digits: int) -> None:
    if "UPDATE_DOCS" in os.environ:
        path.parent.mkdir(parents=True, exist_ok=True)
        found.to_csv(path, float_format=f"%.{digits}g")
    golden = pd.read_csv(path, index_col=0)
    pd.testing.assert_frame_equal(found, golden, check_dtype=False, rtol=100 * 10.0**-digits)


@pytest.mark.parametrize("name", SWEEPS)
def test_figures_of_kept_sweeps_stay(name: str) -> None:
    found = pd.read_csv(io.StringIO(results_csv(analysis_of(kept(name)))))
    found = found.set_index("configuration").select_dtypes("number")
    stays(found, GOLDEN / "figures" / f"{name}.csv", digits=6)


@pytest.mark.parametrize("name", SWEEPS)
def test_numbers_of_every_file_screen_and_picture_stay(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: dict[str, Figure]
) -> None:
    """Of each, how many; and a sum to which each adds by its place, small ones as large ones."""
    monkeypatch.chdir(RESULTS.parents[1])
    analysis = analysis_of(kept(name))
    builder.build(analysis, tmp_path)
    build_study(analysis, tmp_path)
    files = (path for path in sorted(tmp_path.rglob("*.*")) if path.name not in figures)
    told = {path.name: path.read_text() for path in files}
    told["report.html"] = json.dumps(page_data(analysis))
    builder.print_console(analysis, Console(file=(said := io.StringIO()), width=80), verbose=True)
    told |= {"screen": said.getvalue(), "issue": "\n".join(box(analysis))}
    with suppress(ConfigError):  # nothing that was timed ran on one device
        told["advice"] = markdown("", advise(analysis, 10**9))
    for picture, made in figures.items():
        lines = [line.get_xydata().tolist() for axes in made.axes for line in axes.lines]
        drawn = [axes.axis() for axes in made.axes], *made.findobj(Rectangle), *made.findobj(Text)
        told[picture] = f"{made.get_size_inches()} {lines} {[*map(str, drawn)]}"
    here = {form: text.replace(str(kept(name).parent), "") for form, text in told.items()}
    forms_stay(here, GOLDEN / "forms" / f"{name}.csv")


def forms_stay(told: dict[str, str], path: Path) -> None:
    rows = {}
    for form, text in told.items():
        numbers = [*map(float, re.findall(r"(?<![\w/])\d+(?:\.\d+)?(?:e[-+]\d+)?", text))]
        summed = np.arcsinh(numbers) @ (1 + np.arange(len(numbers)) % 7)
        rows[form] = {"count": len(numbers), "sum": summed}
    stays(pd.DataFrame(rows).T.rename_axis("form"), path, digits=9)


COMMANDS = (
    "compare h200x2_anatomy/nvlink h200x2_anatomy/p2p_off --factor link",
    "compare rehearsal/gpt2_16_nvlink rehearsal/gpt2_p2p_off rehearsal/gpt2_x4_fsdp",
    "compare cpu2_matrix scripts_cpu2 --out OUT", "status h200x2_planted --json",
    "score rehearsal/gpt2_32_x4_p2p_off rehearsal/mlp_x4_graphs rehearsal/text_base_x2",
)  # fmt: skip


def test_what_commands_say_of_kept_sweeps_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(RESULTS)
    monkeypatch.setenv("COLUMNS", "80")
    told, places = {}, {"OUT": str(tmp_path), **{name: f"{name}.zip" for name in NAMES}}
    for command in COMMANDS:
        main([places.get(word, word) for word in command.split()])
        told[command] = capsys.readouterr().out.replace(str(tmp_path), "")
    told |= {path.name: path.read_text() for path in sorted(tmp_path.glob("comparison.*"))}
    forms_stay(told, GOLDEN / "forms" / "commands.csv")
