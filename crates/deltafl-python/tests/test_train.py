"""``train``: a federation, a model and algorithms, without an experiment file."""

from __future__ import annotations

import json
import logging
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SHORT, blobs
from test_trainer import Softmax

import deltafl as dfl
from deltafl import _deltafl


def test_the_classes_are_those_of_the_tables_of_algorithms_and_models(root: Path) -> None:
    generate = runpy.run_path(str(root / "crates/deltafl-python/generate_classes.py"))
    package = root / "crates/deltafl-python/python/deltafl"
    for name, expected in [
        ("_algorithms.py", generate["source"](json.loads(_deltafl.algorithms()))),
        ("models.py", generate["models_source"](json.loads(_deltafl.models()))),
    ]:
        assert (package / name).read_text() == expected, "run crates/deltafl-python/generate_classes.py"


def test_a_model_per_level_is_trained_and_found_by_its_name(federation: dfl.Federation) -> None:
    out = dfl.train(
        federation,
        dfl.models.Linear(),
        [dfl.FedAvg(), dfl.DeltaFL(theta=[0.8, 0.5])],
        seeds=[1, 2],
        **SHORT,
    )
    assert [track.theta for track in out] == [1.0, 0.8, 0.5]
    half = out["theta=0.5"]
    assert out[half.name].params().tolist() == half.params().tolist()
    assert out["fedavg"].theta == 1.0
    assert half.arrays()["fc.weight"].shape == (2, 5)
    assert not np.array_equal(half.params(seed=1), half.params(seed=2))
    with pytest.raises(KeyError, match="no model matches 'theta=0.3'"):
        out["theta=0.3"]
    assert out.path.parent == Path("runs")


def test_private_training_records_epsilon_and_refuses_exact_quantiles(federation: dfl.Federation) -> None:
    privacy = {"epsilon": 8, "delta": 1e-5, "clip": 0.5, "survivors": 4, "accomplices": 0}
    out = dfl.train(federation, dfl.models.Linear(), dfl.FedAvg(), privacy=privacy, **SHORT)
    rounds = out.rounds().to_dict()
    spent = rounds["epsilon_server"]
    assert np.all(np.diff(spent) > 0)
    assert 7 < spent[-1] <= 8
    assert np.all(np.asarray(rounds["epsilon_readers"]) <= np.asarray(spent))
    assert out.experiment["privacy"]["epsilon"] == 8
    exact = dfl.train(federation, dfl.models.Linear(), dfl.FedAvg(), **SHORT)
    assert np.all(np.isnan(np.asarray(exact.rounds().to_dict()["epsilon_server"], dtype=float)))
    with pytest.raises(dfl.InvalidInput, match="exact sums|open mode"):
        dfl.train(federation, dfl.models.Linear(), dfl.DeltaFL(theta=0.5), privacy=privacy, **SHORT)


def test_a_federation_in_memory_trains_the_params_of_its_folder(federation: dfl.Federation) -> None:
    federation.save("wards")
    mine = dfl.train(federation, dfl.models.Linear(), [dfl.DeltaFL(theta=0.5)], **SHORT)
    file = {
        "name": "file",
        "rounds": 3,
        "cohort": 4,
        "evaluate_every": 1,
        "data": {"source": "wards"},
        "model": {"kind": "linear"},
        "local": {"epochs": 1, "batch": 8, "learning_rate": 0.1},
        "algorithm": [{"kind": "delta-fl", "theta": 0.5}],
    }
    theirs = dfl.run(file, progress=False)
    assert np.array_equal(mine["theta=0.5"].params(), theirs["theta=0.5"].params())


def test_every_algorithm_and_model_of_features_trains(federation: dfl.Federation) -> None:
    algorithms = [
        dfl.FedAvg(),
        dfl.FedProx(mu=0.1),
        dfl.FedAdam(),
        dfl.DeltaFL(theta=0.5, quantile="histogram"),
    ]
    for model in (dfl.models.Linear(l2=1e-3), dfl.models.Logistic(), dfl.models.Perceptron(hidden=4)):
        out = dfl.train(federation, model, algorithms, secagg="real", **SHORT)
        assert len(out.tracks) == 4


