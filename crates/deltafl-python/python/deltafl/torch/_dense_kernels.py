"""Triton kernels for large dense layers and embeddings of many devices with few examples each.

The weights of all devices are far larger than their examples, so that the time of a step is the
number of passes over the weights. A step reads them twice and writes them once: the forward pass
reads them, and one kernel computes the gradient by the inputs and moves the weights. The gradient
by the weights is never stored.
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

from ._functions import precision_of
from ._product_kernels import add_product, is_long

__all__ = ["dense_step", "multiplied", "rows_step"]

#: The inner entries of a product that one program adds up, if there are few rows.
_PART = 2048


@triton.jit
def _multiply(
    left, right, result, devices, rows, columns, inner, part, parts,
    left_device, left_row, left_inner, right_device, right_inner, right_column,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr, IS_LONG: tl.constexpr,
):  # fmt: skip
    """Computes BM × BN entries of the product of two matrices of one device, over a part of the inner entries."""
    device = tl.program_id(1).to(tl.int64)
    index = tl.program_id(2) % parts
    row = (tl.program_id(2) // parts) * BM + tl.arange(0, BM)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    left += device * left_device
    right += device * right_device
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(index * part, tl.minimum(index * part + part, inner), BK):
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
        total = add_product(a, b, total, PRECISION, IS_LONG)
    result += (index * devices + device) * rows * columns
    places = (row * columns)[:, None] + column[None, :]
    tl.store(result + places, total, mask=(row < rows)[:, None] & (column < columns)[None, :])


@triton.jit
def _step_dense(
    slope, source, weight, result, rates, decays, count, outputs, inputs,
    NEEDS_SOURCE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Moves BN columns of the weight of one device, and computes the gradient by these columns of its inputs."""
    device = tl.program_id(1).to(tl.int64)
    row = tl.arange(0, BM)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    slope += device * count * outputs
    source += device * count * inputs
    weight += device * outputs * inputs
    rate = tl.load(rates + device)
    decay = tl.load(decays + device)
    inside = (row < count)[:, None] & (column < inputs)[None, :]
    places = (row * inputs)[:, None] + column[None, :]
    x = tl.load(source + places, mask=inside, other=0.0)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, outputs, BK):
        out = k + tl.arange(0, BK)
        known = (out < outputs)[:, None] & (column < inputs)[None, :]
        entries = weight + (out * inputs)[:, None] + column[None, :]
        w = tl.load(entries, mask=known, other=0.0)
        dy = tl.load(
            slope + (row * outputs)[:, None] + out[None, :],
            mask=(row < count)[:, None] & (out < outputs)[None, :],
            other=0.0,
        )
        if NEEDS_SOURCE:
            total = add_product(dy, w, total, PRECISION, True)
        gradient = add_product(tl.trans(dy), x, tl.zeros((BK, BN), dtype=tl.float32), PRECISION, False)
        # The gradient of a device after its last step, whose rate is 0, may be infinite.
        tl.store(entries, tl.where(rate == 0.0, w, w - rate * (gradient + decay * w)), mask=known)
    if NEEDS_SOURCE:
        tl.store(result + device * count * inputs + places, total, mask=inside)


@triton.jit
def _step_rows(
    slope, indices, weight, rates, count, words, width, padding, BT: tl.constexpr, BW: tl.constexpr
):  # fmt: skip
    """Moves the row of one token of one device. The first one of equal tokens adds all of them up."""
    token = tl.program_id(0)
    device = tl.program_id(1).to(tl.int64)
    slope += device * count * width
    indices += device * count
    position = tl.arange(0, BT)
    mine = tl.load(indices + token)
    same = tl.load(indices + position, mask=position < count, other=-1) == mine
    if (tl.min(tl.where(same, position, BT), 0) == token) & (mine != padding):
        column = tl.program_id(2) * BW + tl.arange(0, BW)
        total = tl.zeros((BW,), dtype=tl.float32)
        at = token
        for _ in range(tl.sum(same.to(tl.int32), 0)):
            total += tl.load(slope + at * width + column, mask=column < width, other=0.0)
            at = tl.min(tl.where(same & (position > at), position, count - 1), 0)
        places = weight + (device * words + mine) * width + column
        w = tl.load(places, mask=column < width, other=0.0)
        rate = tl.load(rates + device)
        tl.store(places, tl.where(rate == 0.0, w, w - rate * total), mask=column < width)


