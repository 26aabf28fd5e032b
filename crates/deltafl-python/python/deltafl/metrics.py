"""Metrics of the predictions of a device.

A metric is a function of the targets and the outputs of a model: ``metric(targets, outputs)``. The
outputs are a matrix with a probability per class, or a vector of predicted numbers or classes. Pass
a name of this module, or a function of your own, to ``run.evaluate(federation, metrics=[…])``.

>>> import numpy as np
>>> auc(np.array([0, 0, 1, 1]), np.array([[0.9, 0.1], [0.6, 0.4], [0.65, 0.35], [0.2, 0.8]]))
0.75
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidInput

__all__ = [
    "accuracy",
    "auc",
    "balanced_accuracy",
    "error",
    "f1",
    "log_loss",
    "mae",
    "perplexity",
    "r2",
    "rmse",
]

Array = NDArray[Any]


def _predicted(outputs: Array) -> Array:
    """Returns the predicted classes."""
    return outputs.argmax(axis=-1) if outputs.ndim > 1 else outputs


def _probabilities(name: str, outputs: Array) -> Array:
    if outputs.ndim < 2:
        raise InvalidInput(f"{name} needs a probability per class: the trainer must implement predict")
    return outputs


def error(targets: Array, outputs: Array) -> float:
    """Returns the fraction of wrong classes."""
    return float((_predicted(outputs) != targets).mean())


def accuracy(targets: Array, outputs: Array) -> float:
    """Returns the fraction of correct classes."""
    return 1.0 - error(targets, outputs)


def balanced_accuracy(targets: Array, outputs: Array) -> float:
    """Returns the mean of the recall of each class that the device has."""
    predicted = _predicted(outputs)
    return float(np.mean([(predicted[targets == c] == c).mean() for c in np.unique(targets)]))


def f1(targets: Array, outputs: Array) -> float:
    """Returns the F1 score: of class 1 if there are two classes, otherwise the mean of all classes.

    The mean is over the classes that occur among the targets or the predictions.
    """
    predicted = _predicted(outputs)
    count = outputs.shape[-1] if outputs.ndim > 1 else 0
    is_binary = count == 2 or (count == 0 and set(np.union1d(targets, predicted).tolist()) <= {0, 1})
    labels = [1] if is_binary else np.union1d(targets, predicted).tolist()
    scores: list[float] = []
    for label in labels:
        hits = int(((predicted == label) & (targets == label)).sum())
        wrong = int(((predicted == label) != (targets == label)).sum())
        scores.append(2 * hits / (2 * hits + wrong) if hits + wrong else 0.0)
    return float(np.mean(scores))


def auc(targets: Array, outputs: Array) -> float:
    """Returns the area under the ROC curve.

    With more than two classes it is the mean over the classes of one against the rest. It is NaN
    for a device with targets of a single class.
    """
    scores = _probabilities("auc", outputs)
    labels = [1] if scores.shape[1] == 2 else np.unique(targets).tolist()
    areas = [_area(targets == label, scores[:, int(label)]) for label in labels]
    known = [area for area in areas if not np.isnan(area)]
    return float(np.mean(known)) if known else float("nan")


def _area(positive: Array, scores: Array) -> float:
    """Returns the probability that a positive example has a larger score. Ties count half."""
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives:
        return float("nan")
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return float((ranks[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def log_loss(targets: Array, outputs: Array) -> float:
    """Returns the mean of −log p of the targets."""
    chosen = np.take_along_axis(_probabilities("log_loss", outputs), targets[..., None].astype(np.int64), axis=-1)
    return float(-np.log(np.maximum(chosen, np.finfo(np.float64).tiny)).mean())


def perplexity(targets: Array, outputs: Array) -> float:
    """Returns exp of the mean of −log p of the targets."""
    return float(np.exp(log_loss(targets, outputs)))


def mae(targets: Array, outputs: Array) -> float:
    """Returns the mean absolute error."""
    return float(np.abs(outputs - targets).mean())


def rmse(targets: Array, outputs: Array) -> float:
    """Returns the root of the mean squared error."""
    return float(np.sqrt(((outputs - targets) ** 2).mean()))


def r2(targets: Array, outputs: Array) -> float:
    """Returns R², the explained fraction of the variance.

    If all targets are equal, it is 1 for exact predictions and otherwise 0.
    """
    residual = float(((outputs - targets) ** 2).sum())
    spread = float(((targets - targets.mean()) ** 2).sum())
    return 1.0 - residual / spread if spread > 0 else float(residual == 0)


#: The metrics of each task.
OF_TASK: dict[str, list[str]] = {
    "classes": ["error", "balanced_accuracy", "f1", "auc", "log_loss"],
    "binary": ["error", "balanced_accuracy", "f1", "auc", "log_loss"],
    "next-symbol": ["error", "perplexity"],
    "regression": ["rmse", "mae", "r2"],
}


def named(metric: str | Callable[..., float], task: str) -> tuple[str, Callable[..., float]]:
    """Returns the name and the function of a metric.

    Raises:
        InvalidInput: There is no such metric for the task.
    """
    if callable(metric):
        return getattr(metric, "__name__", "metric"), metric
    regression = OF_TASK["regression"]
    fits = metric in __all__ and (metric in regression) == (task == "regression")
    if not fits:
        known = regression if task == "regression" else [name for name in __all__ if name not in regression]
        raise InvalidInput(f"there is no metric {metric!r} for the task {task!r}; expected one of {', '.join(known)}")
    return metric, globals()[metric]
