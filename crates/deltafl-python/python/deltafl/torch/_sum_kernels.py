"""Triton kernels that set the params of all devices and that encode and add their updates.

A kernel covers all tensors of one type. A table contains a row per block of columns of a tensor:
the first entry of the tensor, its number of columns, the first column of the block, and the first
entry of the tensor in w.
"""

# Triton has no types.
# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

__all__ = ["encode_sums", "load_params"]

#: The devices that a program writes at once, and those whose params it reads at once.
_ROWS, _UNROLLED = 4, 4


@triton.jit
def _load(
    local, table, start, which, rows, total, ROWS: tl.constexpr, BLOCK: tl.constexpr, ONE: tl.constexpr
):  # fmt: skip
    """Sets some columns of the params of ROWS devices to those of w_t. ONE: there is one w_t."""
    of_block = table + tl.program_id(0) * 4
    first, columns = tl.load(of_block), tl.load(of_block + 1)
    column = tl.load(of_block + 2) + tl.arange(0, BLOCK)
    offset = tl.load(of_block + 3)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = column < columns
    known = (row < rows)[:, None] & inside[None, :]
    if ONE:
        one = tl.load(start + offset + column, mask=inside, other=0.0)
        values = tl.broadcast_to(one[None, :], (ROWS, BLOCK))
    else:
        of_start = tl.load(which + row, mask=row < rows, other=0) * total + offset
        values = tl.load(start + of_start[:, None] + column[None, :], mask=known, other=0.0)
    places = local + first + row[:, None] * columns + column[None, :]
    tl.store(places, values.to(local.dtype.element_ty), mask=known)


@triton.jit
def _change(
    local, start, which, place, scale, row, rows, sum_index, columns, offset, total, column, one,
    ONE: tl.constexpr,
):  # fmt: skip
    """Returns the scaled changes of some columns of a device in double precision; 0 if it is not in the sum."""
    mine = tl.load(place + row, mask=row < rows, other=-1) == sum_index
    known = column < tl.where(mine, columns, 0)
    new = tl.load((local + columns.to(tl.int64) * row) + column, mask=known, other=0.0).to(tl.float64)
    if ONE:
        old = one
    else:
        of_start = tl.load(which + row, mask=mine, other=0) * total + offset
        old = tl.load((start + of_start) + column, mask=known, other=0.0).to(tl.float64)
    return (new - old) * tl.load(scale + row, mask=mine, other=0.0)


@triton.jit
def _high_word(numbers):
    """Returns the sign-free upper half of numbers in double precision, which grows with their magnitude."""
    return (numbers.to(tl.int64, bitcast=True) >> 32).to(tl.int32) & 0x7FFFFFFF


