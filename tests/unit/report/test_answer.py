"""The lines that end a console: how many, how wide, and the data behind what they say."""

import html
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fakes.kept_sweep import NAMES, RESULTS, analysis_of, kept
from fakes.recorded import DDP, STEADY_3, Spec, analysed, crowd, edit_ranks, repeats, write_sweep
from fakes.requests import asked
from fakes.sections import printed
from scalewise.analysis import Analysis, LostTime, analyse, estimate, load_sweep, number
from scalewise.analysis.comparability import Difference
from scalewise.analysis.remedies import find_remedies, is_refused
from scalewise.analysis.scaling import Refused
from scalewise.cli.overrides import words_of
from scalewise.config import ConfigError
from scalewise.host import rows
from scalewise.records import UNCOUNTED
from scalewise.report import box, plots, report_sections
from scalewise.report.advice import advise
from scalewise.report.answer import MOST_WHOLE, answers, next_step, reasons
from scalewise.report.findings import command, remark_lines
from scalewise.report.page import render
from scalewise.report.plots import answer_plot, report_plots
from scalewise.report.sections import Line, Lines, Verbatim

NOISY = [1.0, 1.3, 0.8], [1.0, 0.7, 1.2]
MONITORED = {"tracking": {"name": "monitor"}}


def with_command(analysis: Analysis, command: str) -> Analysis:
    return replace(analysis, sweep=replace(analysis.sweep, command=tuple(shlex.split(command))))


def blocks(analysis: Analysis) -> list[tuple[Line, ...]]:
    """The lines of each configuration."""
    found = answers(analysis).blocks
    return [one.lines for one in found if isinstance(one, Lines) and one.tone == "answer"]


@pytest.mark.parametrize(
    ("sweep", "most"), [("cpu2_matrix", 11), ("h200x2_small", 14), ("h200x2_gpt2", 7)]
)
@pytest.mark.parametrize(("width", "columns"), [(80, 80), (120, 100), (10_000, 100)])
def test_a_matrix_ends_on_one_screen(sweep: str, most: int, width: int, columns: int) -> None:
    analysis = analysis_of(RESULTS / f"{sweep}.zip")
    said = printed(analysis, width, verbose=False).splitlines()
    assert len(said) <= most
    assert max(len(line) for line in said if "scalewise resume" not in line) <= columns
    for lines in blocks(analysis):
        assert lines[0].verdict and lines[0].subject
        assert sum(len(rows(f"  {line.text}", columns)) for line in lines[1:]) <= 3
        assert all(len(sentence.split()) <= 20 for line in lines for sentence in
                   line.text.split(". "))  # fmt: skip


def test_a_gain_names_no_samples_where_nobody_counted_them() -> None:
    sweep = load_sweep(RESULTS / "h200x2_gpt2.zip")
    unknown = {"global_batch_size": None, "per_device_batch_size": None}
    cells = tuple(replace(c, result=replace(c.result, **unknown)) for c in sweep.cells if c.result)
    found = analyse(replace(sweep, cells=cells))
    said = next_step(found, found.pairs[0])
    assert "wins back up to" in said and "samples" not in said


@pytest.mark.parametrize(("name", "weak"), [("cpu2_matrix", 0), ("h200x2_medium_cudagraph", 1)])
def test_of_weak_scaling_it_says_that_steps_differ(name: str, weak: int) -> None:
    said = answers(analysis_of(kept(name))).texts
    assert sum(text.startswith("Under weak scaling ") for text in said) == weak


def test_a_clause_is_not_torn_and_a_command_never_broken() -> None:
    assert rows("a figure of one, another of two (and more).", 24) == [
        "a figure of one,", "  another of two", "  (and more).",
    ]  # fmt: skip
    command = f"scalewise resume {'x' * 90} sweep.extend=4"
    broken = ["  Next, to decide:", f"  {command}", "  (2 min)."]
    assert rows(f"  Next, to decide: {command} (2 min).", 80) == broken
    script = f"  (scalewise run --devices 1,2 -- python {'x' * 60} --lr 1),"
    assert rows(f"ask for both{script[1:]} if so", 80) == ["ask for both", script, "  if so"]
    assert max(map(len, rows("word " * 60, 80))) <= 80
    assert [len(rows("ab, cd", width)) for width in (6, 5)] == [1, 2]
    assert rows("  scalewise resume /a/b", 20) == ["  scalewise resume /a/b"]
    assert len(rows(f"resumes: scalewise train x='[{'1, ' * 60}]'", 80)) == 1


