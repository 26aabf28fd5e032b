"""Federations: devices and their examples."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from . import _deltafl
from .errors import InvalidInput

__all__ = ["Federation"]

Array = NDArray[Any]
#: Inputs and targets of a device, and its split where it has one: numpy, torch, Arrow or polars.
Device = Union["tuple[Any, Any]", "tuple[Any, Any, str]"]
#: The split of a device by its identity.
Splits = Union[Mapping[str, str], Callable[[str], str], None]


@dataclass(frozen=True)
class _Arrays:
    """What the Rust code makes a federation of."""

    name: str
    ids: list[str]
    splits: list[str]
    offsets: list[int]
    counts: list[int]
    inputs: Array
    targets: Array
    classes: int | None


class Federation:
    """Devices and their examples.

    ``devices`` maps the identity of a device to its inputs and targets, and to its split where it is not the one of
    ``split``: ``{"ward-1": (X1, y1), "ward-2": (X2, y2, "test")}``. Inputs are a matrix per device (further axes are
    flattened) of float32, or of uint8 for grey levels of which a model sees value / 255; whole numbers as targets are
    classes, real ones are values to predict. Anything that numpy takes is taken: torch tensors on the CPU, Arrow arrays,
    polars frames.

    **Memory.** When the inputs of all devices are views of one array of float32 or uint8 in C order (slices of a matrix
    that is sorted by device), nothing is copied; do not write to it while the federation lives. Inputs that lie in
    several arrays are gathered once into a matrix of their own. Labels are copied, to two bytes each.

    >>> import numpy as np
    >>> X = np.arange(12, dtype=np.float32).reshape(6, 2)
    >>> y = np.array([0, 1, 0, 1, 1, 0])
    >>> fed = Federation({"anna": (X[:4], y[:4]), "boris": (X[4:], y[4:])})
    >>> fed
    Federation 'memory': 2 devices, 6 examples of 2 features, 2 classes
    >>> fed["boris"][1].tolist()
    [1, 0]
    """

    _inner: _deltafl.Federation

    def __init__(
        self,
        devices: Mapping[str, Device],
        *,
        name: str = "memory",
        classes: int | None = None,
        split: Splits = None,
    ) -> None:
        if not devices:
            raise InvalidInput("there are no devices")
        ids = [str(device) for device in devices]
        parts = [_device(id, value, split) for id, value in zip(ids, devices.values())]
        inputs, offsets = _one_matrix(ids, [part[0] for part in parts])
        counts = [len(part[0]) for part in parts]
        targets, classes = _one_vector(ids, [part[1] for part in parts], offsets, len(inputs), classes)
        splits = [part[2] for part in parts]
        self._inner = _deltafl.Federation.of_arrays(
            _Arrays(name, ids, splits, offsets, counts, inputs, targets, classes)
        )

    @classmethod
    def _of(cls, inner: _deltafl.Federation) -> Federation:
        federation = cls.__new__(cls)
        federation._inner = inner
        return federation

    @classmethod
    def from_arrays(
        cls,
        inputs: Any,
        targets: Any,
        devices: Any,
        *,
        name: str = "memory",
        classes: int | None = None,
        split: Splits = None,
    ) -> Federation:
        """A federation of the rows of a matrix; ``devices`` names the device of every row.

        Rows of a device that lie together are not copied; otherwise the rows are sorted by device first, which copies.
        """
        named = np.asarray(devices)
        rows, labels = _matrix("inputs", inputs), np.asarray(targets)
        if not len(rows) == len(labels) == len(named):
            raise InvalidInput(f"{len(rows)} inputs, {len(labels)} targets and {len(named)} devices")
        if not len(rows):
            raise InvalidInput("there are no examples")
        starts = np.flatnonzero(np.concatenate([[True], named[1:] != named[:-1]]))
        if len(np.unique(named)) != len(starts):
            order = np.argsort(named, kind="stable")
            rows, labels, named = rows[order], labels[order], named[order]
            starts = np.flatnonzero(np.concatenate([[True], named[1:] != named[:-1]]))
        ends = [*starts[1:].tolist(), len(named)]
        parts = {
            str(named[start]): (rows[start:end], labels[start:end])
            for start, end in zip(starts.tolist(), ends)
        }
        if classes is None and np.issubdtype(labels.dtype, np.integer):
            classes = int(labels.max()) + 1
        return cls(parts, name=name, classes=classes, split=split)

    @classmethod
    def from_table(
        cls,
        table: Any,
        *,
        device: str,
        target: str,
        features: Iterable[str] | None = None,
        name: str = "memory",
        split: Splits = None,
    ) -> Federation:
        """A federation of a polars, pandas or Arrow table: a column names the device of every row.

        Columns become the rows of a matrix, which is a copy.
        """
        names = list(getattr(table, "column_names", None) or table.columns)
        wanted = [column for column in names if column not in (device, target)]
        wanted = wanted if features is None else list(features)
        columns = [np.asarray(table[column], dtype=np.float32) for column in wanted]
        return cls.from_arrays(
            np.stack(columns, axis=1),
            np.asarray(table[target]),
            np.asarray(table[device]),
            name=name,
            split=split,
        )

    @classmethod
    def open(cls, folder: str | PathLike[str]) -> Federation:
        """A federation folder, mapped: nothing is read before it is needed."""
        return cls._of(_deltafl.Federation.open(folder))

    @classmethod
    def synthetic(cls, kind: str, **options: Any) -> Federation:
        """A federation that is made up: "glyphs", "logistic", "roles" or "tweets", with the options of an experiment's
        ``[data] source``.

        >>> Federation.synthetic("glyphs", devices=4, seed=1).classes
        62
        """
        return cls._of(_deltafl.Federation.synthetic(json.dumps({"kind": kind, **options})))

    @classmethod
    def write(
        cls,
        folder: str | PathLike[str],
        devices: Iterable[tuple[str, Device]],
        *,
        classes: int | None = None,
        name: str | None = None,
        split: Splits = None,
    ) -> Federation:
        """Streams devices from a generator into a federation folder, one in memory at a time, and opens it.

        ``classes`` is the number of classes; without it targets are real numbers.
        """
        writer = _deltafl.FederationWriter(folder, name or Path(folder).name, classes)
        for id, value in devices:
            inputs, targets, part = _device(str(id), value, split)
            labels = _labels(str(id), targets) if classes else np.asarray(targets, dtype=np.float32)
            writer.push(str(id), part, np.ascontiguousarray(inputs), labels)
        writer.finish()
        return cls.open(folder)

    def save(self, folder: str | PathLike[str]) -> None:
        """Writes it as a federation folder, which ``deltafl`` and :meth:`open` read."""
        self._inner.save(folder)

    @property
    def name(self) -> str:
        """What it is called."""
        return self._inner.name

    @property
    def classes(self) -> int:
        """Number of classes; 0 where targets are real numbers."""
        return self._inner.classes

    @property
    def hash(self) -> str:
        """BLAKE3 of the contents; a run is resumed on the same data alone."""
        return self._inner.hash

    @property
    def ids(self) -> list[str]:
        """The identities of the devices."""
        return [id for id, _, _ in self._inner.devices()]

    def split(self, name: str) -> list[str]:
        """The devices of a split: "train", "test" or "validation"."""
        return [id for id, split, _ in self._inner.devices() if split == name]

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __getitem__(self, id: str) -> tuple[Array, Array]:
        """Inputs and targets of a device, as a model sees them."""
        for index, (known, _, _) in enumerate(self._inner.devices()):
            if known == id:
                return self._inner.examples(index)
        raise KeyError(id)

    def __repr__(self) -> str:
        devices = self._inner.devices()
        examples = sum(count for _, _, count in devices)
        what = {"tokens": "words", "windows": "symbols"}.get(self._inner.kind, "features")
        targets = f"{self.classes} classes" if self.classes else "real targets"
        return (
            f"Federation {self.name!r}: {len(devices)} devices, {examples} examples of "
            f"{self._inner.width} {what}, {targets}"
        )


def _device(id: str, value: Device, split: Splits) -> tuple[Array, Array, str]:
    """Inputs as a matrix, targets as a vector, and the split of a device."""
    if not isinstance(value, tuple) or len(value) not in (2, 3):
        raise InvalidInput(f"device {id!r}: expected (inputs, targets) or (inputs, targets, split)")
    inputs, targets = _matrix(id, value[0]), np.asarray(value[1])
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets[:, 0]
    if targets.ndim != 1:
        raise InvalidInput(f"device {id!r}: targets must be a vector, got shape {targets.shape}")
    if len(inputs) != len(targets):
        raise InvalidInput(f"device {id!r}: {len(inputs)} inputs and {len(targets)} targets")
    if len(value) == 3:
        return inputs, targets, value[2]
    if split is None:
        return inputs, targets, "train"
    part = split(id) if callable(split) else split.get(id, "train")
    return inputs, targets, part


def _matrix(id: str, inputs: Any) -> Array:
    """Inputs as a matrix of float32 or uint8: a view where they are that already."""
    array = np.asarray(inputs)
    if array.dtype == object:
        raise InvalidInput(f"device {id!r}: the inputs are no numbers")
    if array.dtype not in (np.dtype(np.float32), np.dtype(np.uint8)):
        if not np.issubdtype(array.dtype, np.number) and array.dtype != np.bool_:
            raise InvalidInput(f"device {id!r}: the inputs are of type {array.dtype}, not numbers")
        array = array.astype(np.float32)
    if array.ndim == 1:
        array = array.reshape(-1, 1)
    return array if array.ndim == 2 else array.reshape(len(array), -1)


def _one_matrix(ids: list[str], parts: list[Array]) -> tuple[Array, list[int]]:
    """One matrix that holds all parts, and the row at which each begins; without a copy where they lie in one."""
    width, dtype = parts[0].shape[1], parts[0].dtype
    for id, part in zip(ids, parts):
        if not len(part):
            raise InvalidInput(f"device {id!r} has no examples")
        if part.shape[1] != width:
            raise InvalidInput(f"device {id!r} has {part.shape[1]} features where {width} were expected")
    if any(part.dtype != dtype for part in parts):
        parts = [part.astype(np.float32) for part in parts]
    shared = _shared(parts, width)
    if shared is not None:
        return shared
    ends = np.cumsum([len(part) for part in parts]).tolist()
    return np.ascontiguousarray(np.concatenate(parts)), [0, *ends[:-1]]


def _shared(parts: list[Array], width: int) -> tuple[Array, list[int]] | None:
    """The memory from the first row of any part to the last, where all of them are rows of one array."""
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
    """The array whose memory this one shows."""
    base: Any = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return base


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _one_vector(
    ids: list[str], parts: list[Array], offsets: list[int], rows: int, classes: int | None
) -> tuple[Array, int | None]:
    """The targets of all rows, and the number of classes; rows of no device are 0."""
    whole = all(np.issubdtype(part.dtype, np.integer) or part.dtype == np.bool_ for part in parts)
    if not whole and classes is None:
        values = np.zeros(rows, dtype=np.float32)
        for part, offset in zip(parts, offsets):
            values[offset : offset + len(part)] = part
        return values, None
    labels = np.zeros(rows, dtype=np.uint32)
    for id, part, offset in zip(ids, parts, offsets):
        labels[offset : offset + len(part)] = _labels(id, part)
    return labels, int(labels.max()) + 1 if classes is None else classes


def _labels(id: str, targets: Array) -> Array:
    labels = np.asarray(targets)
    whole = labels.astype(np.int64)
    if (whole != labels).any() or (whole < 0).any() or (whole >= 2**32).any():
        raise InvalidInput(f"device {id!r}: classes are whole numbers from 0 on")
    return whole.astype(np.uint32)
