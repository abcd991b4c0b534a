"""All-reduce: replicas stay bit-equal after every update, and update as one learner of all their samples does.

Horovod: Sergeev and Del Balso 2018.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

from inline_runs import channel_of, inline_run, play, roles, small_plan, turns
from repertory.agents.agent import Transitions
from repertory.engines import make_driver, processes
from repertory.engines.driver import Driver
from repertory.engines.processes import ProcessesHost
from repertory.experience.replay import Sample
from repertory.roles.replica import Replica
from repertory.runs.config import change, from_dict, to_dict
from repertory.runs.launch import draft
from repertory.runs.presets import defaults
from repertory.topologies import known

COMPRESSIONS = ("none", "float16", "int8", "topk")


def checksums(driver: Driver) -> list[dict[int, int]]:
    """What each replica's weights were after each of its latest updates."""
    found = channel_of(driver.wiring, "gradients").arrays["checksums"].copy()
    return [{int(version): int(crc) for version, crc in replica if version} for replica in found]


def assert_replicas_equal(found: list[dict[int, int]], least: int) -> None:
    """The same weights on all replicas after every update."""
    first, *others = found
    assert len(first) >= least
    assert len(set(first.values())) > len(first) // 2, "the weights do change"
    for other in others:
        assert other == first


def pause(driver: Driver) -> None:
    """Between two rounds, as for a checkpoint."""
    driver.settle()
    driver.start()


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_weights_of_all_replicas_are_equal_to_the_bit_after_every_update(compression: str) -> None:
    driver = inline_run("all_reduce", {"compression": compression}, {"prioritized": True}, envs_per_actor=1)
    play(driver)
    driver.settle()
    assert_replicas_equal(checksums(driver), 50)
    driver.close()


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("rounds", [1, 3])
def test_replicas_stay_equal_wherever_a_pause_finds_them(compression: str, rounds: int) -> None:
    driver = inline_run("all_reduce", {"compression": compression}, env_steps=600, envs_per_actor=1)
    found: list[dict[int, int]] = [{} for _ in range(3)]
    for count, _ in enumerate(driver.rounds()):
        if count % rounds == 0:
            driver.settle()
            for all_, new in zip(found, checksums(driver), strict=True):
                all_ |= new
            driver.start()
        if driver.counters.env_steps >= 600:
            break
    driver.settle()
    assert_replicas_equal([all_ | new for all_, new in zip(found, checksums(driver), strict=True)], 10)
    driver.close()


@pytest.mark.parametrize("compression", ["int8", "topk"])
def test_a_round_that_is_given_up_takes_nothing_from_what_is_still_to_be_sent(compression: str) -> None:
    """The gradient is not used, so its residual is not used either."""
    driver = inline_run("all_reduce", {"compression": compression}, env_steps=10**6)
    replica: Replica = roles(driver, Replica)[0]
    play(driver, 600)
    acting = turns(driver)["replica 0"]
    while replica._waiting is None:  # the others do not come
        before = np.array(replica._residual)
        for role in acting:
            role.step()
    assert np.abs(before).max() > 0
    assert not np.array_equal(replica._residual, before)
    replica.settle()
    np.testing.assert_array_equal(replica._residual, before)
    driver.close()


def test_pause_costs_no_update() -> None:
    made = []
    for pauses in (False, True):
        driver = inline_run("all_reduce", env_steps=900)
        play(driver, watch=partial(pause, driver) if pauses else lambda: None)
        driver.settle()
        made.append(driver.counters.updates)
        driver.close()
    assert made[0] == made[1]


