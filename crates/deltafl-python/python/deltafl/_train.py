"""``train``: a federation, a model and algorithms, without a file."""

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
from ._algorithms import Algorithm
from ._experiment import Brought, text
from ._federation import Federation
from ._run import How, Run, trained
from ._trainer import Trainer
from .errors import InvalidInput
from .models import Model

__all__ = ["SGD", "initial", "train"]


@dataclass(frozen=True, kw_only=True)
class SGD:
    """What a device does in a round: epochs or steps of stochastic gradient descent."""

    #: γ₀.
    lr: float
    #: Examples per step.
    batch: int
    #: Passes over the device's examples; 1 when steps are not given.
    epochs: int | None = None
    #: Steps on batches drawn with replacement, instead of epochs.
    steps: int | None = None
    #: c and t₀ of γ_t = γ₀·c^⌊t/t₀⌋.
    decay: tuple[float, int] | None = None

    def section(self) -> dict[str, Any]:
        """The section ``[local]`` of an experiment."""
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
    algorithms: Algorithm | Sequence[Algorithm],
    *,
    rounds: int,
    cohort: int,
    local: SGD,
    seeds: Sequence[int] = (1,),
    name: str | None = None,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    evaluate_every: int = 10,
    secagg: Literal["plain", "real"] = "plain",
    with_replacement: bool = False,
    availability: Mapping[str, Any] | None = None,
    split: Mapping[str, Any] | None = None,
    normalise: Literal["none", "mean-ratio", "standard"] = "none",
    evaluate_sample: int | None = None,
    threads: int | None = None,
    kernel: str | None = None,
    compute: str = "cpu",
    progress: bool | None = None,
) -> Run:
    """Trains a model per level of every algorithm on a federation; they share cohorts and random numbers.

    ``model`` is one of ``deltafl.models``, or a :class:`Trainer` of your own, such as ``deltafl.torch.Module``. The keywords
    are keys of an experiment file (``deltafl help experiment``). The run folder is ``out``, or ``runs/NAME``; without a name
    it is called by the time. ``threads`` is one per core for our own models and 1 for a trainer, unless it is given.
    """
    if resume and out is None and name is None:
        raise InvalidInput("resume=True needs the folder (out=) or the name (name=) of the run to go on with")
    name = name or datetime.now(timezone.utc).strftime("train-%Y%m%d-%H%M%S-%f")
    brought = Brought(federation, model if isinstance(model, Trainer) else None)
    sections = [algorithms] if isinstance(algorithms, Algorithm) else list(algorithms)
    experiment = {
        "name": name,
        "seeds": list(seeds),
        "rounds": rounds,
        "cohort": cohort,
        "with_replacement": with_replacement,
        "evaluate_every": evaluate_every,
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
        "algorithm": sections,
    }
    _, toml = _deltafl.experiment_of_json(text(brought.filled(experiment)), [])
    how = How(
        out=Path("runs") / name if out is None else Path(out),
        resume=resume,
        threads=brought.threads(threads),
        kernel=kernel,
        compute=compute,
    )
    return trained(toml, how, brought, progress=progress)


def initial(model: Model, federation: Federation, *, seed: int = 1) -> dict[str, NDArray[np.float32]]:
    """w₀ of a model by name, in PyTorch's layouts: where every run with this seed starts."""
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
