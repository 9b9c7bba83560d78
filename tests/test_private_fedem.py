"""FedEM whose workers add noise to statistics: what is summed, how noisy, told and refused."""

import warnings
from fractions import Fraction

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from vpem import (
    FedEM,
    FedMixtureSettings,
    InputError,
    PrivacySettings,
    connect_workers,
    fit_fedem,
    make_graph,
    read_model,
)
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.traces import Trace
from vpem.fits.private_fedem import NoisyStatistics, about_all_rows
from vpem.network.noise import Noise
from vpem.network.partition import Blocks, evenly
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

PRIVATE = {"epsilon": 8.0, "delta": 1e-6, "bounds": (-3, 3)}
ASKED = ("--epsilon", 8, "--delta", "1e-6", "--bounds=-3,3")
KINDS = ["full", "diag", "spherical"]


@pytest.fixture(scope="module")
def rows():
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
        250,
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
    drawn = np.array([15 * model.expect(0, mixture, None) - exact for _ in range(250)])
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


@each("how", [{}, {"compress": "qsgd:8bits"}, {"participation": 0.7}, {"covariance_type": "diag"}])
@pytest.mark.filterwarnings("ignore:its noise can be repeated")
def test_components_are_found_and_no_more_is_told(rows, how):
    X, labels = rows
    privacy = PrivacySettings(**PRIVATE, repeatable_noise=1)
    fit = fit_fedem(X, evenly(4000, 3), n_components=2, privacy=privacy, **how)
    assert adjusted_rand_score(labels, fit.predict(X)) > 0.8
    report = fit.describe(("a", "b", "c"), fit.workers.names)
    for name in ("log_likelihood", "bic", "aic", "seconds"):
        assert report[name] is None
    assert report["history"] == report["mean_field"] == []
    assert report["privacy"]["noise_by"] == "each worker"
    first = bool({"compress", "participation"} & set(how))  # corrections that are remembered
    assert report["privacy"]["n_releases"] == 3 + 10 + first
    together_ = sum(one**-2 for one in fit.guarantee.multipliers)
    assert together_**-0.5 == pytest.approx(fit.guarantee.budget.multiplier, rel=1e-9)
    assert set(fit.guarantee.against()) == {"outsider", "server", "worker"}


@each(("graph", "joined", "engine"), [
    ("star", {}, over_queues), ("path", {"sum": "tree"}, ThreadEngine),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:its noise can be repeated")
def test_processes_find_what_one_finds(rows, graph, joined, engine):
    X = rows[0]
    network = connect_workers(make_graph(graph, 4), **joined)
    held, private = evenly(4000, 4), PrivacySettings(**PRIVATE, repeatable_noise=7)
    how = {"n_components": 2, "max_iter": 3, "compress": "qsgd:8bits", "privacy": private}

    def work(engine):
        here = spread_workers(network, engine)
        own = np.concatenate([X[held.rows[worker]] for worker in here.agents.own])
        return fit_fedem(own, held, here, **how)

    wanted = fit_fedem(X, held, network, **how)
    for one in together(2, work, engine=engine):
        assert not isinstance(one, BaseException), one
        np.testing.assert_allclose(one.mixture.means, wanted.mixture.means, rtol=1e-9)
        np.testing.assert_allclose(one.mixture.covariances, wanted.mixture.covariances, rtol=1e-9)
        assert one.communication == wanted.communication


def test_noise_differs_from_run_to_run_and_an_estimator_is_the_same_fit(rows, capsys):
    X, labels = rows
    one, two = (FedEM(2, workers=3, **PRIVATE).fit(X) for _ in range(2))
    assert not np.array_equal(one.means_, two.means_)
    assert np.isnan(one.lower_bound_)
    with pytest.raises(InputError, match="every batch would spend"):
        FedEM(2, workers=3, **PRIVATE).partial_fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same = {"workers": 3, "repeatable_noise": 1, **PRIVATE}
        one, two = (FedEM(2, verbose=told, **same).fit(X) for told in range(2))
    said = capsys.readouterr().out
    assert "ended after 10 iterations" in said
    assert "nan" not in said
    np.testing.assert_array_equal(one.means_, two.means_)
    assert adjusted_rand_score(labels, one.predict(X)) > 0.9


def test_a_command_says_who_is_protected(capsys, rows, tmp_path):
    data, model = tmp_path / "rows.h5", tmp_path / "m.h5"
    write_dataset(data, Dataset(rows[0], ("a", "b", "c")))
    told = done(capsys, "fedem", data, "-k", 2, "--workers", 3, *ASKED, "-o", model, "--json")
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
        result = run(capsys, "fedem", data, "-k", 2, "--workers", 3, *ASKED, *words)
        assert result.code == 2
        assert says in result.sentence
    for command, says in (("impute", "a number for every entry"), ("saem", "have no bounds")):
        result = run(capsys, command, data, "--epsilon", 3)
        assert result.code == 2
        assert says in result.sentence


@each(("options", "says"), [
    ({"tol": 1e-3}, "tol is not possible with epsilon"), ({"batch_size": 10}, "every batch"),
    ({"init": [1, 2]}, "it looks at rows"), ({"variance_reduction": True}, "every batch"),
    ({"missing": "marginalize"}, "for each feature"), ({"n_epochs": 3.0}, "give max_iter"),
    ({"record_every": 2}, "none is recorded"), ({"floor": 0.1}, "has no effect with epsilon"),
    ({"sample_weight": np.ones(4000)}, "a row of more weight"),
    ({"known_covariance": np.eye(3)}, "leave them out"),
    ({"callback": Trace()}, "a private fit keeps no trace"),
])  # fmt: skip
def test_python_refuses_what_noise_cannot_go_with(rows, options, says):
    with pytest.raises(InputError, match=says):
        fit_fedem(rows[0], evenly(4000, 2), privacy=PrivacySettings(**PRIVATE), **options)
