"""Slow, literal twins of what actor-critic agents learn from: sums over the steps of one episode; numpy only.

x, a, r: a step; π, μ: the policy that learns and the one that played; V: values; γ, λ, ρ̄, c̄: as in the papers. What an
unroll holds of one episode is a `Stretch`; nothing outside it can be seen from inside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


class Stretch(NamedTuple):
    """Steps 0 to n - 1 of one episode: rewards, values of all n + 1 states (0 where nothing follows), and π/μ."""

    r: Sequence[float]
    V: Sequence[float]
    ratio: Sequence[float]


def stretches(rows: int, ends: Mapping[int, str]) -> list[tuple[range, bool]]:
    """The rows of each episode in an unroll, and whether it terminated; after an end comes one row without a step.

    `ends` says how the step in a row ended; row -1 is the last one of the unroll before.
    """
    found, start = [], 0
    for t in range(-1, rows):
        if t in ends:
            found.append((range(start, t + 1), ends[t] == "terminated"))
            start = t + 2
    found.append((range(start, rows), False))
    return [(steps, terminated) for steps, terminated in found if len(steps)]


def n_step_return(e: Stretch, s: int, n: int, γ: float) -> float:
    """Σ_{k<n} γ^k r_{s+k} + γ^n V(x_{s+n})."""
    return sum(γ**k * e.r[s + k] for k in range(n)) + γ**n * e.V[s + n]


def λ_return(e: Stretch, s: int, γ: float, λ: float) -> float:
    """(1 − λ) Σ_n λ^{n−1} G^{(n)}, all that is left on the longest (Sutton & Barto, equation 12.3)."""
    N = len(e.r) - s
    if N == 0:
        return e.V[s]
    shorter = sum(λ ** (n - 1) * n_step_return(e, s, n, γ) for n in range(1, N))
    return (1 - λ) * shorter + λ ** (N - 1) * n_step_return(e, s, N, γ)


def td_error(e: Stretch, t: int, γ: float) -> float:
    """r_t + γ V(x_{t+1}) − V(x_t)."""
    return e.r[t] + γ * e.V[t + 1] - e.V[t]


def vtrace(e: Stretch, s: int, γ: float, λ: float, ρ_max: float, c_max: float) -> float:
    """v_s = V(x_s) + Σ_t γ^{t−s} (Π_{s≤i<t} c_i) ρ_t δ_t (Espeholt et al. 2018, equation 1), c_i = λ min(c̄, π/μ)."""
    total = e.V[s]
    for t in range(s, len(e.r)):
        c = math.prod(λ * min(c_max, e.ratio[i]) for i in range(s, t))
        total += γ ** (t - s) * c * min(ρ_max, e.ratio[t]) * td_error(e, t, γ)
    return total


def gae(e: Stretch, s: int, γ: float, λ: float) -> float:
    """Σ_k (γλ)^k δ_{s+k} (Schulman et al. 2016, equation 16), as far as there are steps."""
    return sum((γ * λ) ** k * td_error(e, s + k, γ) for k in range(len(e.r) - s))


def targets(
    correction: str, e: Stretch, s: int, γ: float, λ: float, ρ_max: float, c_max: float, clips: bool
) -> tuple[float, float]:
    """What V(x_s) should have been, and the advantage; where the objective itself holds π/μ, ρ is left out of it."""
    if correction == "gae":
        A = gae(e, s, γ, λ)
        return e.V[s] + A, A
    if correction == "none":
        return λ_return(e, s, γ, λ), e.r[s] + γ * λ_return(e, s + 1, γ, λ) - e.V[s]
    v, v_next = (vtrace(e, t, γ, λ, ρ_max, c_max) for t in (s, s + 1))
    ρ = 1.0 if clips else min(ρ_max, e.ratio[s])
    return v, ρ * (e.r[s] + γ * v_next - e.V[s])


def policy(preferences: Floats, legal: NDArray[np.bool_] | None) -> list[float]:
    """Softmax over the legal actions; the others never."""
    may = range(len(preferences)) if legal is None else np.flatnonzero(legal).tolist()
    top = max(float(preferences[a]) for a in may)
    e = {a: math.exp(float(preferences[a]) - top) for a in may}
    return [e.get(a, 0.0) / sum(e.values()) for a in range(len(preferences))]


def entropy(π: Sequence[float]) -> float:
    """−Σ_a π(a) log π(a)."""
    return -sum(p * math.log(p) for p in π if p > 0)


def clipped(ratio: float, A: float, ε: float) -> float:
    """PPO's surrogate (Schulman et al. 2017, equation 7), with the range 1/(1 + ε) to 1 + ε (Petrenko et al. 2020)."""
    return min(ratio * A, min(max(ratio, 1 / (1 + ε)), 1 + ε) * A)


def recurrent_network(θ: Any, x: Floats, first: NDArray[np.bool_], state: Floats) -> Floats:
    """Outputs `[rows, unrolls, ...]` of one hidden layer, an LSTM and a head; `state` is the cell beside the output.

    i, f, o = σ(W x + U h + b), g = tanh(W x + U h + b), c' = f c + i g, h' = o tanh(c') (Hochreiter & Schmidhuber 1997,
    with the forget gate of Gers et al. 2000).
    """

    def linear(layer: Any, z: Floats) -> Floats:
        y = z @ np.asarray(layer["kernel"], float)
        return y + np.asarray(layer["bias"], float) if "bias" in layer else y

    def sigmoid(z: Floats) -> Floats:
        return 1 / (1 + np.exp(-z))

    inner, cell, outputs = θ["inner"], θ["cell"], []
    c, h = np.split(state.astype(float), 2, axis=-1)
    for x_t, begins in zip(x.astype(float), first, strict=True):
        c, h = (np.where(begins[:, None], 0.0, z) for z in (c, h))
        hidden = np.maximum(linear(inner["Dense_0"], x_t), 0.0)
        seen = np.maximum(linear(inner["Dense_1"], hidden), 0.0)
        gates = {gate: linear(cell[f"i{gate}"], seen) + linear(cell[f"h{gate}"], h) for gate in "ifgo"}
        c = sigmoid(gates["f"]) * c + sigmoid(gates["i"]) * np.tanh(gates["g"])
        h = sigmoid(gates["o"]) * np.tanh(c)
        outputs.append(linear(θ["head"], h))
    return np.stack(outputs)
