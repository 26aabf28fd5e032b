"""The server app."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
from deltafl.flower import DeltaFL
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from .client_app import federation

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Trains one model per level."""
    config = context.run_config
    random.seed(int(config["seed"]))
    fed = federation(int(config["seed"]))
    width = fed[fed.ids[0]][0].shape[1]
    start = ArrayRecord({"coef": Array(np.zeros((fed.classes, width))), "intercept": Array(np.zeros(fed.classes))})
    levels = [float(theta) for theta in str(config["theta"]).split(",")]
    strategy = DeltaFL(
        levels, quantile=str(config["quantile"]), fraction_train=float(config["fraction-train"])  # type: ignore[arg-type]
    )
    result = strategy.start(grid=grid, initial_arrays=start, num_rounds=int(config["num-server-rounds"]))
    if config["out"]:
        out = Path(str(config["out"]))
        out.mkdir(parents=True, exist_ok=True)
        figures = {str(r): dict(metrics) for r, metrics in result.evaluate_metrics_clientapp.items()}
        (out / "evaluate.json").write_text(json.dumps(figures, indent=1))
