"""Deployed federations: Python devices, and a server in this process."""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ended, program
from numpy.typing import NDArray

import deltafl as dfl

Array = NDArray[Any]

LOCAL = dfl.SGD(lr=0.05, batch=1)
ALGORITHMS = [dfl.FedAvg(), dfl.DeltaFL(theta=0.5, quantile="histogram")]
LINES: dict[str, Any] = {
    "name": "lines",
    "rounds": 3,
    "cohort": 6,
    "local": LOCAL,
    "algorithm": ALGORITHMS,
}


class Line(dfl.Trainer):
    """The model y = a·x in numpy.

    It performs the same operations as ``models.Linear`` with one feature and batches of one.
    """

    task = "regression"
    num_params = 1  # type: ignore[assignment]

    def init(self, rng: np.random.Generator) -> Array:
        return np.zeros(1)

    def loss(self, params: Array, inputs: Array, targets: Array) -> tuple[float, Array]:
        predicted = inputs[:, 0] * params[0]
        total = 0.0
        for residual in (predicted.astype(np.float64) - targets.astype(np.float64)).tolist():
            total += 0.5 * residual * residual
        return total, predicted

    def update(self, params: Array, inputs: Array, targets: Array, local: dfl.Local) -> Array:
        slope, rate = params[0], np.float32(-local.learning_rate)
        for (index,) in local.batches():
            x, y = inputs[index, 0], targets[index]
            slope = slope + rate * (x * slope - y) * x
        return np.array([slope], dtype=np.float32)


def points() -> dfl.Federation:
    """Returns eight devices with points near lines of different slopes."""
    rng = np.random.default_rng(3)
    devices = {}
    for k in range(8):
        x = rng.normal(size=(9 + k, 1)).astype(np.float32)
        devices[f"sensor-{k}"] = (x, (x[:, 0] * (1 + 0.3 * k) + rng.normal(scale=0.1, size=9 + k)).astype(np.float32))
    return dfl.Federation(devices)


@contextlib.contextmanager
def devices(server: dfl.Server, data: dfl.Federation, python: Any = lambda k: True) -> Iterator[None]:
    """Starts all devices of the data.

    The devices that ``python`` selects use a Python trainer. The others train the built-in model.
    """
    with contextlib.ExitStack() as stack:
        for k, name in enumerate(data.split("train")):
            device = dfl.Device(server, name=name, kernel="reference", reproducible=True)
            stack.enter_context(device.start(Line() if python(k) else None, data))
        yield


def test_python_devices_rust_devices_and_the_simulation_compute_equal_params() -> None:
    data = points()
    found: dict[str, list[Array]] = {}
    for kind, python in {"rust": lambda k: False, "python": lambda k: True, "mixed": lambda k: k % 2}.items():
        experiment = {**LINES, "model": dfl.models.Linear(intercept=False)}
        with dfl.Server(experiment, like=data, out=kind, wait_for=8, progress=False) as server, devices(server, data, python):
            found[kind] = [track.params() for track in server.wait()]
    with dfl.Server(LINES, trainer=Line(), devices=data.ids, out="external", wait_for=8, progress=False) as server:
        with devices(server, data):
            found["external"] = [track.params() for track in server.wait()]
    keywords: dict[str, Any] = {"rounds": 3, "cohort": 6, "local": LOCAL, "progress": False, "kernel": "reference"}
    for kind, model in {"kernels": dfl.models.Linear(intercept=False), "trainer": Line()}.items():
        run = dfl.train(data, model, ALGORITHMS, out=f"simulated-{kind}", **keywords)
        found[kind] = [track.params() for track in run]
    assert all(params.any() for params in found["rust"]), "the models have changed"
    for kind, models in found.items():
        for got, wanted in zip(models, found["rust"]):
            assert np.array_equal(got, wanted), (kind, got, wanted)