def _height(rows: int) -> int:
    return 16 if rows <= 16 else 32 if rows <= 32 else 64


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
    height, width = _height(rows), 64
    block, stages = (64 if right.stride(1) == 1 else 32, 4) if inner > 32 else (16 if inner <= 16 else 32, 2)
    if right.stride(2) == 1:
        width = 128
    # A long sum is split, so that there are enough programs. The split depends on the layer only.
    parts = triton.cdiv(inner, _PART) if rows <= 32 else 1
    part = triton.cdiv(triton.cdiv(inner, parts), block) * block
    result = left.new_empty((parts, devices, rows, columns))
    _multiply[(triton.cdiv(columns, width), devices, triton.cdiv(rows, height) * parts)](
        left, right, result, devices, rows, columns, inner, part, parts, *left.stride(), *right.stride(),
        BM=height, BN=width, BK=block, PRECISION=precision or precision_of(settings.matmul),
        IS_LONG=is_long(part), num_warps=4, num_stages=stages,
    )  # fmt: skip
    return result[0] if parts == 1 else result.sum(dim=0)


def dense_step(
    slope: Any, source: Any, weight: Any, rates: Any, decays: Any, *, needs_source: bool, precision: str | None = None
) -> Any:
    """Moves the weights of a dense layer by a step of SGD, in place: w ← w − γ (dyᵀx + λw).

    Args:
        slope: The gradient by the outputs, dy: devices × rows × outputs.
        source: The inputs of the layer, x: devices × rows × inputs. At most 64 rows.
        weight: The weights, which must be contiguous: devices × outputs × inputs.
        rates: γ of each device, in single precision.
        decays: λ of each device, in single precision.
        needs_source: Whether the gradient by the inputs is needed.
        precision: "tf32x3", "tf32" or "ieee". The default follows the settings of PyTorch.

    Returns:
        The gradient by the inputs at the weights before the step, or ``slope`` if it is not needed.
    """
    settings: Any = torch.backends.cuda
    slope, source = slope.contiguous(), source.contiguous()
    devices, count, outputs = slope.shape
    inputs = source.shape[2]
    result = torch.empty_like(source) if needs_source else slope
    width, block = 128, 32
    _step_dense[(triton.cdiv(inputs, width), devices)](
        slope, source, weight, result, rates.contiguous(), decays.contiguous(), count, outputs, inputs,
        NEEDS_SOURCE=needs_source, BM=_height(count), BN=width, BK=block,
        PRECISION=precision or precision_of(settings.matmul), num_warps=4, num_stages=3,
    )  # fmt: skip
    return result


def rows_step(slope: Any, indices: Any, weight: Any, rates: Any, padding: int) -> None:
    """Moves rows of the weights of an embedding by a step of SGD, in place: w ← w − γ g.

    Args:
        slope: The gradient by the outputs: devices × any × width.
        indices: The row of each output: devices × any.
        weight: The weights, which must be contiguous: devices × rows × width.
        rates: γ of each device, in single precision.
        padding: A row that is not moved, or −1.
    """
    devices, words, width = weight.shape
    slope = slope.reshape(devices, -1, width).contiguous()
    indices = indices.reshape(devices, -1).contiguous()
    count = indices.shape[1]
    columns = min(256, triton.next_power_of_2(width))
    _step_rows[(count, devices, triton.cdiv(width, columns))](
        slope, indices, weight, rates.contiguous(), count, words, width, padding,
        BT=triton.next_power_of_2(count), BW=columns, num_warps=1 if count <= 512 else 4,
    )  # fmt: skip
