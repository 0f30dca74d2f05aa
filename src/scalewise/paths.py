"""Where the shipped configuration lies, and where a new sweep goes."""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Sequence
from pathlib import Path


def conf_dir() -> Path:
    """The config groups: inside the installed package, or beside ``src`` in a checkout.

    Raises FileNotFoundError where neither exists: the installation is broken.
    """
    package = Path(__file__).resolve().parent
    for folder in (package / "conf", package.parents[1] / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise FileNotFoundError(f"{package / 'conf'}: the shipped configuration is missing; reinstall")


@functools.cache
def _new_folder() -> str:
    # Two sweeps in one second must not share a folder, and one process must not get two.
    return f"multirun/{time.strftime('%Y-%m-%d_%H-%M-%S')}-{secrets.token_hex(2)}"


def sweep_folder(overrides: Sequence[str]) -> str:
    """The folder ``sweep.resume=`` names among the overrides, else a new one below ``multirun/``.

    It is the OmegaConf resolver ``scalewise_folder`` of ``conf/config.yaml``.
    """
    for override in overrides:
        key, _, value = override.partition("=")
        if key.lstrip("+") == "sweep.resume" and value not in ("", "null"):
            return value.strip("'\"")
    return _new_folder()
