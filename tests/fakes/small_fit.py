"""Cells composed from the shipped configuration, and Trainers that leave nothing behind."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
from hydra import compose, initialize_config_dir

from scalewise.config import CellConfig, build_cell, conf_dir, resolve, without_absent_groups


def composed_cell(*overrides: str) -> CellConfig:
    """The cell of ``train.py`` with these overrides. Raises ConfigError."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        plain = resolve(compose(config_name="config", overrides=list(overrides)))
    return build_cell(without_absent_groups(plain))


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
