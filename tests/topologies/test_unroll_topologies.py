"""Topologies that learn from unrolls: the same run from the same seed, policy lags by the book, and no slot is lost."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from commands import assert_same_state
from faults import UNROLLED, experience_problems, run_faults
from inline_runs import channel_of, inline_run, lanes_of, play, roles, small_plan, turns, unrolls_of
from repertory.agents.agent import Agent, LearnerState, Rollout
from repertory.engines.driver import Driver
from repertory.engines.inline import InlineHost
from repertory.engines.wiring import Wiring
from repertory.experience.unrolls import UnrollBatch, UnrollWriter
from repertory.roles.actor import Actor
from repertory.roles.hogwild_worker import HogwildWorker
from repertory.roles.learner import Learner
from repertory.roles.ports import Role
from repertory.roles.replica import Replica
from repertory.topologies import parts
from repertory.topologies.plan import Plan

Wishes = dict[str, Any]
LSTM = {"network": {"hidden": [8], "lstm_size": 4}}
RUNS: dict[str, tuple[str, Wishes]] = {
    "a3c": ("a3c", {"actors": 2}),
    "a3c-lstm": ("a3c", {"actors": 2, **LSTM}),
    "ga3c": ("ga3c", {"own": {"predictors": 2, "trainers": 2}}),
    "ga3c-impala-lstm": ("ga3c", {"of": "impala", "own": {"predictors": 2, "trainers": 2}, **LSTM}),
    "impala": ("impala", {}),
    "impala-lstm": ("impala", LSTM),
    "impala-2-learners": ("impala", {"own": {"learners": 2}}),
    "impala-2-learners-lstm": ("impala", {"own": {"learners": 2}, **LSTM}),
    "impala-own-lstm": ("impala", {"network": {"module": "pictures:build", "lstm_size": 4}}),
    "seed_rl": ("seed_rl", {}),
    "seed_rl-lstm": ("seed_rl", LSTM),
    "seed_rl-minimum-batch": ("seed_rl", {"own": {"inference_least": 2}}),
    "seed_rl-dqn": ("seed_rl", {"of": "dqn"}),
    "sample_factory": ("sample_factory", {"own": {"groups": 2}, "agent": {"epochs": 2, "minibatches": 2}}),
    "sample_factory-lstm": ("sample_factory", {"own": {"groups": 2, "policy_workers": 2}, **LSTM}),
}
CLOCKED = ("learned/", "counters/reply_s", "counters/idle_s")
"""What a clock decides: when a learner saves its state, too; the state itself is compared where it is settled."""
every_run = pytest.mark.parametrize("name", RUNS)


AGENTS: dict[str, Agent] = {}
"""One of each is enough, and compiled once; seeds are no part of it."""


def built(name: str, *, begin: bool = True, **wishes: Any) -> Driver:
    topology, own = RUNS[name]
    plan = small_plan(topology, **{**own, **wishes})
    vars(plan)["agent"] = AGENTS.setdefault(name, plan.agent)
    driver = Driver(plan, InlineHost(plan))
    if begin:
        driver.start()
    return driver


def again(wiring: Wiring, index: int) -> list[Role]:
    """A worker that is started again beside the others, as after a failure."""
    return wiring.build(wiring.context(wiring.workers[index]))


def batch_slots(plan: Plan) -> int:
    """Slots that are learned from at once; a worker that learns alone takes its own."""
    if plan.topology_kind.name == "a3c":
        return 1
    return parts.batch_slots(plan, getattr(plan.topology, "groups", 1))


def learners(plan: Plan) -> int:
    return getattr(plan.topology, "learners", 1)


@contextmanager
def closed_after(driver: Driver) -> Iterator[Driver]:
    try:
        yield driver
    finally:
        driver.close()


def run(name: str, seed: int, goals: tuple[int, ...] = (700, 1_400)) -> list[dict[str, Any]]:
    """Every array of the run but for the clock's, and what it would save, at these env steps."""
    found = []
    with closed_after(built(name, seed=seed)) as driver:
        for goal in goals:
            play(driver, goal)
            state = driver.settle()
            arrays = {key: array for key, array in driver.wiring.arrays.items() if not key.startswith(CLOCKED)}
            found.append(copy.deepcopy({"state": state, "arrays": arrays}))
            driver.start()
    return found


