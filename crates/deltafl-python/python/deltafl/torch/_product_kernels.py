"""The product of two tiles, for all Triton kernels."""

# Triton has no types.
# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["add_product", "is_long"]


def is_long(products: int) -> bool:
    """Returns whether a sum of this many products needs correct rounding in between."""
    return products > 1024



@triton.jit
def _leading(tile):
    """Returns the entries with the ten leading bits of the mantissa, which TF32 represents exactly."""
    return (tile.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def add_product(left, right, total, PRECISION: tl.constexpr, IS_LONG: tl.constexpr):
    """Returns total + left · right.

    "tf32x3" adds three products of the leading and the remaining bits. ``tl.dot`` has such a
    precision, too, but it also replaces entries that are not numbers, which takes a third of the
    instructions. The tensor cores truncate the sums that they add to. The relative error of a sum
    of n products is therefore about n · 1e-8. IS_LONG adds to a sum of zero, and then to the total
    with correct rounding, so that long sums are as accurate as in float32.
    """
    if PRECISION == "tf32x3":
        left_leading = _leading(left)
        right_leading = _leading(right)
        part = tl.zeros_like(total) if IS_LONG else total
        part = tl.dot(left - left_leading, right_leading, part, input_precision="tf32")
        part = tl.dot(left_leading, right - right_leading, part, input_precision="tf32")
        part = tl.dot(left_leading, right_leading, part, input_precision="tf32")
        total = total + part if IS_LONG else part
    else:
        total = tl.dot(left, right, total, input_precision=PRECISION)
    return total
