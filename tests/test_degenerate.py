"""A mixture that rests on the floor of variances is told, and never chosen where another is not."""

import re
import warnings
from dataclasses import replace

import numpy as np
import pytest

import vpem
from vpem import Dataset, fit_em, fit_fedem, fit_vpem, read_model, write_dataset
from vpem.engines.engine import Engine
from vpem.errors import VpemWarning
from vpem.fits.results import warn_of_few_values
from vpem.fits.selection.search import choose, grid, search
from vpem.fits.selection.trials import Problem
from vpem.fits.spread import fit_spread, own_columns
from vpem.network.graph import make_graph
from vpem.network.partition import Blocks, contiguous, evenly
from vpem.settings import FitSettings
from vpem.sums.connect import connect, connect_workers, spread
from vpem.terms.degenerate import AT_FLOOR, degenerate_in_hubs
from vpem.terms.families.kinds import Kinds
from vpem.terms.mixture import Mixture
from vpem.terms.units import Scaling

from .cli_support import done
from .tables import each, over
from .test_selection import cell_of
from .thread_engine import together

WARNED = (
    r"(\d+) of (\d+) components are degenerate, with covariances that are singular but for "
    "what"
)
quiet = pytest.mark.filterwarnings("ignore:.*components are degenerate")


def joined(n_features, n_agents=1, topology="star", **how):
    return connect(make_graph(topology, n_agents), contiguous(n_features, n_agents), **how)


