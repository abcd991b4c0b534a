"""All-reduce: ranks stay bit-equal after every update, and make the update that one learner of all their samples makes.

Horovod: Sergeev and Del Balso 2018.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

from inline_runs import inline_run, play, roles, turns
from repertory.agents.agent import Transitions
from repertory.engines import processes
from repertory.engines.driver import Driver
from repertory.engines.processes import ProcessesEngine
from repertory.experience.replay import Sample
from repertory.roles.replica import Replica
from repertory.runs.config import change, from_dict, to_dict
from repertory.runs.presets import defaults
from repertory.runs.staging import draft
from repertory.topologies import TOPOLOGIES

COMPRESSIONS = ("none", "float16", "int8", "topk")


def checksums(engine: Any) -> list[dict[int, int]]:
    """What each rank's weights were after each of its latest updates."""
    return [
        {int(version): int(crc) for version, crc in rank if version} for rank in engine.stage.arrays["checksums"].copy()
    ]


def assert_ranks_equal(engine: Any, least: int) -> None:
    """The same weights on all ranks after every update."""
    first, *others = checksums(engine)
    assert len(first) >= least
    assert len(set(first.values())) > len(first) // 2, "the weights do change"
    for other in others:
        assert other == first


def settled(driver: Driver) -> Driver:
    """Paused between two rounds, as for a checkpoint, and let go on."""
    driver.settle()
    driver.start()
    return driver


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_weights_of_all_ranks_are_equal_to_the_bit_after_every_update(compression: str) -> None:
    driver = inline_run("all_reduce", {"compression": compression}, {"prioritized": True}, envs_per_actor=1)
    play(driver)
    driver.settle()
    assert_ranks_equal(driver, 50)
    driver.close()


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("rounds", [1, 3])
def test_ranks_stay_equal_wherever_a_pause_finds_them(compression: str, rounds: int) -> None:
    driver = inline_run("all_reduce", {"compression": compression}, env_steps=600, envs_per_actor=1)
    for count, _ in enumerate(driver.rounds()):
        if count % rounds == 0:
            settled(driver)
        if driver.counters.env_steps >= 600:
            break
    driver.settle()
    assert_ranks_equal(driver, 10)
    driver.close()


@pytest.mark.parametrize("compression", ["int8", "topk"])
def test_a_round_that_is_given_up_takes_nothing_from_what_is_still_to_be_sent(compression: str) -> None:
    """The gradient counts for nobody, so its residual counts for nobody."""
    driver = inline_run("all_reduce", {"compression": compression}, env_steps=10**6)
    rank: Replica = roles(driver, Replica)[0]
    play(driver, 600)
    acting = turns(driver)["rank 0"]
    while rank._waiting is None:  # the others do not come
        before = np.array(rank._residual)
        for role in acting:
            role.step()
    assert np.abs(before).max() > 0
    assert not np.array_equal(rank._residual, before)
    rank.settle()
    np.testing.assert_array_equal(rank._residual, before)
    driver.close()


def test_pause_costs_no_update() -> None:
    made = []
    for pauses in (False, True):
        driver = inline_run("all_reduce", env_steps=900)
        play(driver, watch=(lambda r=driver: settled(r)) if pauses else (lambda: None))
        driver.settle()
        made.append(driver.counters.updates)
        driver.close()
    assert made[0] == made[1]


