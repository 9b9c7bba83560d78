"""Fits of features of several families: what they must equal, over every sum, and what is told."""

import json
import warnings
from functools import cache

import h5py
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import trapezoid

import vpem
import vpem_cli
from vpem import connect, fit_vpem, make_graph
from vpem.errors import FileError, InputError, VpemWarning
from vpem.files.models import Model, read_model, write_model
from vpem.fits.answer import Answer, as_table
from vpem.fits.selection.trials import Cell, Problem
from vpem.fits.spread import own_columns
from vpem.network.partition import from_lists
from vpem.pictures.page import KINDS, draw
from vpem.pictures.saved import EvaluationData, densities_of, in_a_plane, read_saved
from vpem.sums.connect import spread
from vpem.terms.families.kinds import Kinds
from vpem.terms.families.mixed import MixedTerms
from vpem.terms.units import Scaling

from .missing_support import network as parties
from .missing_support import with_holes
from .tables import each
from .thread_engine import together

NAMES = ("gaussian", "categorical", "gaussian", "poisson", "gaussian", "categorical", "bernoulli")
NAMES_OF = tuple(f"feature {j}" for j in range(7))
HELD = [[0, 1], [2, 3, 4], [5, 6]]
LEVELS = 4


def mixed(seed=0, n_samples=400):
    """Overlapping rows of three clusters."""
    rng = np.random.default_rng(seed)
    z = rng.integers(3, size=n_samples)
    shares = rng.dirichlet(np.full(LEVELS, 2.0), size=(3, 2))
    columns = [
        rng.normal(size=n_samples) + 1.2 * z,
        [rng.choice(LEVELS, p=shares[k, 0]) for k in z],
        rng.normal(size=n_samples) - z,
        rng.poisson(np.array([1.0, 4.0, 9.0])[z]),
        rng.normal(size=n_samples) + 0.5 * z,
        [rng.choice(LEVELS, p=shares[k, 1]) for k in z],
        rng.random(n_samples) < np.array([0.2, 0.5, 0.7])[z],
    ]
    return np.column_stack(columns).astype(float)


def star(held=HELD):
    width = sum(map(len, held))
    return connect(make_graph("star", len(held)), from_lists(held, width), hops=0)


def fit(X, network=None, **how):
    how = {"n_components": 3, "init": [3, 77, 120], "max_iter": 6, "tol": 0.0, **how}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        kinds = how.pop("kinds", Kinds(NAMES, (0, LEVELS, 0, 0, 0, LEVELS, 0)))
        return fit_vpem(X, star() if network is None else network, kinds=kinds, **how)


def textbook(X, start, n_iter, weights):
    """EM in NumPy from a start: log-likelihoods."""
    tables = {part.family: part for part in start.parts}
    numbers, codes = [0, 2, 4], [1, 5]
    means = tables["gaussian"].core.assembled_means.copy()
    covariances = tables["gaussian"].core.assembled_covariances.copy()
    levels = np.split(tables["categorical"].tables["probabilities"], 2, axis=1)
    (zero_one,) = tables["bernoulli"].tables.values()
    (rates,) = tables["poisson"].tables.values()
    zero_one, rates, shares, found = zero_one[:, 0], rates[:, 0], np.full(3, 1 / 3), []
    for _ in range(n_iter):
        logs = np.tile(np.log(shares), (len(X), 1))
        for k in range(3):
            for own in ([0], [1, 2]):
                law = stats.multivariate_normal(means[k][own], covariances[k][np.ix_(own, own)])
                logs[:, k] += law.logpdf(X[:, numbers][:, own])
            for j, table in zip(codes, levels, strict=True):
                logs[:, k] += np.log(table[k, X[:, j].astype(int)])
            logs[:, k] += stats.poisson(rates[k]).logpmf(X[:, 3])
            logs[:, k] += stats.bernoulli(zero_one[k]).logpmf(X[:, 6])
        top = np.logaddexp.reduce(logs, axis=1)
        found.append(weights @ top)
        g = weights[:, None] * np.exp(logs - top[:, None])
        n = g.sum(axis=0)
        shares, means = n / n.sum(), g.T @ X[:, numbers] / n[:, None]
        for k in range(3):
            off = X[:, numbers] - means[k]
            covariances[k] = (g[:, k, None] * off).T @ off / n[k] + 1e-6 * np.eye(3)
        for j, table in zip(codes, levels, strict=True):
            table[:] = (g.T @ (X[:, [j]] == np.arange(LEVELS))) / n[:, None]
        rates, zero_one = g.T @ X[:, 3] / n, g.T @ X[:, 6] / n
    return np.array(found)


