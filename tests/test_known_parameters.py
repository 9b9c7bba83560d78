"""Weights and covariances that are known: EM holds them fixed and fits what is left."""

import json
from functools import partial

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from vpem import InputError, connect, fit_em, fit_vpem, make_graph
from vpem.network.partition import contiguous, evenly, from_lists
from vpem.steps.starts import GivenStart
from vpem.sums.connect import connect_workers

from .cli_support import done, run
from .tables import each, over

RNG = np.random.default_rng(5)
X = np.concatenate([RNG.normal(m, 1.0, (40, 4)) for m in (0.0, 1.5, 3.0)]) * [1, 10, 0.1, 3]
START = [3, 50, 100]
WEIGHTS = np.array([0.2, 0.5, 0.3])
COVARIANCES = np.stack([np.diag([1.0, 100, 0.01, 9]) * scale for scale in (0.7, 1.0, 1.3)])
COVARIANCES[:, 0, 1] = COVARIANCES[:, 1, 0] = 2.0
HUBS = [[0, 1], [2, 3]]
KNOWN = {"weights": WEIGHTS, "covariances": COVARIANCES}


def by_the_formula(n_iter, fix, hubs=((0, 1, 2, 3),), weight=None):
    """EM with blocks, (4)-(11) of the paper, that leaves out the M-steps of what is known."""
    weight = np.ones(len(X)) if weight is None else weight
    weights, means, covariances = np.full(3, 1 / 3), X[START], None
    spread = np.cov(X.T, bias=True, aweights=weight) + 1e-6 * np.diag(
        np.average((X - np.average(X, axis=0, weights=weight)) ** 2, axis=0, weights=weight)
    )
    covariances = np.stack([spread] * 3)
    weights = WEIGHTS if "weights" in fix else weights
    covariances = COVARIANCES if "covariances" in fix else covariances
    floor = 1e-6 * np.diag(np.diag(spread) / (1 + 1e-6))
    found = []
    for _ in range(n_iter + 1):
        logs = np.tile(np.log(weights), (len(X), 1))
        for k in range(3):
            for hub in map(list, hubs):
                off = X[:, hub] - means[k, hub]
                block = covariances[k][np.ix_(hub, hub)]
                quadratic = (off @ np.linalg.inv(block) * off).sum(axis=1)
                logs[:, k] -= 0.5 * (quadratic + np.linalg.slogdet(2 * np.pi * block)[1])
        top = logs.max(axis=1, keepdims=True)
        evidence = top[:, 0] + np.log(np.exp(logs - top).sum(axis=1))
        found.append((weight @ evidence) / weight.sum())
        shares = np.exp(logs - evidence[:, None]) * weight[:, None]
        before = means
        counts = shares.sum(axis=0)
        means = shares.T @ X / counts[:, None]
        if "weights" not in fix:
            weights = counts / counts.sum()
        if "covariances" not in fix:
            covariances = np.stack([
                (shares[:, k, None] * (X - means[k])).T @ (X - means[k]) / counts[k] + floor
                for k in range(3)
            ])  # fmt: skip
    return np.array(found), before


def start_of(fix):
    known = {name: KNOWN[name] for name in fix}
    return GivenStart.from_parameters(START, "full", (3, 4), **known)


FIX = [("weights",), ("covariances",), ("weights", "covariances")]
SAME = {"n_components": 3, "max_iter": 6, "tol": 0.0}


FREE = {(): 2 + 12 + 18, FIX[0]: 12 + 18, FIX[1]: 2 + 12, FIX[2]: 12}


