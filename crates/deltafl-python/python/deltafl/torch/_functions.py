"""Functions of tensors whose first axis are devices, under ``torch.func.vmap``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from .._kinds import is_tuple

__all__ = ["as_instance", "batched", "has_kernels", "kernels", "per_device", "precision_of", "uses_tf32"]

Layer = TypeVar("Layer", bound=torch.nn.Module)


def kernels() -> Any:
    """Returns the module of the Triton kernels."""
    from . import _kernels

    return _kernels


def has_kernels(device: torch.device) -> bool:
    """Returns whether the kernels run on a device: on a GPU, if Triton is installed."""
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    try:
        kernels()
    except ImportError:
        return False
    return True


def as_instance(layer: torch.nn.Module, kind: type[Layer]) -> Layer:
    """Returns a layer with the attributes of another one, as an instance of a subclass of its class.

    The code of a module may read attributes of the layer, or depend on its class.
    """
    new = kind.__new__(kind)
    vars(new).update(vars(layer))
    return new


def uses_tf32(settings: Any) -> bool:
    """Returns whether PyTorch may round the inputs of products, or of convolutions, to TF32."""
    with warnings.catch_warnings():
        # PyTorch 2.9 and later advise another interface, which older versions do not have.
        warnings.simplefilter("ignore")
        return bool(settings.allow_tf32)


def precision_of(settings: Any) -> str:
    """Returns the precision of products in a kernel: TF32 if PyTorch may use it."""
    return "tf32" if uses_tf32(settings) else "tf32x3"


def batched(values: Sequence[Any], axes: Sequence[int | None], devices: int) -> list[Any]:
    """Returns tensors with the devices as their first axis."""
    return [
        value.expand(devices, *value.shape) if axis is None else value.movedim(axis, 0)
        for value, axis in zip(values, axes)
    ]


class _PerDevice(torch.autograd.Function):
    """A function of the tensors of many devices, which has no gradient of its own."""

    @staticmethod
    def forward(compute: Callable[..., Any], *tensors: Any) -> Any:
        found = compute(*(tensor[None] for tensor in tensors))
        return tuple(value[0] for value in found) if is_tuple(found) else found[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        raise NotImplementedError("second derivatives")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        found = args[0](*batched(args[1:], in_dims[1:], info.batch_size))
        return found, (0,) * len(found) if is_tuple(found) else 0


def per_device(compute: Callable[..., Any], *tensors: Any) -> Any:
    """Calls a function of the tensors of many devices from the code of one device."""
    apply: Any = _PerDevice.apply
    return apply(compute, *tensors)
