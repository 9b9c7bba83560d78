"""Draws from a random Gaussian mixture whose components overlap as much as one asks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import Doubles, check_int, check_memory
from vpem.errors import InputError, Setting
from vpem.files.datasets import Dataset, default_names
from vpem.network.partition import contiguous

BLOCK_ROWS = 1 << 15
PROBES = 20_000  # points at which the overlap of a candidate mixture is estimated
STEPS = 40  # of bisection
SPREAD = 4.0  # the largest variance along an axis of the common shape; the least is 1 / SPREAD
SHIFT = 0.5  # root mean square distance of the means from the origin, at scale 1
BEND = 1.0  # size of the differences between the logarithms of the covariances, from scale 1 on


def simulate(
    n_samples: int,
    n_features: int,
    n_components: int,
    *,
    overlap: float = 0.05,  # in (0, 1 - largest weight); unused with one component
    n_agents: int | None = None,  # of contiguous features
    weights: ArrayLike | None = None,  # (K,); equal by default
    seed: int = 0,
) -> tuple[Dataset, dict[str, Doubles]]:
    """Draw a dataset from a random mixture with a chosen overlap; the truth is returned beside it.

    The overlap is the Bayes error of the mixture: the probability that the most probable component
    of an example, under the true parameters, is not the one it was drawn from, ``E[1 - max_k P(k |
    x)]``. Means lie in random directions, and covariances are full: a random common shape, bent a
    little differently for each component. One scale moves the means apart (and, up to 1, makes the
    covariances different); bisection finds the scale with this error, estimated at the same seeded
    points for every candidate.

    Truth: ``weights`` (K,), ``means`` (K, d), ``covariances`` (K, d, d), estimated ``overlap`` ().
    """
    n_samples = check_int("n_samples", n_samples, least=1)
    n_features = check_int("n_features", n_features, least=1)
    n_components = check_int("n_components", n_components, least=1)
    seed = check_int("seed", seed, least=0)
    check_memory(16 * n_components * n_features**2, "the covariances of the mixture")
    pi = _weights(weights, n_components)
    if n_components > 1:
        # To the accuracy of the estimate.
        most = 1.0 - float(pi.max())
        number = isinstance(overlap, int | float | np.number) and not isinstance(overlap, bool)
        if not number or not 0.0 < overlap < most * (1.0 - 1e-6):
            raise InputError(
                Setting("overlap"),
                f" must lie above 0 and below {most:.4g} (one minus the largest weight), got "
                f"{overlap!r}",
            )
    partition = None if n_agents is None else contiguous(n_features, n_agents)
    check_memory(8 * n_samples * n_features, f"a dataset of {n_samples} x {n_features}")
    shape_seed, probe_seed, draw_seed = np.random.SeedSequence(int(seed)).spawn(3)
    family = _family(n_components, n_features, np.random.default_rng(shape_seed))
    error = 0.0
    scale = 1.0
    if n_components > 1:
        # As many of each component as its weight says, and the same noise at every scale.
        ends = np.round(np.cumsum(pi) * PROBES).astype(np.intp)
        labels = np.searchsorted(ends, np.arange(PROBES), side="right").clip(max=pi.size - 1)
        probes = labels.astype(np.intp)
        probe_noise = np.random.default_rng(probe_seed).standard_normal((PROBES, n_features))

        def error_at(scale: float) -> float:
            means, roots, _ = family(scale)
            X = _place(probes, probe_noise, means, roots)
            logs = np.empty((PROBES, pi.size))
            for k in range(pi.size):
                _, log_root = np.linalg.slogdet(roots[k])
                white = (X - means[k]) @ np.linalg.inv(roots[k])
                logs[:, k] = np.log(pi[k]) - log_root - 0.5 * np.einsum("ij,ij->i", white, white)
            odds = np.exp(logs - logs.max(axis=1, keepdims=True))
            total = odds.sum(axis=1)
            return float(np.mean((total - 1.0) / total))  # of 1 - max_k P(k | x)

        scale = _bisect(error_at, overlap)
        error = error_at(scale)
    means, roots, common = family(scale)
    means, roots = means @ common, roots @ common
    rng = np.random.default_rng(draw_seed)
    labels = rng.choice(n_components, size=n_samples, p=pi)
    X = np.empty((n_samples, n_features))
    for start in range(0, n_samples, BLOCK_ROWS):
        rows = slice(start, min(start + BLOCK_ROWS, n_samples))
        noise = rng.standard_normal((rows.stop - rows.start, n_features))
        X[rows] = _place(labels[rows], noise, means, roots)
    source = f"simulated with seed {seed}"
    dataset = Dataset(
        X, default_names(n_features), labels=labels, partition=partition, source=source
    )
    covariances = np.swapaxes(roots, 1, 2) @ roots
    truth = {
        "weights": pi,
        "means": means,
        "covariances": (covariances + np.swapaxes(covariances, 1, 2)) / 2.0,
        "overlap": np.array(error),
    }
    return dataset, truth


def _family(
    n_components: int, n_features: int, rng: np.random.Generator
) -> Callable[[float], tuple[Doubles, Doubles, Doubles]]:
    """Draw a family of mixtures and return the map from its scale to a member.

    The map gives the means (K, d) and the roots ``R`` (K, d, d) of the covariances ``R^T R``
    before the common shape is applied, and the root (d, d) of the common shape.
    """
    axes, _ = np.linalg.qr(rng.standard_normal((n_features, n_features)))
    variances = SPREAD ** rng.uniform(-1.0, 1.0, n_features)
    common = np.sqrt(variances)[:, None] * axes.T
    directions = SHIFT * rng.standard_normal((n_components, n_features)) / np.sqrt(n_features)
    # Symmetric, of entries so small that the covariances alone never tell components apart.
    bends = rng.standard_normal((n_components, n_features, n_features))
    bends = BEND * (bends + np.swapaxes(bends, 1, 2)) / (2.0 * n_features)
    logs, frames = np.linalg.eigh(bends)

    def member(scale: float) -> tuple[Doubles, Doubles, Doubles]:
        halves = np.exp(min(scale, 1.0) * logs)
        roots = (frames * halves[:, None, :]) @ np.swapaxes(frames, 1, 2)
        return scale * directions, roots, common

    return member


def _place(labels: NDArray[np.intp], noise: Doubles, means: Doubles, roots: Doubles) -> Doubles:
    """Turn standard normal rows into draws from the components that the labels name."""
    X = np.empty_like(noise)
    for k in range(means.shape[0]):
        rows = labels == k
        X[rows] = noise[rows] @ roots[k] + means[k]
    return X


def _bisect(error_at: Callable[[float], float], overlap: float) -> float:
    """Return the scale at which the error is ``overlap``; it falls as the scale grows."""
    low = high = 1.0
    while error_at(high) > overlap:
        high *= 2.0
    while error_at(low) < overlap:
        low /= 2.0
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        if error_at(middle) > overlap:
            low = middle
        else:
            high = middle
        if high - low < 1e-4 * high:
            break
    return 0.5 * (low + high)


def _weights(weights: ArrayLike | None, n_components: int) -> Doubles:
    if weights is None:
        return np.full(n_components, 1.0 / n_components)
    pi = np.asarray(weights, dtype=np.float64)
    good = pi.shape == (n_components,) and bool(np.all(pi > 0))
    if not good or not np.isclose(pi.sum(), 1.0, rtol=0, atol=1e-9):
        raise InputError(
            f"weights must be {n_components} positive numbers that sum to 1, got {weights!r}"
        )
    return np.asarray(pi / pi.sum())
