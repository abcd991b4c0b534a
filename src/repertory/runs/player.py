"""A trained agent, loaded to play: greedy actions, evaluation, recording."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent
from repertory.engines.casting import EVALUATION_WORKER
from repertory.engines.plan import Plan
from repertory.errors import UserError, missing_extra
from repertory.experience import environments
from repertory.roles.evaluator import Episodes, Evaluator
from repertory.runs import checkpoint
from repertory.runs.config import from_dict
from repertory.runs.directory import RunDirectory
from repertory.runs.staging import stage

FRAMES_PER_S = 30


class Player:
    """An agent with the weights of a checkpoint."""

    def __init__(self, plan: Plan, agent: Agent, weights: NDArray[np.float32]) -> None:
        self.plan, self.agent, self.weights = plan, agent, jnp.asarray(weights)
        self.forget()

    def forget(self) -> None:
        """A new episode begins: a recurrent agent starts with an empty state."""
        self._core = np.zeros((1, self.agent.core), np.float32)

    def act(self, observation: Any, action_mask: Any = None) -> int:
        """The greedy action for one observation, both as the environment has them."""
        encode, first_action = self._interface
        seen = self.plan.spec.observation
        stored = np.asarray(encode(observation), seen.dtype)
        if stored.shape != seen.seen_shape:
            raise UserError(f"an observation of shape {stored.shape} was given, not {seen.seen_shape}")
        mask = None if action_mask is None else np.asarray(action_mask, bool)[None]
        if self.agent.respond is None or not self.agent.core:
            return first_action + int(self.agent.act(self.weights, stored[None], mask, None)[0])
        rows, core = self.agent.respond(self.weights, stored[None], mask, self._core, np.zeros(1, bool))
        self._core = np.asarray(core)
        return first_action + int(np.argmax(rows[0, :-1]))

    @cached_property
    def _interface(self) -> tuple[Callable[[Any], Any], int]:
        return environments.interface(self.plan.environment, self.plan.environment_options)

    def evaluate(self, episodes: int, seed: int) -> Episodes:
        """Whole greedy episodes from seeds of this seed."""
        seeds = _seeds(seed, episodes)
        setting = environments.make(
            self.plan.environment, episodes, options=self.plan.evaluation_options, worker=EVALUATION_WORKER
        )
        try:
            evaluator = Evaluator(self.agent, setting, max_steps=self.plan.eval_max_steps)
            return evaluator.evaluate(self.weights, seeds)
        finally:
            setting.close()

    def record(self, path: Path, seed: int) -> Episodes:
        """One greedy episode as a film, mp4 or gif by the file's ending."""
        seeds, writer = _seeds(seed, 1), _film(path)
        setting = environments.make(
            self.plan.environment,
            1,
            options=self.plan.evaluation_options,
            worker=EVALUATION_WORKER,
            render=True,
        )
        try:
            evaluator = Evaluator(self.agent, setting, max_steps=self.plan.eval_max_steps)
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called")  # imageio forks, and execs ffmpeg at once
            return evaluator.evaluate(self.weights, seeds, watch=lambda: writer.append_data(_even(setting.render())))
        finally:
            writer.close()
            setting.close()


def _seeds(seed: int, episodes: int) -> list[int]:
    if seed < 0:
        raise UserError(f"an evaluation's seed must not be negative, it is {seed}")
    return environments.seeds(seed, EVALUATION_WORKER, episodes)


def _film(path: Path) -> Any:
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
    """Width and height as even numbers, which the mp4 codec asks for."""
    return frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2]


def load_player(path: Path) -> Player:
    """The agent of a run, from its newest checkpoint."""
    directory = RunDirectory(path)
    newest = checkpoint.latest(directory.checkpoints)
    if newest is None:
        raise UserError(f"{path} has no whole checkpoint yet; train or resume it first")
    _, plan, agent = stage(from_dict(directory.read_config()))
    saved = checkpoint.load(newest, parts=["learner"])["learner"]
    agent.layout.check(saved.get("layout"))
    return Player(plan, agent, np.array(saved["learned"]["00"]))
