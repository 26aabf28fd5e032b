"""Predictions of the models of a run, and metrics of these predictions per device."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from . import _deltafl
from ._columns import check_columns, column_names, feature_values
from ._kinds import is_mapping
from ._table import Table
from .errors import InvalidInput
from .metrics import OF_TASK, named

if TYPE_CHECKING:
    from ._federation import Federation
    from ._run import Run, Track

__all__ = ["Evaluation", "evaluated", "outputs", "prepared"]

Array = NDArray[Any]
_PERCENTILES = (10, 20, 50, 80, 90, 95)


@dataclass(frozen=True)
class Evaluation:
    """The metrics of every device under every model, from :meth:`Run.evaluate`."""

    #: The identities of the devices.
    ids: list[str]
    #: The number of examples of each device.
    examples: NDArray[np.int64]
    #: The values of the devices by model and metric, such as ``["FedAvg"]["auc"]``.
    models: Mapping[str, Mapping[str, NDArray[np.float64]]]

    def devices(self) -> Table:
        """Returns a table with one row per model and device, and one column per metric."""
        metrics = next(iter(self.models.values()))
        columns: dict[str, Any] = {
            "model": [name for name in self.models for _ in self.ids],
            "device": self.ids * len(self.models),
            "examples": np.tile(self.examples, len(self.models)),
        }
        for metric in metrics:
            columns[metric] = np.concatenate([values[metric] for values in self.models.values()])
        return Table.from_columns(columns)

    def table(self) -> Table:
        """Returns a table with one row per model and metric.

        The columns are the mean over the devices, percentiles, the standard deviation and the range
        between the 10th and the 90th percentile. Devices whose metric is NaN, such as the AUC of a
        single class, are not included; ``devices`` is the number of the others.
        """
        rows: dict[str, list[Any]] = {}
        for model, metrics in self.models.items():
            for metric, values in metrics.items():
                cells: dict[str, Any] = {"model": model, "metric": metric}
                for name, cell in {**cells, **_statistics(values)}.items():
                    rows.setdefault(name, []).append(cell)
        return Table.from_columns(rows)

    def _save(self, folder: Path, *, seed: int, rounds: int) -> None:
        """Stores the statistics over devices in a run folder, for its report.

        Args:
            folder: The run folder.
            seed: The seed of the models.
            rounds: The rounds after which they were evaluated.
        """
        saved: list[dict[str, Any]] = []
        names: list[str] = []
        for metric in next(iter(self.models.values())):
            models: list[dict[str, Any]] = []
            for model, metrics in self.models.items():
                cells = _statistics(metrics[metric])
                devices = int(cells.pop("devices"))
                values = [None if np.isnan(value) else float(value) for value in cells.values()]
                models.append({"name": model, "devices": devices, "values": values})
                names = list(cells)
            saved.append({"name": metric, "models": models})
        content = {"seed": seed, "rounds": rounds, "statistics": names, "metrics": saved}
        # A reader never sees a part of the file.
        partial = folder / "metrics.json.partial"
        partial.write_text(json.dumps(content, indent=1))
        partial.replace(folder / "metrics.json")

    def __repr__(self) -> str:
        lines = [f"{len(self.ids)} devices"]
        for model, metrics in self.models.items():
            means = ", ".join(f"{metric} {np.nanmean(values):.4g}" for metric, values in metrics.items())
            lines.append(f"{model}: {means} (means over the devices)")
        return "\n".join(lines)


def _statistics(values: NDArray[np.float64]) -> dict[str, float]:
    """Returns the mean, percentiles and dispersion of a metric over the devices that have it."""
    known = values[~np.isnan(values)]
    cells: dict[str, float] = {"devices": len(known)}
    cells["mean"] = float(known.mean()) if len(known) else np.nan
    for percentile in _PERCENTILES:
        cells[f"p{percentile}"] = float(np.percentile(known, percentile)) if len(known) else np.nan
    cells["std"] = float(known.std()) if len(known) else np.nan
    cells["spread"] = cells["p90"] - cells["p10"]
    return cells


def evaluated(
    tracks: Sequence[Track],
    federation: Federation,
    *,
    metrics: Sequence[str | Callable[..., float]] | None,
    split: str | None,
    seed: int | None,
) -> Evaluation:
    """Evaluates models on the devices of a split, or on all devices if it has none."""
    listed = federation._inner.devices()
    chosen = [index for index, (_, part, _) in enumerate(listed) if split is None or part == split]
    chosen = chosen or list(range(len(listed)))
    models: dict[str, dict[str, NDArray[np.float64]]] = {}
    for track in tracks:
        predictor = _Predictor(track, federation, seed)
        functions = [named(metric, predictor.task) for metric in metrics or OF_TASK[predictor.task]]
        if metrics is None and not predictor.has_probabilities(chosen[0]):
            functions = [(name, function) for name, function in functions if name not in _NEED_PROBABILITIES]
        values: dict[str, list[float]] = {name: [] for name, _ in functions}
        for index in chosen:
            targets, found = predictor.targets(index), predictor.outputs(index)
            for name, function in functions:
                values[name].append(float(function(targets, found)))
        models[track.name] = {name: np.array(column, dtype=np.float64) for name, column in values.items()}
    counts = np.array([listed[index][2] for index in chosen], dtype=np.int64)
    return Evaluation([listed[index][0] for index in chosen], counts, models)


def prepared(run: Run, federation: Federation) -> Federation:
    """Returns a federation with inputs coded and normalised as those of a run."""
    from ._federation import Federation

    if _normalises(run) and "normalisation" not in run._contract():
        raise InvalidInput(
            "the run normalised its inputs with constants of its training data, which the folders of earlier "
            "versions do not contain: evaluate its own data with run.evaluate()"
        )
    names = federation._inner.feature_names
    if names:
        check_columns("the devices", names, _trained_columns(run) or names)
    found = Federation._of(_deltafl.prepared(run.path, federation._inner))
    found._layout = federation._layout
    return found


def _normalises(run: Run) -> bool:
    """Returns True if the run normalised its inputs."""
    given = run.experiment["data"].get("normalise", "none")
    return bool(run.experiment.get("resolved", {}).get("normalise", given) != "none")


#: The metrics that need a probability per class.
_NEED_PROBABILITIES = ("auc", "log_loss", "perplexity")


class _Predictor:
    """The outputs of one model for the devices of a federation."""

    def __init__(self, track: Track, federation: Federation, seed: int | None) -> None:
        self._track, self._federation = track, federation
        self._trainer = track._trainer()
        self._params = track.params(seed)
        self.task = _task(track) if self._trainer is None else self._trainer.task

    def targets(self, index: int) -> Array:
        """Returns the targets of a device."""
        inputs, targets = self._federation._inner.examples(index)
        layout = self._federation._layout
        return targets if layout is None else layout.unpacked(inputs, targets)[1]

    def outputs(self, index: int) -> Array:
        """Returns the outputs for the examples of a device."""
        if self._trainer is not None:
            inputs, targets = self._federation._inner.examples(index)
            layout = self._federation._layout
            given = inputs if layout is None else layout.unpacked(inputs, targets)[0]
            return np.asarray(self._trainer.predict(np.array(self._params), given))
        return _built_in(self._track, self._params, self._federation, index)

    def has_probabilities(self, index: int) -> bool:
        """Returns True if the outputs are a probability per class."""
        return self._trainer is None or self.outputs(index).ndim > 1


def _task(track: Track) -> str:
    kind = track._run.experiment["model"]["kind"]
    if kind == "logistic":
        return "binary"
    summary = track._run.summary()["task"]
    return summary if isinstance(summary, str) else "regression"


def outputs(track: Track, inputs: Any, seed: int | None) -> Array:
    """Returns the outputs of a model for some inputs."""
    from ._federation import Federation

    trainer, run, params = track._trainer(), track._run, track.params(seed)
    if trainer is not None and is_mapping(inputs):
        if _normalises(run):
            raise InvalidInput("the run normalised its inputs: pass a matrix, or use run.evaluate(federation)")
        return np.asarray(trainer.predict(params, inputs))
    rows = _checked(track, _matrix(run, inputs))
    if trainer is not None:
        if len(rows) and (rows.dtype == np.uint8 or _normalises(run)):
            # A trainer receives the same numbers as in training.
            one = prepared(run, Federation({"inputs": (rows, np.zeros(len(rows), dtype=np.int64))}))
            rows = one["inputs"][0].reshape(rows.shape)
        return np.asarray(trainer.predict(params, rows))
    is_regression = _task(track) == "regression"
    targets = np.zeros(len(rows), dtype=np.float32 if is_regression else np.int64)
    classes = None if is_regression else _class_count(track, seed)
    federation = prepared(run, Federation({"inputs": (rows, targets)}, classes=classes))
    return _built_in(track, params, federation, 0)


def _checked(track: Track, rows: Array) -> Array:
    """Rejects inputs with another number of features than the training data."""
    features = track._run._contract().get("inputs", {}).get("dim")
    # Inputs of several parts are stored in one matrix, but trainers receive a dict.
    data = track._run._supplied.federation
    if features is None or (data is not None and data._layout is not None):
        return rows
    if (int(np.prod(rows.shape[1:])) if rows.ndim > 1 else 1) != features:
        raise InvalidInput(f"the model was trained on {features} features per example, got inputs of shape {rows.shape}")
    return rows


def _class_count(track: Track, seed: int | None) -> int:
    """Returns the number of classes: the rows of the last matrix of the model."""
    matrices = [array for array in track.arrays(seed).values() if array.ndim > 1]
    return max(2, int(matrices[-1].shape[0]))


def _built_in(track: Track, params: NDArray[np.float32], federation: Federation, index: int) -> Array:
    """Returns probabilities, or real numbers."""
    found, task = _deltafl.predict(track._run.path, params, federation._inner, index)
    return found[:, 0] if task == "regression" else found


def _trained_columns(run: Run) -> list[str]:
    """Returns the names of the columns of the training data. Empty if they have no names."""
    return [str(column["name"]) for column in run._contract().get("columns", [])]


def _matrix(run: Run, inputs: Any) -> Array:
    """Returns a matrix of an array or of the columns of a table, which are matched by name."""
    columns = getattr(inputs, "column_names", None)
    columns = getattr(inputs, "columns", None) if columns is None else columns
    if columns is None:
        array = np.asarray(inputs)
        return array if array.dtype == np.uint8 else np.ascontiguousarray(array, dtype=np.float32)
    names, wanted = column_names(inputs), _trained_columns(run)
    if names and wanted:
        check_columns("the inputs", names, wanted)
        encoded = [str(column["name"]) for column in run._contract()["columns"] if set(column) - {"name", "fill"}]
        if encoded:
            raise InvalidInput(
                f"the run encoded the columns {', '.join(encoded)} of its table: pass the encoded features as a "
                "matrix without names, or predict a file with `deltafl predict`"
            )
        columns = wanted
    parts = [inputs[name] for name in columns]
    rows = np.stack([feature_values(str(name), part) for name, part in zip(columns, parts)], axis=1)
    # A table of grey levels is used as a matrix of grey levels.
    are_levels = run._contract().get("inputs", {}).get("kind") == "bytes"
    return rows.astype(np.uint8) if are_levels and all(np.asarray(part).dtype == np.uint8 for part in parts) else rows
