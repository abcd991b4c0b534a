"""A trained agent, loaded to play in its environment: evaluation, recording."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent
from repertory.channels.mailbox import Episodes
from repertory.environments import factory
from repertory.environments.deadlines import SlowSteps, bounded, close_within, say
from repertory.environments.factory import Environments
from repertory.errors import UserError, missing_extra
from repertory.roles.evaluator import Evaluator
from repertory.runs.directory import RunDirectory
from repertory.runs.opening import NOTHING, Supplied, read_options
from repertory.runs.restoring import load_weights
from repertory.runs.staging import stage
from repertory.topologies.parts import EVALUATION_RANK
from repertory.topologies.plan import Plan

FRAMES_PER_S = 30


class Player:
    """An agent with the weights of a checkpoint."""

    def __init__(self, plan: Plan, agent: Agent, weights: NDArray[np.float32]) -> None:
        self.plan, self.agent, self.weights = plan, agent, jnp.asarray(weights)

    def evaluate(self, episodes: int, seed: int) -> Episodes:
        """Whole greedy episodes from seeds of this seed."""
        seeds = _seeds(seed, episodes)
        with bounded():
            setting = factory.make(
                self.plan.environment, episodes, options=self.plan.evaluation_options, worker=EVALUATION_RANK
            )
        slow = self._watched(setting)
        try:
            evaluator = Evaluator(self.agent, setting, max_steps=self.plan.eval_max_steps)
            return evaluator.evaluate(self.weights, seeds)
        finally:
            slow.end()
            close_within(self.plan.environment, [setting.close])

    def _watched(self, setting: Environments) -> SlowSteps:
        place = np.full((1, 4), -1)
        setting.report_to(place[0])
        return SlowSteps(place, self.plan.heartbeat_s)

    def record(self, path: Path, seed: int) -> Episodes:
        """One greedy episode as a film, mp4 or gif by the file's ending."""
        seeds, writer = _seeds(seed, 1), _film(path)
        with bounded():
            setting = factory.make(
                self.plan.environment,
                1,
                options=self.plan.evaluation_options,
                worker=EVALUATION_RANK,
                render=True,
            )
        slow = self._watched(setting)
        try:
            evaluator = Evaluator(self.agent, setting, max_steps=self.plan.eval_max_steps)
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called")  # imageio forks, and execs ffmpeg at once
            return evaluator.evaluate(self.weights, seeds, watch=lambda: writer.append_data(_even(setting.render())))
        finally:
            writer.close()
            slow.end()
            with bounded():  # in this thread: what draws may belong to it
                setting.close()


def _seeds(seed: int, episodes: int) -> list[int]:
    if seed < 0:
        raise UserError(f"an evaluation's seed must not be negative, it is {seed}")
    return factory.seeds(seed, EVALUATION_RANK, episodes)


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


def load_player(path: Path, supplied: Supplied = NOTHING, which: str = "newest") -> Player:
    """The agent of a run, from its newest checkpoint, the best, or one by its env step."""
    directory = RunDirectory(path)
    saved = load_weights(directory, which, say)
    _, plan, agent = stage(read_options(directory, supplied))
    agent.layout.check(saved.get("layout"))
    return Player(plan, agent, np.array(saved["learned"]["00"]))
