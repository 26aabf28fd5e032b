"""The losses of the examples of a module, and their gradient by a kernel."""

from __future__ import annotations

from typing import Any

import torch

from .._trainer import IGNORED
from ._functions import batched, kernels
from ._spec import Spec

__all__ = ["losses_of"]


class _CrossEntropy(torch.autograd.Function):
    """The cross-entropy of each example. The kernel computes the losses and their gradient."""

    @staticmethod
    def forward(output: Any, wanted: Any) -> tuple[Any, Any]:
        losses, gradient = kernels().cross_entropy(output[None], wanted[None])
        return losses[0], gradient[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        (gradient,) = ctx.saved_tensors
        return slopes[0][:, None] * gradient, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, tuple[int, int]]:
        return kernels().cross_entropy(*batched(args, in_dims, info.batch_size)), (0, 0)


def losses_of(spec: Spec, output: Any, wanted: Any, *, by_kernels: bool = False) -> Any:
    """Returns the loss of each example."""
    if not spec.default_loss:

        def single(one: Any, target: Any) -> Any:
            return spec.loss(one[None], target[None])

        return torch.func.vmap(single)(output, wanted).reshape(len(wanted))
    if spec.task == "regression":
        return 0.5 * (output.reshape(-1) - wanted) ** 2
    if spec.task == "binary":
        return torch.nn.functional.binary_cross_entropy_with_logits(
            output.reshape(-1), wanted, reduction="none"
        )
    if wanted.dim() == 1:
        if by_kernels and output.dtype == torch.float32 and kernels().classes_fit(output.shape[1]):
            apply: Any = _CrossEntropy.apply
            return apply(output, wanted)[0]
        return torch.nn.functional.cross_entropy(output, wanted, reduction="none")
    flat = torch.nn.functional.cross_entropy(
        output.transpose(1, -1), wanted, reduction="none", ignore_index=IGNORED
    )
    return flat.sum(dim=1) / (wanted != IGNORED).sum(dim=1).clamp(min=1)
