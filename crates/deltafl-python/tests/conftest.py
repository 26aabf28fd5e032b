"""What the tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deltafl as dfl

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def root() -> Path:
    """The folder of the project."""
    return ROOT


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that names no folder writes into its own."""
    monkeypatch.chdir(tmp_path)


def blobs(devices: int = 12, examples: int = 30, features: int = 5) -> dfl.Federation:
    """Devices with two classes each, that differ in where the border lies."""
    rng = np.random.default_rng(7)
    inputs = rng.normal(size=(devices * examples, features)).astype(np.float32)
    border = rng.normal(size=(devices, features))
    index = np.repeat(np.arange(devices), examples)
    targets = ((inputs * (border[index] + 2.0)).sum(axis=1) > 0).astype(np.int64)
    names = np.array([f"ward-{k}" for k in range(devices)])[index]
    split = {f"ward-{k}": "test" for k in range(0, devices, 3)}
    return dfl.Federation.from_arrays(inputs, targets, names, split=split)


@pytest.fixture
def federation() -> dfl.Federation:
    """Twelve small devices, four of them for the test."""
    return blobs()


#: What the tests train by, where nothing else is said.
SHORT: dict[str, Any] = {
    "rounds": 3,
    "cohort": 4,
    "local": dfl.SGD(lr=0.1, batch=8),
    "evaluate_every": 1,
    "progress": False,
}
