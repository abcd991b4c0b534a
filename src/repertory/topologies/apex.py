"""Ape-X: many actors with a ladder of ε, one prioritised replay, one learner (Horgan et al. 2018).

The workers and channels of `collectors`; actors compute the first priorities of their steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from repertory.limits import Positive
from repertory.topologies import collectors
from repertory.topologies.options import Epsilons


@dataclass(frozen=True)
class Options(collectors.Options):
    """Options of Ape-X."""

    exploration: Epsilons = "ladder"
    pull_period: Positive[int] = 400
    actor_priorities: bool = True


KIND = replace(
    collectors.KIND,
    name="apex",
    described=__doc__,
    options=Options,
    agents=("dqn",),
    defaults={
        **collectors.KIND.defaults,
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
