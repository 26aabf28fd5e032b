"""The client app. Each client is a device of the federation synthetic(α, β).

The labels of each device follow a different model.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import deltafl as dfl
import numpy as np
from deltafl.flower import answer, is_in_tail
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.linear_model import SGDClassifier

app = ClientApp()


@lru_cache(maxsize=1)
def federation(seed: int) -> dfl.Federation:
    """Returns the heterogeneous devices. Cached in each process."""
    return dfl.Federation.synthetic("logistic", devices=20, train=1.0, seed=seed)


def _device(context: Context) -> tuple[Any, Any, int]:
    fed = federation(int(context.run_config["seed"]))
    inputs, targets = fed[fed.ids[int(context.node_config["partition-id"]) % len(fed)]]
    return inputs, targets, fed.classes


def _model(message: Message, context: Context, classes: int) -> SGDClassifier:
    arrays = message.content["arrays"]
    model = SGDClassifier(
        loss="log_loss", alpha=0.0, learning_rate="constant", eta0=float(context.run_config["learning-rate"])
    )
    model.classes_ = np.arange(classes)
    model.coef_, model.intercept_ = arrays["coef"].numpy().copy(), arrays["intercept"].numpy().copy()
    return model


def _measure(model: SGDClassifier, inputs: Any, targets: Any) -> tuple[float, float]:
    """Returns the mean log loss and the error of the one-versus-rest classifier."""
    margins = inputs @ model.coef_.T + model.intercept_
    signs = np.where(model.classes_[None, :] == targets[:, None], 1.0, -1.0)
    loss = np.logaddexp(0.0, -signs * margins).sum(axis=1).mean()
    return float(loss), float((margins.argmax(axis=1) != targets).mean())


@app.query()
def query(message: Message, context: Context) -> Message:
    """Reports the loss of the device."""
    inputs, targets, classes = _device(context)
    loss, _ = _measure(_model(message, context, classes), inputs, targets)
    return answer(message, loss=loss, examples=len(targets))


@app.train()
def update(message: Message, context: Context) -> Message:
    """Runs ``partial_fit`` once from the arrays of the message, if the device is in the tail."""
    inputs, targets, classes = _device(context)
    model = _model(message, context, classes)
    loss, error = _measure(model, inputs, targets)
    kept = is_in_tail(message, loss=loss)
    if kept:
        fitted = SGDClassifier(
            loss="log_loss", alpha=0.0, learning_rate="constant", eta0=float(context.run_config["learning-rate"]),
            random_state=int(message.content["config"]["server-round"]),
        )
        # The first call creates the arrays. The second starts from the arrays of the message.
        fitted.partial_fit(inputs[:1], targets[:1], classes=np.arange(classes))
        fitted.coef_[:], fitted.intercept_[:] = model.coef_, model.intercept_
        fitted.partial_fit(inputs, targets)
        model = fitted
    arrays = ArrayRecord({"coef": Array(model.coef_), "intercept": Array(model.intercept_)})
    metrics = MetricRecord({"loss": loss, "error": error, "num-examples": len(targets) if kept else 0})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Reports the loss and the error of the device."""
    inputs, targets, classes = _device(context)
    loss, error = _measure(_model(message, context, classes), inputs, targets)
    metrics = MetricRecord({"loss": loss, "error": error, "num-examples": len(targets)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
