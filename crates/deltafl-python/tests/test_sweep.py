"""Sweeps with ``sweep`` and ``Sweep``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_run import TINY, bits, command
from test_trainer import Array, Softmax

import deltafl as dfl

AXES = {"local.learning_rate": [0.1, 0.3], "seeds": [[1], [2]]}


def test_a_sweep_is_bitwise_equal_to_that_of_the_command(tmp_path: Path) -> None:
    mine = dfl.sweep(TINY, AXES, out="mine", rounds=2, progress=False)
    assert [point.settings for point in mine] == [
        {"local.learning_rate": rate, "seeds": seeds} for rate in (0.1, 0.3) for seeds in ([1], [2])
    ]
    done = command("sweep", "run", str(mine.path / "sweep.toml"), "--out", "theirs", "--quiet")
    assert done.returncode == 0, done.stderr
    for point in mine:
        assert point.standing == "finished"
        assert bits(point.path) == bits(Path("theirs") / point.path.name)
    listed = command("sweep", "list", "mine", "--json")
    assert json.loads(listed.stdout) == mine.results()
    assert command("sweep", "list", "theirs").stdout.startswith(repr(mine).rsplit("\n", 1)[0])
    assert mine.report(figures=False).path.is_file()


def test_an_extended_sweep_trains_only_the_new_points() -> None:
    first = dfl.sweep(TINY, {"local.learning_rate": [0.1]}, rounds=2, progress=False)
    written = (first.points[0].path / "summary.json").stat().st_mtime_ns
    grown = dfl.sweep(TINY, {"local.learning_rate": [0.1, 0.3]}, rounds=2, progress=False)
    assert grown.path == first.path and len(grown) == 2
    assert (grown.points[0].path / "summary.json").stat().st_mtime_ns == written
    with pytest.raises(dfl.InvalidInput, match="holds another sweep"):
        dfl.sweep(TINY, {"local.batch": [5]}, rounds=2, progress=False)


class Failing(Softmax):
    """Raises an exception after ``left`` updates."""

    left = 6

    def update(self, params: Array, inputs: Array, targets: Array, local: dfl.Local) -> Array:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("no room")
        return super().update(params, inputs, targets, local)


def test_a_sweep_with_a_trainer_resumes_after_an_exception(federation: dfl.Federation) -> None:
    experiment: dict[str, Any] = {
        "name": "mine",
        "rounds": 3,
        "cohort": 4,
        "evaluate_every": 1,
        "local": dfl.SGD(lr=0.1, batch=8),
        "algorithm": [dfl.FedAvg()],
    }
    over = {"local.learning_rate": [0.1, 0.2]}
    keywords: dict[str, Any] = {"federation": federation, "progress": False}
    with pytest.raises(dfl.TrainerError, match=r"device ward-\d+: RuntimeError: no room"):
        dfl.sweep(experiment, over, trainer=Failing(5, 2), **keywords)
    assert [point.standing for point in dfl.Sweep("sweeps/mine")] == ["begun", "missing"]
    done = dfl.sweep(experiment, over, trainer=Softmax(5, 2), **keywords)
    for point in done:
        rate = point.settings["local.learning_rate"]
        alone = dfl.train(
            federation, Softmax(5, 2), dfl.FedAvg(), rounds=3, cohort=4, local=dfl.SGD(lr=rate, batch=8),
            evaluate_every=1, progress=False,
        )
        assert np.array_equal(point.run["fedavg"].params(), alone["fedavg"].params())
        assert point.run["fedavg"].arrays().keys() == {"fc.weight"}


def test_values_other_than_lists_are_rejected() -> None:
    with pytest.raises(dfl.InvalidInput, match="must be a non-empty list"):
        dfl.sweep(TINY, {"local.learning_rate": "0.1"})
    number: Any = 0.1
    with pytest.raises(dfl.InvalidInput, match="must be a non-empty list"):
        dfl.sweep(TINY, {"local.learning_rate": number})


class Damped(dfl.CustomAlgorithm):
    """Two parts, and an option that is a list."""

    damping = (0.5, 0.25)

    def weight(self, loss: float, examples: int, state: dfl.AlgorithmState) -> float:
        return 1.0

    def server_step(self, params: Array, mean_update: Array, state: dfl.AlgorithmState) -> Array:
        return params + self.damping[0] * mean_update


class Listed(Softmax):
    """A trainer with an option that is a list."""

    def options(self) -> dict[str, Any]:
        return {"shape": [5, 2]}


def test_lists_of_a_trainer_and_of_an_algorithm_are_not_swept(federation: dfl.Federation) -> None:
    experiment = {
        "name": "own",
        "rounds": 2,
        "cohort": 4,
        "local": dfl.SGD(lr=0.1, batch=8),
        "algorithm": [dfl.FedAvg(), Damped()],
    }
    over = {"local.learning_rate": [0.1, 0.2]}
    swept = dfl.sweep(experiment, over, federation=federation, trainer=Listed(5, 2), progress=False)
    assert [point.settings for point in swept] == [{"local.learning_rate": rate} for rate in (0.1, 0.2)]
    assert [track.name for track in swept.points[0].run] == ["FedAvg", "Damped"]
