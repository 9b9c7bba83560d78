"""EM in batches where components collapse, roots are silent and the network falls apart."""

import numpy as np
import pytest

from vpem import NumericalError, connect, make_graph
from vpem.errors import PartitionedError
from vpem.network.ledger import Ledger
from vpem.network.partition import contiguous
from vpem.settings import COVARIANCE_TYPES
from vpem.steps import em

from .batch_support import (  # noqa: F401
    KEPT,
    NETWORKS,
    assert_same,
    few_rounds_and_one_blas_thread,
    joined,
    run,
    start_of,
    terms_of,
)
from .tables import over

# ---- collapse, silence, partition ----------------------------------------------------------------


@over(keep=KEPT, seed=range(4))
def test_a_component_that_collapses_is_placed_anew(keep, seed, overlapping):
    X = overlapping(seed, 200, 4)
    X[:3] = 40.0
    network = joined("star", 4, 2)
    terms = terms_of(X, network, reg_covar=0.0)
    start = terms.start(terms.at_rows(np.array([0, 60, 120])))
    found = run(
        terms, network.total, start, batch_size=25, keep=keep, n_iter=40, tol=1e-6, seed=seed
    )
    assert found.recoveries
    assert np.isfinite(found.log_likelihood).all()
    assert (found.mixture.weights > 0.01).all() or any(r.row is None for r in found.recoveries)
    # What is remembered fits the parameters: one M-step over all rows at the end moves little.
    if found.converged and all(r.row is not None for r in found.recoveries):
        again = run(terms, network.total, found.mixture, function=em.fit, n_iter=1)
        moved = again.log_likelihood[0] - found.log_likelihood[0]
        assert -1e-6 < moved / 200 < 1e-3


@pytest.mark.parametrize("batch", [25, 200])
def test_repairs_over_one_batch_are_those_of_em(batch, overlapping):
    X = overlapping(0, 200, 4)
    X[:3] = 40.0
    network = joined("star", 4, 2)
    terms = terms_of(X, network)
    start = terms.start(terms.at_rows(np.array([0, 60, 120])))
    ours = run(terms, network.total, start, batch_size=batch, n_iter=30)
    assert ours.recoveries
    if batch == 200:
        whole = run(terms, network.total, start, function=em.fit, n_iter=30)
        assert ours.recoveries == whole.recoveries
        assert_same(ours, whole, 1e-10)


class Faulty:
    """A sum in which roots fall silent, or the network apart, as a list says."""

    def __init__(self, total, events):
        self.total, self.events, self.silent = total, iter(events), None

    def __getattr__(self, name):
        return getattr(self.total, name)

    def begin(self, kind, *rest):
        self.total.begin(kind, *rest)
        self.silent = None
        if kind == "estep":
            event = next(self.events, None)
            if isinstance(event, str):
                raise PartitionedError(event)
            self.silent = event


@over(keep=KEPT, network=NETWORKS)
def test_a_network_that_falls_apart_skips_the_batch(keep, network, overlapping):
    network = joined(network)
    terms = terms_of(overlapping(0, 120, 6), network)
    events = ["cut"] * 6 + [None, "cut", None]
    faulty = Faulty(network.total, events)
    found = run(terms, faulty, batch_size=40, keep=keep, n_iter=3, tol=1e9)
    # Two passes of which nothing was heard do not count as settled.
    assert not found.converged
    np.testing.assert_allclose(found.history[1], found.history[2], rtol=1e-13)
    np.testing.assert_allclose(found.history[0], found.history[1], rtol=1e-13)
    assert [number for number, _ in found.partitions] == [4, 5, 6, 7, 8, 9]
    with pytest.raises(NumericalError, match="20 iterations in a row"):
        run(terms, Faulty(network.total, ["cut"] * 50), batch_size=40, n_iter=50)


@over(keep=KEPT, kind=COVARIANCE_TYPES, name=["operator", "rounds"])
def test_a_silent_root_keeps_what_it_had(keep, kind, name, overlapping):
    network = joined(name)
    X = overlapping(0, 120, 6)
    terms = terms_of(X, network, kind)
    silent = np.zeros(network.total.n_roots, dtype=bool)
    silent[1] = True
    found = run(terms, Faulty(network.total, [silent] * 6), batch_size=40, keep=keep, n_iter=3)
    first = run(terms, network.total, batch_size=40, n_iter=1).mixture
    whole = run(terms, network.total, batch_size=40, keep=keep, n_iter=3).mixture
    for b in range(network.blocks.n_blocks):
        weight, mean, covariance = found.mixture.block(b)
        before = first.block(b)
        if b == 1:
            np.testing.assert_allclose(found.mixture.weights[b], first.weights[b], rtol=1e-10)
            np.testing.assert_allclose(mean, before[1], rtol=1e-9, atol=1e-10)
            np.testing.assert_allclose(covariance, before[2], rtol=1e-8, atol=1e-10)
        else:
            assert not np.allclose(mean, before[1])
            assert not np.allclose(mean, whole.block(b)[1], rtol=1e-12)
    del weight


@pytest.mark.parametrize("batch", [60, 36, 360])
def test_components_placed_anew_are_told(batch):
    """Each time over every link, in as many rounds as the diameter, 12 bytes."""
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(300, 4)), np.full((60, 4), 5.0)])
    network = connect(make_graph("cycle", 4), contiguous(4, 4), hops=0)
    total = network.total.counted_on(Ledger(network.graph))
    terms = terms_of(X, network)
    start = terms.start(terms.at_rows(np.array([0, 1, 350])))
    found = run(terms, total, start, batch_size=batch, n_iter=20)
    times = {(one.iteration, one.row) for one in found.recoveries}
    assert times
    counted = total.ledger.of_kind("flooding")
    assert counted["messages"] == len(times) * 8 * 2
    assert counted["bytes"] == counted["messages"] * 12
