"""The DQN family against its twins: every formula, every option alone, in pairs and all together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

import twins
from naive import Habits, Play, make_spec
from repertory.agents.agent import Agent, Learned, LearnerState, Transitions
from repertory.agents.learning import make_learn, make_optimizer
from repertory.agents.networks import NetworkOptions
from repertory.agents.q_learning import Head, QLearningOptions, dueling, make_q_learning
from repertory.agents.strategy import SLICE_ROWS, Strategy
from repertory.experience.lanes import LaneStorage
from repertory.experience.replay import Prioritization, Replay
from repertory.specs import EnvironmentSpec, ObservationSpec, Part

ACTIONS, BATCH = 4, 8
PLAIN = QLearningOptions(double=False, max_gradient_norm=0.0, atoms=7, value_min=-2.0, value_max=4.0)
TINY = NetworkOptions(kind="mlp", hidden=(5,))
SPEC = make_spec()
KEY = jax.random.key_data(jax.random.key(0))
IMAGE = EnvironmentSpec(ObservationSpec((36, 36), "uint8", (Part("pixel", 36 * 36),), stack=4), 3)


@pytest.fixture
def uncompiled() -> Iterator[None]:
    """Each operation by itself: compiling many programs that run once takes all the time; operations are shared."""
    with jax.disable_jit():
        yield


@cache
def agent_of(options: QLearningOptions, spec: EnvironmentSpec = SPEC) -> Agent:
    """The agent on a tiny network; programs are compiled once for all tests."""
    return make_q_learning(options, TINY, spec)


def vectors(agent: Agent) -> tuple[jax.Array, jax.Array]:
    """Weights and target weights that differ, and are large enough for every term to count."""
    keys = jax.random.split(jax.random.key(3))
    return tuple(jax.random.normal(key, (agent.layout.size,)) for key in keys)  # type: ignore[return-value]


def make_batch(seed: int = 0, size: int = BATCH, masked: bool = True, spec: EnvironmentSpec = SPEC) -> Transitions:
    """Steps of every sort: terminal ones, which have no next action, and some after several steps."""
    rng = np.random.default_rng(seed)
    shape, dtype = spec.observation.seen_shape, spec.observation.dtype
    mask = rng.random((size, spec.actions)) < 0.5
    mask[np.arange(size), rng.integers(0, spec.actions, size)] = True
    next_action = rng.integers(-1, spec.actions, size).astype(np.int32)
    observe = rng.integers if dtype == "uint8" else rng.uniform
    low, high = (0, 256) if dtype == "uint8" else (-1, 1)
    return Transitions(
        observation=observe(low, high, (size, *shape)).astype(dtype),
        action=rng.integers(0, spec.actions, size).astype(np.int32),
        reward=rng.normal(scale=2.0, size=size).astype(np.float32),
        discount=np.where(next_action < 0, 0.0, rng.choice([0.9, 0.9**3], size)).astype(np.float32),
        next_observation=observe(low, high, (size, *shape)).astype(dtype),
        next_action=next_action,
        next_mask=mask if masked else None,
        weight=rng.uniform(0.2, 1.0, size).astype(np.float32),
    )


def stacked(*batches: Transitions) -> Transitions:
    """Batches with a leading axis of updates."""
    return jax.tree_util.tree_map(lambda *xs: np.stack(xs), *batches)


def twin_rows(options: QLearningOptions, tree: Any, observation: NDArray[Any]) -> NDArray[Any]:
    """[batch, actions, atoms] by the twins."""
    atoms = options.atoms if options.distributional else 1
    outputs = twins.network(tree, observation.reshape(len(observation), -1), 2 if options.dueling else 1)
    return twins.dueling(outputs, ACTIONS, atoms) if options.dueling else outputs.reshape(-1, ACTIONS, atoms)


def twin_values(options: QLearningOptions, rows: NDArray[Any]) -> NDArray[Any]:
    """Q-values [batch, actions] by the twins."""
    if not options.distributional:
        return rows[..., 0]
    z = twins.support(options.value_min, options.value_max, options.atoms)
    return np.array([[twins.softmax(logits) @ z for logits in row] for row in rows])


def twin_errors(
    options: QLearningOptions,
    rows: NDArray[Any],
    batch: Transitions,
    bootstrap: NDArray[Any],
    chooser: NDArray[Any],
) -> NDArray[Any]:
    """Temporal-difference errors or divergences, one step after another."""
    errors = []
    z = twins.support(options.value_min, options.value_max, options.atoms)
    Q_select = twin_values(options, chooser)
    for i, (a, r, γ) in enumerate(zip(batch.action, batch.reward, batch.discount, strict=True)):
        mask = None if batch.next_mask is None else batch.next_mask[i]
        a_next = twins.bootstrap_action(Q_select[i], mask, int(batch.next_action[i]), options.sarsa)
        if options.distributional:
            m = twins.project(float(r), float(γ), z, twins.softmax(bootstrap[i, a_next]))
            errors.append(twins.divergence(m, rows[i, a]))
        else:
            errors.append(twins.td_error(rows[i, a, 0], r, γ, bootstrap[i, a_next, 0]))
    return np.array(errors)


def twin_loss(options: QLearningOptions, errors: NDArray[Any], batch: Transitions) -> float:
    """Mean of the weighted penalties."""
    penalty: Any = {"huber": twins.huber, "squared": twins.squared}[options.loss]
    penalties = errors if options.distributional else [penalty(error) for error in errors]
    return float(np.mean([w * x for w, x in zip(batch.weight, penalties, strict=True)]))


@cache
def shapes_of(agent: Agent) -> LearnerState:
    """The learner state's shapes: tracing the initialisers takes long, compiling them longer."""
    return jax.eval_shape(agent.init, 0)


