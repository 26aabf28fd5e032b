"""Conversion of experiments to the form that the Rust code reads.

The caller may supply the data as a :class:`Federation` and the model as a :class:`Trainer`.
"""

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

__all__ = ["CallerObjects", "assignments", "plain", "text"]


@dataclass(frozen=True)
class CallerObjects:
    """The data and the model that the caller supplies as Python objects."""

    federation: Federation | None = None
    trainer: Trainer | None = None

    @property
    def inner(self) -> _deltafl.Federation | None:
        """The federation as an object of the Rust code."""
        return None if self.federation is None else self.federation._inner

    def bridge(self) -> Bridge | None:
        """Returns the adapter through which the Rust code calls the trainer."""
        return None if self.trainer is None else Bridge(self.trainer)

    def threads(self, requested: int | None) -> int | None:
        """Returns the number of threads.

        The default is 1 for a trainer and one per core, ``None``, for a built-in model.
        """
        return 1 if requested is None and self.trainer is not None else requested

    def filled(self, experiment: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the experiment with default sections for the model and the data."""
        filled = {key: value for key, value in experiment.items() if value is not None}
        if self.trainer is not None:
            filled.setdefault("model", {"kind": "external", "l2": self.trainer.l2})
        if self.federation is not None or self.trainer is not None:
            name = self.federation.name if self.federation else "devices"
            filled.setdefault("data", {"source": f"memory:{name}"})
        return filled


def text(experiment: Mapping[str, Any]) -> str:
    """Returns an experiment as JSON."""
    return json.dumps(plain(experiment))


def plain(value: Any) -> Any:
    """Converts a value to types that TOML can represent.

    Mappings lose entries that are None, and tuples become lists. Algorithms, models and ``SGD``
    become the dict of their section.
    """
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
    """Returns ``KEY=VALUE`` for every override. Nested mappings become dotted keys."""
    assigned: list[str] = []
    for key, value in overrides.items():
        if isinstance(value, Mapping):
            assigned += assignments(value, f"{above}{key}.")
        elif value is not None:
            assigned.append(f"{above}{key}={json.dumps(plain(value), ensure_ascii=False)}")
    return assigned
