"""What is printed, and where it goes; imports nothing of ours.

Training goes on when its output is not read: what can't be written to stdout or stderr is dropped. Characters that a
terminal can't show are replaced. With `results_alone` stdout carries the result and nothing else.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TextIO, cast

STAND_INS = {
    "·": "|", "–": "-", "−": "-", "—": "-", "─": "-", "│": "|", "×": "x", "±": "+-", "▶": ">", "█": "#", "░": ".",
    "━": "=", "╸": "=", "╺": "-", "ε": "e", "β": "b", "µ": "u", "…": "...", "’": "'",
}  # fmt: skip


def aligned(rows: Sequence[Sequence[str]], numbers: int = 0) -> str:
    """Rows as columns of text, of which the last `numbers` are aligned at their right ends."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = len(widths) - numbers
    lines = (
        "  ".join(cell.rjust(widths[at]) if at >= right else cell.ljust(widths[at]) for at, cell in enumerate(row))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


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
        except BrokenPipeError:  # for good, so that writes from native code do not fail either
            _point_nowhere(self.fileno())
        except OSError:
            pass
        return len(data) if written is None else written


class Forgiving:
    """The same for any stream, which need not be a file."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return int(self._stream.write(text) or 0)
        except UnicodeEncodeError:
            letters = self._stream.encoding or "ascii"
            return self.write(text.encode(letters, "repertory").decode(letters))
        except (OSError, ValueError):  # closed
            return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def forgiving(stream: TextIO | None) -> TextIO:
    return cast(TextIO, Forgiving(io.StringIO() if stream is None else stream))


def forgive_output() -> None:
    """Make this process's stdout and stderr drop what can't be written, also while Python ends."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        _fill(fd)
        stream = getattr(sys, name)
        if fd and (stream is None or _stands_on(stream, fd)):
            setattr(sys, name, _opened(fd, getattr(stream, "encoding", None), lines=fd == 2 or os.isatty(fd)))


def _fill(fd: int) -> None:
    """Else the next file that is opened would get the number of a closed descriptor, and be printed into."""
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
    """Whether the stream is Python's own; tests and notebooks have others."""
    if not isinstance(stream, io.TextIOWrapper) or isinstance(getattr(stream.buffer, "raw", None), _ForgivingFile):
        return False
    with contextlib.suppress(OSError, ValueError):
        stream.flush()
        return stream.fileno() == fd
    return False


def _opened(fd: int, encoding: str | None, *, lines: bool) -> TextIO:
    buffered = io.BufferedWriter(_ForgivingFile(fd, "w", closefd=False))
    return io.TextIOWrapper(buffered, encoding or "utf-8", "repertory", line_buffering=lines)


_results: list[TextIO] = []


def result_stream() -> TextIO:
    return _results[-1] if _results else sys.stdout


@contextlib.contextmanager
def results_alone() -> Iterator[None]:
    """Send to stderr what Python, a library or a child process prints to stdout, except to `result_stream()`."""
    before, own = sys.stdout, None
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if before.fileno() == 1:
            before.flush()
            own = os.dup(1)
            os.dup2(2, 1)
    _results.append(before if own is None else _opened(own, before.encoding, lines=True))
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        _results.pop().flush()
        sys.stdout = before
        if own is not None:
            os.dup2(own, 1)
            os.close(own)
