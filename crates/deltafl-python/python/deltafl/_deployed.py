"""A deployed federation: devices with trainers of their own, and a server inside a program."""

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
from ._experiment import Brought, text
from ._federation import Federation
from ._progress import Progress, interruptible
from ._run import Run
from ._trainer import Bridge, Trainer
from .errors import Error, InvalidInput

__all__ = ["Device", "Server"]

_Self = TypeVar("_Self", bound="_Background")


class _Background:
    """Something that runs on a thread of its own until it is done or stopped."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._thread: threading.Thread | None = None
        self._stop = _deltafl.Stop()
        self._raised: BaseException | None = None
        #: Whether :meth:`stop` was called.
        self._stopped = False

    def _run(self) -> None:
        raise NotImplementedError

    def _begin(self, stop: _deltafl.Stop | None) -> None:
        if self.running:
            raise Error(f"{self._what} runs already")
        self._stop, self._raised, self._stopped = stop or _deltafl.Stop(), None, False
        self._thread = threading.Thread(target=self._guarded, name=self._what, daemon=True)
        _running.add(self)
        self._thread.start()

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as raised:
            self._raised = raised

    def _join(self) -> bool:
        """Waits for the thread, and raises what it raised. Returns whether Ctrl-C ended it."""
        if self._thread is None:
            raise Error(f"{self._what} was not started")
        with interruptible(self._stop):
            self._await()
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised
        return self._stop.is_set() and not self._stopped

    def _await(self) -> None:
        # A signal that comes just before a wait without an end would be heard after it only.
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(0.2)

    @property
    def running(self) -> bool:
        """Whether it runs now."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Ends it, and waits until it has ended. What it raised is raised by ``wait``."""
        self._stopped = True
        self._stop.set()
        self._await()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: object, raised: object, trace: object) -> None:
        self.stop()
        if kind is None and self._raised is not None:
            self._join()


#: Threads must not outlive the interpreter.
_running: weakref.WeakSet[_Background] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    for background in list(_running):
        background.stop()


class Device(_Background):
    """A device of a deployed federation: it keeps its data, connects out, and answers inside sums.

    ``server`` is ``"HOST:PORT"``, or a :class:`Server` of this process. ``identity`` is the folder with the device's
    certificate and keys, as ``deltafl enrol`` wrote it; without one the device talks to a server of its own machine that has no
    certificates either, for demonstrations. ``name`` is the device's name in the data, where it holds several.

    What the owner agrees to are the options of ``deltafl device``: ``min_cohort=30`` (3 without an identity), ``open=True``,
    ``max_passes=100``, ``work_per_day=60``, ``on_mains=True``, ``allow_experiment=["clinics"]``, ``state="folder"`` …; dashes are
    underscores. What the device is told and refuses goes to the logger ``deltafl``.
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
        """Takes part in rounds, through lost connections and restarts of the server, until it is stopped.

        ``trainer`` is a :class:`Trainer`, such as ``deltafl.torch.Module``, with as many params as the server's model has;
        None trains the model that the server names, as the command does. ``data`` is a federation that holds the device, or
        its inputs and targets (with the number of ``classes`` where it has not seen them all).

        Ctrl-C ends it with ``KeyboardInterrupt``, :meth:`stop` from another thread quietly. A trainer that raises ends it
        with :class:`TrainerError`; an offer of the server to which the owner did not agree with :class:`InvalidInput`.
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
        """The same on a thread of its own: ``with device.start(trainer, data): …``."""
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
        bridge = None if trainer is None else Bridge(trainer)
        self._work = (federation._inner, bridge, self._named(federation))
        self._begin(stop)

    def wait(self) -> None:
        """Waits until it has ended, and raises why."""
        if self._join():
            raise KeyboardInterrupt

    def _federation(self, data: Federation | tuple[Any, Any], classes: int | None) -> Federation:
        if isinstance(data, Federation):
            return data
        name = self._name or (None if self._identity is None else Path(self._identity).name)
        if name is None:
            raise InvalidInput("a device without an identity needs a name: Device(server, name=…)")
        return Federation({name: data}, name=name, classes=classes)

    def _named(self, federation: Federation) -> str:
        trains = federation.split("train")
        return self._name or (trains[0] if len(trains) == 1 else self._what)

    def _config(self) -> str:
        address = self._server.address if isinstance(self._server, Server) else self._server
        return _config({"server": address, "identity": self._identity, "name": self._name, **self._options})

    def _run(self) -> None:
        assert self._work is not None
        _deltafl.take_part(self._config(), *self._work, self._stop)


