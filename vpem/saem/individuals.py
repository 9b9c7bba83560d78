"""Repeated measurements: individuals as runs of rows, with times, values and covariates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import as_array
from vpem.errors import InputError, did_you_mean, shorten
from vpem.saem.together import Together

__all__ = ["Individuals", "chain", "from_long", "from_matrix"]

Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Individuals:
    """Measurements in long form: the rows of an individual are a run.

    Parameters
    ----------
    names : tuple of str
        Of the individuals, all different, (n,).
    first : ndarray of shape (n + 1,)
        Rows ``first[i]`` to ``first[i + 1]`` are those of individual i; each has one at least.
    times, values : ndarray of shape (N,)
        When, and what was measured; finite.
    covariates : mapping of str to ndarray of shape (N,)
        Other columns; NaN where they are missing.
    source : str
        Where they are from, for messages.
    columns : mapping
        Names that the columns ``id``, ``time`` and ``value`` have in a table they are from, and as
        ``covariates`` those of covariates that have another one there.
    together : Together, optional
        All individuals, where others are in other processes.
    """

    names: tuple[str, ...]
    first: NDArray[np.intp]
    times: Vector
    values: Vector
    covariates: Mapping[str, Vector] = field(default_factory=dict)
    source: str = "the data"
    columns: Mapping[str, Any] = field(default_factory=dict)
    together: Together | None = None

    @property
    def n_individuals(self) -> int:
        """Number of individuals, n."""
        return len(self.names)

    @property
    def n_rows(self) -> int:
        """Number of rows, N."""
        return len(self.times)

    @property
    def counts(self) -> NDArray[np.intp]:
        """Number of rows of each individual, (n,)."""
        return np.diff(self.first)

    @property
    def individual_of(self) -> NDArray[np.intp]:
        """Individual of each row, (N,)."""
        return np.repeat(np.arange(self.n_individuals), self.counts)

    def take(self, which: Any) -> Individuals:
        """Return some individuals, by themselves, in the order of their numbers in ``which``."""
        chosen = np.asarray(which, dtype=np.intp)
        counts = self.counts[chosen]
        first = np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)
        rows = np.repeat(self.first[:-1][chosen] - first[:-1], counts) + np.arange(first[-1])
        return Individuals(
            tuple(self.names[one] for one in chosen),
            first,
            self.times[rows],
            self.values[rows],
            {name: values[rows] for name, values in self.covariates.items()},
            self.source,
            self.columns,
        )

    def sums(self, values: Vector) -> Vector:
        """Add values (..., N) over the rows of each individual: (..., n)."""
        added: Vector = np.add.reduceat(values, self.first[:-1], axis=-1)
        return added

    # ---- what all individuals have, those of other processes too --------------------------------

    @property
    def everyone(self) -> tuple[float, float]:
        """Number of all individuals, and of all rows."""
        if self.together is None:
            return self.n_individuals, self.n_rows
        return self.together.n_individuals, self.together.n_rows

    def total(self, values: Vector) -> Any:
        """Add up values (n, ...) of individuals, or (N, ...) of rows."""
        return self.add(values.sum(axis=0))

    def add(self, totals: Any) -> Any:
        """Add up totals of all processes."""
        return totals if self.together is None else self.together.add(totals)

    def largest(self, values: Any) -> Any:
        """Return the largest of all processes' values."""
        return values if self.together is None else self.together.engine.allreduce(values, "max")

    def mean(self, values: Vector) -> Any:
        """Return the mean of values (n, ...) of individuals."""
        return self.total(values) / self.everyone[0]

    def variance(self, values: Vector) -> Any:
        """Return the variance of values (n, ...) of individuals."""
        return self.mean((values - self.mean(values)) ** 2)

    def mean_of_rows(self, values: Vector) -> Any:
        """Return the mean of values (N, ...) of rows."""
        return self.total(values) / self.everyone[1]

    def median(self, values: Vector) -> Vector:
        """Return the medians (q,) of values (n, q) of individuals, NaN left out."""
        if self.together is not None:
            return self.together.median(values)
        found: Vector = np.nanmedian(values, axis=0)
        return found

    def of(self, values: Vector, which: NDArray[np.intp]) -> Vector:
        """Return the values (m, ...) of some of all individuals."""
        return values[which] if self.together is None else self.together.of(values, which)

    # ---- what models ask for ----------------------------------------------------------------

    def covariate(self, name: str) -> Vector:
        """Return a covariate (N,) that has no missing values.

        Raises
        ------
        InputError
            If there is none of that name, or an individual lacks it.
        """
        if name not in self.covariates:
            have = shorten([repr(one) for one in self.covariates]) or "none"
            raise InputError(
                f"{self.source} has no covariate {name!r}{did_you_mean(name, self.covariates)}, "
                f"which the model needs; there are: {have}"
            )
        values = self.covariates[name]
        missing = ~np.isfinite(values)
        if missing.any():
            lacking = np.unique(self.individual_of[missing])
            raise InputError(
                f"{self.source}: covariate {name!r} is missing for "
                f"{shorten([repr(self.names[one]) for one in lacking])}; fill it in, or leave "
                "these individuals out"
            )
        return values

    def constant(self, name: str) -> Vector:
        """Return a covariate (n,) that does not change within an individual.

        Raises
        ------
        InputError
            As `covariate`, or if it changes.
        """
        values = self.covariate(name)
        each: Vector = values[self.first[:-1]]
        odd = np.flatnonzero(values != each[self.individual_of])
        if len(odd):
            who = self.individual_of[odd[0]]
            raise InputError(
                f"{self.source}: covariate {name!r} of individual {self.names[who]!r} changes from "
                f"{each[who]:g} to {values[odd[0]]:g}; the model takes one value an individual"
            )
        return each

    def need_rows(self, least: int) -> None:
        """Raise InputError if an individual has fewer rows than a model needs."""
        few = np.flatnonzero(self.counts < least)
        if len(few):
            who = shorten([repr(self.names[one]) for one in few])
            raise InputError(
                f"{self.source}: the model needs at least {least} observations an individual, but "
                f"{who} {'has' if len(few) == 1 else 'have'} fewer (the first "
                f"{self.counts[few[0]]}); leave such individuals out"
            )

    def need_rising_times(self) -> None:
        """Raise InputError if the times of an individual repeat or go back."""
        steps = np.diff(self.times)
        wrong = np.flatnonzero((steps <= 0) & (np.diff(self.individual_of) == 0))
        if len(wrong):
            row = wrong[0]
            who = self.names[self.individual_of[row]]
            what = "repeats" if steps[row] == 0 else "comes after"
            later = f"time {self.times[row + 1]:g}"
            told = f"{later} {what}" + ("" if steps[row] == 0 else f" {self.times[row]:g}")
            raise InputError(
                f"{self.source}: {told} for individual {who!r}, but the model needs increasing "
                "times; sort the rows, and take the mean of repeated ones"
            )

    def matrix(self) -> tuple[Vector, Vector]:
        """Return the values as a table (n, T), and the times (T,) that all individuals share.

        Raises
        ------
        InputError
            If individuals differ in their times.
        """
        width = int(self.counts[0])
        odd = np.flatnonzero(self.counts != width)
        if not len(odd):
            times = self.times.reshape(-1, width)
            odd = np.flatnonzero((times != times[0]).any(axis=1))
            if not len(odd):
                self._share_times(times[0])
                return self.values.reshape(-1, width), times[0]
        raise InputError(
            f"{self.source}: the model needs all individuals measured at the same times (items), "
            f"but those of {self.names[odd[0]]!r} differ from those of {self.names[0]!r}"
        )

    def _share_times(self, times: Vector) -> None:
        """Raise InputError if other processes' individuals have other times (T,)."""
        if self.together is not None:
            for theirs in self.together.engine.allgather(times):
                if not np.array_equal(times, theirs):
                    raise InputError(
                        f"{self.source}: the model needs all individuals measured at the same "
                        "times (items), but those of some devices differ from those of others"
                    )


