"""Fits of t and log-normal features among others, over networks: what they must equal."""

import warnings

import numpy as np
import pytest

from vpem import connect, fit_vpem, make_graph
from vpem.errors import VpemWarning
from vpem.network.partition import from_lists
from vpem.terms.families.kinds import Kinds

from .missing_support import with_holes
from .tables import each_once

KINDS = Kinds(("t",) * 3 + ("log-normal",) * 2 + ("poisson", "gaussian"))
HELD = [[0, 1, 3], [2, 4, 5], [6]]


def mixed(seed=0, n_samples=200):
    """Overlapping rows of two clusters, with heavy tails."""
    rng = np.random.default_rng(seed)
    z = rng.integers(2, size=(n_samples, 1))
    tails = rng.standard_normal((n_samples, 3)) / np.sqrt(rng.gamma(1.5, 2 / 3, (n_samples, 1)))
    logs = rng.standard_normal((n_samples, 2)) + z
    last = rng.standard_normal((n_samples, 1)) + z
    return np.hstack([2 * z + tails, np.exp(logs), rng.poisson(2 + 4 * z), last])


def fit(X, **how):
    network = connect(make_graph("star", 3), from_lists(HELD, 7), hops=0, n_threads=1)
    how = {"n_components": 2, "init": [3, 150], "tol": 1e-7, "missing": "marginalize", **how}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        return fit_vpem(X, network, kinds=KINDS, n_threads=1, seed=0, **how)


@each_once(
    how=[{"accelerate": "squarem"}, {"batch_size": 60}, {"scale": "standard"}],
    holes=[False, True],
)
def test_every_way_to_the_maximum_ends_there(how, holes):
    X = with_holes(mixed(), 1, 0.15) if holes else mixed()
    plain, other = fit(X), fit(X, **how)
    assert (np.diff(plain.history[:, 0]) > -1e-9).all()
    assert other.log_likelihood == pytest.approx(plain.log_likelihood, abs=1e-5)
    for one in (plain, other):
        scores = one.mixture.score_samples(X, missing="marginalize")
        assert one.log_likelihood == pytest.approx(scores.mean(), rel=1e-12)
        (part,) = (part for part in one.mixture.parts if part.family == "t")
        assert (part.tables["dof"] < 8).all()
