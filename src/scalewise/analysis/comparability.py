"""Decides whether two results are comparable: they may differ in one declared factor only.

Hosts of one kind differ by up to a quarter, so ``host`` is a field. Results of several hosts equal
only results of the same hosts: then the spread over runs, and with it the interval, contains the
spread between hosts. A cell on several hosts has the host of rank 0. GPUs are compared by model:
which of them a run got is part of the spread over runs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from scalewise.analysis.figures import listed
from scalewise.analysis.model import CellRecords, setting
from scalewise.host import CLASS_FILES, SOURCE_SHA256

K = TypeVar("K")
T = TypeVar("T")

# Keys that say how often and by what a configuration is run, not what is run.
_NO_FACTOR = (
    "sweep", "tracking", "rehearse", "hydra", "repeats", "precision_percent", "max_repeats",
    "allow_faults", "repeat", "monitor.interval_s", "monitor.seed_format",
)  # fmt: skip
# The same, and keys that never determine a result, or that the records state better (the batch).
# Seeds of one configuration are repeats of it.
_NOT_IDENTITY = (*_NO_FACTOR, "seed", "experiment", "name", "batch_size", "hardware.gpus")

FACTORS: Mapping[str, tuple[str, ...]] = {
    "devices": ("devices", "strategy"),
    "strategy": ("strategy",),
    "gpu": ("device_model", "cores_per_device", "hardware", "driver", "host"),
    "link": ("emulated", "hardware", "driver", "host"),
    "code": ("code",),
    "versions": ("torch", "lightning", "driver", "cuda"),
    "model": ("model",),
    "dataset": ("dataset", "data_file"),
    "optimizer": ("optimizer", "scheduler"),
    "callbacks": ("callbacks", "validation"),
    "precision": ("precision",),
    "execution": ("execution",),
    "batch": ("batch",),
    "measuring": ("profile", "wrap"),
}
"""The factors a comparison may declare, each with the fields that may then differ."""


def factor_fields(factor: str) -> tuple[str, ...]:
    """The fields that ``factor`` frees, of several with commas between them.

    Raises ValueError for a factor that does not exist.
    """
    names = factor.split(",") if factor else []
    if unknown := [name for name in names if name not in FACTORS]:
        raise ValueError(f"factor: found {unknown[0]!r}; allowed: {', '.join(FACTORS)}")
    return tuple(field for name in names for field in FACTORS[name])


def within(field: str, freed: Iterable[str]) -> bool:
    """Whether a dotted field is one of ``freed``, or lies below one."""
    return any(field == one or field.startswith(f"{one}.") for one in freed)


UNKNOWN = "unknown"
_VALUE_SEPARATOR = " | "
"""Separates the values of one field, if repeats of a configuration have several."""
DATA_FILE = "data_file."
"""Prefix of the fields for files of the dataset, followed by the name of the argument."""
CLASS_FILE = "code.file."
"""Prefix of the fields for files of a user's modules, followed by the file's name."""

_PROVENANCE = (
    "torch", "lightning", "driver", "cuda", "code.commit", "code.diff", "code.source", "emulated",
    "host", "protocol",
)  # fmt: skip

_RECORDED = frozenset(
    {
        "configuration", "provenance", "wrap", "devices", "scaling", "batch", "device_model",
        "co_tenancy", "cores_per_device", "started", "rehearsed", *_PROVENANCE,
    }
)  # fmt: skip
"""Fields that come from what ran; all others are keys of the configuration."""


@dataclass(frozen=True)
class Difference:
    """One field of identity in which two results differ."""

    field: str
    left: str
    right: str

    @property
    def words(self) -> str:
        """The field as it is read; a key of the configuration as it is typed."""
        return _WORDS.get(self.field, self.field)

    def __str__(self) -> str:
        return f"{self.words}: {_abbreviate(self.left)} against {_abbreviate(self.right)}"


_WORDS = {
    "co_tenancy": "other cells on the host", "cores_per_device": "cores of a device",
    "device_model": "device",
}  # fmt: skip


Identity = Mapping[str, str]
_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{20,}\b")


def _abbreviate(value: str) -> str:
    """Shorten commits and hashes to 12 digits, and curves of points."""
    return cut(value) if value.startswith("[[") else _DIGEST.sub(r"\1", value)


def identity(cells: Sequence[CellRecords]) -> Identity:
    """The identity of repeats: dotted field names and their values.

    If repeats disagree (another commit, a neighbour on the host), the value lists all of them.
    """
    each = [_identity(cell) for cell in cells]
    return {
        name: _VALUE_SEPARATOR.join(sorted({one[name] for one in each if name in one}))
        for name in dict.fromkeys(name for one in each for name in one)
    }


def differences(
    left: Identity, right: Identity, factor: str = "devices", also: Sequence[str] = ()
) -> list[Difference]:
    """The fields that differ although neither ``factor`` nor ``also`` excuses them.

    ``factor`` is one of :data:`FACTORS`, or several with commas between them.
    Raises ValueError for a factor that does not exist.
    """
    freed = (*factor_fields(factor), *also)
    differing = {name for name, _ in left.items() ^ right.items()}
    # An unknown value cannot be shown to be equal.
    differing |= {
        name
        for name, value in left.items()
        if UNKNOWN in value and UNKNOWN in value.split(_VALUE_SEPARATOR)
    }
    found = []
    for name in sorted(differing, key=[*left, *right].index):
        a, b = left.get(name, "absent"), right.get(name, "absent")
        excused = within(name, freed)
        # A key that one side's code did not know yet differs because the code does.
        excused |= "code" in freed and name not in _RECORDED and "absent" in (a, b)
        # Old records have no such fields, nor have datasets and models without files, nor sides
        # whose samples nobody counted, of which a remark tells.
        excused |= _may_lack(name) and "absent" in (a, b)
        if not excused:
            found.append(Difference(name, a, b))
    return found


def describe(differing: Sequence[Difference]) -> list[str]:
    """Each in words. Settings that one class has and the other lacks are left to their names."""
    names = [difference.field.removesuffix("._target_") for difference in differing]
    classes = {name for name, d in zip(names, differing, strict=True) if name != d.field}
    return [str(d) for name, d in zip(names, differing, strict=True)
            if "absent" not in (d.left, d.right) or not within(name, classes - {name})]  # fmt: skip


def _may_lack(name: str) -> bool:
    return name == "batch" or name.startswith((DATA_FILE, CLASS_FILE))


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by their key; keys and items keep their order."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def shared_part(
    whole: Identity, factor: str = "devices", also: Sequence[str] = ()
) -> frozenset[tuple[str, str]]:
    """The part in which two identities have to be equal before they can have no differences.

    Thousands of rows are told apart by it at once, where each pair of them would be too many.
    """
    freed = (*factor_fields(factor), *also)
    return frozenset(
        (name, value)
        for name, value in whole.items()
        if not within(name, freed)
        and not _may_lack(name)
        and (name in _RECORDED or "code" not in freed)
    )


def grouped_alike(
    items: Iterable[T], whole: Callable[[T], Identity], factor: str, also: Sequence[str] = ()
) -> list[list[T]]:
    """Each item beside those from whose first one it has no differences, by their identities."""
    groups: list[list[T]] = []
    by_shared: dict[object, list[list[T]]] = {}
    for item in items:
        own = whole(item)
        near = by_shared.setdefault(shared_part(own, factor, also), [])
        found = next((g for g in near if not differences(whole(g[0]), own, factor, also)), None)
        if found is None:
            groups.append([item])
            near.append(groups[-1])
        else:
            found.append(item)
    return groups


def place(cell: CellRecords) -> dict[str, str]:
    """What a finished cell ran on: cells of other devices are no repeats of it.

    Hosts of one kind are the same place: their spread is part of the spread over runs. Empty for a
    cell without a result.
    """
    result = cell.result
    if result is None:
        return {}
    devices = [rank.device for rank in result.ranks]
    kinds = sorted({"CPU" if d.kind == "cpu" else short_device(d.name) for d in devices})
    found = {"device.name": "+".join(kinds)}
    processors = sorted({short_device(d.name) for d in devices if d.kind == "cpu"})
    if processors:
        found["device.processor"] = "+".join(processors)
        found["device.cores"] = "+".join(map(str, sorted({len(d.cores) for d in devices})))
    marks = [mark.split()[0] for mark in cell.provenance.emulated] if cell.provenance else []
    typed = flatten(setting(cell.config, "hardware") or {})
    if unsaid := [mark for mark in marks if f"nccl.{mark.partition('=')[0]}" not in typed]:
        found["emulated"] = "+".join(unsaid)
    return found


def short_device(name: str) -> str:
    """``H200`` of ``NVIDIA H200``."""
    return "-".join(name.removeprefix("NVIDIA ").split())


def code_and_data_fields(cell: CellRecords) -> Identity:
    """The known fields on the code that a finished cell ran and the files it read."""
    fields = _from_provenance(cell).items()
    known = {n: v for n, v in fields if n.startswith(("code.", DATA_FILE)) and v != UNKNOWN}
    # Without a commit, "none" does not show that nothing was changed on top of it.
    return known if "code.commit" in known else {n: v for n, v in known.items() if v != "none"}


def is_factor(name: str) -> bool:
    """Whether results can differ because this key of the configuration does."""
    return not within(name.replace("/", "."), _NO_FACTOR)


def _identity(cell: CellRecords) -> dict[str, str]:
    # A cell without a result has no provenance to compare: its configuration finds its baseline.
    ran_by = {} if cell.result is None else _from_provenance(cell)
    return _from_config(cell.config) | _from_result(cell) | ran_by


def _from_config(config: Mapping[str, Any] | None) -> dict[str, str]:
    if config is None:
        return {"configuration": UNKNOWN}
    flat = flatten(config)
    wrap = flat.get("sweep.wrap")
    # The only key on how a cell is run that changes how long it takes.
    wrapper = {"wrap": str(wrap)} if wrap else {}
    return wrapper | {k: str(v) for k, v in flat.items() if not within(k, _NOT_IDENTITY)}


_ASKED = (("scaling", "scaling"), ("batch", "batch_size"))


def _from_result(cell: CellRecords) -> dict[str, str]:
    result = cell.result
    if result is None:
        asked = cell.config or {}
        if (asked.get("script") or {}).get("command"):
            return {}  # what a script feeds is seen when it runs
        return {key: str(asked.get(name, UNKNOWN)) for key, name in _ASKED}
    batch = result.per_device_batch_size if result.scaling == "weak" else result.global_batch_size
    devices = [rank.device for rank in result.ranks]
    fields = {
        "devices": str(result.world_size),
        "scaling": result.scaling,
        **({} if batch is None else {"batch": str(batch)}),
        "device_model": " + ".join(sorted({d.name for d in devices})) or UNKNOWN,
        "co_tenancy": "shared host" if result.co_tenants else "alone",
    }
    if result.rehearsed is not None:  # no factor: it is never compared with what was measured
        fields["rehearsed"] = f"{result.rehearsed.ranks} over {result.rehearsed.link}"
    if any(d.kind == "cpu" for d in devices):
        fields["cores_per_device"] = " + ".join(map(str, sorted({len(d.cores) for d in devices})))
    return fields


def _from_provenance(cell: CellRecords) -> dict[str, str]:
    provenance = cell.provenance
    if provenance is None:
        return {"provenance": UNKNOWN} | dict.fromkeys(_PROVENANCE, UNKNOWN)
    packages = provenance.packages
    lightning = packages.get("pytorch-lightning") or packages.get("lightning")
    versions = packages.get("torch"), lightning, provenance.driver, provenance.cuda
    emulated, host = ", ".join(provenance.emulated) or None, provenance.host or UNKNOWN
    values = *versions, *_code(provenance.code), emulated, host, provenance.protocol
    named = zip(_PROVENANCE, values, strict=True)
    fields = {name: "none" if value is None else str(value) for name, value in named}
    fields |= {f"{DATA_FILE}{argument}": file for argument, file in provenance.data.items()}
    files = provenance.code.get(CLASS_FILES, {})
    fields |= {f"{CLASS_FILE}{name}": sha256 for name, sha256 in files.items()}
    # Forks share their memory layout, so their times do not compare with fresh processes'.
    return fields | {"started": provenance.started}


def _code(code: Mapping[str, Any]) -> tuple[str | None, str | None, str | None]:
    """The hash of scalewise's sources; of old records without it, the commit and its changes."""
    source = code.get(SOURCE_SHA256)
    if source is not None:
        return None, None, source
    return code.get("commit", UNKNOWN), code.get("diff_sha256"), None


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted keys, long words :func:`cut`; lists are values."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{cut(str(key))}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = cut(value) if isinstance(value, str) else value
    return flat


