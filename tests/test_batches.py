"""EM in batches: the free energy, what it shares with EM over all rows, and what disturbs it."""

from functools import cache

import h5py
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from vpem import VPEM, InputError, NumericalError, connect, make_graph
from vpem._core.threads import one_blas_thread
from vpem.errors import PartitionedError
from vpem.files.matrix import FileMatrix
from vpem.network.ledger import Ledger
from vpem.network.partition import contiguous
from vpem.settings import COVARIANCE_TYPES, FitSettings
from vpem.steps import em
from vpem.steps.batches import fit_batches
from vpem.steps.row_sampling import RowStream
from vpem.terms.features import FeatureTerms
from vpem.terms.units import Scaling

from .missing_support import clusters, dense, fitted, network, observed_scores, with_holes
from .tables import each, each_once

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
def one_thread_and_no_warnings(recwarn):
    """Rounds here are few, and runs end before they have converged."""
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


class Direct:
    """Incremental EM with all responsibilities in memory and nothing clever, for exact sums."""

    def __init__(self, X, blocks, weights, kind, start):
        self.X, self.parts, self.w, self.kind = X, blocks.features, weights, kind
        self.pi, self.mu, self.sigma = start.weights[0], start.assembled_means, dense(start)[1]
        self.gamma = np.zeros((len(X), len(self.pi)))

    def log_joint(self, rows):
        laws = zip(self.pi, self.mu, self.sigma, strict=True)
        found = [np.log(pi) + multivariate_normal(*law).logpdf(self.X[rows]) for pi, *law in laws]
        return np.array(found).reshape(len(found), -1).T

    def expect(self, rows):
        log_joint = self.log_joint(rows)
        self.gamma[rows] = np.exp(log_joint - np.logaddexp.reduce(log_joint, axis=1)[:, None])

    def open(self, batches, order, step_size=0.6):
        """First pass: M-steps from what is found, the older the less it weighs."""
        share = np.zeros(len(self.X))
        widest = 1 if "diag" in self.kind or "spherical" in self.kind else max(map(len, self.parts))
        opened = 0
        for t, number in enumerate(order, 1):
            rows = batches[number]
            self.expect(rows)
            share *= 1 - t**-step_size
            share[rows] = t**-step_size / self.w[rows].sum()
            # Of the weights of rows, as if those of one batch weighed alike.
            count = [self.w[b].sum() / min(1, self.w.mean()) for b in batches]
            alike = np.array(
                [(share[b] * self.w[b]).sum() ** 2 / n for b, n in zip(batches, count, strict=True)]
            )
            g = self.gamma * (share * self.w)[:, None]
            if (g.sum(axis=0) / alike.sum() >= 10 * (widest + 1)).all():
                self.maximize(share)
                opened += 1
        if not opened:
            self.maximize()
        return opened

    def maximize(self, share=1.0):
        g = self.gamma * np.broadcast_to(share * self.w, len(self.w))[:, None]
        n = g.sum(axis=0)
        self.pi, self.mu = n / n.sum(), g.T @ self.X / n[:, None]
        centred = self.X - self.mu[:, None]
        scatter = np.einsum("mk,kmi,kmj->kij", g, centred, centred)
        if self.kind.startswith("tied"):
            scatter, n = np.repeat(scatter.sum(axis=0, keepdims=True), len(n), 0), n.sum()
        self.sigma = np.zeros_like(scatter)
        for columns in self.parts:
            own = (scatter / np.reshape(n, (-1, 1, 1)))[:, columns[:, None], columns]
            if self.kind.endswith(("diag", "spherical")):
                own = own * np.eye(len(columns))
            if self.kind.endswith("spherical"):
                own = np.trace(own, 0, 1, 2)[:, None, None] / len(columns) * np.eye(len(columns))
            self.sigma[:, columns[:, None], columns] = own

    def free_energy(self):
        g = self.gamma
        inside = g * (self.log_joint(slice(None)) - np.log(np.where(g > 0, g, 1.0)))
        return float(self.w @ inside.sum(axis=1))


# ---- the free energy -----------------------------------------------------------------------------


SHAPES = [
    (80, 1, False, False), (40, 9, True, False), (400, 71, True, True), (80, 100, True, False),
]  # fmt: skip


