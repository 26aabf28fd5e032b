"""JAX support: a trainer for functions of a pytree of parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from ._cohort import CohortDevice
from ._trainer import Local, Trainer
from .errors import InvalidInput

__all__ = ["Model"]

Array = NDArray[Any]
#: Maps a key of ``jax.random`` to the initial parameters.
Init = Callable[[Any], Any]
#: Maps the parameters and a batch of inputs to the outputs.
Apply = Callable[[Any, Any], Any]
#: Maps the outputs and the targets of a batch to the loss of each example.
Loss = Callable[[Any, Any], Any]

# Parts of JAX have no types.
_jax: Any = jax
_jnp: Any = jax.numpy

#: The number of examples of the test for models that mix examples, and of those that it computes alone.
_TESTED, _ALONE = 64, 8
#: The largest relative difference that rounding explains.
_TOLERANCE = 1e-2


class Model(Trainer):
    """A trainer for any model of JAX: two functions of its parameters.

    All devices of a cohort train in one call, with ``jax.vmap`` over the devices and ``jax.jit``.
    The step is plain SGD with l2, the proximal term and the corrections of SCAFFOLD and FedDyn. The
    function ``apply`` gets no random numbers, so that it cannot contain dropout. Short batches are
    padded, so that the first call rejects models and losses that mix the examples of a batch.

    Args:
        init: A function ``init(key)`` that returns the initial parameters, a pytree of float32 arrays.
        apply: A function ``apply(params, inputs)`` that returns the outputs of a batch. An output must
            depend on its own example only.
        loss: A function ``loss(outputs, targets)`` that returns the loss of each example. The default
            depends on the task; for classes it is the cross-entropy.
        shape: The shape of one input, such as ``(28, 28, 1)``. Without it a batch is a matrix.
        task: The kind of prediction, which determines the metrics.
        l2: λ of the penalty (λ/2)‖w‖².
    """

    corrects = True

    def __init__(
        self,
        init: Init,
        apply: Apply,
        loss: Loss | None = None,
        *,
        shape: tuple[int, ...] | None = None,
        task: Literal["classes", "binary", "regression"] = "classes",
        l2: float = 0.0,
    ) -> None:
        if task not in _LOSSES:
            raise InvalidInput(f"task must be one of {', '.join(_LOSSES)}, not {task!r}")
        functions: dict[str, Any] = {"init": init, "apply": apply, "loss": loss or _LOSSES[task]}
        for name, function in functions.items():
            if not callable(function):
                raise InvalidInput(f"{name} must be a function, got {type(function).__name__}")
        self._init, self._apply, self._loss = init, apply, loss or _LOSSES[task]
        self._default_loss, self._shape, self.task, self.l2 = loss is None, shape, task, l2
        vector, self._unravel = _flat(init(_jax.random.key(0)))
        self.num_params = len(vector)
        self._train = _jax.jit(_jax.vmap(self._trained, in_axes=(0, None, None, 0, 0, 0, 0)))
        self._evaluate = _jax.jit(self._evaluated)
        #: Whether the examples of a batch are known to be independent.
        self._tested = False

    def options(self) -> dict[str, Any]:
        """Returns the kind of loss, for the run folder."""
        return {"framework": "jax", "loss": "default" if self._default_loss else "own"}

    def init(self, rng: np.random.Generator) -> Array:
        """Returns the initial parameters w₀."""
        return _flat(self._init(_jax.random.key(int(rng.integers(2**31)))))[0]

    def update(self, params: Array, inputs: Any, targets: Array, local: Local) -> Array:
        """Returns w_k after the steps of SGD."""
        return np.asarray(self.update_cohort([CohortDevice(params, inputs, targets, local)])[0])

    def update_cohort(self, devices: Sequence[CohortDevice]) -> Array:
        """Returns w_k of each device."""
        self._test(devices[0].params, [(device.inputs, device.targets) for device in devices])
        batches = [list(device.local.batches()) for device in devices]
        rows, steps = len(devices), max(len(found) for found in batches)
        batch = max(device.local.batch for device in devices)
        inputs = _padded(np.concatenate([device.inputs for device in devices]))
        targets = _padded(np.concatenate([device.targets for device in devices]))
        first = 0
        chosen, sizes = np.zeros((rows, steps, batch), dtype=np.int32), np.zeros((rows, steps), dtype=np.int32)
        for row, (device, found) in enumerate(zip(devices, batches)):
            for step, indices in enumerate(found):
                # A short batch repeats its first example with weight 0.
                chosen[row, step] = first + indices[0]
                chosen[row, step, : len(indices)] = first + indices
                sizes[row, step] = len(indices)
            first += len(device.targets)
        local = [device.local for device in devices]
        factors = [[one.learning_rate, one.l2, one.proximal] for one in local]
        zero = np.zeros(self.num_params, dtype=np.float32)
        drifts = np.stack([zero if one.drift is None else one.drift for one in local])
        starts = np.stack([device.params for device in devices])
        given = self._shaped(inputs), targets, chosen, sizes, np.array(factors, dtype=np.float32), drifts
        return np.asarray(self._train(starts, *given))

    def _trained(
        self, start: Any, inputs: Any, targets: Any, batches: Any, sizes: Any, factors: Any, drift: Any
    ) -> Any:
        """Returns w_k of one device."""
        rate, l2, proximal = factors

        def total(vector: Any, batch: Any, weights: Any) -> Any:
            losses = self._losses(self._apply(self._unravel(vector), inputs[batch]), targets[batch])
            return (losses * weights).sum()

        def step(vector: Any, given: Any) -> tuple[Any, None]:
            batch, size = given
            weights = (_jnp.arange(len(batch)) < size) / _jnp.maximum(size, 1)
            slope = _jax.grad(total)(vector, batch, weights) + l2 * vector + drift
            slope = slope + proximal * (vector - start)
            # A device after its last step does not move.
            return _jnp.where(size > 0, vector - rate * slope, vector), None

        return _jax.lax.scan(step, start, (batches, sizes))[0]

    def loss(self, params: Array, inputs: Any, targets: Array) -> tuple[float, Array]:
        """Returns the sum of the losses, and the predictions."""
        return self.loss_cohort(params, [(inputs, targets)])[0]

    def loss_cohort(self, params: Array, blocks: Sequence[tuple[Array, Array]]) -> list[tuple[float, Array]]:
        """Returns the sum of the losses and the predictions of many blocks of examples."""
        self._test(params, blocks)
        ends = np.cumsum([len(targets) for _, targets in blocks])
        inputs = _padded(np.concatenate([inputs for inputs, _ in blocks]))
        targets = _padded(np.concatenate([targets for _, targets in blocks]))
        found = self._evaluate(params, self._shaped(inputs), targets)
        losses, predicted = (np.asarray(values)[: ends[-1]] for values in found)
        parts = zip(np.split(losses, ends[:-1]), np.split(predicted, ends[:-1]))
        return [(float(loss.astype(np.float64).sum()), np.asarray(of_block)) for loss, of_block in parts]

    def _evaluated(self, params: Any, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """Returns the loss of each example and its prediction."""
        outputs = self._apply(self._unravel(params), inputs)
        losses = self._losses(outputs, targets)
        if self.task == "regression":
            return losses, outputs.reshape(-1)
        return losses, (outputs.reshape(-1) > 0).astype(int) if self.task == "binary" else outputs.argmax(-1)

    def _losses(self, outputs: Any, targets: Any) -> Any:
        """Returns the loss of each example. Raises InvalidInput for other shapes, which broadcast."""
        losses = self._loss(outputs, targets)
        if _jnp.shape(losses) != targets.shape:
            raise InvalidInput(
                f"loss must return the loss of each example: expected shape {targets.shape}, got {_jnp.shape(losses)}"
            )
        return losses

    def _test(self, params: Array, blocks: Sequence[tuple[Array, Array]]) -> None:
        """Rejects models and losses that mix examples, because padding would change their results.

        The first call compares the results of some examples with those of parts of them, at w and
        near it. At w = 0 many models have the same output for all examples.
        """
        if self._tested:
            return
        inputs = np.concatenate([inputs[:_TESTED] for inputs, _ in blocks[:_TESTED]])[:_TESTED]
        targets = np.concatenate([targets[:_TESTED] for _, targets in blocks[:_TESTED]])[:_TESTED]
        count, half = len(targets), len(targets) // 2
        if count < 2:
            return
        self._tested = True
        given = self._shaped(inputs)
        parts = [slice(0, half), slice(half, count), *(slice(k, k + 1) for k in range(min(count, _ALONE)))]

        def computed(vector: Any, inputs: Any, targets: Any) -> Any:
            outputs = self._apply(self._unravel(vector), inputs)
            return outputs, self._losses(outputs, targets)

        results = _jax.jit(computed)
        noise = np.random.default_rng(0).normal(scale=0.01, size=self.num_params).astype(np.float32)
        with _jax.default_matmul_precision("highest"):
            for vector in (params, params + noise):
                try:
                    whole = results(vector, given, targets)
                    found = [(rows, results(vector, given[rows], targets[rows])) for rows in parts]
                    outputs, losses = (
                        any(_differ(whole[place], rows, part[place]) for rows, part in found) for place in (0, 1)
                    )
                except Exception:
                    # The training reports the exception.
                    return
                if outputs or losses:
                    raise InvalidInput(
                        f"the {'output of apply' if outputs else 'loss'} for one example depends on the other examples "
                        "of the batch, for example because of a mean over the batch: compute each example independently"
                    )

    def predict(self, params: Array, inputs: Any) -> Array:
        """Returns a probability per class, or real numbers for a regression."""
        outputs = self._apply(self._unravel(_jnp.asarray(params)), self._shaped(np.asarray(inputs)))
        if self.task == "regression":
            return np.asarray(outputs.reshape(-1), dtype=np.float64)
        if self.task == "binary":
            positive = np.asarray(_jax.nn.sigmoid(outputs.reshape(-1)), dtype=np.float64)
            return np.stack([1.0 - positive, positive], axis=1)
        return np.asarray(_jax.nn.softmax(outputs, axis=-1), dtype=np.float64)

    def arrays(self, params: Array) -> dict[str, Array]:
        """Returns the parameters by their path in the pytree."""
        tree = self._unravel(_jnp.asarray(params, dtype=_jnp.float32))
        leaves = _jax.tree_util.tree_leaves_with_path(tree)
        return {_jax.tree_util.keystr(path) or "params": np.asarray(leaf) for path, leaf in leaves}

    def _shaped(self, inputs: Any) -> Any:
        """Returns inputs in the shape of the model."""
        return inputs if self._shape is None else inputs.reshape(len(inputs), *self._shape)


def _flat(params: Any) -> tuple[Array, Any]:
    """Returns the parameters as a float32 vector, and the function that restores the pytree."""
    ravel: Any = ravel_pytree
    vector, unravel = ravel(params)
    if not len(vector):
        raise InvalidInput("init returned no parameters")
    if vector.dtype != np.float32:
        raise InvalidInput(f"the parameters must be float32 arrays, not {vector.dtype}")
    return np.array(vector), unravel


def _differ(whole: Any, rows: slice, part: Any) -> bool:
    """Returns whether the results of some examples differ from those of a part by more than rounding."""
    everything, alone = np.asarray(whole, dtype=np.float64), np.asarray(part, dtype=np.float64)
    return bool(np.abs(everything[rows] - alone).max() > _TOLERANCE * np.abs(everything).max() + 1e-6)


def _rounded(count: int) -> int:
    """Returns at least this number. Few different numbers are returned."""
    unit = 1 << max(0, count.bit_length() - 4)
    return -(-count // unit) * unit


def _padded(rows: Array) -> Array:
    """Returns the rows followed by copies of the first row."""
    return np.concatenate([rows, np.repeat(rows[:1], _rounded(len(rows)) - len(rows), axis=0)])


def _cross_entropy(outputs: Any, targets: Any) -> Any:
    return -_jnp.take_along_axis(_jax.nn.log_softmax(outputs), targets[:, None].astype(int), axis=-1)[:, 0]


def _binary_cross_entropy(outputs: Any, targets: Any) -> Any:
    logits = outputs.reshape(-1)
    return _jax.nn.softplus(logits) - logits * targets


def _squared_error(outputs: Any, targets: Any) -> Any:
    return 0.5 * (outputs.reshape(-1) - targets) ** 2


_LOSSES: dict[str, Loss] = {
    "classes": _cross_entropy,
    "binary": _binary_cross_entropy,
    "regression": _squared_error,
}