@pytest.mark.parametrize("limit", [0.0, 0.5])
def test_update_of_all_ranks_is_that_of_one_learner_with_all_their_samples(
    limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal but for the order of the sums: over 3 x 8 rows at once here, over 8 rows and then 3 ranks there.

    Rounding of float32 is 1e-7 of a sum, some of which cancel; weights are compared at 1e-4 of the largest step. Adam's
    ε is 1, so that its steps grow with the gradient, and a sum in place of the mean would show.
    """
    agent_options = {"max_gradient_norm": limit, "optimizer_epsilon": 1.0}
    driver = inline_run("all_reduce", agent=agent_options)
    ranks: list[Replica] = roles(driver, Replica)
    samples: dict[int, list[Sample]] = {rank.rank: [] for rank in ranks}
    for rank in ranks:
        monkeypatch.setattr(rank.batches, "take", remember(rank.batches.take, samples[rank.rank]))
    seen = {0: jax.tree_util.tree_map(np.array, ranks[0].learned)}

    def watch() -> None:
        seen[ranks[0].version] = jax.tree_util.tree_map(np.array, ranks[0].learned)

    play(driver, 900, watch)
    agent = driver.agent
    updates = max(seen)
    assert updates >= 20
    for version in range(updates):
        state = jax.tree_util.tree_map(jnp.array, seen[version])
        parts = [samples[rank][version].batch() for rank in range(3)]
        whole = Transitions(*[joined([part[i] for part in parts]) for i in range(8)])
        assert whole.action.shape == (24,)
        gradient, _ = agent.gradient(state.weights, state.target, whole, state.key)
        after = agent.apply(state, gradient)
        step = np.abs(np.asarray(after.weights) - seen[version].weights).max()
        assert step > 1e-5
        np.testing.assert_allclose(seen[version + 1].weights, after.weights, rtol=0, atol=1e-4 * step)
        np.testing.assert_array_equal(seen[version + 1].updates, after.updates)
    driver.close()


def remember(take: Any, into: list[Sample]) -> Any:
    def taking() -> Sample | None:
        sample: Sample | None = take()
        if sample is not None:
            into.append(jax.tree_util.tree_map(np.array, sample))
        return sample

    return taking


def listening(engine: ProcessesEngine) -> list[Any]:
    """Where members receive others."""
    processes = [watched.process for watched in engine.supervisor.watched]
    found = [psutil.Process(process.pid).net_connections("tcp") for process in processes if process is not None]
    return [each.laddr for of_one in found for each in of_one if each.status == psutil.CONN_LISTEN]


def joined(parts: list[Any]) -> Any:
    return None if parts[0] is None else np.concatenate(parts)


@pytest.mark.parametrize("scale", [False, True])
def test_learning_rate_is_multiplied_by_the_number_of_ranks_if_asked(scale: bool) -> None:
    driver = inline_run("all_reduce", {"scale_learning_rate": scale}, {"learning_rate": 1e-3})
    assert driver.plan.options.learning_rate == pytest.approx(3e-3 if scale else 1e-3)
    driver.close()


@pytest.mark.parametrize("topology", sorted(TOPOLOGIES))
def test_options_that_follow_from_others_follow_once(topology: str) -> None:
    """A resumed run reads what the first one has written."""
    wishes = {"actors": 3} if topology != "single" else {}
    topology_wishes = {"scale_learning_rate": True} if topology == "all_reduce" else {}
    asked = change(defaults("CartPole-v1", topology=topology), {**wishes, "topology": topology_wishes})
    options, plan = draft(asked)
    again, plan_again = draft(from_dict(to_dict(options)))
    assert again == options
    assert plan_again == plan


@pytest.mark.parametrize("compression", ["none", "topk"])
def test_weights_of_two_processes_are_equal_to_the_bit_after_every_update(compression: str) -> None:
    plan = inline_run("all_reduce", {"compression": compression}, actors=2, env_steps=10**6, begin=False).plan
    engine = ProcessesEngine(plan, plan.make_agent())
    end = time.monotonic() + 120
    try:
        engine.start()
        for pause in (40, 80):
            for _ in engine.rounds():
                if engine.counters.updates >= pause:
                    break
                assert time.monotonic() < end, "two ranks made no 40 updates"
            engine.settle()
            assert_ranks_equal(engine, pause)
            engine.start()
        assert listening(engine) == [], "nobody else can connect"
        assert engine.restarts == 0
    finally:
        engine.close()


def test_two_processes_learn_what_one_thread_learns_to_the_bit_whatever_their_speeds() -> None:
    plan = inline_run("all_reduce", agent={"epsilon_steps": 800}, actors=2, env_steps=1_000, begin=False).plan
    engine, driver = ProcessesEngine(plan, plan.make_agent()), Driver(plan, plan.make_agent())
    end = time.monotonic() + 120
    try:
        engine.start()
        for _ in engine.rounds():
            assert time.monotonic() < end, "1,000 env steps take no two minutes"
            if engine.counters.env_steps >= 1_000:
                break
        engine.settle()
        driver.start()
        play(driver)
        driver.settle()
        found, want = checksums(engine)[0], checksums(driver)[0]
        both = sorted(found.keys() & want.keys())
        assert len(both) >= 40
        assert [found[version] for version in both] == [want[version] for version in both]
    finally:
        engine.close()
        driver.close()


@pytest.mark.parametrize("topology", ["all_reduce", "impala"])
def test_pauses_that_follow_each_other_at_once_leave_nobody_waiting(
    topology: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank goes on and waits for the others, while another has slept through the time between two pauses."""
    monkeypatch.setattr(processes, "SETTLE_S", 30.0)
    several = {"learners": 2} if topology == "impala" else {}
    plan = inline_run(topology, several, heartbeat_s=60.0, actors=2, env_steps=10**6, begin=False).plan
    engine, chance = ProcessesEngine(plan, plan.make_agent()), np.random.default_rng(0)
    try:
        engine.start()
        for _ in range(40):
            engine.settle()
            engine.start()
            time.sleep(float(chance.choice([0.0, 1e-4, 1e-3, 2e-2])))
        end = time.monotonic() + 120
        for _ in engine.rounds():
            if engine.counters.updates > 10:
                break
            assert time.monotonic() < end, "ten updates take no two minutes"
        engine.settle()
        assert engine.restarts == 0
        first, *others = checksums(engine)
        assert all(other == first for other in others)
    finally:
        engine.close()
