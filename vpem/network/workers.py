"""Which worker holds which rows: the horizontal partition of a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import check_int
from vpem.errors import InputError
from vpem.network.partition import cut_evenly

__all__ = ["Workers", "by_label", "evenly", "from_worker_of_row"]


@dataclass(frozen=True, eq=False)
class Workers:
    """A division of the rows among workers; every row is held exactly once.

    Parameters
    ----------
    rows : tuple of ndarray of shape (m_i,)
        ``rows[i]`` are the numbers of the rows that worker ``i`` holds, increasing. A worker may
        hold none.
    names : tuple of str
        One name a worker, all different.

    Raises
    ------
    InputError
        If a row is missing, repeated or out of order, or the names do not fit the workers.
    """

    rows: tuple[NDArray[np.intp], ...]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.rows):
            raise InputError(f"there are {len(self.rows)} workers but {len(self.names)} names")
        if len(set(self.names)) < len(self.names):
            repeated = next(name for name in self.names if self.names.count(name) > 1)
            raise InputError(f"two workers are called {repeated!r}; their names must differ")
        if not self.n_samples:
            raise InputError("the workers hold no rows")
        order, n_samples = self.order, self.n_samples
        falls = np.diff(order) <= 0
        ends = np.cumsum(self.counts)
        falls[ends[(ends > 0) & (ends < n_samples)] - 1] = False
        if falls.any():
            raise InputError("the rows of each worker must be increasing")
        if not np.array_equal(np.sort(order), np.arange(n_samples)):
            raise InputError("each row must be held by exactly one worker")

    @property
    def n_workers(self) -> int:
        """Number of workers, N."""
        return len(self.rows)

    @property
    def n_samples(self) -> int:
        """Number of rows of all workers together, M."""
        return sum(map(len, self.rows))

    @property
    def order(self) -> NDArray[np.intp]:
        """Numbers of all rows, worker by worker, shape (M,)."""
        return np.concatenate(self.rows)

    @property
    def counts(self) -> NDArray[np.intp]:
        """Number of rows of each worker, shape (N,)."""
        return np.array(list(map(len, self.rows)), dtype=np.intp)

    @property
    def runs(self) -> list[slice]:
        """Where each worker's rows are in `order`."""
        ends = [0, *np.cumsum(self.counts).tolist()]
        return [slice(begin, end) for begin, end in pairwise(ends)]

    @property
    def worker_of(self) -> NDArray[np.intp]:
        """Number of the worker that holds each row, shape (M,)."""
        out = np.empty(self.n_samples, dtype=np.intp)
        for worker, part in enumerate(self.rows):
            out[part] = worker
        return out

    def of_rows(self, kept: NDArray[np.intp]) -> Workers:
        """Return the same workers with those of their rows that are kept, numbered anew."""
        return Workers(_grouped(self.worker_of[kept], self.n_workers), self.names)


def evenly(n_samples: int, n_workers: int, names: Sequence[str] | None = None) -> Workers:
    """Give each worker a run of neighbouring rows, as nearly equal in length as possible.

    Parameters
    ----------
    n_samples : int
        Number of rows, M.
    n_workers : int
        Number of workers, at most ``n_samples``.
    names : sequence of str, optional
        Names of the workers; "worker 0", "worker 1", ... by default.

    Returns
    -------
    Workers

    Raises
    ------
    InputError
        If there are no workers, or more of them than rows.
    """
    n_workers = _check_number(n_samples, n_workers)
    parts = cut_evenly(np.arange(n_samples, dtype=np.intp), n_workers)
    return Workers(parts, _names(names, n_workers))


def by_label(labels: ArrayLike, n_workers: int, names: Sequence[str] | None = None) -> Workers:
    """Sort rows by their labels before they are dealt out evenly: workers unlike each other.

    Parameters
    ----------
    labels : array-like of shape (M,)
        A class of each row.
    n_workers : int
        Number of workers, at most M.
    names : sequence of str, optional
        Names of the workers.

    Returns
    -------
    Workers

    Raises
    ------
    InputError
        If there are no workers, or more of them than rows.
    """
    order = np.argsort(np.asarray(labels), kind="stable").astype(np.intp)
    n_workers = _check_number(len(order), n_workers)
    parts = cut_evenly(order, n_workers)
    return Workers(tuple(np.sort(part) for part in parts), _names(names, n_workers))


def from_worker_of_row(worker_of: ArrayLike, names: Sequence[str] | None = None) -> Workers:
    """Make a partition from the worker of each row.

    Parameters
    ----------
    worker_of : array-like of shape (M,)
        Names of workers, or their numbers from 0. A number that does not occur is a worker without
        rows.
    names : sequence of str, optional
        With numbers: what the workers are called.

    Returns
    -------
    Workers
        Named workers are numbered in the order of their names.

    Raises
    ------
    InputError
        If the numbers are negative or exceed the names.
    """
    values = np.asarray(worker_of)
    if values.ndim != 1 or not values.size:
        raise InputError(
            f"the workers of the rows must be a list, one a row, got an array of shape "
            f"{values.shape}"
        )
    if values.dtype.kind in "OUS" and names is None:
        found, numbers = np.unique(values.astype(str), return_inverse=True)
        return Workers(_grouped(numbers, len(found)), tuple(found.tolist()))
    if values.dtype.kind not in "iu":
        raise InputError(f"workers must be numbers from 0, or names, got {values.dtype}")
    if values.min() < 0:
        bad = int(np.argmin(values))
        raise InputError(f"workers are numbered from 0, but row {bad} has worker {values[bad]}")
    most = len(names) if names is not None else len(values)
    if values.max() >= most:
        bad = int(np.argmax(values))
        raise InputError(
            f"row {bad} is given to worker {values[bad]}, but there are {most} "
            f"{'rows' if names is None else 'names'}; number the workers from 0"
        )
    n_workers = int(values.max()) + 1 if names is None else len(names)
    return Workers(_grouped(values, n_workers), _names(names, n_workers))


def _check_number(n_samples: int, n_workers: Any) -> int:
    number = check_int("n_workers", n_workers, least=1)
    if number > n_samples:
        raise InputError(
            f"{number} workers cannot share {n_samples} rows, since each needs at least one; "
            f"give at most {n_samples} workers"
        )
    return number


def _grouped(worker_of: NDArray[Any], n_workers: int) -> tuple[NDArray[np.intp], ...]:
    order = np.argsort(worker_of, kind="stable").astype(np.intp)
    ends = np.cumsum(np.bincount(worker_of, minlength=n_workers))
    return tuple(np.split(order, ends[:-1]))


def _names(names: Iterable[str] | None, n_workers: int) -> tuple[str, ...]:
    if names is None:
        return tuple(f"worker {worker}" for worker in range(n_workers))
    return tuple(names)
