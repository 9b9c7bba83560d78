"""Who matters, over parties in several processes; see `vpem.fits.contribution`.

A root has the sum of all terms, and those of its own hub: the sum without a party of the hub is
their difference. So nothing is sent but what any use of a model sends (the terms of one sum), and
then a few figures of each party and feature, means over all rows, which all get.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.engines.engine import about
from vpem.errors import InputError
from vpem.fits.contribution import Contribution, figures_of, in_order, separation
from vpem.fits.leaving_out import Everything, Piece, Tally, Whole, apart, piece, with_constant
from vpem.fits.spread_use import SpreadRows
from vpem.terms.density import Density
from vpem.terms.mixture import Mixture
from vpem.terms.variational_mixture import VariationalMixture

FIGURES = 6
"""Of each party."""


def spread_contribution(
    rows_of_all: SpreadRows, mixture: Mixture, feature_names: Sequence[str]
) -> Contribution:
    """Tell what a mixture loses without each party's features; all processes call it alike.

    All have the same mixture, and each its parties' features of the rows to judge by. What it took
    is in ``rows_of_all.communication``. InputError, everywhere the same, if a party has features in
    hubs of several roots, or the model has factors.
    """
    if isinstance(mixture, VariationalMixture):
        mixture = mixture.plain
    _check_roots(rows_of_all, mixture)
    hubs = rows_of_all.hubs_here(mixture)
    part, data, columns = hubs
    whole, seen = Whole(mixture), rows_of_all.seen().astype(np.float64)
    judged = _Judged.of(rows_of_all, whole, part, columns)

    def take(rows: slice, sums: Floats) -> None:
        every = whole.add(sums[0], 0.0, seen[rows], rows)
        if part is not None:
            values = np.asarray(data[rows], dtype=np.float64)
            judged.add(every, sums[0], values, seen[rows], rows)

    rows_of_all.sum_terms(mixture, hubs, take)
    if whole.total == 0:
        raise InputError("no row has a value: there is nothing to judge by")
    engine = rows_of_all.parties.engine
    with about(engine, "result"):
        every = engine.allgather(judged.told(columns))
    n_told = sum(one["figures"].size + one["separation"].size for one in every)
    n_roots = len(set(rows_of_all.roots(mixture.blocks)))
    rows_of_all.communication["figures"] = {"messages": n_roots, "bytes": 8 * n_told}
    return _of_all(rows_of_all, whole, every, feature_names)


def _check_roots(rows_of_all: SpreadRows, mixture: Mixture) -> None:
    """Raise InputError where no root has all that a party adds."""
    if mixture.n_factors:
        raise InputError(
            "with factors that hubs share the density without a party is no sum of the others' "
            "terms; use the model where one process may read the data of all"
        )
    blocks = mixture.blocks
    root_of = np.zeros(mixture.n_features, dtype=np.intp)
    for own, root in zip(blocks.features, rows_of_all.roots(blocks), strict=True):
        root_of[own] = root
    for party, own in enumerate(rows_of_all.features):
        if len(np.unique(root_of[own])) > 1:
            raise InputError(
                f"{rows_of_all.names[party]!r} has features in hubs of several roots, none of whom "
                "knows all that it adds to the sum; use a model of which each party is in one hub, "
                "or use it where one process may read the data of all"
            )


class _Judged:
    """Parties and features of the hubs whose roots live here."""

    def __init__(self, whole: Whole) -> None:
        self.whole = whole
        self.tallies: dict[int, Tally] = {}
        self.hubs: dict[int, Piece] = {}
        """All features of the hubs that a party is in."""
        self.alone: list[Piece] = []
        self.separation: NDArray[np.float64] = np.empty(0)

    @classmethod
    def of(
        cls,
        rows_of_all: SpreadRows,
        whole: Whole,
        part: Density | None,
        columns: NDArray[np.intp],
    ) -> _Judged:
        """Return them; ``columns`` are those of the model that the hubs have."""
        made = cls(whole)
        made.separation = np.zeros(len(columns), dtype=np.float64)
        if part is None:
            return made
        place = {feature: at for at, feature in enumerate(columns.tolist())}
        made.alone = [piece(part, [at]) for at in range(len(columns))]
        for party, own in enumerate(rows_of_all.features):
            if len(own) and int(own[0]) in place:
                tally = Tally(whole, part, [place[j] for j in own.tolist()], True)
                touched = np.concatenate([part.blocks.features[b] for b in tally.hubs])
                made.tallies[party], made.hubs[party] = tally, piece(part, touched)
        return made

    def add(
        self,
        every: Everything,
        sums: Floats,
        values: NDArray[np.float64],
        weights: NDArray[np.float64],
        rows: slice,
    ) -> None:
        """Add rows of which all terms, with constants, are summed (m, K)."""
        there = ~np.isnan(values)
        for party, tally in self.tallies.items():
            others: Floats = sums - with_constant(*apart(self.hubs[party], values, there))
            others = tally.left(others, values, there)
            tally.add(every, others, values, there, weights, rows)
        found = separation(self.alone, self.whole, values, there, weights)
        self.separation = self.separation + found

    def told(self, columns: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
        """Return figures as arrays, which is how they travel."""
        figures = [one.figures()[0] for one in self.tallies.values()]
        return {
            "parties": np.array(list(self.tallies), dtype=np.intp),
            "figures": np.array(figures).reshape(len(figures), FIGURES),
            "features": columns,
            "separation": self.separation,
        }


def _of_all(
    rows_of_all: SpreadRows,
    whole: Whole,
    every: Sequence[dict[str, NDArray[Any]]],
    feature_names: Sequence[str],
) -> Contribution:
    """Put together what roots have found."""
    told = np.zeros(len(feature_names))
    owner: dict[int, str] = {}
    for party, features in enumerate(rows_of_all.features):
        owner |= dict.fromkeys(features.tolist(), rows_of_all.names[party])
    judged = []
    for one in every:
        told[one["features"]] = one["separation"]
        for party, figures in zip(one["parties"].tolist(), one["figures"].tolist(), strict=True):
            named = tuple(feature_names[j] for j in rows_of_all.features[party])
            judged.append(figures_of(rows_of_all.names[party], named, figures))
    return in_order(whole, judged, feature_names, owner, told)
