"""Rows are told apart by what was swept, in as few words as it takes."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fakes.recorded import DDP, Spec, analysed, edit_ranks, swept, write_sweep
from fakes.sections import lines_of
from scalewise.analysis import analyse, configurations, load_sweep, swept_words
from scalewise.analysis.comparability import cut
from scalewise.analysis.labels import named, swept_order
from scalewise.analysis.model import Sweep
from scalewise.records import PlannedCell


def test_a_group_is_called_by_its_name_or_its_class() -> None:
    for group, name in (
        ({"name": "mine", "_target_": "a.Net"}, "mine"), ({"_target_": "a.Net"}, "Net"),
        ({}, None), ("typed", "typed"), (None, None),
    ):  # fmt: skip
        assert named({"model": group}, "model") == name


def adam(lr: float, **more: Any) -> dict[str, Any]:
    return {"optimizer": {"name": "adam", "lr": lr, **more}}


BF16 = {"precision": {"name": "bf16-mixed", "lightning": "bf16"}}
GRAPH = [{"strategy": {"name": "ddp", "static_graph": on}} for on in (False, True)]


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ([Spec(), DDP], {"large single x1", "large ddp x2"}),
        ([Spec(config=adam(0.1)), Spec(config=adam(0.01))],
         {"large single x1 lr=0.1", "large single x1 lr=0.01"}),
        # Arguments that come with another optimizer are told by its name.
        ([Spec(), Spec(config={"optimizer": {"name": "sgd", "lr": 0.5, "momentum": 0.9}})],
         {"large single x1 optimizer=adam", "large single x1 optimizer=sgd"}),
        # What failed names what it did otherwise; the rows that it was to stand beside do not.
        ([Spec(), DDP, Spec(outcome="failed", config={"optimizer": {"name": "sgd", "lr": 0.5}})],
         {"large single x1", "large ddp x2", "large single x1 optimizer=sgd"}),
        ([Spec(config=adam(0.1, beta=1)), Spec(outcome="failed", config=adam(0.1))],
         {"large single x1 beta=1", "large single x1"}),
        # One that was typed is named beside it.
        ([Spec(typed=("optimizer.lr=0.001",)),
          Spec(config={"optimizer": {"name": "sgd", "lr": 0.5}})],
         {"large single x1 lr=0.001 optimizer=adam", "large single x1 lr=0.5 optimizer=sgd"}),
        # A key that is there with another one alone, and always the same, tells nothing more.
        ([Spec(), *(Spec(config=adam(0.001, momentum=m, nesterov=True)) for m in (0.8, 0.9))],
         {"large single x1", "large single x1 momentum=0.8", "large single x1 momentum=0.9"}),
        # Every leaf that differs is named, though fewer would tell rows apart.
        ([replace(DDP, batch_size=64, config=GRAPH[0]),
          replace(DDP, batch_size=128, config={**BF16, **GRAPH[1]}), Spec(batch_size=64)],
         {"large ddp x2 precision=fp32 batch_size=64 static_graph=false",
          "large ddp x2 precision=bf16-mixed batch_size=128 static_graph=true",
          "large single x1 precision=fp32 batch_size=64"}),
        # Two keys of the same last part are written in full.
        ([Spec(config={**adam(lr), "schedule": {"name": "none", "lr": 10 * lr}})
          for lr in (0.1, 0.2)],
         {f"large single x1 optimizer.lr={lr} schedule.lr={10 * lr}" for lr in (0.1, 0.2)}),
    ],
)  # fmt: skip
def test_labels_tell_what_was_swept(tmp_path: Path, specs: list[Spec], expected: set[str]) -> None:
    assert {c.label for c in configurations(swept(tmp_path, *specs))} == expected


def test_long_fractions_have_four_digits_in_labels_alone(tmp_path: Path) -> None:
    """Those that are equal in them have their ids."""
    rates = (0.0017826497151386949, 0.01026603003516425, 0.01026603003516426)
    found = configurations(swept(tmp_path, *(Spec(config=adam(lr)) for lr in rates)))
    words = [c.label.removeprefix("large single x1 ") for c in found]
    assert words[0] == "lr=0.001783"
    assert all(word.startswith("lr=0.01027 ") for word in words[1:])
    assert (len({*words}), {c.leaves["optimizer.lr"] for c in found}) == (3, {*map(str, rates)})


def test_what_differs_between_models_alone_is_in_no_label_and_in_the_leaves(tmp_path: Path) -> None:
    longest = "x" * 200
    assert (cut(longest + "x")[:184], len(cut(longest + "x"))) == ("x" * 183 + "~", 200)
    other = Spec(model="medium", seed=8, config={"note": longest})
    found = configurations(swept(tmp_path, Spec(batch_size=64), other))
    assert [c.label for c in found] == ["large single x1", "medium single x1"]
    assert [dict(c.leaves) for c in found] == [
        {"batch_size": "64", "seed": "7"}, {"batch_size": "128", "seed": "8", "note": longest}
    ]  # fmt: skip


def test_cells_of_unlike_devices_are_rows_of_their_own(tmp_path: Path) -> None:
    """One configuration on an H200 and on a CPU: "6 of 6" runs, one mean, no doubt."""
    specs = [
        replace(spec, kind=kind, repeat=i + 3 * (kind == "cpu"), run_factor=f)
        for spec in (Spec(), DDP)
        for kind in ("cuda", "cpu")
        for i, f in enumerate((1.0, 1.01, 0.99))
    ]
    found = analysed(tmp_path, *specs)
    assert {c.label: len(c.runs) for c in found.measured} == {
        f"large {of} device={device}": 3
        for of in ("single x1", "ddp x2")
        for device in ("H200", "CPU")
    }
    sides = [(p.multi.leaves["device.name"], p.single.leaves["device.name"]) for p in found.pairs]
    assert sides == [("H200", "H200"), ("CPU", "CPU")]
    assert len({c.config_id for c in found.measured}) == 4
    assert all(len(c.elsewhere) == 3 for c in found.measured)


def test_cells_of_one_name_are_told_apart_by_what_was_typed() -> None:
    def planned(number: int, name: str, *typed: str) -> PlannedCell:
        return PlannedCell(str(number), f"c{number}", f"{name}-r0-0000000{number}", typed, 0, 1)

    cells = [
        planned(1, "mlp-tabular-single", "optimizer.lr=0.1", "+hardware.x=1", "seed=3"),
        planned(2, "mlp-tabular-single", "optimizer.lr=0.2", "+hardware.x=1", "seed=3"),
        planned(3, "mlp-tabular-ddp", "optimizer.lr=0.1", "+hardware.x=2", "seed=3"),
        planned(4, "mlp-tabular-ddp", "optimizer.lr=0.1", "+hardware.x=3", "seed=3"),
        planned(5, "gpt2-stdlib-ddp", "optimizer.lr=0.1"),
    ]
    assert swept_words(cells) == {"1": "lr=0.1", "2": "lr=0.2", "3": "x=2", "4": "x=3", "5": ""}


def test_swept_numbers_are_listed_from_small_to_large_and_twins_together(tmp_path: Path) -> None:
    specs = [replace(spec, batch_size=n) for n in (512, 32, 2048, 128) for spec in (DDP, Spec())]
    assert [c.label for c in configurations(swept(tmp_path, *specs))] == [
        f"large {of} batch_size={size}"
        for size in (32, 128, 512, 2048)
        for of in ("single x1", "ddp x2")
    ]


def test_swept_words_stay_in_the_order_given_and_their_absence_where_it_began() -> None:
    def in_order(*labels: str) -> list[str]:
        return sorted(labels, key=swept_order(labels).__getitem__)

    assert in_order("m lr=0.01", "m lr=1e-4", "m lr=null", "m lr=nan", "m lr=0.001") == [
        "m lr=null", "m lr=nan", "m lr=1e-4", "m lr=0.001", "m lr=0.01"
    ]  # fmt: skip
    as_given = ["m optimizer=sgd", "m optimizer=adam"]
    assert in_order(*as_given) == as_given
    without_first = ["single", "fsdp", "ddp mb=5", "ddp mb=25"]
    assert in_order("single", "ddp mb=25", "ddp mb=5", "fsdp") == without_first
    assert in_order("single r=3", "ddp", "single r=1") == ["single r=1", "single r=3", "ddp"]


@pytest.mark.parametrize(
    "typed", ["repeats={}", "max_repeats={}", "tracking={}", "hydra/sweeper={}"]
)
def test_how_often_and_by_what_it_is_run_was_not_swept(typed: str) -> None:
    """A sweep resumed with other repeats holds both numbers, and runs what it ran before."""
    cells = [
        PlannedCell(f"id{i}", f"c{lr}", f"mlp-single-r{i}-0{i}",
                    (typed.format(i), f"optimizer.lr={lr}"), i, 1)
        for i in (0, 1) for lr in (0.1, 0.2)
    ]  # fmt: skip
    cells = [replace(cell, cell_id=f"id{i}") for i, cell in enumerate(cells)]
    assert set(swept_words(cells).values()) == {"lr=0.1", "lr=0.2"}


# What a LightningModule really trained with stands in the report, not what was configured.
OWN = "its own (SGD)"


def sweep_of(path: Path, *specs: Spec, own: str | None = "SGD") -> Path:
    edit_ranks(write_sweep(path, specs), lambda rank: rank.update(own_optimizer=own))
    return path


def optimizers(sweep: Sweep) -> set[str | None]:
    return {config.name("optimizer") for config in configurations(sweep)}


def test_the_modules_own_is_named_and_its_settings_not_the_configurations(tmp_path: Path) -> None:
    sweep = load_sweep(sweep_of(tmp_path, Spec(), DDP))
    assert optimizers(sweep) == {OWN}
    (shared,) = lines_of(analyse(sweep), "scaling")
    assert f"optimizer={OWN}" in shared
    assert "lr=" not in shared
    assert not [p for cell in sweep.cells for p in cell.problems]


def test_a_cell_that_did_not_finish_has_that_of_its_model(tmp_path: Path) -> None:
    other = {"model": {"name": "other"}}
    failed = replace(DDP, outcome="failed")
    sweep = load_sweep(sweep_of(tmp_path, Spec(), failed, Spec(outcome="failed", config=other)))
    assert [(cell.config or {})["optimizer"]["name"] for cell in sweep.cells] == [OWN, OWN, "adam"]


def test_a_class_among_the_arguments_is_called_by_its_own_name_and_once(tmp_path: Path) -> None:
    """``optimizer=Adam`` of the model's own arguments, and not what its module built of it too."""
    specs = [
        Spec(config={"model": {"name": "net", "optimizer": {"_target_": f"torch.optim.{name}"}}})
        for name in ("Adam", "SGD")
    ]
    write_sweep(tmp_path, specs)
    for number, name in enumerate(("Adam", "SGD")):
        edit_ranks(tmp_path, partial(dict.update, own_optimizer=name), f"00{number}-*")
    found = {c.label for c in configurations(load_sweep(tmp_path))}
    assert found == {"net single x1 optimizer=Adam", "net single x1 optimizer=SGD"}


def test_what_was_asked_for_and_not_used_is_said_with_a_plan_and_without(tmp_path: Path) -> None:
    path = sweep_of(tmp_path, Spec(typed=("optimizer=adam", "+optimizer.lr=0.1")))
    (cell,) = load_sweep(path).cells
    assert cell.problems == (
        "optimizer=adam +optimizer.lr=0.1 was not used: the model built its own optimizer (SGD)",
    )
    (path / "sweep.json").unlink()
    (folder,) = (p.parent for p in path.glob("*/config.yaml"))
    assert optimizers(load_sweep(folder)) == optimizers(load_sweep(path)) == {OWN}
