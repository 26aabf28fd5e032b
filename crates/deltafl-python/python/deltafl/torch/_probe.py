"""A test of whether the examples of a batch are independent, which devices in one call require."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import InvalidInput
from ._examples import called
from ._loss import losses_of
from ._random import RNG_LOCK, random_state, seeded
from ._spec import Spec

__all__ = ["check_targets", "loss_problem", "module_problem", "one_tensor", "state_problem", "summary"]

Array = NDArray[Any]

#: The largest relative differences that rounding explains: of a loss, of outputs of batches of one size,
#: and of outputs of batches of two sizes in TF32.
_OF_LOSSES, _OF_OUTPUTS, _OF_SIZES = 1e-5, 1e-4, 1e-2
#: The number of examples of a test.
_TESTED = 64
#: The number of examples that a test also computes alone.
_ALONE = 8


def one_tensor(output: Any) -> Any:
    """Returns the output of a module. Raises InvalidInput if it is not a tensor."""
    if isinstance(output, torch.Tensor):
        return output
    raise InvalidInput(
        f"forward returns a {type(output).__name__}, expected one tensor with the outputs of the batch: "
        "wrap the module in one that returns only this tensor"
    )


def summary(error: Exception) -> str:
    """Returns the class of an exception and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).strip() or '-').splitlines()[0]}"


def check_targets(task: str, targets: Array) -> None:
    """Rejects targets that the default loss of a task does not accept."""
    if task != "regression" and np.issubdtype(targets.dtype, np.floating):
        hint = "for one-hot targets, pass argmax(axis=1)" if targets.ndim > 1 else 'use task="regression"'
        raise InvalidInput(f"the targets are real numbers, but task={task!r} needs classes: {hint}")
    if task == "binary" and targets.max(initial=0) > 1:
        raise InvalidInput(f'task="binary" needs the classes 0 and 1, got {targets.max()}: use task="classes"')


@torch.no_grad()
def loss_problem(spec: Spec, output: Any, wanted: Any) -> str | None:
    """Returns why the loss of a batch is not the mean of the losses of its examples, or None."""
    if spec.default_loss or len(wanted) < 2:
        return None
    output, wanted = output[:_TESTED], wanted[:_TESTED]
    with RNG_LOCK.exclusive(), seeded(0):
        before = random_state()
        try:
            whole, losses = spec.loss(output, wanted), losses_of(spec, output, wanted)
        except Exception as error:
            return f"vmap does not support the loss: {summary(error)}"
        if random_state() != before:
            return "the loss draws random numbers"
    if whole.numel() != 1:
        return f"loss must return one number per batch, the mean, got shape {tuple(whole.shape)}"
    # Losses of outputs of 16 bits may be rounded to 16 bits.
    tolerance = max(_OF_LOSSES, 8 * torch.finfo(losses.dtype).eps)
    if _differ(whole.reshape(()), losses.mean(), tolerance, losses):
        return (
            "the loss of a batch is not the mean of the losses of its examples, "
            "for example because of class weights or a sum"
        )
    return None


@torch.no_grad()
def state_problem(net: torch.nn.Module, tensors: dict[str, Any], inputs: dict[str, Any]) -> str | None:
    """Returns which attribute of the module each training step changes, or None.

    Devices in one call share the attributes, and evaluations use another copy of the module.
    """
    net = copy.deepcopy(net).train()
    found: list[dict[str, Any]] = []
    try:
        with RNG_LOCK.exclusive():
            # The first call may store attributes that depend on the shapes only.
            for _ in range(3):
                with seeded(0):
                    given = {name: value.clone() for name, value in tensors.items()}
                    called(net, given, {name: value.clone() for name, value in inputs.items()})
                found.append(_attributes(net))
        changed = [name for name, value in found[2].items() if not _equal(value, found[1].get(name))]
    except Exception:
        # The training reports the exception. Attributes that are sparse tensors cannot be compared.
        return None
    return f"the forward pass changes the attribute {', '.join(changed)}" if changed else None


def _attributes(net: Any) -> dict[str, Any]:
    """Returns the numbers and the tensors that are attributes of a module and its layers."""
    found: dict[str, Any] = {}
    modules: list[tuple[str, torch.nn.Module]] = list(net.named_modules())
    for path, layer in modules:
        own = {name: value for name, value in vars(layer).items() if isinstance(value, (int, float, torch.Tensor))}
        found.update({f"{path}.{name}".lstrip("."): value for name, value in own.items()})
    # The forward pass may modify the tensors in place.
    return copy.deepcopy(found)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and not (one.numel() and _differ(one, other, _OF_OUTPUTS, one))
    # In a tuple, a number that is not one equals itself.
    return type(one) is type(other) and (one,) == (other,)


@torch.no_grad()
def module_problem(
    net: torch.nn.Module, tensors: dict[str, Any], inputs: dict[str, Any], *, training: bool
) -> str | None:
    """Returns why the output for an example depends on more than the example and the tensors, or None."""
    count = len(next(iter(inputs.values())))
    net = copy.deepcopy(net).train(training)
    changed: set[str] = set()

    def output(rows: torch.Tensor) -> Any:
        # The forward pass may modify or assign buffers. An embedding may scale its weight.
        given = {name: value.clone() for name, value in tensors.items()}
        found = one_tensor(called(net, given, {name: value[rows] for name, value in inputs.items()}))
        changed.update(name for name, value in tensors.items() if not torch.equal(value, given[name]))
        return found

    half = count // 2
    everything: Any = torch.arange(count)
    # The first half in a batch of the same size with one other example, and some examples in smaller batches.
    parts = [(everything[:half], everything * (everything < half)), (everything[half:], everything[half:])]
    parts += [(rows, rows) for rows in (everything[:half], *everything[:_ALONE].split(1))]
    with RNG_LOCK.exclusive(), seeded(0):
        before = random_state()
        for rows, batch in parts:
            try:
                whole, again, other = output(everything), output(everything), output(batch)
                if random_state() != before:
                    return "the module draws random numbers other than those of dropout layers"
                if _differ(whole, again, _OF_OUTPUTS, whole):
                    return "the output of the module for the same inputs changes from one call to the next"
                if changed and training:
                    return f"the forward pass changes {', '.join(sorted(changed))}"
                if _differ(whole[rows], other[: len(rows)], _OF_OUTPUTS if len(batch) == count else _OF_SIZES, whole):
                    return "the output of the module for one example depends on the other examples of the batch"
            except Exception as error:
                if not training:
                    return f"the module cannot be evaluated with other tensors: {summary(error)}"
                # The training reports the exception. A batch norm fails for one example.
                continue
    return None


def _differ(first: Any, second: Any, tolerance: float, values: Any) -> bool:
    """Returns whether results differ by more than a share of the largest of some values."""
    largest = float(values.double().nan_to_num(0.0, 0.0, 0.0).abs().max())
    allowed = tolerance * largest + 1e-6
    return not torch.allclose(first.double(), second.double(), rtol=0.0, atol=allowed, equal_nan=True)
