"""Models that the caller implements in Python."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ._kinds import is_mapping, is_tuple
from .errors import InvalidInput

if TYPE_CHECKING:
    from ._algorithm import AlgorithmBridge
    from ._cohort import Cohort, CohortDevice
    from ._federation import Federation
    from ._layout import Layout

__all__ = ["Bridge", "Local", "Trainer", "check_task"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Local:
    """The parameters of the local update of one device in one round.

    Take all random numbers from this object. Two runs then compute bitwise equal parameters.
    """

    #: The learning rate γ_t.
    learning_rate: float
    #: The number of examples per step.
    batch: int
    #: λ of the penalty (λ/2)‖w‖².
    l2: float
    #: μ of the proximal term (μ/2)‖w − w_t‖².
    proximal: float
    #: A seed derived from the device, the round and the seed of the run.
    seed: int
    _order: Array
    _period: int
    #: The state of the device between rounds: numbers and float32 vectors by name. A simulation
    #: stores it in the checkpoint, and a deployed device on its disk. The server never sees it.
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    #: A vector that every step adds to its gradient, as SCAFFOLD requires. None for most algorithms.
    drift: Array | None = None

    def batches(self) -> Iterator[Array]:
        """Yields the indices of the examples of every step, in the order of the built-in SGD."""
        for start in range(0, len(self._order), max(self._period, 1)):
            epoch = self._order[start : start + self._period]
            for first in range(0, len(epoch), self.batch):
                yield epoch[first : first + self.batch]

    def rng(self) -> np.random.Generator:
        """Returns a random number generator that is seeded with :attr:`seed`."""
        return np.random.Generator(np.random.PCG64(self.seed))


class Trainer(abc.ABC):
    """The base class of models implemented in Python: the loss and the local update of a device.

    A trainer may use JAX, the ``partial_fit`` of scikit-learn or any other library. The package
    provides the round loop, secure aggregation, private quantiles, checkpoints and the report.

    The argument ``params`` of the methods is a float32 vector that the method may modify. An
    exception in a method ends the run with a :class:`TrainerError` that names the device. The run
    can be resumed. Updates that are not finite are excluded from the sum and counted.

    >>> import numpy as np
    >>> class Mean(Trainer):
    ...     "Predicts the same number for all examples."
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

    #: The kind of prediction: "classes", "binary", "next-symbol" or "regression". It determines the
    #: metrics.
    task: str = "classes"
    #: λ of the penalty (λ/2)‖w‖². :meth:`update` receives it as ``local.l2``.
    l2: float = 0.0

    #: Whether :meth:`update` adds ``local.drift`` to every gradient. Algorithms that correct gradients,
    #: such as SCAFFOLD and FedDyn, require it.
    corrects: bool = False

    #: The number of parameters, the length of w. A class may define it as a property.
    num_params: int

    @abc.abstractmethod
    def init(self, rng: np.random.Generator) -> Array:
        """Returns the initial parameters w₀.

        Args:
            rng: A generator that depends on the seed of the run.
        """

    @abc.abstractmethod
    def loss(self, params: Array, inputs: Any, targets: Array) -> tuple[float, Array]:
        """Returns the sum of the losses of some examples, and the prediction for each example.

        Args:
            params: The parameters w.
            inputs: The inputs of at most 256 examples of a device.
            targets: The targets of these examples.

        Returns:
            The sum of the losses, and an array of predictions: classes, or real numbers for a
            regression.
        """

    @abc.abstractmethod
    def update(self, params: Array, inputs: Any, targets: Array, local: Local) -> Array:
        """Returns w_k, the parameters after the local update of a device.

        Args:
            params: The parameters w_t at the beginning of the round.
            inputs: The inputs of all examples of the device.
            targets: The targets of all examples of the device.
            local: The parameters of the local update.
        """

    def worker(self) -> Trainer:
        """Returns a trainer for one of several threads.

        The default returns this object. Override it if the trainer has state that threads must not
        share.
        """
        return self

    def update_cohort(self, devices: Sequence[CohortDevice]) -> Array:
        """Returns w_k of many devices, one row per device.

        Optional. If a trainer implements it, the round loop calls it instead of :meth:`update` for
        algorithms in which a device sends only w_k.

        Args:
            devices: The devices, those with the most steps first.
        """
        raise NotImplementedError

    def loss_cohort(
        self, params: Array, blocks: Sequence[tuple[Array, Array]]
    ) -> Sequence[tuple[float, Array]]:
        """Returns the sum of the losses and the predictions of many blocks of examples.

        Optional. If a trainer implements it, the round loop calls it instead of :meth:`loss`.

        Args:
            params: The parameters w.
            blocks: The inputs and targets of each block, at most 256 examples of a device.
        """
        raise NotImplementedError

    def cohort(self) -> Cohort | None:
        """Returns the object that computes many devices in one call, or None."""
        return None

    def arrays(self, params: Array) -> dict[str, Array]:
        """Returns the parameters by name, for :meth:`Track.arrays`."""
        return {"params": params}

    def predict(self, params: Array, inputs: Any) -> Array:
        """Returns the predictions for some examples, for :meth:`Track.predict`.

        The default returns the predictions of :meth:`loss` with targets of 0. Override it to return
        a probability per class, which metrics such as the AUC need.

        Args:
            params: The parameters w.
            inputs: The inputs of some examples.

        Returns:
            One prediction per example, or a matrix with a probability per class.
        """
        dtype = np.float32 if self.task == "regression" else np.int64
        return np.asarray(self.loss(params, inputs, np.zeros(_length(inputs), dtype=dtype))[1])

    def options(self) -> dict[str, Any]:
        """Returns values that must be the same when a run resumes, for the run folder.

        The default returns nothing.
        """
        return {}


