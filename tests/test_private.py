"""Differential privacy of rows, of mixtures, k-means and FedEM: what is found, told, refused."""

import json
import warnings
from fractions import Fraction

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from benchmarks.audit import Audited, lower_bound
from vpem import (
    DistributedGaussianMixture,
    DistributedKMeans,
    FedEM,
    FedMixtureSettings,
    FitSettings,
    InputError,
    PrivacySettings,
    connect_workers,
    fit_em,
    fit_fedem,
    kmeans_rows,
    make_graph,
    read_model,
)
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.traces import Trace
from vpem.fits.privacy import Budget, accountant, foretell
from vpem.fits.private_fedem import NoisyStatistics, about_all_rows
from vpem.network.ledger import Ledger
from vpem.network.noise import Noise
from vpem.network.partition import Blocks, evenly, from_worker_of_row
from vpem.pictures.saved import SavedClusters
from vpem.steps.private import shares_of
from vpem.steps.runs import Progress
from vpem.sums.connect import spread_workers
from vpem.sums.private import Noisy
from vpem.sums.server import ServerSum
from vpem.terms.row_statistics import BoundedRows, Grid, Parts, Residuals
from vpem.terms.rows import arrange_rows
from vpem.terms.units import Scaling

from .cli_support import done, run
from .tables import each
from .thread_engine import ThreadEngine, over_queues, together

ASKED = ("--epsilon", 4, "--delta", "1e-6", "--bounds=-2,2")
PRIVATE = {"epsilon": 4.0, "delta": 1e-6, "bounds": (-2, 2)}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=2000)
    centres = np.array([[1.0, 1, 0], [-1, 0, 1], [0, -1, -1]])
    return centres[labels] + 0.4 * rng.standard_normal((2000, 3)), labels


