"""Deployed federations: a device with a Python trainer, and a server inside a Python program."""

from __future__ import annotations

import atexit
import json
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, cast

from . import _deltafl
from ._algorithm import AlgorithmBridge
from ._experiment import CallerObjects, text, with_algorithms
from ._federation import Federation
from ._progress import Progress, interruptible
from ._run import Run
from ._trainer import Bridge, Trainer, check_task
from .errors import Error, InvalidInput

__all__ = ["Device", "Server"]

_Self = TypeVar("_Self", bound="_Background")


class _Background:
    """A task that runs on its own thread until it finishes or is stopped."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._thread: threading.Thread | None = None
        self._stop = _deltafl.Stop()
        self._raised: BaseException | None = None
        #: Whether :meth:`stop` was called.
        self._stopped = False

    def _run(self) -> None:
        raise NotImplementedError

    def _begin(self, stop: _deltafl.Stop | None) -> None:
        if self.running:
            raise Error(f"{self._label} is already running")
        self._stop, self._raised, self._stopped = stop or _deltafl.Stop(), None, False
        self._thread = threading.Thread(target=self._guarded, name=self._label, daemon=True)
        _running.add(self)
        self._thread.start()

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as raised:
            self._raised = raised

    def _join(self) -> bool:
        """Waits for the thread and raises its exception, if any.

        Returns:
            True if Ctrl-C stopped the thread.
        """
        if self._thread is None:
            raise Error(f"{self._label} was not started")
        with interruptible(self._stop):
            self._await()
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised
        return self._stop.is_set() and not self._stopped

    def _await(self) -> None:
        # Wait with a timeout: a signal that arrives just before an unbounded wait is handled only
        # after the wait.
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(0.2)

    @property
    def running(self) -> bool:
        """True while the thread is running."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Stops the thread and waits until it has ended.

        An exception of the thread is raised by ``wait``, not by this method.
        """
        self._stopped = True
        self._stop.set()
        self._await()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: object, raised: object, trace: object) -> None:
        self.stop()
        if kind is None and self._raised is not None:
            self._join()


#: The tasks to stop before the interpreter exits. Threads must not outlive it.
_running: weakref.WeakSet[_Background] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for background in list(_running):
        background.stop()


class Device(_Background):
    """A device of a deployed federation.

    The device opens the connection to the server, and its data never leaves it. The server learns
    updates and losses only as sums over cohorts. With ``open=True`` it also learns the loss of
    this device.

    The device writes refused requests and other events to the logger ``deltafl``.

    Args:
        server: The address ``"HOST:PORT"``, or a :class:`Server` of this process.
        identity: The folder with the certificate and the keys of the device, as written by
            ``deltafl enrol``. Without it the device connects only to a server on the same machine
            that also runs without certificates. Use this for demonstrations.
        name: The name of the device in the data. Required if the data contains several devices.
        **options: The conditions of the owner. They are the options of ``deltafl device``, with
            underscores for dashes: ``min_cohort=30`` (the default is 3 without an identity),
            ``open=True``, ``max_passes=100``, ``work_per_day=60``, ``answers_per_day=500``,
            ``min_examples=20``, ``bucketed=True``, ``on_mains=True``,
            ``allow_experiment=["clinics"]``, ``state="folder"`` and others.
    """

    def __init__(
        self,
        server: str | Server,
        identity: str | PathLike[str] | None = None,
        *,
        name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(f"device {name or identity or ''}".strip())
        self._server, self._identity, self._name = server, identity, name
        self._options = options
        self._work: tuple[_deltafl.Federation, Bridge | None, str] | None = None

    def serve(
        self,
        trainer: Trainer | None,
        data: Federation | tuple[Any, Any],
        *,
        classes: int | None = None,
    ) -> None:
        """Participates in rounds until the device is stopped.

        The device reconnects after lost connections and after restarts of the server. The method
        returns normally if another thread calls :meth:`stop`.

        Args:
            trainer: A :class:`Trainer`, such as ``deltafl.torch.Module``, with as many parameters
                as the server's model. None trains the built-in model that the server names.
            data: A federation that contains the device, or the pair of its inputs and targets.
            classes: The number of classes. Required if ``data`` is a pair that does not contain
                all classes.

        Raises:
            KeyboardInterrupt: The user pressed Ctrl-C.
            TrainerError: The trainer raised an exception.
            InvalidInput: The arguments are invalid, or the owner's conditions do not permit the
                experiment of the server.
        """
        stop = _deltafl.Stop()
        with interruptible(stop):
            self._start(trainer, data, classes, stop)
            self.wait()

    def start(
        self,
        trainer: Trainer | None,
        data: Federation | tuple[Any, Any],
        *,
        classes: int | None = None,
    ) -> Device:
        """Does the same as :meth:`serve` on a background thread, and returns the device.

        The device is a context manager that stops the thread on exit:
        ``with device.start(trainer, data): …``. The arguments are those of :meth:`serve`.
        """
        self._start(trainer, data, classes, None)
        return self

    def _start(
        self,
        trainer: Trainer | None,
        data: Federation | tuple[Any, Any],
        classes: int | None,
        stop: _deltafl.Stop | None,
    ) -> None:
        federation = self._federation(data, classes)
        if trainer is not None:
            check_task(federation, trainer)
        bridge = None if trainer is None else Bridge(trainer, (), federation._layout)
        self._work = (federation._inner, bridge, self._display_name(federation))
        self._begin(stop)

    def wait(self) -> None:
        """Waits until the device has stopped, and raises the exceptions of :meth:`serve`."""
        if self._join():
            raise KeyboardInterrupt

    def _federation(self, data: Federation | tuple[Any, Any], classes: int | None) -> Federation:
        if isinstance(data, Federation):
            return data
        name = self._name or (None if self._identity is None else Path(self._identity).name)
        if name is None:
            raise InvalidInput("a device without an identity requires a name: Device(server, name=…)")
        return Federation({name: data}, name=name, classes=classes)

    def _display_name(self, federation: Federation) -> str:
        training = federation.split("train")
        return self._name or (training[0] if len(training) == 1 else self._label)

    def _config(self) -> str:
        address = self._server.address if isinstance(self._server, Server) else self._server
        return _config({"server": address, "identity": self._identity, "name": self._name, **self._options})

    def _run(self) -> None:
        assert self._work is not None
        _deltafl.take_part(self._config(), *self._work, self._stop)


@dataclass(frozen=True)
class _ServerOptions:
    """The parameters of a server other than its experiment. The Rust code reads the attributes."""

    config: str
    like: _deltafl.Federation | None
    trainer: Bridge | None
    devices: list[str] | None
    algorithms: list[AlgorithmBridge | None]


class Server(_Background):
    """A server of a deployed federation that runs in this process.

    ``with Server(…) as server:`` starts the server, and :meth:`wait` returns the run. The server
    saves every finished round. A server that is started again with the same arguments resumes
    after the last saved round.

    Without ``certs`` the server listens only on this machine. Use this for demonstrations. With
    ``certs`` it is a complete server (``docs/src/how-to/deploy.md``) that also trains models unknown to the
    command ``deltafl serve``.

    Args:
        experiment: The path of a TOML file, or a dict with the same keys, as for :func:`run`. Its
            algorithms may be :class:`CustomAlgorithm` objects that define ``server_step``.
        trainer: The trainer of the devices. The server uses it only to compute w₀. Without it the
            server trains the model of the experiment.
        like: A federation with the same features and classes as the devices' data. It sets the
            size of the experiment's model. The default is the data of the experiment.
        devices: The names of the devices that may connect, for a server without ``certs``. The
            default is the training devices of the data.
        listen: The address for devices, ``"HOST:PORT"``. Port 0 selects a free port.
        certs: The folder that ``deltafl certs`` wrote.
        out: The run folder. The default is ``runs/NAME``.
        progress: Whether to show the progress. The default shows it in terminals and notebooks.
        **options: The options of ``deltafl serve``, with underscores for dashes: ``wait_for=12``,
            ``http="127.0.0.1:0"`` for the live page, ``open=True``, ``database="sqlite:…"``,
            ``answer_deadline=60`` and others.
    """

    def __init__(
        self,
        experiment: str | PathLike[str] | Mapping[str, Any],
        *,
        trainer: Trainer | None = None,
        like: Federation | None = None,
        devices: Sequence[str] | None = None,
        listen: str = "127.0.0.1:0",
        certs: str | PathLike[str] | None = None,
        out: str | PathLike[str] | None = None,
        progress: bool | None = None,
        **options: Any,
    ) -> None:
        if like is not None and trainer is not None:
            check_task(like, trainer)
        supplied = CallerObjects(like, trainer)
        if isinstance(experiment, Mapping):
            written, bridges = with_algorithms(experiment, has_trainer=trainer is not None)
            supplied = CallerObjects(like, trainer, bridges)
            name, self._text = _deltafl.experiment_of_json(text(supplied.filled(written)), [])
        else:
            name, self._text = _deltafl.experiment_of_file(Path(experiment), [])
        super().__init__(f"server {name}")
        #: The run folder.
        self.path = Path("runs") / name if out is None else Path(out)
        self._trainer, self._like = trainer, like
        self._options = _ServerOptions(
            _config({"listen": listen, "out": self.path, "certs": certs, **options}),
            supplied.inner,
            supplied.bridge(),
            None if devices is None else list(devices),
            list(supplied.algorithms),
        )
        self._show_progress = progress
        self._progress = cast("_ServerProgress | None", None)
        self._address = self._page = ""
        self._listening = threading.Event()

    @property
    def address(self) -> str:
        """The address ``HOST:PORT`` to which devices connect.

        Raises:
            Error: The server is not started.
        """
        if not self._address:
            raise Error(f"{self._label} is not listening: start it first")
        return self._address

    @property
    def page(self) -> str:
        """The URL of the live page. Empty without the option ``http``."""
        return self._page

    def start(self) -> Server:
        """Starts the server on a background thread and returns when devices can connect."""
        self._start(None)
        return self

    def _start(self, stop: _deltafl.Stop | None) -> None:
        self._listening.clear()
        self._address = ""
        # Created here, so that a notebook shows the progress below the cell that starts the server.
        self._progress = _ServerProgress(self)
        self._begin(stop)
        while not self._listening.wait(0.05):
            if not self.running:
                self._join()
                break

    def wait(self) -> Run:
        """Waits until all rounds are finished, and opens the run.

        Raises:
            KeyboardInterrupt: The user pressed Ctrl-C. The server stops after the current round.
        """
        if self._join():
            raise KeyboardInterrupt(f"stopped; all finished rounds are saved in {self.path}")
        return Run(self.path, federation=self._like, trainer=self._trainer)

    def serve(self) -> Run:
        """Starts the server, waits until all rounds are finished, and opens the run."""
        stop = _deltafl.Stop()
        with interruptible(stop):
            self._start(stop)
            return self.wait()

    def __enter__(self) -> Server:
        return self if self.running else self.start()

    def _run(self) -> None:
        assert self._progress is not None
        try:
            _deltafl.serve(self._text, self._options, self._stop, self._progress)
        finally:
            self._progress.clear()


class _ServerProgress(Progress):
    """The callbacks of a server: its progress and its addresses."""

    def __init__(self, server: Server) -> None:
        super().__init__(server._show_progress)
        self._server = server

    def page(self, url: str) -> None:
        """Stores the URL of the live page."""
        self._server._page = url

    def listening(self, address: str) -> None:
        """Stores the address of the server when devices can connect."""
        self._server._address = address
        self._server._listening.set()


#: The options that take a list. A single value is also accepted.
_LISTS = ("allow_experiment", "allow_model", "between")


def _config(options: Mapping[str, Any]) -> str:
    """Converts options to JSON. An option that is None keeps its default."""
    given = {key: value for key, value in options.items() if value is not None}
    for key in _LISTS:
        if isinstance(given.get(key), str):
            given[key] = [given[key]]
    return json.dumps(given, default=_plain)


def _plain(value: Any) -> Any:
    """Converts a numpy number to a Python number, and other values, such as paths, to text."""
    return value.item() if hasattr(value, "item") else str(value)
