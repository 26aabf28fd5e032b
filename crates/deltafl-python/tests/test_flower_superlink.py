"""Runs the apps of integrations/flower on a real SuperLink with two SuperNodes as processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")
FLOWER = Path(sys.executable).parent
if not (FLOWER / "flower-superlink").exists():
    pytest.skip("flower-superlink is not installed for this Python", allow_module_level=True)

#: The time limit of a test, in seconds. Every message starts a process, and a round has five
#: messages per node.
TIME_LIMIT = 900.0


def free_ports(count: int) -> list[int]:
    """Returns different unused ports. All are opened at the same time so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [open_.getsockname()[1] for open_ in sockets]
    for open_ in sockets:
        open_.close()
    return ports


class Programs:
    """Flower programs that write into one folder and are stopped at the end of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            # A SuperNode finds flwr-clientapp through PATH.
            "PATH": f"{FLOWER}{os.pathsep}{os.environ['PATH']}",
        }
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, log: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a program in the background."""
        with (self.folder / log).open("wb") as file:
            process = subprocess.Popen(
                [str(FLOWER / program), *arguments],
                env=self.environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )
        self._running.append(process)
        return process

    def logs(self) -> str:
        """Returns the end of the log of every program."""
        return "\n".join(f"== {file.name}\n{file.read_text()[-3000:]}" for file in sorted(self.folder.glob("*.log")))

    def stop(self) -> None:
        """Stops every program and its child processes."""
        for process in reversed(self._running):
            if process.poll() is None:
                process.terminate()
        for process in self._running:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                pass
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


@pytest.fixture
def superlink(tmp_path: Path) -> Iterator[Programs]:
    """A SuperLink with two SuperNodes, and a configuration that makes it the default."""
    programs = Programs(tmp_path)
    link, *nodes = free_ports(3)
    (tmp_path / "flwr").mkdir()
    config = f'[superlink]\ndefault = "mine"\n\n[superlink.mine]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    (tmp_path / "flwr" / "config.toml").write_text(config)
    try:
        server = programs.start(
            "superlink.log", "flower-superlink", "--insecure", "--disable-runtime-dependency-installation",
            "--port", str(link),
        )
        await_port(server, link, programs)
        for k, port in enumerate(nodes):
            programs.start(
                f"supernode-{k}.log", "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{link}",
                "--port", str(port), "--node-config", f"partition-id={k} num-partitions=2",
            )
        yield programs
    finally:
        programs.stop()


def await_port(server: subprocess.Popen[bytes], port: int, programs: Programs) -> None:
    """Waits until the SuperLink accepts connections."""
    deadline = time.monotonic() + TIME_LIMIT
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"the SuperLink does not accept connections\n{programs.logs()}")


@pytest.mark.parametrize(("name", "needs"), [("sklearn", "sklearn"), ("emnist", "torch")])
def test_an_app_trains_all_rounds_on_a_superlink_with_two_supernodes(
    root: Path, tmp_path: Path, superlink: Programs, name: str, needs: str
) -> None:
    pytest.importorskip(needs)
    out = tmp_path / "out"
    config = f'theta="1.0,0.5" num-server-rounds=2 fraction-train=1.0 out="{out}"'
    if name == "emnist":
        config += " writers=8"
    try:
        ran = subprocess.run(
            [FLOWER / "flwr", "run", root / "integrations" / "flower" / name, "--stream", "--run-config", config],
            env=superlink.environment, capture_output=True, text=True, timeout=TIME_LIMIT,
        )
        output = ran.stdout + ran.stderr
    except subprocess.TimeoutExpired as expired:
        output = f"flwr run did not end\n{expired.stdout!r}"
    assert (out / "evaluate.json").exists(), f"{output}\n{superlink.logs()}"
    figures = json.loads((out / "evaluate.json").read_text())
    assert set(figures) == {"1", "2"}
    assert {"theta=1/error", "theta=0.5/error-p90", "theta=0.5/superquantile"} <= set(figures["2"])
    assert figures["2"]["theta=1/loss"] < figures["1"]["theta=1/loss"]
