"""Layers whose backward pass moves their weight, so that the gradient of the weight is not stored."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

__all__ = ["LARGE", "MovingFunction", "MovingLayer", "SharedWeight", "is_moved", "movable", "without_memory"]

#: The number of entries from which a weight is large.
LARGE = 1 << 16


class SharedWeight(Exception):
    """A weight that the backward pass moves is used more than once."""


class MovingFunction(torch.autograd.Function):
    """A function whose backward pass moves a weight."""


#: Functions of a tensor that do not read its entries.
_OF_SHAPE = ("shape", "dtype", "device", "ndim", "is_cuda", "requires_grad", "dim", "size", "numel", "is_floating_point")


class _Reads(TorchFunctionMode):
    """The tensors that functions of PyTorch, except for those that move a weight, read within this context."""

    def __init__(self) -> None:
        super().__init__()
        # The tensors are kept, so that no other one has their id.
        self._found: dict[int, Any] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        moves = args and isinstance(args[0], type) and issubclass(args[0], MovingFunction)
        # The getter of an attribute has the name of the attribute in `__self__`.
        name = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
        if not moves and name not in _OF_SHAPE:
            tensors = (value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor))
            self._found.update((id(tensor), tensor) for tensor in tensors)
        return func(*args, **kwargs)

    def contain(self, tensor: Any) -> bool:
        """Returns whether a function has read a tensor."""
        return id(tensor) in self._found


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
    ) -> Generator[_Reads, None, None]:
        """Lets the backward pass move the weights of these layers. Their names are added to ``moved``.

        The backward pass must not move a weight that another function has read, for example after
        ``detach``: that function might compute its gradient from the moved weight.
        """
        MovingLayer._now = _LocalStep(names, moved, rate, decay)
        try:
            with _Reads() as reads:
                yield reads
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
