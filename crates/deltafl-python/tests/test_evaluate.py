"""Predictions, metrics per device, and reopened runs."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SHORT
from test_run import command
from test_trainer import Softmax

import deltafl as dfl
from deltafl import metrics


@pytest.mark.parametrize("model", [dfl.models.Linear(intercept=True), dfl.models.Perceptron(hidden=4), dfl.models.Logistic()])
def test_predictions_agree_with_the_evaluation_of_the_run(federation: dfl.Federation, model: Any) -> None:
    run = dfl.train(federation, model, [dfl.FedAvg(), dfl.DeltaFL(theta=0.5)], **SHORT)
    table = run.devices().to_dict()
    last = {
        device: error
        for device, name, round, split, error in zip(table["device"], table["name"], table["round"], table["split"], table["error"])
        if round == 3 and split == "test" and name == "FedAvg"
    }
    reopened = dfl.Run(run.path)["fedavg"]
    for id, error in last.items():
        inputs, targets = federation[id]
        assert (reopened.predict(inputs) != targets).mean() == pytest.approx(error)
        assert reopened.predict_proba(inputs).sum(axis=1) == pytest.approx(np.ones(len(inputs)), abs=1e-5)
    evaluation = run.evaluate()
    assert dict(zip(evaluation.ids, evaluation.models["FedAvg"]["error"])) == pytest.approx(last)


def test_a_regression_predicts_real_numbers() -> None:
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(80, 3)).astype(np.float32)
    targets = (inputs @ [1.0, -2.0, 3.0]).astype(np.float32)
    federation = dfl.Federation.from_arrays(inputs, targets, np.repeat(np.arange(8), 10))
    run = dfl.train(federation, dfl.models.Linear(intercept=False), dfl.FedAvg(), rounds=60, cohort=8, local=dfl.SGD(lr=0.1, batch=10), evaluate_every=60, progress=False)
    weights = next(iter(run[0].arrays().values()))
    assert run[0].predict(inputs) == pytest.approx((inputs @ weights.T).ravel(), abs=1e-5)
    table = run.evaluate(split="train").table().to_dict()
    assert table["metric"] == ["rmse", "mae", "r2"] and table["mean"][2] > 0.99


def test_a_new_process_predicts_from_the_run_folder_alone(federation: dfl.Federation) -> None:
    run = dfl.train(federation, dfl.models.Linear(), dfl.DeltaFL(theta=0.5), out="run", **SHORT)
    inputs = federation["ward-0"][0]
    np.save("inputs.npy", inputs)
    code = "import deltafl, numpy; print(deltafl.Run('run')['theta=0.5'].predict(numpy.load('inputs.npy')).tolist())"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert done.stdout.strip() == str(run["theta=0.5"].predict(inputs).tolist())


def test_frames_are_inputs(federation: dfl.Federation) -> None:
    pandas = pytest.importorskip("pandas")
    run = dfl.train(federation, dfl.models.Linear(intercept=False), dfl.FedAvg(), **SHORT)
    inputs = federation["ward-0"][0]
    frame = pandas.DataFrame(inputs, columns=list("abcde"))
    assert run[0].predict(frame).tolist() == run[0].predict(inputs).tolist()
    with pytest.raises(dfl.InvalidInput, match=r"trained on 5 features per example, got inputs of shape \(30, 3\)"):
        run[0].predict(inputs[:, :3])


def test_a_run_of_a_trainer_needs_the_trainer_and_says_so(federation: dfl.Federation) -> None:
    run = dfl.train(federation, Softmax(5, 2), dfl.FedAvg(), out="own", **SHORT)
    inputs, targets = federation["ward-0"]
    expected = run[0].predict(inputs)
    for use in (lambda track: track.predict(inputs), lambda track: track.arrays()):
        with pytest.raises(dfl.InvalidInput, match=r"pass the trainer of 10 params, Run\('own', trainer=…\)"):
            use(dfl.Run("own")[0])
    assert dfl.Run("own", trainer=Softmax(5, 2))[0].predict(inputs).tolist() == expected.tolist()
    evaluation = run.evaluate(metrics=["error", "f1"])
    assert evaluation.models["FedAvg"]["error"][evaluation.ids.index("ward-0")] == (expected != targets).mean()
    with pytest.raises(dfl.InvalidInput, match="auc needs a probability per class"):
        run.evaluate(metrics=["auc"])


def test_metrics_of_ones_own_have_percentiles_and_a_dispersion(federation: dfl.Federation) -> None:
    def positives(targets: Any, outputs: Any) -> float:
        return float(outputs[:, 1].mean())

    run = dfl.train(federation, dfl.models.Linear(), [dfl.FedAvg(), dfl.DeltaFL(theta=0.5)], **SHORT)
    evaluation = run.evaluate(federation, metrics=["auc", positives], split=None)
    assert len(evaluation.devices()) == 2 * 12
    table = evaluation.table().to_dict()
    assert table["metric"] == ["auc", "positives"] * 2 and table["devices"] == [12.0] * 4
    values = evaluation.models["FedAvg"]["positives"]
    assert table["p90"][1] == pytest.approx(np.percentile(values, 90)) and table["std"][1] == pytest.approx(values.std())
    with pytest.raises(dfl.InvalidInput, match="there is no metric 'r2' for the task 'classes'"):
        run.evaluate(metrics=["r2"])


def test_metrics_are_those_of_the_textbook() -> None:
    targets = np.array([0, 0, 1, 1, 1])
    outputs = np.array([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5], [0.2, 0.8], [0.3, 0.7]])
    assert metrics.error(targets, outputs) == pytest.approx(0.4)
    assert metrics.accuracy(targets, outputs) == pytest.approx(0.6)
    assert metrics.balanced_accuracy(targets, outputs) == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert metrics.f1(targets, outputs) == pytest.approx(2 * 2 / (2 * 2 + 2))
    assert metrics.auc(targets, outputs) == pytest.approx(5 / 6)
    assert metrics.perplexity(targets, outputs) == pytest.approx((0.9 * 0.4 * 0.5 * 0.8 * 0.7) ** (-1 / 5))
    assert np.isnan(metrics.auc(np.ones(3, dtype=int), outputs[:3]))
    three = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.3, 0.6, 0.1]])
    assert metrics.f1(np.array([0, 1, 2]), three) == pytest.approx((1 + 2 / 3 + 0) / 3)
    real, found = np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 5.0])
    assert (metrics.mae(real, found), metrics.r2(real, found)) == pytest.approx((2 / 3, -1.0))
    assert metrics.rmse(real, found) == pytest.approx((4 / 3) ** 0.5)


@pytest.mark.parametrize("model", [dfl.models.Linear(), Softmax(5, 2)])
def test_a_normalised_run_normalises_new_inputs(federation: dfl.Federation, model: Any) -> None:
    real = {name: federation[name] for name in federation}
    grey = {name: (np.clip(40 * x + 100, 0, 255).astype(np.uint8), y) for name, (x, y) in real.items()}
    for given in (real, grey):
        own = dfl.Federation(given, split={name: "test" for name in federation.split("test")})
        run = dfl.train(own, model, dfl.FedAvg(), normalise="standard", **SHORT)
        expected = run.evaluate(split=None)
        assert run.evaluate(own, split=None).models["FedAvg"]["error"].tolist() == (
            expected.models["FedAvg"]["error"].tolist()
        )
        wrong = [(run[0].predict(given[name][0]) != given[name][1]).mean() for name in expected.ids]
        assert wrong == expected.models["FedAvg"]["error"].tolist()
    with pytest.raises(dfl.InvalidInput, match="normalised inputs of type uint8, got inputs of type float32"):
        run[0].predict(real["ward-0"][0])


def test_an_imported_table_is_coded_as_the_data_of_the_run() -> None:
    rng = np.random.default_rng(3)
    for name, kinds in (("a", ["w", "x", "y"]), ("b", ["x", "y"])):
        rows = [(k % 4, rng.choice(kinds), rng.integers(9)) for k in range(80)]
        lines = [f"d{device},{kind},{size},{int(kind == 'x')}" for device, kind, size in rows]
        Path(f"{name}.csv").write_text("\n".join(["id,kind,size,label", *lines]))
        done = command("data", "import", "csv", f"{name}.csv", "--device", "id", "--label", "label", "--out", name)
        assert done.returncode == 0, done.stderr
    experiment = {"name": "a", "rounds": 20, "cohort": 4, "data": {"source": "a"}, "model": dfl.models.Linear(intercept=True)}
    own = {"local": dfl.SGD(lr=0.3, batch=10), "algorithm": [dfl.FedAvg()]}
    run = dfl.run({**experiment, **own}, progress=False)
    # The label follows from the kind, which has fewer columns in the second table.
    assert run.evaluate(dfl.Federation.open("b")).models["FedAvg"]["error"].tolist() == [0.0] * 4


def test_a_trainer_predicts_on_grey_levels_as_it_was_trained(federation: dfl.Federation) -> None:
    seen: list[float] = []

    class Seeing(Softmax):
        def predict(self, params: Any, inputs: Any) -> Any:
            seen.append(float(inputs.max()))
            return super().predict(params, inputs)

    grey = {name: (np.full((30, 5), 255, dtype=np.uint8), federation[name][1]) for name in federation}
    run = dfl.train(dfl.Federation(grey), Seeing(5, 2), dfl.FedAvg(), **SHORT)
    run[0].predict(grey["ward-0"][0])
    assert seen == [1.0]


def test_federations_and_tables_can_be_pickled(federation: dfl.Federation) -> None:
    synthetic = dfl.Federation.synthetic("logistic", devices=4, seed=1)
    federation.save("saved")
    for given in (federation, synthetic, dfl.Federation.open("saved")):
        again = pickle.loads(pickle.dumps(given))
        assert again.hash == given.hash and again.ids == given.ids
    run = dfl.train(federation, dfl.models.Linear(), dfl.FedAvg(), **SHORT)
    table = pickle.loads(pickle.dumps(run.table()))
    assert table.columns == run.table().columns and table.to_dict()["name"] == ["FedAvg"]
    pyarrow = pytest.importorskip("pyarrow")
    # `rounds` contains whole numbers, missing numbers and missing texts.
    for given in (run.table(), run.rounds(), run.devices()):
        assert pyarrow.table(pickle.loads(pickle.dumps(given))).equals(pyarrow.table(given))


def test_a_run_is_indexed_by_position_and_names_the_known_models(federation: dfl.Federation) -> None:
    run = dfl.train(federation, dfl.models.Linear(), [dfl.FedAvg(), dfl.DeltaFL(theta=np.array([0.8, 0.5]))], **SHORT)
    assert run[0].name == "FedAvg" and run[-1].theta == 0.5 and len(run.tracks) == 3
    for key in (7, None, 0.5):
        with pytest.raises(KeyError, match="the models of the run are 'FedAvg'"):
            run[key]  # type: ignore[index]


def test_saved_metrics_are_in_the_tables_and_on_the_page_of_the_report(federation: dfl.Federation) -> None:
    def positives(targets: Any, outputs: Any) -> float:
        return float(outputs[:, 1].mean()) if targets.any() else float("nan")

    run = dfl.train(federation, dfl.models.Linear(), [dfl.FedAvg(), dfl.DeltaFL(theta=0.5)], **SHORT)
    assert "positives" not in run.report(figures=False).path.read_text()
    found = run.evaluate(metrics=["auc", positives], save=True)
    # The report of another process reads the run folder.
    page = dfl.Run(run.path).report(figures=False).path
    mean = found.table().to_dict()["mean"][1]
    assert "positives" in page.read_text() and f"<td>{mean:.4f}</td>" in page.read_text()
    assert "**positives " in (page.parent / "tables.md").read_text()
    rows = [row.split(",") for row in (page.parent / "tables.csv").read_text().splitlines()]
    own = [row for row in rows if row[7:9] == ["positives", "mean"]]
    assert [float(row[9]) for row in own] == [found.table().to_dict()["mean"][place] for place in (1, 3)]
    (run.path / "metrics.json").write_text("{")
    with pytest.raises(dfl.Error, match=r"metrics\.json"):
        run.report(figures=False)
