"""Tables that polars, pandas and pyarrow can read without a copy."""

from __future__ import annotations

from typing import Any

from . import _deltafl

__all__ = ["Table"]


class Table:
    """A table that implements the Arrow PyCapsule interface.

    Pass it to ``polars.DataFrame`` or ``pyarrow.table``, or use the methods below. The columns
    remain in the memory of the Rust code and are not copied.
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
        """Returns the table as a ``polars.DataFrame``. Requires polars."""
        import polars  # type: ignore[import-not-found, unused-ignore]

        return polars.DataFrame(self)

    def to_arrow(self) -> Any:
        """Returns the table as a ``pyarrow.Table``. Requires pyarrow."""
        import pyarrow  # type: ignore[import-not-found, import-untyped, unused-ignore]

        return pyarrow.table(self)

    def to_pandas(self) -> Any:
        """Returns the table as a ``pandas.DataFrame``. Requires pandas and pyarrow."""
        return self.to_arrow().to_pandas()

    def __repr__(self) -> str:
        return f"Table of {len(self)} rows: {', '.join(self.columns)}"
