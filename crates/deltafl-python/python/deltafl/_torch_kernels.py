"""Triton kernels for the convolutions of many devices, each with its own weights, and for their sum.

The kernels use the tensor cores. With the precision "tf32x3", a product has about the accuracy of
float32. The order of a summation depends on the layer only, so that a device has the same bits in
every cohort.
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

from ._torch_functions import uses_tf32

__all__ = [
    "convolved", "encode_sums", "group_fits", "multiplied", "normalised", "normalised_slopes", "weight_slopes",
]  # fmt: skip

#: The positions of an image that one part of a weight gradient adds up.
_POSITIONS = 1024


@triton.jit
def _convolve(
    source, weight, result,
    count, channels, height, width, out_channels, out_height, out_width, of_source, of_result,
    kernel_height, kernel_width, step_y, step_x, pad_y, pad_x, dilation_y, dilation_x,
    TRANSPOSED: tl.constexpr, NARROW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Computes a tile of BM positions × BN channels of the output of one device.

    TRANSPOSED computes the gradient by the images. NARROW is the number of channels, rounded up to a
    power of two, if it is smaller than BK. A step of the loop then covers several taps.
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
            entries = (channel * of_source + tap)[:, None] + (out * of_result)[None, :]
            known = (channel < channels)[:, None] & (out < out_channels)[None, :]
            b = tl.load(weight + entries, mask=known, other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
    else:
        for k in range(0, taps * NARROW, BK):
            index = k + tl.arange(0, BK)
            tap = index // NARROW
            channel = index % NARROW
            tap_y = tap // kernel_width
            tap_x = tap - tap_y * kernel_width
            if TRANSPOSED:
                far_y = y[:, None] + pad_y - (tap_y * dilation_y)[None, :]
                far_x = x[:, None] + pad_x - (tap_x * dilation_x)[None, :]
                at_y = far_y // step_y
                at_x = far_x // step_x
                hit = (far_y >= 0) & (far_x >= 0) & (at_y * step_y == far_y) & (at_x * step_x == far_x)
                hit = hit & (at_y < height) & (at_x < width)
            else:
                at_y = (y * step_y - pad_y)[:, None] + (tap_y * dilation_y)[None, :]
                at_x = (x * step_x - pad_x)[:, None] + (tap_x * dilation_x)[None, :]
                hit = (at_y >= 0) & (at_x >= 0) & (at_y < height) & (at_x < width)
            is_tap = (tap < taps) & (channel < channels)
            places = first[:, None] + at_y * width + at_x + (channel * (height * width))[None, :]
            a = tl.load(source + places, mask=hit & inside[:, None] & is_tap[None, :], other=0.0)
            entries = (channel * of_source + tap)[:, None] + (out * of_result)[None, :]
            b = tl.load(weight + entries, mask=is_tap[:, None] & (out < out_channels)[None, :], other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
    places = (image * (out_channels * area) + point)[:, None] + (out * area)[None, :]
    tl.store(result + places, total, mask=inside[:, None] & (out < out_channels)[None, :])


@triton.jit
def _weight_slope(
    source, slope, result, devices, part,
    count, channels, height, width, out_channels, out_height, out_width,
    kernel_height, kernel_width, step_y, step_x, pad_y, pad_x, dilation_y, dilation_x,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds up BM output channels × BN entries of a weight gradient over a part of the positions."""
    device = tl.program_id(1).to(tl.int64)
    taps = kernel_height * kernel_width
    entries = channels * taps
    columns = tl.cdiv(entries, BN)
    out = (tl.program_id(0) // columns) * BM + tl.arange(0, BM)
    index = (tl.program_id(0) % columns) * BN + tl.arange(0, BN)
    tap = index // channels
    channel = index - tap * channels
    tap_y = tap // kernel_width
    tap_x = tap - tap_y * kernel_width
    area = out_height * out_width
    source += device * count * channels * height * width
    slope += device * count * out_channels * area
    result += (tl.program_id(2) * devices + device) * (out_channels * entries)
    start = tl.program_id(2) * part
    end = tl.minimum(start + part, count * area)
    offset_y = tap_y * dilation_y - pad_y
    offset_x = tap_x * dilation_x - pad_x
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(start, end, BK):
        position = k + tl.arange(0, BK)
        inside = position < end
        image = position // area
        point = position - image * area
        y = point // out_width
        x = point - y * out_width
        of_slope = image * (out_channels * area) + point
        a = tl.load(
            slope + (out * area)[:, None] + of_slope[None, :],
            mask=(out < out_channels)[:, None] & inside[None, :],
            other=0.0,
        )
        at_y = (y * step_y)[:, None] + offset_y[None, :]
        at_x = (x * step_x)[:, None] + offset_x[None, :]
        hit = (at_y >= 0) & (at_x >= 0) & (at_y < height) & (at_x < width)
        of_source = (image * (channels * height * width))[:, None] + (channel * (height * width))[None, :]
        b = tl.load(
            source + of_source + at_y * width + at_x,
            mask=hit & inside[:, None] & (index < entries)[None, :],
            other=0.0,
        )
        total = tl.dot(a, b, total, input_precision=PRECISION)
    places = (out * entries)[:, None] + (channel * taps + tap)[None, :]
    tl.store(result + places, total, mask=(out < out_channels)[:, None] & (index < entries)[None, :])


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
def _multiply(
    left, right, result, rows, columns, inner,
    left_device, left_row, left_inner, right_device, right_inner, right_column,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Computes BM × BN entries of the product of two matrices of one device."""
    device = tl.program_id(1).to(tl.int64)
    row = tl.program_id(2) * BM + tl.arange(0, BM)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    left += device * left_device
    right += device * right_device
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, inner, BK):
        entry = k + tl.arange(0, BK)
        a = tl.load(
            left + (row * left_row)[:, None] + (entry * left_inner)[None, :],
            mask=(row < rows)[:, None] & (entry < inner)[None, :],
            other=0.0,
        )
        b = tl.load(
            right + (entry * right_inner)[:, None] + (column * right_column)[None, :],
            mask=(entry < inner)[:, None] & (column < columns)[None, :],
            other=0.0,
        )
        total = tl.dot(a, b, total, input_precision=PRECISION)
    result += device * rows * columns
    places = (row * columns)[:, None] + column[None, :]
    tl.store(result + places, total, mask=(row < rows)[:, None] & (column < columns)[None, :])


@triton.jit
def _encode(
    local, start, which, place, scale, keep, sums, narrow, flags,
    rows, columns, offset, total, limit, BLOCK: tl.constexpr,
):  # fmt: skip
    """Encodes the changes of BLOCK columns of all devices as integers and adds those of one sum."""
    sum_index = tl.program_id(1)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    added = tl.zeros((BLOCK,), dtype=tl.int64)
    largest = tl.load(limit)
    for row in range(rows):
        if tl.load(place + row) == sum_index:
            new = tl.load(local + column, mask=inside, other=0.0).to(tl.float64)
            of_start = tl.load(which + row) * total + offset
            old = tl.load(start + of_start + column, mask=inside, other=0.0).to(tl.float64)
            size = (new - old) * tl.load(scale + row)
            fits = tl.abs(size) <= largest
            if tl.min(fits.to(tl.int32)) == 0:
                tl.store(flags + row, 1)
            # Rounded to the nearest integer, ties to even.
            size = tl.where(fits, size, 0.0)
            whole = size.to(tl.int64)
            rest = tl.abs(size - whole.to(tl.float64))
            up = (rest > 0.5) | ((rest == 0.5) & ((whole & 1) != 0))
            whole = tl.where(up, tl.where(size > 0.0, whole + 1, whole - 1), whole)
            added += whole * tl.load(keep + row)
        local += columns
    of_sum = sum_index.to(tl.int64) * total + offset
    tl.store(sums + of_sum + column, added, mask=inside)
    short = added.to(tl.int32)
    tl.store(narrow + of_sum + column, short, mask=inside)
    if tl.max((short.to(tl.int64) != added).to(tl.int32)) > 0:
        tl.store(flags + rows, 1)


def _precision(settings: Any) -> str:
    """Returns the precision of products: TF32 if PyTorch may use it."""
    return "tf32" if uses_tf32(settings) else "tf32x3"


def _tiles(channels: int) -> int:
    return min(64, max(16, triton.next_power_of_2(channels)))


def convolved(
    source: Any, weight: Any, *, size: tuple[int, int], geometry: Any, transposed: bool, precision: str | None = None
) -> Any:
    """Returns the convolution of the images of each device with its weights.

    Args:
        source: The images: devices × images × channels × height × width.
        weight: The weights: devices × outputs × inputs × height × width.
        size: The height and width of the result.
        geometry: The kernel, the step, the padding and the dilation.
        transposed: Whether to compute the gradient by the images from that by the outputs.
        precision: "tf32x3", "tf32" or "ieee". The default follows the settings of PyTorch.
    """
    source, weight = source.contiguous(), weight.contiguous()
    precision = precision or _precision(torch.backends.cudnn)
    kernel, step, padding, dilation = geometry
    devices, count, channels, height, width = source.shape
    _, outputs, inputs, *_ = weight.shape
    taps = kernel[0] * kernel[1]
    out_channels = inputs if transposed else outputs
    strides = (inputs * taps, taps) if transposed else (taps, inputs * taps)
    result = source.new_empty((devices, count, out_channels, *size))
    # The fastest tiles for the layers of ResNets on an H200.
    tile, block = _tiles(out_channels), 32 if channels % 32 == 0 and channels > 32 else 16
    narrow = triton.next_power_of_2(channels) if channels < block else 0
    positions = count * size[0] * size[1]
    rows, warps, stages = (256, 8, 3) if block == 16 and tile <= 32 and positions >= 2048 else (128, 4, 2)
    grid = (triton.cdiv(positions, rows), devices, triton.cdiv(out_channels, tile))
    _convolve[grid](
        source, weight, result, count, channels, height, width, out_channels, *size, *strides,
        *kernel, *step, *padding, *dilation,
        TRANSPOSED=transposed, NARROW=narrow, BM=rows, BN=tile, BK=block, PRECISION=precision,
        num_warps=warps, num_stages=stages,
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
    precision = precision or _precision(torch.backends.cudnn)
    kernel, step, padding, dilation = geometry
    devices, count, channels, height, width = source.shape
    _, _, outputs, out_height, out_width = slope.shape
    positions, entries = count * out_height * out_width, channels * kernel[0] * kernel[1]
    parts = triton.cdiv(positions, _POSITIONS)
    result = source.new_empty((parts, devices, *shape))
    tile, columns = _tiles(outputs), 32 if entries < 256 else 64 if entries < 512 else 128
    grid = (triton.cdiv(outputs, tile) * triton.cdiv(entries, columns), devices, parts)
    _weight_slope[grid](
        source, slope, result, devices, _POSITIONS, count, channels, height, width,
        outputs, out_height, out_width, *kernel, *step, *padding, *dilation,
        BM=tile, BN=columns, BK=64, PRECISION=precision, num_warps=4, num_stages=2,
    )  # fmt: skip
    return result[0] if parts == 1 else result.sum(dim=0)


def multiplied(left: Any, right: Any, precision: str | None = None) -> Any:
    """Returns the product of two matrices of each device, for few rows or few inner entries.

    Args:
        left: The left matrices: devices × rows × inner entries.
        right: The right matrices: devices × inner entries × columns.
        precision: "tf32x3", "tf32" or "ieee". The default follows the settings of PyTorch.
    """
    settings: Any = torch.backends.cuda
    devices, rows, inner = left.shape
    columns = right.shape[2]
    result = left.new_empty((devices, rows, columns))
    height, width = 16 if rows <= 16 else 32 if rows <= 32 else 64, 64
    block, stages = (64 if right.stride(1) == 1 else 32, 4) if inner > 32 else (16 if inner <= 16 else 32, 2)
    if right.stride(2) == 1:
        width = 128
    _multiply[(triton.cdiv(columns, width), devices, triton.cdiv(rows, height))](
        left, right, result, rows, columns, inner, *left.stride(), *right.stride(),
        BM=height, BN=width, BK=block, PRECISION=precision or _precision(settings.matmul),
        num_warps=4, num_stages=stages,
    )  # fmt: skip
    return result


def _group_sizes(source: Any, groups: int) -> tuple[int, int, int, int]:
    channels = source.shape[2]
    area = source[0, 0, 0].numel()
    return channels, area, triton.next_power_of_2(channels // groups), triton.next_power_of_2(area)


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
        BC=block, BL=length, num_warps=8 if block * length > 4096 else 4, enable_fp_fusion=True,
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
        BC=block, BL=length, num_warps=8 if block * length > 4096 else 4,
    )  # fmt: skip
    return result, of_weight.sum(dim=1), of_bias.sum(dim=1)


def encode_sums(
    tensors: list[Any], start: Any, which: Any, places: Any, scales: Any, keep: Any, limit: Any,
    sums: tuple[Any, Any], flags: Any,
) -> None:  # fmt: skip
    """Writes the sums of the encoded changes.

    Args:
        tensors: The params of all devices, one contiguous matrix per tensor, with one row per device.
        start: The params w_t of the tracks, one row each.
        which: The row of ``start`` of each device.
        places: The sum of each device, or −1.
        scales: The factor of each device before rounding, in double precision.
        keep: 1 for each device that is added, 0 for the others.
        limit: The largest magnitude of an encoded entry. A float argument has single precision.
        sums: The sums as integers of 64 and of 32 bits.
        flags: 1 for each device that is refused, and at last whether a sum needs more than 32 bits.
    """
    rows, total, offset, block = len(which), start.shape[1], 0, 1024
    wide, narrow = sums
    for tensor in tensors:
        columns = tensor.shape[1]
        _encode[(triton.cdiv(columns, block), len(wide))](
            tensor, start, which, places, scales, keep, wide, narrow, flags,
            rows, columns, offset, total, limit, BLOCK=block, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
        offset += columns
