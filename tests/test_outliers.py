"""Rows that belong to no component: noise, trimming, and bounds on the ratio of eigenvalues."""

import json
import pickle
from functools import cache, partial
from itertools import product

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.datasets import load_iris

from vpem import VPEM, InputError, NumericalError, connect, fit_vpem, make_graph, read_model
from vpem.fits.spread_rows import describe_score
from vpem.network.partition import from_lists
from vpem.terms.decomposed import within_ratio

from .cli_support import done, run
from .resume_support import check_resumes
from .tables import each

pytestmark = pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")

IRIS = load_iris().data
HUBS = [[0, 2], [3, 1]]
RNG = np.random.default_rng(5)
GROUPS = RNG.normal(0, 1, (60, 4)), RNG.normal([5, 5, 0, 3], [1, 2, 0.5, 1], (60, 4))
X = np.vstack([*GROUPS, RNG.uniform(-12, 14, (20, 4))])
W = RNG.integers(1, 4, len(X)).astype(float)
EXACT = {"reg_covar": 0.0, "tol": 0.0, "n_components": 2, "init": [1, 70]}
ODD = {"noise": {"noise": True}, "trim": {"trim": 0.13},
       "ratio": {"trim": 0.13, "eigenvalue_ratio": 3.0}}  # fmt: skip

# library(mclust); x <- as.matrix(iris[, 1:4]); nz <- rep(FALSE, 150)
# nz[c(15, 42, 107, 118, 132)] <- TRUE; e <- emControl(tol=c(1e-14, 1e-14), itmax=c(2e4, 2e4))
# m <- Mclust(x, G=k, modelNames=f, initialization=list(noise=nz), control=e)
# m$loglik, m$bic, m$df, the last of m$parameters$pro; hypvol(x) is 27.2412
OF_MCLUST = {
    "EEE": (3, -242.35800037, 614.992518, 26, 0.15883676),
    "VVI": (3, -284.71319526, 709.724179, 28, 0.20785550),
    "VEV": (2, -215.72597223, 571.749733, 28, 0.0),
    "EII": (2, -375.54435093, 811.216325, 12, 0.50941643),
}


@each("family", OF_MCLUST)
def test_noise_is_that_of_mclust(family):
    k, wanted, bic, free, share = OF_MCLUST[family]
    model = VPEM(
        k, covariance_type=family, agents=1, noise=True, reg_covar=0, tol=1e-12, max_iter=3000
    ).fit(IRIS)
    assert model.fit_.log_likelihood * 150 == pytest.approx(wanted, abs=1e-6)
    assert model.bic(IRIS) == pytest.approx(bic, abs=1e-4)
    assert model.fit_.n_parameters == free
    assert model.mixture_.outlier_share == pytest.approx(share, abs=1e-5)
    found = model.mixture_.describe_outliers()
    assert np.exp(found["log_volume"]) == pytest.approx(27.2412, rel=1e-6)
    assert model.fit_.sizes.sum() == pytest.approx(150 * (1 - share), abs=1e-3)


def volume(rows):
    """The smaller of a box along the axes and one along principal axes."""
    about = rows - rows.mean(axis=0)
    turned = about @ np.linalg.svd(about, full_matrices=False)[2].T
    return min(np.ptp(rows, axis=0).prod(), np.ptp(turned, axis=0).prod())


def bounded(covariances, weights, ratio):
    """Covariances of a hub (K, d, d) truncated at the best of many thresholds."""
    values, vectors = np.linalg.eigh(covariances)

    best = 1.0
    for reach in (1e4, 1.01, 1.00001):
        tried = best * np.geomspace(1 / reach, reach, 3000)[:, None, None]
        cut = np.clip(values, tried, ratio * tried)
        costs = (weights[:, None] * (np.log(cut) + values / cut)).sum(axis=(1, 2))
        best = tried[costs.argmin(), 0, 0]
    cut = np.clip(values, best, ratio * best)
    return (vectors * cut[:, None]) @ vectors.swapaxes(1, 2)


