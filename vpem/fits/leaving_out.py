"""What is left of a mixture without some features, and figures of that added up over rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.fits.evaluation import adjusted_rand_index
from vpem.fits.parts import cut
from vpem.terms.density import Density
from vpem.terms.mixture import Mixture

Vector = NDArray[np.float64]
Piece = tuple[Density, NDArray[np.intp]]
"""A marginal of a mixture, and of which features it is, in its order."""


# ---- parts of a mixture --------------------------------------------------------------------------


def piece(mixture: Density, features: Sequence[int] | NDArray[np.intp]) -> Piece:
    """Return the marginal of some features; of a Gaussian mixture with no hubs but theirs."""
    if type(mixture) is not Mixture:
        columns = np.sort(np.asarray(features, dtype=np.intp))
        return mixture.marginal(columns.tolist()), columns
    chosen = np.zeros(mixture.n_features, dtype=np.bool_)
    chosen[np.asarray(features, dtype=np.intp)] = True
    hubs = hubs_of(mixture, chosen)
    part = cut(mixture, hubs)
    columns = np.concatenate([np.empty(0, np.intp), *(mixture.blocks.features[b] for b in hubs)])
    inside = np.flatnonzero(chosen[columns])
    if len(inside) < len(columns):
        return part.marginal(inside.tolist()), columns[inside]
    return part, columns


def hubs_of(mixture: Density, chosen: NDArray[np.bool_]) -> list[int]:
    """Return the hubs that have some of these features."""
    return [b for b, own in enumerate(mixture.blocks.features) if chosen[own].any()]


def apart(one: Piece, values: Vector, there: NDArray[np.bool_]) -> tuple[Floats, Vector | float]:
    """Terms (m, K) of a piece on rows (m, d), and what its log-density has besides, (m,)."""
    part, columns = one
    terms, constant = part.terms_of(values[:, columns], there[:, columns])
    return terms.sum(axis=0), constant


# ---- figures -------------------------------------------------------------------------------------


def log_posterior(log_weights: Vector, terms: Floats) -> tuple[Vector, Vector]:
    """Log-densities (m,) of summed terms (m, K), without constants, and log-responsibilities."""
    joint = log_weights - 0.5 * terms
    top = joint.max(axis=1, keepdims=True)
    log_density = top + np.log(np.exp(joint - top).sum(axis=1, keepdims=True))
    return log_density[:, 0], joint - log_density


def divergence(p: Vector, q: Vector) -> Vector:
    """Kullback-Leibler divergence (m,) of probabilities from others, by their logarithms."""
    with np.errstate(invalid="ignore"):
        each = np.where(p > -np.inf, np.exp(p) * (p - q), 0.0)
    found: Vector = each.sum(axis=1)
    return found


@dataclass(frozen=True)
class Everything:
    """What all features say of some rows."""

    log_density: Vector
    log_responsibilities: Vector
    components: NDArray[np.intp]


class Whole:
    """Figures of the whole mixture, added up over rows.

    Parameters
    ----------
    mixture : Density
        The mixture.
    codes : ndarray of shape (M,), optional
        Label of each row, from 0.
    """

    def __init__(self, mixture: Density, codes: NDArray[np.intp] | None = None) -> None:
        self.weights, self.codes = mixture.assembled_weights, codes
        with np.errstate(divide="ignore"):
            self.log_weights = np.log(self.weights)
        self.n_samples, self.total, self.log_likelihood = 0, 0.0, 0.0
        self.confusion = _counts(codes, len(self.weights))

    def add(
        self, terms: Floats, constant: Vector | float, weights: Vector, rows: slice
    ) -> Everything:
        """Add rows whose terms are summed, (m, K); return what is known of them."""
        log_density, shares = log_posterior(self.log_weights, terms)
        components = shares.argmax(axis=1)
        self.n_samples += int(np.count_nonzero(weights))
        self.total += float(weights.sum())
        self.log_likelihood += float(weights @ (log_density + constant))
        if self.codes is not None:
            np.add.at(self.confusion, (self.codes[rows], components), weights)
        return Everything(log_density, shares, components)

    @property
    def entropy(self) -> float:
        """Of the mixing weights."""
        return float(-(self.weights * np.where(self.weights > 0, self.log_weights, 0.0)).sum())


class Tally:
    """Figures of one party, added up over rows.

    Parameters
    ----------
    whole : Whole
        Figures of the whole mixture.
    hubs : Density
        The mixture, or its hubs of this process, whose features these columns are.
    columns : sequence of int
        Features that the party has.
    with_constants : bool
        Whether sums that it is given have the constants of their densities in them.
    """

    def __init__(
        self,
        whole: Whole,
        hubs: Density,
        columns: Sequence[int] | NDArray[np.intp],
        with_constants: bool = False,
    ) -> None:
        self.whole, self.with_constants = whole, with_constants
        chosen = np.zeros(hubs.n_features, dtype=np.bool_)
        chosen[np.asarray(columns, dtype=np.intp)] = True
        self.hubs = hubs_of(hubs, chosen)
        self.own = piece(hubs, np.flatnonzero(chosen))
        touched = np.concatenate([hubs.blocks.features[b] for b in self.hubs])
        left = touched[~chosen[touched]]
        self.beside = piece(hubs, left) if len(left) else None
        """What is left of these hubs."""
        self.rest = np.flatnonzero(~chosen)
        """All other features."""
        self.sums = np.zeros(4)
        self.moved = np.zeros((len(whole.weights),) * 2)
        self.confusion = _counts(whole.codes, len(whole.weights))

    def add(
        self,
        every: Everything,
        others: Floats,
        values: Vector,
        there: NDArray[np.bool_],
        weights: Vector,
        rows: slice,
    ) -> None:
        """Add rows of which the summed terms of all others are ``others`` (m, K)."""
        log_weights, codes = self.whole.log_weights, self.whole.codes
        terms, constant = apart(self.own, values, there)
        alone, told = log_posterior(log_weights, terms)
        without, rest = log_posterior(log_weights, others)
        lost = every.log_density - without
        if not self.with_constants:
            lost = lost + constant
        each = (
            lost,
            lost - alone - constant,
            divergence(told, log_weights),
            divergence(every.log_responsibilities, rest),
        )
        self.sums += [weights @ one for one in each]
        components = rest.argmax(axis=1)
        np.add.at(self.moved, (every.components, components), weights)
        if codes is not None:
            np.add.at(self.confusion, (codes[rows], components), weights)

    def left(self, others: Floats, values: Vector, there: NDArray[np.bool_]) -> Floats:
        """Sum of all others' terms, (m, K), from that of hubs that the party is not in."""
        if self.beside is None:
            return others
        terms, constant = apart(self.beside, values, there)
        return others + (with_constant(terms, constant) if self.with_constants else terms)

    def figures(self) -> tuple[list[float], float | None]:
        """Means of the four figures, share of rows that move, agreement; and that with labels."""
        weight = self.moved.sum()
        moved = 1 - np.trace(self.moved) / weight
        labelled = None if self.whole.codes is None else adjusted_rand_index(self.confusion)
        return [*(self.sums / weight), moved, adjusted_rand_index(self.moved)], labelled


