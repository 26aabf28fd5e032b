"""Prints the errors of the test writers for every model of some runs.

python -m deltafl_emnist.table --data data/emnist OUT …
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from .task import build, examples, federation, measure


def errors(data: str, model: str, file: Path) -> np.ndarray:
    """Returns the error of every test writer."""
    config = {"data": data, "writers": 0, "seed": 1, "model": model}
    fed = federation(data, 0, 1)
    net = build(config, fed.classes)
    with np.load(file) as arrays:
        net.load_state_dict({name: torch.from_numpy(arrays[name]) for name in arrays})
    writers = range(len(fed.split("test")))
    return np.array([measure(net, *examples(config, "test", writer))[1] for writer in writers])


def main() -> None:
    """Prints one row per model: mean and percentiles over the test writers, in per cent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="the federation folder")
    parser.add_argument("--model", default="linear", choices=["linear", "conv-net"])
    parser.add_argument("out", nargs="+", type=Path, help="the folder that the run configuration sets as out")
    args = parser.parse_args()
    print("| run | model | mean | p50 | p90 | p95 |\n|---|---|---|---|---|---|")
    for out in args.out:
        for file in sorted(out.glob("*.npz")):
            found = 100 * errors(args.data, args.model, file)
            cells = [found.mean(), *np.percentile(found, [50, 90, 95])]
            print(f"| {out.name} | {file.stem} |", " | ".join(f"{cell:.2f}" for cell in cells), "|")


if __name__ == "__main__":
    main()
