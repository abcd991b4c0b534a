"""In one thread the same seed makes the same run, bit for bit, and another seed another; a checkpoint goes on."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest

from commands import assert_same_state
from inline_runs import inline_run, play, small_plan
from repertory.channels.channel import allocate
from repertory.engines.wiring import Wiring, fields_of
from repertory.errors import UserError

SERVERS = [
    ("parameter_server", {"mode": mode, "shards": shards, "memory": memory})
    for mode, shards, memory in itertools.product(
        ("asynchronous", "synchronous", "bounded"), (1, 3), ("local", "shared")
    )
]
RUNS: list[tuple[str, dict[str, Any]]] = [
    ("collectors", {}),
    ("apex", {}),
    *SERVERS,
    ("parameter_server", {"fetch_period": 2, "push_period": 3}),
    ("gorila", {}),
    *(("hogwild", {"method": method}) for method in ("one_step_q", "n_step_q", "sarsa", "replay")),
    *(("all_reduce", {"compression": compression}) for compression in ("none", "float16", "int8", "topk")),
]


def states_of(topology: str, options: dict[str, Any], seed: int, env_steps: int = 1_500) -> list[dict[str, Any]]:
    """Everything that a run holds at its checkpoint on the way, and at its end."""
    driver = inline_run(topology, options, seed=seed, envs_per_actor=2 if topology == "hogwild" else 4)
    states = []
    for goal in (750, env_steps):
        play(driver, goal)
        states.append(copy.deepcopy(driver.settle()))
        driver.start()
    driver.close()
    return states


def observations(state: dict[str, Any]) -> Any:
    return state["channels"]["experience"]["steps"]["observation"]


@pytest.mark.parametrize(
    ("topology", "options"),
    RUNS,
    ids=["-".join([topology, *map(str, options.values())]) for topology, options in RUNS],
)
def test_same_seed_makes_the_same_run_to_the_bit_and_another_seed_another(
    topology: str, options: dict[str, Any]
) -> None:
    early, late = states_of(topology, options, 4)
    assert late["updates"] > early["updates"] + 20
    again = states_of(topology, options, 4)
    assert_same_state({"early": early, "late": late}, dict(zip(("early", "late"), again, strict=True)))
    other = states_of(topology, options, 5, 0)[0]
    assert not np.array_equal(other["learner"]["learned"]["00"], early["learner"]["learned"]["00"])
    assert not np.array_equal(observations(other), observations(early))


@pytest.mark.parametrize(
    ("topology", "options"), [("collectors", {}), ("apex", {}), ("gorila", {}), ("hogwild", {}), ("all_reduce", {})]
)
def test_resumed_run_goes_on_with_what_the_checkpoint_holds(topology: str, options: dict[str, Any]) -> None:
    first = inline_run(topology, options)
    play(first, 800)
    saved = first.settle()
    second = inline_run(topology, options, begin=False)
    second.load_state(saved)
    second.start()
    here = second.settle()
    first.close()
    for part in ("learner", "env_steps", "updates"):
        assert_same_state(here[part], saved[part], part)
    found, want = (state["channels"]["experience"].get("priorities", np.zeros((1, 1, 0))) for state in (here, saved))
    assert (want.size > 0) == (topology == "apex")
    assert_same_state(np.ascontiguousarray(found[:, :, : want.shape[2]]), want)  # cutting an episode takes a slot more
    second.start()
    play(second)
    ended = second.settle()
    second.close()
    due = (ended["env_steps"] - saved["env_steps"]) / (ended["updates"] - saved["updates"])
    before = (saved["env_steps"] - 200 * (topology != "hogwild")) / saved["updates"]
    assert ended["env_steps"] >= 1500
    assert due == pytest.approx(before, rel=0.15), "env steps for each update, before and after"


@pytest.mark.parametrize("topology", ["collectors", "gorila", "hogwild"])
def test_checkpoint_of_another_network_with_as_many_weights_is_refused(topology: str) -> None:
    driver = inline_run(topology, env_steps=600)
    play(driver)
    state = driver.settle()
    for layout in (state["learner"].pop("layout") + 1, None):
        other = {**state, "learner": {**state["learner"], "layout": layout}}
        with pytest.raises(UserError, match="network differs"):
            inline_run(topology, env_steps=600, begin=False).load_state(other)
    driver.close()


def test_learner_that_samples_for_itself_wakes_the_actors_that_wait_for_it() -> None:
    plan = small_plan("seed_rl", of="dqn")
    rung: list[int] = []
    wiring = Wiring(plan, allocate(fields_of(plan)), rung.extend)
    wiring.initialise()
    learner = next(worker for worker in wiring.workers if worker.name == "learner")
    (role,) = wiring.build(wiring.context(learner))
    rung.clear()
    batches: Any = role.batches  # type: ignore[attr-defined]
    batches.release(batches.example(), np.zeros(plan.q.batch_size, np.float32))
    actors = [worker.index for worker in wiring.workers if worker.name == "actor"]
    assert set(actors) <= set(rung)
