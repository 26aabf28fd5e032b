"""Layers that work under ``torch.func.vmap``, in place of layers that do not."""

from __future__ import annotations

import copy
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from ._torch_convolution import Convolution
from ._torch_embedding import KernelEmbedding
from ._torch_linear import KernelLinear
from ._torch_norm import KernelGroupNorm, KernelLayerNorm

__all__ = ["KeyedDropout", "Replacement", "replaced"]

#: The layers in place of convolutions: Triton kernels, products, or none.
Replacement = Literal["kernels", "products", "none"]


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


class _EmbeddingBag(torch.nn.Module):
    """The mean or the sum of the embeddings of each row, with the weight of the layer it replaces."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.weight, self._mode = layer.weight, layer.mode

    @staticmethod
    def of(layer: torch.nn.Module) -> _EmbeddingBag | None:
        """Returns the replacement of a layer, or None if vmap has to translate it."""
        if type(layer) is not torch.nn.EmbeddingBag or layer.mode not in ("mean", "sum"):
            return None
        is_plain = layer.padding_idx is None and layer.max_norm is None
        return _EmbeddingBag(layer) if is_plain and not layer.scale_grad_by_freq else None

    def forward(self, indices: Any) -> Any:
        """Returns one vector per row of indices. Bags of different sizes have no rows."""
        if indices.dim() != 2:
            raise ValueError("an EmbeddingBag of a cohort needs a matrix of indices")
        vectors = torch.nn.functional.embedding(indices, self.weight)
        return vectors.mean(1) if self._mode == "mean" else vectors.sum(1)


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


def replaced(net: torch.nn.Module, *, by: Replacement = "products") -> tuple[torch.nn.Module, str | None]:
    """Returns a copy of a module whose layers work under vmap, or the reason why there is none.

    Args:
        net: The module.
        by: The layers in place of convolutions. Kernels also compute norms, large dense layers and embeddings.
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
        if isinstance(layer, (torch.nn.RNN, torch.nn.MultiheadAttention)) and layer.dropout:
            return net, f"{path or 'the module'} is a {type(layer).__name__} with dropout inside the layer; set it to 0"
        new: torch.nn.Module | None = None
        if isinstance(layer, (torch.nn.Dropout, torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.Dropout3d)):
            new = KeyedDropout(layer.p, number, not isinstance(layer, torch.nn.Dropout))
            number += 1
        elif isinstance(layer, (torch.nn.LSTM, torch.nn.GRU)):
            if layer.dropout or getattr(layer, "proj_size", 0):
                return net, f"{path or 'the module'} is a recurrent layer with dropout or a projection"
            new = _Recurrent(layer)
        elif isinstance(layer, torch.nn.EmbeddingBag):
            new = _EmbeddingBag.of(layer)
        elif by != "none":
            new = Convolution.of(layer, by_kernels=by == "kernels")
            if new is None and by == "kernels":
                kinds = (KernelGroupNorm, KernelLayerNorm, KernelLinear, KernelEmbedding)
                new = next((found for kind in kinds if (found := kind.of(layer)) is not None), None)
        if new is not None:
            if not path:
                return new, None
            owner, _, last = path.rpartition(".")
            setattr(net.get_submodule(owner), last, new)
    return net, None
