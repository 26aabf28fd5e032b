"""Sweeps: an experiment with several values for some keys, a run for each combination."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from . import _deltafl
from ._experiment import Brought, assignments, plain, text
from ._federation import Federation
from ._run import How, Report, Run, trained
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
    """Trains every combination of values, as ``deltafl sweep run`` does: ``over={"local.learning_rate": [0.1, 0.3]}``.

    ``experiment`` is a path or a dict, as for :func:`run`; a list for a key that takes one value, or a table ``[sweep]``, is
    swept too. With a ``federation`` of your own, and a ``trainer`` of your own, the dict needs no ``data`` and no ``model``.
    Other keywords override keys.

    The folder is ``out``, or ``sweeps/NAME``; ``deltafl sweep list`` and ``deltafl report`` read it. Points that are finished are
    passed over and those that were begun go on, so the same call resumes a sweep, and one with more values makes it grow.
    Points are trained one after the other.
    """
    axes = [f"{key}={_values(key, values)}" for key, values in (over or {}).items()]
    assigned = assignments(overrides)
    place = None if out is None else Path(out)
    brought = Brought(federation, trainer)
    if isinstance(experiment, Mapping):
        whole = text(brought.filled(experiment))
        folder, points = _deltafl.sweep_plan(None, whole, assigned, axes, place)
    else:
        folder, points = _deltafl.sweep_plan(Path(experiment), None, assigned, axes, place)
    for _, toml, run, standing in points:
        if standing != "finished":
            how = How(Path(run), standing == "begun", brought.threads(threads), kernel, compute)
            trained(toml, how, brought, progress=progress)
    return Sweep(folder, federation=federation, trainer=trainer)


def _values(key: str, values: Sequence[Any]) -> str:
    if isinstance(values, (str, bytes)) or not len(values):
        raise InvalidInput(f"the values of {key} are a list, not {values!r}")
    return ",".join(json.dumps(plain(value), ensure_ascii=False) for value in values)


@dataclass(frozen=True)
class Point:
    """One combination of values."""

    #: The value of each key.
    settings: dict[str, Any]
    #: "missing", "begun" or "finished".
    standing: str
    #: The run folder.
    path: Path
    _brought: Brought

    @property
    def run(self) -> Run:
        """Its run."""
        return Run(self.path, federation=self._brought.federation, trainer=self._brought.trainer)


class Sweep:
    """The folder of a sweep: ``Sweep("sweeps/quickstart")`` opens any, whoever trained it."""

    def __init__(
        self,
        folder: str | PathLike[str],
        *,
        federation: Federation | None = None,
        trainer: Trainer | None = None,
    ) -> None:
        self.path = Path(folder)
        found = _deltafl.sweep_open(self.path)[1]
        brought = Brought(federation, trainer)
        #: Every combination; the last key turns fastest.
        self.points = [
            Point(json.loads(settings), standing, Path(run), brought)
            for settings, _, run, standing in found
        ]

    def results(self) -> list[dict[str, Any]]:
        """Settings and figures of every point: what ``deltafl sweep list --json`` prints."""
        results: list[dict[str, Any]] = json.loads(_deltafl.sweep_results(self.path)[1])
        return results

    def report(self, out: str | PathLike[str] | None = None, *, figures: bool = True) -> Report:
        """Writes tables, figures and one page of all finished points, into the folder or ``out``. Without figures it is quicker."""
        runs = [point.path for point in self if point.standing == "finished"]
        return Report(Path(_deltafl.report(runs, self.path if out is None else Path(out), figures)))

    def __iter__(self) -> Iterator[Point]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    def __repr__(self) -> str:
        return f"{_deltafl.sweep_results(self.path)[0]}\nSweep folder: {self.path}"
