"""The superquantile by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import _deltafl

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["quantile", "smoothed", "superquantile", "worst_case"]


def _vector(values: ArrayLike) -> NDArray[np.float64]:
    return np.ascontiguousarray(np.asarray(values, dtype=np.float64).ravel())


def _weights(weights: ArrayLike | None) -> NDArray[np.float64] | None:
    return None if weights is None else _vector(weights)


def quantile(losses: ArrayLike, theta: float, weights: ArrayLike | None = None) -> float:
    """The threshold η = Q(θ): the smallest loss with at most the mass θ above it.

    θ is the mass that is kept: 1 keeps everyone, 0.1 the worst tenth.

    >>> quantile([1.0, 2.0, 3.0, 5.0], theta=0.5)
    2.0
    """
    return _deltafl.quantile(_vector(losses), theta, _weights(weights))


def superquantile(losses: ArrayLike, theta: float, weights: ArrayLike | None = None) -> float:
    """S(θ): the mean of the worst losses of mass θ. θ = 1 is the mean, θ → 0 the maximum.

    >>> superquantile([1.0, 2.0, 3.0, 5.0], theta=0.5)
    4.0
    >>> superquantile([1.0, 2.0, 3.0, 5.0], theta=0.5, weights=[1, 1, 1, 3])
    5.0
    """
    return _deltafl.superquantile(_vector(losses), theta, _weights(weights))


def smoothed(
    losses: ArrayLike, theta: float, nu: float, weights: ArrayLike | None = None
) -> float:
    """The smoothed superquantile: within ν/(2θ) of S(θ), and differentiable in the losses.

    >>> round(smoothed([1.0, 2.0, 3.0, 5.0], theta=0.5, nu=1e-6), 4)
    4.0
    """
    return _deltafl.smoothed(_vector(losses), theta, nu, _weights(weights))


def worst_case(
    losses: ArrayLike, theta: float, weights: ArrayLike | None = None
) -> NDArray[Any]:
    """The mixture of the devices, of conformity θ, under which the mean loss is worst; that loss is S(θ).

    >>> worst_case([1.0, 2.0, 3.0, 5.0], theta=0.5).tolist()
    [0.0, 0.0, 0.5, 0.5]
    """
    return _deltafl.worst_case(_vector(losses), theta, _weights(weights))
