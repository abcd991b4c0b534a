"""Every company in one process is the same run from the same seed, bit for bit, and another from another."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
from repertory.engines.stage import cores_of, crews_of, members_of, niceness_of, spare_cores

from commands import assert_same_state
from inline_runs import inline_run, plan_of, play
from repertory.agents.vector import Layout
from repertory.errors import UserError

SERVERS = [
    ("parameter_server", {"mode": mode, "shards": shards, "memory": memory})
    for mode, shards, memory in itertools.product(
        ("asynchronous", "synchronous", "bounded"), (1, 3), ("local", "shared")
    )
]
COMPANIES: list[tuple[str, dict[str, Any]]] = [
    ("collectors", {}),
    ("apex", {}),
    *SERVERS,
    ("parameter_server", {"fetch_period": 2, "push_period": 3}),
    ("gorila", {}),
    *(("hogwild", {"method": method}) for method in ("one_step_q", "n_step_q", "sarsa", "replay")),
    *(("all_reduce", {"compression": compression}) for compression in ("none", "float16", "int8", "topk")),
]


def perform(topology: str, options: dict[str, Any], seed: int, env_steps: int = 1_500) -> list[dict[str, Any]]:
    """Everything that a run holds at its checkpoint on the way, and at its end."""
    driver = inline_run(topology, options, seed=seed, envs_per_actor=2 if topology == "hogwild" else 4)
    states = []
    for goal in (750, env_steps):
        play(driver, goal)
        states.append(copy.deepcopy(driver.settle()))
        driver.start()
    driver.close()
    return states


@pytest.mark.parametrize(
    ("topology", "options"),
    COMPANIES,
    ids=["-".join([topology, *map(str, options.values())]) for topology, options in COMPANIES],
)
def test_same_seed_makes_the_same_run_to_the_bit_and_another_seed_another(
    topology: str, options: dict[str, Any]
) -> None:
    early, late = perform(topology, options, 4)
    assert late["updates"] > early["updates"] + 20
    again = perform(topology, options, 4)
    assert_same_state({"early": early, "late": late}, dict(zip(("early", "late"), again, strict=True)))
    other = perform(topology, options, 5, 0)[0]
    assert not np.array_equal(other["learner"]["learned"]["00"], early["learner"]["learned"]["00"])
    assert not np.array_equal(other["lanes"]["observation"], early["lanes"]["observation"])


@pytest.mark.parametrize(
    ("topology", "options"), [("collectors", {}), ("apex", {}), ("gorila", {}), ("hogwild", {}), ("all_reduce", {})]
)
def test_resumed_company_goes_on_with_what_the_checkpoint_holds(topology: str, options: dict[str, Any]) -> None:
    first = inline_run(topology, options)
    play(first, 800)
    saved = first.settle()
    second = inline_run(topology, options, begin=False)
    second.load_state(saved)
    second.start()
    here = second.settle()
    first.close()
    if "priorities" in saved:  # cutting an episode takes a slot more
        slots = saved["priorities"]["leaves"].shape[2]
        here["priorities"] = {"leaves": here["priorities"]["leaves"][:, :, :slots]}
    for part in ("learner", "env_steps", "updates", *(["priorities"] if "priorities" in saved else [])):
        assert_same_state(here[part], saved[part], part)
    play(second)
    ended = second.settle()
    second.close()
    due = (ended["env_steps"] - saved["env_steps"]) / (ended["updates"] - saved["updates"])
    before = (saved["env_steps"] - 200 * (topology != "hogwild")) / saved["updates"]
    assert ended["env_steps"] >= 1500
    assert due == pytest.approx(before, rel=0.15), "env steps for each update, before and after"


@pytest.mark.parametrize("topology", ["collectors", "apex"])
@pytest.mark.parametrize("n_step", [1, 2, 12, 40])
def test_smallest_memory_that_is_not_refused_always_has_a_step_to_draw(topology: str, n_step: int) -> None:
    agent = {"n_step": n_step, "learning_starts": 0, "replay_capacity": 6 * (n_step + 1), "batch_size": 4}
    driver = inline_run(topology, agent=agent)
    lanes, replay = driver.stage.lanes, driver.stage.replay()
    every, nobody, blank = np.arange(6), np.zeros(6, bool), np.zeros((6, 4), np.float32)
    for _ in range(3 * lanes.length):
        lanes.append(every, np.ones(6, np.int64), np.ones(6, np.float32), nobody, nobody, blank, None, 0)
        replay.refresh()
        assert (replay.ready > replay.low).all() or lanes.head[0] <= n_step
    driver.close()


@pytest.mark.parametrize(
    ("actors", "share", "cores", "sizes"),
    [
        (2, 0, 2, [1, 1]),
        (4, 0, 2, [2, 2]),
        (5, 0, 2, [2, 3]),
        (5, 0, 1, [2, 3]),
        (64, 0, 2, [32, 32]),
        (64, 0, 32, [2] * 32),
        (20, 0, 32, [1] * 20),
        (5, 2, 2, [1, 2, 2]),
        (3, 8, 2, [3]),
    ],
)
def test_collectors_share_processes_where_there_are_more_than_cores(
    actors: int, share: int, cores: int, sizes: list[int]
) -> None:
    plan = plan_of("collectors", {"actors_per_process": share}, actors=actors, envs_per_actor=1)
    crews = crews_of(plan, cores)
    assert [len(crew) for crew in crews if crew[0].role == "collector"] == sizes
    assert all(len(crew) == 1 for crew in crews if crew[0].role != "collector")
    assert sorted(member.index for crew in crews for member in crew) == list(range(len(members_of(plan))))


@pytest.mark.parametrize(
    ("topology", "actors", "order"),
    [
        ("collectors", 2, ["learner", "memory", "evaluator", "collector"]),
        ("collectors", 5, ["collector", "memory", "learner", "evaluator"]),
        ("hogwild", 5, ["thread", "evaluator"]),
    ],
)
def test_few_collectors_yield_to_the_learner_and_it_yields_to_many(
    topology: str, actors: int, order: list[str]
) -> None:
    plan = plan_of(topology, actors=actors, envs_per_actor=1)
    found = {crew[0].role: niceness_of(plan, crew, 2) for crew in crews_of(plan, 2)}
    assert sorted(found, key=lambda role: (found[role], role)) == order


@pytest.mark.parametrize(
    ("topology", "actors", "cores", "kept"),
    [
        ("hogwild", 4, (2, 5), [(2,), (5,), (2,), (5,)]),
        ("hogwild", 3, (2, 5), [(), (), ()]),
        ("hogwild", 3, (), [(), (), ()]),
        ("collectors", 2, (2, 5), [(), ()]),
        ("collectors", 64, (2, 5), [(2,), (5,)]),
        ("parameter_server", 2, (2, 5), []),
    ],
)
def test_processes_keep_to_cores_where_they_fill_them(
    topology: str, actors: int, cores: tuple[int, ...], kept: list[tuple[int, ...]]
) -> None:
    plan = plan_of(topology, actors=actors, envs_per_actor=1)
    crews = crews_of(plan, len(cores))
    found = [(crew[0].role, cores_of(plan, crew, cores)) for crew in crews]
    assert [kept for role, kept in found if role in ("thread", "collector")] == kept
    assert not any(kept for role, kept in found if role not in ("thread", "collector"))
    assert not spare_cores(plan, cores)


@pytest.mark.parametrize(("actors", "cores"), [(1, (2, 5)), (1, (2, 5, 6)), (2, (2, 5, 6))])
def test_learner_has_a_core_to_itself_where_fewer_play_than_there_are(actors: int, cores: tuple[int, ...]) -> None:
    plan = plan_of("apex", actors=actors, envs_per_actor=1)
    assert spare_cores(plan, cores) == cores[:-1]
    for crew in crews_of(plan, len(cores)):
        kept = {"learner": cores[-1:], "evaluator": ()}.get(crew[0].role, cores[:-1])
        assert cores_of(plan, crew, cores) == kept


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


def test_layouts_of_one_size_are_told_apart() -> None:
    def layout(**shapes: tuple[int, ...]) -> Layout:
        return Layout.of({name: np.zeros(shape) for name, shape in shapes.items()})

    one, other, third = layout(a=(2, 3), b=(4,)), layout(a=(3, 2), b=(4,)), layout(a=(2, 3), c=(4,))
    assert one.size == other.size == third.size
    assert len({one.fingerprint, other.fingerprint, third.fingerprint}) == 3
    one.check(layout(a=(2, 3), b=(4,)).fingerprint)
    for wrong in (other.fingerprint, third.fingerprint, None):
        with pytest.raises(UserError, match="network differs"):
            one.check(wrong)