@pytest.mark.filterwarnings("ignore::vpem.errors.NotConvergedWarning")
@over(fix=FREE, topology=["star", "path", "rows"])
def test_iterations_are_those_of_the_formula_and_what_is_known_is_no_parameter(fix, topology):
    how = {"init": start_of(fix), "fix": ",".join(fix) or None, **SAME}
    if topology == "rows":
        weight = 0.5 + np.arange(len(X)) % 3
        network = connect_workers(make_graph("star", 3))
        fit = fit_em(X, evenly(len(X), 3), network, sample_weight=weight, **how)
        wanted, means = by_the_formula(6, fix, weight=weight)
    else:
        fit = fit_vpem(X, connect(make_graph(topology, 2), from_lists(HUBS, 4)), **how)
        wanted, means = by_the_formula(6, fix, HUBS)
        np.testing.assert_allclose(fit.history[:, 0] / len(X), wanted[:6], rtol=1e-10)
        total = fit.log_likelihood * len(X)
        assert fit.n_parameters == FREE[fix]
        assert fit.bic == pytest.approx(FREE[fix] * np.log(len(X)) - 2 * total, rel=1e-14)
        assert fit.aic == pytest.approx(2 * FREE[fix] - 2 * total, rel=1e-14)
    assert fit.log_likelihood == pytest.approx(wanted[6], rel=1e-10)
    np.testing.assert_allclose(fit.mixture.assembled_means, means, rtol=1e-9)
    assert (np.diff(wanted) > 0).all()
    if "weights" in fix:
        np.testing.assert_array_equal(fit.mixture.assembled_weights, WEIGHTS)
    for hub in HUBS if "covariances" in fix else ():
        kept = fit.mixture.assembled_covariances[:, hub][:, :, hub]
        np.testing.assert_allclose(kept, COVARIANCES[:, hub][:, :, hub], rtol=1e-12)


