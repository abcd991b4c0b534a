"""The topologies by name: one file each, with its options, workers, channels and checks.

A program registers one of its own by `register`; a package brings one by an entry point of the group
`repertory.topologies` that names a `TopologyKind`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repertory.agents import Kinds

if TYPE_CHECKING:
    from repertory.topologies.graph import TopologyKind

DEFAULT, SCALED = "single", "collectors"
"""Where none is named: for a run, and for a study of more and more actors."""
_NAMES = (
    DEFAULT, SCALED, "apex", "parameter_server", "gorila", "hogwild", "all_reduce", "a3c", "ga3c", "impala",
    "seed_rl", "sample_factory",
)  # fmt: skip
_KINDS: Kinds[TopologyKind] = Kinds("topology", __name__, modules=[f"{__name__}.{name}" for name in _NAMES])
register, unregister, known, find = _KINDS.register, _KINDS.unregister, _KINDS.known, _KINDS.find
