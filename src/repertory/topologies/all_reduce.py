"""Equal ranks that average their gradients: what Horovod does (Sergeev and Del Balso 2018)."""

from repertory.topologies.graph import Edge, Node, Topology
from repertory.topologies.options import AllReduceOptions

ALL_REDUCE = Topology(
    name="all_reduce",
    summary="equal ranks play and learn, and average their gradients before every update",
    nodes=(
        Node("rank", "actors", "plays, remembers, holds the whole learner; all ranks stay bit-equal"),
        Node("evaluator", "1", "plays whole greedy episodes with a snapshot of the weights"),
    ),
    edges=(
        Edge("rank", "rank", "gradients", "averaged over all ranks at every update, compressed if asked"),
        Edge("rank", "evaluator", "weights", "a snapshot of rank 0 every --eval-every env steps"),
    ),
    engines=("inline", "processes"),
    agents=("dqn", "sarsa"),
    options=AllReduceOptions,
    defaults={"engine": "processes", "actors": 2},
    together=("rank",),
)
