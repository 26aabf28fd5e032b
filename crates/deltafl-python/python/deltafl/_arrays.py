"""The arrays of devices as one matrix and one vector, without a copy if possible."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._kinds import is_array
from .errors import InvalidInput

__all__ = ["class_labels", "matrix", "one_matrix", "one_vector", "whole_numbers"]

Array = NDArray[Any]


def matrix(id: str, inputs: Any) -> Array:
    """Returns the inputs as a matrix of float32 or uint8, without a copy if possible.

    The identity is empty for the inputs of all devices.
    """
    array: Any = np.asarray(inputs)
    label = f"device {id!r}: the inputs" if id else "the inputs"
    if array.dtype == object or np.issubdtype(array.dtype, np.complexfloating):
        raise InvalidInput(f"{label} have type {array.dtype}, not real numbers: convert them with astype(np.float32)")
    if array.dtype not in (np.dtype(np.float32), np.dtype(np.uint8)):
        if not np.issubdtype(array.dtype, np.number) and array.dtype != np.bool_:
            raise InvalidInput(f"{label} have type {array.dtype}, not numbers")
        array = array.astype(np.float32)
    if array.ndim == 1:
        array = array.reshape(-1, 1)
    shaped: Array = array if array.ndim == 2 else array.reshape(len(array), -1)
    return shaped


def one_matrix(ids: list[str], parts: list[Array]) -> tuple[Array, list[int]]:
    """Returns one matrix that contains all parts, and the first row of each part.

    The parts are not copied if they are rows of one array.
    """
    width, dtype = parts[0].shape[1], parts[0].dtype
    for id, part in zip(ids, parts):
        if not len(part):
            raise InvalidInput(f"device {id!r} has no examples")
        if part.shape[1] != width:
            raise InvalidInput(f"device {id!r} has {part.shape[1]} features, expected {width}")
    if any(part.dtype != dtype for part in parts):
        # Grey levels have the values that a model receives from a federation of grey levels.
        parts = [part / np.float32(255) if part.dtype == np.uint8 else part for part in parts]
    shared = _shared(parts, width)
    if shared is not None:
        return shared
    ends = np.cumsum([len(part) for part in parts]).tolist()
    return np.ascontiguousarray(np.concatenate(parts)), [0, *ends[:-1]]


def _shared(parts: list[Array], width: int) -> tuple[Array, list[int]] | None:
    """Returns a view from the first to the last row of all parts, and the first row of each part.

    Returns None if the parts are not rows of one array.
    """
    owners = [_owner(part) for part in parts]
    if len(parts) < 2 or any(owner is not owners[0] for owner in owners):
        return (parts[0], [0]) if len(parts) == 1 and parts[0].flags.c_contiguous else None
    row = width * parts[0].itemsize
    first = min(_address(part) for part in parts)
    last = max(_address(part) + part.nbytes for part in parts)
    starts = [_address(part) - first for part in parts]
    if not all(part.flags.c_contiguous for part in parts) or any(start % row for start in starts):
        return None
    lowest = parts[starts.index(0)]
    whole = np.lib.stride_tricks.as_strided(
        lowest, shape=((last - first) // row, width), strides=(row, parts[0].itemsize), writeable=False
    )
    return whole, [start // row for start in starts]


def _owner(array: Array) -> Any:
    """Returns the object that owns the memory of an array."""
    base: Any = array
    while is_array(base) and base.base is not None:
        base = base.base
    return base


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def one_vector(
    ids: list[str], parts: list[Array], offsets: list[int], rows: int, classes: int | None
) -> tuple[Array, int | None]:
    """Returns the targets of all rows and the number of classes.

    Rows that belong to no device have the target 0.
    """
    whole = all(np.issubdtype(part.dtype, np.integer) or part.dtype == np.bool_ for part in parts)
    if not whole and classes is None:
        values = np.zeros(rows, dtype=np.float32)
        for id, part, offset in zip(ids, parts, offsets):
            values[offset : offset + len(part)] = _numbers(id, part)
        return values, None
    labels = np.zeros(rows, dtype=np.uint32)
    for id, part, offset in zip(ids, parts, offsets):
        labels[offset : offset + len(part)] = class_labels(id, part)
    return labels, int(labels.max()) + 1 if classes is None else classes


def _numbers(id: str, targets: Array) -> Array:
    try:
        return targets.astype(np.float32)
    except (TypeError, ValueError):
        text = next((value for value in targets.tolist() if isinstance(value, str)), targets.tolist()[0])
        raise InvalidInput(
            f"device {id!r}: the target {text!r} is not a number. Convert all targets to numbers, or use "
            "Federation.from_arrays with strings only"
        ) from None


def whole_numbers(targets: Array) -> Array:
    """Returns an array of Python integers, such as a column of a mixed matrix, as int64."""
    if targets.dtype == object and all(isinstance(value, (int, np.integer)) for value in targets.ravel().tolist()):
        return targets.astype(np.int64)
    return targets


def class_labels(id: str, targets: Array) -> Array:
    labels = np.asarray(targets)
    whole = labels.astype(np.int64)
    if (whole != labels).any() or (whole < 0).any() or (whole >= 2**32).any():
        raise InvalidInput(f"device {id!r}: classes must be non-negative integers")
    return whole.astype(np.uint32)