def by_formula(hubs, n_iter, noise=False, trim=0.0, eigenvalue_ratio=None, weights=None):
    """EM as in textbooks, with noise or trimmed rows: log-likelihoods, and parameters."""
    w = np.ones(len(X)) if weights is None else weights
    pi, means, share, history = np.full(2, 0.5), X[[1, 70]], 0.05 if noise else 0.0, []
    whole = np.cov(X.T, aweights=w, bias=True)
    covariances = np.zeros((2, 4, 4))
    for hub in hubs:
        start = whole[np.array(hub)[:, None], hub]
        if eigenvalue_ratio is not None:
            start = bounded(start[None], np.ones(1), eigenvalue_ratio)
        covariances[:, np.array(hub)[:, None], hub] = start
    flat = -sum(np.log(volume(np.repeat(X[:, hub], w.astype(int), axis=0))) for hub in hubs)
    for _ in range(n_iter + 1):
        logs = np.array([np.log(p) + multivariate_normal(m, c).logpdf(X)
                         for p, m, c in zip(pi, means, covariances, strict=True)])  # fmt: skip
        logs += np.log1p(-share)
        with np.errstate(divide="ignore"):
            every = np.vstack([logs, np.full(len(X), np.log(share) + flat)])
        total = logsumexp(every, axis=0)
        left, gone = np.ones(len(X)), trim * w.sum()
        for row in np.argsort(total):
            taken = min(gone, w[row])
            left[row], gone = 1 - taken / w[row], gone - taken
        history.append((w * left) @ total)
        if len(history) > n_iter:
            return history, pi, means, covariances, share
        g = np.exp(logs - total) * left * w
        n = g.sum(axis=1)
        share = max(0.0, 1 - n.sum() / (w @ left)) if noise else 0.0
        pi, means = n / n.sum(), g @ X / n[:, None]
        for hub in hubs:
            about = X[:, hub] - means[:, None, hub]
            found = (g[:, :, None] * about).swapaxes(1, 2) @ about / n[:, None, None]
            if eigenvalue_ratio is not None:
                found = bounded(found, n, eigenvalue_ratio)
            covariances[:, np.array(hub)[:, None], hub] = found


def network_of(hubs=HUBS, topology="star", **how):
    return connect(make_graph(topology, len(hubs)), from_lists(hubs, 4), **how)


@each("odd", ODD)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("hubs", [[[0, 1, 2, 3]], HUBS])
def test_it_is_em_by_the_formula(odd, weighted, hubs):
    weights = W if weighted else None
    found = fit_vpem(X, network_of(hubs), **EXACT, **ODD[odd], sample_weight=weights, max_iter=6)
    wanted, pi, means, covariances, share = by_formula(hubs, 6, **ODD[odd], weights=weights)
    tolerance = {"rtol": 1e-6 if odd == "ratio" else 1e-9, "atol": 1e-9}
    np.testing.assert_allclose(found.history[:, 0], wanted[:6], **tolerance)
    mixture = found.mixture
    np.testing.assert_allclose(found.log_likelihood * found.total_weight, wanted[6], **tolerance)
    np.testing.assert_allclose(mixture.assembled_weights, pi, **tolerance)
    np.testing.assert_allclose(mixture.assembled_means, means, **tolerance)
    np.testing.assert_allclose(mixture.assembled_covariances, covariances, rtol=1e-5, atol=1e-6)
    assert mixture.outlier_share == pytest.approx(share, abs=1e-10)
    assert (np.diff(wanted) > -1e-9).all()


WAYS = {
    "consensus": {"topology": "path"},
    "rounds": {"topology": "path", "consensus": "rounds", "consensus_tol": 1e-12},
    "tree": {"topology": "path", "sum": "tree"},
    "one agent a feature, masked": {"hubs": [[0], [1], [2], [3]], "secure_sum": True},
    "one agent a feature": {"hubs": [[0], [1], [2], [3]], "topology": "cycle",
                            "consensus_tol": 1e-12},
    "compressed": {"compress": "natural:24bits"},
    "hops": {"hubs": [[0, 2], [3, 1]], "topology": "path", "hops": 1},
}  # fmt: skip


@each("way", WAYS)
@each("odd", ODD)
def test_ways_of_summing_agree(way, odd):
    how = {**EXACT, **ODD[odd], "max_iter": 8}
    given = dict(WAYS[way])
    hubs = given.pop("hubs", HUBS)
    found = fit_vpem(X, network_of(hubs, **given), **how)
    merged = [[0, 1, 2, 3]] if given.get("hops") else hubs
    wanted = fit_vpem(X, network_of(merged), **how)
    np.testing.assert_allclose(found.history[:, 0], wanted.history[:, 0], rtol=1e-6)
    np.testing.assert_array_equal(found.mixture.predict(X), wanted.mixture.predict(X))


