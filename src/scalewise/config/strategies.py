"""Settings of strategies that divide the model, ``strategy=auto``, and which one a cell has.

That is chosen by ``kind``, by ``devices=2``, and by keys that some strategies of a sweep lack.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import NonNegativeInt, PositiveInt

from scalewise.config.components import option_of
from scalewise.config.data_parallel import (
    DdpConfig,
    HeterogeneousConfig,
    LocalSgdConfig,
    ProcessGroupConfig,
    SingleConfig,
    StrategyConfig,
    TaskParallelConfig,
)
from scalewise.config.errors import ConfigError, require
from scalewise.config.rehearsal import REHEARSALS, DdpRehearsalConfig, RehearsalConfig
from scalewise.records import DataError, build, closest

if TYPE_CHECKING:
    from scalewise.config.cell import CellConfig


@dataclass(frozen=True)
class AutoConfig(StrategyConfig):
    """``strategy=auto``: ``sweep.auto`` runs the candidates shortly, then trains the better."""

    KIND: ClassVar[str] = "auto"

    candidates: Mapping[str, Any] = field(default_factory=dict)
    """Name to the settings of each strategy that may be chosen."""
    probe_steps: int = 60
    """Steps of each short run, warm-up included."""
    probe_warmup_steps: NonNegativeInt = 20
    """First steps of a short run, excluded from its timing."""
    probe_repeats: PositiveInt = 3
    """Short runs of each candidate, each in new processes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        number = len(self.candidates)
        require("candidates", number, number > 1, "two strategies or more")
        warmup, steps = self.probe_warmup_steps, self.probe_steps
        beside = f"probe_steps={steps}"
        require("probe_warmup_steps", warmup, warmup < steps, f"0 to {steps - 1}", beside)
        others = not any(isinstance(one, AutoConfig) for one in self.built().values())
        require("candidates", "auto", others, "any other strategy")

    def plain(self) -> dict[str, dict[str, Any]]:
        """Each candidate's settings as plain data, on as many devices as were asked for."""
        asked = {} if self.devices == "auto" else {"devices": self.devices}
        return {
            name: {**settings, **({} if settings.get("kind") == "single" else asked)}
            for name, settings in self.candidates.items()
        }

    def built(self) -> dict[str, StrategyConfig]:
        """Each candidate's settings, typed. Raises DataError (a ValueError) for a wrong one."""
        return {
            name: strategy_config(plain, f"strategy.candidates.{name}")
            for name, plain in self.plain().items()
        }

    def check(self, cell: CellConfig) -> None:
        """Refuse what any candidate refuses."""
        for one in self.built().values():
            one.check(cell)


@dataclass(frozen=True)
class DividedConfig(ProcessGroupConfig):
    """A strategy under which no rank holds the whole model.

    Loss scaling is left out (``precision=fp16-mixed``): a rank that finds an overflow in its part
    would skip a step that the others take.
    """

    ALLOWED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "execution": ("eager",),
        "precision": ("32-true", "bf16-mixed"),
    }
    GONE: ClassVar[frozenset[str]] = frozenset(
        {"cpu_offload", "gather_dtype", "shard_size", "stages", "units"}
    )
    """Keys of kept sweeps that there are no longer. Typed anew they are refused."""


@dataclass(frozen=True)
class FsdpConfig(DividedConfig):
    """``strategy=fsdp`` (FSDP2): parameters, gradients and optimizer state in parts.

    Each rank feeds samples of its own and gathers the parameters of a layer when it needs them.
    """

    KIND: ClassVar[str] = "fsdp"
    SCORES_TOGETHER: ClassVar[bool] = True
    REFUSED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "optimizer": ("adafactor",),  # it takes means over the rows and columns of a whole matrix
        "model": ("Recurrent",),  # the fused kernels of an LSTM or GRU keep the unsharded weights
    }

    sharding: Literal["full", "grad_op"] = "full"
    """``full`` frees a layer's gathered parameters after its forward and gathers them again for
    backward (ZeRO-3). ``grad_op`` keeps them from forward to backward (ZeRO-2): less
    communication, more memory."""
    reduce_dtype: Literal["fp32", "bf16"] = "fp32"
    """Number format in which gradients are summed over the devices."""


