"""Errors for the user to read; imports nothing of ours."""

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
    """Foreign text without control sequences of terminals."""
    return CONTROLS.sub("", SEQUENCES.sub("", text.replace("\r\n", "\n")))


class UserError(Exception):
    """One sentence: what is wrong, what was given, what to do. The command line prints it and exits with 2."""

    def __init__(self, sentence: str) -> None:
        super().__init__(plain(sentence))  # it may quote an environment or a file


class EnvironmentFailure(UserError):
    """The environment raised, which is the `__cause__` and is shown whole, or returned what its spaces do not allow."""


def nearest(given: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest known name, or the names there are."""
    names = sorted(known)
    match = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    return f"; did you mean {match[0]!r}?" if match else f"; known: {', '.join(names)}"


def missing_extra(what: str, extra: str) -> UserError:
    return UserError(f"{what} needs the extra '{extra}': pip install 'repertory[{extra}]'")
