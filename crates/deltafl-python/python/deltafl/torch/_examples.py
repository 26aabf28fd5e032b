"""The examples of the devices of a cohort, in the memory of a torch device."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .._kinds import is_mapping
from .._layout import Layout
from ..errors import InvalidInput

__all__ = ["HeldExamples", "called", "copied", "host", "sent", "shaped", "shared", "typed"]

Array = NDArray[Any]
#: The names of inputs that are one array, and of the targets. No argument of a module has them.
WHOLE, TARGETS = "", " targets"

#: The share of the free memory of a GPU for the examples.
_SHARE_OF_EXAMPLES = 0.25
#: Memory for examples on a CPU, in bytes.
_CPU_EXAMPLES = 1 << 30
#: The number of examples of the first call, which measures the size of an example.
_FIRST_EXAMPLES = 1 << 14
#: The length from which several threads copy a vector.
_LONG = 1 << 20


def sent(array: Any, device: torch.device) -> Any:
    """Returns an array as a tensor on a device."""
    functions: Any = torch
    return functions.from_numpy(array).to(device)


def typed(values: Any, dtype: torch.dtype) -> Any:
    """Returns real numbers in the type of a module. Other values are unchanged."""
    return values.to(dtype) if values.is_floating_point() else values


def shaped(rows: Any, shape: tuple[int, ...] | None) -> Any:
    """Returns a matrix of inputs with the shape of one input."""
    if shape is None:
        return rows
    if math.prod(shape) != rows[:1].numel():
        raise InvalidInput(f"shape={shape} has {math.prod(shape)} numbers, but an input has {rows[:1].numel()}")
    return rows.reshape(len(rows), *shape)


def shared(array: Array) -> Any:
    """Returns a tensor with the memory of an array, which must not be written."""
    functions: Any = torch
    with warnings.catch_warnings():
        # The array may be read-only.
        warnings.simplefilter("ignore")
        return functions.from_numpy(array)


def copied(array: Array, place: Any) -> None:
    """Copies an array into memory of the host, with several threads if it is long."""
    if array.size < _LONG:
        np.copyto(place.numpy(), array)
    else:
        place.copy_(shared(array))


def host(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Any:
    """Returns memory of the host that a GPU reads and writes fast."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


class HeldExamples:
    """The examples of devices in the memory of the torch device, one row per example."""

    def __init__(self, device: torch.device, shape: tuple[int, ...] | None, dtype: torch.dtype) -> None:
        self._device, self._shape, self._dtype = device, shape, dtype
        #: Unpacks inputs of several parts, such as tokens and a mask.
        self.layout: Layout | None = None
        #: The first row of each device, or −1.
        self._first: Array = np.full(0, -1, dtype=np.int64)
        #: The parts of the inputs by name, and the targets, which are the last.
        self._parts: dict[str, Any] = {}
        self._used = 0
        #: The number of examples that fit, or None before the size of an example is known.
        self._capacity: int | None = None

    def fitting(self, devices: Array, examples: Array) -> int:
        """Returns how many of the devices fit into the memory, at least one."""
        capacity = _FIRST_EXAMPLES if self._capacity is None else self._capacity
        return max(1, int(np.searchsorted(np.cumsum(examples), capacity, side="right")))

    def wanted(self, devices: Array) -> list[int]:
        """Returns the devices that are not held. If they do not fit beside the others, all are."""
        distinct = np.unique(devices).astype(np.int64)
        self._reserve(int(distinct.max(initial=-1)) + 1)
        missing = distinct[self._first[distinct] < 0]
        if len(missing) and self._capacity is not None and self._used > self._capacity // 2:
            # Nothing is known of the next calls, so all rows are given up.
            self._first[:] = -1
            self._used = 0
            return list(distinct.tolist())
        return list(missing.tolist())

    def _reserve(self, devices: int) -> None:
        """Makes room for the first rows of this many devices."""
        if devices > len(self._first):
            more = np.full(max(devices, 2 * len(self._first)) - len(self._first), -1, dtype=np.int64)
            self._first = np.concatenate([self._first, more])

    def hold(self, device: int, inputs: Array, targets: Array) -> None:
        """Appends the examples of a device."""
        rows = self._unpacked(inputs, targets)
        count = len(targets)
        if self._capacity is None:
            row = sum(part[:1].numel() * part.element_size() for part in rows.values())
            cuda = self._device.type == "cuda"
            memory = _SHARE_OF_EXAMPLES * torch.cuda.mem_get_info(self._device)[0] if cuda else _CPU_EXAMPLES
            self._capacity = max(1, int(memory / row))
        end = self._used + count
        if not self._parts or end > len(self._parts[TARGETS]):
            grown = max(end, 2 * self._used, 1024)
            self._parts = {name: self._grown(self._parts.get(name), part, grown) for name, part in rows.items()}
        for name, part in rows.items():
            self._parts[name][self._used : end] = part
        self._reserve(device + 1)
        self._first[device] = self._used
        self._used = end

    def _unpacked(self, inputs: Array, targets: Array) -> dict[str, Any]:
        """Returns the parts of the inputs and the targets as tensors."""
        given: Any = inputs
        wanted: Any = targets
        if self.layout is not None:
            given, wanted = self.layout.unpacked(inputs, targets)
        if is_mapping(given):
            parts = {name: sent(np.ascontiguousarray(array), self._device) for name, array in given.items()}
        else:
            rows = sent(np.ascontiguousarray(given), self._device)
            parts = {WHOLE: shaped(rows, self._shape)}
        parts[TARGETS] = sent(np.ascontiguousarray(wanted), self._device)
        return {name: typed(part, self._dtype) for name, part in parts.items()}

    def _grown(self, old: Any, rows: Any, length: int) -> Any:
        new = torch.empty((length, *rows.shape[1:]), dtype=rows.dtype, device=self._device)
        if old is not None:
            new[: self._used] = old[: self._used]
        return new

    def offsets(self, devices: Array) -> Array:
        """Returns the first row of each device."""
        return self._first[devices]

    def targets(self, device: int, count: int) -> Any:
        """Returns the first targets of a device."""
        first = int(self._first[device])
        return self._parts[TARGETS][first : first + count]

    def rows(self, indices: Any) -> tuple[dict[str, Any], Any]:
        """Returns the parts of the inputs of rows by name, and their targets."""
        parts = {name: part[indices] for name, part in self._parts.items()}
        targets = parts.pop(TARGETS)
        return parts, targets

    def some(self) -> tuple[dict[str, Any], Any]:
        """Returns inputs and targets of at most 64 examples of different devices."""
        spread = np.linspace(0, self._used - 1, min(self._used, 64), dtype=np.int64)
        return self.rows(sent(spread, self._device))

    def rows_into(self, indices: Any, inputs: dict[str, Any], targets: Any) -> None:
        """Copies inputs and targets of rows into tensors."""
        flat = indices.reshape(-1)
        for name, part in self._parts.items():
            place = targets if name == TARGETS else inputs[name]
            torch.index_select(part, 0, flat, out=place.view(len(flat), *part.shape[1:]))


def called(net: torch.nn.Module, tensors: dict[str, Any], inputs: dict[str, Any]) -> Any:
    """Returns the output of a module with these tensors. Several inputs are keyword arguments.

    PyTorch sets the entries of ``tensors`` to the buffers that the module assigns.
    """
    # Strict: a tensor that the module does not have would be ignored.
    if WHOLE in inputs:
        return torch.func.functional_call(net, tensors, (inputs[WHOLE],), strict=True)
    return torch.func.functional_call(net, tensors, (), inputs, strict=True)
