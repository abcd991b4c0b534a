"""Gymnasium's warnings, told or not; imports gymnasium only.

They are warnings about environments: bounds that are rounded, names that are old. Whoever asks for quiet does not want
them; what an environment prints itself, or warns of by Python's own `warnings`, is not touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gymnasium import logger


@contextmanager
def hushed(quiet: bool) -> Iterator[None]:
    """With `quiet`, only Gymnasium's errors are told meanwhile, in processes that a run starts as well."""
    before = level()
    if quiet:
        set_level(max(before, logger.ERROR))
    try:
        yield
    finally:
        set_level(before)


def level() -> int:
    """What is told now: for a process that is to tell the same."""
    return logger.min_level


def set_level(number: int) -> None:
    """Tell nothing below it."""
    logger.min_level = number
