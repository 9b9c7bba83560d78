"""Components that collapsed: how they are found, and where all agents alike put them again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.errors import NumericalError, Setting
from vpem.network.schema import Array, Integer, ListOf, Schema, State
from vpem.sums.sum import Sum
from vpem.terms.covariances import Factors
from vpem.terms.mixture import Mixture
from vpem.terms.terms import Terms

MOST_RECOVERIES = 3
"""Times one component is re-initialised before it is given up with mixing weight zero."""

DRAWN = -1
"""Stands for the number of a row where sums are masked: no row is shown to others."""

REINITIALISED_BYTES = 12
"""Of the message that says which component was re-initialised, and at which row."""


@dataclass(frozen=True)
class Recovery:
    """A component that collapsed and was re-initialised.

    Attributes
    ----------
    iteration : int
        Counted from 1; 0 is the start.
    component : int
        Which component.
    hub : int or None
        The hub whose root found it; None where sums are masked, so that nobody learns which.
    reason : str
        "weight" or "covariance".
    row : int or None
        Row its mean was placed at, `DRAWN` where that is a point which was drawn and no row; None
        when the component was given up with mixing weight zero.
    """

    iteration: int
    component: int
    hub: int | None
    reason: str
    row: int | None


class Reinitialiser:
    """Finds components that collapsed and puts their means at rows that all agents draw alike.

    Parameters
    ----------
    terms : Terms
        Of all rows.
    total : Sum
        By which agents agree on what they found.
    draw_row : callable
        Next row of the stream shared by all agents.
    recoveries : list of Recovery
        Where they are noted.
    over_rows : bool
        Whether every root has a mixture of its own, of one hub.
    """

    def __init__(
        self,
        terms: Terms,
        total: Sum,
        draw_row: Callable[[], int],
        recoveries: list[Recovery],
        over_rows: bool = False,
    ) -> None:
        self.terms = terms
        self.total = total
        self.draw_row = draw_row
        self.recoveries = recoveries
        # Numbers in the network of the hubs, and of the roots, that are here.
        self.hubs: list[int] = [0] if over_rows else total.holders.own.tolist()
        self.roots: list[int] = [0] if over_rows else total.roots.own.tolist()
        self.least = least_weight(terms)
        self.counts: dict[int, int] = {}
        self.given_up: dict[int, NDArray[np.float64]] = {}

    def start(
        self, roots: Sequence[Terms], mixtures: Sequence[Mixture]
    ) -> tuple[list[Mixture], list[Factors], bool]:
        """Return starting parameters with singular components re-initialised; see `check`."""
        enough = [np.full((1, mixtures[0].n_components), np.inf)] * len(mixtures)
        return self.check(roots, mixtures, enough, 0)

    def check(
        self,
        roots: Sequence[Terms],
        mixtures: Sequence[Mixture],
        counts: Sequence[NDArray[np.float64]],
        iteration: int,
    ) -> tuple[list[Mixture], list[Factors], bool]:
        """Re-initialise collapsed components, of several mixtures alike: what one finds, all do.

        ``counts`` (R, K) are effective samples of the components of each mixture after an M-step;
        iteration 0 is the start. Returned are mixtures, ``prepare`` of each, and whether any was
        re-initialised.
        """
        mixtures = list(mixtures)
        for component, centre in self.given_up.items():
            mixtures = _placed(roots, mixtures, component, centre, 0.0)
        factors = [own.prepare(mixture) for own, mixture in zip(roots, mixtures, strict=True)]
        collapsed = self._collapsed(factors, counts)
        if not collapsed:
            return mixtures, factors, False
        for component, (hub, reason) in collapsed.items():
            if mixtures[0].is_tied and reason == "covariance":
                raise NumericalError(
                    f"the tied covariance of {_named(hub)} is not positive definite at iteration "
                    f"{iteration}; try a larger ",
                    Setting("reg_covar"),
                    ", or fewer components",
                )
            self.counts[component] = self.counts.get(component, 0) + 1
            row = self.draw_row()
            centre = self.terms.at_rows(np.array([row], dtype=np.intp))[0]
            give_up = self.counts[component] > MOST_RECOVERIES
            give_up |= reason == "weight" and self.terms.least_rows >= 1
            if give_up:
                # Whoever has the model reads its mean: it is to be no row's.
                centre = self.terms.middle(mixtures[0])
                self._give_up(component, centre, mixtures[0].n_components, iteration)
            weight = 0.0 if give_up else 1.0 / mixtures[0].n_components
            mixtures = _placed(roots, mixtures, component, centre, weight)
            self.recoveries.append(
                Recovery(iteration, component, hub, reason, None if give_up else max(row, DRAWN))
            )
        factors = [own.prepare(mixture) for own, mixture in zip(roots, mixtures, strict=True)]
        self._check_regular(factors)
        return mixtures, factors, True

    def emptied(self, counts: Sequence[NDArray[np.float64]]) -> bool:
        """Whether any root finds too few effective samples (R, K) of a component in use."""
        few = any(self._few(count).any() for count in counts)
        return bool(self.total.holders.any([few])[0])

    def _few(self, count: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which components in use have too few effective samples (R, K).

        Of more than a row each it is the smallest alone: once that has gone others have its rows.
        """
        few: NDArray[np.bool_] = count < self.least
        few[:, list(self.given_up)] = False
        if self.terms.least_rows >= 1 and count.shape[1] - len(self.given_up) == 1:
            few[:] = False  # the last one stays
        elif self.terms.least_rows >= 1:
            smallest = np.where(few, count, np.inf).argmin(axis=1)
            few &= np.arange(count.shape[1]) == smallest[:, None]
        return few

    def _collapsed(
        self, factors: Sequence[Factors], counts: Sequence[NDArray[np.float64]]
    ) -> dict[int, tuple[int | None, str]]:
        """Components that collapsed, each with the first hub that found it, and the reason."""
        if self.total.holders.masks is not None:
            return self._collapsed_somewhere(factors, counts)
        events: list[tuple[int, str, int]] = []
        for made, count in zip(factors, counts, strict=True):
            for copy, hub in _true_in(made.failed):
                events.append((int(copy), "covariance", self.hubs[hub]))
            for root, component in _true_in(self._few(count)):
                # An estimate that all share is looked at in one process.
                if root < len(self.roots):
                    events.append((int(component), "weight", self.roots[root]))
        found: dict[int, tuple[int | None, str]] = {}
        for component, reason, hub in sorted(self.total.holders.pool(events)):
            found.setdefault(component, (hub, reason))
        return found

    def _collapsed_somewhere(
        self, factors: Sequence[Factors], counts: Sequence[NDArray[np.float64]]
    ) -> dict[int, tuple[int | None, str]]:
        """Components that collapsed, and why, where nobody may learn in whose hub."""
        failed = np.any([made.failed.any(axis=1) for made in factors], axis=0)
        few = np.any([self._few(count).any(axis=0) for count in counts], axis=0)
        flags = np.concatenate([np.broadcast_to(failed, few.shape), few])
        failed, few = np.split(self.total.holders.any(flags), 2)
        reasons = np.where(failed, "covariance", "weight")
        return {int(k): (None, str(reasons[k])) for k in np.flatnonzero(failed | few)}

    def _give_up(
        self, component: int, centre: NDArray[np.float64], n_components: int, iteration: int
    ) -> None:
        self.given_up[component] = centre
        if len(self.given_up) == n_components:
            raise NumericalError(
                f"every component has collapsed by iteration {iteration}; try fewer components or "
                "a larger ",
                Setting("reg_covar"),
            )

    def _check_regular(self, factors: Sequence[Factors]) -> None:
        """Raise NumericalError where a component is singular that was just re-initialised."""
        still: list[tuple[int, int | None]] = [
            (int(copy), self.hubs[hub])
            for made in factors
            for copy, hub in np.argwhere(made.failed)
        ]
        if self.total.holders.masks is None:
            still = sorted(self.total.holders.pool(still))
        elif self.total.holders.any([bool(still)])[0]:
            still = [(0, None)]
        if still:
            raise NumericalError(
                f"the sample covariance of {_named(still[0][1])} is not positive definite: its "
                "features are constant or linearly dependent; try a larger ",
                Setting("reg_covar"),
                ", or scaled features",
            )

    def state(self) -> State:
        """Return how often components collapsed, and which were given up."""
        return {
            "collapsed": [list(self.counts), list(self.counts.values())],
            "given_up": [list(self.given_up), list(self.given_up.values())],
        }

    @staticmethod
    def schema(mixture: Mixture) -> dict[str, Schema]:
        """Say what that must be."""
        component = Integer(most=mixture.n_components - 1)
        return {
            "collapsed": [ListOf(component, "C"), ListOf(Integer(1), "C")],
            "given_up": [ListOf(component, "G"), ListOf(Array("f8", (mixture.n_features,)), "G")],
        }

    def restore(self, state: State) -> None:
        """Go on from what was kept, which has been checked."""
        self.counts.update(zip(*state["collapsed"], strict=True))
        self.given_up.update(zip(*state["given_up"], strict=True))


def _named(hub: int | None) -> str:
    """Name a hub in a sentence, of which it may not be said which."""
    return "a hub" if hub is None else f"hub {hub}"


def _true_in(flags: NDArray[Any]) -> Iterable[tuple[int, int]]:
    """Places of what holds in a table, mostly nothing."""
    return zip(*flags.nonzero(), strict=True) if flags.any() else ()


def least_weight(terms: Terms) -> float:
    """Effective samples below which a component has collapsed.

    Of less than a row it shrinks where rows weigh less than 1 on average; of more it is of the
    heaviest, so that no row is more of a component than it may be.
    """
    weights = terms.row_weights
    if terms.least_rows >= 1 and weights is not None and len(weights):
        return terms.least_rows * float(weights.max())
    return terms.least_rows * min(1.0, terms.total_weight / terms.n_samples)


def _placed(
    roots: Sequence[Terms],
    mixtures: Sequence[Mixture],
    component: int,
    centre: NDArray[np.float64],
    weight: float,
) -> list[Mixture]:
    """Put one component of every mixture at a centre."""
    return [
        own.reseeded(mixture, component, centre, weight)
        for own, mixture in zip(roots, mixtures, strict=True)
    ]
