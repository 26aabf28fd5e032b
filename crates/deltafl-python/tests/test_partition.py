"""Partitions of examples into devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import deltafl as dfl
from deltafl import partition

LABELS = np.repeat(np.arange(10), 100)


def labels_per_device(devices: Any) -> list[int]:
    return [len(np.unique(LABELS[devices == name])) for name in np.unique(devices)]


@pytest.mark.parametrize(
    "assign",
    [
        lambda seed: partition.iid(len(LABELS), devices=20, seed=seed),
        lambda seed: partition.shards(LABELS, devices=20, seed=seed),
        lambda seed: partition.dirichlet(LABELS, devices=20, alpha=0.3, seed=seed),
        lambda seed: partition.quantity_skew(len(LABELS), devices=20, alpha=0.5, min_examples=3, seed=seed),
    ],
)
def test_every_example_has_a_device_and_the_seed_decides(assign: Any) -> None:
    devices = assign(1)
    assert devices.shape == LABELS.shape and len(np.unique(devices)) == 20
    assert (assign(1) == devices).all() and (assign(2) != devices).any()
    federation = dfl.Federation.from_arrays(np.ones((len(LABELS), 2), dtype=np.float32), LABELS, devices)
    assert len(federation) == 20


def test_partitions_have_the_promised_skew() -> None:
    sizes = np.unique(partition.iid(1003, devices=20), return_counts=True)[1]
    assert set(sizes) == {50, 51}
    assert max(labels_per_device(partition.shards(LABELS, devices=20, per_device=2))) <= 3
    few = labels_per_device(partition.dirichlet(LABELS, devices=20, alpha=0.05))
    many = labels_per_device(partition.dirichlet(LABELS, devices=20, alpha=100.0))
    assert np.mean(few) < 4 and np.mean(many) > 9.5
    counts = np.unique(partition.quantity_skew(1000, devices=20, alpha=0.3, min_examples=5), return_counts=True)[1]
    assert counts.min() >= 5 and counts.max() > 150
    assert partition.by_column([3, 4, 3]).tolist() == ["3", "4", "3"]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: partition.iid(3, devices=4),
        lambda: partition.dirichlet(LABELS, devices=5, alpha=0.0),
        lambda: partition.shards(LABELS.reshape(10, -1), devices=5),
        lambda: partition.by_column(["a", None]),
    ],
)
def test_impossible_partitions_are_refused(wrong: Any) -> None:
    with pytest.raises(dfl.InvalidInput):
        wrong()
