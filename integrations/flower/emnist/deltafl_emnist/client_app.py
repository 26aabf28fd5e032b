"""The client app. Each client is one writer."""

from __future__ import annotations

import torch
from deltafl.flower import answer, is_in_tail
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from .task import build, examples, measure, train, writers

torch.set_num_threads(1)
app = ClientApp()


def _loaded(message: Message, context: Context, split: str):  # type: ignore[no-untyped-def]
    partition = int(context.node_config["partition-id"])
    net = build(context.run_config, writers(context.run_config).classes)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs, targets = examples(context.run_config, split, partition)
    return net, inputs, targets, partition


@app.query()
def query(message: Message, context: Context) -> Message:
    """Reports the loss of the writer."""
    net, inputs, targets, _ = _loaded(message, context, "train")
    loss, _ = measure(net, inputs, targets)
    return answer(message, loss=loss, examples=len(targets))


@app.train()
def update(message: Message, context: Context) -> Message:
    """Computes the local update, if the writer belongs to the tail."""
    net, inputs, targets, partition = _loaded(message, context, "train")
    loss, error = measure(net, inputs, targets)
    kept = is_in_tail(message, loss=loss)
    if kept:
        seed = [int(context.run_config["seed"]), int(message.content["config"]["server-round"]), partition]
        train(net, inputs, targets, context.run_config, seed)  # type: ignore[arg-type]
    metrics = MetricRecord(
        {"loss": loss, "error": error, "num-examples": len(targets) if kept else 0}
    )
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Reports the loss and the error of a test writer."""
    net, inputs, targets, _ = _loaded(message, context, "test")
    loss, error = measure(net, inputs, targets)
    metrics = MetricRecord({"loss": loss, "error": error, "num-examples": len(targets)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
