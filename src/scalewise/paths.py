"""Where the shipped configuration lies, and where a new sweep goes."""

from __future__ import annotations

import functools
import importlib.resources
import secrets
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from scalewise.records import SweepFolder


def conf_dir() -> Path:
    """The config groups: inside the installed package, or beside ``src`` in a checkout.

    Raises FileNotFoundError where neither exists: the installation is broken.
    """
    package = Path(str(importlib.resources.files("scalewise"))).resolve()
    for folder in (package / "conf", package.parents[1] / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise FileNotFoundError(f"{package / 'conf'}: the shipped configuration is missing; reinstall")


@functools.cache
def _new_folder() -> str:
    # Two sweeps in one second must not share a folder, and one process must not get two.
    return f"multirun/{time.strftime('%Y-%m-%d_%H-%M-%S')}-{secrets.token_hex(2)}"


def discard_unused_folder() -> None:
    """Remove the new sweep folder if no sweep was begun in it.

    Hydra makes it, and writes its own files there, before anybody has looked at the input.
    """
    if not _new_folder.cache_info().currsize:
        return
    folder = Path(_new_folder())
    if folder.is_dir() and not SweepFolder(folder).plan_path.exists():
        shutil.rmtree(folder)


def sweep_folder(overrides: Sequence[str]) -> str:
    """The folder ``sweep.resume=`` names among the overrides, else a new one below ``multirun/``.

    It is the OmegaConf resolver ``scalewise_folder`` of ``conf/config.yaml``.
    """
    for override in overrides:
        key, _, value = override.partition("=")
        value = value.strip("'\"")
        # Any other value is refused once the whole configuration is known.
        if key.lstrip("+") == "sweep.resume" and SweepFolder(value).plan_path.exists():
            return value
    return _new_folder()
