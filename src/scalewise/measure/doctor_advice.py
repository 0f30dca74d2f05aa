"""What an examination means: pure functions from the report to findings. Torch-free.

Each rule looks at one known fault and returns nothing where the measurement it needs is missing:
what is not known is not accused. The thresholds are wide, so that a healthy host gets no finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from scalewise.measure import doctor_rules_devices as devices
from scalewise.measure import doctor_rules_host as host
from scalewise.measure import doctor_rules_links as links
from scalewise.records.doctor import DoctorReport, Finding

RULES: tuple[Callable[[DoctorReport], Iterator[Finding]], ...] = (
    links.wrong_data,
    devices.worn_memory,
    links.peer_to_peer_switched_off,
    links.peer_to_peer_refused,
    links.peer_to_peer_slow,
    links.collectives_miss_the_link,
    devices.pcie_below_maximum,
    devices.staging_below_link,
    devices.slow_twin,
    devices.unsteady,
    host.small_shared_memory,
    host.few_cores,
    host.memory_cap,
    host.far_cores,
    host.busy_host,
    devices.slow_launches,
    host.power_saving,
)


def advise(report: DoctorReport) -> list[Finding]:
    """All findings, the gravest first."""
    rank = {"fault": 0, "warning": 1, "note": 2}
    found = [finding for rule in RULES for finding in rule(report)]
    return sorted(found, key=lambda finding: rank[finding.severity])
