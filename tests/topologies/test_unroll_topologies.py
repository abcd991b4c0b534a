"""Companies that learn from unrolls: the same run from the same seed, policy lags by the book, and no slot is lost."""

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
from companies import company, play, roles, small_plan, turns
from faults import UNROLLED, experience_problems, run_faults
from repertory.agents.agent import Agent, LearnerState, Rollout
from repertory.engines.casting import Casting
from repertory.engines.rehearsal import Rehearsal
from repertory.experience.unrolls import UnrollBatch, UnrollWriter
from repertory.roles.actor import Actor
from repertory.roles.hogwild_worker import HogwildWorker
from repertory.roles.learner import Learner
from repertory.roles.rank import Rank

Wishes = dict[str, Any]
LSTM = {"network": {"hidden": [8], "core": 4}}
COMPANIES: dict[str, tuple[str, Wishes]] = {
    "a3c": ("a3c", {"actors": 2}),
    "a3c-lstm": ("a3c", {"actors": 2, **LSTM}),
    "ga3c": ("ga3c", {"company": {"predictors": 2, "trainers": 2}}),
    "ga3c-impala-lstm": ("ga3c", {"of": "impala", "company": {"predictors": 2, "trainers": 2}, **LSTM}),
    "impala": ("impala", {}),
    "impala-lstm": ("impala", LSTM),
    "impala-2-learners": ("impala", {"company": {"learners": 2}}),
    "impala-2-learners-lstm": ("impala", {"company": {"learners": 2}, **LSTM}),
    "impala-own-lstm": ("impala", {"network": {"module": "pictures:build", "core": 4}}),
    "seed_rl": ("seed_rl", {}),
    "seed_rl-lstm": ("seed_rl", LSTM),
    "seed_rl-patient": ("seed_rl", {"company": {"inference_least": 2}}),
    "seed_rl-dqn": ("seed_rl", {"of": "dqn"}),
    "sample_factory": ("sample_factory", {"company": {"groups": 2}, "agent": {"epochs": 2, "minibatches": 2}}),
    "sample_factory-lstm": ("sample_factory", {"company": {"groups": 2, "policy_workers": 2}, **LSTM}),
}
CLOCKED = ("safe/", "ledger/beat", "ledger/answer_s", "ledger/idle_s")
every_company = pytest.mark.parametrize("name", COMPANIES)


AGENTS: dict[str, Agent] = {}
"""One of each is enough, and compiled once; seeds are no part of it."""


def built(name: str, *, begin: bool = True, **wishes: Any) -> Rehearsal:
    topology, own = COMPANIES[name]
    plan = small_plan(topology, **{**own, **wishes})
    rehearsal = Rehearsal(plan, AGENTS.setdefault(name, plan.make_agent()))
    if begin:
        rehearsal.start()
    return rehearsal


@contextmanager
def closed_after(rehearsal: Rehearsal) -> Iterator[Rehearsal]:
    try:
        yield rehearsal
    finally:
        rehearsal.close()


def perform(name: str, seed: int, goals: tuple[int, ...] = (700, 1_400)) -> list[dict[str, Any]]:
    """Every array that the company stands on but for the clock's, and what it would save, at these env steps."""
    found = []
    with closed_after(built(name, seed=seed)) as rehearsal:
        for goal in goals:
            play(rehearsal, goal)
            state = rehearsal.settle()
            arrays = {key: array for key, array in rehearsal.stage.arrays.items() if not key.startswith(CLOCKED)}
            found.append(copy.deepcopy({"state": state, "arrays": arrays}))
    return found


@every_company
def test_same_seed_makes_the_same_run_to_the_bit_and_another_seed_another(name: str) -> None:
    early, late = perform(name, 4)
    assert late["state"]["updates"] > early["state"]["updates"] + 10
    assert_same_state(dict(enumerate([early, late])), dict(enumerate(perform(name, 4))))
    (other,) = perform(name, 5, (700,))
    assert not np.array_equal(other["state"]["learner"]["learned"]["00"], early["state"]["learner"]["learned"]["00"])
    where = "lanes/observation" if name == "seed_rl-dqn" else "unrolls/observation"
    assert not np.array_equal(other["arrays"][where], early["arrays"][where])


