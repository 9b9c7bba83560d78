"""EM under a conjugate prior: mclust's M-steps, a twin in NumPy, never lower, alike by all ways."""

import shutil
import subprocess
import warnings
from functools import partial

import numpy as np
import pytest
from scipy.special import logsumexp

import vpem
from vpem.errors import InputError
from vpem.files.models import read_model, write_model
from vpem.fits.spread import fit_spread, own_columns
from vpem.fits.vpem import fit_vpem
from vpem.network.graph import make_graph
from vpem.network.partition import Workers
from vpem.settings import COVARIANCE_TYPES
from vpem.sums.connect import connect_workers, spread

from .cli_support import done, run
from .resume_support import check_resumes
from .test_variational import fit as fitted
from .test_variational import holed, network_of
from .thread_engine import together

K, D = 3, 4
ROWS = [3, 80, 130]
MAP = {"weight_concentration_prior_type": "map"}

fit = partial(fitted, prior="map", n_components=K)


@pytest.fixture(scope="module")
def X():
    """Three clusters that overlap, of features that depend on each other."""
    rng = np.random.default_rng(5)
    parts = [
        rng.normal(size=(n, D)) @ rng.normal(size=(D, D)) + 1.5 * rng.normal(size=D)
        for n in (70, 50, 30)
    ]
    return np.concatenate(parts)


def shared(values, tied):
    return np.broadcast_to(values.sum(axis=0), values.shape) if tied else values


