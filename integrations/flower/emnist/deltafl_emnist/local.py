"""The app with every client in this process: Flower's strategies and messages without its transport.

python -m deltafl_emnist.local KEY=VALUE …

The keys are those of ``[tool.flwr.app.config]``. A client per train writer; a round costs what its clients compute, so that
hundreds of rounds fit into minutes. Clients answer one after the other in the order of their nodes.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity


class Grid:
    """Clients of an app, each with the partition of its node."""

    def __init__(self, app: ClientApp, config: dict[str, Any], clients: int) -> None:
        self._app = app
        self._contexts = {
            node: Context(
                run_id=1, node_id=node, node_config={"partition-id": node - 1}, state=RecordDict(), run_config=config
            )
            for node in range(1, clients + 1)
        }

    def get_node_ids(self) -> list[int]:
        """The nodes of the clients."""
        return list(self._contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """The answers of the clients."""
        return [self._app(message, self._contexts[message.metadata.dst_node_id]) for message in messages]


def identify() -> None:
    """Tells Flower who this process is; a SuperLink tells the processes that it starts."""
    for name in ("_task_id", "_run_id", "_node_id"):
        setattr(TaskIdentity, name, 1)


def overridden(config: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """The configuration with the values of KEY=VALUE, each of the type that its key has."""
    config = dict(config)
    for word in words:
        key, _, value = word.partition("=")
        if key not in config:
            raise SystemExit(f"there is no key {key!r}: the keys are {', '.join(config)}")
        try:
            config[key] = type(config[key])(value)
        except ValueError:
            raise SystemExit(f"{key} is {type(config[key]).__name__}, and {value!r} is none") from None
    return config


def main() -> None:
    """Runs the server of the app on the clients."""
    identify()
    # They make messages, so they come after the identity.
    from .client_app import app as client
    from .server_app import app as server
    from .task import writers

    file = Path(__file__).parent.parent / "pyproject.toml"
    config = overridden(tomllib.loads(file.read_text())["tool"]["flwr"]["app"]["config"], sys.argv[1:])
    grid = Grid(client, config, len(writers(config).split("train")))
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    server(grid, context)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
