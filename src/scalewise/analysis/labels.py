"""Names for the rows of a table: short, unique, and telling what was swept."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from scalewise.analysis.comparability import cut, flatten, grouped, is_factor
from scalewise.analysis.model import CellRecords, is_profiled, rehearsed_kind, setting
from scalewise.records import PlannedCell

Fields = Mapping[str, Any]
"""Dotted key to value."""


def name_rows(
    firsts: Mapping[str, CellRecords], recorded: Mapping[str, Fields]
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """The label of each row, ``model strategy xN leaf=value``, and the leaves in which rows differ.

    A leaf is left out where another word says it: one that comes with the name of its group, one
    that only repeats the value of another, and one that is there with others of its group alone.
    A label has what differs within the rows of its model; the leaves are those between models too.
    What only failed rows do otherwise, and say, stands in their labels alone.
    ``firsts`` has a cell of each row, ``recorded`` what ran beside its configuration.
    """
    typed = {key for cell in firsts.values() for key in _typed(cell.planned)}
    fields: dict[str, Fields] = {
        key: {**recorded.get(key, {}), **flatten(cell.config or {})} for key, cell in firsts.items()
    }
    base = {key: _base_label(cell) for key, cell in firsts.items()}
    scopes = _alike({key: _scope(cell) for key, cell in firsts.items()})
    chosen = {
        scope: _chosen({k: fields[k] for k in keys}, {k: base[k] for k in keys}, typed)
        for scope, keys in scopes.items()
    }
    # What differs between models alone: their own leaves come with the model's name.
    within = dict.fromkeys(name for names in chosen.values() for name in names)
    between = [
        name
        for name in (_chosen(fields, base, typed) if len(scopes) > 1 else ())
        if name not in within and name.partition(".")[0] != "model"
    ]
    short = _shortened(list(within))
    lost = {key for key, cell in firsts.items() if cell.state in ("failed", "skipped")}
    labels = {}
    for scope, keys in scopes.items():
        sound = [key for key in keys if key not in lost]
        alike = {n for n in chosen[scope] if len({_word(fields[key], n) for key in sound}) == 1}
        usual = {name for name in alike if all(name in fields[key] for key in keys)}
        for key, own in ((key, fields[key]) for key in keys):
            # What a cell does not have tells it apart by not being there.
            told = (n for n in chosen[scope] if n in own and (key in lost or n not in usual))
            labels[key] = " ".join([base[key], *(f"{short[n]}={_shown(own, n)}" for n in told)])
    # Nothing tells them apart, not even what one of them lacks: their ids do.
    doubles = {key for alike in _alike(labels).values() if len(alike) > 1 for key in alike}
    return (
        {k: f"{labels[k]} {k[:8]}" if k in doubles else labels[k] for k in firsts},
        {
            key: {n: _word(fields[key], n) for n in (*chosen[s], *between) if n in fields[key]}
            for s, keys in scopes.items()
            for key in keys
        },
    )


def _scope(cell: CellRecords) -> str:
    """The rows that are told apart from one another: of one model."""
    config = cell.config or {}
    name = named(config, "model") or cell.planned.name
    return " ".join([name, *(["under the profiler"] if is_profiled(config) else [])])


def _chosen(rows: Mapping[str, Fields], base: Mapping[str, str], typed: set[str]) -> list[str]:
    """The leaves to name, what the user typed first, then names of groups, then top-level keys."""
    names = dict.fromkeys(name for fields in rows.values() for name in fields)
    differ = {
        name: values
        for name in names
        if is_factor(name)
        and len(set(values := tuple(_word(fields, name) for fields in rows.values()))) > 1
    }
    heads = {name.partition(".")[0] for name in differ if "." in name}
    named_by = {head: _group_name(head, names, differ) for head in heads}
    found: dict[str, tuple[str, ...]] = {}
    for name in sorted(differ, key=lambda name: _priority(name, typed)):
        values, head = differ[name], name.partition(".")[0]
        if head == "strategy" and _follows(values, tuple(base.values())):
            continue  # the label has its name and the number of devices
        if head == "model" and name.endswith(".name"):
            continue
        name_of = named_by.get(head)
        if name_of not in (None, name) and _follows(values, differ[name_of or ""]):
            constant = len({*filter(None, values)}) <= 1
            if constant or _priority(name, typed):
                continue  # it comes with the group's name
        if name == "optimizer.name" and _is_built_by_model(values, differ):
            continue
        copied = values in found.values() and not set(values) & {"true", "false", "null"}
        if copied and _priority(name, typed):
            continue  # it repeats another, as by interpolation
        found[name] = values
    return [name for name in found if not _is_only_there(name, found)]


def _is_built_by_model(values: tuple[str, ...], differ: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether modules built these optimizers as arguments of the model say."""
    own = all(value.startswith("its_own_(") for value in values)
    return own and any(_follows(values, of) for n, of in differ.items() if n.startswith("model."))


def _group_name(
    head: str, names: Mapping[str, None], differ: Mapping[str, tuple[str, ...]]
) -> str | None:
    """The leaf that names what was chosen of a group; None where that does not differ."""
    leaf = next((f"{head}.{n}" for n in ("name", "_target_") if f"{head}.{n}" in names), None)
    return leaf if leaf in differ else None