def spots(n=120, d=4, seed=0):
    """Rows of which a quarter has the same value in the last column, and others vary."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) + np.where(np.arange(n) < n // 2, 0.0, 4.0)[:, None]
    X[: n // 4, -1] = 8.0
    X[: n // 4, 0] += 9.0
    return X


# ---- what is found ------------------------------------------------------------------------------

FLOOR = 1e-6


def mixture_of(covariance_type, covariances, weights, n_features=2, gap=3.0):
    k, d = len(weights), n_features
    means = np.repeat(gap * np.arange(k)[:, None], d, axis=1)
    return Mixture(
        Blocks.one(d), covariance_type, np.array([weights], dtype=float), means.astype(float),
        np.asarray(covariances, dtype=float), Scaling.none(d),
    )  # fmt: skip


def found(mixture, rows, floors=FLOOR):
    flags = degenerate_in_hubs(mixture, np.broadcast_to(floors, mixture.n_features), rows)
    return np.flatnonzero(flags).tolist()


ROUND = [[1.0, 0.0], [0.0, 1.0]]
LINE = [[1.0, 1.0], [1.0, 1.0 + FLOOR]]
"""Of no variance but the floor across the diagonal, about which the means lie."""


@each(
    ("covariance_type", "covariances", "weights", "rows", "wanted"),
    [
        ("full", [ROUND, ROUND], (0.5, 0.5), 100, []),
        ("full", [ROUND, LINE], (0.5, 0.5), 100, [1]),
        ("full", [ROUND, ROUND], (0.02, 0.98), 100, [0]),
        ("full", [ROUND, ROUND], (0.03, 0.97), 100, []),
        ("full", [ROUND, LINE], (1.0, 0.0), 100, []),  # given up
        ("diag", [[1.0, 1.0], [1.0, FLOOR]], (0.5, 0.5), 100, [1]),
        ("diag", [[1.0, 1.0], [1.0, 1.5 * FLOOR]], (0.5, 0.5), 100, []),
        ("diag", [[1.0, 1.0], [1.0, 1.0]], (0.01, 0.99), 100, [0]),
        ("diag", [[1.0, 1.0], [1.0, 1.0]], (0.02, 0.98), 100, []),
        ("spherical", [[1.0, 1.0], [FLOOR, FLOOR]], (0.5, 0.5), 100, [1]),
        ("tied", [LINE], (0.5, 0.5), 100, []),  # no row leaves the line
        ("tied", [ROUND], (0.5, 0.5), 4, []),
        ("tied", [ROUND], (0.5, 0.5), 3, [0, 1]),
        ("tied-diag", [[1.0, FLOOR]], (0.5, 0.5), 100, [0, 1]),
        ("tied-diag", [[1.0, 1.0]], (0.5, 0.5), 2, [0, 1]),
        ("tied-spherical", [[FLOOR, FLOOR]], (0.5, 0.5), 100, [0, 1]),
        *((family, [ROUND], (1.0,), 2, [0]) for family in ("VEE", "EVE", "VVE", "EEV", "VEV")),
        ("VEE", [ROUND], (1.0,), 3, []),
        ("VEI", [[1.0, 1.0]], (1.0,), 2, []),
    ],
)
def test_each_shape_is_judged_by_its_own_directions_and_rows(
    covariance_type, covariances, weights, rows, wanted
):
    covariances = np.array(covariances, dtype=float)
    if covariances.ndim == 3:
        covariances = covariances.ravel()
    mixture = mixture_of(covariance_type, covariances, weights)
    if wanted == [1] and covariance_type == "full":  # off the line of the other
        means = np.array([[0.0, 0.0], [5.0, -5.0]])
        mixture = replace(mixture, means=means)
    assert found(mixture, rows) == wanted


def test_directions_in_which_no_rows_vary_count_for_nothing():
    flat = np.diag([1.0, FLOOR])
    assert found(mixture_of("full", np.ravel([flat, flat]), (0.5, 0.5), gap=0.0), 100) == []
    # A column that tells components apart varies.
    assert found(mixture_of("full", np.ravel([flat, flat]), (0.5, 0.5)), 100) == [0, 1]
    assert found(mixture_of("full", np.ravel([flat, flat]), (0.02, 0.98), gap=0.0), 100) == []
    # A large floor that was given is no flaw of rows that vary as much beside it.
    wide = 1.05 * np.eye(2)
    assert found(mixture_of("full", np.ravel([wide, wide]), (0.5, 0.5)), 100, 1.0) == [0, 1]
    assert found(mixture_of("full", np.ravel([wide, wide]), (0.5, 0.5)), 100, 0.5) == []
    assert AT_FLOOR < 1.2


def test_hubs_are_judged_apart():
    blocks = Blocks((np.array([0, 2]), np.array([1])), (0, 1), ((0,), (1,)))
    covariances = np.concatenate([np.ravel([np.eye(2), np.eye(2)]), [1.0, FLOOR]])
    means = np.array([[0.0, 0, 0], [3.0, 3, 3]])
    mixture = Mixture(
        blocks, "full", np.array([[0.5, 0.5], [0.5, 0.5]]), means, covariances, Scaling.none(3)
    )
    assert found(mixture, 100) == [1]
    assert found(mixture, 4) == [0, 1]  # two rows each, and a hub of two columns needs three
    # Means lie on the line that both components are: no row leaves it.
    assert found(replace(mixture, covariances=np.ones(10)), 100) == []
    few = replace(mixture, weights=np.array([[0.5, 0.5], [0.01, 0.99]]))
    assert 0 in found(few, 100)  # by the second root's own weights


# ---- noise, by every door -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def noise():
    return np.random.default_rng(0).normal(size=(60, 25))


@pytest.fixture(scope="module")
def file(noise, tmp_path_factory):
    path = tmp_path_factory.mktemp("degenerate") / "noise.h5"
    write_dataset(path, Dataset(noise, tuple(f"x{j}" for j in range(25))))
    return path


def test_noise_has_one_component(capsys, file):
    words = (file, "-k", "1,5", "--split", "rows", "--workers", "3", "--json")
    told = done(capsys, "fit", *words)
    report, cells = told.json, told.json["selection"]["cells"]
    assert (report["n_components"], report["degenerate"]) == (1, [])
    assert cells[1]["degenerate"] > 0
    assert cells[1]["bic"] < cells[0]["bic"]
    assert "has degenerate components, and was passed over; --floor-fits keep" in told.err
    again = done(capsys, "select", *words, "--jobs", "1").json
    assert again["best"] == again["chosen"] == 0
    assert again["passed_over"]
    kept = done(capsys, "fit", *words, "--floor-fits", "keep")
    assert kept.json["n_components"] == 5
    assert "degenerate, their" not in kept.err
    old = done(capsys, "select", *words, "--jobs", "1", "--floor-fits", "keep").json
    assert (old["best"], old["passed_over"]) == (1, [])


@quiet
@each("criterion", ["bic", "aic", "icl", "heldout"])
def test_noise_has_one_component_by_every_criterion(noise, criterion):
    problem = Problem(noise, {0: joined(25)}, None, {})
    best = search(problem, grid([1, 4], [0], ["full"]), criterion=criterion, n_folds=2).choice
    assert best.best == 0


def test_choices_come_in_classes():
    cells = [cell_of(9.0), cell_of(5.0, status="not converged"), cell_of(1.0, degenerate=1),
             cell_of(0.0, degenerate=2, status="not converged")]  # fmt: skip
    assert choose(cells, "bic").best == 0
    assert choose(cells, "bic").passed_over == [3, 2, 1]
    assert choose(cells[1:], "bic").best == 0
    assert choose(cells[2:], "bic").best == 0
    assert choose(cells, "bic", "keep").best == 2


# ---- what is told -------------------------------------------------------------------------------


def test_it_is_told_once_and_kept_in_reports_models_and_pages(capsys, file, tmp_path, monkeypatch):
    monkeypatch.setattr("vpem.pictures.page.as_source", lambda figure: "data:,")
    model, page = tmp_path / "noise.h5", tmp_path / "noise.html"
    told = done(capsys, "fit", file, "-k", "3", "--agents", "1", "-o", model, "--json")
    assert told.err.count("degenerate") == 1
    own = told.json["degenerate"]
    assert own
    assert [k for k, one in enumerate(told.json["components"]) if one.get("degenerate")] == own
    assert read_model(model).report["degenerate"] == own
    shown = done(capsys, "model", "show", model).out
    assert f"{own[0]}, degenerate" in shown
    described = done(capsys, "model", "show", model, "--json").json["components"]
    assert [k for k, one in enumerate(described) if one.get("degenerate")] == own
    done(capsys, "report", model, "-o", page)
    text = page.read_text()
    assert f"{own[0]}, degenerate" in text
    assert re.search("components are degenerate", text)
    one = tmp_path / "one.h5"
    done(capsys, "fit", file, "-k", "1", "--agents", "1", "-o", one)
    best = done(capsys, "model", "best", model, one, "--criterion", "bic").out
    assert best.strip() == str(one)


def test_rows_and_features_are_in_the_sentence(noise):
    with pytest.warns(VpemWarning, match=WARNED) as heard:
        fit = fit_vpem(noise, joined(25), n_components=3)
    assert len(heard) == 1
    sizes = fit.mixture.assembled_weights * 60
    for k in fit.degenerate:
        assert f"{k} ({sizes[k]:.4g} rows)" in str(heard[0].message)
    assert "of up to 25 features in a hub" in str(heard[0].message)
    ways = "covariance_type='diag'", "'map'", "'dirichlet_process'", "floor_fits='keep'"
    assert "try fewer components, " in str(heard[0].message)
    for way in ways:
        assert way in str(heard[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = fit_vpem(noise, joined(25), n_components=3, floor_fits="keep")
        prior = fit_vpem(noise, joined(25), n_components=3,
                         weight_concentration_prior_type="dirichlet_process")  # fmt: skip
    assert again.degenerate == fit.degenerate
    assert prior.degenerate == []


# ---- restarts -----------------------------------------------------------------------------------


@quiet
def test_a_degenerate_restart_is_kept_only_where_all_are(noise):
    X, network = noise[:, :6], joined(6)
    seen = set()
    for seed in range(3):
        how = {"n_components": 4, "init": "random", "seed": seed}
        alone = [fit_vpem(X, network, first_restart=r, n_init=1, **how) for r in range(4)]
        sound = [one for one in alone if not one.degenerate] or alone
        seen.add(len([one for one in alone if one.degenerate]) % 4 > 0)
        for choice, among in (("last", sound), ("keep", alone)):
            best = fit_vpem(X, network, n_init=4, floor_fits=choice, **how)
            wanted = max(among, key=lambda one: one.root_log_likelihood[0])
            assert np.array_equal(best.mixture.means, wanted.mixture.means)
    assert True in seen


# ---- what may not matter ------------------------------------------------------------------------


@quiet
@over(covariance_type=["full", "diag", "tied"], k=[2, 4], reg_covar=["auto", 1e-6])
def test_flags_do_not_depend_on_units_threads_weights_or_who_holds_what(
    covariance_type, k, reg_covar
):
    X = spots()
    how = {"n_components": k, "covariance_type": covariance_type, "reg_covar": reg_covar}
    first = fit_vpem(X, joined(4), **how)
    wanted = first.degenerate
    if reg_covar == "auto":
        scaled = X * [1e3, 1.0, 1e-6, 10.0] + [0.0, 1e4, 0.0, -5.0]
        assert fit_vpem(scaled, joined(4), **how).degenerate == wanted
    assert fit_vpem(X, joined(4), n_threads=2, **how).degenerate == wanted
    doubled = fit_vpem(np.repeat(X, 2, axis=0), joined(4), init=first.mixture, **how)
    weighed = fit_vpem(X, joined(4), sample_weight=np.full(len(X), 2.0), init=first.mixture, **how)
    assert doubled.degenerate == weighed.degenerate
    one = fit_em(X, evenly(len(X), 1), connect_workers(make_graph("star", 1)), **how)
    three = fit_em(X, evenly(len(X), 3), connect_workers(make_graph("star", 3)), **how)
    assert one.degenerate == three.degenerate
    rounds = fit_em(X, evenly(len(X), 3), connect_workers(make_graph("cycle", 3)),
                    init=three.mixture, **how)  # fmt: skip
    assert rounds.degenerate == three.degenerate


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
def test_processes_find_what_one_does():
    X = spots()
    network = connect(make_graph("star", 3), contiguous(4, 3), secure_sum=True)
    fit = {"n_components": 4, "covariance_type": "full", "seed": 1}
    wanted = fit_vpem(X, network, **fit)
    assert wanted.degenerate

    def work(engine):
        ranked = spread(network, engine)
        own = X[:, own_columns(ranked)] if len(ranked.agents.own) else None
        part = fit_spread(own, ranked, **fit)
        return part.degenerate, part.communication["by_kind"]["flooding"]

    for flags, sent in together(4, work, seats=(1, 2, 3)):
        assert flags == wanted.degenerate
        assert sent == wanted.communication["by_kind"]["flooding"]
    assert Engine().size == 1


# ---- without a floor ----------------------------------------------------------------------------


@over(n=[40, 3000], d=[2, 6], unit=[1e-3, 1.0, 1e5], seed=[0, 1])
def test_columns_that_follow_from_others_are_refused_wherever_rounding_ends(n, d, unit, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) @ (np.eye(d) + 0.3 * rng.normal(size=(d, d))) + 5
    X = np.c_[X, X @ rng.normal(size=d) * unit][:, rng.permutation(d + 1)]
    with pytest.raises(vpem.NumericalError, match="constant or linearly dependent"):
        fit_vpem(X, joined(d + 1), n_components=1, reg_covar=0.0)
    # With a floor no component is at fault.
    assert fit_vpem(X, joined(d + 1), n_components=1).degenerate == []


# ---- other fits ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
def test_all_kinds_of_fits_say_so(noise):
    """Of three components in rows of two spots, and of noise; of one component none is."""
    X, codes = spots(), np.random.default_rng(1).integers(3, size=(120, 1)).astype(float)
    for family in ("gaussian", "t", "log-normal"):
        data = np.hstack([np.exp(0.3 * X) if family == "log-normal" else X, codes])
        how = {"kinds": Kinds((*[family] * 4, "categorical")), "max_iter": 100}
        many, one = (fit_vpem(data, joined(5), n_components=k, **how) for k in (3, 1))
        assert many.degenerate
        assert one.degenerate == []
    codes = np.random.default_rng(1).integers(2, size=(12, 6)).astype(float)
    kinds = Kinds(("categorical",) * 6)  # which have no floor
    assert fit_vpem(codes, joined(6), kinds=kinds, n_components=4).degenerate == []
    X, several = spots(200, 6), joined(6, 2)
    assert fit_vpem(X, several, n_components=2, n_factors=1, max_iter=300).degenerate == []
    X[::7, 2] = np.nan
    assert fit_vpem(X, several, n_components=3, missing="marginalize").degenerate
    fed = fit_fedem(noise, evenly(60, 3), n_components=3)
    report = fed.describe([f"x{j}" for j in range(25)], ["a", "b", "c"])
    assert report["degenerate"] == fed.degenerate != []
    for model in (
        vpem.VPEM(3, agents=1),
        vpem.VPEM(3, agents=1, floor_fits="keep"),
        vpem.DistributedGaussianMixture(3, workers=2),
    ):
        assert model.fit(noise).fit_.degenerate
    many = np.random.default_rng(1).normal(size=(400, 2))
    stream = vpem.VPEM(2, agents=1).partial_fit(many[:200])
    # A batch alone has few rows, but not all that were seen.
    assert stream.partial_fit(many[200:202]).fit_.degenerate == []


# ---- copies of components -----------------------------------------------------------------------


def rotated(mixture, order, hubs):
    """Return components in an order, and the third's loadings rotated in some of the hubs."""
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(2, 2)))[0]
    loadings = mixture.loadings[order]
    loadings[2, :hubs] = loadings[2, :hubs] @ turn
    return replace(
        mixture, weights=mixture.weights[:, order], means=mixture.means[order],
        covariances=mixture.covariances.reshape(4, 3)[:, order].ravel(), loadings=loadings,
    )  # fmt: skip


