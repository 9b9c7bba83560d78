"""What a run of Lloyd's iterations is saved as, and how it is put together again."""

from __future__ import annotations

from typing import Any

import numpy as np

from vpem.checkpoints.run_states import check_length
from vpem.checkpoints.savers import State, restoring

__all__ = ["lloyd_state", "restore_lloyd"]

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


def _joined(values: Any) -> Any:
    """Return one array where there is one a worker."""
    if isinstance(values, list):
        # A rank may hold no worker.
        return np.concatenate(values) if values else np.empty(0)
    return values


def restore_lloyd(state: State, run: Any, total: Any, max_iter: int) -> int:
    """Put a run together again whose arrays of rows are there; returns the iterations there were.

    Labels and distances are written where they stand. ``total`` may be None, as in `lloyd_state`.
    """
    with restoring():
        for name in ARRAYS:
            setattr(run, name, state[name])
        for name in LISTS:
            getattr(run, name)[:] = state[name]
        run.converged = bool(state["converged"])
        _fill(run.labels, state["labels"])
        _fill(getattr(run, "distances", None), state["distances"])
        if total is not None:
            total.restore(state["sum"])
        done = int(state["iteration"])
    return check_length(done, max_iter)


def _fill(places: Any, values: Any) -> None:
    """Write values where they stand, worker by worker if there are several."""
    if places is None:
        return
    if not isinstance(places, list):
        if places.shape != values.shape:
            raise ValueError("there are other rows")
        places[...] = values
        return
    if sum(map(len, places)) != len(values):
        raise ValueError("there are other rows")
    begin = 0
    for own in places:
        own[...] = values[begin : begin + len(own)]
        begin += len(own)