def test_what_to_do_next_is_typed_and_not_tried_before(tmp_path: Path) -> None:
    found = analysed(tmp_path / "a", *repeats(Spec()), *repeats(DDP))
    typed = with_command(found, "train.py -m strategy=single,ddp 'hydra.x=a b'")
    (lines,) = blocks(typed)
    assert lines[0].verdict == "pays"
    assert any("add strategy.compression=bf16 (wins back up to" in line.text for line in lines)
    wanted = "python train.py -m strategy=single,ddp 'hydra.x=a b' strategy.compression=bf16"
    assert [one.text for one in answers(typed).blocks if isinstance(one, Verbatim)] == [wanted]
    known = with_command(found, "train.py -m strategy.compression=none strategy=single,ddp")
    (block,) = (one.text for one in answers(known).blocks if isinstance(one, Verbatim))
    assert block == "python train.py -m strategy.compression=bf16 strategy=single,ddp"
    tried = replace(DDP, config={"strategy": {"name": "ddp", "kind": "ddp", "compression": "bf16"}})
    again = analysed(tmp_path / "b", *repeats(Spec()), *repeats(tried))
    assert "compression" not in " ".join(line.text for line in blocks(again)[0])


@pytest.mark.parametrize(
    ("typed", "override", "pasted"),
    [
        ("strategy=fsdp", "strategy=single,ddp", "-m strategy=single,ddp"),
        ("-m strategy=fsdp,single strategy.reduce_dtype=bf16 strategy.devices=2",
         "strategy=single,ddp", "-m strategy=single,ddp strategy.devices=2"),
        ("batch_size=8 seed=1 batch_size=16", "batch_size=32", "batch_size=32 seed=1"),
        ("seed=1 repeats=1", "devices=1,2", "-m seed=1 repeats=3 devices=1,2"),
        ("seed=1 'x=$HOME b' sweep.resume=/home/x sweep.rerun=all", "seed=2", "seed=2 'x=$HOME b'"),
    ],
)  # fmt: skip
def test_the_command_to_paste_has_each_key_once_and_none_of_another_option(
    tmp_path: Path, typed: str, override: str, pasted: str
) -> None:
    found = with_command(analysed(tmp_path, Spec()), f"train.py {typed}")
    assert command(found, override) == f"python train.py {pasted}"


@pytest.mark.parametrize(
    ("strategy", "override", "refused"),
    [("fsdp", "execution=cudagraph", True), ("ddp", "execution=cudagraph", False),
     ("fsdp", "strategy.compression=bf16", True), ("ddp", "strategy.compression=bf16", False),
     ("ddp", "max_steps=1", True),
     ("ddp model._target_=mine.Net dataset=tabular scheduler=step", "execution=cudagraph", True)],
)  # fmt: skip
def test_a_setting_that_would_be_refused_is_not_offered(
    tmp_path: Path, strategy: str, override: str, refused: bool
) -> None:
    found = analysed(tmp_path, Spec(config=asked(*f"strategy={strategy}".split()).plain))
    assert is_refused(found.measured[0], override) is refused


@pytest.mark.parametrize("outcome", ["failed", "interrupted"])
@pytest.mark.parametrize(("unfinished", "extend"), [(0, 2), (1, 1), (2, None)])
def test_runs_that_a_resume_makes_in_any_case_are_not_asked_for_again(
    tmp_path: Path, outcome: str, unfinished: int, extend: int | None
) -> None:
    cut = [replace(one, repeat=1 + i, outcome=outcome)
           for i in range(unfinished) for one in (Spec(), DDP)]  # fmt: skip
    (said,) = [x for x in answers(analysed(tmp_path, Spec(), DDP, *cut)).texts if "resume" in x]
    assert said.partition("sweep.extend=")[2][:1] == ("" if extend is None else str(extend))
    assert (" failed cells " in said) == (outcome == "failed" and unfinished > 0)


