"""Δ-FL: federated learning for devices that differ, one model per conformity level θ.

>>> import deltafl as dfl
>>> run = dfl.run("experiments/quickstart.toml", rounds=100)      # doctest: +SKIP
>>> run.table().to_polars()                                       # doctest: +SKIP
>>> run["theta=0.5"].state_dict()                                 # doctest: +SKIP

``run`` trains an experiment file, ``train`` a federation of your own arrays with a model or a :class:`Trainer` of your own;
both leave the run folder of the command behind, and ``sweep`` a folder of them. ``Device`` takes part in a deployed federation,
``Server`` runs one. ``deltafl.torch`` trains PyTorch modules, ``deltafl.flower`` is a strategy for Flower; neither is imported
before you do.
"""

from __future__ import annotations

from . import errors, models
from ._algorithms import *  # noqa: F403
from ._algorithms import __all__ as _algorithms
from ._deltafl import __version__
from ._deployed import Device, Server
from ._federation import Federation
from ._run import Report, Run, Track, run
from ._superquantile import quantile, smoothed, superquantile, worst_case
from ._sweep import Point, Sweep, sweep
from ._table import Table
from ._train import SGD, initial, train
from ._trainer import Local, Trainer
from .errors import Busy, Error, Interrupted, InvalidInput, TrainerError

__all__ = [
    "SGD",
    "Busy",
    "Device",
    "Error",
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
    "errors",
    "initial",
    "models",
    "quantile",
    "run",
    "smoothed",
    "superquantile",
    "sweep",
    "train",
    "worst_case",
    *_algorithms,
]
