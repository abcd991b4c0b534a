"""The threads of an actor group: one for each worker's environments, which mostly wait.

A thread whose environments have returned runs the group itself: it stores what all who returned have played, asks the
policy about all of them, sends the others on, and goes on with its own step. In a large group the first thread that
returns waits until a quarter of the group has returned, then runs them as one batch. So nobody stands between the
threads, and in a small group none is woken but by its environments.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from repertory.environments.factory import Step
from repertory.errors import EnvironmentFailure
from repertory.roles.actor import Actor, ActorGroup
from repertory.roles.ports import Role

SMALL, PARTS = 8, 4
"""In a group of more than `SMALL` a batch begins when one in `PARTS` has returned. Not all: workers that leave together
return together, and meanwhile the core would have nothing to do."""
GLANCE_S = 0.001
"""Before a pause, seconds between two looks whether all have returned."""
CLOSE_S = 2.0

give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: None)
"""Let whoever else is ready run first, without the interpreter's lock."""


class Threads:
    """`count` threads; what one is given while it is busy waits for its turn.

    Each tells what came of it, what was raised included, by `tell(index, outcome)`: a call in that thread itself, so
    that whoever has the next thing to do at hand goes on without anybody being woken.
    """

    def __init__(self, count: int, tell: Callable[[int, Any], None]) -> None:
        self._given: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(count)]
        self._tell = tell
        self._threads = [threading.Thread(target=self._work, args=(index,), daemon=True) for index in range(count)]
        for thread in self._threads:
            thread.start()

    def do(self, index: int, what: Callable[..., Any], *given: Any) -> None:
        """Let one thread call `what`."""
        self._given[index].put((what, given))

    def end(self, seconds: float) -> None:
        """Let all end once they have done what they were given; those that have not after so long are left behind."""
        for given in self._given:
            given.put(None)
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _work(self, index: int) -> None:
        take, tell = self._given[index].get, self._tell
        while (given := take()) is not None:
            what, arguments = given
            try:
                outcome = what(*arguments)
            except BaseException as error:
                outcome = error
            tell(index, outcome)


class ActorThreads(Role):
    """Runs a group; one lock lets one thread at a time into it.

    `begin` and `recover` are called in a worker's thread: before its first step, and when its environments have failed.
    `wake` is called when workers are held back, or a thread has failed: `step` is due.
    """

    def __init__(
        self,
        group: ActorGroup,
        *,
        begin: Callable[[Actor], None],
        recover: Callable[[Actor, EnvironmentFailure], None],
        wake: Callable[[], None],
        dismissed: Callable[[], bool],
    ) -> None:
        self.group, self.recover, self.wake, self.dismissed = group, recover, wake, dismissed
        self._returned: dict[int, Any] = {}
        count = len(group.actors)
        self._batch = count // PARTS if count > SMALL else 1
        self._gathering = False
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self.threads = Threads(count, self._return)
        for worker, actor in enumerate(group.actors):
            self.threads.do(worker, begin, actor)

    def warm_up(self) -> None:
        """Compile what chooses actions."""
        self.group.warm_up()

    @property
    def held(self) -> bool:
        """Whether somebody is held back."""
        return bool(self.group.idle)

    def step(self) -> bool:
        """Let workers play on that are held back, if they may now; the others need no call."""
        self._check()
        self.group.resting = False
        with self._lock:
            held = len(self.group.idle)
            self._turn()
            return len(self.group.idle) < held

    def _check(self) -> None:
        """What has ended a thread ends the group."""
        if self._error is not None:
            raise self._error

    def beat(self) -> None:
        """Say that those live who have no step under way."""
        self._check()
        with self._lock:
            self.group.beat()

    def _return(self, worker: int, outcome: Any) -> None:
        """In a worker's thread: its environments have returned."""
        self._returned[worker] = outcome
        if len(self._returned) < self._batch and not self._gather():
            return
        try:
            with self._lock:
                if not self._turn():
                    self.wake()
        except BaseException as error:
            self._error = error
            self.wake()

    def _gather(self) -> bool:
        """Wait until others have had their chance to return; False = another thread runs the batch, or has."""
        if self._gathering:
            return False
        self._gathering = True
        give_way()
        self._gathering = False
        return bool(self._returned)

    def _turn(self) -> bool:
        """Store what has returned and let idle workers play on; False = they may not."""
        self.group.take(self._outcomes())
        return self.group.go_on(self.threads.do)

    def _outcomes(self) -> list[tuple[int, Step | None]]:
        """What has returned; failed environments are made anew."""
        found = []
        while self._returned:
            worker, outcome = self._returned.popitem()
            if not isinstance(outcome, BaseException):
                found.append((worker, outcome))
            elif self.group.withdraw(worker) is None or not isinstance(outcome, EnvironmentFailure):
                raise outcome
            else:
                self.threads.do(worker, self.recover, self.group.actors[worker], outcome)
        return found

    def settle(self) -> None:
        """Whatever is under way is stored, and nobody plays on."""
        self.group.resting = True
        while not self._all_back() and not self.dismissed():
            self.beat()
            time.sleep(GLANCE_S)

    def _all_back(self) -> bool:
        """Not while a thread is in the group: it may have looked before the rest began and be about to send all on."""
        with self._lock:
            return len(self.group.idle) == len(self.group.actors)

    def close(self) -> None:
        """Close the environments; one that does not return is left behind."""
        for worker, actor in enumerate(self.group.actors):
            self.threads.do(worker, actor.close)
        self.threads.end(CLOSE_S)

    def state(self) -> dict[str, Any]:
        """What each actor keeps."""
        return self.group.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take that over."""
        self.group.load_state(state)
