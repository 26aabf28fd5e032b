"""PyTorch modules trained for many devices in one call, with ``torch.func.vmap`` over the devices."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ._cohort import Cohort, CohortUpdates
from ._layout import Layout
from ._torch_encode import Encoder
from ._torch_examples import HeldExamples, called, host, sent, shared
from ._torch_functions import has_kernels
from ._torch_layers import KeyedDropout, Replacement, replaced
from ._trainer import IGNORED

__all__ = ["ModuleCohort", "Spec"]

Array = NDArray[Any]
Tensors = dict[str, Any]

_LOG = logging.getLogger("deltafl.torch")

#: The share of the free memory of a GPU for the devices of a call.
_SHARE_OF_DEVICES = 0.5
#: The number of examples of a forward pass.
_SCORED_AT_ONCE = 8192


class Spec:
    """The parts of a ``Module`` that a cohort needs."""

    def __init__(
        self,
        net: torch.nn.Module,
        *,
        trained: list[str],
        carried: list[str],
        fixed: Mapping[str, Any],
        loss: Callable[[Any, Any], Any],
        default_loss: bool,
        task: str,
        shape: tuple[int, ...] | None,
        momentum: tuple[float, float, bool, float],
        compile: str,
        device: torch.device,
    ) -> None:
        self.net, self.trained, self.carried, self.fixed = net, trained, carried, dict(fixed)
        self.loss, self.default_loss, self.task, self.shape = loss, default_loss, task, shape
        #: Momentum, dampening, Nesterov and weight decay of the SGD of a device.
        self.momentum = momentum
        self.compile, self.device = compile, device


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
        tensors: Tensors = dict(spec.net.named_parameters())
        tensors.update(spec.net.named_buffers())
        self._shapes = {name: tuple(tensors[name].shape) for name in [*spec.trained, *spec.carried]}
        self._num_params = sum(math.prod(shape) for shape in self._shapes.values())
        self._examples = HeldExamples(spec.device, spec.shape)
        self._largest: int | None = None
        #: Host memory for params on their way to the device.
        self._staged: Any = None
        self._said = False

    def _use(self, replacement: Replacement) -> None:
        """Sets the layers of the copy of the module that is trained."""
        self._replacement = replacement
        self._train_net, self._problem = replaced(self._spec.net, by=replacement)
        self._train_net.train()
        self._encoder = Encoder(self._device, by_kernels=replacement == "kernels")
        self._steps: dict[tuple[int, int], _Step] = {}

    # The devices of a call.

    def accepts(self, layout: Layout) -> bool:
        """Unpacks inputs of several parts."""
        self._examples.layout = layout
        return True

    def wave(self, kind: str, devices: Array, examples: Array) -> int:
        """Returns how many devices fit into the memory."""
        if kind == "updates" and self._problem is not None:
            return 0
        count = len(devices)
        if kind == "updates":
            count = min(count, self._devices_at_once())
        return self._examples.fitting(devices[:count], examples[:count])

    def wanted(self, devices: Array) -> list[int]:
        """Returns the devices that are not in the memory yet."""
        return self._examples.wanted(devices)

    def hold(self, device: int, inputs: Array, targets: Array) -> None:
        """Stores the examples of a device."""
        self._examples.hold(device, inputs, targets)

    def _devices_at_once(self) -> int:
        if self._largest is None:
            if self._device.type != "cuda":
                return 256
            free = torch.cuda.mem_get_info(self._device)[0]
            # Params, gradients, momentum, the new params and the encoded sum.
            per_device = 4 * self._num_params * (6 if self._spec.momentum[0] else 5)
            self._largest = max(1, int(_SHARE_OF_DEVICES * free / per_device))
        return self._largest

    # Local updates.

    def updates(self, updates: CohortUpdates) -> tuple[list[Array], list[bool]] | None:
        """Trains the devices and returns the encoded sums."""
        try:
            with self._current_device():
                return self._updated(updates)
        except torch.cuda.OutOfMemoryError:
            devices = len(updates.devices)
            if devices == 1:
                raise
            # The devices of this call are computed one by one, those of the next calls in smaller waves.
            self._largest = max(1, devices // 2)
            self._steps.clear()
            torch.cuda.empty_cache()
            _LOG.warning("%d devices do not fit into the GPU memory: at most %d from now on", devices, self._largest)
            return None
        except Exception as error:
            if self._said:
                raise
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
            others = _replacements(self._spec)
            others = others[others.index(self._replacement) + 1 :]
            if others:
                # Triton may lack a compiler, or the module may use an attribute of a layer that its
                # replacement does not have.
                _LOG.info("layers by %s fail, the next attempt uses %s: %s", self._replacement, others[0], reason)
                self._use(others[0])
                return self.updates(updates)
            self._problem = reason
            _LOG.warning("devices train one after another, because vmap does not support the module: %s", self._problem)
            return None

    def _current_device(self) -> Any:
        """Returns a context in which kernels run on the device of the module."""
        return torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()

    def _updated(self, u: CohortUpdates) -> tuple[list[Array], list[bool]]:
        rows, steps, batch = u.examples.shape
        width = _rounded_up(rows)
        step = self._step(width, batch)
        start = self._params_sent(u.params)
        offsets = self._examples.offsets(u.devices)
        which, keys, examples, sizes = self._sent_together(
            _padded(u.which, width),
            _padded(u.seeds.astype(np.int64), width),
            np.ascontiguousarray(np.swapaxes(_padded(u.examples + offsets[:, None, None], width), 0, 1)),
            np.ascontiguousarray(np.swapaxes(_padded(u.sizes, width), 0, 1)),
        )
        step.load(start, which, keys, u)
        for index in range(steps):
            step.run(self._examples, examples[index], sizes[index], index)
        if not self._said:
            self._said = True
            with_kernels = ", Triton kernels" if self._replacement == "kernels" else ""
            _LOG.info("devices train in one call: vmap%s%s", step.description, with_kernels)
        return self._encoder.sums(step.tensors(rows), start, which[:rows], u)

    def _params_sent(self, params: list[Array]) -> Any:
        """Copies params to the device, through memory from which a GPU reads fast."""
        count = len(params)
        if self._staged is None or len(self._staged) < count:
            self._staged = host((count, self._num_params), torch.float32, self._device)
        for row, vector in zip(self._staged, params):
            row.copy_(shared(vector))
        # A call ends with a copy to the host, so that the next call may overwrite the memory.
        return self._staged[:count].to(self._device, non_blocking=True)

    def _sent_together(self, *arrays: Array) -> list[Any]:
        """Copies arrays of integers to the device in one transfer."""
        flat = sent(np.concatenate([np.ravel(array) for array in arrays]), self._device)
        parts = torch.split(flat, [array.size for array in arrays])
        return [part.view(array.shape) for part, array in zip(parts, arrays)]

    def _sent(self, array: Array) -> Any:
        return sent(array, self._device)

    def _step(self, width: int, batch: int) -> _Step:
        key = (width, batch)
        if key not in self._steps:
            if len(self._steps) >= 16:
                self._steps.clear()
            self._steps[key] = _Step(self._spec, self._train_net, self._shapes, key)
        return self._steps[key]

    # Losses and metrics.

    @torch.no_grad()
    def scores(self, devices: Array, starts: Array, lengths: Array, params: list[Array]) -> Array | None:
        """Returns the loss and the sums of the metrics of blocks, in one pass over many devices."""
        spec, longest = self._spec, int(lengths.max(initial=1))
        rows = (self._examples.offsets(devices) + starts)[:, None] + np.arange(longest)[None, :]
        inside = np.arange(longest)[None, :] < lengths[:, None]
        rows = np.where(inside, rows, rows[:, :1])
        per_pass = max(1, _SCORED_AT_ONCE // longest)
        self._eval_net.eval()
        found: list[Any] = []
        for vector in self._params_sent(params):
            tensors = dict(spec.fixed)
            tensors.update(_views(vector, self._shapes))
            for first in range(0, len(devices), per_pass):
                part = self._sent(rows[first : first + per_pass])
                mask = self._sent(inside[first : first + per_pass])
                # Padding is not evaluated.
                inputs, targets = self._examples.rows(part[mask])
                output = called(self._eval_net, tensors, inputs)
                numbers = self._numbers(output, targets)
                padded = torch.zeros((*mask.shape, 5), dtype=torch.float64, device=self._device)
                padded[mask] = numbers
                found.append(padded.sum(dim=1))
        return np.ravel(torch.cat(found).cpu().numpy())

    def _numbers(self, output: Any, targets: Any) -> Any:
        spec = self._spec
        wanted = targets.float() if spec.task == "binary" else targets
        if spec.default_loss:
            # Double precision, so that equal losses compare as equal. At w = 0 all losses are equal.
            exact = wanted.double() if wanted.is_floating_point() else wanted
            losses = _losses(spec, output.double(), exact)
        else:
            losses = _losses(spec, output, wanted).double()
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


class _Step:
    """One step of SGD of a fixed number of devices, as a CUDA graph if possible."""

    def __init__(
        self, spec: Spec, net: torch.nn.Module, shapes: Mapping[str, tuple[int, ...]], size: tuple[int, int]
    ) -> None:
        self._spec, self._net, self._size = spec, net, size
        self._device = spec.device
        self._shapes = shapes
        #: The tensors of w of every device: one contiguous tensor per name, devices first.
        self._params = self._tensors()
        #: w_t, and the momentum, if a step needs them.
        self._start: Tensors = {}
        self._momentum: Tensors = self._tensors() if spec.momentum[0] else {}
        self._rates, self._decay, self._pull = (self._vector() for _ in range(3))
        self._penalties = (False, False)
        self._graph: Any = None
        #: The examples of the step and their sizes, the keys of the devices, and the number of the step.
        self._inputs: dict[str, Any] | None = None
        self._targets: Any = None
        self._sizes = torch.zeros(size[0], dtype=torch.int64, device=self._device)
        self._keys = torch.zeros(size[0], dtype=torch.int64, device=self._device)
        self._number = torch.zeros((), dtype=torch.int64, device=self._device)
        self._positions = torch.arange(size[1], device=self._device)
        self._gradients = torch.func.vmap(self._gradient, in_dims=(0, 0, 0, 0, 0, 0, None), randomness="error")
        self._uses_graph = spec.compile != "off" and self._device.type == "cuda"
        self._body: Callable[[], None] = self._moved
        if spec.compile == "inductor":
            self._body = torch.compile(self._moved, dynamic=False)
        self.description = " with a CUDA graph" if self._uses_graph else ""

    def _tensors(self) -> Tensors:
        width = self._size[0]
        return {name: torch.zeros((width, *shape), device=self._device) for name, shape in self._shapes.items()}

    def _vector(self) -> Any:
        return torch.zeros(self._size[0], device=self._device)

    @torch.no_grad()
    def load(self, start: Any, which: Any, keys: Any, u: CohortUpdates) -> None:
        """Sets the params, the keys and the penalties of the devices."""
        width = self._size[0]
        penalties = (bool(u.l2.any() or self._spec.momentum[3]), bool(u.proximal.any()))
        if penalties != self._penalties:
            # A step without penalties does not compute them.
            self._penalties, self._graph = penalties, None
        if penalties[1] and not self._start:
            self._start = self._tensors()
        for name, view in _views(start, self._shapes).items():
            rows = view if len(start) == 1 else view[which]
            self._params[name].copy_(rows)
            if penalties[1]:
                self._start[name].copy_(rows)
        for kept in self._momentum.values():
            kept.zero_()
        self._keys.copy_(keys)
        numbers = (u.learning_rates, u.l2 + self._spec.momentum[3], u.proximal)
        rows = sent(np.stack([_padded(values, width) for values in numbers]).astype(np.float32), self._device)
        for place, values in zip((self._rates, self._decay, self._pull), rows):
            place.copy_(values)

    def tensors(self, count: int) -> list[Any]:
        """Returns the params of the first devices: a matrix per tensor, with one row per device."""
        return [value[:count].reshape(count, -1) for value in self._params.values()]

    def _gradient(self, trained: Tensors, others: Tensors, inputs: Any, targets: Any, mask: Any, key: Any, step: Any) -> Any:
        """Returns the gradient of one device."""

        def loss(tensors: Tensors) -> Any:
            with KeyedDropout.keyed(key, step):
                output = called(self._net, {**tensors, **others, **self._spec.fixed}, inputs)
            wanted = targets.float() if self._spec.task == "binary" else targets
            return (_losses(self._spec, output, wanted) * mask).sum()

        return torch.func.grad(loss)(trained)

    def _moved(self) -> None:
        """Moves the params of all devices by one step."""
        spec = self._spec
        trained = {name: self._params[name] for name in spec.trained}
        others = {name: self._params[name] for name in spec.carried}
        sizes = self._sizes[:, None]
        # The share of an example in the mean of its batch; 0 for padding.
        mask = ((self._positions < sizes).double() / sizes.clamp(min=1)).float()
        # A device after its last step does not move.
        rates = self._rates * (self._sizes > 0)
        gradients = self._gradients(trained, others, self._inputs, self._targets, mask, self._keys, self._number)
        momentum, dampening, nesterov, _ = spec.momentum
        with torch.no_grad():
            # The first step of SGD starts its momentum with the gradient.
            share = 1.0 - dampening * (self._number > 0)
            for name, weight in trained.items():
                ones = (-1, *([1] * (weight.dim() - 1)))
                slope = gradients[name]
                if self._penalties[0]:
                    slope = torch.addcmul(slope, weight, self._decay.view(ones))
                if self._penalties[1]:
                    slope = torch.addcmul(slope, weight - self._start[name], self._pull.view(ones))
                if momentum:
                    kept = self._momentum[name].mul_(momentum).add_(slope * share)
                    slope = slope + momentum * kept if nesterov else kept
                weight.addcmul_(slope, rates.view(ones), value=-1.0)

    @torch.no_grad()
    def run(self, held: HeldExamples, examples: Any, sizes: Any, number: int) -> None:
        """Runs the step on a batch of each device. ``examples`` are rows of the held examples."""
        if self._inputs is None:
            self._inputs, self._targets = held.rows(examples)
        else:
            held.rows_into(examples, self._inputs, self._targets)
        self._sizes.copy_(sizes)
        self._number.fill_(number)
        if not self._uses_graph:
            self._body()
            return
        graph = self._graph or self._captured()
        graph.replay()

    def _captured(self) -> Any:
        """Records a step as a CUDA graph. The params stay as they are."""
        state = [*self._params.values(), *self._momentum.values()]
        saved = [value.clone() for value in state]
        cuda: Any = torch.cuda
        side = cuda.Stream(self._device)
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(2):
                self._body()
        torch.cuda.current_stream(self._device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._body()
        for value, before in zip(state, saved):
            value.copy_(before)
        return self._graph


def _replacements(spec: Spec) -> list[Replacement]:
    """Returns the layers that may replace those of the module, in the order of the attempts."""
    if spec.compile == "inductor":
        return ["none"]
    return ["kernels", "products", "none"] if has_kernels(spec.device) else ["products", "none"]


def _losses(spec: Spec, output: Any, wanted: Any) -> Any:
    """Returns the loss of each example."""
    if not spec.default_loss:

        def single(one: Any, target: Any) -> Any:
            return spec.loss(one[None], target[None])

        return torch.func.vmap(single)(output, wanted).reshape(len(wanted))
    if spec.task == "regression":
        return 0.5 * (output.reshape(-1) - wanted) ** 2
    if spec.task == "binary":
        return torch.nn.functional.binary_cross_entropy_with_logits(
            output.reshape(-1), wanted, reduction="none"
        )
    if wanted.dim() == 1:
        return torch.nn.functional.cross_entropy(output, wanted, reduction="none")
    flat = torch.nn.functional.cross_entropy(
        output.transpose(1, -1), wanted, reduction="none", ignore_index=IGNORED
    )
    return flat.sum(dim=1) / (wanted != IGNORED).sum(dim=1).clamp(min=1)


def _rounded_up(devices: int) -> int:
    """Returns the number of rows of a step. Few different numbers need few CUDA graphs."""
    if devices <= 16:
        return devices
    unit = 1 << max(0, devices.bit_length() - 5)
    return -(-devices // unit) * unit


def _padded(rows: Array, width: int) -> Array:
    """Returns the rows followed by copies of zeros."""
    padded = np.zeros((width, *rows.shape[1:]), dtype=rows.dtype)
    padded[: len(rows)] = rows
    return padded


def _views(flat: Any, shapes: Mapping[str, tuple[int, ...]]) -> Tensors:
    """Returns the tensors of params as views of a vector, or of the rows of a matrix."""
    parts: Any = torch.split(flat, [math.prod(shape) for shape in shapes.values()], dim=-1)
    return {
        name: part.unflatten(-1, shape) if shape else part.squeeze(-1)
        for (name, shape), part in zip(shapes.items(), parts)
    }
