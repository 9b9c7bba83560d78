"""What a mixed model needs of a curve: its value at the rows, and derivatives, for many chains.

A user writes curves as Python functions.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Self

import numpy as np

from vpem.checks import Doubles
from vpem.errors import InputError, check_choice
from vpem.saem import special
from vpem.saem.individuals import Individuals

SCALES = ("log", "logit", "identity")
"""On which parameters are normal: of positive ones, of parts of one, of any number."""

STEP = float(np.cbrt(np.finfo(np.float64).eps))
"""Of central differences, where a parameter is 1."""


class Structure(ABC):
    """A curve with parameters ``phi``, each on the scale on which it is normal.

    Parameters of the individuals in several chains are arrays ``phi (chains, n, m)``; curves at
    their rows are ``(chains, N)``. What an individual's curve is depends on its own rows, doses and
    parameters only. ``scales`` are "log", "logit" or "identity", ``needs`` the covariates that the
    curve reads, and ``start`` (m,) where parameters of all begin on their scales, if that is known.
    Kernels know it by its ``code`` (None: they do not), and read doses where it is ``dosed``.
    """

    names: tuple[str, ...]
    scales: tuple[str, ...]
    needs: tuple[str, ...] = ()
    code: int | None = None
    dosed = False
    start: Doubles | None = None

    @property
    def latents(self) -> tuple[str, ...]:
        """Names of the parameters on their scales, such as ``log ka``, ``logit f``, ``slope``."""
        pairs = zip(self.names, self.scales, strict=True)
        return tuple(name if scale == "identity" else f"{scale} {name}" for name, scale in pairs)

    def natural(self, phi: Doubles) -> Doubles:
        """Parameters (..., m) as they are, of those on their scales."""
        return _by_scale(phi, self.scales, {"log": np.exp, "logit": special.expit})

    def scaled(self, natural: Doubles) -> Doubles:
        """Parameters (..., m) on their scales; of those with none there NaN or inf."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return _by_scale(natural, self.scales, {"log": np.log, "logit": special.logit})

    def check(self, at: Individuals) -> None:
        """Check rows, covariates and doses; InputError if they have no meaning for this curve."""
        for name in self.needs:
            at.covariate(name)

    def design(self, at: Individuals) -> Doubles:
        """Columns (N, m) of which the curve is a sum; of other curves (N, 0)."""
        return np.zeros((at.n_rows, 0))

    def among(self, names: tuple[str, ...], design: Callable[[Individuals], Doubles]) -> Self:
        """A sum of other columns (N, k), by names of their coefficients; other curves stay."""
        return self

    @abstractmethod
    def predict(self, phi: Doubles, at: Individuals) -> Doubles:
        """Return the curves (chains, N) at the rows of individuals; not finite: no value there.

        Measured values of ``at`` count for nothing.
        """

    def slopes(self, phi: Doubles, at: Individuals) -> tuple[Doubles, Doubles]:
        """Return the curves (chains, N), and their derivatives in ``phi``, (chains, N, m)."""
        n_chains, m = len(phi), phi.shape[-1]
        least = np.array([1e-3 if scale == "identity" else 1.0 for scale in self.scales])
        steps = STEP * np.maximum(np.abs(phi), least)
        all_of_them = np.repeat(phi[None], 2 * m + 1, axis=0)
        for j in range(m):
            all_of_them[1 + j, ..., j] += steps[..., j]
            all_of_them[1 + m + j, ..., j] -= steps[..., j]
        f = self.predict(all_of_them.reshape(-1, *phi.shape[1:]), at)
        f = f.reshape(2 * m + 1, n_chains, -1)
        with np.errstate(invalid="ignore", over="ignore"):
            apart = f[1 : 1 + m] - f[1 + m :]
            moved = all_of_them[1 : 1 + m] - all_of_them[1 + m :]
            widths = np.moveaxis(np.diagonal(moved, axis1=0, axis2=-1), -1, 0)
            slopes = apart / widths[..., at.individual_of]
        return f[0], np.ascontiguousarray(np.moveaxis(slopes, 0, -1))

    def begin(self, individuals: Individuals) -> Doubles:
        """Each individual's own guess (n, m), on the scales; NaN where there is none."""
        start = np.full(len(self.names), np.nan) if self.start is None else self.start
        return np.tile(start, (individuals.n_individuals, 1))


