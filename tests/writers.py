"""What other processes do in tests of shared memory: they write, ring and watch until they are killed.

A module of its own, so that a process that is started for it has little to import.
"""

from __future__ import annotations

import os
import time

import numpy as np
from numpy.typing import NDArray

from repertory.engines.shared_memory import Bell, Block, Lifeline
from repertory.experience.lanes import LaneStorage
from repertory.specs import EnvironmentSpec, ObservationSpec, Part

COUNT, LENGTH = 3, 48
COUNTERS = EnvironmentSpec(ObservationSpec((4,), "float32", (Part("number", 4),)), 5)
"""Every observation says where it belongs: lane, episode, step, and a sum that gives mixtures away."""


def ring_back(bells: list[Bell], times: int) -> None:
    for _ in range(times):
        bells[0].wait(30)
        bells[1].ring()


def watch_lifeline(lifeline: Lifeline, bell: Bell) -> None:
    lifeline.watch(lambda: os._exit(7))
    bell.ring()
    time.sleep(120)


def episode_length(lane: int, episode: int) -> int:
    return 1 + (7 * episode + 3 * lane) % 13


def write_for_ever(block: Block) -> None:
    lanes = LaneStorage(COUNTERS, COUNT, LENGTH, block.arrays())
    episode, step = np.zeros(COUNT, np.int64), np.zeros(COUNT, np.int64)
    every = np.arange(COUNT)

    def seen() -> NDArray[np.float32]:
        return np.stack([every, episode, step, episode + step], axis=1).astype(np.float32)

    lanes.begin(every, seen(), None)
    while True:
        action, reward = (episode + step) % 5, (episode + 0.5 * step).astype(np.float32)
        step += 1
        ended = step == [episode_length(lane, number) for lane, number in enumerate(episode)]
        over = ended & (episode % 2 == 0)
        lanes.append(every, action, reward, over, ended & ~over, seen(), None, int(episode[0]))
        if ended.any():
            episode[ended] += 1
            step[ended] = 0
            lanes.begin(every[ended], seen()[ended], None)