@each("weighted", [False, True])
def test_exact_sum_is_textbook_em(weighted):
    X = mixed()
    weights = np.random.default_rng(1).integers(1, 4, len(X)).astype(float)
    weights = weights if weighted else np.ones(len(X))
    given = {"sample_weight": weights} if weighted else {}
    given["reg_covar"] = 1e-6
    start = fit(X, max_iter=0, **given).mixture
    found = fit(X, max_iter=8, **given)
    wanted = textbook(X, start, 8, weights)
    np.testing.assert_allclose(found.history[:, 0], wanted, rtol=1e-12)
    assert (np.diff(wanted) > 0).all()
    scores = found.mixture.score_samples(X)
    assert found.log_likelihood == pytest.approx(np.average(scores, weights=weights), rel=1e-12)


@pytest.fixture(scope="module")
def exact():
    return fit(mixed())


def test_hubs_have_families_jointly_or_apart(exact):
    """A hub of all: Gaussian features are joint, and it does no worse than apart."""
    joint = fit(mixed(), star([list(range(7))]), init=exact.mixture, max_iter=30)
    assert joint.log_likelihood > exact.log_likelihood
    alone = fit(mixed(), star([[j] for j in range(7)]))
    diagonal = fit(mixed(), covariance_type="diag")
    np.testing.assert_allclose(alone.history[:, 0], diagonal.history[:, 0], rtol=1e-12)


def test_units_and_one_batch_do_not_show(exact):
    whole = fit(mixed(), batch_size=400)
    np.testing.assert_allclose(whole.history[:, 0], exact.history[:, 0], rtol=1e-12)
    free = [fit(mixed(), scale=scale, reg_covar=0.0) for scale in ("none", "standard")]
    np.testing.assert_allclose(free[0].history, free[1].history, rtol=1e-10)
    np.testing.assert_allclose(
        free[0].mixture.assembled_means, free[1].mixture.assembled_means, rtol=1e-8
    )


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
def test_processes_find_what_one_does_of_some_rows():
    """Which have not all levels, as a search holds them out."""
    X, kinds = mixed(), Kinds(NAMES, levels={1: tuple("abcd"), 5: tuple("efgh")})
    cell, rows, network = Cell(2, 0, "full"), np.arange(0, len(X), 3), star()

    def judged(X, network, kinds):
        problem = Problem(X, {0: network}, None, {"max_iter": 2, "kinds": kinds})
        return problem.held(0).judge(problem.fit(cell, rows), None)

    def run(engine):
        ranked = spread(network, engine)
        columns = own_columns(ranked)
        return judged(X[:, columns], ranked, kinds.take_features(columns))

    found, wanted = together(2, run)[0], judged(X, network, kinds)
    np.testing.assert_allclose(found.log_likelihood, wanted.log_likelihood, rtol=1e-12)
    assert found.mixture.n_parameters == wanted.mixture.n_parameters


def test_a_model_is_read_as_it_was_written(tmp_path, exact):
    X, model = mixed(), Model(exact.mixture, NAMES_OF, {}, exact.history)
    write_model(tmp_path / "m.h5", model)
    read = read_model(tmp_path / "m.h5").mixture
    np.testing.assert_array_equal(read.score_samples(X), exact.mixture.score_samples(X))
    again = fit(X, init=read, max_iter=0)
    assert again.log_likelihood == pytest.approx(exact.log_likelihood, rel=1e-14)
    with h5py.File(tmp_path / "m.h5", "a") as file:
        file["hubs/0/parts/categorical/probabilities"][0, 0] += 0.1
    with pytest.raises(FileError, match="do not add up to 1"):
        read_model(tmp_path / "m.h5")


def at_its_coordinates(mixture):
    floor = np.zeros(7)
    return mixture.at_coordinates(mixture.coordinates(floor), floor)


