"""Who does what: data only."""

from repertory.errors import UserError, nearest
from repertory.topologies.actor_critic import A3C, GA3C, IMPALA, SAMPLE_FACTORY, SEED_RL
from repertory.topologies.all_reduce import ALL_REDUCE
from repertory.topologies.collectors import APEX, COLLECTORS
from repertory.topologies.gorila import GORILA
from repertory.topologies.graph import Topology
from repertory.topologies.hogwild import HOGWILD
from repertory.topologies.parameter_server import PARAMETER_SERVER
from repertory.topologies.single import SINGLE

ALL = (
    SINGLE, COLLECTORS, APEX, PARAMETER_SERVER, GORILA, HOGWILD, ALL_REDUCE, A3C, GA3C, IMPALA, SEED_RL, SAMPLE_FACTORY,
)  # fmt: skip
TOPOLOGIES = {topology.name: topology for topology in ALL}
DEFAULT = SINGLE.name
"""Where none is named."""


def find(name: str) -> Topology:
    """The topology of this name."""
    if name not in TOPOLOGIES:
        raise UserError(f"unknown topology {name!r}{nearest(name, TOPOLOGIES)}")
    return TOPOLOGIES[name]
