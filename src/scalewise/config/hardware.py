"""Hardware profiles: what a run expects of its host, the check that it is so, and its prices.

A profile is data (``conf/hardware/*.yaml``); every figure in it names its source and its date.
Prices are of the report and not of the run: one measurement can be held against several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from scalewise.config.errors import ConfigError, refuse_as, require
from scalewise.records import DeviceInfo, build, closest, convert, words_beside


@dataclass(frozen=True)
class PeakRates:
    """Peak rates of dense matrix products in 10^12 operations a second, as the maker states them.

    Rates with structured sparsity, twice as high in most data sheets, are never meant.
    """

    source: str
    """The document they stand in."""
    date: str
    """The document's date, or when it was read."""
    fp32_tflops: PositiveFloat | None = None
    """Outside the tensor cores."""
    tf32_tflops: PositiveFloat | None = None
    bf16_tflops: PositiveFloat | None = None
    fp16_tflops: PositiveFloat | None = None
    """With sums in fp32, as mixed precision needs them."""
    fp8_tflops: PositiveFloat | None = None


@dataclass(frozen=True)
class Link:
    """The connection between the GPUs of a host."""

    kind: Literal["nvlink", "pcie"]
    bidirectional_gb_s: PositiveFloat | None = None
    """10^9 bytes a second of one GPU, both directions together, as the maker states it."""


@dataclass(frozen=True)
class Price:
    """The price of one GPU for an hour, its share of the machine around it included."""

    usd_per_hour: NonNegativeFloat
    source: str
    date: str


@dataclass(frozen=True)
class HardwareConfig:
    """A profile. A null is not known, and nothing is computed from it."""

    name: str
    kind: Literal["auto", "cpu", "cuda"] = "auto"
    """``auto``: GPUs where there are any, else the CPU."""
    gpus: Literal["all"] | Annotated[tuple[int | str, ...], Field(min_length=1)] = "all"
    """The GPUs that may be used, by index or UUID."""
    match: tuple[str, ...] = ()
    """Every one of these must occur in the name NVML gives each GPU."""
    match_not: tuple[str, ...] = ()
    """None of these may: sister products with other rates."""
    allow_mismatch: bool = False
    """Run all the same on GPUs this profile does not describe; its figures are then left out."""
    cores_per_device: PositiveInt | None = None
    """CPU only: cores of one device; null is half the usable cores, at least one."""
    peak: PeakRates | None = None
    memory_gib: float | None = None
    """Memory of one GPU, as the maker names it."""
    memory_bandwidth_gb_s: float | None = None
    """10^9 bytes a second between one GPU and its memory."""
    memory_source: str | None = None
    """The document of memory, bandwidth and link, where it is not that of the peak rates."""
    link: Link | None = None
    price: Price | None = None
    nccl: Mapping[str, str | int] = field(default_factory=dict)
    """NCCL_* environment variables of the ranks. Empty leaves NCCL its own choice."""
    nccl_left_out: Mapping[str, str] = field(default_factory=dict)
    """Published settings that are not applied, ``NAME=value``, and why."""
    memory_cap_gib: PositiveFloat | None = None
    """Most memory a rank may allocate on its GPU; null for no limit."""

    def __post_init__(self) -> None:
        distinct = self.gpus == "all" or len(set(self.gpus)) == len(self.gpus)
        require("gpus", list(self.gpus), distinct, "each GPU once")
        check_nccl(self.nccl)

    def nccl_environment(self) -> dict[str, str]:
        """Variables to add to a rank's environment."""
        return {name: str(value) for name, value in self.nccl.items()}

    def warnings(self) -> list[str]:
        """Settings that are legal and can still do harm, and those left out, one line each."""
        left_out = (f"{setting} is left out: {why}" for setting, why in self.nccl_left_out.items())
        return [*nccl_warnings(self.nccl), *left_out]


def describes(config: HardwareConfig, gpu_name: str) -> bool:
    """Whether the profile is made for a GPU of this name."""
    return all(part in gpu_name for part in config.match) and not any(
        part in gpu_name for part in config.match_not
    )


def profile_of(gpu_name: str, profiles: Sequence[HardwareConfig]) -> HardwareConfig | None:
    """The profile made for a GPU of this name, or None: the figures for ``hardware=auto``."""
    fitting = [p for p in profiles if p.match and not p.nccl and describes(p, gpu_name)]
    return max(fitting, key=lambda p: sum(map(len, p.match)), default=None)


