"""What a decision says of the short runs it was taken by."""

import pytest

from scalewise.records import CandidateEvidence


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        (CandidateEvidence("ddp", 2, 2, 1343.0, 9.42, 1818.2), "1,343 [9.4, 1,818] samples/s"),
        (CandidateEvidence("ddp", 2, 1, 343.0), "343 samples/s (1 run)"),
    ],
)
def test_the_interval_stands_behind_the_rate(evidence: CandidateEvidence, said: str) -> None:
    assert f"ddp x2 {said}" in str(evidence)
