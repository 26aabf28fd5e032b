"""Layers that work under ``torch.func.vmap``, in place of layers that do not."""

from __future__ import annotations

import copy
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["KeyedDropout", "replaced"]

#: Two sizes: of the kernel, the step, the padding or the dilation of a convolution.
Pair = tuple[int, int]
#: The geometry of a convolution: kernel, step, padding and dilation.
Geometry = tuple[Pair, Pair, Pair, Pair]


class KeyedDropout(torch.nn.Module):
    """A dropout whose mask depends on the device, the step and the layer only.

    The random numbers of ``torch.nn.Dropout`` depend on the number of devices in a call. This layer
    hashes the key of the device instead, so that its mask is the same in any cohort.
    """

    #: The key of the device, and the number of the step.
    _now: tuple[Any, Any] | None = None

    def __init__(self, p: float, number: int, channels: bool) -> None:
        super().__init__()
        self.p, self._number, self._channels = p, number, channels

    @classmethod
    @contextmanager
    def keyed(cls, key: Any, step: Any) -> Generator[None, None, None]:
        """Sets the key and the step of the forward pass."""
        cls._now = (key, step)
        try:
            yield
        finally:
            cls._now = None

    def forward(self, inputs: Any) -> Any:
        """Sets a share p of the inputs to zero and scales the others."""
        if not self.training or self.p == 0.0 or KeyedDropout._now is None:
            return inputs
        if self.p >= 1.0:
            return inputs * 0.0
        key, step = KeyedDropout._now
        shape = inputs.shape[:2] if self._channels else inputs.shape
        count = 1
        for length in shape:
            count *= length
        positions = torch.arange(count, device=inputs.device)
        first = _mixed(key + _ODD * (step + 1)) ^ (self._number + 1)
        bits = _mixed(first + _ODD * (positions + 1))
        # The upper 31 bits as a number in [0, 1).
        uniform = ((bits >> 33) & 0x7FFFFFFF).to(inputs.dtype) / 2147483648.0
        kept = (uniform >= self.p).to(inputs.dtype).reshape(shape)
        if self._channels:
            kept = kept.reshape(*shape, *([1] * (inputs.dim() - 2)))
        return inputs * kept / (1.0 - self.p)


#: The increment of SplitMix64 as a signed integer.
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)


def _mixed(values: Any) -> Any:
    """Returns the SplitMix64 hash of 64-bit integers."""
    values = (values ^ ((values >> 30) & 0x3FFFFFFFF)) * (0xBF58476D1CE4E5B9 - (1 << 64))
    values = (values ^ ((values >> 27) & 0x1FFFFFFFFF)) * (0x94D049BB133111EB - (1 << 64))
    return values ^ ((values >> 31) & 0x1FFFFFFFF)


