"""Fixtures and helpers shared by the tests."""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deltafl as dfl

if not Path("/dev/nvidiactl").exists():
    # Without a GPU, the interpreter of Triton runs the kernels. It reads the variable when it is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def root() -> Path:
    """The root folder of the repository."""
    return ROOT


#: Seconds after which a test ends the process with the stacks of all threads. Generous, because the machine may be loaded.
LIMIT = 600
_stderr = 2


def pytest_configure() -> None:
    """Keeps standard error as it is now: during a test pytest captures it."""
    global _stderr
    _stderr = os.dup(2)


@pytest.fixture(autouse=True)
def _time_limit() -> Iterator[None]:
    """No test waits without an end. An exception would not end one that waits for a thread or in the extension module."""
    faulthandler.dump_traceback_later(LIMIT, exit=True, file=_stderr)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes the working directory to a temporary folder of the test."""
    monkeypatch.chdir(tmp_path)


def blobs(devices: int = 12, examples: int = 30, features: int = 5) -> dfl.Federation:
    """Returns devices with two classes each and a different class boundary."""
    rng = np.random.default_rng(7)
    inputs = rng.normal(size=(devices * examples, features)).astype(np.float32)
    border = rng.normal(size=(devices, features))
    index = np.repeat(np.arange(devices), examples)
    targets = ((inputs * (border[index] + 2.0)).sum(axis=1) > 0).astype(np.int64)
    names = np.array([f"ward-{k}" for k in range(devices)])[index]
    split = {f"ward-{k}": "test" for k in range(0, devices, 3)}
    return dfl.Federation.from_arrays(inputs, targets, names, split=split)


def program(path: Path, text: str) -> subprocess.Popen[str]:
    """Starts a program that can import the test modules and handles Ctrl-C.

    After 40 s the program prints the tracebacks of its threads and fails.
    """
    # A shell without job control makes background processes and their children ignore SIGINT. CI
    # may run in such a shell.
    header = "import faulthandler, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    path.write_text(f"{header}faulthandler.dump_traceback_later(40, exit=True)\n{text}")
    python_path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    return subprocess.Popen(
        [sys.executable, str(path)], cwd=path.parent, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": python_path},
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Waits for a program. Returns its exit status and the output that was not read yet."""
    # `communicate` would skip output that an earlier `readline` has buffered.
    assert process.stdout is not None and process.stderr is not None
    out, err = process.stdout.read(), process.stderr.read()
    return process.wait(), out, err


@pytest.fixture
def federation() -> dfl.Federation:
    """Twelve small devices. Four of them are test devices."""
    return blobs()


#: The default keywords of the tests for `train`.
SHORT: dict[str, Any] = {
    "rounds": 3,
    "cohort": 4,
    "local": dfl.SGD(lr=0.1, batch=8),
    "evaluate_every": 1,
    "progress": False,
}
