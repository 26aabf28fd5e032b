"""The superquantile and related functions of a vector of losses."""

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
    """Returns the threshold η = Q(θ): the smallest loss with at most the mass θ above it.

    Args:
        losses: The losses of the devices.
        theta: The mass to keep, in (0, 1]. 1 keeps all devices, 0.1 keeps the worst tenth.
        weights: The weights of the devices. The default is equal weights.

    >>> quantile([1.0, 2.0, 3.0, 5.0], theta=0.5)
    2.0
    """
    return _deltafl.quantile(_vector(losses), theta, _weights(weights))


def superquantile(losses: ArrayLike, theta: float, weights: ArrayLike | None = None) -> float:
    """Returns the superquantile S(θ): the mean of the worst losses of mass θ.

    S(1) is the mean of all losses. S(θ) approaches the maximum as θ approaches 0.

    Args:
        losses: The losses of the devices.
        theta: The mass to keep, in (0, 1].
        weights: The weights of the devices. The default is equal weights.

    >>> superquantile([1.0, 2.0, 3.0, 5.0], theta=0.5)
    4.0
    >>> superquantile([1.0, 2.0, 3.0, 5.0], theta=0.5, weights=[1, 1, 1, 3])
    5.0
    """
    return _deltafl.superquantile(_vector(losses), theta, _weights(weights))


def smoothed(
    losses: ArrayLike, theta: float, nu: float, weights: ArrayLike | None = None
) -> float:
    """Returns the smoothed superquantile, a differentiable function of the losses.

    Its distance from S(θ) is at most ν/(2θ).

    Args:
        losses: The losses of the devices.
        theta: The mass to keep, in (0, 1].
        nu: The amount of smoothing.
        weights: The weights of the devices. The default is equal weights.

    >>> round(smoothed([1.0, 2.0, 3.0, 5.0], theta=0.5, nu=1e-6), 4)
    4.0
    """
    return _deltafl.smoothed(_vector(losses), theta, nu, _weights(weights))


def worst_case(
    losses: ArrayLike, theta: float, weights: ArrayLike | None = None
) -> NDArray[Any]:
    """Returns the weights of the worst-case mixture of the devices.

    Of all mixtures with conformity θ, this one has the largest mean loss. That loss is S(θ).

    Args:
        losses: The losses of the devices.
        theta: The mass to keep, in (0, 1].
        weights: The weights of the devices. The default is equal weights.

    >>> worst_case([1.0, 2.0, 3.0, 5.0], theta=0.5).tolist()
    [0.0, 0.0, 0.5, 0.5]
    """
    return _deltafl.worst_case(_vector(losses), theta, _weights(weights))
