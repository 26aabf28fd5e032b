"""One step of SGD of the devices of a call, and the transfers before and after the steps."""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ._cohort import CohortUpdates
from ._torch_encode import EncodedOutputs, Encoder
from ._torch_examples import HeldExamples, called, copied, host
from ._torch_layers import KeyedDropout
from ._trainer import IGNORED

__all__ = ["Spec", "Step", "StepSize", "losses_of", "rounded_up", "views"]

Array = NDArray[Any]
Tensors = dict[str, Any]

_LOG = logging.getLogger("deltafl.torch")


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
        tensors: Tensors = dict(net.named_parameters())
        tensors.update(net.named_buffers())
        #: The shapes and types of the tensors of w, in the order of w.
        self.shapes = {name: tuple(tensors[name].shape) for name in [*trained, *carried]}
        self.types = {name: tensors[name].dtype for name in self.shapes}
        self.num_params = sum(math.prod(shape) for shape in self.shapes.values())


class StepSize(NamedTuple):
    """The sizes of the tensors of a step."""

    #: The rows of devices, and the examples of a batch.
    devices: int
    batch: int
    #: The number of distinct params, and of sums.
    tracks: int
    sums: int


class Step:
    """One step of SGD of a fixed number of devices.

    On a GPU, three CUDA graphs run: one sets the params of all devices, one is a step, and one
    encodes and adds the updates. The host sends three vectors before the first graph and receives
    two after the last one. It waits for the GPU once per call.
    """

    def __init__(self, spec: Spec, net: torch.nn.Module, size: StepSize, encoder: Encoder, pool: Any) -> None:
        self._spec, self._net, self.size, self._encoder, self._pool = spec, net, size, encoder, pool
        self._device = spec.device
        #: The tensors of w of every device: one contiguous tensor per name, devices first.
        self._params = self._tensors()
        #: w_t, and the momentum, if a step needs them.
        self._start: Tensors = {}
        self._momentum: Tensors = self._tensors() if spec.momentum[0] else {}
        #: Which terms a step computes: weight decay and the proximal term.
        self._penalties = (False, False)
        self._graphs: dict[str, Any] = {}
        self._outputs: EncodedOutputs | None = None
        #: The examples of the step and their sizes, and the number of the step.
        self._inputs: dict[str, Any] | None = None
        self._targets: Any = None
        self._sizes = self._integers(size.devices)
        self._number = self._integers()
        self._positions = torch.arange(size.batch, device=self._device)
        self._gradients = torch.func.vmap(self._gradient, in_dims=(0, 0, 0, 0, 0, 0, None), randomness="error")
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

    def _tensors(self) -> Tensors:
        spec, width = self._spec, self.size.devices
        return {
            name: torch.zeros((width, *shape), dtype=spec.types[name], device=self._device)
            for name, shape in spec.shapes.items()
        }

    def _integers(self, *shape: int) -> Any:
        return torch.zeros(shape, dtype=torch.int64, device=self._device)

    # A call.

    @torch.no_grad()
    def run(self, held: HeldExamples, u: CohortUpdates) -> tuple[list[Array], list[bool]]:
        """Trains the devices. Returns the encoded sums, which the next call overwrites, and the refusals."""
        penalties = (bool(u.l2.any() or self._spec.momentum[3]), bool(u.proximal.any()))
        if penalties != self._penalties:
            # A step without penalties does not compute them.
            self._penalties = penalties
            self._graphs.clear()
        if penalties[1] and not self._start:
            self._start = self._tensors()
        examples, sizes = self._sent(held.offsets(u.devices), u)
        self._replay("load", self._loaded)
        for index in range(u.examples.shape[1]):
            if self._inputs is None:
                self._inputs, self._targets = held.rows(examples[index])
            else:
                held.rows_into(examples[index], self._inputs, self._targets)
            self._sizes.copy_(sizes[index])
            self._replay("step", self._body)
        return self._encoded(u)

    def _sent(self, offsets: Array, updates: CohortUpdates) -> tuple[Any, Any]:
        """Sends the inputs of a call. Returns the rows and the sizes of the batches of all steps."""
        # Numpy's methods have no types.
        u: Any = updates
        for row, vector in zip(self._host_start, u.params):
            copied(vector, row)
        self.start.copy_(self._host_start, non_blocking=True)
        head: Any = self._host_head.numpy()
        rows, width = len(u.devices), self.size.devices
        head[:] = 0
        for place, values in enumerate((u.which, u.seeds.view(np.int64), u.sums)):
            head[place, :rows] = values
        # The update of a row without a device is part of no sum.
        head[2, rows:] = -1
        numbers = head.view(np.float64)
        decay = u.l2 + self._spec.momentum[3]
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
        for name, view in views(self.start, self._spec.shapes).items():
            rows = view if self.size.tracks == 1 else view[self._which]
            self._params[name].copy_(rows)
            if self._penalties[1]:
                self._start[name].copy_(rows)
        for kept in self._momentum.values():
            kept.zero_()
        self._number.zero_()

    def _encoded(self, u: CohortUpdates) -> tuple[list[Array], list[bool]]:
        """Returns the encoded sums and whether each device is refused."""
        tensors = [value.reshape(self.size.devices, -1) for value in self._params.values()]
        clip = None if u.clip is None else self._clip[0]
        given = (tensors, self.start, self._which, self._places, self._scales, clip)
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

    def _gradient(self, trained: Tensors, others: Tensors, inputs: Any, targets: Any, mask: Any, key: Any, step: Any) -> Any:
        """Returns the gradient of one device."""

        def loss(tensors: Tensors) -> Any:
            with KeyedDropout.keyed(key, step):
                output = called(self._net, {**tensors, **others, **self._spec.fixed}, inputs)
            wanted = targets.float() if self._spec.task == "binary" else targets
            losses = losses_of(self._spec, output, wanted)
            return (losses * mask.to(losses.dtype)).sum()

        return torch.func.grad(loss)(trained)

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
        gradients = self._gradients(trained, others, self._inputs, self._targets, mask, self._keys, self._number)
        momentum, dampening, nesterov, _ = spec.momentum
        # The first step of SGD starts its momentum with the gradient.
        share = 1.0 - dampening * (self._number > 0)
        for name, weight in trained.items():
            ones = (-1, *([1] * (weight.dim() - 1)))
            rate, decay, pull = (values.view(ones) for values in numbers[weight.dtype])
            slope = gradients[name]
            if self._penalties[0]:
                slope = torch.addcmul(slope, weight, decay)
            if self._penalties[1]:
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


def losses_of(spec: Spec, output: Any, wanted: Any) -> Any:
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
