"""Measures the overhead of the round loop over the PyTorch steps that it runs, on one core.

    OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 taskset -c 0 \\
        python crates/deltafl-python/benches/overhead.py [ROUNDS]

The workload is a round of FedAvg with the ConvNet of EMNIST, on 100 devices with 179 images each and
batches of 16. The program compares the CPU times of two implementations:

- `deltafl.train` with `deltafl.torch.Module`,
- a bare loop with the same steps: preloaded tensors, plain SGD, a weighted mean.

The two alternate round by round, so that other load on the machine affects both.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import deltafl as dfl
import deltafl.torch

DEVICES, IMAGES, BATCH, RATE = 100, 179, 16, 0.05
torch.set_num_threads(1)


class Conv(nn.Module):
    """Two 5 × 5 convolutions with 32 and 64 channels, each followed by pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.fc = nn.Conv2d(1, 32, 5), nn.Conv2d(32, 64, 5), nn.Linear(1024, 62)

    def forward(self, images: Any) -> Any:
        maps = functional.max_pool2d(functional.relu(self.conv1(images)), 2)
        maps = functional.max_pool2d(functional.relu(self.conv2(maps)), 2)
        return self.fc(maps.flatten(1))


def bare(net: nn.Module, devices: list[tuple[Any, Any]]) -> None:
    """Runs one round: the steps of all devices, and the mean."""
    weights = list(net.parameters())
    start = [weight.detach().clone() for weight in weights]
    total = [torch.zeros_like(weight) for weight in weights]
    for images, labels in devices:
        with torch.no_grad():
            for weight, value in zip(weights, start):
                weight.copy_(value)
        order = torch.randperm(len(labels))
        for batch in order.split(BATCH):
            loss = functional.cross_entropy(net(images[batch]), labels[batch])
            gradient = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                torch._foreach_add_(weights, gradient, alpha=-RATE)
        with torch.no_grad():
            for sum_, weight in zip(total, weights):
                sum_.add_(weight, alpha=1 / len(devices))
    with torch.no_grad():
        for weight, value in zip(weights, total):
            weight.copy_(value)


class Alternating(dfl.torch.Module):
    """A trainer that runs a bare round before each round of deltafl, and measures both."""

    def __init__(self, net: nn.Module, devices: list[tuple[Any, Any]]) -> None:
        super().__init__(net, shape=(1, 28, 28), device="cpu")
        self._bare_net, self._devices = Conv(), devices
        self.bare: list[float] = []
        self.ours: list[float] = []
        self._left = DEVICES
        self._began = 0.0

    def worker(self) -> Alternating:
        return self

    def update(self, *arguments: Any) -> Any:
        if self._left == DEVICES:
            before = time.process_time()
            if self._began:
                self.ours.append(before - self._began)
            bare(self._bare_net, self._devices)
            self._began = time.process_time()
            self.bare.append(self._began - before)
        self._left = DEVICES if self._left == 1 else self._left - 1
        return super().update(*arguments)


def main(rounds: int) -> None:
    rng = np.random.default_rng(0)
    inputs = rng.random((DEVICES * IMAGES, 784), dtype=np.float32) - 1
    labels = rng.integers(0, 62, DEVICES * IMAGES)
    fed = dfl.Federation.from_arrays(inputs, labels, np.repeat(np.arange(DEVICES), IMAGES), classes=62)
    loaded = [
        (torch.from_numpy(fed[name][0]).view(-1, 1, 28, 28), torch.from_numpy(fed[name][1])) for name in fed
    ]
    torch.manual_seed(0)
    trainer = Alternating(Conv(), loaded)
    with tempfile.TemporaryDirectory() as folder:
        dfl.train(
            fed, trainer, dfl.FedAvg(), rounds=rounds + 2, cohort=DEVICES, local=dfl.SGD(lr=RATE, batch=BATCH),
            evaluate_every=10**6, out=f"{folder}/run", threads=1, progress=False,
        )
    # The first round of both is a warm-up. The end of the last round of deltafl is not observed.
    bare_rounds, our_rounds = trainer.bare[1:-1], trainer.ours[1:]
    ratios = sorted(ours / steps - 1 for ours, steps in zip(our_rounds, bare_rounds, strict=True))
    print(json.dumps({
        "torch": torch.__version__, "rounds": len(ratios),
        "bare_s": round(statistics.median(bare_rounds), 3), "ours_s": round(statistics.median(our_rounds), 3),
        "beyond": round(statistics.median(ratios), 4), "least": round(ratios[0], 4), "most": round(ratios[-1], 4),
    }))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
