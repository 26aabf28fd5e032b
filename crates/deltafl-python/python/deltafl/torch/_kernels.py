"""Triton kernels for the convolutions and norms of many devices, each with its own weights.

The kernels use the tensor cores. With the precision "tf32x3", sums are as accurate as in float32.
The order of a summation depends on the layer only, so that a device has the same bits in every
cohort.
"""

# Triton has no types.
# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ._dense_kernels import dense_step, multiplied, rows_step
from ._functions import precision_of
from ._pool_kernels import pooled, pooled_slopes
from ._product_kernels import add_product
from ._sum_kernels import encode_sums, load_params

__all__ = [
    "classes_fit", "convolved", "cross_entropy", "dense_step", "encode_sums", "group_fits", "load_params", "multiplied", "normalised",
    "normalised_slopes", "pooled", "pooled_slopes", "rows_step", "weight_slopes",
]  # fmt: skip

#: The positions of an image that one part of a weight gradient adds up.
_POSITIONS = 1024


@triton.jit
def _convolve(
    source, weight, bias, result,
    count, channels, height, width, out_channels, out_height, out_width,
    kernel_height, kernel_width, step_y, step_x, pad_y, pad_x, dilation_y, dilation_x,
    TRANSPOSED: tl.constexpr, HAS_BIAS: tl.constexpr, NARROW: tl.constexpr, PADDED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Computes a tile of BM positions × BN channels of the output of one device.

    The weight of a device is a matrix: output channels × (taps · channels). TRANSPOSED computes the
    gradient by the images. NARROW is the number of channels, rounded up to a power of two, if it is
    smaller than BK. A step of the loop then covers several taps.
    """
    device = tl.program_id(1).to(tl.int64)
    taps = kernel_height * kernel_width
    source += device * count * channels * height * width
    weight += device * channels * out_channels * taps
    result += device * count * out_channels * out_height * out_width
    position = tl.program_id(0) * BM + tl.arange(0, BM)
    area = out_height * out_width
    inside = position < count * area
    image = position // area
    point = position - image * area
    y = point // out_width
    x = point - y * out_width
    out = tl.program_id(2) * BN + tl.arange(0, BN)
    first = image * (channels * height * width)
    of_out = out * (taps * channels)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    if NARROW == 0:
        blocks = tl.cdiv(channels, BK)
        for k in range(taps * blocks):
            tap = k // blocks
            channel = (k - tap * blocks) * BK + tl.arange(0, BK)
            tap_y = tap // kernel_width
            tap_x = tap - tap_y * kernel_width
            if TRANSPOSED:
                far_y = y + pad_y - tap_y * dilation_y
                far_x = x + pad_x - tap_x * dilation_x
                at_y = far_y // step_y
                at_x = far_x // step_x
                hit = (far_y >= 0) & (far_x >= 0) & (at_y * step_y == far_y) & (at_x * step_x == far_x)
                hit = hit & (at_y < height) & (at_x < width) & inside
            else:
                at_y = y * step_y - pad_y + tap_y * dilation_y
                at_x = x * step_x - pad_x + tap_x * dilation_x
                hit = (at_y >= 0) & (at_x >= 0) & (at_y < height) & (at_x < width) & inside
            places = (first + at_y * width + at_x)[:, None] + (channel * (height * width))[None, :]
            a = tl.load(source + places, mask=hit[:, None] & (channel < channels)[None, :], other=0.0)
            known = (channel < channels)[:, None] & (out < out_channels)[None, :]
            b = tl.load(weight + (tap * channels + channel)[:, None] + of_out[None, :], mask=known, other=0.0)
            total = add_product(a, b, total, PRECISION, True)
    else:
        of_position = first + y * (step_y * width) + x * step_x
        for k in range(0, taps * NARROW, BK):
            index = k + tl.arange(0, BK)
            tap = index // NARROW
            channel = index % NARROW
            tap_y = tap // kernel_width
            offset_y = tap_y * dilation_y - pad_y
            offset_x = (tap - tap_y * kernel_width) * dilation_x - pad_x
            is_tap = (tap < taps) & (channel < channels)
            hit = inside[:, None] & is_tap[None, :]
            if PADDED:
                at_y = (y * step_y)[:, None] + offset_y[None, :]
                at_x = (x * step_x)[:, None] + offset_x[None, :]
                hit = hit & (at_y >= 0) & (at_x >= 0) & (at_y < height) & (at_x < width)
            of_tap = channel * (height * width) + offset_y * width + offset_x
            a = tl.load(source + of_position[:, None] + of_tap[None, :], mask=hit, other=0.0)
            known = is_tap[:, None] & (out < out_channels)[None, :]
            b = tl.load(weight + (tap * channels + channel)[:, None] + of_out[None, :], mask=known, other=0.0)
            total = add_product(a, b, total, PRECISION, True)
    if HAS_BIAS:
        summand = tl.load(bias + device * out_channels + out, mask=out < out_channels, other=0.0)
        total += summand[None, :]
    places = (image * (out_channels * area) + point)[:, None] + (out * area)[None, :]
    tl.store(result + places, total, mask=inside[:, None] & (out < out_channels)[None, :])


@triton.jit
def _slopes_and_patches(
    source, slope, k, end, out, known, of_entry, offset_y, offset_x,
    channels, height, width, out_channels, area, out_width, step_y, step_x,
    PADDED: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Returns the slopes of BK positions, and the inputs by which entries of the weight multiply them."""
    # The positions are the first axis: Triton then assigns neighbours in memory to the threads of a warp.
    position = k + tl.arange(0, BK)
    inside = position < end
    image = position // area
    point = position - image * area
    y = point // out_width
    x = point - y * out_width
    of_slope = image * (out_channels * area) + point
    dy = tl.load(
        slope + of_slope[:, None] + (out * area)[None, :],
        mask=inside[:, None] & (out < out_channels)[None, :],
        other=0.0,
    )
    of_position = image * (channels * height * width) + y * (step_y * width) + x * step_x
    hit = inside[:, None] & known[None, :]
    if PADDED:
        at_y = (y * step_y)[:, None] + offset_y[None, :]
        at_x = (x * step_x)[:, None] + offset_x[None, :]
        hit = hit & (at_y >= 0) & (at_x >= 0) & (at_y < height) & (at_x < width)
    return dy, tl.load(source + of_position[:, None] + of_entry[None, :], mask=hit, other=0.0)


@triton.jit
def _weight_slope(
    source, slope, result, devices, part,
    count, channels, height, width, out_channels, out_height, out_width,
    kernel_height, kernel_width, step_y, step_x, pad_y, pad_x, dilation_y, dilation_x,
    PADDED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds up BM entries × BN output channels of a weight gradient over a part of the positions."""
    device = tl.program_id(1).to(tl.int64)
    taps = kernel_height * kernel_width
    entries = channels * taps
    rows = tl.cdiv(entries, BM)
    index = (tl.program_id(0) % rows) * BM + tl.arange(0, BM)
    out = (tl.program_id(0) // rows) * BN + tl.arange(0, BN)
    known = index < entries
    tap = index // channels
    channel = index - tap * channels
    tap_y = tap // kernel_width
    offset_y = tap_y * dilation_y - pad_y
    offset_x = (tap - tap_y * kernel_width) * dilation_x - pad_x
    of_entry = channel * (height * width) + offset_y * width + offset_x
    area = out_height * out_width
    source += device * count * channels * height * width
    slope += device * count * out_channels * area
    result += (tl.program_id(2) * devices + device) * (out_channels * entries)
    start = tl.program_id(2) * part
    end = tl.minimum(start + part, count * area)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    dy, patches = _slopes_and_patches(
        source, slope, start, end, out, known, of_entry, offset_y, offset_x,
        channels, height, width, out_channels, area, out_width, step_y, step_x, PADDED, BK,
    )  # fmt: skip
    for k in range(start, end, BK):
        # The loads of the next positions run while the tensor cores multiply.
        next_dy, next_patches = _slopes_and_patches(
            source, slope, k + BK, end, out, known, of_entry, offset_y, offset_x,
            channels, height, width, out_channels, area, out_width, step_y, step_x, PADDED, BK,
        )  # fmt: skip
        total = add_product(tl.trans(patches), dy, total, PRECISION, True)
        dy, patches = next_dy, next_patches
    places = (channel * taps + tap)[:, None] + (out * entries)[None, :]
    tl.store(result + places, total, mask=known[:, None] & (out < out_channels)[None, :])


@triton.jit
def _normalise(
    source, weight, bias, result, means, scales, count, channels, groups, area, epsilon,
    BC: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """Normalises one group of channels of one image."""
    image = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    size = channels // groups
    channel = tl.arange(0, BC)
    point = tl.arange(0, BL)
    inside = (channel < size)[:, None] & (point < area)[None, :]
    places = (image * channels + group * size) * area + (channel * area)[:, None] + point[None, :]
    x = tl.load(source + places, mask=inside, other=0.0)
    number = size * area
    mean = tl.sum(tl.sum(x, 1), 0) / number
    away = tl.where(inside, x - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(tl.sum(away * away, 1), 0) / number + epsilon)
    of_weight = (image // count) * channels + group * size + channel
    w = tl.load(weight + of_weight, mask=channel < size, other=0.0)
    b = tl.load(bias + of_weight, mask=channel < size, other=0.0)
    tl.store(result + places, away * scale * w[:, None] + b[:, None], mask=inside)
    tl.store(means + image * groups + group, mean)
    tl.store(scales + image * groups + group, scale)


@triton.jit
def _normalise_slope(
    source, slope, weight, means, scales, result, of_weight, of_bias, count, channels, groups, area,
    BC: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """Computes the gradient of one group by its inputs, and its part of that by weight and bias."""
    image = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    size = channels // groups
    channel = tl.arange(0, BC)
    point = tl.arange(0, BL)
    inside = (channel < size)[:, None] & (point < area)[None, :]
    first = image * channels + group * size
    places = first * area + (channel * area)[:, None] + point[None, :]
    mean = tl.load(means + image * groups + group)
    scale = tl.load(scales + image * groups + group)
    x = tl.load(source + places, mask=inside, other=0.0)
    dy = tl.load(slope + places, mask=inside, other=0.0)
    normal = tl.where(inside, (x - mean) * scale, 0.0)
    by_weight = tl.sum(dy * normal, 1)
    by_bias = tl.sum(dy, 1)
    tl.store(of_weight + first + channel, by_weight, mask=channel < size)
    tl.store(of_bias + first + channel, by_bias, mask=channel < size)
    w = tl.load(weight + (image // count) * channels + group * size + channel, mask=channel < size, other=0.0)
    number = size * area
    first_moment = tl.sum(by_bias * w, 0) / number
    second_moment = tl.sum(by_weight * w, 0) / number
    dx = scale * (dy * w[:, None] - first_moment - normal * second_moment)
    tl.store(result + places, dx, mask=inside)


@triton.jit
def _cross_entropy(output, wanted, losses, gradient, classes, BC: tl.constexpr):
    """Computes the cross-entropy of one example and its gradient. A negative target has no loss.

    The loss of a target that is no class is not a number, so that the device is refused.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BC)
    inside = column < classes
    x = tl.load(output + row * classes + column, mask=inside, other=float("-inf"))
    target = tl.load(wanted + row)
    is_target = column == target
    away = x - tl.max(x, 0)
    powers = tl.exp(away)
    total = tl.sum(powers, 0)
    loss = tl.log(total) - tl.sum(tl.where(is_target, away, 0.0), 0)
    counts = tl.where(target >= classes, float("nan"), tl.where(target >= 0, 1.0, 0.0))
    tl.store(losses + row, loss * counts)
    slope = (powers / total - tl.where(is_target, 1.0, 0.0)) * counts
    tl.store(gradient + row * classes + column, slope, mask=inside)


def _tiles(channels: int) -> int:
    return min(64, max(16, triton.next_power_of_2(channels)))


def convolved(
    source: Any, weight: Any, bias: Any = None, *, size: tuple[int, int], geometry: Any, transposed: bool,
    precision: str | None = None,
) -> Any:  # fmt: skip
    """Returns the convolution of the images of each device with its weights.

    Args:
        source: The images: devices × images × channels × height × width.
        weight: The weights: devices × outputs × inputs × height × width.
        bias: The summand of each output channel, or None: devices × outputs.
        size: The height and width of the result.
        geometry: The kernel, the step, the padding and the dilation.
        transposed: Whether to compute the gradient by the images from that by the outputs.
        precision: "tf32x3", "tf32" or "ieee". The default follows the settings of PyTorch.
    """
    source = source.contiguous()
    precision = precision or precision_of(torch.backends.cudnn)
    kernel, step, padding, dilation = geometry
    devices, count, channels, height, width = source.shape
    _, outputs, inputs, *_ = weight.shape
    out_channels = inputs if transposed else outputs
    # Consecutive channels of a tap, which the kernel loads together, become neighbours in memory.
    weight = weight.flatten(3).permute((0, 2, 3, 1) if transposed else (0, 1, 3, 2)).contiguous()
    result = source.new_empty((devices, count, out_channels, *size))
    # The fastest tiles for the layers of ResNets and of the CNN of pfl's benchmark on an H200.
    tile, rows, positions = _tiles(out_channels), 128, count * size[0] * size[1]
    block = 32 if channels % 64 == 0 else 16
    narrow = triton.next_power_of_2(channels) if channels < block and not transposed else 0
    grid = (triton.cdiv(positions, rows), devices, triton.cdiv(out_channels, tile))
    _convolve[grid](
        source, weight, weight if bias is None else bias.contiguous(), result,
        count, channels, height, width, out_channels, *size, *kernel, *step, *padding, *dilation,
        TRANSPOSED=transposed, HAS_BIAS=bias is not None, NARROW=narrow, PADDED=any(padding),
        BM=rows, BN=tile, BK=block, PRECISION=precision,
        num_warps=4, num_stages=2 if narrow else 3,
    )  # fmt: skip
    return result


def weight_slopes(
    source: Any, slope: Any, *, shape: tuple[int, ...], geometry: Any, precision: str | None = None
) -> Any:
    """Returns the gradient by the weights of each device.

    Args:
        source: The images: devices × images × channels × height × width.
        slope: The gradient by the outputs, of the same form.
        shape: The shape of the weights of one device.
        geometry: The kernel, the step, the padding and the dilation.
        precision: "tf32x3", "tf32" or "ieee". The default follows the settings of PyTorch.
    """
    source, slope = source.contiguous(), slope.contiguous()
    precision = precision or precision_of(torch.backends.cudnn)
    kernel, step, padding, dilation = geometry
    devices, count, channels, height, width = source.shape
    _, _, outputs, out_height, out_width = slope.shape
    positions, entries = count * out_height * out_width, channels * kernel[0] * kernel[1]
    parts = triton.cdiv(positions, _POSITIONS)
    result = source.new_empty((parts, devices, *shape))
    # The rows of a product are entries: the fastest instructions need 64 rows.
    rows, columns = 32 if entries <= 32 else 64, _tiles(outputs)
    grid = (triton.cdiv(entries, rows) * triton.cdiv(outputs, columns), devices, parts)
    _weight_slope[grid](
        source, slope, result, devices, _POSITIONS, count, channels, height, width,
        outputs, out_height, out_width, *kernel, *step, *padding, *dilation,
        PADDED=any(padding), BM=rows, BN=columns, BK=32, PRECISION=precision,
        num_warps=2 if rows == 32 else 4, num_stages=1,
    )  # fmt: skip
    return result[0] if parts == 1 else result.sum(dim=0)


def _group_sizes(source: Any, groups: int) -> tuple[int, int, int, int]:
    channels = source.shape[2]
    area = source[0, 0, 0].numel()
    return channels, area, triton.next_power_of_2(channels // groups), triton.next_power_of_2(area)


def _warps(entries: int) -> int:
    return 8 if entries > 4096 else 4 if entries > 256 else 1


def group_fits(channels: int, area: int, groups: int) -> bool:
    """Returns whether a group of channels is small enough for one program."""
    return triton.next_power_of_2(channels // groups) * triton.next_power_of_2(area) <= 8192


def normalised(source: Any, weight: Any, bias: Any, groups: int, epsilon: float) -> tuple[Any, Any, Any]:
    """Returns the group norm of the images of each device, the means and the scales of the groups.

    Args:
        source: The images: devices × images × channels × any.
        weight: The factor of each channel: devices × channels.
        bias: The summand of each channel.
        groups: The number of groups of channels.
        epsilon: The summand of the variance.
    """
    source, weight, bias = source.contiguous(), weight.contiguous(), bias.contiguous()
    devices, count = source.shape[:2]
    channels, area, block, length = _group_sizes(source, groups)
    result = torch.empty_like(source)
    means, scales = (source.new_empty((devices, count, groups)) for _ in range(2))
    _normalise[(devices * count, groups)](
        source, weight, bias, result, means, scales, count, channels, groups, area, epsilon,
        BC=block, BL=length, num_warps=_warps(block * length), enable_fp_fusion=True,
    )  # fmt: skip
    return result, means, scales


def normalised_slopes(
    source: Any, slope: Any, weight: Any, means: Any, scales: Any, groups: int
) -> tuple[Any, Any, Any]:
    """Returns the gradients of a group norm by the images, the weights and the biases."""
    source, slope, weight = source.contiguous(), slope.contiguous(), weight.contiguous()
    devices, count = source.shape[:2]
    channels, area, block, length = _group_sizes(source, groups)
    result = torch.empty_like(source)
    of_weight, of_bias = (source.new_empty((devices, count, channels)) for _ in range(2))
    _normalise_slope[(devices * count, groups)](
        source, slope, weight, means.contiguous(), scales.contiguous(), result, of_weight, of_bias,
        count, channels, groups, area,
        BC=block, BL=length, num_warps=_warps(block * length),
    )  # fmt: skip
    return result, of_weight.sum(dim=1), of_bias.sum(dim=1)


def classes_fit(classes: int) -> bool:
    """Returns whether the classes of an example are few enough for one program."""
    return classes <= 8192


def cross_entropy(output: Any, wanted: Any) -> tuple[Any, Any]:
    """Returns the cross-entropy of each example of each device, and its gradient by the outputs.

    Args:
        output: The outputs: devices × examples × classes.
        wanted: The class of each example: devices × examples.
    """
    output, wanted = output.contiguous(), wanted.contiguous()
    losses, gradient = output.new_empty(wanted.shape), torch.empty_like(output)
    classes = output.shape[2]
    block = triton.next_power_of_2(classes)
    _cross_entropy[(wanted.numel(),)](
        output, wanted, losses, gradient, classes, BC=block, num_warps=_warps(block)
    )  # fmt: skip
    return losses, gradient
