"""PyTorch modules whose devices train in one call."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import deltafl as dfl

torch = pytest.importorskip("torch")
dfl_torch = pytest.importorskip("deltafl.torch")
if not hasattr(torch, "func"):
    pytest.skip("torch.func needs PyTorch 2.0", allow_module_level=True)
nn = torch.nn

#: Devices of several sizes, so that batches are short and devices differ in their steps.
SIZES = [3, 9, 10, 17, 4, 25, 11]


def federation(width: int, classes: int | None, *, tokens: int | None = None) -> dfl.Federation:
    rng = np.random.default_rng(5)
    rows = sum(SIZES)
    inputs = rng.standard_normal((rows, width)).astype(np.float32)
    if tokens is not None:
        inputs = rng.integers(tokens, size=(rows, width)).astype(np.float32)
    if classes is None:
        targets: Any = (inputs[:, 0] + 0.1 * rng.standard_normal(rows)).astype(np.float32)
    else:
        targets = rng.integers(classes, size=rows).astype(np.uint32)
    devices = np.repeat([f"d{k}" for k in range(len(SIZES))], SIZES)
    return dfl.Federation.from_arrays(inputs, targets, devices)


class Residual(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """A residual block with group norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.second = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.out = nn.Linear(4, 3)

    def forward(self, images: Any) -> Any:
        first = torch.relu(self.norm(self.first(images)))
        return self.out((first + self.second(first)).mean((2, 3)))


class Recurrent(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """A recurrent network over the entries of a row."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        self.out = nn.Linear(layer.hidden_size * (2 if layer.bidirectional else 1), 3)

    def forward(self, rows: Any) -> Any:
        return self.out(self.layer(rows.unsqueeze(2))[0][:, -1])


class Transformer(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """A block with attention over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)
        self.projection, self.out = nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, tokens: Any) -> Any:
        states = self.embedding(tokens.long())
        query, key, value = self.projection(self.norm(states)).chunk(3, dim=2)
        attention = torch.softmax(query @ key.transpose(1, 2) / 8**0.5, dim=2)
        return self.out((states + attention @ value).mean(1))


class Tied(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight

    def forward(self, rows: Any) -> Any:
        return self.second(torch.tanh(self.first(rows)))[:, :3]


class Bag(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """The mean of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(11, 5), nn.Linear(5, 3)

    def forward(self, tokens: Any) -> Any:
        return self.out(self.embedding(tokens.long()).mean(1))


class EmbeddingBag(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """Sums of embeddings by one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(11, 5, mode="sum"), nn.Linear(5, 3)

    def forward(self, tokens: Any) -> Any:
        return self.out(self.bag(tokens.long()))


class Scaled(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """A layer with one number as a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.scale = nn.Linear(6, 3), nn.Parameter(torch.tensor(0.5))

    def forward(self, rows: Any) -> Any:
        return self.out(rows) * self.scale


class Double(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """A module in double precision."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net.double()

    def forward(self, rows: Any) -> Any:
        return self.net(rows.double())


class Mixing(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """A layer that subtracts a share of the mean of a batch."""

    def __init__(self, share: float = 1.0) -> None:
        super().__init__()
        self.out, self.share = nn.Linear(6, 3), share

    def forward(self, rows: Any) -> Any:
        return self.out(rows - self.share * rows.mean(0))


class Branching(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """A module that uses one of two layers, and never a third."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(2, 2)

    def forward(self, rows: Any) -> Any:
        return self.first(rows) if rows.sum() > 0 else self.second(rows)


class Tokens(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """The mean of the embeddings of nine tokens."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(9, 5, **options), nn.Linear(5, 3)

    def forward(self, rows: Any) -> Any:
        return self.out(self.embedding((rows.abs() * 4).long().clamp(max=8)).mean(1))


class Sometimes(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """A layer that half of the steps of a training use."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.inner, self.out, self.draw = nn.Linear(6, 6), nn.Linear(6, 3), draw

    def forward(self, rows: Any) -> Any:
        used = not self.training or self.draw() < 0.5
        return self.out(rows + 1e-3 * torch.tanh(self.inner(rows)) if used else rows)


class Counting(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """A layer whose outputs depend on the number of the step, which is an attribute."""

    def __init__(self, factor: Callable[[int], int]) -> None:
        super().__init__()
        self.out, self.steps, self.factor = nn.Linear(6, 3), 0, factor

    def forward(self, rows: Any) -> Any:
        self.steps += self.training
        return self.out(rows) * self.factor(self.steps)


class Warm(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """A layer whose outputs grow with the number of the step, which the module assigns."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 3)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, rows: Any) -> Any:
        if self.training:
            self.steps = self.steps + 1
        return self.out(rows) * (1 + self.steps)


def zero(net: Any) -> Any:
    """Sets the parameters of a module to zero, where many modules have the same output for all examples."""
    for value in net.parameters():
        nn.init.zeros_(value)
    return net


def masked_loss(output: Any, target: Any) -> Any:
    return nn.functional.cross_entropy(output[target < 9], target[target < 9])


def random_loss(output: Any, target: Any) -> Any:
    # It rarely uses the number that it draws.
    scale = 2.0 if random.random() < 1e-3 else 1.0
    return scale * nn.functional.cross_entropy(output, target)


def item_loss(output: Any, target: Any) -> Any:
    return nn.functional.cross_entropy(output, target) * float(output.sum().item() < 1e9)


def tracked_norm() -> Any:
    layers = nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten(), nn.Linear(6, 3)
    return nn.Sequential(*layers)


def batch_norm() -> Any:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3))


def perceptron(classes: int = 3) -> Any:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, classes))


def frozen() -> Any:
    net = perceptron()
    net[0].weight.requires_grad_(False)
    return net


def convolution() -> Any:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3))


