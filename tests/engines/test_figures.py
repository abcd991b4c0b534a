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
from inference_parts import worker_stats
from inline_runs import inline_run, plan_of, play, roles
from repertory import api, topologies
from repertory.agents.agent import Agent, Learned
from repertory.engines import make_driver
from repertory.engines.driver import Driver
from repertory.roles.learner import Learner

TOLD = ("loss", "gradient_norm", "clipped_share", "value_mean", "learning_rate")
NAMES = sorted(topologies.known())


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


def alone(topology: str) -> dict[str, int]:
    """A single agent plays by itself."""
    return {"actors": 1} if topology == "single" else {}


def lines(driver: Driver, env_steps: int) -> Iterator[dict[str, Any]]:
    """Figures after each round in which there was an update."""
    before = driver.counters.updates
    for _ in driver.rounds():
        if driver.counters.updates > before:
            before = driver.counters.updates
            yield driver.metrics()
        if driver.counters.env_steps >= env_steps:
            return


def assert_told(told: dict[str, Any], unrolled: bool) -> None:
    for name in (*TOLD, *(("entropy",) if unrolled else ())):
        assert told[name] is not None, name
        assert np.isfinite(told[name]), name
    assert told["gradient_norm"] > 0
    assert 0 <= told["clipped_share"] <= 1


@pytest.mark.parametrize("topology", NAMES)
def test_every_line_with_an_update_tells_of_it(topology: str) -> None:
    with closing(inline_run(topology, env_steps=600, **alone(topology))) as driver:
        found = list(lines(driver, 500))
        assert len(found) > (20 if topology == "single" else 5)
        for told in found:
            assert_told(told, driver.plan.unrolled)
        driver.metrics()
        assert driver.metrics()["loss"] is None  # nothing has happened since


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


@pytest.mark.parametrize("topology", NAMES)
@pytest.mark.parametrize(("limit", "share"), [case[1:] for case in LIMITS], ids=[case[0] for case in LIMITS])
def test_clipped_share_is_that_of_updates_whose_gradient_was_too_long(
    topology: str, limit: float, share: float
) -> None:
    with closing(inline_run(topology, None, {"max_gradient_norm": limit}, env_steps=500, **alone(topology))) as driver:
        play(driver, 400)
        assert driver.metrics()["clipped_share"] == share


class Remembering:
    """An agent's `learn`, and what it has told."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.told = agent, list[Learned]()

    def __call__(self, *given: Any) -> Any:
        state, learned = self.agent.learn(*given)
        self.told.append(learned)
        return state, learned


@contextmanager
def remembered(topology: str, **agent: Any) -> Iterator[tuple[Driver, Remembering]]:
    with closing(inline_run(topology, None, agent, env_steps=600)) as driver:
        (learner,) = roles(driver, Learner)
        remembering = Remembering(driver.agent)
        learner.agent = replace(driver.agent, learn=remembering)
        yield driver, remembering


@pytest.mark.parametrize("topology", ["collectors", "impala"])
def test_a_line_holds_the_means_of_the_updates_since_the_last_one(topology: str) -> None:
    limit = 0.5 if topology == "collectors" else 1.0
    parts = {"updates_per_call": 3} if topology == "collectors" else {"epochs": 3, "minibatches": 2, "unroll": 5}
    with remembered(topology, max_gradient_norm=limit, **parts) as (driver, remembering):
        play(driver, 300)
        driver.metrics()
        remembering.told.clear()
        updates = driver.counters.updates
        play(driver, 550)
        told = driver.metrics()
        made = {name: np.ravel([getattr(each, name) for each in remembering.told]) for name in Learned._fields[2:]}
        loss = np.ravel([each.loss for each in remembering.told])
        assert len(loss) == driver.counters.updates - updates > 10
        norms = made["gradient_norm"]
        assert told["loss"] == pytest.approx(loss.mean(), rel=1e-4)
        assert told["gradient_norm"] == pytest.approx(norms.mean(), rel=1e-4)
        assert told["value_mean"] == pytest.approx(made["value"].mean(), rel=1e-4)
        assert told["clipped_share"] == pytest.approx((norms > limit).mean())


def test_one_update_that_is_not_finite_spoils_no_other_of_its_call() -> None:
    with closing(inline_run("collectors", env_steps=600)) as driver:
        stats = driver.counters
        stats.loss(np.array([1.0, np.nan, 3.0]), np.zeros(3), np.array([4.0, 5.0, 6.0]))
        stats.gradient_norm(np.array([1.0, np.inf, 3.0]), 2.0)
        told = driver.metrics()
        assert (told["loss"], told["value_mean"]) == (2.0, 5.0)
        assert (told["gradient_norm"], told["clipped_share"]) == (2.0, 0.5)


@pytest.mark.parametrize("one", [float, np.float32, lambda x: np.array([x], np.float32), jnp.float32])
def test_updates_told_one_by_one_by_plain_numbers_add_up_as_those_of_one_call(
    one: Callable[[float], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    losses, norms, nothing = np.array([1.0, np.nan, 3.0, 0.5]), np.array([1.0, np.inf, 3.0, 2.0]), np.zeros(4)
    together, apart = worker_stats(), worker_stats()
    together.loss(losses, nothing, norms)
    for limit in (2.0, 0.0):
        together.gradient_norm(norms, limit)
    with monkeypatch.context() as patched:
        patched.setattr(np, "isfinite", None)  # for one number no arrays are looked through
        for loss, norm in zip(losses.tolist(), norms.tolist(), strict=True):
            apart.loss(one(loss), one(0.0), one(norm))
            for limit in (2.0, 0.0):
                apart.gradient_norm(one(norm), limit)
    for name, values in together.table.items():
        np.testing.assert_array_equal(apart.table[name], values, name)
    assert int(apart.row["losses"]) == 3
    assert int(apart.row["clipped"]) == 1


def test_every_figure_is_explained() -> None:
    text = (Path(__file__).parents[2] / "docs/metrics.md").read_text()
    for topology in NAMES:
        with closing(make_driver("inline", plan_of(topology, eval_episodes=1))) as driver:
            driver.start()
            for name in driver.metrics():
                role = name.partition("/")[0] + "/ROLE"
                assert f"`{name}`" in text or f"`{role}`" in text, name
