"""An afternoon of a researcher: own algorithms, trackers, other data sets, and the results later.

Tests whose library is not installed are skipped.
"""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SHORT, ended, program
from test_custom_algorithm import Power, Yogi

import deltafl as dfl


class HalfAndLuck(dfl.CustomAlgorithm):
    """Selects the upper half of the losses, and one other device in turn."""

    def select(self, losses: Any, state: dfl.AlgorithmState) -> Any:
        chosen = losses >= np.median(losses)
        turn = int(state.get("turn", 0.0))
        chosen[turn % len(losses)] = True
        state["turn"] = turn + 1
        return chosen


class StopAfter(dfl.callbacks.Callback):
    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def on_round(self, event: dfl.callbacks.RoundEnd) -> bool:
        return event.round == self.rounds


def calibration(targets: Any, outputs: Any) -> float:
    """The difference of the mean probability and the share of the second class."""
    return abs(float(outputs[:, 1].mean() - targets.mean()))


def test_three_algorithms_of_ones_own_resume_and_are_in_one_report(federation: dfl.Federation) -> None:
    algorithms: list[Any] = [dfl.FedAvg(), Yogi(), Power(1.0), HalfAndLuck(), dfl.DeltaFL(theta=0.5)]
    options = {**SHORT, "rounds": 6, "evaluate_every": 2, "seeds": [1, 2]}
    whole = dfl.train(federation, dfl.models.Linear(), algorithms, out="whole", **options)
    stopped = dfl.train(federation, dfl.models.Linear(), algorithms, out="part", callbacks=[StopAfter(3)], **options)
    assert len(stopped.rounds()) == 3 * 5
    resumed = dfl.train(federation, dfl.models.Linear(), algorithms, out="part", resume=True, **options)
    for one, other in zip(whole, resumed):
        assert one.params(2).tobytes() == other.params(2).tobytes()
    found = resumed.evaluate(metrics=["auc", calibration], save=True)
    areas = found.models["HalfAndLuck"]["auc"]
    assert len(areas) == 4 and ((areas > 0.5) & (areas <= 1)).all()
    page = resumed.report().path.read_text()
    for name in ("Yogi", "Power", "HalfAndLuck", "auc", "calibration"):
        assert name in page


#: The service of wandb writes its file when the process ends.
WANDB = """
import deltafl as dfl
from conftest import SHORT, blobs
from test_custom_algorithm import Yogi

tracker = dfl.callbacks.WandB(project="wards", mode="offline")
dfl.train(blobs(), dfl.models.Linear(), [dfl.FedAvg(), Yogi()], callbacks=[tracker], **SHORT)
"""


def test_wandb_receives_the_run_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    for name, value in {"WANDB_SILENT": "true", "WANDB_DIR": ".", "WANDB_CONFIG_DIR": ".", "WANDB_CACHE_DIR": "."}.items():
        monkeypatch.setenv(name, value)
    code, _, problems = ended(program(Path("track.py").resolve(), WANDB))
    assert code == 0, problems
    stored = list(Path("wandb").glob("offline-run-*/run-*.wandb"))
    assert len(stored) == 1
    content = stored[0].read_bytes()
    for name in (b"FedAvg/test/error_p90", b"Yogi/tail", b"Yogi/train/loss"):
        assert name in content, name


def test_tensorboard_reads_the_scalars(federation: dfl.Federation) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("torch")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = dfl.train(
        federation, dfl.models.Linear(), [dfl.FedAvg(), Yogi()], callbacks=[dfl.callbacks.TensorBoard("logs")], **SHORT
    )
    logged = EventAccumulator("logs/seed-1")
    logged.Reload()
    scalars = [(event.step, event.value) for event in logged.Scalars("FedAvg/test/error")]
    assert [step for step, _ in scalars] == [0, 1, 2, 3]
    assert scalars[-1][1] == pytest.approx(run.table().to_dict()["mean"][0])


def test_a_hugging_face_data_set_has_a_dirichlet_partition() -> None:
    datasets = pytest.importorskip("datasets")
    rng = np.random.default_rng(1)
    labels = rng.integers(4, size=400)
    patterns = 2.0 * rng.normal(size=(4, 4, 4))
    images = (rng.normal(size=(400, 4, 4)) + patterns[labels]).astype(np.float32)
    data = datasets.Dataset.from_dict({"image": images.tolist(), "label": labels.tolist()})
    owners = dfl.partition.dirichlet(labels, devices=10, alpha=0.3, seed=1)
    federation = dfl.Federation.from_dataset(data, owners, inputs="image", target="label")
    sizes = [np.bincount(federation[name][1], minlength=4) for name in federation]
    assert sum(int(size.sum()) for size in sizes) == 400
    assert max(size.max() / size.sum() for size in sizes) > 0.6, "devices differ"
    options = {**SHORT, "rounds": 30, "evaluate_every": 30, "split": {"train": 0.7, "seed": 1}}
    run = dfl.train(federation, dfl.models.Linear(intercept=True), [dfl.FedAvg(), dfl.DeltaFL(theta=0.5)], **options)
    found = run.evaluate(metrics=["accuracy", "auc"])
    assert found.models["FedAvg"]["accuracy"].mean() > 0.5


#: A module of its own, so that another process can import it.
TRANSFORMER = """
import torch
from torch import nn

class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(12, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, 2)

    def forward(self, tokens, mask):
        states = self.block(self.embedding(tokens.long()), src_key_padding_mask=~mask.bool())
        shares = mask.float().unsqueeze(2)
        return self.out((states * shares).sum(1) / shares.sum(1))

def created():
    torch.manual_seed(1)
    return Transformer()
"""


def test_a_transformer_takes_tokens_and_a_mask_and_predicts_in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    Path("own_net.py").write_text(TRANSFORMER)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    from own_net import created  # type: ignore[import-not-found]

    rng = np.random.default_rng(2)

    def device() -> tuple[Any, Any]:
        sentences = [rng.integers(1, 12, size=rng.integers(2, 7)) for _ in range(20)]
        return {"tokens": sentences}, np.array([int((sentence > 6).mean() > 0.5) for sentence in sentences])

    federation = dfl.Federation({f"phone-{k}": device() for k in range(8)}, split=lambda name: "test" if name == "phone-0" else "train")
    torch.set_num_threads(1)
    module = dfl.torch.Module(created(), device="cpu")
    options = {**SHORT, "rounds": 8, "evaluate_every": 8, "local": dfl.SGD(lr=0.3, batch=5)}
    run = dfl.train(federation, module, [dfl.FedAvg(), dfl.DeltaFL(theta=0.5)], out="run", **options)
    losses = [loss for loss in run.rounds().to_dict()["loss"] if loss is not None]
    assert losses[-1] < losses[0]
    tokens = np.array([[1, 2, 3, 0, 0, 0], [9, 10, 11, 8, 7, 9]])
    mask = np.array([[True] * 3 + [False] * 3, [True] * 6])
    expected = run["theta=0.5"].predict({"tokens": tokens, "mask": mask})
    code = f"""
import numpy as np, own_net, deltafl as dfl
import deltafl.torch
run = dfl.Run("run", trainer=deltafl.torch.Module(own_net.created(), device="cpu"))
inputs = {{"tokens": np.array({tokens.tolist()}), "mask": np.array({mask.tolist()})}}
print(run["theta=0.5"].predict(inputs).tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=False)
    assert done.stdout.strip() == str(expected.tolist()), done.stderr
    assert math.isfinite(run.evaluate(metrics=["auc"]).models["FedAvg"]["auc"][0])
