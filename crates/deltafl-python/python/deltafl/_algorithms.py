"""The algorithms, a class each: made by generate_algorithms.py from the table of the Rust code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

__all__ = ["Algorithm", "DeltaFL", "FedAvg"]


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One way to train a model; an option that takes a sequence makes a model of each of its values."""

    kind: ClassVar[str]

    def section(self) -> dict[str, Any]:
        """The section ``[[algorithm]]`` of an experiment."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        listed = {
            name: list(value) if isinstance(value, tuple) else value for name, value in given.items()
        }
        return {"kind": self.kind, **{name: v for name, v in listed.items() if v is not None}}


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """FedAvg: X."""

    kind: ClassVar[str] = "fedavg"
    #: λ of the penalty (λ/2)‖w‖² of this algorithm; None is that of the model.
    l2: float | None = None


@dataclass(frozen=True, kw_only=True)
class DeltaFL(Algorithm):
    """Δ-FL: X."""

    kind: ClassVar[str] = "delta-fl"
    #: θ: a (r).
    theta: float | Sequence[float]
    #: q: a (r).
    quantile: Literal["open", "histogram"] = "open"
    #: λ of the penalty (λ/2)‖w‖² of this algorithm; None is that of the model.
    l2: float | None = None
