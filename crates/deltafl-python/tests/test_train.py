"""``train``: a federation, a model and algorithms, without an experiment file."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from conftest import SHORT

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
