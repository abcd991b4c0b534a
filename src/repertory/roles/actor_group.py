"""Several actors that share a policy: their steps are stored, and actions chosen, in as few calls as possible.

Whoever runs the environments hands in what they returned (`take`), and is told which to step next, by which actions
(`go_on`). A step costs less the more workers come back together. Sees only ports: no thread, no lock, a given clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from repertory.environments.factory import Step
from repertory.roles.actor import Actor, Record
from repertory.roles.exploration import EpsilonGreedy, Move
from repertory.roles.ports import Policy

T = TypeVar("T")


class Played(NamedTuple):
    """What came of a worker's move."""

    worker: int
    move: Move
    step: Step


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
        self._always, self._never = np.ones(self.record.lanes.size, bool), np.zeros(self.record.lanes.size, bool)
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

    def take(self, returned: Iterable[tuple[int, Step | None]]) -> None:
        """Store what came of the workers' moves; None = a worker is ready for its first one."""
        played = [Played(worker, move, step) for worker, move, step in self._returned(returned)]
        if len(played) == 1:
            self._take_one(played[0])
            return
        alike: dict[int, list[Played]] = {}
        for each in played:
            if each.step.no_boundary:
                alike.setdefault(each.move.version, []).append(each)
            else:
                self._take_one(each)
        for version, some in alike.items():
            self._take_several(some, version)

    def _returned(self, returned: Iterable[tuple[int, Step | None]]) -> Iterator[Played]:
        for worker, step in returned:
            move = self.withdraw(worker)
            self.idle.append(worker)
            if move is not None and step is not None:
                yield Played(worker, move, step)

    def withdraw(self, worker: int) -> Move | None:
        """The move under way is no more: what it led to came back, or its environments failed."""
        move, self._moves[worker] = self._moves[worker], None
        return move

    def _take_one(self, played: Played) -> None:
        worker, move, step = played
        self.record.store(worker, move, step)
        self.record.counters.add("work", worker, 1)
        self.actors[worker].see(step)

    def _take_several(self, played: Sequence[Played], version: int) -> None:
        """Steps in which no episode ended or began, by actions of the same version, as one."""
        workers = np.array([each.worker for each in played])
        steps = [each.step for each in played]
        actions = np.concatenate([each.move.actions for each in played])
        move = Move(actions, version, _joined([each.move.extras for each in played], axis=1))
        never, always = self._never[: len(actions)], self._always[: len(actions)]
        reward, seen = np.concatenate([step.reward for step in steps]), np.concatenate([s.observation for s in steps])
        mask = _joined([step.mask for step in steps])
        self.record.store(workers, move, Step(always, reward, never, never, seen, mask, never, seen, mask))
        self.record.counters.add("work", workers, 1)
        for each in played:
            self.actors[each.worker].see(each.step)

    def go_on(self, start: Callable[[int, NDArray[np.integer[Any]]], None]) -> bool:
        """Let all idle workers take their next step, which `start` begins; False = they may not."""
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
                start(worker, move.actions)
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
        self._exploration.request(seen, mask, rates)
        whole = self._exploration.reply()
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