COPIED = {
    "counts": {"kinds": Kinds(("poisson", "negative-binomial", "poisson", "poisson"))},
    "families": {"kinds": Kinds(("gaussian", "t", "categorical", "exponential"))},
    "missing": {"missing": "marginalize", "covariance_type": "tied-diag"},
    "factors": {"n_factors": 2},
    "factors that hubs do not share": {"n_factors": 2},
}


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
@each("name", COPIED)
def test_copies_are_told_of_every_family_and_wherever_hubs_live(name):
    X = np.random.default_rng(1).integers(3, size=(100, 4)).astype(float)
    if not COPIED[name].get("kinds"):
        X += np.random.default_rng(0).normal(size=(100, 4))
    if name == "missing":
        X[::5, 1] = np.nan
    one = fit_vpem(X, joined(4, 4), n_components=3, max_iter=3, **COPIED[name]).mixture
    order = np.array([0, 1, 1, 2])
    if "factors" in name:
        two = rotated(one, order, 2 if "not" in name else 4)
    else:
        two = one.permuted(order)
    how = COPIED[name] | {"n_components": 4, "init": two, "max_iter": 0 if "not" in name else 3}
    wanted = [] if "not" in name else [2]
    network = joined(4, 4, secure_sum="ies" not in name)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        fit = fit_vpem(X, network, **how)
    assert fit.copies == wanted
    told = [str(one.message) for one in heard if "copies of others" in str(one.message)]
    assert len(told) == len(wanted)

    def work(engine):
        ranked = spread(network, engine)
        columns = own_columns(ranked)
        own = how | ({"kinds": how["kinds"].take_features(columns)} if "kinds" in how else {})
        part = fit_spread(X[:, columns], ranked, **own)
        return part.copies, part.communication["by_kind"]["flooding"]

    for copies, sent in together(4, work):
        assert copies == wanted
        assert sent == fit.communication["by_kind"]["flooding"]


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
@each("topology", ["star", "cycle"])
def test_copies_are_told_over_rows(topology):
    X = np.random.default_rng(1).normal(size=(60, 3))
    network = connect_workers(make_graph(topology, 3))
    two = fit_em(X, evenly(60, 3), network, n_components=2, max_iter=2).mixture
    start = two.permuted(np.array([0, 1, 1]))
    with pytest.warns(VpemWarning, match="copies of others: 2; fewer"):
        fit = fit_em(X, evenly(60, 3), network, n_components=3, init=start, max_iter=4)
    assert fit.copies == [2]


