"""Families of covariances with a volume, shape or orientation in common, by mclust's names."""

import numpy as np
import pytest
from scipy.linalg import expm
from scipy.optimize import minimize
from sklearn.datasets import load_iris

from vpem import DistributedGaussianMixture, InputError, connect, fit_vpem, make_graph
from vpem.fits.settings import parse_covariances
from vpem.network.partition import Blocks, contiguous
from vpem.rules import DECOMPOSED
from vpem.settings import COVARIANCE_TYPES, MCLUST, FedMixtureSettings, FitSettings
from vpem.terms.degenerate import degenerate_in_hubs
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Mixture
from vpem.terms.units import Scaling

from .missing_support import clusters, with_holes
from .resume_support import check_resumes
from .tables import each, over

pytestmark = pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")

IRIS, SPECIES = load_iris(return_X_y=True)
X = clusters(3, 99, 6, 3)
START = [1, 22, 41]

# library(mclust); z <- 0.05 + 0.85 * unmap(iris$Species); x <- as.matrix(iris[, 1:4])
# m <- mstep(modelName=f, data=x, z=z, control=emControl(tol=c(1e-14, 1e-15), itmax=c(1e5, 1e5)))
# do.call("estep", c(list(data=x), m))$loglik, and nMclustParams(f, 4, 3)
OF_MCLUST = {
    "VEI": (-494.523643352, 20),
    "EVI": (-490.708839498, 24),
    "VEE": (-330.483951876, 26),
    "EVE": (-325.822615463, 30),
    "EEV": (-320.580661615, 36),
    "VEV": (-313.943749656, 38),
    "EVV": (-311.236740468, 42),
}


def m_step(family, data, shares):
    """Terms of rows in one hub, their statistics by responsibilities, and the M-step."""
    d = data.shape[1]
    blocks = Blocks((np.arange(d),), (0,), ((0,),))
    terms = FeatureTerms(data, blocks, family, scaling=Scaling.none(d), reg_covar=0.0)
    statistics = terms.empty(np.tile(data.mean(axis=0), (shares.shape[1], 1)), 1)
    terms.summarize(statistics, np.ascontiguousarray(shares[None]), slice(0, len(data)))
    return terms, statistics, terms.update(statistics)


@each("family", OF_MCLUST)
def test_an_m_step_has_the_likelihood_of_mclusts(family):
    terms, _, mixture = m_step(family, IRIS, 0.05 + 0.85 * np.eye(3)[SPECIES])
    found = terms.sweep(mixture, terms.prepare(mixture), np.ones((1, 1)))[0] + terms.log_constant
    wanted, n_parameters = OF_MCLUST[family]
    assert found == pytest.approx(wanted, rel=1e-7)
    assert mixture.n_parameters == n_parameters


def rotated(angles):
    skew = np.zeros((3, 3))
    skew[np.triu_indices(3, 1)] = angles
    return expm(skew - skew.T)


@over(family=["EVE", "VVE"], seed=range(3))
def test_common_axes_are_those_of_a_search_over_all_rotations(family, seed):
    # What a component has along axes D are variances v = diag(D^T S D); at one volume they are
    # v times the mean of all |v|^(1/3) over their own.
    rng = np.random.default_rng(seed)
    data, shares = rng.normal(size=(90, 3)) @ rng.normal(size=(3, 3)), rng.dirichlet([0.2] * 2, 90)
    data[:40] = rng.normal(size=(40, 3)) @ rng.normal(size=(3, 3)) + 1
    _, _, mixture = m_step(family, data, shares)
    weights = shares.mean(axis=0)
    free = [np.cov(data.T, aweights=one, bias=True) for one in shares.T]

    def minus_twice(covariances):
        pairs = zip(weights, covariances, free, strict=True)
        return sum(
            w * (np.linalg.slogdet(one)[1] + np.trace(np.linalg.solve(one, own)))
            for w, one, own in pairs
        )

    def at(angles):
        axes = rotated(angles)
        spreads = np.array([np.diag(axes.T @ own @ axes) for own in free])
        if family == "EVE":
            volumes = spreads.prod(axis=1, keepdims=True) ** (1 / 3)
            spreads *= weights @ volumes / volumes
        return minus_twice((axes * spreads[:, None]) @ axes.T)

    best = min(minimize(at, rng.uniform(-2, 2, 3), tol=1e-12).fun for _ in range(8))
    assert minus_twice(mixture.dense(0)) == pytest.approx(best, abs=1e-7)