class Bridge:
    """An adapter through which the Rust code calls a trainer. It checks the return values."""

    def __init__(
        self,
        trainer: Trainer,
        algorithms: Sequence[AlgorithmBridge | None] = (),
        layout: Layout | None = None,
    ) -> None:
        self._trainer, self._algorithms, self._layout = trainer, algorithms, layout
        if getattr(trainer, "num_params", None) is None:
            raise InvalidInput(f"{type(trainer).__name__} must define num_params, the number of parameters")
        self.num_params = int(trainer.num_params)
        self.task, self.corrects = str(trainer.task), bool(trainer.corrects)
        self._cohort: Cohort | None = None

    def trains_cohorts(self) -> bool:
        """Prepares calls for many devices. Returns whether the trainer supports them."""
        from ._cohort import ArrayCohort

        self._cohort = self._trainer.cohort()
        if self._layout is not None:
            # Other cohorts receive one matrix of inputs.
            self._cohort = self._cohort if self._cohort and self._cohort.accepts(self._layout) else None
            return self._cohort is not None
        if self._cohort is None and ArrayCohort.serves(self._trainer):
            self._cohort = ArrayCohort(self._trainer, self._scored)
        return self._cohort is not None

    def wave(self, kind: str, devices: Array, examples: Array) -> int:
        """Returns how many of the devices fit into one call."""
        return self._cohort.wave(kind, devices, examples) if self._cohort else 0

    def wanted(self, devices: Array) -> list[int]:
        """Returns the devices whose examples the next call needs."""
        return self._cohort.wanted(devices) if self._cohort else []

    def hold(self, device: int, inputs: Array, targets: Array) -> None:
        """Receives the examples of a device."""
        if self._cohort:
            self._cohort.hold(device, inputs, targets)

    def updates(self, **arguments: Any) -> tuple[list[Array], list[bool]] | None:
        """Returns the encoded sums of the updates, and the refused devices."""
        from ._cohort import CohortUpdates

        return self._cohort.updates(CohortUpdates(**arguments)) if self._cohort else None

    def trained(self, **arguments: Any) -> Array | None:
        """Returns w_k of each device."""
        from ._cohort import CohortUpdates

        return self._cohort.trained(CohortUpdates(**arguments)) if self._cohort else None

    def scores(self, devices: Array, starts: Array, lengths: Array, params: list[Array]) -> Array | None:
        """Returns the losses and the sums of the metrics of blocks."""
        return self._cohort.scores(devices, starts, lengths, params) if self._cohort else None

    def worker(self) -> Bridge:
        """Returns an adapter for one thread."""
        return Bridge(self._trainer.worker(), self._algorithms, self._layout)

    def init(self, seed: int) -> Array:
        """Returns the initial parameters w₀."""
        start = self._vector("init", self._trainer.init(np.random.Generator(np.random.PCG64(seed))))
        wrong = int((~np.isfinite(start)).sum())
        if wrong:
            raise InvalidInput(f"{wrong} of the {len(start)} initial params are not finite")
        return start

    def score(self, params: Array, inputs: Array, targets: Array) -> tuple[float, list[float]]:
        """Returns the sum of the losses, and the sums that determine the metrics of the task."""
        given, targets = self._unpacked(inputs, targets)
        return self._scored("loss", self._trainer.loss(params, given, targets), targets)

    def _scored(self, method: str, answer: Any, targets: Array) -> tuple[float, list[float]]:
        if not is_tuple(answer) or len(answer) != 2:
            raise InvalidInput(f"{method} must return (sum of the losses, predictions)")
        loss = float(answer[0])
        predicted: Any = np.asarray(answer[1])
        if predicted.shape != targets.shape:
            raise InvalidInput(
                f"{method} must return one prediction per target: expected shape {targets.shape}, "
                f"got {predicted.shape}"
            )
        if self.task != "regression":
            return loss, [_errors(predicted, targets), 0.0, 0.0, 0.0]
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
        state: dict[str, Any],
        algorithm: int | None,
        drift: Array | None = None,
    ) -> Array:
        """Returns w_k, the parameters after the local update, and changes ``state`` in place."""
        from ._algorithm import stored

        order, period, batch, learning_rate, l2, proximal, seed = local
        plan = Local(learning_rate, batch, l2, proximal, seed, order, period, state, drift)
        given, wanted = self._unpacked(inputs, targets)
        bridge = None if algorithm is None else self._algorithms[algorithm]
        if bridge is None:
            updated = self._trainer.update(params, given, wanted, plan)
        else:
            updated = bridge._algorithm.update(self._trainer, params, given, wanted, plan)
        for name, value in list(state.items()):
            state[name] = stored(name, value)
        return self._vector("update", updated)

    def _unpacked(self, inputs: Array, targets: Array) -> tuple[Any, Array]:
        return (inputs, targets) if self._layout is None else self._layout.unpacked(inputs, targets)

    def _vector(self, method: str, answer: Any) -> Array:
        vector = np.ascontiguousarray(answer, dtype=np.float32)
        if vector.shape != (self.num_params,):
            raise InvalidInput(
                f"{method} must return a vector of {self.num_params} params, got shape {vector.shape}"
            )
        return vector


