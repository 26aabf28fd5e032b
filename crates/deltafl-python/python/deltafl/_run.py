"""Runs: training of an experiment, and access to the results in its run folder."""

from __future__ import annotations

import html
import importlib
import json
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from . import _deltafl
from ._evaluate import Evaluation, evaluated, outputs, prepared
from ._experiment import CallerObjects, assignments, text, with_algorithms
from ._progress import Progress, call_in_background, interruptible
from ._table import Table
from .callbacks import Callback, Dispatcher
from .errors import Interrupted, InvalidInput

if TYPE_CHECKING:
    from ._algorithm import AlgorithmBridge
    from ._federation import Federation
    from ._trainer import Trainer

__all__ = ["Report", "Run", "Track", "run"]

#: The largest report, in bytes, that a notebook embeds. For a larger one it shows the path.
_LARGEST_PAGE = 16_000_000


def run(
    experiment: str | PathLike[str] | Mapping[str, Any],
    *,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    threads: int | None = None,
    kernel: str | None = None,
    compute: str = "cpu",
    progress: bool | None = None,
    callbacks: Sequence[Callback] = (),
    **overrides: Any,
) -> Run:
    """Trains an experiment. The parameters are bitwise equal to those of ``deltafl run``.

    Args:
        experiment: The path of a TOML file, or a dict with the same keys.
        out: The run folder. The default is ``runs/NAME``.
        resume: Continues an interrupted run in the run folder.
        threads: The number of threads. The default is one per core.
        kernel: The name of the kernels. The default is the fastest that the CPU supports.
        compute: The device to compute on: "cpu", "cuda", "cuda:N" or "auto".
        progress: Whether to show the progress. The default shows it in terminals and notebooks.
        callbacks: Objects that receive the events of the run (``deltafl.callbacks``).
        **overrides: Values that replace keys of the experiment: ``rounds=100``,
            ``local={"learning_rate": 0.1}``, ``**{"algorithm.1.theta": 0.3}``.

    Returns:
        The run, finished or stopped by a callback.

    Raises:
        InvalidInput: The experiment or an argument is invalid.
        Interrupted: The user pressed Ctrl-C. The run stops after the current round and is saved.
        Busy: Another process trains in the run folder.
    """
    assigned = assignments(overrides)
    supplied = CallerObjects()
    if isinstance(experiment, Mapping):
        written, bridges = with_algorithms(experiment, has_trainer=False)
        supplied = CallerObjects(algorithms=bridges)
        name, toml = _deltafl.experiment_of_json(text(written), assigned)
    else:
        name, toml = _deltafl.experiment_of_file(Path(experiment), assigned)
    folder = Path("runs") / name if out is None else Path(out)
    options = TrainOptions(folder, resume, threads, kernel, compute)
    return train_experiment(toml, options, supplied, progress=progress, callbacks=callbacks)


@dataclass(frozen=True)
class TrainOptions:
    """The parameters of a run other than its experiment. The Rust code reads the attributes."""

    out: Path
    resume: bool
    threads: int | None
    kernel: str | None
    compute: str
    #: The adapter of the custom algorithm of each section, or None.
    algorithms: Sequence[AlgorithmBridge | None] = ()
    #: The receiver of the events of the run. None if there are no callbacks.
    callbacks: Dispatcher | None = None


