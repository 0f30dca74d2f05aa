"""Devices, versions and code behind the figures of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scalewise.analysis.run import Run
from scalewise.analysis.runs import Configuration
from scalewise.analysis.summary import Analysis
from scalewise.nccl_settings import set_in
from scalewise.plurals import plural
from scalewise.records import Provenance
from scalewise.records.provenance import SOURCE_SHA256, WORKING_DIRECTORY


def labels(analysis: Analysis) -> list[str]:
    """What a reader has to know before the first figure: emulated hardware, planted faults."""
    found = []
    faults = [(c.config or {}).get("fault") for c in analysis.sweep.cells]
    planted = dict.fromkeys(str(f.get("name")) for f in faults if isinstance(f, Mapping))
    if planted:
        found.append(f"PLANTED FAULTS: {', '.join(planted)}; those runs are spoiled on purpose")
    records = [c.provenance for c in analysis.sweep.cells if c.provenance]
    marks = ", ".join(dict.fromkeys(e for p in records for e in p.emulated))
    if marks:
        found.append(f"EMULATED: {marks}; these figures do not describe the bare hardware")
    return found


def provenance_lines(analysis: Analysis) -> list[str]:
    """Devices, versions and code behind the figures; every value that occurred is listed."""
    records = [c.provenance for c in analysis.sweep.cells if c.provenance]
    if not records:
        return ["no provenance was recorded: no cell came as far as to start training"]
    devices = [d for p in records for d in p.devices]
    names = ("torch", "pytorch-lightning", "lightning", "hydra-core", "numpy")
    packages = [f"{n} {p.packages[n]}" for p in records for n in names if n in p.packages]
    facts: dict[str, Sequence[str | None]] = {
        "devices": [f"{d.name} ({d.kind})" for d in devices],
        "GPUs by UUID": _gpus(analysis.measured),
        "driver": [p.driver for p in records],
        "CUDA": [p.cuda for p in records],
        "NCCL": [p.nccl for p in records],
        "links": [f"{pair}: {link}" for p in records for pair, link in p.topology.items()],
        "cores bound per rank": [str(len(d.cores)) for d in devices if d.cores],
        "usable cores of the host": _usable_cores(records),
        "software": [f"Python {p.python}" for p in records] + packages,
        **_code(records),
        "NCCL settings": [f"{k}={v}" for p in records for k, v in set_in(p.environment).items()],
        "hosts (hashed)": [p.host for p in records],
        "protocol of timing": [str(p.protocol) for p in records],
    }
    lines = _in_lines(facts)
    if analysis.sweep.order_seed is not None:
        lines.append(f"order of cells: shuffled with seed {analysis.sweep.order_seed}")
    return [*labels(analysis), *lines]


def code_lines(analysis: Analysis) -> list[str]:
    """Whose commit, and whether it had changes that nobody committed; or that it is not known."""
    return _in_lines(_code([c.provenance for c in analysis.sweep.cells if c.provenance]))


def _code(records: Sequence[Provenance]) -> dict[str, Sequence[str | None]]:
    """By whose commit it is. A user's own is on record only where scalewise is installed from no
    checkout: then it is that of the folder the sweep was started in."""
    mine = [p.code for p in records if p.code.get("tree") == WORKING_DIRECTORY]
    ours = [p.code for p in records if p.code.get("tree") != WORKING_DIRECTORY]
    return {
        "scalewise commit": [*map(_commit, ours), _without_commit(records)],
        "scalewise sources (SHA-256)": [p.code.get(SOURCE_SHA256, "")[:12] for p in records],
        f"commit of the {WORKING_DIRECTORY}": [*map(_commit, mine)],
    }


def _in_lines(facts: Mapping[str, Sequence[str | None]]) -> list[str]:
    """Each fact with every value that occurred; nothing of one without any."""
    known = {name: list(dict.fromkeys(v for v in values if v)) for name, values in facts.items()}
    return [f"{name}: {', '.join(values)}" for name, values in known.items() if values]


def _gpus(configs: Sequence[Configuration]) -> list[str]:
    """How many there were, and which configurations have the spread between GPUs in theirs."""
    sets = {c.label: [_uuids(run) for run in c.runs] for c in configs}
    total = len({uuid for runs in sets.values() for uuids in runs for uuid in uuids})
    several = [
        f"{label} ({len(set(runs))} sets in {len(runs)} runs)"
        for label, runs in sets.items()
        if len(set(runs)) > 1
    ]
    but = f" but for {', '.join(several)}" if several else ""
    return [f"{total} in all, the same in all runs of a configuration{but}"] if total else []


def _uuids(run: Run) -> frozenset[str]:
    ranks = run.cell.result.ranks if run.cell.result is not None else ()
    return frozenset(rank.device.uuid for rank in ranks if rank.device.uuid is not None)


def _usable_cores(records: Sequence[Provenance]) -> list[str]:
    """Of the hosts; nothing where the ranks were bound to more, as older records have it.

    Those were counted by a rank that was bound already.
    """
    bound = max(len({core for d in p.devices for core in d.cores}) for p in records)
    known = [p.usable_cores for p in records]
    return [str(cores) for cores in known] if min(known) >= bound else []


def _commit(code: Mapping[str, Any]) -> str | None:
    if not code.get("commit"):
        return None
    return f"{code['commit'][:12]}{' with uncommitted changes' if code.get('dirty') else ''}"


def _without_commit(records: Sequence[Provenance]) -> str | None:
    """That nobody can tell which code some of the cells ran; None where all have a commit, or a
    hash in its place."""
    unknown = sum(not (p.code.get("commit") or p.code.get(SOURCE_SHA256)) for p in records)
    if not unknown:
        return None
    some = (
        f" for {unknown} of {len(records)} {plural(len(records), 'cell')}"
        if unknown < len(records)
        else ""
    )
    return f"unknown{some} (not a git checkout)"
