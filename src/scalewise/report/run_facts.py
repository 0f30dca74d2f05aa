"""Facts of the runs: what was planned, devices and code behind them, trackers, and failures."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import PurePath
from typing import Any

from scalewise.analysis import Analysis, ending_lines, swept_words
from scalewise.config import set_in
from scalewise.host import SOURCE_SHA256, plural
from scalewise.records import CellFolder, Provenance, TrackerState
from scalewise.report.findings import command, counts
from scalewise.report.sections import Section, Verbatim, by_text, lines, section, table, words


def facts(analysis: Analysis) -> list[Section]:
    return [head(analysis), unfinished(analysis), trackers(analysis), provenance(analysis)]


def head(analysis: Analysis) -> Section:
    """What ran and when, and what a reader has to know before the first figure."""
    created = analysis.sweep.created_at
    when = [] if created is None else [datetime.datetime.fromtimestamp(created, datetime.UTC)]
    return section(
        "head",
        "",
        lines([f"{counts(analysis)}."], "plain"),
        lines((f"Planned {time:%Y-%m-%d %H:%M} UTC." for time in when), "plain", "page"),
        Verbatim(command(analysis)),
        lines(labels(analysis), "alarm"),
    )


def labels(analysis: Analysis) -> list[str]:
    """What no figure may travel without."""
    found = []
    faults = [(c.config or {}).get("fault") for c in analysis.sweep.cells]
    planted = dict.fromkeys(str(f.get("name")) for f in faults if isinstance(f, Mapping))
    if planted:
        found.append(f"PLANTED FAULTS: {', '.join(planted)}; those runs are spoiled on purpose")
    marks = ", ".join(dict.fromkeys(e for p in _records(analysis) for e in p.emulated))
    if marks:
        found.append(f"EMULATED: {marks}; these figures do not describe the bare hardware")
    return found


def provenance(analysis: Analysis) -> Section:
    """Devices, versions and code behind the figures; every value that occurred is listed."""
    return section("provenance", "Provenance", lines(_provenance_lines(analysis)))


def _provenance_lines(analysis: Analysis) -> list[str]:
    records = _records(analysis)
    if not records:
        return ["no provenance was recorded: no cell came as far as to start training"]
    devices = [d for p in records for d in p.devices]
    ranks = (rank for config in analysis.measured for rank in config.rank_summaries)
    gpus = {rank.device.uuid for rank in ranks if rank.device.uuid}
    names = ("torch", "pytorch-lightning", "lightning", "hydra-core", "numpy")
    packages = [f"{n} {p.packages[n]}" for p in records for n in names if n in p.packages]
    facts: dict[str, Sequence[str | None]] = {
        "devices": [f"{d.name} ({d.kind})" for d in devices],
        "GPUs by UUID": [f"{len(gpus)} in all" if gpus else None],
        "driver": [p.driver for p in records],
        "CUDA": [p.cuda for p in records],
        "NCCL": [p.nccl for p in records],
        "links": [f"{pair}: {link}" for p in records for pair, link in p.topology.items()],
        "cores bound per rank": [str(len(d.cores)) for d in devices if d.cores],
        "software": [f"Python {p.python}" for p in records] + packages,
        "commit": [_commit(p.code) for p in records],
        "scalewise sources (SHA-256)": [p.code.get(SOURCE_SHA256, "")[:12] for p in records],
        "NCCL settings": [f"{k}={v}" for p in records for k, v in set_in(p.environment).items()],
        "hosts (hashed)": [p.host for p in records],
        "protocol of timing": [str(p.protocol) for p in records],
    }
    known = {name: list(dict.fromkeys(filter(None, values))) for name, values in facts.items()}
    found = [f"{name}: {', '.join(values)}" for name, values in known.items() if values]
    if analysis.sweep.order_seed is not None:
        found.append(f"order of cells: shuffled with seed {analysis.sweep.order_seed}")
    return [*labels(analysis), *found]


def _records(analysis: Analysis) -> list[Provenance]:
    return [c.provenance for c in analysis.sweep.cells if c.provenance]


def _commit(code: Mapping[str, Any]) -> str | None:
    """None where the hash of the sources stands in its place."""
    if not code.get("commit"):
        return None if code.get(SOURCE_SHA256) else "unknown (not a git checkout)"
    of = f" of the {code['tree']}" if "tree" in code else ""
    changed = " with uncommitted changes" if code.get("dirty") else ""
    return f"{code['commit'][:12]}{of}{changed}"


def trackers(analysis: Analysis) -> Section:
    """Where the runs' mirrors are, and those that do not hold what the records hold."""
    synced: Counter[tuple[str, str]] = Counter()
    lost = []
    for cell in analysis.sweep.cells:
        for name, state in cell.tracking.trackers.items() if cell.tracking else ():
            if state.status == "synced":
                synced[name, _where(name, state)] += 1
            else:
                back = "none could be" if state.read_back is None else f"{state.read_back:,}"
                text = (
                    f"{name} {state.status}: {state.handed_over:,} rows handed over, {back} "
                    f"read back; {state.problem or 'no reason given'}"
                )
                lost.append((cell.planned.name, text))
    standing = [
        f"{name}: {count} {plural(count, 'run')} {place}" for (name, place), count in synced.items()
    ]
    return section("trackers", "Trackers", lines(standing, where="page"), lines(by_text(lost)))


def _where(tracker: str, state: TrackerState) -> str:
    """``synced`` in a record says that every row was read back, not from where."""
    if "://" in state.location:
        return "on the server, read back from there"
    if tracker == "trackio":
        return "in Trackio's files of this machine, read back from there"
    return "recorded offline, in files of this machine (wandb sync uploads them)"


def unfinished(analysis: Analysis) -> Section:
    """Cells without a result: why, at which line of code, and which log to open.

    A page may travel: it has paths inside the sweep, and other files by their names.
    """
    swept = swept_words([cell.planned for cell in analysis.sweep.cells])
    names = ("cell", "swept", "state", "reason", "raised at", "log")
    columns = [words(name, name, itemgetter(i)) for i, name in enumerate(names)]
    rows, ended = [], []
    for cell in analysis.unfinished:
        told, planned, ending = swept[cell.planned.cell_id], cell.planned, cell.ending
        path = CellFolder(cell.path).find_log(ending)
        at = PurePath(ending.raised_at).name if ending.raised_at else None
        log = path and str(path.relative_to(analysis.sweep.path))
        rows.append((planned.name, told or None, cell.state, ending.message, at, log))
        ended.append((f"{planned.name} ({told})" if told else planned.name, ending, path))
    return section(
        "unfinished",
        "Without a result",
        table("unfinished", columns, rows, where="page"),
        lines(ending_lines(ended), "place", "screen"),
        *(
            Verbatim("\n".join(last.last_lines), f"{cell.planned.name}, rank {last.rank}:")
            for cell in analysis.unfinished
            for last in cell.attempts[-1:]
        ),
    )