def check_task(federation: Federation, trainer: Trainer) -> None:
    """Rejects real targets for a task of classes, and classes for a regression."""
    layout, task = federation._layout, trainer.task
    if layout is not None and layout.has_positions:
        return  # The trainer decides: several classes, or a probability for each class.
    are_real = not federation.classes
    if are_real and task != "regression":
        raise InvalidInput(f'the targets are real numbers, but the trainer has task={task!r}: use task="regression"')
    if not are_real and task == "regression":
        raise InvalidInput(
            'the targets are classes, but the trainer has task="regression": use task="classes", or convert the '
            "targets with astype(np.float32)"
        )


def _length(inputs: Any) -> int:
    """Returns the number of examples of an array or of a dict of arrays."""
    return len(next(iter(inputs.values()))) if is_mapping(inputs) else len(inputs)


#: The target of a position that counts neither in the loss nor in the error, as in PyTorch.
IGNORED = -100


def _errors(predicted: Array, targets: Array) -> float:
    """Returns the number of wrong predictions.

    With a target per position, an example counts with the fraction of its wrong positions.
    """
    wrong = predicted != targets
    if targets.ndim == 1:
        return float(wrong.sum())
    counted = targets != IGNORED
    return float(((wrong & counted).sum(axis=1) / np.maximum(counted.sum(axis=1), 1)).sum())
