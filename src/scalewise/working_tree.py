"""The code fingerprint: commit, difference of the working tree, and files of the user's classes.

A configuration names a class, and its id stays the same whatever the class's file says later.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import importlib.util
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from scalewise.records.provenance import CLASS_FILES, SOURCE_SHA256, WORKING_DIRECTORY

_PACKAGE = Path(str(importlib.resources.files("scalewise")))
_RECORDED_OTHERWISE = ("scalewise.", "torch.")
"""Classes whose state a commit or a version tells."""


def running_code(
    working_directory: Path, classes: Iterable[str] = (), search: Sequence[str] | None = None
) -> dict[str, Any]:
    """What is recorded as ``code``: :attr:`Provenance.code <scalewise.records.Provenance.code>`.

    The repository around ``working_directory`` counts only where scalewise runs from none.

    Args:
        working_directory: where the run starts.
        classes: the user's own, as :func:`own_classes` finds them.
        search: folders to look for their modules in; ``sys.path`` where it is None.
    """
    ours = scalewise_version()
    users = {} if "commit" in ours else code_version(working_directory)
    code = {**users, "tree": WORKING_DIRECTORY, **ours} if users else ours
    files = _class_files(classes, search)
    return {**code, CLASS_FILES: files} if files else code


def own_classes(plain: Mapping[str, Any]) -> tuple[str, ...]:
    """The classes of neither scalewise nor torch that a cell's resolved configuration names."""
    return tuple(sorted({t for t in _targets(plain) if not t.startswith(_RECORDED_OTHERWISE)}))


def code_changes(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """How two fingerprints differ, a line each. A class file that one lacks is no difference."""
    for key, name in (("commit", "commit"), (SOURCE_SHA256, "scalewise's sources")):
        if was.get(key) != now.get(key):
            yield f"code: {name} {_short(was.get(key))} there, {_short(now.get(key))} here"
    changed = was.get("diff_sha256") != now.get("diff_sha256")
    if was.get("commit") == now.get("commit") and changed:
        yield "code: the same commit with other changes on top"
    files = now.get(CLASS_FILES, {})
    for name, told in was.get(CLASS_FILES, {}).items():
        if files.get(name, told) != told:
            yield f"code: your {name} {_short(told)} there, {_short(files[name])} here"


def _short(told: object) -> str:
    return str(told)[:10] if told else "unknown"


def _targets(plain: object) -> Iterator[str]:
    if isinstance(plain, Mapping):
        target = plain.get("_target_")
        if isinstance(target, str) and "." in target:
            yield target
        for value in plain.values():
            yield from _targets(value)
    elif isinstance(plain, (list, tuple)):
        for value in plain:
            yield from _targets(value)


def _class_files(classes: Iterable[str], search: Sequence[str] | None) -> dict[str, str]:
    """Each module's file, ``package/module.py``, to its SHA-256. What is not found is left out."""
    found: dict[str, str] = {}
    for module in sorted({name.rpartition(".")[0] for name in classes}):
        file = _module_file(module, search)
        if file is not None:
            end = "/__init__.py" if file.name == "__init__.py" else ".py"
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            found[module.replace(".", "/") + end] = content
    return found


def _module_file(module: str, search: Sequence[str] | None) -> Path | None:
    """The source of a module, found without importing the packages around it."""
    outermost, *inner = module.split(".")
    try:
        if search is None:
            spec = importlib.util.find_spec(outermost)
        else:
            spec = PathFinder.find_spec(outermost, list(search))
    except (ImportError, ValueError):  # ValueError: a module that was made at run time
        return None
    if spec is None:
        return None
    places = [Path(folder, *inner) for folder in spec.submodule_search_locations or ()]
    files = [f for place in places for f in (place / "__init__.py", place.with_suffix(".py"))]
    if not inner and spec.origin is not None:
        files = [Path(spec.origin)]
    return next((f for f in files if f.suffix == ".py" and f.is_file()), None)


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
    """Commit of the repository around ``folder``, and how its Python files differ from it.

    Notes and pages may be edited while a sweep runs: its cells stay repeats of each other.
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
        difference = git("diff", "HEAD", "--", ":(top)*.py")
    except (OSError, subprocess.SubprocessError):
        return {}
    return {
        "commit": commit,
        "dirty": bool(difference),
        "diff_sha256": hashlib.sha256(difference).hexdigest() if difference else None,
    }
