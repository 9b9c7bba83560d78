"""What a run is told from others by, when it goes on from a checkpoint."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from vpem.network.schema import State
from vpem.terms.density import Density
from vpem.terms.statistic_states import leaves


def describe_run(recipe: str, X: Any, row_weights: Any, network: Any, **options: Any) -> State:
    """Describe a run by what must be the same when it goes on.

    That is the algorithm, the data, the weights (M,), the network, and all other ``options``, of
    which ``init`` may be rows, a mixture or centres.
    """
    options["init"] = start_facts(options.get("init"))
    if "reg_covar" in options:
        # States of older runs are in the data's units.
        options["units of fitting"] = "standard deviations"
    return {
        "algorithm": recipe,
        "rows": int(X.shape[0]),
        "features": int(X.shape[1]),
        "what the data hold": checksum(X),
        "what the sample weights are": checksum(row_weights),
        **({} if network is None else network_facts(network)),
        **options,
    }


def describe_steps(step_size: Any) -> str | float:
    """Describe a step size: a number or its name; one function is taken for another."""
    return step_size if isinstance(step_size, str | float | int) else "a function"


def start_facts(init: Any) -> Any:
    """Describe where a run starts: a name, or a sum of what was given."""
    if init is None or isinstance(init, str):
        return init
    if isinstance(init, Density):
        return checksum(*leaves(init.arrays()), *init.blocks.features)
    return checksum(np.asarray(init))


def network_facts(network: Any) -> State:
    """Describe what a network does (`vpem.sums.connect.Network`)."""
    blocks, total, faults = network.blocks, network.total, network.faults
    return {
        "who is joined in the graph": checksum(
            network.graph.n_nodes, np.asarray(network.graph.edges)
        ),
        "who holds which features": checksum(*blocks.features, blocks.roots, blocks.agents),
        **network.describe("hops", "rounds", "weights", "acceleration", "compress", "secure_sum"),
        "link_failure": 0.0 if faults is None else faults.link_failure,
        "agent_dropout": 0.0 if faults is None else faults.agent_dropout,
        "stragglers": 0.0 if faults is None else faults.stragglers,
        "consensus path": getattr(total, "path", None),
        "graph_seed": getattr(total, "seed", None),
    }


LOOKED_AT = 1 << 26
"""Bytes of data that a checksum looks at; of larger data runs of rows all over them."""

RUNS_LOOKED_AT = 64


def checksum(*values: Any) -> str:
    """Return a sum that tells arrays, or whatever has a `repr` of its own, from others.

    Of arrays beyond 64 MB that much is looked at, in runs of rows from all over them.
    """
    made = hashlib.blake2b(digest_size=16)
    for value in values:
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            made.update(repr(value).encode())
            continue
        made.update(f"{value.shape} {value.dtype}".encode())
        n_rows = value.shape[0] if len(value.shape) else 0
        n_bytes = int(np.prod(value.shape, dtype=float)) * value.dtype.itemsize
        if n_bytes <= LOOKED_AT:
            made.update(np.ascontiguousarray(value[:] if n_rows else value).tobytes())
            continue
        length = max(1, LOOKED_AT * n_rows // (n_bytes * RUNS_LOOKED_AT))
        for begin in np.linspace(0, n_rows - length, RUNS_LOOKED_AT).astype(int):
            made.update(np.ascontiguousarray(value[begin : begin + length]).tobytes())
    return f"sum {made.hexdigest()}"
