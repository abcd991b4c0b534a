"""Hosts of workers: one thread, the processes of one machine, or those of a Ray cluster; and one driver for all."""

from __future__ import annotations

from repertory.engines.driver import Driver
from repertory.errors import UserError, nearest
from repertory.topologies.plan import Plan

ENGINES = ("inline", "processes", "ray")


def make_driver(engine: str, plan: Plan) -> Driver:
    if engine == "inline":
        from repertory.engines.inline import InlineHost

        return Driver(plan, InlineHost(plan))
    if engine == "processes":
        from repertory.engines.processes import ProcessesHost

        return Driver(plan, ProcessesHost(plan))
    if engine == "ray":
        from repertory.engines.ray_host import ray_host

        host = ray_host(plan)
        return Driver(host.plan, host)
    raise UserError(f"unknown engine {engine!r}{nearest(engine, ENGINES)}")
