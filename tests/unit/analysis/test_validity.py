"""What makes a verdict *invalid*: no figure of it is printed, priced or ranked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.recorded import DDP, Spec, edit_ranks, repeats, write_sweep
from fakes.sections import answers, lines_of, values
from scalewise.analysis import Analysis, Row, analyse, load_sweep
from scalewise.report import build

STEADY = [1.0, 1.01, 0.99]
Rank = dict[str, Any]


def analysed(path: Path, change: Callable[[Rank], None], multi: Spec = DDP) -> Analysis:
    """Three runs a side; every rank of those on two devices is changed."""
    write_sweep(path, [*repeats(Spec(), STEADY), *repeats(multi, STEADY)])
    edit_ranks(path, change, "*-ddp-*")
    return analyse(load_sweep(path))


def nothing(rank: Rank) -> None:
    """Sound runs."""


def share_a_gpu(rank: Rank) -> None:
    rank["device"]["uuid"] = "GPU-1"


def fed(*shape: int, asked: int | None = 16) -> Callable[[Rank], None]:
    """Batches whose first tensor has this shape, from a loader that says ``asked``."""
    return lambda rank: rank.update(batch_shape=list(shape), loader_batch_size=asked)


def change_nothing(rank: Rank) -> None:
    rank["parameters_changed"] = False


def drift(share: float) -> Callable[[Rank], None]:
    """Replicas whose parameters lie apart by a share of their norm, which is 5."""
    return lambda rank: rank.update(replica_fingerprint=[5.0, 1.0 + 5 * share * rank["rank"]])


@pytest.mark.parametrize(
    ("change", "multi", "code"),
    [
        (share_a_gpu, DDP, "shared_device"),
        (fed(24, 16, 8), DDP, "sample_count"),
        (change_nothing, DDP, "frozen"),
        (drift(1.1e-5), DDP, "replicas_differ"),
        (nothing, replace(DDP, sharded=False), "shards_overlap"),
        (nothing, replace(DDP, final_loss=float("nan")), "loss_not_finite"),
    ],
)
def test_it_outranks_every_other_verdict(
    tmp_path: Path, change: Callable[[Rank], None], multi: Spec, code: str
) -> None:
    found = analysed(tmp_path, change, multi)
    single, ddp = found.measured
    assert [one.code for one in found.invalid[ddp.config_id]] == [code]
    assert single.config_id not in found.invalid
    assert "invalid" in values(found, "scaling", "scaling", "verdict")
    assert Row(found, ddp).pair is None
    assert found.costs[ddp.config_id].usd_per_million_samples is None
    ((label, (verdict, reason)),) = answers(found).items()
    assert (label, verdict) == (ddp.label, "invalid")
    assert "USD" not in reason


def test_the_report_says_so_to_programs_and_by_its_exit_status(tmp_path: Path) -> None:
    analysed(tmp_path, share_a_gpu)
    files = build(tmp_path)
    assert files.invalid
    told = json.loads(files.json.read_text())
    verdicts = {c["configuration"]: (c["verdict"], c["config_id"])
                for c in told["configurations"]}  # fmt: skip
    verdict, config_id = verdicts["large ddp x2"]
    invalid = {(one["code"], one["about"]) for one in told["remarks"]
               if one["gravity"] == "invalid"}  # fmt: skip
    assert (verdict, invalid) == ("invalid", {("shared_device", config_id)})
    assert verdicts["large single x1"][0] == "baseline"


@pytest.mark.parametrize(
    ("change", "doubted"),
    [
        (fed(16, 24, 8), False),
        (drift(0.9e-5), False),
        (fed(24, 16, 8, asked=None), False),
        (fed(15, 24, 8), True),  # a loader that leaves out what it cannot read
        (fed(32, 3, 8), True),  # two views of each sample
    ],
)
def test_other_counts_are_valid(
    tmp_path: Path, change: Callable[[Rank], None], doubted: bool
) -> None:
    found = analysed(tmp_path, change)
    assert not found.invalid
    assert any("batch_size" in line for line in lines_of(found, "remarks")) is doubted


@pytest.mark.parametrize(("loss", "says"), [(0.30, True), (0.2501, False)])
def test_faster_but_learning_less_stands_in_the_verdict(
    tmp_path: Path, loss: float, says: bool
) -> None:
    found = analysed(tmp_path, nothing, replace(DDP, final_loss=loss))
    (pair,) = found.pairs
    assert pair.loss is not None
    assert pair.loss.learns_less is says
    assert ("learns_less" in [one.code for one in pair.remarks]) is says