def test_a_run_resumes_only_on_the_same_data(federation: dfl.Federation) -> None:
    def train(data: dfl.Federation, rounds: int, resume: bool) -> dfl.Run:
        keywords = {**SHORT, "rounds": rounds}
        return dfl.train(data, dfl.models.Linear(), dfl.FedAvg(), name="again", resume=resume, **keywords)

    train(federation, 2, False)
    resumed = train(federation, 4, True)
    whole = dfl.train(federation, dfl.models.Linear(), dfl.FedAvg(), **{**SHORT, "rounds": 4})
    assert np.array_equal(resumed["fedavg"].params(), whole["fedavg"].params())
    other = dfl.Federation({"ward-0": (np.ones((2, 5)), [0, 1])})
    with pytest.raises(dfl.InvalidInput, match="the experiment has changed"):
        train(other, 5, True)
    with pytest.raises(dfl.InvalidInput, match="resume=True requires the folder"):
        dfl.train(federation, dfl.models.Linear(), dfl.FedAvg(), resume=True, **SHORT)


def test_invalid_options_are_rejected_with_the_messages_of_the_file(federation: dfl.Federation) -> None:
    with pytest.raises(dfl.InvalidInput, match=r"in \(0, 1\], got 1.4"):
        dfl.train(federation, dfl.models.Linear(), dfl.DeltaFL(theta=1.4), **SHORT)
    with pytest.raises(dfl.InvalidInput, match="model conv-net needs square images"):
        dfl.train(federation, dfl.models.ConvNet(), dfl.FedAvg(), **SHORT)
    with pytest.raises(dfl.InvalidInput, match="give either epochs or steps, not both"):
        keywords = {**SHORT, "local": dfl.SGD(lr=0.1, batch=4, epochs=1, steps=2)}
        dfl.train(federation, dfl.models.Linear(), dfl.FedAvg(), **keywords)


def test_a_new_split_of_the_devices_is_drawn_on_request(federation: dfl.Federation) -> None:
    out = dfl.train(federation, dfl.models.Linear(), dfl.FedAvg(), split={"train": 0.5, "seed": 3}, **SHORT)
    assert out.experiment["data"]["split"]["train"] == 0.5
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table(out.devices())
    last = [split for split, round in zip(table["split"].to_pylist(), table["round"].to_pylist()) if round == 3]
    assert last.count("train") == last.count("test") == 6


def test_a_run_resumes_by_its_folder_alone(federation: dfl.Federation) -> None:
    class Stop(dfl.callbacks.Callback):
        def on_round(self, event: dfl.callbacks.RoundEnd) -> bool:
            return True

    dfl.train(federation, dfl.models.Linear(), dfl.FedAvg(), out="here", callbacks=[Stop()], **SHORT)
    resumed = dfl.train(federation, dfl.models.Linear(), dfl.FedAvg(), out="here", resume=True, **SHORT)
    assert len(resumed.rounds()) == SHORT["rounds"]


def test_a_private_algorithm_beside_others_is_reported(
    federation: dfl.Federation, caplog: pytest.LogCaptureFixture
) -> None:
    private = dfl.DeltaFL(theta=0.5, quantile="histogram")
    with caplog.at_level(logging.WARNING, "deltafl"):
        run = dfl.train(federation, dfl.models.Linear(), [dfl.FedAvg(), private], name="both", **{**SHORT, "rounds": 6})
    assert "Δ-FL θ=0.5 finds η in secure sums, which changes FedAvg too: weights are uniform" in caplog.text
    assert "the models take turns" in caplog.text and "FedAvg keeps about" not in caplog.text
    rows = run.rounds().to_dict()
    assert rows["uncounted"] == [c - d - t - r for c, d, t, r in zip(*(rows[k] for k in ("cohort", "dropped", "tail", "refused")))]
    reasons = {name: reason for name, reason, n in zip(rows["name"], rows["uncounted_reason"], rows["uncounted"]) if n}
    assert reasons == {"Δ-FL θ=0.5": "the loss of the device is below eta"}
    caplog.clear()
    dfl.train(federation, dfl.models.Linear(), private, name="alone", **SHORT)
    assert "which changes" not in caplog.text


