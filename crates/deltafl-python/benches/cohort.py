"""Measures rounds of PyTorch modules on a GPU: one call per cohort, and one device after another.

    python crates/deltafl-python/benches/cohort.py [MODULE …] [--tf32] [--pfl ROUNDS] [--profile] [--parts]

The workload is FedAvg with a cohort of 50 devices, batch 10 and one epoch. The program prints a line
of JSON per module with medians in milliseconds:

- `round`: whole rounds of `deltafl.train`, with encoding, summing, the server step and records,
- `call`: the part of a round inside the call of the cohort,
- `one_by_one`: whole rounds with `cohort="off"`,
- `difference`: the relative difference of the parameters of the two after one round.

`--tf32` rounds the inputs of products to TF32, and `--inductor` compiles the step. `--pfl ROUNDS`
trains the CIFAR10 benchmark of pfl, which has 1,500 rounds on 1,000 devices of 50 images, with an
evaluation every 100 rounds. `--profile` prints the slowest kernels of a round, and `--parts` the
durations of the parts of a call.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import deltafl as dfl
import deltafl.torch
from deltafl.torch._cohort import ModuleCohort
from deltafl.torch._step import Step

COHORT, BATCH, RATE = 50, 10, 0.05
IMAGE = (3, 32, 32)


class Cnn(nn.Module):
    """The network of pfl's CIFAR10 benchmark."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 32, 3), nn.Conv2d(32, 64, 3)
        self.hidden, self.out = nn.Linear(64 * 14 * 14, 512), nn.Linear(512, 10)

    def forward(self, images: Any) -> Any:
        maps = functional.relu(self.second(functional.relu(self.first(images))))
        return self.out(functional.relu(self.hidden(functional.max_pool2d(maps, 2).flatten(1))))


