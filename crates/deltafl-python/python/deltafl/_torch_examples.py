"""The examples of the devices of a cohort, in the memory of a torch device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["HeldExamples", "sent"]

Array = NDArray[Any]

#: The share of the free memory of a GPU for the examples.
_SHARE_OF_EXAMPLES = 0.25
#: Memory for examples on a CPU, in bytes.
_CPU_EXAMPLES = 1 << 30


def sent(array: Any, device: torch.device) -> Any:
    """Returns an array as a tensor on a device."""
    functions: Any = torch
    return functions.from_numpy(array).to(device)


class HeldExamples:
    """The examples of devices in the memory of the torch device, one row per example."""

    def __init__(self, device: torch.device, shape: tuple[int, ...] | None) -> None:
        self._device, self._shape = device, shape
        self._places: dict[int, tuple[int, int]] = {}
        self._inputs: Any = None
        self._targets: Any = None
        self._used = 0
        #: The number of examples that fit, or None before the size of an example is known.
        self._capacity: int | None = None

    def fitting(self, devices: Array, examples: Array) -> int:
        """Returns how many of the devices fit into the memory, at least one."""
        if self._capacity is None:
            return len(devices)
        return max(1, int(np.searchsorted(np.cumsum(examples), self._capacity, side="right")))

    def wanted(self, devices: Array) -> list[int]:
        """Returns the devices that are not held. If they do not fit beside the others, all are."""
        distinct = [int(device) for device in np.unique(devices)]
        missing = [device for device in distinct if device not in self._places]
        if missing and self._capacity is not None and self._used > self._capacity // 2:
            # Nothing is known of the next calls, so all rows are given up.
            self._places.clear()
            self._used = 0
            return distinct
        return missing

    def hold(self, device: int, inputs: Array, targets: Array) -> None:
        """Appends the examples of a device."""
        rows = sent(inputs, self._device)
        if self._shape is not None:
            rows = rows.view(len(inputs), *self._shape)
        wanted = sent(targets, self._device)
        if self._capacity is None:
            row = rows[:1].numel() * rows.element_size() + wanted.element_size()
            cuda = self._device.type == "cuda"
            memory = _SHARE_OF_EXAMPLES * torch.cuda.mem_get_info(self._device)[0] if cuda else _CPU_EXAMPLES
            self._capacity = max(1, int(memory / row))
        end = self._used + len(rows)
        if self._inputs is None or end > len(self._inputs):
            grown = max(end, 2 * self._used, 1024)
            self._inputs = self._grown(self._inputs, rows, grown)
            self._targets = self._grown(self._targets, wanted, grown)
        self._inputs[self._used : end] = rows
        self._targets[self._used : end] = wanted
        self._places[device] = (self._used, len(rows))
        self._used = end

    def _grown(self, old: Any, rows: Any, length: int) -> Any:
        new = torch.empty((length, *rows.shape[1:]), dtype=rows.dtype, device=self._device)
        if old is not None:
            new[: self._used] = old[: self._used]
        return new

    def offsets(self, devices: Array) -> Array:
        """Returns the first row of each device."""
        return np.array([self._places[int(device)][0] for device in devices], dtype=np.int64)

    def rows(self, indices: Any) -> tuple[Any, Any]:
        """Returns inputs and targets of rows."""
        return self._inputs[indices], self._targets[indices]

    def rows_into(self, indices: Any, inputs: Any, targets: Any) -> None:
        """Copies inputs and targets of rows into tensors."""
        flat = indices.reshape(-1)
        torch.index_select(self._inputs, 0, flat, out=inputs.view(len(flat), *self._inputs.shape[1:]))
        torch.index_select(self._targets, 0, flat, out=targets.view(len(flat)))
