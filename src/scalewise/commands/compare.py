"""``scalewise compare``: sweep B against sweep A, and a gate for CI."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from scalewise.analysis.compare import compare
from scalewise.analysis.identity import FACTORS
from scalewise.analysis.load import load_sweep
from scalewise.commands import refuse
from scalewise.records import RecordError
from scalewise.report.comparison import as_text
from scalewise.streams import discard, say


def compare_sweeps(argv: Sequence[str]) -> int:
    """Print the comparison; exit status 1 where ``--fail-if`` holds or cannot be judged."""
    options = _compare_options(argv)
    try:
        found = compare(
            load_sweep(options.a), load_sweep(options.b), options.factor, options.fail_if
        )
    except (RecordError, ValueError) as error:
        return refuse("compare", error)
    if found.gate is None or not found.gate.failed:
        sys.stdout.write(as_text(found))
        return 0
    _print_before_gate(as_text(found))
    say(f"scalewise compare: {found.gate.reason}")
    return 1


def _compare_options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scalewise compare",
        description="Compare sweep B with sweep A, which may differ in one declared factor only. "
        "Exit status: 0, or 1 if --fail-if holds or nothing could be compared under it.",
        epilog="Example: scalewise compare A B --factor code --fail-if slower=3%",
    )
    parser.add_argument("a", type=Path, help="the folder of the sweep to compare with")
    parser.add_argument("b", type=Path, help="the folder of the newer sweep")
    parser.add_argument("--factor", required=True, choices=FACTORS, help="what may differ")
    parser.add_argument("--fail-if", metavar="slower=PERCENT%", help="e.g. slower=3%%")
    return parser.parse_args(argv)


def _print_before_gate(text: str) -> None:
    """Print what a failed gate rests on. That nobody gets it is said, and changes no status: what
    was asked for is the gate's."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        discard(1)
        say(f"scalewise compare: standard output: {error.strerror}")
