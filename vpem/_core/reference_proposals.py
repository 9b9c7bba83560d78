"""NumPy twins of the kernels of accepted and refused moves: the same names and arguments.

With a step h of 0 a move changes one coordinate j, one after the other, of all chains:
``z_j + scales_j N`` is taken with probability ``min(1, p(z') / p(z))``. With h above 0 it changes
all: ``z' = z + M^(1/2) ((h / 2) t(M^(1/2) g(z)) + h^(1/2) N)``, M the diagonal of squared scales,
t what keeps numbers between -5 and 5 (no chain is stuck where the density is steep), is taken with
probability ``min(1, p(z') q(z | z') / (p(z) q(z' | z)))``. While ``gain`` is above 0, scales_j, or
h, are then multiplied by ``exp(gain (share of the chains that moved - target))``.
The normal numbers of chain c are from index c (times q) of the key of the move and individual, its
uniform number from index c of their other key. ``work`` and ``n_threads`` have no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from vpem._core.reference_codecs import _draw
from vpem._core.reference_langevin import curve

Floats = NDArray[np.float64]
Keys = NDArray[np.uint64]
Density = Callable[[Floats], tuple[Floats, Floats]]

__all__ = ["propose_linear", "propose_one_compartment"]


def _uniforms(keys: Keys, count: int) -> Floats:
    """Uniform numbers (n, count) inside (0, 1)."""
    words = np.stack([_draw(key, np.arange(count)) for key in keys])
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _tame(slope: Floats) -> Floats:
    """Drift that is bounded."""
    return np.fmin(np.fmax(slope, -5.0), 5.0)


def _propose(
    density: Density,
    scales: Floats,
    steps: Floats,
    moves: Keys,
    chances: Keys,
    gain: float,
    target: float,
    z: Floats,
    accepted: NDArray[np.int64],
) -> None:
    """All moves of all chains."""
    n_chains, _, q = z.shape
    least = -np.finfo(np.float64).max
    accepted[:] = 0
    by_slope = bool(steps[0] > 0)
    before, slope = density(z)
    before, slope = np.maximum(before, least), _tame(scales * slope)
    for number, (of_move, of_chance) in enumerate(zip(moves, chances, strict=True)):
        chance = np.log(_uniforms(of_chance, n_chains)).T
        with np.errstate(all="ignore"):
            if by_slope:
                h = steps[:, None]
                noise = ndtri(_uniforms(of_move, n_chains * q)).reshape(-1, n_chains, q)
                noise = noise.transpose(1, 0, 2)
                proposed = z + scales * (0.5 * h * slope + np.sqrt(h) * noise)
                after, slope_after = density(proposed)
                slope_after = _tame(scales * slope_after)
                back = (z - proposed) / scales - 0.5 * h * slope_after
                odds = after - before - 0.5 * (back**2).sum(axis=-1) / steps
                odds = odds + 0.5 * (noise**2).sum(axis=-1)
            else:
                j = number % q
                proposed = z.copy()
                proposed[..., j] += ndtri(_uniforms(of_move, n_chains)).T * scales[:, j]
                after, slope_after = density(proposed)
                odds = after - before
            taken = chance < odds
        z[...] = np.where(taken[..., None], proposed, z)
        slope = np.where(taken[..., None], slope_after, slope)
        before = np.where(taken, after, before)
        accepted += taken.sum(axis=0)
        if gain > 0:
            factor = np.exp(gain * (taken.mean(axis=0) - target))
            if by_slope:
                steps *= factor
            else:
                scales[:, j] *= factor


def propose_linear(
    own: Floats,
    cross: Floats,
    mean: Floats,
    precision: Floats,
    variance: float,
    scales: Floats,
    steps: Floats,
    moves: Keys,
    chances: Keys,
    gain: float,
    target: float,
    z: Floats,
    work: Floats,
    accepted: NDArray[np.int64],
    n_threads: int,
) -> None:
    """Moves under ``-(z - m)^T P (z - m) / 2 - (z - own)^T cross (z - own) / (2 variance)``."""

    def density(at: Floats) -> tuple[Floats, Floats]:
        prior = np.einsum("ij,cnj->cni", precision, at - mean)
        rows = np.einsum("nij,cnj->cni", cross, at - own) / variance
        found = -0.5 * (prior * (at - mean) + rows * (at - own)).sum(axis=-1)
        return np.where(np.isfinite(found), found, -np.inf), -prior - rows

    _propose(density, scales, steps, moves, chances, gain, target, z, accepted)


def propose_one_compartment(
    first: NDArray[np.intp],
    times: Floats,
    doses: Floats,
    values: Floats,
    proportional: bool,
    mean: Floats,
    precision: Floats,
    sd: float,
    scales: Floats,
    steps: Floats,
    moves: Keys,
    chances: Keys,
    gain: float,
    target: float,
    z: Floats,
    work: Floats,
    accepted: NDArray[np.int64],
    n_threads: int,
) -> None:
    """Moves under ``sum_rows log N(y; f, sd^2) + log N(z; m, P^-1)``, up to constants.

    f and a proportional error are as in `vpem._core.reference_langevin.langevin_one_compartment`.
    """
    of = np.repeat(np.arange(len(first) - 1), np.diff(first))

    def density(at: Floats) -> tuple[Floats, Floats]:
        with np.errstate(all="ignore"):
            f, slopes = curve(times, doses, at[:, of])
            rest = values - f
            weight: Any = rest / sd**2
            each = -0.5 * (rest / sd) ** 2
            if proportional:
                weight = (rest * values / (f * sd) ** 2 - 1) / f
                each = -0.5 * (rest / (f * sd)) ** 2 - np.log(f)
            added = [np.add.reduceat(weight * one, first[:-1], axis=-1) for one in slopes]
            prior = np.einsum("ij,cnj->cni", precision, at - mean)
            found = np.add.reduceat(each, first[:-1], axis=-1)
            found = found - 0.5 * (prior * (at - mean)).sum(axis=-1)
        return np.where(np.isfinite(found), found, -np.inf), np.stack(added, axis=-1) - prior

    _propose(density, scales, steps, moves, chances, gain, target, z, accepted)
