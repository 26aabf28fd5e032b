"""Group and layer norms of many devices, each with its own weights, under ``torch.func.vmap``."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from ._functions import as_instance, batched, kernels, per_device

__all__ = ["KernelGroupNorm", "KernelLayerNorm"]


class _Normalised(torch.autograd.Function):
    """A group norm by the kernels of :mod:`deltafl.torch._kernels`."""

    @staticmethod
    def forward(images: Any, weight: Any, bias: Any, groups: int, epsilon: float) -> tuple[Any, Any, Any]:
        output, means, scales = kernels().normalised(images[None], weight[None], bias[None], groups, epsilon)
        return output[0], means[0], scales[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any, Any]) -> None:
        images, weight, _, ctx.groups, _ = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(images, weight, *output[1:])

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        images, weight, means, scales = ctx.saved_tensors
        compute = partial(kernels().normalised_slopes, groups=ctx.groups)
        return (*per_device(compute, images, slopes[0], weight, means, scales), None, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, tuple[int, int, int]]:
        given = batched(args[:3], in_dims, info.batch_size)
        return kernels().normalised(*given, *args[3:]), (0, 0, 0)


class KernelGroupNorm(torch.nn.GroupNorm):
    """A group norm with the parameters of the layer that it replaces."""

    @staticmethod
    def of(layer: torch.nn.Module) -> KernelGroupNorm | None:
        """Returns the replacement of a layer, or None if vmap has to translate it."""
        if type(layer) is not torch.nn.GroupNorm or not layer.affine or layer.weight.dtype != torch.float32:
            return None
        return as_instance(layer, KernelGroupNorm)

    def forward(self, input: Any) -> Any:
        """Returns the output of the layer."""
        area = math.prod(input.shape[2:])
        if input.dtype != torch.float32 or not kernels().group_fits(input.shape[1], area, self.num_groups):
            return super().forward(input)
        apply: Any = _Normalised.apply
        return apply(input, self.weight, self.bias, self.num_groups, self.eps)[0]


class KernelLayerNorm(torch.nn.LayerNorm):
    """A layer norm over the last axis: a group norm of each row, with one group of channels."""

    @staticmethod
    def of(layer: torch.nn.Module) -> KernelLayerNorm | None:
        """Returns the replacement of a layer, or None if vmap has to translate it."""
        if type(layer) is not torch.nn.LayerNorm or len(layer.normalized_shape) != 1:
            return None
        given: Any = layer
        if given.weight is None or given.bias is None or given.weight.dtype != torch.float32:
            return None
        return as_instance(layer, KernelLayerNorm) if kernels().group_fits(len(given.weight), 1, 1) else None

    def forward(self, input: Any) -> Any:
        """Returns the output of the layer."""
        if input.dtype != torch.float32:
            return super().forward(input)
        apply: Any = _Normalised.apply
        rows = input.reshape(-1, len(self.weight), 1)
        return apply(rows, self.weight, self.bias, 1, self.eps)[0].view(input.shape)
