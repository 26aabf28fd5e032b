"""Federations from arrays, tables, generators and folders."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_run import command

import deltafl as dfl


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="there is no /proc")
def test_the_inputs_of_a_federation_are_not_copied() -> None:
    inputs = np.ones((200_000, 250), dtype=np.float32)  # 200 MB
    targets = np.zeros(len(inputs), dtype=np.int64)
    targets[::2] = 1
    before = resident()
    federation = dfl.Federation(
        {f"ward-{k}": (inputs[k * 2000 : (k + 1) * 2000], targets[k * 2000 : (k + 1) * 2000]) for k in range(100)}
    )
    flat = dfl.Federation.from_arrays(inputs, targets, np.repeat(np.arange(100), 2000))
    assert resident() - before < 60_000_000
    assert (len(federation), len(flat)) == (100, 100)


def test_a_federation_shares_the_memory_of_the_array() -> None:
    inputs = np.zeros((4, 2), dtype=np.float32)
    federation = dfl.Federation({"a": (inputs[:2], [0, 1]), "b": (inputs[2:], [1, 0])})
    inputs[3] = 7.0
    assert federation["b"][0].tolist() == [[0.0, 0.0], [7.0, 7.0]], "the memory is shared"


def test_devices_may_be_slices_in_any_order_and_with_gaps() -> None:
    inputs = np.arange(20, dtype=np.float32).reshape(10, 2)
    federation = dfl.Federation({"late": (inputs[7:9], [1, 0]), "early": (inputs[1:4], [0, 1, 1])})
    assert federation["late"][0].tolist() == inputs[7:9].tolist()
    assert federation["early"][1].tolist() == [0, 1, 1]
    apart = dfl.Federation({"late": (inputs[7:9].copy(), [1, 0]), "early": (inputs[1:4].copy(), [0, 1, 1])})
    assert apart.hash == federation.hash, "the hash does not depend on the memory layout"


def test_all_kinds_of_arrays_give_the_same_federation() -> None:
    rows = np.arange(24, dtype=np.float32).reshape(6, 4)
    labels = np.array([0, 1, 2, 0, 1, 2])
    expected = dfl.Federation({"a": (rows[:3], labels[:3]), "b": (rows[3:], labels[3:])}).hash

    def of(convert: Any) -> str:
        parts = {"a": (convert(rows[:3]), labels[:3]), "b": (convert(rows[3:]), labels[3:])}
        return dfl.Federation(parts).hash

    assert of(lambda part: part.astype(np.float64)) == expected
    assert of(lambda part: part.tolist()) == expected
    assert of(lambda part: part.reshape(3, 2, 2)) == expected
    assert of(lambda part: np.asfortranarray(part)) == expected
    torch = pytest.importorskip("torch")
    assert of(torch.from_numpy) == expected


def test_tables_of_polars_pandas_and_arrow_give_the_same_federation() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    columns = {"ward": ["x", "y", "x", "y"], "age": [1.0, 2.0, 3.0, 4.0], "dose": [5.0, 6.0, 7.0, 8.0], "ill": [0, 1, 1, 0]}
    table = pyarrow.table(columns)
    federation = dfl.Federation.from_table(table, device="ward", target="ill")
    assert federation["x"][0].tolist() == [[1.0, 5.0], [3.0, 7.0]]
    assert federation["y"][1].tolist() == [1, 0]
    for module, frame in (("polars", "DataFrame"), ("pandas", "DataFrame")):
        other = getattr(pytest.importorskip(module), frame)(columns)
        assert dfl.Federation.from_table(other, device="ward", target="ill").hash == federation.hash


def test_a_generator_streams_to_a_folder(tmp_path: Path) -> None:
    def devices() -> Iterator[tuple[str, Any]]:
        rng = np.random.default_rng(3)
        for k in range(5):
            part = "test" if k == 4 else "train"
            yield f"ward-{k}", (rng.normal(size=(k + 1, 3)).astype(np.float32), np.arange(k + 1) % 2, part)

    federation = dfl.Federation.write(tmp_path / "wards", devices(), classes=2)
    in_memory = dfl.Federation(dict(devices()), classes=2)
    assert federation.hash == in_memory.hash == dfl.Federation.open(tmp_path / "wards").hash
    assert federation.split("test") == ["ward-4"]
    in_memory.save(tmp_path / "saved")
    assert dfl.Federation.open(tmp_path / "saved").hash == federation.hash


def test_real_targets_are_values() -> None:
    federation = dfl.Federation({"a": (np.eye(2), [0.5, 1.5])})
    assert federation.classes == 0
    assert federation["a"][1].tolist() == [0.5, 1.5]
    assert "real targets" in repr(federation)


def test_grey_levels_are_scaled_to_the_range_0_to_1() -> None:
    federation = dfl.Federation({"a": (np.array([[0, 255]], dtype=np.uint8), [0])}, classes=2)
    assert federation["a"][0].tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ({}, "there are no devices"),
        ({"a": (np.ones((2, 3)), [0])}, "device 'a': 2 inputs and 1 targets"),
        ({"a": (np.ones((1, 3)), [0]), "b": (np.ones((1, 4)), [0])}, "device 'b' has 4 features, expected 3"),
        ({"a": (np.ones((1, 3)), [0]), "b": (np.array([[1, np.nan, 1]]), [1])}, 'device "b", example 0: feature 1 is not finite'),
        ({"a": (np.ones((1, 3)), [-1])}, "device 'a': classes must be non-negative integers"),
        ({"a": (np.ones((1, 3)), [np.inf])}, 'device "a", example 0: the number to predict is not finite'),
        ({"a": (np.ones((0, 3)), np.zeros(0, dtype=int))}, "device 'a' has no examples"),
        ({"a": (np.array([["x"]]), [0])}, "device 'a'"),
        ({"a": np.ones(3)}, "device 'a': expected"),
        ({"a": (np.ones((1, 3)), [0], "exam")}, "a split is train, test or validation"),
        ({"a": (np.ones((1, 3)), [[[0, 1]]])}, "device 'a': targets must be a vector"),
    ],
)
def test_invalid_devices_are_rejected_by_name(devices: Any, message: str) -> None:
    with pytest.raises(dfl.InvalidInput, match=message):
        dfl.Federation(devices)


def test_a_split_names_devices_by_numbers_or_text() -> None:
    inputs, targets = np.ones((6, 2), dtype=np.float32), np.arange(6) % 2
    devices = np.repeat([0, 1, 2], 2)
    given: list[tuple[int, Any]] = [(k, (inputs[devices == k], targets[devices == k])) for k in range(3)]
    for split in ({0: "test"}, {np.int64(0): "test"}, {"0": "test"}):
        for federation in (
            dfl.Federation.from_arrays(inputs, targets, devices, split=split),
            dfl.Federation(dict(given), split=split),
            dfl.Federation.write(f"folder-{next(iter(split))!r}", given, classes=2, split=split),
        ):
            assert federation.split("test") == ["0"]
    with pytest.raises(dfl.InvalidInput, match="split= names 1 devices that do not exist: '7'"):
        dfl.Federation.write("unknown", given, classes=2, split={7: "test"})
    assert not Path("unknown").exists()
    with pytest.raises(dfl.InvalidInput, match="the same identity as text"):
        dfl.Federation({1: given[0][1], "1": given[1][1]})


def test_grey_levels_beside_other_inputs_are_scaled_as_alone() -> None:
    grey, real = np.full((2, 3), 51, dtype=np.uint8), np.full((2, 3), 0.5)
    federation = dfl.Federation({"grey": (grey, [0, 1]), "real": (real, [0, 1])})
    assert federation["grey"][0] == pytest.approx(np.full((2, 3), 0.2))
    assert federation["real"][0].tolist() == real.tolist()


def test_python_integers_in_an_array_of_objects_are_classes() -> None:
    rows = np.array([["a", 0.5, 1], ["a", 0.1, 0], ["b", 0.3, 2]], dtype=object)
    federation = dfl.Federation.from_arrays(rows[:, 1:2].astype(float), rows[:, 2], rows[:, 0])
    assert federation.classes == 3 and federation["b"][1].tolist() == [2]


def test_a_label_beyond_the_classes_is_rejected() -> None:
    with pytest.raises(dfl.InvalidInput, match="label 5 is not below the number of classes, 3"):
        dfl.Federation({"a": (np.ones((1, 2)), [5])}, classes=3)


def test_the_error_for_a_missing_folder_names_it() -> None:
    with pytest.raises(dfl.InvalidInput, match="cannot open the federation nowhere"):
        dfl.Federation.open("nowhere")


def frame(**columns: Any) -> Any:
    pandas = pytest.importorskip("pandas")
    table = {"ward": ["a", "a", "b", "b"], "x": [1.0, 2.0, 3.0, 4.0], "ill": [0, 1, 1, 0], **columns}
    return pandas.DataFrame({name: values for name, values in table.items() if values is not None})


def test_targets_of_a_table_that_are_words_or_categories_are_classes() -> None:
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    words = ["2", "0", "1", "0"]
    for table in (frame(ill=words), frame(ill=pandas.Categorical(words)), polars.DataFrame(frame(ill=words).to_dict("list"))):
        federation = dfl.Federation.from_table(table, device="ward", target="ill")
        assert federation.classes == 3
        assert federation["a"][1].tolist() == [2, 0]
    more = dfl.Federation.from_table(frame(), device="ward", target="ill", classes=5)
    assert more.classes == 5
    ordered = frame(ill=pandas.Categorical(["low", "high", "low", "low"], categories=["low", "high"]))
    assert dfl.Federation.from_table(ordered, device="ward", target="ill")["a"][1].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("columns", "keywords", "message"),
    [
        ({}, {"target": "sick"}, "the table has no column 'sick'; its columns are ward, x, ill"),
        ({}, {"features": ["y"]}, "the table has no column 'y'"),
        ({"x": None}, {}, "no column of features"),
        ({"when": "dates"}, {}, "column 'when' contains dates"),
        ({"note": ["p", "q", "r", "s"]}, {}, "column 'note' contains 'p', which is not a number"),
        ({"ward": ["a", None, "b", "b"]}, {}, "column 'ward': 1 rows have no device"),
        ({"x": [1.0, float("nan"), 2.0, 3.0]}, {}, "column 'x': 1 rows have no value"),
        ({"ill": [0.0, 1.0, float("nan"), 0.0]}, {}, "column 'ill': 1 rows have no target"),
        ({}, {"split": {"a": "test", "c": "test"}}, "split= names 1 devices that do not exist: 'c'"),
    ],
)
def test_invalid_tables_are_rejected_by_column(columns: dict[str, Any], keywords: dict[str, Any], message: str) -> None:
    if columns.get("when") == "dates":
        columns = {"when": np.array(["2026-01-01"] * 4, dtype="datetime64[s]")}
    with pytest.raises(dfl.InvalidInput, match=message):
        dfl.Federation.from_table(frame(**columns), **{"device": "ward", "target": "ill", **keywords})


def test_a_device_is_found_without_a_search() -> None:
    federation = dfl.Federation({f"d{k}": (np.full((1, 1), k, dtype=np.float32), [0]) for k in range(50)})
    assert federation["d49"][0].tolist() == [[49.0]]
    assert federation._index is not None and len(federation._index) == 50
    with pytest.raises(KeyError, match="has no device 'd50'"):
        federation["d50"]


class Pairs:
    """A map-style data set, as in PyTorch."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return np.full((2, 2), index, dtype=np.uint8), index % 3


