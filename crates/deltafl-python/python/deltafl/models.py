"""The models that the Rust kernels train: each a few sizes, the rest comes from the data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

__all__ = ["ConvNet", "Gru", "Linear", "Logistic", "Lstm", "Model", "Perceptron"]


@dataclass(frozen=True)
class Model:
    """A model by name, as the section ``[model]`` of an experiment has it."""

    kind: ClassVar[str]

    def section(self) -> dict[str, Any]:
        """The section of an experiment."""
        given = {key: value for key, value in asdict(self).items() if value is not None}
        return {"kind": self.kind, **given}


@dataclass(frozen=True)
class Linear(Model):
    """Softmax regression; linear regression where targets are real numbers."""

    kind: ClassVar[str] = "linear"
    l2: float = 0.0
    intercept: bool = False
    #: δ of the Huber loss, for real numbers; without it, the squared loss.
    huber: float | None = None


@dataclass(frozen=True)
class Logistic(Model):
    """Binary logistic regression."""

    kind: ClassVar[str] = "logistic"
    l2: float = 0.0
    intercept: bool = False


@dataclass(frozen=True)
class ConvNet(Model):
    """The convolutional network of EMNIST, for square images."""

    kind: ClassVar[str] = "conv-net"
    l2: float = 0.0
    channels: tuple[int, int] = (32, 64)


@dataclass(frozen=True)
class Lstm(Model):
    """The LSTM over frozen word vectors."""

    kind: ClassVar[str] = "lstm"
    l2: float = 0.0
    hidden: int = 50


@dataclass(frozen=True)
class Gru(Model):
    """The GRU over symbols."""

    kind: ClassVar[str] = "gru"
    l2: float = 0.0
    hidden: int = 128
    #: Entries of a trained embedding; 0 is one-hot input.
    embedding: int = 0


@dataclass(frozen=True)
class Perceptron(Model):
    """A perceptron with one hidden layer."""

    kind: ClassVar[str] = "perceptron"
    l2: float = 0.0
    hidden: int = 100
