"""Callbacks: events, stopping and the callbacks for trackers."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
from conftest import SHORT

import deltafl as dfl
from deltafl import callbacks


class Recorder(callbacks.Callback):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_round(self, event: callbacks.RoundEnd) -> None:
        self.events.append(event)

    def on_evaluation(self, event: callbacks.Evaluated) -> None:
        self.events.append(event)

    def on_checkpoint(self, event: callbacks.Checkpoint) -> None:
        self.events.append(event)

    def on_end(self, run: dfl.Run) -> None:
        self.events.append(run)


def train(federation: dfl.Federation, *given: callbacks.Callback, **options: Any) -> dfl.Run:
    algorithms = [dfl.FedAvg(), dfl.DeltaFL(theta=0.5)]
    return dfl.train(federation, dfl.models.Linear(), algorithms, callbacks=given, **{**SHORT, **options})


def test_events_contain_the_records_evaluations_and_params_of_the_run(federation: dfl.Federation) -> None:
    recorder = Recorder()
    run = train(federation, recorder, evaluate_every=2)
    kinds = [type(event).__name__ for event in recorder.events]
    assert kinds == ["Evaluated", "RoundEnd", "RoundEnd", "Evaluated", "Checkpoint", "RoundEnd", "Evaluated", "Checkpoint", "Run"]
    rounds = [event for event in recorder.events if isinstance(event, callbacks.RoundEnd)]
    rows = run.rounds().to_dict()
    assert [record.tail for event in rounds for record in event.records] == rows["tail"]
    assert [record.eta for event in rounds for record in event.records] == rows["eta"]
    last = recorder.events[-2]
    assert last.params["FedAvg"].tobytes() == run["FedAvg"].params().tobytes()
    evaluated = recorder.events[-3].splits["test"]
    mean = run.table().to_dict()["mean"]
    assert evaluated.value("FedAvg", "error") == pytest.approx(mean[0])
    assert evaluated.value("Δ-FL θ=0.5", "error", 90) >= evaluated.value("Δ-FL θ=0.5", "error", 10)
    with pytest.raises(dfl.InvalidInput, match="there is no metric 'auc'"):
        evaluated.value("FedAvg", "auc")


def test_callbacks_do_not_change_the_bits(federation: dfl.Federation) -> None:
    plain = train(federation, name="plain")
    observed = train(federation, Recorder(), name="observed")
    assert plain["FedAvg"].params().tobytes() == observed["FedAvg"].params().tobytes()


def test_a_callback_stops_the_run_which_can_be_resumed(federation: dfl.Federation) -> None:
    class Stop(callbacks.Callback):
        def on_evaluation(self, event: callbacks.Evaluated) -> bool:
            return event.round == 2

    run = train(federation, Stop(), rounds=9, out="stopped")
    assert len(run.rounds()) == 2 * 2 and len(run.table()) == 2
    assert len(train(federation, rounds=9, out="stopped", resume=True).rounds()) == 2 * 9


def test_a_comparison_of_numpy_numbers_stops_the_run(federation: dfl.Federation) -> None:
    class Small(callbacks.Callback):
        def on_round(self, event: callbacks.RoundEnd) -> Any:
            return np.float64(event.round) >= 2

    assert len(train(federation, Small()).rounds()) == 2 * 2


def test_an_exception_in_a_callback_ends_the_run_and_is_raised(federation: dfl.Federation) -> None:
    class Wrong(callbacks.Callback):
        def on_round(self, event: callbacks.RoundEnd) -> None:
            raise ZeroDivisionError("an error of mine")

    with pytest.raises(ZeroDivisionError, match="an error of mine"):
        train(federation, Wrong(), rounds=9, name="wrong")
    assert len(dfl.Run("runs/wrong").rounds()) == 2, "the round with the exception is saved"
    with pytest.raises(dfl.InvalidInput, match="a callback must be a"):
        train(federation, print)  # type: ignore[arg-type]


def test_early_stopping_waits_for_an_improvement(federation: dfl.Federation) -> None:
    stopping = callbacks.EarlyStopping(metric="error", patience=2, min_delta=1.0)
    run = train(federation, stopping, rounds=50)
    assert len(run.rounds()) == 2 * 2, "the first evaluation is the best, and two follow"
    assert stopping.best_round == 0 and 0 <= stopping.best <= 1
    with pytest.raises(dfl.InvalidInput, match="there are no validation devices"):
        train(federation, callbacks.EarlyStopping(split="validation"), name="other")


def test_a_central_evaluation_receives_the_params_of_each_checkpoint(federation: dfl.Federation) -> None:
    central = callbacks.CentralEvaluation(lambda params: {"norm": float(np.linalg.norm(params))})
    run = train(federation, central)
    assert [row["round"] for row in central.history] == [1, 1, 2, 2, 3, 3]
    assert central.history[-2] == {
        "seed": 1, "round": 3, "model": "FedAvg", "norm": float(np.linalg.norm(run["FedAvg"].params()))
    }


class _Writer:
    """Stands for the writers of TensorBoard, wandb and MLflow."""

    rows: list[Any] = []

    def __init__(self, folder: str = "") -> None:
        self.config: Any = self
        self.updated: Any = None

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.rows.append((name, value, step))

    def define_metric(self, name: str, step_metric: str | None = None) -> None: ...

    def log(self, values: dict[str, float]) -> None:
        self.rows += [(name, value, values["round"]) for name, value in values.items()]

    def log_metrics(self, values: dict[str, float], step: int) -> None:
        self.rows += [(name, value, step) for name, value in values.items()]

    def update(self, experiment: Any, allow_val_change: bool) -> None:
        assert experiment["name"]

    def close(self) -> None:
        self.rows.append("closed")

    finish = end_run = close

    def active_run(self) -> None:
        return None

    def start_run(self, **options: Any) -> None: ...

    def init(self, **options: Any) -> _Writer:
        return self


@pytest.mark.parametrize(
    ("module", "create", "name"),
    [
        ("tensorboardX", lambda: callbacks.TensorBoard("logs"), "FedAvg/test/error_p90"),
        ("wandb", lambda: callbacks.WandB(project="x"), "FedAvg/test/error_p90"),
        ("mlflow", lambda: callbacks.MLflow(), "seed-1/FedAvg/test/error_p90"),
    ],
)
def test_trackers_receive_scalars_of_every_round(
    federation: dfl.Federation, monkeypatch: pytest.MonkeyPatch, module: str, create: Any, name: str
) -> None:
    writer = _Writer()
    _Writer.rows = []
    fake = types.ModuleType(module)
    for attribute in ("init", "active_run", "start_run", "log_metrics", "end_run"):
        setattr(fake, attribute, getattr(writer, attribute))
    fake.SummaryWriter = _Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module, fake)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    train(federation, create())
    rows = [row for row in writer.rows if row != "closed" and row[0] == name]
    assert [step for _, _, step in rows] == [0, 1, 2, 3]
    assert writer.rows[-1] == "closed"
