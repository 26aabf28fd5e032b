"""Tables that polars, pandas and pyarrow can read without a copy."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _deltafl

__all__ = ["Table"]


class Table:
    """A table that implements the Arrow PyCapsule interface.

    Pass it to ``polars.DataFrame`` or ``pyarrow.table``, or use the methods below. The columns
    remain in the memory of the Rust code and are not copied.
    """

    def __init__(self, inner: _deltafl.Table) -> None:
        self._inner = inner

    @classmethod
    def from_columns(cls, columns: Mapping[str, Sequence[str] | NDArray[Any]]) -> Table:
        """Returns a table of columns: strings, or numbers that are stored as float64."""
        return cls(_deltafl.Table.of_columns([(name, _column(values)) for name, values in columns.items()]))

    def to_dict(self) -> dict[str, list[Any]]:
        """Returns the columns as lists. Missing values are None."""
        return dict(self._inner.to_columns())

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self._inner.to_bytes(),)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._inner.__arrow_c_stream__(requested_schema)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return self._inner.columns

    def __len__(self) -> int:
        return len(self._inner)

    def to_polars(self) -> Any:
        """Returns the table as a ``polars.DataFrame``. Requires polars."""
        return _package("polars").DataFrame(self)

    def to_arrow(self) -> Any:
        """Returns the table as a ``pyarrow.Table``. Requires pyarrow."""
        return _package("pyarrow").table(self)

    def to_pandas(self) -> Any:
        """Returns the table as a ``pandas.DataFrame``. Requires pandas and pyarrow."""
        _package("pandas")
        return self.to_arrow().to_pandas()

    def __repr__(self) -> str:
        return f"Table of {len(self)} rows: {', '.join(self.columns)}"


def _restored(content: bytes) -> Table:
    """Creates a table from its pickled content."""
    return Table(_deltafl.Table.of_bytes(content))


def _package(name: str) -> Any:
    """Returns a package that a conversion needs."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"the conversion needs the package {name}: pip install {name}") from error


def _column(values: Sequence[Any] | NDArray[Any]) -> list[str] | NDArray[np.float64]:
    """Returns strings as a list and numbers as float64. A missing value is NaN, or empty text."""
    listed = list(values)
    if any(isinstance(value, str) for value in listed):
        return ["" if value is None else str(value) for value in listed]
    return np.array([np.nan if value is None else value for value in listed], dtype=np.float64)
