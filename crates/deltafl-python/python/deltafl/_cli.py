"""The entry point of the command ``deltafl``."""

from __future__ import annotations

import sys

from . import _deltafl


def main() -> None:
    """Runs the command with the arguments of this process and exits with its status."""
    sys.exit(_deltafl.command(["deltafl", *sys.argv[1:]]))
