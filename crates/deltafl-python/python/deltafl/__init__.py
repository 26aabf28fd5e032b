"""Δ-FL: federated learning for heterogeneous devices, with one model per conformity level θ.

>>> import deltafl as dfl
>>> run = dfl.run("experiments/quickstart.toml", rounds=100)      # doctest: +SKIP
>>> run.table().to_polars()                                       # doctest: +SKIP
>>> run["theta=0.5"].state_dict()                                 # doctest: +SKIP

- :func:`run` trains an experiment file.
- :func:`train` trains a built-in model or your own :class:`Trainer` on your own arrays, with
  built-in algorithms or your own :class:`CustomAlgorithm`.
- ``deltafl.callbacks`` receive the events of a run, ``deltafl.metrics`` evaluate models, and
  ``deltafl.partition`` divides examples among devices.
- :func:`sweep` trains an experiment for every combination of some values.
- :class:`Device` and :class:`Server` are the two sides of a deployed federation.
- :func:`superquantile` and :func:`quantile` compute the tail statistics of a vector of losses.

``run`` and ``train`` write the same run folder as the command ``deltafl run``. ``sweep`` writes a
folder that contains one run folder per combination.

Three modules have optional dependencies and are imported on first use: ``deltafl.torch`` trains
PyTorch modules, ``deltafl.jax`` trains models of JAX, and ``deltafl.flower`` is a strategy for
Flower.
"""

from __future__ import annotations

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import _algorithms, callbacks, errors, metrics, models, partition
from ._algorithm import AlgorithmState, CustomAlgorithm
from ._algorithms import *  # noqa: F403
from ._cohort import CohortDevice
from ._deltafl import __version__
from ._deployed import Device, Server
from ._evaluate import Evaluation
from ._federation import Federation
from ._run import Report, Run, Track, run
from ._superquantile import quantile, smoothed, superquantile, worst_case
from ._sweep import Point, Sweep, sweep
from ._table import Table
from ._train import SGD, initial, train
from ._trainer import Local, Trainer
from .errors import AlgorithmError, Busy, Error, Interrupted, InvalidInput, TrainerError

if _TYPE_CHECKING:
    from . import torch as torch

__all__ = [
    "SGD",
    "AlgorithmError",
    "AlgorithmState",
    "Busy",
    "CustomAlgorithm",
    "CohortDevice",
    "Device",
    "Error",
    "Evaluation",
    "Federation",
    "Interrupted",
    "InvalidInput",
    "Local",
    "Point",
    "Report",
    "Run",
    "Server",
    "Sweep",
    "Table",
    "Track",
    "Trainer",
    "TrainerError",
    "__version__",
    "callbacks",
    "errors",
    "initial",
    "metrics",
    "models",
    "partition",
    "quantile",
    "run",
    "smoothed",
    "superquantile",
    "sweep",
    "train",
    "worst_case",
]
__all__ += _algorithms.__all__


if not _TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Imports the modules with optional dependencies on first use."""
        if name in ("flower", "jax", "torch"):
            return _importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