@pytest.mark.parametrize("runs", [2, 3])
def test_more_runs_are_asked_for_once_for_all(tmp_path: Path, runs: int) -> None:
    """As many as the same line says are needed: first the three of a verdict."""
    other = replace(DDP, model="medium")
    found = analysed(
        tmp_path, *repeats(Spec(), NOISY[0]), *repeats(DDP, NOISY[1]),
        *repeats(replace(other, strategy="single", devices=1), NOISY[0][:runs]),
        *repeats(other, NOISY[1][:runs]),
    )  # fmt: skip
    assert [lines[0].verdict for lines in blocks(found)] == ["undecided", "undecided"]
    said = [text for text in answers(found).texts if "sweep.extend=" in text]
    assert len(said) == 1
    most = max(pair.judgement.more_runs or 0 for pair in found.pairs)
    needed = f"{most} (about {most} more runs" if runs == 3 else "1 (at least 1 more run"
    assert most >= 2 and f"sweep.extend={needed} of each" in said[0]
    beyond = [replace(p, judgement=replace(p.judgement, more_runs=None, more=""))
              for p in found.pairs]  # fmt: skip
    told = "More runs hardly decide it." in answers(replace(found, pairs=tuple(beyond))).texts
    assert told == (runs == 3), "no verdict has fewer"


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        (NOISY[1], "It leans to paying: 3 of 3 pairs"), ([1.0, 1.0, 2.9], "It leans to paying: 2"),
        ([1.5, 1.5, 0.6], "1 of 3 pairs reach the 1.10x wanted."),  # and a mean above it
        ([1.0, 1.0, 1.8, 1.8], "2 of 4 pairs reach the 1.10x wanted."),  # half are not most
    ],
)  # fmt: skip
def test_an_open_verdict_leans_where_mean_and_pairs_agree(
    tmp_path: Path, shares: list[float], said: str
) -> None:
    found = analysed(tmp_path, *repeats(Spec(), [1.0] * len(shares)), *repeats(DDP, shares))
    assert blocks(found)[0][1].text.startswith(said)
    (pair,) = found.pairs
    at_edge = replace(pair, speedup=replace(pair.speedup, value=pair.judgement.wanted))
    leans = blocks(replace(found, pairs=(at_edge,)))[0][1].text.startswith("It leans to paying")
    most = 2 * sum(run >= pair.judgement.wanted for run in pair.run_speedups) > len(shares)
    assert leans is most


def test_more_rounds_than_were_allowed_are_asked_for(tmp_path: Path) -> None:
    auto = {"repeats": "auto", "max_repeats": 3}
    each = zip((Spec(), DDP), NOISY, strict=True)
    specs = [one for spec, of in each for one in repeats(replace(spec, config=auto), of)]
    found = analysed(tmp_path, *specs)
    said = f" 3 runs in {sum(r.result.elapsed_s for c in found.measured for r in c.runs):.0f} s did"
    assert any(said in t and t.endswith(" max_repeats=6") for t in answers(found).texts)


def test_a_gain_is_told_where_the_losses_exceed_the_whole(tmp_path: Path) -> None:
    found = analysed(tmp_path, *repeats(Spec()), *repeats(DDP))
    ((name, budget),) = ((p.multi.config_id, found.budgets[p.multi.config_id]) for p in found.pairs)
    losses = (
        LostTime("transfer", 2.34, 0.1, ""), LostTime("long_steps", 0.3, 0.02, ""),
        LostTime("device_work", -1.5, -0.1, ""),
    )  # fmt: skip

    def said(measured_ms: float) -> str:
        made = replace(budget, ideal_ms=20.0, measured_ms=measured_ms, losses=losses)
        (lines,) = blocks(replace(found, budgets={**found.budgets, name: made}))
        return next(line.text for line in lines if line.text.startswith("Lost"))

    assert said(21.14).endswith(", offset by 1.50 saved on compute.")
    assert "1.50" not in said(23.0)
    losses = (*losses[:2], LostTime("copy", -4e-5, -2e-6, ""))
    assert "offset" not in said(21.14), "too small to tell"
    diverged = replace(DDP, final_loss=float("nan"))
    lost = analysed(tmp_path / "lost", *repeats(Spec()), *repeats(diverged))
    assert answers(lost).texts[0].startswith("train_loss "), "the name that was logged"


