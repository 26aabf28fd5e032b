"""A superquantile of a tensor of losses, with a gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .. import _deltafl
from ._examples import sent


class _Superquantile(torch.autograd.Function):
    """S(θ) or its smoothing. The gradient by the losses is a mixture of the devices."""

    @staticmethod
    def forward(ctx: Any, losses: Any, theta: float, nu: float, weights: Any) -> Any:
        values = np.ascontiguousarray(losses.detach().cpu().double().numpy().ravel())
        given = None if weights is None else np.ascontiguousarray(weights, dtype=np.float64).ravel()
        if nu > 0:
            value = _deltafl.smoothed(values, theta, nu, given)
            mixture = _deltafl.smoothed_mixture(values, theta, nu, given)
        else:
            value = _deltafl.superquantile(values, theta, given)
            mixture = _deltafl.worst_case(values, theta, given)
        ctx.save_for_backward(sent(mixture, losses.device).to(losses).view_as(losses))
        return losses.new_tensor(value)

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        (mixture,) = ctx.saved_tensors
        return slopes[0] * mixture, None, None, None


def superquantile(losses: Any, theta: float, nu: float = 0.0, weights: Any | None = None) -> Any:
    """Returns the superquantile of a tensor of losses, with a gradient.

    Use it as an objective: ``superquantile(losses, 0.1).backward()``.

    With ν = 0 the gradient is the worst-case mixture, which is a subgradient if losses are equal.
    With ν > 0 the function is smoothed and differentiable everywhere.

    Args:
        losses: The losses of the devices.
        theta: The mass to keep, in (0, 1]. 1 is the mean.
        nu: The amount of smoothing ν.
        weights: The weights of the devices. The default is equal weights.
    """
    apply: Any = _Superquantile.apply
    return apply(losses, theta, nu, weights)
