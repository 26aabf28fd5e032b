"""The trainer of a module: a device trains by itself, or many devices in one call."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from .._kinds import is_mapping
from .._trainer import IGNORED, Local, Trainer
from ..errors import InvalidInput
from ._cohort import ModuleCohort, Spec
from ._examples import sent, shaped, typed
from ._optimizer import Optimizer, OtherOptimizer, Sgd, options_of
from ._probe import check_targets, one_tensor
from ._random import RNG_LOCK, random_state, seeded

_LOG = logging.getLogger("deltafl.torch")

#: Maps the output of the module and the targets of a batch to the mean loss.
Loss = Callable[[Any, Any], Any]


class Module(Trainer):
    """A trainer for any ``torch.nn.Module``.

    **Parameters.** w contains the parameters in the order of ``named_parameters``, followed by the
    averaged buffers. Parameters that do not require a gradient, such as a frozen backbone, keep the
    values of ``net``. They are not part of w and are not sent. A module in float64 receives its
    inputs in float64 and computes in it; w is sent in float32. Parameters that a step does not use
    have the gradient 0 in this step.

    **Buffers.** With ``buffers="average"`` the floating-point buffers, such as the running mean of
    a batch norm, are averaged like parameters, but without l2 and proximal term. With ``"fixed"``
    they keep the values of ``net``. Integer buffers, such as batch counters, are always fixed.

    **Random numbers** of torch, numpy and Python, for example of a dropout layer, are seeded with the
    device, the round and the seed of the run. Two runs on one machine compute bitwise equal parameters if the kernels
    are deterministic.

    Args:
        net: The module. The trainer copies it.
        loss: A function ``loss(output, target)`` that returns the mean loss of a batch. The targets
            have one number per example, so that an output of shape (n, 1) needs ``output[:, 0]``.
            The default depends on the task; for classes it is the cross-entropy.
        shape: The shape of one input, such as ``(1, 28, 28)``. Without it a batch is a matrix.
        task: The kind of prediction, which determines the metrics.
        l2: λ of the penalty (λ/2)‖w‖².
        buffers: The treatment of floating-point buffers: "average" or "fixed".
        init: "keep" starts every seed from the current parameters of ``net``. "reset" calls
            ``reset_parameters`` of every layer, with torch seeded with the seed of the run. Parameters
            of layers without this method, such as attention layers, keep their values, and the
            logger ``deltafl.torch`` names them.
        optimizer: A function that returns the optimiser of a device for one round, such as
            ``lambda params, local: torch.optim.Adam(params, lr=local.learning_rate)``. The
            gradient includes l2 and the proximal term. The default is plain SGD.
        device: The torch device. The default is a GPU if one is available, otherwise the CPU.
        cohort: Whether many devices train in one call, with ``torch.func.vmap``. "auto" does so on a
            GPU. On a CPU it does not, because the parameters are then bitwise equal to those of
            deployed devices. A module that vmap does not support trains one device after another, and
            so does a module or a loss that mixes the examples of a batch. The logger
            ``deltafl.torch`` reports the reason.
        compile: How the step of a cohort runs. "auto" and "graph" record it as a CUDA graph.
            "inductor" also compiles it with ``torch.compile``, which takes up to minutes at the
            start. "off" runs the operations of the module.
        transform: A function ``transform(inputs, generator)`` that augments the inputs of a training
            batch. Draw random numbers from the ``torch.Generator``, whose seed depends on the device,
            the round and the step.
        tf32: Whether products and convolutions on a GPU round their inputs to TF32. False computes
            in full float32, so that a cohort agrees with one device after another. The setting
            applies to the whole process. None keeps the settings of PyTorch.

    **Structured inputs.** A dict of inputs is passed to the module as keyword arguments. With a
    target per position, the output has a distribution over the classes on its last axis.
    """

    corrects = True
    #: The precision that a module has set for the process.
    _uses_tf32: bool | None = None

    def __init__(
        self,
        net: torch.nn.Module,
        loss: Loss | None = None,
        *,
        shape: tuple[int, ...] | None = None,
        task: Literal["classes", "binary", "next-symbol", "regression"] = "classes",
        l2: float = 0.0,
        buffers: Literal["average", "fixed"] = "average",
        init: Literal["keep", "reset"] = "keep",
        optimizer: Optimizer | None = None,
        device: str | torch.device | None = None,
        cohort: Literal["auto", "on", "off"] = "auto",
        compile: Literal["auto", "graph", "inductor", "off"] = "auto",
        transform: Callable[[Any, torch.Generator], Any] | None = None,
        tf32: bool | None = False,
    ) -> None:
        if cohort not in ("auto", "on", "off") or compile not in ("auto", "graph", "inductor", "off"):
            raise InvalidInput(
                'cohort must be "auto", "on" or "off", '
                'compile must be "auto", "graph", "inductor" or "off"'
            )
        if buffers not in ("average", "fixed") or init not in ("keep", "reset"):
            raise InvalidInput('buffers must be "average" or "fixed", init must be "keep" or "reset"')
        _check_module(net, loss, optimizer)
        self.task, self.l2 = task, l2
        self._loss, self._is_default = loss or _default_loss(task), loss is None
        self._shape, self._optimizer, self._init = shape, optimizer, init
        self._transform, self._tf32 = transform, tf32
        self._average = buffers == "average"
        self._device = _available(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._net = copy.deepcopy(net).to(self._device)
        named = dict(self._net.named_parameters())
        self._trained = [name for name, value in named.items() if value.requires_grad]
        types = {value.dtype for value in named.values() if value.is_floating_point()}
        #: The type of inputs and targets that are real numbers. Narrower types cannot store all inputs.
        self._dtype = torch.float64 if types == {torch.float64} else torch.float32
        if not self._trained:
            raise InvalidInput("the module has no parameter that requires a gradient")
        buffers_by_name = dict(self._net.named_buffers())
        others: dict[str, Any] = {name: value for name, value in named.items() if not value.requires_grad}
        others.update(buffers_by_name)
        # A frozen backbone has the same values on all devices, so that it is not sent.
        floating = [name for name, value in buffers_by_name.items() if value.is_floating_point()]
        self._carried = floating if self._average else []
        self._fixed = {
            name: value.detach().clone() for name, value in others.items() if name not in self._carried
        }
        self._tensors = {name: self._find(name) for name in [*self._trained, *self._carried]}
        self.num_params = sum(value.numel() for value in self._tensors.values())
        #: Whether an update draws random numbers. None before the first update.
        self._draws: bool | None = None
        self._cohorts, self._compile = cohort, compile

    def options(self) -> dict[str, Any]:
        """Returns the loss, the optimiser and the treatment of buffers, for the run folder."""
        return {
            "net": type(self._net).__name__,
            "loss": "default" if self._is_default else _described(self._loss),
            "optimizer": "default" if self._optimizer is None else _described(self._optimizer),
            "buffers": "average" if self._average else "fixed",
            "init": self._init,
        }

    def _set_precision(self) -> None:
        """Sets the precision of products on a GPU, once per process and value."""
        if self._tf32 is None or self._device.type != "cuda" or Module._uses_tf32 == self._tf32:
            return
        cuda: Any = torch.backends.cuda
        cudnn: Any = torch.backends.cudnn
        with warnings.catch_warnings():
            # PyTorch 2.9 and later advise another interface, which older versions do not have.
            warnings.simplefilter("ignore")
            cuda.matmul.allow_tf32 = cudnn.allow_tf32 = Module._uses_tf32 = self._tf32

    def _find(self, name: str) -> Any:
        owner, _, last = name.rpartition(".")
        return getattr(self._net.get_submodule(owner), last)

    def init(self, rng: np.random.Generator) -> NDArray[Any]:
        """Returns the initial parameters w₀."""
        if self._init == "reset":
            kept: list[str] = []
            net: Any = self._net
            with RNG_LOCK.exclusive(), seeded(int(rng.integers(2**63))):
                for path, layer in net.named_modules():
                    reset = getattr(layer, "reset_parameters", None)
                    if callable(reset):
                        reset()
                    else:
                        own = layer.named_parameters(prefix=path, recurse=False)
                        kept += [name for name, value in own if value.requires_grad]
            if kept:
                _LOG.warning(
                    'init="reset" keeps %s: the layer has no method reset_parameters', ", ".join(kept)
                )
        return self._store()

    def cohort(self) -> ModuleCohort | None:
        """Returns the object that trains many devices in one call, or None."""
        self._set_precision()
        on = self._cohorts == "on" or (self._cohorts == "auto" and self._device.type == "cuda")
        if not on:
            return None
        reason = None
        sgd = Sgd()
        if self._transform is not None:
            reason = "a transform augments the batches"
        elif not hasattr(torch, "func"):
            reason = "torch.func needs PyTorch 2.0"
        elif self._optimizer is not None:
            try:
                sgd = options_of(self._optimizer, [self._tensors[name] for name in self._trained])
            except OtherOptimizer as error:
                reason = str(error)
        if reason is not None:
            _LOG.info("devices train one after another: %s", reason)
            return None
        return ModuleCohort(
            Spec(
                copy.deepcopy(self._net),
                trained=self._trained,
                carried=self._carried,
                fixed=self._fixed,
                loss=self._loss,
                default_loss=self._is_default,
                task=self.task,
                shape=self._shape,
                sgd=sgd,
                compile=self._compile,
                device=self._device,
                dtype=self._dtype,
            )
        )

    def worker(self) -> Module:
        """Returns a trainer with its own copy of the module, for one thread."""
        return Module._copied(self)

    @classmethod
    def _copied(cls, other: Module) -> Module:
        worker = copy.copy(other)
        worker._net = copy.deepcopy(other._net)
        worker._tensors = {name: worker._find(name) for name in other._tensors}
        return worker

    @torch.no_grad()
    def _load(self, params: NDArray[Any]) -> None:
        self._set_precision()
        flat, start = sent(params, self._device), 0
        for value in self._tensors.values():
            end = start + value.numel()
            value.copy_(flat[start:end].view_as(value))
            start = end
        for name in self._carried:
            # The last update may have assigned other buffers.
            owner, _, last = name.rpartition(".")
            setattr(self._net.get_submodule(owner), last, self._tensors[name])
        for name, value in self._fixed.items():
            self._find(name).copy_(value)

    @torch.no_grad()
    def _store(self) -> NDArray[Any]:
        flat = torch.cat([self._find(name).detach().reshape(-1).float() for name in self._tensors])
        return np.array(flat.cpu().numpy())

    def _batch(self, inputs: Any) -> Any:
        if is_mapping(inputs):
            return {name: typed(sent(array, self._device), self._dtype) for name, array in inputs.items()}
        return shaped(typed(sent(inputs, self._device), self._dtype), self._shape)

    def _output(self, batch: Any) -> Any:
        """Returns the output of the module. A dict of inputs is passed as keyword arguments."""
        return self._net(**batch) if isinstance(batch, dict) else self._net(batch)

    @torch.no_grad()
    def loss(
        self, params: NDArray[Any], inputs: Any, targets: NDArray[Any]
    ) -> tuple[float, NDArray[Any]]:
        """Returns the sum of the losses, and the predictions."""
        self._load(params)
        self._net.eval()
        wanted = self._targets(targets)
        output = one_tensor(self._output(self._batch(inputs)))
        if self._is_default:
            # Double precision, so that equal losses compare as equal. At w = 0 all losses are equal.
            exact = wanted.double() if wanted.is_floating_point() else wanted
            total = float(self._loss(output.double(), exact)) * len(targets)
        else:
            total = float(_one_number(self._loss(output, wanted))) * len(targets)
        if self.task == "regression":
            return total, output.reshape(-1).float().cpu().numpy()
        if self.task == "binary":
            return total, (output.reshape(-1) > 0).long().cpu().numpy()
        return total, output.argmax(dim=-1).cpu().numpy()

    @torch.no_grad()
    def predict(self, params: NDArray[Any], inputs: Any) -> NDArray[Any]:
        """Returns a probability per class, or real numbers for a regression."""
        self._load(np.array(params, dtype=np.float32))
        self._net.eval()
        output = one_tensor(self._output(self._batch(inputs))).double()
        if self.task == "regression":
            return np.asarray(output.reshape(-1).cpu().numpy())
        if self.task == "binary":
            positive = torch.sigmoid(output.reshape(-1))
            return np.asarray(torch.stack([1 - positive, positive], dim=1).cpu().numpy())
        return np.asarray(torch.softmax(output, dim=-1).cpu().numpy())

    def _targets(self, targets: NDArray[Any]) -> Any:
        if self._is_default:
            check_targets(self.task, targets)
        wanted = typed(sent(targets, self._device), self._dtype)
        return wanted.to(self._dtype) if self.task == "binary" else wanted

    def update(
        self, params: NDArray[Any], inputs: Any, targets: NDArray[Any], local: Local
    ) -> NDArray[Any]:
        """Returns w_k after the steps of SGD or of the optimiser."""
        if self._draws is False:
            # Threads share the random number generator of torch. A module that draws no random
            # numbers runs concurrently with others. If it does draw some, the update is repeated
            # with exclusive access.
            with RNG_LOCK.shared():
                before = random_state()
                updated = self._updated(params, inputs, targets, local)
                self._draws = random_state() != before
            if not self._draws:
                return updated
        with RNG_LOCK.exclusive(), seeded(local.seed):
            before = random_state()
            updated = self._updated(params, inputs, targets, local)
            self._draws = bool(self._draws) or random_state() != before
        return updated

    def _updated(
        self, params: NDArray[Any], inputs: Any, targets: NDArray[Any], local: Local
    ) -> NDArray[Any]:
        self._load(params)
        self._net.train()
        all_inputs, all_targets = self._batch(inputs), self._targets(targets)
        weights = [self._tensors[name] for name in self._trained]
        centre = [weight.detach().clone() for weight in weights] if local.proximal else None
        drift = self._drift(weights, local)
        optimizer = None if self._optimizer is None else self._optimizer(weights, local)
        if isinstance(optimizer, torch.optim.LBFGS):
            raise InvalidInput("LBFGS evaluates the loss several times per step, which is not supported")
        for step, batch in enumerate(local.batches()):
            indices = sent(batch, self._device)
            part: Any = all_inputs[indices] if not is_mapping(all_inputs) else {
                name: value[indices] for name, value in all_inputs.items()
            }
            if self._transform is not None:
                part = self._transform(part, torch.Generator().manual_seed(local.seed + step))
            loss = _one_number(self._loss(self._output(part), all_targets[indices]))
            # Parameters that the step does not use have the gradient 0.
            found: Any = torch.autograd.grad(loss, weights, allow_unused=True)
            gradient = [torch.zeros_like(w) if slope is None else slope for w, slope in zip(weights, found)]
            self._step(weights, gradient, (centre, drift), local, optimizer)
        return self._store()

    def _drift(self, weights: list[Any], local: Local) -> list[Any] | None:
        """Returns the vector that every step adds to the gradient, as tensors."""
        if local.drift is None:
            return None
        sizes = [weight.numel() for weight in weights]
        # Averaged buffers, which have no gradient, follow the parameters.
        parts: Any = torch.split(sent(local.drift, self._device)[: sum(sizes)], sizes)
        return [part.view_as(weight) for part, weight in zip(parts, weights)]

    @torch.no_grad()
    def _step(
        self,
        weights: list[Any],
        gradient: list[Any],
        corrections: tuple[list[Any] | None, list[Any] | None],
        local: Local,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        each: Any = torch
        if local.l2:
            each._foreach_add_(gradient, weights, alpha=local.l2)
        centre, drift = corrections
        if drift is not None:
            each._foreach_add_(gradient, drift)
        if centre is not None:
            distance = each._foreach_sub(weights, centre)
            each._foreach_add_(gradient, distance, alpha=local.proximal)
        if optimizer is None:
            each._foreach_add_(weights, gradient, alpha=-local.learning_rate)
            return
        for weight, slope in zip(weights, gradient):
            weight.grad = slope
        optimizer.step()

    def arrays(self, params: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Returns the state dict of the module as numpy arrays."""
        self._load(np.array(params, dtype=np.float32))
        return {
            name: np.array(value.detach().cpu().numpy())
            for name, value in self._net.state_dict().items()
        }


