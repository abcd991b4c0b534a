"""Workers compute gradients, servers apply them: Downpour SGD (Dean et al. 2012) for the DQN family."""

from repertory.topologies.graph import Edge, Node, Topology
from repertory.topologies.options import ParameterServerOptions

PARAMETER_SERVER = Topology(
    name="parameter_server",
    summary="workers play and compute gradients, servers own the weights",
    nodes=(
        Node("worker", "actors", "plays, remembers, computes gradients with the weights it fetched"),
        Node("server", "topology.shards", "owns a slice of weights, target and optimiser; applies gradients"),
        Node("evaluator", "1", "plays whole greedy episodes with a snapshot of the weights"),
    ),
    edges=(
        Edge("worker", "server", "gradients", "every --topology.push-period gradients, compressed if asked"),
        Edge("server", "worker", "weights and target", "every --topology.fetch-period gradients"),
        Edge("server", "evaluator", "weights", "a snapshot every --eval-every env steps"),
    ),
    engines=("inline", "processes"),
    agents=("dqn", "sarsa"),
    options=ParameterServerOptions,
    defaults={"engine": "processes", "actors": 2},
)
