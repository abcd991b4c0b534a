"""Which workers share a process, which cores it keeps to, and its niceness: pure functions of a topology."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from repertory.channels.channel import slices
from repertory.topologies.graph import Topology, Worker, Workers

A_LITTLE, MUCH, MORE = 5, 10, 15
"""Niceness."""
Process = tuple[Worker, ...]
"""The workers of one process: most are alone."""


def homes_of(topology: Topology, actors_on: Sequence[int]) -> list[int]:
    """By the index of a worker, the number of its machine; machine 0 is the driver's.

    `actors_on` tells how many actors play on each machine. Other workers are on the driver's machine, if the topology
    does not place them beside the actors, or spread over all machines.
    """
    playing = [machine for machine, count in enumerate(actors_on) for _ in range(count)]
    with_actors = [machine for machine, count in enumerate(actors_on) if count]
    homes = []
    for worker in topology.roster():
        group = topology.group(worker.name)
        if group.kind == "play" and playing:
            homes.append(playing[worker.rank])
        elif group.placed == "beside actors" and with_actors:
            homes.append(with_actors[worker.rank * len(with_actors) // group.count])
        elif group.placed == "spread" and actors_on:
            homes.append(worker.rank % len(actors_on))
        else:
            homes.append(0)
    return homes


def share_out(actors: int, cores: Sequence[int]) -> list[int]:
    """How many actors play on each machine, in proportion to its cores."""
    ends = [round(actors * sum(cores[: machine + 1]) / max(1, sum(cores))) for machine in range(len(cores))]
    return [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def processes_of(topology: Topology, cores: int, mine: Collection[int] | None = None) -> list[Process]:
    """Workers with a `build_group` share processes where they are more than the cores, since they mostly wait.

    Each process has caches to warm and pages to map whenever it wakes up. On two cores a collector's step took 95 µs
    among few processes, and 300 to 450 µs among 64. With a policy each, 64 collectors made 7,400 steps a second in 2
    processes that kept to their cores, 6,700 in 4, and 5,700 in 4 that moved.

    `mine` are the indices of a machine's workers; None = there is one machine.
    """
    found: list[Process] = []
    for group in topology.workers:
        workers = [w for w in topology.roster() if w.name == group.name and (mine is None or w.index in mine)]
        found += [tuple(workers[cut]) for cut in slices(len(workers), _count(group, len(workers), cores))]
    return found


def _count(group: Workers, workers: int, cores: int) -> int:
    if group.build_group is None:
        return workers
    return -(-workers // group.per_process) if group.per_process else min(workers, max(2, cores))


def cores_of(
    topology: Topology,
    process: Process,
    cores: Sequence[int],
    *,
    large: bool,
    mine: Collection[int] | None = None,
) -> Sequence[int]:
    """The cores that a process keeps to; none = the system decides.

    Processes that are as many as the cores, or a multiple, keep to one core each: workers that play and learn lost up
    to a third of their speed by moving, and threads that share an interpreter wake each other, which costs more across
    cores. Where fewer processes play than there are cores, a learner with one compute thread has a core to itself; only
    the evaluator may run there, too.
    """
    group = topology.group(process[0].name)
    if spare := spare_cores(topology, cores, large=large, mine=mine):
        if group.kind == "evaluate":
            return ()
        return cores[-1:] if group.own_core else spare
    alike = [each for each in processes_of(topology, len(cores), mine) if _keeps_to_a_core(topology, each)]
    lone = len(process) == 1 and group.build_group is not None
    if process not in alike or lone or not cores or len(alike) % len(cores):
        return ()
    return (cores[alike.index(process) % len(cores)],)


def _keeps_to_a_core(topology: Topology, process: Process) -> bool:
    group = topology.group(process[0].name)
    return group.pinned or group.build_group is not None


def spare_cores(
    topology: Topology, cores: Sequence[int], *, large: bool, mine: Collection[int] | None = None
) -> Sequence[int]:
    """All cores but the learner's own; none if it has no core of its own."""
    here = [(topology.group(each[0].name), each) for each in processes_of(topology, len(cores), mine)]
    playing = [each for group, each in here if group.kind == "play"]
    alone = any(group.own_core for group, _ in here) and not large
    return cores[:-1] if alone and len(playing) < len(cores) else ()


def niceness_of(topology: Topology, process: Process, cores: int, mine: Collection[int] | None = None) -> int:
    """A few actors that mostly wait yield to the learner, which limits the speed of the run.

    Where many share processes, the learner yields to them: their environments should get actions at once, and actors
    that are ahead of the learner wait anyway. An evaluator always yields to the learner.
    """
    group = topology.group(process[0].name)
    crowded = any(len(each) > 1 for each in processes_of(topology, cores, mine))
    if group.kind == "evaluate":
        return MORE if crowded else A_LITTLE
    if crowded:
        return MUCH if group.kind == "learn" else 0
    return MORE if group.build_group is not None else 0