@each("odd", ODD)
def test_laws(odd):
    """Integer weights are copies, units of columns do not matter, threads neither."""
    how = {**EXACT, **ODD[odd], "max_iter": 5}
    fit = partial(fit_vpem, network=network_of(), **how)
    copies = np.repeat(np.arange(len(X)), W.astype(int))
    places = [int(np.flatnonzero(copies == row)[0]) for row in how["init"]]
    once, many = fit(X, sample_weight=W), fit(X[copies], init=places)
    np.testing.assert_allclose(once.history[:, 0], many.history[:, 0], rtol=1e-10)
    assert once.bic == pytest.approx(many.bic, rel=1e-10)
    plain, single = fit(X, n_threads=1), fit(X.astype(np.float32), dtype=np.float32)
    np.testing.assert_array_equal(plain.history, fit(X, n_threads=2).history)
    np.testing.assert_allclose(single.history, plain.history, rtol=1e-4)
    moved = fit(X * 8.0 - 1000)
    part = 1 if odd == "noise" else 0.87
    shift = 4 * np.log(8) * len(X) * part
    np.testing.assert_allclose(moved.history + shift, plain.history, rtol=1e-8)
    np.testing.assert_array_equal(moved.mixture.predict(X * 8.0 - 1000), plain.mixture.predict(X))


@each("odd", ODD)
def test_resumed_is_uninterrupted_to_the_bit(odd):
    def fit(saver):
        how = {**EXACT, **ODD[odd], "max_iter": 5}
        return fit_vpem(X, network_of(topology="path"), n_threads=1, saver=saver, **how)

    check_resumes(fit)


def test_volumes_count_weights_as_copies_and_are_in_standard_units_if_asked():
    slanted = X @ np.random.default_rng(1).normal(size=(4, 4))
    fit = partial(
        fit_vpem, network=network_of([[0, 1, 2, 3]]), **(EXACT | {"max_iter": 0}), noise=True
    )
    copies = np.repeat(slanted, W.astype(int), axis=0)
    once, many = fit(slanted, sample_weight=W).mixture, fit(copies).mixture
    assert once.describe_outliers() == pytest.approx(many.describe_outliers())
    about, units = slanted / slanted.std(axis=0), slanted * [1e-3, 1, 50, 1e3]
    wanted, found = fit(about), fit(units, scale="standard")
    shift = np.log(units.std(axis=0)).sum()
    assert found.log_likelihood + shift == pytest.approx(wanted.log_likelihood, rel=1e-9)


def test_what_select_says_of_trimmed_rows_is_what_the_fit_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savetxt("x.csv", X.round(), delimiter=",", header="a,b,c,d", comments="")
    odd = "--trim", "0.13", "--agents", "1", "--covariance", "diag", "--json"
    fit = json.loads(done(capsys, "fit", "x.csv", "-k", "1", *odd).out)
    (cell,) = json.loads(done(capsys, "select", "x.csv", "-k", "1", *odd).out)["cells"]
    assert cell["bic"] == pytest.approx(fit["bic"], rel=1e-9)
    assert cell["average_posteriors"] == [1.0]
    for trim in ("0", "0.2"):
        done(capsys, "fit", "x.csv", "-k", "1", *odd[2:], "--trim", trim, "--output", f"{trim}.h5")
    refused = run(capsys, "model", "best", "0.h5", "0.2.h5")
    assert (refused.code, "trims a part of 0.2 of the rows" in refused.err) == (2, True)
    refused = run(capsys, "select", "x.csv", "-k", "1", *odd, "--criterion", "heldout")
    assert (refused.code, "others in each model" in refused.err) == (2, True)


def test_rows_are_trimmed_exactly_and_ties_alike():
    fit = fit_vpem(X, network_of(), **EXACT, trim=0.1, max_iter=30)
    assert fit.total_weight == pytest.approx(126)
    assert (fit.mixture.predict(X) == -1).sum() == 14
    # Of five equal rows none is before another: all have a part of what two rows are.
    ties = np.vstack([X, np.full((5, 4), 40.0)])
    found = fit_vpem(ties, network_of(), **EXACT, trim=3 / 145, max_iter=4)
    weights = np.r_[np.ones(140), np.full(5, 2 / 5)]
    start = fit_vpem(ties, network_of(), **EXACT, max_iter=0).mixture
    plain = {"init": start, "max_iter": 4, "sample_weight": weights}
    wanted = fit_vpem(ties, network_of(), **(EXACT | plain))
    scores = [one.mixture.score_samples(ties) for one in (found, wanted)]
    np.testing.assert_allclose(*scores, rtol=1e-9)
    assert found.total_weight == pytest.approx(142)