def test_what_is_0_stays_so_in_coordinates(exact):
    arrays = exact.mixture.arrays()
    chances = arrays["parts"]["categorical"]["probabilities"].copy()
    chances[0, :2] = 0, chances[0, :2].sum()
    arrays["parts"]["categorical"] = {"probabilities": chances}
    again = at_its_coordinates(exact.mixture.having(arrays)).arrays()
    np.testing.assert_allclose(again["parts"]["categorical"]["probabilities"], chances, rtol=1e-12)
    assert again["parts"]["categorical"]["probabilities"][0, 0] == 0


def test_mixtures_are_the_same_seen_otherwise(exact):
    X, mixture = mixed(), exact.mixture
    order = np.array([3, 0, 5, 1, 6, 2, 4])
    scores = mixture.score_samples(X)
    for other, rows in (
        (mixture.renumbered(order), X[:, np.argsort(order)]),
        (mixture.marginal(order), X[:, order]),
        (mixture.permuted(np.array([2, 0, 1])), X),
        (mixture.convert_to(mixture.blocks, "full", Scaling.none(7)), X),
        (at_its_coordinates(mixture), X),
    ):
        np.testing.assert_allclose(other.score_samples(rows), scores, rtol=1e-12)
    few = mixture.marginal([5, 3, 0])
    holed = np.full_like(X, np.nan)
    holed[:, [5, 3, 0]] = X[:, [5, 3, 0]]
    np.testing.assert_allclose(
        few.score_samples(X[:, [5, 3, 0]]), mixture.score_samples(holed, missing="marginalize"),
        rtol=1e-12,
    )  # fmt: skip
    drawn, labels = mixture.sample(20_000, np.random.default_rng(0))
    for j, mean in enumerate(mixture.assembled_means[0]):
        if NAMES[j] != "categorical":
            assert drawn[labels == 0, j].mean() == pytest.approx(mean, rel=0.05, abs=0.05)


def test_what_does_not_fit_is_said(exact):
    X = mixed()
    wrong = X.copy()
    wrong[5, 3] = 2.5
    with pytest.raises(InputError, match=r"row 5, feature 3 is 2.5, but poisson features are"):
        fit(wrong)
    with pytest.raises(InputError, match=r"feature 3 is 2.5, but poisson features are counts"):
        exact.mixture.predict(wrong)
    with pytest.raises(InputError, match=r"step_size.* keeps statistics in the parameters alone"):
        fit(X, batch_size=50, step_size=0.7)
    with pytest.raises(InputError, match="families and numbers of levels must be the same"):
        fit(X, init=exact.mixture, kinds=None)
    with pytest.raises(InputError, match="a family is one of"):
        Kinds(("gauss",))


def test_a_start_by_clusters_leaves_no_level_out():
    """Probabilities of 0 are not left by EM: with these, it would end where clusters split."""
    rng = np.random.default_rng(0)
    z = rng.random(600) < 0.4
    chances = np.where(z[:, None], [0.85, 0.3, 0.8, 0.75], [0.25, 0.25, 0.2, 0.3])
    X = (rng.random((600, 4)) < chances).astype(float)
    kinds = Kinds(("categorical",) * 4, (2,) * 4)
    found = fit(
        X, star([[0], [1], [2], [3]]), kinds=kinds, init="kmeans", n_components=2, max_iter=60
    )
    assert found.mixture.parts[0].tables["probabilities"].min() > 1e-3


@each("levels", [[2] * 8, [2, 2, 6, 6]])
def test_latent_classes_start_as_well_as_the_best_of_many(levels):
    rng = np.random.default_rng(sum(levels))
    z = rng.integers(4, size=300)
    shares = [rng.dirichlet(np.ones(n), size=4) for n in levels]
    X = np.array([[rng.choice(len(p[k]), p=p[k]) for p in shares] for k in z], float)
    kinds = Kinds(("categorical",) * len(levels), tuple(levels))
    network = star([list(range(len(levels)))])
    how = {"n_components": 3, "kinds": kinds, "tol": 1e-7}
    best = fit_vpem(X, network, init="random", n_init=4, **how).log_likelihood
    found = [fit_vpem(X, network, seed=seed, **how).log_likelihood for seed in range(3)]
    assert len(X) * (best - np.median(found)) < 0.01
    assert len(X) * (best - min(found)) < 3