def load_profiles(folder: Path) -> list[HardwareConfig]:
    """Every profile below ``folder`` that is complete by itself."""
    plain = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in folder.glob("*.yaml")]
    return [build(HardwareConfig, one) for one in plain if "defaults" not in one]


def data_sheet(
    gpu_names: Sequence[str], profiles: Sequence[HardwareConfig]
) -> tuple[dict[str, float], str | None]:
    """Peak rates in 10^12 operations a second by precision, and their source.

    Empty, with no source, unless all GPUs are of one kind that a profile describes.
    """
    found = [profile_of(name, profiles) for name in dict.fromkeys(gpu_names)]
    profile = found[0] if len(found) == 1 else None
    if profile is None or profile.peak is None:
        return {}, None
    formats = ("fp32", "tf32", "bf16", "fp16", "fp8")
    rates = {name: getattr(profile.peak, f"{name}_tflops") for name in formats}
    known = {name: rate for name, rate in rates.items() if rate is not None}
    return known, f"{profile.peak.source}, {profile.peak.date}"


def device_kind(config: HardwareConfig, present: Sequence[DeviceInfo]) -> Literal["cpu", "cuda"]:
    """The kind of device the run will compute on, where ``present`` are the host's GPUs.

    Raises ValueError where the profile needs a GPU and there is none.
    """
    if config.kind == "cuda" and not present:
        raise ValueError(
            f"hardware={config.name}: found no NVIDIA GPU on this host; allowed: a host with one, "
            "or hardware=cpu"
        )
    return "cpu" if config.kind == "cpu" or not present else "cuda"


def choose_gpus(config: HardwareConfig, present: Sequence[DeviceInfo]) -> tuple[DeviceInfo, ...]:
    """The GPUs to use, in the order the profile names them.

    On a host with GPUs of several kinds, a profile that names none of them has those it describes.
    Raises ValueError for a GPU that is not there and for one the profile does not describe, unless
    ``allow_mismatch``.
    """
    chosen = _named_gpus(config, present)
    strangers = sorted({gpu.name for gpu in chosen if not describes(config, gpu.name)})
    if not strangers or config.allow_mismatch:
        return chosen
    described = tuple(gpu for gpu in chosen if describes(config, gpu.name))
    if described and config.gpus == "all":
        return described
    without = f" without {', '.join(config.match_not)}" if config.match_not else ""
    raise ValueError(
        f"hardware={config.name}: found {', '.join(strangers)}; allowed: GPUs named "
        f"{' and '.join(config.match)}{without}. Use hardware=auto, the profile of this GPU, or "
        "hardware.allow_mismatch=true to run without its figures"
    )


def _named_gpus(config: HardwareConfig, present: Sequence[DeviceInfo]) -> tuple[DeviceInfo, ...]:
    if config.gpus == "all":
        return tuple(present)
    chosen = []
    for wanted in config.gpus:
        found = [gpu for gpu in present if wanted in (gpu.index, gpu.uuid)]
        indices = ", ".join(str(gpu.index) for gpu in present)
        allowed = f"{indices}, or a UUID of one of them (nvidia-smi -L lists them)"
        require("hardware.gpus", wanted, bool(found), allowed)
        chosen += found
    distinct = len({gpu.uuid for gpu in chosen}) == len(chosen)
    require("hardware.gpus", list(config.gpus), distinct, "each GPU once")
    return tuple(chosen)


