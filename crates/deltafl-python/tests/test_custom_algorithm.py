"""Algorithms written in Python: equality with the built-in ones, state, errors and deployment."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
import sys
from typing import Any

import numpy as np
import pytest
from conftest import SHORT
from test_run import TINY
from test_trainer import Softmax

import deltafl as dfl


class Yogi(dfl.CustomAlgorithm):
    def __init__(self, rate: float = 0.1) -> None:
        self.rate, self.beta1, self.beta2, self.tau = rate, 0.9, 0.99, 1e-3

    def server_step(self, params: Any, mean_update: Any, state: dfl.AlgorithmState) -> Any:
        square = mean_update**2
        v = state.get("v", np.full_like(params, self.tau**2))
        state["m"] = self.beta1 * state.get("m", 0.0) + (1 - self.beta1) * mean_update
        state["v"] = v - (1 - self.beta2) * square * np.sign(v - square)
        return params + self.rate * state["m"] / (np.sqrt(state["v"]) + self.tau)


class Tilted(dfl.CustomAlgorithm):
    def __init__(self, tilt: float = 1.0) -> None:
        self.tilt = tilt

    def weight(self, loss: float, examples: int, state: dfl.AlgorithmState) -> float:
        return 1.0 if state.mean_loss is None else math.exp(self.tilt * (loss - state.mean_loss))


class Power(dfl.CustomAlgorithm):
    reports = ("curvature",)

    def __init__(self, q: float = 1.0) -> None:
        self.q = q

    def weight(self, loss: float, examples: int, state: dfl.AlgorithmState) -> float:
        return (max(loss, 0.0) / (state.mean_loss or 1.0)) ** self.q

    def report(self, loss: float, weight: float, squared_norm: float, state: dfl.AlgorithmState) -> list[float]:
        return [weight * squared_norm / max(loss, sys.float_info.min)]

    def server_step(self, params: Any, mean_update: Any, state: Any) -> Any:
        curvature = self.q * state.reports["curvature"] / state.learning_rate
        return params + state.weight / (state.weight + curvature) * mean_update


class Upper(dfl.CustomAlgorithm):
    def __init__(self, theta: float = 0.5) -> None:
        self.theta = theta

    def select(self, losses: Any, state: Any) -> Any:
        return losses >= dfl.quantile(losses, self.theta, weights=state.weights)


PAIRS = [
    (Yogi(), dfl.FedYogi(server_rate=0.1, beta1=0.9, beta2=0.99, tau=1e-3), 1e-6),
    (Tilted(2.0), dfl.TERM(tilt=2.0), 0.0),
    (Power(1.0), dfl.QFFL(q=1.0), 0.0),
    (Upper(0.5), dfl.DeltaFL(theta=0.5), 0.0),
]


def lines(kind: type) -> int:
    """Returns the number of lines of a class that contain code."""
    return len([line for line in inspect.getsource(kind).splitlines() if line.strip()])


@pytest.mark.parametrize(("mine", "built_in", "tolerance"), PAIRS)
def test_an_algorithm_of_at_most_15_lines_equals_the_built_in_one(
    federation: dfl.Federation, mine: dfl.CustomAlgorithm, built_in: dfl.FedAvg, tolerance: float
) -> None:
    assert lines(type(mine)) <= 15
    options = {**SHORT, "rounds": 8, "evaluate_every": 4}
    run = dfl.train(federation, dfl.models.Linear(), [mine, built_in, dfl.FedAvg()], **options)
    own, other, plain = (track.params() for track in run)
    assert np.abs(own - other).max() <= tolerance
    assert np.abs(own - plain).max() > 1e-4, "the algorithm has an effect"
    assert run.report(figures=False).path.exists()


@pytest.mark.parametrize("mine", [Yogi(), Power()])
def test_secure_sums_and_threads_give_the_same_bits(federation: dfl.Federation, mine: Any) -> None:
    bits = [
        dfl.train(federation, dfl.models.Linear(), mine, name=f"t{threads}{secagg}", secagg=secagg, threads=threads, **SHORT)[0].params().tobytes()
        for threads, secagg in [(1, "plain"), (2, "plain"), (1, "real")]
    ]
    assert bits[0] == bits[1] == bits[2]


def test_a_run_resumes_with_the_state_of_the_algorithm(federation: dfl.Federation) -> None:
    class Stop(dfl.callbacks.Callback):
        def on_round(self, event: dfl.callbacks.RoundEnd) -> bool:
            return event.round == 2

    options = {**SHORT, "rounds": 5, "evaluate_every": 10}
    whole = dfl.train(federation, dfl.models.Linear(), [Yogi(), dfl.FedAvg()], out="whole", **options)
    dfl.train(federation, dfl.models.Linear(), [Yogi(), dfl.FedAvg()], out="part", callbacks=[Stop()], **options)
    resumed = dfl.train(federation, dfl.models.Linear(), [Yogi(), dfl.FedAvg()], out="part", resume=True, **options)
    assert resumed["Yogi"].params().tobytes() == whole["Yogi"].params().tobytes()
    with pytest.raises(dfl.InvalidInput, match=r"algorithm\.0\.external\.options\.rate: 0\.1 → 0\.2"):
        dfl.train(federation, dfl.models.Linear(), [Yogi(0.2), dfl.FedAvg()], out="part", resume=True, **options)


def test_options_tell_models_of_one_class_apart_and_a_reopened_run_needs_no_class(federation: dfl.Federation) -> None:
    run = dfl.train(federation, dfl.models.Linear(), [Yogi(0.1), Yogi(0.5), Tilted()], **SHORT)
    again = dfl.Run(run.path)
    assert [track.name for track in again] == ["Yogi rate=0.1", "Yogi rate=0.5", "Tilted"]
    assert again["Yogi rate=0.5"].algorithm == "external"
    assert again.experiment["algorithm"][0]["external"]["replaces"] == ["server-step"]


def test_the_base_provides_the_other_parts(federation: dfl.Federation) -> None:
    class Halved(dfl.CustomAlgorithm):
        base = dfl.DeltaFL(theta=[1.0, 0.5], quantile="histogram")

        def server_step(self, params: Any, mean_update: Any, state: Any) -> Any:
            assert state.eta is not None
            return params + 0.5 * mean_update

    run = dfl.train(federation, dfl.models.Linear(), Halved(), **{**SHORT, "rounds": 4})
    assert [track.theta for track in run] == [1.0, 0.5]
    assert run.experiment["weights"] == "uniform", "the quantile is private"


def test_a_device_keeps_its_state_and_an_algorithm_may_define_the_local_update(federation: dfl.Federation) -> None:
    seen: dict[str, list[float]] = {"rounds": []}

    class Counting(dfl.CustomAlgorithm):
        def update(self, trainer: Any, params: Any, inputs: Any, targets: Any, local: dfl.Local) -> Any:
            local.state["rounds"] = local.state.get("rounds", 0.0) + 1.0
            local.state["last"] = params
            seen["rounds"].append(local.state["rounds"])
            return params + 2 * (trainer.update(params.copy(), inputs, targets, local) - params)

    options = {**SHORT, "rounds": 4, "cohort": 8}
    run = dfl.train(federation, Softmax(5, 2), [Counting(), dfl.FedAvg()], out="whole", **options)
    assert seen["rounds"] == [float(t) for t in range(1, 5) for _ in range(8)], "all eight train devices, each round"
    assert np.abs(run[0].params() - run[1].params()).max() > 1e-3
    with pytest.raises(dfl.InvalidInput, match="Counting defines update, which requires a Trainer"):
        dfl.train(federation, dfl.models.Linear(), Counting(), **SHORT)


def test_an_exception_names_the_round_and_the_algorithm(federation: dfl.Federation) -> None:
    class Wrong(dfl.CustomAlgorithm):
        def server_step(self, params: Any, mean_update: Any, state: Any) -> Any:
            if "once" in state:
                raise ZeroDivisionError("an error of mine")
            state["once"] = 1
            return params + mean_update

    with pytest.raises(dfl.AlgorithmError, match=r"round 1: the algorithm Wrong failed: .*an error of mine") as raised:
        dfl.train(federation, dfl.models.Linear(intercept=False), [dfl.FedAvg(), Wrong()], name="wrong", **SHORT)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    again = dfl.Run("runs/wrong")
    assert len(again.rounds()) == 2, "the failed round is not recorded"


@pytest.mark.parametrize(
    ("method", "answer", "message"),
    [
        ("weight", -1.0, "weight must return a finite number, 0 or above, got -1.0"),
        ("weight", float("nan"), "got nan"),
        ("select", [True], "select must return one value per loss"),
        ("server_step", [1.0], "server_step must return a vector of 10 params"),
        ("server_step", "text", "could not convert"),
    ],
)
def test_wrong_answers_are_refused(federation: dfl.Federation, method: str, answer: Any, message: str) -> None:
    kind = type("Wrong", (dfl.CustomAlgorithm,), {method: lambda self, *given: answer})
    with pytest.raises(dfl.AlgorithmError, match=message):
        dfl.train(federation, dfl.models.Linear(intercept=False), kind(), **SHORT)


def test_what_secure_sums_and_deployments_do_not_allow_is_refused_with_a_reason(federation: dfl.Federation) -> None:
    with pytest.raises(dfl.InvalidInput, match="the program selects devices by name, from their losses"):
        dfl.train(federation, dfl.models.Linear(), Upper(), secagg="real", **SHORT)
    experiment = {"name": "x", "rounds": 1, "cohort": 3, "local": dfl.SGD(lr=0.1, batch=8), "weights": "uniform"}
    server = dfl.Server({**experiment, "algorithm": [Tilted()]}, trainer=Softmax(5, 2), devices=["a", "b", "c"])
    with pytest.raises(dfl.InvalidInput, match="deployed devices do not know the weight"):
        server.serve()
    section = {"kind": "fedavg", "external": {"name": "Yogi", "replaces": ["server-step"]}}
    with pytest.raises(dfl.InvalidInput, match="the algorithm Yogi is implemented by a program"):
        dfl.run({**TINY, "algorithm": [section]})


def test_a_deployed_server_steps_in_python(federation: dfl.Federation) -> None:
    experiment = {
        "name": "deployed", "rounds": 3, "cohort": 4, "local": dfl.SGD(lr=0.1, batch=8),
        "weights": "uniform", "algorithm": [Yogi()],
    }
    simulated = dfl.train(
        federation, Softmax(5, 2), Yogi(), rounds=3, cohort=4, local=dfl.SGD(lr=0.1, batch=8),
        weights="uniform", tracks="in-turn", secagg="real", progress=False,
    )
    names = federation.split("train")
    serving = dfl.Server(experiment, trainer=Softmax(5, 2), devices=names, wait_for=len(names), progress=False)
    with serving as server, contextlib.ExitStack() as stack:
        for name in names:
            device = dfl.Device(server, name=name, reproducible=True)
            stack.enter_context(device.start(Softmax(5, 2), federation))
        run = server.wait()
    assert run["Yogi"].params().tobytes() == simulated["Yogi"].params().tobytes()


def test_the_help_of_a_built_in_algorithm_explains_all_its_options() -> None:
    for name in dfl._algorithms.__all__:
        kind = getattr(dfl, name)
        if kind is not dfl.Algorithm:
            for option in (field.name for field in dataclasses.fields(kind)):
                assert f"{option}: " in (kind.__doc__ or ""), f"{name}.{option}"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("fedavg", r"the string 'fedavg': write dfl\.FedAvg\(…\)"),
        (dfl.FedAvg, r"the class FedAvg: write FedAvg\(…\)"),
        ([dfl.FedAvg(), 3], "got 3"),
        (dfl.CustomAlgorithm(), "CustomAlgorithm defines none of the methods"),
    ],
)
def test_other_objects_are_refused_as_algorithms(federation: dfl.Federation, given: Any, message: str) -> None:
    with pytest.raises(dfl.InvalidInput, match=message):
        dfl.train(federation, dfl.models.Linear(), given, **SHORT)


def test_a_state_accepts_numbers_and_vectors_only() -> None:
    state = dfl.AlgorithmState()
    state["number"], state["matrix"] = 3, np.ones((2, 2))
    assert state["number"] == 3.0 and state["matrix"].shape == (4,) and state["matrix"].dtype == np.float32
    del state["number"]
    assert list(state) == ["matrix"] and len(state) == 1
    with pytest.raises(dfl.InvalidInput, match="must be a number or an array"):
        state["text"] = "no"


