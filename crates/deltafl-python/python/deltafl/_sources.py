"""Devices from PyTorch data sets and data loaders, and from Hugging Face ``datasets``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ._kinds import is_array, is_list, is_mapping
from .errors import InvalidInput

__all__ = ["columns_of", "device_arrays", "is_source"]


def is_source(value: Any) -> bool:
    """Returns True for a data set or a data loader, and False for a tuple of arrays."""
    if isinstance(value, (tuple, list, np.ndarray)):
        return False
    return hasattr(value, "column_names") or hasattr(value, "dataset") or _is_map_style(value)


def _is_map_style(value: Any) -> bool:
    return hasattr(value, "__getitem__") and hasattr(value, "__len__") and not isinstance(value, (str, Mapping))


def device_arrays(id: str, source: Any) -> tuple[Any, Any]:
    """Returns the inputs and targets of a data set or a data loader of pairs.

    The order of the examples is that of the data set. A sampler that shuffles is not used.
    """
    if hasattr(source, "column_names"):
        raise InvalidInput(f"device {id!r}: use Federation.from_dataset, which names the columns")
    data = getattr(source, "dataset", source)
    if _is_map_style(data):
        pairs: Iterable[Any] = (data[index] for index in range(len(data)))
    else:
        # An iterable data set: the loader yields batches.
        pairs = (pair for batch in source for pair in zip(*batch))
    inputs: list[Any] = []
    targets: list[Any] = []
    for pair in pairs:
        if not is_list(pair) or len(pair) != 2:
            raise InvalidInput(f"device {id!r}: an example of the data set must be a pair (input, target)")
        inputs.append(pair[0])
        targets.append(pair[1])
    if not inputs:
        raise InvalidInput(f"device {id!r} has no examples")
    wanted: Any = np.asarray([np.asarray(target) for target in targets])
    return gathered(inputs), wanted


def columns_of(dataset: Any, inputs: str | Sequence[str], target: str) -> tuple[Any, Any]:
    """Returns the inputs and targets of a Hugging Face data set."""
    names = list(dataset.column_names)
    wanted = [inputs] if isinstance(inputs, str) else list(inputs)
    for column in (*wanted, target):
        if column not in names:
            raise InvalidInput(f"the data set has no column {column!r}; its columns are {', '.join(names)}")
    columns = {column: gathered(list(dataset[column])) for column in wanted}
    targets = gathered(list(dataset[target]))
    return (columns[inputs] if isinstance(inputs, str) else columns), targets


def gathered(values: Sequence[Any]) -> Any:
    """Returns one array of equal examples: arrays, tensors, images or numbers.

    Examples of different lengths remain a list. Strings become an array of strings.
    """
    if is_mapping(values[0]):
        return {name: gathered([value[name] for value in values]) for name in values[0]}
    arrays = [np.asarray(value) for value in values]
    same = all(array.shape == arrays[0].shape for array in arrays)
    return np.stack(arrays) if same else arrays


def rows_of(value: Any, places: Any) -> Any:
    """Returns some examples of an array, of a list of arrays, or of a dict of either."""
    if is_mapping(value):
        return {name: rows_of(column, places) for name, column in value.items()}
    return value[places] if is_array(value) else [value[place] for place in places]
