"""The ray engine: the processes host over the machines of a Ray cluster."""

from __future__ import annotations

import dataclasses
from functools import partial

from repertory.engines.cluster import Cluster, choose
from repertory.engines.links import Machines
from repertory.engines.placement import homes_of, share_out
from repertory.engines.processes import ProcessesHost
from repertory.topologies.plan import Plan


def ray_host(plan: Plan) -> ProcessesHost:
    """Join or start the cluster, and decide which workers are on which machine."""
    cluster = Cluster(plan.address, insecure=plan.insecure)
    try:
        nodes = cluster.nodes()
        plan = dataclasses.replace(plan, actors_on=tuple(share_out(plan.actors, choose(nodes, plan.topology.nodes))))
        homes = homes_of(plan.compose(), plan.actors_on)
        supervise = partial(Machines, cluster=cluster, nodes=nodes, homes=homes)
        return ProcessesHost(plan, supervise)
    except BaseException:
        cluster.close()
        raise
