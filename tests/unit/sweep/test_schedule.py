"""Cells of different world sizes on a host: round by round, and full."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from scalewise.records import DeviceInfo
from scalewise.sweep.local_executor import LocalConfig, LocalExecutor, choose_cells

GPUS = tuple(DeviceInfo("cuda", "a GPU", f"GPU-{i}", i) for i in range(8))


@dataclass(eq=False)
class Waits:
    """All that is asked of a queued cell."""

    key: str
    world_size: int
    repeat: int
    slots: Sequence[DeviceInfo] = GPUS
    cell: Any = field(init=False)
    demand: Any = field(init=False)

    def __post_init__(self) -> None:
        self.cell = SimpleNamespace(planned=SimpleNamespace(repeat=self.repeat))
        self.demand = SimpleNamespace(host=SimpleNamespace(slots=self.slots))


def starts_now(waiting: Sequence[Waits], taken: int) -> list[str]:
    """Keys of the cells that start beside one that has the first ``taken`` devices."""
    return keys(choose_cells(cast(Any, waiting), [GPUS[:taken]]))


def keys(chosen: Sequence[Any]) -> list[str]:
    return [one.key for one in chosen]


def test_a_cell_has_the_host_to_itself_unless_cells_are_packed() -> None:
    waiting: Any = [Waits("a", 1, 0), Waits("b", 1, 0)]
    running: Any = SimpleNamespace(lease=SimpleNamespace(slots=GPUS[:7]))
    alone, packed = LocalExecutor(LocalConfig()), LocalExecutor(LocalConfig("packed"))
    assert (keys(alone.order(waiting, [])), alone.order(waiting, [running])) == (["a"], [])
    assert keys(packed.order(waiting, [])) == ["a", "b"]
    assert keys(packed.order(waiting, [running])) == ["a"]


def test_a_host_is_filled_with_what_fits_in_the_order_of_the_plan() -> None:
    waiting = [Waits("a", 2, 0), Waits("wide", 4, 0), Waits("b", 2, 0), Waits("c", 1, 0)]
    assert starts_now(waiting, 0) == ["a", "wide", "b"]
    assert (starts_now(waiting, 7), starts_now(waiting, 8)) == (["c"], [])


def test_a_narrow_cell_fills_what_a_wider_one_of_its_round_cannot_use() -> None:
    wide, narrow = Waits("wide", 8, 0), Waits("narrow", 1, 0)
    assert (starts_now([wide, narrow], 4), starts_now([wide, narrow], 0)) == (["narrow"], ["wide"])


def test_the_next_round_waits_until_all_of_this_one_have_started() -> None:
    """Whatever its order in the queue: a cell that is tried again goes back into its round."""
    wide, later = Waits("wide", 8, 1), Waits("later", 1, 2)
    assert (starts_now([later, wide], 4), starts_now([later, wide], 0)) == ([], ["wide"])
    assert starts_now([later], 4) == ["later"]


def test_a_cell_takes_no_device_that_it_may_not_have() -> None:
    first, other = Waits("first", 2, 0, GPUS[:4]), Waits("other", 4, 0, GPUS[4:])
    assert starts_now([first, other], 3) == ["other"]
    assert starts_now([first, other, Waits("any", 2, 0)], 0) == ["first", "other", "any"]
