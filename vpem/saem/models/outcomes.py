"""Rows of several outcomes, each with a law of its own, and what an M-step needs of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from vpem.errors import InputError, check_choice
from vpem.saem.individuals import Individuals
from vpem.saem.models.laws import LAWS, Law, Normal, Rows
from vpem.saem.models.model import Counts, Vector
from vpem.saem.models.normal import known_scale


class Outcome(NamedTuple):
    """Rows of one outcome, and how they are measured.

    Attributes
    ----------
    law : Law
        Of the rows.
    here : ndarray of shape (m,)
        Which rows they are.
    rows : Rows
        What was measured.
    of : ndarray of shape (m,)
        Whose they are.
    sds : slice
        Which of all standard deviations are its own.
    exact : bool
        Whether its variance is the mean of squares that do not depend on parameters.
    size : float
        Mean square of the values.
    """

    law: Law
    here: NDArray[np.intp]
    rows: Rows
    of: NDArray[np.intp]
    sds: slice
    exact: bool = False
    size: float = 0.0

    @property
    def floor(self) -> float:
        """Least variance."""
        return self.law.floor(self.size)


class Outcomes:
    """All rows of individuals by what was measured.

    Parameters
    ----------
    individuals : Individuals
        With a covariate ``outcome``, the number of the outcome from 0 on, if there are several;
        and ``censored``, 1 where the value is an upper limit, -1 a lower one, if any are.
    error : str or sequence of str
        Laws by name: one of all outcomes, or one each.
    expanded : bool
        Whether parameters are fixed that the curve depends on, so that variances that depend on
        the curve are to be found together with these.

    Raises
    ------
    InputError
        If laws do not fit the rows.
    """

    def __init__(
        self, individuals: Individuals, error: str | Sequence[str], *, expanded: bool
    ) -> None:
        self.individuals = individuals
        limits = individuals.covariates.get("censored", np.zeros(individuals.n_rows))
        odd = np.flatnonzero(~np.isin(limits, (-1.0, 0.0, 1.0)))
        if len(odd):
            who = individuals.names[individuals.individual_of[odd[0]]]
            raise InputError(
                f"{individuals.source}: censored of individual {who!r} is {limits[odd[0]]:g}; it "
                "is 1 where a value is an upper limit, -1 a lower one, and 0 a measurement"
            )
        self.kinds = _laws(individuals, error)
        laws = [LAWS[kind] for kind in self.kinds]
        made = [_measured(one, individuals, expanded) for one in _split(individuals, laws)]
        self._each = made
        self.n_sds = made[-1].sds.stop
        tails = [""] if len(made) == 1 else [f" of {one}" for one in _names(individuals, len(made))]
        self.parameters = tuple(
            f"{name}{tail}"
            for one, tail in zip(made, tails, strict=True)
            for name in one.law.parameters
        )
        scored = [one for one in made if not one.exact]
        self.scored = [at for one in scored for at in range(one.sds.start, one.sds.stop)]
        self.floors = np.array([one.floor for one in scored for _ in one.law.parameters])
        self.size = (len(made) - len(scored)) * (1 if len(made) == 1 else 2)

    @property
    def coded(self) -> tuple[NDArray[np.uint8], NDArray[np.int8], NDArray[np.int32]]:
        """Outcome (N,) and censoring (N,) of each row, and laws (k,), as kernels have them."""
        n = self.individuals.n_rows
        outcome, censored = np.zeros(n, np.uint8), np.zeros(n, np.int8)
        for code, one in enumerate(self._each):
            outcome[one.here], censored[one.here] = code, one.rows.censored
        return outcome, censored, np.array([one.law.code for one in self._each], np.int32)

    def noise(self, sds: Vector) -> Vector:
        """Standard deviations a and b of each outcome, (k, 2): ``sd^2 = a^2 + b^2 f^2``."""
        return np.array([one.law.noise(sds[one.sds]) for one in self._each])

    def of(self, individuals: Individuals) -> Self:
        """Return those of other individuals."""
        part = type(self).__new__(type(self))
        part.__dict__.update(self.__dict__)
        part.individuals = individuals
        part._each = [
            new._replace(exact=one.exact, size=one.size)
            for new, one in zip(
                _split(individuals, [one.law for one in self._each]), self._each, strict=True
            )
        ]
        return part

    # ---- the start -------------------------------------------------------------------------------

    def check_scales(self) -> None:
        """Refuse values that are all the same number 0, and outcomes without rows."""
        there = np.array([len(one.here) > 0 for one in self._each], dtype=np.uint8)
        lacking = np.flatnonzero(self.individuals.largest(there) == 0)
        if len(lacking):
            raise InputError(
                f"{self.individuals.source}: no row is of outcome {lacking[0]}, counted from 0, "
                f"but there are laws of {len(self._each)} outcomes; name one law for each (error)"
            )
        for one in self._each:
            if isinstance(one.law, Normal) and len(one.here):
                known_scale(one.rows.values, one.size, self.individuals.source)

    def start(self) -> Vector:
        """Standard deviations to begin with, (k,)."""
        starts = [one.law.start(np.array([np.sqrt(one.size)])) for one in self._each]
        return np.concatenate(starts)

    # ---- of curves -------------------------------------------------------------------------------

    def told(self, f: Vector, what: Callable[[Law, Vector, Outcome], Vector]) -> Vector:
        """What laws say of curves (chains, N), row by row."""
        found = np.empty(f.shape)
        with np.errstate(all="ignore"):
            for one in self._each:
                found[:, one.here] = what(one.law, f[:, one.here], one)
        return found

    def log_density(self, f: Vector, sds: Vector) -> Vector:
        """Log-density of rows, (chains, N)."""
        return self.told(f, lambda law, f, one: law.log_density(one.rows, f, sds[one.sds]))

    def slope(self, f: Vector, sds: Vector) -> Vector:
        """Derivative of that in the curve, (chains, N)."""
        return self.told(f, lambda law, f, one: law.bends(one.rows, f, sds[one.sds]).slope)

    def squares(self, f: Vector) -> list[Vector]:
        """Sums of squares, and rows, of outcomes with one variance: each (chains, n, 1)."""
        found, n = [], self.individuals.n_individuals
        for one in self._each:
            if not one.exact:
                continue
            each = np.zeros(f.shape)
            each[:, one.here] = one.law.residuals(one.rows.values, f[:, one.here], np.ones(1)) ** 2
            found.append(self.individuals.sums(each)[..., None])
            if len(self._each) > 1:
                there = np.bincount(one.of, minlength=n).astype(np.float64)
                found.append(np.tile(there[None, :, None], (len(f), 1, 1)))
        return found

    def expansion(self, f: Vector, slopes: Vector, sds: Vector) -> tuple[Vector, Vector]:
        """Score (chains, n, w) and lower half of the information (chains, n, w, w).

        Of the m parameters in which the curves (chains, N) have slopes (chains, N, m), and of
        variances that are not exact: sums over each individual's rows, of one pair after another,
        since an array of all pairs of all rows would be large.
        """
        m, w = slopes.shape[-1], slopes.shape[-1] + len(self.scored)
        shape = (len(f), self.individuals.n_individuals, w)
        score, info = np.zeros(shape), np.zeros((*shape, w))
        slope, weight = np.zeros((2, *f.shape))
        columns = [np.ascontiguousarray(slopes[..., j]) for j in range(m)]
        place = m
        for one in self._each:
            bends = one.law.bends(one.rows, f[:, one.here], sds[one.sds])
            slope[:, one.here], weight[:, one.here] = bends.slope, bends.weight
            for j in range(0 if one.exact else len(bends.variances)):
                score[..., place + j] = self._sums(one, bends.variances[j])
                for i, column in enumerate(columns):
                    both = bends.cross[j] * column[:, one.here]
                    info[..., place + j, i] = self._sums(one, both)
                for i in range(j + 1):
                    info[..., place + j, place + i] = self._sums(one, bends.among[j, i])
            place += 0 if one.exact else len(bends.variances)
        sums = self.individuals.sums
        for i, column in enumerate(columns):
            score[..., i] = sums(slope * column)
            heavy = weight * column
            for j in range(i + 1):
                info[..., i, j] = sums(heavy * columns[j])
        return score, info

    def _sums(self, one: Outcome, values: Vector) -> Vector:
        """Add up what rows of an outcome have, (chains, m), of each individual: (chains, n)."""
        each = values
        if len(self._each) > 1:
            each = np.zeros((len(values), self.individuals.n_rows))
            each[:, one.here] = values
        return self.individuals.sums(each)

    def exact(self, squares: Vector, counts: Counts) -> list[tuple[Outcome, float, float]]:
        """Outcomes of one variance, with the total of squares and the number of rows."""
        exact = [one for one in self._each if one.exact]
        table = squares.reshape(len(exact), -1) if exact else np.zeros((0, 2))
        rows = table[:, 1] if len(self._each) > 1 else np.full(len(exact), counts.rows)
        pairs = zip(exact, table[:, 0].tolist(), rows.tolist(), strict=True)
        return [(one, total, max(n, 0.0)) for one, total, n in pairs]


def _names(individuals: Individuals, n: int) -> list[str]:
    """Words of n outcomes in a table, else their numbers."""
    words = individuals.columns.get("words", {})
    told = words.get("outcome", ()) if isinstance(words, Mapping) else ()
    return list(told) if len(told) == n else [f"outcome {code}" for code in range(n)]


def _laws(individuals: Individuals, error: str | Sequence[str]) -> list[str]:
    """Names of the laws of the outcomes, of all processes as many."""
    kinds = [error] if isinstance(error, str) else list(error)
    for one in kinds:
        check_choice("error", one, LAWS)
    codes = individuals.covariates.get("outcome")
    most = 1.0 if codes is None else float(codes.max(initial=0.0)) + 1
    n = max(int(individuals.largest(np.array([most]))[0]), len(kinds))
    if len(kinds) == 1:
        kinds *= n
    if len(kinds) < n:
        raise InputError(
            f"{individuals.source} has {n} outcomes, but error names {len(kinds)} laws; name one "
            "for all, or one for each"
        )
    return kinds


def _measured(one: Outcome, individuals: Individuals, expanded: bool) -> Outcome:
    """Check an outcome's values, and say how its variance is found."""
    one.law.check(one.rows, individuals, one.here)
    some = np.array([one.rows.censored.any()], dtype=np.uint8)
    censored = bool(individuals.largest(some)[0])
    single = isinstance(one.law, Normal) and len(one.law.parameters) == 1
    steady = isinstance(one.law, Normal) and (one.law.is_steady or not expanded)
    squares, counted = np.zeros((2, individuals.n_rows))
    squares[one.here] = one.rows.values**2
    counted[one.here] = 1.0
    size, rows = (float(individuals.total(individuals.sums(v))) for v in (squares, counted))
    return one._replace(exact=single and steady and not censored, size=size / max(rows, 1.0))


def _split(individuals: Individuals, laws: Sequence[Law]) -> list[Outcome]:
    """Rows of each outcome of these individuals."""
    n = individuals.n_rows
    codes = individuals.covariates.get("outcome", np.zeros(n))
    limits = individuals.covariates.get("censored", np.zeros(n))
    of = individuals.individual_of
    found, place = [], 0
    for code, law in enumerate(laws):
        here = np.flatnonzero(codes == code) if len(laws) > 1 else np.arange(n)
        rows = Rows(individuals.values[here], limits[here].astype(np.int8))
        ends = slice(place, place + len(law.parameters))
        found.append(Outcome(law, here, rows, of[here], ends))
        place = ends.stop
    return found
