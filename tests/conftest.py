"""What several test modules share: threads, data whose clusters overlap, runs of a fixed length."""

import gc
import os

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

# Thousands of tests are made at once, and nothing of them is garbage before the end: the collector
# looks for some less often, and then only at what tests have left.
gc.set_threshold(50_000, 20, 50)

# The process that shares the tests out loads this module too, and none of what fixtures take.

LONG = ("build", "docs", "engines", "mpi", "tls_cli")
"""Modules with tests of several seconds, which go first: the last one would keep others waiting."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Take one process more than processors: where members are tested, they wait for each other."""
    return (os.cpu_count() or 1) + 1


def pytest_configure(config):
    """Let workers share the process that forks for them, whose libraries take two seconds."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        from .forks import SHARED, folder

        os.environ[SHARED] = str(folder())


def pytest_collection_modifyitems(items):
    """Put long tests first."""
    items.sort(key=lambda item: item.path.stem.removeprefix("test_") not in LONG)


def pytest_collection_finish():
    """Let the collector pass over all that is there before the first test."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Take one thread where a test names no number: a few hundred rows are not worth two.

    A second thread of BLAS does nothing but wait, at the cost of a processor.
    """
    with pytest.MonkeyPatch.context() as patch, threadpool_limits(1, user_api="blas"):
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="session")
def breast_cancer():
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer().data
    data.setflags(write=False)
    return data


@pytest.fixture(scope="session")
def overlapping():
    """Function: rows of ``k`` correlated Gaussian clusters about two standard deviations apart."""

    def draw(seed, n_samples=300, n_features=6, k=3):
        rng = np.random.default_rng(seed)
        parts = []
        for count in np.bincount(rng.integers(k, size=n_samples), minlength=k):
            shape = np.eye(n_features) + 0.5 * rng.normal(size=(n_features, n_features))
            centre = 2.0 * rng.normal(size=n_features) / np.sqrt(n_features)
            parts.append(centre + rng.normal(size=(count, n_features)) @ shape.T)
        return rng.permutation(np.concatenate(parts))

    return draw


@pytest.fixture(scope="session")
def iterate():
    """Function: fit for exactly so many iterations, whatever the change of the log-likelihood."""
    from vpem import NotConvergedWarning, fit_vpem

    def run(X, network, n_iter, **options):
        with pytest.warns(NotConvergedWarning):
            fit = fit_vpem(X, network, max_iter=n_iter, tol=0.0, floor_fits="keep", **options)
        assert fit.n_iter == n_iter
        return fit

    return run