def twin(X, shares, kind, groups, kappa=0.01, freedom=None, scale=None):
    """Mode (means, covariances of all features, log-density) of one M-step, hub by hub."""
    k, tied = shares.shape[1], kind.startswith("tied")
    n, m0, copies = shares.sum(axis=0), X.mean(axis=0), 1 if tied else k
    xbar = shares.T @ X / n[:, None]
    means = (n[:, None] * xbar + kappa * m0) / (n + kappa)[:, None]
    covariances, density = np.zeros((k, D, D)), 0.0
    for own in groups if not kind.endswith("diag") else [[j] for j in range(D)]:
        d = len(own)
        nu = d + 2 if freedom is None else freedom
        factor = k ** (-2 / d) if scale is None else scale
        P = factor * np.atleast_2d(np.cov(X[:, own].T))
        scatters = []
        for c in range(k):
            off, away = X[:, own] - xbar[c, own], xbar[c, own] - m0[own]
            pull = kappa * n[c] / (kappa + n[c])
            scatters.append((shares[:, c, None] * off).T @ off + pull * np.outer(away, away))
        scatters, seen = shared(np.array(scatters), tied), shared(n, tied)
        if kind.endswith("spherical"):
            variance = np.trace(P) / d
            found = [
                (variance + np.trace(one)) / (nu + 2 + d * (k // copies + rows)) * np.eye(d)
                for one, rows in zip(scatters, seen, strict=True)
            ]
        else:
            found = [
                (P + one) / (nu + d + 1 + k // copies + rows)
                for one, rows in zip(scatters, seen, strict=True)
            ]
        for c, one in enumerate(found):
            covariances[c][np.ix_(own, own)] = one
            away = means[c, own] - m0[own]
            inner = kappa * away @ np.linalg.solve(one, away) + np.linalg.slogdet(one)[1]
            density -= 0.5 * inner
            if c < copies and kind.endswith("spherical"):
                density -= 0.5 * ((nu + 2) * np.log(one[0, 0]) + variance / one[0, 0])
            elif c < copies:
                density -= 0.5 * (nu + d + 1) * np.linalg.slogdet(one)[1]
                density -= 0.5 * np.trace(np.linalg.solve(one, P))
    return n / len(X), means, covariances, density


def densities(X, weights, means, covariances):
    parts = []
    for weight, mean, one in zip(weights, means, covariances, strict=True):
        off = X - mean
        squares = np.einsum("ij,ij->i", off @ np.linalg.inv(one), off)
        parts.append(np.log(weight) - 0.5 * (squares + np.linalg.slogdet(2 * np.pi * one)[1]))
    return np.transpose(parts)


def dense(mixture):
    """Covariances (K, d, d) of any type."""
    if not mixture.is_diagonal:
        return np.broadcast_to(mixture.assembled_covariances, (mixture.n_components, D, D))
    variances = mixture.covariances[:, mixture.blocks.position] * mixture.scaling.scale**2
    return np.broadcast_to(variances, (mixture.n_components, D))[:, :, None] * np.eye(D)


@pytest.mark.parametrize("n_agents", [1, 2])
@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
@pytest.mark.parametrize(
    "given",
    [{}, {"mean_precision_prior": 3.0, "degrees_of_freedom_prior": 4.5, "prior_covariance": 0.3}],
)
def test_iterations_are_the_twins(X, kind, n_agents, given):
    groups = np.array_split(np.arange(D), n_agents)
    asked = dict(zip(("kappa", "freedom", "scale"), given.values(), strict=False))
    shares = fit(X, n_agents, covariance_type=kind, max_iter=0, **given).mixture.predict_proba(X)
    found = fit(X, n_agents, covariance_type=kind, max_iter=4, **given)
    penalised = []
    for _ in range(4):
        weights, means, covariances, density = twin(X, shares, kind, groups, **asked)
        logs = densities(X, weights, means, covariances)
        shares = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
        penalised.append(logsumexp(logs, axis=1).sum() + density)
    same = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-10)
    same(found.mixture.assembled_weights, weights)
    same(found.mixture.assembled_means, means)
    same(dense(found.mixture), covariances)
    total = logsumexp(logs, axis=1).sum()
    same(found.log_likelihood * len(X), total)
    same(found.mixture.score_samples(X).sum(), total)
    # The history has the density of the prior relative to its mode: another constant.
    ours = np.append(found.history[1:, 0], total + found.log_prior)
    same(ours - ours[0], np.array(penalised) - penalised[0], atol=1e-7)
    assert found.log_prior < 0
    assert found.bic == pytest.approx(-2 * total + found.mixture.n_parameters * np.log(len(X)))


MSTEP = """
suppressMessages(library(mclust))
X <- as.matrix(read.csv("x.csv", header=FALSE)); z <- as.matrix(read.csv("z.csv", header=FALSE))
show <- function(v) cat(format(as.vector(v), digits=17), "\n")
for (name in c("VVV", "EEE", "VII")) {
  m <- mstep(X, name, z, prior=priorControl())$parameters
  show(m$mean); show(m$variance$sigma)
}
for (name in c("V", "E")) for (j in 1:ncol(X)) {
  m <- mstep(X[, j], name, z, prior=priorControl())$parameters
  show(m$mean); show(m$variance$sigmasq)
}
e <- em(X, "VVV", m <- mstep(X, "VVV", z, prior=priorControl())$parameters,
        prior=priorControl(), control=emControl(tol=c(0, 0), itmax=4))
show(c(e$loglik, bic("VVV", e$loglik, nrow(X), ncol(X), ncol(z))))
"""


def has_mclust():
    if shutil.which("Rscript") is None:
        return False
    asked = ["Rscript", "-e", 'quit(status = !requireNamespace("mclust", quietly = TRUE))']
    return subprocess.run(asked, check=False, capture_output=True).returncode == 0


@pytest.mark.skipif(not has_mclust(), reason="needs R and mclust")
def test_m_steps_are_those_of_mclust(X, tmp_path):
    shares = fit(X, 1, max_iter=0).mixture.predict_proba(X)
    for name, values in (("x", X), ("z", shares)):
        np.savetxt(tmp_path / f"{name}.csv", values, delimiter=",", fmt="%.17g")
    told = subprocess.run(
        ["Rscript", "-e", MSTEP], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout
    lines = iter([np.array(line.split(), dtype=float) for line in told.splitlines()])
    groups, same = [np.arange(D)], partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-10)
    for kind in ("full", "tied", "spherical"):
        _, means, covariances, _ = twin(X, shares, kind, groups)
        same(next(lines).reshape(K, D), means)
        same(np.broadcast_to(next(lines).reshape(-1, D, D), (K, D, D)), covariances)
    for kind in ("diag", "tied-diag"):
        _, means, covariances, _ = twin(X, shares, kind, groups)
        for j in range(D):
            same(next(lines), means[:, j])
            same(np.broadcast_to(next(lines), K), covariances[:, j, j])
    found = fit(X, 1, max_iter=5)
    log_likelihood, bic = next(lines)
    same(found.log_likelihood * len(X), log_likelihood)
    same(-found.bic, bic)


HOWS = [
    {},
    {"accelerate": "local:4,squarem"},
    {"init": "random", "prior_covariance": 1e-3, "mean_precision_prior": 5.0},
    {"degrees_of_freedom_prior": 7.5},
]


@pytest.mark.parametrize("misses", [False, True])
@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
@pytest.mark.parametrize("how", HOWS, ids=str)
def test_the_penalised_log_likelihood_never_falls(X, how, kind, misses):
    data, more = (holed(X), {"missing": "marginalize"}) if misses else (X, {})
    found = fit(data, 2, covariance_type=kind, max_iter=40, **how, **more)
    assert np.diff(found.history[:, 0]).min() > -1e-9 * abs(found.history[0, 0])
    assert found.recoveries == []
    scores = found.mixture.score_samples(data, **more)
    assert found.log_likelihood == pytest.approx(scores.mean(), rel=1e-12)
    last = found.log_likelihood * found.total_weight + found.log_prior
    assert last >= found.history[-1, 0] - 1e-9 * abs(last)


@pytest.mark.parametrize("misses", [False, True])
@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_batches_never_lower_it(X, kind, misses):
    data, more = (holed(X), {"missing": "marginalize"}) if misses else (X, {})
    batches = partial(fit, data, 2, covariance_type=kind, max_iter=6, **more)
    energies = np.array(batches(batch_size=40).free_energy)
    assert np.diff(energies).min() > -1e-9 * abs(energies[0])
    whole, one = batches(), batches(batch_size=len(data))
    np.testing.assert_allclose(one.history, whole.history, rtol=1e-9)
    assert abs(batches(batch_size=40, step_size=0.7).log_likelihood - whole.log_likelihood) < 0.6


@pytest.mark.parametrize("kind", ["diag", "tied-diag"])
@pytest.mark.parametrize("how", [{}, {"missing": "marginalize"}, {"accelerate": "squarem"}])
def test_diagonal_fits_do_not_depend_on_who_holds_which_features(X, kind, how):
    data = holed(X) if "missing" in how else X
    given = {"covariance_type": kind, "init": ROWS, "max_iter": 20, "reg_covar": "auto", **how}
    one, *others = [fit(data, n, **given) for n in (1, 2, D)]
    for other in others:
        np.testing.assert_allclose(other.history[:, 0], one.history[:, 0], rtol=1e-9)
        assert other.log_likelihood == pytest.approx(one.log_likelihood, rel=1e-9)
        labels = [it.mixture.predict(data, missing="marginalize") for it in (one, other)]
        np.testing.assert_array_equal(*labels)


def test_a_feature_that_a_component_hardly_sees_keeps_the_prior(X):
    """Of rows that lack a feature its mode is that of those that have it."""
    data = X.copy()
    data[::3, 3] = np.nan
    given = {"covariance_type": "diag", "missing": "marginalize", "init": ROWS}
    before, found = (fit(data, 1, **given, max_iter=n).mixture for n in (4, 5))
    shares, there = before.predict_proba(data, missing="marginalize"), ~np.isnan(data[:, 3])
    own = np.repeat(data[there, 3:], D, axis=1)
    # Cov of the twin is of what is there; that of a fit is of the same rows, times M / (M - 1).
    M, m = len(data), there.sum()
    scale = K**-2 * (M / (M - 1)) * ((m - 1) / m)
    _, means, covariances, _ = twin(own, shares[there], "diag", [], scale=scale)
    np.testing.assert_allclose(found.assembled_means[:, 3], means[:, 3], rtol=1e-8)
    np.testing.assert_allclose(dense(found)[:, 3, 3], covariances[:, 3, 3], rtol=1e-8)


def test_a_small_component_is_proper(X):
    """By EM a component at two equal rows is a point; under the prior it has the prior's width."""
    data = np.concatenate([X, np.full((2, D), 25.0)])
    given = {"n_components": 4, "init": [3, 80, 130, 151], "max_iter": 100, "tol": 1e-9}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vpem.VpemWarning)
        em = fit(data, 1, prior=None, **given, reg_covar=1e-8)
    found = fit(data, 1, **given, reg_covar=1e-8)
    assert em.degenerate or em.recoveries
    assert found.degenerate == []
    small = int(found.mixture.assembled_weights.argmin())
    assert found.recoveries == []
    assert found.mixture.assembled_weights[small] < 0.02
    widths = np.linalg.eigvalsh(found.mixture.assembled_covariances[small])
    floor = np.linalg.eigvalsh(np.cov(data.T)) * 4**-0.5 / (2 * D + 5)
    assert (widths > 0.5 * floor).all()
    assert em.recoveries or np.linalg.eigvalsh(em.mixture.assembled_covariances).min() < 1e-6


def rows_fit(X, n, kind="full", topology="star", **changes):
    given = {"n_components": K, "tol": 0.0, "max_iter": 5, "init": ROWS, "covariance_type": kind}
    runs = [part.tolist() for part in np.array_split(np.arange(len(X)), n)]
    workers = Workers(tuple(map(np.array, runs)), tuple("abcdef"[:n]))
    rounds = {} if topology == "star" else {"n_rounds": 80}
    network = connect_workers(make_graph(topology, n), **rounds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vpem.NotConvergedWarning)
        return vpem.fit_em(X, workers, network, **MAP, **{**given, **changes})


@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
@pytest.mark.parametrize("how", [{}, {"missing": "marginalize"}])
def test_rows_that_workers_hold_are_the_same_sum(X, kind, how):
    data = holed(X) if how else X
    whole = fit(data, 1, covariance_type=kind, init=ROWS, reg_covar="auto", **how)
    for topology in ("star", "cycle"):
        split = rows_fit(data, 3, kind, topology, **how)
        close = 1e-10 if topology == "star" else 1e-6
        np.testing.assert_allclose(split.history[:, 0], whole.history[:, 0], rtol=close)
        np.testing.assert_allclose(split.log_likelihood, whole.log_likelihood, rtol=close)
        np.testing.assert_allclose(split.log_prior, whole.log_prior, rtol=10 * close)
    batches = rows_fit(data, 3, kind, batch_size=30, max_iter=8, **how)
    assert np.diff(np.array(batches.free_energy)).min() > -1e-9 * abs(batches.history[0, 0])


def alike(one, other):
    assert np.array_equal(one.history, other.history)
    assert one.log_likelihood == other.log_likelihood
    assert one.log_prior == other.log_prior
    for name, values in one.mixture.arrays().items():
        assert np.array_equal(values, other.mixture.arrays()[name]), name


@pytest.mark.parametrize("changes", [{}, {"accelerate": "squarem"}, {"batch_size": 50}])
def test_resumed_is_uninterrupted_to_the_bit(X, changes):
    check_resumes(lambda saver: fit(X, 2, saver=saver, **changes), alike)
    for topology in ("star", "cycle"):
        over_rows = partial(rows_fit, X, 3, "full", topology, **changes)
        check_resumes(lambda saver, again=over_rows: again(saver=saver), alike)


def test_sums_weights_precision_and_bytes(X):
    plain = fit(X, 4)
    rounds = fit(X, 4, topology="cycle", how={"consensus": "rounds", "n_rounds": 60})
    operator = fit(X, 4, topology="cycle", how={"consensus": "operator", "n_rounds": 60})
    np.testing.assert_allclose(rounds.history, operator.history, rtol=1e-9)
    np.testing.assert_allclose(rounds.log_likelihood, plain.log_likelihood, rtol=1e-4)
    masked = fit(X, 4, how={"secure_sum": True})
    np.testing.assert_allclose(masked.history, plain.history, rtol=1e-6)
    np.testing.assert_allclose(masked.log_prior, plain.log_prior, rtol=1e-6)
    times = np.arange(len(X)) % 3
    rows = [1, 22, 41]
    weighed = fit(X, 4, sample_weight=times.astype(float), init=rows)
    places = np.repeat(np.arange(len(X)), times)
    repeated = fit(X[places], 4, init=[int(np.searchsorted(places, row)) for row in rows])
    np.testing.assert_allclose(weighed.history, repeated.history, rtol=1e-10)
    single = fit(X.astype(np.float32), 4, dtype="float32")
    np.testing.assert_allclose(single.log_likelihood, plain.log_likelihood, atol=1e-3)
    assert plain.communication["bytes"] == fit(X, 4, prior=None).communication["bytes"]


@pytest.mark.parametrize("topology", ["star", "cycle"])
@pytest.mark.parametrize("kind", ["full", "tied-diag"])
def test_processes_find_what_one_does(X, topology, kind):
    given = {"n_components": K, "tol": 0.0, "max_iter": 5, "covariance_type": kind, **MAP}
    whole, joined = fit(X, 4, topology=topology, **given), network_of(4, topology)

    def work(engine):
        ranked = spread(joined, engine)
        return fit_spread(X[:, own_columns(ranked)], ranked, reg_covar=0.0, **given)

    first, _ = together(2, work)
    np.testing.assert_allclose(first.history, whole.history, rtol=1e-12)
    np.testing.assert_allclose(first.log_likelihood, whole.log_likelihood, rtol=1e-12)
    np.testing.assert_allclose(first.log_prior, whole.log_prior, rtol=1e-10)
    names = tuple("abcd")
    assert first.describe(names, names)["prior"] == whole.describe(names, names)["prior"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"degrees_of_freedom_prior": 1.0}, "widest hub less 1"),
        ({"sample_weight": np.full(150, 1e-3)}, "worth whole rows"),
        ({"weight_concentration_prior": 0.5}, "mixing weights, which have no prior"),
        ({"n_factors": 1}, "prior of their own"),
        ({"families": "t"}, "conjugate to Gaussian"),
    ],
)
def test_what_a_prior_cannot_be_is_said(X, changes, said):
    if changes.pop("families", None):
        changes["kinds"] = vpem.Kinds(("t",) * D)
    with pytest.raises(InputError, match=said):
        fit(X, 2, **changes)