def from_long(
    ids: Any,
    times: Any,
    values: Any,
    covariates: Mapping[str, Any] | None = None,
    source: str = "the data",
) -> Individuals:
    """Make individuals of columns.

    Parameters
    ----------
    ids : array-like of shape (N,)
        Whose row it is: numbers or text; rows of an individual are neighbours.
    times, values : array-like of shape (N,)
        Finite numbers.
    covariates : mapping of str to array-like of shape (N,), optional
        Numbers; NaN where they are missing.
    source : str
        Where they are from.

    Returns
    -------
    Individuals
        In the order in which they come.

    Raises
    ------
    InputError
        If the columns differ in length, are no numbers, or an individual comes in two places.
    """
    labels = as_array("the ids", ids)
    if labels.ndim != 1 or not len(labels):
        raise InputError(f"{source} must have one id a row, got an array of shape {labels.shape}")
    columns = {}
    for name, column in (("times", times), ("values", values), *(covariates or {}).items()):
        array = as_array(f"the {name}", column)
        if array.dtype.kind not in "iufb" or array.shape != labels.shape:
            raise InputError(
                f"{source}: {name} must be {len(labels)} numbers, one a row, got shape "
                f"{array.shape} of type {array.dtype}"
            )
        columns[name] = array.astype(np.float64)
    for name in ("times", "values"):
        bad = np.flatnonzero(~np.isfinite(columns[name]))
        if len(bad):
            raise InputError(
                f"{source}: row {bad[0]} of {name} is {columns[name][bad[0]]}; leave out rows of "
                "what was not measured"
            )
    for name in covariates or {}:
        if np.isinf(columns[name]).any():
            raise InputError(f"{source}: covariate {name!r} is infinite in some rows")
    begins = np.flatnonzero(np.concatenate([[True], labels[1:] != labels[:-1]]))
    names = tuple(str(label) for label in labels[begins].tolist())
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(
            f"{source}: the rows of individual {twice!r} are in several places; sort rows by id"
        )
    return Individuals(
        names,
        np.append(begins, len(labels)).astype(np.intp),
        columns["times"],
        columns["values"],
        {name: columns[name] for name in covariates or {}},
        source,
    )


