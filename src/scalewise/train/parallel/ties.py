"""Parameters that several stages of a pipeline share, such as a tied embedding."""

from __future__ import annotations

from collections.abc import Sequence

from torch import distributed, nn

from scalewise.train.parallel.replicas import Replicas


class Ties:
    """Keeps the copies of shared parameters equal: their gradients are summed every step.

    Args:
        stages: all stages of the model, as they share parameters before any is let go.
        replicas: where the stages are.
    """

    def __init__(self, stages: Sequence[nn.Module], replicas: Replicas) -> None:
        holders: dict[int, list[int]] = {}
        parameters: dict[int, nn.Parameter] = {}
        for place, stage in enumerate(stages):
            for parameter in stage.parameters():
                holders.setdefault(id(parameter), []).append(place)
                parameters[id(parameter)] = parameter
        self._shared: list[tuple[nn.Parameter, distributed.ProcessGroup]] = []
        self._counted_elsewhere: set[int] = set()
        groups: dict[tuple[int, ...], distributed.ProcessGroup | None] = {}
        for key, places in holders.items():
            if len(places) < 2:
                continue
            if tuple(places) not in groups:
                groups[tuple(places)] = replicas.subgroup(places)
            group = groups[tuple(places)]
            if group is not None:
                self._shared.append((parameters[key], group))
                if replicas.place != places[0]:
                    self._counted_elsewhere.add(key)

    def sum_gradients(self) -> None:
        """Add up the gradients that the stages found for what they share."""
        for parameter, group in self._shared:
            if parameter.grad is not None:
                distributed.all_reduce(parameter.grad, group=group)

    def is_counted_here(self, parameter: nn.Parameter) -> bool:
        """False for the later copies of a shared parameter: it counts once in a norm."""
        return id(parameter) not in self._counted_elsewhere
