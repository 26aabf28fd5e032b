"""The built-in models, which the Rust kernels train.

A class sets the options of a model. The data determines the remaining sizes, such as the number of
features and classes. The field ``l2`` is λ of the penalty (λ/2)‖w‖².
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

__all__ = ["ConvNet", "Gru", "Linear", "Logistic", "Lstm", "Model", "Perceptron"]


@dataclass(frozen=True)
class Model:
    """The base class of the built-in models."""

    kind: ClassVar[str]

    def section(self) -> dict[str, Any]:
        """Returns the ``[model]`` section of an experiment file as a dict."""
        given = {key: value for key, value in asdict(self).items() if value is not None}
        return {"kind": self.kind, **given}


@dataclass(frozen=True)
class Linear(Model):
    """Softmax regression for classes, and linear regression for real targets."""

    kind: ClassVar[str] = "linear"
    l2: float = 0.0
    intercept: bool = False
    #: δ of the Huber loss, for real targets. None uses the squared loss.
    huber: float | None = None


@dataclass(frozen=True)
class Logistic(Model):
    """Binary logistic regression."""

    kind: ClassVar[str] = "logistic"
    l2: float = 0.0
    intercept: bool = False


@dataclass(frozen=True)
class ConvNet(Model):
    """A convolutional network for square images, as used for EMNIST."""

    kind: ClassVar[str] = "conv-net"
    l2: float = 0.0
    channels: tuple[int, int] = (32, 64)


@dataclass(frozen=True)
class Lstm(Model):
    """An LSTM on frozen word vectors."""

    kind: ClassVar[str] = "lstm"
    l2: float = 0.0
    hidden: int = 50


@dataclass(frozen=True)
class Gru(Model):
    """A GRU on symbols that predicts the next symbol."""

    kind: ClassVar[str] = "gru"
    l2: float = 0.0
    hidden: int = 128
    #: The dimension of a trained embedding. 0 uses one-hot inputs.
    embedding: int = 0


@dataclass(frozen=True)
class Perceptron(Model):
    """A perceptron with one hidden layer."""

    kind: ClassVar[str] = "perceptron"
    l2: float = 0.0
    hidden: int = 100
