"""What tests of EM in batches share."""

import numpy as np
import pytest

from vpem import connect, make_graph
from vpem._core.threads import one_blas_thread
from vpem.network.partition import contiguous
from vpem.settings import FitSettings
from vpem.steps.batches import fit_batches
from vpem.steps.row_sampling import RowStream
from vpem.terms.features import FeatureTerms
from vpem.terms.units import Scaling

KEPT = ("statistics", "responsibilities")
BATCHES = ("batch_size", "step_size")
NETWORKS = {
    "star": {"topology": "star", "hops": 0},
    "operator": {"topology": "cycle", "hops": 1, "consensus": "operator", "n_rounds": 6},
    "rounds": {"topology": "cycle", "hops": 1, "consensus": "rounds", "n_rounds": 6},
    "one hub": {"topology": "cycle", "hops": 3},
}


def joined(name, d=6, agents=6):
    how = dict(NETWORKS[name])
    graph = make_graph(how.pop("topology"), agents)
    return connect(graph, contiguous(d, agents), **how)


def terms_of(X, network, kind="full", **options):
    options = {"scaling": Scaling.none(X.shape[1]), "reg_covar": 0.0, **options}
    return FeatureTerms(X, network.blocks, kind, **options)


def start_of(terms, k=3):
    return terms.start(terms.at_rows(np.linspace(0, terms.n_samples - 1, k).astype(np.intp)))


@pytest.fixture(autouse=True)
def few_rounds_and_one_blas_thread(recwarn):
    with one_blas_thread():
        yield


def run(terms, total, start=None, *, function=fit_batches, seed=0, n_iter=5, **options):
    stream = RowStream(np.random.default_rng(seed), terms.row_weights, terms.n_samples)
    common = {"draw_row": stream.draw}
    if function is fit_batches:
        common["rng"] = np.random.default_rng(seed)
    start = start_of(terms) if start is None else start
    own = {name: options.pop(name) for name in ("tol", *BATCHES) if name in options}
    settings = FitSettings(**{"tol": 0.0, "max_iter": n_iter, **own})
    return function(terms, total, start, settings, **common, **options)


def assert_same(one, two, tolerance=1e-9):
    np.testing.assert_allclose(np.array(one.history), np.array(two.history), rtol=tolerance)
    np.testing.assert_allclose(one.log_likelihood, two.log_likelihood, rtol=tolerance)
    for name in ("weights", "means", "covariances"):
        mine, other = getattr(one.mixture, name), getattr(two.mixture, name)
        np.testing.assert_allclose(mine, other, rtol=1e3 * tolerance, atol=1e2 * tolerance)
