"""scikit-learn's own tests of GaussianMixture, run on VPEM with one agent at a server.

They come with scikit-learn and are run as they are, but for their sentences: errors and warnings
are of the kinds that they expect, in our words.
"""

import inspect
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn.mixture.tests.test_gaussian_mixture as theirs

from vpem import VPEM

from .tables import each

OF_PRIVATE_FUNCTIONS = "of functions of scikit-learn that are not public"
NOT_OURS = {
    "test_suffstat_sk_full": OF_PRIVATE_FUNCTIONS,
    "test_suffstat_sk_tied": OF_PRIVATE_FUNCTIONS,
    "test_suffstat_sk_diag": OF_PRIVATE_FUNCTIONS,
    "test_gaussian_suffstat_sk_spherical": OF_PRIVATE_FUNCTIONS,
    "test_compute_log_det_cholesky": OF_PRIVATE_FUNCTIONS,
    "test_gaussian_mixture_log_probabilities": OF_PRIVATE_FUNCTIONS,
    "test_gaussian_mixture_precisions_init": OF_PRIVATE_FUNCTIONS,
    "test_gaussian_mixture_all_init_does_not_estimate_gaussian_parameters": "counts calls of one",
    "test_gaussian_mixture_array_api_compliance": "arrays are NumPy's",
    "test_gaussian_mixture_raises_where_array_api_not_implemented": "arrays are NumPy's",
}
"""Tests that say nothing of VPEM, and why."""

PRECISIONS = (np.float64, np.float32)
SEED = 42


def cases():
    """Names of tests and what they are called with."""
    for name, test in vars(theirs).items():
        if not name.startswith("test_") or name in NOT_OURS:
            continue
        marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
        tables = []
        for mark in marks:
            names = mark.args[0].replace(" ", "").split(",")
            rows = [row if len(names) > 1 else (row,) for row in mark.args[1]]
            tables.append([dict(zip(names, row, strict=True)) for row in rows])
        rows = list(itertools.product(*tables))
        wanted = inspect.signature(test).parameters
        common = {"global_random_seed": SEED} if "global_random_seed" in wanted else {}
        if "global_dtype" in wanted:  # of several rows each has one of the two
            rows *= 2 if len(rows) == 1 else 1
            rows = [(*row, {"global_dtype": PRECISIONS[at % 2]}) for at, row in enumerate(rows)]
        for parts in rows:
            yield name, {key: value for part in (*parts, common) for key, value in part.items()}


@pytest.fixture
def as_vpem(monkeypatch):
    """Puts VPEM in the place of GaussianMixture, and lets sentences be others."""

    def mixture(n_components=1, **options):
        return VPEM(n_components, agents=1, graph="star", **options)

    sentences = SimpleNamespace(
        raises=lambda error, match: pytest.raises(error),
        warns=lambda warning, match: pytest.warns(warning),
    )
    monkeypatch.setattr(theirs, "GaussianMixture", mixture)
    monkeypatch.setattr(theirs, "pytest", sentences)
    parameters = property(lambda self: lambda: self.mixture_.n_parameters)
    monkeypatch.setattr(VPEM, "_n_parameters", parameters, raising=False)


@pytest.mark.usefixtures("as_vpem")
@pytest.mark.filterwarnings("ignore")  # as theirs do, of fits that are short on purpose
@each(("name", "given"), list(cases()))
def test_what_holds_of_gaussian_mixture_holds(name, given, monkeypatch):
    with monkeypatch.context() as patch:
        if name == "test_monotonic_likelihood":  # which fits anew for every iteration
            patch.setattr(theirs, "COVARIANCE_TYPE", ["full", "tied"])
        getattr(theirs, name)(**given)


def test_those_that_are_left_out_are_there_and_most_are_not():
    names = {name for name in vars(theirs) if name.startswith("test_")}
    assert set(NOT_OURS) <= names
    assert len(names - set(NOT_OURS)) > 2 * len(NOT_OURS)
