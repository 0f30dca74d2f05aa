"""One training step as a CUDA graph: its inputs, the capture, and the replay."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from scalewise.errors import first_line

Batch = Sequence[Tensor]
"""The tensors of one step, samples along the first dimension of each."""
StepFunction = Callable[[Batch], Tensor]
"""Forward, backward and optimizer on one batch; gives the loss."""


class CaptureError(Exception):
    """The step cannot be captured: one line that says why."""


class Graph(Protocol):
    """Work recorded once; the seam through which tests do without a GPU."""

    def capture(self, work: Callable[[], Tensor]) -> Tensor:
        """Record ``work`` and return what it returns. Raises :class:`CaptureError`."""
        ...

    def replay(self) -> None:
        """Do the recorded work again, on the memory it was recorded with."""
        ...


class CaptureDevice(Protocol):
    """What capturing needs of a device; CUDA but in tests."""

    kind: str

    def graph(self) -> Graph:
        """A graph to record into."""
        ...

    def watch(self, step: Callable[[], Tensor]) -> tuple[Tensor, str | None]:
        """Run ``step`` and say in words where it made the host wait for the device, if it did."""
        ...

    def marker(self) -> Marker:
        """A moment of the device's time line, now."""
        ...


class Marker(Protocol):
    """A moment of the device's time line."""

    def synchronize(self) -> None:
        """Wait on the host until the device has come so far."""
        ...


class CudaCapture:
    """The current GPU."""

    kind = "cuda"

    def graph(self) -> Graph:
        return CudaGraph()

    def watch(self, step: Callable[[], Tensor]) -> tuple[Tensor, str | None]:
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                loss = step()
            finally:
                torch.cuda.set_sync_debug_mode(before)
        for warning in caught:
            if "synchronizing CUDA operation" in str(warning.message):
                place = f"{warning.filename.rpartition('/')[2]}:{warning.lineno}"
                return loss, f"the step waits for the device at {place} (.item(), a dynamic shape)"
        return loss, None

    def marker(self) -> Marker:
        # A host that waits for this one sleeps instead of spinning on a core.
        event = torch.cuda.Event(blocking=True)
        event.record()
        return event


class CudaGraph:
    """A graph on the current CUDA stream, which must not be the default one."""

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self.replay = self._graph.replay

    def capture(self, work: Callable[[], Tensor]) -> Tensor:
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
            cause = error.__context__ or error
            self._clean_up(device, random_state)
            raise CaptureError(first_line(cause)) from error

    def _clean_up(self, device: int, random_state: Tensor) -> None:
        """After a broken capture torch still believes in it: dropout and the allocator would."""
        with contextlib.suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(device, self._graph.pool())
        torch.cuda.synchronize(device)
        fresh = torch.Generator(f"cuda:{device}")
        torch.cuda.default_generators[device].graphsafe_set_state(fresh.graphsafe_get_state())
        torch.cuda.set_rng_state(random_state, device)


class CapturedStep:
    """A step that was captured on inputs of its own, into which each batch is copied.

    Args:
        step: what to capture; it must have run a few times before.
        batch: one step's tensors on the device, for their shapes.
        graph: records and replays.
    """

    def __init__(self, step: StepFunction, batch: Batch, graph: Graph) -> None:
        self._inputs = [part.clone() for part in batch]
        self._graph = graph
        self._replay = graph.replay
        self._shapes = [part.shape for part in batch]
        self.loss = graph.capture(lambda: step(self._inputs).detach())
        """The loss of the last replay: the next one overwrites it."""

    def fits(self, batch: Batch) -> bool:
        """Whether ``batch`` has the captured shapes."""
        return [part.shape for part in batch] == self._shapes

    def run(self, batch: Batch) -> Tensor:
        """One step on ``batch``. Neither the host nor this call waits for it."""
        torch._foreach_copy_(self._inputs, list(batch), non_blocking=True)
        self._replay()
        return self.loss
