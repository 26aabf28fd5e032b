"""PyTorch modules as trainers, and the differentiable superquantile."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SHORT
from test_types import checker

import deltafl as dfl

torch = pytest.importorskip("torch")
dfl_torch = pytest.importorskip("deltafl.torch")


class Conv(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """The network of ``models.ConvNet``."""

    def __init__(self, channels: tuple[int, int], classes: int) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, channels[0], 5)
        self.conv2 = torch.nn.Conv2d(channels[0], channels[1], 5)
        self.fc = torch.nn.Linear(channels[1] * 16, classes)

    def forward(self, images: Any) -> Any:
        pooled = torch.max_pool2d(torch.relu(self.conv1(images)), 2)
        pooled = torch.max_pool2d(torch.relu(self.conv2(pooled)), 2)
        return self.fc(pooled.flatten(1))


class Linear(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """The model of ``models.Linear``."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(features, classes, bias=False)

    def forward(self, rows: Any) -> Any:
        return self.fc(rows)


@pytest.fixture(scope="module")
def glyphs() -> dfl.Federation:
    return dfl.Federation.synthetic("glyphs", devices=6, seed=2)


@pytest.mark.parametrize("kind", ["linear", "conv-net"])
def test_a_module_agrees_with_the_kernels_after_a_round(glyphs: dfl.Federation, kind: str) -> None:
    ours: dfl.models.Model
    if kind == "linear":
        ours, net, shape = dfl.models.Linear(l2=1e-3, intercept=False), Linear(784, 62), None
        net.fc.weight.data.zero_()
    else:
        ours, net, shape = dfl.models.ConvNet(channels=(4, 8)), Conv((4, 8), 62), (1, 28, 28)
        start = dfl.initial(ours, glyphs, seed=1)
        net.load_state_dict({name: torch.from_numpy(array) for name, array in start.items()})
    keywords = {**SHORT, "rounds": 1, "local": dfl.SGD(lr=0.05, batch=16)}
    algorithms = [dfl.FedAvg(), dfl.DeltaFL(theta=0.5), dfl.FedProx(mu=0.3)]
    theirs = dfl.train(glyphs, dfl_torch.Module(net, shape=shape, l2=ours.section()["l2"]), algorithms, **keywords)
    expected = dfl.train(glyphs, ours, algorithms, **keywords)
    for mine, wanted in zip(theirs, expected):
        for name, array in wanted.arrays().items():
            got = mine.arrays()[name]
            assert np.linalg.norm(got - array) <= 1e-4 * np.linalg.norm(array), (wanted.name, name)
    net.load_state_dict(expected.tracks[0].state_dict())


def test_two_runs_with_dropout_and_several_workers_are_bitwise_equal(federation: dfl.Federation) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Dropout(0.5), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    module = dfl_torch.Module(net, init="reset", device="cpu")
    runs = [
        dfl.train(federation, module, dfl.DeltaFL(theta=0.5), secagg=secagg, **SHORT)
        for secagg in ("plain", "plain", "real")
    ]
    params = [run.tracks[0].params() for run in runs]
    assert np.array_equal(params[0], params[1]) and np.array_equal(params[0], params[2])
    other = dfl.train(federation, module, dfl.DeltaFL(theta=0.5), seeds=[2], **SHORT)
    assert not np.array_equal(other.tracks[0].params(seed=2), params[0])


def test_the_number_of_threads_does_not_change_the_params(federation: dfl.Federation) -> None:
    torch.manual_seed(0)
    module = dfl_torch.Module(torch.nn.Linear(5, 2), device="cpu")
    one, two = (
        dfl.train(federation, module, dfl.FedAvg(), threads=threads, **SHORT).tracks[0].params()
        for threads in (1, 2)
    )
    assert np.array_equal(one, two)


