"""The global random number generators of torch, Python and numpy, shared by threads."""

from __future__ import annotations

import random
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

__all__ = ["RNG_LOCK", "random_state", "seeded"]


class _RngLock:
    """A readers-writer lock for the global random number generators of the process.

    An update that draws random numbers takes it exclusively. Any number of updates that draw none
    share it. Waiting exclusive users have priority.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing, self._waiting, self._exclusive = 0, 0, False

    @contextmanager
    def shared(self) -> Generator[None, None, None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._exclusive and not self._waiting)
            self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self._sharing -= 1
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Generator[None, None, None]:
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._exclusive and not self._sharing)
            finally:
                self._waiting -= 1
            self._exclusive = True
        try:
            yield
        finally:
            with self._changed:
                self._exclusive = False
                self._changed.notify_all()


RNG_LOCK = _RngLock()


def _cuda_is_used() -> bool:
    initialized: Any = torch.cuda.is_initialized
    return bool(initialized())


def random_state() -> tuple[object, ...]:
    cuda = torch.cuda.get_rng_state_all() if _cuda_is_used() else []
    found: Any = np.random.get_state()
    return (
        torch.get_rng_state().numpy().tobytes(), random.getstate(), found[1].tobytes(), *found[2:],
        *(state.numpy().tobytes() for state in cuda),
    )  # fmt: skip


class seeded:
    """Seeds the global random number generators of torch, Python and numpy, and restores them on exit."""

    def __init__(self, seed: int) -> None:
        self._seed = seed % 2**63

    def __enter__(self) -> None:
        self._python, self._numpy = random.getstate(), np.random.get_state()
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if _cuda_is_used() else None
        functions: Any = torch
        functions.manual_seed(self._seed)
        random.seed(self._seed)
        np.random.seed(self._seed % 2**32)

    def __exit__(self, *ended: object) -> None:
        torch.set_rng_state(self._cpu)
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
