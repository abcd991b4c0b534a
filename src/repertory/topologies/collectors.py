"""Collectors, a memory server, a model server and an evaluator; prioritised and with a ladder of ε it is Ape-X.

Ape-X: Horgan et al. 2018, "Distributed Prioritized Experience Replay".
"""

from dataclasses import replace

from repertory.topologies.graph import Edge, Node, Topology
from repertory.topologies.options import ApexOptions, CollectorsOptions

COLLECTORS = Topology(
    name="collectors",
    summary="many play, one remembers, one learns",
    nodes=(
        Node("collector", "actors", "plays its environments and writes their steps into its lanes"),
        Node("memory", "1", "draws batches from all lanes, keeps priorities, holds the replay ratio"),
        Node("learner", "1", "updates the weights and publishes them"),
        Node("evaluator", "1", "plays whole greedy episodes with a snapshot of the weights"),
    ),
    edges=(
        Edge("collector", "memory", "steps", "every step, in place"),
        Edge("memory", "learner", "batches", "as the replay ratio allows, two calls ahead"),
        Edge("learner", "memory", "errors", "after each call, if prioritised"),
        Edge("learner", "collector", "weights", "pulled every --topology.pull-period steps"),
        Edge("learner", "evaluator", "weights", "a snapshot every --eval-every env steps"),
    ),
    engines=("inline", "processes"),
    agents=("dqn", "rainbow", "sarsa"),
    options=CollectorsOptions,
    defaults={"engine": "processes", "actors": 2},
)

APEX = replace(
    COLLECTORS,
    name="apex",
    summary="Ape-X: collectors with a ladder of ε, prioritised replay, priorities from the actors",
    agents=("dqn",),
    options=ApexOptions,
    defaults={
        **COLLECTORS.defaults,
        "agent": {
            "prioritized": True,
            "double": True,
            "dueling": True,
            "n_step": 3,
            "learning_rate": 2.5e-4 / 4,
            "optimizer": "rmsprop",
            "optimizer_epsilon": 1.5e-7,
            "max_gradient_norm": 40.0,
            "target_period": 2_500,
        },
    },
)
