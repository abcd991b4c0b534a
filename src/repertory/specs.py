"""What an environment looks like to agents and to experience, and what an array that workers share looks like.

Plain data, imported by all rooms, importing none.
"""

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
        """Bytes of the whole array."""
        return math.prod(self.shape) * int(np.dtype(self.dtype).itemsize)


@dataclass(frozen=True)
class Part:
    """A run of `size` stored numbers and how a network reads them.

    `number`: as they are. `pixel`: divided by 255. `category`: each is an index below `categories`, read one-hot.
    """

    kind: Literal["number", "pixel", "category"]
    size: int
    categories: int = 0
    wide: bool = False
    """In a row of bytes, each number is a float32 and takes four of them."""

    @property
    def stored(self) -> int:
        """How many elements of the stored observation this part takes."""
        return 4 * self.size if self.wide else self.size

    @property
    def width(self) -> int:
        """How many inputs of a network this part becomes."""
        return self.size * self.categories if self.kind == "category" else self.size


@dataclass(frozen=True)
class ObservationSpec:
    """One observation as stored (`shape`, `dtype`: a single frame) and as seen (`stack` of them)."""

    shape: tuple[int, ...]
    dtype: Literal["float32", "uint8"]
    parts: tuple[Part, ...]
    stack: int = 1
    padding: Padding = "repeat"
    pictures: tuple[str, ...] = ()
    """Pictures among several parts. They are flattened with the other parts, so no convolution reads them."""

    @property
    def seen_shape(self) -> tuple[int, ...]:
        """The shape that the environment returns and a network receives."""
        return (self.stack, *self.shape) if self.stack > 1 else self.shape

    @property
    def is_image(self) -> bool:
        """Whether a convolution makes sense: a stack of planes, or height × width × channels."""
        return len(self.seen_shape) == 3

    @property
    def planes_first(self) -> bool:
        """Whether an image's first axis counts its planes: it is then the shorter one."""
        return self.is_image and self.seen_shape[0] < self.seen_shape[2]

    @property
    def inputs(self) -> int:
        """How many inputs of a network one observation becomes."""
        return self.stack * sum(part.width for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of one stored observation."""
        return math.prod(self.shape) * (1 if self.dtype == "uint8" else 4)


@dataclass(frozen=True)
class EnvironmentSpec:
    """Everything that agents and experience need to know of an environment."""

    observation: ObservationSpec
    actions: int
    masked: bool = False
    frame_skip: int = 1
    first_action: int = 0
    """The environment's number for action 0."""
    space: str = ""
    """The observation space as text, by `environments/spaces.py`: how the environment's observations are read."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> EnvironmentSpec:
        """What `to_dict` wrote."""
        seen: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values["observation"].items()
        }
        seen["parts"] = tuple(Part(**part) for part in seen["parts"])
        return EnvironmentSpec(**{**values, "observation": ObservationSpec(**seen)})
