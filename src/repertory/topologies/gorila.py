"""Gorila: bundles of actor, replay and learner; sharded servers that drop old gradients (Nair et al. 2015).

The workers and channels of `parameter_server`, with a replay for each worker (`memory` local) or one for all (shared).
The servers run AdaGrad, drop gradients that are too old, and publish a target that they copy after many updates;
workers drop gradients of outlying losses.
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
    described=__doc__,
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
