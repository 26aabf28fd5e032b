"""Checks the types of the package and runs the examples of its docstrings."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from test_docs import PAGES

import deltafl

PACKAGE = Path(deltafl.__file__).parent
USE = """
import numpy as np
import deltafl as dfl

fed = dfl.Federation({"a": (np.ones((2, 3), dtype=np.float32), np.array([0, 1]))})
out = dfl.train(fed, dfl.models.Linear(), [dfl.FedAvg(), dfl.DeltaFL(theta=[0.8, 0.5], quantile="open")],
                rounds=2, cohort=1, local=dfl.SGD(lr=0.1, batch=2))
name: str = out["theta=0.5"].name
value: float = dfl.superquantile([1.0, 2.0], 0.5)
"""
MISUSE = {
    'dfl.DeltaFL(theta="half")': "theta",
    "dfl.DeltaFL()": "theta",
    'dfl.DeltaFL(theta=0.5, quantile="guess")': "quantile",
    "x: str = dfl.superquantile([1.0], 0.5)": "float",
}


def checker(name: str, *files: Path | str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    pytest.importorskip(name)
    # pyright downloads its remaining files on the first run.
    if subprocess.run([sys.executable, "-m", name, "--version"], capture_output=True, check=False).returncode:
        pytest.skip(f"{name} does not run on this machine")
    command = {"mypy": ["mypy", "--strict", "--cache-dir", "/dev/null", "--follow-imports", "silent", "--python-version", "3.10"], "pyright": ["pyright", "--pythonversion", "3.10", "--pythonpath", sys.executable]}[name]
    return subprocess.run(
        [sys.executable, "-m", *command, *map(str, files)], text=True, capture_output=True, check=False, **kwargs
    )


def dependency(source: Path) -> str:
    """Returns the package that a module needs."""
    if source.parent.name == "torch":
        return "triton" if source.stem.endswith("_kernels") else "torch"
    return {"flower": "flwr", "jax": "jax"}.get(source.stem, "numpy")


def modules(package: Path, *, flower: bool) -> list[Path]:
    """Returns the modules of the package whose dependencies are installed."""
    return [
        source for source in sorted(package.rglob("*.py"))
        if importlib.util.find_spec(dependency(source)) and (flower or source.stem != "flower")
    ]


def test_mypy_accepts_the_package(root: Path) -> None:
    assert (PACKAGE / "py.typed").exists()
    sources = root / "crates/deltafl-python/python"
    done = checker("mypy", *modules(sources / "deltafl", flower=True), cwd=sources)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["mypy", "pyright"])
def test_the_stubs_accept_use_and_reject_misuse(name: str, tmp_path: Path) -> None:
    use = tmp_path / "use.py"
    use.write_text(USE)
    wrong = [tmp_path / f"misuse_{index}.py" for index in range(len(MISUSE))]
    for file, line in zip(wrong, MISUSE):
        file.write_text(f"import deltafl as dfl\n{line}\n")
    errors = [line for line in checker(name, use, *wrong).stdout.splitlines() if "error:" in line]
    assert not [error for error in errors if "use.py" in error and "misuse" not in error], errors
    for file, (line, about) in zip(wrong, MISUSE.items()):
        assert [error for error in errors if file.name in error and about in error], line


@pytest.mark.parametrize("module", ["_federation", "_superquantile", "_trainer", "__init__", "_algorithm", "metrics", "partition"])
def test_the_examples_of_the_docstrings_run(module: str) -> None:
    name = "deltafl" if module == "__init__" else f"deltafl.{module}"
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried > 0 and failed == 0


def test_the_stub_lists_all_names_of_the_module() -> None:
    stub = (PACKAGE / "_deltafl.pyi").read_text()
    held = [name for name in dir(deltafl._deltafl) if not name.startswith("_")]
    missing = [name for name in held if f"def {name}(" not in stub and f"class {name}:" not in stub]
    assert not missing


@pytest.mark.parametrize("name", ["mypy", "pyright"])
def test_the_snippets_of_the_documentation_are_typed(name: str, root: Path, tmp_path: Path) -> None:
    """Checks the code of all pages at once, each page as one strict module."""
    files = []
    for page in PAGES:
        found = re.findall(r"^```python( torch)?\n(.*?)^```", (root / page).read_text(), re.M | re.S)
        blocks = [block for needs, block in found if not needs or importlib.util.find_spec(needs.strip())]
        files.append(tmp_path / f"{Path(page).parent.name}_{Path(page).stem.replace('-', '_')}.py".lower())
        files[-1].write_text("# pyright: strict\n" + "\n\n".join(blocks))
    done = checker(name, *files)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pyright_accepts_the_package(root: Path, tmp_path: Path) -> None:
    """The modules of PyTorch are checked if it is installed."""
    package = root / "crates/deltafl-python"
    settings = json.loads(re.sub(r"^ *//.*$", "", (package / "pyrightconfig.json").read_text(), flags=re.M))
    assert settings["typeCheckingMode"] == "strict"
    assert not [name for name in settings if name.startswith("reportUnknown")]
    copied = tmp_path / "deltafl"
    shutil.copytree(package / "python/deltafl", copied, ignore=shutil.ignore_patterns("*.so"))
    for source in set(copied.rglob("*.py")) - set(modules(copied, flower=False)):
        source.unlink()
    if not (copied / "torch/__init__.py").exists():
        # The package mentions the module for type checkers only.
        init = copied / "__init__.py"
        init.write_text(init.read_text().replace("    from . import torch as torch\n", "    pass\n"))
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({**settings, "include": ["deltafl"], "exclude": []}))
    done = checker("pyright", "--project", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
