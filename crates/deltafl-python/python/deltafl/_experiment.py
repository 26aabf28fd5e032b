"""What goes into an experiment: its keys as the Rust code reads them, and data and model that the caller brings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _deltafl
from ._trainer import Bridge, Trainer

if TYPE_CHECKING:
    from ._federation import Federation

__all__ = ["Brought", "assignments", "plain", "text"]


@dataclass(frozen=True)
class Brought:
    """What the caller brings beside an experiment."""

    federation: Federation | None = None
    trainer: Trainer | None = None

    @property
    def inner(self) -> _deltafl.Federation | None:
        """The federation of the Rust code."""
        return None if self.federation is None else self.federation._inner

    def bridge(self) -> Bridge | None:
        """The trainer as the Rust code calls it."""
        return None if self.trainer is None else Bridge(self.trainer)

    def threads(self, asked: int | None) -> int:
        """One per core (0) for our own models and 1 for a trainer, unless it is given."""
        return int(self.trainer is not None) if asked is None else asked

    def filled(self, experiment: Mapping[str, Any]) -> dict[str, Any]:
        """The experiment with the model and the data, where it names none."""
        filled = {key: value for key, value in experiment.items() if value is not None}
        if self.trainer is not None:
            filled.setdefault("model", {"kind": "external", "l2": self.trainer.l2})
        if self.federation is not None or self.trainer is not None:
            name = self.federation.name if self.federation else "devices"
            filled.setdefault("data", {"source": f"memory:{name}"})
        return filled


def text(experiment: Mapping[str, Any]) -> str:
    """An experiment as JSON."""
    return json.dumps(plain(experiment))


def plain(value: Any) -> Any:
    """Without None, which TOML has not, with lists for tuples, and algorithms, models and SGD as their sections."""
    if callable(getattr(value, "section", None)):
        return plain(value.section())
    if isinstance(value, Mapping):
        return {str(key): plain(below) for key, below in value.items() if below is not None}
    if isinstance(value, (list, tuple)):
        return [plain(below) for below in value]
    if isinstance(value, PathLike):
        return str(value)
    return value.item() if isinstance(value, np.generic) else value


def assignments(overrides: Mapping[str, Any], above: str = "") -> list[str]:
    """``KEY=VALUE`` for every override; tables become dotted keys."""
    assigned: list[str] = []
    for key, value in overrides.items():
        if isinstance(value, Mapping):
            assigned += assignments(value, f"{above}{key}.")
        elif value is not None:
            assigned.append(f"{above}{key}={json.dumps(plain(value), ensure_ascii=False)}")
    return assigned
