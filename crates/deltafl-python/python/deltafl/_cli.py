"""The command ``deltafl``."""

from __future__ import annotations

import sys

from . import _deltafl


def main() -> None:
    """Runs the command with the words of this process."""
    sys.exit(_deltafl.command(["deltafl", *sys.argv[1:]]))