@dataclass(frozen=True, kw_only=True)
class FsdpRehearsalConfig(RehearsalConfig, FsdpConfig):
    """Of ``strategy=fsdp``."""

    KIND: ClassVar[str] = REHEARSALS["fsdp"]


@dataclass(frozen=True)
class PipelineConfig(DividedConfig):
    """``strategy=pipeline`` (1F1B) and ``strategy=gpipe``: each device holds some of the layers.

    All ranks hold one model together and see the same samples.
    """

    KIND: ClassVar[str] = "pipeline"
    ALLOWED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **DividedConfig.ALLOWED,
        "accumulate_grad_batches": (1,),
        "model": ("Gpt2", "TextClassifier", "Mlp", "SizedMlp"),
    }

    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    """``gpipe``: all forwards, then all backwards (Huang et al., 2019). ``1f1b``: a backward as
    soon as there can be one (Narayanan et al., 2019), which holds the activations of no more
    microbatches than there are stages. Both idle equally long."""
    microbatches: PositiveInt = 8
    """Parts of a batch that are under way one behind another."""

    def data_shards(self, world_size: int) -> int:
        return 1

    def share_out(self, batch_size: int, world_size: int) -> tuple[int, ...]:
        """Microbatches must be of one size, and 1F1B needs one for every stage."""
        enough = self.schedule == "gpipe" or self.microbatches >= world_size
        allowed, beside = f"{world_size} or more, or schedule=gpipe", f"{world_size} stages"
        require("strategy.microbatches", self.microbatches, enough, allowed, beside)
        shares = super().share_out(batch_size, world_size)
        even, beside = shares[0] % self.microbatches == 0, f"{shares[0]} samples"
        require("strategy.microbatches", self.microbatches, even, "a divisor of them", beside)
        return shares


KINDS: Mapping[str, type[StrategyConfig]] = {
    config.KIND: config
    for config in (
        SingleConfig, DdpConfig, LocalSgdConfig, TaskParallelConfig, HeterogeneousConfig,
        AutoConfig, FsdpConfig, PipelineConfig, DdpRehearsalConfig, FsdpRehearsalConfig,
    )
}  # fmt: skip


def strategy_config(plain: Mapping[str, Any], at: str = "strategy") -> StrategyConfig:
    """The typed settings of the strategy that ``plain["kind"]`` names.

    Raises :class:`DataError` for an unknown kind, an unknown key, or a value out of its range.
    """
    kind = plain.get("kind")
    config = KINDS.get(kind) if isinstance(kind, str) else None
    if config is None:
        guess = closest(kind, list(KINDS)) if isinstance(kind, str) else ""
        raise DataError(f"{at}.kind: found {kind!r}{guess}; allowed: {' | '.join(KINDS)}")
    return build(config, plain, at)


_ADDED = "++"
"""Hydra's words for a key that the chosen option need not have."""
_OPEN = ("strategy.", "callbacks.", "scheduler.", "trainer.")
"""Groups whose keys are those of what is chosen there."""


def open_keys(overrides: Iterable[str]) -> list[str]:
    """``overrides`` for Hydra, whose ``strategy.*`` and the like are taken whatever is chosen.

    So are the arguments of a class that is named, or of options that are swept: Hydra knows those
    of the default option.
    A key that the strategy or the class does not know is refused where that is built.
    """
    typed = list(overrides)
    own = _own_arguments(typed)
    return [_ADDED + text if text.startswith(own) else text for text in typed]


