"""Gorila: Nair et al. 2015, "Massively Parallel Methods for Deep Reinforcement Learning".

The workers and channels of `parameter_server`. Bundles of actor, replay and learner (`memory` local), or one replay for
all (shared). The servers run AdaGrad, drop gradients that are too old, and hand out a target that they copy every so
many updates; a worker drops gradients of outlying losses.
"""

from __future__ import annotations

from dataclasses import replace

from repertory.topologies import parameter_server
from repertory.topologies.options import GorilaOptions as Options

KIND = replace(
    parameter_server.KIND,
    name="gorila",
    summary="bundles of actor, replay and learner; sharded servers that refuse old gradients",
    options=Options,
    defaults={
        **parameter_server.KIND.defaults,
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