@each(("kind", "shape", "keep"), [
    *((kind, SHAPES[at % 4], KEPT[at % 2]) for at, kind in enumerate(COVARIANCE_TYPES)),
    *((kind, SHAPES[2], KEPT[at % 2]) for at, kind in enumerate(COVARIANCE_TYPES[::2])),
])  # fmt: skip
def test_it_is_what_it_is_with_all_responsibilities_kept(kind, keep, shape, overlapping):
    """Incremental EM of a textbook, whose free energy never falls."""
    rows, batch, weighted, opens = shape
    X = overlapping(1, rows, 6)
    weights = np.random.default_rng(0).uniform(0.2, 3, rows) if weighted else np.ones(rows)
    network = joined("star", 6, 3)
    terms = terms_of(X, network, kind, row_weights=weights if weighted else None)
    start = start_of(terms)
    found = run(terms, network.total, start, batch_size=batch, keep=keep, n_iter=2, seed=5)
    assert not found.recoveries
    direct = Direct(X, network.blocks, weights, kind, start)
    batches = [slice(at, min(at + batch, rows)) for at in range(0, rows, batch)]
    order = np.random.default_rng(5).permutation(len(batches))
    if len(batches) > 1:
        assert (direct.open(batches, order) > 0) == opens
    else:
        direct.expect(slice(None))
        direct.maximize()
    wanted = [direct.free_energy()]
    for number in order:
        direct.expect(batches[number])
        direct.maximize()
        wanted.append(direct.free_energy())
    np.testing.assert_allclose(found.free_energy, wanted, rtol=1e-11)
    assert (np.diff(found.free_energy) >= -1e-9 * np.abs(wanted).max()).all()
    assert found.free_energy[-1] <= found.log_likelihood[0] + 1e-9 * np.abs(wanted).max()
    np.testing.assert_allclose(found.mixture.assembled_means, direct.mu, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.mixture.weights[0], direct.pi, rtol=1e-9)
    np.testing.assert_allclose(dense(found.mixture)[1], direct.sigma, rtol=1e-7, atol=1e-9)


# ---- identities ----------------------------------------------------------------------------------


def some(**axes):
    """Run a test for few rows, which have every value of every argument."""
    mark = each_once(**axes)
    return each(*mark.args)


@some(
    kind=COVARIANCE_TYPES,
    network=NETWORKS,
    how=[{"batch_size": 150}, {"batch_size": 1000}, {"batch_size": 150, "tol": 1e-3}],
)
def test_one_batch_is_em_over_all_rows(kind, network, how, overlapping):
    """Iteration by iteration, and it stops where that does."""
    X, n_iter = overlapping(2, 150, 6), 500 if "tol" in how else 7
    network = joined(network)
    terms = terms_of(X, network, kind, row_weights=np.random.default_rng(1).uniform(0.5, 2, 150))
    ours = run(terms, network.total, n_iter=n_iter, **how)
    tol = {"tol": how["tol"]} if "tol" in how else {}
    whole = run(terms, network.total, function=em.fit, n_iter=n_iter, **tol)
    assert_same(ours, whole, 1e-10 if tol else 1e-12)
    assert ours.kept == "statistics"
    assert ours.converged == whole.converged == bool(tol)
    assert ours.n_passes == pytest.approx(len(ours.history))


@some(kind=COVARIANCE_TYPES, network=NETWORKS)
def test_what_is_kept_changes_nothing(kind, network, overlapping):
    X = overlapping(3, 160, 6)
    network = joined(network)
    terms = terms_of(X, network, kind, row_weights=np.random.default_rng(1).uniform(0.5, 2, 160))
    one, two = (run(terms, network.total, batch_size=33, keep=keep) for keep in KEPT)
    assert (one.kept, two.kept) == ("statistics", "responsibilities")
    assert_same(one, two, 1e-11)


@each(("batch", "kept"), [(1, "responsibilities"), (150, "statistics")])
def test_what_is_smaller_is_kept(batch, kept, overlapping):
    network = joined("star")
    terms = terms_of(overlapping(0, 300, 6), network)
    assert run(terms, network.total, batch_size=batch, n_iter=1).kept == kept


