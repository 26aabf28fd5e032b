"""Measures whole rounds of pfl and of Flower's simulation with the modules of `cohort.py`.

    python crates/deltafl-python/benches/frameworks.py pfl|flower [MODULE …] [--tf32|--float32] [--rounds N]

The workload is that of `cohort.py`: FedAvg with 50 devices, batch 10, one epoch of SGD, and no
evaluation. The program prints a line of JSON per module:

- `round`: the median duration of a round in milliseconds, without the first two rounds,
- `slowest` and `fastest`: the extremes of the same rounds,
- `first`: the duration of the first round, in which pfl also evaluates the devices,
- `moved`: the distance of the final parameters from the initial ones. Both frameworks train the
  same batches in the same order, so this number differs only by rounding.

The model and the examples are on the GPU before the first round if there is a GPU. PyTorch's
defaults compute products in float32 and convolutions in TF32. `--float32` computes both in float32,
and `--tf32` both in TF32. `--actors` is the number of Ray's processes, which share the GPU.
`--compile` compiles the network with `torch.compile`. `--clients` changes the number of devices.

pfl 0.6 needs `pip install pfl`. Flower 1.42 needs `pip install 'flwr[simulation]'`.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import statistics
import time
from typing import Any

import torch
from cohort import BATCH, COHORT, MODULES, RATE
from torch import nn
from torch.nn import functional

SKIPPED = 2


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def set_precision(precision: str) -> None:
    """Sets whether PyTorch rounds the inputs of products and convolutions to TF32."""
    if precision != "default":
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.allow_tf32 = precision == "tf32"


def examples(name: str, place: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the random examples of a device, with the shapes of `cohort.federation`."""
    _, count, shape = MODULES[name]
    random = torch.Generator().manual_seed(place)
    if shape is None:
        inputs = torch.randint(5000, (count, 32), generator=random)
    else:
        inputs = torch.randn(count, *shape, generator=random)
    targets = torch.randint(2 if shape is None else 10, (count,), generator=random)
    return inputs.to(device()), targets.to(device())


def new_network(name: str) -> nn.Module:
    """Returns the module with the same initial parameters in every call."""
    torch.manual_seed(0)
    return MODULES[name][0]().to(device())


def distance(network: nn.Module, initial: nn.Module) -> float:
    """Returns the distance of the parameters of two modules."""
    pairs = zip(network.parameters(), initial.parameters(), strict=True)
    return sum((one.detach() - other.detach()).double().square().sum().item() for one, other in pairs) ** 0.5


def result(settings: dict[str, Any], times: list[float], moved: float) -> dict[str, Any]:
    """Returns the line of a module from the start and the ends of its rounds."""
    durations = [1e3 * (end - start) for start, end in zip(times, times[1:], strict=False)]
    steady = durations[SKIPPED:]
    found = {"round": statistics.median(steady), "fastest": min(steady), "slowest": max(steady), "first": durations[0]}
    return {**settings, "rounds": len(steady), **{key: round(ms, 2) for key, ms in found.items()}, "moved": moved}