@every_company
def test_resumed_company_goes_on_with_counters_and_weights(name: str) -> None:
    with closed_after(built(name)) as first:
        play(first, 800)
        saved = copy.deepcopy(first.settle())
    with closed_after(built(name, begin=False)) as second:
        second.load_state(saved)
        second.start()
        here = second.settle()
        for part in ("learner", "env_steps", "updates", "episodes"):
            assert_same_state(here[part], saved[part], part)
        assert second.stage.weights()[0] == saved["updates"], "versions go on, too"
        play(second)
        ended = second.settle()
    assert ended["env_steps"] >= 1_500
    due = (ended["env_steps"] - saved["env_steps"]) / (ended["updates"] - saved["updates"])
    before = (saved["env_steps"] - 200 * (name == "seed_rl-dqn")) / saved["updates"]
    assert due == pytest.approx(before, rel=0.25), "env steps for each update, before and after"


# Where the slots are.


def writers_of(rehearsal: Rehearsal) -> list[UnrollWriter]:
    return [actor.experience for actor in roles(rehearsal, Actor)]


def check_slots(rehearsal: Rehearsal) -> None:
    """Each slot is ready, being written, or free: by looking at the writers, not at what the census counts from."""
    unrolls, plan = rehearsal.stage.unrolls, rehearsal.plan
    ready = set(np.flatnonzero(unrolls.filled == unrolls.freed + 1).tolist())
    assert ((unrolls.filled == unrolls.freed) | (unrolls.filled == unrolls.freed + 1)).all()
    writing = [writer._slot for writer in writers_of(rehearsal) if writer._slot is not None]
    assert len(set(writing)) == len(writing)
    assert not ready & set(writing)
    for writer in writers_of(rehearsal):
        own = range(writer.writer * plan.slots_per_writer, (writer.writer + 1) * plan.slots_per_writer)
        assert writer._slot is None or writer._slot in own
        assert int(writer._progress[0]) == (0 if writer._slot is None else 1 + writer._row)
    census = unrolls.census()
    assert census == (unrolls.count - len(ready) - len(writing), len(ready), len(writing))
    assert sum(census) == plan.writers * plan.slots_per_writer


def check_counters(rehearsal: Rehearsal) -> None:
    """Every unroll was learned from, was dropped or is ready; every step is in one of them, or in one half written."""
    unrolls, plan, ledger = rehearsal.stage.unrolls, rehearsal.plan, rehearsal.stage.ledger
    census = unrolls.census()
    learned = int(unrolls.freed.sum()) - int(ledger["dropped_stale"].sum())
    assert int(unrolls.filled.sum()) == learned + int(ledger["dropped_stale"].sum()) + census.ready
    updates = rehearsal.counters.updates * plan.batch_slots * (plan.ranks if plan.company.learners > 1 else 1)
    assert updates == learned * plan.critic.updates_per_batch
    rows = int(unrolls.filled.sum()) * plan.critic.unroll
    rows += int((unrolls.arrays["progress"] - 1).clip(min=0).sum())
    idle = rows * plan.envs_per_group - rehearsal.counters.env_steps
    episodes = int(ledger["episodes"].sum())
    assert episodes - plan.environments <= idle <= episodes, "a row for each end, and for nothing else"


@pytest.mark.parametrize("name", [name for name in COMPANIES if name != "seed_rl-dqn"])  # its steps lie in lanes
def test_no_slot_is_lost_and_every_step_is_accounted_for(name: str) -> None:
    with closed_after(built(name)) as rehearsal:
        play(rehearsal, watch=lambda: check_slots(rehearsal))
        rehearsal.settle()
        check_slots(rehearsal)
        check_counters(rehearsal)
        assert rehearsal.stage.ledger["dropped_unrolls"].sum() == 0


def test_slot_that_waits_keeps_its_writer_from_no_other() -> None:
    """Where unrolls are divided among several, a later one may be freed first."""
    with closed_after(company("impala", {"queue": 2}, {"batch_unrolls": 2}, actors=1)) as rehearsal:
        (actor,), unrolls = turns(rehearsal)["actor 0"], rehearsal.stage.unrolls
        while actor.step():
            pass
        assert unrolls.census() == (0, 3, 0)
        unrolls.free(np.array([1]))
        assert actor.step()
        assert writers_of(rehearsal)[0]._slot == 1
        check_slots(rehearsal)


@pytest.mark.parametrize("seed", range(2))
def test_numbers_at_work_may_change_at_any_time_and_nobody_waits_for_ever(seed: int) -> None:
    """Whoever is put off may hold slots, questions and half an unroll."""
    options, wishes = {"trainers": 2, "queue": 2}, {"actors": 2, "env_steps": 4_000, "seed": seed}
    with closed_after(company("ga3c", options, {"batch_unrolls": 6}, **wishes)) as rehearsal:
        chance, at_work = np.random.default_rng(seed), rehearsal.stage.at_work

        def watch() -> None:
            check_slots(rehearsal)
            if chance.random() < 0.02:
                at_work[:] = chance.integers(1, 3, 3)

        play(rehearsal, watch=watch)
        at_work[:] = 2
        assert all(trainer.page.row["gradients"] > 5 for trainer in roles(rehearsal, HogwildWorker))


