"""The topologies by name: one file each, with its options, workers, channels and checks.

A program registers one of its own by `register`; a package brings one by an entry point of the group
`repertory.topologies` that names a `TopologyKind`.
"""

from __future__ import annotations

from repertory.agents.kinds import Kinds
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

_MODULES = (
    single, collectors, apex, parameter_server, gorila, hogwild, all_reduce, a3c, ga3c, impala, seed_rl, sample_factory,
)  # fmt: skip
_KINDS: Kinds[TopologyKind] = Kinds("topology", "repertory.topologies", [module.KIND for module in _MODULES])
register, unregister, known, find = _KINDS.register, _KINDS.unregister, _KINDS.known, _KINDS.find
DEFAULT, SCALED = single.KIND.name, collectors.KIND.name
"""Where none is named: for a run, and for a study of more and more actors."""