def cpu_devices(config: HardwareConfig, usable_cores: Sequence[int]) -> list[tuple[int, ...]]:
    """The devices of a CPU host: equal shares of the cores, the same for one rank and for many.

    Cores that do not fill a share are left idle, so that every device is as fast as the others.
    Raises ValueError where not even one device has its cores.
    """
    share = config.cores_per_device or max(1, len(usable_cores) // 2)
    allowed = f"1 to {len(usable_cores)}, the cores this process may use"
    require("hardware.cores_per_device", share, share <= len(usable_cores), allowed)
    count = len(usable_cores) // share
    return [tuple(usable_cores[i * share : (i + 1) * share]) for i in range(count)]


_IMAGE_LABELS: Final = ("NCCL_VERSION",)
"""Names that NVIDIA's images put into the environment beside settings: NCCL reads none."""
_LEGAL: Final = words_beside(__file__, dict[str, str], "nccl.toml")
_LISTS: Final = ("NCCL_ALGO", "NCCL_PROTO")
"""Take ``a,b`` or ``^a``, for all collectives or as ``allreduce:a;broadcast:b``."""


def check_nccl(settings: Mapping[str, str | int]) -> None:
    """Raise ValueError for the first setting NCCL would not take as it stands.

    NCCL replaces an illegal value by some other, silently unless NCCL_DEBUG asks for it. Variables
    that :data:`_LEGAL` does not hold are not checked.
    """
    for name, value in settings.items():
        ours = f"names of NCCL_* environment variables{closest(name, list(_LEGAL))}"
        require("nccl", name, name.startswith("NCCL_"), ours)
        parts = str(value).split(";") if name in _LISTS else [str(value)]
        words = [word for part in parts for word in part.rpartition(":")[2].split(",")]
        legal = _LEGAL.get(name, "").lower().split(" | ")
        known = name not in _LEGAL or all(w.strip().lstrip("^").lower() in legal for w in words)
        require(f"nccl.{name}", value, known, _LEGAL.get(name, ""))


def set_in(environment: Mapping[str, str]) -> dict[str, str]:
    """NCCL's settings among the variables of an environment."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith("NCCL_") and name not in _IMAGE_LABELS
    }


def nccl_warnings(settings: Mapping[str, str | int]) -> list[str]:
    """One line for each setting that is legal and can still do harm."""
    warnings = []
    # The part without a colon holds for every collective.
    if "tree" in (part.strip() for part in str(settings.get("NCCL_ALGO", "")).lower().split(";")):
        warnings.append(
            "NCCL_ALGO=Tree holds for every collective, and only all-reduce has a tree: NCCL can "
            "abort the others (NVIDIA/nccl issue 317); write NCCL_ALGO=allreduce:tree"
        )
    if str(settings.get("NCCL_P2P_DISABLE")) == "1":
        warnings.append(
            "NCCL_P2P_DISABLE=1 sends everything through host memory, also where GPUs reach one "
            "another directly; such a run is marked emulated"
        )
    return warnings


@dataclass(frozen=True)
class Quote:
    """A price or an assumption, with where it is from."""

    value: NonNegativeFloat
    source: str
    date: str


@dataclass(frozen=True)
class Prices:
    """``conf/prices.yaml``. What is None is not known, and nothing is computed from it."""

    usd_per_hour: Quote | None = None
    """Rent of one device, in place of every other."""
    purchase_usd: Quote | None = None
    """One device, in place of ``purchase_usd_of``."""
    purchase_usd_of: Mapping[str, Quote] = field(default_factory=dict)
    """By the name of a hardware profile."""
    extra_usd: Quote | None = None
    """What the devices beyond the first one need beside themselves, once."""
    lifetime_years: Quote | None = None
    hours_per_year: Quote | None = None
    """Hours of a year in which the devices train."""
    usd_per_kwh: Quote | None = None
    device_watts: Quote | None = None
    """Draw of one busy device, where no energy was measured."""

    @property
    def rent(self) -> Price | None:
        """The rent as the price that costs are taken at."""
        given = self.usd_per_hour
        return None if given is None else Price(given.value, given.source, given.date)

    @property
    def lifetime_hours(self) -> float | None:
        """Hours that a device trains until it is replaced."""
        if self.lifetime_years is None or self.hours_per_year is None:
            return None
        return self.lifetime_years.value * self.hours_per_year.value


_MAY_BE_ZERO = ("extra_usd", "usd_per_kwh")
_HOURS_OF_A_YEAR = 8784.0


def read_prices(path: Path, typed: Sequence[str] = ()) -> Prices:
    """The shipped prices, with those that somebody ``typed`` as ``KEY=VALUE``.

    Raises :class:`ConfigError` for a key or a value that is none.
    """
    prices = build(Prices, yaml.safe_load(path.read_text(encoding="utf-8")), path.name)
    today = datetime.now(UTC).date().isoformat()
    keys = [one.name for one in fields(Prices) if one.name != "purchase_usd_of"]
    for words in typed:
        key, _, text = words.partition("=")
        if key not in keys:
            raise ConfigError(
                f"--price: found {words!r}{closest(key, keys)}; allowed: KEY=VALUE with "
                f"{', '.join(keys)}"
            )
        quoted: Any = {key: Quote(_number(key, text), "given with --price", today)}
        prices = replace(prices, **quoted)
    return prices


def _number(key: str, text: str) -> float:
    least = Field(ge=0) if key in _MAY_BE_ZERO else Field(gt=0)
    most = _HOURS_OF_A_YEAR if key == "hours_per_year" else 1e12
    kind = Annotated[float, least, Field(le=most, strict=False)]
    with refuse_as():
        return float(convert(kind, text, f"--price {key}"))
