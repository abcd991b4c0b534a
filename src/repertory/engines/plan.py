"""What an engine stages: agent, environment and counts, resolved; imports the rooms below."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from repertory.agents.q_learning import QLearningOptions
from repertory.experience.lanes import Lanes
from repertory.experience.pacing import Pacing
from repertory.roles.exploration import linear
from repertory.specs import EnvironmentSpec


@dataclass(frozen=True)
class Plan:
    """Everything that decides what the roles do; nothing of how they are hosted."""

    environment: str
    environment_options: Mapping[str, Any]
    evaluation_options: Mapping[str, Any]
    spec: EnvironmentSpec
    options: QLearningOptions
    actors: int
    envs_per_actor: int
    eval_episodes: int
    eval_max_steps: int
    seed: int

    @property
    def environments(self) -> int:
        """All environments that are learned from."""
        return self.actors * self.envs_per_actor

    @property
    def lane_length(self) -> int:
        """Slots of each lane."""
        return Lanes.length_for(self.options.replay_capacity, self.environments)

    @property
    def replay_bytes(self) -> int:
        """Memory that the full replay takes, priorities included."""
        fields = Lanes.fields(self.spec, self.environments, self.lane_length)
        tree = 17 * self.environments * self.lane_length if self.options.prioritized else 0
        return sum(field.nbytes for field in fields.values()) + tree

    def pacing(self) -> Pacing:
        """How much is learned from how much."""
        options = self.options
        return Pacing(options.replay_ratio, options.batch_size, options.learning_starts)

    def epsilon(self, env_steps: int) -> float:
        """Share of random actions; a noisy network explores by itself."""
        options = self.options
        if options.noisy:
            return 0.0 if env_steps >= options.learning_starts else 1.0
        return linear(options.epsilon_start, options.epsilon_end, options.epsilon_steps, env_steps)

    def importance(self, env_steps: int) -> float:
        """β of prioritised replay."""
        options = self.options
        if options.importance_steps == 0:
            return options.importance_exponent
        return linear(options.importance_exponent, 1.0, options.importance_steps, env_steps)
