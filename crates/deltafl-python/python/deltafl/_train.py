"""Training of a model on a federation in memory, without an experiment file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from . import _deltafl
from ._algorithm import CustomAlgorithm, algorithm_sections
from ._algorithms import Algorithm
from ._experiment import CallerObjects, text
from ._federation import Federation
from ._run import Run, TrainOptions, train_experiment
from ._trainer import Trainer, check_task
from ._workers import ProcessTrainer
from .callbacks import Callback
from .errors import InvalidInput
from .models import Model

__all__ = ["SGD", "initial", "train"]


@dataclass(frozen=True, kw_only=True)
class SGD:
    """The local update of a device in a round: epochs or steps of stochastic gradient descent."""

    #: The initial learning rate γ₀.
    lr: float
    #: The number of examples per step.
    batch: int
    #: The number of passes over the device's examples. The default is 1 if ``steps`` is None.
    epochs: int | None = None
    #: The number of steps, on batches drawn with replacement. An alternative to ``epochs``.
    steps: int | None = None
    #: The pair (c, t₀) of the decay γ_t = γ₀·c^⌊t/t₀⌋. None keeps the learning rate constant.
    decay: tuple[float, int] | None = None

    def section(self) -> dict[str, Any]:
        """Returns the ``[local]`` section of an experiment file as a dict."""
        epochs = 1 if self.epochs is None and self.steps is None else self.epochs
        decay = None if self.decay is None else {"factor": self.decay[0], "every": self.decay[1]}
        return {
            "learning_rate": self.lr,
            "batch": self.batch,
            "epochs": epochs,
            "steps": self.steps,
            "decay": decay,
        }


def train(
    federation: Federation,
    model: Model | Trainer,
    algorithms: Algorithm | CustomAlgorithm | Sequence[Algorithm | CustomAlgorithm],
    *,
    rounds: int,
    cohort: int,
    local: SGD,
    seeds: Sequence[int] = (1,),
    name: str | None = None,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    evaluate_every: int = 10,
    weights: Literal["exact", "uniform", "bucketed"] | None = None,
    clip: float | None = None,
    tracks: Literal["together", "in-turn", "apart"] | None = None,
    secagg: Literal["plain", "real"] = "plain",
    privacy: Mapping[str, Any] | None = None,
    with_replacement: bool = False,
    availability: Mapping[str, Any] | None = None,
    adversary: Mapping[str, Any] | None = None,
    split: Mapping[str, Any] | None = None,
    normalise: Literal["none", "mean-ratio", "standard"] | None = None,
    evaluate_sample: int | None = None,
    threads: int | None = None,
    workers: int | None = None,
    kernel: str | None = None,
    compute: str = "cpu",
    progress: bool | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Trains one model per level of every algorithm. All models share cohorts and random numbers.

    The keywords without a description below are keys of an experiment file. The command
    ``deltafl help experiment`` describes them.

    Args:
        federation: The devices and their examples.
        model: A model of ``deltafl.models``, or a :class:`Trainer`, such as
            ``deltafl.torch.Module``.
        algorithms: One algorithm or several, built-in or a :class:`CustomAlgorithm`.
        rounds: The number of rounds.
        cohort: The number of devices per round.
        local: The local update of a device.
        seeds: The seeds. The experiment is trained once for each.
        name: The name of the run. The default contains the current time.
        out: The run folder. The default is ``runs/NAME``.
        resume: Continues an interrupted run. Requires ``out`` or ``name``.
        weights: The weights of devices: their number of examples ("exact"), the same for all
            ("uniform"), or a power of four ("bucketed"). The default is "uniform" if an algorithm
            finds η in secure sums, otherwise "exact".
        clip: The maximum norm of the update of a device. None does not limit it.
        tracks: The models that train in a round: all with the whole cohort ("together"), one
            ("in-turn"), or all with a part of the cohort each ("apart"). The default is "in-turn"
            if an algorithm finds η in secure sums, otherwise "together".
        privacy: The section ``[privacy]``, for example ``{"epsilon": 10, "clip": 0.5}``: devices add
            noise to their answers. The records contain ε after each round. None trains with exact
            sums.
        threads: The number of threads. The default is 1 for a trainer, otherwise one per core.
        workers: The number of processes that compute the devices of a trainer, for trainers that
            hold the interpreter lock. The bits are those of ``threads``. The trainer must be
            picklable, and a script needs the guard ``if __name__ == "__main__":``.
        kernel: The name of the kernels. The default is the fastest that the CPU supports.
        compute: The device to compute on: "cpu", "cuda", "cuda:N" or "auto".
        progress: Whether to show the progress. The default shows it in terminals and notebooks.
        callbacks: Objects that receive the events of the run (``deltafl.callbacks``).

    Returns:
        The run, finished or stopped by a callback.

    Raises:
        InvalidInput: An argument is invalid.
        Interrupted: The user pressed Ctrl-C. The run stops after the current round and is saved.
        TrainerError: The trainer raised an exception. The run can be resumed.
        AlgorithmError: A custom algorithm raised an exception. The run can be resumed.
    """
    if resume and out is None and name is None:
        raise InvalidInput("resume=True requires the folder (out=) or the name (name=) of the run")
    _check(federation, model)
    if isinstance(seeds, int):
        raise InvalidInput(f"seeds must be a list of numbers: write seeds=[{seeds}]")
    name = name or _default_name(resume, out)
    trainer = model if isinstance(model, Trainer) else None
    sections, bridges = algorithm_sections(algorithms, has_trainer=trainer is not None)
    if workers is not None:
        if trainer is None or workers < 1 or threads is not None:
            raise InvalidInput("workers= is a number of processes for a Trainer, in place of threads=")
        threads = workers
    supplied = CallerObjects(federation, trainer, bridges)
    experiment = {
        "name": name,
        "seeds": list(seeds),
        "rounds": rounds,
        "cohort": cohort,
        "with_replacement": with_replacement,
        "evaluate_every": evaluate_every,
        "weights": weights,
        "clip": clip,
        "tracks": tracks,
        "secagg": secagg,
        "data": {
            "source": f"memory:{federation.name}",
            "split": split,
            "normalise": normalise,
            "evaluate_sample": evaluate_sample,
        },
        "model": None if isinstance(model, Trainer) else model,
        "local": local,
        "availability": availability,
        "privacy": privacy,
        "adversary": adversary,
        "algorithm": sections,
    }
    _, toml = _deltafl.experiment_of_json(text(supplied.filled(experiment)), [])
    options = TrainOptions(
        out=Path("runs") / name if out is None else Path(out),
        resume=resume,
        threads=supplied.threads(threads),
        kernel=kernel,
        compute=compute,
    )
    if workers is None or trainer is None:
        return train_experiment(toml, options, supplied, progress=progress, callbacks=callbacks)
    with ProcessTrainer(trainer) as processes:
        remote = CallerObjects(federation, processes, bridges)
        run = train_experiment(toml, options, remote, progress=progress, callbacks=callbacks)
    return Run(run.path, federation=federation, trainer=trainer)


