"""Who does what: data only."""

from repertory.errors import UserError, nearest
from repertory.topologies.all_reduce import ALL_REDUCE
from repertory.topologies.collectors import APEX, COLLECTORS
from repertory.topologies.gorila import GORILA
from repertory.topologies.graph import Topology
from repertory.topologies.hogwild import HOGWILD
from repertory.topologies.parameter_server import PARAMETER_SERVER
from repertory.topologies.single import SINGLE

TOPOLOGIES = {
    topology.name: topology for topology in (SINGLE, COLLECTORS, APEX, PARAMETER_SERVER, GORILA, HOGWILD, ALL_REDUCE)
}


def find(name: str) -> Topology:
    """The topology of this name."""
    if name not in TOPOLOGIES:
        raise UserError(f"unknown topology {name!r}{nearest(name, TOPOLOGIES)}")
    return TOPOLOGIES[name]