def _check_module(net: Any, loss: Any, optimizer: Any) -> None:
    """Rejects modules, losses and optimisers that cannot be used."""
    if not isinstance(net, torch.nn.Module):
        kind = f"the class {net.__name__}: write {net.__name__}(…)" if isinstance(net, type) else type(net).__name__
        raise InvalidInput(f"expected a torch.nn.Module, got {kind}")
    if loss is not None and not callable(loss):
        raise InvalidInput(f"loss must be a function of the output and the targets, got {loss!r}")
    if isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer):
        call = f"torch.optim.{optimizer.__name__}(params, lr=local.learning_rate)"
        raise InvalidInput(f"optimizer must be a function, got a class: write lambda params, local: {call}")
    tensors: list[tuple[str, Any]] = [*net.named_parameters(), *net.named_buffers()]
    for name, value in tensors:
        if torch.nn.parameter.is_lazy(value):
            raise InvalidInput(f"{name!r} has no shape yet: call the module once with an example")
        if value.is_complex() and isinstance(value, torch.nn.Parameter):
            raise InvalidInput(f"parameter {name!r} is complex; store it as real numbers (torch.view_as_real)")


def _available(device: str | torch.device) -> torch.device:
    """Returns a torch device. Raises InvalidInput if this machine does not have it."""
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (AssertionError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidInput(f"the torch device {str(device)!r} is not available: {reason}") from error
    return found


def _one_number(loss: Any) -> Any:
    """Returns the loss of a batch. Raises InvalidInput if it is not one number."""
    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
        return loss
    shape = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
    raise InvalidInput(f'loss must return the mean loss of a batch as a tensor, got {shape} (reduction="mean")')


def _default_loss(task: str) -> Loss:
    if task == "regression":
        return lambda output, wanted: 0.5 * torch.mean((output.reshape(-1) - wanted) ** 2)
    if task == "binary":
        return lambda output, wanted: torch.nn.functional.binary_cross_entropy_with_logits(
            output.reshape(-1), wanted
        )
    return _cross_entropy


def _cross_entropy(output: Any, wanted: Any) -> Any:
    """Returns the mean cross-entropy over examples, or over the positions of their sequences."""
    if wanted.dim() == 1:
        return torch.nn.functional.cross_entropy(output, wanted)
    # The mean of the sequences' means, so that every example counts the same.
    flat = torch.nn.functional.cross_entropy(output.transpose(1, -1), wanted, reduction="none", ignore_index=IGNORED)
    counted = (wanted != IGNORED).sum(dim=1).clamp(min=1)
    return (flat.sum(dim=1) / counted).mean()


def _described(function: Callable[..., Any]) -> str:
    """Returns a function's name, and the names and constants that its code uses."""
    name = str(getattr(function, "__qualname__", type(function).__qualname__))
    code = getattr(function, "__code__", None)
    if code is None:
        return name
    constants = [value for value in code.co_consts if isinstance(value, (int, float, str)) and value != function.__doc__]
    return f"{name} {[*code.co_names, *constants]}"