@pytest.mark.parametrize(("batch", "queue"), [(4, 2), (6, 1), (8, 1)])
def test_whatever_numbers_are_at_work_everybody_goes_on(batch: int, queue: int) -> None:
    """Also if they stay: batches take 2, 3 and 4 slots here, and an agent has 3, 3 and 4."""
    options = {"predictors": 3, "trainers": 3, "queue": queue}
    with closed_after(company("ga3c", options, {"batch_unrolls": batch}, actors=3, env_steps=10**6)) as rehearsal:
        at_work, counters = rehearsal.stage.at_work, rehearsal.counters
        for numbers in itertools.product((1, 2, 3), repeat=3):
            at_work[:] = numbers
            updates = counters.updates
            play(rehearsal, counters.env_steps + 60 * batch)
            check_slots(rehearsal)
            assert counters.updates > updates, numbers


@pytest.mark.parametrize(
    ("topology", "options"),
    [("impala", {}), ("impala", {"learners": 2}), ("seed_rl", {}), ("sample_factory", {"groups": 2})],
)
@pytest.mark.parametrize("batch", [2, 6, 8, 20])
def test_actors_play_while_a_batch_is_learned_from(topology: str, options: Wishes, batch: int) -> None:
    """However much it takes of what they play: here all others stand still until nobody can go on."""
    with closed_after(company(topology, options, {"batch_unrolls": batch}, actors=2)) as rehearsal:
        others = [role for name, acting in turns(rehearsal).items() if "learner" not in name for role in acting]
        while sum(role.step() for role in others):
            pass
        unrolls, plan = rehearsal.stage.unrolls, rehearsal.plan
        for reader in range(plan.readers):
            assert len(unrolls.ready(reader)) >= plan.batch_slots + plan.writers // plan.readers


@pytest.mark.parametrize("unroll", [4, 5])
def test_lone_agent_divides_its_unrolls_among_all_trainers(unroll: int) -> None:
    options, agent = {"trainers": 2, "queue": 1}, {"unroll": unroll, "batch_unrolls": 2}
    with closed_after(company("ga3c", options, agent, actors=1, env_steps=500)) as rehearsal:
        play(rehearsal)
        made = [int(trainer.page.row["gradients"]) for trainer in roles(rehearsal, HogwildWorker)]
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
    with closed_after(company("impala", {"queue": queue}, **wishes)) as rehearsal:
        (learner,) = roles(rehearsal, Learner)
        taken: list[tuple[int, UnrollBatch]] = []
        remember(learner.batches, taken, lambda: int(learner.learned.updates))
        play(rehearsal)
        told = rehearsal.metrics()
    assert len(taken) > 100
    assert lags_of(taken) == [[0]] + [[lag]] * (len(taken) - 1)
    assert (told["policy_lag_max"], told["policy_lag_mean"]) == (lag, lag), "of the last 128"


def test_actors_that_are_answered_centrally_act_with_the_newest_weights() -> None:
    with closed_after(company("seed_rl", actors=1, agent={"batch_unrolls": 2})) as rehearsal:
        (learner,) = roles(rehearsal, Learner)
        taken: list[tuple[int, UnrollBatch]] = []
        remember(learner.batches, taken, lambda: int(learner.learned.updates))
        play(rehearsal)
    assert len(taken) > 100
    for updates, batch in taken[1:]:
        want = [updates - 1] + [updates] * 4  # the first action was asked for before the unroll before was learned from
        np.testing.assert_array_equal(batch.version, [want])


def test_unrolls_beyond_the_largest_lag_are_dropped_and_counted() -> None:
    lags: dict[int, list[int]] = {}
    for most in (0, 1):
        with closed_after(company("impala", {"max_policy_lag": most}, {"batch_unrolls": 2})) as rehearsal:
            (learner,) = roles(rehearsal, Learner)
            taken: list[tuple[int, UnrollBatch]] = []
            remember(learner.batches, taken, lambda: int(learner.learned.updates))  # noqa: B023
            play(rehearsal)
            rehearsal.settle()
            check_slots(rehearsal)
            check_counters(rehearsal)
            lags[most] = [lag for found in lags_of(taken) for lag in found]
            dropped = int(rehearsal.stage.ledger["dropped_stale"].sum())
            assert dropped == int(rehearsal.metrics()["dropped_stale"] or 0)
            assert (dropped > 10) == (most > 0)
    assert max(lags[0]) > 1, "else there is nothing to drop"
    assert max(lags[1]) == 1


