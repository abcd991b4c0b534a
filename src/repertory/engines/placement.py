"""Which workers share a process, which cores it keeps to, and its niceness: pure functions of a topology."""

from __future__ import annotations

from collections.abc import Sequence

from repertory.channels.channel import slices
from repertory.topologies.graph import Topology, Worker, Workers

A_LITTLE, MUCH, MORE = 5, 10, 15
"""Niceness."""
Process = tuple[Worker, ...]
"""The workers of one process: most are alone."""


def processes_of(topology: Topology, cores: int) -> list[Process]:
    """Workers with a `build_group` share processes where they are more than the cores, since they mostly wait.

    Each process has caches to warm and pages to map whenever it wakes up. On two cores a collector's step took 95 µs
    among few processes, and 300 to 450 µs among 64. With a policy each, 64 collectors made 7,400 steps a second in 2
    processes that kept to their cores, 6,700 in 4, and 5,700 in 4 that moved.
    """
    found: list[Process] = []
    for group in topology.workers:
        workers = [worker for worker in topology.roster() if worker.name == group.name]
        found += [tuple(workers[cut]) for cut in slices(len(workers), _count(group, cores))]
    return found


def _count(group: Workers, cores: int) -> int:
    if group.build_group is None:
        return group.count
    return -(-group.count // group.per_process) if group.per_process else min(group.count, max(2, cores))


def cores_of(topology: Topology, process: Process, cores: Sequence[int], *, large: bool) -> Sequence[int]:
    """The cores that a process keeps to; none = the system decides.

    Processes that are as many as the cores, or a multiple, keep to one core each: workers that play and learn lost up
    to a third of their speed by moving, and threads that share an interpreter wake each other, which costs more across
    cores. Where fewer processes play than there are cores, a learner with one compute thread has a core to itself; only
    the evaluator may run there, too.
    """
    group = topology.group(process[0].name)
    if spare := spare_cores(topology, cores, large=large):
        if group.kind == "evaluate":
            return ()
        return cores[-1:] if group.own_core else spare
    alike = [each for each in processes_of(topology, len(cores)) if _keeps_to_a_core(topology, each)]
    lone = len(process) == 1 and group.build_group is not None
    if process not in alike or lone or not cores or len(alike) % len(cores):
        return ()
    return (cores[alike.index(process) % len(cores)],)


def _keeps_to_a_core(topology: Topology, process: Process) -> bool:
    group = topology.group(process[0].name)
    return group.pinned or group.build_group is not None


def spare_cores(topology: Topology, cores: Sequence[int], *, large: bool) -> Sequence[int]:
    """All cores but the learner's own; none if it has no core of its own."""
    playing = [each for each in processes_of(topology, len(cores)) if topology.group(each[0].name).kind == "play"]
    alone = any(group.own_core for group in topology.workers) and not large
    return cores[:-1] if alone and len(playing) < len(cores) else ()


def niceness_of(topology: Topology, process: Process, cores: int) -> int:
    """A few actors that mostly wait yield to the learner, which limits the speed of the run.

    Where many share processes, the learner yields to them: their environments should get actions at once, and actors
    that are ahead of the learner wait anyway. An evaluator always yields to the learner.
    """
    group = topology.group(process[0].name)
    crowded = any(len(each) > 1 for each in processes_of(topology, cores))
    if group.kind == "evaluate":
        return MORE if crowded else A_LITTLE
    if crowded:
        return MUCH if group.kind == "learn" else 0
    return MORE if group.build_group is not None else 0
