"""Measures the cost of an algorithm and of callbacks in Python, on the linear model of EMNIST.

    python crates/deltafl-python/benches/server_step.py [ROUNDS] [REPETITIONS]

The workload is the paper's: 784 inputs, 62 classes, a cohort of 100 devices with 179 images each,
batch 10 and one epoch. The program compares the medians of the durations of rounds:

- FedYogi, built in,
- FedYogi as a `CustomAlgorithm` with a `server_step` in numpy,
- FedYogi, built in, with a callback that receives every round.

The three alternate run by run, so that other load on the machine affects all of them. Other load
only adds to a duration, so that the fastest round of each is the most reliable figure.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import deltafl as dfl

DEVICES, IMAGES, COHORT = 200, 179, 100


class Yogi(dfl.CustomAlgorithm):
    """FedYogi in numpy."""

    def __init__(self) -> None:
        self.rate, self.beta1, self.beta2, self.tau = 0.01, 0.9, 0.99, 1e-3

    def server_step(self, params: Any, mean_update: Any, state: dfl.AlgorithmState) -> Any:
        square = mean_update**2
        v = state.get("v", np.full_like(params, self.tau**2))
        state["m"] = self.beta1 * state.get("m", 0.0) + (1 - self.beta1) * mean_update
        state["v"] = v - (1 - self.beta2) * square * np.sign(v - square)
        return params + self.rate * state["m"] / (np.sqrt(state["v"]) + self.tau)


class Count(dfl.callbacks.Callback):
    """Counts rounds."""

    rounds = 0

    def on_round(self, event: dfl.callbacks.RoundEnd) -> bool:
        self.rounds += 1
        return False


def main(rounds: int, repetitions: int) -> None:
    rng = np.random.default_rng(1)
    inputs = rng.random((DEVICES * IMAGES, 784), dtype=np.float32)
    targets = rng.integers(62, size=len(inputs))
    data = dfl.Federation.from_arrays(inputs, targets, np.repeat(np.arange(DEVICES), IMAGES))
    built_in = dfl.FedYogi(server_rate=0.01, beta1=0.9, beta2=0.99, tau=1e-3)
    cases: dict[str, tuple[Any, list[dfl.callbacks.Callback]]] = {
        "built in": (built_in, []),
        "in Python": (Yogi(), []),
        "built in, a callback": (built_in, [Count()]),
    }
    medians: dict[str, list[float]] = {name: [] for name in cases}
    fastest: dict[str, float] = {name: float("inf") for name in cases}
    with tempfile.TemporaryDirectory() as folder:
        for repetition in range(repetitions):
            for name, (algorithm, callbacks) in cases.items():
                run = dfl.train(
                    data, dfl.models.Linear(), algorithm, rounds=rounds, cohort=COHORT, threads=1,
                    local=dfl.SGD(lr=0.05, batch=10, epochs=1), split={"train": 1.0}, evaluate_every=10**6,
                    evaluate_sample=1, out=Path(folder) / f"{name}-{repetition}", progress=False,
                    callbacks=callbacks,
                )
                seconds = run.rounds().to_dict()["seconds"]
                medians[name].append(1e3 * statistics.median(seconds[2:]))
                fastest[name] = min(fastest[name], 1e3 * min(seconds[2:]))
    found = {name: statistics.median(values) for name, values in medians.items()}
    for name in cases:
        line: dict[str, Any] = {"case": name}
        for statistic, values in (("median", found), ("fastest", fastest)):
            line[f"{statistic}_ms"] = round(values[name], 2)
            line[f"{statistic}_more_percent"] = round(100 * (values[name] / values["built in"] - 1), 1)
        print(json.dumps(line))


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(given[0] if given else 30, given[1] if len(given) > 1 else 5)
