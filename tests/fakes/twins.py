"""Cells that ran twice with ``deterministic=true``: what is typed, and what they have to share."""

from collections.abc import Iterable

from fakes.train_command import LEAN
from scalewise.records import CellFolder, PlannedCell, read_metrics

TWINS = (
    *LEAN, "model=gpt2_tiny", "dataset=synthetic_tokens", "optimizer=adamw", "batch_size=4",
    "deterministic=true", "repeats=2", "log_every_n_steps=1", "max_steps=6",
)  # fmt: skip


def losses_of(cell: CellFolder, rank: int = 0) -> list[float | None]:
    """The training loss of every step that was logged."""
    rows = read_metrics(cell.metrics_path(rank))
    return [row.values["train_loss"] for row in rows if "train_loss" in row.values]


def check_twins(cells: Iterable[tuple[PlannedCell, CellFolder]], configurations: int) -> None:
    """Both runs of each configuration have the same losses to the last bit."""
    losses: dict[str, list[list[float | None]]] = {}
    for planned, folder in cells:
        losses.setdefault(planned.config_id, []).append(losses_of(folder))
    assert len(losses) == configurations
    for first, second in losses.values():
        assert len(set(first)) == len(first) >= 6, "a loss that does not move proves nothing"
        assert first == second
