"""The tables of other libraries are complete. The libraries are read and not imported."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

#: Packages of Flower that are programs or generated code.
_PROGRAMS = {"supercore", "superlink", "supernode", "cli", "proto", "compat"}


def package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{name} is not installed")
    return Path(next(iter(found.submodule_search_locations)))


def flower(root: Path) -> Iterator[str]:
    """Yields the public classes and types: the names in `__all__`, except functions and constants."""
    for file in root.rglob("__init__.py"):
        if _PROGRAMS & set(file.relative_to(root).parts):
            continue
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                yield from (name for name in ast.literal_eval(node.value) if name[0].isupper() and not name.isupper())


def pfl(root: Path) -> Iterator[str]:
    """Yields the public classes of all modules, except those of `internal`."""
    for file in root.rglob("*.py"):
        parts = file.relative_to(root).parts
        if parts[0] != "internal" and not any(part.startswith("_") for part in parts):
            nodes = ast.parse(file.read_text()).body
            yield from (n.name for n in nodes if isinstance(n, ast.ClassDef) and n.name[0] != "_")


@pytest.mark.parametrize(("name", "classes"), [("flwr", flower), ("pfl", pfl)])
def test_every_public_class_has_a_row(root: Path, name: str, classes: object) -> None:
    assert callable(classes)
    page = (root / "docs/src/how-to/python-coming-from.md").read_text()
    rows = "\n".join(line for line in page.splitlines() if line.startswith("|"))
    known = set(re.findall(r"\w+", rows))
    found = set(classes(package(name)))
    assert len(found) > 50 and not found - known, sorted(found - known)