@each(("trim", "weights"), [(0.105, None), (0.103, W), (0.107, W)])
def test_a_row_at_the_border_counts_in_part_in_scores_too(trim, weights, tmp_path):
    model = VPEM(2, agents=2, random_state=0, trim=trim).fit(X, sample_weight=weights)
    model.save(tmp_path / "m.h5", force=True)
    fit, stored = model.fit_, read_model(tmp_path / "m.h5")
    assert fit.total_weight % 1  # a row is trimmed in part
    assert model.score(X, sample_weight=weights) == pytest.approx(fit.log_likelihood, rel=1e-9)
    said = describe_score(stored, X, "refuse", weights)
    assert said["bic"] == pytest.approx(fit.bic, rel=1e-9)
    assert said["n_trimmed"] == (model.predict(X) == -1).sum()
    # Of other rows, more of which are odd, all at or above the threshold count.
    rows = np.vstack([X, np.full((5, 4), 40.0)])
    scores = model.score_samples(rows)
    kept = model.predict(rows) != -1
    assert model.score(rows) == pytest.approx(scores[kept].mean(), rel=1e-9)


@each("odd", ODD)
def test_files_and_labels(odd, tmp_path):
    whole_rows = {} if odd == "noise" else {"trim": 0.1}
    model = VPEM(2, agents=2, random_state=0, **(ODD[odd] | whole_rows)).fit(X)
    word = "noise" if odd == "noise" else "trimmed"
    labels, proba = model.predict(X), model.predict_proba(X)
    np.testing.assert_array_equal(labels == -1, proba.argmax(axis=1) == 2)
    assert proba.shape == (140, 3)
    assert (labels[120:] == -1).sum() >= 13
    model.fit_.save(tmp_path / "m.h5", force=True)
    stored = read_model(tmp_path / "m.h5")
    assert stored.mixture.outliers == stored.report["outliers"]["kind"] == word
    np.testing.assert_array_equal(stored.predict(X), labels)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), proba)
    total = model.fit_.log_likelihood * model.fit_.total_weight
    assert model.score(X) * model.fit_.total_weight == pytest.approx(total, rel=1e-9)
    assert model.bic(X) == pytest.approx(model.fit_.bic, rel=1e-9)
    if odd != "noise":
        scores, out = model.score_samples(X), labels == -1
        np.testing.assert_allclose(model.score_samples(X[out]), scores[out])
        with pytest.raises(InputError, match="every row is trimmed"):
            model.score(X[out])
    for ask in (partial(stored.sample, 3), partial(stored.merge_components, X),
                partial(model.contribution, X)):  # fmt: skip
        with pytest.raises(InputError, match=f"rows may be {word}"):
            ask()
    with pytest.raises(InputError, match="values are missing"):
        stored.predict(np.where(X > 13, np.nan, X), missing="marginalize")


