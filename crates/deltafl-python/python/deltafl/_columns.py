"""The columns of tables: features, targets and missing values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidInput

__all__ = ["check_columns", "class_targets", "column_names", "feature_values", "missing_values"]

Array = NDArray[Any]
#: The largest number of names in a message.
_SHOWN = 10


def column_names(table: Any) -> list[str]:
    """Returns the names of the columns of a table. Arrays and numbered columns have no names."""
    columns = getattr(table, "column_names", None)
    columns = getattr(table, "columns", None) if columns is None else columns
    names: list[Any] = [] if columns is None or callable(columns) else list(columns)
    named = all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    return [str(name) for name in names] if named else []


def check_columns(what: str, found: Sequence[str], expected: Sequence[str]) -> None:
    """Rejects columns that lack some of the expected names."""
    missing = [name for name in expected if name not in set(found)]
    if missing:
        unknown = [name for name in found if name not in set(expected)]
        others = f"; unknown are {_listed(unknown)}" if unknown else ""
        raise InvalidInput(f"{what} have other columns than the training data: missing are {_listed(missing)}{others}")


def _listed(names: Sequence[str]) -> str:
    """Returns the first names and the number of the others."""
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def missing_values(values: Array) -> Any:
    """Returns a mask of the values that are None or NaN."""
    if values.dtype == object:
        return np.array([value is None or value != value for value in values.tolist()], dtype=bool)
    if np.issubdtype(values.dtype, np.floating):
        return np.isnan(values)
    return np.zeros(len(values), dtype=bool)


def feature_values(column: str, values: Any) -> Array:
    """Returns a column of features as float32."""
    array = np.asarray(values)
    if np.issubdtype(array.dtype, np.datetime64) or np.issubdtype(array.dtype, np.timedelta64):
        raise InvalidInput(
            f"column {column!r} contains dates or durations, which are not features: convert it to numbers, "
            "or list the features with features=[…]"
        )
    try:
        numbers = array.astype(np.float32)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"column {column!r} contains {_example(array)}, which is not a number: convert it to numbers, "
            "or list the features with features=[…]"
        ) from None
    missing = int(np.isnan(numbers).sum())
    if missing:
        raise InvalidInput(f"column {column!r}: {missing} rows have no value")
    return numbers


def _example(values: Array) -> str:
    for value in values.tolist():
        try:
            float(value)
        except (TypeError, ValueError):
            return repr(value)
    return repr(values.tolist()[0])


def class_targets(targets: Any) -> tuple[Array, list[str]]:
    """Returns targets as an array. Strings and categories become classes with names."""
    categories = getattr(getattr(targets, "cat", None), "categories", None)
    array = np.asarray(targets)
    if array.dtype.kind in "US" or (array.dtype == object and _all_text(array)) or categories is not None:
        named = [str(value) for value in array.tolist()]
        names = sorted(set(named)) if categories is None or callable(categories) else [str(c) for c in categories]
        code = {name: index for index, name in enumerate(names)}
        return np.array([code[name] for name in named], dtype=np.int64), names
    return array, []


def _all_text(values: Array) -> bool:
    return all(isinstance(value, str) for value in values.tolist())
