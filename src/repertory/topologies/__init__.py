"""The topologies by name: one file each, with its options, workers, channels and checks.

A program registers one of its own by `register`; a package brings one by an entry point of the group
`repertory.topologies` that names a `TopologyKind`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points

from repertory.errors import UserError, nearest
from repertory.topologies import (
    a3c,
    all_reduce,
    apex,
    collectors,
    ga3c,
    gorila,
    hogwild,
    impala,
    parameter_server,
    sample_factory,
    seed_rl,
    single,
)
from repertory.topologies.graph import TopologyKind

_KINDS = {
    module.KIND.name: module.KIND
    for module in (
        single, collectors, apex, parameter_server, gorila, hogwild, all_reduce, a3c, ga3c, impala, seed_rl,
        sample_factory,
    )
}  # fmt: skip

DEFAULT, SCALED = single.KIND.name, collectors.KIND.name
"""Where none is named: for a run, and for a study of more and more actors."""


def register(kind: TopologyKind) -> None:
    """Make a topology known under its name."""
    _KINDS[kind.name] = kind


@cache
def _load_entry_points() -> None:
    for entry in entry_points(group="repertory.topologies"):
        register(entry.load())


def known() -> Mapping[str, TopologyKind]:
    """Every topology by its name."""
    _load_entry_points()
    return _KINDS


def find(name: str) -> TopologyKind:
    """The topology of this name, or a sentence that names the nearest."""
    if name not in known():
        raise UserError(f"unknown topology {name!r}{nearest(name, known())}")
    return known()[name]
