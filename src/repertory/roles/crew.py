"""Several actors in one process: each waits for its own environments, one policy answers all; sees only ports.

A thread for each actor's environments steps them. The first that comes back leads: it stores whatever has been played
meanwhile by one call, asks the policy about all of it by one call, sends the others on, and goes on itself. So a step
costs less the busier the crew is, and where it is not, nobody is woken but by its environment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from repertory.environments.factory import Step
from repertory.environments.threads import Threads, give_way
from repertory.errors import EnvironmentFailure
from repertory.roles.actor import Actor
from repertory.roles.exploration import random_actions
from repertory.roles.ledger import Pages
from repertory.roles.ports import Policy

SMALL, PARTS = 8, 4
"""In a crew of more than so many, who comes back lets others come, until so many-th of the crew is there. Not all: who
leaves together comes back together, and meanwhile the core would have nothing to do."""
GLANCE_S = 0.001
"""Before a pause a crew looks so often whether all have come back."""
CLOSE_S = 2.0
T = TypeVar("T")


class Move(NamedTuple):
    """Actions [E] under way, and what the policy said when it chose them: its version, and what it keeps [k, E]."""

    actions: NDArray[np.integer[Any]]
    version: int
    kept: NDArray[np.float32] | None


class Played(NamedTuple):
    """What came of an actor's move."""

    who: int
    move: Move
    result: Step