@every_run
def test_same_seed_makes_the_same_run_to_the_bit_and_another_seed_another(name: str) -> None:
    early, late = run(name, 4)
    assert late["state"]["updates"] > early["state"]["updates"] + 10
    assert_same_state(dict(enumerate([early, late])), dict(enumerate(run(name, 4))))
    (other,) = run(name, 5, (700,))
    assert not np.array_equal(other["state"]["learner"]["learned"]["00"], early["state"]["learner"]["learned"]["00"])
    where = "experience/observation" if name == "seed_rl-dqn" else "unrolls/observation"
    assert not np.array_equal(other["arrays"][where], early["arrays"][where])


@every_run
def test_resumed_run_goes_on_with_counters_and_weights(name: str) -> None:
    with closed_after(built(name)) as first:
        play(first, 800)
        saved = copy.deepcopy(first.settle())
    with closed_after(built(name, begin=False)) as second:
        second.load_state(saved)
        second.start()
        here = second.settle()
        for part in ("learner", "env_steps", "updates", "episodes"):
            assert_same_state(here[part], saved[part], part)
        assert second.wiring.topology.weights.latest()[0] == saved["updates"], "versions go on, too"
        second.start()
        play(second)
        ended = second.settle()
    assert ended["env_steps"] >= 1_500
    due = (ended["env_steps"] - saved["env_steps"]) / (ended["updates"] - saved["updates"])
    before = (saved["env_steps"] - 200 * (name == "seed_rl-dqn")) / saved["updates"]
    assert due == pytest.approx(before, rel=0.25), "env steps for each update, before and after"


# Where the slots are.


def writers_of(driver: Driver) -> list[UnrollWriter]:
    return [actor.experience for actor in roles(driver, Actor)]


def check_slots(driver: Driver) -> None:
    """Each slot is ready, being written, or free: by looking at the writers, not at what the census counts from."""
    unrolls, channel = unrolls_of(driver.wiring), channel_of(driver.wiring, "unrolls")
    ready = set(np.flatnonzero(unrolls.filled == unrolls.freed + 1).tolist())
    assert ((unrolls.filled == unrolls.freed) | (unrolls.filled == unrolls.freed + 1)).all()
    writing = [writer._slot for writer in writers_of(driver) if writer._slot is not None]
    assert len(set(writing)) == len(writing)
    assert not ready & set(writing)
    for writer in writers_of(driver):
        own = range(writer.writer * channel.depth, (writer.writer + 1) * channel.depth)
        assert writer._slot is None or writer._slot in own
        assert int(writer._progress[0]) == (0 if writer._slot is None else 1 + writer._row)
    census = unrolls.census()
    assert census == (unrolls.count - len(ready) - len(writing), len(ready), len(writing))
    assert sum(census) == channel.writers * channel.depth == channel.slots


def check_counters(driver: Driver) -> None:
    """Every unroll was learned from, was dropped or is ready; every step is in one of them, or in one half written."""
    unrolls, plan, table = unrolls_of(driver.wiring), driver.plan, driver.wiring.counters.arrays
    census = unrolls.census()
    learned = int(unrolls.freed.sum()) - int(table["dropped_stale"].sum())
    assert int(unrolls.filled.sum()) == learned + int(table["dropped_stale"].sum()) + census.ready
    updates = driver.counters.updates * batch_slots(plan) * learners(plan)
    assert updates == learned * plan.critic.updates_per_batch
    rows = int(unrolls.filled.sum()) * plan.critic.unroll
    rows += int((unrolls.arrays["progress"] - 1).clip(min=0).sum())
    idle = rows * unrolls.environments - driver.counters.env_steps
    episodes = int(table["episodes"].sum())
    assert episodes - plan.environments <= idle <= episodes, "a row for each end, and for nothing else"


@pytest.mark.parametrize("name", [name for name in RUNS if name != "seed_rl-dqn"])  # its steps lie in lanes
def test_no_slot_is_lost_and_every_step_is_accounted_for(name: str) -> None:
    with closed_after(built(name)) as driver:
        play(driver, watch=lambda: check_slots(driver))
        driver.settle()
        check_slots(driver)
        check_counters(driver)
        assert driver.wiring.counters.arrays["dropped_unrolls"].sum() == 0


def test_slot_that_waits_keeps_its_writer_from_no_other() -> None:
    """Where unrolls are divided among several, a later one may be freed first."""
    with closed_after(inline_run("impala", {"queue": 2}, {"batch_unrolls": 2}, actors=1)) as driver:
        (actor,), unrolls = turns(driver)["actor 0"], unrolls_of(driver.wiring)
        while actor.step():
            pass
        assert unrolls.census() == (0, 3, 0)
        unrolls.free(np.array([1]))
        assert actor.step()
        assert writers_of(driver)[0]._slot == 1
        check_slots(driver)


