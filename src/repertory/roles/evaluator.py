"""The evaluator: whole greedy episodes with fixed weights, in environments of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent
from repertory.agents.light import ROWS
from repertory.experience.environments import Environments
from repertory.roles.answers import Question, Rows
from repertory.roles.ledger import Page


class Episodes(NamedTuple):
    """Returns and lengths of whole episodes."""

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]

    def summary(self) -> dict[str, Any]:
        """Mean, spread and the single episodes, as JSON values."""
        return {
            "mean": float(self.returns.mean()),
            "std": float(self.returns.std()),
            "episodes": len(self.returns),
            "returns": self.returns.tolist(),
            "lengths": self.lengths.tolist(),
        }


class Evaluator:
    """Plays one episode in each environment; those that end early wait for the rest."""

    def __init__(self, agent: Agent, environments: Environments, *, max_steps: int = 100_000) -> None:
        self.agent, self.environments, self.max_steps = agent, environments, max_steps

    def evaluate(self, weights: Any, seeds: list[int], watch: Callable[[], None] = lambda: None) -> Episodes:
        """Each environment's first episode from its seed; `watch` is called before every step."""
        observation, mask = self.environments.reset(seeds)
        greedy = self._greedy(weights)
        count = self.environments.count
        returns, lengths = np.zeros(count), np.zeros(count, np.int64)
        playing = np.ones(count, bool)
        for _ in range(self.max_steps):
            watch()
            actions = greedy(observation, mask)
            result = self.environments.step(actions)
            counted = playing & result.stepped
            returns += np.where(counted, result.reward, 0.0)
            lengths += counted
            playing &= ~(counted & (result.terminated | result.truncated))
            if not playing.any():
                break
            observation, mask = result.onward()
        return Episodes(returns, lengths)

    def _greedy(self, weights: Any) -> Callable[[NDArray[Any], NDArray[np.bool_] | None], NDArray[np.integer[Any]]]:
        """Actions for observations, by the lighter way if there is one; recurrent states begin empty."""
        agent, count = self.agent, self.environments.count
        if agent.respond is None and (agent.light is None or count > ROWS):
            return lambda observation, mask: np.asarray(agent.act(weights, observation, mask, None))
        rows, last = Rows(agent), -1 if agent.respond is not None else None
        rows.load(weights)
        core, first = np.zeros((count, agent.core), np.float32), np.ones(count, bool)

        def greedy(observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> NDArray[np.integer[Any]]:
            nonlocal core, first
            found, core = rows(Question(observation, mask, core, first))
            first = np.zeros(count, bool)
            return np.asarray(found[:, :last].argmax(axis=-1))

        return greedy


class Dismissed(Exception):
    """Nobody waits for the evaluation any more."""


class EvaluationDesk:
    """The evaluator as a role: asked by number with a snapshot of the weights, it answers with whole episodes."""

    def __init__(
        self,
        evaluator: Evaluator,
        arrays: Mapping[str, NDArray[Any]],
        seeds: Callable[[int], list[int]],
        page: Page,
        dismissed: Callable[[], bool],
    ) -> None:
        self.evaluator, self.arrays, self.seeds = evaluator, arrays, seeds
        self.page, self.dismissed = page, dismissed

    def step(self) -> bool:
        """Play the evaluation that was asked for, if one was."""
        asked, index = (int(number) for number in self.arrays["asked"])
        if asked == int(self.arrays["answered"][0]):
            return False
        try:
            episodes = self.evaluator.evaluate(self.arrays["weights"].copy(), self.seeds(index), self._watch)
        except Dismissed:
            return False
        self.arrays["returns"][:], self.arrays["lengths"][:] = episodes
        self.arrays["answered"][0] = asked
        return True

    def _watch(self) -> None:
        self.page.beat()
        if self.dismissed():
            raise Dismissed

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
