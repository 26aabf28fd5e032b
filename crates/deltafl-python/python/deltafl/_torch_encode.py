"""The sums of encoded updates, computed where the updates are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ._cohort import CohortUpdates
from ._torch_examples import host, sent
from ._torch_functions import kernels

__all__ = ["Encoder"]

Array = NDArray[Any]

#: The number of entries of a matrix of encoded updates that are computed at once.
_ENCODED_AT_ONCE = 1 << 26
#: Sums of whole numbers below this magnitude are exact in double precision.
_EXACT = 2.0**53


class Encoder:
    """Encodes the updates of devices as integers and adds them up."""

    def __init__(self, device: torch.device, *, by_kernels: bool) -> None:
        self._device, self._by_kernels = device, by_kernels
        #: Host memory for the sums, by type.
        self._host: dict[torch.dtype, Any] = {}

    @torch.no_grad()
    def sums(
        self, tensors: list[Any], start: Any, which: Any, u: CohortUpdates
    ) -> tuple[list[Array], list[bool]]:
        """Returns the sums, which the next call overwrites, and whether each device is refused.

        Args:
            tensors: The params of the devices: a matrix per tensor, with one row per device.
            start: The params w_t of the tracks, one row each.
            which: The row of ``start`` of each device.
            u: The weights of the devices and the limits.
        """
        count = int(u.sums.max(initial=-1)) + 1
        scale = sent(u.weights * u.scale, self._device)
        if u.clip is not None:
            norm = self._norms(tensors, start, which)
            scale = torch.where(norm > u.clip, scale * (u.clip / norm), scale)
        if self._by_kernels:
            return self._by_kernel(tensors, start, which, scale, count, u)
        return self._by_operations(tensors, start, which, scale, count, u)

    def _received(self, sums: Any) -> list[Array]:
        """Returns sums in the memory of the host."""
        place = self._host.get(sums.dtype)
        if place is None or place.shape != sums.shape:
            place = self._host[sums.dtype] = host(tuple(sums.shape), sums.dtype, self._device)
        place.copy_(sums, non_blocking=True)
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        return list(place.numpy())

    def _by_kernel(
        self, tensors: list[Any], start: Any, which: Any, scale: Any, count: int, u: CohortUpdates
    ) -> tuple[list[Array], list[bool]]:
        rows, place = len(which), sent(u.sums, self._device)
        keep = torch.ones(rows, dtype=torch.int64, device=self._device)
        while True:
            wide, narrow, refused, is_wide = kernels().encoded_sums(
                tensors, start, which, place, scale, keep, count, u.limit
            )
            flags = torch.cat([refused, is_wide, keep]).cpu().numpy()
            found = flags[:rows] != 0
            if not (found & (flags[rows + 1 :] != 0)).any():
                return self._received(wide if flags[rows] else narrow), found.tolist()
            # Rare: the sums are computed again without the refused devices.
            keep = (refused == 0).long()

    def _by_operations(
        self, tensors: list[Any], start: Any, which: Any, scale: Any, count: int, u: CohortUpdates
    ) -> tuple[list[Array], list[bool]]:
        rows, columns = len(which), start.shape[1]
        members = None if count == 1 else [sent(np.flatnonzero(u.sums == i), self._device) for i in range(count)]
        sums = torch.empty((count, columns), dtype=torch.int64, device=self._device)
        refused, is_wide = np.zeros(rows, dtype=np.bool_), False
        norms: Any = torch.linalg
        while True:
            largest = torch.zeros(rows, dtype=torch.float64, device=self._device)
            for first, change in _changes(tensors, start, which):
                codes = change.mul_(scale[:, None]).round_()
                if refused.any():
                    codes.masked_fill_(sent(refused, self._device)[:, None], 0.0)
                largest = torch.maximum(largest, norms.vector_norm(codes, ord=float("inf"), dim=1))
                numbers = codes.to(torch.int64) if is_wide else codes
                for place in range(count):
                    chosen = numbers if members is None else numbers[members[place]]
                    sums[place, first : first + codes.shape[1]] = chosen.sum(dim=0)
            sizes = largest.cpu().numpy()
            too_large = ~(sizes <= u.limit)
            if not too_large.any() and (is_wide or sizes.sum() < _EXACT):
                return self._received(sums), refused.tolist()
            # Rare: the sums are computed again without the refused devices, or as integers if a sum
            # of floating-point numbers might be inexact.
            refused |= too_large
            is_wide = is_wide or not sizes[~refused].sum() < _EXACT

    def _norms(self, tensors: list[Any], start: Any, which: Any) -> Any:
        """Returns ‖w_k − w‖ of each device."""
        squares = [change.square_().sum(dim=1) for _, change in _changes(tensors, start, which)]
        return torch.stack(squares).sum(dim=0).sqrt()


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