class Loader:
    """A data loader that shuffles, as in PyTorch."""

    def __init__(self, dataset: Any, batches: Any = ()) -> None:
        self.dataset, self._batches = dataset, batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


class Columns:
    """A data set of columns, as in Hugging Face datasets."""

    def __init__(self, **columns: Any) -> None:
        self.column_names, self._columns = list(columns), columns

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]


def test_data_sets_and_loaders_are_devices() -> None:
    expected = dfl.Federation({"a": (np.array([[i] * 4 for i in range(5)], dtype=np.uint8), [0, 1, 2, 0, 1])}).hash
    batches = [(np.array([Pairs(5)[i][0] for i in part]), [i % 3 for i in part]) for part in ([0, 1, 2], [3, 4])]
    for source in (Pairs(5), Loader(Pairs(5)), Loader(iter([]), batches)):
        assert dfl.Federation({"a": source}).hash == expected
    divided = dfl.Federation.from_dataset(Pairs(6), ["x", "y"] * 3)
    assert divided["y"][1].tolist() == [1, 0, 2]
    with pytest.raises(dfl.InvalidInput, match="6 examples and 2 devices"):
        dfl.Federation.from_dataset(Pairs(6), ["x", "y"])
    with pytest.raises(dfl.InvalidInput, match=r"device 'a': an example of the data set must be a pair"):
        dfl.Federation({"a": Loader([1, 2])})


