"""What an environment looks like to agents and to experience: plain data, imported by both, importing neither."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Padding = Literal["repeat", "zero"]


@dataclass(frozen=True)
class Part:
    """A run of `size` stored numbers and how a network reads them.

    `number`: as they are. `pixel`: divided by 255. `category`: each is an index below `categories`, read one-hot.
    """

    kind: Literal["number", "pixel", "category"]
    size: int
    categories: int = 0

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
