"""Parameter servers: what they make of the workers' gradients is what a plain loop makes of them.

Dean et al. 2012 (Downpour), Ho et al. 2013 (bounded staleness), Nair et al. 2015 (Gorila).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from commands import assert_same_state
from inline_runs import channel_of, inline_run, play, roles, turns, weights_of
from repertory.agents.agent import Transitions
from repertory.agents.compression import make_compression
from repertory.channels.channel import slices
from repertory.channels.gradients import GradientReader, GradientSlots, GradientWriter
from repertory.engines.driver import Driver
from repertory.roles.gradient_worker import GradientWorker, OutlierFilter
from repertory.roles.parameter_server import ParameterServer
from repertory.runs.presets import defaults
from repertory.topologies.graph import Worker

WORKERS = 3


def slots_of(driver: Driver) -> GradientSlots:
    found: GradientSlots = channel_of(driver.wiring, "gradients")
    return found


def writer(driver: Driver, rank: int) -> GradientWriter:
    """The end of a worker."""
    return slots_of(driver).writer(Worker(0, "worker", rank))


def reader(driver: Driver, rank: int) -> GradientReader:
    """The end of a server."""
    return slots_of(driver).reader(Worker(0, "server", rank))


class Notebook:
    """Every sample that the workers took and every gradient that they pushed, in order."""

    def __init__(self, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
        self.samples: list[tuple[int, Any]] = []
        self.pushed: list[tuple[int, NDArray[np.float32]]] = []
        for rank, worker in enumerate(roles(driver, GradientWorker)):
            monkeypatch.setattr(worker.batches, "take", self._taking(rank, worker.batches.take))
            monkeypatch.setattr(worker.servers, "push", self._pushing(rank, worker.servers.push))

    def _taking(self, rank: int, take: Any) -> Any:
        def taking() -> Any:
            sample = take()
            if sample is not None:
                self.samples.append((rank, jax.tree_util.tree_map(np.array, sample)))
            return sample

        return taking

    def _pushing(self, rank: int, push: Any) -> Any:
        def pushing(gradient: jax.Array) -> Any:
            self.pushed.append((rank, np.array(gradient)))
            return push(gradient)

        return pushing


@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_synchronous_update_is_one_step_with_all_workers_gradients(
    combine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand on the whole vector; compiled in other pieces, so products and sums may be fused otherwise: 1e-5."""
    options = {"mode": "synchronous", "shards": 2, "combine": combine}
    driver = inline_run("parameter_server", options, {"max_gradient_norm": 0.5})
    notebook, agent = Notebook(driver, monkeypatch), driver.agent
    state = agent.init(driver.plan.seed)
    seen = {}

    def watch() -> None:
        version, weights = driver.wiring.topology.weights.latest()
        seen[version] = weights.copy()

    play(driver, 900, watch)
    assert max(seen) >= 20
    key = jax.random.key(0)  # of no meaning: nothing is noisy
    by_worker = [[sample for rank, sample in notebook.samples if rank == worker] for worker in range(WORKERS)]
    for update in range(1, max(seen) + 1):
        gradients = []
        for samples in by_worker:
            batch = Transitions(*samples[update - 1].batch()[:8])
            gradients.append(np.asarray(agent.clip(agent.gradient(state.weights, state.target, batch, key)[0])))
        total = sum(gradients[1:], start=gradients[0])
        before = np.asarray(state.weights)
        state = agent.optimizer_step(state, jnp.asarray(total / WORKERS if combine == "mean" else total))
        step = np.abs(np.asarray(state.weights) - before).max()
        np.testing.assert_allclose(seen[update], state.weights, rtol=0, atol=1e-5 * update * step)
    assert max(seen) > driver.plan.options.target_period, "the target moved on the way"
    driver.close()


