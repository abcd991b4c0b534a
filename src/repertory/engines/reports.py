"""What a worker process leaves for the driver to read: why it ended, in a file without a name that outlives it.

Only this file says what kind of end it was. Exit codes say nothing: an environment may end its process with any.
"""

from __future__ import annotations

import contextlib
import json
import os
import traceback
from typing import NamedTuple

from repertory.errors import UserError, plain

FAILURE, REFUSAL = "failure", "refusal"
"""Something that may go better the next time, or something that only the user can put right."""
TRACE_CHARACTERS = 20_000


class Report(NamedTuple):
    """One sentence and a traceback, or only the stacks of threads; empty if nothing was written."""

    kind: str = ""
    sentence: str = ""
    trace: str = ""


def write_report(fd: int, kind: str, sentence: str, trace: str = "") -> None:
    """Replace what is in the file."""
    said = {"kind": kind, "sentence": plain(sentence), "trace": plain(trace[-TRACE_CHARACTERS:])}
    text = json.dumps(said).encode()
    os.ftruncate(fd, 0)
    os.pwrite(fd, text, 0)


def read_report(fd: int) -> Report:
    """What the worker wrote; a dump of stacks, written by a crash or on demand, is all trace."""
    text = os.pread(fd, 1 << 20, 0).decode(errors="replace")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        found = json.loads(text)
        return Report(str(found["kind"]), str(found["sentence"]), str(found["trace"]))
    stacks = text.partition("\nExtension modules:")[0]  # a crash's list of what was imported says nothing
    return Report(trace=plain(stacks))


def clear_report(fd: int) -> None:
    """Forget what was written; the position, too, which is shared with the worker that writes."""
    os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_SET)


def trace_of(error: BaseException) -> str:
    """The traceback as Python prints it, for people."""
    return plain("".join(traceback.format_exception(error)))


def failure_note(what: str, error: UserError) -> str:
    """What went wrong in an environment, and the environment's own traceback."""
    trace = "" if error.__cause__ is None else f"\n{trace_of(error.__cause__).rstrip()}"
    return f"{what}: {error}{trace}"
