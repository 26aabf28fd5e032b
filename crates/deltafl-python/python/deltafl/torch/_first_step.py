"""A comparison of the first step of devices in one call with the same step of PyTorch."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .._cohort import CohortUpdates
from ._examples import HeldExamples, called, sent, shared
from ._functions import uses_tf32
from ._layers import without_dropout
from ._spec import Spec
from ._step import Step, views

__all__ = ["WrongStep", "check_first_step"]

Array = NDArray[Any]

#: The largest difference in a tensor that rounding explains, as a share of the step of this tensor,
#: of the step of all tensors, and of w.
_FLOAT32 = 2e-2, 2e-3, 1e-5
#: The same for TF32 and for types of 16 bits, which change the sign of some activations.
_COARSE = 0.2, 2e-2, 4e-3


class WrongStep(Exception):
    """The first step of devices in one call differs from that of PyTorch."""


def check_first_step(step: Step, spec: Spec, held: HeldExamples, updates: CohortUpdates) -> None:
    """Raises WrongStep if the first step of one of two devices differs from that of PyTorch.

    Dropout is disabled in both. A learning rate of 1 keeps small gradients above the rounding of w. The second
    half of each batch is padding, which must have no effect.
    """
    rates = np.ones_like(updates.learning_rates)
    u = replace(updates, learning_rates=rates, sizes=updates.sizes - updates.sizes // 2)
    # The device with the most steps, and the one with the fewest.
    rows = [row for row in sorted({0, len(u.devices) - 1}) if u.sizes[row, 0]]
    tolerances = _COARSE if _is_coarse(spec) else _FLOAT32
    for row, found in zip(rows, step.first_step(held, u, rows)):
        params: list[Any] = u.params
        start = params[int(u.which[row])]
        expected = _step_of_pytorch(spec, held, u, row, start)
        moved, wanted, before = (views(shared(vector), spec.shapes) for vector in (found - start, expected, start))
        _compare(moved, wanted, before, tolerances)


def _is_coarse(spec: Spec) -> bool:
    """Returns whether steps are rounded to fewer bits than in float32."""
    if any(torch.finfo(dtype).bits < 32 for dtype in spec.types.values()):
        return True
    backends: Any = torch.backends
    return spec.device.type == "cuda" and (uses_tf32(backends.cuda.matmul) or uses_tf32(backends.cudnn))


def _compare(
    found: dict[str, Any], expected: dict[str, Any], start: dict[str, Any], tolerances: tuple[float, float, float]
) -> None:
    """Raises WrongStep with the name of the first tensor whose steps differ."""
    of_tensor, of_step, of_params = tolerances
    step, params = (math.hypot(*(float(part.norm()) for part in parts.values())) for parts in (expected, start))
    for name, part in expected.items():
        allowed = of_tensor * float(part.norm()) + of_step * step + of_params * params
        difference = float((found[name] - part).norm())
        # The step of a diverging module is not a number in both.
        if math.isfinite(allowed) and not difference <= allowed:
            raise WrongStep(
                f"the first step of {name} differs from that of one device alone by {difference:.2g}, "
                f"the step is {float(part.norm()):.2g}"
            )


def _step_of_pytorch(spec: Spec, held: HeldExamples, u: CohortUpdates, row: int, start: Array) -> Array:
    """Returns the change of w in the first step of a device, by the gradient of its module and its loss."""
    examples = held.offsets(u.devices[row : row + 1]) + u.examples[row, 0, : u.sizes[row, 0]]
    inputs, targets = held.rows(sent(examples, spec.device))
    wanted = targets.to(spec.dtype) if spec.task == "binary" else targets
    tensors = {
        name: part.to(spec.types[name]).requires_grad_(name in spec.trained)
        for name, part in views(shared(start).to(spec.device, copy=True), spec.shapes).items()
    }
    weights = [tensors[name] for name in spec.trained]
    net = copy.deepcopy(spec.net).train()
    with torch.enable_grad(), without_dropout(net):
        loss = spec.loss(called(net, {**tensors, **spec.fixed}, inputs), wanted)
        slopes: Any = torch.autograd.grad(loss, weights, allow_unused=True)
    slopes = [torch.zeros_like(weight) if slope is None else slope for weight, slope in zip(weights, slopes)]
    gradient = np.zeros(spec.num_params, dtype=np.float64)
    flat = torch.cat([slope.detach().reshape(-1).double() for slope in slopes]).cpu().numpy()
    gradient[: spec.num_trained] = flat
    trained = slice(0, spec.num_trained)
    gradient[trained] += (float(u.l2[row]) + spec.sgd.weight_decay) * start[trained].astype(np.float64)
    if u.drift is not None:
        gradient[trained] += u.drift[row][trained]
    return -(1.0 + spec.sgd.momentum if spec.sgd.nesterov else 1.0) * gradient
