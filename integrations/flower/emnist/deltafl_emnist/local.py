"""Runs the app with all clients in one process.

python -m deltafl_emnist.local KEY=VALUE …

The keys are those of ``[tool.flwr.app.config]``. The program uses Flower's strategies and messages
without its transport, so that hundreds of rounds take minutes. Each training writer is one client.
The clients reply one after another in the order of their nodes.
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
    """The clients of an app, each with the partition of its node."""

    def __init__(self, app: ClientApp, config: dict[str, Any], clients: int) -> None:
        self._app = app
        self._contexts = {
            node: Context(
                run_id=1, node_id=node, node_config={"partition-id": node - 1}, state=RecordDict(), run_config=config
            )
            for node in range(1, clients + 1)
        }

    def get_node_ids(self) -> list[int]:
        """Returns the nodes of the clients."""
        return list(self._contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Returns the replies of the clients."""
        return [self._app(message, self._contexts[message.metadata.dst_node_id]) for message in messages]


def identify() -> None:
    """Sets the task identity of this process, which a SuperLink sets for its processes."""
    for name in ("_task_id", "_run_id", "_node_id"):
        setattr(TaskIdentity, name, 1)


def overridden(config: dict[str, Any], arguments: list[str]) -> dict[str, Any]:
    """Returns the configuration with the values of KEY=VALUE, converted to the type of their key."""
    config = dict(config)
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key not in config:
            raise SystemExit(f"unknown key {key!r}: the keys are {', '.join(config)}")
        try:
            config[key] = type(config[key])(value)
        except ValueError:
            kind = type(config[key]).__name__
            raise SystemExit(f"{key} must be of type {kind}, got {value!r}") from None
    return config


def main() -> None:
    """Runs the server of the app with the clients."""
    identify()
    # These modules create messages, which requires the identity.
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
