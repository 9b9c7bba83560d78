"""Concentrations after doses in one or two compartments with rates of first order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vpem._core.compartments import curves
from vpem._core.reference_compartments import BY_CL_AND_KE, BY_V_AND_KE, LAG, ORAL, TWO
from vpem._core.threads import thread_count
from vpem.errors import InputError
from vpem.saem.doses import Doses, doses_of
from vpem.saem.individuals import Individuals
from vpem.saem.structures.structure import Structure, Vector

CORES = {
    ("cl", "v"): 0,
    ("cl", "ke"): BY_CL_AND_KE,
    ("v", "ke"): BY_V_AND_KE,
    ("cl", "v1", "q", "v2"): TWO,
}
"""What is between ka, if doses are absorbed, and tlag, if that begins late."""


class Compartments(Structure):
    """Doses that are absorbed, injected or infused, in one or two compartments.

    Parameters are positive, and normal as logarithms: the rate of absorption ``ka``, without which
    doses go into the blood at once or are infused; of one compartment two of the clearance ``cl``,
    the volume ``v`` and the rate of elimination ``ke = cl / v``; of two compartments ``cl``, their
    volumes ``v1`` and ``v2`` and the clearance ``q`` between them; and the time ``tlag`` until
    absorption begins; in this order. The effects of repeated doses add up. A measurement at the
    time of a dose is from before it.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.oral, self.late = "ka" in self.names[:1], "tlag" in self.names[-1:]
        core = self.names[int(self.oral) : len(self.names) - int(self.late)]
        if core not in CORES or (self.late and not self.oral):
            known = ", or ".join(",".join(one) for one in CORES)
            raise InputError(
                f"parameters of compartments must be {known}, with ka before them if doses are "
                f"absorbed, and tlag last if that begins late; got {','.join(self.names)!r}"
            )
        self.core = core
        self.scales = ("log",) * len(self.names)
        self.code = CORES[core] | ORAL * self.oral | LAG * self.late

    def check(self, at: Individuals) -> None:
        """Refuse doses and rows that have no meaning."""
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
                    f"{at.source}: individual {at.names[who[place]]!r} has {what}, "
                    f"{values[place]:g}; times count from the dose, and doses are not negative"
                )

    def doses(self, at: Individuals) -> Doses:
        """Return doses, or else one at time 0 of what the covariate ``dose`` says."""
        return doses_of(at)

    def _curves(self, phi: Vector, at: Individuals, slopes: Vector) -> Vector:
        doses = doses_of(at)
        found = np.empty((len(phi), at.n_rows))
        curves(
            self.code, np.ascontiguousarray(phi, dtype=np.float64), at.first, at.times,
            doses.first, *doses.columns, found, slopes, thread_count(None),
        )  # fmt: skip
        return found

    def predict(self, phi: Vector, at: Individuals) -> Vector:
        """Return concentrations (chains, N)."""
        return self._curves(phi, at, np.empty((0, 0, 0)))

    def slopes(self, phi: Vector, at: Individuals) -> tuple[Vector, Vector]:
        """Return concentrations and their derivatives."""
        slopes = np.empty((len(phi), at.n_rows, len(self.names)))
        return self._curves(phi, at, slopes), slopes

    def begin(self, individuals: Individuals) -> Vector:
        """Return logarithms read from the area, the peak and the tail of each curve."""
        doses = doses_of(individuals)
        n = individuals.n_individuals
        read = np.array([_read(individuals, doses, one) for one in range(n)]).reshape(n, 5)
        ka, cl, ke, top, lag = np.log(read).T
        v = cl - ke
        found = {"ka": ka, "cl": cl, "ke": ke, "v": v, "q": cl, "tlag": lag}
        # The first volume is what an injection is found in at once.
        share = 0.5 if self.oral else np.clip(np.exp(-top - v), 0.1, 0.9)
        found |= {"v1": v + np.log(share), "v2": v + np.log1p(-share)}
        return np.stack([found[name] for name in self.names], axis=-1)


class OneCompartment(Compartments):
    """One compartment, by default of doses that are absorbed, see `Compartments`."""

    def __init__(self, names: Sequence[str] = ("ka", "cl", "ke")) -> None:
        super().__init__(names)
        if "v1" in self.names:
            raise InputError("cl,v1,q,v2 are parameters of two compartments")


class TwoCompartments(Compartments):
    """Two compartments, by default of doses that are injected or infused, see `Compartments`."""

    def __init__(self, names: Sequence[str] = ("cl", "v1", "q", "v2")) -> None:
        super().__init__(names)
        if "v1" not in self.names:
            raise InputError(
                f"parameters of two compartments are cl,v1,q,v2, got {','.join(self.names)!r}"
            )


def _read(data: Individuals, doses: Doses, one: int) -> tuple[float, ...]:
    """Return ka, cl and ke from the area, the peak and the tail of a curve; NaN: they do not say.

    Peak and tail are those after the dose that was followed for the longest. Behind them is the
    highest value for an amount of 1, and a time before absorption shows.
    """
    rows = slice(data.first[one], data.first[one + 1])
    given = slice(doses.first[one], doses.first[one + 1])
    t, y = data.times[rows], np.maximum(data.values[rows], 0.0)
    order = np.argsort(t, kind="stable")  # outcomes may be one after the other
    t, y = t[order], y[order]
    begun, amounts = doses.times[given], doses.amounts[given]
    after = np.searchsorted(begun, t) - 1  # which dose a row is after
    runs = [np.flatnonzero(after == dose) for dose in np.unique(after[after >= 0])]
    if not runs or len(t) < 2:
        return (np.nan,) * 5
    runs = [run[y[run].argmax() :] for run in runs]
    tail = max(runs, key=lambda run: t[run[-1]] - t[run[0]])
    top, dose = tail[0], after[tail[0]]
    tail = tail[-4:]
    low = max(1e-3 * y[top], 1e-300)
    apart = t[tail] - t[tail].mean()
    ke = 0.0
    if apart.any():
        ke = -float(apart @ np.log(np.maximum(y[tail], low)) / (apart @ apart))
    span = max(float(t[-1] - begun[0]), 1e-12)
    ke = min(max(ke, 0.2 / span), 50.0 / span)
    area = float(np.sum((y[1:] + y[:-1]) * np.diff(t)) / 2) + y[-1] / ke
    peak = max(float(t[top] - begun[dose]), 0.02 / ke)
    ka = max(2.0 / peak, 1.5 * ke)
    amount = float(amounts[: after[-1] + 1].sum())
    known = amounts[dose] > 0 and area > 0 and y[top] > 0  # else as others'
    cl, highest = (amount / area, y[top] / amounts[dose]) if known else (np.nan, np.nan)
    return ka, cl, ke, highest, 0.1 * peak
