"""Networks from outside the package: registered by a call or an entry point, chosen by `--network.kind`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np
import pytest

import repertory
from repertory import agents
from repertory.agents import networks
from repertory.agents.networks import NetworkKind, NetworkOptions, choose_kind, find, register
from repertory.agents.q_learning import QLearningOptions, make_q_learning
from repertory.agents.strategy import SLICE_ROWS
from repertory.errors import UserError
from repertory.specs import EnvironmentSpec, ObservationSpec, Part

VECTOR = EnvironmentSpec(ObservationSpec((4,), "float32", (Part("number", 4),)), 2)


def build(options: NetworkOptions, _spec: ObservationSpec, outputs: int) -> nn.Module:
    return nn.Sequential([nn.Dense(options.hidden[0]), nn.tanh, nn.Dense(outputs)])


TANH = NetworkKind("tanh", "one layer with tanh", build, convolves=False)


@pytest.fixture(autouse=True)
def own_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(networks._KINDS, "_kinds", dict(networks._KINDS._kinds))
    monkeypatch.setattr(networks._KINDS, "_loaded", False)
    return


def test_a_registered_network_is_chosen_by_name_and_trains(tmp_path: Path) -> None:
    register(TANH)
    options = NetworkOptions("tanh", (6,))
    agent = make_q_learning(QLearningOptions(), options, VECTOR)
    assert agent.layout.size == 4 * 6 + 6 + 6 * 2 + 2
    assert (agent.strategy.slice_rows, agent.numpy_forward) == (0, None)
    run = repertory.train(
        "CartPole-v1",
        env_steps=400,
        network_options={"kind": "tanh", "hidden": [6]},
        agent_options={"learning_starts": 100},
        runs_dir=tmp_path,
        quiet=True,
    )
    assert len(repertory.load(run.directory).weights) == agent.layout.size


def test_a_network_that_may_convolve_is_learned_from_in_slices() -> None:
    register(NetworkKind("perhaps", "may convolve", build))
    assert make_q_learning(QLearningOptions(), NetworkOptions("perhaps"), VECTOR).strategy.slice_rows == SLICE_ROWS


def test_an_entry_point_brings_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    here = EntryPoint("tanh", f"{__name__}:TANH", "repertory.networks")
    monkeypatch.setattr(agents, "entry_points", lambda group: [here] if group == here.group else [])
    assert find("tanh") is TANH


def test_an_entry_point_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    here = EntryPoint("lost", "no_such_module:KIND", "repertory.networks")
    monkeypatch.setattr(agents, "entry_points", lambda group: [here] if group == here.group else [])
    with pytest.raises(UserError, match=r"entry point 'lost' of repertory.networks can't be loaded"):
        find("tanh")


def test_an_unknown_network_is_refused_with_the_nearest_before_anything_begins(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown network.kind 'natur'; did you mean 'nature'"):
        repertory.train("CartPole-v1", network_options={"kind": "natur"}, runs_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("wish", "network"),
    [
        ({"noisy": True}, NetworkOptions("tanh")),
        ({}, NetworkOptions("tanh", start="he")),
    ],
)
def test_what_changes_built_in_layers_is_refused(wish: dict[str, Any], network: NetworkOptions) -> None:
    register(TANH)
    with pytest.raises(UserError, match="cannot reach into 'tanh'"):
        make_q_learning(QLearningOptions(**wish), network, VECTOR)


def test_a_network_for_images_refuses_vectors_and_one_that_builds_no_module_is_named() -> None:
    register(NetworkKind("eyes", "reads images", build, images=True))
    with pytest.raises(UserError, match="'eyes' reads images"):
        choose_kind(NetworkOptions("eyes"), VECTOR.observation)
    register(NetworkKind("number", "no network", lambda *_: 7))  # type: ignore[arg-type, return-value]
    with pytest.raises(UserError, match=r"network.kind 'number' returned int, not a flax"):
        make_q_learning(QLearningOptions(), NetworkOptions("number"), VECTOR)


def test_observations_are_encoded_before_a_network_from_outside_reads_them() -> None:
    register(TANH)
    spec = EnvironmentSpec(ObservationSpec((2,), "uint8", (Part("category", 2, 3),)), 2)
    agent = make_q_learning(QLearningOptions(), NetworkOptions("tanh", (5,)), spec)
    assert agent.layout.size == 6 * 5 + 5 + 5 * 2 + 2
    assert agent.values(agent.init(0).weights, np.zeros((3, 2), np.uint8), None, None).shape == (3, 2)