def pfl_rounds(settings: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Measures pfl's simulated backend in one process."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    class Network(nn.Module):
        """The methods that pfl expects of a module."""

        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self.network = network
            self.compiled = [torch.compile(network) if settings["compile"] else network]

        def loss(self, inputs: Any, targets: Any) -> Any:
            return functional.cross_entropy(self.compiled[0](inputs), targets)

        @torch.no_grad()
        def metrics(self, inputs: Any, targets: Any) -> Any:
            loss = functional.cross_entropy(self.network(inputs), targets, reduction="sum")
            return {"loss": Weighted(loss.item(), len(targets))}

    class Clock(TrainingProcessCallback):
        times: list[float] = []

        def on_train_begin(self, *, model: Any) -> Any:
            self.times.append(time.perf_counter())
            return Metrics()

        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            if device().type == "cuda":
                torch.cuda.synchronize()
            self.times.append(time.perf_counter())
            return False, Metrics()

    set_precision(settings["precision"])
    name, clients = settings["module"], settings["clients"]
    # The datasets keep their batches, which saves pfl the slicing in later rounds.
    datasets = [Dataset(raw_data=list(examples(name, place)), user_id=str(place)) for place in range(clients)]
    data = FederatedDataset(lambda place: datasets[place], get_user_sampler("minimize_reuse", list(range(clients))))
    network, clock = new_network(name), Clock()
    model = PyTorchModel(Network(network), torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=10**6, train_cohort_size=clients, val_cohort_size=0
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH
        ),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    return result(settings, clock.times, distance(network, new_network(name)))


@functools.cache
def cached_client(name: str, precision: str, compiled: bool) -> tuple[nn.Module, Any]:
    """Returns the module of a process of Ray, and the module that computes its outputs."""
    set_precision(precision)
    network = new_network(name)
    return network, torch.compile(network) if compiled else network


#: The examples on the GPU, which a process of Ray keeps between rounds.
cached_examples = functools.cache(examples)


def train_client(message: Any, context: Any) -> Any:
    """Trains a client of Flower."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    config = message.content["config"]
    name = config["module"]
    network, forward = cached_client(name, config["precision"], config["compile"])
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    inputs, targets = cached_examples(name, context.node_config["partition-id"])
    for batch, labels in zip(inputs.split(BATCH), targets.split(BATCH), strict=True):
        optimizer.zero_grad()
        functional.cross_entropy(forward(batch), labels).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(inputs)})
    return Message(RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics}), reply_to=message)


def flower_rounds(settings: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Measures Flower's simulation, whose processes of Ray share the GPU."""
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_memory_monitor_refresh_ms": "0"}
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    name, clients, actors = settings["module"], settings["clients"], settings["actors"]
    times: list[float] = []
    found: list[Any] = []

    class Clock(FedAvg):
        def configure_train(self, *args: Any, **options: Any) -> Any:
            if not times:
                times.append(time.perf_counter())
            return super().configure_train(*args, **options)

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            replies = list(replies)
            if failed := [reply for reply in replies if reply.has_error()]:
                raise RuntimeError(f"{len(failed)} clients failed: {failed[0].error.reason}")
            answer = super().aggregate_train(server_round, replies)
            times.append(time.perf_counter())
            return answer

    server, client = ServerApp(), ClientApp()
    client.train()(train_client)

    @server.main()
    def train_server(grid: Any, context: Any) -> None:
        strategy = Clock(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        initial, config = ArrayRecord(new_network(name).state_dict()), ConfigRecord(dict(settings))
        found.append(strategy.start(grid=grid, initial_arrays=initial, num_rounds=rounds, train_config=config))

    gpus = int(device().type == "cuda")
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": gpus / actors},
            "init_args": {"num_cpus": actors, "num_gpus": gpus, "include_dashboard": False},
        },
    )
    network = new_network(name)
    network.load_state_dict(found[0].arrays.to_torch_state_dict())
    return result(settings, times, distance(network, new_network(name)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=("pfl", "flower"))
    parser.add_argument("modules", nargs="*", default=list(MODULES))
    precision = parser.add_mutually_exclusive_group()
    for choice in ("tf32", "float32"):
        precision.add_argument(f"--{choice}", dest="precision", action="store_const", const=choice, default="default")
    parser.add_argument("--rounds", type=int, default=5 + SKIPPED)
    parser.add_argument("--clients", type=int, default=COHORT)
    parser.add_argument("--actors", type=int, default=8, help="Ray's processes (Flower)")
    parser.add_argument("--compile", action="store_true")
    chosen = parser.parse_args()
    if chosen.rounds <= SKIPPED:
        parser.error(f"at least {SKIPPED + 1} rounds are needed")
    for module in chosen.modules:
        settings = {"framework": chosen.framework, "module": module, "device": device().type}
        settings |= {"precision": chosen.precision, "compile": chosen.compile, "clients": chosen.clients}
        if chosen.framework == "pfl":
            found = pfl_rounds(settings, chosen.rounds)
        else:
            found = flower_rounds({**settings, "actors": chosen.actors}, chosen.rounds)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    # Ray's processes import the client from this module, which keeps its caches between rounds.
    import frameworks

    frameworks.main()
