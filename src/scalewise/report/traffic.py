"""What the devices sent to each other, in sentences: as counted, not as planned."""

from __future__ import annotations

from collections.abc import Sequence

from scalewise.analysis.figures import number
from scalewise.analysis.runs import Configuration
from scalewise.analysis.summary import Analysis
from scalewise.records import CommunicationRecord, RankSummary

_MIB = 2**20


def lines(analysis: Analysis) -> list[str]:
    """Rounds and bytes of an optimizer step, for every configuration that counted them."""
    found = []
    for config in analysis.measured:
        ranks = _counted(config)
        if ranks:
            found.append(f"{config.label}: {_sentence(ranks, config.devices or 1)}")
    return found


def busiest(ranks: Sequence[RankSummary]) -> CommunicationRecord | None:
    """The record of the rank that sent most; None where none was counted."""
    counted = [rank.communication for rank in ranks if rank.communication is not None]
    return max(counted, key=lambda c: c.payload_bytes_per_step, default=None)


def _counted(config: Configuration) -> tuple[RankSummary, ...]:
    results = [run.cell.result for run in config.runs if run.cell.result is not None]
    return tuple(rank for result in results[:1] for rank in result.ranks if rank.communication)


def _sentence(ranks: Sequence[RankSummary], devices: int) -> str:
    sent = busiest(ranks)
    assert sent is not None
    payload = sent.payload_bytes_per_step
    # A ring sends each rank's part round twice; between two ranks that is what they handed over.
    wire = payload * 2 * (devices - 1) / devices
    sends = "as much" if devices == 2 else f"{number(wire / _MIB)} MiB"
    text = (
        f"{sent.what} averaged {number(sent.rounds_per_step)} times a step, "
        f"{number(payload / _MIB)} MiB a rank handed to the all-reduce, for which a ring sends "
        f"{sends} over each of its links"
    )
    whole = next((r.gradient_bytes for r in ranks if r.gradient_bytes), None)
    if sent.what == "gradients" and whole and payload < whole * sent.rounds_per_step * 0.99:
        share = payload / (whole * sent.rounds_per_step)
        text += f"; compressed to {share:.0%} of the gradients' {number(whole / _MIB)} MiB"
    if sent.ms_per_step is not None:
        text += f"; {number(sent.ms_per_step)} ms a step on average"
    return text