def copied(state: LearnerState) -> LearnerState:
    return jax.tree_util.tree_map(jnp.array, state)  # type: ignore[no-any-return]


@pytest.mark.parametrize("extra", [{}, LSTM], ids=["mlp", "lstm"])
def test_worker_takes_its_gradient_at_the_weights_that_acted(extra: Wishes) -> None:
    """By hand, from a copy made when the unroll began; others have changed the shared weights meanwhile."""
    with closed_after(company("a3c", env_steps=10**6, **extra)) as rehearsal:
        agent, store, checked, moved = rehearsal.agent, rehearsal.stage.store(), 0, 0
        members = [
            (actor, worker)
            for actor, worker in zip(roles(rehearsal, Actor), roles(rehearsal, HogwildWorker), strict=True)
        ]
        began: dict[int, NDArray[np.float32]] = {}
        taken: list[tuple[int, UnrollBatch]] = []
        for actor, worker in members:
            writer, pull = actor.experience, actor.experience.begin_unroll

            def begin(pull: Any = pull, index: int = writer.writer) -> None:
                pull()
                began[index] = store.vectors()[0]

            writer.begin_unroll = begin
            remember(worker.source, taken, lambda worker=worker: worker.page.updates)
        key = jax.random.key(0)
        while checked < 60:
            for index, (actor, worker) in enumerate(members):
                actor.step()
                before = copied(store.live())
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
                np.testing.assert_allclose(store.live().weights, after.weights, rtol=0, atol=1e-4 * change)
                assert worker.page.row["lag"][:5].max() == 0
                checked += 1
                moved += not np.array_equal(acted, before.weights)
        assert moved > 20, "at the live weights the gradient would have been another"
        told = rehearsal.metrics()
        assert told["policy_lag_max"] == 0
        assert told["gradient_age_max"] in (1, 2), "updates of the other two"


# Several learners.


@pytest.mark.parametrize("extra", [{}, LSTM], ids=["mlp", "lstm"])
def test_two_learners_stay_equal_to_the_bit_and_make_the_update_of_their_mean_gradient(extra: Wishes) -> None:
    """Equal but for the order of sums: weights are compared at 1e-4 of the largest step.

    Adam's ε is 1, so that its steps grow with the gradient, and a sum in place of the mean would show.
    """
    agent_options = {"max_gradient_norm": 0.0, "optimizer": "adam", "optimizer_epsilon": 1.0}
    with closed_after(company("impala", {"learners": 2}, agent_options, **extra)) as rehearsal:
        first, second = roles(rehearsal, Rank)
        taken: list[list[tuple[int, UnrollBatch]]] = [[], []]
        seen = {0: jax.tree_util.tree_map(np.array, first.learned)}
        for rank, batches in zip((first, second), taken, strict=True):
            remember(rank.batches, batches, lambda rank=rank: rank.version)

        def watch() -> None:
            seen[first.version] = jax.tree_util.tree_map(np.array, first.learned)

        play(rehearsal, watch=watch)
        rehearsal.settle()
        sums = [dict(rank[rank[:, 0] > 0].tolist()) for rank in rehearsal.stage.arrays["checksums"]]
        agent = rehearsal.agent
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


# Whose members come and go, and whose processes are real.


def test_thread_that_starts_again_drops_what_was_played_with_weights_that_are_gone() -> None:
    with closed_after(company("a3c", actors=1)) as rehearsal:
        stage = rehearsal.stage
        actor, _ = turns(rehearsal)["thread 0"]
        while not len(stage.unrolls.ready()):
            actor.step()
        casting = Casting(stage, stage.collective)
        for dropped in (1, 1):  # the second time nothing waits
            for role in casting.build(stage.members[0]):
                role.close()
            assert len(stage.unrolls.ready()) == 0
            assert int(stage.ledger["dropped_stale"].sum()) == dropped
        assert int(stage.ledger["dropped_unrolls"].sum()) == 0


def test_half_unroll_of_an_actor_that_starts_again_is_dropped_and_counted_once() -> None:
    with closed_after(company("impala", actors=1, agent={"batch_unrolls": 2})) as rehearsal:
        stage = rehearsal.stage
        (actor,) = turns(rehearsal)["actor 0"]
        for _ in range(7):  # one is whole, of the next there are two steps
            actor.step()
        assert stage.unrolls.census() == (0, 1, 1)
        casting = Casting(stage, stage.collective)
        (again,) = casting.build(stage.members[0])
        assert stage.unrolls.census() == (1, 1, 0)
        assert int(stage.ledger["dropped_unrolls"].sum()) == 1
        for _ in range(5):
            again.step()
        again.close()
        assert stage.unrolls.census() == (0, 2, 0)
        assert experience_problems(stage, live=True) == []
        assert int(stage.ledger["dropped_unrolls"].sum()) == 1


