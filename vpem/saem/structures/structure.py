"""What a mixed model asks of a curve: its value at the rows, and derivatives, for many chains."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from vpem.errors import check_choice
from vpem.saem.doses import Doses
from vpem.saem.individuals import Individuals

Vector = NDArray[np.float64]

SCALES = ("log", "logit", "identity")
"""On which parameters are normal: of positive ones, of parts of one, of any number."""

STEP = float(np.cbrt(np.finfo(np.float64).eps))
"""Of central differences, where a parameter is 1."""


class Structure(ABC):
    """A curve with parameters ``phi``, each on the scale on which it is normal.

    Parameters of the individuals in several chains are arrays ``phi (chains, n, m)``; curves at
    their rows are ``(chains, N)``. What an individual's curve is depends on its own rows, doses
    and parameters only.

    Attributes
    ----------
    names : tuple of str
        Of the parameters, (m,).
    scales : tuple of str
        Of each: "log", "logit" or "identity".
    needs : tuple of str
        Covariates that the curve reads.
    code : int or None
        What kernels know the curve by; None: they do not.
    linear : bool
        Whether it is a sum of columns, its `design`.
    """

    names: tuple[str, ...]
    scales: tuple[str, ...]
    needs: tuple[str, ...] = ()
    code: int | None = None
    linear = False

    @property
    def latents(self) -> tuple[str, ...]:
        """Names of the parameters on their scales, such as ``log ka``, ``logit f``, ``slope``."""
        pairs = zip(self.names, self.scales, strict=True)
        return tuple(name if scale == "identity" else f"{scale} {name}" for name, scale in pairs)

    def natural(self, phi: Vector) -> Vector:
        """Return parameters (..., m) as they are, of those on their scales."""
        return _by_scale(phi, self.scales, {"log": np.exp, "logit": expit})

    def scaled(self, natural: Vector) -> Vector:
        """Return parameters (..., m) on their scales; of those with none there NaN or inf."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return _by_scale(natural, self.scales, {"log": np.log, "logit": logit})

    def check(self, at: Individuals) -> None:
        """Check rows, covariates and doses; InputError if they have no meaning for this curve."""
        for name in self.needs:
            at.covariate(name)

    @abstractmethod
    def predict(self, phi: Vector, at: Individuals) -> Vector:
        """Return the curves (chains, N) at the rows of individuals; not finite: no value there.

        Measured values of ``at`` count for nothing.
        """

    def slopes(self, phi: Vector, at: Individuals) -> tuple[Vector, Vector]:
        """Return the curves (chains, N), and their derivatives in ``phi``, (chains, N, m)."""
        n_chains, m = len(phi), phi.shape[-1]
        least = np.array([1e-3 if scale == "identity" else 1.0 for scale in self.scales])
        steps = STEP * np.maximum(np.abs(phi), least)
        all_of_them = np.repeat(phi[None], 2 * m + 1, axis=0)
        for j in range(m):
            all_of_them[1 + j, ..., j] += steps[..., j]
            all_of_them[1 + m + j, ..., j] -= steps[..., j]
        found = self.predict(all_of_them.reshape(-1, *phi.shape[1:]), at)
        found = found.reshape(2 * m + 1, n_chains, -1)
        with np.errstate(invalid="ignore", over="ignore"):
            apart = found[1 : 1 + m] - found[1 + m :]
            moved = all_of_them[1 : 1 + m] - all_of_them[1 + m :]
            widths = np.moveaxis(np.diagonal(moved, axis1=0, axis2=-1), -1, 0)
            slopes = apart / widths[..., at.individual_of]
        return found[0], np.ascontiguousarray(np.moveaxis(slopes, 0, -1))

    def doses(self, at: Individuals) -> Doses:
        """Return the doses that kernels of this curve read: none, by default."""
        return Doses.none(at.n_individuals)

    def design(self, at: Individuals) -> Vector:
        """Return the columns (N, m) of a linear predictor; of other curves none, (0, m)."""
        return np.zeros((0, len(self.names)))

    def begin(self, individuals: Individuals) -> Vector:
        """Return each individual's own guess (n, m), on the scales; NaN where there is none."""
        return np.full((individuals.n_individuals, len(self.names)), np.nan)


def check_scales(scales: tuple[str, ...]) -> tuple[str, ...]:
    """Return scales, each of which is one."""
    return tuple(check_choice("scale", one, SCALES) for one in scales)


def _by_scale(values: Vector, scales: tuple[str, ...], functions: dict[str, np.ufunc]) -> Vector:
    """Apply to each of the last axis what its scale has."""
    found = np.array(values, dtype=np.float64)
    for j, scale in enumerate(scales):
        if scale in functions:
            found[..., j] = functions[scale](found[..., j])
    return found
