"""How what holders have becomes one total: added as it is, or under masks that cancel.

Masks are of whole numbers (`vpem.network.masks`): what is masked is in fixed point, in units of a
power of two that all know, and travels as 8 bytes a number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.engines.placement import Placement
from vpem.network.masks import TAG_WORDS
from vpem.sums.sum import Scalars, beside

TAG_BYTES = 8 * TAG_WORDS
"""Behind what is masked: what shows that nobody has changed the total."""

MASKED_BYTES = 8
"""Of a number under a mask, whatever its precision was."""

Exponents = int | NDArray[np.int64]


class Addends:
    """What the holders of this process add to a total of all, and the total once it is there.

    Parameters
    ----------
    holders : Placement
        Who adds, under masks or not.
    terms : ndarray of shape (B, m, K)
        Of the holders of this process; flags, under masks: the total says whether anybody has each.
    scalars : Scalars, optional
        What travels with them, whose sums are put in their place.
    exponents : int or ndarray of shape (K,)
        Powers of two in which masked terms are counted.
    who : ndarray of int, optional
        Holders that take part; None: all. Terms of others count as nothing.
    """

    def __init__(
        self,
        holders: Placement,
        terms: Floats,
        scalars: Scalars | None = None,
        exponents: Exponents = 0,
        who: NDArray[np.intp] | None = None,
    ) -> None:
        self.masks, self.who = holders.masks, who if holders.masks is None else holders.left(who)
        self._here = slice(None) if who is None else np.isin(holders.own, who)
        self.terms, self.scalars = terms, scalars
        if self.masks is not None:
            self._exponents = self._of_all(exponents)
            self._tag = None
            if terms.dtype != np.bool_:
                self._tag = self.masks.tag(terms.shape[1] if who is None else None)

    def again(self, who: NDArray[np.intp] | None) -> NDArray[Any]:
        """What this process sends in another sum, of those who are left."""
        assert self.masks is not None
        self.who, self._tag = who, self._tag and self.masks.tag()
        return self.together()[0]

    def _of_all(self, exponents: Exponents) -> NDArray[np.int64]:
        """Powers of two of all numbers of a message (P,)."""
        found = np.broadcast_to(exponents, self.terms.shape[1:]).ravel()
        if self.scalars is None:
            return found
        own = int(np.max(exponents)) + self.scalars.exponent
        return np.append(found, np.full(self.scalars.own.shape[1], own))

    def _values(self) -> NDArray[Any]:
        """All numbers of a message, of each holder (B, P)."""
        if self.masks is not None and self.terms.dtype == np.bool_:
            return self.masks.words(self.terms.reshape(len(self.terms), len(self._exponents)) > 0)
        values = beside(self.terms, self.scalars)
        return values[0] if len(values) == 1 else np.concatenate(values, axis=1)

    def apart(self) -> list[NDArray[Any]]:
        """What each holder sends: vectors (B, P) of one type each, which are added up."""
        if self.masks is None:
            return beside(self.terms, self.scalars)
        values = self._values()
        shares = self.masks.shares(
            values[self._here], exponents=self._exponents, who=self.who, tag=self._tag
        )
        found = np.zeros((len(values), shares.shape[1]), dtype=np.uint64)
        found[self._here] = shares
        return [found]

    def together(self) -> list[NDArray[Any]]:
        """What this process sends, the sums of its holders: vectors (P,), as few as can be."""
        if self.masks is not None:
            own = self._values()[self._here]
            return [self.masks.hide(own, exponents=self._exponents, who=self.who, tag=self._tag)]
        parts: list[NDArray[Any]] = [self.terms.sum(axis=0).ravel()]
        if self.scalars is not None:
            parts.append(self.scalars.own.sum(axis=0))
            if self.terms.dtype == np.float64:
                parts = [np.concatenate(parts)]
        return parts

    def total(self, parts: list[NDArray[Any]]) -> Floats:
        """Read what all holders have sent, added up (P,): the sum of terms (1, m, K)."""
        if self.masks is not None and self.terms.dtype == np.bool_:
            parts = [self.masks.anybody(parts[0])]
        elif self.masks is not None:
            parts = [self.masks.total(parts[0], self._exponents, self._tag)]
        shape = (1, *self.terms.shape[1:])
        if self.scalars is not None:
            self.scalars.found = parts[-1][-self.scalars.own.shape[1] :][None]
        found: Floats = parts[0][: int(np.prod(shape))].reshape(shape)
        return found.astype(self.terms.dtype, copy=False)


def farthest(holders: Placement, usual: float) -> float:
    """By how much two numbers of a row may differ that are summed, at most the ``usual``.

    Masks are of numbers in a range; `vpem._core.reference.differences` gives twice as much at most.
    """
    masks = holders.masks
    return usual if masks is None else min(usual, masks.fixed.largest / 4)
