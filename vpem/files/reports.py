"""Schemas of what a fit reports: each key that is read again from a file, and its type.

Every one may be absent or None: files are of several versions and of other programs.
"""

from __future__ import annotations

from vpem.files.elements import Json
from vpem.network.schema import (
    COUNT,
    FLAG,
    PLAIN,
    REAL,
    TEXT,
    Integer,
    ListOf,
    Mapping,
    Numbers,
    Schema,
)

COUNTED = {"messages": COUNT, "bytes": COUNT, "rounds": COUNT}
COUNTS = Numbers(least=0)

COMMUNICATION = Mapping(
    known={
        **COUNTED,
        "by_kind": Mapping(Mapping(some=COUNTED)),
        "by_agent": Mapping(COUNTS),
        "by_link": Mapping(known={"messages": COUNTS, "bytes": Mapping(COUNTS)}),
        "busiest_link": Mapping(some={"between": ListOf(COUNT, 2), "bytes": COUNT}),
        "bytes_by_iteration": COUNTS,
    }
)
"""As `vpem.network.ledger.Ledger.summary` tells."""

ALIGNMENT = Mapping(
    some={
        "level": TEXT,
        "join": TEXT,
        "rows": COUNT,
        "parties": ListOf(
            Mapping(some={"name": TEXT, "rows": COUNT, "lost": COUNT, "absent": COUNT})
        ),
    }
)

REPORT: dict[str, Schema] = {
    **dict.fromkeys(
        ("algorithm", "data", "split", "topology", "weights", "acceleration", "compress"), TEXT
    ),
    **dict.fromkeys(("server", "hops", "rounds", "n_samples", "n_iter"), COUNT),
    **dict.fromkeys(("n_agents", "n_workers"), Integer(1, 1 << 24)),
    **dict.fromkeys(
        (
            "mixing_rate", "consensus_error", "total_weight", "log_likelihood", "bic", "aic",
            "inertia", "seconds", "participation", "log_prior", "penalised_log_likelihood",
        ),
        REAL,
    ),
    **dict.fromkeys(("agent_names", "worker_names", "warnings"), ListOf(TEXT)),
    **dict.fromkeys(("recoveries", "partitions", "reseeded"), ListOf(PLAIN)),
    "degenerate": ListOf(COUNT),
    **dict.fromkeys(("worker_rows", "recorded"), COUNTS),
    **dict.fromkeys(("history", "mean_field"), Numbers()),
    "partition": Numbers(least=-1),
    "positions": Numbers(2),
    "edges": Numbers(2, least=0),
    "converged": FLAG,
    "communication": COMMUNICATION,
    "alignment": ALIGNMENT,
}  # fmt: skip
"""Of models and clusterings alike."""


def report_elements(**own: Schema) -> dict[str, Json]:
    """Return the schema of a report, options and versions, with keys of one kind of file."""
    return {
        "report": Json(Mapping(known={**REPORT, **own})),
        "options": Json(Mapping(known={"tol": REAL})),
        "versions": Json(Mapping(TEXT)),
    }
