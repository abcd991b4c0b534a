"""A trained agent, loaded to act without its environment: `repertory.load`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent
from repertory.channels.mailbox import InferenceRequest
from repertory.environments import factory, saved_spaces
from repertory.environments.deadlines import say
from repertory.environments.spaces import Encoder
from repertory.errors import UserError
from repertory.roles.answers import Rows
from repertory.runs.config import environment_options
from repertory.runs.directory import RunDirectory
from repertory.runs.opening import NOTHING, Supplied, read_options
from repertory.runs.restoring import load_weights
from repertory.runs.staging import recall
from repertory.specs import EnvironmentSpec


class TrainedAgent:
    """The greedy actions of an agent that was trained.

    Its environment is not needed: neither installed nor built. Observations, masks and actions are as the environment
    has them, with its frame stacks and its number for the first action.
    """

    def __init__(self, name: str, spec: EnvironmentSpec, agent: Agent, weights: NDArray[np.float32]) -> None:
        """`name`: the environment's."""
        self.name, self.spec, self.agent, self.weights = name, spec, agent, weights
        self._space = saved_spaces.read(spec.space)
        self._encoder = Encoder(self._space)
        self._rows = Rows(agent)
        self._rows.load(weights)
        self._core: NDArray[np.float32] | None = None

    def __repr__(self) -> str:
        return f"<agent for {self.name}, {self.spec.actions} actions>"

    def act(self, observation: Any, action_mask: Any = None) -> Any:
        """The best action for one observation, an `int`; for a batch of N, an array of N actions.

        A batch has one more axis in front, in each part of a Dict or Tuple, as Gymnasium's vector environments give
        it. `action_mask` is `info["action_mask"]`: true, or 1, where an action is legal, `[actions]` or
        `[N, actions]`; without it all actions are. A recurrent agent remembers from call to call until `reset`.
        """
        stored, single = self._stored(observation)
        mask = None if action_mask is None else self._mask(action_mask, len(stored), single)
        core = self._states(len(stored))
        rows, self._core = self._rows(InferenceRequest(stored, mask, core, np.zeros(len(stored), bool)))
        values = rows if self.agent.respond is None else rows[:, :-1]
        actions = np.asarray(values.argmax(axis=-1), np.int64) + self.spec.first_action
        return int(actions[0]) if single else actions

    def reset(self, ended: Any = None) -> None:
        """A new episode begins: a recurrent agent forgets the last one.

        With a batch, `ended` says where: a flag for each row, such as `terminated | truncated`. Without it, everywhere.
        """
        if ended is None or self._core is None:
            self._core = None
            return
        flags = np.asarray(ended, bool)
        if flags.shape != (len(self._core),):
            raise UserError(f"reset takes a flag for each of {len(self._core)} rows, not {flags.shape}")
        self._core = np.where(flags[:, None], np.float32(0), self._core)

    def _stored(self, observation: Any) -> tuple[NDArray[Any], bool]:
        """Observations as the network reads them [N, ...], and whether one was given alone."""
        seen = self.spec.observation
        try:
            lead = saved_spaces.leading_axes(self._space, observation)
            if lead:
                stored = self._encoder.many(observation, lead[0], copy=False)
            else:
                stored = np.asarray(self._encoder.one(observation), seen.dtype)[None]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise UserError(f"this is no observation of {self.name}, nor a batch of them: {error}") from None
        if not len(stored):
            raise UserError("a batch of no observations was given")
        if not np.isfinite(self._encoder.numbers(stored)).all():
            raise UserError("an observation has numbers that are not finite")
        return stored, not lead

    def _mask(self, action_mask: Any, count: int, single: bool) -> NDArray[np.bool_]:
        mask = np.asarray(action_mask).astype(bool)
        mask = mask[None] if single else mask
        if mask.shape != (count, self.spec.actions):
            shape = (self.spec.actions,) if single else (count, self.spec.actions)
            raise UserError(f"an action_mask of shape {np.shape(action_mask)} was given, not {shape}")
        if not mask.any(axis=-1).all():
            raise UserError("an action_mask allows no action")
        return mask

    def _states(self, count: int) -> NDArray[np.float32]:
        """The recurrent states [N, C]; empty ones at the start."""
        if self._core is None or not self.agent.state_size:
            return np.zeros((count, self.agent.state_size), np.float32)
        if len(self._core) != count:
            raise UserError(
                f"{count} observations were given, {len(self._core)} before: call reset() when their number changes"
            )
        return self._core


def load_agent(path: Path, which: str = "newest", supplied: Supplied = NOTHING) -> TrainedAgent:
    """The agent of a run, with the weights of its newest checkpoint, the best, or one by its env step."""
    directory = RunDirectory(path)
    saved, spec = load_weights(directory, which, say), directory.read_spec()
    options = read_options(directory, supplied, to_play=spec is None)
    spec = spec or factory.describe(options.environment, environment_options(options))
    agent = recall(options, spec)
    agent.layout.check(saved.get("layout"))
    return TrainedAgent(options.environment, spec, agent, np.array(saved["learned"]["00"]))
