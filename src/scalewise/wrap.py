"""A command around a rank's own: ``nsys profile -o {folder}/rank{rank}``, and its placeholders."""

from __future__ import annotations

import re
import shlex

PLACEHOLDERS = ("rank", "local_rank", "folder")
# nsys has placeholders of its own, `%q{NAME}` and `%p`: they pass through as they are.
_BRACES = re.compile(r"(?<!%q)\{([^{}]*)\}")


def wrap_command(template: str, rank: int, local_rank: int, folder: str) -> list[str]:
    """The words to put before a rank's command; quoted as a shell would, but no shell runs it.

    Raises ValueError for a template that is empty, badly quoted or has an unknown placeholder.
    """
    values = {"rank": str(rank), "local_rank": str(local_rank), "folder": folder}
    unknown = [name for name in _BRACES.findall(template) if name not in values]
    if unknown:
        raise ValueError(
            f"wrap: found the placeholder {{{unknown[0]}}} in {template!r}; allowed: "
            f"{', '.join(f'{{{name}}}' for name in PLACEHOLDERS)}"
        )
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise ValueError(f"wrap: found {template!r}: {error}; allowed: a command") from error
    if not words:
        raise ValueError(f"wrap: found {template!r}; allowed: a command, or null")
    return [_BRACES.sub(lambda found: values[found[1]], word) for word in words]


__all__ = ["PLACEHOLDERS", "wrap_command"]
