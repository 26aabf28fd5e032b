"""Runs the Python code of the documentation pages and the notebooks."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


#: The pages whose Python code runs in order, as one program each.
PAGES = [
    "crates/deltafl-python/README.md",
    "docs/src/tutorials/python.md",
    "docs/src/how-to/python.md",
    "docs/src/how-to/python-coming-from.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(root: Path, page: str) -> None:
    text = (root / page).read_text()
    blocks = re.findall(r"^```python( torch)?\n(.*?)^```", text, re.M | re.S)
    assert blocks
    names: dict[str, object] = {}
    for needs, block in blocks:
        if not needs or importlib.util.find_spec(needs.strip()):
            exec(compile(block, page, "exec"), names)


@pytest.mark.parametrize(
    ("notebook", "needs"),
    [("first-run", "pyarrow"), ("own-model", "torch"), ("deployed", "numpy")],
)
def test_a_notebook_runs(root: Path, tmp_path: Path, notebook: str, needs: str) -> None:
    """Runs in a Jupyter kernel if nbclient and ipykernel are installed, otherwise in a process."""
    pytest.importorskip(needs)
    path = root / "docs/src/tutorials/notebooks" / f"{notebook}.ipynb"
    cells = json.loads(path.read_text())["cells"]
    assert all(not cell.get("outputs") for cell in cells), "notebooks are stored without outputs"
    if importlib.util.find_spec("nbclient") and importlib.util.find_spec("ipykernel"):
        import nbclient
        import nbformat

        book = nbformat.read(path, as_version=4)
        client = nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
        client.execute()
        return
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    program = "import json, sys\nfrom test_docs import run_cells\nrun_cells(json.load(sys.stdin))\n"
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(code), text=True, capture_output=True, check=False,
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
    )
    assert done.returncode == 0, done.stderr


def test_the_reference_page_is_generated_from_the_docstrings(root: Path) -> None:
    generate = runpy.run_path(str(root / "crates/deltafl-python/generate_reference.py"))
    page = (root / "docs/src/reference/python-api.md").read_text()
    assert page == generate["sections"](), "run crates/deltafl-python/generate_reference.py"


def run_cells(cells: list[str]) -> None:
    """Runs cells in one namespace and prints the last expression of each, as a notebook does."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        tree = ast.parse(cell, f"cell {number}")
        shown = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"cell {number}", "exec"), names)
        if isinstance(shown, ast.Expr):
            value = eval(compile(ast.Expression(shown.value), f"cell {number}", "eval"), names)
            print(value._repr_html_() if hasattr(value, "_repr_html_") else repr(value))
