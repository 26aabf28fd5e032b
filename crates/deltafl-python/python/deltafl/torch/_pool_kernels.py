"""Triton kernels for the maxima of windows of images that do not overlap."""

# Triton has no types.
# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

__all__ = ["pooled", "pooled_slopes"]

_BLOCK = 1024


@triton.jit
def _pool(
    source, slope, result, count, height, width, rows, columns,
    KY: tl.constexpr, KX: tl.constexpr, POSITIVE: tl.constexpr, BACKWARD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Computes the maxima of BLOCK windows, or moves their slopes to the first maximum of each window.

    POSITIVE replaces negative maxima by zero. They have no slope.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    index = start + tl.arange(0, BLOCK)
    inside = index < count
    # Divisions of 64-bit numbers are slow. There is only one per program.
    area = rows * columns
    plane = start // area
    point = (start - plane * area).to(tl.int32) + tl.arange(0, BLOCK)
    further = point // area
    point -= further * area
    y = point // columns
    first = (plane + further) * (height * width) + y * (KY * width) + (point - y * columns) * KX
    largest = tl.load(source + first, mask=inside, other=0.0)
    at = tl.zeros((BLOCK,), dtype=tl.int32)
    for k in tl.static_range(1, KY * KX):
        value = tl.load(source + first + (k // KX) * width + k % KX, mask=inside, other=0.0)
        # As in PyTorch, a number that is not one is the largest.
        is_larger = (value > largest) | (value != value)
        largest = tl.where(is_larger, value, largest)
        at = tl.where(is_larger, k, at)
    # As in PyTorch, the positive part of a number that is not one is this number.
    is_zero = (largest <= 0.0) & POSITIVE
    if BACKWARD:
        dy = tl.load(slope + index, mask=inside, other=0.0)
        at = tl.where(is_zero, -1, at)
        for k in tl.static_range(KY * KX):
            tl.store(result + first + (k // KX) * width + k % KX, tl.where(at == k, dy, 0.0), mask=inside)
    else:
        tl.store(result + index, tl.where(is_zero, 0.0, largest), mask=inside)


def pooled(images: Any, window: tuple[int, int], *, positive: bool = False) -> Any:
    """Returns the maxima of windows of this height and width over the last two axes.

    ``positive`` replaces negative maxima by zero.
    """
    images = images.contiguous()
    height, width = images.shape[-2:]
    rows, columns = height // window[0], width // window[1]
    result = images.new_empty((*images.shape[:-2], rows, columns))
    sizes = (result.numel(), height, width, rows, columns)
    _run(images, images, result, sizes, window, positive=positive, backward=False)
    return result


def pooled_slopes(images: Any, slope: Any, window: tuple[int, int], *, positive: bool = False) -> Any:
    """Returns the gradient by the images from that by the maxima."""
    images, slope = images.contiguous(), slope.contiguous()
    height, width = images.shape[-2:]
    rows, columns = slope.shape[-2:]
    is_covered = (rows * window[0], columns * window[1]) == (height, width)
    result = images.new_empty(images.shape) if is_covered else images.new_zeros(images.shape)
    sizes = (slope.numel(), height, width, rows, columns)
    _run(images, slope, result, sizes, window, positive=positive, backward=True)
    return result


def _run(
    images: Any, slope: Any, result: Any, sizes: tuple[int, ...], window: tuple[int, int], *, positive: bool, backward: bool
) -> None:  # fmt: skip
    _pool[(triton.cdiv(sizes[0], _BLOCK),)](
        images, slope, result, *sizes,
        KY=window[0], KX=window[1], POSITIVE=positive, BACKWARD=backward, BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip
