"""What a line of metrics tells of learning: every line with updates has their losses, norms and values, everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from commands import rows
from companies import company, play, roles, small_plan
from repertory import api
from repertory.agents.agent import Agent, Learned
from repertory.engines.inline import InlineEngine
from repertory.engines.rehearsal import Rehearsal
from repertory.roles.learner import Learner
from repertory.roles.ledger import Page, new_ledger
from repertory.runs.config import change
from repertory.runs.presets import defaults
from repertory.runs.staging import stage
from repertory.topologies import TOPOLOGIES

TOLD = ("loss", "gradient_norm", "clipped_share", "value_mean", "learning_rate")
COMPANIES = sorted(set(TOPOLOGIES) - {"single"})


class Pictures(gymnasium.Env[NDArray[np.uint8], int]):
    """Noise to look at, in episodes of 5 steps."""

    observation_space = gymnasium.spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.played = 0
        return self.picture(), {}

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self.played += 1
        return self.picture(), float(action - 1), self.played >= 5, False, {}

    def picture(self) -> NDArray[np.uint8]:
        return self.np_random.integers(0, 256, (36, 36, 1)).astype(np.uint8)


def make_pictures() -> Pictures:
    """For processes that import this file by its path."""
    return Pictures()


def lines(rehearsal: Rehearsal, env_steps: int) -> Iterator[dict[str, Any]]:
    """Figures after each round in which there was an update."""
    before = rehearsal.counters.updates
    for _ in rehearsal.rounds():
        if rehearsal.counters.updates > before:
            before = rehearsal.counters.updates
            yield rehearsal.metrics()
        if rehearsal.counters.env_steps >= env_steps:
            return


def assert_told(told: dict[str, Any], unrolled: bool) -> None:
    for name in (*TOLD, *(("entropy",) if unrolled else ())):
        assert told[name] is not None, name
        assert np.isfinite(told[name]), name
    assert told["gradient_norm"] > 0
    assert 0 <= told["clipped_share"] <= 1


@pytest.mark.parametrize("topology", COMPANIES)
def test_every_line_with_an_update_tells_of_it(topology: str) -> None:
    with closing(company(topology, env_steps=600)) as rehearsal:
        found = list(lines(rehearsal, 500))
        assert len(found) > 5
        for told in found:
            assert_told(told, rehearsal.plan.unrolled)
        rehearsal.metrics()
        assert rehearsal.metrics()["loss"] is None  # nothing has happened since


def test_every_line_of_a_single_learner_with_an_update_tells_of_it() -> None:
    plan = small_plan("single", actors=1, env_steps=600)
    with closing(InlineEngine(plan, plan.make_agent())) as engine:
        engine.start()
        before = 0
        for _ in engine.rounds():
            if engine.counters.updates > before:
                before = engine.counters.updates
                assert_told(engine.metrics(), unrolled=False)
            if engine.counters.env_steps >= 500:
                break
        assert before > 20
        assert engine.metrics()["loss"] is None


@pytest.mark.parametrize("topology", ["collectors", "impala"])
def test_every_line_with_an_update_tells_of_it_in_processes_that_look_at_pictures(
    tmp_path: Path, topology: str
) -> None:
    small: dict[str, Any] = {"unroll": 5, "batch_unrolls": 4} if topology == "impala" else {}
    small |= {} if small else {"batch_size": 4, "learning_starts": 50, "replay_ratio": 1.0, "replay_capacity": 500}
    run = api.train(
        f"{__file__}:make_pictures",
        topology=topology,
        env_steps=600,
        log_every=20,
        eval_every=10_000,
        eval_episodes=1,
        actors=1,
        envs_per_actor=4,
        runs_dir=str(tmp_path),
        quiet=True,
        agent_options=small,
    )
    found = rows(run.directory)
    learned = [
        now for then, now in zip([{"updates": 0}, *found], found, strict=False) if now["updates"] > then["updates"]
    ]
    assert len(learned) > 3
    for told in learned:
        assert_told(told, unrolled=topology == "impala")


LIMITS = [("never", 0.0, 0.0), ("far off", 1e6, 0.0), ("always", 1e-6, 1.0)]


@pytest.mark.parametrize("topology", COMPANIES)
@pytest.mark.parametrize(("limit", "share"), [case[1:] for case in LIMITS], ids=[case[0] for case in LIMITS])
def test_clipped_share_is_that_of_updates_whose_gradient_was_too_long(
    topology: str, limit: float, share: float
) -> None:
    with closing(company(topology, None, {"max_gradient_norm": limit}, env_steps=500)) as rehearsal:
        play(rehearsal, 400)
        assert rehearsal.metrics()["clipped_share"] == share


class Remembering:
    """An agent's `learn`, and what it has told."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.told = agent, list[Learned]()

    def __call__(self, *given: Any) -> Any:
        state, learned = self.agent.learn(*given)
        self.told.append(learned)
        return state, learned


