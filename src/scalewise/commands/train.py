"""``scalewise train``: what ``train.py`` does, from anywhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from scalewise import entry


def run_training(argv: Sequence[str]) -> int:
    """Run the cell or the sweep that ``argv`` asks for; exit status as :func:`entry.train`."""
    # Hydra reads sys.argv itself.
    sys.argv = ["scalewise train", *argv]
    return entry.train()
