"""The actor: plays its environments and stores what happens; sees only ports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repertory.environments.factory import Environments, Step
from repertory.roles.exploration import EpsilonGreedy, Move, generator
from repertory.roles.ledger import Page, Pages
from repertory.roles.ports import ExperienceSink, Policy
from repertory.roles.stopwatch import Stopwatch, Unwatched


class Record:
    """Stores the steps of one or several actors: experience, counters, returns and lengths of episodes.

    `lanes` is [actors, environments of each]; all actors write into the same experience.
    """

    def __init__(
        self, experience: ExperienceSink, policy: Policy, pages: Sequence[Page], lanes: NDArray[np.int64]
    ) -> None:
        self.experience, self.policy, self.pages, self.lanes = experience, policy, pages, lanes
        self.counters = Pages(pages[0].ledger, [page.member for page in pages])
        self.share(np.zeros(lanes.shape), np.zeros(lanes.shape, np.int64))

    def share(self, returns: NDArray[np.float64], lengths: NDArray[np.int64]) -> None:
        """Keep returns and lengths of running episodes in these arrays from now on, [actors, environments of each]."""
        self.returns, self.lengths = returns, lengths
        self._rows = list(zip(self.lanes, self.pages, returns, lengths, strict=True))

    @classmethod
    def joined(cls, records: Sequence[Record]) -> Record:
        """One record for the actors of all, which share its arrays from now on."""
        first, pages = records[0], [page for record in records for page in record.pages]
        whole = cls(first.experience, first.policy, pages, np.concatenate([record.lanes for record in records]))
        for at, record in enumerate(records):
            record.share(whole.returns[at : at + 1], whole.lengths[at : at + 1])
        return whole

    def restart(self, actor: int) -> None:
        """Episodes that were running count in no statistic."""
        self.returns[actor] = 0.0
        self.lengths[actor] = 0

    def store(self, actor: int, move: Move, step: Step) -> None:
        """What an actor's move led to."""
        lanes, page, returns, lengths = self._rows[actor]
        if step.no_boundary:
            self._append(lanes, move, step)
            page.played(len(lanes))
            lengths += 1
            returns += step.reward
            return
        page.played(self._append_stepped(lanes, move, step))
        begun = step.begun
        if np.count_nonzero(begun):
            mask = None if step.first_mask is None else step.first_mask[begun]
            self.experience.begin(lanes[begun], step.first[begun], mask)
            self.policy.reset(begun)
        self._account(page, returns, lengths, step)

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
        """Environments that were only reset took no step; how many did."""
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

    def _account(self, page: Page, returns: NDArray[np.float64], lengths: NDArray[np.int64], step: Step) -> None:
        """Returns and lengths of episodes, as they end."""
        lengths += step.stepped
        returns += step.reward * step.stepped
        ended = (step.terminated | step.truncated) & step.stepped
        if np.count_nonzero(ended):
            for reward, length in zip(returns[ended].tolist(), lengths[ended].tolist(), strict=True):
                page.episode(reward, length)
            returns[ended] = 0.0
            lengths[ended] = 0


class Actor:
    """One vector of environments and the policy that plays them; `may_play` holds it back.

    `may_ask` is asked right after a step: whether the next actions may be chosen at once.

    `start` tells the streams of actors apart that have the same rank, one after the other.
    """

    def __init__(
        self,
        environments: Environments,
        policy: Policy,
        experience: ExperienceSink,
        page: Page,
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
        self.page, self.epsilon, self.watch, self.may_play, self.may_ask = page, epsilon, watch, may_play, may_ask
        self.rank, self.rng = rank, generator(seed, rank, 1, start)
        self.lanes = first_lane + np.arange(environments.count)
        self.record = Record(experience, policy, [page], self.lanes[None])
        self._exploration = EpsilonGreedy(policy, self.rng, environments.spec.actions)
        self._move: Move | None = None

    def restart(self, seeds: list[int]) -> None:
        """Begin anew in every environment."""
        self.observation, self.mask = self.environments.reset(seeds)
        self.experience.begin(self.lanes, self.observation, self.mask)
        self.policy.reset(slice(None))
        self.record.restart(0)
        self._exploration.pending, self._move = False, None

    def warm_up(self) -> None:
        """After `restart`: compile what answers for the policy."""
        self.policy.warm_up(self.observation, self.mask)

    def step(self) -> bool:
        """One step in every environment, once the policy has replied; then the request for the next one.

        Asking last lets the environments play while a learner in the same process is still computing the weights that
        the reply waits for.
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
        return self._exploration.choose(self.observation, self.mask, self.epsilon(self.page.env_steps))

    def settle(self) -> None:
        """Nothing of an actor must be put away: its steps lie in the lanes."""

    def close(self) -> None:
        """Close the environments."""
        self.environments.close()

    def state(self) -> dict[str, Any]:
        """The exploration stream; the environments themselves start anew."""
        return {"rng": dict(self.rng.bit_generator.state), "policy": self.policy.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue the exploration stream."""
        self.rng.bit_generator.state = dict(state["rng"])
        self.policy.load_state(state["policy"])