@pytest.fixture(scope="module")
def data(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "rows.h5"
    write_dataset(path, Dataset(rows[0], ("a", "b", "c")))
    return path


def test_a_private_fit_finds_the_components_and_tells_nothing_else(capsys, data, rows, tmp_path):
    model, labels = tmp_path / "m.h5", tmp_path / "l.csv"
    words = ("fit", data, "-k", 3, "--split", "rows", "--workers", 4, *ASKED)
    told = done(capsys, *words, "-o", model, "--labels", labels, "--json")
    found = np.loadtxt(labels, delimiter=",", skiprows=1, usecols=1)
    assert adjusted_rand_score(rows[1], found) > 0.9
    assert "noise of a mean: 0.0" in told.err
    assert "worker 1: " in told.err  # how many were clipped, which no report has
    report = told.json
    for name in ("log_likelihood", "root_log_likelihood", "bic", "aic", "seconds"):
        assert report[name] is None
    assert report["disagreement"]["log_likelihood"] is None
    assert (report["history"], report["recoveries"], report["init_rows"]) == ([], [], None)
    assert (report["n_iter"], report["warnings"]) == (10, [])
    privacy = report["privacy"]
    assert privacy["noise_by"] == "server"
    assert (privacy["epsilon"], privacy["delta"], privacy["n_releases"]) == (4, 1e-6, 13)
    together = sum(z**-2 for z in privacy["noise_multipliers"]) ** -0.5
    assert accountant().get_epsilon_gaussian(together, 1e-6) <= 4
    assert accountant().get_epsilon_gaussian(together * 0.999, 1e-6) > 3.99
    kept = read_model(model)
    assert kept.history.shape == (0, 1)
    assert kept.report["privacy"] == privacy
    assert "clipped" not in json.dumps(report) + json.dumps(kept.report)
    assert kept.options["init"] == "noisy sums"
    again = done(capsys, *words, "--json").json
    assert again["mixing_weights"] != report["mixing_weights"]  # noise is not of --seed
    assert done(capsys, "model", "show", model).out
    assert np.isfinite(done(capsys, "score", model, data, "--json").json["log_likelihood"])


REFUSED = [
    (("--epsilon", "inf"), "finite"),
    (("--epsilon", 4), "needs --delta"),
    (("--epsilon", 4, "--delta", 0), "--delta must be a number above 0"),
    (("--epsilon", 4, "--delta", 5e-4), "below 1 / 2000"),
    (("--epsilon", 4, "--delta", 1e-6), "needs --bounds"),
    ((*ASKED[:4], "--bounds", "3,1"), "below the second"),
    ((*ASKED[:4], "--bounds=-1,inf"), "finite"),
    ((*ASKED[:4], "--bounds=0,1;0,1"), "as many pairs as there are features (3)"),
    ((*ASKED, "--topology", "cycle"), "needs an exact sum"),
    ((*ASKED, "-k", "2-3"), "for one number of --components"),
    (("--epsilon", 0.02, *ASKED[2:]), "leave nothing but noise at --epsilon 0.02"),
    ((*ASKED, "--split", "features"), "--release-epsilon"),
]
"""What depends on the data or on another value; rules alone are in tests/test_rules.py."""


@each(("words", "says"), REFUSED)
def test_what_a_private_fit_cannot_have_is_refused_in_a_sentence(
    capsys, data, tmp_path, monkeypatch, words, says
):
    monkeypatch.chdir(tmp_path)
    held = () if "features" in words else ("--split", "rows", "--workers", 4)
    result = run(capsys, "fit", data, "-k", 3, *held, "-q", "-o", "m.h5", *words)
    assert result.code == 2
    assert says in result.sentence
    assert not result.out
    assert not list(tmp_path.iterdir())


@each(
    ("recipe", "options", "says"),
    [
        (fit_em, {"tol": 1e-3}, "tol is not possible with epsilon"),
        (fit_em, {"init": [1, 2, 3]}, "init is not possible with epsilon"),
        (fit_em, {"dtype": "float32"}, "dtype is not possible with epsilon"),
        (kmeans_rows, {"init": "random"}, "it looks at rows"),
        (kmeans_rows, {"init": np.zeros((3, 4))}, "it looks at rows"),
        (kmeans_rows, {"n_init": 3}, "every start would spend"),
        (kmeans_rows, {"participation": 0.5}, "absent workers"),
        (kmeans_rows, {"batch_size": 100}, "every batch"),
        (kmeans_rows, {"missing": "marginalize"}, "for each feature"),
        (kmeans_rows, {"scale": "standard"}, "exact standard deviations"),
        (kmeans_rows, {"sample_weight": np.ones(2000)}, "a row of more weight"),
        (fit_fedem, {"tol": 1e-3}, "tol is not possible with epsilon"),
        (fit_fedem, {"batch_size": 10}, "every batch"),
        (fit_fedem, {"init": [1, 2]}, "it looks at rows"),
        (fit_fedem, {"variance_reduction": True}, "every batch"),
        (fit_fedem, {"missing": "marginalize"}, "for each feature"),
        (fit_fedem, {"n_epochs": 3.0}, "give max_iter"),
        (fit_fedem, {"record_every": 2}, "none is recorded"),
        (fit_fedem, {"floor": 0.1}, "has no effect with epsilon"),
        (fit_fedem, {"sample_weight": np.ones(2000)}, "a row of more weight"),
        (fit_fedem, {"known_covariance": np.eye(3)}, "leave them out"),
        (fit_fedem, {"callback": Trace()}, "a private fit keeps no trace"),
    ],
)
def test_python_refuses_what_noise_cannot_go_with(rows, recipe, options, says):
    held, network = evenly(2000, 2), connect_workers(make_graph("star", 2))
    with pytest.raises(InputError, match=says):
        recipe(rows[0], held, network, privacy=PrivacySettings(**PRIVATE), **options)


def test_a_report_of_a_released_model_has_no_warning_of_data(capsys, data):
    words = ("fit", data, "-k", 3, "--agents", 3, "--release-epsilon", 4, *ASKED[2:4])
    told = done(capsys, *words, "--bounds=-1,1", "--max-iter", 2, "--json")
    assert "were clipped" in told.err
    assert told.json["warnings"] == []


def test_an_estimator_is_the_same_fit(rows):
    X = rows[0]
    model = DistributedGaussianMixture(3, workers=4, **PRIVATE, secure_sum=True).fit(X)
    assert model.fit_.guarantee.noise_by == "workers"
    assert (model.n_iter_, model.history_.shape) == (10, (0, 1))
    assert np.isnan(model.lower_bound_)
    assert adjusted_rand_score(rows[1], model.predict(X)) > 0.9


@pytest.mark.parametrize(
    ("recipe", "graph", "joined", "engine"),
    [
        (fit_em, "star", {}, ThreadEngine),
        (fit_em, "path", {"sum": "tree"}, over_queues),
        (fit_em, "star", {"secure_sum": True}, over_queues),
        (fit_fedem, "star", {}, over_queues),
        (fit_fedem, "path", {"sum": "tree"}, ThreadEngine),
    ],
)
@pytest.mark.filterwarnings("ignore:its noise can be repeated")
def test_processes_find_what_one_finds(rows, clouds, recipe, graph, joined, engine):
    X = (rows if recipe is fit_em else clouds)[0]
    network, held = connect_workers(make_graph(graph, 4), **joined), evenly(len(X), 4)
    private = PrivacySettings(**(PRIVATE if recipe is fit_em else FED), repeatable_noise=7)
    how = {"n_components": 3, "max_iter": 3, "privacy": private}
    if recipe is fit_fedem:
        how |= {"n_components": 2, "max_iter": 2, "compress": "qsgd:8bits"}

    def work(engine):
        here = spread_workers(network, engine)
        own = np.concatenate([X[held.rows[worker]] for worker in here.agents.own])
        return recipe(own, held, here, **how)

    wanted, found = recipe(X, held, network, **how), together(2, work, engine=engine)
    for one in found:
        assert not isinstance(one, BaseException), one
        near = {"rtol": 0 if recipe is fit_em else 1e-9}
        np.testing.assert_allclose(one.mixture.means, wanted.mixture.means, **near)
        np.testing.assert_allclose(one.mixture.covariances, wanted.mixture.covariances, **near)
        assert one.communication == wanted.communication
    if recipe is fit_em:
        assert found[0].clipped | found[1].clipped == wanted.clipped


def test_what_is_left_is_foretold_by_what_is_public():
    def left(n_samples, epsilon=1.0, **how):
        private = PrivacySettings(epsilon=epsilon, delta=1e-6)
        return foretell(FitSettings(n_components=3, **how), private, n_samples, 10)

    assert left(100_000).mean == pytest.approx(left(10_000).mean / 10)
    assert left(10_000, 4.0).mean < left(10_000).mean
    assert not left(10_000).is_hopeless
    assert left(1_000).is_hopeless
    with pytest.raises(InputError, match=r"it takes some \d.* rows") as raised:
        left(1_500).check()
    assert "covariance_type" in str(raised.value) or "epsilon" in str(raised.value)
    assert left(2_000, covariance_type="diag").lost < left(2_000).lost


@each(
    ("budget", "sentence"),
    [
        (
            (20.0, 1e-6),
            "epsilon=20.0 promises little: above 10 the presence of a row is all but visible",
        ),
        ((1.0, 5e-3), "delta=0.005 is much for 100 rows; take at most 0.001, a tenth"),
        ((1.0, 1e-3), None),
    ],
)
def test_a_promise_of_little_is_called_so(budget, sentence):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        Budget.parse(*budget, 100).warn_of_little(100)
    assert [sentence in str(one.message) for one in heard] == [True] * (sentence is not None)


def test_an_audit_finds_no_more_than_was_promised_and_finds_too_little_noise():
    """Of 2,000 sums, each of which spends all; benchmarks/audit.py has whole fits."""
    budget, runs, unit = Budget(4.0, 1e-3), 2000, 2.0**-20
    scale = int(budget.multipliers([1.0])[0] / unit)
    bounds = []
    for too_small in (1, 5):
        scores = []
        for there in (False, True):
            noisy = Audited(ServerSum(2), there, too_small)
            values = np.zeros((2, runs))
            values[1] = 1.0  # as far as a row may move it
            scales = np.full(runs, scale)
            found = noisy.add(values, scales, unit)
            scores.append(found)
        bounds.append(lower_bound(*scores, budget.delta))
    assert 0.3 < bounds[0] < 4.0 < bounds[1]
    assert sum(shares_of(10, 3)) == pytest.approx(1)


@each("colluding", [None, 0, 2])
def test_who_knows_some_of_the_noise_learns_no_more_than_was_promised(rows, colluding):
    """A worker can subtract its own share of the noise; of three that was a third of it."""
    how = {**PRIVATE, "colluding": colluding, "max_iter": 2}
    model = DistributedGaussianMixture(3, workers=3, **how, secure_sum=True).fit(rows[0])
    told = model.kept().report["privacy"]
    against = {who: one["add_or_remove"] for who, one in told["against"].items()}
    assert told["colluding"] == (1 if colluding is None else colluding)
    weakest = {None: "worker", 0: "outsider", 2: "2 workers"}[colluding]
    assert against[weakest] == 4.0
    if colluding == 0:
        assert against["worker"] == pytest.approx(5.03, abs=0.02)
    else:
        assert against["outsider"] < against["worker"] <= 4.0
    assert against["server"] == against["outsider"]
    for one in told["against"].values():
        assert one["change"] > 2 * one["add_or_remove"]


def test_noise_is_that_of_all_but_those_who_collude():
    network = connect_workers(make_graph("star", 5), secure_sum=True)
    scales, size = 1000, 4000
    for colluding in (0, 1, 3):
        noisy = Noisy(network.total.counted_on(Ledger(network.graph)), colluding, seed=1)
        found = noisy.add(np.zeros((5, size)), np.full(size, scales), 1.0)
        assert found.std() == pytest.approx(scales * np.sqrt(5 / (5 - colluding)), rel=0.05)


@each(
    ("how", "sentence"),
    [
        ({"secure_sum": True, "colluding": 3}, "colluding must be below 3, the number of workers"),
        ({"colluding": 1}, "colluding applies where workers share the noise"),
    ],
)
def test_those_who_collude_are_some_of_those_who_add_noise(rows, how, sentence):
    with pytest.raises(InputError, match=sentence):
        DistributedGaussianMixture(3, workers=3, **PRIVATE, **how).fit(rows[0])


# ---- k-means ------------------------------------------------------------------------------------

REPEATED = PrivacySettings(epsilon=1.0, delta=1e-5, bounds=(-9, 9), repeatable_noise=3)


@pytest.fixture(scope="module")
def clusters():
    """Function: k-means with noise over rows of three clusters, dealt out to four workers."""
    rng = np.random.default_rng(1)
    labels = rng.integers(3, size=3000)
    centres = np.array([[4.0, 0, 0, 1], [-3, 3, 0, 0], [0, -4, 2, 0]])
    X = centres[labels] + rng.standard_normal((3000, 4))
    workers, star = from_worker_of_row(rng.integers(4, size=3000)), make_graph("star", 4)

    def cluster(privacy=REPEATED, n_clusters=3):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "its noise can be repeated")
            return kmeans_rows(
                X, workers, connect_workers(star), n_clusters=n_clusters, seed=1, privacy=privacy
            )

    cluster.X, cluster.labels = X, labels
    return cluster


