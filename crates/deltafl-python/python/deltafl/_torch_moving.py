"""Layers whose backward pass moves their weight, so that the gradient of the weight is not stored."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

__all__ = ["LARGE", "MovingLayer", "SharedWeight", "is_moved", "movable", "without_memory"]

#: The number of entries from which a weight is large.
LARGE = 1 << 16


class SharedWeight(Exception):
    """A weight that the backward pass moves is used more than once."""


class _LocalStep(NamedTuple):
    """The step of SGD that a backward pass is part of."""

    #: The layers whose weights may be moved, and the names of the weights.
    names: Mapping[MovingLayer, str]
    #: The names of the weights that are moved in this step.
    moved: list[str]
    #: γ and λ of the device.
    rate: Any
    decay: Any


class MovingLayer(torch.nn.Module):
    """A layer with a large weight."""

    #: Whether the layer also applies weight decay.
    applies_decay = False
    weight: Any
    _now: _LocalStep | None = None

    @staticmethod
    @contextmanager
    def moving(
        names: Mapping[MovingLayer, str], moved: list[str], rate: Any, decay: Any
    ) -> Generator[None, None, None]:
        """Lets the backward pass move the weights of these layers. Their names are added to ``moved``."""
        MovingLayer._now = _LocalStep(names, moved, rate, decay)
        try:
            yield
        finally:
            MovingLayer._now = None

    def local_step(self) -> tuple[Any, Any] | None:
        """Returns γ and λ if the backward pass of this call has to move the weight."""
        now = MovingLayer._now
        if now is None or self not in now.names:
            return None
        now.moved.append(now.names[self])
        return now.rate, now.decay


def without_memory(weight: Any) -> Any:
    """Returns the gradient of a weight that the backward pass moves: zero, without memory of its own.

    If the module uses the weight a second time, autograd adds another gradient to it, and the sum
    has memory. :func:`is_moved` then returns False.
    """
    return weight.new_zeros(()).expand(weight.shape)


def is_moved(gradient: Any) -> bool:
    """Returns whether the backward pass has moved the weights of this gradient, one per device."""
    return all(step == 0 for step, size in zip(gradient.stride()[1:], gradient.shape[1:]) if size > 1)


def movable(net: torch.nn.Module, trained: Sequence[str]) -> dict[MovingLayer, str]:
    """Returns the layers whose weights no other layer has, and the names of these weights."""
    owners: dict[int, int] = {}
    found: dict[MovingLayer, str] = {}
    named: Any = net
    modules: list[tuple[str, torch.nn.Module]] = list(named.named_modules())
    for path, layer in modules:
        for parameter in layer.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
        name = f"{path}.weight" if path else "weight"
        if isinstance(layer, MovingLayer) and name in trained:
            found[layer] = name
    return {layer: name for layer, name in found.items() if owners[id(layer.weight)] == 1}
