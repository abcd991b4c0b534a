"""An agent from outside the package: one short file that gives only what differs, and a run by its name."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

import munchausen
import repertory
from munchausen import MUNCHAUSEN, MunchausenOptions, make_munchausen, munchausen_targets
from repertory.agents import registry
from repertory.agents.agent import Transitions
from repertory.agents.networks import NetworkOptions
from repertory.engines import make_driver
from repertory.errors import UserError
from repertory.runs.config import change
from repertory.runs.launch import prepare
from repertory.runs.presets import defaults
from test_q_learning import KEY, SPEC, TINY, begin, make_batch, stacked, vectors


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    registry.register(MUNCHAUSEN)
    yield
    registry.unregister(MUNCHAUSEN.name)


OPTIONS = MunchausenOptions(max_gradient_norm=0.0, loss="squared", munchausen_temperature=0.5)


def twin_targets(options: MunchausenOptions, batch: Transitions, q: Any, q_next: Any) -> NDArray[np.float64]:
    """r + α [τ ln π(a|s)]₋ₗ⁰ + γ Σ π(a'|s') (q(s', a') − τ ln π(a'|s')), one number after another."""
    α, τ, low = options.munchausen_alpha, options.munchausen_temperature, options.munchausen_clip
    targets = []
    for i, a in enumerate(batch.action):
        π, π_next = policy(q[i], None, τ), policy(q_next[i], mask_of(batch, i), τ)
        bonus = α * min(0.0, max(low, τ * math.log(π[a])))
        soft = sum(p * (v - τ * math.log(p)) for p, v in zip(π_next, q_next[i], strict=True) if p > 0)
        targets.append(float(batch.reward[i]) + bonus + float(batch.discount[i]) * soft)
    return np.array(targets)


def policy(q: Any, mask: Any, τ: float) -> list[float]:
    weights = [math.exp((float(v) - float(max(q))) / τ) * (mask is None or mask[a]) for a, v in enumerate(q)]
    return [w / sum(weights) for w in weights]


def mask_of(batch: Transitions, i: int) -> Any:
    return None if batch.next_mask is None else batch.next_mask[i]


@pytest.mark.parametrize("masked", [False, True])
def test_priorities_and_loss_follow_the_papers_target(masked: bool) -> None:
    agent, batch = make_munchausen(OPTIONS, TINY, SPEC), make_batch(size=32, masked=masked)
    θ, θ_target = vectors(agent)
    _, learned = agent.gradient(θ, θ_target, batch, KEY)
    q, q_next = (np.asarray(agent.values(θ_target, x, None, None)) for x in (batch.observation, batch.next_observation))
    online = np.asarray(agent.values(θ, batch.observation, None, None))[np.arange(32), batch.action]
    errors = twin_targets(OPTIONS, batch, q, q_next) - online
    np.testing.assert_allclose(learned.priority, np.abs(errors), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(learned.loss, np.mean(batch.weight * 0.5 * errors**2), rtol=1e-3)


def test_log_policy_is_clipped_from_below_and_prefetched_values_are_used() -> None:
    batch, rng = make_batch(size=16, masked=False), np.random.default_rng(0)
    q, q_next = (rng.normal(scale=5.0, size=(16, SPEC.actions)).astype(np.float32) for _ in range(2))
    found = munchausen_targets(OPTIONS, batch, q, q_next)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, twin_targets(OPTIONS, batch, q, q_next), rtol=1e-4, atol=1e-4)
    unclipped = replace(OPTIONS, munchausen_clip=-1e9)
    assert np.abs(twin_targets(unclipped, batch, q, q_next) - np.asarray(found)).max() > 1
    agent = make_munchausen(OPTIONS, TINY, SPEC)
    assert agent.prefetch_target
    θ, θ_target = vectors(agent)
    ahead = np.asarray(agent.values(θ_target, batch.next_observation, None, None))
    gradients = [agent.gradient(θ, θ_target, batch._replace(bootstrap=known), KEY)[0] for known in (None, ahead)]
    np.testing.assert_allclose(*gradients, rtol=1e-4, atol=1e-4)


def test_it_learns_a_batch_by_heart() -> None:
    agent = make_munchausen(replace(OPTIONS, learning_rate=3e-3, target_period=10_000), TINY, SPEC)
    _, learned = agent.learn(begin(agent), stacked(*[make_batch()] * 1500))
    assert float(learned.loss[-1]) < 0.1 * float(learned.loss[0])


def test_it_plays_and_learns_in_a_run() -> None:
    wishes = {"env_steps": 600, "agent": {"learning_starts": 100}, "network": {"hidden": [8]}}
    _, plan, _ = prepare(change(defaults("CartPole-v1", "dqn", "single"), wishes))
    plan = replace(plan, agent_kind=MUNCHAUSEN, options=MunchausenOptions(**asdict(plan.options)))
    engine = make_driver("inline", plan)
    engine.start()
    for _ in engine.rounds():
        if engine.counters.env_steps >= 600:
            break
    assert engine.counters.updates > 50
    assert np.isfinite(engine.metrics()["loss"])  # type: ignore[arg-type]
    engine.close()


@pytest.mark.parametrize("topology", ["single", "collectors"])
def test_a_run_chooses_it_by_name_and_learns(topology: str, tmp_path: Path) -> None:
    run = repertory.train(
        "CartPole-v1",
        agent="munchausen",
        topology=topology,
        env_steps=30_000,
        target_score=400,
        agent_options={"munchausen_temperature": 0.1},
        runs_dir=tmp_path,
        quiet=True,
    )
    assert run.result["status"] == "solved"


def test_it_is_short_and_nothing_in_the_package_knows_its_name() -> None:
    assert len(Path(munchausen.__file__).read_text().splitlines()) <= 80
    sources = Path(repertory.__file__).parent.rglob("*.py")
    assert [path.name for path in sources if "munchausen" in path.read_text().lower()] == []


def test_it_is_found_by_its_name_and_a_misspelt_one_by_the_nearest() -> None:
    assert registry.find("munchausen") is MUNCHAUSEN
    with pytest.raises(UserError, match="unknown agent 'munchhausen'; did you mean 'munchausen'"):
        registry.find("munchhausen")


def test_pictures_are_learned_from_in_slices_by_an_agent_from_outside() -> None:
    from test_q_learning import IMAGE

    agent = make_munchausen(OPTIONS, NetworkOptions("nature"), IMAGE, 2)
    batch = make_batch(size=40, masked=False, spec=IMAGE)
    start = begin(agent)
    want, _ = agent.gradient(start.weights, start.target, batch, jax.random.fold_in(start.key, 0))
    _, learned = agent.learn(start, stacked(batch))
    np.testing.assert_allclose(learned.gradient_norm, [np.linalg.norm(want)], rtol=1e-3)