def _follows(values: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Whether ``values`` are a function of ``others``, row by row."""
    return len(set(zip(values, others, strict=True))) == len(set(others))


def _is_only_there(name: str, found: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether it has one value, in the rows where another of its group is that has several."""
    there = [bool(value) for value in found[name]]
    return (
        len(set(filter(None, found[name]))) == 1
        and "." in name
        and any(
            other.partition(".")[0] == name.partition(".")[0]
            and [bool(value) for value in values] == there
            and len(set(filter(None, values))) > 1
            for other, values in found.items()
        )
    )


def swept_values(label: str) -> tuple[str, ...]:
    """The words of a label that tell it from others of the same model, strategy and devices."""
    return tuple(word for word in label.split() if "=" in word)


def swept_order(labels: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """A key to sort each label by: numbers from small to large, all else in the order given.

    Field by field, as :func:`swept_values` finds them, words before numbers. Labels without a field
    come before all others if the first label is one of them, else after them.
    """
    fields: dict[str, dict[str, None]] = {}
    pairs = {label: dict(w.split("=", 1) for w in swept_values(label)) for label in labels}
    for own in pairs.values():
        for name, value in own.items():
            fields.setdefault(name, {})[value] = None
    places = {
        name: {value: place for place, value in enumerate(sorted(values, key=_as_number), 1)}
        for name, values in fields.items()
    }
    first = next(iter(pairs.values()), {})
    without = {name: len(fields[name]) + 1 if name in first else 0 for name in fields}
    return {
        label: tuple(places[name].get(own.get(name, ""), without[name]) for name in fields)
        for label, own in pairs.items()
    }


def _as_number(word: str) -> float:
    """What a word is sorted by; all that is no number is alike, and before every number."""
    try:
        value = float(word)
    except ValueError:
        return -math.inf
    return -math.inf if math.isnan(value) else value


def swept_words(planned: Sequence[PlannedCell]) -> dict[str, str]:
    """For each cell's id what was swept beside what its name says, as ``lr=0.1 batch_size=64``.

    Empty words for cells that their names tell apart.
    """
    stems = {cell.cell_id: re.sub(r"-r\d+-[0-9a-f]+$", "", cell.name) for cell in planned}
    typed = {cell.cell_id: _typed(cell) for cell in planned}
    found = {}
    for alike in _alike(stems).values():
        rows = {key: typed[key] for key in alike}
        names = [
            name
            for name in dict.fromkeys(name for fields in rows.values() for name in fields)
            if is_factor(name) and len({_word(fields, name) for fields in rows.values()}) > 1
        ]
        short = _shortened(names)
        for key, fields in rows.items():
            found[key] = " ".join(f"{short[n]}={_shown(fields, n)}" for n in names if n in fields)
    return found


def named(config: Mapping[str, Any], group: str) -> str | None:
    """``named(config, "model")`` is the chosen model's name."""
    chosen = config.get(group)
    if not isinstance(chosen, Mapping):
        return None if chosen is None else str(chosen)
    # A user's own class, given on the command line, has its path alone.
    path = str(chosen.get("_target_") or "").rpartition(".")[2]
    return cut(str(chosen["name"] if chosen.get("name") is not None else path)) or None


def _base_label(cell: CellRecords) -> str:
    config = cell.config
    if config is None:
        return cell.planned.name
    devices = cell.result.world_size if cell.result else cell.planned.devices
    parts = [named(config, "model"), named(config, "strategy")]
    if played := rehearsed_kind(config):
        ranks, link = (setting(config, f"strategy.{key}") for key in ("ranks", "link.name"))
        kind = "torchrun" if setting(config, "script.command") else played
        return f"{parts[0]} {kind} x{ranks}, rehearsed over {link}"
    if is_profiled(config):
        parts.append("under the profiler")
    many = [f"({cell.result.models} models)"] if cell.result and cell.result.models > 1 else []
    return " ".join([*(p for p in parts if p), f"x{devices}" if devices else "xall", *many])


def _typed(cell: PlannedCell) -> dict[str, str]:
    pairs = (text.partition("=") for text in cell.overrides)
    return {key.lstrip("+"): value for key, sign, value in pairs if sign}


def _alike(words: Mapping[str, str]) -> dict[str, list[str]]:
    return grouped(words, words.__getitem__)


def _priority(name: str, swept: set[str]) -> int:
    if name in swept or name.removesuffix(".name") in swept:
        return 0
    if name.endswith(".name"):
        return 1
    return 2 if "." not in name else 3


def _word(fields: Fields, name: str) -> str:
    """As one types it; nothing where the field is absent."""
    if name not in fields:
        return ""
    value = fields[name]
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return cut(f"[{','.join(map(str, value))}]")
    return "_".join(str(value).split())


def _shown(fields: Fields, name: str) -> str:
    """As :func:`_word` in fewer letters: a class by its own name, long fractions by four digits."""
    word = _word(fields, name)
    if name.endswith("._target_"):
        return word.rpartition(".")[2]
    return f"{float(word):.4g}" if _LONG_FRACTION.fullmatch(word) else word


_LONG_FRACTION = re.compile(r"-?\d*\.\d{6,}(e-?\d+)?")
"""As a search chooses them."""


def _shortened(names: Sequence[str]) -> dict[str, str]:
    """The last part of each dotted name, as far as it is that one's alone."""
    whole = {name: name.removesuffix(".name").removesuffix("._target_") for name in names}
    last = {name: word.rpartition(".")[2] for name, word in whole.items()}
    ends = list(last.values())
    return {name: last[name] if ends.count(last[name]) == 1 else whole[name] for name in names}
