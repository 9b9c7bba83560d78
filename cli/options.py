"""Options that several commands ask for in the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .roles import READ, Role

__all__ = [
    "Acceleration",
    "AgentDropout",
    "BatchSize",
    "Compress",
    "ConsensusTol",
    "DatasetPath",
    "Eigenvalue",
    "Force",
    "GraphFile",
    "GraphSeed",
    "InitModel",
    "InitRows",
    "Json",
    "LinkFailure",
    "MeanDegree",
    "Missing",
    "Quiet",
    "QuoteFormulas",
    "Radius",
    "RegCovar",
    "Rounds",
    "Stragglers",
    "Strict",
    "Weights",
]

GraphFile = Annotated[
    Path | None,
    READ,
    typer.Option(help="Graph from a file: edge list, GraphML, or node-link JSON."),
]
Radius = Annotated[
    float | None, typer.Option(help="Radius of a geometric graph in the unit square.")
]
MeanDegree = Annotated[float | None, typer.Option(help="Mean degree wanted of a random graph.")]
Missing = Annotated[
    str,
    typer.Option(
        help="Where values are missing (NaN): refuse, or marginalize: integrate them out, missing "
        "at random."
    ),
]
Rounds = Annotated[
    str,
    typer.Option(
        help="Consensus rounds of each average, or auto: the fewest that reach --consensus-tol."
    ),
]
Eigenvalue = Annotated[
    str,
    typer.Option(
        help="Mixing rate for the acceleration: computed from the graph, or estimated by the "
        "agents, which costs messages.",
    ),
]
ConsensusTol = Annotated[
    float,
    typer.Option(help="Largest consensus error, relative to a hub's term, with --rounds auto."),
]
Acceleration = Annotated[
    str | None,
    typer.Option(
        help="Rounds accelerated by Chebyshev polynomials (chebyshev), or none. Default: "
        "chebyshev, but for faults, with which rounds cannot be.",
    ),
]
Weights = Annotated[
    str,
    typer.Option(
        help="Mixing weights: metropolis, laplacian (best constant), max-degree, "
        "fastest (needs cvxpy)."
    ),
]
Compress = Annotated[
    str | None,
    typer.Option(
        help="Codec of the messages: natural:12bits (a good choice), "
        "qsgd:8bits, blockp:64, topk:0.01, randk:0.1, float32, float16.",
    ),
]
LinkFailure = Annotated[float, typer.Option(help="Probability that a link is down in a round.")]
AgentDropout = Annotated[
    float, typer.Option(help="Probability that an agent is silent for a whole iteration.")
]
Stragglers = Annotated[
    float,
    typer.Option(help="Probability that an agent is late in a round, which goes on without it."),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        help="Batch VP-EM: rows of an iteration, whose statistics replace those they had "
        "before. Default: all rows in every iteration.",
    ),
]
DatasetPath = Annotated[
    str | None, typer.Option(help="Path of a 2-D dataset inside the HDF5 file, instead of X.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 3 if not converged.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Quiet = Annotated[
    bool,
    typer.Option("-q", "--quiet", help="No messages, progress or tables; --json is printed."),
]
QuoteFormulas = Annotated[
    bool,
    typer.Option(
        "--quote-formulas",
        help="In CSV, put an apostrophe before text that begins with =, +, - or @, which "
        "spreadsheets would compute.",
    ),
]
InitModel = Annotated[
    Path | None,
    # A model may be continued in its own file.
    Role(writes=False, goes_on_in="--output"),
    typer.Option(help="Start from the parameters of a model."),
]
InitRows = Annotated[
    str | None, typer.Option(help="Start with means at these rows, counted from 0: 3,77,120.")
]
GraphSeed = Annotated[int | None, typer.Option(help="Seeds random graphs and ties between hubs.")]
RegCovar = Annotated[float, typer.Option(help="Added to the diagonal of every covariance.")]