class _Recurrent(torch.nn.Module):
    """An LSTM or GRU as elementary operations, with the parameters of the layer it replaces."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self._gru = isinstance(layer, torch.nn.GRU)
        self._hidden, self._layers = layer.hidden_size, layer.num_layers
        self._batch_first, self._directions = layer.batch_first, 2 if layer.bidirectional else 1
        for name, value in layer.named_parameters():
            self.register_parameter(name, value)

    def forward(self, inputs: Any, state: Any = None) -> Any:
        """Returns the outputs of all steps, and the last state, as the layer it replaces."""
        steps = inputs.transpose(0, 1) if self._batch_first else inputs
        lasts: list[Any] = []
        for layer in range(self._layers):
            found: list[tuple[Any, Any]] = []
            for direction in range(self._directions):
                suffix = f"_l{layer}" + ("_reverse" if direction else "")
                index = layer * self._directions + direction
                found.append(self._pass(steps.flip(0) if direction else steps, suffix, state, index))
            outputs = [out.flip(0) if direction else out for direction, (out, _) in enumerate(found)]
            steps = torch.cat(outputs, dim=2)
            lasts += [last for _, last in found]
        output = steps.transpose(0, 1) if self._batch_first else steps
        hidden = torch.stack([last[0] for last in lasts])
        return output, hidden if self._gru else (hidden, torch.stack([last[1] for last in lasts]))

    def _pass(self, steps: Any, suffix: str, state: Any, index: int) -> Any:
        parameters = dict(self.named_parameters())
        projected = steps @ parameters["weight_ih" + suffix].t()
        recurrent = parameters["weight_hh" + suffix].t()
        bias_in = parameters.get("bias_ih" + suffix)
        bias_hidden = parameters.get("bias_hh" + suffix)
        if bias_in is not None:
            projected = projected + bias_in
        zero = steps.new_zeros((steps.shape[1], self._hidden))
        if state is None:
            hidden, cell = zero, zero
        else:
            hidden, cell = (state[index], zero) if self._gru else (state[0][index], state[1][index])
        found: list[Any] = []
        for step in projected.unbind(0):
            gates = hidden @ recurrent
            if bias_hidden is not None:
                gates = gates + bias_hidden
            if self._gru:
                in_reset, in_update, in_new = step.chunk(3, dim=1)
                reset, update, new = gates.chunk(3, dim=1)
                candidate = torch.tanh(in_new + torch.sigmoid(in_reset + reset) * new)
                share = torch.sigmoid(in_update + update)
                hidden = (1.0 - share) * candidate + share * hidden
            else:
                entry, forget, new, output = (step + gates).chunk(4, dim=1)
                cell = torch.sigmoid(forget) * cell + torch.sigmoid(entry) * torch.tanh(new)
                hidden = torch.sigmoid(output) * torch.tanh(cell)
            found.append(hidden)
        return torch.stack(found), (hidden, cell)


def _outputs(size: Pair, geometry: Geometry) -> Pair:
    """Returns the height and width of the output of a convolution."""
    kernel, step, padding, dilation = geometry

    def length(axis: int) -> int:
        reach = dilation[axis] * (kernel[axis] - 1) + 1
        return (size[axis] + 2 * padding[axis] - reach) // step[axis] + 1

    return length(0), length(1)


class _Product(torch.autograd.Function):
    """A convolution as the product of its weights with the patches of the images.

    The patches of N images are the columns of a matrix: (C·kernel) × (N·outputs). For a cohort it is
    one batched product, with the same bits in every run. vmap would use a grouped convolution.
    """

    @staticmethod
    def forward(images: Any, weight: Any, geometry: Geometry) -> tuple[Any, Any]:
        output, columns = _product(images[None], weight[None], geometry)
        return output[0], columns[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
        images, weight, ctx.geometry = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.shape = tuple(images.shape)
        ctx.save_for_backward(weight, output[1])

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        weight, columns = ctx.saved_tensors
        of_images: Any = None
        if ctx.needs_input_grad[0]:
            apply: Any = _ImageSlope.apply
            of_images = apply(slopes[0], weight, ctx.shape, ctx.geometry)
        return of_images, (slopes[0].flatten(1) @ columns.mT).view_as(weight), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, tuple[int, int]]:
        images, weight, geometry = args
        given = _batched(images, in_dims[0], info.batch_size), _batched(weight, in_dims[1], info.batch_size)
        return _product(*given, geometry), (0, 0)


class _ImageSlope(torch.autograd.Function):
    """The gradient of a convolution by its images."""

    @staticmethod
    def forward(slope: Any, weight: Any, shape: tuple[int, ...], geometry: Geometry) -> Any:
        return _image_slope(slope[None], weight[None], shape, geometry)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        raise NotImplementedError("second derivatives of a convolution")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, int]:
        slope, weight, shape, geometry = args
        given = _batched(slope, in_dims[0], info.batch_size), _batched(weight, in_dims[1], info.batch_size)
        return _image_slope(*given, shape, geometry), 0


def _batched(value: Any, axis: int | None, devices: int) -> Any:
    """Returns a tensor with the devices as its first axis."""
    return value.expand(devices, *value.shape) if axis is None else value.movedim(axis, 0)


def _product(images: Any, weight: Any, geometry: Geometry) -> tuple[Any, Any]:
    """Returns outputs × N × height × width of each device, and the columns of its images."""
    columns = _columns(images, geometry)
    size = _outputs((images.shape[3], images.shape[4]), geometry)
    return (weight.flatten(2) @ columns).unflatten(2, (images.shape[1], *size)), columns


def _image_slope(slope: Any, weight: Any, shape: tuple[int, ...], geometry: Geometry) -> Any:
    """Returns the gradient by images of this shape, from that by outputs × N × height × width."""
    kernel, step, padding, dilation = geometry
    reach = [dilation[axis] * (kernel[axis] - 1) - padding[axis] for axis in (0, 1)]
    if step != (1, 1) or min(reach) < 0:
        return _images(weight.flatten(2).mT @ slope.flatten(2), shape, geometry)
    # With a step of 1 it is a convolution of the slope with the turned kernel.
    turned = weight.flip(3, 4).transpose(1, 2).flatten(2)
    columns = _columns(slope.transpose(1, 2), (kernel, (1, 1), (reach[0], reach[1]), dilation))
    return (turned @ columns).unflatten(2, (shape[0], *shape[2:])).transpose(1, 2)


def _columns(images: Any, geometry: Geometry) -> Any:
    """Returns the columns of the images of many devices: devices × N × C × H × W."""
    kernel, step, padding, dilation = geometry
    devices, count, channels, height, width = images.shape
    rows, lines = _outputs((height, width), geometry)
    if kernel == (1, 1) and padding == (0, 0):
        chosen = images[..., :: step[0], :: step[1]]
        return chosen.transpose(1, 2).reshape(devices, channels, count * rows * lines)
    padded = torch.nn.functional.pad(images, (padding[1], padding[1], padding[0], padding[0])).contiguous()
    device, image, channel, line, point = padded.stride()
    patches = padded.as_strided(
        (devices, channels, *kernel, count, rows, lines),
        (device, channel, line * dilation[0], point * dilation[1], image, line * step[0], point * step[1]),
    )
    return patches.reshape(devices, channels * kernel[0] * kernel[1], count * rows * lines)


def _images(columns: Any, shape: tuple[int, ...], geometry: Geometry) -> Any:
    """Adds columns to images of this shape, for many devices."""
    kernel, step, padding, dilation = geometry
    devices, (count, channels, height, width) = len(columns), shape
    rows, lines = _outputs((height, width), geometry)
    patches = columns.reshape(devices, channels * kernel[0] * kernel[1], count, rows * lines)
    flat = patches.transpose(1, 2).reshape(devices * count, -1, rows * lines)
    if kernel == step == (1, 1) and padding == (0, 0):
        return flat.view(devices, *shape)
    images = torch.nn.functional.fold(flat, (height, width), kernel, dilation, padding, step)
    return images.view(devices, *shape)


def _pair(first: int, sizes: Sequence[int]) -> Pair:
    """Returns two sizes. The first one is given if there is only one other."""
    return (first if len(sizes) == 1 else sizes[0], sizes[-1])


class _Convolution(torch.nn.Module):
    """A convolution as a product, with the parameters of the layer that it replaces."""

    def __init__(self, layer: Any, geometry: Geometry) -> None:
        super().__init__()
        self.weight, self.bias, self._geometry = layer.weight, layer.bias, geometry
        self._dimensions = layer.weight.dim() - 2

    @staticmethod
    def of(layer: torch.nn.Module) -> _Convolution | None:
        """Returns the replacement of a layer, or None if vmap has to translate it."""
        if type(layer) not in (torch.nn.Conv1d, torch.nn.Conv2d):
            return None
        conv: Any = layer
        if conv.groups != 1 or conv.padding_mode != "zeros" or not conv.weight.is_floating_point():
            return None
        padding = conv.padding
        if isinstance(padding, str):
            spans = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size)]
            if padding == "same" and any(span % 2 for span in spans):
                return None
            padding = [span // 2 if padding == "same" else 0 for span in spans]
        # A convolution over one axis is one over images of height 1.
        kernel, step, dilation = (_pair(1, sizes) for sizes in (conv.kernel_size, conv.stride, conv.dilation))
        return _Convolution(conv, (kernel, step, _pair(0, padding), dilation))

    def forward(self, inputs: Any) -> Any:
        """Returns the output of the layer."""
        batched = inputs if inputs.dim() == self._dimensions + 2 else inputs[None]
        images = batched if self._dimensions == 2 else batched.unsqueeze(2)
        apply: Any = _Product.apply
        weight = self.weight if self._dimensions == 2 else self.weight.unsqueeze(2)
        output = apply(images, weight, self._geometry)[0]
        if self.bias is not None:
            output = output + self.bias[:, None, None, None]
        output = (output if self._dimensions == 2 else output.squeeze(2)).transpose(0, 1)
        return output if batched is inputs else output[0]


def replaced(net: torch.nn.Module, *, products: bool = True) -> tuple[torch.nn.Module, str | None]:
    """Returns a copy of a module whose layers work under vmap, or the reason why there is none.

    Args:
        net: The module.
        products: Whether convolutions become products.
    """
    net = copy.deepcopy(net)
    number = 0
    copied: Any = net
    modules: list[tuple[str, torch.nn.Module]] = list(copied.named_modules())
    for path, layer in modules:
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) and layer.track_running_stats:
            return net, (
                f"{path or 'the module'} is a batch norm, whose statistics mix the examples of a batch; "
                "use GroupNorm or LayerNorm"
            )
        new: torch.nn.Module | None = None
        if isinstance(layer, (torch.nn.Dropout, torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.Dropout3d)):
            new = KeyedDropout(layer.p, number, not isinstance(layer, torch.nn.Dropout))
            number += 1
        elif isinstance(layer, (torch.nn.LSTM, torch.nn.GRU)):
            if layer.dropout or getattr(layer, "proj_size", 0):
                return net, f"{path or 'the module'} is a recurrent layer with dropout or a projection"
            new = _Recurrent(layer)
        elif products:
            new = _Convolution.of(layer)
        if new is not None:
            if not path:
                return new, None
            owner, _, last = path.rpartition(".")
            setattr(net.get_submodule(owner), last, new)
    return net, None
