"""Mixed models that are fitted in columns of a frame: the way in, and the way back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import numpy as np

from vpem.saem.individuals import Individuals
from vpem.saem.models.frames import framed
from vpem.saem.models.model import Vector
from vpem.saem.models.population import Population, Varying

if TYPE_CHECKING:
    from vpem.saem.conditional import Conditional


class Framed(Varying):
    """A model that is fitted in columns that are unrelated, see `vpem.saem.models.frames`.

    Attributes
    ----------
    outer : Framed or None
        The model in the user's columns, where this one is in others.
    shift, first : ndarray, float or None
        Where the user has coefficients begin.
    """

    outer: Self | None = None
    shift: Vector | float | None = None
    first: Vector | None = None

    @abstractmethod
    def columns(self, at: Individuals) -> Vector:
        """Return the user's columns (N, m) of rows that parameters are coefficients of, or none."""

    @abstractmethod
    def settle(self, shift: Vector | float | None) -> None:
        """Begin with the law as it is, with coefficients about a shift, if one is given."""

    def inside(self) -> Self:
        """Return the model in columns that are unrelated; itself where there are none."""
        if self.law.design.shape[1] == 1 and not self.columns(self.individuals).shape[1]:
            return self
        part, told = copy(self), self.shift is not None or self.first is not None
        part.outer, part.law = self, _inner(self.law, self.individuals, self.columns)
        law = part.law
        c = len(law.coefficients)
        units = np.eye(c, c + len(law.spreads))
        mixed = np.array([_outside(law, one, self.law)[:c] for one in units]).T
        B = np.zeros(law.mask.shape)
        B[law.places] = np.linalg.solve(mixed, self.law.shift[self.law.places])
        part.first = None if self.first is None else B[:, 0]
        part.settle(B if told else None)
        return part

    def outside(self, theta: Vector) -> Vector:
        """Return parameters as they are in the user's columns."""
        return theta if self.outer is None else _outside(self.law, theta, self.outer.law)

    @property
    def jacobian(self) -> Vector:
        """By what (p, p) parameters are multiplied outside."""
        return np.array([self.outside(one) for one in np.eye(len(self.parameters))]).T

    @property
    def turn(self) -> Vector:
        """By what (q, q) random effects are multiplied outside."""
        return np.eye(len(self.latents)) if self.outer is None else _turn(self.law)

    def shown(self, z: Vector) -> Vector:
        """Latents as they are in the user's columns."""
        if self.outer is None:
            return z
        assert self.theta is not None
        mean, outer = self.law.means(self.law.unpack(self.theta)[0]), self.outer.law
        B = outer.unpack(self.outside(self.theta))[0]
        apart = z - mean[:, self.law.random]
        return outer.means(B)[:, outer.random] + apart @ _turn(self.law).T

    def told(self, given: Conditional) -> Conditional:
        """Return latents given rows as they are in the user's columns, as ends are already."""
        covariances = np.einsum("ij,njk,lk->nil", self.turn, given.covariances, self.turn)
        return replace(given, means=self.shown(given.means), covariances=covariances)


def _turn(law: Population) -> Vector:
    """By what (q, q) random effects inside are multiplied outside."""
    assert law.frame is not None
    return law.frame.rows[np.ix_(law.random, law.random)]


def _inner(
    law: Population, data: Individuals, columns: Callable[[Individuals], Vector]
) -> Population:
    """Return a law in columns of a frame, where those of rows are (N, m) of individuals."""
    full = bool(law.free.all())
    frame = framed(data, columns, law.design, law.mask, law.random, full)
    part, L = copy(law), law.mask.shape[1]
    place = {int(row): at for at, row in enumerate(frame.kept)}
    ends = [(place[row], column, name) for row, column, name in zip(
        *(where.tolist() for where in law.places), law.coefficients, strict=True
    ) if row in place]  # fmt: skip
    ends += [(place[k], L + at, law.names[j]) for at, (j, k) in enumerate(frame.moved)]
    rows, where, part.coefficients = zip(*ends, strict=True)
    part.mask = np.zeros((len(place), L + len(frame.moved)), dtype=np.bool_)
    part.mask[rows, where] = True
    part.frame, part.names = frame, tuple(law.names[row] for row in frame.kept)
    part.random = np.array([place[row] for row in law.random.tolist()], dtype=np.intp)
    part.fixed = np.setdiff1d(np.arange(len(place)), part.random)
    part.shift = np.zeros(part.mask.shape)
    part._rows, part._columns = np.array(rows), np.array(where)
    part.design = part._design(data)
    return part


def _outside(law: Population, theta: Vector, whole: Population) -> Vector:
    """Return parameters of a law in a frame as those of the whole one."""
    frame, turn = law.frame, _turn(law)
    assert frame is not None
    inner, omega = law.unpack(theta)
    k = len(frame.kept)
    found = frame.rows[:k] @ inner[:, : len(frame.people)] @ frame.people.T
    B = np.zeros(whole.mask.shape)
    B[frame.kept] = found[:, : B.shape[1]]
    for at, (j, of) in enumerate(frame.moved):
        own = found[np.searchsorted(frame.kept, of), B.shape[1] + at]
        B[j, 0] = own + frame.rows[k + at] @ inner[:, 0]
    rest = theta[len(law.coefficients) + len(law.spreads) :]
    return np.concatenate([whole.pack(B, turn @ omega @ turn.T), rest])
