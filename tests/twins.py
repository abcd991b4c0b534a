"""Slow, literal twins of the agent's formulas, in the papers' notation; numpy only.

s, a, r, γ: a step; Q, θ: the online network; θ⁻: the target network; z, p: atoms and their probabilities.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


def network(θ: Any, s: Floats, streams: int) -> Floats:
    """One hidden layer before each stream, outputs side by side; `θ` as Flax names it."""
    outputs = []
    for i in range(streams):
        hidden, last = θ[f"Dense_{2 * i}"], θ[f"Dense_{2 * i + 1}"]
        h = np.maximum(s @ np.asarray(hidden["kernel"]) + np.asarray(hidden["bias"]), 0.0)
        outputs.append(h @ np.asarray(last["kernel"]) + np.asarray(last["bias"]))
    return np.concatenate(outputs, axis=-1)


def dueling(outputs: Floats, actions: int, atoms: int) -> Floats:
    """Q(s, a) = V(s) + A(s, a) − 1/|A| Σ_a' A(s, a') (Wang et al. 2016, equation 9), atom by atom."""
    Q = np.zeros((len(outputs), actions, atoms))
    for b, row in enumerate(outputs):
        for i in range(atoms):
            V = row[i]
            A = [row[atoms + a * atoms + i] for a in range(actions)]
            for a in range(actions):
                Q[b, a, i] = V + A[a] - sum(A) / actions
    return Q


def softmax(logits: Floats) -> Floats:
    """Probabilities of one row of logits."""
    e = np.exp(logits.astype(float) - logits.max())
    return e / e.sum()


def support(V_min: float, V_max: float, N: int) -> Floats:
    """z_i = V_min + i Δz."""
    Δz = (V_max - V_min) / (N - 1)
    return np.array([V_min + i * Δz for i in range(N)])


def best_action(Q: Floats, mask: NDArray[np.bool_] | None) -> int:
    """argmax_a Q(s, a) over the legal actions."""
    best, value = -1, -math.inf
    for a in range(len(Q)):
        if (mask is None or mask[a]) and Q[a] > value:
            best, value = a, float(Q[a])
    return best


def bootstrap_action(Q_select: Floats, mask: NDArray[np.bool_] | None, a_next: int, sarsa: bool) -> int:
    """The action taken next by Sarsa, else the best legal one."""
    return a_next if sarsa else best_action(Q_select, mask)


def td_error(Q_sa: float, r: float, γ: float, Q_next: float) -> float:
    """δ = r + γ Q(s', a') − Q(s, a)."""
    return r + γ * Q_next - Q_sa


def huber(δ: float) -> float:
    """½δ² near 0, |δ| − ½ beyond 1 (Mnih et al. 2015 clip the error term)."""
    return 0.5 * δ * δ if abs(δ) <= 1 else abs(δ) - 0.5


def squared(δ: float) -> float:
    """½δ²."""
    return 0.5 * δ * δ


def project(r: float, γ: float, z: Floats, p: Floats) -> Floats:
    """m of Bellemare et al. 2017, algorithm 1: T̂z_j = [r + γ z_j] spread over its two neighbours."""
    V_min, V_max, Δz = z[0], z[-1], z[1] - z[0]
    m = np.zeros(len(z))
    for j in range(len(z)):
        Tz = min(max(r + γ * z[j], V_min), V_max)
        b = (Tz - V_min) / Δz
        lower, upper = math.floor(b), math.ceil(b)
        if lower == upper:
            m[lower] += p[j]
        else:
            m[lower] += p[j] * (upper - b)
            m[upper] += p[j] * (b - lower)
    return m


def divergence(m: Floats, logits: Floats) -> float:
    """D_KL(m ‖ p(s, a)) = Σ_i m_i (log m_i − log p_i) (Hessel et al. 2018)."""
    return sum(m[i] * (math.log(m[i]) - math.log(q)) for i, q in enumerate(softmax(logits)) if m[i] > 0)


def noisy_linear(x: Floats, μ: Floats, σ: Floats, μ_b: Floats, σ_b: Floats, ε_in: Floats, ε_out: Floats) -> Floats:
    """y_j = Σ_i (μ_ij + σ_ij f(ε_i) f(ε_j)) x_i + μ_j + σ_j f(ε_j); the noises are given as f(ε)."""
    y = np.zeros((len(x), len(ε_out)))
    for b, j in np.ndindex(*y.shape):
        y[b, j] = μ_b[j] + σ_b[j] * ε_out[j]
        for i in range(len(ε_in)):
            y[b, j] += (μ[i, j] + σ[i, j] * ε_in[i] * ε_out[j]) * x[b, i]
    return y


def adam(θ: Floats, gradients: list[Floats], α: float, ε: float) -> Floats:
    """Kingma & Ba 2015, algorithm 1, with β1 = 0.9 and β2 = 0.999."""
    m, v = np.zeros(len(θ)), np.zeros(len(θ))
    for t, g in enumerate(gradients, 1):
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        θ = θ - α * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + ε)
    return θ


def centred_rmsprop(θ: Floats, gradients: list[Floats], α: float, ε: float) -> Floats:
    """Graves 2013, equations 38 to 40, without momentum: the gradient over its standard deviation."""
    n, g_mean = np.zeros(len(θ)), np.zeros(len(θ))
    for g in gradients:
        n = 0.95 * n + 0.05 * g**2
        g_mean = 0.95 * g_mean + 0.05 * g
        θ = θ - α * g / np.sqrt(n - g_mean**2 + ε)
    return θ


def rmsprop(θ: Floats, gradients: list[Floats], α: float, ε: float) -> Floats:
    """Mnih et al. 2016, equation 8: g ← 0.99 g + 0.01 Δθ², θ ← θ − α Δθ / √(g + ε); nothing is centred."""
    g = np.zeros(len(θ))
    for Δθ in gradients:
        g = 0.99 * g + 0.01 * Δθ**2
        θ = θ - α * Δθ / np.sqrt(g + ε)
    return θ


def adagrad(θ: Floats, gradients: list[Floats], α: float, ε: float) -> Floats:
    """Dean et al. 2012: α / √(Σ_j Δw_j²), the sum over all gradients so far and nothing else but ε."""
    total = np.zeros(len(θ))
    for Δw in gradients:
        total = total + Δw**2
        θ = θ - α * Δw / np.sqrt(total + ε)
    return θ
