"""Doses of individuals: when, how much, and over how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from vpem.saem.individuals import Individuals


Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Doses:
    """Doses in the order of individuals, and of time within each.

    Doses ``first[i]`` to ``first[i + 1]`` are those of individual i. A duration of 0 is at once, as
    a tablet or an injection; above 0 it is an infusion of a constant rate.
    """

    first: NDArray[np.intp]  # (n + 1,)
    times: Vector  # (E,)
    amounts: Vector  # (E,)
    durations: Vector  # (E,)

    @property
    def counts(self) -> NDArray[np.intp]:
        """Doses of each individual, (n,)."""
        return np.diff(self.first)

    @property
    def individual_of(self) -> NDArray[np.intp]:
        """Individual of each dose, (E,)."""
        return np.repeat(np.arange(len(self.first) - 1), self.counts)

    @property
    def columns(self) -> tuple[Vector, Vector, Vector]:
        """Times, amounts and durations."""
        return self.times, self.amounts, self.durations

    @classmethod
    def none(cls, n: int) -> Doses:
        """No doses, of so many individuals."""
        return cls(np.zeros(n + 1, dtype=np.intp), *np.zeros((3, 0)))

    @classmethod
    def once(cls, amounts: Vector) -> Doses:
        """One dose at time 0 an individual, (n,), at once."""
        n = len(amounts)
        return cls(np.arange(n + 1, dtype=np.intp), np.zeros(n), amounts, np.zeros(n))

    @classmethod
    def of(
        cls,
        n: int,
        who: NDArray[np.intp],
        times: Vector,
        amounts: Vector,
        durations: Vector | None = None,
    ) -> Doses:
        """Doses (E,) in any order, of n individuals by their numbers; by default at once."""
        columns = (times, amounts, np.zeros(len(who)) if durations is None else durations)
        order = np.lexsort((times, who))
        first = np.searchsorted(who[order], np.arange(n + 1)).astype(np.intp)
        return cls(first, *(np.asarray(one, dtype=np.float64)[order] for one in columns))

    @classmethod
    def chain(cls, parts: Sequence[Doses]) -> Doses:
        """Put doses of several groups of individuals one after the other."""
        counts = np.concatenate([np.zeros(1, np.intp), *(part.counts for part in parts)])
        columns = zip(*(part.columns for part in parts), strict=True)
        return cls(np.cumsum(counts, dtype=np.intp), *(np.concatenate(some) for some in columns))

    def take(self, which: NDArray[np.intp]) -> Doses:
        """Return those of some individuals, in the order of their numbers."""
        counts = self.counts[which]
        first = np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)
        places = np.repeat(self.first[:-1][which] - first[:-1], counts) + np.arange(first[-1])
        return Doses(first, *(column[places] for column in self.columns))


def doses_of(individuals: Individuals) -> Doses:
    """Return the doses of individuals, or else one at time 0 as the covariate ``dose`` says."""
    if individuals.doses is not None:
        return individuals.doses
    return Doses.once(individuals.constant("dose", "a dose that changes needs rows of its own"))
