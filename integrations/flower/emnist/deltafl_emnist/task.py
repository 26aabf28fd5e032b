"""The data, the models, and the training and evaluation of a client."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import deltafl as dfl
import numpy as np
import torch
from torch import nn
from torch.nn import functional


class Linear(nn.Module):
    """Softmax regression without an intercept, as in the paper."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(784, classes, bias=False)
        nn.init.zeros_(self.fc.weight)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.fc(images)


class ConvNet(nn.Module):
    """The convolutional network of the paper."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.fc = nn.Linear(1024, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = functional.max_pool2d(functional.relu(self.conv1(images.view(-1, 1, 28, 28))), 2)
        maps = functional.max_pool2d(functional.relu(self.conv2(maps)), 2)
        return self.fc(maps.flatten(1))


@lru_cache(maxsize=1)
def federation(data: str, writers: int, seed: int) -> dfl.Federation:
    """Returns the writers of a folder, or synthetic writers. Cached in each process."""
    if data:
        return dfl.Federation.open(data)
    return dfl.Federation.synthetic("glyphs", devices=writers, seed=seed)


def writers(config: Mapping[str, Any]) -> dfl.Federation:
    """Returns the federation of a run."""
    return federation(str(config["data"]), int(config["writers"]), int(config["seed"]))


def examples(config: Mapping[str, Any], split: str, partition: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the images and classes of the writer of a client."""
    return _tensors(writers(config), split, partition)


@lru_cache(maxsize=512)
def _tensors(fed: dfl.Federation, split: str, partition: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the tensors of a client. Cached, because a process may simulate several clients."""
    ids = fed.split(split)
    inputs, targets = fed[ids[partition % len(ids)]]
    # 0 is ink and 1 is paper. The paper's (x − mean)/mean would require data of other writers.
    return torch.from_numpy(inputs - np.float32(1.0)), torch.from_numpy(targets)


def build(config: Mapping[str, Any], classes: int) -> nn.Module:
    """Returns the model of a run with its initial parameters w₀."""
    torch.manual_seed(int(config["seed"]))
    return {"linear": Linear, "conv-net": ConvNet}[str(config["model"])](classes)


@torch.no_grad()
def measure(net: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[float, float]:
    """Returns the mean loss and the error."""
    net.eval()
    outputs = net(inputs)
    loss = functional.cross_entropy(outputs, targets)
    return float(loss), float((outputs.argmax(dim=1) != targets).float().mean())


def train(
    net: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, config: Mapping[str, Any], seed: int
) -> None:
    """Trains with epochs of SGD. The order of the examples depends only on the seed."""
    rng = np.random.default_rng(seed)
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=float(config["learning-rate"]))
    size = int(config["batch-size"])
    for _ in range(int(config["local-epochs"])):
        order = torch.from_numpy(rng.permutation(len(targets)))
        for batch in order.split(size):
            optimizer.zero_grad()
            functional.cross_entropy(net(inputs[batch]), targets[batch]).backward()
            optimizer.step()
