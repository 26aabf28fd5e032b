"""Writes the API reference of the book from the docstrings of the package.

python crates/deltafl-python/generate_reference.py          # needs the built package
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

HEAD = """# Python API

This page is generated from the docstrings by `crates/deltafl-python/generate_reference.py`. The
[overview](python.md) groups the classes by purpose, and `help(dfl.train)` prints the same text.
"""

#: The modules and their introductions. The classes of an empty list are all public names.
MODULES: dict[str, list[str]] = {
    "deltafl": [],
    "deltafl.models": [],
    "deltafl.partition": [],
    "deltafl.metrics": [],
    "deltafl.callbacks": [],
    "deltafl.errors": [],
}

#: Names that another section or page describes.
SKIPPED = {"__version__", "callbacks", "errors", "metrics", "models", "partition"}


def sections() -> str:
    """Returns the page."""
    text = HEAD
    for name in MODULES:
        module = importlib.import_module(name)
        exported = sorted(set(module.__all__) - SKIPPED, key=lambda name: (name.lower(), name))
        if name == "deltafl":
            own = set(importlib.import_module("deltafl.errors").__all__)
            algorithms = set(importlib.import_module("deltafl._algorithms").__all__)
            text += "\n## deltafl\n" + entries(module, [n for n in exported if n not in own | algorithms])
            text += "\n## Built-in algorithms\n\nThey are classes of the module `deltafl`.\n"
            text += entries(module, [n for n in exported if n in algorithms])
            continue
        summary = (module.__doc__ or "").split("\n\n")[0]
        text += f"\n## {name}\n\n{inline(summary)}\n{entries(module, exported)}"
    return text


def entries(module: Any, names: list[str]) -> str:
    """Returns the descriptions of some names of a module."""
    return "".join(entry(name, getattr(module, name)) for name in names)


def entry(name: str, value: Any) -> str:
    """Returns the description of a function, or of a class with its methods."""
    text = f"\n### {name}\n\n```text\n{signature(name, value)}\n```\n\n{body(value)}"
    if not inspect.isclass(value):
        return text
    text += "\n" if commented(value) else ""
    for field, about in commented(value).items():
        text += bullet(field, about) + "\n"
    for method, function in sorted(vars(value).items()):
        target = function.__func__ if isinstance(function, (classmethod, staticmethod)) else function
        if method.startswith("_") or not (inspect.isfunction(target) or isinstance(target, property)):
            continue
        if isinstance(target, property):
            text += f"\n**`{method}`** (property)\n\n{body(target)}"
        else:
            text += f"\n```text\n{signature(f'{name}.{method}', target)}\n```\n\n{body(target)}"
    return text


def signature(name: str, value: Any) -> str:
    """Returns the signature, with one parameter per line if it is long."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    kept = [parameter for parameter in found.parameters.values() if parameter.name not in ("self", "cls")]
    found = found.replace(parameters=kept)
    # Types are strings, and the value of a default factory has an address.
    text = re.sub(r"'([^'\n]*)'", lambda match: match[1] if is_type(match[1]) else match[0], f"{name}{found}")
    text = re.sub(r" = <factory>", "", text)
    if len(text) <= 96:
        return text
    inner = text[len(name) + 1 : text.rindex(")")]
    parts = re.split(r", (?=[*\w]+(?:: | = |$|,))(?![^\[]*\])", inner)
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + text[text.rindex(")") :]


def is_type(text: str) -> bool:
    """Returns True for an annotation, and False for a default value that is a string."""
    return bool(re.search(r"[A-Z\[|]|^(str|int|float|bool|object|list|dict|tuple)$", text))


def commented(kind: type) -> dict[str, str]:
    """Returns the fields of a class with the comment ``#:`` before them."""
    try:
        source = inspect.getsource(kind)
    except OSError:
        return {}
    found = re.findall(r"((?:^    #: .*\n)+)    (\w+)(?::|\s=)", source, re.M)
    return {name: " ".join(re.findall(r"#: (.*)", comment)) for comment, name in found if not name.startswith("_")}


def body(value: Any) -> str:
    """Returns a docstring as Markdown."""
    lines = inspect.cleandoc(value.__doc__ or "").split("\n")
    text, index = "", 0
    while index < len(lines):
        title = re.fullmatch(r"(Args|Returns|Raises|Attributes|Yields):", lines[index])
        if title:
            block = []
            index += 1
            while index < len(lines) and (not lines[index] or lines[index].startswith("    ")):
                block.append(lines[index])
                index += 1
            text += f"\n*{ {'Args': 'Arguments'}.get(title[1], title[1]) }*\n\n{items(block, title[1])}\n"
        elif lines[index].startswith(">>>"):
            block = []
            while index < len(lines) and lines[index].strip():
                block.append(lines[index])
                index += 1
            text += "```text\n" + "\n".join(block) + "\n```\n"
        elif re.match(r"=+  =", lines[index]):
            rows = [lines[index]]
            index += 1
            while index < len(lines) and lines[index].strip():
                rows.append(lines[index])
                index += 1
            text += table(rows)
        else:
            text += inline(lines[index]) + "\n"
            index += 1
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def table(rows: list[str]) -> str:
    """Returns a simple table of reStructuredText as Markdown."""
    cells = [re.split(r"\s{2,}", row.strip()) for row in rows if not row.startswith("=")]
    lines = [" | ".join(inline(cell) for cell in row) for row in cells]
    return "\n".join(f"| {line} |" for line in [lines[0], " | ".join("---" for _ in cells[0]), *lines[1:]]) + "\n"


def items(block: list[str], title: str) -> str:
    """Returns the entries of a section as a list."""
    text = textwrap.dedent("\n".join(block)).strip()
    if title in ("Returns", "Yields"):
        return inline(text) + "\n"
    listed = re.split(r"\n(?=\S)", text)
    lines = []
    for item in listed:
        name, _, about = re.sub(r"\s+", " ", item).partition(": ")
        lines.append(bullet(name, about))
    return "\n".join(lines) + "\n"


def bullet(name: str, about: str) -> str:
    """Returns an entry of a list, in lines of at most 100 columns."""
    text = f"- `{name}`: {inline(about)}"
    return textwrap.fill(text, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def inline(text: str) -> str:
    """Converts the marks of reStructuredText to those of Markdown."""
    text = re.sub(r":(?:class|func|meth|attr):`([^`]*)`", r"`\1`", text)
    return re.sub(r"``([^`]*)``", r"`\1`", text)


if __name__ == "__main__":
    page = Path(__file__).resolve().parents[2] / "docs/src/reference/python-api.md"
    page.write_text(sections())
