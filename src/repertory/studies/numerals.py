"""Numbers and lists as people read them in text, tables and figures; imports nothing of ours."""

from __future__ import annotations

import math
from collections.abc import Sequence

DASH = "–"
SMALL = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def number(value: float | None) -> str:
    """Three figures that matter, thousands apart: 12,300, 487, 9.71, −0.0421; a dash for what is not known."""
    if value is None or math.isnan(value):
        return DASH
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return _digits(abs(value)) if value >= 0 else f"−{_digits(abs(value))}"


def _digits(value: float) -> str:
    if value == 0:
        return "0"
    places = 2 - math.floor(math.log10(value))
    rounded = round(value, places)
    if places <= 0 or rounded == int(rounded):
        return f"{rounded:,.0f}"
    return f"{rounded:,.{places}f}".rstrip("0") if places <= 6 else f"{rounded:.2g}"


def percent(share: float) -> str:
    """A share as a whole percentage."""
    return f"{100 * share:.0f} %"


def counted(count: int, noun: str) -> str:
    """`three seeds`, `one seed`, `13 topologies`."""
    word = SMALL[count] if 0 <= count < len(SMALL) else f"{count:,}"
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{word} {noun if count == 1 else many}"


def listed(names: Sequence[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {last} {names[-1]}"


def brief(value: float) -> str:
    """A number for the tick of an axis: 500, 20k, 1.5M."""
    size, letter = (1e6, "M") if abs(value) >= 1e6 else (1e3, "k") if abs(value) >= 1e3 else (1.0, "")
    return f"{number(value / size)}{letter}"
