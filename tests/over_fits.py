"""Sums and fits over the ranks of any engine are those of one process (see test_engines.py).

At the first rank both are there and compared, iteration by iteration, from the same start.
"""

import tempfile
from dataclasses import replace

import h5py
import numpy as np
import pytest

from tests import over_sums
from vpem.errors import InputError
from vpem.files.matrix import FileMatrix
from vpem.fits.settings import PrivacySettings
from vpem.fits.spread import fit_spread, own_columns
from vpem.fits.vpem import fit_vpem
from vpem.network.graph import make_graph
from vpem.network.partition import from_lists
from vpem.settings import FitSettings
from vpem.sums.connect import connect, spread
from vpem.terms.mixture import block_views

HELD = {
    3: [[0, 4, 1], [2, 3], [5, 6, 7]],
    5: [[0, 4], [1], [2, 3], [], [5, 6, 7]],
}
"""Features of agents, by how many there are."""


def overlapping(n_samples=150, n_features=8, seed=0):
    rng = np.random.default_rng(seed)
    centres = 1.1 * rng.standard_normal((3, n_features))
    mixing = np.eye(n_features) + 0.3 * rng.standard_normal((n_features, n_features))
    return (
        centres[rng.integers(3, size=n_samples)]
        + rng.standard_normal((n_samples, n_features)) @ mixing
    )


class Comparison:
    """Fits the same in one process and over ranks, and compares at the first."""

    def __init__(self, engine, X):
        self.engine, self.X = engine, X
        self.n_compared = 0

    def __call__(self, network, *, tolerance=1e-10, sample_weight=None, X=None, **options):
        X = self.X if X is None else X
        options = {"n_components": 3, "max_iter": 3, "tol": 0.0, "seed": 1, **options}
        ranked = spread(network, self.engine)
        columns = own_columns(ranked)
        names = [f"feature {column}" for column in columns]
        stored = isinstance(X, FileMatrix)
        own = (X.select(columns) if stored else X[:, columns]) if len(names) else None
        weights = sample_weight if ranked.agents.mine(0) else None
        found = fit_spread(own, ranked, sample_weight=weights, feature_names=names, **options)
        if self.engine.rank:
            assert found.mixture.blocks.n_blocks == len(ranked.total.holders.own)
            return found
        wanted = fit_vpem(X, network, sample_weight=sample_weight, **options)
        self.n_compared += 1
        close = {"rtol": tolerance, "atol": tolerance}
        np.testing.assert_allclose(found.history, wanted.history, **close)
        np.testing.assert_allclose(found.root_log_likelihood, wanted.root_log_likelihood, **close)
        of_outliers = getattr(wanted.mixture, "of_outliers", ())
        for name in ("weights", "means", "covariances", *of_outliers):
            ours, theirs = getattr(found.mixture, name), getattr(wanted.mixture, name)
            np.testing.assert_allclose(ours + 0 * theirs, theirs + 0 * ours, **close)
        assert found.network is network
        assert found.communication == wanted.communication
        assert found.init_rows == wanted.init_rows
        assert found.recoveries == wanted.recoveries
        assert found.best_restart == wanted.best_restart
        assert found.converged == wanted.converged
        assert found.n_passes == wanted.n_passes
        assert found.lost == wanted.lost
        # A graph that mixes in one round has one estimate in one process, over ranks one a root.
        alike = ranked.total.exact == network.total.exact
        np.testing.assert_allclose(found.free_energy, wanted.free_energy if alike else [], **close)
        return found


def main(engine, brief=False):
    n_agents = over_sums.agents_on(engine)
    X = overlapping()
    partition = from_lists(HELD[n_agents], 8)
    compare = Comparison(engine, X)
    networks = {
        (topology, hops): connect(
            make_graph(topology, partition.n_agents, seed=3), partition, hops=hops
        )
        for topology in ("star", "cycle", "geometric")
        for hops in (0, 1, 2)
    }
    first = fit_vpem(X, networks["star", 0], n_components=3, max_iter=2).mixture
    starts = ("random", "k-means++", "kmeans", [3, 77, 120], first)
    for number, network in enumerate(networks.values()):
        compare(network, init=starts[number % 5], n_init=2 if number == 0 else 1)
    star, cycle, near = networks["star", 0], networks["cycle", 0], networks["geometric", 1]
    for network in (star, cycle, near):
        compare(network, batch_size=40, **({} if network is cycle else {"step_size": 0.7}))
    compare(cycle, accelerate="local:2,squarem", max_iter=5, tolerance=1e-7)
    for network, odd in ((star, {"noise": True}), (cycle, {"noise": True}), (near, {"trim": 0.1})):
        compare(network, **odd)
    other = connect(
        make_graph("path", n_agents), partition, hops=0, n_rounds=3, acceleration="none"
    )
    compare(other)
    for topology, hops in (("path", 0), ("path", 1), ("geometric", 0)):
        graph = make_graph(topology, partition.n_agents, seed=3)
        found = compare(connect(graph, partition, hops=hops, sum="tree"), init=starts[3])
        if hops == 0:
            # Along a tree as at a server, on whatever engine.
            asked = {"n_components": 3, "max_iter": 3, "tol": 0.0, "init": starts[3]}
            wanted = fit_vpem(X, star, **asked)
            np.testing.assert_allclose(found.history, wanted.history, rtol=1e-12)
    compare_disturbed(compare, partition, first, brief)
    noisy = PrivacySettings(release_epsilon=9, delta=1e-4, bounds=(-5, 5), repeatable_noise=1)
    compare(star, privacy=noisy, tol=FitSettings().tol, covariance_type="tied", max_iter=2)
    if not brief:
        compare_disk(compare, networks, starts)
        compare_kinds(compare, star, cycle, near, starts)
        compare_repairs(compare, (star, cycle, near), first)
        check_refusals(engine, partition)
    return f"compared {compare.n_compared}"