def _by_scale(values: Doubles, scales: tuple[str, ...], functions: dict[str, np.ufunc]) -> Doubles:
    """Apply to each of the last axis what its scale has."""
    scaled = np.array(values, dtype=np.float64)
    for j, scale in enumerate(scales):
        if scale in functions:
            scaled[..., j] = functions[scale](scaled[..., j])
    return scaled


class Signature:
    """What a user's function says of itself: its parameters, where they begin, its covariates.

    After the ``first`` arguments, which a curve gives it, come parameters, each with a value to
    begin with or one in ``begin``; then, after ``*``, covariates. Parameters that are not in
    ``scales`` are on none.
    """

    def __init__(
        self,
        function: Callable[..., object],
        scales: Mapping[str, str],
        first: int,
        begin: Mapping[str, float] | None = None,
    ) -> None:
        self.function = function
        self.title = getattr(function, "__name__", "the curve")
        arguments = list(inspect.signature(function).parameters.values())
        plain = [one for one in arguments if one.kind in (one.POSITIONAL_OR_KEYWORD,)]
        self.covariates = tuple(one.name for one in arguments if one.kind is one.KEYWORD_ONLY)
        parameters = plain[first:]
        if len(plain) + len(self.covariates) < len(arguments) or not parameters:
            raise InputError(
                f"{self.title} must take {first} argument{'s' if first > 1 else ''} and then its "
                "parameters, and after * covariates; not *args or **others"
            )
        self.names = tuple(one.name for one in parameters)
        values = {one.name: one.default for one in parameters} | dict(begin or {})
        for one in parameters:
            value = values[one.name]
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(
                    f"{self.title}: give the parameter {one.name} a value to begin with, "
                    f"{one.name}=1.0"
                )
        self.begin = np.array([float(values[name]) for name in self.names])
        for name, scale in scales.items():
            check_choice(f"parameter of {self.title}", name, self.names)
            check_choice(f"scale of {name}", scale, SCALES)
        self.scales = tuple(scales.get(name, "identity") for name in self.names)

    def call(self, shape: tuple[int, ...], *arguments: object, **covariates: Doubles) -> Doubles:
        """Call the function, whose faults are the user's; what it returns has this shape."""
        try:
            with np.errstate(all="ignore"):
                values = self.function(*arguments, **covariates)
            if isinstance(values, tuple | list):  # of amounts, each an array or a number
                values = np.stack([np.broadcast_to(one, shape[1:]) for one in values])
            return np.broadcast_to(np.asarray(values, dtype=np.float64), shape)
        except InputError:
            raise
        except Exception as error:  # whatever a user's function raises
            raise InputError(
                f"{self.title} fails: {type(error).__name__}: {error}; its arguments are arrays, "
                f"and it returns one of shape {shape}"
            ) from error


class OwnCurve(Structure):
    """A user's function ``f(time, a=..., b=..., *, covariate)`` of arrays, see `curve`."""

    def __init__(self, function: Callable[..., object], scales: Mapping[str, str]) -> None:
        self.signature = Signature(function, scales, 1)
        self.names, self.scales = self.signature.names, self.signature.scales
        self.needs = self.signature.covariates
        self.start = self.scaled(self.signature.begin)
        if not np.isfinite(self.start).all():
            raise InputError(
                f"{self.signature.title}: parameters begin where their scales have no value; begin "
                "those on log above 0, those on logit between 0 and 1"
            )

    def predict(self, phi: Doubles, at: Individuals) -> Doubles:
        rows = np.moveaxis(self.natural(phi)[:, at.individual_of], -1, 0)
        covariates = {name: at.covariates[name] for name in self.needs}
        return self.signature.call(rows.shape[1:], at.times, *rows, **covariates)


def curve(**scales: str) -> Callable[[Callable[..., object]], OwnCurve]:
    """Make a curve of a function: ``@curve(rate="log")`` before ``def f(time, top=1.0, rate=0.5)``.

    Parameters are normal on the scale "log" or "logit", others as they are. The first argument of
    the function is an array of times, then come parameters, whose values are where a fit begins,
    and after ``*`` covariates by their names. All are arrays, of rows and of chains, and so is what
    it returns.
    """
    return lambda function: OwnCurve(function, scales)