def begin(agent: Agent) -> LearnerState:
    """A state to learn from, with weights that are not trained and moments that are 0."""
    θ = vectors(agent)[0] * 0.3
    blank = jax.tree_util.tree_map(lambda x: jnp.zeros(x.shape, x.dtype), shapes_of(agent))
    return blank._replace(weights=θ, target=θ + 0.0, key=KEY + 0)


def copy(state: LearnerState) -> LearnerState:
    """The same state in memory of its own: learning consumes the one it is given."""
    return jax.tree_util.tree_map(lambda x: jnp.array(x, copy=True), state)


# Targets, errors and losses.


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"double": True, "target": False},
        {"double": True, "sarsa": True, "dueling": True, "loss": "squared"},
        {"double": True, "dueling": True, "distributional": True},
        {"distributional": True, "sarsa": True, "target": False},
    ],
    ids=lambda parts: "+".join(parts) or "plain",
)
def test_loss_and_priorities_are_the_papers(parts: dict[str, Any]) -> None:
    options = replace(PLAIN, **parts)
    agent, batch = agent_of(options), make_batch(size=32)
    θ, θ_target = vectors(agent)
    _, learned = agent.gradient(θ, θ_target, batch, KEY)
    tree = agent.layout.unravel(θ)
    slow = agent.layout.unravel(θ_target) if options.target else tree
    rows = twin_rows(options, tree, batch.observation)
    bootstrap = twin_rows(options, slow, batch.next_observation)
    chooser = twin_rows(options, tree, batch.next_observation) if options.double else bootstrap
    errors = twin_errors(options, rows, batch, bootstrap, chooser)
    np.testing.assert_allclose(learned.priority, np.abs(errors), rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(learned.loss, twin_loss(options, errors, batch), rtol=2e-4)
    taken = np.abs(twin_values(options, rows))[np.arange(32), batch.action]
    np.testing.assert_allclose(learned.value, np.mean(taken), rtol=2e-4)
    weight = batch.weight * (np.arange(32) < 20)
    _, learned = agent.gradient(θ, θ_target, batch._replace(weight=weight.astype(np.float32)), KEY)
    np.testing.assert_allclose(learned.value, np.mean(taken[:20]), rtol=2e-4)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("sarsa", [False, True])
@pytest.mark.parametrize("distributional", [False, True])
def test_errors_of_given_outputs_are_the_papers(distributional: bool, sarsa: bool, double: bool, masked: bool) -> None:
    options = replace(PLAIN, distributional=distributional, sarsa=sarsa)
    head = Head(ACTIONS, options.atoms if distributional else 1, options)
    batch = make_batch(size=32, masked=masked)
    rows, bootstrap, online = np.random.default_rng(0).normal(size=(3, 32, ACTIONS, head.atoms)).astype(np.float32)
    chooser = online if double else bootstrap
    errors = head.errors(jnp.array(rows), batch, jnp.array(bootstrap), head.selector(jnp.array(chooser), batch))
    want = twin_errors(options, rows, batch, bootstrap, chooser)
    assert distributional or (want < 0).any()
    np.testing.assert_allclose(errors, want, rtol=1e-4, atol=1e-5)
    penalties = np.mean(batch.weight * np.asarray(head.penalty(errors)))
    np.testing.assert_allclose(penalties, twin_loss(options, want, batch), rtol=1e-4)


def test_projection_keeps_all_probability_on_the_support() -> None:
    options = replace(PLAIN, distributional=True)
    head, z = Head(1, options.atoms, options), twins.support(-2.0, 4.0, options.atoms)
    cases = list(itertools.product([-100.0, -2.0, -0.3, 0.0, 1.0, 3.99, 4.0, 100.0], [0.0, 0.5, 1.0]))
    rng, size = np.random.default_rng(0), len(cases)
    rows, bootstrap = rng.normal(size=(2, size, 1, options.atoms)).astype(np.float32)
    reward, discount = np.array(cases, np.float32).T
    batch = make_batch(size=size, masked=False)._replace(
        action=np.zeros(size, np.int32), reward=reward, discount=discount
    )
    # The gradient of the divergence by the logits is p − m, so m can be read off.
    total = jax.grad(lambda x: head.errors(x, batch, jnp.array(bootstrap), jnp.zeros((size, 1))).sum())
    gradient = np.asarray(total(jnp.array(rows)))
    for i, (r, γ) in enumerate(cases):
        m = twins.softmax(rows[i, 0]) - gradient[i, 0]
        want = twins.project(r, γ, z, twins.softmax(bootstrap[i, 0]))
        np.testing.assert_allclose(m, want, atol=1e-5)
        np.testing.assert_allclose(want.sum(), 1.0)
        if γ == 0.0:
            assert np.count_nonzero(want) <= 2
            np.testing.assert_allclose(want @ z, np.clip(r, z[0], z[-1]), atol=1e-6)


@pytest.mark.parametrize("atoms", [1, 7])
def test_dueling_is_value_plus_centred_advantages(atoms: int) -> None:
    outputs = np.random.default_rng(0).normal(size=(5, atoms + ACTIONS * atoms)).astype(np.float32)
    found = dueling(jnp.array(outputs), ACTIONS, atoms)
    np.testing.assert_allclose(found, twins.dueling(outputs, ACTIONS, atoms), atol=1e-5)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("distributional", [False, True])
def test_values_are_the_networks(distributional: bool) -> None:
    options = replace(PLAIN, distributional=distributional, dueling=True)
    agent, batch = agent_of(options), make_batch()
    θ, _ = vectors(agent)
    rows = twin_rows(options, agent.layout.unravel(θ), batch.observation)
    values = agent.values(θ, batch.observation, None, None)
    np.testing.assert_allclose(values, twin_values(options, rows), rtol=1e-4, atol=1e-4)


# Illegal actions.


@pytest.mark.parametrize("distributional", [False, True])
def test_illegal_actions_are_not_chosen_however_high_their_values(distributional: bool) -> None:
    options = replace(PLAIN, distributional=distributional)
    agent, observation = agent_of(options), make_batch(size=50).observation
    θ, _ = vectors(agent)
    raw = np.asarray(agent.values(θ, observation, None, None))
    best = raw.argmax(axis=1)
    mask = np.ones_like(raw, bool)
    mask[np.arange(50), best] = False
    second = np.where(mask, raw, -np.inf).argmax(axis=1)
    np.testing.assert_array_equal(agent.act(θ, observation, None, None), best)
    np.testing.assert_array_equal(agent.act(θ, observation, mask, None), second)
    values = np.asarray(agent.values(θ, observation, mask, None))
    np.testing.assert_allclose(values[mask], raw[mask], rtol=1e-5)
    assert values[~mask].max() < raw.min() - 1e6
    head = Head(ACTIONS, options.atoms if distributional else 1, options)
    rows = twin_rows(options, agent.layout.unravel(θ), observation).astype(np.float32)
    selector = head.selector(jnp.array(rows), make_batch(size=50)._replace(next_mask=mask))
    np.testing.assert_array_equal(selector.argmax(axis=1), second)


@pytest.mark.parametrize("only", range(ACTIONS))
def test_a_single_legal_action_is_taken_even_if_its_value_is_terrible(only: int) -> None:
    agent = agent_of(PLAIN)
    θ, _ = vectors(agent)
    mask = np.zeros((3, ACTIONS), bool)
    mask[:, only] = True
    actions = agent.act(θ * 50.0, make_batch(size=3).observation, mask, None)
    np.testing.assert_array_equal(actions, [only] * 3)


def test_sarsa_bootstraps_from_the_action_taken_however_low_its_value() -> None:
    head = Head(ACTIONS, 1, replace(PLAIN, sarsa=True))
    scores = jnp.array([[5.0, 9.0, 1.0, 7.0]] * 3)[..., None]
    batch = make_batch(size=3)._replace(next_action=np.array([3, 2, 0], np.int32))
    np.testing.assert_array_equal(head.selector(scores, batch).argmax(axis=1), [3, 2, 0])


# Gradients.


@pytest.mark.parametrize(
    "parts",
    [{"loss": "squared"}, {"double": True}, {"dueling": True}, {"distributional": True, "double": True}],
    ids="+".join,
)
def test_gradient_is_the_slope_of_the_loss(parts: dict[str, Any]) -> None:
    agent, batch = agent_of(replace(PLAIN, **parts)), make_batch(size=32)
    θ, θ_target = vectors(agent)
    gradient, learned = agent.gradient(θ, θ_target, batch, KEY)
    assert learned.gradient_norm is None
    _, whole = agent.learn(begin(agent)._replace(weights=θ + 0, target=θ_target + 0), stacked(batch))
    np.testing.assert_allclose(whole.gradient_norm, [np.linalg.norm(gradient)], rtol=1e-5)
    steepest = np.argsort(-np.abs(np.asarray(gradient)))[:8]
    step = 2e-3
    for i in steepest:
        above, below = (agent.gradient(θ.at[i].add(sign * step), θ_target, batch, KEY)[1].loss for sign in (1, -1))
        np.testing.assert_allclose(gradient[i], (above - below) / (2 * step), rtol=0.05)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("distributional", [False, True])
def test_without_a_target_network_no_gradient_flows_through_the_bootstrap(distributional: bool) -> None:
    options = replace(PLAIN, distributional=distributional)
    batch = make_batch()
    θ, other = vectors(agent_of(options))
    without, _ = agent_of(replace(options, target=False)).gradient(θ, other, batch, KEY)
    with_itself, _ = agent_of(options).gradient(θ, θ, batch, KEY)
    np.testing.assert_allclose(without, with_itself, rtol=1e-4, atol=1e-6)


def test_importance_weights_scale_each_samples_gradient() -> None:
    agent, batch = agent_of(PLAIN), make_batch(size=2)
    θ, θ_target = vectors(agent)

    def of(weight: list[float]) -> NDArray[Any]:
        return np.asarray(agent.gradient(θ, θ_target, batch._replace(weight=np.array(weight, np.float32)), KEY)[0])

    np.testing.assert_allclose(of([0.3, 0.8]), 0.3 * of([1, 0]) + 0.8 * of([0, 1]), rtol=1e-4, atol=1e-5)


# Optimiser, clipping and target.


def some_gradients(size: int, count: int = 4) -> list[NDArray[np.float32]]:
    return list(np.random.default_rng(0).normal(size=(count, size)).astype(np.float32))


OPTIMIZERS = {
    "adam": twins.adam,
    "rmsprop": twins.centred_rmsprop,
    "shared_rmsprop": twins.rmsprop,
    "adagrad": twins.adagrad,
}


@pytest.mark.parametrize(("optimizer", "twin"), OPTIMIZERS.items(), ids=OPTIMIZERS)
def test_steps_on_the_vector_are_the_optimisers(optimizer: Any, twin: Any) -> None:
    agent = agent_of(replace(PLAIN, optimizer=optimizer, learning_rate=0.01, optimizer_epsilon=1e-3))
    state = agent.init(0)
    θ, gradients = np.asarray(state.weights, float), some_gradients(agent.layout.size)
    for gradient in gradients:
        state = agent.apply(state, jnp.array(gradient))
    np.testing.assert_allclose(state.weights, twin(θ, gradients, 0.01, 1e-3), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [0.3, 7.0, 40.0])
def test_centred_rmsprop_makes_numbers_of_gradients_that_hardly_change(scale: float) -> None:
    """Their variance is 0, and rounding must not put it below."""
    optimizer = make_optimizer("rmsprop", 1e-3, 1e-8)
    gradient = jnp.asarray(scale * np.random.default_rng(0).uniform(1.0, 1.001, 1000), jnp.float32)
    step = jax.jit(optimizer.update)
    state = optimizer.init(gradient)
    for _ in range(400):
        change, state = step(gradient, state)
        assert np.isfinite(change).all()


@pytest.mark.parametrize(("limit", "scale"), [(0.0, 1.0), (2.0, 0.4), (5.0, 1.0), (50.0, 1.0)])
def test_gradients_are_clipped_by_global_norm(limit: float, scale: float) -> None:
    agent = agent_of(replace(PLAIN, max_gradient_norm=limit))
    gradient = some_gradients(agent.layout.size)[0]
    gradient *= 5.0 / np.linalg.norm(gradient)
    state = agent.apply(begin(agent), jnp.array(gradient))
    moment = state.optimizer[0].mu
    np.testing.assert_allclose(moment, 0.1 * scale * gradient, rtol=1e-4, atol=1e-7)


def test_no_gradient_at_all_is_not_divided_by() -> None:
    agent = agent_of(replace(PLAIN, max_gradient_norm=2.0))
    before = np.asarray(begin(agent).weights)
    state = agent.apply(begin(agent), jnp.zeros(agent.layout.size))
    np.testing.assert_array_equal(state.weights, before)
    assert int(state.skipped) == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("limit", [0.0, 2.0])
def test_gradient_that_is_not_finite_changes_nothing_and_is_counted(bad: float, limit: float) -> None:
    agent = agent_of(replace(PLAIN, max_gradient_norm=limit))
    gradients = some_gradients(agent.layout.size)
    state = agent.apply(begin(agent), jnp.array(gradients[0]))
    before = copy(state)
    state = agent.apply(state, jnp.array(gradients[1]).at[3].set(bad))
    for name in ("weights", "target", "key"):
        np.testing.assert_array_equal(getattr(state, name), getattr(before, name))
    jax.tree_util.tree_map(np.testing.assert_array_equal, state.optimizer, before.optimizer)
    assert (int(state.updates), int(state.skipped)) == (2, 1)
    state = agent.apply(state, jnp.array(gradients[2]))
    assert int(state.skipped) == 1
    assert not np.array_equal(state.weights, before.weights)


def test_batch_with_a_reward_that_is_not_finite_is_skipped() -> None:
    agent, batch = agent_of(PLAIN), make_batch()
    batch.reward[1] = np.nan
    before = np.asarray(begin(agent).weights)
    state, _ = agent.learn(begin(agent), stacked(batch))
    np.testing.assert_array_equal(state.weights, before)
    assert int(state.skipped) == 1


@pytest.mark.parametrize("calls", [[1] * 7, [7], [2, 3, 2], [4, 3]], ids=str)
def test_target_is_copied_exactly_at_multiples_of_the_period(calls: list[int]) -> None:
    agent = agent_of(replace(PLAIN, target_period=3))
    batches = [make_batch(seed) for seed in range(7)]
    alone, history = begin(agent), []
    for batch in batches:
        alone, _ = agent.learn(alone, stacked(batch))
        history.append(np.asarray(alone.weights).copy())
    state, done = begin(agent), 0
    start = np.asarray(state.weights).copy()
    for count in calls:
        state, _ = agent.learn(state, stacked(*batches[done : done + count]))
        done += count
        last_copy = done // 3 * 3
        want = history[last_copy - 1] if last_copy else start
        np.testing.assert_allclose(state.target, want, rtol=1e-5, atol=1e-6)
        assert np.array_equal(state.target, state.weights) == (done == last_copy)


def test_soft_target_follows_at_its_rate() -> None:
    agent = agent_of(replace(PLAIN, target_tau=0.1))
    state = begin(agent)
    θ_target = np.asarray(state.target, float)
    for gradient in some_gradients(agent.layout.size):
        state = agent.apply(state, jnp.array(gradient))
        θ_target = 0.9 * θ_target + 0.1 * np.asarray(state.weights)
        np.testing.assert_allclose(state.target, θ_target, rtol=1e-5, atol=1e-6)


def test_no_target_network_is_never_written() -> None:
    agent = agent_of(replace(PLAIN, target=False, target_period=1))
    state = begin(agent)
    before = np.asarray(state.target).copy()
    for gradient in some_gradients(agent.layout.size):
        state = agent.apply(state, jnp.array(gradient))
    np.testing.assert_array_equal(state.target, before)


def test_init_depends_on_the_seed_alone_and_the_target_starts_as_a_copy() -> None:
    agent = agent_of(PLAIN)
    first, again, other = agent.init(1), agent.init(1), agent.init(2)
    np.testing.assert_array_equal(first.weights, again.weights)
    np.testing.assert_array_equal(first.weights, first.target)
    assert not np.array_equal(first.weights, other.weights)
    assert not np.array_equal(first.key, other.key)


# Several updates and slices.


@pytest.mark.parametrize("parts", [{}, {"noisy": True}], ids=["plain", "noisy"])
def test_several_updates_in_one_call_are_several_calls(parts: dict[str, Any]) -> None:
    """To 1e-5, relative to numbers around 1: the compiler fuses a scan's sums in another order."""
    agent = agent_of(replace(PLAIN, target_period=2, **parts))
    batches = [make_batch(seed) for seed in range(5)]
    together, learned = agent.learn(begin(agent), stacked(*batches))
    apart, one_by_one = begin(agent), []
    for batch in batches:
        apart, single = agent.learn(apart, stacked(batch))
        one_by_one.append(single)
    np.testing.assert_allclose(together.weights, apart.weights, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(together.target, apart.target, rtol=1e-5, atol=1e-5)
    assert int(together.updates) == int(apart.updates) == 5
    for name in ("loss", "priority", "gradient_norm", "value"):
        want = np.concatenate([getattr(single, name) for single in one_by_one])
        np.testing.assert_allclose(getattr(learned, name), want, rtol=1e-4, atol=1e-5)


def test_a_batch_learned_in_slices_is_the_whole_batch() -> None:
    agent = make_q_learning(PLAIN, NetworkOptions(kind="nature"), IMAGE)
    start = begin(agent)
    start = start._replace(weights=start.weights * 0.1, target=start.target * 0.1)
    batch = make_batch(size=48, spec=IMAGE)
    key = jax.random.fold_in(start.key, 0)
    gradient, whole = agent.gradient(start.weights, start.target, batch, key)
    state, sliced = agent.learn(start, stacked(batch))
    scale = float(jnp.abs(gradient).max())
    # Adam's first moment is a tenth of the first gradient it was given.
    np.testing.assert_allclose(state.optimizer[0].mu / 0.1, gradient, rtol=1e-3, atol=1e-5 * scale)
    np.testing.assert_allclose(sliced.loss, [whole.loss], rtol=1e-4)
    np.testing.assert_allclose(sliced.priority, [whole.priority], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(sliced.gradient_norm, [np.linalg.norm(gradient)], rtol=1e-4)
    np.testing.assert_allclose(sliced.value, [whole.value], rtol=1e-4)
    assert int(state.updates) == 1


@pytest.mark.parametrize("threads", [1, 3])
def test_unequal_slices_count_by_their_size_and_share_their_noise(threads: int) -> None:
    agent, batch = agent_of(PLAIN), make_batch(size=49)

    def gradient(weights: jax.Array, _: jax.Array, batch: Transitions, key: jax.Array) -> tuple[jax.Array, Learned]:
        noise = jax.random.normal(key, weights.shape)
        vector = noise * jnp.mean(batch.reward)
        mean = jnp.mean(batch.reward)
        return vector, Learned(mean, jnp.abs(batch.reward), jnp.zeros(()), 2 * mean)

    start = begin(agent)
    want, whole = gradient(start.weights, start.target, batch, jax.random.fold_in(start.key, 0))
    strategy = Strategy(slice_rows=SLICE_ROWS, threads=threads)
    learn = make_learn(strategy, gradient, lambda state, vector, _rate: state._replace(weights=vector), 1.0)
    state, sliced = learn(start, stacked(batch))
    np.testing.assert_allclose(state.weights, want, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(sliced.loss, [whole.loss], rtol=1e-4)
    np.testing.assert_allclose(sliced.value, [whole.value], rtol=1e-4)
    np.testing.assert_array_equal(sliced.priority, [whole.priority])


# Noise.


@pytest.mark.parametrize("in_slices", [False, True])
@pytest.mark.parametrize("size", [4, SLICE_ROWS + 1])
def test_every_update_has_noise_of_its_own(in_slices: bool, size: int) -> None:
    """Of several in one call, and of calls one after the other."""

    def gradient(weights: jax.Array, _: jax.Array, batch: Transitions, key: jax.Array) -> tuple[jax.Array, Learned]:
        noise = jax.random.normal(key, ())
        return weights * 0.0, Learned(noise, jnp.abs(batch.reward), jnp.zeros(()), jnp.zeros(()))

    def apply(state: LearnerState, _vector: jax.Array, _rate: float) -> LearnerState:
        return state._replace(updates=state.updates + 1)

    learn = make_learn(Strategy(slice_rows=SLICE_ROWS if in_slices else 0), gradient, apply, 1.0)
    state, found = begin(agent_of(PLAIN)), []
    for count in (3, 1, 2):
        state, learned = learn(state, stacked(*[make_batch(size=size)] * count))
        found += np.asarray(learned.loss).tolist()
    want = [float(jax.random.normal(jax.random.fold_in(KEY, update), ())) for update in range(6)]
    np.testing.assert_allclose(found, want, rtol=1e-5)
    assert len({round(noise, 5) for noise in want}) == 6


@pytest.mark.usefixtures("uncompiled")
def test_noise_is_fresh_for_each_key_and_none_without() -> None:
    options = replace(PLAIN, noisy=True)
    agent, observation = agent_of(options), make_batch().observation
    θ = begin(agent).weights
    first, again, other = (
        np.asarray(agent.values(θ, observation, None, np.array(key, np.uint32))) for key in ([1, 1], [1, 1], [1, 2])
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3
    tree = {name.replace("Noisy", ""): layer for name, layer in agent.layout.unravel(θ).items()}
    silent = twin_rows(options, tree, observation)[..., 0]
    np.testing.assert_allclose(agent.values(θ, observation, None, None), silent, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("uncompiled")
def test_online_and_target_network_sample_their_own_noise() -> None:
    agent = agent_of(replace(PLAIN, noisy=True, loss="squared"))
    batch = make_batch(masked=False)
    # The same state before and after: with the same noise in both, Q(s, a) would cancel but for its factor.
    batch = batch._replace(next_observation=batch.observation, reward=np.zeros(BATCH, np.float32))
    batch = batch._replace(discount=np.ones(BATCH, np.float32))
    θ = begin(agent).weights
    key = jax.random.key_data(jax.random.key(5))
    best = np.asarray(agent.act(θ, batch.observation, None, None)).astype(np.int32)
    _, learned = agent.gradient(θ, θ, batch._replace(action=best), key)
    assert (np.asarray(learned.priority) > 1e-6).all()


@pytest.mark.usefixtures("uncompiled")
def test_gradients_reach_every_sigma() -> None:
    agent, batch = agent_of(replace(PLAIN, noisy=True)), make_batch()
    state = begin(agent)
    gradient, _ = agent.gradient(state.weights, state.target, batch, state.key)
    sigmas = [name for name in agent.layout.names if name.endswith("sigma")]
    assert len(sigmas) == 4
    for name, layer in zip(agent.layout.names, jax.tree_util.tree_leaves(agent.layout.unravel(gradient)), strict=True):
        assert np.abs(layer).max() > 0, name


def test_every_linear_layer_of_a_noisy_network_is_noisy() -> None:
    """Hessel et al. 2018 replace all of them."""
    layers = NetworkOptions(kind="mlp", hidden=(6, 5))
    names = make_q_learning(replace(PLAIN, noisy=True, dueling=True), layers, SPEC).layout.names
    assert {name.rpartition("/")[0] for name in names} == {f"NoisyDense_{index}" for index in range(5)}


# Every option alone, in pairs, and all together.

PARTS: dict[str, Any] = {
    "double": True,
    "dueling": True,
    "prioritized": True,
    "distributional": True,
    "noisy": True,
    "sarsa": True,
    "replay": False,
    "target": False,
}
RAINBOW = ("double", "dueling", "prioritized", "distributional", "noisy")
COMBINATIONS = [
    *[(part,) for part in PARTS],
    *[pair for pair in itertools.combinations(PARTS, 2) if pair != ("prioritized", "replay")],
    RAINBOW,
    (*RAINBOW, "sarsa", "target"),
]


@cache
def played(count: int) -> LaneStorage:
    """Lanes after some episodes with masks."""
    play = Play(LaneStorage(make_spec(), count, 40), np.random.default_rng(0), Habits(waits=0.0))
    for _ in range(100):
        play.tick()
    return play.lanes


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("parts", COMBINATIONS, ids="+".join)
def test_each_combination_of_parts_learns(parts: tuple[str, ...]) -> None:
    options = replace(PLAIN, n_step=3, **{part: PARTS[part] for part in parts})
    lanes = played(BATCH)
    agent = agent_of(replace(options, prioritized=False, replay=True), lanes.spec)
    replay = Replay(
        lanes,
        n_step=3,
        next_actions=options.sarsa,
        prioritization=Prioritization() if options.prioritized else None,
    )
    sample = replay.sample(BATCH, np.random.default_rng(0), 0.4) if options.replay else replay.next(BATCH)
    assert sample is not None
    before = np.asarray(begin(agent).weights).copy()
    state, learned = agent.learn(begin(agent), Transitions(*sample.split(1)[:8]))
    replay.update_priorities(sample.lane, sample.slot, np.asarray(learned.priority))
    assert np.isfinite(learned.loss).all()
    assert np.isfinite(state.weights).all()
    assert not np.array_equal(state.weights, before)
    assert int(state.skipped) == 0


def test_rainbow_compiles_and_learns_several_updates_in_a_call() -> None:
    agent = agent_of(replace(PLAIN, **dict.fromkeys(RAINBOW, True)))
    before = np.asarray(begin(agent).weights)
    state, learned = agent.learn(begin(agent), stacked(make_batch(0), make_batch(1)))
    assert np.isfinite(learned.loss).all()
    assert np.isfinite(state.weights).all()
    assert not np.array_equal(state.weights, before)


def test_learning_fits_the_rewards_of_terminal_steps() -> None:
    agent = agent_of(replace(PLAIN, learning_rate=0.01))
    batch = make_batch(size=8)._replace(discount=np.zeros(8, np.float32), weight=np.ones(8, np.float32))
    _, learned = agent.learn(begin(agent), stacked(*[batch] * 1500))
    assert float(learned.loss[-1]) < 0.05 * float(learned.loss[0])


class Outputs(nn.Module):
    """A user's network."""

    outputs: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(self.outputs)(x.reshape(x.shape[0], -1))


def build(outputs: int) -> nn.Module:
    return Outputs(outputs)


@pytest.mark.usefixtures("uncompiled")
def test_a_users_network_learns() -> None:
    agent = make_q_learning(replace(PLAIN, dueling=True), NetworkOptions(module=f"{__name__}:build"), SPEC)
    before = np.asarray(begin(agent).weights)
    state, learned = agent.learn(begin(agent), stacked(make_batch(), make_batch(1)))
    assert learned.loss.shape == (2,)
    assert not np.array_equal(state.weights, before)
