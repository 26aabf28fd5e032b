"""Large dense layers of many devices with few examples each, under ``torch.func.vmap``."""

from __future__ import annotations

from typing import Any

import torch

from ._torch_functions import batched, kernels, per_device, uses_tf32

__all__ = ["KernelLinear"]

#: The entries of a weight from which the kernel is used, and the largest number of rows.
_LARGE, _FEW = 1 << 16, 32


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


class KernelLinear(torch.nn.Module):
    """A dense layer with the parameters of the layer that it replaces."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.in_features, self.out_features = layer.in_features, layer.out_features

    @staticmethod
    def of(layer: torch.nn.Module) -> KernelLinear | None:
        """Returns the replacement of a layer, or None for small layers."""
        if type(layer) is not torch.nn.Linear or layer.weight.dtype != torch.float32:
            return None
        return KernelLinear(layer) if layer.weight.numel() >= _LARGE else None

    def forward(self, inputs: Any) -> Any:
        """Returns the output of the layer."""
        cuda: Any = torch.backends.cuda
        fits = inputs.dim() == 2 and len(inputs) <= _FEW and inputs.dtype == torch.float32
        # With TF32 the products of PyTorch are faster.
        if not fits or uses_tf32(cuda.matmul):
            return torch.nn.functional.linear(inputs, self.weight, self.bias)
        apply: Any = _Dense.apply
        output = apply(inputs, self.weight)
        return output if self.bias is None else output + self.bias