def compare_disturbed(compare, partition, first, brief):
    """Compressed messages, and links and agents that fail."""
    cases = (
        ("geometric", 1, {"compress": "qsgd:8bits", "link_failure": 0.1, "n_rounds": 6}, {}),
        ("star", 0, {"compress": "natural:12bits"}, {"init": "kmeans"}),
        (
            "geometric",
            0,
            {"agent_dropout": 0.15, "stragglers": 0.05, "n_rounds": 6},
            {"init": first},
        ),
        ("cycle", 1, {"compress": "natural:12bits"}, {"init": "k-means++", "tol": 1e-3}),
        ("star", 0, {"compress": "float32"}, {"dtype": np.float32, "tolerance": 1e-3}),
        # Few iterations: a codec may round last bits to other words, and then more of them travel.
        ("cycle", 0, {"compress": "natural:12bits"}, {"batch_size": 40, "max_iter": 3}),
        (
            "geometric",
            0,
            {"agent_dropout": 0.1, "link_failure": 0.1, "n_rounds": 6},
            {"batch_size": 40},
        ),
    )
    for topology, hops, how, options in cases[:3] if brief else cases:
        graph = make_graph(topology, partition.n_agents, seed=3)
        compare(connect(graph, partition, hops=hops, **how), **options)


def compare_disk(compare, networks, starts):
    """Features that are read a run at a time, those that travel included."""
    with tempfile.TemporaryDirectory() as folder:
        with h5py.File(f"{folder}/x.h5", "w") as file:
            file["X"] = compare.X
        matrix = FileMatrix(f"{folder}/x.h5").in_reads_of(41 + 8 * compare.engine.rank)
        weights = np.random.default_rng(4).integers(0, 3, size=len(matrix)).astype(float)
        for number, network in enumerate([*networks.values()][::4]):
            compare(network, X=matrix, init=starts[number % 5])
        compare(networks["cycle", 1], X=matrix, sample_weight=weights, scale="standard")
        compare(networks["geometric", 1], X=matrix, batch_size=40)
        matrix.close()


def compare_kinds(compare, star, cycle, near, starts):
    """Covariances, units, weights, precision."""
    X = compare.X
    for number, kind in enumerate(("diag", "tied", "tied-spherical")):
        compare((star, cycle, near)[number], covariance_type=kind, init=starts[number])
    compare(near, scale="standard", tol=1e-3, max_iter=60)
    weights = np.random.default_rng(4).integers(0, 3, size=len(X)).astype(float)
    compare(star, sample_weight=weights, init="k-means++")
    single = X.astype(np.float32)
    compare(cycle, X=single, dtype=np.float32, tolerance=1e-3, init="random")


def compare_repairs(compare, networks, first):
    """Components that hold nothing, or are flat in one hub, are placed anew."""
    means, flat = first.means.copy(), first.covariances.copy()
    means[2] += 60.0
    block_views(flat, first.blocks.widths, 3)[-1][1] = 0.0
    for number, network in enumerate(networks):
        start = replace(first, **({"means": means} if number else {"covariances": flat}))
        mended = compare(network, init=start)
        reason = "weight" if number else "covariance"
        assert {event.reason for event in mended.recoveries} == {reason}
    compare(networks[1], init=replace(first, means=means), batch_size=50, max_iter=3)


def check_refusals(engine, partition):
    """What cannot be done is said alike on all ranks."""
    cycle = make_graph("cycle", partition.n_agents)
    network = connect(cycle, partition, hops=0)
    ranked = spread(network, engine)
    n_columns = len(own_columns(ranked))
    n_rows = 10 + engine.rank if n_columns else 0
    own = np.zeros((n_rows, n_columns)) if n_rows else None
    if engine.size > 1:
        with pytest.raises(InputError, match="same rows"):
            fit_spread(own, ranked, n_components=2)
