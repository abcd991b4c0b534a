"""Workers that share one weight vector and update it without locks.

Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning"; Niu et al. 2011, "Hogwild!".
"""

from repertory.topologies.graph import Edge, Node, Topology
from repertory.topologies.options import HogwildOptions

HOGWILD = Topology(
    name="hogwild",
    summary="workers play, and update one shared weight vector without locks",
    nodes=(
        Node("thread", "actors", "plays on the shared weights, adds up gradients, applies them lock-free"),
        Node("evaluator", "1", "plays whole greedy episodes with a snapshot of the weights"),
    ),
    edges=(
        Edge("thread", "thread", "weights, target, optimiser", "one live copy: every --topology.update-steps steps"),
        Edge("thread", "evaluator", "weights", "a snapshot every --eval-every env steps"),
    ),
    engines=("inline", "processes"),
    agents=("dqn", "sarsa"),
    options=HogwildOptions,
    defaults={
        "engine": "processes",
        "actors": 2,
        "envs_per_actor": 1,
        "agent": {
            "double": False,
            "loss": "squared",
            "max_gradient_norm": 0.0,
            "optimizer": "shared_rmsprop",
            "optimizer_epsilon": 0.01,
        },
    },
)
