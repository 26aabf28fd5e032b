"""PyTorch support: a trainer for modules, and a differentiable superquantile."""

from __future__ import annotations

from ._module import Module
from ._superquantile import superquantile

__all__ = ["Module", "superquantile"]
