"""The evaluator: whole greedy episodes with fixed weights, in environments of its own."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent
from repertory.channels.counters import WorkerStats
from repertory.channels.mailbox import Episodes, EvaluationPort, InferenceRequest
from repertory.environments.factory import Environments
from repertory.errors import EnvironmentFailure
from repertory.roles.inference import Rows
from repertory.roles.ports import Role


class Evaluator:
    """Plays one episode in each environment; those that end early wait for the rest."""

    def __init__(self, agent: Agent, environments: Environments, *, max_steps: int = 100_000) -> None:
        self.agent, self.environments, self.max_steps = agent, environments, max_steps

    finished = 0
    """Episodes of the evaluation under way that have ended."""

    def evaluate(
        self, weights: Any, seeds: list[int], watch: Callable[[], None] = lambda: None, seconds: float = math.inf
    ) -> Episodes:
        """Each environment's first episode from its seed; `watch` is called before every step.

        After so many seconds, episodes that still run are cut off.
        """
        end = time.monotonic() + seconds
        self.finished = 0
        observation, mask = self.environments.reset(seeds)
        greedy = self._greedy(weights)
        count = self.environments.count
        returns, lengths = np.zeros(count), np.zeros(count, np.int64)
        playing = np.ones(count, bool)
        for _ in range(self.max_steps):
            watch()
            if time.monotonic() > end:
                return Episodes(returns, lengths, int(playing.sum()))
            actions = greedy(observation, mask)
            result = self.environments.step(actions)
            counted = playing & result.stepped
            returns += np.where(counted, result.reward, 0.0)
            lengths += counted
            playing &= ~(counted & (result.terminated | result.truncated))
            self.finished = count - int(np.count_nonzero(playing))
            if self.finished == count:
                break
            observation, mask = result.onward()
        return Episodes(returns, lengths)

    def warm_up(self) -> None:
        """Compile what chooses actions, before the clock runs."""
        observation, mask = self.environments.reset(list(range(self.environments.count)))
        self._greedy(np.zeros(self.agent.layout.size, np.float32))(observation, mask)

    def _greedy(self, weights: Any) -> Callable[[NDArray[Any], NDArray[np.bool_] | None], NDArray[np.integer[Any]]]:
        """Actions for observations, by the lighter way if there is one; recurrent states begin empty."""
        agent, count = self.agent, self.environments.count
        if agent.respond is None and count > agent.numpy_rows:
            return lambda observation, mask: np.asarray(agent.act(weights, observation, mask, None))
        rows, last = Rows(agent), -1 if agent.respond is not None else None
        rows.load(weights)
        state, first = np.zeros((count, agent.state_size), np.float32), np.ones(count, bool)

        def greedy(observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> NDArray[np.integer[Any]]:
            nonlocal state, first
            found, state = rows(InferenceRequest(observation, mask, state, first))
            first = np.zeros(count, bool)
            return np.asarray(found[:, :last].argmax(axis=-1))

        return greedy


class Dismissed(Exception):
    """Nobody waits for the evaluation any more."""


class Superseded(Exception):
    """A later evaluation was asked for, and matters more."""


class EvaluationRole(Role):
    """The evaluator as a role: asked by number with a snapshot of the weights, it answers with whole episodes."""

    def __init__(
        self,
        evaluator: Evaluator,
        requests: EvaluationPort,
        seeds: Callable[[int], list[int]],
        stats: WorkerStats,
        dismissed: Callable[[], bool],
    ) -> None:
        self.evaluator, self.requests, self.seeds = evaluator, requests, seeds
        self.stats, self.dismissed = stats, dismissed
        self._number = 0

    def warm_up(self) -> None:
        """Compile before the clock runs; environments that fail will fail again when somebody asks."""
        with contextlib.suppress(EnvironmentFailure):
            self.evaluator.warm_up()

    def step(self) -> bool:
        """Play the evaluation that was asked for, if one was."""
        request = self.requests.take()
        if request is None:
            return False
        self._number, index, weights, seconds = request
        try:
            episodes = self.evaluator.evaluate(weights, self.seeds(index), self._watch, seconds)
        except Superseded:
            return True
        except Dismissed:
            return False
        self.requests.reply(self._number, episodes)
        return True

    def _watch(self) -> None:
        self.stats.beat()
        self.requests.progress(self.evaluator.finished)
        if self.dismissed():
            raise Dismissed
        if not self.requests.wanted(self._number):
            raise Superseded

    def settle(self) -> None:
        """An evaluation that was cut short is asked for again."""

    def state(self) -> dict[str, Any]:
        """Nothing: seeds follow from the evaluation's number."""
        return {}

    def load_state(self, state: Any) -> None:
        """Nothing to take over."""

    def close(self) -> None:
        """Close the environments."""
        self.evaluator.environments.close()
