"""EM over rows, every way (see test_table.py)."""

import numpy as np

from vpem import connect_workers, fit_em, make_graph
from vpem.network.holdings import evenly

from .cli_support import overlapping

X, _ = overlapping(120, 4, 3, seed=4)

WORKERS = evenly(len(X), 4)


def fit(topology="star", network=None, **options):
    joined = connect_workers(make_graph(topology, 4), **(network or {}))
    options = {"n_components": 3, "max_iter": 6, "tol": 0.0, "seed": 1, **options}
    return fit_em(X, WORKERS, joined, **options)


def tree(folder):
    found, wanted = fit("path", {"sum": "tree"}), fit()
    np.testing.assert_allclose(found.history, wanted.history, 1e-10)
    np.testing.assert_allclose(found.mixture.means, wanted.mixture.means, 1e-10)
    assert len(found.mixtures) == 1


CELLS = {
    "tree": tree,
    "compressed": lambda folder: fit(network={"compress": "qsgd:8bits"}),
    "absent": lambda folder: fit("cycle", {"agent_dropout": 0.1}),
}
