"""The progress of a run: a line in a terminal or a notebook, and records for ``logging``."""

from __future__ import annotations

import importlib
import logging
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from . import _deltafl

logger = logging.getLogger("deltafl")

_WIDTH = 30


class Progress:
    """The callbacks of the round loop.

    They write one line to standard error or to a notebook cell, and update it in place.
    """

    def __init__(self, shown: bool | None) -> None:
        self._cell = _notebook_cell() if shown is not False else None
        self._terminal = bool(shown) if shown is not None else sys.stderr.isatty()
        self._terminal = self._terminal and self._cell is None
        self._seed, self._rounds, self._headline = "", 1, ""
        self._began, self._first = time.monotonic(), 0

    def begin(self, seed: int, seeds: Sequence[int], done: int, rounds: int) -> None:
        """Shows that the training of a seed begins."""
        place = f" ({seeds.index(seed) + 1} of {len(seeds)})" if len(seeds) > 1 else ""
        self._seed, self._rounds, self._headline = f"seed {seed}{place}", rounds, ""
        self._began, self._first = time.monotonic(), done
        logger.info("seed %d: from round %d to %d", seed, done, rounds)
        self._draw(done)

    def round(self, done: int) -> None:
        """Shows that a round is finished."""
        self._draw(done)

    def evaluation(self, seed: int, done: int, headline: str) -> None:
        """Shows the result of an evaluation of all devices."""
        logger.info("seed %d, round %d: %s", seed, done, headline)
        self._headline = headline
        self._draw(done)

    def warn(self, text: str) -> None:
        """Logs a warning about the run."""
        self.clear()
        logger.warning("%s", text)

    def clear(self) -> None:
        """Removes the line."""
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
            # A line wider than the terminal would wrap, and the next update would not replace it.
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
    """A line of text in a notebook cell."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _notebook_cell() -> Any:
    """Returns a display handle that can be updated, or None outside a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    display: Any = importlib.import_module("IPython.display")
    return display.display(_Line(""), display_id=True)


_T = TypeVar("_T")


def call_in_background(call: Callable[[], _T], stop: _deltafl.Stop, *, in_python: bool) -> _T:
    """Runs a function on another thread, so that the main thread handles Ctrl-C immediately.

    A call from a thread other than the main thread runs the function directly.

    The second Ctrl-C abandons the call. If the function runs Python code (``in_python``), this
    function still waits until the devices in progress are finished, because a thread that runs
    Python code must not outlive the interpreter.
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
        # Wait with a timeout: a signal that arrives just before an unbounded wait is handled only
        # after the wait.
        while not done.wait(0.2):
            pass

    threading.Thread(target=answer, name="deltafl train", daemon=True).start()
    try:
        wait()
    except BaseException:
        stop.abandon()
        if in_python:
            logger.warning("stopping as soon as the devices in progress are finished")
            wait()
        raise
    if raised:
        raise raised[0]
    return answers[0]


@contextmanager
def interruptible(stop: _deltafl.Stop) -> Generator[None, None, None]:
    """Stops the run after the current round on Ctrl-C, and immediately on a second Ctrl-C.

    Python delivers signals only to the main thread. A run on another thread is not interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        logger.warning("finishing the current round; press Ctrl-C again to stop immediately")

    if not callable(before):
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