def test_the_shell_says_which_rows_are_odd(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savetxt("x.csv", X, delimiter=",", header="a,b,c,d", comments="", fmt="%.9g")
    fit = "fit x.csv -k 2 --agents 2 --output m.h5 --labels l.csv"
    for given, word in (("--noise", "noise"), ("--trim 0.1", "trimmed")):
        report = json.loads(done(capsys, *fit.split(), *given.split(), "--json", "--force").out)
        assert report["outliers"]["kind"] == word
        fitted = (tmp_path / "l.csv").read_text()
        lines = done(capsys, "predict", "m.h5", "x.csv", "--proba").out.splitlines()
        assert lines[0] == f"row,label,{word},proba_0,proba_1,proba_{word}"
        assert fitted.splitlines()[0] == lines[0]
        assert [line.split(",")[:3] for line in fitted.splitlines()] == [
            line.split(",")[:3] for line in lines
        ]
        found = json.loads(done(capsys, "predict", "m.h5", "x.csv", "--json").out)
        assert found[f"n_{word}"] + sum(found["counts"]) == 140
        assert found["labels"].count(-1) == found[f"n_{word}"] >= 14
        assert word in done(capsys, "show", "m.h5").out
        done(capsys, "model", "export", "m.h5", "--output", "m.json", "--force")
        hub = json.loads((tmp_path / "m.json").read_text())["hubs"][0]
        assert set(hub) >= ({"share", "volumes"} if word == "noise" else {"threshold"})
        scored = json.loads(done(capsys, "score", "m.h5", "x.csv", "--json").out)
        assert scored["n_without_values"] == 0
        assert scored.get("n_trimmed") == (14 if word == "trimmed" else None)
        assert scored["log_likelihood"] == pytest.approx(report["log_likelihood"], rel=1e-8)
        kinds = done(capsys, "plot", "m.h5", "x.csv", "--kind", "pairs", "--force")
        assert "crosses are rows" in kinds.err


@pytest.mark.parametrize(
    ("odd", "other"),
    [*product(("--noise", "--trim 0.1"), ("--missing marginalize", "--batch-size 20", "--factors 1",
      "--accelerate squarem", "--prior map", "--split rows --workers 2", "--release-epsilon 3")),
     *product(("--eigenvalue-ratio 5",), ("--covariance VEE", "--prior map", "--factors 1",
      "--accelerate squarem", "--release-epsilon 3")),
     ("--noise", "--trim 0.1"), ("--trim 0.7", "-k 2")],
)  # fmt: skip
def test_what_cannot_be_is_refused(odd, other, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savetxt("x.csv", X[:40], delimiter=",", header="a,b,c,d", comments="")
    refused = run(capsys, "fit", "x.csv", *odd.split(), *other.split(), "--output", "m.h5")
    assert refused.code == 2
    assert refused.err.count("\n") == 1
    assert not (tmp_path / "m.h5").exists()


def test_what_is_sent_is_foretold(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savetxt("x.csv", X, delimiter=",", header="a,b,c,d", comments="")
    for odd, numbers in ((), 1), (("--noise",), 2), (("--trim", "0.1"), 2):
        asked = ("x.csv", "-k", "2", "--agents", "4", *odd, "--json")
        told = json.loads(done(capsys, "topology", "describe", *asked).out)
        sent = json.loads(done(capsys, "fit", *asked, "--max-iter", "3").out)["communication"]
        one = told["communication"]["iteration"]["bytes"]
        assert np.diff(sent["bytes_by_iteration"]).tolist() == [one, one]
        assert one // (8 * 140 * 4) == 2 * numbers  # to the server and from it


def test_constant_features_have_no_volume():
    flat = np.column_stack([X[:, :3], np.ones(len(X))])
    with pytest.raises(InputError, match="feature 3 is constant"):
        fit_vpem(flat, network_of(), n_components=2, noise=True)
    fit_vpem(flat, network_of(), n_components=2, trim=0.1)
    away = fit_vpem(X / 1000 + 500, network_of(), n_components=2, noise=True).mixture
    with pytest.raises(NumericalError, match="all rows are noise; try another start, fewer"):
        fit_vpem(X, network_of(), n_components=2, init=away, noise=True)


@cache
def spreads():
    rng = np.random.default_rng(1)
    return [(np.exp(2 * rng.normal(size=shape)), rng.uniform(0, 50, shape[0]))
            for shape in ((1, 1), (1, 4), (3, 1), (3, 3), (4, 2), (2, 5))]  # fmt: skip


@pytest.mark.parametrize("ratio", [1.0, 2.0, 50.0])
def test_no_threshold_of_eigenvalues_is_better(ratio):
    for values, weights in spreads():

        def costs(cut, values=values, weights=weights):
            return (weights[:, None] * (np.log(cut) + values / cut)).sum()

        found = within_ratio(values, weights, ratio)
        assert found.max() <= ratio * found.min() * (1 + 1e-12)
        others = (np.clip(values, m, ratio * m) for m in np.geomspace(1e-4, 1e4, 3000))
        assert costs(found) <= min(map(costs, others)) + 1e-12


def test_a_fit_with_noise_goes_on_from_its_own_share():
    X = np.random.default_rng(0).normal(size=(120, 2))
    X[:40] *= 6
    model = VPEM(1, noise=True, agents=1, random_state=0).fit(X)
    again = VPEM(1, noise=True, agents=1, init=model.mixture_, max_iter=0).fit(X)
    assert abs(model.mixture_.outlier_share - 0.05) > 0.05
    assert again.score(X) == pytest.approx(model.score(X), abs=1e-12)