_LONGEST = 200
"""Letters of a name: each is in many tables, and a page grows with all of them."""


def cut(word: str) -> str:
    """``word``; of a long one the first letters, and a hash that tells it from others."""
    if len(word) <= _LONGEST:
        return word
    told = hashlib.sha256(word.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{word[: _LONGEST - len(told) - 1]}~{told}"


MIN_RUNS = 2
"""Fewer repeats have no interval: too few to compare, once some were set aside."""
ON_A_QUIET_HOST = "on a quiet host"


@dataclass(frozen=True)
class SetAside:
    """A finished repeat that is not compared with the others of its configuration."""

    cell: CellRecords
    reason: str
    """For example ``shared the host with pid 4711 (python)``."""
    remedy: str
    """How to run it again so that it counts, for example ``on a quiet host``."""

    @property
    def is_disturbed(self) -> bool:
        """Whether others on its host are the reason."""
        return self.remedy == ON_A_QUIET_HOST


def remedies_of(aside: Sequence[SetAside]) -> str:
    """How to run all of them again so that they count."""
    return " and ".join(dict.fromkeys(one.remedy for one in aside))


def split_repeats(cells: Sequence[CellRecords]) -> tuple[list[CellRecords], list[SetAside]]:
    """Split finished repeats into those that may have a common mean, and those set aside."""
    kept = [cell for cell in cells if cell.result is not None]
    aside: list[SetAside] = []
    for find in (_find_older_state, _find_other_starts, _find_co_located):
        found = find(kept)
        names = {repeat.cell.planned.name for repeat in found}
        kept = [cell for cell in kept if cell.planned.name not in names]
        aside += found
    return kept, aside


def _find_older_state(cells: Sequence[CellRecords]) -> list[SetAside]:
    """Repeats of other code or data than the latest, whose id does not tell; a missing field is no
    difference."""
    aside = []
    state: dict[str, str] = {}
    for cell in sorted(cells, key=lambda c: c.result.finished_at if c.result else 0, reverse=True):
        fields = code_and_data_fields(cell)
        changed = [Difference(n, v, state[n]) for n, v in fields.items() if state.get(n, v) != v]
        if changed:
            why = f"ran other code or data than the latest repeat: {'; '.join(map(str, changed))}"
            aside.append(SetAside(cell, why, "with code and data left as they are"))
        else:
            state |= fields
    return aside


def _find_other_starts(cells: Sequence[CellRecords]) -> list[SetAside]:
    """The fresh repeats where others were forked, or the forked ones where they are fewer."""
    known = [(cell, cell.provenance) for cell in cells if cell.provenance is not None]
    starts = [found.started for _, found in known]
    usual = "fresh" if starts.count("fresh") > starts.count("forked") else "forked"
    return [
        SetAside(
            cell,
            f"was {found.started}, and others were {usual}"
            + (f" ({found.not_forked})" if found.not_forked else ""),
            "with sweep.rerun=all",
        )
        for cell, found in known
        if usual in starts and found.started != usual
    ]


def _find_co_located(cells: Sequence[CellRecords]) -> list[SetAside]:
    """Repeats that shared the host, or those that had it alone where these are too few."""
    shared = [cell for cell in cells if cell.result and cell.result.co_tenants]
    alone = [cell for cell in cells if cell.result and not cell.result.co_tenants]
    if not shared or not alone:
        return []
    if len(alone) < MIN_RUNS <= len(shared):
        why = "had the host alone, unlike the repeats that are compared"
        return [SetAside(cell, why, ON_A_QUIET_HOST) for cell in alone]
    neighbours = ((cell, cell.result.co_tenants if cell.result else ()) for cell in shared)
    return [SetAside(cell, f"shared the host with {listed(names, 2)}", ON_A_QUIET_HOST)
            for cell, names in neighbours]  # fmt: skip
