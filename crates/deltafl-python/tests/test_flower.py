"""The strategy for Flower: on a grid of clients in this process, and in Flower's simulation."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deltafl as dfl

pytest.importorskip("flwr")
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402

from deltafl.flower import DeltaFL, answer, is_in_tail  # noqa: E402


@pytest.fixture(autouse=True)
def _as_a_server_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are made in a process that Flower has told who it is."""
    task_identity = pytest.importorskip("flwr.supercore.task_identity")
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(task_identity.TaskIdentity, name, 1)


class LocalGrid:
    """Clients in this process: each pulls w towards its own mean."""

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

            return Message(Error(0, "the client is away"), reply_to=message)
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


def test_full_conformity_is_flowers_own_fedavg() -> None:
    shares = {"fraction_train": 0.5, "fraction_evaluate": 0.5}
    theirs = trained(FedAvg(**shares), LocalGrid(12))
    mine = trained(DeltaFL(1.0, **shares), LocalGrid(12))
    assert np.abs(mine.arrays["w"].numpy() - theirs.arrays["w"].numpy()).max() <= 1e-6
    losses = [result.evaluate_metrics_clientapp[5]["loss"] for result in (mine, theirs)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_the_tail_is_that_of_the_quantile_and_levels_share_a_run() -> None:
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
    assert grid.asked.count("query") == 12, "levels that stand at the same arrays are asked once"
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
    # The open quantile tells losses apart that lie in one bin, and admits the device at η too.
    assert len({node for _, node in grid.trained} ^ {node for _, node in opened.trained}) <= 2


def test_the_order_of_replies_leaves_no_trace() -> None:
    found = [
        trained(DeltaFL(0.5), LocalGrid(12, shuffled=shuffled)).arrays["w"].numpy() for shuffled in (False, True)
    ]
    assert np.array_equal(found[0], found[1])


def test_clients_that_fail_are_left_out_and_a_round_of_nobody_moves_nothing() -> None:
    grid = LocalGrid(12)
    grid.failing = {1, 2}
    trained(DeltaFL(0.5), grid, rounds=2)
    assert not {1, 2} & {node for _, node in grid.trained}
    grid.failing = set(grid.centres)
    strategy = DeltaFL(0.5)
    trained(strategy, grid, rounds=1)
    assert not strategy.models["theta=0.5"]["w"].numpy().any()


@pytest.mark.parametrize("wrong", [{"theta": 1.4}, {"theta": []}, {"theta": [0.5, 0.5]}, {"quantile": "guess"}, {"bins": 1}])
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(dfl.InvalidInput):
        DeltaFL(**wrong)


def simulated(app: Path, out: Path, **config: Any) -> dict[str, Any]:
    """Runs a copy of an app in Flower's simulation; returns the figures of its last round."""
    words = " ".join(f"{key.replace('_', '-')}={json.dumps(value)}" for key, value in {"out": str(out), **config}.items())
    copy = out.with_name(f"{out.name}-app")
    shutil.copytree(app, copy)
    home = {**os.environ, "FLWR_HOME": str(out.with_name("flwr-home")), "RAY_memory_monitor_refresh_ms": "0"}
    script = Path(sys.executable).with_name("flwr-simulation")
    if not script.exists():
        script = Path(sys.executable).with_name("flower-simulation")
    done = subprocess.run(
        [str(script), "--app", str(copy), "--num-supernodes", "8", "--run-config", words],
        env=home, text=True, capture_output=True, check=False, timeout=500,
    )
    assert (out / "evaluate.json").exists(), done.stdout[-3000:] + done.stderr[-3000:]
    figures: dict[str, dict[str, Any]] = json.loads((out / "evaluate.json").read_text())
    return figures[max(figures, key=int)]


@pytest.fixture
def has_ray() -> None:
    pytest.importorskip("ray")


def test_the_app_with_scikit_learn_runs_in_the_simulation(root: Path, tmp_path: Path, has_ray: None) -> None:
    pytest.importorskip("sklearn")
    figures = simulated(root / "integrations/flower/sklearn", tmp_path / "out", num_server_rounds=3)
    assert {"theta=1/error", "theta=0.5/error", "theta=0.5/loss-p90"} <= set(figures)


def test_the_app_with_pytorch_runs_in_the_simulation_and_full_conformity_is_fedavg(
    root: Path, tmp_path: Path, has_ray: None
) -> None:
    pytest.importorskip("torch")
    app = root / "integrations/flower/emnist"
    short = {"num_server_rounds": 2, "writers": 16}
    simulated(app, tmp_path / "delta", theta="1.0,0.5", **short)
    simulated(app, tmp_path / "fedavg", strategy="fedavg", **short)
    mine, theirs = np.load(tmp_path / "delta/theta=1.npz"), np.load(tmp_path / "fedavg/fedavg.npz")
    for name in theirs.files:
        assert np.abs(mine[name] - theirs[name]).max() <= 1e-6
