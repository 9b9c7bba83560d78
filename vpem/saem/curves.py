"""What is told of individuals, at which times, and what no fit can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import as_array
from vpem.errors import InputError
from vpem.saem.individuals import Individuals
from vpem.saem.models.gmm import GmmModel
from vpem.saem.models.model import POSITIVE, SaemModel, Vector

MOST_TIMES = 100_000

LARGEST = 1 << 22
"""Numbers of draws at once."""

P = ParamSpec("P")
R = TypeVar("R")


def finite(compute: Callable[P, R]) -> Callable[P, R]:
    """Refuse numbers that are not finite: a file may hold estimates that nothing follows from."""

    @wraps(compute)
    def checked(*given: P.args, **options: P.kwargs) -> R:
        nothing = "nothing finite follows from the fit's estimates and these individuals"
        try:
            with np.errstate(all="ignore"):
                found = compute(*given, **options)
        except (np.linalg.LinAlgError, ArithmeticError) as error:
            raise InputError(f"{nothing} ({error})") from error
        parts: tuple[object, ...] = (
            found if isinstance(found, tuple) else (getattr(found, "each", found),)
        )
        if not all(np.isfinite(np.asarray(part)).all() for part in parts):
            raise InputError(f"{nothing}; give data like those of the fit")
        return found

    return checked


@dataclass(frozen=True)
class Curves:
    """Curves of individuals, without error, at their conditional mean latents."""

    at: Individuals  # whose, when; values where there were rows, else NaN
    fitted: Vector  # (N,)
    lower: Vector  # (N,) end of the interval of the curve
    upper: Vector  # (N,)
    level: float  # probability of an interval


@dataclass(frozen=True)
class Latents:
    """Latents given the rows."""

    names: tuple[str, ...]  # (n,) of the individuals
    means: Vector  # (n, q)
    lower: Vector  # (n, q) end of an interval
    upper: Vector  # (n, q)
    covariances: Vector  # (n, q, q)
    level: float  # probability of an interval


def check_law(model: SaemModel, theta: Vector) -> None:
    """Refuse parameters from a file that are no law."""
    if model.wide:
        if not (theta > 0).all():
            raise InputError("the fit's estimates are no law: they must be positive probabilities")
        return
    for name, value in zip(model.parameters, theta.tolist(), strict=True):
        if name.startswith(POSITIVE) and not value > 0:
            raise InputError(f"the fit's estimate of {name!r} must be positive, got {value:g}")
    if type(model).population is SaemModel.population:
        covariances = model.unpack(theta)[2] if isinstance(model, GmmModel) else np.ones((1, 1, 1))
    else:
        covariances = np.array([model.population(theta)[1]])
    try:
        least = float(np.linalg.eigvalsh(covariances).min())
    except np.linalg.LinAlgError:
        least = 0.0
    if not least > 0:
        raise InputError("the fit's estimates are no law: a covariance is not positive definite")


def in_batches(at: Individuals, width: int, n_draws: int) -> Iterator[Individuals]:
    """Yield individuals in parts whose draws, of latents (width) or of rows, take little memory."""
    sizes = np.cumsum(np.maximum(at.counts, width)) * n_draws // LARGEST
    for part in np.unique(sizes):
        yield at.take(np.flatnonzero(sizes == part))


def at_times(
    names: Sequence[str],
    times: ArrayLike,
    covariates: Mapping[str, Vector],
    source: str,
) -> Individuals:
    """Individuals at the same times (T,), with constant covariates (n,), and no values."""
    grid = as_array("the times", times)
    if grid.ndim != 1 or grid.dtype.kind not in "iuf" or not 0 < len(grid) <= MOST_TIMES:
        raise InputError(
            f"the times must be 1 to {MOST_TIMES} numbers, got shape {grid.shape} of type "
            f"{grid.dtype}"
        )
    grid = grid.astype(np.float64)
    if not np.isfinite(grid).all():
        raise InputError("the times must be finite")
    n, width = len(names), len(grid)
    ends: NDArray[np.intp] = np.arange(n + 1, dtype=np.intp) * width
    repeated = {name: np.repeat(values, width) for name, values in covariates.items()}
    nothing = np.full(n * width, np.nan)
    return Individuals(tuple(names), ends, np.tile(grid, n), nothing, repeated, source)


def moved_to(
    individuals: Individuals, times: ArrayLike, covariates: Mapping[str, Vector]
) -> Individuals:
    """Return individuals with their doses at the same times (T,), and no values."""
    found = at_times(individuals.names, times, covariates, individuals.source)
    return replace(found, doses=individuals.doses)
