"""Hosts of workers: one thread, or the processes of one machine; and one driver for both."""

from __future__ import annotations

from repertory.engines.driver import Driver
from repertory.errors import UserError, nearest
from repertory.topologies.plan import Plan

ENGINES = ("inline", "processes")


def make_driver(engine: str, plan: Plan) -> Driver:
    if engine == "inline":
        from repertory.engines.inline import InlineHost

        return Driver(plan, InlineHost(plan))
    if engine == "processes":
        from repertory.engines.processes import ProcessesHost

        return Driver(plan, ProcessesHost(plan))
    raise UserError(f"unknown engine {engine!r}{nearest(engine, ENGINES)}")
