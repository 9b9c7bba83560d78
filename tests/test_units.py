"""Units do not matter: columns times numbers, and moved, give the same rows the same component."""

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

from vpem import (
    VPEM,
    DistributedGaussianMixture,
    DistributedKMeans,
    PrivacySettings,
    VpemWarning,
    connect,
    connect_workers,
    fit_em,
    fit_fedem,
    fit_vpem,
    make_graph,
)
from vpem.network.partition import contiguous, evenly
from vpem.settings import COVARIANCE_TYPES
from vpem.terms.families.kinds import Kinds
from vpem.terms.units import Scaling

from .cli_support import done, overlapping
from .missing_support import with_holes
from .tables import each, over

pytestmark = [
    pytest.mark.filterwarnings("ignore::vpem.NotConvergedWarning"),
    pytest.mark.filterwarnings("ignore:.*rounds are too few:vpem.VpemWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

ROWS, D = 180, 6
X, _ = overlapping(ROWS, D, 3, seed=2)
X[:, 4] = X[:, 3] + 0.02 * X[:, 4]
TIMES = np.array([1e9, 1e-9, 1.0, 1e6, 1e-7, 3.0])
MOVED = np.array([1e8, 0.0, -1e8, 1e9, 0.0, 7.0])
SPHERES = ("spherical", "tied-spherical")
HOW = {"n_components": 3, "max_iter": 8, "tol": 0.0, "n_threads": 1}


def by_features(data, topology="star", **options):
    joined = {name: options.pop(name) for name in ("sum", "n_rounds") if name in options}
    network = connect(make_graph(topology, 3), contiguous(D, 3), hops=0, **joined)
    return fit_vpem(data, network, **HOW | options)


def by_rows(data, topology="star", **options):
    workers = evenly(ROWS, 3)
    joined = {name: options.pop(name) for name in ("sum", "n_rounds") if name in options}
    return fit_em(
        data, workers, connect_workers(make_graph(topology, 3), **joined), **HOW | options
    )


def by_fedem(data, **options):
    return fit_fedem(data, evenly(ROWS, 3), **HOW | {"step_size": 1.0} | options)


HOLES = {"missing": "marginalize"}
SPHERE = {"covariance_type": "spherical"}
MAP = {"weight_concentration_prior_type": "map"}
PRIOR = {"weight_concentration_prior_type": "dirichlet_process"}
CASES = [
    *((by_features, {"covariance_type": kind}) for kind in COVARIANCE_TYPES),
    *((by_features, {"covariance_type": kind} | HOLES) for kind in COVARIANCE_TYPES),
    *((by_rows, {"covariance_type": kind}) for kind in COVARIANCE_TYPES),
    *((by_fedem, {"covariance_type": kind}) for kind in COVARIANCE_TYPES),
    *((fit, {"init": init}) for fit in (by_features, by_rows) for init in ("random", "k-means++")),
    (by_features, {"topology": "cycle", "sum": "tree"}),
    (by_features, {"topology": "cycle", "n_rounds": 8}),
    (by_features, {"n_factors": 1}),
    (by_features, {"accelerate": "squarem"}),
    (by_features, {"accelerate": "local:4"}),
    (by_features, {"batch_size": 60}),
    (by_features, PRIOR),
    (by_features, PRIOR | {"covariance_type": "diag"}),
    (by_features, {"reg_covar": 1e-3, "scale": "standard"}),
    *(
        (fit, how)
        for fit in (by_features, by_rows)
        for how in (
            {"sample_weight": np.linspace(0.5, 2.0, ROWS)},
            {"init": [3, 80, 150]},
            {"n_init": 2},
            HOLES | {"init": "random"},
            {"tol": 1e-6, "max_iter": 300},
        )
    ),
    *((by_features, SPHERE | how) for how in (PRIOR, {"init": "random"}, {"batch_size": 60})),
    *((by_rows, SPHERE | how) for how in (PRIOR, HOLES, {"init": "k-means++"})),
    (by_features, HOLES | PRIOR),
    (by_rows, {"accelerate": "squarem"}),
    (by_rows, {"batch_size": 60}),
    (by_rows, PRIOR),
    *(
        (fit, MAP | {"covariance_type": kind})
        for fit in (by_features, by_rows)
        for kind in COVARIANCE_TYPES
    ),
    (by_features, MAP | HOLES),
    (by_rows, MAP | HOLES),
    (by_features, MAP | {"batch_size": 60}),
    (by_rows, HOLES),
    (by_fedem, HOLES),
]


def told(fit, data, missing="refuse"):
    mixture = fit.mixture
    return mixture.predict(data, missing=missing), mixture.score_samples(data, missing=missing)


def same_in_other_units(fit, data, how, times, moved=0.0):
    """Hold a fit against that of columns times numbers, and moved: the density apart, the same."""
    holes = how.get("missing", "refuse")
    plain, other = fit(data, **how), fit(data * times + moved, **how)
    labels, scores = told(plain, data, holes)
    theirs, densities = told(other, data * times + moved, holes)
    jacobian = ~np.isnan(data) @ np.log(times)
    np.testing.assert_array_equal(theirs, labels)
    np.testing.assert_allclose((densities + jacobian).mean(), scores.mean(), rtol=0, atol=1e-6)
    assert other.log_likelihood + jacobian.mean() == pytest.approx(plain.log_likelihood, abs=1e-6)
    return labels


@each(("fit", "how"), CASES)
def test_units_of_columns_matter_to_nothing_but_the_density(fit, how):
    data = with_holes(X, 3, 0.1) if "missing" in how else X
    times, moved = TIMES, MOVED
    if how.get("covariance_type") in SPHERES and "scale" not in how:
        # Spheres keep their shape in one unit alone, each hub's own.
        times = np.repeat([1e9, 1e-4, 7.0], 2) if fit is by_features else np.full(D, 1e-9)
        moved = 1e5 * times * np.array([1.0, 0.0, -3.0, 7.0, 1e2, 5.0])
    assert np.unique(same_in_other_units(fit, data, how, times, moved)).size == 3


@over(family=["t", "log-normal", "exponential", "gamma"], holes=[{}, HOLES])
def test_units_do_not_matter_to_families_that_have_them(family, holes):
    data = X if family == "t" else np.exp(X / 3)
    data = with_holes(data, 3, 0.1) if holes else data
    kinds = Kinds((family,) * 3 + ("gaussian",) * 3)
    same_in_other_units(by_features, data, {"kinds": kinds, **holes}, TIMES)


@over(split=["rows", "features"], how=[
    {}, {"init": "random"}, {"init": "k-means++"}, {"batch_size": 60}, {"secure_sum": True},
    {"graph": "cycle"}, {"missing": "marginalize"}, {"scale": "standard"}, {"participation": 0.5},
])  # fmt: skip
def test_clusters_do_not_depend_on_a_common_unit_nor_on_places(split, how):
    data = with_holes(X, 3, 0.1) if "missing" in how else X
    times, moved = (TIMES, MOVED) if "scale" in how else (np.full(D, 1e-9), 1e-3 * np.arange(D))
    joined = (
        {"split": split, "graph": "star"} | how | {"workers" if split == "rows" else "agents": 3}
    )
    plain, other = (DistributedKMeans(3, **joined).fit(one) for one in (data, data * times + moved))
    np.testing.assert_array_equal(other.labels_, plain.labels_)
    unit = 1.0 if "scale" in how else times[0] ** 2
    assert other.inertia_ / unit == pytest.approx(plain.inertia_, rel=1e-6)


@pytest.mark.filterwarnings("ignore:its noise can be repeated")
def test_private_fits_have_the_units_of_their_bounds():
    low, high = X.min(axis=0) - 0.1, X.max(axis=0) + 0.1
    found = []
    for times, moved in ((np.ones(D), np.zeros(D)), (TIMES, MOVED)):
        private = PrivacySettings(
            epsilon=10.0, delta=1e-5, repeatable_noise=7,
            bounds=(low * times + moved, high * times + moved),
        )  # fmt: skip
        network = connect_workers(make_graph("star", 3))
        fit = fit_em(X * times + moved, evenly(ROWS, 3), network, n_components=3, max_iter=5,
                     privacy=private)  # fmt: skip
        found.append(told(fit, X * times + moved))
    np.testing.assert_array_equal(found[1][0], found[0][0])
    jacobian = np.log(TIMES).sum()
    np.testing.assert_allclose(found[1][1] + jacobian, found[0][1], rtol=0, atol=1e-5)


@each("make", [VPEM, DistributedGaussianMixture])
def test_a_number_is_in_the_units_of_the_data(make):
    """As in scikit-learn; auto is none of it, and a millionth of a variance."""
    data = X * np.array([1e-2, 1.0, 1.0, 10.0, 10.0, 1.0])
    how = {"reg_covar": 0.05, "max_iter": 20, "tol": 0.0, "means_init": data[[3, 80, 150]]}
    theirs = GaussianMixture(3, precisions_init=[np.eye(D)] * 3, weights_init=[1 / 3] * 3, **how)
    ours = make(3, 1, precisions_init=[np.eye(D)] * 3, weights_init=[1 / 3] * 3, **how).fit(data)
    np.testing.assert_allclose(ours.covariances_, theirs.fit(data).covariances_, 1e-6, 1e-9)
    one = make(1, 1).fit(data).covariances_[0]
    wanted = np.cov(data.T, bias=True) + 1e-6 * np.diag(data.var(axis=0))
    np.testing.assert_allclose(one, wanted, 1e-9, 1e-12)


def test_what_is_constant_is_judged_by_its_size():
    tiny = X * 1e-20
    assert VPEM(2, 1, random_state=0).fit(tiny).score(tiny) > 200
    flat = np.c_[X, np.full(ROWS, 1e9)]
    with pytest.warns(VpemWarning, match=r"constant features .*: 6; .* \(1e-06\) alone"):
        VPEM(2, 1, random_state=0).fit(flat)


@each(
    ("words", "tenfold", "scale"),
    [
        ("fit --covariance spherical --agents 1", True, "none"),
        ("fit --covariance spherical --agents 1", True, "standard"),
        ("fit --covariance tied-spherical --agents 1", True, "none"),
        ("fit --covariance spherical --split rows --workers 3", True, "none"),
        ("fit --covariance spherical --agents 2", True, "none"),
        ("fit --covariance spherical --agents 2", False, "none"),
        ("fedem --covariance spherical --workers 3", True, "none"),
        ("fedem --covariance spherical --workers 3", False, "none"),
        ("kmeans --workers 3", True, "none"),
        ("kmeans --split features --agents 2", True, "none"),
        ("kmeans --split features --agents 2", True, "standard"),
    ],
)
def test_what_depends_on_units_says_where_spreads_differ_tenfold(
    capsys, tmp_path, words, tenfold, scale
):
    rng = np.random.default_rng(0)
    X = np.r_[rng.normal(0, 1, (40, 4)), rng.normal(4, 1, (40, 4))]
    X *= [1.0, 40.0, 3.0, 30.0] if tenfold else [1.0, 4.0, 3.0, 3.0]
    np.savetxt(tmp_path / "t.csv", X, delimiter=",", header="a,b,c,d", comments="")
    command, *rest = words.split()
    err = done(capsys, command, tmp_path / "t.csv", "-k", 2, *rest, "--scale", scale).err
    assert ("standard deviations of features" in err) == (tenfold and scale == "none"), err


def test_a_scaling_centres_and_scales_and_is_undone():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 4)) * [1e-3, 1.0, 50.0, 1e6] + [0.0, -7.0, 1e4, 3.0]
    X[:, 1], none = 0.1, Scaling.none(4)  # a constant keeps its scale
    assert none.is_none
    assert none.apply(X) is none.undo(X) is X
    times = rng.integers(0, 4, size=50)
    copies = np.repeat(X, times, axis=0)
    scaling = Scaling.standard(X, times.astype(float))
    assert not scaling.is_none
    deviations = np.where(np.arange(4) == 1, 1.0, copies.std(axis=0))
    np.testing.assert_allclose(scaling.shift, copies.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(scaling.scale, deviations, rtol=1e-12)
    np.testing.assert_allclose(scaling.apply(X), (X - scaling.shift) / deviations, atol=1e-9)
    np.testing.assert_allclose(scaling.undo(scaling.apply(X)), X, rtol=1e-12, atol=1e-9)
    own = Scaling.standard(X[:, [1, 3]], times.astype(float))  # each agent without the others
    np.testing.assert_allclose((own.shift, own.scale), (scaling.shift[[1, 3]], deviations[[1, 3]]))
    single = (X + 1e5).astype(np.float32)
    found, wanted = (Scaling.standard(one, np.ones(50)) for one in (single, single.astype(float)))
    assert found.shift.dtype == found.scale.dtype == np.float64
    np.testing.assert_allclose(found.shift, wanted.shift, rtol=1e-12)
    np.testing.assert_allclose(found.scale, wanted.scale, rtol=1e-12)
    beyond = Scaling(np.zeros(2), np.array([1e-200, 1e200]))  # of which nothing warns
    assert beyond.apply(np.full((1, 2), 1e200)).tolist() == [[np.inf, 1.0]]
    assert beyond.undo(np.full((1, 2), 1e200)).tolist() == [[1.0, np.inf]]