class Crew:
    """Actors that share a policy, which answers at once; `may_play` holds all of them back.

    `begin` and `recover` are called in an actor's thread: before its first step, and when its environments have failed.
    `wake` is called when somebody is held back, or has failed: a turn is due. With `any_number` the policy is asked
    about all who wait at once; else in numbers that are few, since each may have to be compiled.
    """

    def __init__(
        self,
        actors: Sequence[Actor],
        policy: Policy,
        *,
        begin: Callable[[Actor], None],
        recover: Callable[[Actor, EnvironmentFailure], None],
        may_play: Callable[[], bool],
        wake: Callable[[], None],
        dismissed: Callable[[], bool],
        any_number: bool,
    ) -> None:
        self.actors, self.policy, self.recover, self.may_play = list(actors), policy, recover, may_play
        self.wake, self.dismissed, self.any_number = wake, dismissed, any_number
        self._moves: list[Move | None] = [None] * len(actors)
        self._arrived: dict[int, Any] = {}
        self._idle: list[int] = []
        self._held: list[int] = []
        self._since = time.monotonic()
        self.pages = Pages(actors[0].page.ledger, [actor.page.member for actor in actors])
        self._each = len(actors[0].lanes)
        self._lanes = np.stack([actor.lanes for actor in actors])
        self._lengths, self._returns = np.zeros(self._lanes.shape, np.int64), np.zeros(self._lanes.shape)
        for actor, lengths, returns in zip(actors, self._lengths, self._returns, strict=True):
            actor.lengths, actor.returns = lengths, returns
        self._together = len(actors) // PARTS if len(actors) > SMALL else 1
        self._never = np.zeros(self._lanes.size, np.bool_)
        self._leads = threading.Lock()
        self._resting, self._gathering = True, False
        self._error: BaseException | None = None
        self.threads = Threads(len(actors), self._arrive)
        for index, actor in enumerate(self.actors):
            self.threads.do(index, begin, actor)

    def warm_up(self) -> None:
        """Compile for each number of actors that the policy may be asked about at once."""
        spec = self.actors[0].environments.spec
        for power in range(0 if self.any_number else len(self.actors).bit_length()):
            rows = self._each << power
            observation = np.zeros((rows, *spec.observation.seen_shape), spec.observation.dtype)
            self.policy.warm_up(observation, np.ones((rows, spec.actions), np.bool_) if spec.masked else None)

    @property
    def held(self) -> bool:
        """Whether somebody is held back."""
        return bool(self._idle)

    def step(self) -> bool:
        """Let those play on who are held back, if they may now; the others do without."""
        self._check()
        self._resting = False
        with self._leads:
            held = len(self._idle)
            self._turn()
            return len(self._idle) < held

    def _check(self) -> None:
        """What has ended a thread ends the crew."""
        if self._error is not None:
            raise self._error

    def beat(self) -> None:
        """Say that those live who have no step under way; of the others only their environments know."""
        self._check()
        with self._leads:
            self._count_idle()
            self.pages.beat(np.array(self._idle, np.int64))

    def _arrive(self, index: int, outcome: Any) -> None:
        """In an actor's thread: its environments are back. The first lets others come; it leads if none of them has."""
        self._arrived[index] = outcome
        if len(self._arrived) < self._together:
            if self._gathering:
                return  # whoever does will look again
            self._gathering = True
            give_way()
            self._gathering = False
            if not self._arrived:
                return  # another has led meanwhile
        try:
            with self._leads:
                if not self._turn():
                    self.wake()
        except BaseException as error:
            self._error = error
            self.wake()

    def _turn(self) -> bool:
        """Take what was played, and let those play on who have no step under way; False = they may not."""
        self._take()
        if not self._idle or self._resting:
            return True
        if not self.may_play():
            self._count_idle()
            return False
        if self._held:
            self._count_idle()
            self._held = []
        self._send()
        return True

    def _count_idle(self) -> None:
        """The time of those who are held back; a pause is nobody's."""
        now = time.monotonic()
        if not self._resting:
            self.pages.add("idle_s", np.array(self._held, np.int64), now - self._since)
        self._held, self._since = self._idle[:], now

    def _take(self) -> None:
        """Store what the threads have done, and have failed environments made anew."""
        quiet: dict[int, list[Played]] = {}
        while self._arrived:
            index, outcome = self._arrived.popitem()
            move, self._moves[index] = self._moves[index], None
            if isinstance(outcome, BaseException):
                if move is None or not isinstance(outcome, EnvironmentFailure):
                    raise outcome
                self.threads.do(index, self.recover, self.actors[index], outcome)
                continue
            if move is not None:
                if outcome.quiet and (quiet or self._arrived):
                    quiet.setdefault(move.version, []).append(Played(index, move, outcome))
                else:
                    self.actors[index].take(move.actions, outcome, move.version, move.kept)
                    self.actors[index].page.count("work")
            self._idle.append(index)
        for version, played in quiet.items():
            self._store(played, version)

    def _store(self, played: list[Played], version: int) -> None:
        """Steps in which nothing ended."""
        which, moves, results = (list(part) for part in zip(*played, strict=True))
        rows = np.array(which)
        lanes, reward = self._lanes[rows].ravel(), np.concatenate([result.reward for result in results])
        never = self._never[: len(lanes)]
        self.actors[0].experience.append(
            lanes,
            np.concatenate([move.actions for move in moves]),
            reward,
            never,
            never,
            np.concatenate([result.observation for result in results]),
            _joined([result.mask for result in results]),
            version,
            _joined([move.kept for move in moves], axis=1),
        )
        self.pages.add("env_steps", rows, self._each)
        self.pages.add("work", rows, 1)
        self._lengths[rows] += 1
        self._returns[rows] += reward.reshape(-1, self._each)
        for index, result in zip(which, results, strict=True):
            self.actors[index].observation, self.actors[index].mask = result.observation, result.mask

    def _send(self) -> None:
        """The next step of everybody who is idle."""
        indices, self._idle = self._idle, []
        if len(indices) == 1:
            self._send_one(indices[0])
            return
        for some in [indices] if self.any_number else powers_of_two(indices):
            moves = self._choose([self.actors[index] for index in some])
            self.pages.beat(np.array(some))
            for index, move in zip(some, moves, strict=True):
                self._moves[index] = move
                self.threads.do(index, self.actors[index].environments.step, move.actions)

    def _send_one(self, index: int) -> None:
        """The same for a lone one."""
        actor, policy = self.actors[index], self.policy
        actions = actor.choose()
        assert actions is not None, "the policy of a crew answers at once"
        self._moves[index] = Move(actions, policy.version, policy.keep(actions))
        actor.page.beat()
        self.threads.do(index, actor.environments.step, actions)

    def _choose(self, actors: list[Actor]) -> list[Move]:
        """ε-greedy actions, each by its actor's ε; the policy is not asked where chance decides for all."""
        policy, rng, env_steps = self.policy, self.actors[0].rng, actors[0].page.env_steps
        rates = np.array([actor.epsilon(env_steps) for actor in actors])
        explore = (rng.random((len(actors), self._each)) < rates[:, None]).ravel()
        chances = np.count_nonzero(explore)
        observation, mask = np.concatenate([actor.observation for actor in actors]), _joined([a.mask for a in actors])
        chance = random_actions(rng, len(explore), actors[0].environments.spec.actions, mask) if chances else None
        actions: NDArray[np.integer[Any]] | None = chance
        if policy.valued or chances < len(explore):
            policy.submit(observation, mask)
            greedy = policy.poll()
            assert greedy is not None, "the policy of a crew answers at once"
            actions = greedy if chance is None else np.where(explore, chance, greedy)
        assert actions is not None
        kept, version, each = policy.keep(actions), policy.version, self._each
        cuts = [slice(at, at + each) for at in range(0, len(actions), each)]
        return [Move(actions[cut], version, None if kept is None else kept[:, cut]) for cut in cuts]

    def settle(self) -> None:
        """Whatever is under way is stored, and nobody plays on."""
        self._resting = True
        while not self._all_back() and not self.dismissed():
            self.beat()
            time.sleep(GLANCE_S)

    def _all_back(self) -> bool:
        """Not while somebody leads, who may have looked before the rest began and be about to send them on."""
        with self._leads:
            return len(self._idle) == len(self.actors)

    def close(self) -> None:
        """Close the environments; one that does not come back is left behind."""
        for index, actor in enumerate(self.actors):
            self.threads.do(index, actor.close)
        self.threads.end(CLOSE_S)

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
