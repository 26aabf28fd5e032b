"""PyTorch modules trained for many devices in one call, with ``torch.func.vmap`` over the devices."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ._cohort import Cohort, CohortUpdates
from ._torch_layers import KeyedDropout, replaced

__all__ = ["ModuleCohort", "Spec"]

Array = NDArray[Any]
Tensors = dict[str, Any]

_LOG = logging.getLogger("deltafl.torch")

#: The share of the free memory for the examples, and for the devices of a call.
_SHARE_OF_EXAMPLES, _SHARE_OF_DEVICES = 0.25, 0.5
#: Memory for examples on a CPU, in bytes.
_CPU_EXAMPLES = 1 << 30
#: The number of entries of a matrix of encoded updates that are computed at once.
_ENCODED_AT_ONCE = 1 << 26
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
        self._train_net, problem = replaced(spec.net)
        self._train_net.train()
        self._eval_net = spec.net
        self._problem: str | None = problem
        if problem is not None:
            _LOG.warning("devices train one after another: %s", problem)
        tensors = dict(spec.net.named_parameters())
        tensors.update(spec.net.named_buffers())
        self._shapes = {name: tuple(tensors[name].shape) for name in [*spec.trained, *spec.carried]}
        self._num_params = sum(math.prod(shape) for shape in self._shapes.values())
        self._examples = _Examples(spec.device, spec.shape)
        self._largest: int | None = None
        self._steps: dict[tuple[int, int], _Step] = {}
        self._said = False

    # The devices of a call.

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
            self._problem = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
            _LOG.warning("devices train one after another, because vmap does not support the module: %s", self._problem)
            return None

    def _updated(self, u: CohortUpdates) -> tuple[list[Array], list[bool]]:
        rows, steps, batch = u.examples.shape
        width = _rounded_up(rows)
        step = self._step(width, batch)
        start = torch.stack([torch.from_numpy(vector) for vector in u.params]).to(self._device)
        which = self._sent(_padded(u.which, width))
        step.load(start, which, u)
        offsets = self._examples.offsets(u.devices)
        examples = self._sent(_padded(u.examples + offsets[:, None, None], width))
        sizes = _padded(u.sizes, width)
        masks = self._sent(_masks(sizes, batch))
        rates = self._sent((_padded(u.learning_rates, width)[:, None] * (sizes > 0)).astype(np.float32))
        keys = self._sent(_padded(u.seeds.view(np.int64), width))
        order = torch.arange(steps, device=self._device)
        for index in range(steps):
            inputs, targets = self._examples.rows(examples[:, index])
            step.run(inputs, targets, masks[:, index], rates[:, index], keys, order[index])
        if not self._said:
            self._said = True
            _LOG.info("devices train in one call: vmap%s", step.description)
        return self._encoded(step.flat[:rows], start, which[:rows], u)

    def _sent(self, array: Array) -> Any:
        return torch.from_numpy(array).to(self._device)

    def _step(self, width: int, batch: int) -> _Step:
        key = (width, batch)
        if key not in self._steps:
            if len(self._steps) >= 16:
                self._steps.clear()
            self._steps[key] = _Step(self._spec, self._train_net, self._shapes, width)
        return self._steps[key]

    @torch.no_grad()
    def _encoded(self, local: Any, start: Any, which: Any, u: CohortUpdates) -> tuple[list[Array], list[bool]]:
        rows, columns = local.shape
        at_once = max(1, _ENCODED_AT_ONCE // rows)
        parts = [(a, min(a + at_once, columns)) for a in range(0, columns, at_once)]
        scale = self._sent(u.weights * u.scale)
        if u.clip is not None:
            squares = [self._change(local, start, which, part).square().sum(dim=1) for part in parts]
            norm = torch.stack(squares).sum(dim=0).sqrt()
            scale = torch.where(norm > u.clip, scale * (u.clip / norm), scale)
        count = int(u.sums.max(initial=-1)) + 1
        members = None if count == 1 else [self._sent(np.flatnonzero(u.sums == place)) for place in range(count)]
        vectors = _pinned(count, columns, self._device)
        refused = torch.zeros(rows, dtype=torch.bool, device=self._device)
        while True:
            largest = torch.zeros(rows, dtype=torch.float64, device=self._device)
            for a, b in parts:
                codes = self._change(local, start, which, (a, b)).mul_(scale[:, None]).round_()
                codes.masked_fill_(refused[:, None], 0.0)
                largest = torch.maximum(largest, torch.linalg.vector_norm(codes, ord=float("inf"), dim=1))
                integers = codes.to(torch.int64)
                for place in range(count):
                    chosen = integers if members is None else integers[members[place]]
                    vectors[place, a:b].copy_(chosen.sum(dim=0), non_blocking=True)
            too_large = ~(largest <= u.limit)
            refusals = too_large.cpu()
            if not bool(refusals.any()):
                return list(vectors.numpy()), refused.cpu().tolist()
            # Rare: the sums are computed again without the devices that are refused.
            refused |= too_large

    @staticmethod
    def _change(local: Any, start: Any, which: Any, part: tuple[int, int]) -> Any:
        """Returns w_k − w of some columns in double precision."""
        a, b = part
        old = start[:, a:b] if len(start) == 1 else start[:, a:b][which]
        return local[:, a:b].double().sub_(old)

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
        found = []
        for vector in params:
            tensors = dict(spec.fixed)
            tensors.update(_views(torch.from_numpy(vector).to(self._device), self._shapes))
            for first in range(0, len(devices), per_pass):
                part = torch.from_numpy(rows[first : first + per_pass]).to(self._device)
                mask = torch.from_numpy(inside[first : first + per_pass]).to(self._device)
                # Padding is not evaluated.
                inputs, targets = self._examples.rows(part[mask])
                output = torch.func.functional_call(self._eval_net, tensors, (inputs,))
                numbers = self._numbers(output, targets)
                padded = torch.zeros((*mask.shape, 5), dtype=torch.float64, device=self._device)
                padded[mask] = numbers
                found.append(padded.sum(dim=1))
        return torch.cat(found).cpu().numpy().reshape(-1)

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
        chosen = (output.reshape(-1) > 0).long() if spec.task == "binary" else output.argmax(dim=1)
        return torch.stack([losses, (chosen != targets).double(), zero, zero, zero], dim=1)


class _Step:
    """One step of SGD of a fixed number of devices, as a CUDA graph if possible."""

    def __init__(self, spec: Spec, net: torch.nn.Module, shapes: Mapping[str, tuple[int, ...]], width: int) -> None:
        self._spec, self._net = spec, net
        self._device = spec.device
        #: w of every device, one row each, and its tensors.
        self.flat = torch.zeros((width, sum(math.prod(shape) for shape in shapes.values())), device=self._device)
        self._shapes = shapes
        self._params = _views(self.flat, shapes)
        self._start: Any = None
        self._momentum: Any = None
        self._is_first = torch.ones((), device=self._device)
        self._decay = torch.zeros(width, device=self._device)
        self._pull = torch.zeros(width, device=self._device)
        self._proximal = False
        self._graph: Any = None
        self._inputs: tuple[Any, ...] = ()
        one = self._gradient
        self._gradients = torch.func.vmap(one, in_dims=(0, 0, 0, 0, 0, 0, None), randomness="error")
        self._uses_graph = spec.compile != "off" and self._device.type == "cuda"
        self._body: Callable[..., None] = self._moved
        if spec.compile == "inductor":
            self._body = torch.compile(self._moved, dynamic=False)
        self.description = " with a CUDA graph" if self._uses_graph else ""

    @torch.no_grad()
    def load(self, start: Any, which: Any, u: CohortUpdates) -> None:
        """Sets the params and the penalties of the devices."""
        proximal = bool(u.proximal.any())
        if proximal != self._proximal:
            self._proximal, self._graph = proximal, None
        self.flat.copy_(start if len(start) == 1 else start[which])
        if proximal:
            if self._start is None:
                self._start = torch.empty_like(self.flat)
            self._start.copy_(self.flat)
        if self._spec.momentum[0]:
            if self._momentum is None:
                self._momentum = torch.empty_like(self.flat)
            self._momentum.zero_()
        self._is_first.fill_(1.0)
        width = len(self.flat)
        decay = u.l2 + self._spec.momentum[3]
        self._decay.copy_(torch.from_numpy(_padded(decay, width).astype(np.float32)))
        self._pull.copy_(torch.from_numpy(_padded(u.proximal, width).astype(np.float32)))

    def _gradient(self, trained: Tensors, others: Tensors, inputs: Any, targets: Any, mask: Any, key: Any, step: Any) -> Any:
        """Returns the gradient of one device."""

        def loss(tensors: Tensors) -> Any:
            with KeyedDropout.keyed(key, step):
                output = torch.func.functional_call(self._net, {**tensors, **others, **self._spec.fixed}, (inputs,))
            wanted = targets.float() if self._spec.task == "binary" else targets
            return (_losses(self._spec, output, wanted) * mask).sum()

        return torch.func.grad(loss)(trained)

    def _moved(self, inputs: Any, targets: Any, mask: Any, rates: Any, keys: Any, step: Any) -> None:
        """Moves the params of all devices by one step."""
        spec = self._spec
        trained = {name: self._params[name] for name in spec.trained}
        others = {name: self._params[name] for name in spec.carried}
        gradients = self._gradients(trained, others, inputs, targets, mask, keys, step)
        momentum, dampening, nesterov, _ = spec.momentum
        # Views of the optional vectors by tensor.
        start = {} if not self._proximal else _views(self._start, self._shapes)
        kept = {} if not momentum else _views(self._momentum, self._shapes)
        with torch.no_grad():
            for name, weight in trained.items():
                ones = (-1, *([1] * (weight.dim() - 1)))
                slope = gradients[name] + self._decay.view(ones) * weight
                if self._proximal:
                    slope = slope + self._pull.view(ones) * (weight - start[name])
                if momentum:
                    # The first step of SGD starts its momentum with the gradient.
                    share = self._is_first + (1.0 - self._is_first) * (1.0 - dampening)
                    kept[name].mul_(momentum).add_(slope * share)
                    slope = slope + momentum * kept[name] if nesterov else kept[name]
                weight.sub_(rates.view(ones) * slope)
            self._is_first.zero_()

    def run(self, *inputs: Any) -> None:
        """Runs the step on a batch of each device."""
        if not self._uses_graph:
            self._body(*inputs)
            return
        if self._graph is None or self._inputs[0].shape != inputs[0].shape:
            self._capture(inputs)
        for place, value in zip(self._inputs, inputs):
            place.copy_(value)
        self._graph.replay()

    def _capture(self, inputs: tuple[Any, ...]) -> None:
        self._inputs = tuple(value.clone() for value in inputs)
        state = [self.flat, self._is_first]
        if self._momentum is not None:
            state.append(self._momentum)
        saved = [value.clone() for value in state]
        side = torch.cuda.Stream(self._device)
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(2):
                self._body(*self._inputs)
        torch.cuda.current_stream(self._device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._body(*self._inputs)
        for value, before in zip(state, saved):
            value.copy_(before)


class _Examples:
    """The examples of devices in the memory of the torch device, one row per example."""

    def __init__(self, device: torch.device, shape: tuple[int, ...] | None) -> None:
        self._device, self._shape = device, shape
        self._places: dict[int, tuple[int, int]] = {}
        self._inputs: Any = None
        self._targets: Any = None
        self._used = 0
        #: The number of examples that fit, or None before the size of an example is known.
        self._capacity: int | None = None

    def fitting(self, devices: Array, examples: Array) -> int:
        """Returns how many of the devices fit into the memory, at least one."""
        if self._capacity is None:
            return len(devices)
        return max(1, int(np.searchsorted(np.cumsum(examples), self._capacity, side="right")))

    def wanted(self, devices: Array) -> list[int]:
        """Returns the devices that are not held. If they do not fit beside the others, all are."""
        distinct = [int(device) for device in np.unique(devices)]
        missing = [device for device in distinct if device not in self._places]
        if missing and self._capacity is not None and self._used > self._capacity // 2:
            # Nothing is known of the next calls, so all rows are given up.
            self._places.clear()
            self._used = 0
            return distinct
        return missing

    def hold(self, device: int, inputs: Array, targets: Array) -> None:
        """Appends the examples of a device."""
        rows = torch.from_numpy(inputs).to(self._device)
        if self._shape is not None:
            rows = rows.view(len(inputs), *self._shape)
        wanted = torch.from_numpy(targets).to(self._device)
        if self._capacity is None:
            row = rows[:1].numel() * rows.element_size() + wanted.element_size()
            cuda = self._device.type == "cuda"
            memory = _SHARE_OF_EXAMPLES * torch.cuda.mem_get_info(self._device)[0] if cuda else _CPU_EXAMPLES
            self._capacity = max(1, int(memory / row))
        end = self._used + len(rows)
        if self._inputs is None or end > len(self._inputs):
            grown = max(end, 2 * self._used, 1024)
            self._inputs = self._grown(self._inputs, rows, grown)
            self._targets = self._grown(self._targets, wanted, grown)
        self._inputs[self._used : end] = rows
        self._targets[self._used : end] = wanted
        self._places[device] = (self._used, len(rows))
        self._used = end

    def _grown(self, old: Any, rows: Any, length: int) -> Any:
        new = torch.empty((length, *rows.shape[1:]), dtype=rows.dtype, device=self._device)
        if old is not None:
            new[: self._used] = old[: self._used]
        return new

    def offsets(self, devices: Array) -> Array:
        """Returns the first row of each device."""
        return np.array([self._places[int(device)][0] for device in devices], dtype=np.int64)

    def rows(self, indices: Any) -> tuple[Any, Any]:
        """Returns inputs and targets of rows."""
        return self._inputs[indices], self._targets[indices]


def _losses(spec: Spec, output: Any, wanted: Any) -> Any:
    """Returns the loss of each example."""
    if not spec.default_loss:
        single = torch.func.vmap(lambda one, target: spec.loss(one[None], target[None]))
        return single(output, wanted).reshape(len(wanted))
    if spec.task == "regression":
        return 0.5 * (output.reshape(-1) - wanted) ** 2
    if spec.task == "binary":
        return torch.nn.functional.binary_cross_entropy_with_logits(
            output.reshape(-1), wanted, reduction="none"
        )
    return torch.nn.functional.cross_entropy(output, wanted, reduction="none")


def _rounded_up(devices: int) -> int:
    """Returns the number of rows of a step. Few different numbers need few CUDA graphs."""
    if devices <= 16:
        return devices
    unit = 1 << max(0, devices.bit_length() - 4)
    return -(-devices // unit) * unit


def _padded(rows: Array, width: int) -> Array:
    """Returns the rows followed by copies of zeros."""
    padded = np.zeros((width, *rows.shape[1:]), dtype=rows.dtype)
    padded[: len(rows)] = rows
    return padded


def _masks(sizes: Array, batch: int) -> Array:
    """Returns the share of each example in the mean of its batch; 0 for padding."""
    inside = np.arange(batch)[None, None, :] < sizes[:, :, None]
    return (inside / np.maximum(sizes, 1)[:, :, None]).astype(np.float32)


def _views(flat: Any, shapes: Mapping[str, tuple[int, ...]]) -> Tensors:
    """Returns the tensors of params as views of a vector, or of the rows of a matrix."""
    parts = torch.split(flat, [math.prod(shape) for shape in shapes.values()], dim=-1)
    return {
        name: part.unflatten(-1, shape) if shape else part.squeeze(-1)
        for (name, shape), part in zip(shapes.items(), parts)
    }


def _pinned(rows: int, columns: int, device: torch.device) -> Any:
    """Returns memory for vectors of integers to which a GPU copies fast."""
    return torch.empty((rows, columns), dtype=torch.int64, pin_memory=device.type == "cuda")