def test_no_change_wins_back_a_whole_step(tmp_path: Path) -> None:
    found = analysed(tmp_path, *repeats(Spec()), *repeats(DDP))
    (pair,) = found.pairs
    budget = found.budgets[pair.multi.config_id]
    for share, figure in ((1.2, ""), (0.9, number(0.9 * budget.measured_ms))):
        losses = (LostTime("transfer", share * budget.measured_ms, share, ""),)
        made = {pair.multi.config_id: replace(budget, losses=losses)}
        said = next_step(replace(found, remedies=find_remedies(found.measured, made)), pair)
        won, of = said.partition("wins back up to ")[2].split(" of ")
        assert won == (figure or won) and bool(re.search(r"\d", won)) == bool(figure)
        assert of.startswith(f"{number(budget.measured_ms)} ms")


@pytest.mark.parametrize(
    ("started", "field", "said"),
    [
        ("sweep", "precision", "Next: run both in one sweep, with equal precision."),
        ("sweep", "co_tenancy", "Next: on a quiet host, scalewise resume "),
        ("monitor", "co_tenancy", "Next: on a quiet host, run it again."),
        *(("sweep", c, "Next: with the code ") for c in ("code.file.net.py", "data_file.script")),
    ],
)
def test_rows_that_cannot_be_compared_say_what_to_equal(
    tmp_path: Path, started: str, field: str, said: str
) -> None:
    by = {"tracking": {"name": started}}
    found = analysed(tmp_path, *(r for s in (Spec(), DDP) for r in repeats(replace(s, config=by))))
    refused = Refused(found.pairs[0].multi, "it differs", (Difference(field, "a", "b"),))
    told = [line.text for block in blocks(replace(found, pairs=(), refused=(refused,)))
            for line in block]  # fmt: skip
    assert [line.startswith(said) for line in told].count(True) == 1


@pytest.mark.parametrize("runs", [2, 3])
def test_more_than_linear_is_no_figure_of_too_few_runs(tmp_path: Path, runs: int) -> None:
    half = replace(DDP, phases_ms={name: ms / 2 for name, ms in DDP.phases_ms.items()})
    steady = STEADY_3[:runs]
    path = write_sweep(tmp_path, [*repeats(Spec(), steady), *repeats(half, steady)])
    edit_ranks(path, lambda rank: rank.update(allocation_retries=1), "*single*")
    (lines,) = blocks(analyse(load_sweep(path)))
    assert ("cannot show more than linear" in lines[0].text) == (runs < 3)


def test_what_is_invalid_comes_first_in_detail(tmp_path: Path) -> None:
    wild = (Spec(model="wild"), replace(DDP, model="wild", final_loss=float("nan")))
    found = analysed(tmp_path, *(run for side in (Spec(), DDP, *wild)
                                 for run in repeats(side)))  # fmt: skip
    assert [verdict for _, verdict, _ in reasons(found)] == ["invalid", "pays"]


def test_rows_that_share_a_reason_share_its_line(tmp_path: Path) -> None:
    ((line,),) = blocks(analysed(tmp_path, DDP, replace(DDP, model="medium")))
    assert (line.verdict, line.subject) == ("not comparable", "large ddp x2 and 1 more")


def test_of_many_configurations_the_verdicts_are_said(tmp_path: Path) -> None:
    models = [f"m{i}" for i in range(MOST_WHOLE + 1)]
    found = analysed(
        tmp_path, *(replace(spec, model=model) for model in models for spec in (Spec(), DDP))
    )
    assert [len(lines) for lines in blocks(found)] == [1] * len(models)


