"""Noisy sums over rows: what one row can move, exactness of the grid, and who adds the noise."""

from __future__ import annotations

import numpy as np
import pytest

from vpem.network.graph import make_graph
from vpem.settings import COVARIANCE_TYPES
from vpem.steps.private import Releases, length_of, run_private, scales_of, shares_of, step
from vpem.sums.connect import connect_workers
from vpem.sums.private import Noisy
from vpem.terms.row_statistics import BoundedRows, Grid, Parts, Residuals
from vpem.terms.rows import MemoryRows


def rows_of(*parts, n_samples=5000):
    d = parts[0].shape[1]
    bounds = np.stack([-np.ones(d), np.ones(d)])
    held = [MemoryRows.wrap(np.ascontiguousarray(part)) for part in parts]
    return BoundedRows(held, bounds, Grid.for_size(n_samples, d))


def parts_of(kind, k, d, rng, width=0.2):
    shape = (1, d, d) if kind in ("full", "tied") else (1, d)
    copies = 1 if kind.startswith("tied") else k
    spreads = width * np.exp(0.3 * rng.normal(size=(copies, *shape[1:])))
    if len(shape) == 3:
        spreads = np.tril(0.3 * spreads, -1) + spreads * np.eye(d)
    elif kind.endswith("spherical"):
        spreads[:] = spreads[:, :1]
    spreads = np.broadcast_to(spreads, (k, *shape[1:])).copy()
    return Parts(rng.dirichlet(np.ones(k)), rng.uniform(-1, 1, (k, d)), spreads, kind)


@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_a_row_moves_a_message_by_at_most_one_deviation_of_the_noise(kind):
    rng = np.random.default_rng(0)
    k, d = 3, 4
    layout, others = Residuals(kind, k, d), rng.uniform(-1, 1, (7, d))
    assert layout.deviations().shape == (layout.size,)
    worst = 0.0
    for trial in range(60):
        parts = parts_of(kind, k, d, rng, width=10.0 ** rng.uniform(-3, 0))
        # Rows anywhere, far beyond the bounds, at a centre, and along one axis of a component.
        row = rng.normal(size=d) * 10.0 ** rng.uniform(-1, 6)
        if trial % 3 == 1:
            row = parts.means[0].copy()
        if trial % 3 == 2:
            row = parts.means[0] + (parts.spreads[0][..., 0] * np.eye(d)[0]) * 50
        found = []
        for data in (others, np.vstack([others, row])):
            held = rows_of(data)
            found.append(held.grid.sent(held.residuals(0, parts, layout)))
        change = (found[1] - found[0]) / layout.deviations()
        assert np.linalg.norm(change) <= 1 + 1e-6
        worst = max(worst, float(np.linalg.norm(change)))
    assert worst > 0.5  # and not by far less


def test_what_a_row_adds_does_not_depend_on_others_nor_on_who_holds_it():
    rng = np.random.default_rng(1)
    X = rng.uniform(-1.2, 1.2, (5000, 3))
    parts, layout = parts_of("full", 4, 3, rng), Residuals("full", 4, 3)
    whole = rows_of(X).residuals(0, parts, layout)
    cut = rows_of(X[:2048], X[2048:2049], X[2049:])
    assert np.array_equal(whole, sum(cut.residuals(worker, parts, layout) for worker in range(3)))
    assert cut.clipped[1] <= 1
    assert sum(cut.clipped) == (np.abs(X) > 1).any(axis=1).sum()
    # The grid is fine: sums are what they are without it, but for responsibilities rounded down.
    z = [parts.residuals(np.clip(X, -1, 1), component) for component in range(4)]
    shares = parts.responsibilities(np.stack([(one**2).sum(axis=1) for one in z], axis=1))
    counts = layout.unpacked(whole * 2.0**-32)[0]
    assert np.abs(counts - shares.sum(axis=0)).max() < 5000 * 2.0**-12


