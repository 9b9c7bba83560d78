"""Repeated measurements: individuals as runs of rows, with times, values and covariates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import as_array
from vpem.errors import InputError, did_you_mean, shorten
from vpem.saem.doses import Doses
from vpem.saem.together import Everyone, Together
from vpem.shown import Shown

Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Individuals(Shown, Everyone, facts="{n_individuals:individual}, {values.size:row}, {source}"):
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
    weights : ndarray of shape (n,), optional
        How many copies of each individual count, above 0. None: one.
    together : Together, optional
        All individuals, where others are in other processes.
    words : tuple of str, optional
        A vocabulary, where individuals are documents: times are the numbers of words in it, values
        how often they come.
    doses : Doses, optional
        What they were given, where rows of the table say so.
    """

    names: tuple[str, ...]
    first: NDArray[np.intp]
    times: Vector
    values: Vector
    covariates: Mapping[str, Vector] = field(default_factory=dict)
    source: str = "the data"
    columns: Mapping[str, Any] = field(default_factory=dict)
    weights: Vector | None = None
    together: Together | None = None
    words: tuple[str, ...] | None = None
    doses: Doses | None = None

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
    def contents(self) -> tuple[Any, ...]:
        """All that is known of the individuals, by which they are recognised."""
        doses = () if self.doses is None else (self.doses.first, *self.doses.columns)
        return (
            self.names, self.first, self.times, self.values, self.weights, *self.covariates,
            *self.covariates.values(), *(self.words or ()), *doses,
        )  # fmt: skip

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
        return replace(
            self,
            names=tuple(self.names[one] for one in chosen),
            first=first,
            times=self.times[rows],
            values=self.values[rows],
            covariates={name: values[rows] for name, values in self.covariates.items()},
            weights=None if self.weights is None else self.weights[chosen],
            together=None,
            doses=None if self.doses is None else self.doses.take(chosen),
        )

    def named(self, names: Sequence[str], what: str = "individual") -> Individuals:
        """Return those of these names, in their order; ``what`` they are is for messages."""
        place = {name: one for one, name in enumerate(self.names)}
        for name in names:
            if name not in place:
                raise InputError(f"{self.source} has no {what} {name!r}{did_you_mean(name, place)}")
        return self.take([place[name] for name in names])

    def sums(self, values: Vector) -> Vector:
        """Add values (..., N) over the rows of each individual: (..., n)."""
        added: Vector = np.add.reduceat(values, self.first[:-1], axis=-1)
        return added

    # ---- what models ask for ----------------------------------------------------------------

    def covariate(self, name: str) -> Vector:
        """Return a covariate (N,) that has no missing values."""
        column, _, word = name.partition("=")
        known = self.columns.get("words", {}).get(column, [])
        if name not in self.covariates and word in known:
            return np.asarray(self.covariate(column) == known.index(word), np.float64)
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

    def product(self, name: str) -> Vector:
        """Return a column (N,): a covariate, ``time``, or a product of such, ``time:x``."""
        made = np.ones(self.n_rows)
        for part in name.split(":"):
            made = made * (self.times if part == "time" else self.covariate(part))
        return made

    def changes(self, name: str) -> NDArray[np.intp]:
        """Return the rows whose covariate is not that of the individual's first row."""
        values = self.covariate(name)
        each: Vector = values[self.first[:-1]]
        return np.flatnonzero(values != each[self.individual_of])

    def constant(self, name: str, why: str = "the model takes one value an individual") -> Vector:
        """Return a covariate (n,) that does not change within an individual.

        Why it must not ends the sentence of an error.
        """
        values = self.covariate(name)
        each: Vector = values[self.first[:-1]]
        odd = self.changes(name)
        if len(odd):
            who = self.individual_of[odd[0]]
            raise InputError(
                f"{self.source}: covariate {name!r} of individual {self.names[who]!r} changes from "
                f"{each[who]:g} to {values[odd[0]]:g}; {why}"
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

    def items(self) -> Vector:
        """Return all times (T,) of which any individual has a measurement."""
        found = np.unique(self.times)
        if self.together is not None:
            found = np.unique(np.concatenate(self.together.engine.allgather(found)))
        return found

    def table(self, items: Vector) -> Vector:
        """Return the values as a table (n, T) over items (T,), NaN where there is none."""
        order = np.argsort(items)
        place = order[np.searchsorted(items[order], self.times).clip(max=len(items) - 1)]
        each = self.individual_of
        known = items[place] == self.times
        twice = np.ones(self.n_rows, dtype=np.bool_)
        twice[np.unique(each * len(items) + place, return_index=True)[1]] = False
        for wrong, what in ((~known, "which is not among those of the model"), (twice, "twice")):
            if wrong.any():
                row = int(wrong.argmax())
                raise InputError(
                    f"{self.source}: individual {self.names[each[row]]!r} has the time (item) "
                    f"{self.times[row]:g}, {what}"
                )
        found = np.full((self.n_individuals, len(items)), np.nan)
        found[each, place] = self.values
        return found

    def matrix(self) -> tuple[Vector, Vector]:
        """Return the values as a table (n, T), and the times (T,) that all individuals share."""
        if not self.n_individuals and self.together is not None:
            shared = self._share_times(None)
            return np.empty((0, len(shared))), shared
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

    def _share_times(self, times: Vector | None) -> Vector:
        """Return the times (T,) of all processes' individuals; None: here are none.

        Raises InputError if they differ.
        """
        found = times if self.together is None else self.together.same(times)
        if found is None:
            raise InputError(
                f"{self.source}: the model needs all individuals measured at the same times "
                "(items), but those of some devices differ from those of others"
            )
        return np.asarray(found)


def from_long(
    ids: Any,
    times: Any,
    values: Any,
    covariates: Mapping[str, Any] | None = None,
    source: str = "the data",
    missing: bool = False,
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
    missing : bool
        Whether values may be missing, NaN: these rows say nothing, and are left out.

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
    if missing:
        labels, columns = _measured(labels, columns, source)
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


def _measured(
    labels: NDArray[Any], columns: dict[str, Vector], source: str
) -> tuple[NDArray[Any], dict[str, Vector]]:
    """Leave out rows of what was not measured; an individual has a measurement at least."""
    there = ~np.isnan(columns["values"])
    lacking = sorted(set(map(str, labels[~there])) - set(map(str, labels[there])))
    if lacking:
        raise InputError(
            f"{source}: no value of {shorten([repr(name) for name in lacking])} was measured, "
            "which says nothing of any parameter; leave such individuals out"
        )
    return labels[there], {name: values[there] for name, values in columns.items()}


def from_matrix(X: Any, names: Any = None, source: str = "the data") -> Individuals:
    """Make individuals of the rows of a table (n, T); times are the numbers of the columns."""
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