@pytest.mark.parametrize(
    ("specs", "said", "ways"),
    [
        ([Spec(outcome="failed"), Spec(seed=8, outcome="refused")], "No cell finished", 0),
        ([Spec(outcome="refused")], "refused: python train.py max_epochs=3 seed=1", 1),
        ([Spec(), Spec(seed=8, outcome="refused")], "Nothing ran on several", 1),
        ([Spec(config=MONITORED)], "run the script on several", 0),
        ([Spec(config={"max_epochs": 3}), replace(DDP, outcome="failed")], "No cell on several", 1),
        ([Spec(warmup=60)], "No training was timed", 0),
        ([Spec(warmup=60, config={"max_epochs": 3})], "python train.py max_epochs=null seed=1", 1),
        ([Spec(warmup=60, config=MONITORED | {"max_epochs": 3})], "No training was timed", 0),
    ],
)
def test_a_sweep_without_comparison_says_why(
    tmp_path: Path, specs: list[Spec], said: str, ways: int
) -> None:
    texts = answers(with_command(analysed(tmp_path, *specs), "train.py max_epochs=3 seed=1")).texts
    assert sum(said in text for text in texts) == 1
    assert sum(text.startswith("Next: ") for text in texts) == ways


def test_the_gravest_doubt_stands_with_the_number_of_all(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [*repeats(Spec()), *repeats(DDP)])
    edit_ranks(path, lambda rank: rank.update(steps_without_loss=1))
    edit_ranks(path, lambda rank: rank["missing"].update(shard_audit="a stream"))
    found = analyse(load_sweep(path))
    (lines,) = blocks(found)
    more = re.search(r"^Doubt: 2 devices: 1 of 60 .*; (\d) more reported\.$", lines[-1].text)
    assert more and int(more[1]) == sum(one.gravity != "note" for one in remark_lines(found)) - 1
    assert len(lines) <= 4
    (both,) = (one for one in remark_lines(found) if one.first.code == "few_untrained")
    assert both.names == "large ddp x2, large single x1"
    (fed,) = (one for one in remark_lines(found) if one.first.code == "no_shard_audit")
    assert fed.names == "large ddp x2", "one rank alone feeds what no other does"
    assert answers(found).texts[-1] == f"{len(remark_lines(found))} remarks are in the report."
    edit_ranks(path, lambda rank: rank.update(data_shard=0))
    assert fed not in remark_lines(analyse(load_sweep(path))), "as stages are to"


@pytest.mark.parametrize("ended", [3, 1])
def test_a_remark_on_several_configurations_counts_the_runs_of_all_that_ended(
    tmp_path: Path, ended: int
) -> None:
    single = repeats(Spec())
    single[ended:] = [replace(one, outcome="failed") for one in single[ended:]]
    path = write_sweep(tmp_path, [*single, *repeats(DDP)])
    edit_ranks(path, lambda rank: rank.update(steps_without_loss=40))
    found = analyse(load_sweep(path))
    (line,) = (one for one in remark_lines(found) if one.first.code == "untrained")
    assert len(line.about) == 2 and not line.often, "it holds of all"


@pytest.mark.parametrize(
    ("factors", "held", "end"),
    [(NOISY[1], "ddp", "."), (STEADY_3, "single", " (0.97x without that)."),
     ([1.5, 1.52, 1.48], "*", " (1.13x without that).")],
)  # fmt: skip
def test_an_open_verdict_begins_with_who_held_the_cores(
    tmp_path: Path, factors: list[float], held: str, end: str
) -> None:
    several = repeats(replace(DDP, kind="cpu"), factors)
    path = write_sweep(tmp_path, [*repeats(Spec(kind="cpu")), *several])
    crowd(path, f"*-{held}-*")
    found = analyse(load_sweep(path))
    (lines,) = blocks(found)
    assert lines[0].verdict == "undecided"
    side = found.pairs[0].multi if held == "ddp" else found.pairs[0].single
    loss = found.budgets[side.config_id].loss("contention")
    assert loss is not None and loss.is_limit
    assert lines[1].text.endswith(f"{number(loss.ms)} of {number(side.step_ms)} ms a step{end}")
    assert (" and " in lines[1].text) == (held == "*"), "what is without that is without both"
    assert not any("others held" in line.text for line in lines[2:])
    fast = {name: ms / 3 for name, ms in DDP.phases_ms.items()}
    few = [run for side in (Spec(kind="cpu"), replace(DDP, kind="cpu", phases_ms=fast))
           for run in repeats(side, [1.0, 1.06])]  # fmt: skip
    crowd(write_sweep(tmp_path / "few", few), "*-single-*")
    (lines,) = blocks(analyse(load_sweep(tmp_path / "few")))
    assert [line.text.partition(": ")[0] for line in lines[2:]] == ["Lost", "Doubt"], "of one thing"


