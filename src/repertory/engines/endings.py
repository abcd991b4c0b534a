"""How worker processes end: what they report, and what becomes of the processes that their environments started.

A report is a file without a name that outlives its worker. Only it says what kind of end that was. Exit codes say
nothing: an environment may end its process with any.

A worker leads a process group of its own, and carries a mark in an environment variable: its number and a random name
of the run, since numbers repeat in every container. What an environment starts is in the group, unless it left it
for a session of its own, as simulators often do. A program still has the mark then. A process that was forked without
starting a program has none that others can see: it is found as a child of the worker, as long as that one lives.
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


MARK = "REPERTORY_WORKER"
PASSES = 5
"""How often it is looked for those whom somebody had just started."""


def lead_group() -> None:
    """In a worker: whoever it starts can be found again."""
    os.environ[MARK] = mark_of(os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a group in the background may print nevertheless
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)


def mark_of(worker: int) -> str:
    """What this run's worker of this number leaves on whatever it starts."""
    return f"{worker}-{os.environ.get(FAMILY, '')}"


def end_offspring(workers: Collection[int]) -> None:
    """Kill whatever these workers have started, and themselves if they are still there; this process is spared."""
    for _ in range(PASSES):
        found = list(_offspring(workers))
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if not found:
            return


def _offspring(workers: Collection[int]) -> Iterator[psutil.Process]:
    """Everybody but this process: workers, children of those that live, and who has their group or their mark."""
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
    """To these workers, and to what their environments have started."""
    for worker in workers:
        with contextlib.suppress(OSError):
            os.killpg(worker, number)


def suspend_together(workers: Callable[[], Collection[int]]) -> Callable[[], None]:
    """Ctrl-Z stops this process's group alone: let it stop the workers as well, and let them go on with it.

    Returns what takes that back.
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
