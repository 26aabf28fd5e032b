"""``run``: equality with the command, error messages, interruption and results."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ended, program

import deltafl as dfl
from deltafl import _deltafl
from deltafl._progress import interruptible

TINY: dict[str, Any] = {
    "name": "tiny",
    "rounds": 4,
    "cohort": 5,
    "evaluate_every": 2,
    "data": {"source": {"kind": "logistic", "devices": 10, "seed": 1}},
    "model": {"kind": "linear"},
    "local": {"epochs": 1, "batch": 10, "learning_rate": 0.1},
    "algorithm": [{"kind": "fedavg"}, {"kind": "delta-fl", "theta": [0.5]}],
}


def command(*arguments: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """Runs the command of the wheel."""
    script = Path(sys.executable).with_name("deltafl")
    return subprocess.run([str(script), *arguments], text=True, capture_output=True, check=False, **kwargs)


def bits(folder: Path) -> dict[str, bytes]:
    """Returns the contents of the checkpoints and evaluations of a run."""
    files = [*folder.glob("checkpoint/*"), *folder.glob("devices/*")]
    assert files
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_the_quickstart_is_bitwise_equal_to_the_command(root: Path, tmp_path: Path) -> None:
    quickstart = root / "experiments" / "quickstart.toml"
    short = {"rounds": 3, "seeds": [1, 2], "data.source.devices": 30}
    mine = dfl.run(quickstart, out=tmp_path / "mine", progress=False, **short)
    overrides = [word for key, value in short.items() for word in ("--set", f"{key}={value}")]
    theirs = command("run", str(quickstart), "--out", str(tmp_path / "theirs"), *overrides)
    assert theirs.returncode == 0, theirs.stderr
    assert bits(mine.path) == bits(tmp_path / "theirs")
    assert repr(mine).splitlines()[:-1] == theirs.stdout.splitlines()[:-1]


def test_a_dict_is_an_experiment_and_keywords_override_it() -> None:
    run = dfl.run(TINY, rounds=2, local={"learning_rate": 0.2}, progress=False, **{"algorithm.1.theta": 0.3})
    assert run.path == Path("runs/tiny")
    assert run.experiment["rounds"] == 2
    assert run.experiment["local"]["learning_rate"] == 0.2
    assert [track.theta for track in run] == [1.0, 0.3]


def test_tables_are_read_by_arrow_without_a_copy() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    run = dfl.run(TINY, progress=False)
    devices = pyarrow.table(run.devices())
    # Three evaluations (rounds 0, 2 and 4), two models, ten devices.
    assert devices.num_rows == 3 * 2 * 10 == len(run.devices())
    assert {"device", "loss", "error", "split", "round", "theta"} <= set(devices.column_names)
    source = run.devices()
    first, second = pyarrow.table(source), pyarrow.table(source)
    address = [table.column("loss").chunk(0).buffers()[1].address for table in (first, second)]
    assert address[0] == address[1], "both readers share the memory of the table"
    rounds = pyarrow.table(run.rounds())
    assert rounds.num_rows == 4 * 2
    table = pyarrow.table(run.table())
    summary = run.summary()
    assert table.column("p90").to_pylist() == [t["test"]["p90"]["mean"] for t in summary["tracks"]]
    assert table.column("p90_std").to_pylist() == [None, None], "one seed has no standard deviation"


def test_polars_and_pandas_read_the_tables() -> None:
    polars, pandas = pytest.importorskip("polars"), pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    run = dfl.run(TINY, progress=False)
    assert isinstance(run.table().to_polars(), polars.DataFrame)
    assert isinstance(run.devices().to_pandas(), pandas.DataFrame)
    assert len(polars.DataFrame(run.devices())) == len(run.devices())


def test_a_run_shows_its_table_and_its_page_in_a_notebook() -> None:
    run = dfl.run(TINY, progress=False)
    html = run._repr_html_()
    assert "<pre>" in html and "<iframe srcdoc=" in html and "90th percentile" in html
    assert not (run.path / "figures").exists(), "a notebook needs only the page"
    elsewhere = run.report(out="elsewhere")
    assert elsewhere.path.read_bytes() == (run.path / "report.html").read_bytes()
    assert list(Path("elsewhere/figures").iterdir())


def test_errors_are_exceptions_with_the_messages_of_the_command(tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text("name = 'x'\nrounds = 4\ncohort = 0\n")
    with pytest.raises(dfl.InvalidInput) as raised:
        dfl.run(file)
    assert "wrong.toml:3:10" in str(raised.value)
    stderr = command("run", str(file)).stderr
    for line in str(raised.value).splitlines():
        assert line.strip(" ×") in stderr, f"{line!r} is not in {stderr!r}"
    with pytest.raises(dfl.InvalidInput, match="^rounds=0: invalid value"):
        dfl.run(TINY, rounds=0)
    with pytest.raises(ValueError, match="no such file|cannot read"):
        dfl.run(tmp_path / "missing.toml")
    dfl.run(TINY, progress=False)
    with pytest.raises(dfl.InvalidInput, match="already holds a run"):
        dfl.run(TINY, progress=False)
    with pytest.raises(dfl.InvalidInput, match="compute"):
        dfl.run(TINY, out="other", compute="abacus")
    with pytest.raises(dfl.InvalidInput, match="threads = 0: expected 1 or above, or None"):
        dfl.run(TINY, out="other", threads=0)


def test_a_resumed_run_is_bitwise_equal() -> None:
    whole = dfl.run(TINY, out="whole", progress=False)
    dfl.run(TINY, out="parts", rounds=2, progress=False)
    parts = dfl.run(TINY, out="parts", resume=True, progress=False)
    assert bits(parts.path) == bits(whole.path)


def test_control_c_stops_after_the_round_and_saves(tmp_path: Path) -> None:
    process = program(
        tmp_path / "program.py",
        "import json, sys\nimport deltafl as dfl\n"
        f"tiny = json.loads({json.dumps(json.dumps(TINY))})\n"
        "try:\n"
        "    dfl.run(tiny, out='long', rounds=1000000, evaluate_every=1000000, progress=False)\n"
        "except dfl.Interrupted as stopped:\n"
        "    assert isinstance(stopped, KeyboardInterrupt)\n"
        "    print(stopped.rounds, flush=True)\n",
    )
    rounds = tmp_path / "long" / "rounds.jsonl"
    while process.poll() is None and not (rounds.exists() and rounds.stat().st_size):
        threading.Event().wait(0.05)
    process.send_signal(signal.SIGINT)
    code, out, err = ended(process)
    assert code == 0, err
    done = int(out)
    assert done > 0
    more = dfl.run(TINY, out=tmp_path / "long", rounds=done + 1, evaluate_every=1000000, resume=True, progress=False)
    whole = dfl.run(TINY, out="whole", rounds=done + 1, evaluate_every=1000000, progress=False)
    assert np.array_equal(more["theta=0.5"].params(), whole["theta=0.5"].params())


#: A trainer whose updates wait for a line on standard input.
WAITING = """
import logging, sys
import deltafl as dfl
from conftest import SHORT, blobs
from test_trainer import Softmax

