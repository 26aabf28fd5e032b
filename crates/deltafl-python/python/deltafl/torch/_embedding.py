"""Large embeddings of many devices with few tokens each, under ``torch.func.vmap``."""

from __future__ import annotations

from typing import Any

import torch

from ._functions import as_instance, batched, kernels, per_device
from ._moving import LARGE, MovingFunction, MovingLayer, without_memory

__all__ = ["KernelEmbedding"]

#: The largest number of tokens of a step for the kernel.
_FEW = 2048


class _RowsStep(MovingFunction):
    """The rows of a large weight. The backward pass moves these rows and reads no others."""

    @staticmethod
    def forward(indices: Any, weight: Any, rate: Any, padding: int) -> Any:
        return weight[indices]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.padding = inputs[3]
        ctx.save_for_backward(*inputs[:3])

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        indices, weight, rate = ctx.saved_tensors

        def step(slope: Any, indices: Any, weight: Any, rate: Any) -> Any:
            kernels().rows_step(slope, indices, weight, rate, ctx.padding)
            return rate

        per_device(step, slopes[0], indices, weight, rate)
        return None, without_memory(weight), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, int]:
        indices, weight = batched(args[:2], in_dims[:2], info.batch_size)
        devices, words, width = weight.shape
        first = torch.arange(devices, device=weight.device).view(-1, *([1] * (indices.dim() - 1))) * words
        return torch.nn.functional.embedding(indices + first, weight.reshape(-1, width)), 0


class KernelEmbedding(MovingLayer, torch.nn.Embedding):
    """An embedding with the parameters of the layer that it replaces."""

    @staticmethod
    def of(layer: torch.nn.Module) -> KernelEmbedding | None:
        """Returns the replacement of a layer, or None if vmap has to translate it."""
        if type(layer) is not torch.nn.Embedding or layer.weight.dtype != torch.float32:
            return None
        is_plain = layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
        return as_instance(layer, KernelEmbedding) if is_plain and layer.weight.numel() >= LARGE else None

    def forward(self, input: Any) -> Any:
        """Returns the row of each index."""
        step = self.local_step() if input.numel() <= _FEW else None
        if step is None:
            return torch.nn.functional.embedding(input, self.weight, self.padding_idx)
        apply: Any = _RowsStep.apply
        padding = -1 if self.padding_idx is None else self.padding_idx
        return apply(input, self.weight, step[0], padding)
