"""Made-up studies: results with the scores, speeds and failures that a test wants."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from repertory.studies.results import Contestant, Evaluation, Results, Trial

TOPOLOGIES = ("single", "collectors", "apex", "parameter_server", "gorila", "hogwild", "all_reduce", "a3c", "ga3c")
TOPOLOGIES += ("impala", "seed_rl", "sample_factory", "seed_rl:dqn")
ROLES = ("actor", "learner", "memory server", "parameter server", "inference server", "evaluator")


def contestant(name: str, actors: int = 4) -> Contestant:
    return Contestant(name, topology=name, agent="dqn", actors=actors)


def trial(name: str, seed: int, scores: Sequence[float], status: str = "completed", pace: float = 1000.0) -> Trial:
    """A run that was evaluated every second, and plays `pace` env steps in one."""
    evaluations = tuple(
        Evaluation(round(pace * second), round(pace * second / 4), float(second), score)
        for second, score in enumerate(scores, start=1)
    )
    end = len(scores)
    run = Trial(name, seed, status, evaluations=evaluations, env_steps_per_s=pace, updates_per_s=pace / 4)
    return replace(run, env_steps=round(pace * end), updates=round(pace * end / 4), seconds=float(end))


def failed(name: str, seed: int, cause: str) -> Trial:
    return Trial(name, seed, "failed", cause, seconds=1.5)


def study(trials: Sequence[Trial], kind: str = "compare", target: float | None = None) -> Results:
    """The contestants are those of the trials."""
    names = tuple(dict.fromkeys(one.contestant for one in trials))
    command = f"repertory {kind} CartPole-v1 --seeds 5 --seconds 60"
    return Results(
        *(kind, "CartPole-v1", command, "60 s", target, tuple(map(contestant, names)), tuple(trials)),
        machine="2 cores, 8 GB, Linux 6.1, Python 3.11.7, JAX 0.10.2",
    )


def final(scores: Mapping[str, Sequence[float]], kind: str = "compare", target: float | None = None) -> Results:
    """A study of which only the last score of each seed is told; its paces differ from seed to seed."""
    runs = [
        trial(name, seed, [0.5 * score, score], pace=1000.0 + 10 * place + seed)
        for place, (name, values) in enumerate(scores.items())
        for seed, score in enumerate(values)
    ]
    return study(runs, kind, target)


def grand(contestants: int = 13, seeds: int = 5, evaluations: int = 25, kind: str = "compare") -> Results:
    """A large study with everything in it: curves that rise, roles, lags, solved runs, and one that fails."""
    rng = np.random.default_rng(7)
    names = [f"{name}{'' if place < 13 else ' again'}" for place, name in enumerate((TOPOLOGIES * 2)[:contestants])]
    runs = [_rising(rng, name, place, seed, evaluations) for place, name in enumerate(names) for seed in range(seeds)]
    runs = [_broken(run) if run.contestant == "gorila" and run.seed in (1, 3) else run for run in runs]
    return study(runs, kind, target=475.0)


def _rising(rng: np.random.Generator, name: str, place: int, seed: int, evaluations: int) -> Trial:
    speed, top = math.exp(rng.normal(0.0, 0.25)) * (0.4 + 0.25 * (place % 5)), (500, 500, 470, 320, 120)[place % 5]
    rise = top / (1 + np.exp(-speed * 8 * (np.linspace(0, 1, evaluations) - 0.45)))
    scores = np.clip(rise + rng.normal(0, 22, evaluations), 8, 500)
    solved = np.flatnonzero(scores >= 475)
    ended = scores[: solved[0] + 1] if len(solved) else scores
    run = trial(
        name, seed, [float(score) for score in ended], "solved" if len(solved) else "completed", 400 + 310 * place
    )
    roles = [ROLES[index] for index in range(2 + place % 4)]
    busy = {role: float(rng.uniform(0.1, 1.0)) for role in roles}
    lags = tuple(float(lag) for lag in rng.gamma(2.0, 4.0 ** (place % 5), 40))
    return replace(
        run, lags=lags, busy=busy, startup_s=3.2, env_steps_per_s=(400 + 310 * place) * rng.uniform(0.95, 1.05)
    )


def _broken(run: Trial) -> Trial:
    return failed(
        run.contestant, run.seed, 'EnvironmentFailure: the environment raised ValueError: <no lever> & "no" cart'
    )


def scaled(actors: Sequence[int] = (1, 2, 4, 8, 16, 32, 64), seeds: int = 1) -> Results:
    """A study of more and more actors that stops paying after 16."""
    runs = []
    for count in actors:
        pace = 95.0 * min(count, 16) ** 0.97 * (1 + 0.02 * math.log2(max(1, count / 16)))
        runs += [_paced(trial(f"{count} actors", seed, [20, 60, 180.0], pace=pace), pace) for seed in range(seeds)]
    found = study(runs, "scale")
    contestants = tuple(contestant(f"{count} actors", count) for count in actors)
    return replace(
        found, contestants=contestants, command="repertory scale repertory/SlowCartPole-v1 --topology collectors"
    )


def _paced(run: Trial, pace: float) -> Trial:
    return replace(run, updates_per_s=min(pace, 900.0) / 2, lags=(1.0, 2.0, 3.0), busy={"actor": 0.9, "learner": 0.3})


def swapped(results: Results, one: str, other: str) -> Results:
    """The same study, with the results of two contestants exchanged."""
    names = {one: other, other: one}
    trials = tuple(replace(run, contestant=names.get(run.contestant, run.contestant)) for run in results.trials)
    return replace(results, trials=trials)
