"""The SGD that devices in one call compute: its options, and whether an optimiser is this SGD."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from .._trainer import Local

__all__ = ["Optimizer", "OtherOptimizer", "Sgd", "options_of"]

#: Maps the parameters and the local update to an optimiser.
Optimizer = Callable[[list[Any], Local], torch.optim.Optimizer]

#: The learning rates for which an optimiser is tested.
_RATES = [2.0**power for power in range(-24, 8)]


class Sgd(NamedTuple):
    """The options of the SGD of a device."""

    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0


class OtherOptimizer(Exception):
    """An optimiser is not the SGD that devices in one call compute. The message is the reason."""


class _ReadLocal(Local):
    """A local update that stores which of its attributes are read."""

    def __getattribute__(self, name: str) -> Any:
        if name != "learning_rate":
            read: set[str] = object.__getattribute__(self, "state")["read"]
            read.add(name)
        return object.__getattribute__(self, name)


def options_of(optimizer: Optimizer, weights: list[Any]) -> Sgd:
    """Returns the options of an optimiser. Raises OtherOptimizer if they are not those of one SGD.

    The options must be the same for every device and round, because a call has one set of options.
    """
    # Copies, because the function may modify the parameters or add hooks.
    copies = [weight.detach().clone().requires_grad_() for weight in weights]
    found = {_options(optimizer, copies, rate) for rate in _RATES}
    if any(copy._backward_hooks or not torch.equal(copy, weight) for copy, weight in zip(copies, weights)):
        raise OtherOptimizer("the optimizer modifies the parameters or has hooks of them")
    if len(found) > 1:
        raise OtherOptimizer("the options of the optimizer depend on the learning rate")
    return found.pop()


def _options(optimizer: Optimizer, weights: list[Any], rate: float) -> Sgd:
    """Returns the options of the optimiser that a device with a learning rate uses."""
    read: set[str] = set()
    order = np.zeros(0, np.int64)
    local = _ReadLocal(rate, 1, 0.0, 0.0, 0, order, 0, {"read": read})
    try:
        made: Any = optimizer(weights, local)
    except Exception as error:
        raise OtherOptimizer(f"the optimizer cannot be tested: {type(error).__name__}: {error}") from error
    if read:
        raise OtherOptimizer(f"the optimizer reads local.{min(read)}, which differs between devices or runs")
    if type(made) is not torch.optim.SGD:
        raise OtherOptimizer(f"the optimizer is {type(made).__qualname__}, not SGD")
    group = made.param_groups[0]
    given = group["params"]
    has_all = len(given) == len(weights) and all(map(operator.is_, given, weights))
    if len(made.param_groups) != 1 or not has_all or group["lr"] != rate:
        raise OtherOptimizer("the optimizer is not SGD of all parameters with the learning rate of the run")
    has_hooks = made._optimizer_step_pre_hooks or made._optimizer_step_post_hooks
    if has_hooks or group["maximize"] or "step" in vars(made):
        raise OtherOptimizer("the optimizer has hooks, another step or maximize=True")
    return Sgd(
        float(group["momentum"]), float(group["dampening"]), bool(group["nesterov"]), float(group["weight_decay"])
    )
