"""Trainers of your own, in the round loop."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidInput

__all__ = ["Bridge", "Local", "Trainer"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Local:
    """The local update of one device in one round. Everything random comes from here: two runs agree to the bit."""

    #: γ_t.
    learning_rate: float
    #: Examples per step.
    batch: int
    #: λ of the penalty (λ/2)‖w‖².
    l2: float
    #: μ of the term (μ/2)‖w − w_t‖² that holds a device near w_t.
    proximal: float
    #: A number for this device, round and seed.
    seed: int
    _order: Array
    _period: int

    def batches(self) -> Iterator[Array]:
        """The indices of the examples of every step, as the package's own SGD takes them."""
        for start in range(0, len(self._order), max(self._period, 1)):
            epoch = self._order[start : start + self._period]
            for first in range(0, len(epoch), self.batch):
                yield epoch[first : first + self.batch]

    def rng(self) -> np.random.Generator:
        """Random numbers for this device, round and seed."""
        return np.random.Generator(np.random.PCG64(self.seed))


class Trainer(abc.ABC):
    """What a device does from w: its loss and its local update, over numpy arrays.

    The round loop, secure aggregation, private quantiles, checkpoints and the report stay ours; JAX, scikit-learn's
    ``partial_fit`` or anything else goes in here. ``params`` is always a vector of float32 that is yours to change.
    An exception ends the run as a :class:`TrainerError` that names the device; the run can be resumed. An update that is
    not finite is left out of the sum and counted, as on every device.

    >>> import numpy as np
    >>> class Mean(Trainer):
    ...     "Predicts one number for everybody."
    ...     task = "regression"
    ...     num_params = 1
    ...     def init(self, rng):
    ...         return np.zeros(1)
    ...     def loss(self, params, inputs, targets):
    ...         predicted = np.full(len(targets), params[0])
    ...         return 0.5 * ((predicted - targets) ** 2).sum(), predicted
    ...     def update(self, params, inputs, targets, local):
    ...         for batch in local.batches():
    ...             params -= local.learning_rate * (params[0] - targets[batch].mean())
    ...         return params
    """

    #: What is predicted: "classes", "binary", "next-symbol" or "regression"; it settles the metrics.
    task: str = "classes"
    #: λ of the penalty (λ/2)‖w‖², handed to :meth:`update`.
    l2: float = 0.0

    @property
    @abc.abstractmethod
    def num_params(self) -> int:
        """Length of w."""

    @abc.abstractmethod
    def init(self, rng: np.random.Generator) -> Array:
        """w₀, from random numbers of the run's seed."""

    @abc.abstractmethod
    def loss(self, params: Array, inputs: Array, targets: Array) -> tuple[float, Array]:
        """The sum of the losses of some examples (256 of a device at most), and what is predicted for each: a class, or a
        real number."""

    @abc.abstractmethod
    def update(self, params: Array, inputs: Array, targets: Array, local: Local) -> Array:
        """w_k: what a device makes of w in a round."""

    def worker(self) -> Trainer:
        """A trainer for one thread of several; this one, unless it keeps something that threads must not share."""
        return self

    def arrays(self, params: Array) -> dict[str, Array]:
        """w by name, for :meth:`Track.arrays`."""
        return {"params": params}


class Bridge:
    """What the Rust code calls: a trainer whose answers are checked."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.num_params = int(trainer.num_params)
        self.task = str(trainer.task)

    def worker(self) -> Bridge:
        """For one thread."""
        return Bridge(self._trainer.worker())

    def init(self, seed: int) -> Array:
        """w₀."""
        start = self._trainer.init(np.random.Generator(np.random.PCG64(seed)))
        return self._vector("init", start)

    def score(self, params: Array, inputs: Array, targets: Array) -> tuple[float, list[float]]:
        """The sum of the losses, and the sums of the task's metrics."""
        answer = self._trainer.loss(params, inputs, targets)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise InvalidInput("loss must return (sum of the losses, predictions)")
        loss, predicted = float(answer[0]), np.asarray(answer[1])
        if predicted.shape != targets.shape:
            raise InvalidInput(
                f"loss must predict as many as there are targets: {targets.shape}, got {predicted.shape}"
            )
        if self.task != "regression":
            return loss, [float((predicted != targets).sum()), 0.0, 0.0, 0.0]
        residual = predicted.astype(np.float64) - targets
        wide = targets.astype(np.float64)
        sums = (residual**2, np.abs(residual), wide, wide**2)
        return loss, [float(values.sum()) for values in sums]

    def update(
        self,
        params: Array,
        inputs: Array,
        targets: Array,
        local: tuple[Array, int, int, float, float, float, int],
    ) -> Array:
        """w_k."""
        order, period, batch, learning_rate, l2, proximal, seed = local
        plan = Local(learning_rate, batch, l2, proximal, seed, order, period)
        return self._vector("update", self._trainer.update(params, inputs, targets, plan))

    def _vector(self, what: str, answer: Any) -> Array:
        vector = np.ascontiguousarray(answer, dtype=np.float32)
        if vector.shape != (self.num_params,):
            raise InvalidInput(
                f"{what} must return a vector of {self.num_params} params, got shape {vector.shape}"
            )
        return vector
