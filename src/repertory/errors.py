"""The errors a user is meant to read; imports nothing of ours.

`UserError` carries one sentence: what is wrong, what was given, what to do. The command line prints it and exits
with 2. `EnvironmentFailure` also carries the environment's own exception as its `__cause__`, to be shown whole.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

SEQUENCES = re.compile(
    "\x1b\\[[0-?]*[ -/]*[@-~]?|\x9b[0-?]*[ -/]*[@-~]?"  # colours, moves of the cursor
    "|\x1b[]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\\\)?"  # titles, links
    "|\x1b.?"
)
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """Text of somebody else's without what a terminal would obey."""
    return CONTROLS.sub("", SEQUENCES.sub("", text.replace("\r\n", "\n")))


class UserError(Exception):
    """Something the user can put right; its text is one sentence."""

    def __init__(self, sentence: str) -> None:
        super().__init__(plain(sentence))  # it may quote an environment or a file


class EnvironmentFailure(UserError):
    """The environment raised, or returned what its spaces do not allow."""


def nearest(given: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest known name, or the names there are."""
    names = sorted(known)
    match = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    if match:
        return f"; did you mean {match[0]!r}?"
    return f"; known: {', '.join(names)}"


def missing_extra(what: str, extra: str) -> UserError:
    """The error for a feature whose optional dependency is not installed."""
    return UserError(f"{what} needs the extra '{extra}': pip install 'repertory[{extra}]'")