#: The module, the width of its inputs, the shape of an input, and the number of tokens.
MODULES: dict[str, tuple[Callable[[], Any], int, tuple[int, ...] | None, int | None]] = {
    "perceptron": (perceptron, 6, None, None),
    "convolution": (convolution, 36, (1, 6, 6), None),
    "residual, group norm": (Residual, 36, (1, 6, 6), None),
    "lstm": (lambda: Recurrent(nn.LSTM(1, 5, batch_first=True)), 6, None, None),
    "two lstm layers, both ways": (
        lambda: Recurrent(nn.LSTM(1, 4, num_layers=2, batch_first=True, bidirectional=True)),
        6,
        None,
        None,
    ),
    "gru": (lambda: Recurrent(nn.GRU(1, 5, batch_first=True)), 6, None, None),
    "transformer": (Transformer, 6, None, 11),
    "bag of embeddings": (Bag, 6, None, 11),
    "embedding bag": (EmbeddingBag, 6, None, 11),
    "tied weights": (Tied, 6, None, None),
    "a number": (Scaled, 6, None, None),
    "frozen layer": (frozen, 6, None, None),
}


def trained(data: dfl.Federation, module: Any, algorithms: Any, **options: Any) -> list[Any]:
    keywords: dict[str, Any] = {
        "rounds": 2,
        "cohort": len(SIZES),
        "split": {"train": 1.0},
        "local": dfl.SGD(lr=0.2, batch=4, epochs=2),
        "progress": False,
        **options,
    }
    run = dfl.train(data, module, algorithms, **keywords)
    return [track.params() for track in run]