def train_experiment(
    experiment: str,
    options: TrainOptions,
    supplied: CallerObjects,
    *,
    progress: bool | None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Trains an experiment, given as TOML, and opens the run."""
    stop, shown = _deltafl.Stop(), Progress(progress)
    dispatcher = Dispatcher(callbacks, options.out) if callbacks else None
    options = replace(options, algorithms=list(supplied.algorithms), callbacks=dispatcher)

    def train() -> tuple[int, int, int] | None:
        return _deltafl.train(experiment, supplied.inner, supplied.bridge(), options, stop, shown)

    # A trainer with one thread runs on the caller's thread, as debuggers and profilers expect. That
    # thread handles Ctrl-C itself.
    on_callers_thread = supplied.trainer is not None and options.threads == 1
    in_python = supplied.in_python or dispatcher is not None
    try:
        with interruptible(stop):
            if on_callers_thread:
                stopped = train()
            else:
                stopped = call_in_background(train, stop, in_python=in_python)
    finally:
        shown.clear()
    if stopped is not None and not (dispatcher and dispatcher.stopped):
        raise Interrupted(options.out, *stopped)
    finished = Run(options.out, federation=supplied.federation, trainer=supplied.trainer)
    if dispatcher is not None:
        dispatcher.end(finished)
    return finished


class Run:
    """The results of a run, read from its run folder: ``Run("runs/quickstart")``.

    Indexing returns a :class:`Track`, one model of the run. The key is a level (``"theta=0.5"``),
    the kind of an algorithm (``"fedavg"``), a name from :meth:`table` or a position. Iteration
    yields all tracks.

    Args:
        folder: The run folder.
        federation: The data of the run, if it was trained on a federation in memory.
        trainer: The trainer of the run, if it was trained with one.
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        *,
        federation: Federation | None = None,
        trainer: Trainer | None = None,
    ) -> None:
        self.path = Path(folder)
        self.experiment: dict[str, Any] = json.loads(_deltafl.experiment_of_run(self.path))
        self._supplied = CallerObjects(federation, trainer)

    def summary(self) -> dict[str, Any]:
        """Returns the metrics of the last evaluation of each seed: the file ``summary.json``."""
        summary: dict[str, Any] = json.loads(_deltafl.summary(self.path)[0])
        return summary

    @property
    def class_names(self) -> list[str]:
        """The names of the classes by number, as in the training data. Empty if they have no names."""
        return list(self._contract().get("class_names", []))

    def _contract(self) -> dict[str, Any]:
        """Returns the shape of the data. It is empty for the folders of earlier versions."""
        path = self.path / "contract.json"
        contract: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return contract

    def table(self) -> Table:
        """Returns a table with one row per model.

        The columns are the mean and percentiles of the metric over the test devices, summarised
        over the seeds.
        """
        return Table(_deltafl.summary(self.path)[1])

    def devices(self) -> Table:
        """Returns a table with the loss and the metrics of every device at every evaluation."""
        return Table(_deltafl.devices(self.path))

    def rounds(self) -> Table:
        """Returns a table with one row per seed, model and round.

        The columns include η, the loss, the sizes of cohort and tail, the bytes and the seconds.
        With ``privacy``, ``epsilon_server`` and ``epsilon_readers`` are ε up to the round against the
        server and against readers of the models.
        """
        return Table(_deltafl.rounds(self.path))

    def report(self, out: str | PathLike[str] | None = None, *, figures: bool = True) -> Report:
        """Writes the report: tables, figures and one interactive page.

        Args:
            out: The folder of the report. The default is the run folder.
            figures: Whether to draw the figures as files. False is faster.

        Returns:
            The report that was written.
        """
        folder = self.path if out is None else Path(out)
        return Report(Path(_deltafl.report([self.path], folder, figures)))

    @property
    def tracks(self) -> list[Track]:
        """The models, in the order of the experiment."""
        return [Track(self, index, *row) for index, row in enumerate(_deltafl.tracks(self.path))]

    def evaluate(
        self,
        federation: Federation | None = None,
        *,
        metrics: Sequence[str | Callable[..., float]] | None = None,
        split: str | None = "test",
        seed: int | None = None,
        save: bool = False,
    ) -> Evaluation:
        """Evaluates all models on the devices of a federation.

        Args:
            federation: The devices. Their inputs are prepared like those of the run. The default
                is the data of the run, split as in its experiment.
            metrics: Names of ``deltafl.metrics`` and functions of the targets and predictions of a
                device. The default is the metrics of the task.
            split: The split of the devices: "train", "test", "validation", or None for all. If it
                has no devices, all devices are evaluated.
            seed: The seed of the models. The default is the first seed of the experiment.
            save: Whether to store the statistics over devices in the run folder. The tables and the
                page of :meth:`report` then contain them. They replace those of an earlier call.

        Returns:
            The metrics of every device, and their mean, percentiles and dispersion.
        """
        if federation is None:
            given = self._data()
        else:
            given = prepared(self, federation)
        tracks = self.tracks
        found = evaluated(tracks, given, metrics=metrics, split=split, seed=seed)
        if save:
            chosen = tracks[0]._seed(seed)
            found._save(self.path, seed=chosen, rounds=_deltafl.params(self.path, 0, chosen)[1])
        return found

    def _data(self) -> Federation:
        """Returns the data of the run, as its models were trained on it."""
        from ._federation import Federation

        source = self.experiment["data"]["source"]
        if self._supplied.inner is None and str(source).startswith("memory:"):
            raise InvalidInput("the data of the run is not in its folder: pass the devices, run.evaluate(federation)")
        data = Federation._of(_deltafl.data_of_run(self.path, self._supplied.inner))
        data._layout = None if self._supplied.federation is None else self._supplied.federation._layout
        return data

    def __getitem__(self, name: str | int) -> Track:
        tracks = self.tracks
        if isinstance(name, int) and -len(tracks) <= name < len(tracks):
            return tracks[name]
        found = [track for track in tracks if track.answers_to(str(name))]
        if len(found) == 1:
            return found[0]
        known = ", ".join(repr(track.name) for track in tracks)
        problem = "no model matches" if not found else f"{len(found)} models match"
        raise KeyError(f"{problem} {name!r}; the models of the run are {known}")

    def __iter__(self) -> Iterator[Track]:
        return iter(self.tracks)

    def __repr__(self) -> str:
        return f"{_deltafl.text(self.path)}\nRun folder: {self.path}"

    def _repr_html_(self) -> str:
        table = f"<pre>{html.escape(repr(self))}</pre>"
        try:
            page = self.report(figures=False).path
        except InvalidInput as error:
            return f"{table}<p>{html.escape(str(error))}</p>"
        if page.stat().st_size > _LARGEST_PAGE:
            return f"{table}<p>The interactive page: {html.escape(str(page))}</p>"
        content = html.escape(page.read_text(), quote=True)
        return f'{table}<iframe srcdoc="{content}" width="100%" height="800" style="border:0"></iframe>'


