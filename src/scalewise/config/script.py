"""The key ``script``: a training script of the user's own, as the program of a rank."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath

from scalewise.config.errors import ConfigError

RUN = "{run}"
"""In an argument: the name of the run, which no other run has."""
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "srun")
_PYTHON = ("python", "python3")
_LAUNCHING_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands")
_WITHOUT_SITE = "IES"
"""Options of Python under which it loads nothing of PYTHONPATH."""


@dataclass(frozen=True)
class ScriptConfig:
    """The key ``script``. Building one raises :class:`ConfigError` for what cannot be watched."""

    command: str
    """As it would be typed for one device, quoted as for a shell."""

    def __post_init__(self) -> None:
        try:
            words = self.words
        except ValueError as error:
            raise ConfigError(f"script.command: found {self.command!r}: {error}") from None
        if not words:
            raise ConfigError("script.command: found nothing; allowed: python train.py ...")
        name = PurePath(words[0]).name
        module = self._option("m", words)
        if name in _LAUNCHERS or (module or "").startswith(_LAUNCHING_MODULES):
            raise ConfigError(
                f"script.command: found {module or name}, which starts ranks itself; allowed: the "
                "command of one rank (python train.py ...), of which scalewise starts as many as "
                "there are devices"
            )
        for flag in _WITHOUT_SITE:
            if self._option(flag, words) is not None:
                raise ConfigError(
                    f"script.command: found python -{flag}, under which nothing can be watched; "
                    "allowed: python without it"
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
        """The script among the words; None where none is named."""
        return next((word for word in self.words[1:] if word.endswith((".py", ".sh"))), None)

    @property
    def name(self) -> str:
        """The script's name, in tables and names of folders."""
        return PurePath(self.file or self._option("m", self.words) or self.words[0]).name

    def check_here(self) -> None:
        """Raises :class:`ConfigError` where the script is not on this host."""
        if self.file is not None and not Path(self.file).is_file():
            raise ConfigError(
                f"script.command: {self.file}: no such script; allowed: a file that is there "
                f"(from {Path.cwd()})"
            )

    def _option(self, letter: str, words: Sequence[str]) -> str | None:
        """The word after an option of Python's own; None without it."""
        if words[0] != sys.executable:
            return None
        for word, after in zip(words[1:], [*words[2:], ""], strict=True):
            if not word.startswith("-") or word.startswith("--"):
                return None
            if letter in word:
                return after
            if "m" in word or "c" in word:
                return None
        return None
