"""Models that the user implements in Python."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import threading
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SHORT, blobs, ended, program
from numpy.typing import NDArray

import deltafl as dfl

Array = NDArray[Any]


class Softmax(dfl.Trainer):
    """Softmax regression in numpy, equivalent to ``models.Linear``."""

    def __init__(self, features: int, classes: int) -> None:
        self._shape = (classes, features)

    @property
    def num_params(self) -> int:
        return self._shape[0] * self._shape[1]

    def init(self, rng: np.random.Generator) -> Array:
        return np.zeros(self.num_params)

    def _probabilities(self, params: Array, inputs: Array) -> Array:
        logits = inputs.astype(np.float64) @ params.reshape(self._shape).T
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    def loss(self, params: Array, inputs: Array, targets: Array) -> tuple[float, Array]:
        probabilities = self._probabilities(params, inputs)
        return -np.log(probabilities[np.arange(len(targets)), targets]).sum(), probabilities.argmax(axis=1)

    def update(self, params: Array, inputs: Array, targets: Array, local: dfl.Local) -> Array:
        wide = params.astype(np.float64)
        for batch in local.batches():
            slope = self._probabilities(wide, inputs[batch])
            slope[np.arange(len(batch)), targets[batch]] -= 1
            gradient = (slope.T @ inputs[batch] / len(batch)).ravel()
            wide -= local.learning_rate * (gradient + local.l2 * wide)
        return wide

    def arrays(self, params: Array) -> dict[str, Array]:
        return {"fc.weight": params.reshape(self._shape)}


def trained(federation: dfl.Federation, trainer: dfl.Trainer, **keywords: Any) -> dfl.Run:
    algorithms = [dfl.FedAvg(), dfl.DeltaFL(theta=0.5)]
    return dfl.train(federation, trainer, algorithms, **{**SHORT, **keywords})


@pytest.mark.parametrize("local", [dfl.SGD(lr=0.1, batch=8, epochs=2), dfl.SGD(lr=0.1, batch=8, steps=3)])
def test_an_equivalent_trainer_computes_the_same_params(
    federation: dfl.Federation, local: dfl.SGD
) -> None:
    mine = trained(federation, Softmax(5, 2), local=local)
    ours = dfl.train(
        federation,
        dfl.models.Linear(intercept=False),
        [dfl.FedAvg(), dfl.DeltaFL(theta=0.5)],
        **{**SHORT, "local": local},
    )
    for name in ("fedavg", "theta=0.5"):
        expected = ours[name].arrays()["fc.weight"]
        assert np.allclose(mine[name].arrays()["fc.weight"], expected, rtol=1e-4, atol=1e-6)
    mean = [table["test"]["mean"]["mean"] for table in (run.summary()["tracks"][1] for run in (mine, ours))]
    assert mean[0] == pytest.approx(mean[1], abs=0.02)


def test_masks_private_quantiles_and_workers_change_no_bit(federation: dfl.Federation) -> None:
    plain = trained(federation, Softmax(5, 2))["theta=0.5"].params()
    assert np.array_equal(plain, trained(federation, Softmax(5, 2), secagg="real")["theta=0.5"].params())
    assert np.array_equal(plain, trained(federation, Softmax(5, 2), threads=3)["theta=0.5"].params())
    private = [dfl.DeltaFL(theta=0.5, quantile="histogram")]
    found = [
        dfl.train(federation, Softmax(5, 2), private, **{**SHORT, "secagg": secagg}).tracks[0].params()
        for secagg in ("plain", "real")
    ]
    assert np.array_equal(found[0], found[1])


def test_a_resumed_run_is_bitwise_equal(federation: dfl.Federation) -> None:
    trained(federation, Softmax(5, 2), name="parts", rounds=2)
    parts = trained(federation, Softmax(5, 2), name="parts", rounds=4, resume=True)
    whole = trained(federation, Softmax(5, 2), rounds=4)
    assert np.array_equal(parts["fedavg"].params(), whole["fedavg"].params())


class Failing(Softmax):
    """Raises an exception after ``left`` updates."""

    left = 3

    def update(self, params: Array, inputs: Array, targets: Array, local: dfl.Local) -> Array:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("the disk of the ward is full")
        return super().update(params, inputs, targets, local)


@pytest.mark.parametrize("secagg", ["plain", "real"])
@pytest.mark.parametrize("threads", [1, 2])
def test_an_exception_of_the_trainer_names_the_device_and_the_run_can_be_resumed(
    federation: dfl.Federation, threads: int, secagg: str
) -> None:
    failing = Failing(5, 2)
    failing.left = 12
    keywords = {"name": "broken", "threads": threads, "secagg": secagg}
    with pytest.raises(dfl.TrainerError, match=r"device ward-\d+: RuntimeError: the disk") as raised:
        trained(federation, failing, **keywords)
    assert isinstance(raised.value.__cause__, RuntimeError)
    assert raised.value.__cause__.__traceback__ is not None
    resumed = trained(federation, Softmax(5, 2), resume=True, **keywords)
    whole = trained(federation, Softmax(5, 2))
    assert np.array_equal(resumed["fedavg"].params(), whole["fedavg"].params())


class Invalid(Softmax):
    """Returns an invalid value from one method."""

    def __init__(self, method: str, answer: Any) -> None:
        super().__init__(5, 2)
        self._method, self._answer = method, answer

    def init(self, rng: np.random.Generator) -> Array:
        return self._answer if self._method == "init" else super().init(rng)  # type: ignore[no-any-return]

    def loss(self, params: Array, inputs: Array, targets: Array) -> tuple[float, Array]:
        return self._answer if self._method == "loss" else super().loss(params, inputs, targets)  # type: ignore[no-any-return]

    def update(self, params: Array, inputs: Array, targets: Array, local: dfl.Local) -> Array:
        return self._answer if self._method == "update" else super().update(params, inputs, targets, local)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("method", "answer", "message"),
    [
        ("init", np.zeros(3), r"init must return a vector of 10 params, got shape \(3,\)"),
        ("loss", 1.0, r"loss must return \(sum of the losses, predictions\)"),
        ("loss", (1.0, np.zeros((2, 2))), "loss must return one prediction per target"),
        ("update", np.zeros((2, 5)), r"update must return a vector of 10 params, got shape \(2, 5\)"),
        ("update", "nothing", "could not convert string"),
    ],
)
def test_invalid_return_values_are_reported_with_the_device(
    federation: dfl.Federation, method: str, answer: Any, message: str
) -> None:
    with pytest.raises(dfl.TrainerError, match=rf"(?s)device ward-\d+: .*{message}"):
        trained(federation, Invalid(method, answer))


def test_an_update_that_is_not_finite_is_excluded_and_counted(federation: dfl.Federation) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    out = trained(federation, Invalid("update", np.full(10, np.nan)))
    rounds = pyarrow.table(out.rounds())
    assert set(rounds["refused"].to_pylist()) >= {4}
    assert not out["fedavg"].params().any(), "the model did not change"


def test_a_loss_that_is_not_finite_is_excluded_and_the_other_devices_train(federation: dfl.Federation) -> None:
    class NanLoss(Softmax):
        """Returns NaN as the loss of one device."""

        def loss(self, params: Array, inputs: Array, targets: Array) -> tuple[float, Array]:
            loss, predicted = super().loss(params, inputs, targets)
            return (np.nan if np.array_equal(inputs, federation["ward-1"][0]) else loss), predicted

    out = trained(federation, NanLoss(5, 2), cohort=8)
    assert np.isfinite(out["theta=0.5"].params()).all() and out["theta=0.5"].params().any()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_and_a_thread_train_bitwise_equal_params(federation: dfl.Federation) -> None:
    def train(name: str) -> None:
        trained(federation, Softmax(5, 2), name=name, threads=2)

    train("parent")
    child = multiprocessing.get_context("fork").Process(target=train, args=("child",))
    child.start()
    thread = threading.Thread(target=train, args=("thread",))
    thread.start()
    thread.join()
    child.join(timeout=120)
    assert child.exitcode == 0
    expected = dfl.Run("runs/parent")["theta=0.5"].params()
    for name in ("child", "thread"):
        assert np.array_equal(dfl.Run(f"runs/{name}")["theta=0.5"].params(), expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("where", ["thread", "child"])
def test_an_exception_in_a_thread_or_a_child_process_names_the_device_and_the_run_can_be_resumed(
    federation: dfl.Federation, where: str
) -> None:
    if where == "child" and not hasattr(os, "fork"):
        pytest.skip("there is no fork")
    here, there = multiprocessing.Pipe(duplex=False)

    def train() -> None:
        failing = Failing(5, 2)
        failing.left = 12
        try:
            trained(federation, failing, name="broken", threads=2)
        except dfl.TrainerError as error:
            there.send((str(error), type(error.__cause__).__name__))

    forked = multiprocessing.get_context("fork")
    trains: Any = threading.Thread(target=train) if where == "thread" else forked.Process(target=train)
    trains.start()
    assert here.poll(60), "the exception was raised"
    message, cause = here.recv()
    trains.join()
    assert re.match(r"device ward-\d+: RuntimeError: the disk", message) and cause == "RuntimeError"
    resumed = trained(federation, Softmax(5, 2), name="broken", resume=True)
    whole = trained(federation, Softmax(5, 2))
    assert np.array_equal(resumed["fedavg"].params(), whole["fedavg"].params())


@pytest.mark.parametrize("trainer", [Softmax, Failing])
def test_arrays_and_trainers_are_released_with_their_run(trainer: type[Softmax]) -> None:
    def train() -> list[weakref.ref[Any]]:
        inputs, targets = np.ones((40, 5), dtype=np.float32), np.arange(40) % 2
        data = dfl.Federation.from_arrays(inputs, targets, np.repeat(np.arange(8), 5))
        mine = trainer(5, 2)
        try:
            run = trained(data, mine, threads=2)
            assert run["fedavg"].params().any()
        except dfl.TrainerError:
            assert trainer is Failing
        return [weakref.ref(inputs), weakref.ref(mine)]

    held = train()
    gc.collect()
    # The next call frees objects that a thread released without holding the interpreter lock.
    dfl.superquantile([1.0], theta=0.5)
    assert [reference() for reference in held] == [None, None]


#: Three threads compute losses. The first raises an exception whose message takes long to format.
#: The second continues with the next device meanwhile. The third raises while the second receives
#: the first exception.
SLOW_MESSAGE = """
import threading, time
import numpy as np
import deltafl as dfl
from conftest import SHORT
from test_trainer import Softmax