def inertia(X, centres):
    return float((((X[:, None] - centres) ** 2).sum(axis=2)).min(axis=1).sum())


def test_noisy_clusters_are_nearly_those_without_noise(clusters):
    X, plain, found, again = clusters.X, clusters(None), clusters(), clusters()
    assert inertia(X, found.centres) < 1.01 * plain.inertia
    # Labels are in the user's order, of the centres that are published.
    nearest = (((X[:, None] - found.centres) ** 2).sum(axis=2)).argmin(axis=1)
    np.testing.assert_array_equal(found.labels, nearest)
    assert adjusted_rand_score(clusters.labels, found.labels) > 0.95
    assert 0 < np.abs(found.counts - np.bincount(nearest)).max() < 300
    np.testing.assert_array_equal(found.centres, again.centres)
    # Bounds of different widths keep distances as they are.
    wide = clusters(REPEATED.changed(bounds=([-9, -9, -40, -9], [9, 9, 40, 9])))
    assert inertia(X, wide.centres) < 1.05 * plain.inertia


def test_files_of_noisy_clusters_tell_nothing_of_rows(clusters):
    found = clusters()
    report = found.describe(list("abcd"), list("ABCD"))
    assert (report["inertia"], report["root_inertia"], report["history"]) == (None, None, [])
    assert report["n_iter"] == 10
    assert "no privacy" in report["privacy"]["warning"]
    kept = found.kept(list("abcd"), {**report, "warnings": ["a row"]}, {}, np.arange(3000))
    assert kept.labels.size == kept.distances.size == 0
    assert kept.ids is None
    assert not kept.report["warnings"]
    saved = SavedClusters("clusters.h5", kept)
    assert saved.summaries() == {"noisy rows": [f"{size:.0f}" for size in found.counts]}
    with pytest.raises(InputError, match="its rows are protected by noise"):
        saved.history()


