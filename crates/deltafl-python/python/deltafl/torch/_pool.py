"""Max pooling of many devices by kernels, under ``torch.func.vmap``."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ._functions import batched, kernels, per_device

__all__ = ["PooledByKernels"]


class _Pooled(torch.autograd.Function):
    """The maxima of windows that do not overlap. The backward pass finds the maxima again."""

    @staticmethod
    def forward(images: Any, window: tuple[int, int], positive: bool) -> Any:
        return kernels().pooled(images, window, positive=positive)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        images, ctx.window, ctx.positive = inputs
        ctx.save_for_backward(images)

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        (images,) = ctx.saved_tensors

        def by_images(images: Any, slope: Any) -> Any:
            return kernels().pooled_slopes(images, slope, ctx.window, positive=ctx.positive)

        return per_device(by_images, images, slopes[0]), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, int]:
        (images,) = batched(args[:1], in_dims[:1], info.batch_size)
        return kernels().pooled(images, args[1], positive=args[2]), 0


class PooledByKernels(TorchFunctionMode):
    """Replaces ``torch.nn.functional.max_pool2d`` in the code of a module by kernels.

    Pools with overlapping windows, padding or other options remain those of PyTorch. A pool of a
    ReLU is one function of the inputs of the ReLU, so that the backward pass has one kernel less.
    """

    def __init__(self) -> None:
        super().__init__()
        #: The inputs and the outputs of the last function, if it is a ReLU.
        self._positive: tuple[Any, Any] = (None, None)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given: dict[str, Any] = kwargs or {}
        window = _window(*args, **given) if func is torch.nn.functional.max_pool2d else None
        if window is None:
            result = func(*args, **given)
            is_relu = func in _RELUS and len(args) == 1 and not given.get("inplace")
            self._positive = (args[0], result) if is_relu else (None, None)
            return result
        inputs, outputs = self._positive
        positive = args[0] is outputs
        apply: Any = _Pooled.apply
        return apply(inputs if positive else args[0], window, positive)


_RELUS = (torch.nn.functional.relu, torch.relu, torch.Tensor.relu)


def _window(
    images: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> tuple[int, int] | None:  # fmt: skip
    """Returns the height and width of a window, or None for pools that the kernels do not compute."""
    window, step = _pair(kernel_size), _pair(kernel_size if stride is None or stride == [] else stride)
    is_plain = _pair(padding) == (0, 0) and _pair(dilation) == (1, 1) and not ceil_mode and not return_indices
    fits = images.dtype == torch.float32 and images.dim() >= 3 and window[0] * window[1] <= 64
    return window if is_plain and fits and window == step else None


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[-1]))