def test_threads_do_not_change_the_params_of_modules_that_draw_random_numbers(federation: dfl.Federation) -> None:
    class Sometimes(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        """Draws random numbers only in later calls."""

        def __init__(self) -> None:
            super().__init__()
            self.fc, self.drop = torch.nn.Linear(5, 2), torch.nn.Dropout(0.5)

        def forward(self, rows: Any) -> Any:
            # The bias is zero at the start of the first round only.
            return self.fc(self.drop(rows) if bool(self.fc.bias.abs().max() > 0.05) else rows)

    torch.manual_seed(0)
    always = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(5, 2))
    sometimes = Sometimes()
    torch.nn.init.zeros_(sometimes.fc.bias)
    keywords = {**SHORT, "cohort": 8, "rounds": 6, "evaluate_every": 6}
    for net in (always, sometimes):
        found = [
            dfl.train(federation, dfl_torch.Module(net, device="cpu"), dfl.FedAvg(), threads=threads, **keywords)
            .tracks[0]
            .params()
            for threads in (1, 3, 3)
        ]
        assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


def test_a_module_trains_in_a_deployed_federation(federation: dfl.Federation) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(5), torch.nn.Dropout(0.2), torch.nn.Linear(5, 2))
    algorithms = [dfl.FedAvg(), dfl.DeltaFL(theta=0.5, quantile="histogram")]
    experiment = {"name": "wards", "rounds": 2, "cohort": 6, "local": SHORT["local"], "algorithm": algorithms}
    names = federation.split("train")
    module = dfl_torch.Module(net, device="cpu")
    with dfl.Server(experiment, trainer=module, devices=names, wait_for=8, progress=False) as server:
        with contextlib.ExitStack() as stack:
            for name in names:
                trainer = dfl_torch.Module(net, device="cpu")
                stack.enter_context(dfl.Device(server, name=name, reproducible=True).start(trainer, federation))
            deployed = server.wait()
    simulated = dfl.train(federation, module, algorithms, **{**SHORT, "rounds": 2, "cohort": 6})
    for got, wanted in zip(deployed, simulated):
        assert np.array_equal(got.params(), wanted.params())
    net.load_state_dict(deployed["theta=0.5"].state_dict())


@pytest.mark.parametrize("buffers", ["average", "fixed"])
def test_buffers_are_averaged_or_fixed(federation: dfl.Federation, buffers: Any) -> None:
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2))
    module = dfl_torch.Module(net, buffers=buffers, device="cpu")
    assert module.num_params == 10 + 12 + (10 if buffers == "average" else 0)
    state = dfl.train(federation, module, dfl.FedAvg(), **SHORT).tracks[0].state_dict()
    changed = bool(state["0.running_mean"].abs().max() > 0)
    assert changed == (buffers == "average")
    assert int(state["0.num_batches_tracked"]) == 0, "integer buffers do not change"
    net.load_state_dict(state)


def test_a_custom_optimizer_is_used(federation: dfl.Federation) -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(5, 2)
    plain = dfl_torch.Module(net, device="cpu")
    sgd = dfl_torch.Module(
        net, optimizer=lambda params, local: torch.optim.SGD(params, lr=local.learning_rate), device="cpu"
    )
    adam = dfl_torch.Module(net, optimizer=lambda params, local: torch.optim.Adam(params, lr=0.01), device="cpu")
    found = [dfl.train(federation, module, dfl.FedAvg(), **SHORT).tracks[0].params() for module in (plain, sgd, adam)]
    assert np.allclose(found[0], found[1], rtol=1e-5, atol=1e-7)
    assert not np.allclose(found[0], found[2])


def test_a_module_that_does_not_fit_names_the_device(federation: dfl.Federation) -> None:
    with pytest.raises(dfl.TrainerError, match=r"device ward-\d+: RuntimeError") as raised:
        dfl.train(federation, dfl_torch.Module(torch.nn.Linear(7, 2), device="cpu"), dfl.FedAvg(), **SHORT)
    assert isinstance(raised.value.__cause__, RuntimeError)


