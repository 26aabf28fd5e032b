"""The superquantile and related functions."""

from __future__ import annotations

import numpy as np
import pytest

import deltafl as dfl


def test_the_superquantile_ranges_from_the_mean_to_the_maximum() -> None:
    rng = np.random.default_rng(1)
    losses, weights = rng.exponential(size=40), rng.integers(1, 50, size=40)
    assert dfl.superquantile(losses, 1.0, weights) == pytest.approx(np.average(losses, weights=weights))
    assert dfl.superquantile(losses, 1e-9, weights) == pytest.approx(losses.max())
    values = [dfl.superquantile(losses, theta, weights) for theta in (0.1, 0.3, 0.5, 0.8, 1.0)]
    assert values == sorted(values, reverse=True)


def test_the_worst_case_mixture_attains_the_superquantile() -> None:
    rng = np.random.default_rng(2)
    losses, weights = rng.normal(size=25), rng.integers(1, 9, size=25)
    for theta in (0.2, 0.55, 1.0):
        mixture = dfl.worst_case(losses, theta, weights)
        assert mixture.sum() == pytest.approx(1.0)
        assert (mixture <= weights / weights.sum() / theta * (1 + 1e-12)).all()
        assert mixture @ losses == pytest.approx(dfl.superquantile(losses, theta, weights))


def test_the_quantile_keeps_the_mass() -> None:
    losses = np.arange(10.0)
    assert dfl.quantile(losses, 0.3) == 6.0, "three of ten losses are larger"
    assert dfl.quantile(losses.tolist(), 1.0) == 0.0


def test_smoothing_stays_within_its_bound() -> None:
    losses = [0.3, 1.0, 1.1, 4.0]
    for nu in (1e-3, 0.1, 1.0):
        gap = dfl.smoothed(losses, 0.5, nu) - dfl.superquantile(losses, 0.5)
        assert abs(gap) <= nu / (2 * 0.5) + 1e-12


@pytest.mark.parametrize(
    ("losses", "theta", "weights", "message"),
    [
        ([1.0], 0.0, None, r"conformity level must be in \(0, 1\]"),
        ([1.0, np.nan], 0.5, None, "entry 1: the loss of a device must be finite"),
        ([1.0], 0.5, [-1.0], "entry 0: the weight of a device must be positive"),
        ([1.0], 0.5, [1.0, 2.0], "1 losses and 2 weights"),
        ([], 0.5, None, "there are no losses"),
    ],
)
def test_invalid_input_is_rejected(
    losses: list[float], theta: float, weights: list[float] | None, message: str
) -> None:
    with pytest.raises(dfl.InvalidInput, match=message):
        dfl.superquantile(losses, theta, weights)
