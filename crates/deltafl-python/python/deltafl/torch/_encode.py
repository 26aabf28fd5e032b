"""The sums of encoded updates, computed where the updates are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .._cohort import CohortUpdates
from ._examples import host, sent
from ._memory import DeviceTensors

__all__ = ["EncodedOutputs", "Encoder"]

Array = NDArray[Any]

#: The number of entries of a matrix of encoded updates that are computed at once.
_ENCODED_AT_ONCE = 1 << 26
#: Sums of whole numbers below this magnitude are exact in double precision.
_EXACT = 2.0**53
#: The types of encoded sums: whether they have 64 bits.
_TYPES = {True: torch.int64, False: torch.int32}


class EncodedOutputs:
    """The memory of encoded sums on both sides."""

    def __init__(self, sums: int, rows: int, columns: int, device: torch.device) -> None:
        def integers(*shape: int, dtype: torch.dtype) -> Any:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._device = device
        #: The sums as integers of 64 and of 32 bits.
        self.sums = {wide: integers(sums, columns, dtype=dtype) for wide, dtype in _TYPES.items()}
        #: Whether each device is refused, and whether a sum needs more than 32 bits.
        self.flags = integers(rows + 1, dtype=torch.int32)
        #: 1 for the devices that are added, 0 for the others.
        self.keep = integers(rows, dtype=torch.int64)
        self._host_flags = host((rows + 1,), torch.int32, device)
        self._host: dict[bool, Any] = {}
        #: Whether the last sums needed 64 bits. The next ones are copied with that size.
        self._wide = False

    def received(self, rows: int) -> tuple[list[Array], list[bool]] | None:
        """Returns the sums and the refused devices, or None if the sums contain a refused device."""
        self._host_flags.copy_(self.flags, non_blocking=True)
        sums = self._copied()
        refused = self._host_flags.numpy()[:rows] != 0
        wide = bool(self._host_flags[-1])
        if refused.any() and bool((self.keep[:rows].cpu().numpy()[refused] != 0).any()):
            # Rare: the sums are computed again without the refused devices.
            self.keep.copy_(self.flags[:-1] == 0)
            return None
        if wide != self._wide:
            self._wide = wide
            sums = self._copied()
        return list(sums.numpy()), refused.tolist()

    def _copied(self) -> Any:
        """Copies the sums to the host and waits for all copies."""
        source = self.sums[self._wide]
        if self._wide not in self._host:
            self._host[self._wide] = host(tuple(source.shape), source.dtype, self._device)
        place = self._host[self._wide]
        place.copy_(source, non_blocking=True)
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        return place


class Encoder:
    """Encodes the updates of devices as integers and adds them up.

    The methods have these arguments:

    - ``tensors``: The params of the devices.
    - ``start``: The params w_t of the tracks, one row each.
    - ``which``: The row of ``start`` of each device.
    - ``places``: The sum to which each device is added, or −1.
    - ``scales``: The factor of each device before rounding, in double precision.
    - ``clip``: The largest norm of an update, or None.
    """

    def __init__(self, device: torch.device, *, by_kernels: bool) -> None:
        self._device, self.by_kernels = device, by_kernels

    def encode(
        self, tensors: DeviceTensors, start: Any, which: Any, places: Any, scales: Any, clip: Any,
        limit: Any, outputs: EncodedOutputs,
    ) -> None:  # fmt: skip
        """Encodes and adds the updates by a kernel, without waiting for the result."""
        scales = self._clipped(tensors.matrices(), start, which, scales, clip)
        outputs.flags.zero_()
        sums = outputs.sums[True], outputs.sums[False]
        tensors.encode(start, which, places, scales, outputs.keep, limit, sums, outputs.flags)

    def by_operations(
        self, tensors: DeviceTensors, start: Any, which: Any, places: Any, scales: Any, clip: Any,
        u: CohortUpdates,
    ) -> tuple[list[Array], list[bool]]:  # fmt: skip
        """Returns the sums and whether each device is refused, without kernels."""
        matrices = tensors.matrices()
        scales = self._clipped(matrices, start, which, scales, clip)
        rows, columns, count = len(which), start.shape[1], int(u.sums.max(initial=-1)) + 1
        members = [torch.nonzero(places == place)[:, 0] for place in range(count)]
        is_whole = count == 1 and len(u.devices) == rows
        sums = torch.empty((count, columns), dtype=torch.int64, device=self._device)
        refused, is_wide = np.zeros(rows, dtype=np.bool_), False
        norms: Any = torch.linalg
        while True:
            largest = torch.zeros(rows, dtype=torch.float64, device=self._device)
            for first, change in _changes(matrices, start, which):
                codes = change.mul_(scales[:, None]).round_()
                if refused.any():
                    codes.masked_fill_(sent(refused, self._device)[:, None], 0.0)
                largest = torch.maximum(largest, norms.vector_norm(codes, ord=float("inf"), dim=1))
                numbers = codes.to(torch.int64) if is_wide else codes
                for place, chosen in enumerate(members):
                    added = numbers if is_whole else numbers[chosen]
                    sums[place, first : first + codes.shape[1]] = added.sum(dim=0)
            sizes = largest.cpu().numpy()
            too_large = ~(sizes <= u.limit)
            if not too_large.any() and (is_wide or sizes.sum() < _EXACT):
                return list(sums.cpu().numpy()), refused[: len(u.devices)].tolist()
            # Rare: the sums are computed again without the refused devices, or as integers if a sum
            # of floating-point numbers might be inexact.
            refused |= too_large
            is_wide = is_wide or not sizes[~refused].sum() < _EXACT

    def _clipped(self, tensors: list[Any], start: Any, which: Any, scales: Any, clip: Any) -> Any:
        """Returns the factors of updates whose norm ‖w_k − w‖ is at most ``clip``."""
        if clip is None:
            return scales
        squares = [change.square_().sum(dim=1) for _, change in _changes(tensors, start, which)]
        norm = torch.stack(squares).sum(dim=0).sqrt()
        return torch.where(norm > clip, scales * (clip / norm), scales)


def _changes(tensors: list[Any], start: Any, which: Any) -> Any:
    """Yields w_k − w of some columns in double precision, and the first of these columns."""
    first = 0
    for tensor in tensors:
        rows, columns = tensor.shape
        at_once = max(1, _ENCODED_AT_ONCE // max(rows, 1))
        for a in range(0, columns, at_once):
            b = min(a + at_once, columns)
            old = start[:, first + a : first + b].double()
            yield first + a, torch.sub(tensor[:, a:b], old if len(old) == 1 else old[which])
        first += columns
