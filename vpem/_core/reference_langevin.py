"""NumPy twins of the Langevin kernels: the same names and arguments.

A step is ``z <- z + M^(1/2) ((h / 2) C(M^(1/2) g) + h^(1/2) N)``: g the gradient of the complete
log-density in the latents, M the diagonal of squared scales, C random dithering of q values as one
message (`vpem._core.reference_codecs.dither_encode`; the identity for 0 levels). The normal number
of coordinate j of chain c is at index ``c q + j`` of the step's and individual's key; the key of
the message is what is at index c of its other key. ``n_threads`` has no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from vpem._core.reference_codecs import _draw, dither_transmit

Floats = NDArray[np.float64]
Keys = NDArray[np.uint64]

__all__ = ["langevin_linear", "langevin_one_compartment"]


def _steps(
    gradient: Callable[[Floats], Floats],
    scales: Floats,
    noise: Keys,
    dithers: Keys,
    step: float,
    levels: int,
    z: Floats,
    faults: NDArray[np.uint8],
) -> None:
    """All steps of all chains."""
    n_chains, n, q = z.shape
    faults[:] = 0
    for of_noise, of_dither in zip(noise, dithers, strict=True):
        with np.errstate(all="ignore"):
            slope = scales * gradient(z)
        faults |= ~np.isfinite(slope).all(axis=-1)
        slope[faults > 0] = 0
        if levels:
            keys = np.stack([_draw(key, np.arange(n_chains)) for key in of_dither], axis=1)
            flat, bad = np.empty((n_chains * n, q)), np.zeros(n_chains * n, dtype=np.uint8)
            dither_transmit(slope.reshape(-1, q), keys.ravel(), levels, q, False, flat, bad, 1)
            faults |= bad.reshape(n_chains, n)
            slope = flat.reshape(z.shape)
        words = np.stack([_draw(key, np.arange(n_chains * q)) for key in of_noise])
        normals = ndtri(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)
        normals = normals.reshape(n, n_chains, q).transpose(1, 0, 2)
        moved = z + scales * (0.5 * step * slope + np.sqrt(step) * normals)
        z[...] = np.where(faults[..., None] > 0, z, moved)


def langevin_linear(
    own: Floats,
    cross: Floats,
    mean: Floats,
    precision: Floats,
    variance: float,
    scales: Floats,
    noise: Keys,
    dithers: Keys,
    step: float,
    levels: int,
    z: Floats,
    faults: NDArray[np.uint8],
    n_threads: int,
) -> None:
    """Steps with ``g = -precision (z - mean) - cross (z - own) / variance``."""

    def gradient(at: Floats) -> Floats:
        prior: Floats = (at - mean) @ precision
        rows: Floats = np.einsum("nij,cnj->cni", cross, at - own) / variance
        return -prior - rows

    _steps(gradient, scales, noise, dithers, step, levels, z, faults)


def langevin_one_compartment(
    first: NDArray[np.intp],
    times: Floats,
    doses: Floats,
    values: Floats,
    proportional: bool,
    mean: Floats,
    precision: Floats,
    sd: float,
    scales: Floats,
    noise: Keys,
    dithers: Keys,
    step: float,
    levels: int,
    z: Floats,
    faults: NDArray[np.uint8],
    n_threads: int,
) -> None:
    """Steps with the gradient of ``sum_rows log N(y; f, sd^2)``, and of the latents' normal law.

    ``f = D ka ke t exp(-low t) m(x) / cl``, ``m(x) = (1 - exp(-x)) / x``, ``x = (high - low) t``,
    low and high the smaller and the larger rate; proportional: ``N(y; f, (sd f)^2)``.
    """
    of = np.repeat(np.arange(len(first) - 1), np.diff(first))

    def gradient(at: Floats) -> Floats:
        f, parts = curve(times, doses, at[:, of])
        rest = values - f
        weight: Any = rest / sd**2
        if proportional:
            weight = (rest * values / (f * sd) ** 2 - 1) / f
        added = [np.add.reduceat(weight * part, first[:-1], axis=-1) for part in parts]
        return np.stack(added, axis=-1) - (at - mean) @ precision

    _steps(gradient, scales, noise, dithers, step, levels, z, faults)


def curve(times: Floats, doses: Floats, z: Floats) -> tuple[Floats, tuple[Floats, ...]]:
    """Concentrations and their derivatives in the latents."""
    ka, cl, ke = (np.exp(z[..., j]) for j in range(3))
    low, high = np.minimum(ka, ke), np.maximum(ka, ke)
    x = (high - low) * times
    small = x < 0.05
    safe = np.where(small, 1.0, x)
    m = np.where(small, np.polyval(_SERIES, x), -np.expm1(-safe) / safe)
    slope = np.where(small, np.polyval(np.polyder(_SERIES), x), (np.exp(-safe) - m) / safe)
    common = doses * ka * ke / cl * times * np.exp(-low * times)
    f = common * m
    of_high = common * times * slope * high
    of_low = -low * times * f - common * times * slope * low
    fast = ka >= ke
    return f, (f + np.where(fast, of_high, of_low), -f, f + np.where(fast, of_low, of_high))


_SERIES = np.array([1 / 40320 * -1, 1 / 5040, -1 / 720, 1 / 120, -1 / 24, 1 / 6, -1 / 2, 1.0])
"""Of m(x), highest power first."""
