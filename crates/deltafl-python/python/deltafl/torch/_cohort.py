"""PyTorch modules trained for many devices in one call, with ``torch.func.vmap`` over the devices."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from .._cohort import Cohort, CohortUpdates
from .._layout import Layout
from .._trainer import IGNORED
from ._encode import Encoder
from ._examples import HeldExamples, called, sent, shared
from ._first_step import WrongStep, check_first_step
from ._functions import has_kernels
from ._layers import Replacement, replaced
from ._loss import losses_of
from ._probe import check_targets, loss_problem, module_problem, one_tensor, state_problem, summary
from ._spec import Spec
from ._step import Step, StepSize, rounded_up, views

__all__ = ["ModuleCohort", "Spec"]

Array = NDArray[Any]
#: The answer of a call.
T = TypeVar("T")

_LOG = logging.getLogger("deltafl.torch")

#: The share of the free memory of a GPU for the devices of a call.
_SHARE_OF_DEVICES = 0.5
#: The number of steps with their own tensors and CUDA graphs.
_STEPS_KEPT = 16
#: The number of examples of a forward pass.
_SCORED_AT_ONCE = 8192
#: One call trains at a time in a process: replaced layers read the key of a device from their class.
_ONE_CALL = threading.Lock()


class ModuleCohort(Cohort):
    """The cohorts of one module."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._device = spec.device
        # Training uses a copy whose layers work under vmap, evaluation the module itself.
        self._use(_replacements(spec)[0])
        self._eval_net = spec.net
        if self._problem is not None:
            _LOG.warning("devices train one after another: %s", self._problem)
        self._buffers = {name for name, _ in spec.net.named_buffers()}
        self._examples = HeldExamples(spec.device, spec.shape, spec.dtype)
        self._largest: int | None = None
        #: Whether a call has succeeded.
        self._has_trained = False
        #: Whether the examples of a batch are independent. None before the first call.
        self._independent: bool | None = None
        #: Outputs and targets of examples, with which a loss of the user is tested.
        self._sample: tuple[Any, Any] | None = None
        #: The classes in the targets so far, and targets with which the loss is not tested yet.
        self._classes: Array = np.zeros(0, dtype=np.int64)
        self._untested: list[Any] = []

    def _use(self, replacement: Replacement) -> None:
        """Sets the layers of the copy of the module that is trained."""
        self._replacement: Replacement = replacement
        self._train_net, self._problem = replaced(self._spec.net, by=replacement)
        self._train_net.train()
        self._encoder = Encoder(self._device, by_kernels=replacement == "kernels")
        self._steps: dict[StepSize, Step] = {}
        self._clear()

    def _clear(self) -> None:
        """Frees the tensors and the CUDA graphs of all steps."""
        self._steps.clear()
        #: The memory that all CUDA graphs share. They run one after another.
        self._pool: Any = None

    # The devices of a call.

    def accepts(self, layout: Layout) -> bool:
        """Unpacks inputs of several parts."""
        if layout.has_real_positions and self._spec.default_loss:
            # One device after another, which rejects them for classes.
            return False
        self._examples.layout = layout
        return True

    def wave(self, kind: str, devices: Array, examples: Array) -> int:
        """Returns how many devices fit into the memory."""
        if self._independent is False or (kind != "scores" and self._problem is not None):
            return 0
        count = len(devices)
        if kind != "scores":
            count = min(count, self._devices_at_once())
        return self._examples.fitting(devices[:count], examples[:count])

    def wanted(self, devices: Array) -> list[int]:
        """Returns the devices that are not in the memory yet."""
        return self._examples.wanted(devices)

    def hold(self, device: int, inputs: Array, targets: Array) -> None:
        """Stores the examples of a device."""
        if self._spec.default_loss and self._examples.layout is None:
            check_targets(self._spec.task, targets)
        self._examples.hold(device, inputs, targets)
        if not self._spec.default_loss:
            self._collect(self._examples.targets(device, len(targets)))

    def _collect(self, targets: Any) -> None:
        """Collects targets with classes that no earlier target has. A loss may ignore a rare class."""
        values = targets.cpu().numpy()
        if targets.is_floating_point():
            # The target of an example without a label is often an extreme number.
            places = np.array([values.argmin(), values.argmax()])
        else:
            classes, places = np.unique(values, return_index=True)
            places = places[~np.isin(classes, self._classes)]
            self._classes = np.union1d(self._classes, classes)
        self._untested += [targets[row].clone() for row in np.unique(places // (values.size // len(values))).tolist()]

    def _devices_at_once(self) -> int:
        if self._largest is None:
            if self._device.type != "cuda":
                return 256
            free = torch.cuda.mem_get_info(self._device)[0]
            # Params, gradients, momentum, a correction, the new params and the encoded sum.
            per_device = 4 * self._spec.num_params * (7 if self._spec.sgd.momentum else 6)
            self._largest = max(1, int(_SHARE_OF_DEVICES * free / per_device))
        return self._largest

    # Local updates.

    def updates(self, updates: CohortUpdates) -> tuple[list[Array], list[bool]] | None:
        """Trains the devices and returns the encoded sums."""
        return self._attempted(updates, Step.run)

    def trained(self, updates: CohortUpdates) -> Array | None:
        """Trains the devices and returns w_k of each of them."""
        return self._attempted(updates, Step.rows)

    def _attempted(self, updates: CohortUpdates, compute: Callable[[Step, HeldExamples, CohortUpdates], T]) -> T | None:
        """Calls a method of a step. If it fails, the next attempt uses other layers. None refuses the call."""
        if not self._tested(updates.params[0]) or self._problem is not None:
            return None
        try:
            with _ONE_CALL, self._current_device():
                return self._computed(updates, compute)
        except torch.cuda.OutOfMemoryError:
            devices = len(updates.devices)
            if devices == 1:
                raise
            # The devices of this call are computed one by one, those of the next calls in smaller waves.
            self._largest = max(1, devices // 2)
            self._clear()
            torch.cuda.empty_cache()
            _LOG.warning("%d devices do not fit into the GPU memory: at most %d from now on", devices, self._largest)
            return None
        except Exception as error:
            if self._has_trained:
                raise
            reason = summary(error)
            others = _replacements(self._spec)
            others = others[others.index(self._replacement) + 1 :]
            if others:
                # Triton may lack a compiler, or the module may use an attribute of a layer that its
                # replacement does not have.
                _LOG.info("layers by %s fail, the next attempt uses %s: %s", self._replacement, others[0], reason)
                self._use(others[0])
                return self._attempted(updates, compute)
            self._problem = reason
            if "data-dependent control flow" in reason:
                # The module may choose a branch for a whole batch, and so for several devices.
                self._independent = False
            why = "" if isinstance(error, WrongStep) else ", because vmap does not support the module"
            _LOG.warning("devices train one after another%s: %s", why, self._problem)
            return None

    def _tested(self, vector: Array) -> bool:
        """Returns whether the examples of an evaluation are independent.

        The first call with at least two examples tests some of them, at w and near it. At w = 0 many
        modules have the same output for all examples.
        """
        if self._independent is None:
            inputs, targets = self._examples.some()
            if len(targets) < 2:
                return False
            self._independent = True
            noise = np.random.default_rng(0).normal(scale=0.1, size=len(vector)).astype(np.float32)
            # The running variance of a batch norm stays positive.
            noise[self._spec.num_trained :] = 0.0
            with _ONE_CALL:
                for tensors in (self._tensors(vector), self._tensors(vector + noise)):
                    if self._independent:
                        self._test(tensors, inputs, targets)
        if self._independent and self._sample is not None:
            self._test_loss(*self._sample)
        return self._independent

    def _test_loss(self, output: Any, wanted: Any) -> None:
        """Tests the loss of outputs with further targets, a few among those that were tested before."""
        rows, self._untested = self._untested, []
        few = len(wanted) // 2
        for first in range(0, len(rows), few):
            if self._independent:
                added = torch.stack(rows[first : first + few])
                self._refuse(loss_problem(self._spec, output, self._wanted(torch.cat([added, wanted[len(added) :]]))))

    def _test(self, tensors: dict[str, Any], inputs: dict[str, Any], targets: Any) -> None:
        """Tests whether the results of some examples depend on each other."""
        self._refuse(module_problem(self._eval_net, tensors, inputs, training=False))
        if self._independent:
            self._refuse(state_problem(self._spec.net, tensors, inputs))
        if self._independent and not self._spec.default_loss:
            output = self._evaluated(tensors, inputs)
            self._refuse(loss_problem(self._spec, output, self._wanted(targets)))
            self._sample = output, targets
        if self._problem is None:
            net, _ = replaced(self._spec.net, by="none")
            self._problem = module_problem(net, tensors, inputs, training=True)
            if self._problem is not None:
                _LOG.warning("devices train one after another: %s", self._problem)

    def _refuse(self, problem: str | None) -> None:
        """Trains and evaluates one device after another from now on."""
        if problem is not None:
            self._independent, self._problem = False, problem
            _LOG.warning("devices train one after another: %s", problem)

    def _tensors(self, vector: Array) -> dict[str, Any]:
        """Returns the tensors of the module at w."""
        spec = self._spec
        tensors = dict(spec.fixed)
        # A copy, because an embedding may scale its weight.
        of_params = views(shared(vector).to(self._device, copy=True), spec.shapes)
        tensors.update({name: part.to(spec.types[name]) for name, part in of_params.items()})
        return tensors

    def _evaluated(self, tensors: dict[str, Any], inputs: dict[str, Any]) -> Any:
        """Returns the output of the module in evaluation mode. The forward pass may modify buffers."""
        given = {name: value.clone() if name in self._buffers else value for name, value in tensors.items()}
        return one_tensor(called(self._eval_net.eval(), given, inputs))

    def _wanted(self, targets: Any) -> Any:
        return targets.to(self._spec.dtype) if self._spec.task == "binary" else targets

    def _current_device(self) -> Any:
        """Returns a context in which kernels run on the device of the module."""
        return torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()

    def _computed(self, u: CohortUpdates, compute: Callable[[Step, HeldExamples, CohortUpdates], T]) -> T:
        width = rounded_up(len(u.devices))
        sums = int(u.sums.max(initial=-1)) + 1
        step = self._step(StepSize(width, u.examples.shape[2], len(u.params), sums))
        if not self._has_trained:
            check_first_step(step, self._spec, self._examples, u)
        answer = compute(step, self._examples, u)
        if not self._has_trained:
            self._has_trained = True
            with_kernels = ", Triton kernels" if self._replacement == "kernels" else ""
            _LOG.info("devices train in one call: vmap%s%s", step.description, with_kernels)
        return answer

    def _step(self, size: StepSize) -> Step:
        if size not in self._steps:
            if len(self._steps) >= _STEPS_KEPT:
                self._clear()
            if self._pool is None and self._device.type == "cuda":
                self._pool = torch.cuda.graph_pool_handle()
            self._steps[size] = Step(self._spec, self._train_net, size, self._encoder, self._pool)
        return self._steps[size]

    # Losses and metrics.

    @torch.no_grad()
    def scores(self, devices: Array, starts: Array, lengths: Array, params: list[Array]) -> Array | None:
        """Returns the loss and the sums of the metrics of blocks, in one pass over many devices."""
        if not self._tested(params[0]):
            return None
        longest = int(lengths.max(initial=1))
        rows = (self._examples.offsets(devices) + starts)[:, None] + np.arange(longest)[None, :]
        inside = np.arange(longest)[None, :] < lengths[:, None]
        rows = np.where(inside, rows, rows[:, :1])
        per_pass = max(1, _SCORED_AT_ONCE // longest)
        found: list[Any] = []
        for vector in params:
            tensors = self._tensors(vector)
            for first in range(0, len(devices), per_pass):
                part = sent(rows[first : first + per_pass], self._device)
                mask = sent(inside[first : first + per_pass], self._device)
                # Padding is not evaluated.
                inputs, targets = self._examples.rows(part[mask])
                output = self._evaluated(tensors, inputs)
                self._refuse(loss_problem(self._spec, output, self._wanted(targets)))
                if not self._independent:
                    return None
                numbers = self._numbers(output, targets)
                padded = torch.zeros((*mask.shape, 5), dtype=torch.float64, device=self._device)
                padded[mask] = numbers
                found.append(padded.sum(dim=1))
        return np.ravel(torch.cat(found).cpu().numpy())

    def _numbers(self, output: Any, targets: Any) -> Any:
        spec = self._spec
        wanted = self._wanted(targets)
        if spec.default_loss:
            # Double precision, so that equal losses compare as equal. At w = 0 all losses are equal.
            exact = wanted.double() if wanted.is_floating_point() else wanted
            losses = losses_of(spec, output.double(), exact)
        else:
            losses = losses_of(spec, output, wanted).double()
        zero = torch.zeros_like(losses)
        if spec.task == "regression":
            predicted, wide = output.reshape(-1).float().double(), targets.double()
            residual = predicted - wide
            return torch.stack([losses, residual**2, residual.abs(), wide, wide**2], dim=1)
        chosen = (output.reshape(-1) > 0).long() if spec.task == "binary" else output.argmax(dim=-1)
        wrong = (chosen != targets).double()
        if targets.dim() > 1:
            # An example counts with the fraction of its wrong positions.
            counted = targets != IGNORED
            wrong = (wrong * counted).sum(dim=1) / counted.sum(dim=1).clamp(min=1)
        return torch.stack([losses, wrong, zero, zero, zero], dim=1)


def _replacements(spec: Spec) -> list[Replacement]:
    """Returns the layers that may replace those of the module, in the order of the attempts."""
    if spec.compile == "inductor":
        return ["none"]
    return ["kernels", "products", "none"] if has_kernels(spec.device) else ["products", "none"]
