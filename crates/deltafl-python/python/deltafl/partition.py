"""Partitions: the assignment of the examples of a data set to devices.

Each function returns the name of the device of every example. Pass it to
``Federation.from_arrays(X, y, devices)``. The same seed gives the same partition.

>>> import numpy as np
>>> y = np.repeat([0, 1, 2], 20)
>>> devices = dirichlet(y, devices=4, alpha=0.3, seed=1)
>>> len(devices), len(set(devices.tolist())) <= 4
(60, True)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidInput

__all__ = ["by_column", "dirichlet", "iid", "quantity_skew", "shards"]

Array = NDArray[Any]


def iid(examples: int, *, devices: int, seed: int = 1) -> Array:
    """Returns a random partition into devices of nearly equal size.

    Args:
        examples: The number of examples.
        devices: The number of devices.
        seed: The seed of the random numbers.
    """
    _check(examples, devices)
    return _named(np.random.default_rng(seed).permutation(np.arange(examples) % devices), devices)


def shards(targets: Any, *, devices: int, per_device: int = 2, seed: int = 1) -> Array:
    """Returns a partition of examples sorted by label into shards, some of which form a device.

    Each device thus has few labels (McMahan et al., 2017).

    Args:
        targets: The label of every example.
        devices: The number of devices.
        per_device: The number of shards of a device.
        seed: The seed of the random numbers.
    """
    labels = _labels(targets)
    _check(len(labels), devices * per_device)
    rng = np.random.default_rng(seed)
    # Examples with the same label are in random order.
    order = np.lexsort((rng.permutation(len(labels)), labels))
    owner = rng.permutation(np.arange(devices * per_device) % devices)
    assigned = np.empty(len(labels), dtype=np.int64)
    for shard, places in enumerate(np.array_split(order, devices * per_device)):
        assigned[places] = owner[shard]
    return _named(assigned, devices)


def dirichlet(targets: Any, *, devices: int, alpha: float, min_examples: int = 1, seed: int = 1) -> Array:
    """Returns a partition in which the devices' shares of each label have a Dirichlet distribution.

    Small α gives devices with few labels, large α nearly equal devices (Hsu et al., 2019).

    Args:
        targets: The label of every example.
        devices: The number of devices.
        alpha: The concentration α of the distribution.
        min_examples: The minimum number of examples per device. Devices with fewer take examples
            from the largest devices.
        seed: The seed of the random numbers.
    """
    labels = _labels(targets)
    _check(len(labels), devices * max(min_examples, 1))
    _positive("alpha", alpha)
    rng = np.random.default_rng(seed)
    assigned = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        places = rng.permutation(np.flatnonzero(labels == label))
        assigned[places] = np.repeat(np.arange(devices), _counts(rng.dirichlet(np.full(devices, alpha)), len(places)))
    return _named(_topped_up(assigned, devices, min_examples, rng), devices)


def quantity_skew(examples: int, *, devices: int, alpha: float, min_examples: int = 1, seed: int = 1) -> Array:
    """Returns a random partition into devices whose sizes have a Dirichlet distribution.

    Args:
        examples: The number of examples.
        devices: The number of devices.
        alpha: The concentration α of the distribution. Small values give very different sizes.
        min_examples: The minimum number of examples per device.
        seed: The seed of the random numbers.
    """
    _check(examples, devices * max(min_examples, 1))
    _positive("alpha", alpha)
    rng = np.random.default_rng(seed)
    counts = _counts(rng.dirichlet(np.full(devices, alpha)), examples)
    assigned = rng.permutation(np.repeat(np.arange(devices), counts))
    return _named(_topped_up(assigned, devices, min_examples, rng), devices)


def by_column(values: Any) -> Array:
    """Returns a device per distinct value of a column, such as the author of every example.

    Args:
        values: The value of every example.
    """
    array = np.asarray(values)
    if array.dtype == object and any(value is None or value != value for value in array.tolist()):
        raise InvalidInput("the column has missing values")
    return array.astype(str)


def _labels(targets: Any) -> Array:
    labels = np.asarray(targets)
    if labels.ndim != 1:
        raise InvalidInput(f"the labels must be a vector, got shape {labels.shape}")
    return labels


def _check(examples: int, parts: int) -> None:
    if parts < 1 or examples < parts:
        raise InvalidInput(f"{examples} examples cannot be divided into {parts} parts")


def _positive(name: str, value: float) -> None:
    if not 0 < value < np.inf:
        raise InvalidInput(f"{name} must be a number above 0, got {value}")


def _named(assigned: Array, devices: int) -> Array:
    """Returns the names of devices, which sort like their numbers."""
    width = len(str(devices - 1))
    names = np.array([f"device-{index:0{width}}" for index in range(devices)])
    return names[assigned]


def _counts(shares: Array, total: int) -> Array:
    """Returns whole numbers with this total that are proportional to the shares."""
    ends = np.round(np.cumsum(shares) * total).astype(np.int64)
    ends[-1] = total
    return np.diff(np.concatenate([[0], ends]))


def _topped_up(assigned: Array, devices: int, least: int, rng: np.random.Generator) -> Array:
    """Moves examples of the largest devices to devices with fewer than ``least``."""
    counts = np.bincount(assigned, minlength=devices)
    for device in np.flatnonzero(counts < least):
        while counts[device] < least:
            largest = int(counts.argmax())
            moved = rng.choice(np.flatnonzero(assigned == largest))
            assigned[moved] = device
            counts[largest] -= 1
            counts[device] += 1
    return assigned