def numbers_at_work(driver: Driver) -> NDArray[np.int64]:
    """Of predictors, trainers and agents."""
    found: NDArray[np.int64] = channel_of(driver.wiring, "at_work").arrays["active"]
    return found


@pytest.mark.parametrize("seed", range(2))
def test_numbers_at_work_may_change_at_any_time_and_no_worker_waits_for_ever(seed: int) -> None:
    """A worker that is switched off may hold slots, requests and half an unroll."""
    options, wishes = {"trainers": 2, "queue": 2}, {"actors": 2, "env_steps": 4_000, "seed": seed}
    with closed_after(inline_run("ga3c", options, {"batch_unrolls": 6}, **wishes)) as driver:
        chance, at_work = np.random.default_rng(seed), numbers_at_work(driver)

        def watch() -> None:
            check_slots(driver)
            if chance.random() < 0.02:
                at_work[:] = chance.integers(1, 3, 3)

        play(driver, watch=watch)
        at_work[:] = 2
        assert all(trainer.stats.row["gradients"] > 5 for trainer in roles(driver, HogwildWorker))


@pytest.mark.parametrize(("batch", "queue"), [(4, 2), (6, 1), (8, 1)])
def test_whatever_numbers_are_at_work_all_workers_go_on(batch: int, queue: int) -> None:
    """Also if they stay: batches take 2, 3 and 4 slots here, and an agent has 3, 3 and 4."""
    options = {"predictors": 3, "trainers": 3, "queue": queue}
    with closed_after(inline_run("ga3c", options, {"batch_unrolls": batch}, actors=3, env_steps=10**6)) as driver:
        at_work, counters = numbers_at_work(driver), driver.counters
        for numbers in itertools.product((1, 2, 3), repeat=3):
            at_work[:] = numbers
            updates = counters.updates
            play(driver, counters.env_steps + 60 * batch)
            check_slots(driver)
            assert counters.updates > updates, numbers


@pytest.mark.parametrize(
    ("topology", "options"),
    [("impala", {}), ("impala", {"learners": 2}), ("seed_rl", {}), ("sample_factory", {"groups": 2})],
)
@pytest.mark.parametrize("batch", [2, 6, 8, 20])
def test_actors_play_while_a_batch_is_learned_from(topology: str, options: Wishes, batch: int) -> None:
    """However much it takes of what they play: here all others stand still until no actor can go on."""
    with closed_after(inline_run(topology, options, {"batch_unrolls": batch}, actors=2)) as driver:
        others = [role for name, acting in turns(driver).items() if "learner" not in name for role in acting]
        while sum(role.step() for role in others):
            pass
        unrolls, plan, readers = unrolls_of(driver.wiring), driver.plan, learners(driver.plan)
        writers = channel_of(driver.wiring, "unrolls").writers
        for reader in range(readers):
            assert len(unrolls.ready(reader)) >= batch_slots(plan) + writers // readers


@pytest.mark.parametrize("unroll", [4, 5])
def test_lone_agent_divides_its_unrolls_among_all_trainers(unroll: int) -> None:
    options, agent = {"trainers": 2, "queue": 1}, {"unroll": unroll, "batch_unrolls": 2}
    with closed_after(inline_run("ga3c", options, agent, actors=1, env_steps=500)) as driver:
        play(driver)
        made = [int(trainer.stats.row["gradients"]) for trainer in roles(driver, HogwildWorker)]
        assert max(made) - min(made) <= 1, made


# Lags.


def remember(source: Any, into: list[tuple[int, Any]], updates: Callable[[], int]) -> None:
    """Every batch that is taken, and how many updates stood behind the weights then."""
    take = source.take

    def taking() -> Any:
        sample = take()
        if sample is not None:
            into.append((updates(), jax.tree_util.tree_map(np.array, sample)))
        return sample

    source.take = taking


def lags_of(taken: list[tuple[int, UnrollBatch]]) -> list[list[int]]:
    return [sorted(set((updates - batch.version).ravel().tolist())) for updates, batch in taken]


