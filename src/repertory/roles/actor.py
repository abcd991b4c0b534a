"""The actor: plays its environments and stores what happens; sees only ports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from repertory.channels.counters import GroupStats, WorkerStats
from repertory.environments.factory import Environments, Step
from repertory.roles.policies import EpsilonGreedy, Move, generator
from repertory.roles.ports import ExperienceSink, Policy, Role, Stopwatch, Unwatched


class Record:
    """Stores the steps of one or several actors: experience, counters, returns and lengths of episodes.

    `lanes` is [actors, environments of each]; all actors write into the same experience.
    """

    def __init__(
        self, experience: ExperienceSink, policy: Policy, stats: Sequence[WorkerStats], lanes: NDArray[np.int64]
    ) -> None:
        self.experience, self.policy, self.stats, self.lanes = experience, policy, stats, lanes
        self.counters = GroupStats(stats[0].table, [one.worker for one in stats])
        self.share(np.zeros(lanes.shape), np.zeros(lanes.shape, np.int64))

    def share(self, returns: NDArray[np.float64], lengths: NDArray[np.int64]) -> None:
        self.returns, self.lengths = returns, lengths
        self._rows = list(zip(self.lanes, self.stats, returns, lengths, strict=True))

    @classmethod
    def joined(cls, records: Sequence[Record]) -> Record:
        """One record for the actors of all, which use its arrays from now on."""
        first, stats = records[0], [one for record in records for one in record.stats]
        whole = cls(first.experience, first.policy, stats, np.concatenate([record.lanes for record in records]))
        for at, record in enumerate(records):
            record.share(whole.returns[at : at + 1], whole.lengths[at : at + 1])
        return whole

    def restart(self, actor: int) -> None:
        """Episodes that were running are not counted."""
        self.returns[actor] = 0.0
        self.lengths[actor] = 0

    def store(self, actor: int, move: Move, step: Step) -> None:
        lanes, stats, returns, lengths = self._rows[actor]
        if step.no_boundary:
            self._append(lanes, move, step)
            stats.played(len(lanes))
            lengths += 1
            returns += step.reward
            return
        stats.played(self._append_stepped(lanes, move, step))
        begun = step.begun
        if np.count_nonzero(begun):
            mask = None if step.first_mask is None else step.first_mask[begun]
            self.experience.begin(lanes[begun], step.first[begun], mask)
            self.policy.reset(begun)
        self._account(stats, returns, lengths, step)

    def store_several(self, actors: NDArray[np.int64], move: Move, step: Step) -> None:
        """The same for several actors, side by side; no episode ended or began."""
        self._append(self.lanes[actors].ravel(), move, step)
        self.counters.add("env_steps", actors, self.lanes.shape[1])
        self.lengths[actors] += 1
        self.returns[actors] += step.reward.reshape(len(actors), -1)

    def _append(self, lanes: NDArray[np.int64], move: Move, step: Step) -> None:
        self.experience.append(
            lanes,
            move.actions,
            step.reward,
            step.terminated,
            step.truncated,
            step.observation,
            step.mask,
            move.version,
            move.extras,
        )

    def _append_stepped(self, lanes: NDArray[np.int64], move: Move, step: Step) -> int:
        """Only environments that were stepped, not those that were only reset; returns how many were."""
        taken = int(np.count_nonzero(step.stepped))
        if taken < len(lanes):
            rows = np.flatnonzero(step.stepped)
            extras = None if move.extras is None else move.extras[:, rows]
            lanes, move = lanes[rows], Move(move.actions[rows], move.version, extras)
            step = step._replace(
                reward=step.reward[rows],
                terminated=step.terminated[rows],
                truncated=step.truncated[rows],
                observation=step.observation[rows],
                mask=None if step.mask is None else step.mask[rows],
            )
        self._append(lanes, move, step)
        return taken

    def _account(
        self, stats: WorkerStats, returns: NDArray[np.float64], lengths: NDArray[np.int64], step: Step
    ) -> None:
        lengths += step.stepped
        returns += step.reward * step.stepped
        ended = (step.terminated | step.truncated) & step.stepped
        if np.count_nonzero(ended):
            for reward, length in zip(returns[ended].tolist(), lengths[ended].tolist(), strict=True):
                stats.episode(reward, length)
            returns[ended] = 0.0
            lengths[ended] = 0


class Actor(Role):
    """Plays one vector of environments with a policy, while `may_play()`.

    `may_ask()` says right after a step whether the next actions may be requested at once. `start` makes the random
    streams of actors different that have the same rank, one after the other.
    """

    def __init__(
        self,
        environments: Environments,
        policy: Policy,
        experience: ExperienceSink,
        stats: WorkerStats,
        epsilon: Callable[[int], float],
        *,
        first_lane: int,
        seed: int,
        rank: int,
        watch: Stopwatch | Unwatched,
        start: int = 0,
        may_play: Callable[[], bool] = lambda: True,
        may_ask: Callable[[], bool] = lambda: True,
    ) -> None:
        self.environments, self.policy, self.experience = environments, policy, experience
        self.stats, self.epsilon, self.watch, self.may_play, self.may_ask = stats, epsilon, watch, may_play, may_ask
        self.rank, self.rng = rank, generator(seed, rank, 1, start)
        self.lanes = first_lane + np.arange(environments.count)
        self.record = Record(experience, policy, [stats], self.lanes[None])
        self._exploration = EpsilonGreedy(policy, self.rng, environments.spec.actions)
        self._move: Move | None = None

    def restart(self, seeds: list[int]) -> None:
        self.observation, self.mask = self.environments.reset(seeds)
        self.experience.begin(self.lanes, self.observation, self.mask)
        self.policy.reset(slice(None))
        self.record.restart(0)
        self._exploration.pending, self._move = False, None

    def warm_up(self) -> None:
        self.policy.warm_up(self.observation, self.mask)

    def step(self) -> bool:
        """One step in every environment, once the policy has replied; then the request for the next one.

        With the request at the end, the environments play while a learner in the same process computes the weights
        that the reply needs.
        """
        if not (self.may_play() and self.experience.open()):
            return False
        move = self.choose() if self._move is None else self._move
        if move is None:
            return False
        self.watch.lap("act")
        result = self.environments.step(move.actions)
        self.watch.lap("environment")
        self.record.store(0, move, result)
        self.observation, self.mask = result.onward()
        self.watch.lap("store")
        self._move = self.choose() if self.may_ask() and self.experience.open() else None
        self.watch.lap("act")
        return True

    def choose(self) -> Move | None:
        """The next move, once there is room to store it; None while the policy has not replied."""
        if self._exploration.pending:
            return self._exploration.poll()
        return self._exploration.choose(self.observation, self.mask, self.epsilon(self.stats.env_steps))

    def close(self) -> None:
        self.environments.close()

    def state(self) -> dict[str, Any]:
        """The exploration stream; the environments start anew."""
        return {"rng": dict(self.rng.bit_generator.state), "policy": self.policy.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.rng.bit_generator.state = dict(state["rng"])
        self.policy.load_state(state["policy"])


T = TypeVar("T")
Played = tuple[int, Move, Step]
"""The number of an actor in its group, its move, and the result."""


class ActorGroup:
    """Actors of one process that share a policy, which replies at once; `may_play` holds all of them back.

    `workers` are numbers of actors in the group. With `any_number` the policy gets the requests of all idle workers at
    once; else in powers of two, since each number may have to be compiled. `now` gives seconds, for the idle time.
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
        """In a pause: no worker takes a step, and no time counts as idle."""
        self.idle: list[int] = []
        """Workers that have no step under way."""
        self._exploration = EpsilonGreedy(policy, actors[0].rng, actors[0].environments.spec.actions)
        self._moves: list[Move | None] = [None] * len(actors)
        self._each = self.record.lanes.shape[1]
        self._never = np.zeros(self.record.lanes.size, bool)
        self._now, self._since, self._held = now, now(), np.zeros(0, np.int64)

    def warm_up(self) -> None:
        """Compile for each number of workers whose requests may be one batch."""
        spec = self.actors[0].environments.spec
        for power in range(0 if self.any_number else len(self.actors).bit_length()):
            rows = self._each << power
            observation = np.zeros((rows, *spec.observation.seen_shape), spec.observation.dtype)
            self.policy.warm_up(observation, np.ones((rows, spec.actions), np.bool_) if spec.masked else None)

    def beat(self) -> None:
        """Heartbeat of the idle workers; the others beat when their environments return."""
        self.count_idle()
        self.record.counters.beat(self._held)

    def count_idle(self) -> None:
        """Add up the time in which workers are held back, except in a pause."""
        now = self._now()
        if not self.resting:
            self.record.counters.add("idle_s", self._held, now - self._since)
        self._held, self._since = np.array(self.idle, np.int64), now

    def take(self, returned: Sequence[tuple[int, Step | None]]) -> None:
        """Store the results of the workers' moves; None = a worker is ready for its first move."""
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
        """The move is no longer under way: its result came back, or the environments failed."""
        move, self._moves[worker] = self._moves[worker], None
        return move

    def _take_one(self, worker: int, move: Move, step: Step) -> None:
        actor = self.actors[worker]
        self.record.store(worker, move, step)
        actor.stats.count("work")
        actor.observation, actor.mask = step.onward()

    def _take_several(self, played: Sequence[Played]) -> None:
        """Store steps without an episode boundary, by actions of the same version, in one call."""
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
        """All idle workers take their next step with `start(worker, step, actions)`; False = they may not."""
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
        """The next move of each, with its actor's ε."""
        actors = [self.actors[worker] for worker in workers]
        if len(actors) == 1:
            move = actors[0].choose()
            assert move is not None, "the policy of a group replies at once"
            return [move]
        env_steps = actors[0].stats.env_steps
        rates = np.repeat([actor.epsilon(env_steps) for actor in actors], self._each)
        seen, mask = np.concatenate([actor.observation for actor in actors]), _joined([a.mask for a in actors])
        whole = self._exploration.choose(seen, mask, rates)
        assert whole is not None, "the policy of a group replies at once"
        cuts = [slice(at, at + self._each) for at in range(0, len(rates), self._each)]
        actions, version, extras = whole
        return [Move(actions[cut], version, None if extras is None else extras[:, cut]) for cut in cuts]

    def state(self) -> dict[str, Any]:
        return {"actors": [actor.state() for actor in self.actors]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        for actor, saved in zip(self.actors, state["actors"], strict=True):
            actor.load_state(saved)


def powers_of_two(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Pieces whose lengths are powers of two, the largest first."""
    while items:
        size = 1 << (len(items).bit_length() - 1)
        yield items[:size]
        items = items[size:]


def _joined(parts: Sequence[NDArray[Any] | None], axis: int = 0) -> NDArray[Any] | None:
    """One array, if there is any: all have one, or none has."""
    there = [part for part in parts if part is not None]
    return np.concatenate(there, axis=axis) if there else None
