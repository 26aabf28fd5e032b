"""PyTorch: modules as trainers of the round loop, and the superquantile with a gradient."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from . import _deltafl
from ._trainer import Local, Trainer
from .errors import InvalidInput

__all__ = ["Module", "superquantile"]

#: From the output of the module and the targets of a batch to the mean loss.
Loss = Callable[[Any, Any], Any]
#: From the parameters and the local update to an optimiser.
Optimizer = Callable[[list[Any], Local], torch.optim.Optimizer]


class Module(Trainer):
    """Trains any ``torch.nn.Module`` as the local update of a device.

    ``loss(output, target)`` is the mean loss of a batch, by default the cross-entropy. ``shape`` is the shape of one input
    (``(1, 28, 28)``); without it a batch is a matrix. A step is plain SGD with the learning rate of the run, its l2 and the
    proximal term of the algorithm; ``optimizer=lambda params, local: torch.optim.Adam(params, lr=local.learning_rate)``
    makes another one for every device and round, and then l2 and the proximal term are added to the gradient.

    **w** is the parameters in the order of ``named_parameters``, and behind them the buffers: with ``buffers="average"``
    floating-point buffers (the running mean and variance of a batch norm) travel and are averaged as parameters are, without
    l2 and proximal term; with ``"fixed"`` they stay what the module was given with. Buffers of whole numbers (batches
    counted) always stay. Parameters that require no gradient are buffers.

    **Start.** ``init="keep"`` starts every seed at the parameters that the module has now; ``"reset"`` calls
    ``reset_parameters`` of every layer, with torch seeded from the seed of the run.

    **Random numbers** of a dropout come from a seed of device, round and run: two runs on one machine agree to the bit,
    given deterministic kernels. ``device`` is the CPU or a GPU: a GPU where there is one, unless it is named.
    """

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
    ) -> None:
        if buffers not in ("average", "fixed") or init not in ("keep", "reset"):
            raise InvalidInput('buffers is "average" or "fixed", init is "keep" or "reset"')
        self.task, self.l2 = task, l2
        self._loss, self._is_default = loss or _default_loss(task), loss is None
        self._shape, self._optimizer, self._init = shape, optimizer, init
        self._average = buffers == "average"
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._net = copy.deepcopy(net).to(self._device)
        named = dict(self._net.named_parameters())
        self._trained = [name for name, value in named.items() if value.requires_grad]
        if not self._trained:
            raise InvalidInput("the module has no parameter that requires a gradient")
        others = {name: value for name, value in named.items() if not value.requires_grad}
        others.update(self._net.named_buffers())
        floating = [name for name, value in others.items() if value.is_floating_point()]
        self._carried = floating if self._average else []
        self._fixed = {
            name: value.detach().clone() for name, value in others.items() if name not in self._carried
        }
        self._tensors = {name: self._find(name) for name in [*self._trained, *self._carried]}
        self._num_params = sum(value.numel() for value in self._tensors.values())
        #: Whether an update draws random numbers; None before the first.
        self._draws: bool | None = None

    def _find(self, name: str) -> Any:
        owner, _, last = name.rpartition(".")
        return getattr(self._net.get_submodule(owner), last)

    @property
    def num_params(self) -> int:
        """Length of w."""
        return self._num_params

    def init(self, rng: np.random.Generator) -> NDArray[Any]:
        """w₀."""
        if self._init == "reset":
            with _TURNS.alone(), _seeded(int(rng.integers(2**63))):
                for layer in self._net.modules():
                    reset = getattr(layer, "reset_parameters", None)
                    if callable(reset):
                        reset()
        return self._store()

    def worker(self) -> Module:
        """A copy of the module, for one thread."""
        return Module._copied(self)

    @classmethod
    def _copied(cls, other: Module) -> Module:
        worker = copy.copy(other)
        worker._net = copy.deepcopy(other._net)
        worker._tensors = {name: worker._find(name) for name in other._tensors}
        return worker

    @torch.no_grad()
    def _load(self, params: NDArray[Any]) -> None:
        flat, start = torch.from_numpy(params).to(self._device), 0
        for value in self._tensors.values():
            end = start + value.numel()
            value.copy_(flat[start:end].view_as(value))
            start = end
        for name, value in self._fixed.items():
            self._find(name).copy_(value)

    @torch.no_grad()
    def _store(self) -> NDArray[Any]:
        flat = torch.cat([value.detach().reshape(-1).float() for value in self._tensors.values()])
        return np.array(flat.cpu().numpy())

    def _batch(self, inputs: NDArray[Any]) -> Any:
        batch = torch.from_numpy(inputs).to(self._device)
        return batch if self._shape is None else batch.view(len(inputs), *self._shape)

    @torch.no_grad()
    def loss(
        self, params: NDArray[Any], inputs: NDArray[Any], targets: NDArray[Any]
    ) -> tuple[float, NDArray[Any]]:
        """The sum of the losses, and the predictions."""
        self._load(params)
        self._net.eval()
        wanted = self._targets(targets)
        output = self._net(self._batch(inputs))
        if self._is_default:
            # In double precision, so that devices whose losses are equal (all of them, at w = 0) are told to be.
            exact = wanted.double() if wanted.is_floating_point() else wanted
            total = float(self._loss(output.double(), exact)) * len(targets)
        else:
            total = float(self._loss(output, wanted)) * len(targets)
        if self.task == "regression":
            return total, output.reshape(-1).float().cpu().numpy()
        if self.task == "binary":
            return total, (output.reshape(-1) > 0).long().cpu().numpy()
        return total, output.argmax(dim=1).cpu().numpy()

    def _targets(self, targets: NDArray[Any]) -> Any:
        wanted = torch.from_numpy(targets).to(self._device)
        return wanted.float() if self.task == "binary" else wanted

    def update(
        self, params: NDArray[Any], inputs: NDArray[Any], targets: NDArray[Any], local: Local
    ) -> NDArray[Any]:
        """Epochs or steps of SGD."""
        if self._draws is False:
            # Threads share torch's random numbers. A module that draws none runs beside others; should it draw after all, the
            # update is made again where nobody else draws.
            with _TURNS.beside_others():
                before = _random_state()
                updated = self._updated(params, inputs, targets, local)
                self._draws = _random_state() != before
            if not self._draws:
                return updated
        with _TURNS.alone(), _seeded(local.seed):
            before = _random_state()
            updated = self._updated(params, inputs, targets, local)
            self._draws = bool(self._draws) or _random_state() != before
        return updated

    def _updated(
        self, params: NDArray[Any], inputs: NDArray[Any], targets: NDArray[Any], local: Local
    ) -> NDArray[Any]:
        self._load(params)
        self._net.train()
        all_inputs, all_targets = self._batch(inputs), self._targets(targets)
        weights = [self._tensors[name] for name in self._trained]
        centre = [weight.detach().clone() for weight in weights] if local.proximal else None
        optimizer = None if self._optimizer is None else self._optimizer(weights, local)
        for batch in local.batches():
            indices = torch.from_numpy(batch).to(self._device)
            output = self._net(all_inputs[indices])
            loss = self._loss(output, all_targets[indices])
            gradient = list(torch.autograd.grad(loss, weights))
            self._step(weights, gradient, centre, local, optimizer)
        return self._store()

    @torch.no_grad()
    def _step(
        self,
        weights: list[Any],
        gradient: list[Any],
        centre: list[Any] | None,
        local: Local,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        if local.l2:
            torch._foreach_add_(gradient, weights, alpha=local.l2)
        if centre is not None:
            away = torch._foreach_sub(weights, centre)
            torch._foreach_add_(gradient, away, alpha=local.proximal)
        if optimizer is None:
            torch._foreach_add_(weights, gradient, alpha=-local.learning_rate)
            return
        for weight, slope in zip(weights, gradient):
            weight.grad = slope
        optimizer.step()

    def arrays(self, params: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """The state of the module, by name."""
        self._load(np.array(params, dtype=np.float32))
        return {
            name: np.array(value.detach().cpu().numpy())
            for name, value in self._net.state_dict().items()
        }


def _default_loss(task: str) -> Loss:
    if task == "regression":
        return lambda output, wanted: 0.5 * torch.mean((output.reshape(-1) - wanted) ** 2)
    if task == "binary":
        return lambda output, wanted: torch.nn.functional.binary_cross_entropy_with_logits(
            output.reshape(-1), wanted
        )
    return torch.nn.functional.cross_entropy


class _Turns:
    """Who may use the random numbers of the process: one that draws them alone, or any number that draw none."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._beside, self._waiting, self._alone = 0, 0, False

    @contextmanager
    def beside_others(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._alone and not self._waiting)
            self._beside += 1
        try:
            yield
        finally:
            with self._changed:
                self._beside -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._alone and not self._beside)
            finally:
                self._waiting -= 1
            self._alone = True
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()


