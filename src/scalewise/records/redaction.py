"""Secrets of a configuration: no record holds them, and only the ranks get them.

A secret is a value whose key names one, or that has the shape of a known token. What is written
has :data:`REDACTED` in its place; the values travel to the ranks in their environment.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

REDACTED: Final = "REDACTED"
"""Stands where a secret was: a word that shells, Hydra, YAML and HTML leave alone."""
ENV_SECRETS: Final = "SCALEWISE_SECRETS"
"""The secrets of a sweep as JSON, by the dotted key of each, in the environment of its ranks."""
_NAMES: Final = re.compile(
    r"passw(or)?d|passphrase|secret|credential|"
    r"(api|access|account|private|auth|license|encryption|signing)_?key|"
    r"(^|_)(pwd|pat|bearer|authorization)$|"
    r"(?<!pad_)(?<!eos_)(?<!bos_)(?<!unk_)(?<!sep_)(?<!cls_)(?<!end_)(?<!mask_)(?<!stop_)"
    r"(?<!start_)(?<!image_)token$"
)
"""Parts of keys in lower case; tokens of texts are none."""
_SHAPES: Final = re.compile(
    r"\b(hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|"
    r"sk-(?=[\w-]*\d)[\w-]{20,}|xox[a-z]-[\w-]{10,}|A[KS]IA[A-Z0-9]{16}|AIza[\w-]{35}|"
    r"wandb_v1_\w{20,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,})"
    r"|(?<=://)[^/\s@]*:[^/\s@]+(?=@)|-----BEGIN [A-Z ]*PRIVATE KEY-----.*",
    re.DOTALL,
)
"""Tokens of Hugging Face, GitHub, GitLab, OpenAI, Slack, AWS, Google and W&B; JSON web tokens; the
user and password of a URL; private keys."""
_SHORTEST: Final = 6
"""Characters of a secret that is looked for in texts: shorter ones stand in many words."""


@functools.cache
def names_secret(key: str) -> bool:
    """Whether a part of the dotted ``key`` names a secret: ``model.api_key``, ``--hub-token``."""
    return any(_NAMES.search(part) for part in key.lower().replace("-", "_").split("."))


def redacted(config: Any) -> Any:
    """``config`` as it is written: without its secrets."""
    return _each_leaf(config, _redacted_leaf)


def redacted_words(words: Iterable[str]) -> tuple[str, ...]:
    """Words of a command line as they are written; ``${oc.env:NAME}`` stays."""
    kept: list[str] = []
    for word in words:
        key, equals, value = word.partition("=")
        before = kept[-1] if kept else ""
        if equals:
            kept.append(f"{key}={_redacted_value(key, value)}")
        elif before.startswith("--") and "=" not in before and not word.startswith("-"):
            kept.append(_redacted_value(before, word))  # --api-key VALUE of a user's own script
        else:
            kept.append(_without_known(word))
    return tuple(kept)


def secrets_of(config: Any) -> dict[str, Any]:
    """What :func:`redacted` takes away, by dotted key."""
    found: dict[str, Any] = {}

    def look(key: str, leaf: Any) -> None:
        hidden = _redacted_leaf(key, leaf)
        if hidden is not leaf and hidden != leaf:  # NaN differs from itself
            found[key] = leaf

    _each_leaf(config, look)
    return found


def with_secrets(config: Any) -> Any:
    """``config``, as it was written, with the secrets in this process's environment.

    Raises ValueError where one is not among them.
    """
    known = _handed_on()

    def fill(key: str, leaf: Any) -> Any:
        if not isinstance(leaf, str) or REDACTED not in leaf:
            return leaf
        if key not in known:
            raise ValueError(f"{key}: found no value in {ENV_SECRETS}; no record holds secrets")
        return known[key]

    return _each_leaf(config, fill)


def without_secrets(text: str) -> str:
    """``text``, of an error for example, without the secrets that this process knows."""
    values = (str(value) for value in _handed_on().values())
    for value in sorted((v for v in values if len(v) >= _SHORTEST), key=len, reverse=True):
        text = text.replace(value, REDACTED)
    return _without_known(text)


def _handed_on() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(os.environ.get(ENV_SECRETS, "{}"))
    return found


def _each_leaf(value: Any, change: Callable[[str, Any], Any], key: str = "") -> Any:
    """A copy of ``value`` with ``change(dotted key, leaf)`` in place of each leaf."""
    if isinstance(value, Mapping):
        return {k: _each_leaf(v, change, f"{key}.{k}" if key else str(k)) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_each_leaf(one, change, f"{key}.{i}") for i, one in enumerate(value)]
    return change(key, value)


def _redacted_leaf(key: str, leaf: Any) -> Any:
    if leaf is None or isinstance(leaf, bool) or leaf == "":
        return leaf
    if names_secret(key):
        return REDACTED
    return _without_known(leaf) if isinstance(leaf, str) else leaf


_ENTRY: Final = re.compile(r"(\w+)(\s*:\s*)(\{[^{}]*\}|\[[^\[\]]*\]|\$\{[^}]*\}|[^,{}\[\]$]+)")
"""``key: value`` of a dictionary in an override."""


def _redacted_value(key: str, value: str) -> str:
    if names_secret(key) and not re.fullmatch(r"""['"]?\$\{[^}]*\}['"]?|null|true|false|""", value):
        return REDACTED

    def entry(found: re.Match[str]) -> str:
        return f"{found[1]}{found[2]}{_redacted_value(found[1], found[3])}"

    return _without_known(_ENTRY.sub(entry, value) if "{" in value else value)


_OPTION: Final = re.compile(r"""(--([\w-]+)[=\s]+)('[^']*'|"[^"]*"|[^\s'"-][^\s'"]*)""")
"""``--api-key VALUE`` in a command line, as a script of the user's has them."""


def _without_known(text: str) -> str:
    def option(found: re.Match[str]) -> str:
        return f"{found[1]}{REDACTED}" if names_secret(found[2]) else found[0]

    return _OPTION.sub(option, _SHAPES.sub(REDACTED, text)) if len(text) > _SHORTEST else text
