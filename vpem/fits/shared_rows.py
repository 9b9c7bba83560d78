"""What recipes over rows ask of data of which every process has those of its own workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import row_blocks
from vpem.engines.crew import Crew
from vpem.errors import InputError, Setting
from vpem.terms.matrix import Rows
from vpem.terms.scaling import Scaling

__all__ = ["Here", "SharedRows", "check_alone", "read_rows"]


@dataclass(frozen=True)
class Here:
    """What is in this process of rows that workers hold.

    Attributes
    ----------
    crew : Crew
        Which workers live where.
    counts : ndarray of shape (N,)
        Rows of each worker of all processes.
    """

    crew: Crew
    counts: NDArray[np.intp]

    @property
    def n_samples(self) -> int:
        """Rows of all workers, M."""
        return int(self.counts.sum())

    @property
    def own(self) -> range:
        """Workers of this process."""
        return self.crew.own(len(self.counts))

    @property
    def rows(self) -> slice:
        """Where their rows are, worker by worker."""
        own = self.own
        ends = np.cumsum([0, *self.counts])
        return slice(int(ends[own.start]), int(ends[own.stop])) if len(own) else slice(0, 0)

    @property
    def runs(self) -> list[slice]:
        """Where each worker's rows are in this process's; empty ones for workers of others."""
        inside, first = self.own, self.rows.start
        ends = np.cumsum([0, *self.counts]) - first
        nothing = slice(0, 0)
        return [
            slice(int(ends[worker]), int(ends[worker + 1])) if worker in inside else nothing
            for worker in range(len(self.counts))
        ]

    @property
    def own_runs(self) -> list[slice]:
        """Where the rows of each worker of this process are."""
        runs = self.runs
        return [runs[worker] for worker in self.own]

    def check(self, X: Any) -> None:
        """Raise InputError unless these are the rows of this process's workers."""
        wanted = self.rows.stop - self.rows.start
        if len(X) != wanted:
            raise InputError(
                f"the workers of this rank hold {wanted} rows, but it was given {len(X)}; give "
                "the rows of its own workers, worker by worker"
            )

    def standard(self, X: NDArray[Any], row_weights: NDArray[np.float64] | None) -> Scaling:
        """Units as `Scaling.standard` finds them, by sums over all processes; rows weigh alike."""
        d = X.shape[1]
        shift, variance = np.zeros(d), np.zeros(d)
        for _, part in row_blocks(X):
            shift += part.astype(np.float64, copy=False).sum(axis=0)
        shift = self.crew.add(shift) / self.n_samples
        for _, part in row_blocks(X):
            variance += np.square(part - shift).sum(axis=0)
        scale = np.sqrt(self.crew.add(variance) / self.n_samples)
        scale = np.where(scale > 1e-12 * np.maximum(np.abs(shift), 1.0), scale, 1.0)
        return Scaling(shift, scale)

    def constant(self, X: NDArray[Any]) -> NDArray[np.intp]:
        """Features that have one value in all rows of all processes."""
        if len(X):
            extremes = np.stack([X.max(axis=0), -X.min(axis=0)]).astype(np.float64)
        else:
            extremes = np.full((2, X.shape[1]), -np.inf)
        highest, lowest = self.crew.largest(extremes)
        return np.flatnonzero(highest == -lowest)


class SharedRows:
    """Rows of this process, and those of others when they are told.

    Parameters
    ----------
    rows : Rows
        Of this process's workers.
    here : Here
        Where all others are.
    """

    def __init__(self, rows: Rows, here: Here) -> None:
        self._rows = rows
        self._here = here
        self.n_samples = rows.n_samples
        self.dtype = rows.dtype

    def runs(self) -> Iterator[slice]:
        """Runs of this process's rows."""
        return self._rows.runs()

    def read(self, rows: slice) -> NDArray[Any]:
        """A run of this process's rows, shape (m, d), C-contiguous."""
        return self._rows.read(rows)

    def take(self, indices: NDArray[np.intp]) -> NDArray[Any]:
        """Some rows of all, by their places worker by worker; all processes ask alike."""
        own = self._here.rows
        inside = (indices >= own.start) & (indices < own.stop)
        some = self._rows.take(indices[inside] - own.start)
        found = np.zeros((len(indices), some.shape[1]), dtype=self.dtype)
        found[inside] = some
        return self._here.crew.add(found)

    def part(self, rows: slice, following: slice | None = None) -> Rows:
        """A run of this process's rows as rows of their own."""
        return self._rows.part(rows, following)


def read_rows(X: Any, groups: Sequence[NDArray[np.intp]]) -> NDArray[Any]:
    """Read some rows of the data, group by group, and keep no others.

    Parameters
    ----------
    X : ndarray or FileMatrix of shape (M, d)
        The data. Of a file, a read is of the rows from the first to the last that are wanted of
        those that are read at once.
    groups : sequence of ndarray
        Increasing row numbers of each group.

    Returns
    -------
    ndarray of shape (m, d)
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


def check_alone(crew: Crew, **given: Any) -> None:
    """Raise InputError where workers live in several processes and an option is for one."""
    for name, value in given.items():
        if crew.apart and value is not None:
            raise InputError(
                Setting(name), " over rows is for one process; leave it out, or take one process"
            )