def close(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return all(np.linalg.norm(a - b) <= 1e-4 * np.linalg.norm(b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", MODULES)
def test_devices_in_one_call_agree_with_one_after_another(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, width, shape, tokens = MODULES[name]
    data = federation(width, 3, tokens=tokens)
    torch.manual_seed(1)
    net = make()
    algorithms = [dfl.FedAvg(), dfl.DeltaFL(theta=0.5), dfl.FedProx(mu=0.5)]
    found = {}
    with caplog.at_level(logging.INFO, logger="deltafl.torch"):
        for cohort in ("off", "on"):
            module = dfl_torch.Module(net, shape=shape, l2=0.01, cohort=cohort, device="cpu")
            found[cohort] = trained(data, module, algorithms, seeds=[3])
    assert "in one call" in caplog.text, caplog.text
    start = dfl_torch.Module(net, device="cpu").init(np.random.default_rng(0))
    assert np.linalg.norm(found["on"][0] - start) > 1e-3 * np.linalg.norm(start), "it has trained"
    assert close(found["on"], found["off"])


@pytest.mark.parametrize("name", MODULES)
def test_one_round_in_double_precision_agrees_to_a_millionth(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, width, shape, tokens = MODULES[name]
    torch.manual_seed(1)
    net = Double(make())
    with caplog.at_level(logging.INFO, logger="deltafl.torch"):
        on, off = (
            trained(
                federation(width, 3, tokens=tokens),
                dfl_torch.Module(net, shape=shape, l2=0.01, cohort=cohort, device="cpu"),
                dfl.FedProx(mu=0.5),
                rounds=1,
            )[0]
            for cohort in ("on", "off")
        )
    assert "in one call" in caplog.text, caplog.text
    assert np.linalg.norm(on - off) <= 1e-6 * np.linalg.norm(off)


def test_devices_that_do_not_fit_into_the_memory_train_in_several_calls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from deltafl.torch._cohort import ModuleCohort
    from deltafl.torch._step import Step

    torch.manual_seed(1)
    net, data = perceptron(), federation(6, 3)
    calls: list[int] = []
    plain = Step.run

    def run(self: Any, held: Any, updates: Any) -> Any:
        calls.append(len(updates.devices))
        if calls[-1] > 3:
            raise torch.cuda.OutOfMemoryError("too many devices")
        return plain(self, held, updates)

    whole = trained(data, dfl_torch.Module(net, cohort="on", device="cpu"), [dfl.FedAvg()])
    monkeypatch.setattr(Step, "run", run)
    with caplog.at_level(logging.INFO, logger="deltafl.torch"):
        found = trained(data, dfl_torch.Module(net, cohort="on", device="cpu"), [dfl.FedAvg()])
    assert calls == [7, 3, 3, 1] and "7 devices do not fit" in caplog.text
    assert close(found, whole)
    calls.clear()
    monkeypatch.setattr(ModuleCohort, "_devices_at_once", lambda self: 2)
    assert close(trained(data, dfl_torch.Module(net, cohort="on", device="cpu"), [dfl.FedAvg()]), whole)
    assert calls == [2, 2, 2, 1] * 2


@pytest.mark.parametrize("task", ["regression", "binary", "own loss"])
def test_other_tasks_and_a_loss_of_the_user_agree(task: str) -> None:
    data = federation(6, None if task == "regression" else 2 if task == "binary" else 3)
    torch.manual_seed(1)
    net = perceptron(3 if task == "own loss" else 1)
    own = nn.CrossEntropyLoss(label_smoothing=0.1) if task == "own loss" else None
    kind = "classes" if task == "own loss" else task
    found = [
        trained(data, dfl_torch.Module(net, own, task=kind, cohort=cohort, device="cpu"), [dfl.DeltaFL(theta=0.5)])
        for cohort in ("on", "off")
    ]
    assert close(*found)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_with_momentum_and_clipped_updates_agree(nesterov: bool) -> None:
    data = federation(6, 3)
    torch.manual_seed(1)
    net = perceptron()

    def sgd(params: list[Any], local: dfl.Local) -> Any:
        return torch.optim.SGD(
            params, lr=local.learning_rate, momentum=0.8, weight_decay=0.02, nesterov=nesterov
        )

    found = [
        trained(data, dfl_torch.Module(net, optimizer=sgd, cohort=cohort, device="cpu"), [dfl.FedAvg()])
        for cohort in ("on", "off")
    ]
    assert close(*found)


def test_dropout_depends_on_the_device_and_not_on_the_others(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 3))
    module = dfl_torch.Module(net, cohort="on", device="cpu")
    data = federation(6, 3)
    # A masked run asks for each device in a call of its own.
    plain, again, masked = (
        trained(data, module, [dfl.FedAvg()], secagg=secagg) for secagg in ("plain", "plain", "real")
    )
    without = trained(data, dfl_torch.Module(net.eval(), cohort="off", device="cpu"), [dfl.FedAvg()])
    assert np.array_equal(plain[0], again[0])
    assert close(plain, masked)
    assert not close(plain, without), "dropout has an effect"


def test_a_batch_norm_trains_one_after_another_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    local = dfl.SGD(lr=0.1, batch=8, steps=3)
    with caplog.at_level(logging.INFO, logger="deltafl.torch"):
        found = [
            trained(
                federation(6, 3),
                dfl_torch.Module(net, cohort=cohort, device="cpu"),
                [dfl.FedAvg()],
                local=local,
            )
            for cohort in ("on", "off")
        ]
    assert close(*found)
    assert "batch norm" in caplog.text and "GroupNorm" in caplog.text


def test_dropout_inside_a_layer_is_named(caplog: pytest.LogCaptureFixture) -> None:
    layers = {
        "rnn": nn.RNN(6, 4, num_layers=2, dropout=0.5),
        "encoder": nn.TransformerEncoderLayer(6, 2, 8, dropout=0.5, batch_first=True),
    }
    for name, layer in layers.items():
        net = nn.Sequential()
        net.add_module(name, layer)
        dfl_torch.Module(net, cohort="on", device="cpu").cohort()
    assert "rnn is a RNN with dropout inside the layer" in caplog.text
    assert "encoder.self_attn is a MultiheadAttention with dropout inside the layer" in caplog.text


#: A module, its loss, and a part of the message.
MIXED: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "class weights": (perceptron, nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0])), "class weights"),
    "a sum": (perceptron, nn.CrossEntropyLoss(reduction="sum"), "or a sum"),
    "a mean over the batch": (Mixing, None, "depends on the other examples"),
    "a batch norm without running statistics": (batch_norm, None, "depends on the other examples"),
    "a branch": (Branching, None, "one after another"),
    "a mean over the batch at w = 0": (lambda: zero(Mixing()), None, "depends on the other examples"),
    "class weights at w = 0": (
        lambda: zero(perceptron()),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0])),
        "class weights",
    ),
    "an ignored class": (perceptron, nn.CrossEntropyLoss(ignore_index=1), "is not the mean"),
    "class weights near 1": (perceptron, nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.01, 0.99])), "class weights"),
    "a loss with random numbers": (perceptron, random_loss, "the loss draws random numbers"),
    "a small share of a mean over the batch": (lambda: Mixing(0.003), None, "depends on the other examples"),
    "a loss with a mask": (perceptron, masked_loss, "vmap does not support the loss: RuntimeError"),
    "a loss with a number": (perceptron, item_loss, "vmap does not support the loss: RuntimeError"),
    "gradients by frequency": (lambda: Tokens(scale_grad_by_freq=True), None, "frequencies of tokens"),
    "embeddings that are scaled": (lambda: Tokens(max_norm=0.5), None, "changes embedding.weight"),
    "running statistics of an instance norm": (tracked_norm, None, "changes 1.running_mean, 1.running_var"),
    "an assigned buffer": (Warm, None, "changes steps"),
    "random numbers of Python": (lambda: Sometimes(lambda: random.random()), None, "draws random numbers"),
    "random numbers of numpy": (lambda: Sometimes(lambda: np.random.rand()), None, "draws random numbers"),
}


