"""The threads of an actor group: one for each worker's environments, which mostly wait.

A thread whose environments have returned runs the group itself: it stores the steps of all that have returned, asks the
policy for all their actions, sends the others on, and takes its own next step. In a large group the first thread that
returns waits until a quarter of the group has returned, then runs them as one batch. So no extra thread coordinates
them, and in a small group only its own environments wake a thread.
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
"""In a group of more than `SMALL`, a batch begins when one in `PARTS` has returned. Not all: workers that leave
together return together, and the core would be idle meanwhile."""
GLANCE_S = 0.001
"""Seconds between two looks whether all have returned, before a pause."""
CLOSE_S = 2.0

give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: None)
"""Let other threads that are ready run first, without the interpreter's lock."""


class Threads:
    """`count` threads with a queue each.

    A thread hands the result of each call, or what it raised, to `tell(index, outcome)` in the same thread: if its next
    call is there already, no thread has to be woken.
    """

    def __init__(self, count: int, tell: Callable[[int, Any], None]) -> None:
        self._given: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(count)]
        self._tell = tell
        self._threads = [threading.Thread(target=self._work, args=(index,), daemon=True) for index in range(count)]
        for thread in self._threads:
            thread.start()

    def do(self, index: int, what: Callable[..., Any], *given: Any) -> None:
        self._given[index].put((what, given))

    def end(self, seconds: float) -> None:
        """Let all threads end after their queues are empty; those that have not ended in time are left behind."""
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
    """Runs a group; a lock lets in one thread at a time.

    `begin` and `recover` are called in a worker's thread: before its first step, and when its environments have failed.
    `wake` is called when workers may not play on, or a thread has failed: then `step` is due.
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
        self.group.warm_up()

    @property
    def held(self) -> bool:
        return bool(self.group.idle)

    def step(self) -> bool:
        """Let idle workers play on, if they may now; the others need no call."""
        self._check()
        self.group.resting = False
        with self._lock:
            held = len(self.group.idle)
            self._turn()
            return len(self.group.idle) < held

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def beat(self) -> None:
        """Send heartbeats of workers without a step under way; the environments send those of the others."""
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
        """Wait until other threads could return; False = another thread runs the batch, or has run it."""
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
        """Wait for the steps under way and store them; no worker plays on."""
        self.group.resting = True
        while not self._all_back() and not self.dismissed():
            self.beat()
            time.sleep(GLANCE_S)

    def _all_back(self) -> bool:
        """With the lock: a thread in the group may have looked before the rest began, and may send workers on."""
        with self._lock:
            return len(self.group.idle) == len(self.group.actors)

    def close(self) -> None:
        """Close the environments; those that do not return are left behind."""
        for worker, actor in enumerate(self.group.actors):
            self.threads.do(worker, actor.close)
        self.threads.end(CLOSE_S)

    def state(self) -> dict[str, Any]:
        return self.group.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.group.load_state(state)
