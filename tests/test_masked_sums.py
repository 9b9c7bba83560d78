"""Masked sums of fits: what they bear, and how many parties they need; see test_table.py."""

import pickle

import numpy as np
import pytest

from vpem import InputError, connect, fit_vpem, make_graph
from vpem.network.partition import Partition, contiguous

from .cli_support import overlapping

pytestmark = pytest.mark.filterwarnings("ignore::vpem.VpemWarning")
X, _ = overlapping(90, 6, 2, gap=3.0, seed=4)


def masked(topology="star", n_agents=3, held=None, **how):
    held = contiguous(6, n_agents) if held is None else held
    return connect(make_graph(topology, held.n_agents), held, secure_sum=True, **how)


def relaying(*features):
    """Agents of these features, some of whom hold none and only relay."""
    held = tuple(np.array(own, dtype=np.intp) for own in features)
    return Partition(held, tuple("abcd"[: len(held)]))


@pytest.mark.parametrize("held", [contiguous(6, 2), relaying([0, 1], [], [2, 3, 4, 5])])
def test_of_two_parties_that_hold_something_each_would_see_the_others_terms(held):
    with pytest.raises(InputError, match="at least 3 parties that hold something, got 2: of two"):
        masked(held=held)


def test_a_party_that_holds_nothing_adds_nothing():
    held = relaying([0, 1], [], [2, 3], [4, 5])
    fits = [fit_vpem(X, connect(make_graph("star", 4), held, secure_sum=s), max_iter=4, tol=0,
                     init=[3, 77]) for s in (True, False)]  # fmt: skip
    np.testing.assert_allclose(fits[0].history, fits[1].history, 0, 1e-8 * len(X))


def test_a_row_that_is_very_far_away_fits_in():
    """Its terms differ by far more than masks can hold, of which responsibilities show nothing."""
    outlier = X.copy()
    outlier[-1] = 3e4
    how = {"init": [3, 60], "max_iter": 1, "tol": 0, "covariance_type": "diag"}
    start = fit_vpem(X, connect(make_graph("star", 3), contiguous(6, 3)), **how).mixture
    fits = [
        fit_vpem(outlier, network, init=start, max_iter=2, tol=0)
        for network in (masked(), connect(make_graph("star", 3), contiguous(6, 3)))
    ]
    np.testing.assert_allclose(fits[0].history, fits[1].history, 1e-9)
    np.testing.assert_allclose(*(fit.mixture.means for fit in fits), 1e-9)


def test_what_is_too_large_all_the_same_is_an_error():
    huge = X.copy()
    huge[-1, 0] = 1e15
    start = fit_vpem(X, masked(), init=[3, 60], max_iter=1, tol=0).mixture
    with pytest.raises(InputError, match="agent 0 adds to a masked sum is larger than"):
        fit_vpem(huge, masked(), init=start, max_iter=2, tol=0)


def test_a_copy_in_another_process_has_masks_of_its_own():
    network = masked("path", sum="tree")
    copied = pickle.loads(pickle.dumps(network))
    assert copied.total.holders is copied.agents
    assert copied.agents.masks is not network.agents.masks
    assert copied.agents.masks.names == network.agents.masks.names
    ours, theirs = (fit_vpem(X, one, init=[3, 77], max_iter=3) for one in (copied, network))
    np.testing.assert_array_equal(ours.history, theirs.history)
