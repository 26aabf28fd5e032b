"""Δ-FL as a strategy of Flower.

.. code-block:: python

    from deltafl.flower import DeltaFL

    @server_app.main()
    def main(grid, context):
        strategy = DeltaFL(theta=[1.0, 0.5], fraction_train=0.1)
        result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=50)
        strategy.models["theta=0.5"]                 # the arrays of a level

    @client_app.query()
    def query(message, context):                     # F_k(w): a forward pass over the client's examples
        return answer(message, loss=mean_loss, examples=len(dataset))

In a round the strategy draws a cohort as Flower's ``FedAvg`` does, asks it for its losses with ``query`` messages, finds the
threshold η = Q(θ) and lets the clients train whose loss is η or more. The new model is their weighted mean. θ is the mass that
is kept: θ = 1 asks for no losses and is FedAvg.
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
except ImportError:  # pragma: no cover - where other versions have it
    from flwr.common.logger import log

__all__ = ["DeltaFL", "answer", "is_in_tail", "level"]

#: Losses within this of η, relatively, are η: two sums of the same losses may differ in their last digit.
_ROUNDING = 1e-12


def level(theta: float) -> str:
    """What the model of a level is called: ``theta=0.5``."""
    return f"theta={theta:g}"


def answer(message: Message, *, loss: float, examples: int) -> Message:
    """The answer of a client to a ``query`` of :class:`DeltaFL`: its mean loss at the arrays of the message.

    With ``quantile="open"`` the loss itself is answered, with ``"histogram"`` the examples of the client in the bin of its loss.
    """
    config = next(iter(message.content.config_records.values()))
    if config.get("deltafl-ask") != "histogram":
        metrics = MetricRecord({"loss": float(loss), "num-examples": int(examples)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)
    edges = np.asarray(cast("list[float]", config["deltafl-edges"]))
    # A bin for what lies below the first edge, and one for what lies above the last.
    counts = np.zeros(len(edges) + 1)
    if np.isfinite(loss):
        counts[int(np.searchsorted(edges, loss, side="right"))] = examples
    metrics = MetricRecord({"histogram": counts.tolist(), "num-examples": int(examples)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def is_in_tail(message: Message, *, loss: float) -> bool:
    """Whether a client that was asked to train belongs to the tail.

    With ``quantile="open"`` nobody else is asked; with ``"histogram"`` the client decides by η, which the message holds. One
    outside of the tail answers with the arrays as they came and ``num-examples`` 0.
    """
    config = next(iter(message.content.config_records.values()))
    eta = config.get("deltafl-eta")
    return eta is None or _reaches(loss, float(cast(float, eta)))


class DeltaFL(FedAvg):
    """A model per conformity level θ, trained by the clients that the model serves worst.

    ``theta`` is a level or several; each has a model in :attr:`models`, by :func:`level`, and the first is the one that
    Flower's ``Result`` holds. Several levels share cohorts. Other keywords are those of ``FedAvg``.

    ``quantile="open"`` asks for losses, one per client. ``"histogram"`` asks for histograms of them, ``passes`` times with
    ``bins`` bins, each pass inside the bin that holds the quantile, and needs their sum only: it discloses no more than
    sums where an aggregation that hides the summands adds them up. Flower's own transport shows the server every reply;
    the deployed server of Δ-FL does not.
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
            raise InvalidInput("theta is a level in (0, 1], or several that differ")
        for value in levels:
            superquantile([0.0], value)
        if quantile not in ("open", "histogram"):
            raise InvalidInput('quantile is "open" or "histogram"')
        if bins < 2 or passes < 1:
            raise InvalidInput("a histogram has 2 bins or more, and 1 pass or more")
        self.levels = {level(value): float(value) for value in levels}
        #: The arrays of every level, by its name.
        self.models: dict[str, ArrayRecord] = {}
        #: η of every level and round where one was found.
        self.etas: dict[str, dict[int, float]] = {name: {} for name in self.levels}
        self._private, self._bins, self._passes, self._timeout = quantile == "histogram", bins, passes, timeout

    def summary(self) -> None:
        """Logs what the strategy is."""
        super().summary()
        log(INFO, "\t└──> Δ-FL: %s (%s)", ", ".join(self.levels), "histogram" if self._private else "open")

    @property
    def _first(self) -> str:
        return next(iter(self.levels))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Asks the cohort for its losses, and the tail of every level for its updates."""
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
        """Who trains for each level, and η where the clients decide it."""
        tails: dict[str, tuple[list[int], float | None]] = {}
        known: dict[int, dict[int, tuple[float, float]]] = {}
        for name, theta in self.levels.items():
            if theta == 1.0:
                tails[name] = (nodes, None)
                continue
            model = self.models[name]
            if self._private:
                eta = self._histogram_eta(server_round, name, theta, nodes, grid)
                tails[name] = (nodes, eta)
            else:
                # Levels that stand at the same arrays share the losses.
                if id(model) not in known:
                    known[id(model)] = self._losses(server_round, name, nodes, grid)
                losses = known[id(model)]
                if not losses:
                    log(INFO, "%s: no client answered with a loss; the round moves nothing", name)
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
        """The metrics with which the clients answer a query."""
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
        # In the order of the cohort: sums do not depend on who was faster.
        return {node: answers[node] for node in nodes if node in answers}

    def _losses(
        self, server_round: int, name: str, nodes: list[int], grid: Grid
    ) -> dict[int, tuple[float, float]]:
        """Loss and weight of every client that has a finite one."""
        ask = {"server-round": server_round, "deltafl-ask": "loss"}
        answers = self._ask(name, nodes, grid, ask)
        losses: dict[int, tuple[float, float]] = {}
        for node, metrics in answers.items():
            if "loss" not in metrics or self.weighted_by_key not in metrics:
                raise InvalidInput(
                    f'node {node} answered the query without "loss" and "{self.weighted_by_key}": '
                    "answer it with deltafl.flower.answer"
                )
            loss, weight = _number(metrics["loss"]), _number(metrics[self.weighted_by_key])
            if np.isfinite(loss) and weight > 0:
                losses[node] = (loss, weight)
        return losses

    def _histogram_eta(
        self, server_round: int, name: str, theta: float, nodes: list[int], grid: Grid
    ) -> float | None:
        """η from sums of histograms: the lower edge of the bin that holds the quantile, a bin inside a bin."""
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
            # The mass from each bin on; the last bin from which θ of it lies.
            from_bin = total[::-1].cumsum()[::-1]
            wanted = theta * from_bin[0]
            at = int(np.flatnonzero(from_bin >= wanted * (1 - _ROUNDING))[-1])
            if at == 0:
                # Below the first edge nothing is told apart: everybody counts.
                return 0.0
            eta, above = float(edges[at - 1]), from_bin[at]
            upper = edges[at] if at < len(edges) else edges[-1] * 1e3
            edges = np.linspace(eta, upper, self._bins)
        log(INFO, "%s: η = %.4f keeps %.0f examples of the cohort", name, eta, above)
        return eta

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The weighted mean of every level's tail."""
        metrics = MetricRecord()
        for name, of_level in _by_level(replies).items():
            valid, _ = self._check_and_log_replies(of_level, is_train=True)
            contents = [message.content for message in valid]
            contents = [content for content in contents if self._weight(content) > 0]
            if not contents:
                continue
            self.models[name] = self._mean(contents)
            told = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
            for key, value in told.items():
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
        """The same clients evaluate every level."""
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
        """Of every level the weighted mean of each metric, and its median, 90th percentile and superquantile over clients."""
        metrics = MetricRecord()
        for name, of_level in _by_level(replies).items():
            valid, _ = self._check_and_log_replies(of_level, is_train=False)
            if not valid:
                continue
            contents = [message.content for message in valid]
            told = self.evaluate_metrics_aggr_fn(contents, self.weighted_by_key)
            for key, value in told.items():
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
        """A metric of a level; the name of the level stands before it where there are several."""
        return key if len(self.levels) == 1 else f"{name}/{key}"


def _reaches(loss: float, eta: float) -> bool:
    return bool(loss >= eta - _ROUNDING * abs(eta))


def _number(value: Any) -> float:
    return float(value)


def _by_level(replies: Iterable[Message]) -> dict[str, list[Message]]:
    """The replies of every level, each in the order of the nodes."""
    levels: dict[str, list[Message]] = {}
    for reply in replies:
        levels.setdefault(reply.metadata.group_id, []).append(reply)
    for of_level in levels.values():
        of_level.sort(key=lambda reply: reply.metadata.src_node_id)
    return levels