def test_versions_of_shared_weights_are_counted_where_no_update_is_lost() -> None:
    """Two who add 1 to one number at the same time may add it once; each one's own count is right."""
    with closed_after(company("ga3c", env_steps=600)) as rehearsal:
        play(rehearsal, 300)
        store = rehearsal.stage.store()
        store.live().updates[...] -= 3  # three that were lost
        assert store.latest()[0] == rehearsal.counters.updates
        rehearsal.metrics()
        play(rehearsal)
        assert rehearsal.metrics()["policy_lag_max"] <= 6


def test_numbers_that_were_found_are_kept_by_a_checkpoint() -> None:
    options = {"predictors": 2, "trainers": 2, "adjust_from": (1, 1, 1)}
    wishes: Wishes = {"env_steps": 600, "engine": "processes"}  # which alone may adjust
    with closed_after(company("ga3c", options, **wishes)) as rehearsal:
        assert rehearsal.stage.at_work.tolist() == [1, 1, 1]
        rehearsal.stage.arrays["adjust/kept"][:] = (2, 1, 2)
        rehearsal.stage.at_work[:] = (2, 2, 2)  # on trial
        state = rehearsal.settle()
    resumed = company("ga3c", options, begin=False, **wishes)
    resumed.load_state(state)
    assert resumed.stage.at_work.tolist() == [2, 1, 2]


@pytest.mark.parametrize(("loss", "entropy"), [(float("nan"), 0.5), (float("inf"), 0.5), (1.0, float("nan"))])
def test_a_loss_that_is_not_finite_spoils_no_later_one(loss: float, entropy: float) -> None:
    with closed_after(company("impala", env_steps=600)) as rehearsal:
        play(rehearsal, 300)
        ledger, sums = rehearsal.stage.ledger, ("loss_sum", "entropy_sum", "losses")
        before = [ledger[name].copy() for name in sums]
        rehearsal.counters.loss(loss, entropy)
        assert all((ledger[name] == old).all() for name, old in zip(sums, before, strict=True))
        rehearsal.counters.loss(1.0, 0.5)
        assert ledger["losses"].sum() == before[2].sum() + 1


def test_memory_behind_central_inference_keeps_the_replay_ratio_when_its_learner_starts_again() -> None:
    with closed_after(company("seed_rl", of="dqn")) as rehearsal:
        play(rehearsal, 900)
        rehearsal.settle()
        due = (rehearsal.counters.env_steps - 200) // 8
        assert due - 2 <= rehearsal.counters.updates <= due
        learner = next(member for member in rehearsal.stage.members if member.role == "learner")
        (again,) = Casting(rehearsal.stage, rehearsal.stage.collective).build(learner)
        for _ in range(5):
            again.step()
        assert due - 2 <= rehearsal.counters.updates <= due, "it does not begin with the first one"
        told = rehearsal.metrics()["replay_ratio"]
        assert told == pytest.approx(8 * due / rehearsal.counters.env_steps, rel=0.05)


def test_random_actions_of_an_actor_without_network_name_a_version_too() -> None:
    with closed_after(company("seed_rl", of="dqn", env_steps=600)) as rehearsal:
        play(rehearsal)
        lanes, updates = rehearsal.stage.lanes, rehearsal.counters.updates
        written = np.arange(lanes.length) < lanes.head[:, None]
        assert (lanes.version[written] >= 0).all()
        (again,) = Casting(rehearsal.stage, rehearsal.stage.collective).build(rehearsal.stage.members[0])
        assert updates - 10 <= again.policy.version <= updates, "the weights' that answered last"
        again.close()


def test_schedules_count_the_steps_of_all_learners() -> None:
    alone, together = (small_plan("impala", {"learners": learners}) for learners in (1, 2))
    assert (alone.steps_per_update, together.steps_per_update) == (20, 40)


@pytest.mark.parametrize("name", UNROLLED)
def test_run_in_processes_ends_with_right_counters_and_all_slots(name: str, tmp_path: Path) -> None:
    outcome = run_faults(name, [], tmp_path, env_steps=3_000, heartbeat_s=60.0)
    assert outcome.all_problems() == []
    assert outcome.result["restarts"] == 0
    assert outcome.result["updates"] > 60
    assert len(outcome.result["evaluations"]) >= 1
