"""The actor: plays its environments and writes what happens into its lanes; sees only ports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repertory.environments.factory import Environments, Step
from repertory.roles.exploration import generator, random_actions
from repertory.roles.ledger import Page
from repertory.roles.ports import ExperienceSink, Policy
from repertory.roles.stopwatch import Stopwatch, Unwatched


class Actor:
    """One vector of environments and the policy that plays them; `may_play` holds it back.

    `may_ask` is asked right after a step: whether the question for the next one may be put at once.

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
        self.returns = np.zeros(environments.count)
        self.lengths = np.zeros(environments.count, np.int64)
        self._waiting: NDArray[np.bool_] | None = None
        self._actions: NDArray[np.integer[Any]] | None = None

    def restart(self, seeds: list[int]) -> None:
        """Begin anew in every environment; episodes that were running count in no statistic."""
        self.observation, self.mask = self.environments.reset(seeds)
        self.experience.begin(self.lanes, self.observation, self.mask)
        self.policy.forget(slice(None))
        self.returns[:] = 0.0
        self.lengths[:] = 0
        self._waiting = self._actions = None

    def warm_up(self) -> None:
        """After `restart`: compile what answers for the policy."""
        self.policy.warm_up(self.observation, self.mask)

    def step(self) -> bool:
        """One step in every environment, once the policy has answered; then the question for the next one.

        Asking last lets the environments play while a learner in the same process is still computing the weights that
        the answer waits for.
        """
        if not self.may_play():
            return False
        actions = self._actions if self._actions is not None else self.choose()
        if actions is None:
            return False
        self.watch.lap("act")
        result = self.environments.step(actions)
        self.watch.lap("environment")
        self.take(actions, result, self.policy.version, self.policy.keep(actions))
        self.watch.lap("store")
        self._actions = self.choose() if self.may_ask() else None
        self.watch.lap("act")
        return True

    def choose(self) -> NDArray[np.integer[Any]] | None:
        """ε-greedy actions; the policy is not asked where chance decides for every environment."""
        if self._waiting is None:
            if self.environments.count == 1:
                return self._choose_one()
            self._waiting = self.rng.random(self.environments.count) < self.epsilon(self.page.env_steps)
            if self.policy.valued or np.count_nonzero(self._waiting) < len(self._waiting):
                self.policy.submit(self.observation, self.mask)
        return self._answer()

    def _answer(self) -> NDArray[np.integer[Any]] | None:
        """What the policy says, and chance where it decides."""
        explore = self._waiting
        assert explore is not None
        chances = np.count_nonzero(explore)
        asked = self.policy.valued or chances < len(explore)
        greedy = self.policy.poll() if asked else None
        if greedy is None and asked:
            return None
        self._waiting = None
        if chances == 0:
            return greedy
        chance = random_actions(self.rng, len(explore), self.environments.spec.actions, self.mask)
        return chance if greedy is None else np.where(explore, chance, greedy)

    def _choose_one(self) -> NDArray[np.integer[Any]] | None:
        """The same for a lone environment: plain numbers are several times faster than arrays of one."""
        explores = self.rng.random() < self.epsilon(self.page.env_steps)
        if explores and not self.policy.valued:
            return random_actions(self.rng, 1, self.environments.spec.actions, self.mask)
        self.policy.submit(self.observation, self.mask)
        greedy = None if explores else self.policy.poll()
        if greedy is None:
            self._waiting = np.array([explores])
            return self._answer()
        return greedy

    def take(
        self, actions: NDArray[np.integer[Any]], result: Step, version: int, kept: NDArray[np.float32] | None
    ) -> None:
        """What these actions led to: into the lanes, and onto the page.

        `version` and `kept` [k, E] are the policy's, of when it chose them.
        """
        if not result.quiet:
            self._store(actions, result, version, kept)
            self._account(result)
            return
        self.experience.append(
            self.lanes,
            actions,
            result.reward,
            result.terminated,
            result.truncated,
            result.observation,
            result.mask,
            version,
            kept,
        )
        self.page.played(len(self.lanes))
        self.observation, self.mask = result.observation, result.mask
        self.lengths += 1
        self.returns += result.reward

    def _store(
        self, actions: NDArray[np.integer[Any]], result: Step, version: int, kept: NDArray[np.float32] | None
    ) -> None:
        """Into the lanes: the steps taken, then the episodes begun."""
        every = np.count_nonzero(result.stepped) == len(result.stepped)
        rows: Any = slice(None) if every else np.flatnonzero(result.stepped)
        lanes = self.lanes[rows]
        self.experience.append(
            lanes,
            actions[rows],
            result.reward[rows],
            result.terminated[rows],
            result.truncated[rows],
            result.observation[rows],
            None if result.mask is None else result.mask[rows],
            version,
            None if kept is None else kept[:, rows],
        )
        self.page.played(len(lanes))
        self.observation, self.mask = result.onward()
        begun = result.begun
        if np.count_nonzero(begun):
            mask = None if self.mask is None else self.mask[begun]
            self.experience.begin(self.lanes[begun], self.observation[begun], mask)
            self.policy.forget(begun)

    def _account(self, result: Step) -> None:
        """Returns and lengths of episodes, as they end."""
        self.lengths += result.stepped
        self.returns += result.reward * result.stepped
        ended = (result.terminated | result.truncated) & result.stepped
        if np.count_nonzero(ended):
            for reward, length in zip(self.returns[ended].tolist(), self.lengths[ended].tolist(), strict=True):
                self.page.episode(reward, length)
            self.returns[ended] = 0.0
            self.lengths[ended] = 0

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
