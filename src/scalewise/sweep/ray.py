"""What ``hydra/launcher=ray`` may be told. Ray itself is an optional extra, imported elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import NonNegativeFloat, PositiveInt

from scalewise.config import ConfigError
from scalewise.ranges import require
from scalewise.validation import DataError, build


@dataclass(frozen=True)
class RayConfig:
    """The config group ``hydra/launcher``, option ``ray``."""

    address: str = "auto"
    """``host:port`` of a cluster's head; ``auto``: $RAY_ADDRESS, else a cluster that runs on this
    host, else ``local``; ``local``: one of this host alone, which ends with the sweep."""
    policy: Literal["exclusive", "packed"] = "exclusive"
    """``exclusive``: each cell has its nodes to itself; ``packed``: cells share them."""
    wrap: str | None = None
    """Command around each rank's own: see :mod:`scalewise.wrap`."""
    gpus_per_device: Literal[0, 1, "auto"] = "auto"
    """1, or 0 for nodes without GPUs; ``auto`` is 0 with a CPU profile and 1 with any other."""
    cpus_per_device: PositiveInt = 1
    """CPUs, as Ray counts them, of one rank; also its cores with ``hardware=cpu``."""
    devices_per_node: PositiveInt | None = None
    """The widest cell that one node is to run; null: what the largest node has."""
    wait_for_nodes_s: NonNegativeFloat = 0.0
    """How long a cell waits for nodes that the cluster does not have yet, but may get."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables for every node, beside NCCL_*, GLOO_* and TORCH_*, which go along by themselves."""

    def __post_init__(self) -> None:
        client = self.address.startswith("ray://")
        allowed = "auto | local | host:port; Ray's client (ray://) would run the sweep elsewhere"
        require("address", self.address, bool(self.address) and not client, allowed)


def ray_config(options: Mapping[str, Any]) -> RayConfig:
    """The typed ``hydra.launcher``. Raises :class:`ConfigError`."""
    try:
        return build(RayConfig, dict(options))
    except (DataError, ValueError) as error:
        raise ConfigError(f"hydra.launcher.{error}") from None
