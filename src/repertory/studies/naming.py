"""Names that tell contestants apart, and names of their run directories; plain text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def distinct(names: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names, each with as many of its settings as it takes to be the only one; at last a number."""
    found = list(names)
    for key in dict.fromkeys(key for each in settings for key in each):
        for group in _shared(found):
            values = {repr(settings[index].get(key)) for index in group}
            if len(values) > 1:
                for index in group:
                    found[index] += f", {_words(key, settings[index].get(key))}"
    return _numbered(found)


def slugs(names: Sequence[str]) -> list[str]:
    """The names as parts of file names, no two alike even where capitals don't count."""
    plain = [re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-_")[:100] or "contestant" for name in names]
    return _numbered(plain, "{}-{}")


def _shared(names: Sequence[str]) -> list[list[int]]:
    """Where each name stands that stands more than once."""
    counts = Counter(names)
    return [[index for index, name in enumerate(names) if name == shared] for shared in counts if counts[shared] > 1]


def _words(key: str, value: Any) -> str:
    """`dqn`, `4 actors`, or `agent.double=False`."""
    if key == "agent_name":
        return str(value)
    return f"{value} actor{'' if value == 1 else 's'}" if key == "actors" else f"{key}={value}"


def _numbered(names: Sequence[str], form: str = "{} ({})") -> list[str]:
    """A number behind each name that was there before; nobody gets a name that is another's own."""
    found: list[str] = []
    for name in names:
        free, count = name, 1
        while free in found or (count > 1 and free in names):
            count += 1
            free = form.format(name, count)
        found.append(free)
    return found