@pytest.mark.parametrize("monitored", [False, True], ids=["sweep", "script"])
def test_a_disturbed_run_is_asked_for_once_more(tmp_path: Path, monitored: bool) -> None:
    asked = {"repeats": "auto", **(MONITORED if monitored else {})}
    busy = [replace(one, foreign_cpu=0.9 if one.repeat == 1 else 0.01, config=asked)
            for one in repeats(DDP)]  # fmt: skip
    found = analysed(tmp_path, *repeats(replace(Spec(), config=asked)), *busy)
    assert len(found.pairs[0].multi.set_aside) == 1
    (said,) = [text for text in answers(found).texts if "1 of your 3 runs was disturbed" in text]
    assert "run 1 more" in said
    assert ("scalewise resume" in said) is not monitored


def test_of_steps_that_count_as_samples_no_rate_is_told(tmp_path: Path) -> None:
    write_sweep(tmp_path, repeats(Spec()))
    missing = {UNCOUNTED: "within a graph", "validation": "x", "checkpoint": "y"}
    edit_ranks(tmp_path, lambda rank: rank["missing"].update(missing))
    stopped = {"by": "EarlyStopping", "epoch": 2, "monitor": "val_loss"}
    edit_ranks(tmp_path, lambda rank: rank.update(stopped=stopped), "*-r1")
    found = analyse(load_sweep(tmp_path))
    (one,) = found.measured
    first, told = answers(found).texts[0], "stopped early by EarlyStopping on val_loss in epoch 2"
    assert f"{one.label}: {told} in 1 of 3 runs." in answers(found).texts
    assert estimate(one.estimate("step_time_ms")) + " ms a step" in first
    assert "samples/s" not in first
    said = [text.partition(": ")[2] for text in answers(found).texts]
    assert [said.count(f"{why}.") for why in "xy"] == [1, 1]
    with pytest.raises(ConfigError, match="found one without samples/s: within a graph"):
        advise(found, None)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("model=large", "add -m strategy=single,ddp "),
        ("devices=1", "set -m devices=1,2 "),
        ("-m strategy=single seed=1,2", "set strategy=single,ddp "),
    ],
)
def test_what_compares_devices_is_said_as_typed(tmp_path: Path, typed: str, said: str) -> None:
    texts = answers(with_command(analysed(tmp_path, Spec()), f"train.py {typed}")).texts
    assert any(said in text for text in texts)
    assert texts[1].endswith("batch_size=256 (nothing but work of the device takes time).")


# answer.png: every comparison, every run, and what leaves the scale.
def test_it_has_the_verdict_every_run_and_the_cost(tmp_path: Path) -> None:
    found = analysed(tmp_path, *repeats(Spec(), [1, 1.02, 0.98]), *repeats(DDP, [1, 0.98, 1.02]))
    figure = answer_plot(found)
    (pair,) = found.pairs
    assert pair.verdict in figure.get_suptitle()
    speedups, costs = figure.axes
    (runs,) = [one for one in speedups.get_lines() if one.get_marker() == "o"]
    assert np.exp(np.log(runs.get_xdata()).mean()) == pytest.approx(pair.speedup.value)
    assert len(runs.get_xdata()) == 3
    assert [one.get_xdata()[0] for one in costs.get_lines() if one.get_marker() == "D"] == [
        pytest.approx(pair.devices / pair.speedup.value)
    ]
    # From left to right: does not pay below what is wanted, pays from there on.
    assert sorted(bar.get_x() for bar in speedups.patches) == [0, 1.1]


def test_no_comparison_is_no_picture(tmp_path: Path) -> None:
    found = analysed(tmp_path, Spec(), Spec(model="other"))
    assert answer_plot(found) is None
    assert [name for name, draw in report_plots(found).items() if draw()] == [
        "throughput.png", "step_anatomy.png",
    ]  # fmt: skip
    panels = report_plots(found)["throughput.png"]().axes
    assert [bool(one.get_xlabel()) for one in panels] == [False, True]


