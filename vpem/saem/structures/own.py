"""Curves that a user writes as a Python function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vpem.errors import InputError, check_choice
from vpem.saem.individuals import Individuals
from vpem.saem.structures.structure import SCALES, Structure, Vector


class Signature:
    """What a user's function says of itself: its parameters, where they begin, its covariates.

    After the ``first`` arguments, which a curve gives it, come parameters, each with a value to
    begin with or one in ``begin``; then, after ``*``, covariates. Parameters that are not in
    ``scales`` are on none.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        scales: Mapping[str, str],
        first: int,
        begin: Mapping[str, float] | None = None,
    ) -> None:
        self.function = function
        self.title = getattr(function, "__name__", "the curve")
        arguments = list(inspect.signature(function).parameters.values())
        plain = [one for one in arguments if one.kind in (one.POSITIONAL_OR_KEYWORD,)]
        self.covariates = tuple(one.name for one in arguments if one.kind is one.KEYWORD_ONLY)
        own = plain[first:]
        if len(plain) + len(self.covariates) < len(arguments) or not own:
            raise InputError(
                f"{self.title} must take {first} argument{'s' if first > 1 else ''} and then its "
                "parameters, and after * covariates; not *args or **others"
            )
        self.names = tuple(one.name for one in own)
        values = {one.name: one.default for one in own} | dict(begin or {})
        for one in own:
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

    def call(self, shape: tuple[int, ...], *arguments: Any, **covariates: Vector) -> Vector:
        """Call the function, whose faults are the user's; what it returns has this shape."""
        try:
            with np.errstate(all="ignore"):
                found = self.function(*arguments, **covariates)
            if isinstance(found, tuple | list):  # of amounts, each an array or a number
                found = np.stack([np.broadcast_to(one, shape[1:]) for one in found])
            return np.broadcast_to(np.asarray(found, dtype=np.float64), shape)
        except InputError:
            raise
        except Exception as error:  # whatever a user's function raises
            raise InputError(
                f"{self.title} fails: {type(error).__name__}: {error}; its arguments are arrays, "
                f"and it returns one of shape {shape}"
            ) from error


class OwnCurve(Structure):
    """A user's function ``f(time, a=..., b=..., *, covariate)`` of arrays, see `curve`."""

    def __init__(self, function: Callable[..., Any], scales: Mapping[str, str]) -> None:
        self.signature = Signature(function, scales, 1)
        self.names, self.scales = self.signature.names, self.signature.scales
        self.needs = self.signature.covariates
        self._begin = self.scaled(self.signature.begin)
        if not np.isfinite(self._begin).all():
            raise InputError(
                f"{self.signature.title}: parameters begin where their scales have no value; begin "
                "those on log above 0, those on logit between 0 and 1"
            )

    def predict(self, phi: Vector, at: Individuals) -> Vector:
        """Return what the function says at the rows."""
        rows = np.moveaxis(self.natural(phi)[:, at.individual_of], -1, 0)
        covariates = {name: at.covariates[name] for name in self.needs}
        return self.signature.call(rows.shape[1:], at.times, *rows, **covariates)

    def begin(self, individuals: Individuals) -> Vector:
        """Return where the function says that its parameters begin."""
        return np.tile(self._begin, (individuals.n_individuals, 1))


def curve(**scales: str) -> Callable[[Callable[..., Any]], OwnCurve]:
    """Make a curve of a function: ``@curve(rate="log")`` before ``def f(time, top=1.0, rate=0.5)``.

    Parameters
    ----------
    **scales : str
        Scales on which parameters are normal: "log" or "logit"; others are normal as they are.

    Returns
    -------
    callable
        What takes the function. Its first argument is an array of times, then come parameters,
        whose values are where a fit begins, and after ``*`` covariates by their names. All are
        arrays, of rows and of chains, and so is what it returns.
    """
    return lambda function: OwnCurve(function, scales)
