"""One training step as a CUDA graph: its inputs, the capture, and the replay."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from scalewise.config import first_line
from scalewise.train.torch_internals import copy_all, stop_allocating_to


def make_capturable(optimizer: torch.optim.Optimizer) -> str | None:
    """Let the optimizer count its steps on the device; to be called before its first step.

    Returns why a graph cannot hold its steps, where that is so.
    """
    kind = type(optimizer).__name__
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return f"{kind} has step hooks, which run in Python"
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
        elif not isinstance(optimizer, torch.optim.SGD):
            return f"{kind} has no capturable variant; adam, adamw and sgd have"
    # The steps before the capture are eager on purpose.
    optimizer._warned_capturable_if_run_uncaptured = True
    return None


def host_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Values that Python keeps between steps: plain ones of modules and optimizer, host tensors."""
    found: dict[str, Any] = {}
    for name, part in module.named_modules():
        of = f"of {name or 'the module'}"
        found |= {f"{type(part).__name__}.{k} {of}": value for k, value in vars(part).items()}
    kind, device = type(optimizer).__name__, optimizer.param_groups[0]["params"][0].device
    found |= {f"{kind}.{key}": value for key, value in vars(optimizer).items()}
    # Every parameter's state is of one kind.
    for key, value in next(iter(optimizer.state.values()), {}).items():
        on_host = isinstance(value, Tensor) and value.device.type != device.type
        single = on_host and value.numel() == 1
        found[f"{kind}'s state {key!r}"] = value.item() if single else value
    return {name: one for name, one in found.items() if isinstance(one, (bool, int, float))}


def state_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first value that is another one ``now``, or new, in words; None if none is."""
    for name, value in now.items():
        if name not in before or before[name] != value:
            return f"{name} changes in each step and is kept in Python or in host memory"
    return None


Batch = Sequence[Tensor]
"""The tensors of one step, samples along the first dimension of each."""
StepFunction = Callable[[Batch], Tensor]
"""Forward, backward and optimizer on one batch; gives the loss."""


class CaptureError(Exception):
    """The step cannot be captured: one line that says why."""


class CudaCapture:
    """The current GPU, as capturing needs it; tests stand in for it on a CPU."""

    def graph(self) -> CudaGraph:
        return CudaGraph()

    def watch(self, step: Callable[[], Tensor]) -> tuple[Tensor, str | None]:
        """Run ``step`` and say in words where it made the host wait for the device, if it did."""
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                loss = step()
            finally:
                torch.cuda.set_sync_debug_mode(before)
        return loss, where_it_waits(caught)

    def marker(self) -> torch.cuda.Event:
        """A moment of the device's time line, now."""
        # A host that waits for this one sleeps instead of spinning on a core.
        event = torch.cuda.Event(blocking=True)
        event.record()
        return event


def where_it_waits(caught: Sequence[warnings.WarningMessage]) -> str | None:
    """The first place of a step's code that made the host wait for the device, in words."""
    for warning in caught:
        folder, _, name = warning.filename.rpartition("/")
        # The recording thread reads what steps before left, and waits for that alone.
        ours = folder.endswith("scalewise/train/recording")
        if "synchronizing CUDA operation" in str(warning.message) and not ours:
            place = f"{name}:{warning.lineno}"
            return f"the step waits for the device at {place} (.item(), a dynamic shape)"
    return None


class CudaGraph:
    """Work recorded once, on the current CUDA stream, which must not be the default one.

    ``replay`` does it again, on the memory it was recorded with.
    """

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self.replay = self._graph.replay

    def capture(self, work: Callable[[], Tensor]) -> Tensor:
        """Record ``work`` and return what it returns. Raises :class:`CaptureError`."""
        device = torch.cuda.current_device()
        random_state = torch.cuda.get_rng_state(device)
        try:
            with torch.cuda.graph(
                self._graph,
                stream=torch.cuda.current_stream(),
                # Other threads pin memory and query events meanwhile; that is theirs to do.
                capture_error_mode="thread_local",
            ):
                return work()
        except Exception as error:
            # What torch.cuda.graph raises on its way out hides what broke the capture.
            self._clean_up(device, random_state)
            raise CaptureError(first_line(error.__context__ or error)) from error

    def _clean_up(self, device: int, random_state: Tensor) -> None:
        """After a broken capture torch still believes in it: dropout and the allocator would."""
        with contextlib.suppress(RuntimeError):
            stop_allocating_to(device, self._graph.pool())
        torch.cuda.synchronize(device)
        fresh = torch.Generator(f"cuda:{device}")
        torch.cuda.default_generators[device].graphsafe_set_state(fresh.graphsafe_get_state())
        torch.cuda.set_rng_state(random_state, device)


class CapturedStep:
    """A step that was captured on inputs of its own, into which each batch is copied.

    It must have run a few times before. ``batch``, on the device, gives the shapes.
    """

    def __init__(self, step: StepFunction, batch: Batch, graph: CudaGraph) -> None:
        self._inputs = [part.clone() for part in batch]
        self._replay = graph.replay
        self._shapes = [part.shape for part in batch]
        self.loss = graph.capture(lambda: step(self._inputs).detach())
        """The loss of the last replay: the next one overwrites it."""

    def fits(self, batch: Batch) -> bool:
        """Whether ``batch`` has the captured shapes."""
        return [part.shape for part in batch] == self._shapes

    def run(self, batch: Batch) -> Tensor:
        """One step on ``batch``. Neither the host nor this call waits for it."""
        copy_all(self._inputs, list(batch), non_blocking=True)
        self._replay()
        return self.loss
