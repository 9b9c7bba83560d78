"""The estimator of rows over workers, by scikit-learn's conventions."""

import warnings

import networkx as nx
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.mixture import GaussianMixture

from vpem import DistributedGaussianMixture, InputError, Workers
from vpem.network.partition import evenly

from .estimator_support import EXCUSED, check_as_scikit_learn_does


@pytest.fixture
def X():
    rng = np.random.default_rng(0)
    return rng.normal(size=(240, 3)) + rng.choice([0.0, 3.0], size=240)[:, None]


@pytest.mark.filterwarnings("ignore:. of 2 components are degenerate")
@pytest.mark.filterwarnings("ignore:'feature .' has 2 different values")
@pytest.mark.parametrize(
    "estimator",
    [
        DistributedGaussianMixture(),
        DistributedGaussianMixture(
            1, covariance_type="diag", init="random", graph="complete", scale="standard"
        ),
    ],
    ids=str,
)
def test_scikit_learns_own_checks(estimator):
    check_as_scikit_learn_does(estimator, EXCUSED if estimator.n_components > 1 else None)


@pytest.mark.parametrize(
    "workers", [4, np.int64(3), [0, 1, 2] * 80, ["x", "y"] * 120, evenly(240, 6)], ids=str
)
def test_it_is_the_mixture_of_pooled_rows(X, workers):
    start = [3, 100]
    ours = DistributedGaussianMixture(2, workers, init=start, tol=0.0, max_iter=30, reg_covar=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours.fit(X)
        precision = np.linalg.inv(np.cov(X.T, bias=True))
        peer = GaussianMixture(
            2, tol=0.0, max_iter=30, reg_covar=0.0, weights_init=[0.5, 0.5],
            means_init=X[start], precisions_init=[precision] * 2,
        ).fit(X)  # fmt: skip
    np.testing.assert_allclose(ours.means_, peer.means_, rtol=1e-6)
    np.testing.assert_allclose(ours.covariances_, peer.covariances_, rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(ours.predict(X), peer.predict(X))
    assert ours.score(X) == pytest.approx(peer.score(X))
    assert isinstance(ours.workers_, Workers)
    assert len(ours.mixtures_) == 1


def test_peers_have_models_of_their_own(X):
    ours = DistributedGaussianMixture(2, 5, nx.cycle_graph(5), random_state=0).fit(X)
    assert len(ours.mixtures_) == 5
    assert ours.history_.shape == (ours.n_iter_, 5)
    assert ours.score(X) == pytest.approx(
        DistributedGaussianMixture(2, 5, random_state=0).fit(X).score(X), abs=1e-6
    )


def test_warm_start_and_clone(X):
    ours = DistributedGaussianMixture(2, 5, random_state=0, warm_start=True).fit(X)
    assert clone(ours).get_params() == ours.get_params()
    assert ours.fit(X).n_iter_ <= 3


@pytest.mark.parametrize("workers", ["three", 2.5, None])
def test_workers_that_are_none(X, workers):
    with pytest.raises(InputError, match="workers must be a number of workers"):
        DistributedGaussianMixture(workers=workers).fit(X)
    with pytest.raises(InputError, match="300 workers cannot share 240 rows"):
        DistributedGaussianMixture(workers=300).fit(X)