def as_typed(overrides: Sequence[str]) -> list[str]:
    """The inverse of :func:`open_keys`."""
    own = tuple(f"{_ADDED}{start}" for start in _own_arguments(overrides))
    return [text.removeprefix(_ADDED) if text.startswith(own) else text for text in overrides]


def _own_arguments(overrides: Iterable[str]) -> tuple[str, ...]:
    """How the keys begin that no option of a group decides on."""
    named = re.compile(r"[+]*(model|dataset|optimizer)(?:\._target_=|=[^\[{(]*,)")
    groups = [found[1] for text in overrides if (found := named.match(text))]
    return (*_OPEN, *(f"{group}." for group in groups))


def place_on_devices(plain: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A composed configuration without its key ``devices``, which its strategy says instead.

    One device is ``single``. More are ``ddp``, unless ``overrides`` or an experiment name another
    strategy. Raises :class:`ConfigError` for a number that cannot be, or one said twice.
    """
    placed = {key: value for key, value in plain.items() if key != "devices"}
    devices = plain.get("devices")
    if devices is None:
        return placed
    typed = [text.lstrip("+").partition("=")[::2] for text in overrides]
    of_strategy = {key: value for key, value in typed if key.partition(".")[0] == "strategy"}
    if devices != "auto" and (type(devices) is not int or devices < 1):
        raise ConfigError(f"devices: found {devices!r}; allowed: 1 or more, or auto (all)")
    if "strategy.devices" in of_strategy:
        twice = f"strategy.devices={of_strategy['strategy.devices']}"
        raise ConfigError(f"devices: found {devices} with {twice}; allowed: one of them")
    if devices != 1 and of_strategy.get("strategy") == "single":
        both = f"devices=1,{devices} alone is both"
        raise ConfigError(f"devices: found {devices} with strategy=single; allowed: 1 ({both})")
    strategy = dict(plain["strategy"])
    if devices == 1:
        strategy = option_of("strategy", "single") | _keys_typed(of_strategy, strategy)
    elif strategy.get("kind") == "single":
        strategy = option_of("strategy", "ddp") | _keys_typed(of_strategy, strategy)
    return {**placed, "strategy": {**strategy, "devices": devices}}


def devices_as_typed(message: str, overrides: Iterable[str]) -> str:
    """An error about ``strategy.devices``, of ``devices`` where ``overrides`` name it so."""
    if any(text.lstrip("+").startswith("devices=") for text in overrides):
        return re.sub(r"^strategy\.(?=devices:)", "", message)
    return message


def _keys_typed(typed: Mapping[str, str], strategy: Mapping[str, Any]) -> dict[str, Any]:
    names = [key.split(".")[1] for key in typed if "." in key]
    return {name: strategy[name] for name in names if name in strategy}


def keep_known_keys(sweep: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The configurations of a sweep; a key of one strategy is left out of those without it.

    So ``strategy=single,ddp strategy.bucket_cap_mb=50`` sets it where there are buckets. What no
    strategy of the sweep knows stays with the one that knows most keys: its refusal lists them.
    """
    known = [_known(plain.get("strategy")) for plain in sweep]
    somewhere = frozenset[str]().union(*known)
    most = max(map(len, known), default=0)
    kept = []
    for plain, own in zip(sweep, known, strict=True):
        strategy = plain.get("strategy")
        if own and isinstance(strategy, Mapping):
            foreign = (somewhere if len(own) == most else strategy.keys()) - own
            strategy = {key: value for key, value in strategy.items() if key not in foreign}
            if own < somewhere and strategy["kind"] == "single":
                strategy["devices"] = 1  # strategy.devices was typed for the others
        kept.append({**plain, "strategy": strategy})
    return kept


def _known(strategy: Any) -> frozenset[str]:
    kind = strategy.get("kind") if isinstance(strategy, Mapping) else None
    config = KINDS.get(kind) if isinstance(kind, str) else None
    return frozenset() if config is None else frozenset(f.name for f in fields(config))
