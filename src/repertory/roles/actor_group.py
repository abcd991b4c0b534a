"""Several actors that share a policy: their steps are stored, and actions chosen, in as few calls as possible.

Whoever runs the environments hands in what they returned (`take`), and is told which to step next, by which actions
(`go_on`). A step costs less the more workers come back together. Sees only ports: no thread, no lock, a given clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from repertory.environments.factory import Step
from repertory.roles.actor import Actor, Record
from repertory.roles.exploration import EpsilonGreedy, Move
from repertory.roles.ports import Policy

T = TypeVar("T")
Played = tuple[int, Move, Step]
"""A worker, its move, and what came of it."""


class ActorGroup:
    """Workers are numbers among `actors`. Their policy replies at once; `may_play` holds all of them back.

    With `any_number` the policy is asked about all idle workers at once; else in powers of two, since each number may
    have to be compiled. `now` gives seconds, by which the time of those who are held back is counted.
    """

    def __init__(
        self,
        actors: Sequence[Actor],
        policy: Policy,
        *,
        may_play: Callable[[], bool],
        any_number: bool,
        now: Callable[[], float],
    ) -> None:
        self.actors, self.policy, self.may_play, self.any_number = list(actors), policy, may_play, any_number
        self.record = Record.joined([actor.record for actor in actors])
        self.resting = True
        """Nobody plays on, and no time counts as idle."""
        self.idle: list[int] = []
        """Workers that have no step under way."""
        self._exploration = EpsilonGreedy(policy, actors[0].rng, actors[0].environments.spec.actions)
        self._moves: list[Move | None] = [None] * len(actors)
        self._each = self.record.lanes.shape[1]
        self._never = np.zeros(self.record.lanes.size, bool)
        self._now, self._since, self._held = now, now(), np.zeros(0, np.int64)

    def warm_up(self) -> None:
        """Compile for each number of workers that the policy may be asked about at once."""
        spec = self.actors[0].environments.spec
        for power in range(0 if self.any_number else len(self.actors).bit_length()):
            rows = self._each << power
            observation = np.zeros((rows, *spec.observation.seen_shape), spec.observation.dtype)
            self.policy.warm_up(observation, np.ones((rows, spec.actions), np.bool_) if spec.masked else None)

    def beat(self) -> None:
        """Say that idle workers live; of the others only their environments know."""
        self.count_idle()
        self.record.counters.beat(self._held)

    def count_idle(self) -> None:
        """Add up the time in which workers are held back; that of a pause is nobody's."""
        now = self._now()
        if not self.resting:
            self.record.counters.add("idle_s", self._held, now - self._since)
        self._held, self._since = np.array(self.idle, np.int64), now

    def take(self, returned: Sequence[tuple[int, Step | None]]) -> None:
        """Store what came of the workers' moves; None = a worker is ready for its first one."""
        alike: dict[int, list[Played]] = {}
        for worker, step in returned:
            move = self.withdraw(worker)
            self.idle.append(worker)
            if move is None or step is None:
                continue
            if step.no_boundary and len(returned) > 1:
                alike.setdefault(move.version, []).append((worker, move, step))
            else:
                self._take_one(worker, move, step)
        for some in alike.values():
            if len(some) == 1:
                self._take_one(*some[0])
            else:
                self._take_several(some)

    def withdraw(self, worker: int) -> Move | None:
        """The move under way is no more: what it led to came back, or its environments failed."""
        move, self._moves[worker] = self._moves[worker], None
        return move

    def _take_one(self, worker: int, move: Move, step: Step) -> None:
        actor = self.actors[worker]
        self.record.store(worker, move, step)
        actor.page.count("work")
        actor.observation, actor.mask = step.onward()

    def _take_several(self, played: Sequence[Played]) -> None:
        """Steps in which no episode ended or began, by actions of the same version, as one."""
        workers, moves, steps = zip(*played, strict=True)
        actions, rows = np.concatenate([move.actions for move in moves]), np.array(workers)
        move = Move(actions, moves[0].version, _joined([move.extras for move in moves], axis=1))
        reward, seen = np.concatenate([step.reward for step in steps]), np.concatenate([s.observation for s in steps])
        mask, never = _joined([step.mask for step in steps]), self._never[: len(actions)]
        self.record.store_several(rows, move, Step(~never, reward, never, never, seen, mask, never, seen, mask))
        self.record.counters.add("work", rows, 1)
        for worker, step in zip(workers, steps, strict=True):
            actor = self.actors[worker]
            actor.observation, actor.mask = step.observation, step.mask

    def go_on(self, start: Callable[[int, Callable[..., Step], Any], None]) -> bool:
        """Let all idle workers take their next step by `start(worker, step, actions)`; False = they may not."""
        if self.resting or not self.idle:
            return True
        if not (self.may_play() and self.record.experience.open()):
            self.count_idle()
            return False
        if self._held.size:
            self.count_idle()
            self._held = self._held[:0]
        workers, self.idle = self.idle, []
        for some in [workers] if self.any_number or len(workers) == 1 else powers_of_two(workers):
            moves = self.choose(some)
            self.record.counters.beat(some[0] if len(some) == 1 else np.array(some))
            for worker, move in zip(some, moves, strict=True):
                self._moves[worker] = move
                start(worker, self.actors[worker].environments.step, move.actions)
        return True

    def choose(self, workers: Sequence[int]) -> list[Move]:
        """Their next moves, each by its actor's ε."""
        actors = [self.actors[worker] for worker in workers]
        if len(actors) == 1:
            move = actors[0].choose()
            assert move is not None, "the policy of a group replies at once"
            return [move]
        env_steps = actors[0].page.env_steps
        rates = np.repeat([actor.epsilon(env_steps) for actor in actors], self._each)
        seen, mask = np.concatenate([actor.observation for actor in actors]), _joined([a.mask for a in actors])
        whole = self._exploration.choose(seen, mask, rates)
        assert whole is not None, "the policy of a group replies at once"
        cuts = [slice(at, at + self._each) for at in range(0, len(rates), self._each)]
        actions, version, extras = whole
        return [Move(actions[cut], version, None if extras is None else extras[:, cut]) for cut in cuts]

    def state(self) -> dict[str, Any]:
        """What each actor keeps."""
        return {"actors": [actor.state() for actor in self.actors]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take that over."""
        for actor, saved in zip(self.actors, state["actors"], strict=True):
            actor.load_state(saved)


def powers_of_two(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """In pieces whose lengths are powers of two, the largest first."""
    while items:
        size = 1 << (len(items).bit_length() - 1)
        yield items[:size]
        items = items[size:]


def _joined(parts: Sequence[NDArray[Any] | None], axis: int = 0) -> NDArray[Any] | None:
    """One array, if there is any: all have one, or none."""
    there = [part for part in parts if part is not None]
    return np.concatenate(there, axis=axis) if there else None
