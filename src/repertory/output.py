"""What is printed, and where it goes; imports nothing of ours.

Training never ends because nobody reads its output: what can't be written to stdout or stderr is dropped. Characters
that a terminal can't show are replaced. With `results_alone` stdout carries the result and nothing else.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

STAND_INS = {
    "·": "|", "–": "-", "−": "-", "—": "-", "─": "-", "│": "|", "×": "x", "±": "+-", "▶": ">", "█": "#", "░": ".",
    "━": "=", "╸": "=", "╺": "-", "ε": "e", "β": "b", "µ": "u", "…": "...", "’": "'",
}  # fmt: skip
"""For terminals that can't show them."""


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(STAND_INS.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


codecs.register_error("repertory", _stand_in)


class _ForgivingFile(io.FileIO):
    """A descriptor whose failing writes are dropped: a closed pipe, a full disk, a terminal that is gone."""

    def write(self, data: Any) -> int:
        written = None
        try:
            written = super().write(data)
        except BrokenPipeError:  # for good: whoever writes past Python need not fail, either
            _point_nowhere(self.fileno())
        except OSError:
            pass
        return len(data) if written is None else written


class Forgiving:
    """The same for a stream of somebody else's, which may be no file at all."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write as much as can be written."""
        try:
            return int(self._stream.write(text) or 0)
        except UnicodeEncodeError:
            letters = self._stream.encoding or "ascii"
            return self.write(text.encode(letters, "repertory").decode(letters))
        except (OSError, ValueError):  # closed
            return len(text)

    def flush(self) -> None:
        """Whatever comes of it."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def forgiving(stream: TextIO | None) -> TextIO:
    """A stream that drops what this one can't take; nothing, if there is none."""
    return cast(TextIO, Forgiving(io.StringIO() if stream is None else stream))


def forgive_output() -> None:
    """For a process that is ours: its stdout and stderr drop what can't be written, also while Python ends."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        _fill(fd)
        stream = getattr(sys, name)
        if fd and (stream is None or _stands_on(stream, fd)):
            setattr(sys, name, _opened(fd, getattr(stream, "encoding", None), lines=fd == 2 or os.isatty(fd)))


def _fill(fd: int) -> None:
    """A descriptor that was closed would be given to the next file that is opened, and be printed into."""
    try:
        os.fstat(fd)
    except OSError:
        _point_nowhere(fd)


def _point_nowhere(fd: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != fd:
        os.dup2(nowhere, fd)
        os.close(nowhere)


def _stands_on(stream: Any, fd: int) -> bool:
    """Whether it is Python's own; tests and notebooks have others."""
    if not isinstance(stream, io.TextIOWrapper) or isinstance(getattr(stream.buffer, "raw", None), _ForgivingFile):
        return False
    with contextlib.suppress(OSError, ValueError):
        stream.flush()
        return stream.fileno() == fd
    return False


def _opened(fd: int, encoding: str | None, *, lines: bool) -> TextIO:
    buffered = io.BufferedWriter(_ForgivingFile(fd, "w", closefd=False))
    return io.TextIOWrapper(buffered, encoding or "utf-8", "repertory", line_buffering=lines)


_kept: list[TextIO] = []


def result_stream() -> TextIO:
    """Where a command prints its result."""
    return _kept[-1] if _kept else sys.stdout


@contextlib.contextmanager
def results_alone() -> Iterator[None]:
    """Whatever Python, a library or a process that is started meanwhile prints to stdout goes to stderr.

    Only what is printed to `result_stream()` goes to stdout.
    """
    before, own = sys.stdout, None
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if before.fileno() == 1:
            before.flush()
            own = os.dup(1)
            os.dup2(2, 1)
    _kept.append(before if own is None else _opened(own, before.encoding, lines=True))
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        _kept.pop().flush()
        sys.stdout = before
        if own is not None:
            os.dup2(own, 1)
            os.close(own)