def test_columns_of_a_data_set_are_inputs() -> None:
    texts = [[1, 2], [3], [1, 2, 3], [2]]
    columns = Columns(text=texts, mask=[[1] * len(t) for t in texts], label=[0, 1, 0, 1], author=["p", "q", "p", "q"])
    federation = dfl.Federation.from_dataset(columns, "author", inputs=["text", "mask"], target="label")
    inputs, targets = federation["q"]
    assert inputs["text"].tolist() == [[3, 0, 0], [2, 0, 0]] and inputs["mask"].tolist() == [[1, 0, 0], [1, 0, 0]]
    assert targets.tolist() == [1, 1] and federation.classes == 2
    named = dfl.Federation.from_dataset(Columns(x=[[1.0], [2.0]], y=["cat", "dog"]), ["a", "b"], inputs="x", target="y")
    assert named["b"][1].tolist() == [1]
    with pytest.raises(dfl.InvalidInput, match="no column 'words'; its columns are text"):
        dfl.Federation.from_dataset(columns, "author", inputs="words", target="label")
    with pytest.raises(dfl.InvalidInput, match="name the columns"):
        dfl.Federation.from_dataset(columns, "author")


def test_arguments_of_other_types_are_explained() -> None:
    inputs, targets = np.ones((4, 2), dtype=np.float32), np.array([0, 1, 0, 1])
    devices = np.array(["a", "a", "b", "b"])
    cases: list[tuple[Any, str]] = [
        (lambda: dfl.Federation("data.csv"), "expected a dict from identities to .*, got str"),  # type: ignore[arg-type]
        (lambda: dfl.Federation([inputs, targets]), "expected a dict .*, got list"),  # type: ignore[arg-type]
        (lambda: dfl.Federation.from_arrays(inputs.astype(object), targets, devices), "the inputs have type object"),
        (lambda: dfl.Federation.from_arrays(inputs * 1j, targets, devices), "the inputs have type complex64"),
        (lambda: dfl.Federation.from_arrays(inputs, np.array(["cat", 1, 2, 3], dtype=object), devices), "device 'a': the target 'cat' is not a number"),
        (lambda: dfl.Federation.from_arrays(inputs, targets, np.array([None, "a", "b", "b"])), "1 rows have no device"),
        (lambda: dfl.Federation.from_table({"x": [1.0]}, device="w", target="y"), "expected a polars, pandas or Arrow table, got dict"),
    ]
    for call, message in cases:
        with pytest.raises(dfl.InvalidInput, match=message):
            call()
    mixed = dfl.Federation.from_arrays(inputs, targets, np.array(["7", 7, "b", "b"], dtype=object))
    assert mixed.ids == ["7", "b"]