scoring, role = threading.Barrier(3), threading.local()
formatted, formatted_again = threading.Event(), threading.Event()

class Slow(Exception):
    def __str__(self):
        if formatted.is_set():
            formatted_again.set()
            time.sleep(0.5)
        formatted.set()
        return "slow message"

class Three(Softmax):
    def loss(self, params, inputs, targets):
        if not hasattr(role, "number"):
            role.number = scoring.wait()
            if role.number == 0:
                raise Slow
            if role.number == 2:
                formatted_again.wait(1)
                raise RuntimeError("a second one")
            formatted.wait()
        time.sleep(0.001)
        return super().loss(params, inputs, targets)

data = dfl.Federation({f"ward-{k}": (np.ones((1, 5)), np.array([k % 2])) for k in range(4000)})
try:
    dfl.train(data, Three(5, 2), dfl.DeltaFL(theta=0.5, quantile="open"), **{**SHORT, "cohort": 4000}, threads=3)
except dfl.TrainerError as error:
    print(error)
"""


def test_exceptions_on_two_threads_do_not_deadlock(tmp_path: Path) -> None:
    _, out, err = ended(program(tmp_path / "program.py", SLOW_MESSAGE))
    assert re.match(r"device ward-\d+: (Slow: slow message|RuntimeError: a second one)", out), err


def test_a_regression_trainer_has_regression_metrics() -> None:
    class Mean(dfl.Trainer):
        task = "regression"
        num_params = 1  # type: ignore[assignment]

        def init(self, rng: np.random.Generator) -> Array:
            return np.zeros(1)

        def loss(self, params: Array, inputs: Array, targets: Array) -> tuple[float, Array]:
            predicted = np.full(len(targets), params[0])
            return float(0.5 * ((predicted - targets) ** 2).sum()), predicted

        def update(self, params: Array, inputs: Array, targets: Array, local: dfl.Local) -> Array:
            for batch in local.batches():
                params -= local.learning_rate * (params[0] - targets[batch].mean())
            return params

    rng = np.random.default_rng(5)
    devices = {f"d{k}": (np.ones((6, 1)), rng.normal(3.0, 0.1, size=6)) for k in range(5)}
    out = dfl.train(
        dfl.Federation(devices), Mean(), dfl.FedAvg(), **{**SHORT, "rounds": 40, "evaluate_every": 40}
    )
    assert out.tracks[0].params()[0] == pytest.approx(3.0, abs=0.1)
    assert {"rmse", "mae", "r_squared"} <= set(out.devices().columns)
    classes = dfl.Federation({"d": (np.ones((6, 1)), np.arange(6))})
    with pytest.raises(dfl.InvalidInput, match='the targets are classes, but the trainer has task="regression"'):
        dfl.train(classes, Mean(), dfl.FedAvg(), **SHORT)
    with pytest.raises(dfl.InvalidInput, match="the targets are real numbers, but the trainer has task='classes'"):
        dfl.train(dfl.Federation(devices), Softmax(1, 2), dfl.FedAvg(), **SHORT)


def test_random_numbers_are_keyed_by_device_round_and_seed() -> None:
    seen: list[tuple[float, ...]] = []

    class Noisy(Softmax):
        def update(self, params: Array, inputs: Array, targets: Array, local: dfl.Local) -> Array:
            drawn = local.rng().normal(size=self.num_params)
            seen.append(tuple(drawn))
            return params + 0.01 * drawn

    federation = blobs()
    first = trained(federation, Noisy(5, 2), threads=1)
    once = sorted(seen)
    seen.clear()
    second = trained(federation, Noisy(5, 2), threads=2)
    assert sorted(seen) == once
    assert max(Counter(once).values()) <= 2, "only the two models of a run share random numbers"
    assert np.array_equal(first["fedavg"].params(), second["fedavg"].params())


@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [(dfl.SCAFFOLD(), "it corrects the gradient"), (dfl.FineTuning(), "it trains a personal model")],
)
def test_an_algorithm_that_needs_more_than_a_trainer_is_refused_before_training(
    federation: dfl.Federation, algorithm: Any, reason: str
) -> None:
    with pytest.raises(dfl.InvalidInput, match=f"cannot be trained by your trainer: {reason}"):
        dfl.train(federation, Softmax(5, 2), algorithm, out="never", **SHORT)
    assert not Path("never").exists()


def test_a_trainer_on_another_backend_is_refused(federation: dfl.Federation) -> None:
    with pytest.raises(dfl.InvalidInput, match='compute="cuda" applies to built-in models'):
        dfl.train(federation, Softmax(5, 2), dfl.FedAvg(), compute="cuda", **SHORT)


def test_other_options_of_a_trainer_are_noticed_on_resume(federation: dfl.Federation) -> None:
    class Described(Softmax):
        speed = "slow"

        def options(self) -> dict[str, Any]:
            return {"speed": self.speed}

    trainer = Described(5, 2)
    dfl.train(federation, trainer, dfl.FedAvg(), out="here", **SHORT)
    trainer.speed = "fast"
    with pytest.raises(dfl.InvalidInput, match=r'model\.external\.speed: "slow" → "fast"'):
        dfl.train(federation, trainer, dfl.FedAvg(), out="here", resume=True, **SHORT)


def test_a_trainer_without_its_number_of_params_is_refused(federation: dfl.Federation) -> None:
    class Nameless(Softmax):
        num_params = None  # type: ignore[assignment]

        def __init__(self) -> None: ...

    with pytest.raises(dfl.InvalidInput, match="Nameless must define num_params"):
        dfl.train(federation, Nameless(), dfl.FedAvg(), **SHORT)


class Positions(dfl.Trainer):
    """Predicts a class per position from the token alone: one score per token and class."""

    num_params = 4 * 3

    def init(self, rng: Any) -> Any:
        return np.zeros(12)

    def _scores(self, params: Any, inputs: Any) -> Any:
        assert inputs["tokens"].dtype == np.int64 and inputs["mask"].dtype == bool
        return params.reshape(4, 3)[inputs["tokens"]]

    def loss(self, params: Any, inputs: Any, targets: Any) -> Any:
        scores = self._scores(params, inputs)
        chance = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
        counted = targets != -100
        assert (counted == inputs["mask"]).all()
        log = -np.log(np.take_along_axis(chance, np.maximum(targets, 0)[..., None], axis=-1))[..., 0]
        return float((log * counted).sum()), scores.argmax(axis=-1)

    def update(self, params: Any, inputs: Any, targets: Any, local: dfl.Local) -> Any:
        table = params.reshape(4, 3)
        for batch in local.batches():
            for tokens, wanted, mask in zip(inputs["tokens"][batch], targets[batch], inputs["mask"][batch]):
                for token, target in zip(tokens[mask], wanted[mask]):
                    table[token, target] += local.learning_rate
        return params


def test_a_trainer_receives_tokens_and_mask_with_a_target_per_position() -> None:
    rng = np.random.default_rng(5)

    def device() -> Any:
        texts = [rng.integers(0, 4, size=length) for length in rng.integers(2, 7, size=6)]
        return {"tokens": texts}, [text % 3 for text in texts]

    federation = dfl.Federation({f"d{k}": device() for k in range(6)})
    inputs, targets = federation["d0"]
    assert inputs["tokens"].shape == inputs["mask"].shape == targets.shape == (6, 6)
    run = dfl.train(federation, Positions(), dfl.FedAvg(), **{**SHORT, "rounds": 5})
    assert run.table().to_dict()["mean"] == [0.0], "the rule is learned"
    federation.save("saved")
    again = dfl.Federation.open("saved")
    assert again["d0"][1].tolist() == targets.tolist() and again["d0"][0]["mask"].dtype == bool
    with pytest.raises(dfl.InvalidInput, match="built-in models need one matrix"):
        dfl.train(federation, dfl.models.Linear(), dfl.FedAvg(), **SHORT)


def test_the_state_of_a_device_survives_a_resumption(federation: dfl.Federation) -> None:
    class Own(Softmax):
        def update(self, params: Any, inputs: Any, targets: Any, local: dfl.Local) -> Any:
            local.state["n"] = local.state.get("n", 0.0) + 1.0
            return params + local.state["n"] * (super().update(params.copy(), inputs, targets, local) - params)

    options = {**SHORT, "rounds": 4, "evaluate_every": 2}
    whole = dfl.train(federation, Own(5, 2), dfl.FedAvg(), out="whole", **options)
    dfl.train(federation, Own(5, 2), dfl.FedAvg(), out="part", **{**options, "rounds": 2})
    part = dfl.train(federation, Own(5, 2), dfl.FedAvg(), out="part", resume=True, **options)
    assert part[0].params().tobytes() == whole[0].params().tobytes()
    once = dfl.train(federation, Softmax(5, 2), dfl.FedAvg(), out="once", **options)
    assert once[0].params().tobytes() != whole[0].params().tobytes()


class Stateful(Softmax):
    """Uses random numbers, and the state of the device."""

    def update(self, params: Any, inputs: Any, targets: Any, local: dfl.Local) -> Any:
        local.state["n"] = local.state.get("n", 0.0) + 1.0
        noise = local.rng().normal(scale=0.01, size=len(params))
        return super().update(params, inputs, targets, local) + local.state["n"] * noise


class Raising(Softmax):
    def update(self, params: Any, inputs: Any, targets: Any, local: dfl.Local) -> Any:
        raise ZeroDivisionError("an error of mine")


def test_processes_give_the_same_bits_as_threads(federation: dfl.Federation) -> None:
    algorithms = [dfl.FedAvg(), dfl.DeltaFL(theta=0.5)]
    threads = dfl.train(federation, Stateful(5, 2), algorithms, threads=2, out="threads", **SHORT)
    processes = dfl.train(federation, Stateful(5, 2), algorithms, workers=2, out="processes", **SHORT)
    for one, other in zip(threads, processes):
        assert one.params().tobytes() == other.params().tobytes()
    assert processes[0].predict(federation["ward-0"][0]).shape == (30,)


def test_an_exception_in_a_process_names_the_device(federation: dfl.Federation) -> None:
    with pytest.raises(dfl.TrainerError, match="device ward-.*an error of mine") as raised:
        dfl.train(federation, Raising(5, 2), dfl.FedAvg(), workers=1, **SHORT)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    local = type("Local", (Softmax,), {})
    with pytest.raises(dfl.InvalidInput, match="cannot be pickled"):
        dfl.train(federation, local(5, 2), dfl.FedAvg(), workers=1, **SHORT)
    with pytest.raises(dfl.InvalidInput, match="workers= is a number of processes for a Trainer"):
        dfl.train(federation, dfl.models.Linear(), dfl.FedAvg(), workers=1, **SHORT)
