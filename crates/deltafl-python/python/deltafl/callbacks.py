"""Callbacks: objects that receive the events of a run and can stop it.

>>> import deltafl as dfl
>>> class Losses(dfl.callbacks.Callback):
...     def on_round(self, event):
...         for record in event.records:
...             print(record.name, record.round, record.loss)
...         return event.round >= 100          # True stops the run

Pass them as ``dfl.train(…, callbacks=[Losses()])``. Without callbacks, no events are created.
:class:`TensorBoard`, :class:`WandB` and :class:`MLflow` import their library when they are created.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidInput

if TYPE_CHECKING:
    from ._run import Run

__all__ = [
    "Callback",
    "CentralEvaluation",
    "Checkpoint",
    "EarlyStopping",
    "LivePlot",
    "MLflow",
    "ModelRound",
    "RoundEnd",
    "SplitEvaluation",
    "TensorBoard",
    "WandB",
    "Evaluated",
]

Array = NDArray[Any]


@dataclass(frozen=True)
class ModelRound:
    """The record of one model in one round: a line of ``rounds.jsonl``."""

    #: The seed of the run.
    seed: int
    #: The position of the model in the run.
    track: int
    #: The name of the model.
    name: str
    #: t, counted from 0.
    round: int
    #: η_t, if the algorithm has a threshold.
    eta: float | None
    #: The number of rounds since η was found.
    eta_age: int | None
    #: The weighted mean loss of the cohort. None if the server does not see losses.
    loss: float | None
    #: The number of devices in the cohort.
    cohort: int
    #: The number of devices that dropped out.
    dropped: int
    #: The number of devices in the sum.
    tail: int
    #: The sum of the weights of these devices.
    tail_weight: float
    #: The number of devices whose update was not finite.
    refused: int
    #: The number of secure sums.
    sums: int
    #: The number of messages between the devices and the server.
    messages: int
    #: The number of bytes from the devices.
    bytes_up: int
    #: The number of bytes to the devices.
    bytes_down: int
    #: The privacy spent up to this round, if the sums are noisy: "epsilon_server",
    #: "epsilon_readers", "delta", the bound "clip" and the share "unclipped" of updates below it.
    privacy: Mapping[str, float] | None = None


@dataclass(frozen=True)
class RoundEnd:
    """A round is finished."""

    seed: int
    #: The number of finished rounds.
    round: int
    #: A record per model that trained in the round.
    records: tuple[ModelRound, ...]
    #: The run folder.
    folder: Path


@dataclass(frozen=True)
class SplitEvaluation:
    """The loss and the metrics of every device of a split."""

    #: The identities of the devices.
    devices: list[str]
    #: The number of examples of each device.
    examples: Array
    #: The values of the devices by model and metric, such as ``["FedAvg"]["error"]``.
    models: Mapping[str, Mapping[str, Array]]

    def value(self, model: str, metric: str, statistic: str | int = "mean") -> float:
        """Returns the mean of a metric over the devices, or a percentile of it.

        Args:
            model: The name of the model.
            metric: "loss" or a metric of the task, such as "error".
            statistic: "mean", or a number from 0 to 100 for a percentile.
        """
        try:
            values = self.models[model][metric]
        except KeyError:
            known = ", ".join(name for metrics in list(self.models.values())[:1] for name in metrics)
            raise InvalidInput(f"there is no metric {metric!r} of the model {model!r}; the metrics are {known}") from None
        return float(values.mean() if statistic == "mean" else np.percentile(values, float(statistic)))


@dataclass(frozen=True)
class Evaluated:
    """All devices were evaluated."""

    seed: int
    #: The number of finished rounds.
    round: int
    #: The evaluations by split: "train", "test" and, if there are such devices, "validation".
    splits: Mapping[str, SplitEvaluation]
    #: The run folder.
    folder: Path

    def reported(self) -> SplitEvaluation:
        """Returns the evaluation of the test devices, or of the train devices if there are none."""
        test = self.splits.get("test")
        return self.splits["train"] if test is None or not test.devices else test


@dataclass(frozen=True)
class Checkpoint:
    """The run can be resumed from this point."""

    seed: int
    #: The number of finished rounds.
    round: int
    #: The parameters of each model by its name.
    params: Mapping[str, NDArray[np.float32]]
    #: The run folder.
    folder: Path


class Callback:
    """The base class of callbacks. Override the methods for the events of interest.

    A method that returns True stops the run after the current round. The run is saved, and
    ``resume=True`` continues it. Seeds that have not begun are not trained. An exception ends the
    run in the same way and is raised by ``train``.
    """

    def on_round(self, event: RoundEnd) -> bool | None:
        """Handles the end of a round."""

    def on_evaluation(self, event: Evaluated) -> bool | None:
        """Handles an evaluation of all devices."""

    def on_checkpoint(self, event: Checkpoint) -> bool | None:
        """Handles a checkpoint, which follows every evaluation."""

    def on_end(self, run: Run) -> None:
        """Handles the end of the run. It is not called after an exception or Ctrl-C."""


class Dispatcher:
    """Sends the events of the Rust code to callbacks."""

    def __init__(self, callbacks: Sequence[Callback], folder: Path) -> None:
        if isinstance(callbacks, Callback):
            raise InvalidInput(f"callbacks must be a list: write callbacks=[{type(callbacks).__name__}(…)]")
        given: list[Any] = list(callbacks)
        for callback in given:
            if not isinstance(callback, Callback):
                raise InvalidInput(f"a callback must be a deltafl.callbacks.Callback, got {callback!r}")
        self._callbacks, self._folder = list(callbacks), folder
        #: Whether a callback stopped the run.
        self.stopped = False

    def _send(self, method: str, event: Any) -> bool:
        # All callbacks receive the event, also after one of them stopped the run.
        answers = [getattr(callback, method)(event) for callback in self._callbacks]
        # A comparison of numpy numbers is a numpy.bool.
        self.stopped = self.stopped or any(answer is True or answer is np.True_ for answer in answers)
        return self.stopped

    def round(self, seed: int, records: str) -> bool:
        """Sends the end of a round. Returns True to stop the run."""
        known = ModelRound.__dataclass_fields__
        listed = [{key: value for key, value in row.items() if key in known} for row in json.loads(records)]
        rows = tuple(ModelRound(**row) for row in listed)
        return self._send("on_round", RoundEnd(seed, rows[0].round + 1 if rows else 0, rows, self._folder))

    def evaluated(self, seed: int, round: int, splits: list[dict[str, Any]]) -> bool:
        """Sends an evaluation. Returns True to stop the run."""
        named = {row["split"]: SplitEvaluation(row["devices"], row["examples"], row["tracks"]) for row in splits}
        return self._send("on_evaluation", Evaluated(seed, round, named, self._folder))

    def checkpoint(self, seed: int, round: int, params: dict[str, NDArray[np.float32]]) -> bool:
        """Sends a checkpoint. Returns True to stop the run."""
        return self._send("on_checkpoint", Checkpoint(seed, round, params, self._folder))

    def end(self, run: Run) -> None:
        """Sends the end of the run."""
        for callback in self._callbacks:
            callback.on_end(run)


class EarlyStopping(Callback):
    """Stops a run when a metric has not improved for some evaluations.

    Args:
        model: The name of the model. None uses the best value of all models.
        metric: "loss" or a metric of the task, such as "error".
        split: The split of the devices. The default is "validation" if there are such devices,
            otherwise the test devices. Use validation devices for an unbiased test result.
        statistic: "mean", or a number from 0 to 100 for a percentile over the devices.
        patience: The number of evaluations without an improvement.
        min_delta: The smallest change that counts as an improvement.
        mode: "min" if smaller values are better, otherwise "max".
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        metric: str = "loss",
        split: Literal["train", "test", "validation"] | None = None,
        statistic: str | int = "mean",
        patience: int = 3,
        min_delta: float = 0.0,
        mode: Literal["min", "max"] = "min",
    ) -> None:
        self.model, self.metric, self.split, self.statistic = model, metric, split, statistic
        self.patience, self.min_delta = patience, min_delta
        self._sign = 1.0 if mode == "min" else -1.0
        self._seed: int | None = None
        #: The best value.
        self.best = float("inf") * self._sign
        #: The round of the best value.
        self.best_round = 0
        self._waited = 0

    def on_evaluation(self, event: Evaluated) -> bool | None:
        """Compares the value with the best one."""
        if event.seed != self._seed:
            self._seed, self.best, self._waited = event.seed, float("inf") * self._sign, 0
        chosen = event.splits.get(self.split or "validation") or (None if self.split else event.reported())
        if chosen is None or not chosen.devices:
            raise InvalidInput(f"early stopping: there are no {self.split} devices")
        models = list(chosen.models) if self.model is None else [self.model]
        value = min(self._sign * chosen.value(model, self.metric, self.statistic) for model in models)
        if value < self._sign * self.best - self.min_delta:
            self.best, self.best_round, self._waited = self._sign * value, event.round, 0
        else:
            self._waited += 1
        return self._waited >= self.patience