@pytest.mark.parametrize("name", MIXED)
def test_modules_and_losses_that_mix_examples_train_one_after_another(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, loss, message = MIXED[name]
    torch.manual_seed(1)
    net, data = make(), federation(6, 3)
    algorithms = [dfl.FedAvg(), dfl.DeltaFL(theta=0.5)]
    found = {}
    with caplog.at_level(logging.INFO, logger="deltafl.torch"):
        for cohort in ("off", "on"):
            module = dfl_torch.Module(net, loss, cohort=cohort, device="cpu")
            # No batch of one example, which a batch norm rejects.
            found[cohort] = trained(data, module, algorithms, local=dfl.SGD(lr=0.02, batch=30))
    assert message in caplog.text, caplog.text
    assert all(np.array_equal(on, off) for on, off in zip(found["on"], found["off"]))


def known_loss(output: Any, target: Any) -> Any:
    """The mean square error of the examples with a known target."""
    known = (target > -90).float()
    return ((output[:, 0] - target) ** 2 * known).sum() / known.sum().clamp(min=1)


#: A loss, and the target of one example.
RARE: dict[str, tuple[Any, Any]] = {
    "a class with a weight": (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, 9.0])), 2),
    "an ignored class": (nn.CrossEntropyLoss(ignore_index=2), 2),
    "an unknown target": (known_loss, -99.0),
}


@pytest.mark.parametrize("name", RARE)
def test_a_loss_is_tested_with_rare_targets(name: str, caplog: pytest.LogCaptureFixture) -> None:
    loss, rare = RARE[name]
    rng = np.random.default_rng(5)
    inputs = rng.standard_normal((600, 6)).astype(np.float32)
    targets: Any = rng.integers(2, size=600).astype(np.float32 if rare == -99.0 else np.uint32)
    # Neither the first step of the largest or the smallest device nor the test of 64 examples has this example.
    targets[320] = rare
    data = dfl.Federation.from_arrays(inputs, targets, np.repeat(["a", "b", "c", "d"], [20, 250, 130, 200]))
    torch.manual_seed(1)
    net = perceptron(1 if rare == -99.0 else 3)
    with caplog.at_level(logging.INFO, logger="deltafl.torch"):
        on, off = (
            trained(
                data, dfl_torch.Module(net, loss, task="regression" if rare == -99.0 else "classes", cohort=cohort, device="cpu"),
                [dfl.FedAvg()], local=dfl.SGD(lr=0.05, batch=16),
            )[0]
            for cohort in ("on", "off")
        )  # fmt: skip
    assert "is not the mean of the losses" in caplog.text, caplog.text
    assert np.array_equal(on, off)


