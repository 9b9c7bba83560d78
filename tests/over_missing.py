"""Fits of data that miss values over the ranks of any engine are those of one process.

At the first rank both are there and compared, iteration by iteration, from the same start.
"""

import numpy as np

from tests.over_fits import HELD, Comparison, overlapping
from tests.over_sums import agents_on
from vpem.network.graph import make_graph
from vpem.network.partition import from_lists
from vpem.sums.connect import connect

KINDS = ("full", "diag", "spherical", "tied", "tied-diag", "tied-spherical")


def main(engine):
    partition = from_lists(HELD[agents_on(engine)], 8)
    rng = np.random.default_rng(2)
    X = overlapping()
    X[rng.random(X.shape) < 0.1] = np.nan
    for agent, columns in enumerate(partition.features):
        X[np.ix_(rng.random(len(X)) < 0.2 + 0.05 * agent, columns)] = np.nan
    # Nobody has anything of these, and each of some agents has nothing of more.
    X[[3, 70, 149]] = np.nan
    # What one agent alone misses all have to know of.
    little = overlapping(seed=1)
    little[5, 6] = np.nan
    compare = Comparison(engine, X)
    starts = ("random", "k-means++", "kmeans", [4, 77, 120])
    weights = rng.integers(0, 3, size=len(X)).astype(float)
    number = 0
    for topology in ("star", "cycle", "geometric"):
        for hops in (0, 1):
            network = connect(
                make_graph(topology, partition.n_agents, seed=3), partition, hops=hops
            )
            options = {"init": starts[number % 4], "covariance_type": KINDS[number]}
            compare(network, missing="marginalize", **options)
            compare(network, missing="marginalize", sample_weight=weights, scale="standard")
            if hops == 0:
                compare(network, X=little, missing="marginalize", init=starts[(number + 1) % 4])
            number += 1
    return f"compared {compare.n_compared}"
