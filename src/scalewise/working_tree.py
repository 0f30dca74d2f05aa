"""Which code runs: the state of the repository around a folder, or of scalewise's own sources."""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import subprocess
from pathlib import Path

from scalewise.records.provenance import SOURCE_SHA256, WORKING_DIRECTORY

_PACKAGE = Path(str(importlib.resources.files("scalewise")))


def running_code(working_directory: Path) -> dict[str, object]:
    """What is recorded as ``code``: :attr:`Provenance.code <scalewise.records.Provenance.code>`.

    The repository around ``working_directory`` counts only where scalewise runs from none.
    """
    ours = scalewise_version()
    users = {} if "commit" in ours else code_version(working_directory)
    return {**users, "tree": WORKING_DIRECTORY, **ours} if users else ours


def scalewise_version(package: Path = _PACKAGE) -> dict[str, object]:
    """Commit and changes of scalewise's checkout; where it runs from none, a hash of its sources.

    A package that lies in a repository which does not track it, as an environment in the user's
    own checkout does, has no commit.
    """
    ours = code_version(package, tracked="__init__.py")
    return ours or {SOURCE_SHA256: source_sha256(package)}


@functools.cache
def source_sha256(package: Path) -> str:
    """SHA-256 over relative paths and contents of the Python files of ``package``."""
    total = hashlib.sha256()
    for path in sorted(package.rglob("*.py"), key=lambda p: p.relative_to(package).as_posix()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(package).as_posix()}\0{content}\n".encode())
    return total.hexdigest()


def code_version(folder: Path, tracked: str | None = None) -> dict[str, object]:
    """Commit, dirtiness and hash of the difference of the repository around ``folder``.

    Empty where there is no repository, no git, or it does not track the file ``tracked``.
    """

    def git(*arguments: str) -> bytes:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, check=True, timeout=20
        ).stdout

    try:
        commit = git("rev-parse", "HEAD").decode().strip()
        if tracked is not None:
            git("ls-files", "--error-unmatch", tracked)
        difference = git("diff", "HEAD")
    except (OSError, subprocess.SubprocessError):
        return {}
    return {
        "commit": commit,
        "dirty": bool(difference),
        "diff_sha256": hashlib.sha256(difference).hexdigest() if difference else None,
    }
