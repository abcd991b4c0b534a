"""One process: act, remember, learn, in turn (Mnih et al. 2015)."""

from repertory.topologies.graph import Edge, Node, Topology
from repertory.topologies.options import SingleOptions

SINGLE = Topology(
    name="single",
    summary="one process that acts, remembers and learns in turn",
    nodes=(
        Node("actor", "1", "plays its environments, ε-greedily, and writes their steps"),
        Node("replay", "1", "one lane for each environment; draws batches"),
        Node("learner", "1", "updates the weights and publishes them"),
        Node("evaluator", "1", "plays whole greedy episodes with a snapshot"),
    ),
    edges=(
        Edge("actor", "replay", "steps", "every step"),
        Edge("replay", "learner", "batches", "as the replay ratio allows"),
        Edge("learner", "replay", "priorities", "after each call, if prioritised"),
        Edge("learner", "actor", "weights", "after each call"),
        Edge("learner", "evaluator", "weights", "every --eval-every env steps"),
    ),
    engines=("inline",),
    agents=("dqn", "rainbow", "sarsa"),
    options=SingleOptions,
)
