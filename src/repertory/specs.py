"""Specs of environments, and of the arrays that workers share. Plain data, imported by all packages."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Padding = Literal["repeat", "zero"]


@dataclass(frozen=True)
class Field:
    """One array that workers share: which side of a channel writes it, and the counter that commits it, if any."""

    shape: tuple[int, ...]
    dtype: str
    writer: str = "writer"
    commit: str = ""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * int(np.dtype(self.dtype).itemsize)


@dataclass(frozen=True)
class Part:
    """`size` consecutive stored numbers and how a network reads them.

    `number`: as they are. `pixel`: divided by 255. `category`: each is an index below `categories`, read one-hot.
    """

    kind: Literal["number", "pixel", "category"]
    size: int
    categories: int = 0
    wide: bool = False
    """Each number is a float32 that is stored as four bytes of a uint8 observation."""

    @property
    def stored(self) -> int:
        """Number of elements of the stored observation."""
        return 4 * self.size if self.wide else self.size

    @property
    def width(self) -> int:
        """Number of inputs of a network."""
        return self.size * self.categories if self.kind == "category" else self.size


@dataclass(frozen=True)
class ObservationSpec:
    """One observation as stored (`shape`, `dtype`: a single frame) and as seen (`stack` frames)."""

    shape: tuple[int, ...]
    dtype: Literal["float32", "uint8"]
    parts: tuple[Part, ...]
    stack: int = 1
    padding: Padding = "repeat"
    pictures: tuple[str, ...] = ()
    """Names of pictures among several parts; they are flattened with the others, so no convolution reads them."""

    @property
    def seen_shape(self) -> tuple[int, ...]:
        """The shape that the environment returns and a network receives."""
        return (self.stack, *self.shape) if self.stack > 1 else self.shape

    @property
    def is_image(self) -> bool:
        """Whether a convolution can read it: a stack of planes, or height × width × channels."""
        return len(self.seen_shape) == 3

    @property
    def planes_first(self) -> bool:
        """Whether the first axis of an image counts its planes: it is then shorter than the last."""
        return self.is_image and self.seen_shape[0] < self.seen_shape[2]

    @property
    def inputs(self) -> int:
        return self.stack * sum(part.width for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of one stored observation."""
        return math.prod(self.shape) * (1 if self.dtype == "uint8" else 4)


@dataclass(frozen=True)
class EnvironmentSpec:
    observation: ObservationSpec
    actions: int
    masked: bool = False
    frame_skip: int = 1
    first_action: int = 0
    """The environment's number for action 0."""
    space: str = ""
    """The observation space as text of `environments/spaces.py`."""

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> EnvironmentSpec:
        seen: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values["observation"].items()
        }
        seen["parts"] = tuple(Part(**part) for part in seen["parts"])
        return EnvironmentSpec(**{**values, "observation": ObservationSpec(**seen)})
