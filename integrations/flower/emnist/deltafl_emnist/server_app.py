"""The server app."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
from deltafl.flower import DeltaFL
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from .task import build, writers

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Trains one model per level."""
    config = context.run_config
    # Flower samples cohorts with the module random.
    random.seed(int(config["seed"]))
    net = build(config, writers(config).classes)
    shares = {
        "fraction_train": float(config["fraction-train"]),
        "fraction_evaluate": float(config["fraction-evaluate"]),
    }
    levels = [float(theta) for theta in str(config["theta"]).split(",")]
    strategy = (
        FedAvg(**shares)
        if config["strategy"] == "fedavg"
        else DeltaFL(levels, quantile=str(config["quantile"]), **shares)  # type: ignore[arg-type]
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(net.state_dict()),
        num_rounds=int(config["num-server-rounds"]),
    )
    if not config["out"]:
        return
    out = Path(str(config["out"]))
    out.mkdir(parents=True, exist_ok=True)
    models = strategy.models if isinstance(strategy, DeltaFL) else {"fedavg": result.arrays}
    for name, arrays in models.items():
        np.savez(out / f"{name}.npz", **{key: array.numpy() for key, array in arrays.items()})
    figures = {str(r): dict(metrics) for r, metrics in result.evaluate_metrics_clientapp.items()}
    (out / "evaluate.json").write_text(json.dumps(figures, indent=1))
