"""Algorithms that the caller implements in Python."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ._algorithms import __all__ as _BUILT_IN
from ._algorithms import Algorithm, FedAvg
from ._kinds import is_list, is_mapping
from .errors import InvalidInput

if TYPE_CHECKING:
    from ._trainer import Local, Trainer

__all__ = ["AlgorithmBridge", "AlgorithmState", "CustomAlgorithm", "algorithm_sections"]

Array = NDArray[Any]

#: The methods that replace a part of the base algorithm, and the names of the parts in a run folder.
_PARTS = {"weight": "weight", "select": "select", "update": "update", "server_step": "server-step"}
_MAX_REPORTS = 4
_MAX_NAME = 200


class AlgorithmState(MutableMapping[str, Any]):
    """The state of an algorithm between rounds, and facts about the current round.

    Entries are numbers and vectors: ``state["m"] = moment``. A number is stored as a float and an
    array as a float32 vector. The state is part of every checkpoint. Each model has its own state.

    Facts that the current method does not know are None.

    Attributes:
        round: The number of earlier rounds of this model. Only in ``select``.
        weights: The weights α_k of the devices. Only in ``select``.
        learning_rate: The learning rate γ_t of the devices. Only in ``server_step``.
        devices: The number of training devices. Only in ``server_step``.
        weight: The sum of the weights α_k·ω_k. Only in ``server_step``.
        tail: The number of devices in the sum. Only in ``server_step``.
        reports: The weighted sums of the reported numbers, by name. Only in ``server_step``.
        eta: The threshold η of the base algorithm, if it has one.
        mean_loss: The mean loss of the devices in the previous round, if ``weight`` or ``select``
            is defined.
    """

    def __init__(
        self,
        entries: dict[str, Any] | None = None,
        *,
        round: int | None = None,
        weights: NDArray[np.float64] | None = None,
        learning_rate: float | None = None,
        devices: int | None = None,
        weight: float | None = None,
        tail: int | None = None,
        reports: Mapping[str, float] | None = None,
        eta: float | None = None,
        mean_loss: float | None = None,
    ) -> None:
        self._entries: dict[str, Any] = {} if entries is None else entries
        self.round, self.weights = round, weights
        self.learning_rate, self.devices = learning_rate, devices
        self.weight, self.tail = weight, tail
        self.reports: Mapping[str, float] = reports or {}
        self.eta, self.mean_loss = eta, mean_loss

    def __getitem__(self, name: str) -> Any:
        return self._entries[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._entries[name] = stored(name, value)

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"AlgorithmState({self._entries!r})"


def stored(name: object, value: Any) -> float | NDArray[np.float32]:
    """Returns a value as it is stored: a float or a float32 vector.

    Raises:
        InvalidInput: The name is not a short string, or the value is neither a number nor an array
            of numbers.
    """
    if not isinstance(name, str) or not 0 < len(name.encode()) <= _MAX_NAME:
        raise InvalidInput(f"the name of a state entry must be a string of 1 to {_MAX_NAME} bytes, got {name!r}")
    array = np.asarray(value)
    if array.dtype != np.bool_ and not np.issubdtype(array.dtype, np.number):
        raise InvalidInput(f"state[{name!r}] must be a number or an array of numbers, got {type(value).__name__}")
    return float(array) if array.ndim == 0 else np.ascontiguousarray(array.ravel(), dtype=np.float32)


class CustomAlgorithm:
    """The base class of algorithms implemented in Python.

    Define any of the methods :meth:`weight`, :meth:`select`, :meth:`update` and
    :meth:`server_step`. The built-in algorithm :attr:`base` provides the other parts. The run has
    the same tracks, cohorts, checkpoints, resumption and report as a run of built-in algorithms.

    Numbers, strings and booleans among the attributes of the object and its class are its options. They are
    recorded in the run folder, distinguish models with the same name, and must be the same when a
    run resumes.

    ============================  ====================  ==============  ===========
    method                        open simulation       secure sums     deployment
    ============================  ====================  ==============  ===========
    ``server_step``               yes                   yes             yes
    ``weight``, ``report``        yes                   yes             no
    ``update``                    yes                   yes             no
    ``select``                    yes                   no              no
    ============================  ====================  ==============  ===========

    A deployed device computes only weights and updates that its program knows. ``select`` chooses
    devices by their individual losses, which secure sums hide. To select by private quantiles, set
    ``base = DeltaFL(theta=0.5, quantile="histogram")``.

    >>> class Momentum(CustomAlgorithm):
    ...     "FedAvg with momentum on the server."
    ...     def __init__(self, beta=0.9):
    ...         self.beta = beta
    ...     def server_step(self, params, mean_update, state):
    ...         state["m"] = self.beta * state.get("m", 0.0) + mean_update
    ...         return params + state["m"]
    >>> Momentum(beta=0.5).options()
    {'beta': 0.5}
    """

    #: The built-in algorithm that provides the parts without a method. Set it as an attribute of
    #: the class or of the object.
    base: Algorithm = FedAvg()
    #: The names of the numbers that :meth:`report` returns, at most four.
    reports: Sequence[str] = ()
    #: The name in tables. None is the name of the class.
    name: str | None = None

    def weight(self, loss: float, examples: int, state: AlgorithmState) -> float:
        """Returns the factor ω_k of the weight of a device, 0 or above.

        The simulated device computes it, so that it works with secure sums. 0 excludes the device.

        Args:
            loss: The loss F_k(w_t) of the device.
            examples: The number of examples of the device.
            state: The state of the algorithm, which must not be changed here.
        """
        raise NotImplementedError

    def report(self, loss: float, weight: float, squared_norm: float, state: AlgorithmState) -> Sequence[float]:
        """Returns the numbers that a device adds to the sum beside its update.

        ``server_step`` receives their sums, weighted with α_k, as ``state.reports``. Requires
        :meth:`weight`.

        Args:
            loss: The loss F_k(w_t) of the device.
            weight: The factor ω_k that :meth:`weight` returned.
            squared_norm: ‖w_k − w_t‖².
            state: The state of the algorithm, which must not be changed here.
        """
        raise NotImplementedError

    def select(self, losses: NDArray[np.float64], state: AlgorithmState) -> Array:
        """Returns which devices of the cohort train: a boolean mask, or a factor per device.

        Args:
            losses: The losses F_k(w_t) of the devices of the cohort.
            state: The state of the algorithm. ``state.weights`` are the weights α_k.
        """
        raise NotImplementedError

    def update(self, trainer: Trainer, params: Array, inputs: Any, targets: Array, local: Local) -> Array:
        """Returns w_k, the parameters after the local update of a device.

        The model must be a :class:`Trainer`. ``local.state`` is the state of the device.

        Args:
            trainer: The trainer of the run. Call its ``update`` for the usual update.
            params: The parameters w_t at the beginning of the round.
            inputs: The inputs of all examples of the device.
            targets: The targets of all examples of the device.
            local: The parameters of the local update.
        """
        raise NotImplementedError

    def server_step(
        self, params: NDArray[np.float32], mean_update: NDArray[np.float64], state: AlgorithmState
    ) -> Array:
        """Returns w_{t+1}.

        It is not called in a round without devices; then w stays.

        Args:
            params: The parameters w_t.
            mean_update: The weighted mean of the updates w_k − w_t of the devices.
            state: The state of the algorithm.
        """
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """Returns the options: attributes that are numbers, strings, booleans or lists of them."""
        given: dict[str, Any] = {}
        for kind in reversed(type(self).__mro__):
            if kind not in (object, CustomAlgorithm):
                given.update(vars(kind))
        given.update(vars(self))
        reserved = ("base", "reports", "name")
        return {
            name: value
            for name, value in given.items()
            if not name.startswith("_") and name not in reserved and _is_option(value)
        }

    def _replaces(self) -> list[str]:
        """Returns the names of the parts that this class defines."""
        kind = type(self)
        return [part for method, part in _PARTS.items() if getattr(kind, method) is not getattr(CustomAlgorithm, method)]


def _is_option(value: Any) -> bool:
    if is_list(value):
        return all(_is_option(below) for below in value)
    plain: Any = value.item() if hasattr(value, "item") and np.ndim(value) == 0 else value
    return math.isfinite(plain) if isinstance(plain, float) else isinstance(plain, (bool, int, str))


class AlgorithmBridge:
    """An adapter through which the Rust code calls an algorithm. It checks the return values."""

    def __init__(self, algorithm: CustomAlgorithm) -> None:
        self._algorithm = algorithm
        self.replaces = algorithm._replaces()

    def state(self, entries: dict[str, Any], facts: dict[str, Any]) -> AlgorithmState:
        """Returns the state for the methods of the algorithm."""
        sums = facts.pop("reports", [])
        return AlgorithmState(entries, reports=dict(zip(self._algorithm.reports, sums)), **facts)

    def weight(self, loss: float, examples: int, state: AlgorithmState) -> float:
        """Returns the factor of the weight of a device."""
        weight = float(self._algorithm.weight(loss, examples, state))
        if not 0 <= weight < np.inf:
            raise InvalidInput(f"weight must return a finite number, 0 or above, got {weight}")
        return weight

    def report(self, loss: float, weight: float, squared_norm: float, state: AlgorithmState) -> list[float]:
        """Returns the numbers that a device reports."""
        names = self._algorithm.reports
        if not names:
            return []
        numbers = [float(number) for number in self._algorithm.report(loss, weight, squared_norm, state)]
        if len(numbers) != len(names):
            raise InvalidInput(f"report must return {len(names)} numbers ({', '.join(names)}), got {len(numbers)}")
        return numbers

    def select(self, losses: NDArray[np.float64], state: AlgorithmState) -> NDArray[np.float64]:
        """Returns the factor of every device."""
        selected = np.asarray(self._algorithm.select(losses, state))
        if selected.shape != losses.shape:
            raise InvalidInput(
                f"select must return one value per loss: expected shape {losses.shape}, got {selected.shape}"
            )
        factors = np.ascontiguousarray(selected, dtype=np.float64)
        if not (np.isfinite(factors) & (factors >= 0)).all():
            raise InvalidInput("select must return booleans, or finite factors that are 0 or above")
        return factors

    def server_step(
        self, params: NDArray[np.float32], mean_update: NDArray[np.float64], state: AlgorithmState
    ) -> NDArray[np.float32]:
        """Returns w_{t+1}."""
        length = len(params)
        stepped = np.ascontiguousarray(self._algorithm.server_step(params, mean_update, state), dtype=np.float32)
        if stepped.shape != (length,):
            raise InvalidInput(f"server_step must return a vector of {length} params, got shape {stepped.shape}")
        return stepped


def algorithm_sections(
    given: Algorithm | CustomAlgorithm | Sequence[Algorithm | CustomAlgorithm], *, has_trainer: bool
) -> tuple[list[dict[str, Any]], list[AlgorithmBridge | None]]:
    """Returns the ``[[algorithm]]`` sections of some algorithms, and the adapters of custom ones.

    Raises:
        InvalidInput: An entry is not an algorithm, or an algorithm needs a trainer.
    """
    listed: list[Any] = [given]
    if isinstance(given, Sequence) and not isinstance(given, str):
        listed = list(given)
    sections: list[dict[str, Any]] = []
    bridges: list[AlgorithmBridge | None] = []
    names = _names([entry for entry in listed if isinstance(entry, CustomAlgorithm)])
    for entry in listed:
        if isinstance(entry, Algorithm):
            sections.append(entry.section())
            bridges.append(None)
        elif isinstance(entry, CustomAlgorithm):
            sections.append(_section(entry, next(names), has_trainer))
            bridges.append(AlgorithmBridge(entry))
        elif is_mapping(entry):
            sections.append(dict(entry))
            bridges.append(None)
        else:
            raise InvalidInput(f"expected an algorithm such as dfl.FedAvg(), got {_described(entry)}")
    return sections, bridges


def _section(algorithm: CustomAlgorithm, name: str, has_trainer: bool) -> dict[str, Any]:
    replaces = algorithm._replaces()
    label = type(algorithm).__name__
    if not replaces:
        raise InvalidInput(f"{label} defines none of the methods {', '.join(_PARTS)}")
    if "weight" in replaces and "select" in replaces:
        raise InvalidInput(f"{label} defines both weight and select: define one of them")
    if "update" in replaces and not has_trainer:
        raise InvalidInput(f"{label} defines update, which requires a Trainer as the model")
    if algorithm.reports and "weight" not in replaces:
        raise InvalidInput(f"{label} has reports, which require the method weight")
    if len(algorithm.reports) > _MAX_REPORTS:
        raise InvalidInput(f"{label} has {len(algorithm.reports)} reports; the maximum is {_MAX_REPORTS}")
    base: Any = algorithm.base
    if not isinstance(base, Algorithm):
        raise InvalidInput(f"{label}.base must be a built-in algorithm, got {_described(base)}")
    external = {"name": name, "replaces": replaces, "options": algorithm.options()}
    return {**base.section(), "external": external}


def _names(algorithms: list[CustomAlgorithm]) -> Iterator[str]:
    """Yields the name of each algorithm. Options tell algorithms with the same name apart."""
    titles = [algorithm.name or type(algorithm).__name__ for algorithm in algorithms]
    for title, algorithm in zip(titles, algorithms):
        namesakes = [other.options() for other, known in zip(algorithms, titles) if known == title]
        differing = [
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in algorithm.options().items()
            if any(other.get(name) != value for other in namesakes)
        ]
        yield " ".join([title, *differing])


def _described(entry: object) -> str:
    """Returns an object for a message, with the class that was probably meant."""
    if isinstance(entry, str):
        plain = re.sub("[^a-z]", "", entry.lower())
        for name in _BUILT_IN:
            if name.lower() == plain:
                return f"the string {entry!r}: write dfl.{name}(…)"
        return f"the string {entry!r}"
    if isinstance(entry, type):
        return f"the class {entry.__name__}: write {entry.__name__}(…)"
    return f"{entry!r}"