def _check(federation: Any, model: Any) -> None:
    """Rejects arguments of other types, and inputs that built-in models cannot use."""
    if not isinstance(federation, Federation):
        raise InvalidInput(f"expected a Federation, got {type(federation).__name__}")
    kind = type(model).__name__
    if isinstance(model, type) and issubclass(model, (Model, Trainer)):
        raise InvalidInput(f"expected a model, got the class {model.__name__}: write {model.__name__}(…)")
    if not isinstance(model, (Model, Trainer)):
        raise InvalidInput(
            f"expected a model of deltafl.models or a Trainer, got {kind}; "
            "wrap a PyTorch module with deltafl.torch.Module"
        )
    if isinstance(model, Trainer):
        check_task(federation, model)
    if federation._layout is not None and isinstance(model, Model):
        raise InvalidInput("built-in models need one matrix of inputs and one target per example: use a Trainer")


def _default_name(resume: bool, out: str | PathLike[str] | None) -> str:
    """Returns the name of the run in the folder, or a name with the current time."""
    if resume and out is not None:
        return str(Run(out).experiment["name"])
    return datetime.now(timezone.utc).strftime("train-%Y%m%d-%H%M%S-%f")


def initial(model: Model, federation: Federation, *, seed: int = 1) -> dict[str, NDArray[np.float32]]:
    """Returns the initial parameters w₀ of a built-in model by name, in the layouts of PyTorch.

    Every run with the same model, data and seed starts from these parameters.

    Args:
        model: A model of ``deltafl.models``.
        federation: The data, which sets the sizes of the model.
        seed: The seed of the run.
    """
    experiment = {
        "name": "initial",
        "rounds": 1,
        "cohort": 1,
        "data": {"source": f"memory:{federation.name}"},
        "model": model,
        "local": SGD(lr=1.0, batch=1),
        "algorithm": [{"kind": "fedavg"}],
    }
    _, toml = _deltafl.experiment_of_json(text(experiment), [])
    return dict(_deltafl.initial(toml, federation._inner, seed))
