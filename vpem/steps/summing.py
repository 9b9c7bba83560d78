"""Sums of some numbers of every row, chunk by chunk, and of how these numbers differ.

What a row belongs to, softly or not, depends on how its K numbers differ: K - 1 are sent, and for
all rows together one number more, the sum of their first ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from vpem._core.normalise import differences
from vpem.checks import Doubles, Floats
from vpem.network.ledger import Ledger
from vpem.sums.private import check_digits, in_common_units
from vpem.sums.sum import Scalars, Sum
from vpem.terms.features import FeatureTerms
from vpem.terms.missing import diagonals, spread_rows, usual_squares

FARTHEST = {8: 2.0**36, 4: 2.0**16}
"""Twice the nats by which a hub's terms of a row may differ to be sent as they are, by bytes of a
number: small differences are then as exact as these are there, to 1e-5 and 1e-2."""

BEYOND = 2.0**10
"""Squared distances that fit under masks, in those of the corners of a box around all rows."""


def summed(
    terms: FeatureTerms,
    total: Sum,
    width: int,
    local: Callable[[slice], Floats],
    scalars: Scalars | None = None,
) -> Iterator[tuple[slice, Floats]]:
    """Take a sum that has begun chunk by chunk, or of all rows at once where it must be.

    ``local`` has the hubs' numbers (B, m, width) for some rows, or what is sent of them, and
    ``scalars`` what travels with them, complete once ``local`` was called for all rows. It yields
    rows and sums (R, m, width), or of what is sent.
    """
    chunks = terms.chunks(total.values_per_item * width)
    if not total.whole:
        yield from total.flow(chunks, local, scalars)
        return
    parts = [(rows, local(rows)) for rows in chunks]
    every = np.concatenate([part for _, part in parts], axis=1)
    sums = total.reduce(every, slice(0, terms.n_samples), scalars)
    for rows, _ in parts:
        yield rows, np.ascontiguousarray(sums[:, rows])


def agree_on_units(terms: FeatureTerms, total: Sum, ledger: Ledger) -> None:
    """Let hubs agree on units of squared distances, if sums are masked: on how large theirs are.

    Counted as setup; see `vpem.sums.private.in_common_units`, and `check_digits` for the error and
    the warning where a value lies very far away.
    """
    if total.holders.masks is not None:
        counted = total.server.counted_on(ledger)
        counted.charge_as("setup")
        squares = BEYOND * diagonals(terms)[:, None]

        def find() -> int:
            units = int(np.max(in_common_units(counted, squares).exponents))
            usual = usual_squares(terms.at_rows(spread_rows(terms.n_samples)))
            of_hubs = np.bincount(terms.blocks.block_of, usual, terms.blocks.n_blocks)
            check_digits(total.holders, of_hubs.astype(np.float64), units)
            return units

        outlast = total.holders.engine.outlast
        terms.units = find() if outlast is None else outlast.once("units of squares", find)


def scalars_of_rows(terms: FeatureTerms, total: Sum) -> Scalars:
    """Return what is to be the sum over all rows of one number of each, times row weights."""
    scalars = Scalars.empty(len(total.holders.own), total.n_roots)
    heaviest = 1.0 if terms.row_weights is None else float(terms.row_weights.max(initial=0.0))
    scalars.exponent = int(np.frexp(terms.n_samples * heaviest)[1])
    return scalars


class Differences:
    """How the sums of K numbers a row differ from the first: K - 1 values, and one scalar.

    The sum has begun. Iterating yields runs of rows and the sums of their differences from the
    first number, (R, m, K - 1), root by root. ``local`` has each hub's numbers for some rows,
    (B, m, K). Of these what is above the least of a row by more than ``limit`` counts as nearer, so
    that it does not take the digits of others (`tests.twins.mixture.differences`). Into ``rest``
    (B, M, K - 1) goes what others add to the sum; ``beside`` (B,) is added to the sum of first
    numbers. What ``local`` has ``more`` than K numbers a row is summed as it is, after the
    differences.
    """

    def __init__(
        self,
        terms: FeatureTerms,
        total: Sum,
        n_numbers: int,
        local: Callable[[slice], Floats],
        limit: float = np.inf,
        rest: Floats | None = None,
        beside: Doubles | float = 0.0,
        more: int = 0,
    ) -> None:
        self.rest = rest
        self.terms, self.total, self.n_numbers = terms, total, n_numbers
        self.width = n_numbers - 1 + more  # numbers of a row in a message
        self._chunked_by = self.width if more else n_numbers
        self._numbers, self._limit = local, limit
        self._scalars = scalars_of_rows(terms, total)
        self._scalars.own[:, 0] = beside
        self.firsts: Doubles
        """Sum of the first numbers of all rows, times row weights, (R,), after the last row."""

    def __iter__(self) -> Iterator[tuple[slice, Floats]]:
        chunks = summed(self.terms, self.total, self._chunked_by, self._local, self._scalars)
        for rows, sums in chunks:
            if self.rest is not None:
                rest = self.rest[:, rows]
                np.subtract(sums[: len(rest)] if len(sums) > 1 else sums, rest, out=rest)
            yield rows, sums
        self.firsts = self._scalars.found[:, 0]

    def _local(self, rows: slice) -> Floats:
        every, k = self._numbers(rows), self.n_numbers
        numbers = np.ascontiguousarray(every[:, :, :k])
        weights = self.terms.row_weights
        weights = np.empty(0) if weights is None else weights[rows]
        out = np.empty((*numbers.shape[:2], k - 1), dtype=numbers.dtype)
        firsts = np.zeros(len(numbers))
        differences(numbers, weights, out, firsts, self._limit, self.terms.n_threads)
        self._scalars.own[:, 0] += firsts
        if self.rest is not None:
            self.rest[:, rows] = out
        return out if every.shape[2] == k else np.concatenate([out, every[:, :, k:]], axis=2)