def test_a_federation_with_certificates_trains_a_model_implemented_in_python(tmp_path: Path) -> None:
    data = points()
    command("certs", "init", "--federation", "lines")
    command("certs", "server", "--host", "localhost", "--host", "127.0.0.1")
    database = "sqlite:state/deltafl.sqlite"
    for name in data.ids:
        command("certs", "device", name, "--out", f"identities/{name}", "--database", database)
    server = dfl.Server(
        LINES, trainer=Line(), certs="certs", authority_here=True, database=database, allow_close_levels=True, wait_for=8, progress=False
    )
    with server, contextlib.ExitStack() as stack:
        address = f"localhost:{server.address.rpartition(':')[2]}"
        for name in data.ids:
            device = dfl.Device(address, f"identities/{name}", name=name, min_cohort=3, reproducible=True)
            stack.enter_context(device.start(Line(), data))
        deployed = server.wait()
    simulated = dfl.train(
        data, Line(), ALGORITHMS, rounds=3, cohort=6, local=LOCAL, out="simulated", progress=False
    )
    for got, wanted in zip(deployed, simulated):
        assert np.array_equal(got.params(), wanted.params())
    assert deployed.tracks[1].arrays().keys() == {"params"}
    assert (tmp_path / "identities/sensor-0/state").is_dir(), "a device with an identity has state"


def command(*words: str) -> None:
    script = Path(sys.executable).with_name("deltafl")
    subprocess.run([str(script), *words], check=True, capture_output=True)


def test_an_exception_of_the_trainer_stops_the_device_and_names_it() -> None:
    class Broken(Line):
        def update(self, params: Array, inputs: Array, targets: Array, local: dfl.Local) -> Array:
            raise RuntimeError("the sensor is wet")

    data = points()
    with dfl.Server({**LINES, "cohort": 8}, trainer=Line(), devices=data.ids, progress=False) as server:
        # The other devices continue without it.
        with contextlib.ExitStack() as stack:
            for name in data.ids[1:]:
                stack.enter_context(dfl.Device(server, name=name).start(Line(), data))
            with pytest.raises(dfl.TrainerError, match=r"device sensor-0: RuntimeError: the sensor is wet") as raised:
                dfl.Device(server, name="sensor-0").serve(Broken(), data)
            assert isinstance(raised.value.__cause__, RuntimeError)


def test_a_device_rejects_experiments_that_its_owner_does_not_permit() -> None:
    data = points()
    opened = {**LINES, "algorithm": [dfl.DeltaFL(theta=0.5, quantile="open")]}
    with pytest.raises(dfl.InvalidInput, match="open mode"):
        dfl.Server(opened, trainer=Line(), devices=data.ids, progress=False).start()
    with dfl.Server(opened, trainer=Line(), devices=data.ids, open=True, progress=False) as server:
        with pytest.raises(dfl.InvalidInput, match="(?s)does not take part.*open mode"):
            dfl.Device(server, name="sensor-0").serve(Line(), data)
        with pytest.raises(dfl.InvalidInput, match="(?s)does not take part.*experiment lines is not on"):
            dfl.Device(server, name="sensor-0", open=True, allow_experiment=["other"]).serve(Line(), data)

        class Larger(Line):
            num_params = 2  # type: ignore[assignment]

        with pytest.raises(dfl.InvalidInput, match="trains 1 parameters, this device's model has 2"):
            dfl.Device(server, name="sensor-0", open=True).serve(Larger(), data)


def test_a_device_that_skips_a_round_logs_it() -> None:
    seen = threading.Event()

    class Waiting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "stays out of a round" in record.getMessage():
                seen.set()

    data, handler = points(), Waiting()
    logging.getLogger("deltafl").addHandler(handler)
    try:
        server = dfl.Server(LINES, trainer=Line(), devices=data.ids, progress=False)
        with server, contextlib.ExitStack() as stack:
            for name in data.ids:
                stack.enter_context(dfl.Device(server, name=name, min_cohort=50).start(Line(), data))
            assert seen.wait(60)
    finally:
        logging.getLogger("deltafl").removeHandler(handler)