@dataclass(frozen=True)
class Report:
    """A report that was written."""

    #: The path of the page, a self-contained HTML file.
    path: Path

    def open(self) -> None:
        """Opens the page in a browser."""
        webbrowser.open(self.path.resolve().as_uri())


class Track:
    """One model of a run. See :class:`Run`."""

    def __init__(self, run: Run, index: int, name: str, algorithm: str, theta: float) -> None:
        self._run, self._index = run, index
        #: The name of the model in all tables.
        self.name = name
        #: The kind of the algorithm.
        self.algorithm = algorithm
        #: θ: the fraction of the mass of the devices that the model keeps.
        self.theta = theta

    def answers_to(self, name: str) -> bool:
        """Returns True if ``name`` identifies this model.

        The name is the one in the tables, a level such as ``theta=0.5``, or the kind of the
        algorithm.
        """
        if name in (self.name, self.algorithm):
            return True
        key, _, value = name.partition("=")
        try:
            return key.strip() in ("theta", "θ") and self.algorithm != "fedavg" and float(value) == self.theta
        except ValueError:
            return False

    def _seed(self, seed: int | None) -> int:
        return int(self._run.experiment["seeds"][0]) if seed is None else seed

    def params(self, seed: int | None = None) -> NDArray[np.float32]:
        """Returns the parameters w as one vector.

        Args:
            seed: The seed of the run. The default is the first seed of the experiment.
        """
        return _deltafl.params(self._run.path, self._index, self._seed(seed))[0]

    def arrays(self, seed: int | None = None) -> dict[str, NDArray[Any]]:
        """Returns the parameters by name as numpy arrays, in the layouts of PyTorch.

        Args:
            seed: The seed of the run. The default is the first seed of the experiment.
        """
        trainer = self._trainer()
        if trainer is not None:
            return trainer.arrays(self.params(seed))
        return dict(_deltafl.state_dict(self._run.path, self._index, self._seed(seed)))

    def _trainer(self) -> Trainer | None:
        """Returns the trainer of the run. None if the model is built in.

        Raises:
            InvalidInput: The run was opened without its trainer, or with another one.
        """
        trainer = self._run._supplied.trainer
        if trainer is None and self._run.experiment["model"]["kind"] == "external":
            described = self._run.experiment["model"].get("external", {})
            options = "".join(f"\n{name}: {value}" for name, value in described.items())
            raise InvalidInput(
                f"the model of the run belongs to your trainer: pass the trainer of {self.params().size} params, "
                f"Run({str(self._run.path)!r}, trainer=…){options}"
            )
        if trainer is not None and int(trainer.num_params) != self.params().size:
            raise InvalidInput(
                f"the trainer has {trainer.num_params} params, but the model of the run has {self.params().size}: "
                "pass the trainer of the run"
            )
        return trainer

    def predict_proba(self, inputs: Any, *, seed: int | None = None) -> NDArray[Any]:
        """Returns the outputs of the model: a probability per class, or one real number.

        Args:
            inputs: A matrix of the features in the order of the training data, a polars, pandas or
                Arrow table, or a dict of arrays for a trainer. The columns of a table are found by
                name, and further columns are ignored. If the training data has no names, the
                columns must be in its order.
            seed: The seed of the run. The default is the first seed of the experiment.
        """
        return outputs(self, inputs, seed)

    def predict(self, inputs: Any, *, seed: int | None = None) -> NDArray[Any]:
        """Returns the prediction for every example: the number of a class, or a real number.

        ``Run.class_names`` contains the names of the classes. A run that was reopened needs no data.
        The model of a trainer needs the trainer: ``Run(folder, trainer=…)``.

        Args:
            inputs: A matrix of the features in the order of the training data, a polars, pandas or
                Arrow table, or a dict of arrays for a trainer. The columns of a table are found by
                name, and further columns are ignored. If the training data has no names, the
                columns must be in its order.
            seed: The seed of the run. The default is the first seed of the experiment.
        """
        found = outputs(self, inputs, seed)
        return found.argmax(axis=1) if found.ndim == 2 else found

    def state_dict(self, seed: int | None = None) -> dict[str, Any]:
        """Returns the parameters by name as torch tensors.

        Use it as ``module.load_state_dict(track.state_dict())``.

        Args:
            seed: The seed of the run. The default is the first seed of the experiment.
        """
        torch: Any = importlib.import_module("torch")
        return {name: torch.from_numpy(np.array(array)) for name, array in self.arrays(seed).items()}

    def __repr__(self) -> str:
        return f"Track {self.name!r} of {self._run.path}"
