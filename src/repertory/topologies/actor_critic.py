"""Topologies that learn from unrolls; GA3C, IMPALA, SEED RL, Sample Factory, and A3C on the ground of `hogwild`."""

from dataclasses import replace

from repertory.topologies.graph import Edge, Node, Topology
from repertory.topologies.hogwild import HOGWILD
from repertory.topologies.options import A3COptions, GA3COptions, ImpalaOptions, SampleFactoryOptions, SeedRLOptions

EVALUATOR = Node("evaluator", "1", "plays whole greedy episodes with a snapshot of the weights")
ENGINES = ("inline", "processes")

A3C = replace(
    HOGWILD,
    name="a3c",
    summary="A3C: workers play unrolls, and update one shared policy and value without locks (Mnih et al. 2016)",
    agents=("a3c",),
    options=A3COptions,
    edges=(
        Edge("thread", "thread", "weights, optimiser", "one live copy: after every --agent.unroll steps"),
        Edge("thread", "evaluator", "weights", "a snapshot every --eval-every env steps"),
    ),
    defaults={"engine": "processes", "actors": 2},
)

GA3C = Topology(
    name="ga3c",
    summary="GA3C: agents without networks, predictors and trainers on one model (Babaeizadeh et al. 2017)",
    nodes=(
        Node("agent", "actors", "plays its environments, asks for every action, writes unrolls"),
        Node("predictor", "topology.predictors", "answers the questions that wait, all at once"),
        Node("trainer", "topology.trainers", "updates the one model from finished unrolls, without locks"),
        Node("adjuster", "1", "changes how many of each are at work, if --topology.adjust-from is given"),
        EVALUATOR,
    ),
    edges=(
        Edge("agent", "predictor", "observations", "every step: the prediction queue"),
        Edge("predictor", "agent", "actions", "every step"),
        Edge("agent", "trainer", "unrolls", "after --agent.unroll steps: the training queue"),
        Edge("trainer", "predictor", "weights", "one live copy"),
        Edge("adjuster", "agent", "how many", "every --topology.adjust-s seconds; predictors and trainers, too"),
        Edge("trainer", "evaluator", "weights", "a snapshot every --eval-every env steps"),
    ),
    engines=ENGINES,
    agents=("a3c", "impala"),
    options=GA3COptions,
    defaults={
        "engine": "processes",
        "actors": 2,
        "agent": {"probability_floor": 1e-6, "max_gradient_norm": 0.0},
    },
)

IMPALA = Topology(
    name="impala",
    summary="IMPALA: actors with copies of the policy, unrolls through a bounded queue (Espeholt et al. 2018)",
    nodes=(
        Node("actor", "actors", "copies the weights at each unroll's start, plays it, hands it over"),
        Node("learner", "topology.learners", "learns from each unroll once; several average their gradients"),
        EVALUATOR,
    ),
    edges=(
        Edge("actor", "learner", "unrolls", "after --agent.unroll steps, at most --topology.queue of each actor wait"),
        Edge("learner", "actor", "weights", "copied at the start of each unroll"),
        Edge("learner", "evaluator", "weights", "a snapshot every --eval-every env steps"),
    ),
    engines=ENGINES,
    agents=("impala", "appo"),
    options=ImpalaOptions,
    defaults={"engine": "processes", "actors": 2},
    together=("learner",),
)

SEED_RL = Topology(
    name="seed_rl",
    summary="SEED RL: actors without networks, central inference beside the learner (Espeholt et al. 2020)",
    nodes=(
        Node("actor", "actors", "plays its environments and asks for every action"),
        Node("inference", "1", "answers many actors at once, keeps their recurrent states"),
        Node("learner", "1", "learns from unrolls, or with a value agent from a memory"),
        EVALUATOR,
    ),
    edges=(
        Edge("actor", "inference", "observations", "every step"),
        Edge("inference", "actor", "actions", "every step"),
        Edge("actor", "learner", "steps", "in place: unrolls, or lanes of the memory"),
        Edge("learner", "inference", "weights", "the newest before each answer"),
        Edge("learner", "evaluator", "weights", "a snapshot every --eval-every env steps"),
    ),
    engines=ENGINES,
    agents=("impala", "appo", "dqn", "sarsa"),
    options=SeedRLOptions,
    defaults={"engine": "processes", "actors": 2},
)

SAMPLE_FACTORY = Topology(
    name="sample_factory",
    summary="Sample Factory: two groups of environments a worker, one plays while one waits (Petrenko et al. 2020)",
    nodes=(
        Node("rollout_worker", "actors", "steps one group of environments while the other waits for actions"),
        Node("policy_worker", "topology.policy_workers", "answers the groups that wait, with the newest weights"),
        Node("learner", "1", "learns from unrolls; drops those beyond --topology.max-policy-lag"),
        EVALUATOR,
    ),
    edges=(
        Edge("rollout_worker", "policy_worker", "observations", "every step of a group"),
        Edge("policy_worker", "rollout_worker", "actions", "every step of a group"),
        Edge("rollout_worker", "learner", "unrolls", "after --agent.unroll steps, by their index"),
        Edge("learner", "policy_worker", "weights", "after every batch"),
        Edge("learner", "evaluator", "weights", "a snapshot every --eval-every env steps"),
    ),
    engines=ENGINES,
    agents=("appo", "impala"),
    options=SampleFactoryOptions,
    defaults={"engine": "processes", "actors": 2},
)