def test_a_callback_and_a_seed_without_a_list_are_explained() -> None:
    inputs, targets = np.ones((4, 2), dtype=np.float32), np.array([0, 1, 0, 1])
    federation = dfl.Federation({"a": (inputs, targets), "b": (inputs, targets)})
    options: list[tuple[dict[str, Any], str]] = [
        ({"callbacks": dfl.callbacks.EarlyStopping(metric="error", patience=2)}, r"write callbacks=\[EarlyStopping"),
        ({"seeds": 3}, r"write seeds=\[3\]"),
    ]
    for given, message in options:
        with pytest.raises(dfl.InvalidInput, match=message):
            dfl.train(
                federation, dfl.models.Linear(), dfl.FedAvg(), rounds=1, cohort=1, local=dfl.SGD(lr=0.1, batch=2),
                progress=False, **given,
            )  # fmt: skip


def test_names_of_classes_are_kept() -> None:
    inputs = np.arange(16, dtype=np.float32).reshape(8, 2)
    words, devices = np.array(["well", "ill"] * 4), np.repeat(["a", "b"], 4)
    federation = dfl.Federation.from_arrays(inputs, words, devices)
    federation.save("folder")
    columns = Columns(x=inputs.tolist(), y=words.tolist())
    data_set = dfl.Federation.from_dataset(columns, devices, inputs="x", target="y")
    options: dict[str, Any] = {"rounds": 1, "cohort": 2, "local": dfl.SGD(lr=0.1, batch=4), "progress": False}
    for one in (federation, dfl.Federation.open("folder"), data_set):
        run = dfl.train(one, dfl.models.Linear(), dfl.FedAvg(), **options)
        assert run.class_names == dfl.Run(run.path).class_names == ["ill", "well"]
    assert set(np.array(run.class_names)[run[0].predict(inputs)]) <= {"ill", "well"}
    numbers = dfl.Federation.from_arrays(inputs, np.arange(8) % 2, devices)
    assert dfl.train(numbers, dfl.models.Linear(), dfl.FedAvg(), **options).class_names == []