_TURNS = _Turns()


def _random_state() -> tuple[object, ...]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return (torch.get_rng_state().numpy().tobytes(), random.getstate(), *(state.numpy().tobytes() for state in cuda))


class _seeded:
    """Torch's and Python's global random numbers seeded inside, and as they were outside."""

    def __init__(self, seed: int) -> None:
        self._seed = seed % 2**63

    def __enter__(self) -> None:
        self._python = random.getstate()
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
        torch.manual_seed(self._seed)
        random.seed(self._seed)

    def __exit__(self, *ended: object) -> None:
        torch.set_rng_state(self._cpu)
        random.setstate(self._python)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)


class _Superquantile(torch.autograd.Function):
    """S(θ) or its smoothing: its gradient by the losses is a mixture of the devices."""

    @staticmethod
    def forward(ctx: Any, losses: Any, theta: float, nu: float, weights: Any) -> Any:
        values = np.ascontiguousarray(losses.detach().cpu().double().numpy().ravel())
        given = None if weights is None else np.ascontiguousarray(weights, dtype=np.float64).ravel()
        if nu > 0:
            value = _deltafl.smoothed(values, theta, nu, given)
            mixture = _deltafl.smoothed_mixture(values, theta, nu, given)
        else:
            value = _deltafl.superquantile(values, theta, given)
            mixture = _deltafl.worst_case(values, theta, given)
        ctx.save_for_backward(torch.from_numpy(mixture).to(losses).view_as(losses))
        return losses.new_tensor(value)

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        (mixture,) = ctx.saved_tensors
        return slopes[0] * mixture, None, None, None


def superquantile(losses: Any, theta: float, nu: float = 0.0, weights: Any | None = None) -> Any:
    """The superquantile of a tensor of losses, to be minimised: ``superquantile(losses, 0.1).backward()``.

    With ν = 0 its gradient is the worst-case mixture, a subgradient where losses tie; with ν > 0 it is smoothed and
    differentiable everywhere. θ = 1 is the mean.
    """
    return _Superquantile.apply(losses, theta, nu, weights)  # type: ignore[no-untyped-call]
