"""Federations: a set of devices and their examples."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from . import _deltafl
from ._arrays import class_labels, matrix, one_matrix, one_vector, whole_numbers
from ._columns import check_columns, class_targets, column_names, feature_values, missing_values
from ._kinds import is_list, is_mapping, is_tuple
from ._layout import Layout, Part, is_structured
from ._sources import columns_of, device_arrays, is_source, rows_of
from .errors import InvalidInput

__all__ = ["Federation"]

#: The file that every federation folder contains.
_MANIFEST = "federation.toml"
#: The file of a federation folder that describes structured inputs.
_LAYOUT = "layout.json"

Array = NDArray[Any]
#: The inputs, the targets and optionally the split of a device: numpy, torch, Arrow or polars.
Device = Union["tuple[Any, Any]", "tuple[Any, Any, str]"]
#: The split of a device, given its identity. Devices without an entry are in "train".
Splits = Union[Mapping[str, str], Callable[[str], str], None]


@dataclass(frozen=True)
class _Arrays:
    """The arrays of a federation. The Rust code reads the attributes."""

    name: str
    ids: list[str]
    splits: list[str]
    offsets: list[int]
    counts: list[int]
    inputs: Array
    targets: Array
    classes: int | None
    class_names: list[str]
    feature_names: list[str]


class Federation:
    """A set of devices and their examples.

    **Inputs** are one matrix per device. Further axes are flattened. The type is float32, or uint8
    for grey levels, which models read as value / 255. Other types are converted to float32.

    **Targets** are one vector per device. Integers are classes, and real numbers are values to
    predict.

    **Structured inputs** of a device are a dict of arrays, such as ``{"tokens": …, "mask": …}``, or
    a list of sequences of different lengths. A :class:`Trainer` receives a dict of padded arrays.
    Sequences of different lengths add the boolean array ``mask``. Targets may be a matrix with one
    target per position; padded positions have the target −100. Built-in models cannot use
    structured inputs.

    Both accept everything that ``numpy.asarray`` converts: torch tensors on the CPU, Arrow arrays,
    pandas and polars frames. The names of the columns of a frame are stored, and the columns of
    other frames are matched by name.

    **Memory.** The inputs are not copied if they are views of one float32 or uint8 array in C
    order, such as slices of a matrix sorted by device. Do not modify that array while the
    federation exists. Inputs from several arrays are copied once into one matrix. Labels are
    copied and use two bytes each.

    Args:
        devices: A mapping from the identity of a device to its inputs and targets, and optionally
            its split: ``{"ward-1": (X1, y1), "ward-2": (X2, y2, "test")}``. A value may also be a
            PyTorch ``Dataset`` or ``DataLoader`` of pairs, whose examples are copied.
        name: The name of the federation.
        classes: The number of classes. The default is the largest label plus 1.
        split: The splits of the devices that do not specify one, as a mapping or a function of the
            identity. The default is "train".

    Raises:
        InvalidInput: The arrays of a device are invalid or do not match those of other devices.

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
    #: The arrays of structured inputs.
    _layout: Layout | None = None
    #: The arguments that create the federation again, for pickle.
    _source: tuple[Any, ...] = ()
    #: The index of each device, computed on first use.
    _index: dict[str, int] | None = None

    def __init__(
        self,
        devices: Mapping[str, Any],
        *,
        name: str = "memory",
        classes: int | None = None,
        split: Splits = None,
    ) -> None:
        given_devices: Any = devices
        if not is_mapping(given_devices):
            raise InvalidInput(
                f"expected a dict from identities to (inputs, targets), got {type(given_devices).__name__}; "
                "Federation.from_arrays, from_table and open read other sources"
            )
        if not devices:
            raise InvalidInput("there are no devices")
        ids = [str(device) for device in devices]
        if len(set(ids)) < len(ids):
            raise InvalidInput("two devices have the same identity as text, such as 1 and '1'")
        split = _by_name(split)
        _check_splits(ids, split)
        given: dict[str, Any] = {
            id: device_arrays(id, value) if is_source(value) else value for id, value in zip(ids, devices.values())
        }
        if any(is_tuple(value) and len(value) in (2, 3) and is_structured(value) for value in given.values()):
            self._layout = Layout.of({id: (value[0], value[1]) for id, value in given.items()})
            given = {id: (*self._layout.packed(id, value[0], value[1]), *value[2:]) for id, value in given.items()}
        names = next((found for value in given.values() if (found := _input_names(value))), list[str]())
        parts = [_device(id, value, split, names) for id, value in given.items()]
        inputs, offsets = one_matrix(ids, [part[0] for part in parts])
        counts = [len(part[0]) for part in parts]
        targets, classes = one_vector(ids, [part[1] for part in parts], offsets, len(inputs), classes)
        splits = [part[2] for part in parts]
        self._hold(_Arrays(name, ids, splits, offsets, counts, inputs, targets, classes, [], names))

    def _hold(self, arrays: _Arrays) -> None:
        if len(arrays.feature_names) != arrays.inputs.shape[1]:
            arrays = replace(arrays, feature_names=[])
        self._inner = _deltafl.Federation.of_arrays(arrays)
        self._source = ("arrays", arrays)

    def _set_names(self, classes: list[str], features: list[str]) -> None:
        """Sets the names of the classes and of the features. Class names of another number are ignored."""
        classes = classes if len(classes) == self.classes else []
        if classes or features:
            arrays: _Arrays = self._source[1]
            self._hold(replace(arrays, class_names=classes, feature_names=features))

    @classmethod
    def _of(cls, inner: _deltafl.Federation, *source: Any) -> Federation:
        federation = cls.__new__(cls)
        federation._inner, federation._source = inner, source
        return federation

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self._source, self._layout)

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
        """Returns a federation of the rows of a matrix.

        The inputs are not copied if the rows of each device are adjacent. Otherwise the rows are
        sorted by device, which copies them.

        Args:
            inputs: The matrix of inputs.
            targets: The target of every row.
            devices: The identity of the device of every row.
            name: The name of the federation.
            classes: The number of classes. The default is the largest label plus 1.
            split: The splits of the devices, as for :class:`Federation`.
        """
        named = np.asarray(devices)
        rows, labels, names = matrix("", inputs), *class_targets(targets)
        if missing_values(named).any():
            raise InvalidInput(f"{int(missing_values(named).sum())} rows have no device")
        identities: list[Any] = named.tolist()
        if named.dtype == object and any(type(one) is not type(identities[0]) for one in identities):
            # Values of different types have no order.
            named = named.astype(str)
        if names and classes is None:
            classes = len(names)
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
        federation = cls(parts, name=name, classes=classes, split=split)
        federation._set_names(names, column_names(inputs))
        return federation

    @classmethod
    def from_table(
        cls,
        table: Any,
        *,
        device: str,
        target: str,
        features: Iterable[str] | None = None,
        name: str = "memory",
        classes: int | None = None,
        split: Splits = None,
    ) -> Federation:
        """Returns a federation of the rows of a polars, pandas or Arrow table.

        The values of the columns are copied into a matrix. Targets that are whole numbers, strings,
        booleans or categories are classes. The names of string classes are sorted.

        Args:
            table: The table.
            device: The column with the identity of the device of every row.
            target: The column with the target of every row.
            features: The columns with the inputs. The default is all other columns.
            name: The name of the federation.
            classes: The number of classes. The default is that of the targets.
            split: The splits of the devices, as for :class:`Federation`.

        Raises:
            InvalidInput: A column is missing, contains text or dates, or has missing values. The
                message names the column.
        """
        if getattr(table, "column_names", None) is None and getattr(table, "columns", None) is None:
            raise InvalidInput(f"expected a polars, pandas or Arrow table, got {type(table).__name__}")
        names = [str(column) for column in getattr(table, "column_names", None) or table.columns]
        wanted = [column for column in names if column not in (device, target)]
        wanted = wanted if features is None else list(features)
        for column in (device, target, *wanted):
            if column not in names:
                raise InvalidInput(f"the table has no column {column!r}; its columns are {', '.join(names)}")
        if not wanted:
            raise InvalidInput("the table has no column of features beside the device and the target")
        rows = np.stack([feature_values(column, table[column]) for column in wanted], axis=1)
        owners = np.asarray(table[device])
        if missing_values(owners).any():
            raise InvalidInput(f"column {device!r}: {int(missing_values(owners).sum())} rows have no device")
        labels = table[target]
        if missing_values(np.asarray(labels)).any():
            count = int(missing_values(np.asarray(labels)).sum())
            raise InvalidInput(f"column {target!r}: {count} rows have no target")
        federation = cls.from_arrays(rows, labels, owners, name=name, classes=classes, split=split)
        federation._set_names(list(federation._source[1].class_names), wanted)
        return federation

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        devices: Any,
        *,
        inputs: str | Sequence[str] | None = None,
        target: str | None = None,
        name: str = "memory",
        classes: int | None = None,
        split: Splits = None,
    ) -> Federation:
        """Returns a federation of the examples of a Hugging Face or PyTorch data set.

        Args:
            dataset: A ``datasets.Dataset``, or a PyTorch ``Dataset`` of pairs.
            devices: The identity of the device of every example, such as a result of
                ``deltafl.partition``, or the name of a column.
            inputs: The column of the inputs of a Hugging Face data set. Several columns, such as
                ``["input_ids", "attention_mask"]``, become a dict of arrays.
            target: The column of the targets of a Hugging Face data set.
            name: The name of the federation.
            classes: The number of classes. The default is the largest label plus 1.
            split: The splits of the devices, as for :class:`Federation`.

        Raises:
            InvalidInput: A column is missing, or the number of devices differs from the number of
                examples.
        """
        if hasattr(dataset, "column_names"):
            if inputs is None or target is None:
                raise InvalidInput("name the columns of the data set: inputs=… and target=…")
            examples, labels = columns_of(dataset, inputs, target)
            owners = np.asarray(list(dataset[devices])) if isinstance(devices, str) else np.asarray(devices)
        else:
            examples, labels = device_arrays("data set", dataset)
            owners = np.asarray(devices)
        if len(owners) != len(labels):
            raise InvalidInput(f"{len(labels)} examples and {len(owners)} devices")
        names: list[str] = []
        if isinstance(labels, np.ndarray) and labels.ndim == 1:
            labels, names = class_targets(labels)
            if classes is None and np.issubdtype(labels.dtype, np.integer):
                classes = int(labels.max()) + 1
        order = np.argsort(owners, kind="stable")
        starts = np.flatnonzero(np.concatenate([[True], owners[order][1:] != owners[order][:-1]]))
        parts = {
            str(owners[places[0]]): (rows_of(examples, places), rows_of(labels, places))
            for places in np.split(order, starts[1:])
        }
        federation = cls(parts, name=name, classes=classes, split=split)
        federation._set_names(names, [])
        return federation

    @classmethod
    def open(cls, folder: str | PathLike[str]) -> Federation:
        """Opens a federation folder. The files are memory-mapped and read on demand."""
        if not (Path(folder) / _MANIFEST).exists():
            raise InvalidInput(f"cannot open the federation {folder}: the folder contains no {_MANIFEST}")
        federation = cls._of(_deltafl.Federation.open(folder), "folder", str(Path(folder).resolve()))
        layout = Path(folder) / _LAYOUT
        if layout.exists():
            parts, masked = json.loads(layout.read_text())
            federation._layout = Layout(tuple(Part(name, tuple(shape), dtype) for name, shape, dtype in parts), masked)
        return federation

    @classmethod
    def synthetic(cls, kind: str, **options: Any) -> Federation:
        """Generates a synthetic federation.

        Args:
            kind: "glyphs", "logistic", "roles" or "tweets".
            **options: The options of the generator, as in ``[data] source`` of an experiment file.

        >>> Federation.synthetic("glyphs", devices=4, seed=1).classes
        62
        """
        text = json.dumps({"kind": kind, **options})
        return cls._of(_deltafl.Federation.synthetic(text), "synthetic", text)

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
        """Writes devices into a federation folder, one at a time, and opens the folder.

        Use it with a generator for federations that do not fit into memory.

        Args:
            folder: The folder to create.
            devices: Pairs of an identity and the arrays of the device, as for :class:`Federation`.
            classes: The number of classes. None if the targets are real numbers.
            name: The name of the federation. The default is the name of the folder.
            split: The splits of the devices, as for :class:`Federation`.
        """
        split, ids, names = _by_name(split), list[str](), list[str]()
        writer = _deltafl.FederationWriter(folder, name or Path(folder).name, classes)
        for pair in devices:
            if not is_list(pair) or len(pair) != 2:
                raise InvalidInput(f"devices must yield pairs (identity, (inputs, targets)), got {_shown(pair)}")
            id, value = pair
            names = names or _input_names(value)
            inputs, targets, part = _device(str(id), value, split, names)
            labels = class_labels(str(id), targets) if classes else np.asarray(targets, dtype=np.float32)
            writer.push(str(id), part, np.ascontiguousarray(inputs), labels)
            ids.append(str(id))
        _check_splits(ids, split)
        writer.finish(names)
        return cls.open(folder)

    def save(self, folder: str | PathLike[str]) -> None:
        """Writes a federation folder, which :meth:`open` and the command ``deltafl`` can read."""
        self._inner.save(folder)
        if self._layout is not None:
            parts = [[part.name, part.shape, part.dtype] for part in self._layout.parts]
            (Path(folder) / _LAYOUT).write_text(json.dumps([parts, self._layout.masked]))

    @property
    def name(self) -> str:
        """The name of the federation."""
        return self._inner.name

    @property
    def classes(self) -> int:
        """The number of classes, or 0 if the targets are real numbers."""
        return self._inner.classes

    @property
    def hash(self) -> str:
        """The BLAKE3 hash of the contents. A run can be resumed only with the same hash."""
        return self._inner.hash

    @property
    def ids(self) -> list[str]:
        """The identities of the devices."""
        return [id for id, _, _ in self._inner.devices()]

    def split(self, name: str) -> list[str]:
        """Returns the identities of the devices of a split: "train", "test" or "validation"."""
        return [id for id, split, _ in self._inner.devices() if split == name]

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __getitem__(self, id: str) -> tuple[Any, Array]:
        """Returns the inputs and targets of a device, as a model receives them."""
        inputs, targets = self._inner.examples(self._place(id))
        return (inputs, targets) if self._layout is None else self._layout.unpacked(inputs, targets)

    def _place(self, id: str) -> int:
        if self._index is None:
            self._index = {}
            for index, (known, _, _) in enumerate(self._inner.devices()):
                self._index.setdefault(known, index)
        try:
            return self._index[id]
        except KeyError:
            raise KeyError(f"the federation {self.name!r} has no device {id!r}") from None

    def __repr__(self) -> str:
        devices = self._inner.devices()
        examples = sum(count for _, _, count in devices)
        unit = {"tokens": "words", "windows": "symbols"}.get(self._inner.kind, "features")
        targets = f"{self.classes} classes" if self.classes else "real targets"
        return (
            f"Federation {self.name!r}: {len(devices)} devices, {examples} examples of "
            f"{self._inner.width} {unit}, {targets}"
        )