class Remembering(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """A layer that subtracts a running mean, an attribute, in an evaluation only."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.mean = nn.Linear(6, 3), torch.zeros(6)

    def forward(self, rows: Any) -> Any:
        if not self.training:
            return self.out(rows - self.mean)
        self.mean = 0.9 * self.mean + 0.1 * rows.detach().mean(0)
        return self.out(rows)


#: Modules with a state that is no tensor of the module, and a part of the message.
STATES: dict[str, tuple[Callable[[], Any], str]] = {
    "a counter": (lambda: Counting(lambda steps: 1 + steps % 3), "changes the attribute steps"),
    "a counter with a late effect": (lambda: Counting(lambda steps: 1 + steps // 30), "changes the attribute steps"),
    "a running mean": (Remembering, "changes the attribute mean"),
    "a random number generator": (
        lambda: Sometimes(np.random.default_rng(0).random), "the output of the module for the same inputs changes"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_modules_with_another_state_train_one_after_another(name: str, caplog: pytest.LogCaptureFixture) -> None:
    make, message = STATES[name]
    found = {}
    with caplog.at_level(logging.INFO, logger="deltafl.torch"):
        for cohort in ("on", "off"):
            torch.manual_seed(1)
            run = dfl.train(
                federation(6, 3), dfl_torch.Module(make(), cohort=cohort, device="cpu"), dfl.FedAvg(), rounds=2, cohort=7,
                split={"train": 1.0}, local=dfl.SGD(lr=0.02, batch=8), evaluate_every=1, progress=False, out=cohort,
            )  # fmt: skip
            found[cohort] = run[0].params(), run.devices().to_dict()["loss"]
    assert "one after another" in caplog.text and message in caplog.text, caplog.text
    if name != "a random number generator":
        assert np.array_equal(found["on"][0], found["off"][0])
        np.testing.assert_allclose(found["on"][1], found["off"][1], rtol=1e-6)


def hooked(layer: Any) -> Any:
    layer.register_forward_hook(lambda layer, inputs, output: 3 * output)
    return layer


class Turned(nn.LSTM):  # type: ignore[misc, name-defined, unused-ignore]
    """An LSTM that reads the steps from the last to the first."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        return super().forward(2 * input.flip(1), hx)


class Halved(nn.Dropout):  # type: ignore[misc, name-defined, unused-ignore]
    """A layer that scales its inputs instead of dropping them."""

    def forward(self, input: Any) -> Any:
        return input * (1 - self.p)


class ByClass(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """A module whose forward pass depends on the classes of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Conv1d(1, 3, 3), nn.Linear(12, 3)

    def forward(self, rows: Any) -> Any:
        maps = self.first(rows.unsqueeze(1))
        return self.out((torch.tanh(3 * maps) if isinstance(self.first, nn.Conv1d) else maps).flatten(1))


#: A module whose layers are not those of their classes.
CHANGED: dict[str, Callable[[], Any]] = {
    "a hook": lambda: nn.Sequential(hooked(nn.Conv2d(1, 3, 3)), nn.Flatten(), nn.Linear(48, 3)),
    "a spectral norm": lambda: nn.Sequential(
        torch.nn.utils.spectral_norm(nn.Conv2d(1, 3, 3)), nn.Flatten(), nn.Linear(48, 3)
    ),
    "a subclass of an LSTM": lambda: nn.Sequential(nn.Flatten(), Recurrent(Turned(1, 5, batch_first=True))),
    "a subclass of a dropout": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), Halved(0.5), nn.Linear(8, 3)),
    "a module that reads classes": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 6), ByClass()),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_layer_that_differs_from_its_class_is_not_replaced_by_another(name: str) -> None:
    torch.manual_seed(1)
    net, data = CHANGED[name](), federation(36, 3)
    found = [
        trained(data, dfl_torch.Module(net, shape=(1, 6, 6), cohort=cohort, device="cpu"), [dfl.FedAvg()])
        for cohort in ("on", "off")
    ]
    assert close(*found)


@pytest.mark.parametrize("tracked", [True, False])
def test_an_evaluation_does_not_mix_the_examples_of_devices(tracked: bool) -> None:
    class Shifted(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        """A module that mixes examples in an evaluation only."""

        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(6) if tracked else nn.Identity()
            self.out = nn.Linear(6, 3)

        def forward(self, rows: Any) -> Any:
            return self.out(self.norm(rows) if self.training else rows - rows.mean(0))

    torch.manual_seed(1)
    net, data = Shifted(), federation(6, 3)
    on, off = (
        dfl.train(
            data, dfl_torch.Module(net, cohort=cohort, device="cpu"), dfl.FedAvg(), rounds=1, cohort=7, progress=False,
            split={"train": 1.0}, local=dfl.SGD(lr=0.1, batch=8, steps=2), evaluate_every=1, out=cohort,
        ).devices().to_dict()["loss"]
        for cohort in ("on", "off")
    )  # fmt: skip
    np.testing.assert_allclose(on, off, rtol=1e-6)


def test_a_device_keeps_its_params_after_its_last_step() -> None:
    # One step moves the weight to −234, where the loss is infinite. The other device has three more steps.
    inputs = np.array([[1.0], [-0.001], [-0.001], [-0.001], [-0.001]], dtype=np.float32)
    data = dfl.Federation.from_arrays(inputs, np.zeros(5, dtype=np.float32), np.array(list("abbbb")))
    net = nn.Linear(1, 1, bias=False)
    nn.init.ones_(net.weight)

    def loss(output: Any, target: Any) -> Any:
        return torch.cosh(output[:, 0]).mean()

    on, off = (
        trained(
            data, dfl_torch.Module(net, loss, task="regression", cohort=cohort, device="cpu"), dfl.FedAvg(),
            rounds=1, cohort=2, local=dfl.SGD(lr=100.0, batch=1), evaluate_every=10,
        )[0]
        for cohort in ("on", "off")
    )  # fmt: skip
    assert off[0] < -10.0 and np.allclose(on, off, rtol=1e-5)


def test_a_layer_with_several_names_is_replaced_under_each_of_them(caplog: pytest.LogCaptureFixture) -> None:
    dropout = nn.Dropout(0.5)
    net = nn.Sequential(nn.Linear(6, 8), dropout, nn.Tanh(), nn.Linear(8, 8), dropout, nn.Linear(8, 3))
    with caplog.at_level(logging.INFO, logger="deltafl.torch"):
        trained(federation(6, 3), dfl_torch.Module(net, cohort="on", device="cpu"), [dfl.FedAvg()])
    assert "in one call" in caplog.text, caplog.text


def test_two_calls_of_a_dropout_layer_have_different_masks() -> None:
    from deltafl.torch._layers import KeyedDropout, replaced

    net, _ = replaced(nn.Dropout(0.5).train())
    ones = torch.ones(4, 50)
    with KeyedDropout.keyed(torch.tensor(5), torch.tensor(0)):
        first, second = net(ones), net(ones)
    with KeyedDropout.keyed(torch.tensor(5), torch.tensor(0)):
        assert torch.equal(net(ones), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_dropout_layer_drops_its_share_in_every_type(dtype: Any) -> None:
    from deltafl.torch._layers import KeyedDropout, replaced

    net, _ = replaced(nn.Dropout(0.25).train())
    with KeyedDropout.keyed(torch.tensor(5), torch.tensor(0)):
        found = net(torch.ones(100_000, dtype=dtype))
    assert abs(float((found == 0).float().mean()) - 0.25) < 0.01


@pytest.mark.parametrize("inplace", [True, False])
def test_a_dropout_layer_changes_its_inputs_if_it_is_in_place(inplace: bool) -> None:
    from deltafl.torch._layers import KeyedDropout, replaced

    net, _ = replaced(nn.Dropout(0.5, inplace=inplace).train())

    def outputs(rows: Any) -> Any:
        rows = 1.0 * rows
        with KeyedDropout.keyed(torch.tensor(5), torch.tensor(0)):
            dropped = net(rows)
        return rows, dropped

    rows, dropped = torch.func.vmap(outputs)(torch.ones(3, 50))
    assert torch.equal(rows, dropped) == inplace


def test_runs_in_two_threads_have_the_params_of_one_run() -> None:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(64, 3))
    data = federation(6, 3)

    def run(out: str) -> Any:
        module = dfl_torch.Module(net, cohort="on", device="cpu")
        return trained(data, module, [dfl.FedAvg()], rounds=12, out=out)

    expected = run("alone")
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(run, ["a", "b", "c", "d"]):
            assert close(found, expected)


@pytest.mark.parametrize("cohort", ["on", "off"])
def test_a_buffer_that_the_module_assigns_is_averaged(cohort: Any) -> None:
    class Moving(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        mean: Any

        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(6, 3)
            self.register_buffer("mean", torch.zeros(6))

        def forward(self, rows: Any) -> Any:
            if self.training:
                self.mean = 0.5 * self.mean + 0.5 * rows.detach().mean(0)
            return self.out(rows)

    torch.manual_seed(1)
    data, module = federation(6, 3), dfl_torch.Module(Moving(), cohort=cohort, device="cpu")
    found = trained(data, module, dfl.FedAvg(), rounds=2, local=dfl.SGD(lr=0.1, batch=100))[0]
    means = sum(len(data[id][1]) * data[id][0].mean(axis=0) for id in data.ids) / sum(SIZES)
    np.testing.assert_allclose(found[-6:], 0.75 * means, atol=1e-6)


def test_the_first_call_holds_few_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    from deltafl.torch import _examples

    monkeypatch.setattr(_examples, "_FIRST_EXAMPLES", 12)
    monkeypatch.setattr(_examples, "_CPU_EXAMPLES", 12 * 32)
    torch.manual_seed(1)
    net, data, used = perceptron(), federation(6, 3), []
    hold = _examples.HeldExamples.hold

    def held(self: Any, *given: Any) -> None:
        hold(self, *given)
        used.append(self._used)

    monkeypatch.setattr(_examples.HeldExamples, "hold", held)
    found = [
        trained(data, dfl_torch.Module(net, cohort=cohort, device="cpu"), [dfl.FedAvg()]) for cohort in ("on", "off")
    ]
    # The largest device has 25 examples, and 6 examples may be held before a call of at most 12.
    assert max(used) <= 31 < sum(SIZES)
    assert close(*found)


def test_a_batch_has_no_more_rows_than_the_largest_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from deltafl.torch._step import Step

    torch.manual_seed(1)
    net, data, run = perceptron(), federation(6, 3), Step.run
    rows: list[int] = []
    monkeypatch.setattr(
        Step, "run", lambda self, held, updates: rows.append(updates.examples.shape[2]) or run(self, held, updates)
    )
    found = [
        trained(data, dfl_torch.Module(net, cohort=cohort, device="cpu"), [dfl.FedAvg()], local=dfl.SGD(lr=0.2, batch=10**6))
        for cohort in ("on", "off")
    ]
    assert set(rows) == {max(SIZES)}
    assert close(*found)


@pytest.mark.parametrize("buffers", ["average", "fixed"])
def test_buffers_that_an_evaluation_changes_do_not_affect_the_next_one(buffers: Any) -> None:
    class Counting(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(6, 3)
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))
            self.register_buffer("scale", torch.ones(()))

        def forward(self, rows: Any) -> Any:
            if not self.training:
                self.calls += 1
                self.scale *= 2.0
            return self.out(rows) * self.scale * self.calls.clamp(min=1)

    torch.manual_seed(1)
    net, data, found = Counting(), federation(6, 3), []
    for cohort in ("on", "off"):
        module = dfl_torch.Module(net, buffers=buffers, cohort=cohort, device="cpu")
        options: dict[str, Any] = {"rounds": 3, "cohort": 4, "evaluate_every": 1, "progress": False}
        found.append(dfl.train(data, module, dfl.FedAvg(), local=dfl.SGD(lr=0.1, batch=4), **options))
        assert int(module._fixed["calls"]) == 0
    losses = [np.array(run.devices().to_dict()["loss"]) for run in found]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    np.testing.assert_allclose(found[0][0].params(), found[1][0].params(), rtol=1e-5)


@pytest.mark.parametrize("cohort", ["on", "off"])
def test_an_update_agrees_with_a_plain_loop_of_pytorch(cohort: Any) -> None:
    data = federation(6, 3)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    net.add_module("unused", nn.Identity())
    net[0].register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    module = dfl_torch.Module(net, cohort=cohort, device="cpu")
    # One step per device with all its examples, and weights by the number of examples.
    found = trained(data, module, dfl.FedAvg(), rounds=1, local=dfl.SGD(lr=0.5, batch=100))[0]
    total = np.zeros_like(found)
    for id in data.ids:
        inputs, targets = data[id]
        plain = dfl_torch.Module(net, device="cpu")._net
        nn.functional.cross_entropy(plain(torch.tensor(inputs).double()), torch.tensor(targets)).backward()
        torch.optim.SGD(plain.parameters(), lr=0.5).step()
        total += len(targets) * np.concatenate([p.detach().numpy().ravel() for p in plain.parameters()])
    np.testing.assert_allclose(found, total / sum(SIZES), atol=1e-6)


def test_an_operator_that_vmap_does_not_support_is_named(caplog: pytest.LogCaptureFixture) -> None:
    class Item(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(6, 3)

        def forward(self, rows: Any) -> Any:
            return self.out(rows) * float(rows.abs().sum().item() >= 0.0)

    torch.manual_seed(1)
    net = Item()
    with caplog.at_level(logging.INFO, logger="deltafl.torch"):
        found = [
            trained(federation(6, 3), dfl_torch.Module(net, cohort=cohort, device="cpu"), [dfl.FedAvg()])
            for cohort in ("on", "off")
        ]
    assert all(np.array_equal(a, b) for a, b in zip(*found))
    assert "one after another" in caplog.text and ".item()" in caplog.text


@pytest.mark.parametrize("cohort", ["off", "on"])
def test_scaffold_of_a_module_agrees_with_the_built_in_model(cohort: str) -> None:
    data = federation(6, 3)
    net = nn.Linear(6, 3, bias=False)
    nn.init.zeros_(net.weight)
    found = []
    for model in (dfl_torch.Module(net, cohort=cohort, device="cpu"), dfl.models.Linear(intercept=False)):
        run = dfl.train(
            data, model, [dfl.SCAFFOLD(), dfl.FedDyn(regularisation=0.1), dfl.FedAvg()], rounds=4, cohort=5,
            split={"train": 1.0}, local=dfl.SGD(lr=0.2, batch=4), progress=False, out=type(model).__name__,
        )
        found.append([next(iter(track.arrays().values())) for track in run])
    assert close(*found)
    assert not close(found[0][:1], found[0][2:]), "the correction has an effect"


@pytest.mark.parametrize("algorithm", [dfl.SCAFFOLD(), dfl.FedDyn(regularisation=0.1)], ids=["scaffold", "feddyn"])
@pytest.mark.parametrize("name", ["perceptron", "convolution", "lstm", "frozen layer", "tied weights"])
def test_corrected_devices_train_in_one_call(
    algorithm: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltafl.torch._step import Step

    make, width, shape, _ = MODULES[name]
    torch.manual_seed(1)
    net, calls = Double(make()), []
    rows, update = Step.rows, dfl_torch.Module.update
    monkeypatch.setattr(Step, "rows", lambda self, *args: calls.append("cohort") or rows(self, *args))
    monkeypatch.setattr(dfl_torch.Module, "update", lambda self, *args: calls.append("one") or update(self, *args))
    found, counts = [], []
    for cohort in ("on", "off"):
        module = dfl_torch.Module(net, shape=shape, l2=0.01, cohort=cohort, device="cpu")
        # The correction is zero in the first round.
        found.append(trained(federation(width, 3), module, algorithm, rounds=3, cohort=5, out=cohort)[0])
        counts.append((calls.count("cohort"), calls.count("one")))
        calls.clear()
    assert counts == [(3, 0), (0, 15)]
    assert np.linalg.norm(found[0] - found[1]) <= 1e-6 * np.linalg.norm(found[1])


def test_algorithms_with_and_without_corrections_share_rounds() -> None:
    data, algorithms = federation(6, 3), [dfl.FedAvg(), dfl.SCAFFOLD(), dfl.DeltaFL(theta=0.5)]
    torch.manual_seed(1)
    net = perceptron()
    found = [
        trained(data, dfl_torch.Module(net, cohort=cohort, device="cpu"), algorithms, rounds=3, out=cohort)
        for cohort in ("on", "off")
    ]
    assert close(*found)


@pytest.mark.parametrize("private", [True, False], ids=["noise", "reports"])
def test_noisy_devices_and_devices_that_report_train_in_one_call(
    private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltafl.torch._step import Step

    torch.manual_seed(1)
    net, calls, rows = Double(perceptron()), [], Step.rows
    monkeypatch.setattr(Step, "rows", lambda self, *args: calls.append("cohort") or rows(self, *args))
    options: dict[str, Any] = {}
    if private:
        options["privacy"] = {"epsilon": 8, "delta": 1e-5, "clip": 0.5, "survivors": 4, "accomplices": 0}
    algorithm = dfl.FedAvg() if private else dfl.QFFL(q=1.0)
    found = []
    for cohort in ("off", "on"):
        assert not calls
        module = dfl_torch.Module(net, cohort=cohort, device="cpu")
        found.append(trained(federation(6, 3), module, algorithm, rounds=2, cohort=5, out=cohort, **options)[0])
    assert len(calls) == 2
    assert np.linalg.norm(found[0] - found[1]) <= 1e-5 * np.linalg.norm(found[1])


class Tagger(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """A class per position, from tokens and a mask."""

    def __init__(self, pooled: bool) -> None:
        super().__init__()
        self.embedding, self.out, self.pooled = nn.Embedding(11, 6), nn.Linear(6, 3), pooled

    def forward(self, tokens: Any, mask: Any) -> Any:
        shares = mask.float().unsqueeze(2)
        states = self.embedding(tokens) * shares
        mean = states.sum(1, keepdim=True) / shares.sum(1, keepdim=True)
        return self.out(mean[:, 0] if self.pooled else states + mean)


@pytest.mark.parametrize("pooled", [True, False])
def test_dicts_of_inputs_and_targets_per_position_agree(pooled: bool, caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(4)

    def device(size: int) -> tuple[Any, Any]:
        sentences = [rng.integers(1, 11, size=rng.integers(2, 6)) for _ in range(size)]
        labels: Any = [sentence % 3 for sentence in sentences]
        return {"tokens": sentences}, np.array([label[0] for label in labels]) if pooled else labels

    data = dfl.Federation({f"d{k}": device(size) for k, size in enumerate(SIZES)})
    torch.manual_seed(1)
    net, runs = Tagger(pooled), {}
    with caplog.at_level(logging.INFO, logger="deltafl.torch"):
        for cohort in ("off", "on"):
            runs[cohort] = dfl.train(
                data, dfl_torch.Module(net, cohort=cohort, device="cpu"), [dfl.FedAvg(), dfl.DeltaFL(theta=0.5)],
                rounds=2, cohort=7, split={"train": 1.0}, local=dfl.SGD(lr=0.5, batch=4), progress=False,
                out=cohort,
            )
    assert "in one call" in caplog.text, caplog.text
    assert close([track.params() for track in runs["on"]], [track.params() for track in runs["off"]])
    on, off = (run.devices().to_dict() for run in (runs["on"], runs["off"]))
    assert np.allclose(on["loss"], off["loss"], rtol=1e-5) and np.allclose(on["error"], off["error"])


def test_a_module_that_reads_a_layer_trains_in_one_call(caplog: pytest.LogCaptureFixture) -> None:
    class Peek(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.out = nn.Conv1d(1, 3, 3, padding=1), nn.Linear(18, 3)

        def forward(self, rows: Any) -> Any:
            # The replacement of the layer has no such attribute.
            width = self.layer.out_channels
            return self.out(torch.relu(self.layer(rows.unsqueeze(1))).reshape(len(rows), 6 * width))

    torch.manual_seed(1)
    net = Peek()
    with caplog.at_level(logging.INFO, logger="deltafl.torch"):
        found = [
            trained(federation(6, 3), dfl_torch.Module(net, cohort=cohort, device="cpu"), [dfl.FedAvg()])
            for cohort in ("on", "off")
        ]
    assert close(*found) and "in one call" in caplog.text


def test_a_module_that_cannot_be_called_with_other_tensors_is_named(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(1)
    net = nn.DataParallel(perceptron())
    with caplog.at_level(logging.INFO, logger="deltafl.torch"):
        found = [
            trained(federation(6, 3), dfl_torch.Module(net, cohort=cohort, device="cpu"), [dfl.FedAvg()])
            for cohort in ("on", "off")
        ]
    assert np.array_equal(found[0][0], found[1][0])
    assert "one after another" in caplog.text and "DataParallel" in caplog.text


def test_a_step_runs_without_a_graph_that_cannot_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    from deltafl.torch import _step

    create: Any = _step.Step.__init__
    attempts: list[Any] = []

    def with_graph(step: Any, *args: Any) -> None:
        create(step, *args)
        step._uses_graph = True

    def run() -> list[Any]:
        torch.manual_seed(1)
        module = dfl_torch.Module(perceptron(), cohort="on", device="cpu")
        return trained(federation(6, 3), module, [dfl.FedAvg()], seeds=[3])

    expected = run()
    monkeypatch.setattr(_step.Step, "__init__", with_graph)
    monkeypatch.setattr(_step.Step, "_captured", lambda step, body: attempts.append(body))
    assert close(run(), expected)
    # The steps of one size attempt one recording.
    assert len(attempts) == 1
