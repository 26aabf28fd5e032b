"""Algorithms that correct the gradients of a trainer: SCAFFOLD and FedDyn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from conftest import SHORT
from test_trainer import Array, Softmax

import deltafl as dfl


class Corrected(Softmax):
    """Adds the drift of an algorithm to every gradient."""

    corrects = True

    def update(self, params: Array, inputs: Array, targets: Array, local: dfl.Local) -> Array:
        assert local.drift is not None
        wide = params.astype(np.float64)
        for batch in local.batches():
            slope = self._probabilities(wide, inputs[batch])
            slope[np.arange(len(batch)), targets[batch]] -= 1
            gradient = (slope.T @ inputs[batch] / len(batch)).ravel() + local.drift
            wide -= local.learning_rate * (gradient + local.proximal * (wide - params))
        return wide


class InOneCall(Corrected):
    """Trains all devices of a round in one call."""

    def update_cohort(self, devices: Sequence[dfl.CohortDevice]) -> Array:
        update = super().update
        return np.stack([update(one.params, one.inputs, one.targets, one.local) for one in devices])

    def update(self, params: Array, inputs: Array, targets: Array, local: dfl.Local) -> Array:
        raise AssertionError("a device trains alone")


@pytest.mark.parametrize("algorithm", [dfl.SCAFFOLD(), dfl.FedDyn(regularisation=0.1)])
@pytest.mark.parametrize("secagg, trainer", [("plain", Corrected), ("real", Corrected), ("plain", InOneCall)])
def test_a_trainer_that_corrects_gradients_agrees_with_the_built_in_model(
    federation: dfl.Federation, algorithm: Any, secagg: Any, trainer: type[Corrected]
) -> None:
    options = {**SHORT, "rounds": 6, "secagg": secagg}
    runs = [
        dfl.train(federation, model, algorithm, out=f"run-{place}", **options)
        for place, model in enumerate([trainer(5, 2), dfl.models.Linear(intercept=False)])
    ]
    runs.append(dfl.train(federation, dfl.models.Linear(intercept=False), dfl.FedAvg(), **options))
    mine, built_in, plain = (run[0].arrays()["fc.weight"] for run in runs)
    assert np.abs(mine - built_in).max() < 1e-5
    assert np.abs(mine - plain).max() > 1e-3, "the correction has an effect"