class Pair(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """A module with two outputs."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(features, 62)

    def forward(self, rows: Any) -> Any:
        return self.fc(rows), rows


@pytest.mark.parametrize("cohort", ["on", "off"])
def test_outputs_losses_and_shapes_that_do_not_fit_are_explained(federation: dfl.Federation, cohort: Any) -> None:
    features = federation[federation.ids[0]][0].shape[1]
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (Pair(features), {}, "forward returns a tuple, expected one tensor"),
        (Linear(features, 62), {"loss": torch.nn.CrossEntropyLoss(reduction="none")}, "the mean loss of a batch"),
        (Linear(features, 62), {"shape": (1, 3, 5)}, r"shape=\(1, 3, 5\) has 15 numbers, but an input has"),
    ]
    for net, options, message in cases:
        with pytest.raises(dfl.TrainerError, match=message):
            dfl.train(federation, dfl_torch.Module(net, cohort=cohort, device="cpu", **options), dfl.FedAvg(), **SHORT)


@pytest.mark.parametrize("cohort", ["on", "off"])
def test_targets_of_another_task_are_rejected(cohort: Any) -> None:
    inputs = np.arange(24, dtype=np.float32).reshape(12, 2)
    devices = np.repeat(["a", "b", "c"], 4)
    cases: list[tuple[Any, Any, str]] = [
        (np.linspace(0.0, 1.0, 12), "classes", 'use task="regression"'),
        (np.arange(12) % 3, "binary", 'use task="classes"'),
        (np.eye(3)[np.arange(12) % 3], "classes", r"argmax\(axis=1\)"),
    ]
    for targets, task, message in cases:
        data = dfl.Federation.from_arrays(inputs, targets, devices)
        module = dfl_torch.Module(torch.nn.Linear(2, 1 if task == "binary" else 3), task=task, cohort=cohort, device="cpu")
        with pytest.raises(dfl.Error, match=message):
            dfl.train(data, module, dfl.FedAvg(), **SHORT)


def test_initial_params_that_are_not_finite_are_rejected(federation: dfl.Federation) -> None:
    net = Linear(federation[federation.ids[0]][0].shape[1], 2)
    net.fc.weight.data.fill_(float("nan"))
    with pytest.raises(dfl.TrainerError, match="initial params are not finite"):
        dfl.train(federation, dfl_torch.Module(net, device="cpu"), dfl.FedAvg(), **SHORT)


def test_a_run_rejects_the_trainer_of_another_size(federation: dfl.Federation) -> None:
    features = federation[federation.ids[0]][0].shape[1]
    run = dfl.train(federation, dfl_torch.Module(Linear(features, 2), device="cpu"), dfl.FedAvg(), **SHORT)
    other = dfl.Run(run.path, trainer=dfl_torch.Module(Linear(features, 1), device="cpu"))
    with pytest.raises(dfl.InvalidInput, match=f"the trainer has {features} params, but the model of the run has {2 * features}"):
        other[0].predict(np.ones((2, features), dtype=np.float32))


def test_a_reset_names_the_parameters_that_it_keeps(caplog: pytest.LogCaptureFixture) -> None:
    net = torch.nn.TransformerEncoderLayer(4, 2, 8)
    dfl_torch.Module(net, init="reset", device="cpu").init(np.random.default_rng(1))
    assert 'init="reset" keeps self_attn.in_proj_weight, self_attn.in_proj_bias: the layer has no' in caplog.text
    caplog.clear()
    dfl_torch.Module(Linear(3, 2), init="reset", device="cpu").init(np.random.default_rng(1))
    assert not caplog.text


def test_modules_that_cannot_be_trained_are_rejected() -> None:
    net: Any = torch.nn.Module()
    net.register_parameter("turn", torch.nn.Parameter(torch.ones(2, dtype=torch.complex64)))
    cases: list[tuple[Any, Any, str]] = [
        (torch.nn.Linear, None, r"got the class Linear: write Linear\(…\)"),
        (len, None, "expected a torch.nn.Module"),
        (torch.nn.LazyLinear(3), None, "'weight' has no shape yet"),
        (torch.nn.LazyBatchNorm1d(affine=False), None, "'running_mean' has no shape yet"),
        (net, None, "parameter 'turn' is complex"),
        (torch.nn.Linear(2, 2), "mse", "loss must be a function"),
    ]
    for module, loss, message in cases:
        with pytest.raises(dfl.InvalidInput, match=message):
            dfl_torch.Module(module, loss)
    adam: Any = torch.optim.Adam
    with pytest.raises(dfl.InvalidInput, match=r"got a class: write lambda params, local: torch.optim.Adam\(params"):
        dfl_torch.Module(torch.nn.Linear(2, 2), optimizer=adam)


def test_devices_and_optimizers_that_cannot_be_used_are_explained(federation: dfl.Federation) -> None:
    for device in ["warp", *([] if torch.cuda.is_available() else ["cuda"])]:
        with pytest.raises(dfl.InvalidInput, match=f"the torch device '{device}' is not available"):
            dfl_torch.Module(torch.nn.Linear(5, 2), device=device)
    for cohort in ("on", "off"):
        module = dfl_torch.Module(
            torch.nn.Linear(5, 2), optimizer=lambda params, local: torch.optim.LBFGS(params), device="cpu", cohort=cohort
        )
        with pytest.raises(dfl.TrainerError, match="LBFGS evaluates the loss several times per step"):
            dfl.train(federation, module, dfl.FedAvg(), **SHORT)


def test_predictions_for_other_features_are_rejected(federation: dfl.Federation) -> None:
    module = dfl_torch.Module(torch.nn.Linear(5, 2), device="cpu")
    run = dfl.train(federation, module, dfl.FedAvg(), **SHORT)
    with pytest.raises(dfl.InvalidInput, match=r"trained on 5 features per example, got inputs of shape \(3, 4\)"):
        run[0].predict(np.ones((3, 4), dtype=np.float32))
    assert run[0].predict(np.ones((3, 5), dtype=np.float32)).shape == (3,)


def test_the_gradient_of_the_superquantile_is_the_worst_case_mixture() -> None:
    losses = torch.tensor([1.0, 2.0, 3.0, 5.0], dtype=torch.float64, requires_grad=True)
    value = dfl_torch.superquantile(losses, 0.5)
    assert float(value) == 4.0
    value.backward()
    assert losses.grad.tolist() == [0.0, 0.0, 0.5, 0.5]


def test_the_smoothed_superquantile_passes_a_gradient_check() -> None:
    rng = np.random.default_rng(4)
    losses = torch.tensor(rng.exponential(size=12), dtype=torch.float64, requires_grad=True)
    weights = rng.integers(1, 9, size=12).astype(float)
    for theta in (0.2, 0.7, 1.0):
        assert torch.autograd.gradcheck(
            lambda values, theta=theta: dfl_torch.superquantile(values, theta, 0.3, weights), (losses,)
        )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_module_trains_on_a_gpu(federation: dfl.Federation) -> None:
    module = dfl_torch.Module(torch.nn.Linear(5, 2))
    out = dfl.train(federation, module, dfl.FedAvg(), **SHORT)
    assert np.isfinite(out.tracks[0].params()).all()


def test_a_frozen_backbone_is_not_sent(federation: dfl.Federation) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(5, 100), torch.nn.ReLU(), torch.nn.Linear(100, 2))
    net[0].requires_grad_(False)
    trainer = dfl.torch.Module(net)
    assert trainer.num_params == 202
    run = dfl.train(federation, trainer, dfl.FedAvg(), **SHORT)
    state = run[0].state_dict()
    assert torch.equal(state["0.weight"], net[0].weight) and not torch.equal(state["2.weight"], net[2].weight)


def test_another_optimizer_is_noticed_on_resume(federation: dfl.Federation) -> None:
    def module(optimizer: Any) -> Any:
        return dfl.torch.Module(torch.nn.Linear(5, 2), optimizer=optimizer)

    adam = lambda params, local: torch.optim.Adam(params, lr=local.learning_rate)  # noqa: E731
    sgd = lambda params, local: torch.optim.SGD(params, lr=local.learning_rate)  # noqa: E731
    dfl.train(federation, module(adam), dfl.FedAvg(), out="here", **SHORT)
    with pytest.raises(dfl.InvalidInput, match=r"model\.external\.optimizer: .*Adam.* → .*SGD"):
        dfl.train(federation, module(sgd), dfl.FedAvg(), out="here", resume=True, **SHORT)


def test_a_reopened_run_predicts_with_its_module(federation: dfl.Federation) -> None:
    run = dfl.train(federation, dfl.torch.Module(torch.nn.Linear(5, 2)), dfl.FedAvg(), out="here", **SHORT)
    inputs = federation["ward-0"][0]
    with pytest.raises(dfl.InvalidInput, match=r"pass the trainer of 12 params(.|\n)*net: Linear"):
        dfl.Run("here")[0].predict(inputs)
    again = dfl.Run("here", trainer=dfl.torch.Module(torch.nn.Linear(5, 2)))[0]
    assert np.array_equal(again.predict_proba(inputs), run[0].predict_proba(inputs))
    assert again.predict_proba(inputs).sum(axis=1) == pytest.approx(np.ones(len(inputs)))
    assert 0.5 < run.evaluate(metrics=["auc"]).models["FedAvg"]["auc"].mean() <= 1


class Tagger(torch.nn.Module):
    """A small transformer that predicts a class per token."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(10, 8)
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, tokens: Any, mask: Any) -> Any:
        return self.head(self.layer(self.words(tokens), src_key_padding_mask=~mask))


