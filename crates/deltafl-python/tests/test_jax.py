"""Models of JAX, in one call and against the built-in models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import deltafl as dfl

jax = pytest.importorskip("jax", reason="JAX is not installed")
dfl_jax = pytest.importorskip("deltafl.jax")
jnp = jax.numpy

from deltafl._cohort import ArrayCohort  # noqa: E402

#: The numbers of examples of the devices.
SIZES = [9, 4, 7, 1, 12]


def federation(classes: int | None) -> dfl.Federation:
    rng = np.random.default_rng(3)
    rows = sum(SIZES)
    inputs = rng.standard_normal((rows, 6)).astype(np.float32)
    targets: Any = rng.standard_normal(rows).astype(np.float32)
    if classes is not None:
        targets = rng.integers(classes, size=rows).astype(np.uint32)
    return dfl.Federation.from_arrays(inputs, targets, np.repeat([f"d{k}" for k in range(len(SIZES))], SIZES))


def trained(model: Any, data: dfl.Federation, algorithms: Any, out: str, **options: Any) -> Any:
    return dfl.train(
        data, model, algorithms, rounds=3, cohort=4, split={"train": 1.0}, local=dfl.SGD(lr=0.2, batch=4, epochs=2),
        progress=False, out=out, **options,
    )  # fmt: skip


def linear(classes: int, task: Any = "classes", **options: Any) -> Any:
    def init(key: Any) -> Any:
        return {"weight": jnp.zeros((classes, 6))}

    def apply(params: Any, inputs: Any) -> Any:
        return inputs @ params["weight"].T

    return dfl_jax.Model(init, apply, task=task, **options)


ALGORITHMS = [dfl.FedAvg(), dfl.DeltaFL(theta=0.5), dfl.FedProx(mu=0.5), dfl.SCAFFOLD(), dfl.FedDyn(regularisation=0.1)]


def test_a_linear_model_agrees_with_the_built_in_one() -> None:
    data, classes = federation(3), 3
    mine = trained(linear(classes, l2=0.01), data, ALGORITHMS, "mine")
    built_in = trained(dfl.models.Linear(intercept=False, l2=0.01), data, ALGORITHMS, "built-in")
    for one, other in zip(mine, built_in):
        found, expected = one.arrays()["['weight']"], next(iter(other.arrays().values()))
        assert np.abs(found).max() > 1e-2, "it has trained"
        assert np.linalg.norm(found - expected) <= 1e-5 * np.linalg.norm(expected)
    mine, built_in = (run.devices().to_dict() for run in (mine, built_in))
    assert np.allclose(mine["loss"], built_in["loss"], rtol=1e-5) and np.allclose(mine["error"], built_in["error"])


@pytest.mark.parametrize("task", ["classes", "binary", "regression"])
def test_devices_in_one_call_agree_with_one_after_another(task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = federation({"classes": 3, "binary": 2, "regression": None}[task])
    outputs = 3 if task == "classes" else 1
    calls: list[int] = []
    update_cohort = dfl_jax.Model.update_cohort

    def init(key: Any) -> Any:
        first, second = jax.random.split(key)
        return [jax.random.normal(first, (6, 5)), jnp.zeros(5), jax.random.normal(second, (5, outputs))]

    def apply(params: Any, inputs: Any) -> Any:
        return jnp.tanh(inputs.reshape(-1, 6) @ params[0] + params[1]) @ params[2]

    def counted(self: Any, devices: Any) -> Any:
        calls.append(len(devices))
        return update_cohort(self, devices)

    monkeypatch.setattr(dfl_jax.Model, "update_cohort", counted)
    found = []
    for out in ("in one call", "one by one"):
        model = dfl_jax.Model(init, apply, task=task, shape=(2, 3))
        found.append(trained(model, data, dfl.FedAvg(), out)[0].params())
        monkeypatch.setattr(ArrayCohort, "serves", lambda trainer: False)
    assert calls == [4, 4, 4, *[1] * 12]
    assert np.linalg.norm(found[0] - found[1]) <= 1e-5 * np.linalg.norm(found[1])


def test_a_loss_of_the_user_and_predictions() -> None:
    def smoothed(outputs: Any, targets: Any) -> Any:
        wanted = 0.9 * jax.nn.one_hot(targets, 3) + 0.1 / 3
        return -(wanted * jax.nn.log_softmax(outputs)).sum(-1)

    run = trained(linear(3, loss=smoothed), federation(3), dfl.FedAvg(), "own")
    predicted = run[0].predict_proba(np.ones((4, 6), dtype=np.float32))
    assert predicted.shape == (4, 3) and np.allclose(predicted.sum(axis=1), 1.0)


def test_parameters_of_another_type_are_refused() -> None:
    with pytest.raises(dfl.errors.InvalidInput, match="float32"):
        dfl_jax.Model(lambda key: jnp.zeros(3, dtype=jnp.float16), lambda params, inputs: inputs @ params)


def test_losses_and_functions_that_do_not_fit_are_explained() -> None:
    losses: dict[str, Any] = {
        "mean": lambda o, t: ((o - t) ** 2).mean(),
        "column": lambda o, t: (o[:, None] - t[:, None]) ** 2,
    }
    for name, loss in losses.items():
        model = dfl_jax.Model(lambda key: jnp.zeros(6), lambda w, x: x @ w, loss, task="regression")
        with pytest.raises(dfl.TrainerError, match="loss must return the loss of each example"):
            trained(model, federation(None), dfl.FedAvg(), name)
    with pytest.raises(dfl.InvalidInput, match="init must be a function, got dict"):
        dfl_jax.Model({}, lambda w, x: x)  # type: ignore[arg-type]
    with pytest.raises(dfl.InvalidInput, match="init returned no parameters"):
        dfl_jax.Model(lambda key: {}, lambda w, x: x)


def test_models_and_losses_that_mix_examples_are_rejected() -> None:
    def relative(outputs: Any, targets: Any) -> Any:
        losses = (outputs - targets) ** 2
        return losses / losses.mean()

    def centred(params: Any, inputs: Any) -> Any:
        return (inputs - inputs.mean(0)) @ params

    cases: dict[str, tuple[Any, Any, str]] = {
        "output": (centred, None, "the output of apply for one example depends on the other examples"),
        "loss": (lambda w, x: x @ w, relative, "the loss for one example depends on the other examples"),
    }
    for name, (apply, loss, message) in cases.items():
        # All outputs are equal at w = 0.
        model = dfl_jax.Model(lambda key: jnp.zeros(6), apply, loss, task="regression")
        with pytest.raises(dfl.TrainerError, match=message) as raised:
            trained(model, federation(None), dfl.FedAvg(), name)
        assert isinstance(raised.value.__cause__, dfl.InvalidInput)


def test_large_outputs_and_deep_models_are_not_rejected() -> None:
    def init(key: Any) -> Any:
        return [jax.random.normal(one, (6, 6)) for one in jax.random.split(key, 12)]

    def apply(params: Any, inputs: Any) -> Any:
        for layer in params:
            inputs = inputs + jnp.tanh(inputs @ layer)
        return 1e4 * inputs

    rng = np.random.default_rng(1)
    for examples in (2, 3, 200):
        inputs, targets = rng.standard_normal((examples, 6)).astype(np.float32), rng.integers(6, size=examples)
        model = dfl_jax.Model(init, apply)
        model.loss(model.init(rng), inputs, targets)


def test_the_examples_of_devices_are_not_padded_to_those_of_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = linear(3), []
    train = model._train
    monkeypatch.setattr(model, "_train", lambda start, inputs, *given: rows.append(len(inputs)) or train(start, inputs, *given))
    trained(model, federation(3), dfl.FedAvg(), "run")
    assert 0 < max(rows) <= 36 < 4 * max(SIZES)
