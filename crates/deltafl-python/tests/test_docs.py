"""The pages and notebooks for Python, run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


@pytest.mark.parametrize("page", ["python.md", "python-coming-from.md"])
def test_the_code_of_a_page_runs(root: Path, page: str) -> None:
    text = (root / "docs" / page).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)


@pytest.mark.parametrize(
    ("notebook", "needs"),
    [("first-run", "pyarrow"), ("own-model", "torch"), ("deployed", "numpy")],
)
def test_a_notebook_runs(root: Path, tmp_path: Path, notebook: str, needs: str) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip(needs)
    book = nbformat.read(root / "docs" / "notebooks" / f"{notebook}.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in book.cells), "notebooks are kept without their outputs"
    client = nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
