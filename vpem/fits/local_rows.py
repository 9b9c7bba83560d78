"""What recipes over rows ask of data of which every process has those of its own workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Extremes, Floats, as_array
from vpem.engines.engine import about
from vpem.engines.placement import Placement
from vpem.errors import InputError
from vpem.files.matrix import FileMatrix
from vpem.network.partition import Workers
from vpem.sums.quantizer import ITEM
from vpem.sums.sum import Sum
from vpem.terms.matrix import Rows
from vpem.terms.points import Points


class LocalRows:
    """Which rows, of those that workers hold, are in this process.

    Parameters
    ----------
    holders : Placement
        Which workers live where.
    counts : ndarray of shape (N,)
        Rows of each worker of all processes.
    order : ndarray of shape (M,), optional
        The user's numbers of all rows, worker by worker; None: 0, 1, ...

    Attributes
    ----------
    n_samples : int
        Rows of all workers, M.
    own : ndarray of int
        Workers of this process.
    rows : slice
        Where their rows are among all, worker by worker.
    runs : list of slice
        Where each worker's rows are in this process's; empty ones for workers of others.
    own_runs : list of slice
        Of these, those of this process's workers.
    """

    def __init__(
        self,
        holders: Placement,
        counts: NDArray[np.intp],
        order: NDArray[np.intp] | None = None,
    ) -> None:
        self.holders = holders
        self._order = order
        self.counts = counts
        self.n_samples = int(counts.sum())
        self.own = holders.own
        here = np.zeros(len(counts), dtype=np.bool_)
        here[self.own] = True
        ends = np.cumsum([0, *np.where(here, counts, 0)]).tolist()
        self.runs = [slice(begin, end) for begin, end in pairwise(ends)]
        self.own_runs = [self.runs[worker] for worker in self.own]
        first = int(counts[: self.own[0]].sum()) if len(self.own) else 0
        self.rows = slice(first, first + ends[-1])

    @classmethod
    def of(cls, holders: Placement, workers: Workers, X: Any) -> LocalRows | None:
        """Return which rows X has where workers live in several processes; else None.

        Where sums are masked every worker's are told apart in one process too.
        """
        if not holders.apart and holders.masks is None:
            return None
        here = cls(holders, workers.counts, None if workers.in_order else workers.order)
        here.check(X)
        return here

    def check(self, X: Any) -> None:
        """Raise InputError unless these are the rows of this process's workers."""
        wanted = self.rows.stop - self.rows.start
        if len(X) != wanted:
            raise InputError(
                f"the workers of this rank hold {wanted} rows, but it was given {len(X)}; give "
                "the rows of its own workers, worker by worker"
            )

    @property
    def masked(self) -> bool:
        """Whether sums are masked: then nothing else of any row is told to others."""
        return self.holders.masks is not None

    @property
    def numbers(self) -> NDArray[np.intp]:
        """The user's numbers of this process's rows, worker by worker, shape (m,)."""
        if self._order is None:
            return np.arange(self.rows.start, self.rows.stop)
        return self._order[self.rows]

    def everyones(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return what all processes have of their rows, as the user numbers them, (M, ...).

        ``values`` (m, ...) are of this process's rows, worker by worker.
        """
        joined: NDArray[Any] = np.concatenate(self.holders.engine.allgather(values))
        if self._order is None:
            return joined
        found = np.empty_like(joined)
        found[self._order] = joined
        return found

    def count(self, flags: NDArray[np.bool_]) -> int:
        """How many rows of all have a flag, of this process's (m,); masked, nobody knows whose."""
        own = np.array([[float(flags[run].sum())] for run in self.own_runs]).reshape(-1, 1)
        return round(float(self.holders.add(own)[0]))

    def keeping(self, kept: NDArray[np.intp] | None, n_rows: int) -> LocalRows:
        """Return the same of some rows of this process, where all have so many."""
        if kept is None and n_rows == self.n_samples:
            return self
        own = self.own_runs
        made = copy(self)
        if kept is not None:
            counts = self.counts.copy()
            counts[self.own] = [((kept >= run.start) & (kept < run.stop)).sum() for run in own]
            made = LocalRows(self.holders, counts)
        made.n_samples = n_rows
        return made

    def constant(self, own: Extremes) -> NDArray[np.bool_]:
        """Say which features (d,) have one value in all rows, by the extremes of each process's."""
        if self.holders.masks is None:
            lowest, highest = self.holders.allreduce(np.stack([-own[0], own[1]]), "max")
            return np.asarray(-lowest == highest)
        # Nobody's own value is told: how far workers' only values are from the mean of these.
        varies = self.holders.any(own[0] < own[1])
        some = (self.counts[self.own] > 0).astype(np.float64)
        has = own[0] <= own[1]
        only = np.where(varies | ~has, 0.0, own[0])
        total = self.holders.add_up(np.outer(some, np.concatenate([only, has])))
        mean, count = total.reshape(2, len(only))
        mean /= np.maximum(count, 1.0)
        apart = np.abs(only - mean) > 1e-12 * np.abs(mean)
        return ~(varies | self.holders.any(apart & has & bool(some.any())))


def by_worker(X: Any, sample_weight: Any, workers: Workers, holders: Placement) -> tuple[Any, Any]:
    """Return rows and their weights, where sums are masked as several processes have them.

    That is worker by worker. What has not as many rows is refused where it is looked at.
    """
    if not isinstance(X, FileMatrix):
        X = as_array("data", X)
    if sample_weight is not None:
        sample_weight = as_array("sample weights", sample_weight)
    if holders.masks is None or holders.apart or workers.in_order:
        return X, sample_weight
    if sample_weight is not None and sample_weight.shape == (workers.n_samples,):
        sample_weight = sample_weight[workers.order]
    if len(X) != workers.n_samples:
        return X, sample_weight
    X = X.of_rows(workers.rows) if isinstance(X, FileMatrix) else X[workers.order]
    return X, sample_weight


def check_rows_held(workers: Workers, n_samples: int) -> None:
    """Raise InputError unless workers hold as many rows as the data have."""
    if workers.n_samples != n_samples:
        raise InputError(
            f"the workers hold {workers.n_samples} rows, but the data have {n_samples}"
        )


class SharedRows:
    """Rows of this process, and those of others where all processes ask for them.

    Parameters
    ----------
    rows : Rows
        Of this process's workers.
    here : LocalRows
        Where all others are.
    """

    def __init__(self, rows: Rows, here: LocalRows) -> None:
        self._rows = rows
        self._here = here
        self.n_samples = rows.n_samples
        self.dtype = rows.dtype

    def runs(self) -> Iterator[slice]:
        """Runs of this process's rows."""
        return self._rows.runs()

    def read(self, rows: slice) -> Floats:
        """A run of this process's rows, shape (m, d), C-contiguous."""
        return self._rows.read(rows)

    def take(self, indices: NDArray[np.intp]) -> Floats:
        """Some rows of all, by their places worker by worker; all processes ask alike."""
        own = self._here.rows
        inside = (indices >= own.start) & (indices < own.stop)
        some = self._rows.take(indices[inside] - own.start)
        found = np.zeros((len(indices), some.shape[1]), dtype=self.dtype)
        found[inside] = some
        with about(self._here.holders.engine, "flooding"):
            return self._here.holders.allreduce(found)

    def some(self, indices: NDArray[np.intp]) -> Rows:
        """Some of this process's rows as rows of their own."""
        return self._rows.some(indices)

    def cut(self, step: int) -> None:
        """Let runs have so many rows."""
        self._rows.cut(step)

    def part(self, rows: slice, following: slice | None = None) -> Rows:
        """A run of this process's rows as rows of their own."""
        return self._rows.part(rows, following)


class DrawnRows(SharedRows):
    """Rows of this process, and points in the place of those that others would have to show.

    Parameters
    ----------
    rows, here
        As for `SharedRows`.
    points : Points
        About all rows.
    """

    def __init__(self, rows: Rows, here: LocalRows, points: Points) -> None:
        super().__init__(rows, here)
        self.own, self.points = rows, points

    def take(self, indices: NDArray[np.intp]) -> Floats:
        """Points of these numbers, which are below zero."""
        return self.points.take(indices).astype(self.dtype)


def charge_weights(total: Sum, counts: NDArray[np.intp]) -> None:
    """Count how every worker tells all others the weights of its rows, so many of each.

    Which row a shared number draws depends on the weights of all rows.
    """
    for worker, count in enumerate(counts):
        total.agree("setup", ITEM * int(count), worker)


def read_rows(X: Any, groups: Sequence[NDArray[np.intp]]) -> Floats:
    """Read some rows (m, d) of the data, group by group (increasing numbers), and keep no others.

    Of a file, a read is of the rows from the first to the last that are wanted of those that are
    read at once.
    """
    wanted = np.concatenate([np.empty(0, dtype=np.intp), *groups])
    if isinstance(X, np.ndarray):
        return np.ascontiguousarray(X[wanted])
    found = np.empty((len(wanted), X.shape[1]), dtype=X.dtype)
    begin = 0
    for rows in groups:
        for piece in np.split(rows, np.flatnonzero(np.diff(rows // X.step)) + 1):
            if len(piece):
                first = int(piece[0])
                part = X[first : int(piece[-1]) + 1]
                found[begin : begin + len(piece)] = part[piece - first]
                begin += len(piece)
    X.close()
    return found
