"""The algorithms, a class each: made by generate_algorithms.py from the table of the Rust code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

__all__ = ["Algorithm", "DeltaFL", "FedAdam", "FedAvg", "FedProx"]


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
    """FedAvg: Federated averaging: every device of the cohort counts with its examples."""

    kind: ClassVar[str] = "fedavg"
    #: λ of the penalty (λ/2)‖w‖² of this algorithm; None is that of the model.
    l2: float | None = None


@dataclass(frozen=True, kw_only=True)
class DeltaFL(Algorithm):
    """Δ-FL: The devices in the upper θ-tail of the losses count; minimises the superquantile of the device losses."""

    kind: ClassVar[str] = "delta-fl"
    #: θ: conformity level: the mass of the tail that is kept (a number in (0, 1]).
    theta: float | Sequence[float]
    #: quantile: how η is found: open shows the server the losses, the others secure sums alone (open, histogram, one-shot, bisection, mm).
    quantile: Literal["open", "histogram", "one-shot", "bisection", "mm"] = "open"
    #: T_η: rounds between two searches for η (a whole number, 1 or above).
    eta_every: int = 1
    #: η: with eta_every > 1: watched finds η anew as soon as far more or less than θ is kept, fixed is the paper's letter (watched, fixed).
    eta_rule: Literal["watched", "fixed"] = "watched"
    #: ν: smooths the tail: a device counts with g'_ν(F_k − η); 0 is the filter of Algorithm 2 (a number 0 or above).
    nu: float = 0.0
    #: λ of the penalty (λ/2)‖w‖² of this algorithm; None is that of the model.
    l2: float | None = None


@dataclass(frozen=True, kw_only=True)
class FedProx(Algorithm):
    """FedProx: Federated averaging with a term that holds each device near the model that it was sent."""

    kind: ClassVar[str] = "fedprox"
    #: μ: weight of the proximal term (μ/2)‖w − w_t‖² in the local loss (a number 0 or above).
    mu: float | Sequence[float]
    #: λ of the penalty (λ/2)‖w‖² of this algorithm; None is that of the model.
    l2: float | None = None


@dataclass(frozen=True, kw_only=True)
class FedAdam(Algorithm):
    """FedAdam: The server takes the mean update for a gradient and steps by Adam."""

    kind: ClassVar[str] = "fedadam"
    #: η_s: learning rate of the server (a number above 0).
    server_rate: float = 0.01
    #: β₁: how much of the first moment is kept from round to round (a number in [0, 0.9999999999999998]).
    beta1: float = 0.9
    #: β₂: how much of the second moment is kept from round to round (a number in [0, 0.9999999999999998]).
    beta2: float = 0.99
    #: τ: how far a step adapts: added to the root of the second moment (a number above 0).
    tau: float = 0.001
    #: λ of the penalty (λ/2)‖w‖² of this algorithm; None is that of the model.
    l2: float | None = None
