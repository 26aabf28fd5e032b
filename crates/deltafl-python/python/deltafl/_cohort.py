"""Trainers that compute many devices in one call."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ._trainer import Local, Trainer
from .errors import InvalidInput

if TYPE_CHECKING:
    from ._layout import Layout

__all__ = ["ArrayCohort", "Cohort", "CohortDevice", "CohortUpdates"]

Array = NDArray[Any]

#: The number of examples in the devices of one call of a trainer without a limit of its own.
_LARGEST_CALL = 1 << 20


@dataclass(frozen=True)
class CohortUpdates:
    """The local updates of one call. Rows are devices, those with the most steps first."""

    #: The number of each device in the federation.
    devices: Array
    #: The distinct parameters w_t, one vector per track, which cannot be written.
    params: list[Array]
    #: The index in ``params`` of each device.
    which: Array
    #: The index of the sum to which the update of each device is added.
    sums: Array
    #: The examples of every batch: devices × steps × batch. A short batch repeats an example.
    examples: Array
    #: The number of examples of every batch: devices × steps. 0 after the last step of a device.
    sizes: Array
    #: A seed per device, derived from the device, the round and the seed of the run.
    seeds: Array
    #: α_k·ω_k of each device.
    weights: Array
    #: γ_t of each device.
    learning_rates: Array
    #: λ of each device.
    l2: Array
    #: μ of each device.
    proximal: Array
    #: The largest magnitude of an encoded entry.
    limit: float
    #: The factor of an entry before it is rounded to an integer.
    scale: float
    #: The largest norm of an update, or None.
    clip: float | None
    #: A vector per device that every step adds to the gradient, or None: devices × params.
    drift: Array | None = None


class Cohort(abc.ABC):
    """The devices of a call: their data, their losses and the encoded sum of their updates."""

    def accepts(self, layout: Layout) -> bool:
        """Returns whether the cohort unpacks inputs of several parts. The default does not."""
        return False

    @abc.abstractmethod
    def wave(self, kind: str, devices: Array, examples: Array) -> int:
        """Returns how many of the devices fit into one call, or 0 to compute them one by one."""

    @abc.abstractmethod
    def wanted(self, devices: Array) -> list[int]:
        """Returns the devices whose examples the next call needs and the cohort does not hold."""

    @abc.abstractmethod
    def hold(self, device: int, inputs: Array, targets: Array) -> None:
        """Receives the examples of a device."""

    @abc.abstractmethod
    def updates(self, updates: CohortUpdates) -> tuple[list[Array], list[bool]] | None:
        """Returns the encoded sums, and whether each device is refused. None refuses the call."""

    def trained(self, updates: CohortUpdates) -> Array | None:
        """Returns w_k of each device: devices × params. The default refuses the call with None."""
        return None

    @abc.abstractmethod
    def scores(self, devices: Array, starts: Array, lengths: Array, params: list[Array]) -> Array | None:
        """Returns the loss and the four sums of the metrics: params × blocks × 5 numbers."""


@dataclass(frozen=True)
class CohortDevice:
    """A device in a call of :meth:`Trainer.update_cohort`."""

    #: The parameters w_t, a float32 vector that the call must not modify.
    params: Array
    #: The inputs of all examples of the device.
    inputs: Array
    #: The targets of all examples of the device.
    targets: Array
    #: The parameters of the local update.
    local: Local


class _CohortLocal(Local):
    """A local update whose batches were drawn for a whole cohort."""

    def batches(self) -> Iterator[Array]:
        """Yields the indices of the examples of every step."""
        examples, sizes = self._order
        for batch, size in zip(examples, sizes):
            if size:
                yield batch[:size]


class ArrayCohort(Cohort):
    """The cohorts of a trainer that implements ``update_cohort``, ``loss_cohort`` or both."""

    def __init__(self, trainer: Trainer, score: Any) -> None:
        self._trainer, self._score = trainer, score
        self._updates = _overrides(trainer, "update_cohort")
        self._losses = _overrides(trainer, "loss_cohort")
        self._held: dict[int, tuple[Array, Array]] = {}

    @staticmethod
    def serves(trainer: Trainer) -> bool:
        """Returns whether a trainer implements one of the methods."""
        return _overrides(trainer, "update_cohort") or _overrides(trainer, "loss_cohort")

    def wave(self, kind: str, devices: Array, examples: Array) -> int:
        """Returns how many devices have at most a fixed number of examples together."""
        if not (self._losses if kind == "scores" else self._updates):
            return 0
        fitting = np.searchsorted(np.cumsum(examples), _LARGEST_CALL, side="right")
        return max(int(fitting), 1)

    def wanted(self, devices: Array) -> list[int]:
        """Returns all devices: their examples are kept for one call only."""
        self._held.clear()
        return [int(device) for device in np.unique(devices)]

    def hold(self, device: int, inputs: Array, targets: Array) -> None:
        """Receives the examples of a device."""
        self._held[device] = (inputs, targets)

    def updates(self, updates: CohortUpdates) -> tuple[list[Array], list[bool]] | None:
        """Calls ``update_cohort`` and encodes its rows."""
        return _encoded(self.trained(updates), updates)

    def trained(self, updates: CohortUpdates) -> Array:
        """Calls ``update_cohort``."""
        u = updates
        params: list[Any] = [np.array(vector) for vector in u.params]
        devices: list[CohortDevice] = []
        for row, device in enumerate(u.devices):
            inputs, targets = self._held[int(device)]
            batches: Any = (u.examples[row], u.sizes[row])
            rate, l2, proximal = float(u.learning_rates[row]), float(u.l2[row]), float(u.proximal[row])
            batch = u.examples.shape[2]
            drift = None if u.drift is None else u.drift[row]
            local = _CohortLocal(
                rate, batch, l2, proximal, int(u.seeds[row]), batches, len(targets), drift=drift
            )
            devices.append(CohortDevice(params[u.which[row]], inputs, targets, local))
        answer = np.ascontiguousarray(self._trainer.update_cohort(devices), dtype=np.float32)
        expected = (len(devices), self._trainer.num_params)
        if answer.shape != expected:
            raise InvalidInput(
                f"update_cohort must return one row of params per device: expected shape {expected}, "
                f"got {answer.shape}"
            )
        return answer

    def scores(self, devices: Array, starts: Array, lengths: Array, params: list[Array]) -> Array | None:
        """Calls ``loss_cohort`` at each of the params."""
        blocks: list[tuple[Any, Any]] = []
        for device, start, length in zip(devices, starts, lengths):
            inputs, targets = self._held[int(device)]
            blocks.append((inputs[start : start + length], targets[start : start + length]))
        numbers: list[float] = []
        for vector in params:
            answers = list(self._trainer.loss_cohort(np.array(vector), blocks))
            if len(answers) != len(blocks):
                raise InvalidInput(
                    f"loss_cohort must return one answer per block: expected {len(blocks)}, "
                    f"got {len(answers)}"
                )
            for answer, (_, targets) in zip(answers, blocks):
                loss, sums = self._score("loss_cohort", answer, targets)
                numbers += [loss, *sums]
        return np.array(numbers)


def _overrides(trainer: Trainer, method: str) -> bool:
    return getattr(type(trainer), method) is not getattr(Trainer, method)


def _encoded(local: Array, updates: CohortUpdates) -> tuple[list[Array], list[bool]]:
    """Returns the sums of the updates as integers modulo 2^64, and the refused devices."""
    u = updates
    change = local.astype(np.float64)
    for row, which in enumerate(u.which):
        change[row] -= u.params[which]
    factor = np.ones(len(local))
    if u.clip is not None:
        norm = np.sqrt((change**2).sum(axis=1))
        factor = np.where(norm > u.clip, u.clip / np.maximum(norm, u.clip), 1.0)
    change *= (u.weights * factor * u.scale)[:, None]
    refused = ~(np.abs(change).max(axis=1, initial=0.0) <= u.limit)
    change[refused] = 0.0
    codes = np.rint(change).astype(np.int64)
    sums = [codes[u.sums == place].sum(axis=0) for place in range(int(u.sums.max(initial=-1)) + 1)]
    return sums, [bool(value) for value in refused]