@contextmanager
def remembered(topology: str, **agent: Any) -> Iterator[tuple[Rehearsal, Remembering]]:
    with closing(company(topology, None, agent, env_steps=600)) as rehearsal:
        (learner,) = roles(rehearsal, Learner)
        remembering = Remembering(rehearsal.agent)
        learner.agent = replace(rehearsal.agent, learn=remembering)
        yield rehearsal, remembering


@pytest.mark.parametrize("topology", ["collectors", "impala"])
def test_a_line_holds_the_means_of_the_updates_since_the_last_one(topology: str) -> None:
    limit = 0.5 if topology == "collectors" else 1.0
    parts = {"updates_per_call": 3} if topology == "collectors" else {"epochs": 3, "minibatches": 2, "unroll": 5}
    with remembered(topology, max_gradient_norm=limit, **parts) as (rehearsal, remembering):
        play(rehearsal, 300)
        rehearsal.metrics()
        remembering.told.clear()
        updates = rehearsal.counters.updates
        play(rehearsal, 550)
        told = rehearsal.metrics()
        made = {name: np.ravel([getattr(each, name) for each in remembering.told]) for name in Learned._fields[2:]}
        loss = np.ravel([each.loss for each in remembering.told])
        assert len(loss) == rehearsal.counters.updates - updates > 10
        norms = made["gradient_norm"]
        assert told["loss"] == pytest.approx(loss.mean(), rel=1e-4)
        assert told["gradient_norm"] == pytest.approx(norms.mean(), rel=1e-4)
        assert told["value_mean"] == pytest.approx(made["value"].mean(), rel=1e-4)
        assert told["clipped_share"] == pytest.approx((norms > limit).mean())


def test_one_update_that_is_not_finite_spoils_no_other_of_its_call() -> None:
    with closing(company("collectors", env_steps=600)) as rehearsal:
        page = rehearsal.counters
        page.loss(np.array([1.0, np.nan, 3.0]), np.zeros(3), np.array([4.0, 5.0, 6.0]))
        page.gradient_norm(np.array([1.0, np.inf, 3.0]), 2.0)
        told = rehearsal.metrics()
        assert (told["loss"], told["value_mean"]) == (2.0, 5.0)
        assert (told["gradient_norm"], told["clipped_share"]) == (2.0, 0.5)


@pytest.mark.parametrize("one", [float, np.float32, lambda x: np.array([x], np.float32), jnp.float32])
def test_updates_told_one_by_one_by_plain_numbers_add_up_as_those_of_one_call(
    one: Callable[[float], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    losses, norms, nothing = np.array([1.0, np.nan, 3.0, 0.5]), np.array([1.0, np.inf, 3.0, 2.0]), np.zeros(4)
    together, apart = Page(new_ledger()), Page(new_ledger())
    together.loss(losses, nothing, norms)
    for limit in (2.0, 0.0):
        together.gradient_norm(norms, limit)
    with monkeypatch.context() as patched:
        patched.setattr(np, "isfinite", None)  # for one number no arrays are looked through
        for loss, norm in zip(losses.tolist(), norms.tolist(), strict=True):
            apart.loss(one(loss), one(0.0), one(norm))
            for limit in (2.0, 0.0):
                apart.gradient_norm(one(norm), limit)
    for name, values in together.ledger.items():
        np.testing.assert_array_equal(apart.ledger[name], values, name)
    assert int(apart.row["losses"]) == 3
    assert int(apart.row["clipped"]) == 1


def test_every_figure_is_explained() -> None:
    text = (Path(__file__).parents[1] / "docs/metrics.md").read_text()
    for topology in COMPANIES:
        options = change(defaults("CartPole-v1", topology=topology), {"engine": "inline", "eval_episodes": 1})
        plan = stage(options)[1]
        with closing(Rehearsal(plan, plan.make_agent())) as rehearsal:
            rehearsal.start()
            for name in rehearsal.metrics():
                role = name.partition("/")[0] + "/ROLE"
                assert f"`{name}`" in text or f"`{role}`" in text, name