def with_constant(terms: Floats, constant: Vector | float) -> Floats:
    """Return terms (m, K) minus half of which is the whole log-density."""
    found: Floats = terms - 2 * np.broadcast_to(constant, len(terms))[:, None]
    return found


def _counts(codes: NDArray[np.intp] | None, n_components: int) -> Vector:
    return np.zeros((0 if codes is None else int(codes.max(initial=0)) + 1, n_components))


class Others:
    """Sums of the terms of all features of some rows but those of one party.

    Parameters
    ----------
    mixture : Density
        The mixture.
    terms : ndarray of shape (B, m, K)
        Of its hubs, or one of all hubs together where these are no sum (of hubs that share
        factors); then the others' is that of their marginal.
    """

    def __init__(self, mixture: Density, terms: Floats) -> None:
        self.mixture, self.terms = mixture, terms
        self.is_sum = len(terms) == mixture.blocks.n_blocks
        self.before, self.after = np.zeros((2, len(terms) + 1, *terms.shape[1:]))
        np.cumsum(terms, axis=0, out=self.before[1:])
        np.cumsum(terms[::-1], axis=0, out=self.after[1:])

    def without(self, party: Tally, values: Vector, there: NDArray[np.bool_]) -> Floats:
        """Sum (m, K) without a party's features, of which none is got by subtraction."""
        if not self.is_sum:
            if len(party.rest) == 0:
                return np.zeros(self.terms.shape[1:])
            return apart(piece(self.mixture, party.rest), values, there)[0]
        first, last = party.hubs[0], party.hubs[-1]
        found: Floats = self.before[first] + self.after[len(self.terms) - 1 - last]
        for b in range(first + 1, last):
            if b not in party.hubs:
                found += self.terms[b]
        return party.left(found, values, there)
