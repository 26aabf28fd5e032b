"""Runs: an experiment trained into its run folder, and what it left there."""

from __future__ import annotations

import html
import json
import webbrowser
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from . import _deltafl
from ._experiment import Brought, assignments, text
from ._progress import Progress, awaited, interruptible
from ._table import Table
from .errors import Interrupted, InvalidInput

if TYPE_CHECKING:
    from ._federation import Federation
    from ._trainer import Trainer

__all__ = ["Report", "Run", "Track", "run"]

#: A page larger than this is named in a notebook, and not shown.
_LARGEST_PAGE = 16_000_000


def run(
    experiment: str | PathLike[str] | Mapping[str, Any],
    *,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    threads: int = 0,
    kernel: str | None = None,
    compute: str = "cpu",
    progress: bool | None = None,
    **overrides: Any,
) -> Run:
    """Trains an experiment, as ``deltafl run`` does, to the same bits.

    ``experiment`` is the path of a TOML file, or a dict of the same keys. Other keywords override keys of it:
    ``rounds=100``, ``local={"learning_rate": 0.1}``, ``**{"algorithm.1.theta": 0.3}``.

    The run folder is ``out``, or ``runs/NAME``. Ctrl-C ends the run after its round and saves it (:class:`Interrupted`);
    ``resume=True`` goes on. ``threads`` is 0 for one per core, ``compute`` is "cpu", "cuda", "cuda:N" or "auto".
    ``progress`` is shown in a terminal and in a notebook unless it is False.
    """
    assigned = assignments(overrides)
    if isinstance(experiment, Mapping):
        name, toml = _deltafl.experiment_of_json(text(experiment), assigned)
    else:
        name, toml = _deltafl.experiment_of_file(Path(experiment), assigned)
    folder = Path("runs") / name if out is None else Path(out)
    how = How(folder, resume, threads, kernel, compute)
    return trained(toml, how, Brought(), progress=progress)


@dataclass(frozen=True)
class How:
    """How to train, beside what the experiment says."""

    out: Path
    resume: bool
    threads: int
    kernel: str | None
    compute: str


def trained(experiment: str, how: How, brought: Brought, *, progress: bool | None) -> Run:
    """Trains an experiment in its TOML, and opens the run."""
    stop, shown = _deltafl.Stop(), Progress(progress)

    def train() -> tuple[int, int, int] | None:
        return _deltafl.train(experiment, brought.inner, brought.bridge(), how, stop, shown)

    # A lone thread of a trainer is the caller's own, as its debugger and its profiler expect; it hears Ctrl-C itself.
    in_python = brought.trainer is not None
    is_callers = in_python and how.threads == 1
    try:
        with interruptible(stop):
            stopped = train() if is_callers else awaited(train, stop, in_python=in_python)
    finally:
        shown.clear()
    if stopped is not None:
        raise Interrupted(how.out, *stopped)
    return Run(how.out, federation=brought.federation, trainer=brought.trainer)


class Run:
    """What a run left in its folder: ``Run("runs/quickstart")`` opens any.

    ``run["theta=0.5"]``, ``run["fedavg"]`` or a name of the table is a :class:`Track`, one model of the run.
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
        self._brought = Brought(federation, trainer)

    def summary(self) -> dict[str, Any]:
        """The figures of the last evaluation of each seed: what ``summary.json`` holds."""
        summary: dict[str, Any] = json.loads(_deltafl.summary(self.path)[0])
        return summary

    def table(self) -> Table:
        """A row per model: mean and percentiles of the metric over the test devices, over seeds."""
        return Table(_deltafl.summary(self.path)[1])

    def devices(self) -> Table:
        """Loss and metrics of every device at every evaluation."""
        return Table(_deltafl.devices(self.path))

    def rounds(self) -> Table:
        """A row per seed, model and round: η, loss, cohort, tail, bytes, seconds."""
        return Table(_deltafl.rounds(self.path))

    def report(self, out: str | PathLike[str] | None = None, *, figures: bool = True) -> Report:
        """Writes tables, figures and one interactive page, into the run folder or ``out``. Without figures it is quicker."""
        folder = self.path if out is None else Path(out)
        return Report(Path(_deltafl.report([self.path], folder, figures)))

    @property
    def tracks(self) -> list[Track]:
        """The models, in the order of the experiment."""
        return [Track(self, index, *row) for index, row in enumerate(_deltafl.tracks(self.path))]

    def __getitem__(self, name: str) -> Track:
        found = [track for track in self.tracks if track.answers_to(name)]
        if len(found) == 1:
            return found[0]
        known = ", ".join(repr(track.name) for track in self.tracks)
        problem = "no model" if not found else f"{len(found)} models"
        raise KeyError(f"{problem} of the run answer to {name!r}: they are {known}")

    def __iter__(self) -> Iterator[Track]:
        return iter(self.tracks)

    def __repr__(self) -> str:
        return f"{_deltafl.text(self.path)}\nRun folder: {self.path}"

    def _repr_html_(self) -> str:
        table = f"<pre>{html.escape(repr(self))}</pre>"
        try:
            page = self.report(figures=False).path
        except InvalidInput as refused:
            return f"{table}<p>{html.escape(str(refused))}</p>"
        if page.stat().st_size > _LARGEST_PAGE:
            return f"{table}<p>The interactive page: {html.escape(str(page))}</p>"
        inside = html.escape(page.read_text(), quote=True)
        return f'{table}<iframe srcdoc="{inside}" width="100%" height="800" style="border:0"></iframe>'


@dataclass(frozen=True)
class Report:
    """A report that was written."""

    #: The page, self-contained.
    path: Path

    def open(self) -> None:
        """Shows it in a browser."""
        webbrowser.open(self.path.resolve().as_uri())


class Track:
    """One model of a run."""

    def __init__(self, run: Run, index: int, name: str, algorithm: str, theta: float) -> None:
        self._run, self._index = run, index
        #: What it is called in every table.
        self.name = name
        #: The kind of its algorithm.
        self.algorithm = algorithm
        #: θ, the mass of the devices that it keeps.
        self.theta = theta

    def answers_to(self, name: str) -> bool:
        """Whether it goes by this name: the one of the tables, ``theta=0.5``, or the kind of its algorithm."""
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
        """w, flat; of the first seed, unless another is named."""
        return _deltafl.params(self._run.path, self._index, self._seed(seed))[0]

    def arrays(self, seed: int | None = None) -> dict[str, NDArray[Any]]:
        """w by name, in PyTorch's layouts, as numpy arrays."""
        brought = self._run._brought
        if brought.trainer is not None:
            return brought.trainer.arrays(self.params(seed))
        return dict(_deltafl.state_dict(self._run.path, self._index, self._seed(seed), brought.inner))

    def state_dict(self, seed: int | None = None) -> dict[str, Any]:
        """w by name, as torch tensors: ``module.load_state_dict(track.state_dict())``."""
        import torch  # type: ignore[import-not-found, unused-ignore]

        return {name: torch.from_numpy(np.array(array)) for name, array in self.arrays(seed).items()}

    def __repr__(self) -> str:
        return f"Track {self.name!r} of {self._run.path}"
