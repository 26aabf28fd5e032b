"""Δ-FL as a strategy for Flower.

.. code-block:: python

    from deltafl.flower import DeltaFL

    @server_app.main()
    def main(grid, context):
        strategy = DeltaFL(theta=[1.0, 0.5], fraction_train=0.1)
        result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=50)
        strategy.models["theta=0.5"]                 # the arrays of a level

    @client_app.query()
    def query(message, context):                     # F_k(w): the mean loss over the examples
        return answer(message, loss=mean_loss, examples=len(dataset))

A round has the following steps:

1. The strategy samples a cohort, like Flower's ``FedAvg``.
2. It requests the losses of the cohort with ``query`` messages.
3. It computes the threshold η = Q(θ).
4. The clients with a loss of at least η train. The new model is the weighted mean of their models.

θ is the mass that is kept. θ = 1 is FedAvg and requests no losses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from logging import INFO
from typing import Any, Literal, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.grid import Grid
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from ._superquantile import quantile, superquantile
from .errors import InvalidInput

try:
    from flwr.supercore import log
except ImportError:  # pragma: no cover - the location in other versions
    from flwr.common.logger import log

__all__ = ["DeltaFL", "answer", "is_in_tail", "level"]

#: Losses whose relative distance to η is below this are equal to η. Two sums of the same losses may
#: differ in their last digit.
_ROUNDING = 1e-12


def level(theta: float) -> str:
    """Returns the name of the model of a level: ``theta=0.5``."""
    return f"theta={theta:g}"


def answer(message: Message, *, loss: float, examples: int) -> Message:
    """Returns the reply of a client to a ``query`` message of :class:`DeltaFL`.

    With ``quantile="open"`` the reply contains the loss. With ``"histogram"`` it contains a
    histogram with the client's number of examples in the bin of its loss.

    Args:
        message: The query.
        loss: The mean loss of the client at the arrays of the message.
        examples: The number of examples of the client.
    """
    config = next(iter(message.content.config_records.values()))
    if config.get("deltafl-ask") != "histogram":
        metrics = MetricRecord({"loss": float(loss), "num-examples": int(examples)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)
    edges = np.asarray(cast("list[float]", config["deltafl-edges"]))
    # The first bin is below the first edge, and the last bin is above the last edge.
    counts = np.zeros(len(edges) + 1)
    if np.isfinite(loss):
        counts[int(np.searchsorted(edges, loss, side="right"))] = examples
    metrics = MetricRecord({"histogram": counts.tolist(), "num-examples": int(examples)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def is_in_tail(message: Message, *, loss: float) -> bool:
    """Returns True if a client that received a ``train`` message belongs to the tail.

    With ``quantile="open"`` only clients of the tail receive the message. With ``"histogram"`` the
    client compares its loss with η, which the message contains. A client outside the tail must
    reply with the received arrays and ``num-examples`` 0.

    Args:
        message: The ``train`` message.
        loss: The mean loss of the client at the arrays of the message.
    """
    config = next(iter(message.content.config_records.values()))
    eta = config.get("deltafl-eta")
    return eta is None or _reaches(loss, float(cast(float, eta)))


class DeltaFL(FedAvg):
    """A strategy that trains one model per conformity level θ on the clients with large losses.

    All levels share the cohorts. :attr:`models` contains the model of each level under the name
    that :func:`level` returns. Flower's ``Result`` contains the model of the first level.

    With ``quantile="open"`` each client reports its loss. With ``"histogram"`` each client reports
    a histogram, and the strategy uses only the sum of the histograms. Each pass refines the bin
    that contains the quantile. The histograms hide individual losses only if a secure aggregation
    computes the sum. Flower's own transport shows every reply to the server. The deployed server
    of Δ-FL does not.

    Args:
        theta: One level in (0, 1], or several different levels.
        quantile: The method that finds the threshold η: "open" or "histogram".
        bins: The number of bins of a histogram.
        passes: The number of histograms per round.
        timeout: The time limit for the replies to a query, in seconds.
        **fedavg: The keywords of Flower's ``FedAvg``.
    """

    def __init__(
        self,
        theta: float | Sequence[float] = 0.5,
        *,
        quantile: Literal["open", "histogram"] = "open",
        bins: int = 64,
        passes: int = 3,
        timeout: float = 3600.0,
        **fedavg: Any,
    ) -> None:
        super().__init__(**fedavg)
        levels = [theta] if isinstance(theta, (int, float)) else list(theta)
        if not levels or len(set(levels)) != len(levels):
            raise InvalidInput("theta must be one level in (0, 1], or several different levels")
        for value in levels:
            superquantile([0.0], value)
        if quantile not in ("open", "histogram"):
            raise InvalidInput('quantile must be "open" or "histogram"')
        if bins < 2 or passes < 1:
            raise InvalidInput("a histogram requires at least 2 bins and at least 1 pass")
        self.levels = {level(value): float(value) for value in levels}
        #: The arrays of every level, by the name of the level.
        self.models: dict[str, ArrayRecord] = {}
        #: η by the name of the level and by round. Rounds in which no η was found are missing.
        self.etas: dict[str, dict[int, float]] = {name: {} for name in self.levels}
        self._private, self._bins, self._passes, self._timeout = quantile == "histogram", bins, passes, timeout

    def summary(self) -> None:
        """Logs the parameters of the strategy."""
        super().summary()
        log(INFO, "\t└──> Δ-FL: %s (%s)", ", ".join(self.levels), "histogram" if self._private else "open")

    @property
    def _first(self) -> str:
        return next(iter(self.levels))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Requests the losses of the cohort, and returns the ``train`` messages of every level."""
        if not self.models:
            self.models = dict.fromkeys(self.levels, arrays)
        self.models[self._first] = arrays
        drawn = super().configure_train(server_round, arrays, config, grid)
        nodes = [message.metadata.dst_node_id for message in drawn]
        if not nodes:
            return []
        tails = self._tails(server_round, nodes, grid)
        messages: list[Message] = []
        for name, (tail, eta) in tails.items():
            asked = ConfigRecord({**config, "theta": self.levels[name]})
            if eta is not None:
                asked["deltafl-eta"] = eta
            record = RecordDict({self.arrayrecord_key: self.models[name], self.configrecord_key: asked})
            messages += [Message(record, node, MessageType.TRAIN, group_id=name) for node in tail]
        return messages

    def _tails(
        self, server_round: int, nodes: list[int], grid: Grid
    ) -> dict[str, tuple[list[int], float | None]]:
        """Returns the nodes that receive a ``train`` message for each level.

        The second value is η if the clients decide whether they belong to the tail, otherwise None.
        """
        tails: dict[str, tuple[list[int], float | None]] = {}
        losses_by_model: dict[int, dict[int, tuple[float, float]]] = {}
        for name, theta in self.levels.items():
            if theta == 1.0:
                tails[name] = (nodes, None)
                continue
            model = self.models[name]
            if self._private:
                eta = self._histogram_eta(server_round, name, theta, nodes, grid)
                tails[name] = (nodes, eta)
            else:
                # Levels with the same arrays share the losses.
                if id(model) not in losses_by_model:
                    losses_by_model[id(model)] = self._losses(server_round, name, nodes, grid)
                losses = losses_by_model[id(model)]
                if not losses:
                    log(INFO, "%s: no client reported a loss; the model does not change", name)
                    continue
                values, weights = zip(*losses.values())
                eta = quantile(values, theta, weights)
                tail = [node for node, (loss, _) in losses.items() if _reaches(loss, eta)]
                log(INFO, "%s: η = %.4f, %d of %d clients train", name, eta, len(tail), len(losses))
                tails[name] = (tail, None)
            if eta is not None:
                self.etas[name][server_round] = eta
        return tails

    def _ask(
        self, name: str, nodes: list[int], grid: Grid, ask: dict[str, Any]
    ) -> dict[int, MetricRecord]:
        """Sends a query to the nodes and returns the metrics of the replies."""
        record = RecordDict(
            {self.arrayrecord_key: self.models[name], self.configrecord_key: ConfigRecord(ask)}
        )
        messages = [Message(record, node, MessageType.QUERY, group_id=name) for node in nodes]
        answers: dict[int, MetricRecord] = {}
        for reply in grid.send_and_receive(messages, timeout=self._timeout):
            if reply.has_error():
                log(INFO, "query: node %d failed: %s", reply.metadata.src_node_id, reply.error.reason)
                continue
            answers[reply.metadata.src_node_id] = next(iter(reply.content.metric_records.values()))
        # In the order of the cohort, so that sums do not depend on the order of the replies.
        return {node: answers[node] for node in nodes if node in answers}

    def _losses(
        self, server_round: int, name: str, nodes: list[int], grid: Grid
    ) -> dict[int, tuple[float, float]]:
        """Returns the loss and the weight of every client with a finite loss."""
        ask = {"server-round": server_round, "deltafl-ask": "loss"}
        answers = self._ask(name, nodes, grid, ask)
        losses: dict[int, tuple[float, float]] = {}
        for node, metrics in answers.items():
            if "loss" not in metrics or self.weighted_by_key not in metrics:
                raise InvalidInput(
                    f'node {node} replied to the query without "loss" or "{self.weighted_by_key}": '
                    "create the reply with deltafl.flower.answer"
                )
            loss, weight = _number(metrics["loss"]), _number(metrics[self.weighted_by_key])
            if np.isfinite(loss) and weight > 0:
                losses[node] = (loss, weight)
        return losses

    def _histogram_eta(
        self, server_round: int, name: str, theta: float, nodes: list[int], grid: Grid
    ) -> float | None:
        """Returns η from sums of histograms: the lower edge of the bin that contains the quantile.

        Each pass divides the bin of the previous pass.
        """
        edges = np.geomspace(1e-6, 1e3, self._bins)
        above, eta = 0.0, None
        for _ in range(self._passes):
            ask = {"server-round": server_round, "deltafl-ask": "histogram", "deltafl-edges": edges.tolist()}
            answers = self._ask(name, nodes, grid, ask)
            if not answers:
                return None
            total = np.sum([np.asarray(metrics["histogram"]) for metrics in answers.values()], axis=0)
            if not total.sum():
                return None
            # The mass in each bin and all higher bins, and the highest bin with at least θ of it.
            from_bin = total[::-1].cumsum()[::-1]
            wanted = theta * from_bin[0]
            at = int(np.flatnonzero(from_bin >= wanted * (1 - _ROUNDING))[-1])
            if at == 0:
                # Losses below the first edge are not distinguished: all clients belong to the tail.
                return 0.0
            eta, above = float(edges[at - 1]), from_bin[at]
            upper = edges[at] if at < len(edges) else edges[-1] * 1e3
            edges = np.linspace(eta, upper, self._bins)
        log(INFO, "%s: η = %.4f keeps %.0f examples of the cohort", name, eta, above)
        return eta

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Computes the weighted mean of the models of every level's tail."""
        metrics = MetricRecord()
        for name, of_level in _by_level(replies).items():
            valid, _ = self._check_and_log_replies(of_level, is_train=True)
            contents = [message.content for message in valid]
            contents = [content for content in contents if self._weight(content) > 0]
            if not contents:
                continue
            self.models[name] = self._mean(contents)
            aggregated = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
            for key, value in aggregated.items():
                metrics[self._named(name, key)] = value
            metrics[self._named(name, "tail")] = len(contents)
        return self.models.get(self._first), metrics

    def _weight(self, content: RecordDict) -> float:
        return _number(next(iter(content.metric_records.values()))[self.weighted_by_key])

    def _mean(self, contents: list[RecordDict]) -> ArrayRecord:
        weights = [self._weight(content) for content in contents]
        records = [next(iter(content.array_records.values())) for content in contents]
        mean: dict[str, NDArray[Any]] = {}
        for key in records[0]:
            first = records[0][key].numpy()
            total = np.zeros(first.shape, dtype=np.float64)
            for record, weight in zip(records, weights):
                total += weight * record[key].numpy().astype(np.float64)
            mean[key] = np.asarray(total / sum(weights)).astype(first.dtype)
        return ArrayRecord({key: Array(value) for key, value in mean.items()})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Returns the ``evaluate`` messages. The same clients evaluate every level."""
        drawn = super().configure_evaluate(server_round, arrays, config, grid)
        nodes = [message.metadata.dst_node_id for message in drawn]
        messages: list[Message] = []
        for name, theta in self.levels.items():
            model = self.models.get(name, arrays)
            asked = ConfigRecord({**config, "theta": theta})
            record = RecordDict({self.arrayrecord_key: model, self.configrecord_key: asked})
            messages += [Message(record, node, MessageType.EVALUATE, group_id=name) for node in nodes]
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Aggregates the metrics of every level over the clients.

        The result contains the weighted mean, the median and the 90th percentile of each metric,
        and the superquantile of the loss.
        """
        metrics = MetricRecord()
        for name, of_level in _by_level(replies).items():
            valid, _ = self._check_and_log_replies(of_level, is_train=False)
            if not valid:
                continue
            contents = [message.content for message in valid]
            aggregated = self.evaluate_metrics_aggr_fn(contents, self.weighted_by_key)
            for key, value in aggregated.items():
                metrics[self._named(name, key)] = value
                if isinstance(value, list):
                    continue
                records = [next(iter(content.metric_records.values())) for content in contents]
                values = np.array([_number(record[key]) for record in records])
                metrics[self._named(name, f"{key}-p50")] = float(np.percentile(values, 50))
                metrics[self._named(name, f"{key}-p90")] = float(np.percentile(values, 90))
                if key == "loss" and np.isfinite(values).all():
                    weights = [_number(record[self.weighted_by_key]) for record in records]
                    value = superquantile(values, self.levels[name], weights)
                    metrics[self._named(name, "superquantile")] = value
        return metrics if len(metrics) else None

    def _named(self, name: str, key: str) -> str:
        """Returns the key of a metric. With several levels it starts with the name of the level."""
        return key if len(self.levels) == 1 else f"{name}/{key}"


def _reaches(loss: float, eta: float) -> bool:
    return bool(loss >= eta - _ROUNDING * abs(eta))


def _number(value: Any) -> float:
    return float(value)


def _by_level(replies: Iterable[Message]) -> dict[str, list[Message]]:
    """Groups the replies by level, and sorts each group by node."""
    levels: dict[str, list[Message]] = {}
    for reply in replies:
        levels.setdefault(reply.metadata.group_id, []).append(reply)
    for of_level in levels.values():
        of_level.sort(key=lambda reply: reply.metadata.src_node_id)
    return levels
