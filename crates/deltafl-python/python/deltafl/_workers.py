"""Worker processes for trainers that hold the interpreter lock."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._trainer import Local, Trainer
from .errors import Error, InvalidInput

__all__ = ["ProcessTrainer"]

Array = NDArray[Any]


class ProcessTrainer(Trainer):
    """A trainer whose losses and updates are computed by processes, one per thread of the run.

    The random numbers of a device depend on the seed, the round and the device only. The results
    therefore have the same bits as with threads.

    Args:
        trainer: The trainer, which must be picklable.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.num_params, self.task, self.l2 = trainer.num_params, trainer.task, trainer.l2
        self.corrects = trainer.corrects
        try:
            self._pickled = pickle.dumps(trainer)
        except Exception as error:
            raise InvalidInput(
                f"workers= sends the trainer to other processes, and it cannot be pickled: {error}; "
                "define its class and its functions in a module, without lambdas"
            ) from error
        self._lock = threading.Lock()
        self._started: list[_Worker] = []

    def __enter__(self) -> ProcessTrainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._started:
            worker.close()

    def worker(self) -> Trainer:
        """Starts a process, and returns a trainer that uses it."""
        worker = _Worker(self)
        with self._lock:
            self._started.append(worker)
        return worker

    def init(self, rng: np.random.Generator) -> Array:
        """Returns the initial parameters w₀."""
        return self._trainer.init(rng)

    def loss(self, params: Array, inputs: Any, targets: Array) -> tuple[float, Array]:
        """Computes in this process."""
        return self._trainer.loss(params, inputs, targets)

    def update(self, params: Array, inputs: Any, targets: Array, local: Local) -> Array:
        """Computes in this process."""
        return self._trainer.update(params, inputs, targets, local)

    def options(self) -> dict[str, Any]:
        """Returns the options of the trainer. The number of processes is not among them."""
        return self._trainer.options()


class _Worker(Trainer):
    """A trainer in another process."""

    def __init__(self, owner: ProcessTrainer) -> None:
        self.num_params, self.task, self.l2 = owner.num_params, owner.task, owner.l2
        self._owner = owner
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, owner._pickled), daemon=True)
        self._process.start()
        other.close()

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            self._connection.send((method, arguments))
            failed, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            self._process.join(1)
            raise Error(
                f"a worker process ended with the exit code {self._process.exitcode}; a script that trains with "
                'workers= needs the guard if __name__ == "__main__":'
            ) from error
        if failed:
            raise answer
        return answer

    def close(self) -> None:
        """Ends the process."""
        self._connection.close()
        self._process.join(1)
        if self._process.is_alive():
            self._process.terminate()

    def init(self, rng: np.random.Generator) -> Array:
        """Returns the initial parameters w₀, computed in the process of the run."""
        return self._owner.init(rng)

    def loss(self, params: Array, inputs: Any, targets: Array) -> tuple[float, Array]:
        """Returns the sum of the losses, and the predictions."""
        answer: tuple[float, Array] = self._call("loss", params, inputs, targets)
        return answer

    def update(self, params: Array, inputs: Any, targets: Array, local: Local) -> Array:
        """Returns w_k, and changes the state of the device in place."""
        updated, state = self._call("update", params, inputs, targets, local)
        local.state.clear()
        local.state.update(state)
        vector: Array = updated
        return vector


def _serve(connection: Connection, pickled: bytes) -> None:
    """Computes until the connection is closed."""
    trainer: Trainer | None = None
    while True:
        try:
            method, arguments = connection.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        try:
            trainer = trainer or pickle.loads(pickled).worker()
            answer = getattr(trainer, method)(*arguments)
            connection.send((False, (answer, arguments[3].state) if method == "update" else answer))
        except Exception as error:
            connection.send((True, _sendable(error)))


def _sendable(error: Exception) -> Exception:
    """Returns the exception, or its message if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return Error(f"{type(error).__name__}: {error}")
    return error