@pytest.mark.parametrize("seed", range(3))
def test_asynchronous_server_applies_exactly_what_was_pushed_in_order(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = inline_run("parameter_server", env_steps=10**6)
    notebook, rng, agent = Notebook(driver, monkeypatch), np.random.default_rng(seed), driver.agent
    state = agent.init(driver.plan.seed)
    workers = turns(driver)
    names, incoming = list(workers), reader(driver, 0)
    applied = 0
    for _ in range(4_000):
        name = names[int(rng.integers(len(names)))]
        if name == "server 0":
            waiting = dict(notebook.pushed[applied:])
            assert sorted(waiting) == incoming.arrived().tolist(), "one gradient a worker is on its way"
            for rank in sorted(waiting):
                state = agent.optimizer_step(state, jnp.asarray(waiting[rank]))
            applied = len(notebook.pushed)
        for role in workers[name]:
            role.step()
    workers["server 0"][0].step()
    for _, gradient in sorted(notebook.pushed[applied:], key=lambda pair: pair[0]):
        state = agent.optimizer_step(state, jnp.asarray(gradient))
    assert driver.wiring.topology.weights.latest()[0] == len(notebook.pushed) == int(state.updates) >= 50
    np.testing.assert_allclose(weights_of(driver), state.weights, rtol=1e-4, atol=1e-5)
    driver.close()


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "shared_rmsprop", "adagrad"])
def test_shards_together_are_one_server_to_the_bit(mode: str, optimizer: str) -> None:
    states = []
    for shards in (1, 3):
        driver = inline_run("parameter_server", {"mode": mode, "shards": shards}, {"optimizer": optimizer})
        play(driver, 900)
        play(driver, 900)  # the servers' turn
        states.append(driver.settle())
        driver.close()
    for part in ("learner", "updates"):
        assert_same_state(states[0][part], states[1][part], part)
    assert_same_state(*(state["channels"]["experience"] for state in states), "experience")
    assert states[0]["updates"] >= 20


def ahead_at_most(driver: Driver, slow: int, every: int) -> tuple[int, NDArray[np.int64]]:
    """How far a worker was ever ahead of the slowest, of which one seldom has its turn; and all pushes."""
    workers, most = turns(driver), 0
    pushed = slots_of(driver).arrays["pushed"]
    for count in range(6_000):
        for name, acting in workers.items():
            if name == f"worker {slow}" and count % every:
                continue
            for role in acting:
                role.step()
            most = max(most, int(pushed.max() - pushed.min()))
        if pushed.min() >= 12:
            break
    return most, pushed.copy()


@pytest.mark.parametrize("bound", [1, 2, 4])
@pytest.mark.parametrize("slow", [0, 2])
def test_no_worker_is_ever_more_than_the_bound_ahead_of_the_slowest_and_the_bound_is_reached(
    bound: int, slow: int
) -> None:
    options = {"mode": "bounded", "staleness_bound": bound, "shards": 2}
    driver = inline_run("parameter_server", options, {"learning_starts": 30}, env_steps=10**6)
    most, pushed = ahead_at_most(driver, slow, every=12)
    driver.close()
    assert most == bound
    assert pushed.min() >= 12, "the slowest goes on"


def test_without_a_bound_workers_run_ahead() -> None:
    driver = inline_run("parameter_server", {}, {"learning_starts": 30}, env_steps=10**6)
    most, _ = ahead_at_most(driver, slow=1, every=12)
    driver.close()
    assert most > 12