def test_invalid_options_data_and_names_are_rejected() -> None:
    data = points()
    with pytest.raises(dfl.InvalidInput, match="unknown field `min_cohorts`"):
        dfl.Device("127.0.0.1:1", name="sensor-0", min_cohorts=3).serve(Line(), data)
    with pytest.raises(dfl.InvalidInput, match="has no device sensor-9"):
        dfl.Device("127.0.0.1:1", name="sensor-9").serve(Line(), data)
    with pytest.raises(dfl.InvalidInput, match="does not have one device that trains"):
        dfl.Device("127.0.0.1:1").serve(Line(), data)
    with pytest.raises(dfl.InvalidInput, match="requires a name"):
        dfl.Device("127.0.0.1:1").serve(Line(), (np.ones((2, 1)), np.ones(2)))
    with pytest.raises(dfl.InvalidInput, match="needs the names of its devices"):
        dfl.Server(LINES, trainer=Line(), progress=False).start()
    with pytest.raises(dfl.Error, match="start it first"):
        dfl.Device(dfl.Server(LINES, trainer=Line(), devices=data.ids), name="sensor-0").serve(Line(), data)
    narrow = dfl.Federation({"sensor-0": (np.ones((2, 3), dtype=np.float32), np.ones(2))})
    with dfl.Server({**LINES, "model": dfl.models.Linear(intercept=False)}, like=data, progress=False) as server:
        with pytest.raises(dfl.InvalidInput, match="(?s)does not fit the federation.*dim: 3"):
            dfl.Device(server, name="sensor-0").serve(None, narrow)


def test_an_exception_in_init_stops_the_server() -> None:
    class Nowhere(Line):
        def init(self, rng: np.random.Generator) -> Array:
            raise RuntimeError("no start")

    server = dfl.Server(LINES, trainer=Nowhere(), devices=points().ids, progress=False)
    with pytest.raises(dfl.TrainerError, match="no start"):
        server.serve()


def test_a_restarted_server_resumes_after_the_last_round() -> None:
    data = points()
    longer = {**LINES, "rounds": 40}
    keywords: dict[str, Any] = {"devices": data.ids, "out": "parts", "wait_for": 8, "progress": False}
    server = dfl.Server(longer, trainer=Line(), **keywords)
    with server, devices(server, data):
        rounds = server.path / "rounds.jsonl"
        while not (rounds.exists() and rounds.stat().st_size):
            threading.Event().wait(0.02)
        server.stop()
    # The tracks take turns: a line per round.
    done = len(rounds.read_text().splitlines())
    assert 0 < done < 40, "stopped before the last round"
    with server, devices(server, data):
        parts = server.wait()
    whole = dfl.train(data, Line(), ALGORITHMS, rounds=40, cohort=6, local=LOCAL, out="whole", progress=False)
    assert np.array_equal(parts.tracks[0].params(), whole.tracks[0].params())


def test_control_c_stops_a_device(tmp_path: Path) -> None:
    process = program(
        tmp_path / "program.py",
        "import deltafl as dfl\nfrom test_deployed import LINES, Line, points\n"
        "data = points()\n"
        "with dfl.Server(LINES, trainer=Line(), devices=data.ids, progress=False) as server:\n"
        "    device = dfl.Device(server, name='sensor-0')\n"
        "    try:\n"
        "        print('serving', flush=True)\n"
        "        device.serve(Line(), data)\n"
        "    except KeyboardInterrupt:\n"
        "        print('left', device.running, flush=True)\n",
    )
    assert process.stdout is not None and process.stdout.readline() == "serving\n"
    process.send_signal(signal.SIGINT)
    code, out, err = ended(process)
    assert code == 0, err
    assert out == "left False\n"
