"""Deadlines for an environment's own code where no supervisor watches it: in the driver, and in the inline engine.

The environment runs in the main thread, which some environments need; another thread watches the clock. Past the
deadline an exception in the main thread interrupts the environment. Native code cannot be interrupted: then a command
ends the process, but once training has begun it prints a message and waits. Only `close` runs in a thread of its own,
so that a `close` that hangs can be left behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from repertory.errors import EnvironmentFailure, UserError, plain
from repertory.output import forgiving

if TYPE_CHECKING:  # commands import this before anything large
    import numpy as np
    from numpy.typing import NDArray

SETTING, BEGIN_S = "REPERTORY_ENV_DEADLINE_S", 60.0
"""Deadline for loading, for building and for resetting an environment, and the variable that overrides it."""
CLOSE_S = 5.0
"""After this time, an environment that is not closed is left behind."""
INSIST_S = 5.0
"""An environment that can't be interrupted for this long is in native code."""
LOOK_S = 0.05
INTERRUPT: int = getattr(signal, "SIGRTMIN", signal.SIGUSR2 - 1) + 1
REFUSED = 2

_doing: dict[int, tuple[str, float]] = {}
"""What the environment of each thread is doing, and since when."""
_clocks: dict[int, _Clock] = {}
"""Threads whose environments have deadlines."""
_commands = [False]


def end_what_hangs() -> None:
    """This process is a command: the deadline may end it."""
    _commands[0] = True


def wait_for_what_hangs() -> None:
    """Training has begun: ending the process would lose its progress."""
    _commands[0] = False


class Overdue(BaseException):
    """Raised inside an environment at its deadline; no environment's `except Exception` catches it."""


def say(text: str) -> None:
    """Print at once, from any thread; above a live view, if there is one."""
    print(plain(text), file=forgiving(sys.stderr), flush=True)


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """While an environment does this; inside of `bounded` it has a deadline."""
    me = threading.get_ident()
    before, _doing[me] = _doing.get(me), (what, time.monotonic())
    try:
        yield
    finally:
        if before is None:
            del _doing[me]
        else:
            _doing[me] = (before[0], time.monotonic())


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Everything inside `doing` in this thread has a deadline; an `EnvironmentFailure` says what did not end."""
    me = threading.get_ident()
    if me in _clocks:
        yield
        return
    clock = _clocks[me] = _Clock(me)
    try:
        yield
    except Overdue as overdue:
        raise EnvironmentFailure(clock.sentence) from overdue
    finally:
        clock.over.set()
        del _clocks[me]


def _begin_s() -> float:
    given = os.environ.get(SETTING, "")
    try:
        seconds = float(given) if given else BEGIN_S
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise UserError(f"{SETTING} must be a number of seconds above 0, not {given!r}")
    return seconds


class _Clock:
    """A thread that interrupts another one at its deadline."""

    def __init__(self, thread: int) -> None:
        self.sentence, self.over, self.interrupts = "", threading.Event(), True
        self._thread, self._seconds = thread, _begin_s()
        self._in_main = threading.current_thread() is threading.main_thread()
        if self._in_main:
            signal.signal(INTERRUPT, _interrupted)  # never removed: a late signal must find it
        threading.Thread(target=self._watch, name="deadline", daemon=True).start()

    def _watch(self) -> None:
        while not self.over.wait(LOOK_S):
            what, since = _doing.get(self._thread, ("", 0.0))
            if what and time.monotonic() - since > self._seconds:
                self._interrupt(what)
                return

    def _interrupt(self, what: str) -> None:
        self.sentence = (
            f"{what} did not end within {self._seconds:g} s; mend the environment, or set {SETTING} if it needs longer"
        )
        if self._in_main:
            signal.pthread_kill(self._thread, INTERRUPT)
        if self.over.wait(INSIST_S):
            return
        if _commands[0]:
            say(f"repertory: {self.sentence}")
            os._exit(REFUSED)
        self.interrupts = False  # the signal arrives when the native code ends, and must then do nothing
        say(f"{what} has not ended within {self._seconds:g} s; the run waits for it")


def _interrupted(_number: int, _frame: Any) -> None:
    clock = _clocks.get(threading.get_ident())
    if clock is not None and clock.sentence and clock.interrupts and not clock.over.is_set():
        raise Overdue


def close_within(name: str, closes: Sequence[Callable[[], Any]]) -> None:
    """Close environments, one after the other; one that hangs is left behind, one that raises is reported."""
    errors: list[BaseException] = []

    def close() -> None:
        for each in closes:
            try:
                each()
            except BaseException as error:
                errors.append(error)

    thread = threading.Thread(target=close, name="close", daemon=True)
    thread.start()
    thread.join(CLOSE_S)
    if thread.is_alive():
        say(f"close() of {name} did not return within {CLOSE_S:g} s; it is left behind")
    for error in errors:
        say(f"close() of {name} raised {type(error).__name__}: {error}")


class SlowSteps:
    """Reports a step of an environment that takes longer than `seconds`; `places` has a row for each `Watch`.

    In one thread such a step can't be ended, but the user learns what the run waits for.
    """

    def __init__(self, places: NDArray[np.int64], seconds: float) -> None:
        self._places, self._seconds = places, seconds
        self._over = threading.Event()
        self._seen: dict[int, tuple[tuple[int, ...], float]] = {}
        threading.Thread(target=self._watch, name="slow steps", daemon=True).start()

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, self._seconds / 4)):
            for row in range(len(self._places)):
                self._look(row, tuple(self._places[row].tolist()))

    def _look(self, row: int, place: tuple[int, ...]) -> None:
        before, since = self._seen.get(row, ((), 0.0))
        if place != before:
            self._seen[row] = place, time.monotonic()
        elif place[0] >= 0 and time.monotonic() - since > self._seconds:
            self._seen[row] = place, float("inf")  # once is enough
            where, seed, step, worker = place
            say(
                f"environment {where} of worker {worker} (seed {seed}, step {step}) has not returned for "
                f"{self._seconds:g} s; the run waits for it"
            )

    def end(self) -> None:
        self._over.set()