def test_a_transformer_trains_on_tokens_and_mask_with_a_target_per_position() -> None:
    rng = np.random.default_rng(2)

    def device() -> Any:
        texts = [rng.integers(0, 10, size=length) for length in rng.integers(2, 8, size=12)]
        return {"tokens": texts}, [text % 3 for text in texts]

    federation = dfl.Federation({f"d{k}": device() for k in range(6)})
    torch.manual_seed(0)
    module = dfl.torch.Module(Tagger())
    options = {"rounds": 12, "cohort": 6, "local": dfl.SGD(lr=0.5, batch=4), "evaluate_every": 12, "progress": False}
    run = dfl.train(federation, module, dfl.FedAvg(), **options)
    errors = run.devices().to_dict()
    first, last = (np.mean([e for e, t in zip(errors["error"], errors["round"]) if t == round]) for round in (0, 12))
    assert last < 0.2 < 0.5 < first
    inputs, _ = federation["d0"]
    assert run[0].predict_proba(inputs).shape == (12, 7, 3)


def test_an_augmentation_draws_keyed_random_numbers(federation: dfl.Federation) -> None:
    def noisy(inputs: Any, generator: torch.Generator) -> Any:
        return inputs + torch.randn(inputs.shape, generator=generator)

    def params(threads: int, transform: Any) -> bytes:
        torch.manual_seed(3)
        module = dfl.torch.Module(torch.nn.Linear(5, 2), transform=transform, device="cpu")
        run = dfl.train(federation, module, dfl.FedAvg(), threads=threads, **{**SHORT, "name": f"t{threads}{transform}"[:40].replace(" ", "").replace("<", "").replace(".", "")})
        return run[0].params().tobytes()

    assert params(1, noisy) == params(2, noisy) != params(1, None)


def test_loaders_of_torch_are_devices() -> None:
    inputs, targets = torch.arange(20.0).reshape(10, 2), torch.arange(10) % 2
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=3, shuffle=True)
    federation = dfl.Federation({"a": loader})
    assert federation.hash == dfl.Federation({"a": (inputs, targets)}).hash


def test_the_module_is_typed(root: Path) -> None:
    done = checker("mypy", Path("deltafl/torch"), cwd=root / "crates/deltafl-python/python")
    assert done.returncode == 0, done.stdout + done.stderr
