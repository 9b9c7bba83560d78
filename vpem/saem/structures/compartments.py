"""Concentrations after doses in compartments with rates of first order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vpem.errors import InputError
from vpem.saem.doses import Doses, doses_of
from vpem.saem.individuals import Individuals
from vpem.saem.structures.one_dose import concentration
from vpem.saem.structures.structure import Structure, Vector

__all__ = ["OneCompartment"]

ROUTES = {("ka", "cl", "ke"), ("ka", "cl", "v"), ("ka", "v", "ke")}


class OneCompartment(Structure):
    """Oral doses in one compartment: ``D ka / (v (ka - ke)) (exp(-ke t) - exp(-ka t))``.

    Parameters are positive, and normal as logarithms: the rate of absorption ``ka``, and two of the
    clearance ``cl``, the volume ``v`` and the rate of elimination ``ke = cl / v``.

    Parameters
    ----------
    names : sequence of str
        Of the parameters: ka, cl, ke or ka, cl, v or ka, v, ke.

    Raises
    ------
    InputError
        If they are not such.
    """

    def __init__(self, names: Sequence[str] = ("ka", "cl", "ke")) -> None:
        self.names = tuple(names)
        if self.names not in ROUTES:
            raise InputError(
                "parameters of one compartment must be ka,cl,ke or ka,cl,v or ka,v,ke, got "
                f"{','.join(self.names)!r}"
            )
        self.scales = ("log",) * 3
        v = "v" in self.names
        # Logarithms of ka, cl and ke are these sums of those of the parameters.
        self._sums = np.eye(3)
        if v and "cl" in self.names:
            self._sums[2] = [0, 1, -1]
        elif v:
            self._sums[1] = [0, 1, 1]

    def check(self, at: Individuals) -> None:
        """Refuse doses and rows that have no meaning."""
        check_doses(at)

    def predict(self, phi: Vector, at: Individuals) -> Vector:
        """Return concentrations (chains, N)."""
        return self.slopes(phi, at)[0]

    def slopes(self, phi: Vector, at: Individuals) -> tuple[Vector, Vector]:
        """Return concentrations and their derivatives."""
        doses, who = doses_of(at), at.individual_of
        of_rows = (phi @ self._sums.T)[:, who]
        total, bends = np.zeros(of_rows.shape[:2]), np.zeros(of_rows.shape)
        for turn in range(int(doses.counts.max(initial=0))):
            times, amounts = _dose_of_rows(doses, turn, who)
            f, slopes = concentration(np.maximum(at.times - times, 0.0), amounts, of_rows)
            there = at.times > times
            total += np.where(there, f, 0.0)
            bends += np.where(there[:, None], slopes, 0.0)
        return total, bends @ self._sums

    def begin(self, individuals: Individuals) -> Vector:
        """Return logarithms read from the area, the peak and the tail of each curve."""
        doses = doses_of(individuals)
        n = individuals.n_individuals
        found = np.array([_read(individuals, doses, one) for one in range(n)]).reshape(n, 3)
        guess: Vector = found @ np.linalg.inv(self._sums).T
        return guess


def check_doses(at: Individuals) -> None:
    """Refuse doses that are negative, and rows before the first one.

    Raises
    ------
    InputError
        Where there are such.
    """
    doses = doses_of(at)
    start = np.full(at.n_individuals, -np.inf)
    given = doses.counts > 0
    start[given] = doses.times[doses.first[:-1][given]]
    early = at.times < start[at.individual_of]
    for what, wrong, who, values in (
        ("a dose that is negative", doses.amounts < 0, doses.individual_of, doses.amounts),
        ("a time before the dose", early, at.individual_of, at.times),
    ):
        if wrong.any():
            place = int(wrong.argmax())
            raise InputError(
                f"{at.source}: individual {at.names[who[place]]!r} has {what}, {values[place]:g}; "
                "times count from the dose, and doses are not negative"
            )


def _dose_of_rows(doses: Doses, turn: int, who: NDArray[np.intp]) -> tuple[Vector, Vector]:
    """Time and amount (N,) of a dose of each row's individual; where there is none, 0."""
    there = (doses.counts > turn)[who]
    place = np.where(there, doses.first[:-1][who] + turn, 0)
    return np.where(there, doses.times[place], np.inf), np.where(there, doses.amounts[place], 0.0)


def _read(data: Individuals, doses: Doses, one: int) -> Vector:
    """Logarithms of ka, cl and ke from the area, the peak and the tail of a curve."""
    rows = slice(data.first[one], data.first[one + 1])
    given = slice(doses.first[one], doses.first[one + 1])
    t, y = data.times[rows], np.maximum(data.values[rows], 0.0)
    if given.start == given.stop or len(t) < 2:
        return np.full(3, np.nan)
    t = t - doses.times[given.start]
    top = int(y.argmax())
    low = max(1e-3 * y[top], 1e-300)
    tail = slice(max(top, len(t) - 4), len(t))
    ke = 0.0
    apart = t[tail] - t[tail].mean()
    if apart.any():
        ke = -float(apart @ np.log(np.maximum(y[tail], low)) / (apart @ apart))
    span = max(float(t[-1]), 1e-12)
    ke = min(max(ke, 0.2 / span), 50.0 / span)
    area = float(np.sum((y[1:] + y[:-1]) * np.diff(t)) / 2) + y[-1] / ke
    peak = max(float(t[top]), 0.02 / ke)
    ka = max(2.0 / peak, 1.5 * ke)
    amount = float(doses.amounts[given].sum())
    if not amount > 0 or not area > 0:  # as others' then
        return np.log([ka, np.nan, ke])
    return np.log([ka, amount / area, ke])