def test_a_coarser_grid_has_noise_for_what_it_rounds():
    fine, coarse = Grid.for_size(5000, 4), Grid.for_size(10**8, 10)
    assert not fine.rounds
    assert coarse.rounds
    assert coarse.message_bits < 32
    deviations = np.full(20, 2.0)
    less, more = (scales_of(deviations, 5.0, coarse.unit, rounds=on) for on in (False, True))
    moved = np.ones(20) / less  # by a unit each
    assert (more >= less).all()
    assert 5.0 * np.linalg.norm(moved) <= (more / less)[0] - 1 + 1e-6


@pytest.mark.parametrize(
    ("graph", "how", "by"),
    [
        ("star", {}, "server"),
        ("cycle", {"sum": "tree"}, "root"),
        ("star", {"secure_sum": True}, "workers"),
        ("cycle", {"sum": "tree", "secure_sum": True}, "workers"),
    ],
)
def test_the_noise_of_a_sum_is_as_large_whoever_adds_it(graph, how, by):
    network = connect_workers(make_graph(graph, 4), **how)
    noisy = Noisy(network.total.server, seed=3)
    values = np.zeros((4, 8000))
    scales = np.repeat([1 << 20, 3 << 20], 4000)
    found = noisy.add(values, scales, 2.0**-20) * np.repeat([1, 1 / 3], 4000)
    assert noisy.by == by
    assert abs(found.mean()) < 0.05
    assert abs(found.std() - 1) < 0.03
    again = noisy.add(values, scales, 2.0**-20)
    assert np.corrcoef(found, again)[0, 1] < 0.05
    # What others learn must not depend on whether sums of many rows fit.
    large = noisy.add(np.full((4, 1), 2.0**31), np.ones(1, dtype=np.int64), 2.0**-20)
    assert abs(large[0] - 2.0**33) < 2.0**-16
    if by != "workers":
        assert not values.any()


def test_iterations_share_what_the_start_leaves_and_their_steps_end_in_a_mean():
    assert shares_of(10, 3) == pytest.approx([0.1, 0.1, 0.2, *[0.06] * 10])
    assert sum(shares_of(4, 1)) == pytest.approx(1)
    assert [length_of(t, 6) for t in range(1, 7)] == [1, 1, 1, 1 / 2, 1 / 3, 1 / 4]


@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_statistics_that_no_rows_could_have_are_repaired(kind):
    rng = np.random.default_rng(2)
    parts, layout = parts_of(kind, 3, 2, rng), Residuals(kind, 3, 2)
    for size in (1.0, 1e3, 1e9):
        parts = step(parts, layout, size * rng.normal(size=layout.size), 1000, 1.0)
        assert (parts.weights > 0).all()
        assert parts.weights.sum() == pytest.approx(1)
        assert np.abs(parts.means).max() <= 1
        spreads = parts.spreads
        diagonal = spreads if spreads.ndim == 2 else np.diagonal(spreads, axis1=1, axis2=2)
        assert (diagonal > 0).all()
        assert np.isfinite(spreads).all()


@pytest.mark.parametrize("kind", ["full", "tied-spherical"])
def test_with_hardly_any_noise_it_is_em(kind):
    rng = np.random.default_rng(4)
    means = np.array([[0.5, 0.5], [-0.5, 0.0]])
    X = np.concatenate([m + 0.1 * rng.normal(size=(1000, 2)) for m in means])
    rows = rows_of(X[:700], X[700:], n_samples=2000)
    network = connect_workers(make_graph("star", 2))
    releases = Releases(rows, Noisy(network.total.server, seed=0), [1e-3] * 13)
    found = run_private(releases, Residuals(kind, 2, 2), 2000, 10)
    order = np.argsort(-found.means[:, 0])
    assert np.allclose(found.means[order], means, atol=0.01)
    assert np.allclose(found.weights, 0.5, atol=0.01)
    spreads = found.spreads
    diagonal = spreads if spreads.ndim == 2 else np.diagonal(spreads, axis1=1, axis2=2)
    assert np.allclose(diagonal, 0.1, atol=0.01)
    assert not releases.multipliers
