"""A trained agent: acts without its environment (`repertory.load`), or plays in it, for scores and videos."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent
from repertory.channels.mailbox import Episodes, InferenceRequest
from repertory.environments import factory
from repertory.environments.deadlines import SlowSteps, bounded, close_within, say
from repertory.environments.factory import Environments
from repertory.environments.spaces import Encoder, leading_axes, read_space
from repertory.errors import UserError, missing_extra
from repertory.roles.evaluator import Evaluator
from repertory.roles.inference import Rows
from repertory.runs.config import environment_options
from repertory.runs.directory import RunDirectory
from repertory.runs.launch import prepare, recall
from repertory.runs.opening import NOTHING, Supplied, load_weights, read_options
from repertory.specs import EnvironmentSpec
from repertory.topologies.parts import EVALUATION_RANK
from repertory.topologies.plan import Plan


class TrainedAgent:
    """The greedy actions of a trained agent.

    Its environment need not be installed. Observations, masks and actions are those of the environment, with its frame
    stacks and its number for the first action. `name` is the environment's.
    """

    def __init__(self, name: str, spec: EnvironmentSpec, agent: Agent, weights: NDArray[np.float32]) -> None:
        self.name, self.spec, self.agent, self.weights = name, spec, agent, weights
        self._space = read_space(spec.space)
        self._encoder = Encoder(self._space)
        self._rows = Rows(agent)
        self._rows.load(weights)
        self._state: NDArray[np.float32] | None = None

    def __repr__(self) -> str:
        return f"<agent for {self.name}, {self.spec.actions} actions>"

    def act(self, observation: Any, action_mask: Any = None) -> Any:
        """The best action for one observation, an `int`; for a batch of N, an array of N actions.

        A batch has one more axis in front, in each part of a Dict or Tuple, as Gymnasium's vector environments return
        it. `action_mask` is `info["action_mask"]`: true, or 1, where an action is legal, `[actions]` or
        `[N, actions]`; without it all actions are legal. A recurrent agent keeps its state between calls until `reset`.
        """
        stored, single = self._stored(observation)
        mask = None if action_mask is None else self._mask(action_mask, len(stored), single)
        state = self._states(len(stored))
        rows, self._state = self._rows(InferenceRequest(stored, mask, state, np.zeros(len(stored), bool)))
        values = rows if self.agent.respond is None else rows[:, :-1]
        actions = np.asarray(values.argmax(axis=-1), np.int64) + self.spec.first_action
        return int(actions[0]) if single else actions

    def reset(self, ended: Any = None) -> None:
        """Begin a new episode: clear the recurrent state; of a batch, where `ended` (`terminated | truncated`)."""
        if ended is None or self._state is None:
            self._state = None
            return
        flags = np.asarray(ended, bool)
        if flags.shape != (len(self._state),):
            raise UserError(f"reset takes a flag for each of {len(self._state)} rows, not {flags.shape}")
        self._state = np.where(flags[:, None], np.float32(0), self._state)

    def _stored(self, observation: Any) -> tuple[NDArray[Any], bool]:
        """Observations as the network reads them [N, ...], and whether one was given alone."""
        seen = self.spec.observation
        try:
            lead = leading_axes(self._space, observation)
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
        """The recurrent states [N, C]; zeros at the start."""
        if self._state is None or not self.agent.state_size:
            return np.zeros((count, self.agent.state_size), np.float32)
        if len(self._state) != count:
            raise UserError(
                f"{count} observations were given, {len(self._state)} before: call reset() when their number changes"
            )
        return self._state


def load_agent(path: Path, which: str = "newest", supplied: Supplied = NOTHING) -> TrainedAgent:
    directory = RunDirectory(path)
    saved, spec = load_weights(directory, which, say), directory.read_spec()
    options = read_options(directory, supplied, to_play=spec is None)
    spec = spec or factory.describe(options.environment, environment_options(options))
    agent = recall(options, spec)
    agent.layout.check(saved.get("layout"))
    return TrainedAgent(options.environment, spec, agent, np.array(saved["learned"]["00"]))


FRAMES_PER_S = 30


class Player:
    """An agent with the weights of a checkpoint."""

    def __init__(self, plan: Plan, agent: Agent, weights: NDArray[np.float32]) -> None:
        self.plan, self.agent, self.weights = plan, agent, jnp.asarray(weights)

    def evaluate(self, episodes: int, seed: int) -> Episodes:
        """Whole greedy episodes; their seeds follow from `seed`."""
        seeds = _seeds(seed, episodes)
        with self._environments(episodes) as setting:
            return self._evaluator(setting).evaluate(self.weights, seeds)

    def record(self, path: Path, seed: int) -> Episodes:
        """One greedy episode as a video, mp4 or gif by the file's ending."""
        seeds, writer = _seeds(seed, 1), _video(path)
        with self._environments(1, render=True) as setting:
            try:
                warnings.filterwarnings("ignore", r"os\.fork\(\) was called")  # imageio forks, and execs ffmpeg at once
                return self._evaluator(setting).evaluate(
                    self.weights, seeds, watch=lambda: writer.append_data(_even(setting.render()))
                )
            finally:
                writer.close()

    @contextmanager
    def _environments(self, count: int, render: bool = False) -> Iterator[Environments]:
        """With a warning when a step takes too long; closed at the end."""
        plan, place = self.plan, np.full((1, 4), -1)
        with bounded():
            setting = factory.make(
                plan.environment, count, options=plan.evaluation_options, worker=EVALUATION_RANK, render=render
            )
        setting.report_to(place[0])
        slow = SlowSteps(place, plan.heartbeat_s)
        try:
            yield setting
        finally:
            slow.end()
            if render:
                with bounded():  # in this thread, to which the renderer may belong
                    setting.close()
            else:
                close_within(plan.environment, [setting.close])

    def _evaluator(self, setting: Environments) -> Evaluator:
        return Evaluator(self.agent, setting, max_steps=self.plan.eval_max_steps)


def _seeds(seed: int, episodes: int) -> list[int]:
    if seed < 0:
        raise UserError(f"an evaluation's seed must not be negative, it is {seed}")
    return factory.seeds(seed, EVALUATION_RANK, episodes)


def _video(path: Path) -> Any:
    if path.suffix not in (".mp4", ".gif"):
        raise UserError(f"--record writes .mp4 or .gif, not {path.name!r}")
    try:
        import imageio.v2 as imageio

        if path.suffix == ".gif":
            return imageio.get_writer(path, duration=1000 / FRAMES_PER_S, loop=0)
        import imageio_ffmpeg  # noqa: F401

        return imageio.get_writer(path, fps=FRAMES_PER_S, macro_block_size=1)
    except ImportError:
        raise missing_extra("--record", "video") from None
    except OSError as error:
        raise UserError(f"--record can't write {path}: {error.strerror or error}") from None


def _even(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Cut to an even width and height, which the mp4 codec needs."""
    return frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2]


def load_player(path: Path, supplied: Supplied = NOTHING, which: str = "newest") -> Player:
    directory = RunDirectory(path)
    saved = load_weights(directory, which, say)
    _, plan, agent = prepare(read_options(directory, supplied))
    agent.layout.check(saved.get("layout"))
    return Player(plan, agent, np.array(saved["learned"]["00"]))