def test_reports_models_and_estimators_say_what_counts_the_prior(X, tmp_path):
    found = fit(X, 2, max_iter=60)
    names = tuple("abcd")
    report = found.describe(names, ("one", "two"))
    assert report["prior"] == {
        "weight_concentration_prior_type": "map",
        "mean_precision_prior": 0.01,
        "degrees_of_freedom_prior": [4.0, 4.0],
        "prior_covariance": [1 / 3, 1 / 3],
    }
    both = report["log_likelihood"] + report["log_prior"] / len(X)
    assert report["penalised_log_likelihood"] == pytest.approx(both, rel=1e-12)
    assert report["bic"] == found.mixture.bic(found.log_likelihood * len(X), len(X))
    write_model(tmp_path / "m.h5", found.kept(names, report, {}))
    again = read_model(tmp_path / "m.h5")
    assert again.report["prior"] == report["prior"]
    assert np.array_equal(again.mixture.predict_proba(X), found.mixture.predict_proba(X))
    on = fit(X, 2, init=again.mixture, max_iter=1)
    assert on.log_likelihood == pytest.approx(found.log_likelihood, abs=1e-2)
    for model in (
        vpem.VPEM(K, agents=2, **MAP).fit(X),
        vpem.DistributedGaussianMixture(K, workers=3, **MAP).fit(X),
    ):
        assert model.lower_bound_ == pytest.approx(model.lower_bounds_[-1])
        assert model.lower_bound_ < model.score(X)
        write_model(tmp_path / "e.h5", model, force=True)
        loaded = vpem.load(tmp_path / "e.h5")
        assert loaded.get_params()["weight_concentration_prior_type"] == "map"
        assert np.array_equal(loaded.predict_proba(X), model.predict_proba(X))


