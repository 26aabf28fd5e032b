"""Layers that work under ``torch.func.vmap``, in place of layers that do not."""

from __future__ import annotations

import copy
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from ._convolution import Convolution
from ._embedding import KernelEmbedding
from ._functions import as_instance
from ._linear import KernelLinear
from ._norm import KernelGroupNorm, KernelLayerNorm

__all__ = ["KeyedDropout", "Replacement", "replaced", "without_dropout"]

#: The layers in place of convolutions: Triton kernels, products, or none.
Replacement = Literal["kernels", "products", "none"]


class KeyedDropout(torch.nn.Module):
    """A dropout whose mask depends on the device, the step and the place in the forward pass only.

    The random numbers of ``torch.nn.Dropout`` depend on the number of devices in a call. This layer
    hashes the key of the device instead, so that its mask is the same in any cohort. A layer that a
    forward pass calls twice has two masks.
    """

    #: The key of the device, the number of the step, and the number of calls in the forward pass.
    _now: tuple[Any, Any, list[int]] | None = None

    p: float
    inplace: bool
    #: Whether the layer sets whole channels to zero.
    _channels: bool

    @staticmethod
    def of(layer: torch.nn.Module) -> KeyedDropout | None:
        """Returns the replacement of a layer, or None if it is not a dropout layer."""
        kind = _DROPOUTS.get(type(layer))
        if kind is None:
            return None
        new = as_instance(layer, kind)
        new._channels = type(layer) is not torch.nn.Dropout
        return new

    @classmethod
    @contextmanager
    def keyed(cls, key: Any, step: Any) -> Generator[None, None, None]:
        """Sets the key and the step of the forward pass."""
        cls._now = (key, step, [0])
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
        key, step, calls = KeyedDropout._now
        calls[0] += 1
        shape = inputs.shape[:2] if self._channels else inputs.shape
        count = 1
        for length in shape:
            count *= length
        positions = torch.arange(count, device=inputs.device)
        first = _mixed(key + _ODD * (step + 1)) ^ calls[0]
        bits = _mixed(first + _ODD * (positions + 1))
        # The upper 31 bits as an integer, because types of 16 bits store too few of them.
        kept = (((bits >> 33) & 0x7FFFFFFF) >= round(self.p * 2147483648)).to(inputs.dtype).reshape(shape)
        if self._channels:
            kept = kept.reshape(*shape, *([1] * (inputs.dim() - 2)))
        dropped = inputs * kept / (1.0 - self.p)
        return inputs.copy_(dropped) if self.inplace else dropped


#: The replacement of each kind of dropout layer.
_DROPOUTS: dict[type, type[KeyedDropout]] = {
    kind: type(f"Keyed{kind.__name__}", (KeyedDropout, kind), {})
    for kind in (torch.nn.Dropout, torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.Dropout3d)
}


@contextmanager
def without_dropout(net: torch.nn.Module) -> Generator[None, None, None]:
    """Disables the dropout layers of a module."""
    dropouts: list[Any] = [layer for layer in net.modules() if isinstance(layer, tuple(_DROPOUTS))]
    layers = [layer for layer in dropouts if layer.training]
    for layer in layers:
        layer.training = False
    try:
        yield
    finally:
        for layer in layers:
            layer.training = True


#: The increment of SplitMix64 as a signed integer.
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)


def _mixed(values: Any) -> Any:
    """Returns the SplitMix64 hash of 64-bit integers."""
    values = (values ^ ((values >> 30) & 0x3FFFFFFFF)) * (0xBF58476D1CE4E5B9 - (1 << 64))
    values = (values ^ ((values >> 27) & 0x1FFFFFFFFF)) * (0x94D049BB133111EB - (1 << 64))
    return values ^ ((values >> 31) & 0x1FFFFFFFF)


class _EmbeddingBag(torch.nn.EmbeddingBag):
    """The mean or the sum of the embeddings of each row, with the weight of the layer it replaces."""

    @staticmethod
    def of(layer: torch.nn.Module) -> _EmbeddingBag | None:
        """Returns the replacement of a layer, or None if vmap has to translate it."""
        if type(layer) is not torch.nn.EmbeddingBag or layer.mode not in ("mean", "sum"):
            return None
        return as_instance(layer, _EmbeddingBag) if layer.padding_idx is None and layer.max_norm is None else None

    def forward(self, input: Any, offsets: Any = None, per_sample_weights: Any = None) -> Any:
        """Returns one vector per row of indices. Bags of different sizes have no rows."""
        if input.dim() != 2 or offsets is not None or per_sample_weights is not None:
            raise ValueError("an EmbeddingBag of a cohort needs a matrix of indices")
        vectors = torch.nn.functional.embedding(input, self.weight)
        return vectors.mean(1) if self.mode == "mean" else vectors.sum(1)


