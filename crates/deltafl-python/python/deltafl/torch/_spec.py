"""The parts of a module that its cohorts need."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ._optimizer import Sgd

__all__ = ["Spec"]


class Spec:
    """The parts of a ``Module`` that a cohort needs."""

    def __init__(
        self,
        net: torch.nn.Module,
        *,
        trained: list[str],
        carried: list[str],
        fixed: Mapping[str, Any],
        loss: Callable[[Any, Any], Any],
        default_loss: bool,
        task: str,
        shape: tuple[int, ...] | None,
        sgd: Sgd,
        compile: str,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.net, self.trained, self.carried, self.fixed = net, trained, carried, dict(fixed)
        self.loss, self.default_loss, self.task, self.shape = loss, default_loss, task, shape
        self.sgd = sgd
        self.compile, self.device = compile, device
        #: The type of inputs and targets that are real numbers.
        self.dtype = dtype
        tensors: dict[str, Any] = dict(net.named_parameters())
        tensors.update(net.named_buffers())
        #: The shapes and types of the tensors of w, in the order of w.
        self.shapes = {name: tuple(tensors[name].shape) for name in [*trained, *carried]}
        self.types = {name: tensors[name].dtype for name in self.shapes}
        self.num_trained, self.num_params = (
            sum(math.prod(self.shapes[name]) for name in names) for names in (trained, self.shapes)
        )