def test_from_a_file_as_in_memory(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30_000, 12)) + rng.choice([0.0, 1.5], size=30_000)[:, None]
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", data=X, chunks=(700, 12))
    network = joined("star", 12, 4)
    # The larger batch takes several reads of one megabyte.
    for size in (1100, 14_000):
        # Of its own: what is read ahead for the last batch may come late.
        matrix, read = FileMatrix(tmp_path / "x.h5", read_bytes=1), []
        inside = matrix.read_into

        def noted(out, start, inside=inside, read=read):
            read.append((start, len(out)))
            inside(out, start)

        matrix.read_into = noted
        options = {"batch_size": size, "n_iter": 2}
        here, there = terms_of(X, network, "diag"), terms_of(matrix, network, "diag")
        start = start_of(here, 2)
        there._sample_covariance = here.sample_covariance
        assert_same(
            run(here, network.total, start, **options), run(there, network.total, start, **options),
            1e-10,
        )  # fmt: skip
        # Two passes in batches and the last E-step, and hardly a row more than that.
        largest = min(size, matrix.step)
        n_reads = 2 * sum(-(-part // largest) for part in [size] * (30_000 // size)) + 2
        assert max(count for _, count in read[:n_reads]) <= largest
        assert sum(count for _, count in read) <= 3 * 30_000 + matrix.step
    matrix.close()


# ---- messages ------------------------------------------------------------------------------------


@some(network=NETWORKS, step_size=[None, 0.7])
def test_a_batch_sends_what_its_rows_need(network, step_size, overlapping):
    """Bytes of a batch are those of its rows; of a pass, of all rows, and a number a batch."""
    network = joined(network)
    sent = {}
    for n_samples in (120, 480):
        X = overlapping(8, n_samples, 6)
        ledger = Ledger(network.graph)
        total = network.total.counted_on(ledger)
        asked = []
        begin = total.begin

        def counted(kind, rows, *rest, begin=begin, asked=asked, total=total):
            before = total.bytes_sent
            begin(kind, rows, *rest)
            asked.append((kind, rows, total.bytes_sent - before))

        total.begin = counted
        found = run(terms_of(X, network), total, batch_size=40, step_size=step_size, n_iter=3)
        full = asked[-1][2]
        n_batches = n_samples // 40
        assert [rows for _, rows, _ in asked] == [*[40] * (3 * n_batches), n_samples]
        # In the first pass all take part, as in the last E-step.
        kinds = ["check"] * n_batches + ["estep"] * (2 * n_batches) + ["check"]
        assert [kind for kind, _, _ in asked] == kinds
        batches = {size for kind, rows, size in asked if rows == 40}
        assert len(batches) == 1
        sent[n_samples] = batches.pop()
        whole = sent[n_samples] * n_batches
        assert found.bytes_sent == [whole, 2 * whole, 3 * whole]
        number = sent[n_samples] / (40 * (found.mixture.n_components - 1) + 1)
        assert whole - full == number * (n_batches - 1)
    assert sent[120] == sent[480]


def test_agents_agree_once_a_pass(overlapping):
    network = joined("operator")
    total = network.total.counted_on(Ledger(network.graph))
    agreed = []
    total.agree = lambda kind, size=1: agreed.append(kind)
    found = run(terms_of(overlapping(0, 100, 6), network), total, batch_size=10, tol=1e-12)
    assert agreed == ["stopping"] * len(found.history)
    assert found.free_energy == []  # where sums are not exact


# ---- stochastic ----------------------------------------------------------------------------------


@some(kind=COVARIANCE_TYPES, network=NETWORKS, missing=[False, False, True])
def test_parameters_stand_for_their_statistics(kind, network, missing, overlapping):
    X = rows(2, 200) if missing else overlapping(0, 200, 5)
    network = joined("star" if missing else network, 5, 5)
    terms = terms_of(X, network, kind, reg_covar=0.01, missing=missing)
    mixture, roots = run(terms, network.total, batch_size=50).mixture, network.total.n_roots
    statistics = terms.statistics_of(mixture, 17.0, roots)
    if not missing:
        assert statistics.counts.sum() == pytest.approx(17 * roots)
    for about in (mixture.means, mixture.means + 3.0):
        if not missing:
            statistics = terms.recentred(statistics, about)
        again = terms.update(statistics)
        for name in ("weights", "means", "covariances"):
            ours, theirs = getattr(again, name), getattr(mixture, name)
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)


@some(kind=COVARIANCE_TYPES, network=NETWORKS)
def test_statistics_about_another_centre(kind, network, overlapping):
    network = joined(network)
    terms = terms_of(overlapping(0, 200, 6), network, kind)
    start = start_of(terms)
    roots = network.total.n_roots
    g = np.random.default_rng(0).dirichlet(np.ones(3), size=(roots, 200))
    one, two = terms.empty(start.means, roots), terms.empty(start.means[::-1] + 1, roots)
    for statistics in (one, two):
        terms.summarize(statistics, g, slice(0, 200))
    moved = terms.recentred(one, two.shifts)
    np.testing.assert_allclose(moved.first, two.first, atol=1e-9)
    if kind in ("full", "tied"):
        covariances = [terms.update(s).covariances for s in (moved, two)]
        np.testing.assert_allclose(*covariances, atol=1e-10)
    else:
        np.testing.assert_allclose(moved.second, two.second, atol=1e-9)


@each("rows", [30, 7])
def test_steps_are_those_of_the_source(rows, overlapping):
    """One component, where responsibilities are 1: the mean is a weighted mean of batch means."""
    X = overlapping(0, 4 * rows, 4)
    network = joined("star", 4, 2)
    terms = terms_of(X, network)
    start = start_of(terms, 1)
    common = {"batch_size": rows, "step_size": 0.75, "seed": 3}
    found = run(terms, network.total, start, n_iter=3, **common)
    rng = np.random.default_rng(3)
    first, second = np.zeros(4), np.zeros((4, 4))
    for t, number in enumerate(np.concatenate([rng.permutation(4) for _ in range(3)]), 1):
        batch = X[rows * number : rows * number + rows]
        rho = t**-0.75
        if t == 5 and rows == 7:
            # Too few rows for an M-step between the first batches: one after them, from all.
            first, second = X.mean(axis=0), X.T @ X / len(X)
        first = first + rho * (batch.mean(axis=0) - first)
        second = second + rho * (batch.T @ batch / rows - second)
    np.testing.assert_allclose(found.mixture.assembled_means[0], first, rtol=1e-11)
    whole = second - np.outer(first, first)
    for b, columns in enumerate(network.blocks.features):
        ours = found.mixture.block(b)[2][0]
        np.testing.assert_allclose(ours, whole[np.ix_(columns, columns)], rtol=1e-10)
    assert found.kept == "nothing"
    assert found.free_energy == []


@some(kind=COVARIANCE_TYPES, network=NETWORKS, step_size=[None, 0.6])
def test_the_first_pass_is_worth_more_than_an_iteration_over_all_rows(
    kind, network, step_size, overlapping
):
    X = overlapping(4, 2000, 6)
    network = joined(network)
    terms = terms_of(X, network, kind)
    whole = run(terms, network.total, function=em.fit, n_iter=2)
    ours = run(terms, network.total, batch_size=150, step_size=step_size, n_iter=1)
    assert (ours.log_likelihood > whole.log_likelihood).all()
    assert ours.n_passes == pytest.approx(1)


def test_every_pass_takes_the_batches_in_the_same_order(overlapping):
    network = joined("star")
    terms = terms_of(overlapping(0, 120, 6), network)
    seen = []
    part = terms.slice_rows
    terms.slice_rows = lambda rows, following=None: (
        seen.append(rows.start),
        part(rows, following),
    )[1]
    run(terms, network.total, batch_size=10, n_iter=3)
    assert seen[:12] == seen[12:24] == seen[24:36]
    assert sorted(seen[:12]) == list(range(0, 120, 10))
    assert seen[:12] != list(range(0, 120, 10))


def test_a_component_mended_in_the_first_pass_ends_it(overlapping):
    """What was found before would undo the repair: an E-step over all rows comes next."""
    X = overlapping(0, 2000, 4)
    X[::5] = 3.25
    network = joined("star", 4, 4)
    terms = terms_of(X, network, reg_covar=0.0)
    start = terms.start(terms.at_rows(np.array([0, 901])))
    start.covariances[::2] *= 1e-12
    found = run(terms, network.total, start, batch_size=200, n_iter=6)
    # How often it is mended after some more iterations is a matter of rounding.
    assert [one.iteration for one in found.recoveries] == [1]
    assert len(found.history) == 6
    assert 6 < found.n_passes < 7
    plain = run(terms, network.total, start, function=em.fit, n_iter=1)
    assert plain.recoveries[0].iteration == 1


@each("step_size", [None, 0.6])
def test_batches_of_rows_that_weigh_nothing(step_size, overlapping):
    X = overlapping(0, 240, 4)
    weights = np.ones(240)
    weights[60:120] = 0.0
    network = joined("star", 4, 2)
    terms = terms_of(X, network, row_weights=weights)
    found = run(terms, network.total, batch_size=30, step_size=step_size, n_iter=5)
    assert np.isfinite(found.log_likelihood).all()
    assert np.isfinite(found.mixture.means).all()


# ---- collapse, silence, partition ----------------------------------------------------------------


@some(keep=KEPT, seed=range(2))
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


@each("batch", [25, 200])
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


@some(keep=KEPT, network=NETWORKS)
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


@some(keep=KEPT, kind=COVARIANCE_TYPES[:4], name=["operator", "rounds", "rounds", "operator"])
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


@each("batch", [60, 36, 360])
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


PARTS = [[0, 1, 2], [3], [4]]
FAILING = {"topology": "complete", "agent_dropout": 0.2, "link_failure": 0.1, "seed": 2}


def rows(seed, n_samples=200, share=0.3, party=False):
    X = with_holes(clusters(seed, n_samples), seed + 1, share)
    if party:
        X[: n_samples // 2, PARTS[0]] = np.nan
        X[np.isnan(X).all(axis=1), 3] = 0.0
    return X


@some(
    kind=COVARIANCE_TYPES,
    batch=[20, 40, 200],
    party=[False, True, True, False],
    weighted=[False, True],
)
def test_the_free_energy_never_falls_where_values_are_missing(kind, batch, party, weighted):
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


@some(kind=COVARIANCE_TYPES, topology=["star", "cycle"], how=[{}, {}, {"step_size": 0.7}])
def test_one_batch_of_rows_that_miss_values_is_em(kind, topology, how):
    X, net = rows(5, party=True), network(PARTS, topology)
    common = {"covariance_type": kind, "max_iter": 1 if how else 6, "tol": 0}
    whole, one = fitted(X, net, **common), fitted(X, net, batch_size=len(X), **how, **common)
    np.testing.assert_allclose(one.history, whole.history, rtol=1e-11)
    np.testing.assert_allclose(one.mixture.covariances, whole.mixture.covariances, rtol=1e-8)


@cache
def ended(kind):
    return fitted(rows(10, 120, party=True), network(PARTS), covariance_type=kind, tol=1e-8)


@each(
    ("kind", "how", "step_size"),
    [
        ("full", {}, None),
        ("full", {"topology": "cycle"}, 0.8),
        ("spherical", {"topology": "complete", "link_failure": 0.2}, None),
        ("spherical", FAILING, None),
    ],
)
def test_batches_end_where_all_rows_do(kind, how, step_size):
    X = rows(10, 120, party=True)
    batches = fitted(
        X, network(PARTS, **how), covariance_type=kind, batch_size=24, step_size=step_size,
        max_iter=15, tol=1e-8,
    )  # fmt: skip
    close = 1e-5 if step_size is None and how != FAILING else 0.02
    assert abs(batches.log_likelihood - ended(kind).log_likelihood) < close
    scores = observed_scores(batches.mixture, X) if how != FAILING else None
    if scores is not None:
        np.testing.assert_allclose(batches.log_likelihood, scores.mean(), atol=1e-6)


@each("kind", ["full", "diag"])
def test_a_stream_of_rows_that_miss_values(kind):
    X = rows(6, 1500)
    stream = VPEM(agents=PARTS, covariance_type=kind, missing="marginalize")
    for begin in range(0, 1500, 300):
        stream.partial_fit(X[begin : begin + 300])
    whole = VPEM(agents=PARTS, covariance_type=kind, missing="marginalize").fit(X)
    assert abs(stream.score(X) - whole.score(X)) < 0.01
    X[:, 2] = np.nan
    with pytest.raises(InputError, match=r"feature 2 is missing .* give batches in which every"):
        stream.partial_fit(X[:300])