@pytest.mark.filterwarnings("ignore::vpem.errors.NotConvergedWarning")
def test_known_weights_beside_a_penalty_of_means():
    """Iterates of EM whose means (about that of all rows) are n_k / (n_k + M L) of the rows'."""
    options = {"n_components": 3, "penalty": "ridge:0.1", "reg_covar": 0.0, "tol": 0.0}
    fit = fit_em(X, evenly(len(X), 2), init=start_of(("weights",)), fix="weights", max_iter=8,
                 **options)  # fmt: skip
    assert fit.mixture.assembled_weights.tolist() == WEIGHTS.tolist()
    off, kappa = X - X.mean(axis=0), 0.1 * len(X)
    means, covariances = off[START], np.stack([np.cov(X.T, bias=True)] * 3)
    for _ in range(8):
        logs = np.log(WEIGHTS) + np.stack([
            multivariate_normal(m, c).logpdf(off) for m, c in zip(means, covariances, strict=True)
        ], axis=1)  # fmt: skip
        shares = np.exp(logs - np.logaddexp.reduce(logs, axis=1)[:, None])
        counts, means = shares.sum(axis=0), shares.T @ off / (shares.sum(axis=0)[:, None] + kappa)
        covariances = np.stack([
            ((shares[:, k, None] * (off - means[k])).T @ (off - means[k])
             + kappa * np.outer(means[k], means[k])) / counts[k] for k in range(3)
        ])  # fmt: skip
    np.testing.assert_allclose(fit.mixture.assembled_means, means + X.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(fit.mixture.assembled_covariances, covariances, rtol=1e-10)
    with pytest.raises(InputError, match="holds covariances, whose M-step"):
        fit_em(X, evenly(len(X), 2), init=start_of(FIX[2]), fix="covariance", **options)


@each("how", [
    {"accelerate": "squarem"}, {"accelerate": "local:4"}, {"batch_size": 30}, {"dtype": "float32"},
    {"scale": "standard"},
])  # fmt: skip
def test_it_stays_fixed_however_EM_goes(how):
    network = connect(make_graph("star", 2), from_lists(HUBS, 4))
    options = {"n_components": 3, "fix": "weights,covariance", "tol": 1e-10}
    plain = fit_vpem(X, network, init=start_of(FIX[2]), **options)
    fit = fit_vpem(X, network, init=start_of(FIX[2]), **options, **how)
    np.testing.assert_array_equal(fit.mixture.assembled_weights, WEIGHTS)
    kept = fit.mixture.assembled_covariances
    np.testing.assert_allclose(kept, plain.mixture.assembled_covariances, rtol=1e-12)
    assert fit.log_likelihood == pytest.approx(plain.log_likelihood, abs=1e-4)


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
def test_a_known_component_may_have_few_rows():
    weights = np.array([1e-9, 0.5, 0.5 - 1e-9])
    start = GivenStart.from_parameters(START, "full", (3, 4), weights=weights)
    network = connect(make_graph("star", 2), from_lists(HUBS, 4))
    fit = fit_vpem(X, network, init=start, fix="weights", n_components=3, max_iter=400)
    np.testing.assert_allclose(fit.mixture.assembled_weights, weights, atol=1e-16)


ONE = connect(make_graph("star", 1), contiguous(4, 1))
REFUSED = [
    ({"fix": "means"}, "must be one of weights"),
    ({"fix": ""}, "must be one of weights"),
    ({"fix": "weights", "n_factors": 1}, "factors"),
    ({"fix": "weights", "weight_concentration_prior_type": "map"}, "prior"),
    ({"fix": "covariance"}, "the start does not give them"),
    *(({"fix": "covariance", "init": start_of(["covariances"]), "covariance_type": kind}, "change")
      for kind in ("diag", "tied", "full")),  # entries between hubs, of a file
    (
        {"fix": "covariance", "covariance_type": "spherical", "scale": "standard", "network": ONE,
         "init": GivenStart.from_parameters(START, "spherical", (3, 4), covariances=[1.0, 2, 3])},
        "the scale of the start",
    ),
    (
        {"fix": "covariance", "init": GivenStart.from_parameters(
            START, "full", (3, 4), means=X[START], **KNOWN).init},  # and of a model
        "change those of the start",
    ),
]  # fmt: skip


@each(("how", "said"), REFUSED)
def test_refusals(how, said):
    network = connect(make_graph("star", 4), contiguous(4, 4))
    with pytest.raises(InputError) as error:
        fit_vpem(
            X, **({"network": network, "n_components": 3, "init": start_of(("weights",))} | how)
        )
    assert said in str(error.value)


def test_the_shell_reads_what_is_known(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = "\n".join(",".join(map(repr, row)) for row in X.tolist())
    (tmp_path / "x.csv").write_text("a,b,c,d\n" + rows)
    known = {name: value.tolist() for name, value in KNOWN.items()}
    (tmp_path / "known.json").write_text(json.dumps(known))
    fit = "fit x.csv -k 3 --partition p.json --init-rows 3,50,100 --max-iter 6 --tol 0 --json -q"
    (tmp_path / "p.json").write_text(json.dumps(HUBS))
    fix = ["--fix", "weights,covariance", "--fix-from", "known.json"]
    shell = partial(run, capsys, *fit.split())
    first = shell(*fix)
    assert first.out, first.err
    report = json.loads(first.out)
    assert report["log_likelihood"] == pytest.approx(
        by_the_formula(6, FIX[2], HUBS)[0][6], rel=1e-10
    )
    assert report["n_parameters"] == 12
    # Broken off after three iterations, and resumed, it ends alike to the bit.
    half = [word if word != "6" else "3" for word in fit.split()]
    done(capsys, *half, *fix, "--checkpoint", "c.ckpt")
    again = json.loads(done(capsys, *fit.split(), *fix, "--checkpoint", "c.ckpt", "--resume").out)
    assert again["history"] == report["history"]
    (tmp_path / "known.json").write_text(json.dumps({"weights": [0.3, 0.3, 0.4]}))
    refused = shell(*fix)
    assert refused.code == 2
    assert "does not give" in refused.err
    for wrong, said in (({"means": []}, "must hold"),
                        ({"weights": [0.5, 0.5]}, "known.json: weights must have shape (3,)"),
                        ({"covariances": [1]}, "known.json: covariances must have shape"),
                        ([], "must hold")):  # fmt: skip
        (tmp_path / "known.json").write_text(json.dumps(wrong))
        assert said in shell(*fix).err


def test_centres_of_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = "\n".join(",".join(map(repr, row)) for row in X.tolist())
    (tmp_path / "x.csv").write_text("a,b,c,d\n" + rows)
    other = "\n".join(",".join(map(repr, row)) for row in X[:, [2, 0, 3, 1]].tolist())
    (tmp_path / "y.csv").write_text("c,a,d,b\n" + other)
    done(capsys, *["kmeans", "x.csv", "-k", "3", "--seed", "1", "-o", "c.h5", "-q"])
    done(capsys, *["fit", "x.csv", "-k", "3", "-o", "m.h5", "-q"])
    found = json.loads(
        done(capsys, *["kmeans", "x.csv", "-k", "3", "--seed", "1", "--json", "-q"]).out
    )
    for data in ("x.csv", "y.csv"):
        for more in ("", " --workers 3", " --split features --agents 2"):
            words = f"kmeans {data} --init-model c.h5 --json -q{more}"
            again = json.loads(done(capsys, *words.split()).out)
            assert again["inertia"] == pytest.approx(found["inertia"], rel=1e-10)
            assert again["n_iter"] <= 2
    json.loads(done(capsys, *["kmeans", "y.csv", "--init-model", "m.h5", "--json", "-q"]).out)
    assert run(capsys, *["kmeans", "x.csv", "-k", "2", "--init-model", "c.h5"]).code == 2
