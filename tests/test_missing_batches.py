"""Batches of rows that miss values: expected statistics are swapped as any others are."""

from functools import cache

import numpy as np
import pytest

from vpem import VPEM, InputError, connect, fit_vpem, make_graph
from vpem.network.partition import contiguous
from vpem.settings import COVARIANCE_TYPES
from vpem.terms.features import FeatureTerms
from vpem.terms.units import Scaling

from .batch_support import joined, run, start_of
from .missing_support import clusters, fitted, network, observed_scores, with_holes
from .resume_support import check_resumes
from .tables import each, over

pytestmark = [
    pytest.mark.filterwarnings("ignore::vpem.errors.NotConvergedWarning"),
    pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning"),
]

PARTS = [[0, 1, 2], [3], [4]]
FAILING = {"topology": "complete", "agent_dropout": 0.2, "link_failure": 0.1, "seed": 2}


def rows(seed, n_samples=200, share=0.3, party=False):
    X = with_holes(clusters(seed, n_samples), seed + 1, share)
    if party:
        X[: n_samples // 2, PARTS[0]] = np.nan
        X[np.isnan(X).all(axis=1), 3] = 0.0
    return X


@over(kind=COVARIANCE_TYPES, batch=[7, 40, 200], party=[False, True], weighted=[False, True])
def test_the_free_energy_never_falls(kind, batch, party, weighted):
    X = rows(3, party=party)
    weights = np.random.default_rng(1).uniform(0.2, 3, len(X)) if weighted else None
    found = fitted(
        X, network(PARTS), covariance_type=kind, batch_size=batch, reg_covar=1e-9, max_iter=5,
        tol=0, sample_weight=weights,
    )  # fmt: skip
    energy = np.array(found.free_energy)
    assert len(energy) == 1 + 4 * -(-len(X) // batch)
    assert (np.diff(energy) >= -1e-9 * np.abs(energy).max()).all()
    ended = found.root_log_likelihood[0]
    assert energy[-1] <= ended + 1e-9 * abs(ended)
    # What is expected of all rows at the end is nearly what was expected of each when it was seen.
    assert ended - energy[-1] < 0.2


@over(kind=COVARIANCE_TYPES, topology=["star", "cycle"], how=[{}, {"step_size": 0.7}])
def test_one_batch_is_em_over_all_rows(kind, topology, how):
    X, net = rows(5, party=True), network(PARTS, topology)
    common = {"covariance_type": kind, "max_iter": 1 if how else 6, "tol": 0}
    whole, one = fitted(X, net, **common), fitted(X, net, batch_size=len(X), **how, **common)
    np.testing.assert_allclose(one.history, whole.history, rtol=1e-11)
    np.testing.assert_allclose(one.mixture.covariances, whole.mixture.covariances, rtol=1e-8)


@cache
def ended(kind):
    return fitted(rows(10, party=True), network(PARTS), covariance_type=kind, tol=1e-8)


@over(
    kind=["full", "tied", "spherical"],
    how=[{}, {"topology": "cycle"}, {"topology": "complete", "link_failure": 0.2}, FAILING],
    step_size=[None, 0.8],
)
def test_batches_end_where_all_rows_do(kind, how, step_size):
    X = rows(10, party=True)
    batches = fitted(
        X, network(PARTS, **how), covariance_type=kind, batch_size=40, step_size=step_size,
        max_iter=15, tol=1e-8,
    )  # fmt: skip
    close = 1e-5 if step_size is None and how != FAILING else 0.02
    assert abs(batches.log_likelihood - ended(kind).log_likelihood) < close
    scores = observed_scores(batches.mixture, X) if how != FAILING else None
    if scores is not None:
        np.testing.assert_allclose(batches.log_likelihood, scores.mean(), atol=1e-6)


@each("kind", COVARIANCE_TYPES)
def test_parameters_stand_for_their_statistics(kind):
    X = rows(2, party=True)
    net = joined("star", 5, 3)
    terms = FeatureTerms(X, net.blocks, kind, scaling=Scaling.none(5), reg_covar=1e-3, missing=True)
    found = run(terms, net.total, start_of(terms), batch_size=50).mixture
    again = terms.update(terms.statistics_of(found, 200.0, 1))
    for name in ("weights", "means", "covariances"):
        np.testing.assert_allclose(getattr(again, name), getattr(found, name), rtol=1e-9)


@over(kind=["full", "tied-diag"], step_size=[None, 0.7])
def test_runs_that_were_broken_off_go_on(kind, step_size):
    net = connect(make_graph("complete", 3), contiguous(5, 3), hops=0, **{
        name: value for name, value in FAILING.items() if name != "topology"
    })  # fmt: skip
    found = check_resumes(
        lambda saver: fit_vpem(
            rows(4, 90), net, covariance_type=kind, batch_size=20, step_size=step_size, max_iter=4,
            reg_covar=1e-3, missing="marginalize", n_threads=1, saver=saver,
        )
    )  # fmt: skip
    assert np.ptp(found.history[1:], axis=1).max() > 0.1


@each("kind", ["full", "diag"])
def test_a_stream_of_rows_that_miss_values(kind):
    X = rows(6, 3000)
    stream = VPEM(agents=PARTS, covariance_type=kind, missing="marginalize")
    for begin in range(0, 3000, 300):
        stream.partial_fit(X[begin : begin + 300])
    whole = VPEM(agents=PARTS, covariance_type=kind, missing="marginalize").fit(X)
    assert abs(stream.score(X) - whole.score(X)) < 0.01
    X[:, 2] = np.nan
    with pytest.raises(InputError, match=r"feature 2 is missing .* give batches in which every"):
        stream.partial_fit(X[:300])