def test_the_estimator_protects_rows_as_the_recipe_does(clusters):
    asked = {"epsilon": 4.0, "delta": 1e-5, "bounds": (-9, 9)}
    # Noise, and with it a start, is fresh in every fit: one in some hundred is at other clusters.
    fits = (DistributedKMeans(3, workers=4, **asked).fit(clusters.X) for _ in range(4))
    near = (fit for fit in fits if adjusted_rand_score(clusters.labels, fit.labels_) > 0.95)
    assert np.isnan(next(near).inertia_)
    with pytest.raises(InputError, match="over features"):
        DistributedKMeans(3, split="features", **asked).fit(clusters.X)


def test_rows_are_clipped_to_their_own_bounds_and_counted(clusters):
    X, narrow = clusters.X, REPEATED.changed(bounds=([-9, -9, -40, -1], [9, 9, 40, 1]))
    beyond = (np.abs(X[:, 3]) > 1) | (np.abs(X[:, :2]) > 9).any(axis=1)
    assert sum(clusters(narrow).clipped.values()) == beyond.sum()
    # A mean of rows that are clipped lies inside; that of all, which is 0.33, is far above.
    found = clusters(narrow, n_clusters=1).centres[0, 3]
    assert found == pytest.approx(np.clip(X[:, 3], -1, 1).mean(), abs=0.02)