class Block(nn.Module):
    """Two convolutions with group norm and a shortcut."""

    def __init__(self, entry: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(entry, out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm, self.last = nn.GroupNorm(4, out), nn.GroupNorm(4, out)
        same = entry == out and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(entry, out, 1, stride, bias=False)

    def forward(self, maps: Any) -> Any:
        inner = functional.relu(self.norm(self.first(maps)))
        return functional.relu(self.last(self.second(inner)) + self.shortcut(maps))


class ResNet(nn.Module):
    """A ResNet with eight layers."""

    def __init__(self) -> None:
        super().__init__()
        self.entry, self.norm = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.GroupNorm(4, 16)
        self.blocks = nn.Sequential(Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2))
        self.out = nn.Linear(64, 10)

    def forward(self, images: Any) -> Any:
        return self.out(self.blocks(functional.relu(self.norm(self.entry(images)))).mean((2, 3)))


class Transformer(nn.Module):
    """One block with attention on 32 tokens."""

    def __init__(self, width: int = 64, words: int = 5000) -> None:
        super().__init__()
        self.embedding, self.attention = nn.Embedding(words, width), nn.Linear(width, 3 * width)
        self.project, self.out = nn.Linear(width, width), nn.Linear(width, 2)
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, tokens: Any) -> Any:
        states = self.embedding(tokens.long())
        count, length, width = states.shape
        parts = self.attention(self.before(states)).view(count, length, 3, 4, width // 4)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = torch.softmax(query @ key.transpose(-1, -2) / (width // 4) ** 0.5, -1) @ value
        states = states + self.project(mixed.transpose(1, 2).reshape(count, length, width))
        states = states + self.narrow(functional.gelu(self.wide(self.between(states))))
        return self.out(states.mean(1))


#: The module, the number of examples of a device, the shape of an input, and the rate.
MODULES: dict[str, tuple[type[nn.Module], int, tuple[int, ...] | None]] = {
    "transformer": (Transformer, 60, None),
    "resnet": (ResNet, 50, IMAGE),
    "cnn": (Cnn, 50, IMAGE),
}


def federation(name: str, devices: int, testing: int = 0) -> dfl.Federation:
    """Returns devices with random examples."""
    _, examples, shape = MODULES[name]
    rng, rows = np.random.default_rng(1), devices * examples
    if shape is None:
        inputs = rng.integers(5000, size=(rows, 32)).astype(np.float32)
    else:
        inputs = rng.standard_normal((rows, int(np.prod(shape))), dtype=np.float32)
    targets = rng.integers(2 if shape is None else 10, size=rows)
    ids = np.repeat([f"device-{k}" for k in range(devices)], examples)
    splits = {f"device-{k}": "test" for k in range(testing)}
    return dfl.Federation.from_arrays(inputs, targets, ids, split=splits or None)


class Clock(dfl.callbacks.Callback):
    """The times at which rounds end."""

    def __init__(self, printed_every: int = 0) -> None:
        self.start = time.perf_counter()
        self.times: list[float] = []
        self._printed_every = printed_every

    def on_round(self, event: dfl.callbacks.RoundEnd) -> bool:
        self.times.append(time.perf_counter())
        if self._printed_every and len(self.times) % self._printed_every == 0:
            print(json.dumps({"rounds": len(self.times), "seconds": round(self.times[-1] - self.start, 2)}), flush=True)
        return False

    def median(self, skipped: int) -> float:
        """Returns the median duration of a round in milliseconds, without the first rounds."""
        durations = np.diff(self.times)[skipped - 1 :]
        return 1e3 * float(statistics.median(durations))


def trained(data: dfl.Federation, module: Any, rounds: int, folder: Path) -> tuple[Clock, Any]:
    """Trains and returns the clock and the parameters."""
    clock = Clock()
    run = dfl.train(
        data, module, dfl.FedAvg(), rounds=rounds, cohort=COHORT, evaluate_every=10**6,
        local=dfl.SGD(lr=RATE, batch=BATCH, epochs=1), split={"train": 1.0}, evaluate_sample=1,
        out=folder, progress=False, callbacks=[clock],
    )
    return clock, run[0].params()


def timed_calls() -> list[float]:
    """Records the duration of every call of a cohort, in milliseconds."""
    times: list[float] = []
    plain = ModuleCohort.updates

    def updates(self: Any, given: Any) -> Any:
        start = time.perf_counter()
        answer = plain(self, given)
        times.append(1e3 * (time.perf_counter() - start))
        return answer

    ModuleCohort.updates = updates  # type: ignore[method-assign]
    return times


def new_module(name: str, **options: Any) -> Any:
    """Returns a trainer of the module, with the same initial parameters in every call."""
    make, _, shape = MODULES[name]
    torch.manual_seed(0)
    return deltafl.torch.Module(make(), shape=shape, **options)


def rounded(found: dict[str, Any]) -> dict[str, Any]:
    """Rounds the numbers to three digits, except for small ones."""
    return {key: round(value, 3) if isinstance(value, float) and value > 1e-3 else value for key, value in found.items()}


def measure(name: str, folder: Path, *, rounds: int, slow_rounds: int, **options: Any) -> dict[str, Any]:
    """Measures a module, and compares the parameters if there are slow rounds."""
    data = federation(name, COHORT)
    module = new_module(name, cohort="on", **options)
    calls = timed_calls()
    clock, _ = trained(data, module, rounds, folder / "on")
    found: dict[str, Any] = {"module": name, **options, "params": module.num_params}
    found["first"] = 1e3 * (clock.times[0] - clock.start)
    found["round"] = clock.median(5)
    found["call"] = statistics.median(calls[5:])
    if not slow_rounds:
        return rounded(found)
    if slow_rounds > 2:
        clock, _ = trained(data, new_module(name, cohort="off", **options), slow_rounds, folder / "off")
        found["one_by_one"] = clock.median(2)
        found["speed_up"] = found["one_by_one"] / found["round"]
    ends = [
        trained(data, new_module(name, cohort=cohort, **options), 1, folder / f"{cohort}-{place}")[1]
        for place, cohort in enumerate(("on", "off", "on"))
    ]
    found["difference"] = float(np.linalg.norm(ends[0] - ends[1]) / np.linalg.norm(ends[1]))
    found["same_bits"] = bool(np.array_equal(ends[0], ends[2]))
    return rounded(found)


def parts(name: str, folder: Path, **options: Any) -> dict[str, Any]:
    """Measures the parts of a call in milliseconds, each with a wait for the GPU."""
    times: dict[str, list[float]] = {}
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None

    def timed(method: str) -> None:
        plain = getattr(Step, method)

        def wrapped(self: Any, *args: Any) -> Any:
            wait()
            start = time.perf_counter()
            answer = plain(self, *args)
            wait()
            label = args[0] if method == "_replay" else method
            times.setdefault(label, []).append(1e3 * (time.perf_counter() - start))
            return answer

        setattr(Step, method, wrapped)

    for method in ("_sent", "_replay", "_encoded"):
        timed(method)
    trained(federation(name, COHORT), new_module(name, cohort="on", **options), 15, folder / "parts")
    medians = {label: round(statistics.median(found[len(found) // 3 :]), 3) for label, found in times.items()}
    return {"module": name, **options, **medians}


def profile(name: str, folder: Path, **options: Any) -> None:
    """Prints the slowest kernels of rounds."""
    module = new_module(name, cohort="on", **options)
    data = federation(name, COHORT)
    trained(data, module, 5, folder / "warm")
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as found:
        trained(data, module, 10, folder / "profiled")
    print(found.key_averages().table(sort_by="self_cuda_time_total", row_limit=22, max_name_column_width=70))


def pfl(folder: Path, rounds: int, **options: Any) -> dict[str, Any]:
    """Trains pfl's CIFAR10 benchmark, with an evaluation of all devices every 100 rounds."""
    data = federation("cnn", 1000 + 100, testing=100)
    module = new_module("cnn", cohort="on", **options)
    clock = Clock(printed_every=100)
    start = clock.start
    dfl.train(
        data, module, dfl.FedAvg(), rounds=rounds, cohort=COHORT, evaluate_every=100,
        local=dfl.SGD(lr=RATE, batch=BATCH, epochs=1), out=folder / "pfl", progress=False, callbacks=[clock],
    )
    seconds = time.perf_counter() - start
    durations = np.diff(clock.times)
    found = {"pfl_seconds": seconds, "rounds": rounds, **options, "first": clock.times[0] - start}
    found["round"] = 1e3 * float(np.median(durations))
    found["slowest"] = [round(1e3 * float(value)) for value in np.sort(durations)[-8:]]
    # The second half of the rounds contains no compilation and no first use of a device.
    late = durations[len(durations) // 2 :]
    found["seconds_for_1500"] = clock.times[0] - start + 1500 * float(late.mean())
    return rounded(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("modules", nargs="*", default=list(MODULES))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--slow-rounds", type=int, default=6)
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--pfl", type=int, metavar="ROUNDS")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--parts", action="store_true")
    chosen = parser.parse_args()
    logging.basicConfig()
    logging.getLogger("deltafl.torch").setLevel(logging.INFO)
    options = {"tf32": chosen.tf32, "compile": "inductor" if chosen.inductor else "auto"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if chosen.pfl:
            print(json.dumps(pfl(folder, chosen.pfl, **options)), flush=True)
            return
        for module in chosen.modules:
            if chosen.profile:
                profile(module, folder / module, **options)
            elif chosen.parts:
                print(json.dumps(parts(module, folder / module, **options)), flush=True)
            else:
                found = measure(
                    module, folder / module, rounds=chosen.rounds, slow_rounds=chosen.slow_rounds, **options
                )
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