def test_kinds_are_public_and_nothing_else_is_taken_for_them():
    assert vpem.Kinds is Kinds
    with pytest.raises(InputError, match=r"kinds must be vpem\.Kinds, got int"):
        fit_vpem(mixed()[:, :5], star(HELD[:2]), kinds=3)


# ---- t and log-normal features among others -----------------------------------------------------

HEAVY = Kinds(("t",) * 3 + ("log-normal",) * 2 + ("poisson", "gaussian"))
THEIRS = [[0, 1, 3], [2, 4, 5], [6]]


def tailed(seed=0, n_samples=200):
    """Overlapping rows of two clusters, with heavy tails."""
    rng = np.random.default_rng(seed)
    z = rng.integers(2, size=(n_samples, 1))
    tails = rng.standard_normal((n_samples, 3)) / np.sqrt(rng.gamma(1.5, 2 / 3, (n_samples, 1)))
    logs = rng.standard_normal((n_samples, 2)) + z
    last = rng.standard_normal((n_samples, 1)) + z
    return np.hstack([2 * z + tails, np.exp(logs), rng.poisson(2 + 4 * z), last])


def fit_heavy(X, **how):
    network = connect(make_graph("star", 3), from_lists(THEIRS, 7), hops=0, n_threads=1)
    how = {"n_components": 2, "init": [3, 150], "tol": 1e-7, "missing": "marginalize", **how}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        return fit_vpem(X, network, kinds=HEAVY, n_threads=1, seed=0, **how)


@cache
def plainly(holes):
    """Rows, and their fit without anything."""
    X = with_holes(tailed(), 1, holes)
    return X, fit_heavy(X)


@each(
    ("how", "holes"),
    [({"accelerate": "squarem"}, 0.0), ({"batch_size": 60}, 0.15), ({"scale": "standard"}, 0.0)],
)
def test_every_way_to_the_maximum_ends_there(how, holes):
    X, plain = plainly(holes)
    other = fit_heavy(X, **how)
    assert (np.diff(plain.history[:, 0]) > -1e-9).all()
    assert other.log_likelihood == pytest.approx(plain.log_likelihood, abs=1e-5)
    for one in (plain, other):
        scores = one.mixture.score_samples(X, missing="marginalize")
        assert one.log_likelihood == pytest.approx(scores.mean(), rel=1e-12)
        (part,) = (part for part in one.mixture.parts if part.family == "t")
        assert (part.tables["dof"] < 8).all()


# ---- answers and pictures -----------------------------------------------------------------------