class CentralEvaluation(Callback):
    """Evaluates the models at every checkpoint with a function, for example on central data.

    Args:
        function: A function of the parameters w that returns metrics by name, such as
            ``lambda params: {"accuracy": accuracy(params, X, y)}``.

    Attributes:
        history: One dict per checkpoint and model with "seed", "round", "model" and the metrics.
    """

    def __init__(self, function: Callable[[NDArray[np.float32]], Mapping[str, float]]) -> None:
        self._function = function
        self.history: list[dict[str, Any]] = []

    def on_checkpoint(self, event: Checkpoint) -> bool | None:
        """Calls the function for every model."""
        for model, params in event.params.items():
            metrics = {name: float(value) for name, value in self._function(params).items()}
            self.history.append({"seed": event.seed, "round": event.round, "model": model, **metrics})
        return None


class _Logger(Callback):
    """Sends scalars to an experiment tracker: losses, tails and the metrics of the devices."""

    def _log(self, seed: int, round: int, scalars: dict[str, float]) -> None:
        raise NotImplementedError

    def on_round(self, event: RoundEnd) -> bool | None:
        """Logs the record of every model."""
        scalars: dict[str, float] = {}
        for record in event.records:
            given = {"eta": record.eta, "loss": record.loss, "tail": record.tail, "refused": record.refused}
            scalars.update({f"{record.name}/{key}": float(v) for key, v in given.items() if v is not None})
        self._log(event.seed, event.round, scalars)
        return None

    def on_evaluation(self, event: Evaluated) -> bool | None:
        """Logs the mean and the 90th percentile of every metric."""
        scalars: dict[str, float] = {}
        for split, evaluation in event.splits.items():
            for model, metrics in evaluation.models.items() if evaluation.devices else ():
                for metric, values in metrics.items():
                    scalars[f"{model}/{split}/{metric}"] = float(values.mean())
                    scalars[f"{model}/{split}/{metric}_p90"] = float(np.percentile(values, 90))
        self._log(event.seed, event.round, scalars)
        return None


