"""The strategy for Flower, with a grid of clients in this process."""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deltafl as dfl

tomllib = pytest.importorskip("tomllib")
pytest.importorskip("flwr")
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402

from deltafl.flower import DeltaFL, answer, is_in_tail  # noqa: E402


@pytest.fixture(autouse=True)
def _as_a_server_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the task identity, which Flower requires to create messages."""
    task_identity = pytest.importorskip("flwr.supercore.task_identity")
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(task_identity.TaskIdentity, name, 1)


class LocalGrid:
    """Clients in this process. Each moves w towards its own mean."""

    def __init__(self, clients: int, shuffled: bool = False) -> None:
        rng = np.random.default_rng(1)
        self.centres = {node: rng.normal(0.0 if node % 4 else 2.0, 0.1, size=4) for node in range(1, clients + 1)}
        self.examples = {node: int(rng.integers(5, 50)) for node in self.centres}
        self.trained: list[tuple[str, int]] = []
        self.asked: list[str] = []
        self.failing: set[int] = set()
        self._shuffled = shuffled

    def get_node_ids(self) -> list[int]:
        return list(self.centres)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = [self._reply(message) for message in messages]
        if self._shuffled:
            random.Random(3).shuffle(replies)
        return replies

    def _reply(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        if node in self.failing:
            from flwr.app import Error

            return Message(Error(0, "the client is unavailable"), reply_to=message)
        w = message.content["arrays"]["w"].numpy().astype(np.float64)
        loss = float(((w - self.centres[node]) ** 2).mean())
        kind = message.metadata.message_type
        self.asked.append(kind)
        if kind == "query":
            return answer(message, loss=loss, examples=self.examples[node])
        if kind == "evaluate":
            metrics = MetricRecord({"loss": loss, "num-examples": self.examples[node]})
            return Message(RecordDict({"metrics": metrics}), reply_to=message)
        kept = is_in_tail(message, loss=loss)
        if kept:
            w = w + 0.3 * (self.centres[node] - w)
            self.trained.append((message.metadata.group_id, node))
        metrics = MetricRecord({"loss": loss, "num-examples": self.examples[node] if kept else 0})
        arrays = ArrayRecord({"w": Array(w.astype(np.float32))})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def start() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(4, dtype=np.float32))})


def trained(strategy: Any, grid: LocalGrid, rounds: int = 5) -> Any:
    random.seed(5)
    return strategy.start(grid=grid, initial_arrays=start(), num_rounds=rounds)


def test_theta_1_equals_flowers_fedavg() -> None:
    shares = {"fraction_train": 0.5, "fraction_evaluate": 0.5}
    theirs = trained(FedAvg(**shares), LocalGrid(12))
    mine = trained(DeltaFL(1.0, **shares), LocalGrid(12))
    assert np.abs(mine.arrays["w"].numpy() - theirs.arrays["w"].numpy()).max() <= 1e-6
    losses = [result.evaluate_metrics_clientapp[5]["loss"] for result in (mine, theirs)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_the_tail_follows_the_quantile_and_levels_share_one_run() -> None:
    grid = LocalGrid(12)
    strategy = DeltaFL([1.0, 0.5, 0.25])
    trained(strategy, grid, rounds=1)
    losses = {node: float((centre**2).mean()) for node, centre in grid.centres.items()}
    weights = [grid.examples[node] for node in losses]
    for theta in (0.5, 0.25):
        eta = dfl.quantile(list(losses.values()), theta, weights)
        expected = {node for node, loss in losses.items() if loss >= eta}
        assert {node for name, node in grid.trained if name == f"theta={theta}"} == expected
        assert strategy.etas[f"theta={theta}"][1] == eta
    assert len([node for name, node in grid.trained if name == "theta=1"]) == 12
    assert grid.asked.count("query") == 12, "levels with the same arrays share one query"
    assert set(strategy.models) == {"theta=1", "theta=0.5", "theta=0.25"}


def test_a_smaller_level_serves_the_worst_clients_better() -> None:
    strategy = DeltaFL([1.0, 0.25])
    result = trained(strategy, LocalGrid(12), rounds=30)
    last = result.evaluate_metrics_clientapp[30]
    assert last["theta=0.25/loss-p90"] < last["theta=1/loss-p90"]
    assert last["theta=0.25/superquantile"] >= last["theta=0.25/loss"]


@pytest.mark.parametrize("theta", [0.7, 0.3])
def test_histograms_keep_the_mass_up_to_a_bin(theta: float) -> None:
    grid = LocalGrid(40)
    strategy = DeltaFL(theta, quantile="histogram")
    trained(strategy, grid, rounds=1)
    mass = sum(grid.examples[node] for _, node in grid.trained) / sum(grid.examples.values())
    opened = LocalGrid(40)
    trained(DeltaFL(theta), opened, rounds=1)
    assert theta <= mass < theta + 0.1
    # The open quantile distinguishes losses within one bin, and includes the client at η.
    assert len({node for _, node in grid.trained} ^ {node for _, node in opened.trained}) <= 2


def test_the_order_of_replies_does_not_change_the_model() -> None:
    found = [
        trained(DeltaFL(0.5), LocalGrid(12, shuffled=shuffled)).arrays["w"].numpy() for shuffled in (False, True)
    ]
    assert np.array_equal(found[0], found[1])


def test_failed_clients_are_excluded_and_an_empty_round_changes_nothing() -> None:
    grid = LocalGrid(12)
    grid.failing = {1, 2}
    trained(DeltaFL(0.5), grid, rounds=2)
    assert not {1, 2} & {node for _, node in grid.trained}
    grid.failing = set(grid.centres)
    strategy = DeltaFL(0.5)
    trained(strategy, grid, rounds=1)
    assert not strategy.models["theta=0.5"]["w"].numpy().any()


@pytest.mark.parametrize("wrong", [{"theta": 1.4}, {"theta": []}, {"theta": [0.5, 0.5]}, {"quantile": "guess"}, {"bins": 1}])
def test_invalid_options_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(dfl.InvalidInput):
        DeltaFL(**wrong)


def app_in_this_process(root: Path, monkeypatch: pytest.MonkeyPatch, name: str, overrides: dict[str, Any]) -> Path:
    """Runs an app with four clients and returns the folder of its results."""
    from flwr.app import Context

    apps = root / "integrations" / "flower"
    for app in ("emnist", name):
        monkeypatch.syspath_prepend(str(apps / app))
    local = importlib.import_module("deltafl_emnist.local")
    client = importlib.import_module(f"deltafl_{name}.client_app")
    server = importlib.import_module(f"deltafl_{name}.server_app")
    config = tomllib.loads((apps / name / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config.update(overrides)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    server.app(local.Grid(client.app, config, 4), context)
    return Path(config["out"])


@pytest.mark.parametrize(("name", "needs"), [("sklearn", "sklearn"), ("emnist", "torch")])
def test_the_apps_train_every_level(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, needs: str
) -> None:
    pytest.importorskip(needs)
    overrides = {"num-server-rounds": 2, "out": str(tmp_path / "out")} | ({"writers": 8} if name == "emnist" else {})
    out = app_in_this_process(root, monkeypatch, name, overrides)
    figures = json.loads((out / "evaluate.json").read_text())["2"]
    assert {"theta=1/error", "theta=0.5/error-p90", "theta=0.5/superquantile"} <= set(figures)


def test_the_app_with_theta_1_trains_the_model_of_flowers_fedavg(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    models = []
    for strategy in ("delta-fl", "fedavg"):
        out = tmp_path / strategy
        overrides = {"strategy": strategy, "theta": "1.0", "num-server-rounds": 5, "writers": 8, "out": str(out)}
        app_in_this_process(root, monkeypatch, "emnist", overrides)
        (file,) = out.glob("*.npz")
        with np.load(file) as arrays:
            models.append(arrays["fc.weight"])
    mine, theirs = models
    assert np.abs(theirs).max() > 1e-3, "the model has changed"
    assert np.abs(mine - theirs).max() <= 1e-6


def test_command_line_values_keep_the_types_of_their_keys(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(root / "integrations" / "flower" / "emnist"))
    overridden = importlib.import_module("deltafl_emnist.local").overridden
    assert overridden({"rounds": 1, "rate": 0.1, "out": ""}, ["rounds=7", "out=a=b"]) == {
        "rounds": 7, "rate": 0.1, "out": "a=b",
    }
    for wrong, error in (("rouns=7", "unknown key 'rouns'"), ("rounds=x", "rounds must be of type int")):
        with pytest.raises(SystemExit, match=error):
            overridden({"rounds": 1}, [wrong])
