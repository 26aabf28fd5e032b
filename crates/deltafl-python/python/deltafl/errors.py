"""The exceptions of the package. Their messages are those of the command ``deltafl``."""

from __future__ import annotations

from pathlib import Path

__all__ = ["AlgorithmError", "Busy", "Error", "Interrupted", "InvalidInput", "TrainerError"]


class Error(Exception):
    """The base class of all errors. Raised itself for failures such as a full disk."""


class InvalidInput(Error, ValueError):
    """An argument is invalid: an experiment, an array, a level θ."""


class Busy(Error):
    """Another process is training in the run folder."""


class TrainerError(Error):
    """A trainer raised an exception, which is the ``__cause__`` of this one.

    The message names the device. The run folder contains the last checkpoint. The same call with
    ``resume=True`` continues from it.
    """


class AlgorithmError(Error):
    """A custom algorithm raised an exception, which is the ``__cause__`` of this one.

    The message names the round and the algorithm. The run folder contains the last checkpoint. The
    same call with ``resume=True`` continues from it.
    """


class Interrupted(KeyboardInterrupt):
    """The user pressed Ctrl-C. The run stopped after the current round and was saved.

    The same call with ``resume=True`` continues the run.

    Attributes:
        folder: The run folder.
        seed: The seed that was being trained.
        rounds: The number of finished rounds of that seed.
        planned: The number of rounds in the experiment.
    """

    def __init__(self, folder: Path, seed: int, rounds: int, planned: int) -> None:
        super().__init__(
            f"stopped after round {rounds} of {planned} of seed {seed}; the run is saved: "
            f"call again with resume=True to continue in {folder}"
        )
        self.folder = folder
        self.seed = seed
        self.rounds = rounds
        self.planned = planned
