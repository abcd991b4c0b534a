"""Which workers share a process, which cores each process keeps to, and which yield to which."""

from __future__ import annotations

import pytest

from inline_runs import plan_of
from repertory.engines.placement import cores_of, niceness_of, processes_of, spare_cores


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
    topology = plan_of("collectors", {"actors_per_process": share}, actors=actors, envs_per_actor=1).compose()
    processes = processes_of(topology, cores)
    assert [len(process) for process in processes if process[0].name == "collector"] == sizes
    assert all(len(process) == 1 for process in processes if process[0].name != "collector")
    assert sorted(worker.index for process in processes for worker in process) == list(range(len(topology.roster())))


@pytest.mark.parametrize(
    ("topology", "actors", "order"),
    [
        ("collectors", 2, ["learner", "memory", "evaluator", "collector"]),
        ("collectors", 5, ["collector", "memory", "learner", "evaluator"]),
        ("hogwild", 5, ["worker", "evaluator"]),
    ],
)
def test_few_collectors_yield_to_the_learner_and_it_yields_to_many(
    topology: str, actors: int, order: list[str]
) -> None:
    composed = plan_of(topology, actors=actors, envs_per_actor=1).compose()
    found = {process[0].name: niceness_of(composed, process, 2) for process in processes_of(composed, 2)}
    assert sorted(found, key=lambda name: (found[name], name)) == order


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
    composed = plan.compose()
    pinned = [group.name for group in composed.workers if group.pinned or group.build_group is not None]
    processes = processes_of(composed, len(cores))
    found = [(process[0].name, cores_of(composed, process, cores, large=plan.large)) for process in processes]
    assert [kept for name, kept in found if name in pinned] == kept
    assert not any(kept for name, kept in found if name not in pinned)
    assert not spare_cores(composed, cores, large=plan.large)


@pytest.mark.parametrize(("actors", "cores"), [(1, (2, 5)), (1, (2, 5, 6)), (2, (2, 5, 6))])
def test_learner_has_a_core_to_itself_where_fewer_play_than_there_are(actors: int, cores: tuple[int, ...]) -> None:
    topology = plan_of("apex", actors=actors, envs_per_actor=1).compose()
    assert spare_cores(topology, cores, large=False) == cores[:-1]
    for process in processes_of(topology, len(cores)):
        kept = {"learner": cores[-1:], "evaluator": ()}.get(process[0].name, cores[:-1])
        assert cores_of(topology, process, cores, large=False) == kept