def test_devices_that_serve_another_model_are_counted_with_the_reason(federation: dfl.Federation) -> None:
    run = dfl.train(federation, dfl.models.Linear(), [dfl.FedAvg(), dfl.FedProx(mu=0.1)], tracks="apart", **{**SHORT, "cohort": 8})
    rows = run.rounds().to_dict()
    assert sum(rows["tail"]) == 8 * SHORT["rounds"], "every device serves one model"
    assert {reason for reason in rows["uncounted_reason"] if reason} == {"the device serves another model in this round"}


def test_weights_and_clip_are_keywords(federation: dfl.Federation) -> None:
    run = dfl.train(federation, dfl.models.Linear(intercept=False), dfl.FedAvg(), weights="bucketed", clip=0.01, **{**SHORT, "rounds": 1})
    assert (run.experiment["weights"], run.experiment["clip"]) == ("bucketed", 0.01)
    start = next(iter(dfl.initial(dfl.models.Linear(intercept=False), federation).values())).ravel()
    assert 0 < np.linalg.norm(run[0].params() - start) <= 0.0101


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"local": dfl.SGD(lr=float("nan"), batch=8)}, r"local\.learning_rate must be a finite number, got nan"),
        ({"algorithms": dfl.DeltaFL(theta=float("inf"))}, r"algorithm\.0\.theta must be a finite number"),
        ({"model": dfl.models.Linear}, r"got the class Linear: write Linear\(…\)"),
        ({"model": "linear"}, "expected a model of deltafl.models or a Trainer, got str"),
        ({"federation": {"a": 1}}, "expected a Federation, got dict"),
        ({"compute": "warp"}, "compute|warp"),
    ],
)
def test_wrong_arguments_are_refused_by_name(federation: dfl.Federation, change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"federation": federation, "model": dfl.models.Linear(), "algorithms": dfl.FedAvg(), **SHORT}
    with pytest.raises(dfl.InvalidInput, match=message):
        dfl.train(**{**given, **change})


def test_messages_name_keywords_and_not_options_of_the_command(federation: dfl.Federation) -> None:
    dfl.train(federation, dfl.models.Linear(), dfl.FedAvg(), out="here", **SHORT)
    with pytest.raises(dfl.InvalidInput) as raised:
        dfl.train(federation, dfl.models.Linear(), dfl.FedAvg(), out="here", **SHORT)
    assert "resume=True" in str(raised.value) and 'out="DIR"' in str(raised.value) and "--" not in str(raised.value)


@pytest.mark.parametrize("model", [dfl.models.Linear(), Softmax(5, 2)])
def test_a_private_run_states_its_budget_in_every_round(model: Any) -> None:
    class Spent(dfl.callbacks.Callback):
        def __init__(self) -> None:
            self.epsilons: list[float] = []

        def on_round(self, event: dfl.callbacks.RoundEnd) -> bool:
            self.epsilons += [record.privacy["epsilon_server"] for record in event.records if record.privacy]
            return False

    spent = Spent()
    budget = {"epsilon": 30, "delta": 1e-3, "clip": 0.5}
    options = {**SHORT, "rounds": 4, "cohort": 20, "evaluate_every": 4}
    private = dfl.DeltaFL(theta=0.5, quantile="tree")
    run = dfl.train(blobs(60, 20), model, private, privacy=budget, callbacks=[spent], **options)
    assert len(spent.epsilons) == 4 and spent.epsilons == sorted(spent.epsilons)
    assert 0 < spent.epsilons[0] and spent.epsilons[-1] <= 30
    assert run.experiment["privacy"]["clip"] == 0.5
    with pytest.raises(dfl.InvalidInput, match="clip"):
        dfl.train(blobs(60, 20), model, private, privacy={"epsilon": 30}, name="unbounded", **options)