# ---- FedEM, whose workers add noise to statistics ------------------------------------------------


FED = {"epsilon": 8.0, "delta": 1e-6, "bounds": (-3, 3)}
ASKED_OF_FEDEM = ("--epsilon", 8, "--delta", "1e-6", "--bounds=-3,3")
KINDS = ["full", "diag", "spherical"]


@pytest.fixture(scope="module")
def clouds():
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=4000)
    centres = np.array([[1.0, 1, 0], [-1, 0, 1]])
    return centres[labels] + 0.4 * rng.standard_normal((4000, 3)), labels


def parts_of(kind, rng, k=2, d=3):
    spreads = 0.1 + 0.1 * rng.random((k, d))
    if kind == "spherical":
        spreads[:] = spreads[:, :1]
    if kind == "full":
        spreads = np.stack([np.diag(one) for one in spreads])
        spreads[:, 1, 0] = 0.05
    weights = np.array([0.3, 0.7])
    return Parts(weights, rng.uniform(-0.4, 0.4, (k, d)), spreads, kind)


def model_of(kind, X, parts, n_workers=2, multiplier=1.0, seed=5):
    """The model of rows within -3 and 3, about the moments of some parts."""
    n, d = X.shape
    bounds = np.array([[-3.0] * d, [3.0] * d])
    held = evenly(n, n_workers)
    whole = arrange_rows(X, Blocks.one(d, n_workers), Scaling.none(d), np.float64)
    grid = Grid.for_size(n, d)
    bounded = BoundedRows([whole.slice_rows(run) for run in held.runs], bounds, grid)
    layout = Residuals(kind, len(parts.weights), d)
    settings = FedMixtureSettings(covariance_type=kind, floor=1e-9, reg_covar=0.0, n_threads=1)
    return NoisyStatistics(
        bounded, layout, about_all_rows(parts, layout.shape), Scaling(np.zeros(d), np.full(d, 3.0)),
        settings, held.counts, np.arange(n_workers), lambda worker: Noise(seed, worker), multiplier,
        150,
    )  # fmt: skip