class TensorBoard(_Logger):
    """Writes scalars for TensorBoard, with ``torch.utils.tensorboard`` or ``tensorboardX``.

    Args:
        folder: The log folder. Each seed has a subfolder.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        try:
            module: Any = importlib.import_module("torch.utils.tensorboard")
        except ImportError as error:
            try:
                module = importlib.import_module("tensorboardX")
            except ImportError:
                raise ImportError("pip install torch tensorboard, or pip install tensorboardX") from error
        self._create: Any = module.SummaryWriter
        self._folder = Path(folder)
        self._writers: dict[int, Any] = {}

    def _log(self, seed: int, round: int, scalars: dict[str, float]) -> None:
        writer = self._writers.get(seed)
        if writer is None:
            writer = self._writers[seed] = self._create(str(self._folder / f"seed-{seed}"))
        for name, value in scalars.items():
            writer.add_scalar(name, value, round)

    def on_end(self, run: Run) -> None:
        """Closes the files."""
        for writer in self._writers.values():
            writer.close()


class WandB(_Logger):
    """Logs scalars to Weights & Biases.

    Args:
        **options: The arguments of ``wandb.init``, such as ``project="wards"`` or
            ``mode="offline"``.
    """

    def __init__(self, **options: Any) -> None:
        wandb: Any = importlib.import_module("wandb")
        self._run: Any = wandb.init(**options)
        # The horizontal axis of all charts.
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")

    def _log(self, seed: int, round: int, scalars: dict[str, float]) -> None:
        self._run.log({**scalars, "seed": seed, "round": round})

    def on_end(self, run: Run) -> None:
        """Stores the experiment and finishes the run of wandb."""
        self._run.config.update(run.experiment, allow_val_change=True)
        self._run.finish()


class MLflow(_Logger):
    """Logs scalars to the active run of MLflow, or to a new run.

    Args:
        **options: The arguments of ``mlflow.start_run`` for a new run.
    """

    def __init__(self, **options: Any) -> None:
        self._mlflow: Any = importlib.import_module("mlflow")
        self._owned = self._mlflow.active_run() is None
        if self._owned:
            self._mlflow.start_run(**options)

    def _log(self, seed: int, round: int, scalars: dict[str, float]) -> None:
        # The names of MLflow are limited to these characters.
        allowed = {
            "".join(c if c.isascii() and (c.isalnum() or c in "_-./ ") else "_" for c in f"seed-{seed}/{name}"): value
            for name, value in scalars.items()
        }
        self._mlflow.log_metrics(allowed, step=round)

    def on_end(self, run: Run) -> None:
        """Ends the run of MLflow, if this object started it."""
        if self._owned:
            self._mlflow.end_run()


class LivePlot(Callback):
    """Plots a metric of every model, and updates the figure in a notebook. Requires matplotlib.

    Args:
        metric: "loss" or a metric of the task. The default is the loss.
        statistic: "mean", or a number from 0 to 100 for a percentile over the devices.

    Attributes:
        values: The rounds and values of each model.
    """

    def __init__(self, metric: str = "loss", statistic: str | int = "mean") -> None:
        self._metric, self._statistic = metric, statistic
        self._plt: Any = importlib.import_module("matplotlib.pyplot")
        self._figure: Any = None
        self._handle: Any = None
        self.values: dict[str, tuple[list[int], list[float]]] = {}

    def on_evaluation(self, event: Evaluated) -> bool | None:
        """Adds a point per model and draws the figure again."""
        reported = event.reported()
        for model in reported.models:
            rounds, values = self.values.setdefault(f"{model} (seed {event.seed})", ([], []))
            rounds.append(event.round)
            values.append(reported.value(model, self._metric, self._statistic))
        self._draw()
        return None

    def _draw(self) -> None:
        if self._figure is None:
            self._figure, _ = self._plt.subplots()
        axes = self._figure.axes[0]
        axes.clear()
        for name, (rounds, values) in self.values.items():
            axes.plot(rounds, values, marker="o", label=name)
        label = self._metric if self._statistic == "mean" else f"{self._statistic}th percentile of the {self._metric}"
        axes.set(xlabel="round", ylabel=label)
        axes.legend()
        try:
            show: Any = importlib.import_module("IPython.display").display
        except ImportError:
            return
        if self._handle is None:
            self._handle = show(self._figure, display_id=True)
        if self._handle is not None:
            self._handle.update(self._figure)

    def on_end(self, run: Run) -> None:
        """Closes the figure, so that a notebook does not show it twice."""
        if self._figure is not None:
            self._plt.close(self._figure)
