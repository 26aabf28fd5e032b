"""Writes ``python/deltafl/_algorithms.py`` from the table of algorithms in the Rust code.

python crates/deltafl-python/generate_algorithms.py          # needs the built package
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HEAD = '''"""The algorithms, a class each: made by generate_algorithms.py from the table of the Rust code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

__all__ = {names}


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One way to train a model; an option that takes a sequence makes a model of each of its values."""

    kind: ClassVar[str]

    def section(self) -> dict[str, Any]:
        """The section ``[[algorithm]]`` of an experiment."""
        given = {{field.name: getattr(self, field.name) for field in fields(self)}}
        listed = {{
            name: list(value) if isinstance(value, tuple) else value for name, value in given.items()
        }}
        return {{"kind": self.kind, **{{name: v for name, v in listed.items() if v is not None}}}}
'''


def class_name(algorithm: dict[str, Any]) -> str:
    return str(algorithm["title"]).replace("Δ", "Delta").replace("-", "")


def annotation(option: dict[str, Any]) -> str:
    if option["kind"] == "word":
        one = f"Literal[{', '.join(json.dumps(word) for word in option['words'])}]"
    else:
        one = "float" if option["kind"] == "real" else "int"
    return f"{one} | Sequence[{one}]" if option["levels"] else one


def line(option: dict[str, Any]) -> str:
    about = f"    #: {option['symbol']}: {option['about']} ({option['range']}).\n"
    field = f"    {option['name']}: {annotation(option)}"
    if option["default"] is None:
        return about + field
    return about + f"{field} = {json.dumps(option['default'])}"


def source(table: list[dict[str, Any]]) -> str:
    names = sorted(["Algorithm", *(class_name(algorithm) for algorithm in table)])
    text = HEAD.format(names=json.dumps(names))
    for algorithm in table:
        about = algorithm["about"][0].upper() + algorithm["about"][1:]
        required = [option for option in algorithm["options"] if option["default"] is None]
        others = [option for option in algorithm["options"] if option["default"] is not None]
        text += f'\n\n@dataclass(frozen=True, kw_only=True)\nclass {class_name(algorithm)}(Algorithm):\n'
        text += f'    """{algorithm["title"]}: {about}."""\n\n'
        text += f'    kind: ClassVar[str] = {json.dumps(algorithm["kind"])}\n'
        text += "".join(line(option) + "\n" for option in [*required, *others])
        text += "    #: λ of the penalty (λ/2)‖w‖² of this algorithm; None is that of the model.\n"
        text += "    l2: float | None = None\n"
    return text


if __name__ == "__main__":
    from deltafl import _deltafl

    target = Path(__file__).parent / "python" / "deltafl" / "_algorithms.py"
    target.write_text(source(json.loads(_deltafl.algorithms())))
