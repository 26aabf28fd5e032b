"""Inputs that consist of several arrays, such as tokens and a mask.

A federation stores one matrix per device. A layout packs the arrays of an example into one row and
unpacks them for a trainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._kinds import is_list, is_mapping
from ._trainer import IGNORED
from .errors import InvalidInput

__all__ = ["Layout"]

Array = NDArray[Any]
#: Whole numbers up to this size are exact in float32.
_LARGEST = 2**24
#: The name of the part that contains targets per position.
_TARGETS = ""


@dataclass(frozen=True)
class Part:
    """The place of one array in a row."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def width(self) -> int:
        """The number of columns."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Layout:
    """The arrays of an example, in the order of their columns."""

    parts: tuple[Part, ...]
    #: The array of variable length from which the part ``mask`` is computed.
    masked: str | None = None

    @classmethod
    def of(cls, devices: Mapping[str, tuple[Any, Any]]) -> Layout:
        """Returns the layout of all devices.

        Sequences of different lengths are padded, and ``mask`` is True at their positions.

        Raises:
            InvalidInput: The devices have different arrays.
        """
        first = next(iter(devices))
        names = _names(devices[first][0])
        longest: dict[str, tuple[int, ...]] = {}
        kinds: dict[str, np.dtype[Any]] = {}
        varying = set[str]()
        for id, (inputs, targets) in devices.items():
            if _names(inputs) != names:
                raise InvalidInput(f"device {id!r} has the inputs {_names(inputs)}, expected {names}")
            named = {**_arrays(inputs), **({_TARGETS: targets} if _per_position(targets) else {})}
            for name, value in named.items():
                shape, dtype = _extent(id, name, value)
                known = longest.setdefault(name, shape)
                if len(known) != len(shape):
                    raise InvalidInput(f"device {id!r}: {name or 'the targets'} have {len(shape)} axes, expected {len(known)}")
                if known != shape or _is_ragged(value):
                    varying.add(name)
                longest[name] = tuple(max(pair) for pair in zip(known, shape))
                kinds[name] = np.promote_types(kinds.get(name, dtype), dtype)
        if _TARGETS in longest and any(not _per_position(targets) for _, targets in devices.values()):
            raise InvalidInput("some devices have a target per position, and others one per example")
        ordered = [name for name in [*names, _TARGETS] if name in longest]
        parts = [Part(name, longest[name], _dtype(kinds[name])) for name in ordered]
        masked = next((name for name in names if name in varying), None)
        if masked is not None and "mask" not in names:
            parts.append(Part("mask", longest[masked][:1], "bool"))
        return cls(tuple(parts), masked)

    def packed(self, id: str, inputs: Any, targets: Any) -> tuple[Array, Array]:
        """Returns the rows of a device, and one target per example."""
        named = {**_arrays(inputs), **({_TARGETS: targets} if self.has_positions else {})}
        if self.masked is not None and "mask" not in named:
            named["mask"] = [np.ones(_shape(entry)[:1], dtype=bool) for entry in named[self.masked]]
        columns: list[Any] = [_padded(id, part, named[part.name]) for part in self.parts]
        rows = np.concatenate([column.reshape(len(column), -1) for column in columns], axis=1)
        return rows, np.zeros(len(rows), dtype=np.int64) if self.has_positions else np.asarray(targets)

    def unpacked(self, rows: Array, targets: Array) -> tuple[Any, Array]:
        """Returns the inputs and targets of some examples as a trainer receives them."""
        start = 0
        named: dict[str, Array] = {}
        for part in self.parts:
            columns: Any = rows[:, start : start + part.width]
            named[part.name] = columns.reshape(len(rows), *part.shape).astype(part.dtype)
            start += part.width
        positions = named.pop(_TARGETS, None)
        inputs: Any = named["inputs"] if list(named) == ["inputs"] else named
        return inputs, targets if positions is None else positions

    @property
    def has_positions(self) -> bool:
        """True if there is a target per position."""
        return any(part.name == _TARGETS for part in self.parts)

    @property
    def has_real_positions(self) -> bool:
        """True if there is a real number per position."""
        return any(part.name == _TARGETS and part.dtype == "float32" for part in self.parts)


def is_structured(value: tuple[Any, ...]) -> bool:
    """Returns True if the inputs are a dict or a list of sequences, or the targets per position."""
    return is_mapping(value[0]) or _is_ragged(value[0]) or _per_position(value[1])


def _per_position(targets: Any) -> bool:
    if _is_ragged(targets):
        return True
    shape = _shape(targets)
    return len(shape) == 2 and shape[1] > 1


def _shape(value: Any) -> tuple[int, ...]:
    return np.asarray(value).shape


def _is_ragged(value: Any) -> bool:
    """Returns True for a list of arrays with different lengths."""
    if not is_list(value) or not len(value):
        return False
    lengths = {_shape(entry)[:1] for entry in value}
    return len(lengths) > 1


def _arrays(inputs: Any) -> Mapping[str, Any]:
    return inputs if is_mapping(inputs) else {"inputs": inputs}


def _names(inputs: Any) -> list[str]:
    return list(_arrays(inputs))


def _extent(id: str, name: str, value: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Returns the shape of the largest example, and the type."""
    label = f"device {id!r}, {repr(name) if name else 'targets'}"
    if _is_ragged(value):
        entries = [np.asarray(entry) for entry in value]
        shapes = [entry.shape for entry in entries]
        shape = tuple(max(sizes) for sizes in zip(*shapes))
        dtype = np.result_type(*entries)
    else:
        array = np.asarray(value)
        shape, dtype = array.shape[1:] or (1,), array.dtype
    if dtype != np.bool_ and not np.issubdtype(dtype, np.number):
        raise InvalidInput(f"{label}: expected numbers, got {dtype}")
    return shape, dtype


def _dtype(dtype: np.dtype[Any]) -> str:
    if dtype == np.bool_:
        return "bool"
    return "int64" if np.issubdtype(dtype, np.integer) else "float32"


def _padded(id: str, part: Part, value: Any) -> NDArray[np.float32]:
    """Returns an array of float32 with zeros after short sequences. Targets are padded with −100."""
    count = len(value)
    filled = np.full((count, *part.shape), IGNORED if part.name == _TARGETS else 0, dtype=np.float64)
    for index, entry in enumerate(value):
        array: Any = np.asarray(entry)
        if part.shape == (1,):
            array = array.reshape(-1)
        place: tuple[Any, ...] = (index, *(slice(0, size) for size in array.shape))
        filled[place] = array
    if part.dtype == "int64" and np.abs(filled).max(initial=0) > _LARGEST:
        raise InvalidInput(f"device {id!r}, {part.name!r}: whole numbers above {_LARGEST} are not exact in float32")
    return filled.astype(np.float32)
