"""Which code runs: the state of the repository around a folder."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path


def code_version(folder: Path) -> dict[str, object]:
    """Commit, dirtiness and hash of the difference of the repository around ``folder``.

    Empty where there is no repository or no git.
    """

    def git(*arguments: str) -> bytes:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, check=True, timeout=20
        ).stdout

    try:
        commit = git("rev-parse", "HEAD").decode().strip()
        difference = git("diff", "HEAD")
    except (OSError, subprocess.SubprocessError):
        return {}
    return {
        "commit": commit,
        "dirty": bool(difference),
        "diff_sha256": hashlib.sha256(difference).hexdigest() if difference else None,
    }
