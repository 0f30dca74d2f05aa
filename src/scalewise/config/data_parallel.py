"""Settings of strategies whose devices hold the whole model, and what all strategies share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from scalewise.config.components import MOST_IN_NAME
from scalewise.config.errors import require

if TYPE_CHECKING:
    from scalewise.config.cell import CellConfig


DeviceKind = Literal["cuda", "cpu"]
Compression = Literal["none", "fp16", "bf16", "powersgd"]

_OPTIONS = {"32-true": "fp32, tf32", "16-mixed": "fp16-mixed"}
"""Lightning's names of precisions, as users choose them."""


@dataclass(frozen=True)
class StrategyConfig:
    """The config group ``strategy``; ``kind`` chooses the subclass.

    It says which cells the strategy can run and how these share out the data. It imports no torch,
    so that a sweep can check a thousand cells at once; ``train.strategies`` builds from it.
    """

    KIND: ClassVar[str]
    """The value of ``kind`` that chooses this class."""
    FEWEST_DEVICES: ClassVar[int] = 2
    ONE_MODEL: ClassVar[bool] = True
    """False where the ranks train models of their own: a throughput ceiling, no training job."""
    UNEVEN: ClassVar[bool] = False
    """Whether the parts of a batch may differ in size."""
    SCORES_TOGETHER: ClassVar[bool] = False
    """Whether ranks communicate in every batch they score, so that all need as many of them."""
    ALLOWED: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    """Settings of a cell, as :func:`_settings` names them, and the values that work with it."""
    REFUSED: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    """Settings of a cell and the values that do not work with it."""

    name: Annotated[str, Field(max_length=MOST_IN_NAME)]
    kind: str
    devices: int | Literal["auto"] = "auto"
    """Processes, one a device; ``auto`` is all of the host."""

    def __post_init__(self) -> None:
        enough = self.devices == "auto" or self.devices >= self.FEWEST_DEVICES
        allowed = f"{self.FEWEST_DEVICES} or more, or auto (strategy=single for one)"
        require("devices", self.devices, enough, allowed, f"strategy={self.name}")

    def check(self, cell: CellConfig) -> None:
        """Refuse a cell that this strategy cannot run.

        Raises ValueError: one line that begins with the full key, and says what was found and what
        is allowed.
        """
        for key, (found, name) in _settings(cell).items():
            allowed, refused = self.ALLOWED.get(key), self.REFUSED.get(key, ())
            words = ", ".join(_OPTIONS.get(str(one), str(one)) for one in allowed or refused)
            holds = (allowed is None or found in allowed) and found not in refused
            options = words if allowed else f"all but {words}"
            require(key, name, holds, options, f"strategy={self.name}")

    def team(self, devices: int) -> int:
        """Ranks among which a batch is shared on so many devices."""
        return devices

    def data_shards(self, world_size: int) -> int:
        """Into how many disjoint parts a global batch is cut.

        ``world_size`` where every rank feeds samples of its own; 1 where all feed the same.
        """
        return world_size

    def data_shard(self, rank: int, world_size: int) -> int:
        """Which of :meth:`data_shards` a rank feeds; ranks that share one feed the same samples."""
        return rank * self.data_shards(world_size) // world_size

    def share_out(self, batch_size: int, world_size: int) -> tuple[int, ...]:
        """Samples of each of the :meth:`data_shards`, for a batch of ``batch_size`` in all.

        Raises ValueError, as :meth:`check` does, where they cannot be shared among as many devices.
        """
        enough, allowed = world_size >= self.FEWEST_DEVICES, f"{self.FEWEST_DEVICES} or more"
        require("strategy.devices", world_size, enough, allowed, f"strategy={self.name}")
        shards = self.data_shards(world_size)
        if batch_size % shards:
            below = batch_size - batch_size % shards
            nearest = [str(b) for b in (below, below + shards) if b > 0]
            raise ValueError(
                f"batch_size: found {batch_size} on {world_size} devices with scaling=strong; "
                f"allowed: a multiple of {shards} (nearest: {' or '.join(nearest)})"
            )
        return (batch_size // shards,) * shards


def _settings(cell: CellConfig) -> dict[str, tuple[object, str]]:
    """Settings that a strategy may refuse: each with its value, and its name in a message."""
    model = cell.model.target.rpartition(".")[2]
    batches = cell.accumulate_grad_batches
    return {
        "execution": (cell.execution.kind, cell.execution.name),
        "precision": (cell.precision.lightning, cell.precision.name),
        "optimizer": (cell.optimizer.target.rpartition(".")[2].lower(), cell.optimizer.name),
        "accumulate_grad_batches": (batches, str(batches)),
        **({"model": (model,) * 2} if cell.model.target.startswith("scalewise.models.") else {}),
    }


@dataclass(frozen=True)
class SingleConfig(StrategyConfig):
    """``strategy=single``: one device, with which every other strategy is compared."""

    KIND: ClassVar[str] = "single"
    FEWEST_DEVICES: ClassVar[int] = 1

    devices: int | Literal["auto"] = 1

    def __post_init__(self) -> None:
        allowed = "1, or strategy=ddp for more"
        require("devices", self.devices, self.devices == 1, allowed, "strategy=single")


@dataclass(frozen=True)
class ProcessGroupConfig(StrategyConfig):
    """A strategy with a process group over all of its ranks."""

    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """``auto``: NCCL on GPUs, gloo on CPUs."""

    def backend_for(self, device_kind: DeviceKind) -> Literal["nccl", "gloo", "rehearsal"]:
        """The process-group backend on devices of that kind.

        Raises ValueError for NCCL without GPUs.
        """
        if self.backend == "auto":
            return "nccl" if device_kind == "cuda" else "gloo"
        if self.backend == "nccl" and device_kind == "cpu":
            raise ValueError("strategy.backend: found nccl on a CPU host; allowed: gloo or auto")
        return self.backend


@dataclass(frozen=True)
class DdpConfig(ProcessGroupConfig):
    """``strategy=ddp``: a replica on each device, gradients averaged every step."""

    KIND: ClassVar[str] = "ddp"

    bucket_cap_mb: PositiveInt = 25
    """Size at which DDP starts to reduce gathered gradients, in MiB."""
    static_graph: bool = False
    """Promise that every step uses the same parameters in the same order."""
    gradient_as_bucket_view: bool = True
    """Let gradients be views into the buckets, which saves one copy of them."""
    find_unused_parameters: bool = False
    """Search the graph for parameters without gradient before each reduction."""
    no_sync: bool = True
    """With ``accumulate_grad_batches``: reduce gradients in a step's last batch only."""
    compression: Compression = "none"
    """How gradients are sent: none | fp16 | bf16 | powersgd."""
    powersgd_rank: PositiveInt = 1
    """Rank of the matrices that ``compression=powersgd`` sends in place of gradients."""
    powersgd_start_step: Annotated[int, Field(ge=2)] = 10
    """Reductions that are sent whole before ``compression=powersgd`` begins: DDP rebuilds its
    buckets in the first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        searches = self.find_unused_parameters
        once = not (self.static_graph and searches)  # a static graph finds them once for all steps
        require("find_unused_parameters", searches, once, "false", "static_graph=true")

    def check(self, cell: CellConfig) -> None:
        super().check(cell)
        holds = self.compression == "none" or cell.execution.kind != "cudagraph"
        beside = f"execution={cell.execution.name}"
        require("strategy.compression", self.compression, holds, "none", beside)


_EACH = "one for each device"


@dataclass(frozen=True)
class HeterogeneousConfig(DdpConfig):
    """``strategy=heterogeneous``: each device gets a share of every batch as large as it is fast.

    A device's gradient is the mean over its own samples. Weighted by its share of the batch before
    they are added up, the gradients of all devices are the mean over all samples.
    """

    KIND: ClassVar[str] = "heterogeneous"
    UNEVEN: ClassVar[bool] = True
    ALLOWED: ClassVar[Mapping[str, tuple[object, ...]]] = {"execution": ("eager", "compile")}

    shares: tuple[float, ...] = ()
    """Share of each batch, one a rank, adding up to 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = self.compression == "none"  # the gradients it sends are weighted
        require("compression", self.compression, whole, "none", f"strategy={self.name}")
        sound = min(self.shares, default=0.0) > 0 and abs(sum(self.shares) - 1) <= 1e-3
        allowed = f"one above 0 {_EACH[4:]}, adding up to 1: samples/s of each alone over their sum"
        require("shares", list(self.shares), sound, allowed)
        fits = self.devices in ("auto", len(self.shares))
        require("shares", len(self.shares), fits, _EACH, f"devices={self.devices}")

    def share_out(self, batch_size: int, world_size: int) -> tuple[int, ...]:
        fits = len(self.shares) == world_size
        require("strategy.shares", len(self.shares), fits, _EACH, f"devices={world_size}")
        return whole_samples(batch_size, self.shares)


def whole_samples(batch_size: int, weights: Sequence[float]) -> tuple[int, ...]:
    """``batch_size`` in proportion to ``weights``, by largest remainder, one for each at least.

    Raises ValueError for fewer samples than weights.
    """
    if batch_size < len(weights):
        raise ValueError(
            f"batch_size: found {batch_size} on {len(weights)} devices; allowed: "
            f"{len(weights)} or more, one sample for each"
        )
    exact = [batch_size * weight / sum(weights) for weight in weights]
    sizes = [max(1, int(one)) for one in exact]
    # Who got least of what it should have comes first; who got most gives back first.
    while sum(sizes) < batch_size:
        sizes[max(range(len(sizes)), key=lambda i: exact[i] - sizes[i])] += 1
    while sum(sizes) > batch_size:
        large = [i for i in range(len(sizes)) if sizes[i] > 1]
        sizes[min(large, key=lambda i: exact[i] - sizes[i])] -= 1
    return tuple(sizes)


@dataclass(frozen=True)
class LocalSgdConfig(ProcessGroupConfig):
    """``strategy=local_sgd``: each device trains alone, then all average their parameters.

    Stich 2019, "Local SGD Converges Fast and Communicates Little" (arXiv:1805.09767). Between two
    averagings the replicas differ by design; momenta of the optimizer are never exchanged.
    """

    KIND: ClassVar[str] = "local_sgd"
    ALLOWED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "execution": ("eager", "compile"),
        # Not fp16: its loss scaling skips steps on one rank and not on another, and the two would
        # wait for each other in different averagings.
        "precision": ("32-true", "bf16-mixed"),
    }

    period: PositiveInt = 8
    """Optimizer steps from one averaging to the next."""


@dataclass(frozen=True)
class TaskParallelConfig(ProcessGroupConfig):
    """``strategy=task_parallel``: as many models as devices, which never meet.

    Their samples a second are the most that a data-parallel strategy could reach on these devices
    with these batches. The process group serves the start, the end and scoring only.
    """

    KIND: ClassVar[str] = "task_parallel"
    ONE_MODEL: ClassVar[bool] = False