def parts_of(covariances):
    """Volumes (K,), sorted shapes (K, d), and products of shape and orientation (K, d, d)."""
    values = np.linalg.eigvalsh(covariances)
    volumes = np.exp(np.log(values).mean(axis=1))
    return volumes, values / volumes[:, None], covariances / volumes[:, None, None]


def is_in(family, covariances):
    """Whether what a family has in common is so."""
    volumes, shapes, units = parts_of(covariances)
    common = [np.ptp(volumes) / volumes.max() < 1e-8] if family[0] == "E" else []
    if family[1] == "E":
        common.append(np.ptp(shapes, axis=0).max() < 1e-6 * shapes.max())
    if family[2] == "E":  # those with the same axes commute
        common.append(np.allclose(units[0] @ units[1], units[1] @ units[0], atol=1e-8))
    if family[2] == "I":
        common.append(not (covariances * (1 - np.eye(covariances.shape[1]))).any())
    return all(common)


WAYS = {
    "plain": {},
    "squarem": {"accelerate": "squarem"},
    "gaps": {"data": with_holes(X, 1, 0.2), "missing": "marginalize"},
    "local": {"accelerate": "local:2"},
}


@over(family=DECOMPOSED, way=WAYS)
def test_fits_go_uphill_and_stay_in_their_family(family, way):
    how = {"data": X, "n_components": 3, "init": START, "max_iter": 12, "tol": 0.0, **WAYS[way]}
    network = connect(make_graph("star", 2), contiguous(6, 2), hops=0)
    found = fit_vpem(how.pop("data"), network, covariance_type=family, **how)
    gains = np.diff(found.history[:, 0])
    assert (gains > -1e-8 * abs(found.history[0, 0])).all()
    assert gains.sum() > 0
    for b in range(2):
        assert is_in(family, found.mixture.dense(b))
    names = ("VEI", "EVI", "VEE", "EVE", "VVE", "EEV", "VEV", "EVV")
    own = dict(zip(names, (5, 7, 8, 10, 12, 12, 14, 16), strict=True))  # of 3 features
    assert found.mixture.n_parameters == 2 + 18 + 2 * own[family]


@each("family", DECOMPOSED)
def test_resumed_is_uninterrupted_to_the_bit(family):
    def fit(saver):
        network = connect(make_graph("cycle", 2), contiguous(5, 2), hops=0)
        return fit_vpem(
            X[:, :5], network, covariance_type=family, n_components=3, init=START, max_iter=7,
            tol=0.0, n_threads=1, saver=saver, accelerate="squarem",
        )  # fmt: skip

    check_resumes(fit)


@each("family", DECOMPOSED)
def test_rows_and_features_of_one_agent_and_names_in_any_case_are_the_same(family):
    how = {"n_components": 3, "init": START, "max_iter": 9, "tol": 0.0}
    rows = DistributedGaussianMixture(covariance_type=family.lower(), **how).fit(X)
    features = fit_vpem(
        X, connect(make_graph("star", 1), contiguous(6, 1)), covariance_type=family, **how
    )
    assert rows.fit_.log_likelihood == pytest.approx(features.log_likelihood, rel=1e-10)


@each("family", DECOMPOSED)
def test_features_alone_in_their_hubs_have_volumes_alone(family):
    network = connect(make_graph("star", 6), contiguous(6, 6), hops=0)
    how = {"n_components": 3, "init": START, "max_iter": 5, "tol": 0.0, "reg_covar": 1e-3}
    found = fit_vpem(X, network, covariance_type=family, **how)
    same = "tied-diag" if family[0] == "E" else "diag"
    wanted = fit_vpem(X, network, covariance_type=same, **how)
    assert found.log_likelihood == pytest.approx(wanted.log_likelihood, rel=1e-12)
    assert found.mixture.n_parameters == wanted.mixture.n_parameters


