"""What a run of Lloyd's iterations is saved as, and how it is put together again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vpem.network.schema import (
    COUNT,
    FLAG,
    NOTHING,
    NUMBER,
    Array,
    Choice,
    Integer,
    ListOf,
    Maybe,
    Schema,
    State,
    check,
)
from vpem.steps.saver import Saver, check_length

__all__ = ["LloydRuns", "lloyd_schema", "lloyd_state", "restore_lloyd", "resume_lloyd"]

ARRAYS = ("centres", "counts", "inertia")
LISTS = ("history", "bytes_sent", "reseeded")


def lloyd_state(run: Any, total: Any = None, iteration: int = 0) -> State:
    """Return the state of a run (`rowstarts.Lloyd` or `feature_lloyd.FeatureLloyd`).

    Parameters
    ----------
    run : object
        Centres as they will be in the next iteration, and how rows were assigned in the last.
    total : Sum, optional
        What it keeps; None of a run that is over.
    iteration : int
        How many there were.
    """
    return {
        "iteration": iteration,
        **{name: getattr(run, name) for name in ARRAYS},
        **{name: list(getattr(run, name)) for name in LISTS},
        "converged": bool(run.converged),
        "labels": _joined(run.labels),
        "distances": _joined(getattr(run, "distances", None)),
        "sum": None if total is None else total.state(),
    }


def lloyd_schema(
    shape: tuple[int, ...],
    n_samples: int,
    total: Any,
    *,
    n_here: int | None = None,
    over: bool = False,
) -> dict[str, Schema]:
    """Say what a run is saved as.

    Parameters
    ----------
    shape : (int, int)
        Clusters and features, (K, d).
    n_samples : int
        Number of rows, M.
    total : Sum
        How it is summed.
    n_here : int, optional
        Rows of this process, over rows; None: over features, which all roots assign rows by.
    over : bool
        Whether the run is over.
    """
    k, n_roots = shape[0], total.n_roots
    over_rows, of_rows = n_here is not None, (n_here or 0,)
    # What a rank without workers has is joined of nothing.
    labels = "f8" if n_here == 0 else "i4"
    return {
        "iteration": Choice((0,)) if over else Integer(1, size="L"),
        "centres": Array("f8", (n_roots, *shape) if over_rows else shape),
        "counts": Array("f8", (n_roots, k)),
        "inertia": Array("f8", (total.n_roots_of_all,)),
        "history": ListOf(NUMBER, "L", least=1),
        "bytes_sent": ListOf(COUNT, "L"),
        "reseeded": ListOf((COUNT, Integer(most=k - 1), Integer(most=n_samples - 1))),
        "converged": FLAG,
        "labels": Array(labels, of_rows if over_rows else (n_roots, n_samples), 0, k - 1),
        "distances": Array("f8", of_rows) if over_rows else NOTHING,
        "sum": NOTHING if over else total.schema(),
    }


class LloydRuns:
    """What a checkpoint keeps of the restarts of k-means.

    Parameters
    ----------
    shape : (int, int)
        Clusters and features, (K, d).
    n_samples : int
        Number of rows, M.
    total : Sum
        How it is summed.
    blank : callable
        Makes a run of nothing, whose arrays of rows are there.
    n_here : int, optional
        As for `lloyd_schema`.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        n_samples: int,
        total: Any,
        blank: Callable[[], Any],
        n_here: int | None = None,
    ) -> None:
        run = lloyd_schema(shape, n_samples, total, n_here=n_here, over=True)
        self.rows: Schema = Maybe(Array("i", shape[:1], 0, n_samples - 1))
        self.best: dict[str, Schema] = {"run": run}
        self.loop: dict[str, Schema] = {"centres": run["centres"]}
        self.more: dict[str, Schema] = {}
        self._blank = blank

    def state(self, run: Any) -> State:
        """Return what is saved of a run that is over."""
        return {"run": lloyd_state(run)}

    def restore(self, state: State) -> Any:
        """Return the run that was saved."""
        return restore_lloyd(state["run"], self._blank())


def _joined(values: Any) -> Any:
    """Return one array where there is one a worker."""
    if isinstance(values, list):
        # A rank may hold no worker.
        return np.concatenate(values) if values else np.empty(0)
    return values


def restore_lloyd(state: State, run: Any) -> Any:
    """Put a run together again, whose state has been checked, and whose arrays of rows are there.

    Labels and distances are written where they stand.
    """
    for name in ARRAYS:
        setattr(run, name, state[name])
    for name in LISTS:
        getattr(run, name)[:] = state[name]
    run.converged = state["converged"]
    _fill(run.labels, state["labels"])
    _fill(getattr(run, "distances", None), state["distances"])
    return run


def resume_lloyd(
    saver: Saver, run: Any, total: Any, max_iter: int, n_samples: int, n_here: int | None = None
) -> int:
    """Put a run and its sum together again, once checked; returns the iterations there were."""
    state = saver.saved
    assert state is not None
    schema = lloyd_schema(run.centres.shape[-2:], n_samples, total, n_here=n_here)
    check(schema, state, saver.place)
    restore_lloyd(state, run)
    total.restore(state["sum"])
    return check_length(state["iteration"], max_iter)


def _fill(places: Any, values: Any) -> None:
    """Write values where they stand, worker by worker if there are several."""
    if places is None:
        return
    if not isinstance(places, list):
        places[...] = values
        return
    begin = 0
    for own in places:
        own[...] = values[begin : begin + len(own)]
        begin += len(own)