@pytest.mark.filterwarnings("ignore:constant features")
@each("gaps", [False, True])
def test_a_long_run_of_equal_rows_is_as_few_as_they_are(gaps):
    X = np.zeros((300_000, 3))
    X[-1] = 1.0
    X[::2, 1] *= -1  # the same number
    if gaps:
        X[:-1, 2] = np.nan
    with pytest.raises(vpem.InputError, match="as many different rows, got 2"):
        fit_vpem(X, joined(3), n_components=3, missing="marginalize")


# ---- columns of a few values ---------------------------------------------------------------------


def test_columns_of_a_few_values_are_named_with_the_way_on():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(90, 2)), np.arange(90) % 2])
    names = ("a", "b", "sex")
    network = connect(make_graph("star", 1), contiguous(3, 1))
    said = r"'sex' has 2 different values and does not vary in some components .*family='sex=cat"
    with pytest.warns(VpemWarning) as heard:
        fit_vpem(X, network, n_components=2, init=[0, 1], feature_names=names)
    assert [one for one in heard if re.search(said, str(one.message))]
    with pytest.warns(VpemWarning) as heard:
        fit_vpem(X[:, :2] * 0 + X[:, 2:], network=connect(make_graph("star", 1), contiguous(2, 1)),
                 n_components=2, init=[0, 1])  # fmt: skip
    assert [one for one in heard if "'feature 1' has 2" in str(one.message)]
    # A process has rows of its own workers only, in which the column may be constant.
    workers = evenly(90, 2)
    with pytest.warns(VpemWarning):
        fit = fit_em(
            X, workers, connect_workers(make_graph("star", 2)), n_components=2, init=[0, 1]
        )
    with pytest.warns(VpemWarning, match="'sex' has one value in the rows here and"):
        warn_of_few_values(fit, X[::2], names, FitSettings(), over_rows=True)
