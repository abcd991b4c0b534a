"""Forward passes kept while acting give the gradient that is computed anew, also where episodes end."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from companies import play, roles
from repertory.agents import kept
from repertory.agents.actor_critic import make_actor_critic
from repertory.agents.agent import Agent, Rollout
from repertory.agents.networks import NetworkOptions
from repertory.engines.rehearsal import Rehearsal
from repertory.roles.actor import Actor
from repertory.roles.hogwild_worker import HogwildWorker
from repertory.runs.config import change
from repertory.runs.presets import defaults
from repertory.runs.staging import stage
from test_actor_critic import A3C, IMAGE, begin, make_batch

UNROLLS: list[dict[int, str] | None] = [{}, {1: "truncated"}, {2: "terminated"}, {}, {3: "truncated"}, None]


class Pictures(gymnasium.Env[NDArray[np.uint8], int]):
    """Noise to look at; an episode takes 3 to 9 steps, and is cut short at 7."""

    observation_space = gymnasium.spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.left, self.played = int(self.np_random.integers(3, 10)), 0
        return self.picture(), {}

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self.played += 1
        over, cut = self.played >= self.left, self.played >= 7
        return self.picture(), float(action - 1), over, cut and not over, {}

    def picture(self) -> NDArray[np.uint8]:
        return self.np_random.integers(0, 256, (36, 36, 1)).astype(np.uint8)


gymnasium.register("Pictures-v0", Pictures)


def image_agent() -> Agent:
    return make_actor_critic(A3C, NetworkOptions("nature"), IMAGE)


def image_batch() -> Rollout:
    batch = make_batch(UNROLLS)
    seen = np.random.default_rng(0).integers(0, 256, (*batch.action.shape, 4, 36, 36)).astype(np.uint8)
    return batch._replace(observation=seen, action=batch.action % 3, mask=None)


@pytest.mark.parametrize("rows", [1, 14, 96], ids=["a step at a time", "groups of two steps and one", "all at once"])
def test_gradient_of_kept_passes_is_the_gradient(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "ROWS", rows)
    agent, batch = image_agent(), image_batch()
    assert agent.keeping is not None
    assert agent.layers is not None
    weights = begin(agent, 0.05).weights
    layers, passes = agent.layers(weights), []
    for seen in batch.observation[:-1]:
        own = np.array(seen)
        answers, one = agent.keeping.observe(layers, own, None)
        passes.append(one)
        want = agent.values(weights, seen, None, None)
        np.testing.assert_allclose(answers[:, :-1], want, rtol=1e-4, atol=1e-5)
        own[...] = 0  # as environments do, who write the next picture over the last
    found, learned = agent.keeping.gradient(layers, passes, batch)
    want, expected = agent.gradient(weights, None, batch, None)
    np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-5 * np.abs(want).max())
    np.testing.assert_allclose(learned, expected, rtol=1e-4, atol=1e-6)


def test_only_built_in_picture_networks_keep_their_passes() -> None:
    """An LSTM or a user's module may mix rows, and for small networks it does not pay."""
    for network in (NetworkOptions("nature", core=8), NetworkOptions("nature", separate=True), NetworkOptions("mlp")):
        assert make_actor_critic(A3C, network, IMAGE).keeping is None


def test_a3c_learns_from_what_it_kept_while_episodes_end_and_environments_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    wishes = {"engine": "inline", "actors": 2, "envs_per_actor": 3, "env_steps": 400, "eval_episodes": 1}
    options = change(defaults("Pictures-v0", "a3c", "a3c"), {**wishes, "agent": {"unroll": 5, "learning_rate": 1e-3}})
    plan = stage(options)[1]
    rehearsal = Rehearsal(plan, plan.make_agent())
    rehearsal.start()
    compared, learn = [], HogwildWorker._gradient_of_kept

    def both(worker: HogwildWorker, passes: Any, batch: Any) -> tuple[Any, Any]:
        found = learn(worker, passes, batch)
        assert worker._acted is not None
        want, _ = worker.agent.gradient(worker._acted()[1], None, batch, None)
        np.testing.assert_allclose(found[0], want, rtol=1e-2, atol=1e-4 * float(np.abs(want).max()))
        compared.append(float((batch.weight[:-1] == 0).mean()))
        return found

    monkeypatch.setattr(HogwildWorker, "_gradient_of_kept", both)
    play(rehearsal, 150)
    actor = roles(rehearsal, Actor)[0]
    actor.experience.interrupt(actor.lanes)  # what is half written, and half kept, is dropped
    play(rehearsal, 400)
    assert len(compared) > 10
    assert max(compared) > 0  # episodes ended inside of unrolls
    rehearsal.close()