@pytest.mark.parametrize(("queue", "lag"), [(0, 0), (1, 1)])
def test_lone_actor_is_as_many_updates_behind_as_unrolls_may_wait(queue: int, lag: int) -> None:
    wishes = {"actors": 1, "agent": {"batch_unrolls": 2}}
    with closed_after(inline_run("impala", {"queue": queue}, **wishes)) as driver:
        (learner,) = roles(driver, Learner)
        taken: list[tuple[int, UnrollBatch]] = []
        remember(learner.batches, taken, lambda: int(learner.learned.updates))
        play(driver)
        told = driver.metrics()
    assert len(taken) > 100
    assert lags_of(taken) == [[0]] + [[lag]] * (len(taken) - 1)
    assert (told["policy_lag_max"], told["policy_lag_mean"]) == (lag, lag), "of the last 128"


def test_actors_that_ask_for_actions_act_with_the_newest_weights() -> None:
    with closed_after(inline_run("seed_rl", actors=1, agent={"batch_unrolls": 2})) as driver:
        (learner,) = roles(driver, Learner)
        taken: list[tuple[int, UnrollBatch]] = []
        remember(learner.batches, taken, lambda: int(learner.learned.updates))
        play(driver)
    assert len(taken) > 100
    for updates, batch in taken[1:]:
        # Also its first action, which was requested before the last unroll was learned from, and replied to after.
        np.testing.assert_array_equal(batch.version, [[updates] * 5])


def test_unrolls_beyond_the_largest_lag_are_dropped_and_counted() -> None:
    lags: dict[int, list[int]] = {}
    for most in (0, 1):
        with closed_after(inline_run("impala", {"max_policy_lag": most}, {"batch_unrolls": 2})) as driver:
            (learner,) = roles(driver, Learner)
            taken: list[tuple[int, UnrollBatch]] = []
            remember(learner.batches, taken, lambda: int(learner.learned.updates))  # noqa: B023
            play(driver)
            driver.settle()
            check_slots(driver)
            check_counters(driver)
            lags[most] = [lag for found in lags_of(taken) for lag in found]
            dropped = int(driver.wiring.counters.arrays["dropped_stale"].sum())
            assert dropped == int(driver.metrics()["dropped_stale"] or 0)
            assert (dropped > 10) == (most > 0)
    assert max(lags[0]) > 1, "else there is nothing to drop"
    assert max(lags[1]) == 1


def copied(state: LearnerState) -> LearnerState:
    return jax.tree_util.tree_map(jnp.array, state)  # type: ignore[no-any-return]


@pytest.mark.parametrize("extra", [{}, LSTM], ids=["mlp", "lstm"])
def test_worker_takes_its_gradient_at_the_weights_that_acted(extra: Wishes) -> None:
    """By hand, from a copy made when the unroll began; others have changed the shared weights meanwhile."""
    with closed_after(inline_run("a3c", env_steps=10**6, **extra)) as driver:
        agent, shared, checked, moved = driver.agent, driver.wiring.topology.learned.sharer(), 0, 0
        threads = [
            (actor, worker) for actor, worker in zip(roles(driver, Actor), roles(driver, HogwildWorker), strict=True)
        ]
        began: dict[int, NDArray[np.float32]] = {}
        taken: list[tuple[int, UnrollBatch]] = []
        for actor, worker in threads:
            writer, pull = actor.experience, actor.experience.begin_unroll

            def begin(pull: Any = pull, index: int = writer.writer) -> None:
                pull()
                began[index] = shared.latest()[1]

            writer.begin_unroll = begin
            remember(worker.source, taken, lambda worker=worker: worker.stats.updates)
        key = jax.random.key(0)
        while checked < 60:
            for index, (actor, worker) in enumerate(threads):
                actor.step()
                before = copied(shared.live())
                worker.step()
                if not taken:
                    continue
                ((_, batch),) = taken
                taken.clear()
                acted = began[index]
                gradient, _ = agent.gradient(acted, before.target, Rollout(*batch[:10]), key)
                after = agent.optimizer_step(before, agent.clip(gradient))
                change = np.abs(np.asarray(after.weights) - np.asarray(before.weights)).max()
                assert change > 0
                np.testing.assert_allclose(shared.live().weights, after.weights, rtol=0, atol=1e-4 * change)
                assert worker.stats.row["lag"][:5].max() == 0
                checked += 1
                moved += not np.array_equal(acted, before.weights)
        assert moved > 20, "at the live weights the gradient would have been another"
        told = driver.metrics()
        assert told["policy_lag_max"] == 0
        assert told["gradient_age_max"] in (1, 2), "updates of the other two"


# Several learners.