def test_more_rows_than_a_picture_holds_are_drawn_on_the_page_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "_MOST_DRAWN", 2)
    other = Spec(model="other")
    found = analysed(tmp_path, *repeats(Spec(), [1, 1.01]), *repeats(DDP, [1, 1.01]), other)
    assert [name for name, draw in report_plots(found).items() if draw()] == ["answer.png"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_pasted_into_an_issue_is_short_and_stands_on_its_own(name: str) -> None:
    analysis = analysis_of(kept(name))
    said = box(analysis)
    assert said[0] == said[-1] == "```"
    assert len(said) <= 12
    assert max(map(len, said)) <= 80
    assert "".join(said).isascii()
    known = [cell.provenance for cell in analysis.sweep.cells if cell.provenance]
    for fact in (known[0].host, f"torch {known[0].packages['torch']}", known[0].devices[0].name):
        assert any(fact in line for line in said)


def test_it_has_every_verdict_before_any_reason() -> None:
    said = box(analysis_of(kept("cpu2_matrix")))
    starts = [line for line in said if not line.startswith(" ")]
    assert starts[1].startswith("python train.py -m experiment=matrix_medium,matrix_gpt2_tiny")
    assert starts[2].startswith("gpt2_tiny ddp x2: pays. 1.65x")
    assert starts[3].startswith("medium ddp x2: does not pay. 0.58x")
    assert "  Lost 5.76 ms a step: 3.23 exposed transfer, 1.12 waiting for a core." in said
    # Not all of the rest has room, and a doubt goes before it.
    assert any(line.startswith("  Doubt: 2 devices: speedup 0.58") for line in said)


def test_of_more_verdicts_than_it_has_room_for_it_counts_the_rest(tmp_path: Path) -> None:
    specs = [run for name in [f"model_{i}" for i in range(9)] for side in (Spec(), DDP)
             for run in repeats(replace(side, model=name))]  # fmt: skip
    said = box(analysed(tmp_path, *specs))
    verdicts = [line for line in said if line.startswith("model_")]
    after = said[said.index(verdicts[-1]) + 1]
    assert after == f"{9 - len(verdicts)} more verdicts are in the report."
    assert len(said) <= 12


def test_of_runs_that_failed_it_says_why(tmp_path: Path) -> None:
    said = box(analysed(tmp_path, Spec(outcome="failed")))
    assert any("out of memory" in line for line in said)
    assert any("nothing is known of the host" in line for line in said)
    assert any("1 cell: 1 failed." in line for line in said)


def test_a_script_is_told_by_the_command_that_was_typed(tmp_path: Path) -> None:
    typed = words_of(["python", "my train.py", "--lr", "0.1"], "1,2", "30s", "3", ["seed=1"])
    script = Spec(config={"script": {"command": "python 'my train.py' --lr 0.1"}})
    asked = with_command(analysed(tmp_path, script), shlex.join(["scalewise train", *typed]))
    assert command(asked) == (
        "scalewise run --devices 1,2 --repeats 3 --time 30 --set seed=1 -- "
        "python 'my train.py' --lr 0.1"
    )
    assert html.escape(command(asked)) in render("", asked, report_sections(asked))


@pytest.mark.parametrize(("ran", "devices"), [(Spec(), "1,2"), (replace(DDP, devices=4), "1,4")])
def test_a_one_sided_script_is_asked_for_both(tmp_path: Path, ran: Spec, devices: str) -> None:
    typed = (*words_of(["python", "t.py"], "1", "9", "1", ["seed=1,2", "sweep.resume=/a"]),)
    script = replace(ran, config={"script": {"command": "python t.py --lr 0.1"}}, typed=typed)
    (said,) = [one for one in answers(analysed(tmp_path, script)).texts if "one device" in one
               or "several devices" in one]  # fmt: skip
    kept = "--time 9 --set seed=1,2 -- python t.py --lr 0.1)"
    assert f"run --devices {devices} --repeats 3 {kept}" in said
