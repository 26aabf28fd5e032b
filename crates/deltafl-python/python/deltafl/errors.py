"""What can go wrong, as exceptions with the messages of the command."""

from __future__ import annotations

from pathlib import Path

__all__ = ["Busy", "Error", "Interrupted", "InvalidInput", "TrainerError"]


class Error(Exception):
    """Something failed: a full disk, a damaged run folder."""


class InvalidInput(Error, ValueError):
    """Something that was given is wrong: an experiment, an array, a level θ."""


class Busy(Error):
    """Another process trains in the run folder."""


class TrainerError(Error):
    """A trainer raised an exception, which is the cause of this one; the message names the device.

    The run folder holds the last checkpoint: the same call with ``resume=True`` goes on from it.
    """


class Interrupted(KeyboardInterrupt):
    """Ctrl-C: the run ended after its round and was saved.

    Call again with ``resume=True`` to go on.
    """

    def __init__(self, folder: Path, seed: int, rounds: int, planned: int) -> None:
        super().__init__(
            f"stopped after round {rounds} of {planned} of seed {seed}; nothing is lost: "
            f"call again with resume=True to go on in {folder}"
        )
        self.folder = folder
        self.seed = seed
        self.rounds = rounds
        self.planned = planned