@each("family", DECOMPOSED)
def test_units_of_columns_matter_where_covariances_share_eigenvalues_or_axes(family):
    units = np.array([1.0, 3.0, 0.2, 1.0, 2.0, 0.5])
    network = connect(make_graph("star", 1), contiguous(6, 1))
    how = {"n_components": 3, "init": START, "max_iter": 6, "tol": 0.0, "covariance_type": family}
    one, other = (fit_vpem(data, network, **how).log_likelihood for data in (X, X * units))
    moved = abs(one - np.log(units).sum() - other)
    assert (moved > 1e-3) if family in ("EVE", "VVE", "EEV", "VEV") else (moved < 1e-9)


def test_a_marginal_says_which_family_it_is_in():
    network = connect(make_graph("star", 1), contiguous(6, 1))
    how = {"n_components": 3, "init": START, "max_iter": 3, "n_init": 1}
    kinds = {"VEI": "VEI", "VEE": "VEE", "EVI": "diag", "VEV": "full", "EVV": "full"}
    for family, kind in kinds.items():
        whole = fit_vpem(X, network, covariance_type=family, **how).mixture
        part = whole.marginal([4, 1])
        assert part.covariance_type == kind
        wanted = whole.dense(0)[:, [[1], [4]], [1, 4]]
        np.testing.assert_allclose(part.dense(0), wanted)


def test_a_covariance_at_the_floor_is_not_hidden_by_a_common_volume():
    blocks, none = Blocks((np.arange(3),), (0,), ((0,),)), Scaling.none(3)
    free = np.array([np.diag([0.3, 0.2, 1e-6]), np.diag([0.2, 0.4, 0.3]), 0.3 * np.eye(3)])
    found = {}
    for family in ("VVE", "EVE", "EVV", "full", "EEV", "VEE"):
        mixture = Mixture(
            blocks, family, np.full((1, 3), 1 / 3), np.diag([2.0, 2, 2]), free.ravel(), none
        ).constrained()
        found[family] = degenerate_in_hubs(mixture, np.full(3, 1e-6), 200.0).tolist()
    at_floor, none_is = [True, False, False], [False] * 3
    wanted = dict.fromkeys(("VVE", "EVE", "EVV", "full"), at_floor)
    assert found == wanted | {"EEV": none_is, "VEE": none_is}


def test_names_of_mclust_are_those_of_vpem():
    assert [FitSettings(covariance_type=name).covariance_type for name in MCLUST] == list(
        MCLUST.values()
    )
    assert FitSettings(covariance_type="vve").covariance_type == "VVE"
    assert parse_covariances("all", FitSettings()) == list(MCLUST.values())
    assert parse_covariances("eee, VVE,tied", FitSettings()) == ["tied", "VVE"]
    with_prior = FitSettings(weight_concentration_prior_type="map")
    assert sorted(parse_covariances("all", with_prior)) == sorted(COVARIANCE_TYPES)
    with pytest.raises(InputError, match="must be one of full"):
        FitSettings(covariance_type="VVX")


@each(
    "given", [{"weight_concentration_prior_type": "map"}, {"penalty": "ridge:1"}, {"n_factors": 1}]
)
def test_what_adds_to_each_covariance_is_refused(given):
    with pytest.raises(InputError, match="in common"):
        FitSettings(covariance_type="VEE", **given)
    with pytest.raises(InputError, match="made of exact sums"):
        FedMixtureSettings(covariance_type="VEE")


@each("family", DECOMPOSED)
def test_known_covariances_are_held_in_their_family_alone(family):
    network = connect(make_graph("star", 2), contiguous(6, 2), hops=0)
    how = {"n_components": 3, "max_iter": 4}
    known = fit_vpem(X, network, covariance_type=family, init=START, **how).mixture
    held = fit_vpem(X, network, covariance_type=family, init=known, fix="covariance", **how).mixture
    np.testing.assert_allclose(held.dense(0), known.dense(0), rtol=1e-6, atol=1e-8)
    other = "EVI" if family == "VEI" else "VEI" if family == "EVI" else "EEV"
    with pytest.raises(InputError, match="would change"):
        fit_vpem(
            X, network, covariance_type="VEE" if family == other else other, init=known,
            fix="covariance", **how,
        )  # fmt: skip