def write(line):
    # One write per line, because two threads train.
    print(line + "\\n", end="", flush=True)

class Writer(logging.Handler):
    def emit(self, record):
        write(record.getMessage())

logging.getLogger("deltafl").addHandler(Writer())

class Waiting(Softmax):
    def update(self, params, inputs, targets, local):
        write("training")
        sys.stdin.readline()
        return super().update(params, inputs, targets, local)

try:
    dfl.train(blobs(), Waiting(5, 2), dfl.FedAvg(), **SHORT, threads=2)
except dfl.Interrupted as stopped:
    write(f"saved {stopped.rounds}")
except KeyboardInterrupt:
    write("left")
"""


def until(process: subprocess.Popen[str], begins: str) -> None:
    """Reads lines until one starts with the given text."""
    assert process.stdout is not None
    assert any(line.startswith(begins) for line in iter(process.stdout.readline, "")), process.stderr and process.stderr.read()


@pytest.mark.parametrize("presses", [1, 2])
def test_control_c_is_handled_during_a_round_and_a_second_one_skips_the_remaining_devices(
    tmp_path: Path, presses: int
) -> None:
    process = program(tmp_path / "program.py", WAITING)
    until(process, "training")
    until(process, "training")
    process.send_signal(signal.SIGINT)
    until(process, "finishing the current round; press Ctrl-C again")
    if presses == 2:
        process.send_signal(signal.SIGINT)
        until(process, "stopping as soon as the devices in progress are finished")
    assert process.stdin is not None
    process.stdin.close()
    code, out, err = ended(process)
    assert code == 0, err
    # The cohort has four devices.
    assert out == {1: "training\ntraining\nsaved 1\n", 2: "left\n"}[presses]


def test_a_second_control_c_does_not_wait_for_the_round_of_a_built_in_model(tmp_path: Path) -> None:
    process = program(
        tmp_path / "program.py",
        "import json, logging, sys\nimport deltafl as dfl\n"
        "logging.basicConfig(stream=sys.stdout, level=logging.INFO, format='%(message)s')\n"
        f"tiny = json.loads({json.dumps(json.dumps(TINY))})\n"
        "try:\n"
        "    dfl.run(tiny, seeds=[1], local={'epochs': 1_000_000_000}, progress=False)\n"
        "except KeyboardInterrupt:\n"
        "    print('left')\n",
    )
    until(process, "seed 1: from round 0")
    process.send_signal(signal.SIGINT)
    until(process, "finishing the current round; press Ctrl-C again")
    process.send_signal(signal.SIGINT)
    code, out, err = ended(process)
    assert code == 0, err
    assert out == "left\n"


def test_a_program_that_ignores_control_c_continues_to_ignore_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        stop = _deltafl.Stop()
        with interruptible(stop):
            signal.raise_signal(signal.SIGINT)
        assert not stop.is_set() and signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_runs_in_threads_are_independent_and_do_not_block_the_interpreter() -> None:
    ticks = []
    done = threading.Event()

    def tick() -> None:
        while not done.wait(0.001):
            ticks.append(1)

    ticker = threading.Thread(target=tick)
    ticker.start()
    runs: dict[int, dfl.Run] = {}

    def train(seed: int) -> None:
        runs[seed] = dfl.run(TINY, out=f"thread-{seed}", seeds=[seed], progress=False)

    threads = [threading.Thread(target=train, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    ticker.join()
    assert ticks, "other threads run while devices compute"
    alone = dfl.run(TINY, out="alone", seeds=[2], progress=False)
    assert bits(runs[2].path) == bits(alone.path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_trains_bitwise_equal_params() -> None:
    parent = dfl.run(TINY, out="parent", secagg="real", progress=False)
    child = multiprocessing.get_context("fork").Process(
        target=lambda: dfl.run(TINY, out="child", secagg="real", progress=False)
    )
    child.start()
    child.join(timeout=120)
    assert child.exitcode == 0
    assert bits(Path("child")) == bits(parent.path)


def test_progress_goes_to_logging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="deltafl"):
        dfl.run(TINY, progress=False)
    assert "seed 1, round 4: 90th percentile of the error" in caplog.text
    assert "Δ-FL θ=0.5 keeps about 2 devices a round" in caplog.text


def test_a_progress_bar_is_drawn_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    dfl.run(TINY, progress=True)
    drawn = capsys.readouterr().err
    assert "round 4/4" in drawn and drawn.endswith("\r\x1b[K"), "the line is removed at the end"
    dfl.run(TINY, out="quiet", progress=False)
    assert capsys.readouterr().err == ""


def test_a_progress_bar_names_the_seed_and_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    dfl.run(TINY, seeds=[4, 2], progress=True)
    drawn = capsys.readouterr().err.split("\r\x1b[K")
    assert any(line.startswith("seed 2 (2 of 2)") for line in drawn)
    # The warning about small tails is a separate line.
    lines = [line for line in drawn if line.startswith("seed")]
    assert max(map(len, lines)) == 69 and any(line.endswith("…") for line in lines)


def test_the_command_of_the_wheel_is_the_whole_command() -> None:
    helped = command("--help")
    assert helped.returncode == 0 and "deltafl demo" in helped.stdout
    wrong = command("run", "nothing.toml")
    assert wrong.returncode == 2 and "cannot read the experiment" in wrong.stderr


def test_many_runs_leak_no_memory_and_no_file_descriptors() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    if not Path("/proc/self/statm").exists():
        pytest.skip("there is no /proc")
    tiny = {**TINY, "rounds": 1, "data": {"source": {"kind": "logistic", "devices": 4, "seed": 1}}}
    descriptors = len(os.listdir("/proc/self/fd"))
    for index in range(20):
        dfl.run(tiny, out=f"warm-{index}", threads=2, progress=False).devices()
    before = resident()
    for index in range(100):
        dfl.run(tiny, out=f"run-{index}", threads=2, progress=False).devices()
    grown = resident() - before
    assert grown < 20_000_000, f"100 runs grew by {grown / 1e6:.1f} MB"
    assert len(os.listdir("/proc/self/fd")) == descriptors