def test_folders_pairs_and_packages_that_are_missing_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(dfl.InvalidInput, match=r"^cannot open the federation nowhere: .* no federation\.toml$"):
        dfl.Federation.open("nowhere")
    given: list[tuple[Any, str]] = [(("a",), "got a tuple of length 1"), ("ab", "got a str"), (3, "got a int")]
    for pair, message in given:
        with pytest.raises(dfl.InvalidInput, match=message):
            dfl.Federation.write("folder", iter([pair]))
    table = dfl.Table.from_columns({"x": np.ones(2)})
    for name, method in {"pandas": "to_pandas", "pyarrow": "to_arrow", "polars": "to_polars"}.items():
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ModuleNotFoundError, match=f"pip install {name}"):
            getattr(table, method)()


def test_inputs_with_other_features_are_explained() -> None:
    inputs, targets = np.ones((4, 3), dtype=np.float32), np.array([0, 1, 0, 1])
    federation = dfl.Federation({"a": (inputs, targets), "b": (inputs, targets)})
    local = dfl.SGD(lr=0.1, batch=2)
    run = dfl.train(federation, dfl.models.Linear(), dfl.FedAvg(), rounds=1, cohort=2, local=local, progress=False)
    for wrong in (inputs[:, :2], inputs[0], np.ones((4, 1, 2))):
        with pytest.raises(dfl.InvalidInput, match="trained on 3 features per example, got inputs of shape"):
            run[0].predict(wrong)


def wards(columns: list[str], **values: Any) -> dict[str, Any]:
    """Returns the columns of a table of six devices, in this order. The target follows from ``age``."""
    rng = np.random.default_rng(5)
    made: dict[str, Any] = {"ward": [f"w{k % 6}" for k in range(120)], "age": rng.normal(size=120), "dose": rng.normal(size=120)}
    made["ill"] = (made["age"] > 0).astype(np.int64)
    return {name: made[name] for name in columns}


@pytest.mark.parametrize("module", ["pandas", "polars"])
def test_the_columns_of_a_frame_are_found_by_name(module: str) -> None:
    frame_of = pytest.importorskip(module).DataFrame
    frame = frame_of(wards(["ward", "age", "dose", "ill"]))
    swapped = frame_of(wards(["dose", "ill", "age", "ward"]))
    of_table = dfl.Federation.from_table(frame, device="ward", target="ill")
    of_arrays = dfl.Federation.from_arrays(frame[["age", "dose"]], frame["ill"], frame["ward"])
    of_devices = dfl.Federation({"w": (frame[["age", "dose"]], frame["ill"]), "v": (swapped[["dose", "age"]], swapped["ill"])})
    assert of_devices["v"][0].tolist() == of_devices["w"][0].tolist()
    written = dfl.Federation.write("written", [("w", (frame[["age", "dose"]], frame["ill"]))], classes=2)
    for trained in (of_table, pickle.loads(pickle.dumps(of_arrays)), of_devices, written):
        run = dfl.train(trained, dfl.models.Linear(intercept=True), dfl.FedAvg(), rounds=20, cohort=1, local=dfl.SGD(lr=0.5, batch=10), progress=False, out=f"run-{len(list(Path().iterdir()))}")
        matrix = np.stack([frame["age"], frame["dose"]], axis=1)
        expected = run[0].predict_proba(matrix).tolist()
        assert run[0].predict_proba(swapped[["dose", "age"]]).tolist() == expected
        assert run[0].predict_proba(swapped).tolist() == expected, "further columns are ignored"
        wrong = (run[0].predict(matrix) != frame["ill"].to_numpy()).mean()
        other = dfl.Federation.from_table(swapped, device="ward", target="ill")
        assert np.mean(run.evaluate(other).models["FedAvg"]["error"]) == pytest.approx(wrong)
        renamed = frame_of({"dose": [1.0], "years": [2.0]})
        message = "have other columns than the training data: missing are 'age'; unknown are 'years'"
        with pytest.raises(dfl.InvalidInput, match=f"the inputs {message}"):
            run[0].predict(renamed)
        with pytest.raises(dfl.InvalidInput, match=f"the devices {message}"):
            run.evaluate(dfl.Federation({"w": (renamed, [1])}))
    with pytest.raises(dfl.InvalidInput, match=f"the inputs of device 'v' {message}"):
        dfl.Federation({"w": (frame[["age", "dose"]], frame["ill"]), "v": (renamed, [1])})