def _restored(source: tuple[Any, ...], layout: Layout | None) -> Federation:
    """Creates a federation from its pickled source."""
    kind, value = source
    if kind == "folder":
        federation = Federation.open(value)
    elif kind == "synthetic":
        federation = Federation._of(_deltafl.Federation.synthetic(value), *source)
    else:
        federation = Federation.__new__(Federation)
        federation._hold(value)
    federation._layout = layout
    return federation


def _shown(value: Any) -> str:
    """Returns the type of a value, and the length of a list or tuple."""
    return f"a {type(value).__name__} of length {len(value)}" if is_list(value) else f"a {type(value).__name__}"


def _by_name(split: Splits) -> Splits:
    """Returns splits whose keys are strings, as the identities of devices are."""
    return split if split is None or callable(split) else {str(id): part for id, part in split.items()}


def _check_splits(ids: list[str], split: Splits) -> None:
    """Rejects splits of devices that do not exist."""
    if split is None or callable(split):
        return
    known = set(ids)
    unknown = [id for id in split if id not in known]
    if unknown:
        shown = ", ".join(repr(id) for id in unknown[:3]) + (", …" if len(unknown) > 3 else "")
        raise InvalidInput(f"split= names {len(unknown)} devices that do not exist: {shown}")


def _input_names(value: Any) -> list[str]:
    """Returns the names of the columns of the inputs of a device."""
    return column_names(value[0]) if is_tuple(value) and value else []


def _device(id: str, value: Any, split: Splits, names: list[str]) -> tuple[Array, Array, str]:
    """Returns the inputs as a matrix, the targets as a vector, and the split of a device.

    Columns with names are put in the order of ``names``.
    """
    if not is_tuple(value) or len(value) not in (2, 3):
        raise InvalidInput(f"device {id!r}: expected (inputs, targets) or (inputs, targets, split)")
    inputs, targets = matrix(id, value[0]), whole_numbers(np.asarray(value[1]))
    found = _input_names(value)
    if found and found != names:
        check_columns(f"the inputs of device {id!r}", found, names)
        inputs = inputs[:, [found.index(name) for name in names]]
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
