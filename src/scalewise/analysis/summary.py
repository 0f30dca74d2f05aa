"""One sweep, analysed: everything a report prints, computed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scalewise.analysis.apart import timed_only, windows
from scalewise.analysis.cells import Cell, Sweep
from scalewise.analysis.communication import Communication, measure_communication
from scalewise.analysis.cost import Cost, measure_cost
from scalewise.analysis.diagnosis import Diagnosis
from scalewise.analysis.disturbances import Disturbance, disturbances
from scalewise.analysis.kinds import is_profiled
from scalewise.analysis.mfu import MfuResult, find_doctor, measure_mfu
from scalewise.analysis.rank_validity import Found
from scalewise.analysis.repeats import Repeats
from scalewise.analysis.runs import Configuration
from scalewise.analysis.scaling import Pair, Refused
from scalewise.analysis.verdict import MIN_EFFICIENCY
from scalewise.analysis.verdicts import reach_verdicts
from scalewise.hardware import load_profiles
from scalewise.paths import conf_dir
from scalewise.records.doctor import DoctorReport


@dataclass(frozen=True)
class Analysis:
    """A sweep with its configurations measured and paired."""

    sweep: Sweep
    configurations: tuple[Configuration, ...]
    pairs: tuple[Pair, ...]
    refused: tuple[Refused, ...]
    diagnoses: Mapping[str, tuple[Diagnosis, ...]]
    """``config_id`` to what limits it, the main limit first."""
    invalid: Mapping[str, Found] = field(default_factory=dict)
    """``config_id`` to why its figures mean nothing; sound configurations are absent."""
    repeats: tuple[Repeats, ...] = ()
    """Who needed how many runs under ``repeats=auto``, and why."""
    mfu: Mapping[str, tuple[MfuResult, ...]] = field(default_factory=dict)
    """``config_id`` to the MFU of each of its runs."""

    communication: Mapping[str, Communication] = field(default_factory=dict)
    """``config_id`` to what its gradients cost, of multi-device configurations."""
    doctor: DoctorReport | None = None
    """The examination of the devices that lies beside the cells."""
    costs: Mapping[str, Cost] = field(default_factory=dict)
    """``config_id`` to what a sample costs, of timed configurations that ran."""
    disturbances: tuple[Disturbance, ...] = ()
    """What disturbed each cell, or why that cannot be told, in the order of the plan."""

    @property
    def measured(self) -> tuple[Configuration, ...]:
        """Those that are timed, with at least one finished run."""
        return tuple(c for c in timed_only(self.configurations) if c.runs)

    @property
    def profiled(self) -> tuple[Configuration, ...]:
        """Those that ran under a profiler: no time of theirs counts."""
        return tuple(c for c in self.configurations if c.runs and is_profiled(c.cells[0].config))

    @property
    def unfinished(self) -> tuple[Cell, ...]:
        """Cells without a result."""
        return tuple(c for c in self.sweep.cells if c.state != "done")

    def pair(self, config: Configuration) -> Pair | None:
        return next((p for p in self.pairs if p.multi.config_id == config.config_id), None)

    def sound_pair(self, config: Configuration) -> Pair | None:
        """As :meth:`pair`; None where its verdict is *invalid*: no figure of it is shown."""
        pair = self.pair(config)
        return None if pair is None or pair.invalid else pair

    def refusal(self, config: Configuration) -> Refused | None:
        return next((r for r in self.refused if r.multi.config_id == config.config_id), None)


def analyse(sweep: Sweep, min_efficiency: float = MIN_EFFICIENCY) -> Analysis:
    """Measure every finished cell and compare what may be compared."""
    found = reach_verdicts(sweep, min_efficiency)
    configs = found.configurations
    doctor = find_doctor(sweep.path)
    profiles = load_profiles(conf_dir() / "hardware")
    mfu = {
        c.config_id: tuple(measure_mfu(run, doctor, profiles) for run in c.runs) for c in configs
    }
    seen = windows(configs)
    communication = {
        c.config_id: cost
        for c in timed_only(configs)
        if (cost := measure_communication(c, seen.get(c.config_id), doctor)) is not None
    }
    return Analysis(
        sweep,
        configs,
        found.pairs,
        found.refused,
        found.diagnoses,
        found.invalid,
        found.repeats,
        mfu,
        communication,
        doctor,
        {
            c.config_id: measure_cost(c, profiles, found.invalid.get(c.config_id, ()))
            for c in timed_only(configs)
            if c.runs
        },
        tuple(one for cell in sweep.cells for one in disturbances(cell)),
    )
