"""How a network is computed, decided for made-up networks, observations and devices."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from repertory.agents import strategy
from repertory.agents.actor_critic import ActorCriticOptions, make_actor_critic
from repertory.agents.networks import NetworkOptions
from repertory.agents.q_learning import QLearningOptions, make_q_learning
from repertory.agents.strategy import CACHED_ROWS, NUMPY_ROWS, SLICE_ROWS, Strategy, choose_strategy, device
from repertory.specs import EnvironmentSpec, ObservationSpec, Part

VECTOR = ObservationSpec((4,), "float32", (Part("number", 4),))
CATEGORIES = ObservationSpec((2,), "uint8", (Part("category", 2, 5),))
PARTS = ObservationSpec((5,), "float32", (Part("number", 4), Part("number", 1)))
SCREEN = ObservationSpec((84, 84), "uint8", (Part("pixel", 84 * 84),), stack=4)
PLANES = ObservationSpec((10, 10, 4), "uint8", (Part("pixel", 400),))

BY_NUMPY = Strategy(numpy_rows=NUMPY_ROWS, prefetch_target=True)
CASES = {
    "perceptron": (NetworkOptions(), VECTOR, BY_NUMPY),
    "perceptron that reads pixels": (NetworkOptions("mlp"), SCREEN, BY_NUMPY),
    "categories": (NetworkOptions(), CATEGORIES, Strategy()),
    "several parts": (NetworkOptions(), PARTS, Strategy()),
    "recurrent": (NetworkOptions(lstm_size=8), VECTOR, Strategy()),
    "separate": (NetworkOptions(separate=True), VECTOR, Strategy()),
    "own module": (NetworkOptions(module="a:b"), VECTOR, Strategy(slice_rows=SLICE_ROWS, threads=3)),
    "convolutions": (
        NetworkOptions(),
        SCREEN,
        Strategy(slice_rows=SLICE_ROWS, threads=3, cached_rows=CACHED_ROWS),
    ),
    "recurrent convolutions": (
        NetworkOptions("first", lstm_size=8),
        SCREEN,
        Strategy(slice_rows=SLICE_ROWS, threads=3),
    ),
    "small planes": (NetworkOptions(), PLANES, Strategy()),
}


@pytest.mark.parametrize(("network", "observation", "want"), CASES.values(), ids=CASES)
def test_on_the_cpu_it_depends_on_network_and_observation(
    network: NetworkOptions, observation: ObservationSpec, want: Strategy
) -> None:
    assert choose_strategy(network, observation, "cpu", 3) == want


@pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
@pytest.mark.parametrize(("network", "observation", "_"), CASES.values(), ids=CASES)
def test_an_accelerator_scans_everything_and_leaves_nothing_to_numpy(
    network: NetworkOptions, observation: ObservationSpec, _: Strategy, platform: str
) -> None:
    chosen = choose_strategy(network, observation, platform, 3)
    assert chosen == Strategy(slice_rows=0, threads=1, numpy_rows=0, cached_rows=0, prefetch_target=False)


@pytest.mark.parametrize(
    ("chosen", "installed", "want"),
    [(None, False, "cpu"), (None, True, "gpu"), ("cpu", True, "cpu"), ("cuda,cpu", True, "cuda")],
)
def test_a_gpu_that_jax_finds_by_itself_counts_and_without_plug_in_jax_does_not_start(
    chosen: str | None, installed: bool, want: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    jax = SimpleNamespace(
        config=SimpleNamespace(jax_platforms=chosen), default_backend=lambda: asked.append(1) or "gpu"
    )
    monkeypatch.setattr(strategy, "jax", jax)
    monkeypatch.setattr(strategy, "find_spec", lambda name: installed and name == "jax_plugins")
    assert device() == want
    assert bool(asked) == (want == "gpu")


def test_agents_have_what_was_chosen_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device() == "cpu"
    small, large = EnvironmentSpec(VECTOR, 3), EnvironmentSpec(SCREEN, 3)
    q, critic = make_q_learning(QLearningOptions(), NetworkOptions(), small), ActorCriticOptions()
    assert q.strategy == BY_NUMPY
    assert (q.numpy_rows, q.prefetch_target) == (NUMPY_ROWS, True)
    noisy = make_q_learning(QLearningOptions(noisy=True), NetworkOptions(), small)
    assert (noisy.numpy_forward, noisy.numpy_rows, noisy.prefetch_target) == (None, 0, False)
    assert make_actor_critic(critic, NetworkOptions(), large).cached_forward is not None
    for module in ("q_learning", "actor_critic"):
        monkeypatch.setattr(f"repertory.agents.{module}.device", lambda: "cuda")
    for agent in (
        make_q_learning(QLearningOptions(), NetworkOptions(), small),
        make_q_learning(QLearningOptions(), NetworkOptions(), large),
        make_actor_critic(critic, NetworkOptions(), large),
    ):
        assert agent.strategy == Strategy()
        assert (agent.numpy_forward, agent.cached_forward, agent.numpy_rows) == (None, None, 0)
        assert not agent.prefetch_target