@pytest.mark.parametrize("extra", [{}, LSTM], ids=["mlp", "lstm"])
def test_two_learners_stay_equal_to_the_bit_and_make_the_update_of_their_mean_gradient(extra: Wishes) -> None:
    """Equal but for the order of sums: weights are compared at 1e-4 of the largest step.

    Adam's ε is 1, so that its steps grow with the gradient, and a sum in place of the mean would show.
    """
    agent_options = {"max_gradient_norm": 0.0, "optimizer": "adam", "optimizer_epsilon": 1.0}
    with closed_after(inline_run("impala", {"learners": 2}, agent_options, **extra)) as driver:
        first, second = roles(driver, Replica)
        taken: list[list[tuple[int, UnrollBatch]]] = [[], []]
        seen = {0: jax.tree_util.tree_map(np.array, first.learned)}
        for rank, batches in zip((first, second), taken, strict=True):
            remember(rank.batches, batches, lambda rank=rank: rank.version)

        def watch() -> None:
            seen[first.version] = jax.tree_util.tree_map(np.array, first.learned)

        play(driver, watch=watch)
        driver.settle()
        sums = [
            dict(rank[rank[:, 0] > 0].tolist()) for rank in channel_of(driver.wiring, "gradients").arrays["checksums"]
        ]
        agent = driver.agent
    updates = max(seen)
    assert updates > 30
    assert sums[0] == sums[1]
    assert len(set(sums[0].values())) == updates
    np.testing.assert_array_equal(first.learned.weights, second.learned.weights)
    for version in range(updates):
        state = jax.tree_util.tree_map(jnp.array, seen[version])
        (one, two) = (batches[version][1] for batches in taken)
        assert not set(one.slots) & set(two.slots)
        gradients = [
            agent.gradient(state.weights, state.target, Rollout(*each[:10]), state.key)[0] for each in (one, two)
        ]
        after = agent.apply(state, (gradients[0] + gradients[1]) / 2)
        step = np.abs(np.asarray(after.weights) - seen[version].weights).max()
        assert step > 1e-6
        np.testing.assert_allclose(seen[version + 1].weights, after.weights, rtol=0, atol=1e-4 * step)


# Workers that start again, and runs in processes.


def test_worker_that_starts_again_drops_what_was_played_with_weights_that_are_gone() -> None:
    with closed_after(inline_run("a3c", actors=1)) as driver:
        unrolls, table = unrolls_of(driver.wiring), driver.wiring.counters.arrays
        actor, _ = turns(driver)["worker 0"]
        while not len(unrolls.ready()):
            actor.step()
        for dropped in (1, 1):  # the second time nothing waits
            for role in again(driver.wiring, 0):
                role.close()
            assert len(unrolls.ready()) == 0
            assert int(table["dropped_stale"].sum()) == dropped
        assert int(table["dropped_unrolls"].sum()) == 0


def test_half_unroll_of_an_actor_that_starts_again_is_dropped_and_counted_once() -> None:
    with closed_after(inline_run("impala", actors=1, agent={"batch_unrolls": 2})) as driver:
        wiring, table = driver.wiring, driver.wiring.counters.arrays
        unrolls = unrolls_of(wiring)
        (actor,) = turns(driver)["actor 0"]
        for _ in range(7):  # one is whole, of the next there are two steps
            actor.step()
        assert unrolls.census() == (0, 1, 1)
        (anew,) = again(wiring, 0)
        assert unrolls.census() == (1, 1, 0)
        assert int(table["dropped_unrolls"].sum()) == 1
        for _ in range(5):
            anew.step()
        anew.close()
        assert unrolls.census() == (0, 2, 0)
        assert experience_problems(wiring, live=True) == []
        assert int(table["dropped_unrolls"].sum()) == 1


def test_unrolls_that_wait_survive_a_checkpoint_and_half_ones_are_dropped_and_counted() -> None:
    with closed_after(inline_run("impala", {"queue": 2}, {"batch_unrolls": 2}, actors=1)) as first:
        (actor,) = turns(first)["actor 0"]
        for _ in range(7):  # one is whole, of the next there are two steps
            actor.step()
        before = unrolls_of(first.wiring)
        want = before.gather(before.ready(), 0.9, 0.0, 0, 1)
        saved = copy.deepcopy(first.settle())
        first.start()
        with closed_after(inline_run("impala", {"queue": 2}, {"batch_unrolls": 2}, actors=1, begin=False)) as second:
            second.load_state(saved)
            second.start()
            for driver in (first, second):
                unrolls = unrolls_of(driver.wiring)
                assert unrolls.census() == (2, 1, 0)
                assert int(driver.wiring.counters.arrays["dropped_unrolls"].sum()) == 1
                found = unrolls.gather(unrolls.ready(), 0.9, 0.0, 0, 1)
                assert_same_state(found._asdict(), want._asdict())


