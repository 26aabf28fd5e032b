"""Progress of a run: a line that redraws itself in a terminal or a notebook, and records for ``logging``."""

from __future__ import annotations

import logging
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from . import _deltafl

logger = logging.getLogger("deltafl")

_WIDTH = 30


class Progress:
    """What the round loop tells; it writes to standard error, or to the cell of a notebook."""

    def __init__(self, shown: bool | None) -> None:
        self._cell = _notebook_cell() if shown is not False else None
        self._terminal = bool(shown) if shown is not None else sys.stderr.isatty()
        self._terminal = self._terminal and self._cell is None
        self._seed, self._rounds, self._headline = "", 1, ""
        self._began, self._first = time.monotonic(), 0

    def begin(self, seed: int, seeds: Sequence[int], done: int, rounds: int) -> None:
        """A seed begins."""
        place = f" ({seeds.index(seed) + 1} of {len(seeds)})" if len(seeds) > 1 else ""
        self._seed, self._rounds, self._headline = f"seed {seed}{place}", rounds, ""
        self._began, self._first = time.monotonic(), done
        logger.info("seed %d: from round %d to %d", seed, done, rounds)
        self._draw(done)

    def round(self, done: int) -> None:
        """A round is done."""
        self._draw(done)

    def evaluation(self, seed: int, done: int, headline: str) -> None:
        """Every device has been evaluated."""
        logger.info("seed %d, round %d: %s", seed, done, headline)
        self._headline = headline
        self._draw(done)

    def warn(self, text: str) -> None:
        """Something to know of the run."""
        self.clear()
        logger.warning("%s", text)

    def clear(self) -> None:
        """Takes the line away."""
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        elif self._cell is not None:
            self._cell.update(_Line(""))

    def _draw(self, done: int) -> None:
        if not self._terminal and self._cell is None:
            return
        filled = _WIDTH * done // max(self._rounds, 1)
        bar = "━" * filled + "─" * (_WIDTH - filled)
        line = f"{self._seed} {bar} round {done}/{self._rounds}{self._left(done)}  {self._headline}"
        if self._cell is not None:
            self._cell.update(_Line(line))
        else:
            # A line that is longer than the terminal is wide would be drawn below itself.
            width = shutil.get_terminal_size((160, 24)).columns - 1
            sys.stderr.write(f"\r\x1b[K{line if len(line) <= width else line[: width - 1] + '…'}")
            sys.stderr.flush()

    def _left(self, done: int) -> str:
        trained = done - self._first
        if trained <= 0:
            return ""
        left = (time.monotonic() - self._began) / trained * (self._rounds - done)
        return f" · {left:.0f} s left" if left < 120 else f" · {left / 60:.0f} min left"


class _Line:
    """A line of text in a cell."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _notebook_cell() -> Any:
    """A cell that can be written again; None outside of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

    show: Any = display
    return show(_Line(""), display_id=True)


_T = TypeVar("_T")


def awaited(call: Callable[[], _T], stop: _deltafl.Stop, *, in_python: bool) -> _T:
    """Calls on another thread where this is the main one, which then hears Ctrl-C at once, however long a round takes.

    The second Ctrl-C abandons the call. One that computes ``in_python`` is still waited for until the devices at work are done:
    a thread inside Python must not outlive the interpreter.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    done = threading.Event()
    answers: list[_T] = []
    raised: list[BaseException] = []

    def answer() -> None:
        try:
            answers.append(call())
        except BaseException as error:
            raised.append(error)
        finally:
            done.set()

    def wait() -> None:
        # A signal that comes just before a wait without an end would be heard after it only.
        while not done.wait(0.2):
            pass

    threading.Thread(target=answer, name="deltafl train", daemon=True).start()
    try:
        wait()
    except BaseException:
        stop.abandon()
        if in_python:
            logger.warning("ending with the devices at work")
            wait()
        raise
    if raised:
        raise raised[0]
    return answers[0]


@contextmanager
def interruptible(stop: _deltafl.Stop) -> Iterator[None]:
    """Ctrl-C ends the run after its round; pressed again, at once.

    Only the main thread hears of signals; a run in another one goes on until it is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        logger.warning("finishing the round; press Ctrl-C again to quit at once")

    if not callable(before):
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
