"""What a run of FedEM is saved as, and how it is put together again."""

from __future__ import annotations

from typing import Any

import numpy as np

from vpem.network.schema import (
    COUNT,
    FLAG,
    NUMBER,
    TEXT,
    Array,
    Integer,
    ListOf,
    Number,
    Schema,
    State,
    check,
)
from vpem.steps.fedruns import FedHistory, FedRun, StatisticModel
from vpem.steps.saver import STREAM, Saver, set_stream, stream_state


def fedem_state(
    run: FedRun,
    n_active: int,
    step: float,
    model: StatisticModel,
    links: Any,
    estimates: Any,
    rest: Any,
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
        "in_noise": run.in_noise,
        "rest": rest.state(),
        "stream": stream_state(rng),
    }


def fedem_schema(model: StatisticModel, links: Any, estimates: Any, rest: Any) -> Schema:
    """Say what a state is."""
    n_workers = len(model.counts)
    counts, sizes = ListOf(COUNT, "H", least=1), ListOf(Number(0), "H")
    return {
        "iteration": Integer(1),
        "active": Integer(most=n_workers),
        "step": Number(0, 1),
        "statistics": Array("f8", (links.n_roots, model.size)),
        "memories": Array("f8", (n_workers, model.size)),
        "memory": Array("f8", (model.size,)),
        "projections": COUNT,
        "projected": ListOf(COUNT),
        "converged": FLAG,
        "partitions": ListOf((COUNT, TEXT)),
        "history": {
            **dict.fromkeys(("iteration", "bytes_up", "bytes"), counts),
            **dict.fromkeys(("epochs", "mean_field", "disagreement"), sizes),
            "objective": ListOf(NUMBER, "H"),
        },
        "model": model.schema(),
        "links": links.schema(),
        "estimates": estimates.schema(links.holders.apart),
        "in_noise": FLAG,
        "rest": rest.schema(),
        "stream": STREAM,
    }


def restore_fedem(
    saver: Saver,
    model: StatisticModel,
    links: Any,
    estimates: Any,
    rest: Any,
    rng: np.random.Generator,
) -> FedRun:
    """Put a run together again; parameters are found by the M-step that comes next."""
    state = saver.saved
    assert state is not None
    check(fedem_schema(model, links, estimates, rest), state, saver.place)
    model.restore(state["model"])
    links.restore(state["links"])
    estimates.restore(state["estimates"])
    rest.restore(state["rest"])
    set_stream(rng, state["stream"])
    same = ("memories", "memory", "projections", "projected", "converged", "partitions",
            "in_noise")  # fmt: skip
    return FedRun(
        state["statistics"].mean(axis=0),
        state["statistics"],
        None,
        FedHistory(**state["history"]),
        n_iter=state["iteration"],
        **{name: state[name] for name in same},
    )
