"""Sweeps: an experiment with several values for some keys, and one run per combination."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from . import _deltafl
from ._experiment import CallerObjects, assignments, plain, text, with_algorithms
from ._federation import Federation
from ._run import Report, Run, TrainOptions, train_experiment
from ._trainer import Trainer
from .errors import InvalidInput

__all__ = ["Point", "Sweep", "sweep"]


def sweep(
    experiment: str | PathLike[str] | Mapping[str, Any],
    over: Mapping[str, Sequence[Any]] | None = None,
    *,
    federation: Federation | None = None,
    trainer: Trainer | None = None,
    out: str | PathLike[str] | None = None,
    threads: int | None = None,
    kernel: str | None = None,
    compute: str = "cpu",
    progress: bool | None = None,
    **overrides: Any,
) -> Sweep:
    """Trains every combination of values, like ``deltafl sweep run``.

    The points are trained one after another. The function skips finished points and resumes
    interrupted ones. The same call therefore resumes a sweep, and a call with more values extends
    it. ``deltafl sweep list`` and ``deltafl report`` read the folder of the sweep.

    Args:
        experiment: The path of a TOML file, or a dict with the same keys, as for :func:`run`. A
            list for a key that takes one value is swept, and so is the table ``[sweep]``.
        over: The values of each key: ``over={"local.learning_rate": [0.1, 0.3]}``.
        federation: The data. The dict then needs no key ``data``.
        trainer: The model. The dict then needs no key ``model``.
        out: The folder of the sweep. The default is ``sweeps/NAME``.
        threads: The number of threads. The default is 1 for a trainer, otherwise one per core.
        kernel: The name of the kernels. The default is the fastest that the CPU supports.
        compute: The device to compute on: "cpu", "cuda", "cuda:N" or "auto".
        progress: Whether to show the progress. The default shows it in terminals and notebooks.
        **overrides: Values that replace keys of the experiment.

    Returns:
        The sweep with all its points.
    """
    axes = [f"{key}={_values(key, values)}" for key, values in (over or {}).items()]
    assigned = assignments(overrides)
    target = None if out is None else Path(out)
    supplied = CallerObjects(federation, trainer)
    if isinstance(experiment, Mapping):
        written, bridges = with_algorithms(experiment, has_trainer=trainer is not None)
        supplied = CallerObjects(federation, trainer, bridges)
        whole = text(supplied.filled(written))
        folder, points = _deltafl.sweep_plan(None, whole, assigned, axes, target)
    else:
        folder, points = _deltafl.sweep_plan(Path(experiment), None, assigned, axes, target)
    for _, toml, run, standing in points:
        if standing != "finished":
            options = TrainOptions(
                Path(run), standing == "begun", supplied.threads(threads), kernel, compute
            )
            train_experiment(toml, options, supplied, progress=progress)
    return Sweep(folder, federation=federation, trainer=trainer)


def _values(key: str, values: Sequence[Any]) -> str:
    if isinstance(values, (str, bytes)) or not hasattr(values, "__len__") or not len(values):
        raise InvalidInput(f"the values of {key} must be a non-empty list, got {values!r}")
    return ",".join(json.dumps(plain(value), ensure_ascii=False) for value in values)


@dataclass(frozen=True)
class Point:
    """One combination of values in a sweep."""

    #: The value of each swept key.
    settings: dict[str, Any]
    #: The state of the run: "missing", "begun" or "finished".
    standing: str
    #: The run folder.
    path: Path
    _supplied: CallerObjects

    @property
    def run(self) -> Run:
        """The run of this point."""
        return Run(self.path, federation=self._supplied.federation, trainer=self._supplied.trainer)


class Sweep:
    """The results of a sweep, read from its folder: ``Sweep("sweeps/quickstart")``.

    It opens any sweep, including those of the command ``deltafl sweep run``. Iteration yields the
    points.

    Args:
        folder: The folder of the sweep.
        federation: The data of the runs, if they were trained on a federation in memory.
        trainer: The trainer of the runs, if they were trained with one.
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        *,
        federation: Federation | None = None,
        trainer: Trainer | None = None,
    ) -> None:
        self.path = Path(folder)
        found = _deltafl.sweep_open(self.path)[1]
        supplied = CallerObjects(federation, trainer)
        #: All combinations. The value of the last key changes fastest.
        self.points = [
            Point(json.loads(settings), standing, Path(run), supplied)
            for settings, _, run, standing in found
        ]

    def results(self) -> list[dict[str, Any]]:
        """Returns the settings and metrics of every point, like ``deltafl sweep list --json``."""
        results: list[dict[str, Any]] = json.loads(_deltafl.sweep_results(self.path)[1])
        return results

    def report(self, out: str | PathLike[str] | None = None, *, figures: bool = True) -> Report:
        """Writes one report of all finished points: tables, figures and one interactive page.

        Args:
            out: The folder of the report. The default is the folder of the sweep.
            figures: Whether to draw the figures as files. False is faster.

        Returns:
            The report that was written.
        """
        runs = [point.path for point in self if point.standing == "finished"]
        return Report(Path(_deltafl.report(runs, self.path if out is None else Path(out), figures)))

    def __iter__(self) -> Iterator[Point]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    def __repr__(self) -> str:
        return f"{_deltafl.sweep_results(self.path)[0]}\nSweep folder: {self.path}"
