"""What missing values cost: seconds an EM iteration against the ordinary fit of complete rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem import connect, make_graph
from vpem._core.threads import one_blas_thread
from vpem.network.partition import contiguous
from vpem.terms.features import FeatureTerms
from vpem.terms.units import Scaling

from .measure import Options, call, compare
from .problems import mixture_rows

ROWS = {"tiny": 600, "small": 20_000, "medium": 100_000, "full": 400_000}
FEATURES, AGENTS, COMPONENTS = 20, 4, 4
SHARES = (0.0, 0.05, 0.3)
PARTY = "a party lacks 20 % of rows"


def _holes(X: NDArray[Any], share: float) -> NDArray[Any]:
    holes = np.random.default_rng(1).random(X.shape) < share
    holes[:, 0] = False
    return np.where(holes, np.nan, X)


def _one(terms: Any, start: Any) -> Any:
    """Return one E-step and M-step."""

    def run() -> None:
        with one_blas_thread():
            factors = terms.prepare(start)
            statistics = terms.empty(start.means, 1)
            terms.sweep(start, factors, np.ones((1, terms.blocks.n_blocks)), statistics)
            terms.update(statistics)

    return run


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """Yield one result a covariance type and split: the ordinary fit, and shares of cells."""
    m = ROWS[options.size]
    X = mixture_rows(m, FEATURES, COMPONENTS)
    party = X.copy()
    party[: m // 5, -FEATURES // AGENTS :] = np.nan
    for kind, n_agents in (("full", 1), ("full", AGENTS), ("diag", AGENTS)):
        held = contiguous(FEATURES, n_agents)
        blocks = connect(make_graph("star", n_agents), held, hops=0).blocks
        given: dict[str, Any] = {"scaling": Scaling.none(FEATURES), "n_threads": options.threads}
        ordinary = FeatureTerms(X, blocks, kind, **given)
        start = ordinary.start(X[:COMPONENTS])
        contenders = {"vpem, ordinary": call(_one(ordinary, start))}
        cases = {f"vpem, {100 * share:g} % of cells": _holes(X, share) for share in SHARES}
        for name, rows in {**cases, f"vpem, {PARTY}": party}.items():
            contenders[name] = call(
                _one(FeatureTerms(rows, blocks, kind, missing=True, **given), start)
            )
        case = f"{m:,} x {FEATURES}, {n_agents} agents, K = {COMPONENTS}, {kind}"
        yield compare(options, "missing", case, "vpem, ordinary", contenders,
                      threads=options.threads)  # fmt: skip
