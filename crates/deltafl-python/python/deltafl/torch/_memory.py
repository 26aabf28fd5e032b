"""The tensors of w of all devices of a call, in one block of memory per type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ._functions import kernels

__all__ = ["DeviceTensors"]

#: The number of columns of a block of the tables of kernels.
BLOCK = 512
#: Each tensor starts at a multiple of this number of entries, so that kernels read it fast.
_ALIGNED = 64


class DeviceTensors:
    """The tensors of w of every device: one contiguous tensor per name, devices first."""

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        types: Mapping[str, torch.dtype],
        devices: int,
        device: torch.device,
    ) -> None:
        self._device = device
        #: The tensors by name, in the order of w.
        self.by_name: dict[str, Any] = {}
        #: The memory of the tensors of each type.
        self._memory: dict[torch.dtype, Any] = {}
        #: The first entry of each tensor in its memory, its number of columns, and its first entry in w.
        self._places: dict[torch.dtype, list[tuple[int, int, int]]] = {}
        self._tables: dict[torch.dtype, Any] = {}
        offset, used = 0, dict.fromkeys(types.values(), 0)
        for name, shape in shapes.items():
            columns, dtype = math.prod(shape), types[name]
            self._places.setdefault(dtype, []).append((used[dtype], columns, offset))
            used[dtype] += -(-devices * columns // _ALIGNED) * _ALIGNED
            offset += columns
        for dtype in self._places:
            self._memory[dtype] = torch.zeros(used[dtype], dtype=dtype, device=device)
        next_place = {dtype: iter(places) for dtype, places in self._places.items()}
        for name, shape in shapes.items():
            first, columns, _ = next(next_place[types[name]])
            flat = self._memory[types[name]][first : first + devices * columns]
            self.by_name[name] = flat.view(devices, *shape)

    def matrices(self) -> list[Any]:
        """Returns the tensors as matrices with one row per device, in the order of w."""
        return [value.reshape(len(value), -1) for value in self.by_name.values()]

    def load(self, start: Any, which: Any) -> None:
        """Sets the tensors of each device to its row of ``start``, by a kernel per type."""
        for dtype, memory in self._memory.items():
            kernels().load_params(memory, self._table(dtype), start, which, BLOCK)

    def encode(self, start: Any, which: Any, *given: Any) -> None:
        """Encodes and adds the changes of all tensors, by a kernel per type."""
        for dtype, memory in self._memory.items():
            kernels().encode_sums(memory, self._table(dtype), start, which, *given, BLOCK)

    def _table(self, dtype: torch.dtype) -> Any:
        """Returns the blocks of columns of the tensors of a type. See :mod:`deltafl.torch._sum_kernels`."""
        if dtype not in self._tables:
            rows = [
                (first, columns, column, offset)
                for first, columns, offset in self._places[dtype]
                for column in range(0, columns, BLOCK)
            ]
            self._tables[dtype] = torch.tensor(rows, dtype=torch.int64).to(self._device)
        return self._tables[dtype]
