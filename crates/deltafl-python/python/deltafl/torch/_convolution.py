"""Convolutions of many devices, each with its own weights, under ``torch.func.vmap``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ._functions import as_instance, batched, kernels, per_device

__all__ = ["Convolution"]

#: Two sizes: of the kernel, the step, the padding or the dilation of a convolution.
Pair = tuple[int, int]
#: The geometry of a convolution: kernel, step, padding and dilation.
Geometry = tuple[Pair, Pair, Pair, Pair]


def _outputs(size: Pair, geometry: Geometry) -> Pair:
    """Returns the height and width of the output of a convolution."""
    kernel, step, padding, dilation = geometry

    def length(axis: int) -> int:
        reach = dilation[axis] * (kernel[axis] - 1) + 1
        return (size[axis] + 2 * padding[axis] - reach) // step[axis] + 1

    return length(0), length(1)


class _Product(torch.autograd.Function):
    """A convolution as the product of its weights with the patches of the images.

    The patches of N images are the columns of a matrix: (C·kernel) × (N·outputs). For a cohort it is
    one batched product, with the same bits in every run. vmap would use a grouped convolution.
    """

    @staticmethod
    def forward(images: Any, weight: Any, geometry: Geometry) -> tuple[Any, Any]:
        output, columns = _product(images[None], weight[None], geometry)
        return output[0], columns[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
        images, weight, ctx.geometry = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.shape = tuple(images.shape)
        ctx.save_for_backward(weight, output[1])

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        weight, columns = ctx.saved_tensors
        of_images: Any = None
        if ctx.needs_input_grad[0]:
            compute = partial(_image_slope, shape=ctx.shape, geometry=ctx.geometry)
            of_images = per_device(compute, slopes[0], weight)
        return of_images, (slopes[0].flatten(1) @ columns.mT).view_as(weight), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, tuple[int, int]]:
        images, weight = batched(args[:2], in_dims, info.batch_size)
        return _product(images, weight, args[2]), (0, 0)


class _Kernels(torch.autograd.Function):
    """A convolution by the kernels of :mod:`deltafl.torch._kernels`."""

    @staticmethod
    def forward(images: Any, weight: Any, bias: Any, geometry: Geometry) -> Any:
        return _convolved(images[None], weight[None], None if bias is None else bias[None], geometry)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        images, weight, _, ctx.geometry = inputs
        ctx.save_for_backward(images, weight)

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        images, weight = ctx.saved_tensors
        of_images: Any = None
        if ctx.needs_input_grad[0]:
            size = tuple(images.shape[2:])
            by_images = partial(kernels().convolved, size=size, geometry=ctx.geometry, transposed=True)
            of_images = per_device(by_images, slopes[0], weight)
        by_weight = partial(kernels().weight_slopes, shape=tuple(weight.shape), geometry=ctx.geometry)
        # A sum over all three axes at once takes twice as long.
        of_bias = slopes[0].sum((2, 3)).sum(0) if ctx.needs_input_grad[2] else None
        return of_images, per_device(by_weight, images, slopes[0]), of_bias, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, int]:
        count = 2 if args[2] is None else 3
        given = batched(args[:count], in_dims[:count], info.batch_size)
        return _convolved(given[0], given[1], given[2] if count == 3 else None, args[3]), 0


def _convolved(images: Any, weight: Any, bias: Any, geometry: Geometry) -> Any:
    """Returns N × outputs × height × width of each device."""
    size = _outputs((images.shape[3], images.shape[4]), geometry)
    return kernels().convolved(images, weight, bias, size=size, geometry=geometry, transposed=False)


def _product(images: Any, weight: Any, geometry: Geometry) -> tuple[Any, Any]:
    """Returns outputs × N × height × width of each device, and the columns of its images."""
    columns = _columns(images, geometry)
    size = _outputs((images.shape[3], images.shape[4]), geometry)
    return (weight.flatten(2) @ columns).unflatten(2, (images.shape[1], *size)), columns


def _image_slope(slope: Any, weight: Any, shape: tuple[int, ...], geometry: Geometry) -> Any:
    """Returns the gradient by images of this shape, from that by outputs × N × height × width."""
    kernel, step, padding, dilation = geometry
    reach = [dilation[axis] * (kernel[axis] - 1) - padding[axis] for axis in (0, 1)]
    if step != (1, 1) or min(reach) < 0:
        return _images(weight.flatten(2).mT @ slope.flatten(2), shape, geometry)
    # With a step of 1 it is a convolution of the slope with the turned kernel.
    turned = weight.flip(3, 4).transpose(1, 2).flatten(2)
    columns = _columns(slope.transpose(1, 2), (kernel, (1, 1), (reach[0], reach[1]), dilation))
    return (turned @ columns).unflatten(2, (shape[0], *shape[2:])).transpose(1, 2)


def _columns(images: Any, geometry: Geometry) -> Any:
    """Returns the columns of the images of many devices: devices × N × C × H × W."""
    kernel, step, padding, dilation = geometry
    devices, count, channels, height, width = images.shape
    rows, lines = _outputs((height, width), geometry)
    if kernel == (1, 1) and padding == (0, 0):
        chosen = images[..., :: step[0], :: step[1]]
        return chosen.transpose(1, 2).reshape(devices, channels, count * rows * lines)
    padded = torch.nn.functional.pad(images, (padding[1], padding[1], padding[0], padding[0])).contiguous()
    device, image, channel, line, point = padded.stride()
    patches = padded.as_strided(
        (devices, channels, *kernel, count, rows, lines),
        (device, channel, line * dilation[0], point * dilation[1], image, line * step[0], point * step[1]),
    )
    return patches.reshape(devices, channels * kernel[0] * kernel[1], count * rows * lines)


def _images(columns: Any, shape: tuple[int, ...], geometry: Geometry) -> Any:
    """Adds columns to images of this shape, for many devices."""
    kernel, step, padding, dilation = geometry
    devices, (count, channels, height, width) = len(columns), shape
    rows, lines = _outputs((height, width), geometry)
    patches = columns.reshape(devices, channels * kernel[0] * kernel[1], count, rows * lines)
    flat = patches.transpose(1, 2).reshape(devices * count, -1, rows * lines)
    if kernel == step == (1, 1) and padding == (0, 0):
        return flat.view(devices, *shape)
    images = torch.nn.functional.fold(flat, (height, width), kernel, dilation, padding, step)
    return images.view(devices, *shape)


def _pair(first: int, sizes: Sequence[int]) -> Pair:
    """Returns two sizes. The first one is given if there is only one other."""
    return (first if len(sizes) == 1 else sizes[0], sizes[-1])


class Convolution(torch.nn.Module):
    """A convolution by products or kernels, with the parameters of the layer that it replaces."""

    weight: Any
    bias: Any
    #: 1 or 2.
    _dimensions: int
    _geometry: Geometry
    _by_kernels: bool

    @staticmethod
    def of(layer: torch.nn.Module, *, by_kernels: bool) -> Convolution | None:
        """Returns the replacement of a layer, or None if vmap has to translate it."""
        kind = _KINDS.get(type(layer))
        if kind is None:
            return None
        conv: Any = layer
        if conv.groups != 1 or conv.padding_mode != "zeros" or not conv.weight.is_floating_point():
            return None
        if by_kernels and conv.weight.dtype != torch.float32:
            return None
        padding = conv.padding
        if isinstance(padding, str):
            spans = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size)]
            if padding == "same" and any(span % 2 for span in spans):
                return None
            padding = [span // 2 if padding == "same" else 0 for span in spans]
        # A convolution over one axis is one over images of height 1.
        kernel, step, dilation = (_pair(1, sizes) for sizes in (conv.kernel_size, conv.stride, conv.dilation))
        new = as_instance(layer, kind)
        new._dimensions, new._by_kernels = conv.weight.dim() - 2, by_kernels
        new._geometry = (kernel, step, _pair(0, padding), dilation)
        return new

    def forward(self, input: Any) -> Any:
        """Returns the output of the layer."""
        batched = input if input.dim() == self._dimensions + 2 else input[None]
        images = batched if self._dimensions == 2 else batched.unsqueeze(2)
        weight = self.weight if self._dimensions == 2 else self.weight.unsqueeze(2)
        apply: Any = _Kernels.apply if self._by_kernels else _Product.apply
        if self._by_kernels:
            output = apply(images, weight, self.bias, self._geometry)
        else:
            output = apply(images, weight, self._geometry)[0]
            output = output if self.bias is None else output + self.bias[:, None, None, None]
            output = output.transpose(0, 1)
        output = output if self._dimensions == 2 else output.squeeze(2)
        return output if batched is input else output[0]


class _Convolution1d(Convolution, torch.nn.Conv1d):
    pass


class _Convolution2d(Convolution, torch.nn.Conv2d):
    pass


_KINDS: dict[type, type[Convolution]] = {torch.nn.Conv1d: _Convolution1d, torch.nn.Conv2d: _Convolution2d}