def by_hand(model, X, parts):
    """Sums over rows by the formulas, in numbers without rounding once they are on the grid."""
    kind, radius = model.covariance_type, model.layout.radius
    g_bits, h_bits = model.rows.grid.share_bits, model.rows.grid.coordinate_bits
    u = np.clip(X, -3, 3) / 3
    k, d = parts.means.shape
    roots = [np.diag(s) if s.ndim == 1 else s for s in parts.spreads]
    logs = np.stack([
        np.log(parts.weights[c]) - np.log(np.diag(roots[c])).sum()
        - 0.5 * np.square(np.linalg.solve(roots[c], (u - parts.means[c]).T)).sum(axis=0)
        for c in range(k)
    ], axis=1)  # fmt: skip
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    shares = np.floor(shares / shares.sum(axis=1, keepdims=True) * 2**g_bits)
    whole = model.whole
    root = np.diag(whole.spreads[0]) if whole.spreads.ndim == 2 else whole.spreads[0]
    z = np.linalg.solve(root, (u - whole.means[0]).T).T
    if kind == "diag":
        z = np.clip(z, -3.5, 3.5)
    lengths = np.square(z).sum(axis=1)
    z = z * np.minimum(1, np.sqrt(radius / np.maximum(lengths, radius)) * (1 - 2.0**-40))[:, None]
    z = np.trunc(z * 2**h_bits)
    n, first = np.zeros(k, object), np.zeros((k, d), object)
    second = np.zeros((k, d, d), object)
    for g, one in zip(shares.astype(int), z.astype(int), strict=True):
        for c in range(k):
            n[c] += Fraction(int(g[c]), 2**g_bits)
            for i in range(d):
                first[c, i] += Fraction(int(g[c] * one[i]), 2 ** (g_bits + h_bits))
                for j in range(d):
                    product = Fraction(int(g[c] * one[i] * one[j]), 2 ** (g_bits + 2 * h_bits))
                    second[c, i, j] += product
    n, first, second = (one.astype(float) for one in (n, first, second))
    widths = np.sqrt(np.square(root).sum(axis=1))
    turn = root / widths[:, None]
    second = turn @ second @ turn.T
    squares = {
        "full": second[:, *np.tril_indices(d)], "diag": np.einsum("kii->ki", second),
        "spherical": np.einsum("kii->k", second),
    }[kind]  # fmt: skip
    return np.concatenate([n, (first @ turn.T).ravel(), squares.ravel()])


@each("kind", KINDS)
def test_what_a_worker_sums_is_the_formula(kind):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(40, 3))
    X[0] = 50.0  # clipped
    parts = parts_of(kind, rng)
    model = model_of(kind, X, parts)
    mixture, projected = model.maximize(model.of_parts(parts))
    assert projected == 0
    back = model.parts_of(mixture)
    for name in ("weights", "means", "spreads"):
        np.testing.assert_allclose(getattr(back, name), getattr(parts, name), 1e-10, 1e-12)
    for worker in range(2):
        mine = X[20 * worker : 20 * worker + 20]
        found = model.in_units(model.sums(worker, mixture))
        np.testing.assert_allclose(found, by_hand(model, mine, parts), rtol=1e-10, atol=1e-10)
    assert np.isnan(model.objective(mixture))


@each("kind", KINDS)
def test_one_row_moves_the_sums_by_no_more_than_is_paid_for(kind):
    rng = np.random.default_rng(2)
    parts = parts_of(kind, rng)
    X = rng.normal(size=(60, 3)) * rng.choice([0.3, 1.0, 9.0], size=(60, 1))
    model = model_of(kind, X, parts, n_workers=1)
    mixture, _ = model.maximize(model.of_parts(parts))
    whole = model.sums(0, mixture)
    deviations = model.layout.deviations()
    longest = 0.0
    for left_out in range(0, 60, 7):
        others = model_of(kind, np.delete(X, left_out, axis=0), parts, n_workers=1)
        others.rows.grid = model.rows.grid
        moved = whole - others.sums(0, mixture)
        longest = max(longest, float(np.linalg.norm(moved / deviations)))
    assert 0 < longest <= 1


def test_noise_has_the_size_of_its_multiplier_and_is_counted():
    rng = np.random.default_rng(3)
    parts, X = parts_of("diag", rng), rng.normal(size=(30, 3))
    model = model_of("diag", X, parts, multiplier=2.5)
    mixture, _ = model.maximize(model.of_parts(parts))
    exact = model.in_units(model.sums(0, mixture))
    drawn = np.array([15 * model.expect(0, mixture, None) - exact for _ in range(150)])
    deviations = 2.5 * model.layout.deviations()
    np.testing.assert_allclose(drawn[:, :2].std(axis=0), deviations[:2], rtol=0.25)
    np.testing.assert_allclose(drawn[:, 2:8].std(axis=0), deviations[2:8], rtol=0.25)
    assert np.abs(drawn.mean(axis=0) / drawn.std(axis=0)).max() < 0.35
    with pytest.raises(RuntimeError, match="more often than is paid for"):
        model.expect(0, mixture, None)