@pytest.mark.parametrize(("fetch", "push"), [(1, 1), (3, 1), (1, 4), (3, 2), (2, 3)])
def test_weights_are_fetched_and_gradients_pushed_every_so_many_gradients(
    fetch: int, push: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Downpour's n_fetch and n_push: a push is the sum of the gradients since the last one."""
    options = {"fetch_period": fetch, "push_period": push}
    driver = inline_run("parameter_server", options, {"max_gradient_norm": 0.0})
    notebook = Notebook(driver, monkeypatch)
    worker: GradientWorker = roles(driver, GradientWorker)[1]
    events: list[tuple[str, Any]] = []
    fetched, compute = worker.servers.fetch, worker.agent.gradient

    def fetching() -> Any:
        found = fetched()
        events.append(("fetch", np.array(found[1])))
        return found

    def computing(weights: Any, *rest: Any) -> Any:
        gradient, learned = compute(weights, *rest)
        events.append(("gradient", (np.array(weights), np.array(gradient))))
        return gradient, learned

    monkeypatch.setattr(worker.servers, "fetch", fetching)
    worker.agent = dataclasses.replace(worker.agent, gradient=computing)
    play(driver)
    driver.close()
    gradients = [what for event, what in events if event == "gradient"]
    assert len(gradients) >= 40
    order = [event for event, _ in events]
    assert order == [
        event
        for made in range(len(gradients))
        for event in (["fetch", "gradient"] if made % fetch == 0 else ["gradient"])
    ]
    newest: Any = None
    for event, what in events:
        if event == "fetch":
            newest = what
        else:
            np.testing.assert_array_equal(what[0], newest)
    pushed = [gradient for rank, gradient in notebook.pushed if rank == 1]
    assert len(pushed) == len(gradients) // push
    for index, sent in enumerate(pushed):
        total = np.zeros_like(sent)
        for _, gradient in gradients[index * push : (index + 1) * push]:
            total = total + gradient
        np.testing.assert_allclose(sent, total, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("compression", ["int8", "topk"])
def test_what_compression_keeps_back_is_sent_with_the_next_gradients(compression: str) -> None:
    driver = inline_run("parameter_server", {"compression": compression, "topk_share": 0.2, "shards": 2})
    servers = roles(driver, GradientWorker)[1].servers
    gradient = np.random.default_rng(0).normal(size=driver.agent.layout.size).astype(np.float32)
    total = np.zeros_like(gradient)
    for push in range(8):
        servers.push(jnp.asarray(gradient if push == 0 else np.zeros_like(gradient)))
        for server, cut in enumerate(slices(len(gradient), 2)):
            method = make_compression(compression, cut.stop - cut.start, share=0.2)
            total[cut] += np.asarray(method.decode(reader(driver, server).payload(1)[1]))
        assert push > 0 or np.abs(total - gradient).max() > 1e-3, "the first push does not say all"
    np.testing.assert_allclose(total, gradient, rtol=0, atol=1e-6)
    driver.close()


def test_importance_of_a_workers_own_replay_rises_with_the_steps_of_all() -> None:
    rising = {"prioritized": True, "importance_exponent": 0.4, "importance_steps": 1_200}
    driver = inline_run("parameter_server", agent=rising)
    play(driver, 900)
    for worker in roles(driver, GradientWorker):
        sampler = worker.batches
        assert sampler.env_steps() == pytest.approx(300, abs=10)
        assert sampler.importance(sampler.env_steps()) == pytest.approx(0.4 + 0.6 * 900 / 1_200, abs=0.02)
    driver.close()


@pytest.mark.parametrize("shards", [1, 2])
def test_gradients_of_weights_older_than_the_limit_are_dropped_and_counted(shards: int) -> None:
    driver = inline_run("gorila", {"max_gradient_age": 3, "shards": shards}, {"optimizer_epsilon": 1e-3})
    servers: list[ParameterServer] = roles(driver, ParameterServer)
    worker, size = writer(driver, 1), driver.agent.layout.size
    rng = np.random.default_rng(0)
    dropped = 0
    for age in [0, 0, 0, 0, 0, 0, 3, 4, 2, 5, 0, 4]:
        before, version = weights_of(driver).copy(), servers[0].version
        gradient = rng.normal(size=size).astype(np.float32)
        payloads = [{"value": gradient[cut]} for cut in slices(size, shards)]
        worker.push([server.version - age for server in servers], payloads, wake_workers=False)
        for server in servers:
            assert server.step()
        moved = not np.array_equal(weights_of(driver), before)
        assert moved == (age <= 3)
        assert servers[0].version == version + (age <= 3)
        dropped += age > 3
        assert [int(server.stats.row["dropped_stale"]) for server in servers] == [dropped] * shards
        assert worker.free, "a dropped gradient is taken all the same"
    driver.close()


def test_each_server_is_told_which_of_its_own_versions_a_gradient_was_computed_with() -> None:
    driver = inline_run("parameter_server", {"shards": 2})
    first, second = roles(driver, ParameterServer)
    connection, size = roles(driver, GradientWorker)[0].servers, driver.agent.layout.size
    gradient = jnp.ones(size)
    payloads = [{"value": gradient[cut]} for cut in slices(size, 2)]
    for _ in range(3):
        writer(driver, 1).push([0, 0], payloads, wake_workers=False)
        assert first.step(), "the second is slower"
    assert (first.version, second.version) == (3, 0)
    assert connection.fetch()[0] == 3
    writer(driver, 2).push([3, 0], payloads, wake_workers=False)
    first.step()
    assert first.version == 4, "after the fetch, so this gradient does not know of it"
    connection.push(gradient)
    assert [reader(driver, server).payload(0)[0] for server in range(2)] == [3, 0]
    driver.close()


def twin_refusals(losses: list[float], deviations: float) -> list[bool]:
    """Mean and deviation of all losses so far, or of about the last hundred, before each loss."""
    refused, mean, square = [], 0.0, 0.0
    for i, loss in enumerate(losses):
        deviation = math.sqrt(max(square - mean * mean, 0.0))
        refused.append(i >= 100 and loss > mean + deviations * deviation)
        weight = 1.0 / (i + 1) if i < 100 else 0.01
        mean = (1 - weight) * mean + weight * loss
        square = (1 - weight) * square + weight * loss * loss
    return refused


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), deviations=st.sampled_from([1.0, 3.0, 5.0]))
def test_outliers_are_losses_far_above_their_running_mean(seed: int, deviations: float) -> None:
    rng = np.random.default_rng(seed)
    losses = np.where(rng.random(400) < 0.03, rng.exponential(50.0, 400), rng.exponential(1.0, 400)).tolist()
    outliers = OutlierFilter(deviations)
    found = [outliers.refuses(loss) for loss in losses]
    assert found == twin_refusals(losses, deviations)
    assert not any(found[:100])