@triton.jit
def _encode(
    local, table, start, which, place, scale, keep, sums, narrow, flags,
    rows, total, limit, UNROLLED: tl.constexpr, BLOCK: tl.constexpr, ONE: tl.constexpr,
):  # fmt: skip
    """Encodes the changes of some columns of all devices as integers and adds those of one sum."""
    sum_index = tl.program_id(1)
    of_block = table + tl.program_id(0) * 4
    local += tl.load(of_block)
    columns = tl.load(of_block + 1).to(tl.int32)
    column = tl.load(of_block + 2).to(tl.int32) + tl.arange(0, BLOCK)
    offset = tl.load(of_block + 3)
    inside = column < columns
    one = tl.load((start + offset) + column, mask=inside, other=0.0).to(tl.float64)
    # Adding this number rounds to an integer, ties to even, if the magnitude is below 2^51.
    magic = tl.full((BLOCK,), 6755399441055744.0, dtype=tl.float64)
    magnitude = tl.zeros((BLOCK,), dtype=tl.int32)
    left_out = 0
    added = tl.zeros((BLOCK,), dtype=tl.int64)
    for first in range(0, rows, UNROLLED):
        for place_in_group in tl.static_range(UNROLLED):
            row = first + place_in_group
            size = _change(
                local, start, which, place, scale, row, rows, sum_index, columns, offset, total, column,
                one, ONE,
            )  # fmt: skip
            magnitude = tl.maximum(magnitude, _high_word(size))
            added += (size + magic).to(tl.int64, bitcast=True)
            is_kept = tl.load(keep + row, mask=row < rows, other=1) != 0
            left_out += tl.where(is_kept, 0, 1)
    added -= magic.to(tl.int64, bitcast=True) * (tl.cdiv(rows, UNROLLED) * UNROLLED)
    largest = tl.load(limit)
    bound = _high_word(tl.minimum(largest, 2251799813685248.0))
    if (tl.max(magnitude, 0) >= bound) | (left_out > 0):
        # Rare: a device is left out, or an entry is too large for the addition or for an update.
        added = tl.zeros((BLOCK,), dtype=tl.int64)
        for row in range(rows):
            if tl.load(place + row) == sum_index:
                size = _change(
                    local, start, which, place, scale, row, rows, sum_index, columns, offset, total, column,
                    one, ONE,
                )  # fmt: skip
                is_allowed = tl.abs(size) <= largest
                if tl.min(is_allowed.to(tl.int32), 0) == 0:
                    tl.store(flags + row, 1)
                # Rounded in two steps: towards zero, and then by the rest.
                size = tl.where(is_allowed, size, 0.0)
                whole = size.to(tl.int64)
                rest = tl.abs(size - whole.to(tl.float64))
                up = (rest > 0.5) | ((rest == 0.5) & ((whole & 1) != 0))
                whole = tl.where(up, tl.where(size > 0.0, whole + 1, whole - 1), whole)
                added += whole * tl.load(keep + row)
    of_sum = sum_index.to(tl.int64) * total + offset
    tl.store(sums + of_sum + column, added, mask=inside)
    short = added.to(tl.int32)
    tl.store(narrow + of_sum + column, short, mask=inside)
    if tl.max((short.to(tl.int64) != added).to(tl.int32), 0) > 0:
        tl.store(flags + rows, 1)


def load_params(local: Any, table: Any, start: Any, which: Any, block: int) -> None:
    """Sets the params of all devices in some tensors to w_t.

    Args:
        local: The memory of the tensors.
        table: A row of four numbers per block of columns. See the module.
        start: The params w_t of the tracks, one row each.
        which: The row of ``start`` of each device.
        block: The number of columns of a block.
    """
    rows = len(which)
    _load[(len(table), triton.cdiv(rows, _ROWS))](
        local, table, start, which, rows, start.shape[1],
        ROWS=_ROWS, BLOCK=block, ONE=len(start) == 1, num_warps=4,
    )  # fmt: skip


def encode_sums(
    local: Any, table: Any, start: Any, which: Any, places: Any, scales: Any, keep: Any, limit: Any,
    sums: tuple[Any, Any], flags: Any, block: int,
) -> None:  # fmt: skip
    """Writes the sums of the encoded changes of some tensors.

    Args:
        local: The memory of the tensors of all devices.
        table: A row of four numbers per block of columns. See the module.
        start: The params w_t of the tracks, one row each.
        which: The row of ``start`` of each device.
        places: The sum of each device, or −1.
        scales: The factor of each device before rounding, in double precision.
        keep: 1 for each device that is added, 0 for the others.
        limit: The largest magnitude of an encoded entry. A float argument has single precision.
        sums: The sums as integers of 64 and of 32 bits.
        flags: 1 for each device that is refused, and at last whether a sum needs more than 32 bits.
        block: The number of columns of a block.
    """
    wide, narrow = sums
    _encode[(len(table), len(wide))](
        local, table, start, which, places, scales, keep, wide, narrow, flags,
        len(which), start.shape[1], limit,
        UNROLLED=_UNROLLED, BLOCK=block, ONE=len(start) == 1, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
