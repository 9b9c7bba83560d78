"""What a run of FedEM is saved as, and how it is put together again."""

from __future__ import annotations

from typing import Any

import numpy as np

from vpem.checkpoints.savers import State, restoring, set_stream, stream_state
from vpem.federated.fedruns import FedHistory, FedRun, StatisticModel

__all__ = ["fedem_state", "restore_fedem"]


def fedem_state(
    run: FedRun,
    n_active: int,
    step: float,
    model: StatisticModel,
    links: Any,
    estimates: Any,
    rng: np.random.Generator,
) -> State:
    """Return the state of an iteration, once the statistic has moved and before its M-step."""
    return {
        "iteration": run.n_iter,
        "active": n_active,
        "step": step,
        "statistics": run.statistics,
        "memories": run.memories,
        "memory": run.memory,
        "projections": int(run.projections),
        "projected": list(run.projected),
        "converged": run.converged,
        "partitions": list(run.partitions),
        "history": dict(vars(run.history)),
        "model": model.state(),
        "links": links.state(),
        "estimates": estimates.state(),
        "stream": stream_state(rng),
    }


def restore_fedem(
    state: State,
    model: StatisticModel,
    links: Any,
    estimates: Any,
    rng: np.random.Generator,
) -> FedRun:
    """Put a run together again; parameters are found by the M-step that comes next."""
    with restoring():
        statistics = state["statistics"]
        if statistics.shape != (links.n_roots, model.size):
            raise ValueError("the statistic has another size")
        model.restore(state["model"])
        links.restore(state["links"])
        estimates.restore(state["estimates"])
        set_stream(rng, state["stream"])
        return FedRun(
            statistics.mean(axis=0),
            statistics,
            None,
            FedHistory(**state["history"]),
            state["memories"],
            state["memory"],
            n_iter=int(state["iteration"]),
            projections=int(state["projections"]),
            projected=[int(iteration) for iteration in state["projected"]],
            converged=bool(state["converged"]),
            partitions=state["partitions"],
        )
