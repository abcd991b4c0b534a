"""Who does what: data only."""

from repertory.errors import UserError, nearest
from repertory.topologies.graph import Topology
from repertory.topologies.single import SINGLE

TOPOLOGIES = {topology.name: topology for topology in (SINGLE,)}


def find(name: str) -> Topology:
    """The topology of this name."""
    if name not in TOPOLOGIES:
        raise UserError(f"unknown topology {name!r}{nearest(name, TOPOLOGIES)}")
    return TOPOLOGIES[name]
