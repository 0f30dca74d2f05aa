"""The answer in a dozen lines of ASCII that stand on their own: to paste into an issue."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from scalewise.analysis import Analysis
from scalewise.host import plural
from scalewise.records import Provenance
from scalewise.report.answer import answers
from scalewise.report.console import rows_of
from scalewise.report.findings import command, counts
from scalewise.report.run_facts import labels, unfinished
from scalewise.report.sections import Lines, cut, printable

WIDTH, HEIGHT = 80, 12
_FENCE = "```"
"""Keeps the lines as they are in an issue; elsewhere it is in nobody's way."""
_PACKAGES = ("scalewise", "torch", "pytorch-lightning")


def box(analysis: Analysis) -> list[str]:
    """What was run, what it comes to, and on what: what matters least is left out first."""
    below = list(_facts(analysis))
    said = _answer(analysis, HEIGHT - len(below) - 3)
    told = [cut(_ascii(row), WIDTH) for row in (command(analysis), *said, *below) if row]
    return [_FENCE, *told, _FENCE]


def _answer(analysis: Analysis, room: int) -> list[str]:
    """As many lines of the answer as there is room for, each whole, in their order."""
    found: list[tuple[int, list[str]]] = []
    """What is needed less has a higher number."""
    for block in (*answers(analysis).blocks, *unfinished(analysis).blocks):
        if isinstance(block, Lines) and block.where != "page":
            needs = [3] * len(block.lines)
            if block.tone == "answer":  # its first line is the verdict, and a doubt has ``more``
                needs = [0, *(1 if line.more else 2 for line in block.lines[1:])]
            found += zip(needs, rows_of(block, WIDTH), strict=True)
    verdicts = sum(need == 0 for need, _ in found)
    if verdicts > room:
        found = [one for one in found if one[0] == 0][: room - 1]
        found.append((0, [f"{verdicts - len(found)} more verdicts are in the report."]))
    kept = []
    for place in sorted(range(len(found)), key=lambda i: found[i][0]):
        if len(found[place][1]) <= room:
            kept.append(place)
            room -= len(found[place][1])
    return [row for place in sorted(kept) for row in found[place][1]]


def _facts(analysis: Analysis) -> Iterator[str]:
    """A line each: what is missing, devices and host of the run on most of them, all versions."""
    yield from labels(analysis)
    if analysis.unfinished:
        yield f"{counts(analysis)}."
    known = [cell.provenance for cell in analysis.sweep.cells if cell.provenance is not None]
    if not known:
        yield "nothing is known of the host: no cell came as far as to start training"
        return
    most = max(known, key=lambda one: len(one.devices))
    devices = Counter(device.name for device in most.devices)
    links = sorted(set(most.topology.values()))
    yield "on " + ", ".join([*(f"{n} x {name}" for name, n in devices.items()), *links])
    hosts = sorted({one.host for one in known})
    cores = f"{most.usable_cores} {plural(most.usable_cores, 'core')}"
    yield f"host {', '.join(hosts)}, {cores}, {most.platform.partition('-with-')[0]}"
    for versions in (_of_packages, _of_the_host):
        told = dict.fromkeys(itertools.chain.from_iterable(map(versions, known)))
        yield ", ".join(told)


def _of_packages(known: Provenance) -> Iterator[str]:
    commit = known.code.get("commit")
    for name in _PACKAGES:
        if name in known.packages:
            version = known.packages[name]
            if name == "scalewise" and commit:  # which says more than the local part of a version
                version = f"{version.partition('+')[0]} ({commit[:9]})"
            yield f"{name} {version}"


def _of_the_host(known: Provenance) -> Iterator[str]:
    named = ("Python", known.python), ("driver", known.driver), ("CUDA", known.cuda)
    yield from (f"{name} {told}" for name, told in (*named, ("NCCL", known.nccl)) if told)


def _ascii(text: str) -> str:
    return printable(text).encode("ascii", errors="backslashreplace").decode()