def test_inputs_without_names_are_used_by_position() -> None:
    pandas = pytest.importorskip("pandas")
    columns = wards(["age", "dose", "ill", "ward"])
    matrix = np.stack([columns["age"], columns["dose"]], axis=1).astype(np.float32)
    named = dfl.Federation.from_arrays(pandas.DataFrame(matrix, columns=["age", "dose"]), columns["ill"], columns["ward"])
    unnamed = dfl.Federation.from_arrays(pandas.DataFrame(matrix), columns["ill"], columns["ward"])
    own: dict[str, Any] = {"rounds": 2, "cohort": 3, "local": dfl.SGD(lr=0.5, batch=10), "progress": False}
    for trained, other in ((named, unnamed), (unnamed, named)):
        run = dfl.train(trained, dfl.models.Linear(), dfl.FedAvg(), **own)
        expected = run[0].predict_proba(matrix).tolist()
        assert run[0].predict_proba(pandas.DataFrame(matrix)).tolist() == expected
        assert run.evaluate(other).table().to_dict() == run.evaluate(trained).table().to_dict()


def test_a_frame_for_a_run_of_encoded_columns_is_refused() -> None:
    pandas = pytest.importorskip("pandas")
    Path("a.csv").write_text("id,kind,size,label\n" + "".join(f"d{k % 4},{'xy'[k % 2]},{k},{k % 2}\n" for k in range(40)))
    done = command("data", "import", "csv", "a.csv", "--device", "id", "--label", "label", "--out", "a")
    assert done.returncode == 0, done.stderr
    run = dfl.train(dfl.Federation.open("a"), dfl.models.Linear(), dfl.FedAvg(), rounds=2, cohort=2, local=dfl.SGD(lr=0.1, batch=10), progress=False)
    with pytest.raises(dfl.InvalidInput, match="the run encoded the columns kind of its table"):
        run[0].predict(pandas.DataFrame({"size": [1.0], "kind": [0.0], "more": [1.0]}))
    assert len(run[0].predict(np.zeros((1, 3)))) == 1


def test_classes_are_found_by_name() -> None:
    rng = np.random.default_rng(6)
    inputs = rng.normal(size=(200, 2)).astype(np.float32)
    kinds = np.array(["a", "b", "c"])[(inputs[:, 0] > -0.4).astype(int) + (inputs[:, 0] > 0.4)]
    own: dict[str, Any] = {"rounds": 30, "cohort": 1, "local": dfl.SGD(lr=0.5, batch=10), "progress": False}
    run = dfl.train(dfl.Federation.from_arrays(inputs, kinds, np.zeros(200)), dfl.models.Linear(intercept=True), dfl.FedAvg(), **own)
    some = kinds != "a"
    wrong = (run[0].predict(inputs[some]) != np.where(kinds[some] == "b", 1, 2)).mean()
    evaluated = run.evaluate(dfl.Federation.from_arrays(inputs[some], kinds[some], np.zeros(some.sum())))
    assert evaluated.models["FedAvg"]["error"].tolist() == pytest.approx([wrong])