@pytest.mark.parametrize("limit", [0.0, 0.5])
def test_update_of_all_replicas_is_that_of_one_learner_with_all_their_samples(
    limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal but for the order of the sums: over 3 x 8 rows at once here, over 8 rows and then 3 replicas there.

    Rounding of float32 is 1e-7 of a sum, some of which cancel; weights are compared at 1e-4 of the largest step. Adam's
    ε is 1, so that its steps grow with the gradient, and a sum in place of the mean would show.
    """
    agent_options = {"max_gradient_norm": limit, "optimizer_epsilon": 1.0}
    driver = inline_run("all_reduce", agent=agent_options)
    replicas: list[Replica] = roles(driver, Replica)
    samples: dict[int, list[Sample]] = {replica.rank: [] for replica in replicas}
    for replica in replicas:
        monkeypatch.setattr(replica.batches, "take", remember(replica.batches.take, samples[replica.rank]))
    seen = {0: jax.tree_util.tree_map(np.array, replicas[0].learned)}

    def watch() -> None:
        seen[replicas[0].version] = jax.tree_util.tree_map(np.array, replicas[0].learned)

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


def listening(driver: Driver) -> list[Any]:
    """Addresses where workers accept connections."""
    assert isinstance(driver.host, ProcessesHost)
    processes = [watched.process for watched in driver.host.supervisor.watched]
    found = [psutil.Process(process.pid).net_connections("tcp") for process in processes if process is not None]
    return [each.laddr for of_one in found for each in of_one if each.status == psutil.CONN_LISTEN]


def joined(parts: list[Any]) -> Any:
    return None if parts[0] is None else np.concatenate(parts)


@pytest.mark.parametrize("scale", [False, True])
def test_learning_rate_is_multiplied_by_the_number_of_replicas_if_asked(scale: bool) -> None:
    driver = inline_run("all_reduce", {"scale_learning_rate": scale}, {"learning_rate": 1e-3})
    assert driver.plan.options.learning_rate == pytest.approx(3e-3 if scale else 1e-3)
    driver.close()


@pytest.mark.parametrize("topology", sorted(known()))
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
    plan = small_plan("all_reduce", {"compression": compression}, actors=2, env_steps=10**6)
    driver = make_driver("processes", plan)
    end = time.monotonic() + 120
    try:
        driver.start()
        for updates in (40, 80):
            for _ in driver.rounds():
                if driver.counters.updates >= updates:
                    break
                assert time.monotonic() < end, "two replicas made no 40 updates"
            driver.settle()
            assert_replicas_equal(checksums(driver), updates)
            driver.start()
        assert listening(driver) == [], "no other program can connect"
        assert driver.restarts == 0
    finally:
        driver.close()


def test_two_processes_learn_what_one_thread_learns_to_the_bit_whatever_their_speeds() -> None:
    plan = small_plan("all_reduce", agent={"epsilon_steps": 800}, actors=2, env_steps=1_000)
    several, one = make_driver("processes", plan), make_driver("inline", plan)
    end = time.monotonic() + 120
    try:
        several.start()
        for _ in several.rounds():
            assert time.monotonic() < end, "1,000 env steps take no two minutes"
            if several.counters.env_steps >= 1_000:
                break
        several.settle()
        one.start()
        play(one)
        one.settle()
        found, want = checksums(several)[0], checksums(one)[0]
        both = sorted(found.keys() & want.keys())
        assert len(both) >= 40
        assert [found[version] for version in both] == [want[version] for version in both]
    finally:
        several.close()
        one.close()


@pytest.mark.parametrize("topology", ["all_reduce", "impala"])
def test_pauses_that_follow_each_other_at_once_leave_no_replica_waiting(
    topology: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One replica goes on and waits for the others, while another has slept through the time between two pauses."""
    monkeypatch.setattr(processes, "SETTLE_S", 30.0)
    several = {"learners": 2} if topology == "impala" else {}
    plan = small_plan(topology, several, heartbeat_s=60.0, actors=2, env_steps=10**6)
    driver, chance = make_driver("processes", plan), np.random.default_rng(0)
    try:
        driver.start()
        for _ in range(40):
            driver.settle()
            driver.start()
            time.sleep(float(chance.choice([0.0, 1e-4, 1e-3, 2e-2])))
        end = time.monotonic() + 120
        for _ in driver.rounds():
            if driver.counters.updates > 10:
                break
            assert time.monotonic() < end, "ten updates take no two minutes"
        driver.settle()
        assert driver.restarts == 0
        first, *others = checksums(driver)
        assert all(other == first for other in others)
    finally:
        driver.close()


def test_replica_plays_nothing_while_others_keep_its_gradient_waiting() -> None:
    """Else it would depend on their speed with which weights it plays."""
    driver = inline_run("all_reduce", actors=2)
    first, second = (turns(driver)[f"replica {rank}"] for rank in range(2))
    played = []
    for _ in range(400):
        for role in first:
            role.step()
        played.append(driver.counters.env_steps)
    assert first[1].waiting  # type: ignore[attr-defined]
    assert played[-1] == played[200] > 0
    for _ in range(400):
        for role in (*second, *first):
            role.step()
    assert driver.counters.updates > 0
    assert driver.counters.env_steps > played[-1]
    driver.close()
