"""Ranges of options, written beside the field: `pull_period: Positive[int] = 400`."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from repertory.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class Range:
    """From `low` to `high`; with `open_low`, `low` itself is excluded."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False

    def complaint(self, value: float) -> str:
        """What is wrong with a value, as the end of a sentence; empty if it is in the range."""
        if (self.low < value if self.open_low else self.low <= value) and value <= self.high:
            return ""
        low, high = (int(end) if math.isfinite(end) and end == int(end) else end for end in (self.low, self.high))
        if math.isfinite(high) and not self.open_low:
            return f"must lie between {low} and {high}, it is {value}"
        most = f" and at most {high}" if math.isfinite(high) else ""
        return f"must be {'above' if self.open_low else 'at least'} {low}{most}, not {value}"


Positive = Annotated[T, Range(0, open_low=True)]
NonNegative = Annotated[T, Range(0)]
Share = Annotated[T, Range(0, 1)]


def range_of(hint: Any) -> Range | None:
    """The range in a field's type, also inside `... | None`."""
    if get_origin(hint) is Annotated:
        return next((item for item in get_args(hint)[1:] if isinstance(item, Range)), None)
    return next(filter(None, map(range_of, get_args(hint))), None)


def check_ranges(options: Any, prefix: str = "") -> None:
    """Refuse numbers that are not finite or out of their range, also in nested options."""
    hints = get_type_hints(type(options), include_extras=True)
    for item in dataclasses.fields(options):
        value, name = getattr(options, item.name), f"{prefix}{item.name}"
        if dataclasses.is_dataclass(value):
            check_ranges(value, f"{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            limits = range_of(hints[item.name]) or Range()
            wrong = limits.complaint(value) if math.isfinite(value) else f"must be a finite number, not {value}"
            if wrong:
                raise UserError(f"--{name.replace('_', '-')} {wrong}")
