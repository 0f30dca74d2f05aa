"""Limits that lie in how gradients or parameters are exchanged, from what was counted."""

from __future__ import annotations

from collections.abc import Iterator

from scalewise.analysis.diagnosis import Case, Diagnosis
from scalewise.records import CommunicationRecord

_MORE_THAN_ONCE = 1.05
"""Reductions a step from which some are redundant; an epoch's last, shorter step may add one."""
_SHARE = 0.10
"""Share of a step from which averaging parameters counts as a limit."""


def redundant_reductions(case: Case) -> Iterator[Diagnosis]:
    """Gradients reduced after every batch although an optimizer steps after several of them."""
    sent = _communication(case)
    if sent is None or sent.what != "gradients" or sent.rounds_per_step < _MORE_THAN_ONCE:
        return
    n = sent.rounds_per_step
    exposed = case.phases.phases_ms["exposed_comm"]
    cost = None if exposed is None else exposed * (1 - 1 / n)
    costs = "at a cost that was not timed" if cost is None else f"costs {cost:.3g} ms"
    yield Diagnosis(
        "redundant reductions", cost or 0.0, case.step_ms,
        f"gradients reduced {n:g} times per optimizer step; {n - 1:g} unnecessary, {costs} "
        f"({(n - 1) / n:.0%} of {sent.payload_bytes_per_step / 2**20:.3g} MiB a rank)",
        "reduced in a step's last batch only (strategy.no_sync=true, or DDP's no_sync() around "
        "the others) the loss is the same and one reduction a step is counted",
    )  # fmt: skip


def parameter_averaging(case: Case) -> Iterator[Diagnosis]:
    """Local SGD that spends its time on averaging."""
    sent = _communication(case)
    if sent is None or sent.what != "parameters" or sent.ms_per_step is None:
        return
    if sent.ms_per_step > _SHARE * case.step_ms:
        yield Diagnosis(
            "communication-bound", sent.ms_per_step, case.step_ms,
            f"averaging the parameters every {1 / sent.rounds_per_step:.3g} steps takes "
            f"{sent.ms_per_step:.3g} ms a step on average",
            "with twice the period (strategy.period) this time halves",
        )  # fmt: skip


def _communication(case: Case) -> CommunicationRecord | None:
    """What the rank that reduced most has counted."""
    result = case.run.cell.result
    counted = [r.communication for r in result.ranks if r.communication] if result else []
    return max(counted, key=lambda c: c.rounds_per_step, default=None)
