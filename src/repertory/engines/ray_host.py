"""The ray engine: the processes host over the machines of a Ray cluster."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import partial

from repertory.engines.cluster import Cluster, Node, choose
from repertory.engines.links import Machines
from repertory.engines.placement import homes_of, share_out
from repertory.engines.processes import ProcessesHost
from repertory.runtime import usable_cores
from repertory.topologies.plan import Plan


def ray_host(plan: Plan) -> ProcessesHost:
    """Join or start the cluster, and host each worker on its machine."""
    cluster = Cluster(plan.address, insecure=plan.insecure)
    try:
        plan, nodes, homes = placed(plan, cluster.nodes())
        return ProcessesHost(plan, partial(Machines, cluster=cluster, nodes=nodes, homes=homes))
    except BaseException:
        cluster.close()
        raise


def placed(plan: Plan, nodes: list[Node]) -> tuple[Plan, list[Node], list[int]]:
    """The plan with the actors of each machine, the machines, and by a worker's index the number of its machine."""
    plan = dataclasses.replace(plan, actors_on=tuple(share_out(plan.actors, choose(nodes, plan.topology.machines))))
    return plan, nodes, homes_of(plan.compose(), plan.actors_on)


def where(plan: Plan) -> dict[str, str]:
    """By the address of a machine, how many workers of each name would be there."""
    if plan.address is None:
        plan, nodes, homes = placed(plan, [Node("", "this machine", usable_cores(), driver=True)])
    else:
        cluster = Cluster(plan.address, insecure=plan.insecure)
        try:
            plan, nodes, homes = placed(plan, cluster.nodes())
        finally:
            cluster.close()
    workers = plan.compose().roster()
    found = {}
    for number, node in enumerate(nodes):
        names = Counter(worker.name for worker in workers if homes[worker.index] == number)
        told = ", ".join(f"{name} × {count}" for name, count in names.items()) or "none"
        found[f"{node.address}{' (driver)' if node.driver else ''}"] = told
    return found