def test_every_worker_adds_all_of_the_noise():
    n, size = 4, 4000
    noisy = Noisy(ServerSum(n), seed=3, each=True)
    heard, reduce = [], ServerSum.reduce

    def listened(self, values, rows):
        heard.append(values[:, 0].copy())
        return reduce(self, values, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerSum, "reduce", listened)
        total = noisy.add(np.zeros((n, size)), np.full(size, 1 << 10), 2.0**-10)
    assert noisy.by == "each worker"
    np.testing.assert_allclose(heard[0].std(axis=1), 1.0, rtol=0.1)
    np.testing.assert_allclose(total.std(), noisy.louder, rtol=0.1)


@each("how", [{"compress": "qsgd:8bits"}, {"participation": 0.7, "covariance_type": "diag"}, {}])
@pytest.mark.filterwarnings("ignore:its noise can be repeated")
def test_components_are_found_and_no_more_is_told(clouds, how):
    X, labels = clouds
    how = how or {"max_iter": 5}
    privacy = PrivacySettings(**FED, repeatable_noise=1)
    fit = fit_fedem(X, evenly(4000, 3), n_components=2, privacy=privacy, **how)
    assert adjusted_rand_score(labels, fit.predict(X)) > 0.8
    report = fit.describe(("a", "b", "c"), fit.workers.names)
    for name in ("log_likelihood", "bic", "aic", "seconds"):
        assert report[name] is None
    assert report["history"] == report["mean_field"] == []
    assert report["privacy"]["noise_by"] == "each worker"
    first = bool({"compress", "participation"} & set(how))  # corrections that are remembered
    assert report["privacy"]["n_releases"] == 3 + how.get("max_iter", 10) + first
    together_ = sum(one**-2 for one in fit.guarantee.multipliers)
    assert together_**-0.5 == pytest.approx(fit.guarantee.budget.multiplier, rel=1e-9)
    assert set(fit.guarantee.against()) == {"outsider", "server", "worker"}


def test_noise_of_fedem_differs_from_run_to_run_and_an_estimator_is_the_same_fit(clouds, capsys):
    X, labels = clouds
    short = {"workers": 3, "max_iter": 3, **FED}
    one, two = (FedEM(2, **short).fit(X) for _ in range(2))
    assert not np.array_equal(one.means_, two.means_)
    assert np.isnan(one.lower_bound_)
    with pytest.raises(InputError, match="every batch would spend"):
        FedEM(2, **short).partial_fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, two = (FedEM(2, verbose=n, repeatable_noise=1, **short).fit(X) for n in range(2))
    said = capsys.readouterr().out
    assert "ended after 3 iterations" in said
    assert "nan" not in said
    np.testing.assert_array_equal(one.means_, two.means_)
    assert adjusted_rand_score(labels, one.predict(X)) > 0.9


def test_a_command_says_who_is_protected(capsys, clouds, tmp_path):
    data, model = tmp_path / "rows.h5", tmp_path / "m.h5"
    write_dataset(data, Dataset(clouds[0], ("a", "b", "c")))
    told = done(
        capsys, "fedem", data, "-k", 2, "--workers", 3, *ASKED_OF_FEDEM, "-o", model, "--json"
    )
    assert told.json["privacy"]["against"]["server"]["add_or_remove"] == 8.0
    stored = read_model(model)
    assert stored.report["log_likelihood"] is None
    assert stored.report["converged"] is None
    shown = done(capsys, "model", "show", model).out
    assert "not published, to protect rows" in shown
    assert "converged" not in shown
    assert Progress(3, float("nan"), None).facts() == []
    for words, says in (
        (("--secure-sum",), "masks would protect nothing more"),
        (("--topology", "cycle"), "take a star, or --sum tree"),
        (("--covariance", "tied"), "exchanged once"),
        (("--epsilon", 0.02), "leave nothing but noise"),
        (("--random-stop", "--max-iter", 5), "to stop earlier wastes it"),
        (("--plot", tmp_path / "p.png"), "which --epsilon does not cover"),
    ):
        result = run(capsys, "fedem", data, "-k", 2, "--workers", 3, *ASKED_OF_FEDEM, *words)
        assert result.code == 2
        assert says in result.sentence
    for command, says in (("impute", "a number for every entry"), ("saem", "have no bounds")):
        result = run(capsys, command, data, "--epsilon", 3)
        assert result.code == 2
        assert says in result.sentence
