"""Cells composed from the shipped configuration, and Trainers that leave nothing behind."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl

from fakes.requests import composer
from scalewise.config import CellConfig, build_cell, without_absent_groups


def composed_cell(*overrides: str) -> CellConfig:
    """The cell of ``train.py`` with these overrides. Raises ConfigError."""
    return build_cell(without_absent_groups(composer().plain(overrides, 0)))


def small_trainer(**options: Any) -> pl.Trainer:
    """A Trainer on one CPU that logs, saves and shows nothing unless told to."""
    quiet = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return pl.Trainer(**{**quiet, **options})
