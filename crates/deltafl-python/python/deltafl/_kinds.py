"""Tests of the type of a value that leave its static type as it is.

``isinstance(value, list)`` turns ``Any`` into a list of unknown entries, which strict type checkers
reject in every later use.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

__all__ = ["is_array", "is_list", "is_mapping", "is_tuple"]


def is_array(value: object) -> bool:
    """Returns True for a numpy array."""
    return isinstance(value, np.ndarray)


def is_list(value: object) -> bool:
    """Returns True for a list or a tuple."""
    return isinstance(value, (list, tuple))


def is_mapping(value: object) -> bool:
    """Returns True for a dict or another mapping."""
    return isinstance(value, Mapping)


def is_tuple(value: object) -> bool:
    """Returns True for a tuple."""
    return isinstance(value, tuple)
