"""The actor-critic family against its twins: returns, losses and gradients, whatever ends where in an unroll."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

import critic_twins
import twins
from repertory.agents.actor_critic import (
    ActorCriticOptions,
    Model,
    gradient_in_slices,
    learn_from_rollout,
    make_actor_critic,
    rollout_loss,
    targets_and_advantages,
)
from repertory.agents.agent import Agent, Learned, LearnerState, Rollout
from repertory.agents.learning import legal as only_legal
from repertory.agents.networks import NetworkOptions, build_policy_network
from repertory.agents.strategy import SLICE_ROWS, Strategy
from repertory.specs import EnvironmentSpec, ObservationSpec, Part

ROWS, ACTIONS, GAMMA = 5, 4, 0.9
KINDS = ("terminated", "truncated")
COLUMNS: list[dict[int, str] | None] = [
    {},
    *[{row: kind} for row in range(-1, ROWS) for kind in KINDS],
    {0: "truncated", 2: "terminated", 4: "truncated"},
    {1: "terminated", 3: "truncated"},
    {0: "terminated", 2: "terminated"},
    None,  # padding: no step at all
]
"""How the steps of each unroll end, by row; -1 is the row before its first."""
WHOLE: list[dict[int, str] | None] = [{}] * len(COLUMNS)
"""As many unrolls in which nothing ends: operations are compiled for each shape."""
SPEC = EnvironmentSpec(ObservationSpec((3,), "float32", (Part("number", 3),)), ACTIONS, masked=True)
IMAGE = EnvironmentSpec(ObservationSpec((36, 36), "uint8", (Part("pixel", 36 * 36),), stack=4), 3)
TINY = NetworkOptions(kind="mlp", hidden=(5,))

PLAIN = ActorCriticOptions(unroll=ROWS, discount=GAMMA, max_gradient_norm=0.0, reduction="sum")
IMPALA = replace(PLAIN, correction="vtrace")
A3C = replace(PLAIN, correction="none")
APPO = replace(PLAIN, correction="vtrace", ratio_clip=0.2)
CLIPPED = replace(PLAIN, rho_clip=1.4, c_clip=0.7, trace=0.8, probability_floor=0.1, value_weight=0.3)
PPO = replace(PLAIN, correction="gae", trace=0.8, ratio_clip=0.2, normalize_advantage=True, reduction="mean")
FAMILY = {"impala": IMPALA, "a3c": A3C, "appo": APPO, "impala, clipped": CLIPPED, "ppo": PPO}
each_member = pytest.mark.parametrize("options", FAMILY.values(), ids=FAMILY.keys())


@cache
def agent_of(options: ActorCriticOptions, network: NetworkOptions = TINY, spec: EnvironmentSpec = SPEC) -> Agent:
    """Programs are compiled once for all tests."""
    return make_actor_critic(options, network, spec)


def weights_of(agent: Agent, scale: float = 1.0) -> jax.Array:
    """Large enough for every term to count."""
    return jnp.asarray(np.random.default_rng(3).normal(scale=scale, size=agent.layout.size), jnp.float32)


def begin(agent: Agent, scale: float = 1.0) -> LearnerState:
    """A state to learn from; nothing is initialised, which would have to be compiled."""
    blank = jax.tree_util.tree_map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(agent.init, 0))
    return blank._replace(weights=weights_of(agent, scale))


def make_batch(columns: list[dict[int, str] | None] | None = None, seed: int = 0, state_size: int = 0) -> Rollout:
    """Unrolls that end so; rows without a step hold values that must not be read."""
    columns = COLUMNS if columns is None else columns
    rng, shape = np.random.default_rng(seed), (ROWS + 1, len(columns))
    weight, discount = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    first = np.zeros(shape, bool)
    for n, ends in enumerate(columns):
        for steps, terminated in [] if ends is None else critic_twins.stretches(ROWS, ends):
            weight[steps, n] = 1.0
            discount[steps, n] = GAMMA
            discount[steps[-1], n] *= not terminated
            first[steps[0], n] = steps[0] > 0
    action = rng.integers(0, ACTIONS, shape).astype(np.int32)
    mask = rng.random((*shape, ACTIONS)) < 0.7
    np.put_along_axis(mask, action[..., None], True, axis=-1)
    return Rollout(
        observation=rng.normal(size=(*shape, 3)).astype(np.float32),
        action=action,
        reward=rng.normal(scale=2.0, size=shape).astype(np.float32),
        discount=discount,
        log_prob=rng.uniform(-2.5, -0.1, shape).astype(np.float32),
        weight=weight,
        first=first,
        mask=mask,
        recurrent_state=rng.normal(size=(len(columns), state_size)).astype(np.float32),
        entropy=np.float32(0.3),  # type: ignore[arg-type]
    )


class Told(NamedTuple):
    """What the network says, by the twins: log π(a) and entropies of all rows but the last, values of all."""

    log_prob: NDArray[Any]
    entropy: NDArray[Any]
    V: NDArray[Any]


def told(options: ActorCriticOptions, tree: Any, batch: Rollout) -> Told:
    """In float64."""
    outputs = twins.network(tree, batch.observation.reshape(-1, 3).astype(float), 1)
    outputs = outputs.reshape(*batch.action.shape, ACTIONS + 1)
    log_prob, entropy = np.zeros((2, ROWS, batch.action.shape[1]))
    for t, n in np.ndindex(*log_prob.shape):
        π = critic_twins.policy(outputs[t, n, :-1], None if batch.mask is None else batch.mask[t, n])
        log_prob[t, n] = math.log(π[batch.action[t, n]] + options.probability_floor)
        entropy[t, n] = critic_twins.entropy(π)
    return Told(log_prob, entropy, outputs[..., -1])


Targets = dict[tuple[int, int], tuple[float, float]]


def twin_targets(
    options: ActorCriticOptions,
    batch: Rollout,
    V: NDArray[Any],
    ratio: NDArray[Any],
    columns: list[dict[int, str] | None] | None = None,
) -> Targets:
    """For each (row, unroll) with a step: what its value should have been, and its advantage."""
    found: Targets = {}
    numbers = (GAMMA, options.trace, options.rho_clip, options.c_clip, options.ratio_clip > 0)
    for n, ends in enumerate(COLUMNS if columns is None else columns):
        for steps, terminated in [] if ends is None else critic_twins.stretches(ROWS, ends):
            values = [*V[steps, n].tolist(), 0.0 if terminated else float(V[steps.stop, n])]
            e = critic_twins.Stretch(batch.reward[steps, n].tolist(), values, ratio[steps, n].tolist())
            for s, t in enumerate(steps):
                found[t, n] = critic_twins.targets(options.correction, e, s, *numbers)
    if options.normalize_advantage:
        A = np.array([advantage for _, advantage in found.values()])
        found = {at: (v, (a - A.mean()) / A.std()) for at, (v, a) in found.items()}
    return found


def twin_loss(options: ActorCriticOptions, batch: Rollout, now: Told, targets: Targets) -> float:
    """One step after another."""
    total = 0.0
    for (t, n), (v, A) in targets.items():
        log_prob = now.log_prob[t, n]
        if options.ratio_clip:
            gain = critic_twins.clipped(math.exp(log_prob - batch.log_prob[t, n]), A, options.ratio_clip)
        else:
            gain = log_prob * A
        total += -gain + options.value_weight * 0.5 * (now.V[t, n] - v) ** 2 - float(batch.entropy) * now.entropy[t, n]
    return total / len(targets) if options.reduction == "mean" else total


def log_probs(agent: Agent, weights: jax.Array, batch: Rollout) -> NDArray[np.float32]:
    """Logarithms of the probabilities with which these weights take the actions, by the agent itself."""
    assert agent.respond is not None
    rows, count = batch.action.shape
    found = np.zeros((rows, count), np.float32)
    for t in range(rows):
        mask = None if batch.mask is None else batch.mask[t]
        outputs, _ = agent.respond(weights, batch.observation[t], mask, batch.recurrent_state, batch.first[t])
        for n, row in enumerate(np.asarray(outputs)):
            found[t, n] = math.log(max(twins.softmax(row[:-1])[batch.action[t, n]], 1e-300))
    return found


# Returns and advantages.


CORRECTIONS: dict[str, dict[str, Any]] = {
    "vtrace": {},
    "vtrace, rho 2, c 0.5": {"rho_clip": 2.0, "c_clip": 0.5},
    "vtrace, rho 0.6, c 3": {"rho_clip": 0.6, "c_clip": 3.0},
    "vtrace, rho 1, c 1.5, trace 0.7": {"c_clip": 1.5, "trace": 0.7},
    "vtrace, trace 0": {"trace": 0.0},
    "vtrace, clip": {"rho_clip": 0.6, "trace": 0.9, "ratio_clip": 0.2},
    "none": {"correction": "none"},
    "none, trace 0.7": {"correction": "none", "trace": 0.7},
    "gae, trace 1": {"correction": "gae"},
    "gae, trace 0.7": {"correction": "gae", "trace": 0.7},
    "gae, trace 0": {"correction": "gae", "trace": 0.0},
}


@pytest.mark.parametrize("parts", CORRECTIONS.values(), ids=CORRECTIONS.keys())
def test_returns_and_advantages_are_the_papers_whatever_ends_where(parts: dict[str, Any]) -> None:
    options, batch, rng = replace(PLAIN, **parts), make_batch(), np.random.default_rng(1)
    V = rng.normal(size=batch.action.shape).astype(np.float32)
    ratio = np.exp(rng.normal(scale=0.8, size=(ROWS, len(COLUMNS)))).astype(np.float32)
    with jax.disable_jit():
        returns, advantage = targets_and_advantages(options, jnp.array(V), jnp.array(ratio), batch)
    want = twin_targets(options, batch, V, ratio)
    assert len(want) == batch.weight.sum()
    for at, (v, A) in want.items():
        np.testing.assert_allclose(returns[at], v, rtol=1e-5, atol=1e-5, err_msg=str(at))
        np.testing.assert_allclose(advantage[at], A, rtol=1e-5, atol=1e-5, err_msg=str(at))


def test_where_the_policy_has_not_changed_vtrace_is_the_n_step_return_exactly() -> None:
    batch, V = make_batch(), np.random.default_rng(1).normal(size=(ROWS + 1, len(COLUMNS))).astype(np.float32)
    ones = np.ones((ROWS, len(COLUMNS)), np.float32)
    with jax.disable_jit():
        corrected = targets_and_advantages(
            replace(IMPALA, rho_clip=2.0, c_clip=3.0), jnp.array(V), jnp.array(ones), batch
        )
        played = targets_and_advantages(A3C, jnp.array(V), jnp.array(ones), batch)
    step = batch.weight[:-1] > 0
    for one, other in zip(corrected, played, strict=True):
        np.testing.assert_array_equal(np.asarray(one)[step], np.asarray(other)[step])
    for n, ends in enumerate(COLUMNS):
        for steps, terminated in [] if ends is None else critic_twins.stretches(ROWS, ends):
            values = [*V[steps, n].tolist(), 0.0 if terminated else float(V[steps.stop, n])]
            e = critic_twins.Stretch(batch.reward[steps, n].tolist(), values, ones[steps, n].tolist())
            for s, t in enumerate(steps):
                G = critic_twins.n_step_return(e, s, len(steps) - s, GAMMA)
                np.testing.assert_allclose(corrected[0][t, n], G, rtol=1e-5, atol=1e-5)
                np.testing.assert_allclose(corrected[1][t, n], G - V[t, n], rtol=1e-5, atol=1e-5)


def test_a_ratio_of_nothing_cuts_the_trace_and_divides_nothing_by_zero() -> None:
    batch, V = make_batch(WHOLE), np.ones((ROWS + 1, len(WHOLE)), np.float32)
    ratio = np.random.default_rng(1).choice([0.0, 1e-30, 1.0, 1e30], (ROWS, len(WHOLE))).astype(np.float32)
    with jax.disable_jit():
        found = targets_and_advantages(IMPALA, jnp.array(V), jnp.array(ratio), batch)
    for at, want in twin_targets(IMPALA, batch, V, ratio, WHOLE).items():
        np.testing.assert_allclose([found[0][at], found[1][at]], want, rtol=1e-5, atol=1e-5)


# Losses and gradients.


@each_member
def test_loss_and_entropy_are_the_papers(options: ActorCriticOptions) -> None:
    agent, batch = agent_of(options), make_batch()
    θ = weights_of(agent)
    _, learned = agent.gradient(θ, None, batch, None)
    now = told(options, agent.layout.unravel(θ), batch)
    ratio = np.exp(now.log_prob - batch.log_prob[:-1])
    if options.ratio_clip:
        assert (ratio > 1 + options.ratio_clip).any()
        assert (ratio < 1 / (1 + options.ratio_clip)).any()
    targets = twin_targets(options, batch, now.V, ratio)
    np.testing.assert_allclose(learned.loss, twin_loss(options, batch, now, targets), rtol=1e-4)
    np.testing.assert_allclose(learned.entropy, np.mean([now.entropy[at] for at in targets]), rtol=1e-5)
    np.testing.assert_allclose(learned.value, np.mean([abs(now.V[at]) for at in targets]), rtol=1e-4)


@each_member
def test_gradient_is_the_slope_of_the_loss_with_returns_and_advantages_held(options: ActorCriticOptions) -> None:
    """To 1e-4 of the longest component: the slope is that of the twins, in float64."""
    agent, batch = agent_of(options), make_batch()
    θ = np.asarray(weights_of(agent), float)
    gradient, learned = agent.gradient(weights_of(agent), None, batch, None)
    assert learned.gradient_norm is None
    _, first = agent.learn(begin(agent), batch)
    np.testing.assert_allclose(first.gradient_norm, np.linalg.norm(gradient), rtol=1e-5)

    def at(vector: NDArray[Any]) -> Told:
        return told(options, agent.layout.unravel(vector), batch)  # type: ignore[arg-type]

    now = at(θ)
    held = twin_targets(options, batch, now.V, np.exp(now.log_prob - batch.log_prob[:-1]))
    step, slope = 1e-6, np.zeros(len(θ))
    for i, move in enumerate(np.eye(len(θ)) * step):
        above, below = (twin_loss(options, batch, at(θ + sign * move), held) for sign in (1, -1))
        slope[i] = (above - below) / (2 * step)
    assert np.count_nonzero(np.abs(slope) > 1e-3) > 30
    np.testing.assert_allclose(gradient, slope, rtol=1e-3, atol=1e-4 * np.abs(slope).max())


OWN = "pictures:build"
OTHER_NETWORKS = {
    "separate": NetworkOptions("mlp", (4,), separate=True),
    "own": NetworkOptions(module=OWN),
    "own, separate": NetworkOptions(module=OWN, separate=True),
}


@pytest.mark.parametrize("network", OTHER_NETWORKS.values(), ids=OTHER_NETWORKS.keys())
def test_other_networks_have_the_gradient_of_the_same_loss(network: NetworkOptions) -> None:
    agent, batch = agent_of(IMPALA, network), make_batch()
    θ, module = weights_of(agent), build_policy_network(network, SPEC.observation, ACTIONS)

    def said(θ: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        outputs = module.apply({"params": agent.layout.unravel(θ)}, batch.observation.reshape(-1, 3))
        outputs = jnp.asarray(outputs).reshape(ROWS + 1, -1, ACTIONS + 1)
        log_π = jax.nn.log_softmax(jnp.where(batch.mask, outputs[..., :-1], -1e9))[:-1]  # type: ignore[arg-type]
        entropy = -jnp.sum(jnp.where(batch.mask[:-1], jnp.exp(log_π) * log_π, 0.0), axis=-1)  # type: ignore[index]
        return jnp.take_along_axis(log_π, batch.action[:-1, :, None], axis=-1)[..., 0], entropy, outputs[..., -1]

    log_prob, _, V = map(np.asarray, said(θ))
    held = twin_targets(IMPALA, batch, V, np.exp(log_prob - batch.log_prob[:-1]))
    rows, columns = (jnp.array(axis) for axis in zip(*held, strict=True))
    v, A = (jnp.array(found, jnp.float32) for found in zip(*held.values(), strict=True))

    def loss(θ: jax.Array) -> jax.Array:
        log_prob, entropy, V = (found[rows, columns] for found in said(θ))
        return jnp.sum(-log_prob * A + IMPALA.value_weight * 0.5 * (V - v) ** 2 - batch.entropy * entropy)

    gradient, learned = agent.gradient(θ, None, batch, None)
    np.testing.assert_allclose(learned.loss, loss(θ), rtol=1e-4)
    want = np.asarray(jax.grad(loss)(θ))
    np.testing.assert_allclose(gradient, want, rtol=1e-3, atol=1e-4 * np.abs(want).max())


def test_separate_networks_share_no_layer() -> None:
    """What the value's loss weighs changes nothing for the policy, and nothing but the policy's loss moves it."""
    network, batch = OTHER_NETWORKS["separate"], make_batch()
    agents = [agent_of(replace(IMPALA, value_weight=weight), network) for weight in (0.0, 1.0)]
    without, beside = (
        agent.layout.unravel(agent.gradient(weights_of(agent), None, batch, None)[0]) for agent in agents
    )
    assert set(without) == {"policy", "value"}
    assert not any(np.any(leaf) for leaf in jax.tree_util.tree_leaves(without["value"]))
    assert all(np.any(leaf) for leaf in jax.tree_util.tree_leaves(beside["value"]))
    for one, other in zip(*(jax.tree_util.tree_leaves(tree["policy"]) for tree in (without, beside)), strict=True):
        assert np.any(one)
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("options", [IMPALA, APPO], ids=["impala", "appo"])
def test_without_lag_the_gradient_is_the_on_policy_one(options: ActorCriticOptions) -> None:
    """To 1e-5 of the longest component: ratios are 1 up to the rounding of a logarithm and its exponential."""
    on_policy, batch = agent_of(A3C), make_batch()
    θ = weights_of(on_policy)
    want, old = on_policy.gradient(θ, None, batch, None)
    lagging, _ = agent_of(options).gradient(θ, None, batch, None)
    assert np.abs(lagging - want).max() > 0.01 * np.abs(want).max()
    batch = batch._replace(log_prob=log_probs(on_policy, θ, batch))
    again, same = on_policy.gradient(θ, None, batch, None)
    np.testing.assert_array_equal(again, want)  # nothing of μ is in it
    assert same.loss == old.loss
    found, _ = agent_of(options).gradient(θ, None, batch, None)
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("options", [IMPALA, APPO], ids=["impala", "appo"])
def test_where_ratios_are_exactly_one_so_is_the_gradient(options: ActorCriticOptions) -> None:
    """To the bit: operation by operation, both take the same logarithms of the same probabilities."""
    layout, batch = agent_of(A3C).layout, make_batch()
    model = Model(build_policy_network(TINY, SPEC.observation, ACTIONS), ACTIONS, 0)
    tree = layout.unravel(weights_of(agent_of(A3C)))
    with jax.disable_jit():
        _, outputs = model.through_time(
            tree, model.features(tree, batch.observation), batch.recurrent_state, batch.first
        )
        log_π = jax.nn.log_softmax(only_legal(outputs[..., :-1], batch.mask))
        log_prob = np.take_along_axis(np.asarray(log_π), batch.action[..., None], axis=-1)[..., 0]
        batch = batch._replace(log_prob=log_prob)
        want, found = (layout.ravel(jax.grad(partial(loss_at, which, model, batch))(tree)) for which in (A3C, options))
    assert np.any(want)
    np.testing.assert_array_equal(found, want)


def loss_at(options: ActorCriticOptions, model: Model, batch: Rollout, tree: Any) -> jax.Array:
    return rollout_loss(options, model, tree, model.features(tree, batch.observation), batch)[0]


# Rows without a step.


@each_member
def test_rows_without_a_step_change_nothing(options: ActorCriticOptions) -> None:
    agent, batch = agent_of(options), make_batch()
    θ, idle = weights_of(agent), batch.weight == 0
    want, learned = agent.gradient(θ, None, batch, None)
    other, rng = make_batch(seed=7), np.random.default_rng(8)
    assert batch.mask is not None
    assert other.mask is not None
    changed = batch._replace(
        action=np.where(idle, other.action, batch.action),
        reward=np.where(idle, other.reward, batch.reward),
        log_prob=np.where(idle, other.log_prob, batch.log_prob),
        discount=np.where(idle, rng.random(idle.shape).astype(np.float32), batch.discount),
        mask=np.where(idle[..., None], other.mask, batch.mask),
        first=np.where(idle, ~batch.first, batch.first),
    )
    found, same = agent.gradient(θ, None, changed, None)
    np.testing.assert_array_equal(found, want)
    assert (same.loss, same.entropy) == (learned.loss, learned.entropy)


@each_member
def test_a_truncated_step_bootstraps_from_the_row_behind_it_and_a_terminated_one_does_not(
    options: ActorCriticOptions,
) -> None:
    agent = agent_of(options)
    θ = weights_of(agent)
    want, _ = agent.gradient(θ, None, make_batch(), None)
    for n, ends in enumerate(COLUMNS):
        if not ends or len(ends) > 1 or -1 in ends:
            continue
        ((row, kind),) = ends.items()
        other = make_batch()  # not the same array changed: the first program may still be reading it
        other.observation[row + 1, n] = 5.0 - 3.0 * other.observation[row + 1, n]
        found, _ = agent.gradient(θ, None, other, None)
        assert np.array_equal(found, want) == (kind == "terminated"), ends


# Options of the loss.


def test_the_floor_bounds_what_a_vanished_probability_costs() -> None:
    agent, batch = agent_of(CLIPPED), make_batch()
    θ = weights_of(agent) * 30.0
    with_floor = told(CLIPPED, agent.layout.unravel(θ), batch)
    log_prob = log_probs(agent_of(A3C), θ, batch)[:-1]
    assert log_prob.min() < -100
    assert with_floor.log_prob.min() == pytest.approx(math.log(CLIPPED.probability_floor))
    targets = twin_targets(CLIPPED, batch, with_floor.V, np.exp(with_floor.log_prob - batch.log_prob[:-1]))
    gradient, learned = agent.gradient(θ, None, batch, None)
    np.testing.assert_allclose(learned.loss, twin_loss(CLIPPED, batch, with_floor, targets), rtol=1e-4)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("options", [IMPALA, PPO], ids=["sum", "mean"])
def test_entropy_is_worth_its_weight(options: ActorCriticOptions) -> None:
    agent, batch = agent_of(options), make_batch()
    θ = weights_of(agent)

    def of(weight: float) -> tuple[Any, Learned]:
        return agent.gradient(θ, None, batch._replace(entropy=np.float32(weight)), None)  # type: ignore[arg-type]

    (none, without), (some, with_it) = of(0.0), of(0.5)
    steps = batch.weight.sum() if options.reduction == "sum" else 1.0
    np.testing.assert_allclose(without.loss - with_it.loss, 0.5 * steps * without.entropy, rtol=1e-3)
    broader = θ - 0.01 * (some - none) / np.linalg.norm(some - none)
    assert agent.gradient(broader, None, batch, None)[1].entropy > without.entropy


def test_illegal_actions_never_get_probability() -> None:
    agent, batch = agent_of(A3C), make_batch()
    assert agent.respond is not None
    θ, every, state = weights_of(agent) * 30.0, np.arange(len(COLUMNS)), batch.recurrent_state
    for t, mask in enumerate(batch.mask):  # type: ignore[arg-type]
        rows, _ = agent.respond(θ, batch.observation[t], mask, state, batch.first[t])
        free, _ = agent.respond(θ, batch.observation[t], np.ones_like(mask), state, batch.first[t])
        rows, free = np.asarray(rows), np.asarray(free)
        for row, legal in zip(rows, mask, strict=True):
            np.testing.assert_array_equal(twins.softmax(row[:-1])[~legal], 0.0)
        np.testing.assert_array_equal(rows[:, :-1][mask], free[:, :-1][mask])
        np.testing.assert_array_equal(rows[:, -1], free[:, -1])
        best = np.asarray(agent.act(θ, batch.observation[t], mask, None))
        assert mask[every, best].all()
        np.testing.assert_array_equal(best, np.where(mask, free[:, :-1], -np.inf).argmax(axis=1))
        np.testing.assert_allclose(agent.values(θ, batch.observation[t], mask, None), rows[:, :-1], rtol=1e-6)


@each_member
def test_an_action_that_is_never_legal_is_not_learned_about(options: ActorCriticOptions) -> None:
    agent, batch = agent_of(options), make_batch()
    assert batch.mask is not None
    batch.action[batch.action == 2] = 1
    np.put_along_axis(batch.mask, batch.action[..., None], True, axis=-1)
    batch.mask[..., 2] = False
    gradient, learned = agent.gradient(weights_of(agent), None, batch, None)
    last = agent.layout.unravel(gradient)["Dense_1"]
    np.testing.assert_array_equal(last["kernel"][:, 2], 0.0)
    assert last["bias"][2] == 0.0
    assert np.abs(last["bias"][:2]).min() > 0
    assert np.isfinite(learned.loss)
    assert learned.entropy <= math.log(ACTIONS - 1)


# The recurrent state.


LSTM = replace(TINY, lstm_size=4)


@cache
def compiled_pass() -> Any:
    """From weights, observations, states and first rows to the last states and the outputs of an LSTM of 4."""
    model = Model(build_policy_network(LSTM, SPEC.observation, ACTIONS), ACTIONS, 8)
    layout = agent_of(IMPALA, LSTM).layout

    def run(weights: Any, observation: Any, state: Any, first: Any) -> tuple[Any, Any]:
        tree = layout.unravel(weights)
        return model.through_time(tree, model.features(tree, observation), state, first)

    return jax.jit(run)


def played_through(batch: Rollout, rows: slice = slice(None), state: Any = None) -> tuple[Any, Any]:
    """The last states and the outputs of some rows."""
    start = batch.recurrent_state if state is None else state
    θ = weights_of(agent_of(IMPALA, LSTM))
    state, outputs = compiled_pass()(θ, batch.observation[rows], start, batch.first[rows])
    return np.asarray(state), np.asarray(outputs)


def test_what_goes_through_time_is_an_lstm() -> None:
    batch, agent = make_batch(state_size=8), agent_of(IMPALA, LSTM)
    _, outputs = played_through(batch)
    tree = agent.layout.unravel(weights_of(agent))
    want = critic_twins.recurrent_network(tree, batch.observation, batch.first, batch.recurrent_state)
    np.testing.assert_allclose(outputs, want, rtol=1e-4, atol=1e-5)


def test_an_unroll_cut_in_two_is_the_same_with_the_state_carried_over() -> None:
    batch = make_batch(state_size=8)
    state, outputs = played_through(batch)
    carried, before = played_through(batch, slice(3))
    after_state, after = played_through(batch, slice(3, None), carried)
    np.testing.assert_allclose(np.concatenate([before, after]), outputs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after_state, state, rtol=1e-5, atol=1e-6)
    _, forgotten = played_through(batch, slice(3, None), np.zeros_like(batch.recurrent_state))
    assert np.abs(forgotten[0] - after[0]).max() > 1e-2


def test_playing_step_by_step_is_going_through_the_unroll() -> None:
    agent, batch = agent_of(IMPALA, LSTM), make_batch(state_size=8)
    assert agent.respond is not None
    assert (agent.state_size, agent.numpy_forward) == (8, None)
    state: Any = batch.recurrent_state
    _, outputs = played_through(batch)
    for t in range(ROWS + 1):
        rows, state = agent.respond(weights_of(agent), batch.observation[t], None, state, batch.first[t])
        np.testing.assert_allclose(rows, outputs[t], rtol=1e-5, atol=1e-6)


def test_the_state_is_empty_where_an_episode_begins() -> None:
    batch = make_batch(state_size=8)
    _, outputs = played_through(batch)
    _, other = played_through(batch._replace(recurrent_state=batch.recurrent_state + 3.0))
    assert batch.first.any()
    for n in range(len(COLUMNS)):
        began = np.flatnonzero(batch.first[:, n])
        start = int(began[0]) if len(began) else ROWS + 1
        np.testing.assert_array_equal(outputs[start:, n], other[start:, n])
        assert (np.abs(outputs[:start, n] - other[:start, n]).max(axis=-1) > 1e-6).all()
    column = COLUMNS.index({2: "terminated"})  # its second episode begins in row 4
    later = np.roll(batch.observation, -4, axis=0)
    fresh = batch._replace(
        observation=later, first=np.zeros_like(batch.first), recurrent_state=np.zeros_like(batch.recurrent_state)
    )
    _, anew = played_through(fresh)
    np.testing.assert_allclose(anew[:2, column], outputs[4:, column], rtol=1e-5, atol=1e-6)


# Slices, epochs and minibatches.


def test_slices_of_other_sizes_add_up_to_the_gradient_at_once() -> None:
    agent, batch = agent_of(IMPALA), make_batch()
    assert batch.action.size > 2 * SLICE_ROWS
    assert batch.action.size % SLICE_ROWS
    θ = weights_of(agent)
    want, learned = agent.gradient(θ, None, batch, None)
    model = Model(build_policy_network(TINY, SPEC.observation, ACTIONS), ACTIONS, 0)

    def loss(tree: Any, features: jax.Array, batch: Rollout) -> tuple[jax.Array, Any]:
        """With a part that depends on the weights alone, as what goes through time does."""
        value, learned = rollout_loss(IMPALA, model, tree, features, batch)
        value = value + 0.5 * jnp.sum(agent.layout.ravel(tree) ** 2)
        return value, learned._replace(loss=value)

    found, sliced = gradient_in_slices(model, agent.layout, loss, Strategy(slice_rows=SLICE_ROWS, threads=3))(
        θ, None, batch, None
    )
    np.testing.assert_allclose(found, want + θ, rtol=1e-4, atol=1e-5 * np.abs(want).max())
    np.testing.assert_allclose(sliced.loss, learned.loss + 0.5 * θ @ θ, rtol=1e-4)
    np.testing.assert_allclose(sliced.entropy, learned.entropy, rtol=1e-4)
    np.testing.assert_allclose(sliced.value, learned.value, rtol=1e-4)


def test_images_learned_from_in_slices_give_the_gradient_at_once() -> None:
    options, network = replace(PLAIN, reduction="mean"), NetworkOptions("nature")
    agent = make_actor_critic(options, network, IMAGE, threads=2)
    model = Model(build_policy_network(network, IMAGE.observation, IMAGE.actions), IMAGE.actions, 0)
    batch = make_batch([{}, {1: "truncated"}, {2: "terminated"}, {}, {}, {3: "truncated"}, {}, {0: "terminated"}])
    seen = np.random.default_rng(0).integers(0, 256, (*batch.action.shape, 4, 36, 36)).astype(np.uint8)
    batch = batch._replace(observation=seen, action=batch.action % 3, mask=None)
    assert batch.action.size > SLICE_ROWS

    def whole(tree: Any, batch: Rollout) -> tuple[jax.Array, Any]:
        return rollout_loss(options, model, tree, model.features(tree, batch.observation), batch)

    start = begin(agent, 0.05)
    tree = agent.layout.unravel(start.weights)
    (loss, expected), slopes = jax.jit(jax.value_and_grad(whole, has_aux=True))(tree, batch)
    want = np.asarray(agent.layout.ravel(slopes))
    close = {"rtol": 1e-3, "atol": 1e-5 * np.abs(want).max()}
    gradient, learned = agent.gradient(start.weights, start.target, batch, None)
    np.testing.assert_allclose(gradient, want, **close)
    state, sliced = agent.learn(start, batch)
    np.testing.assert_allclose(
        state.optimizer[0].mu / 0.1, want, **close
    )  # Adam's moment: a tenth of its first gradient
    for found in (learned, sliced):
        np.testing.assert_allclose(found[:-1], [loss, 0.0, expected.entropy, expected.value], rtol=1e-4)
    np.testing.assert_allclose(sliced.gradient_norm, np.linalg.norm(want), rtol=1e-4)
    for name, layer in agent.layout.views(want).items():
        assert np.abs(layer).max() > 0, name
    assert int(state.updates) == 1


class Recorder:
    """In place of an update: which unrolls it was given."""

    def __init__(self) -> None:
        self.given: list[list[int]] = []

    def __call__(self, state: LearnerState, batch: Rollout, _rate: Any) -> tuple[LearnerState, Learned]:
        which = batch.reward[0].astype(int).tolist()
        for name in ("observation", "action", "discount", "log_prob", "weight", "first", "mask"):
            assert getattr(batch, name).shape[:2] == (ROWS + 1, len(which)), name
        np.testing.assert_array_equal(batch.action[0], which)
        np.testing.assert_array_equal(batch.observation[1, :, 0], which)
        np.testing.assert_array_equal(batch.mask[0, :, 0], np.array(which) % 2 == 0)  # type: ignore[index]
        np.testing.assert_array_equal(batch.recurrent_state[:, 1], which)
        assert batch.entropy == np.float32(0.3)
        self.given.append(which)
        count = jnp.float32(len(self.given))
        told = Learned(count, 2 * count, 3 * count, 4 * count, 5 * count)
        return state._replace(updates=state.updates + 1), told


def numbered(unrolls: int) -> Rollout:
    """A batch in which every array says which unroll it belongs to."""
    batch, numbers = make_batch([{}] * unrolls, state_size=2), np.arange(unrolls)
    assert batch.mask is not None
    batch.reward[:], batch.action[:], batch.recurrent_state[:] = numbers, numbers, numbers[:, None]
    batch.observation[:], batch.mask[:] = numbers[:, None], numbers[:, None] % 2 == 0
    return batch


@pytest.mark.parametrize(("epochs", "minibatches", "unrolls"), [(1, 1, 5), (3, 1, 4), (1, 4, 8), (3, 4, 14), (2, 3, 3)])
def test_every_epoch_uses_each_unroll_once(epochs: int, minibatches: int, unrolls: int) -> None:
    options = replace(PPO, epochs=epochs, minibatches=minibatches)
    improve = Recorder()
    state, learned = learn_from_rollout(options, improve, begin(agent_of(PPO)), numbered(unrolls))
    updates = epochs * minibatches
    assert options.updates_per_batch == len(improve.given) == int(state.updates) == updates
    for epoch in range(epochs):
        parts = improve.given[epoch * minibatches : (epoch + 1) * minibatches]
        assert sorted(number for part in parts for number in part) == list(range(unrolls))
        assert {len(part) for part in parts} <= {unrolls // minibatches, -(-unrolls // minibatches)}
    want = np.outer([1, 2, 3, 4, 5], range(1, updates + 1))
    np.testing.assert_allclose(np.reshape(learned, (5, updates)), want)


def test_unrolls_come_in_another_order_in_every_epoch_and_batch_and_in_the_same_after_a_resume() -> None:
    options = replace(PPO, epochs=2, minibatches=7)

    def orders(updates: int) -> list[list[list[int]]]:
        improve = Recorder()
        start = begin(agent_of(PPO))._replace(updates=jnp.int32(updates))
        learn_from_rollout(options, improve, start, numbered(14))
        return [improve.given[:7], improve.given[7:]]

    seen = [*orders(0), *orders(14)]
    assert all(one != other for i, one in enumerate(seen) for other in seen[:i])
    assert orders(14) == seen[2:]


LESSONS = replace(PPO, epochs=2, minibatches=2, max_gradient_norm=1.0)


def test_a_batch_makes_its_updates_and_leaves_out_what_is_not_finite() -> None:
    agent, columns = agent_of(LESSONS), COLUMNS[:14]
    assert agent.updates_per_call == 4
    before = np.asarray(weights_of(agent))
    state, learned = agent.learn(begin(agent), make_batch(columns))
    assert (int(state.updates), int(state.skipped)) == (4, 0)
    assert np.isfinite(np.stack(learned)).all()
    assert not np.array_equal(state.weights, before)
    weights = np.array(state.weights)
    batch = make_batch(columns)
    batch.reward[0, 0] = np.nan  # in one of the two minibatches of each epoch
    state, _ = agent.learn(state, batch)
    assert (int(state.updates), int(state.skipped)) == (8, 2)
    assert np.isfinite(state.weights).all()
    assert not np.array_equal(state.weights, weights)
    weights, moment = np.array(state.weights), np.array(state.optimizer[0].mu)
    assert np.abs(moment).max() > 0
    batch = make_batch(columns)
    batch.reward[:] = np.nan
    state, _ = agent.learn(state, batch)
    assert (int(state.updates), int(state.skipped)) == (12, 6)
    np.testing.assert_array_equal(state.weights, weights)
    np.testing.assert_array_equal(state.optimizer[0].mu, moment)


def test_returns_as_played_know_nothing_of_the_clips_of_vtrace() -> None:
    batch, values = make_batch(), np.random.default_rng(5).normal(size=(ROWS + 1, len(COLUMNS))).astype(np.float32)
    ratio = jnp.ones((ROWS, len(COLUMNS)))
    plain = targets_and_advantages(A3C, jnp.asarray(values), ratio, batch)
    clipped = targets_and_advantages(replace(A3C, rho_clip=0.5, c_clip=0.5), jnp.asarray(values), ratio, batch)
    for one, other in zip(plain, clipped, strict=True):
        np.testing.assert_array_equal(one, other)