def chain(parts: Sequence[Individuals]) -> Individuals:
    """Put individuals of several sources one after the other.

    Raises
    ------
    InputError
        If two of them have one name.
    """
    if len(parts) == 1:
        return parts[0]
    names = tuple(name for part in parts for name in part.names)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        sources = " and ".join(part.source for part in parts if twice in part.names)
        raise InputError(f"{sources} both have an individual {twice!r}; their names must differ")
    ends = np.cumsum([0, *(part.n_rows for part in parts)])
    first = [part.first[:-1] + end for part, end in zip(parts, ends, strict=False)]
    kept = [name for name in parts[0].covariates if all(name in one.covariates for one in parts)]
    return Individuals(
        names,
        np.concatenate([*first, ends[-1:]]).astype(np.intp),
        np.concatenate([part.times for part in parts]),
        np.concatenate([part.values for part in parts]),
        {name: np.concatenate([part.covariates[name] for part in parts]) for name in kept},
        ", ".join(part.source for part in parts),
        parts[0].columns,
    )


def from_matrix(X: Any, names: Any = None, source: str = "the data") -> Individuals:
    """Make individuals of the rows of a table (n, T); times are the numbers of the columns.

    Raises
    ------
    InputError
        If it is no table of finite numbers.
    """
    table = as_array(source, X)
    if table.ndim != 2 or table.dtype.kind not in "iufb" or not table.size:
        raise InputError(
            f"{source} must be a table of numbers, got shape {table.shape} of type {table.dtype}"
        )
    n, width = table.shape
    labels = np.arange(n) if names is None else as_array("the names", names)
    if labels.shape != (n,):
        raise InputError(f"{n} individuals need as many names, got shape {labels.shape}")
    return from_long(
        np.repeat(labels, width), np.tile(np.arange(width), n), table.ravel(), source=source
    )
