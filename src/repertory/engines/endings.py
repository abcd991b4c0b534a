"""How worker processes end: what they report, and how the processes that their environments started are ended.

A report is a file without a name that outlives its worker. Only the report says how a worker ended: an environment may
end its process with any exit code.

A worker leads a process group, and sets a mark in an environment variable: its pid and a random name of the run, since
pids repeat in every container. A process that an environment starts is in the group, unless it began a session of its
own, as simulators often do; then it still has the mark. A process that was only forked has no mark that others can see:
it is found as a child of the worker, as long as the worker lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import traceback
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import psutil

from repertory.errors import UserError, plain
from repertory.runtime import FAMILY

FAILURE, REFUSAL = "failure", "refusal"
"""An error that another start may avoid, or one that only the user can fix."""
TRACE_CHARACTERS = 20_000


class Report(NamedTuple):
    """One sentence and a traceback, or only the stacks of threads; empty if nothing was written."""

    kind: str = ""
    sentence: str = ""
    trace: str = ""


def write_report(fd: int, kind: str, sentence: str, trace: str = "") -> None:
    report = Report(kind, plain(sentence), plain(trace[-TRACE_CHARACTERS:]))
    text = json.dumps(report._asdict()).encode()
    os.ftruncate(fd, 0)
    os.pwrite(fd, text, 0)


def read_report(fd: int) -> Report:
    """What the worker wrote; a dump of stacks, from a crash or on demand, is all trace."""
    text = os.pread(fd, 1 << 20, 0).decode(errors="replace")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        found = json.loads(text)
        return Report(str(found["kind"]), str(found["sentence"]), str(found["trace"]))
    stacks = text.partition("\nExtension modules:")[0]  # the list of imported modules says nothing
    return Report(trace=plain(stacks))


def clear_report(fd: int) -> None:
    """Also resets the file position, which is shared with the worker that writes."""
    os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_SET)


def trace_of(error: BaseException) -> str:
    return plain("".join(traceback.format_exception(error)))


def failure_note(what: str, error: UserError) -> str:
    """The error, and the environment's own traceback."""
    trace = "" if error.__cause__ is None else f"\n{trace_of(error.__cause__).rstrip()}"
    return f"{what}: {error}{trace}"


MARK = "REPERTORY_WORKER"
PASSES = 5
"""How often to search again, for processes that were started meanwhile."""


def lead_group() -> None:
    """In a worker: make the processes that it starts findable."""
    os.environ[MARK] = mark_of(os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # so that a background group may print
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)


def mark_of(worker: int) -> str:
    return f"{worker}-{os.environ.get(FAMILY, '')}"


def end_offspring(workers: Collection[int]) -> None:
    """Kill what these workers have started, and the workers if they still live; never this process."""
    for _ in range(PASSES):
        found = list(_offspring(workers))
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if not found:
            return


def _offspring(workers: Collection[int]) -> Iterator[psutil.Process]:
    """The workers, children of those that live, and processes with their group or mark; never this process."""
    marks, own = {mark_of(worker) for worker in workers}, os.getpid()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if _is_over(process):
                continue
            here = os.getsid(process.pid) == os.getsid(0)
            if here and process.pid in workers:
                yield from (child for child in process.children(recursive=True) if not _is_over(child))
            grouped = here and {process.pid, os.getpgid(process.pid)}.intersection(workers)
            if process.pid != own and (grouped or process.environ().get(MARK) in marks):
                yield process


def _is_over(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def signal_groups(workers: Collection[int], number: int) -> None:
    for worker in workers:
        with contextlib.suppress(OSError):
            os.killpg(worker, number)


def suspend_together(workers: Callable[[], Collection[int]]) -> Callable[[], None]:
    """Ctrl-Z stops only this process's group: stop the workers, too, and let them go on with it.

    Returns a function that undoes this.
    """

    def suspend(_number: int, _frame: object) -> None:
        signal_groups(workers(), signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        signal_groups(workers(), signal.SIGCONT)

    try:
        before = signal.signal(signal.SIGTSTP, suspend)
    except ValueError:  # not in the main thread
        return lambda: None
    return lambda: _restore(before)


def _restore(handler: object) -> None:
    with contextlib.suppress(ValueError, TypeError):
        signal.signal(signal.SIGTSTP, handler)  # type: ignore[arg-type]
