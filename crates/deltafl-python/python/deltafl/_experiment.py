"""Conversion of experiments to the form that the Rust code reads.

The caller may supply the data as a :class:`Federation`, the model as a :class:`Trainer`, and
algorithms as :class:`CustomAlgorithm` objects.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any


from . import _deltafl
from ._algorithm import AlgorithmBridge, algorithm_sections
from ._algorithms import Algorithm
from ._kinds import is_array, is_list, is_mapping
from ._trainer import Bridge, Trainer
from .errors import InvalidInput

if TYPE_CHECKING:
    from ._federation import Federation

__all__ = ["CallerObjects", "assignments", "plain", "text", "with_algorithms"]


@dataclass(frozen=True)
class CallerObjects:
    """The data, the model and the algorithms that the caller supplies as Python objects."""

    federation: Federation | None = None
    trainer: Trainer | None = None
    #: The adapter of the custom algorithm of each ``[[algorithm]]`` section, or None.
    algorithms: Sequence[AlgorithmBridge | None] = ()

    @property
    def inner(self) -> _deltafl.Federation | None:
        """The federation as an object of the Rust code."""
        return None if self.federation is None else self.federation._inner

    @property
    def in_python(self) -> bool:
        """True if devices or the server run Python code."""
        return self.trainer is not None or any(self.algorithms)

    def bridge(self) -> Bridge | None:
        """Returns the adapter through which the Rust code calls the trainer."""
        if self.trainer is None:
            return None
        layout = None if self.federation is None else self.federation._layout
        return Bridge(self.trainer, self.algorithms, layout)

    def threads(self, requested: int | None) -> int | None:
        """Returns the number of threads.

        The default is 1 for a trainer and one per core, ``None``, for a built-in model.
        """
        return 1 if requested is None and self.trainer is not None else requested

    def filled(self, experiment: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the experiment with default sections for the model and the data."""
        filled = {key: value for key, value in experiment.items() if value is not None}
        if self.trainer is not None:
            described = self.trainer.options() or None
            filled.setdefault("model", {"kind": "external", "l2": self.trainer.l2, "external": described})
        if self.federation is not None or self.trainer is not None:
            name = self.federation.name if self.federation else "devices"
            filled.setdefault("data", {"source": f"memory:{name}"})
        return filled


def with_algorithms(
    experiment: Mapping[str, Any], *, has_trainer: bool
) -> tuple[dict[str, Any], list[AlgorithmBridge | None]]:
    """Returns the experiment with a section per algorithm, and the adapters of custom ones."""
    written = dict(experiment)
    given = written.get("algorithm", written.get("algorithms"))
    if given is None:
        return written, []
    written["algorithm"], bridges = algorithm_sections(given, has_trainer=has_trainer)
    return written, bridges


def text(experiment: Mapping[str, Any]) -> str:
    """Returns an experiment as JSON."""
    return json.dumps(plain(experiment))


def plain(value: Any, key: str = "") -> Any:
    """Converts a value to types that TOML can represent.

    Mappings lose entries that are None, and tuples become lists. Algorithms, models and ``SGD``
    become the dict of their section.

    Raises:
        InvalidInput: A number is not finite. The message names its key.
    """
    if isinstance(value, Algorithm) or callable(getattr(value, "section", None)):
        return plain(value.section(), key)
    if is_mapping(value):
        return {
            str(name): plain(below, f"{key}.{name}" if key else str(name))
            for name, below in value.items()
            if below is not None
        }
    if is_array(value):
        return plain(value.tolist(), key)
    if is_list(value):
        return [plain(below, f"{key}.{index}") for index, below in enumerate(value)]
    if hasattr(value, "__fspath__"):
        return str(value)
    if hasattr(value, "item"):
        # A number of numpy.
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidInput(f"{key} must be a finite number, got {value}")
    return value


def assignments(overrides: Mapping[str, Any], above: str = "") -> list[str]:
    """Returns ``KEY=VALUE`` for every override. Nested mappings become dotted keys."""
    assigned: list[str] = []
    for key, value in overrides.items():
        if is_mapping(value):
            assigned += assignments(value, f"{above}{key}.")
        elif value is not None:
            assigned.append(f"{above}{key}={json.dumps(plain(value, f'{above}{key}'), ensure_ascii=False)}")
    return assigned
