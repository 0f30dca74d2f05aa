"""The key ``script``: a training script of the user's own, as the program of a rank."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Final

from scalewise.config.errors import ConfigError, refuse_as

_LAUNCHERS = (
    "torchrun", "torch.distributed.", "accelerate", "deepspeed", "mpirun", "srun",
)  # fmt: skip
_PYTHON = ("python", "python3")
_BLIND = re.compile(r"-[a-zA-Z]*[IES]")
"""Options of Python's without which it would load what watches a script."""


@dataclass(frozen=True)
class ScriptConfig:
    """The key ``script``. Building one raises :class:`ConfigError` for what cannot be watched."""

    command: str
    """As it would be typed for one device, quoted as for a shell."""

    def __post_init__(self) -> None:
        with refuse_as(f"command: found {self.command!r}"):
            words = self.words
        if not words:
            raise ConfigError("command: found nothing; allowed: python train.py ...")
        launcher = self._module or PurePath(words[0]).name
        if launcher.startswith(_LAUNCHERS):
            raise ConfigError(
                f"command: found {launcher}, which starts ranks itself; allowed: the "
                "command of one rank (python train.py ...), of which scalewise starts as many as "
                "there are devices"
            )
        options = itertools.takewhile(lambda one: one[:1] == "-" and one not in "-m-c", words[1:])
        if blind := next(filter(_BLIND.fullmatch, options), None):
            raise ConfigError(
                f"command: found python {blind}, which hides the script; allowed: "
                "python without -I, -E and -S"
            )

    @cached_property
    def words(self) -> list[str]:
        """The command as it is started: ``python`` is the one that scalewise is installed for."""
        words = shlex.split(self.command)
        if words and words[0] in _PYTHON:
            return [sys.executable, *words[1:]]
        return [sys.executable, *words] if words and words[0].endswith(".py") else words

    @property
    def file(self) -> str | None:
        """The script among the words; None where none is named. After -c comes no file."""
        words = itertools.takewhile("-c".__ne__, self.words[1:])
        return next((word for word in words if word.endswith((".py", ".sh"))), None)

    @property
    def name(self) -> str:
        """The script's name, in tables and names of folders."""
        return PurePath(self.file or self._module or self.words[0]).name

    def check_here(self) -> None:
        """Raises :class:`ConfigError` where program or script are not on this host."""
        if shutil.which(self.words[0]) is None:
            raise ConfigError(f"{self.words[0]}: no such program; allowed: one on the PATH")
        if self.file is not None and not Path(self.file).is_file():
            raise ConfigError(
                f"{self.file}: no such script; allowed: a file that is there (from {Path.cwd()})"
            )

    @property
    def _module(self) -> str | None:
        """``mine.train`` of ``python -m mine.train``."""
        return self.words[2] if self.words[1:2] == ["-m"] and len(self.words) > 2 else None


_OPTIONS = {"devices": "--devices", "measure.min_time_s": "--time", "repeats": "--repeats"}

ONCE: Final = ("sweep.resume", "sweep.rerun", "sweep.extend", "sweep.dry_run",
               "hydra.sweep.dir", "hydra.run.dir", "sweep.doctor")  # fmt: skip
"""Keys of one invocation: given again, they would select other cells, add still more, or train in
another's place; the last is of earlier versions."""


def key_of(word: str) -> str:
    """The key of a typed override, without the signs before it."""
    return word.partition("=")[0].lstrip("+")


def pasteable(program: str, overrides: Sequence[str], script: str | None) -> str:
    """A command that a shell takes; of a ``script``, in the words of ``scalewise run``."""
    if not script or "experiment=script" not in overrides:
        return f"{program} {shlex.join(overrides)}"
    words = ["scalewise", "run"]
    last = {word.partition("=")[0]: word for word in overrides}  # of a resumed sweep the later one
    for word in last.values():
        key, _, value = word.partition("=")
        if key in _OPTIONS:
            words += [_OPTIONS[key], value]
        elif _is_seen(word):
            words += ["--set", word]
    return shlex.join([*words, "--", *shlex.split(script)])


NAMES_A_SCRIPT = ("experiment", "script.command", "model.name")
_BESIDE_A_SCRIPT = (
    "sweep", "measure", "monitor", "hardware", "tracking", "rehearse", "hydra", "devices", "seed",
    "repeats", "max_repeats", "precision_percent", "max_steps", "warmup_steps", "log_every_n_steps",
)  # fmt: skip
"""Groups and keys that hold for a script too: model, data, precision and the like are its own."""


def _is_seen(setting: str) -> bool:
    return re.split(r"[./=]", setting.lstrip("+~"))[0] in _BESIDE_A_SCRIPT


def refuse_unseen(settings: Sequence[str], lead: str = "") -> None:
    """Refuse what no script sees, but its records would have. Raises :class:`ConfigError`."""
    if unseen := next(itertools.filterfalse(_is_seen, settings), None):
        raise ConfigError(
            f"{lead}found {unseen}, which a script does not see; allowed: settings of "
            f"{', '.join(_BESIDE_A_SCRIPT)}; or of a new run, its own arguments (after --)"
        )
