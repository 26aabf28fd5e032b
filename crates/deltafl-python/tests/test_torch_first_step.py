"""The first step of devices in one call, which is compared with the same step of PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import deltafl as dfl

torch = pytest.importorskip("torch")
dfl_torch = pytest.importorskip("deltafl.torch")
if not hasattr(torch, "func"):
    pytest.skip("torch.func needs PyTorch 2.0", allow_module_level=True)
nn = torch.nn

from deltafl.torch import _cohort, _convolution, _first_step  # noqa: E402


def federation() -> dfl.Federation:
    rng = np.random.default_rng(5)
    # The first batch of every device is full.
    sizes = [5, 9, 10, 6]
    inputs = rng.standard_normal((sum(sizes), 36)).astype(np.float32)
    devices = np.repeat([f"d{k}" for k in range(len(sizes))], sizes)
    return dfl.Federation.from_arrays(inputs, rng.integers(3, size=sum(sizes)).astype(np.uint32), devices)


def network(first: Any = None) -> Any:
    torch.manual_seed(1)
    layers = nn.Conv2d(1, 3, 3), first or nn.Tanh(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(48, 3)
    return nn.Sequential(*layers)


def trained(net: Any, cohort: str, loss: Any = None, optimizer: Any = None, **options: Any) -> Any:
    module = dfl_torch.Module(net, loss, shape=(1, 6, 6), optimizer=optimizer, cohort=cohort, device="cpu")
    run = dfl.train(
        federation(), module, options.pop("algorithm", dfl.FedAvg()), rounds=2, cohort=4, split={"train": 1.0},
        local=dfl.SGD(lr=0.1, batch=4), progress=False, **options,
    )  # fmt: skip
    return run[0].params()


class _Scale(torch.autograd.Function):  # type: ignore[misc, name-defined, unused-ignore]
    """Scales its input. The rule for vmap computes another function."""

    @staticmethod
    def forward(values: Any) -> Any:
        return 2.0 * values

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        return 2.0 * slopes[0]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], values: Any) -> Any:
        return 2.2 * values, in_dims[0]


class Scale(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    def forward(self, values: Any) -> Any:
        return _Scale.apply(values)


class Centred(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """A layer whose gradient, but not its output, depends on the mean of the batch."""

    def forward(self, values: Any) -> Any:
        mean = values.mean(0)
        return values - 2.0 * (mean - mean.detach())


def steep(output: Any, target: Any) -> Any:
    """The cross-entropy, with a gradient that grows with the number of examples."""
    mean = nn.functional.cross_entropy(output, target)
    return mean + (mean - mean.detach()) * len(target)


#: A module, its loss, and the first tensor whose step differs.
WRONG: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "a wrong rule for vmap": (lambda: network(Scale()), None, "4.weight"),
    "a gradient that depends on the other examples": (lambda: network(Centred()), None, "0.weight"),
    "a gradient that depends on the size of the batch": (network, steep, "0.weight"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_module_whose_first_step_is_wrong_trains_one_device_after_another(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make, loss, tensor = WRONG[name]
    with caplog.at_level(logging.INFO, logger="deltafl.torch"):
        on, off = (trained(make(), cohort, loss) for cohort in ("on", "off"))
    assert f"train one after another: WrongStep: the first step of {tensor} differs" in caplog.text, caplog.text
    assert np.array_equal(on, off)
    # Without the comparison the params are wrong.
    monkeypatch.setattr(_cohort, "check_first_step", lambda *given: None)
    assert not np.allclose(trained(make(), "on", loss), off, atol=1e-3)


def test_layers_with_a_wrong_first_step_are_not_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = _convolution.Convolution.forward
    monkeypatch.setattr(_convolution.Convolution, "forward", lambda self, input: 1.1 * plain(self, input))
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(48, 3))
    with caplog.at_level(logging.INFO, logger="deltafl.torch"):
        on, off = (trained(net, cohort) for cohort in ("on", "off"))
    assert "layers by products fail" in caplog.text and "in one call" in caplog.text, caplog.text
    assert np.allclose(on, off, atol=1e-5)


def nesterov(params: list[Any], local: dfl.Local) -> Any:
    return torch.optim.SGD(params, lr=local.learning_rate, momentum=0.9, nesterov=True, weight_decay=0.5)


@pytest.mark.parametrize("algorithm", [dfl.FedAvg(), dfl.FedProx(mu=5.0), dfl.SCAFFOLD(), dfl.FedDyn(regularisation=0.5)])
@pytest.mark.parametrize("optimizer", [None, nesterov])
def test_terms_of_the_step_are_part_of_the_comparison(
    algorithm: Any, optimizer: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Every round is compared, because corrections are zero in the first one. Only rounding is allowed.
    always = property(lambda self: False, lambda self, value: None)
    monkeypatch.setattr(_cohort.ModuleCohort, "_has_trained", always, raising=False)
    monkeypatch.setattr(_first_step, "_FLOAT32", (1e-4, 1e-6, 1e-6))
    with caplog.at_level(logging.INFO, logger="deltafl.torch"):
        trained(network(), "on", optimizer=optimizer, algorithm=algorithm)
    assert "in one call" in caplog.text and "WrongStep" not in caplog.text, caplog.text


def test_the_comparison_changes_no_bit_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = trained(network(), "on", optimizer=nesterov)
    monkeypatch.setattr(_cohort, "check_first_step", lambda *given: None)
    assert np.array_equal(trained(network(), "on", optimizer=nesterov), compared)
