"""One step of SGD of the devices of a call, and the transfers before and after the steps."""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from .._cohort import CohortUpdates
from ._encode import EncodedOutputs, Encoder
from ._examples import HeldExamples, called, copied, host, shared
from ._layers import KeyedDropout, without_dropout
from ._loss import losses_of
from ._memory import DeviceTensors
from ._moving import MovingLayer, SharedWeight, is_moved, movable
from ._pool import PooledByKernels
from ._spec import Spec

__all__ = ["Step", "StepSize", "rounded_up", "views"]

Array = NDArray[Any]
Tensors = dict[str, Any]

_LOG = logging.getLogger("deltafl.torch")

#: The number of params that are sent at once.
_SENT_AT_ONCE = 1 << 20


class StepSize(NamedTuple):
    """The sizes of the tensors of a step."""

    #: The rows of devices, and the examples of a batch.
    devices: int
    batch: int
    #: The number of distinct params, and of sums.
    tracks: int
    sums: int


class StepTerms(NamedTuple):
    """The terms that a step adds to the gradient."""

    decay: bool
    proximal: bool
    drift: bool
    #: Whether some devices have fewer steps than others. Their gradients after their last step may be infinite.
    idle: bool


class Step:
    """One step of SGD of a fixed number of devices.

    On a GPU, three CUDA graphs run: one sets the params of all devices, one is a step, and one
    encodes and adds the updates. The host sends three vectors before the first graph and receives
    two after the last one. It waits for the GPU once per call.
    """

    def __init__(self, spec: Spec, net: torch.nn.Module, size: StepSize, encoder: Encoder, pool: Any) -> None:
        self._spec, self._net, self.size, self._encoder, self._pool = spec, net, size, encoder, pool
        self._device = spec.device
        self._tensors = self._allocated()
        #: The tensors of w of every device.
        self._params = self._tensors.by_name
        #: w_t, and the momentum, if a step needs them.
        self._start: Tensors = {}
        self._momentum: Tensors = self._allocated().by_name if spec.sgd.momentum else {}
        #: A vector that every step adds to the gradient, if there is one.
        self._drift: Tensors = {}
        #: Which terms a step adds to the gradient.
        self._terms = StepTerms(False, False, False, False)
        #: Layers whose weights the backward pass may move, so that their gradient is not stored.
        self._movable = {} if spec.sgd.momentum else movable(net, spec.trained)
        #: The weights that the backward pass of the last step has moved.
        self._moved_names: list[str] = []
        self._graphs: dict[str, Any] = {}
        self._outputs: EncodedOutputs | None = None
        #: The examples of the step and their sizes, and the number of the step.
        self._inputs: dict[str, Any] | None = None
        self._targets: Any = None
        self._sizes = self._integers(size.devices)
        self._number = self._integers()
        self._positions = torch.arange(size.batch, device=self._device)
        self._gradients = torch.func.vmap(self._gradient, in_dims=(0, 0, 0, 0, 0, 0, 0, None), randomness="error")
        self._uses_graph = spec.compile != "off" and self._device.type == "cuda"
        self._body: Callable[[], None] = self._moved
        if spec.compile == "inductor":
            self._body = torch.compile(self._moved, dynamic=False)
        self.description = " with a CUDA graph" if self._uses_graph else ""
        self._allocate_inputs()

    def _allocate_inputs(self) -> None:
        """Allocates the memory of a call on both sides."""
        size, device = self.size, self._device
        self.start = torch.zeros((size.tracks, self._spec.num_params), device=device)
        self._host_start = host(tuple(self.start.shape), torch.float32, device)
        # Integers and double precision numbers of the devices are sent together.
        rows = (9, size.devices)
        self._head = self._integers(*rows)
        self._host_head = host(rows, torch.int64, device)
        self._host_batches = host((0,), torch.int64, device)
        numbers = self._head.view(torch.float64)
        self._which, self._keys, self._places = self._head[:3]
        self._rates, self._decay, self._pull, self._scales, self._limit, self._clip = numbers[3:]

    def _allocated(self) -> DeviceTensors:
        return DeviceTensors(self._spec.shapes, self._spec.types, self.size.devices, self._device)

    def _integers(self, *shape: int) -> Any:
        return torch.zeros(shape, dtype=torch.int64, device=self._device)

    # A call.

    @torch.no_grad()
    def run(self, held: HeldExamples, u: CohortUpdates) -> tuple[list[Array], list[bool]]:
        """Trains the devices. Returns the encoded sums, which the next call overwrites, and the refusals."""
        self._train(held, u)
        return self._encoded(u)

    @torch.no_grad()
    def rows(self, held: HeldExamples, u: CohortUpdates) -> Array:
        """Trains the devices. Returns w_k of each device."""
        self._train(held, u)
        matrix = torch.cat([part.float() for part in self._tensors.matrices()], dim=1)
        return np.asarray(matrix[: len(u.devices)].cpu().numpy())

    @torch.no_grad()
    def first_step(self, held: HeldExamples, u: CohortUpdates, rows: list[int]) -> list[Array]:
        """Returns w_k of some devices after their first step, without dropout.

        No CUDA graph is recorded, because later steps have dropout.
        """
        uses_graph, body = self._uses_graph, self._body
        self._uses_graph, self._body = False, self._moved
        try:
            with without_dropout(self._net):
                self._train(held, replace(u, examples=u.examples[:, :1], sizes=u.sizes[:, :1]))
        finally:
            self._uses_graph, self._body = uses_graph, body
        found = [[value[row].reshape(-1).float() for value in self._params.values()] for row in rows]
        return [np.asarray(torch.cat(parts).cpu().numpy()) for parts in found]

    def _train(self, held: HeldExamples, u: CohortUpdates) -> None:
        """Trains the devices."""
        # Once a call has had idle devices, later ones keep the term, so that the waves of a round share a graph.
        decay, is_idle = bool(u.l2.any() or self._spec.sgd.weight_decay), self._terms.idle or not u.sizes.all()
        terms = StepTerms(decay, bool(u.proximal.any()), u.drift is not None, is_idle)
        if terms != self._terms:
            # A step does not compute the terms that it does not have.
            self._terms = terms
            self._graphs.clear()
        if terms.proximal and not self._start:
            self._start = self._allocated().by_name
        if u.drift is not None:
            self._send_drift(u.drift)
        examples, sizes = self._sent(held.offsets(u.devices), u)
        try:
            self._run_steps(held, examples, sizes)
        except SharedWeight as error:
            _LOG.info("gradients of large weights are stored: %s", error)
            self._movable = {}
            self._graphs.clear()
            self._run_steps(held, examples, sizes)

    def _send_drift(self, drift: Array) -> None:
        """Sets the vectors that every step adds to the gradients."""
        if not self._drift:
            self._drift = self._allocated().by_name
        for name, part in views(shared(drift), self._spec.shapes).items():
            self._drift[name][: len(drift)].copy_(part)

    def _run_steps(self, held: HeldExamples, examples: Any, sizes: Any) -> None:
        """Runs all steps of the devices, from w_t."""
        self._replay("load", self._loaded)
        for index in range(len(examples)):
            if self._inputs is None:
                self._inputs, self._targets = held.rows(examples[index])
            else:
                held.rows_into(examples[index], self._inputs, self._targets)
            self._sizes.copy_(sizes[index])
            self._replay("step", self._body)

    def _sent(self, offsets: Array, updates: CohortUpdates) -> tuple[Any, Any]:
        """Sends the inputs of a call. Returns the rows and the sizes of the batches of all steps."""
        # Numpy's methods have no types.
        u: Any = updates
        for place, row, vector in zip(self.start, self._host_start, u.params):
            # The GPU receives a part while the next one is copied on the host.
            for first in range(0, len(vector), _SENT_AT_ONCE):
                part = slice(first, first + _SENT_AT_ONCE)
                copied(vector[part], row[part])
                place[part].copy_(row[part], non_blocking=True)
        head: Any = self._host_head.numpy()
        rows, width = len(u.devices), self.size.devices
        head[:] = 0
        for place, values in enumerate((u.which, u.seeds.view(np.int64), u.sums)):
            head[place, :rows] = values
        # The update of a row without a device is part of no sum.
        head[2, rows:] = -1
        numbers = head.view(np.float64)
        decay = u.l2 + self._spec.sgd.weight_decay
        for place, values in enumerate((u.learning_rates, decay, u.proximal, u.weights * u.scale)):
            numbers[3 + place, :rows] = values
        numbers[7:] = [[u.limit], [0.0 if u.clip is None else u.clip]]
        self._head.copy_(self._host_head, non_blocking=True)
        steps, batch = u.examples.shape[1:]
        counts = [steps * width * batch, steps * width]
        if len(self._host_batches) < sum(counts):
            self._host_batches = host((sum(counts),), torch.int64, self._device)
        batches = self._host_batches[: sum(counts)]
        flat: Any = batches.numpy()
        flat[:] = 0
        examples = flat[: counts[0]].reshape(steps, width, batch)
        np.add(u.examples.swapaxes(0, 1), offsets[:, None], out=examples[:, :rows])
        flat[counts[0] :].reshape(steps, width)[:, :rows] = u.sizes.T
        found = torch.split(batches.to(self._device, non_blocking=True), counts)
        return found[0].view(steps, width, batch), found[1].view(steps, width)

    def _loaded(self) -> None:
        """Sets the params of the devices to w_t."""
        if self._encoder.by_kernels:
            self._tensors.load(self.start, self._which)
        else:
            for name, view in views(self.start, self._spec.shapes).items():
                self._params[name].copy_(view if self.size.tracks == 1 else view[self._which])
        if self._terms.proximal:
            for name, value in self._params.items():
                self._start[name].copy_(value)
        for kept in self._momentum.values():
            kept.zero_()
        self._number.zero_()

    def _encoded(self, u: CohortUpdates) -> tuple[list[Array], list[bool]]:
        """Returns the encoded sums and whether each device is refused."""
        clip = None if u.clip is None else self._clip[0]
        given = (self._tensors, self.start, self._which, self._places, self._scales, clip)
        if not self._encoder.by_kernels:
            return self._encoder.by_operations(*given, u)
        if self._outputs is None:
            size = (self.size.sums, self.size.devices, self.start.shape[1])
            self._outputs = EncodedOutputs(*size, self._device)
        outputs = self._outputs
        name = "encode" if clip is None else "encode, clipped"

        def encode() -> None:
            self._encoder.encode(*given, self._limit, outputs)

        outputs.keep.fill_(1)
        while True:
            self._replay(name, encode)
            answer = outputs.received(len(u.devices))
            if answer is not None:
                return answer

    def _gradient(
        self, trained: Tensors, others: Tensors, inputs: Any, targets: Any, mask: Any, key: Any, numbers: Any,
        step: Any,
    ) -> Any:  # fmt: skip
        """Returns the gradient of one device. The backward pass may move some of the weights."""

        def loss(tensors: Tensors) -> Any:
            pooled = PooledByKernels() if self._encoder.by_kernels else nullcontext()
            with KeyedDropout.keyed(key, step), self._moving(numbers) as reads, pooled:
                output = called(self._net, {**tensors, **others, **self._spec.fixed}, inputs)
            if reads and any(reads.contain(tensors[name]) for name in self._moved_names):
                raise SharedWeight(f"the module reads one of {', '.join(self._moved_names)} outside its layer")
            wanted = targets.to(self._spec.dtype) if self._spec.task == "binary" else targets
            losses = losses_of(self._spec, output, wanted, by_kernels=self._encoder.by_kernels)
            return (losses * mask.to(losses.dtype)).sum()

        return torch.func.grad(loss)(trained)

    def _moving(self, numbers: Any) -> Any:
        """Returns a context in which the backward pass moves large weights."""
        self._moved_names.clear()
        # The kernels know neither w_t, which the proximal term needs, nor corrections.
        if self._terms.proximal or self._terms.drift or not self._movable:
            return nullcontext()
        decay = self._terms.decay
        names = {layer: name for layer, name in self._movable.items() if layer.applies_decay or not decay}
        return MovingLayer.moving(names, self._moved_names, *numbers)

    @torch.no_grad()
    def _moved(self) -> None:
        """Moves the params of all devices by one step."""
        spec = self._spec
        trained = {name: self._params[name] for name in spec.trained}
        others = {name: self._params[name] for name in spec.carried}
        sizes = self._sizes[:, None]
        # The share of an example in the mean of its batch; 0 for padding.
        mask = (self._positions < sizes).double() / sizes.clamp(min=1)
        # A device after its last step does not move.
        factors = torch.stack([self._rates * (self._sizes > 0), self._decay, self._pull])
        numbers = {dtype: factors.to(dtype) for dtype in set(spec.types.values())}
        rates, decays = factors[:2].float()
        gradients = self._gradients(
            trained, others, self._inputs, self._targets, mask, self._keys, (rates, decays), self._number
        )
        for name in self._moved_names:
            if not is_moved(gradients.pop(name, trained[name])):
                raise SharedWeight(f"the module uses {name} more than once")
        momentum, dampening, nesterov, _ = spec.sgd
        # The first step of SGD starts its momentum with the gradient.
        share: Any = 1.0 - dampening * (self._number > 0) if momentum else None
        for name, slope in gradients.items():
            weight = trained[name]
            ones = (-1, *([1] * (weight.dim() - 1)))
            rate, decay, pull = (values.view(ones) for values in numbers[weight.dtype])
            if self._terms.idle:
                slope = torch.where(sizes.view(ones) > 0, slope, 0.0)
            if self._terms.decay:
                slope = torch.addcmul(slope, weight, decay)
            if self._terms.drift:
                slope = slope + self._drift[name]
            if self._terms.proximal:
                slope = torch.addcmul(slope, weight - self._start[name], pull)
            if momentum:
                kept = self._momentum[name].mul_(momentum).add_(slope * share)
                slope = slope + momentum * kept if nesterov else kept
            weight.addcmul_(slope, rate, value=-1.0)
        self._number.add_(1)

    # CUDA graphs.

    def _replay(self, name: str, body: Callable[[], None]) -> None:
        """Runs operations, as a CUDA graph if possible."""
        if not self._uses_graph:
            body()
            return
        graph = self._graphs.get(name)
        if graph is None:
            graph = self._captured(body)
            if graph is None:
                self._uses_graph, self.description = False, ""
                body()
                return
            self._graphs[name] = graph
        graph.replay()

    def _captured(self, body: Callable[[], None]) -> Any:
        """Records operations as a CUDA graph, or returns None. The params stay as they are."""
        state = [*self._params.values(), *self._momentum.values(), self._number]
        saved = [value.clone() for value in state]
        cuda: Any = torch.cuda
        side = cuda.Stream(self._device)
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(2):
                body()
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = self._recorded(body, self._pool, "global")
        if graph is None:
            # Another thread may have called CUDA. The memory of the failed attempt is not used again.
            self._pool = cuda.graph_pool_handle()
            graph = self._recorded(body, self._pool, "thread_local")
        for value, before in zip(state, saved):
            value.copy_(before)
        return graph

    def _recorded(self, body: Callable[[], None], pool: Any, mode: str) -> Any:
        """Returns the CUDA graph of operations, or None if CUDA refuses to record them."""
        cuda: Any = torch.cuda
        stream = cuda.current_stream(self._device)
        graph: Any = cuda.CUDAGraph()
        # Objects that are freed while a graph is recorded may call CUDA, which ends the recording.
        gc.collect()
        collects = gc.isenabled()
        gc.disable()
        try:
            cuda.synchronize(self._device)
            with cuda.graph(graph, pool=pool, capture_error_mode=mode):
                body()
            return graph
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            _LOG.warning("CUDA records no graph (%s): %s", mode, str(error).strip().splitlines()[0])
            return None
        finally:
            # PyTorch leaves the stream of a failed recording as the current one.
            cuda.set_stream(stream)
            if collects:
                gc.enable()


def rounded_up(devices: int) -> int:
    """Returns the number of rows of a step. Few different numbers need few CUDA graphs."""
    if devices <= 16:
        return devices
    unit = 1 << max(0, devices.bit_length() - 5)
    return -(-devices // unit) * unit


def views(flat: Any, shapes: Mapping[str, tuple[int, ...]]) -> Tensors:
    """Returns the tensors of params as views of a vector, or of the rows of a matrix."""
    parts: Any = torch.split(flat, [math.prod(shape) for shape in shapes.values()], dim=-1)
    return {
        name: part.unflatten(-1, shape) if shape else part.squeeze(-1)
        for (name, shape), part in zip(shapes.items(), parts)
    }
