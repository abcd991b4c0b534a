"""Gorila: Nair et al. 2015, "Massively Parallel Methods for Deep Reinforcement Learning".

Bundles of actor, replay and learner (--topology.memory local), or one replay for all (shared). The servers run AdaGrad,
drop gradients that are too old, and hand out a target that they copy every so many updates; a learner drops gradients
of outlying losses.
"""

from dataclasses import replace

from repertory.topologies.options import GorilaOptions
from repertory.topologies.parameter_server import PARAMETER_SERVER

GORILA = replace(
    PARAMETER_SERVER,
    name="gorila",
    options=GorilaOptions,
    summary="bundles of actor, replay and learner; sharded servers that refuse old gradients",
    defaults={
        **PARAMETER_SERVER.defaults,
        "agent": {
            "double": False,
            "max_gradient_norm": 0.0,
            "learning_rate": 0.01,
            "optimizer": "adagrad",
            "target_tau": 0.0,
            "target_period": 60_000,
        },
    },
)
