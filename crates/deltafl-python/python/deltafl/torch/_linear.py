"""Large dense layers of many devices with few examples each, under ``torch.func.vmap``."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ._functions import as_instance, batched, kernels, per_device, uses_tf32
from ._moving import LARGE, MovingFunction, MovingLayer, without_memory

__all__ = ["KernelLinear"]

#: The largest number of rows for the kernels.
_FEW = 32


class _Dense(torch.autograd.Function):
    """The product of a few rows with a large weight, by a kernel that reads the weight once."""

    @staticmethod
    def forward(rows: Any, weight: Any) -> Any:
        return _forward(rows[None], weight[None])[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        rows, weight = ctx.saved_tensors
        of_rows = per_device(_by_rows, slopes[0], weight) if ctx.needs_input_grad[0] else None
        return of_rows, per_device(_by_weight, slopes[0], rows)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, int]:
        return _forward(*batched(args, in_dims, info.batch_size)), 0


def _forward(rows: Any, weight: Any) -> Any:
    return kernels().multiplied(rows, weight.transpose(1, 2))


def _by_rows(slope: Any, weight: Any) -> Any:
    return kernels().multiplied(slope, weight)


def _by_weight(slope: Any, rows: Any) -> Any:
    return kernels().multiplied(slope.transpose(1, 2), rows)


class _DenseStep(MovingFunction):
    """A product with a large weight that moves the weight in its backward pass."""

    @staticmethod
    def forward(rows: Any, weight: Any, rate: Any, decay: Any) -> Any:
        return _product(rows[None], weight[None])[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        rows, weight, rate, decay = ctx.saved_tensors
        needs_rows, needs_weight = ctx.needs_input_grad[:2]
        if not needs_weight:
            return per_device(_by_rows, slopes[0], weight), None, None, None
        step = partial(kernels().dense_step, needs_source=needs_rows)
        of_rows = per_device(step, slopes[0], rows, weight, rate, decay)
        return of_rows if needs_rows else None, without_memory(weight), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, int]:
        return _product(*batched(args[:2], in_dims[:2], info.batch_size)), 0


def _product(rows: Any, weight: Any) -> Any:
    """Returns the outputs. With TF32 the products of PyTorch are faster."""
    cuda: Any = torch.backends.cuda
    return rows @ weight.mT if uses_tf32(cuda.matmul) else _forward(rows, weight)


class KernelLinear(MovingLayer, torch.nn.Linear):
    """A dense layer with the parameters of the layer that it replaces."""

    applies_decay = True
    bias: Any

    @staticmethod
    def of(layer: torch.nn.Module) -> KernelLinear | None:
        """Returns the replacement of a layer, or None for small layers."""
        if type(layer) is not torch.nn.Linear or layer.weight.dtype != torch.float32:
            return None
        return as_instance(layer, KernelLinear) if layer.weight.numel() >= LARGE else None

    def forward(self, input: Any) -> Any:
        """Returns the output of the layer."""
        cuda: Any = torch.backends.cuda
        fits = input.dim() == 2 and len(input) <= _FEW and input.dtype == torch.float32
        step = self.local_step() if fits else None
        # With TF32 the products of PyTorch are faster.
        if not fits or (step is None and uses_tf32(cuda.matmul)):
            return torch.nn.functional.linear(input, self.weight, self.bias)
        apply: Any = _Dense.apply if step is None else _DenseStep.apply
        output = apply(input, self.weight, *(step or ()))
        return output if self.bias is None else output + self.bias
