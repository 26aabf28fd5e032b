"""Tables that polars, pandas and pyarrow read without a copy."""

from __future__ import annotations

from typing import Any

from . import _deltafl

__all__ = ["Table"]


class Table:
    """A table by the Arrow PyCapsule interface: ``polars.DataFrame(table)``, ``pyarrow.table(table)``, or the methods.

    The columns stay where the Rust code has them.
    """

    def __init__(self, inner: _deltafl.Table) -> None:
        self._inner = inner

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._inner.__arrow_c_stream__(requested_schema)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return self._inner.columns

    def __len__(self) -> int:
        return len(self._inner)

    def to_polars(self) -> Any:
        """As a ``polars.DataFrame``."""
        import polars  # type: ignore[import-not-found, unused-ignore]

        return polars.DataFrame(self)

    def to_arrow(self) -> Any:
        """As a ``pyarrow.Table``."""
        import pyarrow  # type: ignore[import-not-found, import-untyped, unused-ignore]

        return pyarrow.table(self)

    def to_pandas(self) -> Any:
        """As a ``pandas.DataFrame``."""
        return self.to_arrow().to_pandas()

    def __repr__(self) -> str:
        return f"Table of {len(self)} rows: {', '.join(self.columns)}"