def test_versions_of_shared_weights_are_counted_where_no_update_is_lost() -> None:
    """Two workers that add 1 to one number at the same time may add it once; each worker's own count is right."""
    with closed_after(inline_run("ga3c", env_steps=600)) as driver:
        play(driver, 300)
        shared = driver.wiring.topology.learned.sharer()
        shared.live().updates[...] -= 3  # three that were lost
        assert shared.latest()[0] == driver.counters.updates
        driver.metrics()
        play(driver)
        assert driver.metrics()["policy_lag_max"] <= 6


def test_numbers_that_were_found_are_kept_by_a_checkpoint() -> None:
    options = {"predictors": 2, "trainers": 2, "adjust_from": (1, 1, 1)}
    wishes: Wishes = {"env_steps": 600, "engine": "processes"}  # which alone may adjust
    with closed_after(inline_run("ga3c", options, **wishes)) as driver:
        assert numbers_at_work(driver).tolist() == [1, 1, 1]
        channel_of(driver.wiring, "at_work").arrays["kept"][:] = (2, 1, 2)
        numbers_at_work(driver)[:] = (2, 2, 2)  # on trial
        state = driver.settle()
    with closed_after(inline_run("ga3c", options, begin=False, **wishes)) as resumed:
        resumed.load_state(state)
        resumed.start()
        assert numbers_at_work(resumed).tolist() == [2, 1, 2]


@pytest.mark.parametrize(("loss", "entropy"), [(float("nan"), 0.5), (float("inf"), 0.5), (1.0, float("nan"))])
def test_a_loss_that_is_not_finite_spoils_no_later_one(loss: float, entropy: float) -> None:
    with closed_after(inline_run("impala", env_steps=600)) as driver:
        play(driver, 300)
        table, sums = driver.wiring.counters.arrays, ("loss_sum", "entropy_sum", "losses")
        before = [table[name].copy() for name in sums]
        driver.counters.loss(loss, entropy)
        assert all((table[name] == old).all() for name, old in zip(sums, before, strict=True))
        driver.counters.loss(1.0, 0.5)
        assert table["losses"].sum() == before[2].sum() + 1


def test_replay_behind_central_inference_keeps_the_replay_ratio_when_its_learner_starts_again() -> None:
    with closed_after(inline_run("seed_rl", of="dqn")) as driver:
        play(driver, 900)
        driver.settle()
        due = (driver.counters.env_steps - 200) // 8
        assert due - 2 <= driver.counters.updates <= due
        learner = next(worker for worker in driver.wiring.workers if worker.name == "learner")
        (anew,) = again(driver.wiring, learner.index)
        for _ in range(5):
            anew.step()
        assert due - 2 <= driver.counters.updates <= due, "it does not begin with the first one"
        told = driver.metrics()["replay_ratio"]
        assert told == pytest.approx(8 * due / driver.counters.env_steps, rel=0.05)


def test_random_actions_of_an_actor_without_network_name_a_version_too() -> None:
    with closed_after(inline_run("seed_rl", of="dqn", env_steps=600)) as driver:
        play(driver)
        lanes, updates = lanes_of(driver.wiring), driver.counters.updates
        written = np.arange(lanes.length) < lanes.head[:, None]
        assert (lanes.version[written] >= 0).all()
        (anew,) = again(driver.wiring, 0)
        assert updates - 10 <= anew.policy.version <= updates, "the weights' that replied last"
        anew.close()
        driver.settle()
        driver.start()
        (rebuilt,) = turns(driver)["actor 0"]
        assert rebuilt.policy.version == anew.policy.version, "a checkpoint keeps it"  # type: ignore[attr-defined]


def test_schedules_count_the_steps_of_all_learners() -> None:
    alone, together = (small_plan("impala", {"learners": learners}) for learners in (1, 2))
    assert (alone.compose().steps_per_update, together.compose().steps_per_update) == (20, 40)


@pytest.mark.parametrize("name", UNROLLED)
def test_run_in_processes_ends_with_right_counters_and_all_slots(name: str, tmp_path: Path) -> None:
    outcome = run_faults(name, [], tmp_path, env_steps=3_000, heartbeat_s=60.0)
    assert outcome.all_problems() == []
    assert outcome.result["restarts"] == 0
    assert outcome.result["updates"] > 60
    assert len(outcome.result["evaluations"]) >= 1