ALL = {
    "temp": "t", "press": "t", "noise": "gaussian", "colour": "categorical",
    "smoker": "bernoulli", "visits": "poisson", "claims": "negative-binomial",
    "wait": "exponential", "cost": "log-normal", "weight": "gamma",
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A table of every family, and a model of it."""
    folder, rng = tmp_path_factory.mktemp("families"), np.random.default_rng(3)
    rows = []
    for k in rng.integers(2, size=150):
        tails = rng.standard_normal(2) / np.sqrt(rng.gamma(1.5, 1 / 1.5)) + [2 * k, k]
        numbers = (
            rng.standard_normal() + k,
            rng.exponential(1 + k),
            rng.lognormal(k),
            rng.gamma(2 + 3 * k),
        )
        colour = rng.choice(["red", "green", "blue"], p=[[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]][k])
        counts = int(rng.random() < 0.3 + 0.4 * k), rng.poisson(1 + 4 * k)
        noise, wait, cost, weight = (f"{value + 1e-3:.5f}" for value in numbers)
        rows.append([*tails, noise, colour, *counts, rng.negative_binomial(2, 0.4), wait, cost,
                     weight])  # fmt: skip
    table = [",".join(ALL), *(",".join(map(str, row)) for row in rows)]
    (folder / "m.csv").write_text("\n".join(table) + "\n")
    said = ",".join(f"{name}={family}" for name, family in ALL.items())
    words = ["fit", folder / "m.csv", "--family", said, "-k", "2", "--agents", "3", "--max-iter",
             "8", "-o", folder / "m.h5", "--quiet"]  # fmt: skip
    assert vpem_cli.run(list(map(str, words))) == 0
    return folder


@pytest.fixture(scope="module")
def saved(files):
    return read_saved(str(files / "m.h5"))


def test_levels_and_degrees_of_freedom_are_told(files, saved, capsys):
    assert vpem_cli.run(["model", "show", str(files / "m.h5"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["components"]
    found = Answer.of_mixture(saved.mixture, saved.feature_names, 150.0)
    (one,) = (each for each in found.differences(0, 10) if each.feature == "colour")
    own = found.levels[3]
    level = own.names.index(one.level)
    assert sorted(own.names) == ["blue", "green", "red"]
    assert own.shares[0, level] - own.shares[1, level] == (own.shares[0] - own.shares[1]).max()
    assert one.share == own.shares[0, level]
    assert str(one) == f"colour {one.level} {one.share:.0%} (all {one.share_of_all:.0%})"
    assert one.describe().keys() == {"feature", "deviations", "level", "share", "share_of_all"}
    assert told == json.loads(json.dumps(found.describe()))
    table = as_table(told)
    assert table.heads[-1] == "degrees of freedom"
    assert table.rows[0][-1] == f"{told[0]['degrees_of_freedom'][0]:.1f}"
    assert told[0]["degrees_of_freedom"][1:] == [None, None]


def test_a_category_of_two_levels_differs_as_zeros_and_ones_do():
    rng = np.random.default_rng(0)
    X = (rng.random((80, 2)) < [[0.3, 0.6]]).astype(float)
    blocks, found = parties([[0], [1]]).blocks, []
    for family, counts in (("categorical", (2, 2)), ("bernoulli", (0, 0))):
        terms = MixedTerms(X, blocks, "full", kinds=Kinds((family,) * 2, counts))
        mixture = terms.start(np.array([[0.0, 1.0], [1.0, 0.0]]))
        found.append(Answer.of_mixture(mixture, ("a", "b")))
    np.testing.assert_allclose(found[0].standardized, np.abs(found[1].standardized))
    np.testing.assert_allclose(found[0].telling_shares, found[1].telling_shares)


def test_curves_are_densities(saved):
    parts, mixture = saved.parts(), saved.mixture
    for j, family in enumerate(ALL.values()):
        if family in ("categorical", "bernoulli"):
            continue
        grid, densities = densities_of(saved, j, None, parts)
        total = densities.sum(axis=0)
        whole = family in ("poisson", "negative-binomial")
        assert (total.sum() if whole else trapezoid(total, grid)) == pytest.approx(1, abs=0.03)
        if family == "gamma":
            tables = next(part.tables for part in mixture.parts if part.family == "gamma")
            shape, mean = tables["shapes"][0, 0], tables["means"][0, 0]
            wanted = parts.weights[0] * stats.gamma(shape, scale=mean / shape).pdf(grid)
            np.testing.assert_allclose(densities[0], wanted, rtol=1e-9)


@pytest.mark.parametrize("kind", ["marginals", "profile", "pairs", "projection", "sparsity"])
def test_every_feature_is_drawn_or_left_out_with_a_word(saved, files, kind):
    X, _ = saved.mixture.sample(60, np.random.default_rng(0))
    rows = None if KINDS[kind].data == "no" else EvaluationData(X, None, "rows")
    picture = draw(kind, saved, rows)
    if kind == "marginals":
        bars = picture.figure.axes[3]
        labels = [label.get_text() for label in bars.get_xticklabels()]
        assert labels == ["blue", "green", "red"]
        tops = [bar.get_height() for bar in bars.containers[0]]
        np.testing.assert_allclose(tops, np.bincount(X[:, 3].astype(int), minlength=3) / 60)
    elif kind == "profile":
        drawn = {label.get_text() for label in picture.figure.axes[0].get_yticklabels()}
        assert {"temp", "colour: red", "colour: blue", "smoker"} <= drawn
    else:
        assert any("colour" in note for note in picture.notes)


def test_what_lies_along_no_axis_is_refused_where_it_is_asked_for(saved):
    with pytest.raises(InputError, match="colour is categorical, whose levels have no order"):
        draw("pairs", saved, features=["colour", "temp"])
    assert in_a_plane(saved, None, []) == [0, 1, 2, 5, 6, 7, 8, 9]
