"""Gorila: Nair et al. 2015, "Massively Parallel Methods for Deep Reinforcement Learning".

The workers and channels of `parameter_server`. Bundles of actor, replay and learner (`memory` local), or one replay for
all (shared). The servers run AdaGrad, drop gradients that are too old, and hand out a target that they copy every so
many updates; a worker drops gradients of outlying losses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from repertory.limits import NonNegative, Positive
from repertory.topologies import parameter_server


@dataclass(frozen=True)
class Options(parameter_server.Options):
    """Options of Gorila's parameter servers and bundles of actor, replay and learner."""

    shards: Positive[int] = 2
    max_gradient_age: NonNegative[int] = 100
    outlier_deviations: NonNegative[float] = 5.0


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
