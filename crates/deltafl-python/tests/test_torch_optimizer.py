"""Optimisers of devices: which of them train in one call, and that the others train one after another."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import deltafl as dfl

torch = pytest.importorskip("torch")
dfl_torch = pytest.importorskip("deltafl.torch")
if not hasattr(torch, "func"):
    pytest.skip("torch.func needs PyTorch 2.0", allow_module_level=True)
nn = torch.nn


def trained(optimizer: Any, cohort: str) -> Any:
    """Returns w after two rounds with devices of different sizes, with l2 and a proximal term."""
    rng = np.random.default_rng(5)
    sizes = [3, 9, 10, 17]
    inputs = rng.standard_normal((sum(sizes), 6)).astype(np.float32)
    devices = np.repeat([f"d{k}" for k in range(len(sizes))], sizes)
    data = dfl.Federation.from_arrays(inputs, rng.integers(3, size=sum(sizes)).astype(np.uint32), devices)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    module = dfl_torch.Module(net, optimizer=optimizer, l2=0.01, cohort=cohort, device="cpu")
    run = dfl.train(
        data, module, dfl.FedProx(mu=0.5), rounds=2, cohort=4, split={"train": 1.0},
        local=dfl.SGD(lr=0.125, batch=4), progress=False,
    )  # fmt: skip
    return run[0].params()


def sgd(params: list[Any], local: dfl.Local, **options: Any) -> Any:
    return torch.optim.SGD(params, lr=local.learning_rate, **options)


def hooked(params: list[Any], local: dfl.Local) -> Any:
    made = sgd(params, local)
    made.register_step_pre_hook(lambda *given: nn.utils.clip_grad_norm_(params, 0.01) and None)
    return made


def patched(params: list[Any], local: dfl.Local) -> Any:
    """SGD that clips gradients in its step."""
    made = sgd(params, local)
    plain = made.step

    def step(*given: Any) -> Any:
        nn.utils.clip_grad_norm_(params, 0.01)
        return plain(*given)

    made.step = step
    return made


def clamped(params: list[Any], local: dfl.Local) -> Any:
    for value in params:
        if not value._backward_hooks:
            value.register_hook(lambda slope: slope.clamp(-1e-3, 1e-3))
    return sgd(params, local)


def shrunk(params: list[Any], local: dfl.Local) -> Any:
    with torch.no_grad():
        params[0].mul_(0.5)
    return sgd(params, local)


def by_state(params: list[Any], local: dfl.Local) -> Any:
    """SGD with momentum from the second round of a device on."""
    rounds = local.state["rounds"] = local.state.get("rounds", 0) + 1
    return sgd(params, local, momentum=0.9 if rounds > 1 else 0.0)


NOT_ALL = "the optimizer is not SGD of all parameters with the learning rate of the run"
CHANGED = "the optimizer has hooks, another step or maximize=True"
MODIFIED = "the optimizer modifies the parameters or has hooks of them"

#: Optimisers that are not one SGD for all devices and rounds, and the reason in the log.
OTHERS: dict[str, tuple[Any, str]] = {
    "Adam": (lambda params, local: torch.optim.Adam(params, lr=0.01), "the optimizer is Adam, not SGD"),
    "two groups": (
        lambda params, local: sgd([{"params": params[:1], "weight_decay": 0.5}, {"params": params[1:]}], local), NOT_ALL
    ),
    "the last parameters": (lambda params, local: sgd(params[-2:], local), NOT_ALL),
    "two parameters": (lambda params, local: sgd([params[0], params[3]], local), NOT_ALL),
    "a bounded rate": (lambda params, local: torch.optim.SGD(params, lr=min(local.learning_rate, 0.13)), NOT_ALL),
    "a hook": (hooked, CHANGED),
    "a patched step": (patched, CHANGED),
    "hooks of the parameters": (clamped, MODIFIED),
    "smaller parameters": (shrunk, MODIFIED),
    "an ascent": (lambda params, local: sgd(params, local, maximize=True), CHANGED),
    "momentum by the rate": (
        lambda params, local: sgd(params, local, momentum=0.9 if local.learning_rate > 1e-6 else 0.0),
        "depend on the learning rate",
    ),
    "momentum by the batch": (
        lambda params, local: sgd(params, local, momentum=0.9 if local.batch > 1 else 0.0), "reads local.batch"
    ),
    "weight decay by l2": (lambda params, local: sgd(params, local, weight_decay=30 * local.l2), "reads local.l2"),
    "weight decay by the proximal term": (
        lambda params, local: sgd(params, local, weight_decay=local.proximal), "reads local.proximal"
    ),
    "momentum by the steps": (
        lambda params, local: sgd(params, local, momentum=0.9 if len(list(local.batches())) > 2 else 0.0),
        "reads local._",
    ),
    "momentum by the seed": (
        lambda params, local: sgd(params, local, momentum=local.rng().uniform(0.1, 0.9)), "reads local."
    ),
    "momentum by the round": (by_state, "reads local.state"),
    "a rate of 1 fails": (
        lambda params, local: sgd(params, local, weight_decay=0.1 / (1.0 - local.learning_rate)),
        "cannot be tested: ZeroDivisionError",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_optimizers_train_one_after_another(name: str, caplog: pytest.LogCaptureFixture) -> None:
    optimizer, reason = OTHERS[name]
    with caplog.at_level(logging.INFO, logger="deltafl.torch"):
        on, off = (trained(optimizer, cohort) for cohort in ("on", "off"))
    assert "one after another: " in caplog.text and reason in caplog.text, caplog.text
    assert np.array_equal(on, off)


#: Options of SGD that train in one call.
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.8, "dampening": 0.3},
    "Nesterov and weight decay": {"momentum": 0.8, "nesterov": True, "weight_decay": 0.2},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_sgd_trains_in_one_call(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="deltafl.torch"):
        on, off = (
            trained(lambda params, local: sgd(params, local, **OPTIONS[name]), cohort) for cohort in ("on", "off")
        )
    assert "one after another" not in caplog.text and "in one call" in caplog.text, caplog.text
    assert np.allclose(on, off, atol=1e-5)