def test_new_level_of_losses_is_learned_not_refused_for_ever() -> None:
    outliers = OutlierFilter(5.0)
    assert not any(outliers.refuses(loss) for loss in [1.0, 1.1] * 100)
    found = [outliers.refuses(100.0) for _ in range(200)]
    assert found[0]
    assert not any(found[50:])


def test_gradients_of_outlying_losses_are_dropped_and_counted_and_those_that_are_no_numbers_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = inline_run("gorila", {"outlier_deviations": 3.0}, {"learning_starts": 30}, env_steps=10**6)
    notebook = Notebook(driver, monkeypatch)
    worker: GradientWorker = roles(driver, GradientWorker)[0]
    compute, made = worker.agent.gradient, 0
    strange = {50: math.nan, 120: math.inf, 150: 1e6, 160: math.nan, 170: 1e9, 171: 1.0}

    def computing(*arguments: Any) -> Any:
        nonlocal made
        gradient, learned = compute(*arguments)
        made += 1
        return gradient, learned._replace(loss=strange.get(made, 1.0 + made % 2))

    worker.agent = dataclasses.replace(worker.agent, gradient=computing)
    play(driver, env_steps=5_500)
    driver.close()
    assert made > 180
    assert int(worker.stats.row["dropped_outlier"]) == 2
    assert int(worker.stats.row["skipped"]) == 3
    assert len([rank for rank, _ in notebook.pushed if rank == 0]) == made - 5


@pytest.mark.parametrize("environment", ["ALE/Pong-v5", "FrozenLake-v1"])
def test_gorila_learns_as_its_paper_does_where_no_preset_of_a_small_environment_says_otherwise(
    environment: str,
) -> None:
    """Nair et al. 2015: AdaGrad, DQN's target from the same network, copied every 60,000 updates."""
    agent: Any = defaults(environment, topology="gorila").agent
    assert agent.optimizer == "adagrad"
    assert not agent.double
    assert agent.max_gradient_norm == 0.0
    assert (agent.target_tau, agent.target_period) == (0.0, 60_000)