def test_the_shell_fits_shows_and_selects(X, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savetxt("x.csv", X, delimiter=",", header="a,b,c,d", comments="")
    given = ["x.csv", "--agents", "2", "--prior", "map", "--json"]
    one = done(capsys, "fit", *given, "-k", "3", "-o", "m.h5").json
    same = fit_vpem(X, network_of(2), n_components=3, **MAP)
    assert one["log_likelihood"] == pytest.approx(same.log_likelihood, rel=1e-9)
    assert one["bic"] == pytest.approx(same.bic, rel=1e-9)
    shown = done(capsys, "model", "show", "m.h5", "--json").json["report"]
    assert shown["prior"] == one["prior"]
    assert "penalised log-likelihood per sample" in done(capsys, "model", "show", "m.h5").out
    assert "penalised" in done(capsys, "fit", *given[:-1], "-k", "3").out
    labels = done(capsys, "predict", "m.h5", "x.csv", "--json").json
    assert labels["n_samples"] == len(X)
    several = done(capsys, "select", *given, "-k", "2-3", "--jobs", "1").json
    assert several["cells"][1]["bic"] == pytest.approx(one["bic"], rel=1e-9)
    best = done(capsys, "fit", *given, "-k", "2-3").json
    assert best["n_components"] == several["cells"][several["chosen"]]["n_components"]
    refused = run(capsys, "select", "x.csv", "--prior", "dirichlet_process")
    assert refused.code == 2
    assert "map" in refused.sentence
    refused = run(capsys, "fit", *given, "-k", "3", "--concentration", "1")
    assert refused.code == 2
    assert "mixing weights, which have no prior" in refused.sentence