class _Recurrent(torch.nn.Module):
    """An LSTM or GRU as elementary operations, with the parameters of the layer it replaces."""

    hidden_size: int
    num_layers: int
    batch_first: bool
    bidirectional: bool
    _gru: bool

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Returns the outputs of all steps, and the last state, as the layer it replaces."""
        steps = input.transpose(0, 1) if self.batch_first else input
        directions = 2 if self.bidirectional else 1
        lasts: list[Any] = []
        for layer in range(self.num_layers):
            found: list[tuple[Any, Any]] = []
            for direction in range(directions):
                suffix = f"_l{layer}" + ("_reverse" if direction else "")
                index = layer * directions + direction
                found.append(self._pass(steps.flip(0) if direction else steps, suffix, hx, index))
            outputs = [out.flip(0) if direction else out for direction, (out, _) in enumerate(found)]
            steps = torch.cat(outputs, dim=2)
            lasts += [last for _, last in found]
        output = steps.transpose(0, 1) if self.batch_first else steps
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
        zero = steps.new_zeros((steps.shape[1], self.hidden_size))
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


class _LSTM(_Recurrent, torch.nn.LSTM):
    _gru = False


class _GRU(_Recurrent, torch.nn.GRU):
    _gru = True


#: The attributes of a layer that contain its hooks.
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def _is_changed(layer: torch.nn.Module) -> bool:
    """Returns whether a hook or another forward method changes a layer, as a spectral norm does."""
    own = vars(layer)
    return "forward" in own or any(own.get(hooks) for hooks in _HOOKS)


def replaced(net: torch.nn.Module, *, by: Replacement = "products") -> tuple[torch.nn.Module, str | None]:
    """Returns a copy of a module whose layers work under vmap, or the reason why there is none.

    Args:
        net: The module.
        by: The layers in place of convolutions. Kernels also compute norms, large dense layers and embeddings.
    """
    net = copy.deepcopy(net)
    copied: Any = net
    # A module may have a layer under several names.
    modules: list[tuple[str, Any]] = list(copied.named_modules(remove_duplicate=False))
    made: dict[int, torch.nn.Module] = {}
    for path, layer in modules:
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) and layer.track_running_stats:
            return net, (
                f"{path or 'the module'} is a batch norm, whose statistics mix the examples of a batch; "
                "use GroupNorm or LayerNorm"
            )
        if isinstance(layer, (torch.nn.RNN, torch.nn.MultiheadAttention)) and layer.dropout:
            return net, f"{path or 'the module'} is a {type(layer).__name__} with dropout inside the layer; set it to 0"
        if getattr(layer, "scale_grad_by_freq", False):
            return net, f"{path or 'the module'} divides gradients by the frequencies of tokens, which mixes the examples of a batch"
        if _is_changed(layer):
            continue
        # A subclass may compute something else, so that only these classes are replaced.
        new: torch.nn.Module | None = KeyedDropout.of(layer)
        if type(layer) in (torch.nn.LSTM, torch.nn.GRU):
            if layer.dropout or getattr(layer, "proj_size", 0):
                return net, f"{path or 'the module'} is a recurrent layer with dropout or a projection"
            new = as_instance(layer, _LSTM if type(layer) is torch.nn.LSTM else _GRU)
        elif isinstance(layer, torch.nn.EmbeddingBag):
            new = _EmbeddingBag.of(layer)
        elif new is None and by != "none":
            new = Convolution.of(layer, by_kernels=by == "kernels")
            if new is None and by == "kernels":
                kinds = (KernelGroupNorm, KernelLayerNorm, KernelLinear, KernelEmbedding)
                new = next((found for kind in kinds if (found := kind.of(layer)) is not None), None)
        if new is not None:
            new = made.setdefault(id(layer), new)
            if not path:
                return new, None
            owner, _, last = path.rpartition(".")
            setattr(net.get_submodule(owner), last, new)
    return net, None
