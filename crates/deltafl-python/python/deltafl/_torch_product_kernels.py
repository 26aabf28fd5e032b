"""The product of two tiles, for all Triton kernels."""

# Triton has no types.
# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["add_product"]


@triton.jit
def _leading(tile):
    """Returns the entries with the ten leading bits of the mantissa, which TF32 represents exactly."""
    return (tile.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def add_product(left, right, total, PRECISION: tl.constexpr):
    """Returns total + left · right.

    "tf32x3" adds three products of the leading and the remaining bits, with about the accuracy of
    float32. ``tl.dot`` has such a precision, too, but it also replaces entries that are not numbers,
    which takes a third of the instructions.
    """
    if PRECISION == "tf32x3":
        left_leading = _leading(left)
        right_leading = _leading(right)
        total = tl.dot(left - left_leading, right_leading, total, input_precision="tf32")
        total = tl.dot(left_leading, right - right_leading, total, input_precision="tf32")
        total = tl.dot(left_leading, right_leading, total, input_precision="tf32")
    else:
        total = tl.dot(left, right, total, input_precision=PRECISION)
    return total
