"""What a decision says of the short runs it was taken by."""

import pytest

from scalewise.records import CandidateEvidence, StrategyDecision


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        (CandidateEvidence("single", 1, 2, 343.0, 144.0, 818.0), "343 [144, 818] samples/s"),
        (CandidateEvidence("single", 1, 5, 1343.0, 1330.0, 1356.2), "1,343 ± 13 samples/s"),
        (CandidateEvidence("single", 1, 1, 343.0), "343 samples/s (1 run)"),
    ],
)
def test_an_interval_with_unequal_halves_is_written_out(
    evidence: CandidateEvidence, said: str
) -> None:
    decision = StrategyDecision("single", "why", None, None, None, 60, (evidence,), None)
    measured, _, _ = decision.lines()
    assert f"single x1 {said}" in measured