@dataclass(frozen=True)
class _Served:
    """What a server trains, beside its experiment."""

    config: str
    like: _deltafl.Federation | None
    trainer: Bridge | None
    devices: list[str] | None


class Server(_Background):
    """A server of a federation in this process, which learns sums.

    ``experiment`` is the path of a TOML file, or a dict of the same keys, as :func:`run` takes it. ``trainer`` is what the
    devices bring: the server asks it for w₀ alone. Without one the server trains the experiment's model, for data of the shape
    of ``like`` or of the experiment's data.

    Without ``certs`` it listens on this machine alone, for devices of the names ``devices`` (without them, those of the
    data that train): a demonstration. With the folder that ``deltafl certs`` filled it is a server like any other
    (``docs/deploy.md``), for models that the command does not know. Other keywords are the options of ``deltafl serve``:
    ``wait_for=12``, ``http="127.0.0.1:0"`` for the live page, ``open=True``, ``database="sqlite:…"``, ``answer_deadline=60``; dashes are underscores.

    ``with Server(…) as server:`` starts it; :meth:`wait` returns the run. Every finished round is kept: started again with
    the same arguments it goes on where it was.
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
        brought = Brought(like, trainer)
        if isinstance(experiment, Mapping):
            name, self._text = _deltafl.experiment_of_json(text(brought.filled(experiment)), [])
        else:
            name, self._text = _deltafl.experiment_of_file(Path(experiment), [])
        super().__init__(f"server {name}")
        #: The run folder.
        self.path = Path("runs") / name if out is None else Path(out)
        self._trainer, self._like = trainer, like
        self._served = _Served(
            _config({"listen": listen, "out": self.path, "certs": certs, **options}),
            brought.inner,
            brought.bridge(),
            None if devices is None else list(devices),
        )
        self._shown, self._heard = progress, cast("_Heard | None", None)
        self._address = self._page = ""
        self._listens = threading.Event()

    @property
    def address(self) -> str:
        """Where devices connect to: HOST:PORT, once it was started."""
        if not self._address:
            raise Error(f"{self._what} does not listen: start it first")
        return self._address

    @property
    def page(self) -> str:
        """The address of the live page; empty without ``http=``."""
        return self._page

    def start(self) -> Server:
        """Starts it on a thread of its own, and returns when devices can connect."""
        self._start(None)
        return self

    def _start(self, stop: _deltafl.Stop | None) -> None:
        self._listens.clear()
        self._address = ""
        # Made here, so that a notebook draws it below the cell that starts the server.
        self._heard = _Heard(self)
        self._begin(stop)
        while not self._listens.wait(0.05):
            if not self.running:
                self._join()
                break

    def wait(self) -> Run:
        """Waits until all rounds are done, and opens the run. Ctrl-C ends it after the round, with ``KeyboardInterrupt``."""
        if self._join():
            raise KeyboardInterrupt(f"stopped; every finished round is kept in {self.path}")
        return Run(self.path, federation=self._like, trainer=self._trainer)

    def serve(self) -> Run:
        """Starts it and waits."""
        stop = _deltafl.Stop()
        with interruptible(stop):
            self._start(stop)
            return self.wait()

    def __enter__(self) -> Server:
        return self if self.running else self.start()

    def _run(self) -> None:
        assert self._heard is not None
        try:
            _deltafl.serve(self._text, self._served, self._stop, self._heard)
        finally:
            self._heard.clear()


class _Heard(Progress):
    """Progress of a server, and where it listens."""

    def __init__(self, server: Server) -> None:
        super().__init__(server._shown)
        self._server = server

    def page(self, url: str) -> None:
        """The live page is here."""
        self._server._page = url

    def listening(self, address: str) -> None:
        """Devices can connect."""
        self._server._address = address
        self._server._listens.set()


#: Options that take a list, or one value of it.
_LISTS = ("allow_experiment", "allow_model", "between")


def _config(options: Mapping[str, Any]) -> str:
    """Options as JSON. Those that are None keep their default."""
    given = {key: value for key, value in options.items() if value is not None}
    for key in _LISTS:
        if isinstance(given.get(key), str):
            given[key] = [given[key]]
    return json.dumps(given, default=_plain)


def _plain(value: Any) -> Any:
    """A number of numpy as one of Python, anything else as text: a path, for example."""
    return value.item() if hasattr(value, "item") else str(value)
