"""Discriminant analysis: a mixture of each class, as mclust's MclustDA and EDDA."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.datasets import load_iris
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

import vpem
from vpem import DiscriminantAnalysis, InputError, connect, make_graph
from vpem.fits.discriminant import fit_discriminant, held_out_classes
from vpem.network.partition import contiguous

from .cli_support import done, run
from .estimator_support import check_as_scikit_learn_does

X, Y = load_iris(return_X_y=True)
EXACT = {"reg_covar": 0, "tol": 1e-10, "max_iter": 500}

# library(mclust); m <- MclustDA(iris[,1:4], iris$Species, modelType="EDDA", modelNames="EEE")
# c(m$loglik, m$df, m$bic); mean(predict(m)$classification != iris$Species)
EDDA = {
    "tied": (-256.646184255, 22, -623.526344980, 0.02),
    "full": (-182.920848605, 42, -576.288379563, 0.02),
    "diag": (-309.362757894, 24, -738.980762846, 0.04),
    "EEV": (-215.143263127, 34, 2 * -215.143263127 - 34 * np.log(150), None),
    "VEV": (-187.709744405, 36, 2 * -187.709744405 - 36 * np.log(150), None),
    "tied-spherical": (-414.697951273, 13, -894.534161370, 11 / 150),
}


@pytest.mark.parametrize("kind", EDDA)
def test_edda_has_the_likelihood_of_mclust(kind):
    model = DiscriminantAnalysis("edda", covariance_type=kind, **EXACT).fit(X, Y)
    total, free, bic, error = EDDA[kind]
    assert model.fit_.log_likelihood * len(X) == pytest.approx(total, rel=1e-9)
    assert model.fit_.n_parameters == free
    assert -model.fit_.bic == pytest.approx(bic, rel=1e-9)
    assert -model.chosen_[0]["bic"] == pytest.approx(bic, rel=1e-9)
    assert error is None or np.mean(model.predict(X) != Y) == pytest.approx(error)


def test_mixtures_of_classes_are_chosen_as_mclust_does():
    # MclustDA(iris[,1:4], iris$Species, G=1:3,
    #          modelNames=c("EII","VII","EEI","VVI","EEE","VVV")): EEE 2, XXX 1, XXX 1
    model = DiscriminantAnalysis(n_components="1-3", **EXACT).fit(X, Y)
    assert model.fit_.log_likelihood * len(X) == pytest.approx(-172.8135, abs=1e-3)
    assert (model.fit_.n_parameters, round(-model.fit_.bic, 3)) == (47, -581.127)
    assert [one["n_components"] for one in model.chosen_] == [2, 1, 1]
    assert model.chosen_[0]["covariance_type"] == "tied"
    assert model.score(X, Y) == 0.98
    assert model.class_of_component_.tolist() == [0, 0, 1, 2]
    assert model.priors_ == pytest.approx(np.full(3, 1 / 3))


def test_a_common_covariance_is_linear_discriminant_analysis():
    model = DiscriminantAnalysis("edda", covariance_type="tied", **EXACT).fit(X, Y)
    peer = LinearDiscriminantAnalysis(solver="lsqr", store_covariance=True).fit(X, Y)
    assert model.mixture_.assembled_covariances == pytest.approx(peer.covariance_, rel=1e-9)
    assert (model.predict(X) == peer.predict(X)).all()


@pytest.mark.parametrize("graph", ["star", "cycle"])
def test_over_agents_densities_are_products_over_hubs(graph):
    words = np.array(["a", "b", "c"])[Y]
    model = DiscriminantAnalysis(
        n_components=1, covariance_type="full", agents=[[0, 2], [3], [1]], graph=graph, **EXACT
    ).fit(X, words)
    logs = np.empty((len(X), 3))
    for k in range(3):
        rows = X[k == Y]
        logs[:, k] = np.log(1 / 3)
        for part in ([0, 2], [3], [1]):
            covariance = np.cov(rows[:, part].T, bias=True)
            logs[:, k] += multivariate_normal(rows[:, part].mean(0), covariance).logpdf(X[:, part])
    shares = np.exp(logs - np.logaddexp.reduce(logs, axis=1)[:, None])
    tolerance = 1e-8 if graph == "star" else 1e-4
    assert model.predict_proba(X) == pytest.approx(shares, abs=tolerance)
    assert (model.predict(X) == np.array(["a", "b", "c"])[shares.argmax(axis=1)]).all()
    assert model.fit_.communication["messages"] > 0


def test_weights_are_copies_and_priors_of_classes():
    weights = np.where(Y == 0, 2, 1)
    options = {"n_components": 1, "covariance_type": "diag", **EXACT}
    ours = DiscriminantAnalysis(**options).fit(X, Y, weights)
    copies = DiscriminantAnalysis(**options).fit(np.repeat(X, weights, 0), np.repeat(Y, weights))
    assert ours.priors_ == pytest.approx([0.5, 0.25, 0.25])
    assert ours.predict_proba(X) == pytest.approx(copies.predict_proba(X), abs=1e-9)


@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks():
    check_as_scikit_learn_does(DiscriminantAnalysis(n_components=1, covariance_type="diag"))


def test_files_predict_as_before(tmp_path):
    model = DiscriminantAnalysis(n_components=(1, 2), covariance_type="full,diag").fit(X, Y)
    model.save(tmp_path / "m.h5")
    again = vpem.load(tmp_path / "m.h5", DiscriminantAnalysis)
    assert again.predict_proba(X) == pytest.approx(model.predict_proba(X))
    assert again.predict(X[:2]).tolist() == ["0", "0"]
    assert again.chosen_ == model.chosen_
    stored = vpem.read_model(tmp_path / "m.h5")
    stored.report["discriminant"]["class_of"][0] = 7
    stored.save(tmp_path / "bad.h5")
    with pytest.raises(InputError, match="classes does not agree with its components"):
        vpem.load(tmp_path / "bad.h5")


def test_what_cannot_be_is_refused():
    network = connect(make_graph("star", 2), contiguous(4, 2))
    with pytest.raises(InputError, match="row 3 has no label"):
        fit_discriminant(X, np.where(np.arange(150) == 3, -1, Y), network)
    with pytest.raises(InputError, match="has one component a class"):
        DiscriminantAnalysis("edda", 2).fit(X, Y)
    with pytest.raises(InputError, match="each class has its own, whose size BIC"):
        DiscriminantAnalysis(weight_concentration_prior_type="dirichlet_process").fit(X, Y)
    with pytest.raises(InputError, match=r"^covariance_type must be one of"):
        DiscriminantAnalysis(covariance_type="x").fit(X, Y)
    with pytest.raises(InputError, match=r"noise.* is of one mixture"):
        fit_discriminant(X, Y, network, noise=True)
    with pytest.raises(InputError, match=r"class 0, of 2 rows: no mixture could be fitted"):
        DiscriminantAnalysis(n_components=3).fit(X[48:52], Y[48:52])


def test_rows_with_gaps_have_the_numbers_of_all_rows():
    network = connect(make_graph("star", 2), contiguous(4, 2))
    for value, missing in ((np.nan, "refuse"), (np.inf, "marginalize")):
        rows = X.copy()
        rows[120, 2] = value
        with pytest.raises(InputError, match="row 120, feature 2 is"):
            fit_discriminant(rows.tolist(), Y, network, missing=missing)


def test_in_a_shell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savetxt(
        "d.csv", np.column_stack([X, Y]), delimiter=",", header="a,b,c,d,y", comments="", fmt="%g"
    )
    line = "discriminant d.csv --label-column y -k 1 --covariance full,diag --agents 2 --folds 5"
    report = done(capsys, *f"{line} -o c.h5 --json".split()).json
    held = report["classification"]
    assert len(held["folds"]) == 5
    assert held["held_out_error"] == pytest.approx(np.mean(held["folds"]))
    scored = done(capsys, *["score", "c.h5", "d.csv", "--json"]).json
    assert [scored[one] for one in ("n_parameters", "bic")] == pytest.approx(
        [report["n_parameters"], report["bic"]]
    )
    assert 0 < held["held_out_error"] < 0.1
    assert report["discriminant"]["classes"] == ["0", "1", "2"]
    evaluated = done(capsys, *["evaluate", "c.h5", "d.csv", "--label-column", "y", "--json"]).json
    assert evaluated["accuracy"] == pytest.approx(1 - held["training_error"])
    found = done(capsys, *["predict", "c.h5", "d.csv", "--proba", "--json"]).json
    assert sum(found["counts"]) == 150
    assert len(found["counts"]) == 3
    assert np.mean(np.array(found["classes"]).astype(int) == Y) == evaluated["accuracy"]
    refused = run(capsys, *f"{line} --folds 51".split())
    assert "of these there are fewer: 0 (50 rows), 1 (50 rows), 2 (50 rows)" in refused.sentence
    for option in ("--noise", "--factors 1", "--fix weights", "--penalty lasso"):
        said = run(capsys, *line.split(), *option.split()).sentence
        assert f"{option.split()[0]}: it belongs to one mixture" in said
    assert (
        "has no labels" in run(capsys, *["discriminant", "d.csv", "--covariance", "diag"]).sentence
    )


def test_errors_of_weighted_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    weights = np.where(np.arange(150) % 2, 3, 1)
    table = np.column_stack([X, Y, weights])
    np.savetxt("d.csv", table, delimiter=",", header="a,b,c,d,y,w", comments="", fmt="%g")
    line = "discriminant d.csv --label-column y --sample-weight w --type edda --covariance diag"
    held = done(capsys, *f"{line} --folds 2 --json".split()).json["classification"]
    model = DiscriminantAnalysis("edda", covariance_type="diag").fit(X, Y, weights)
    assert held["training_error"] == pytest.approx(1 - model.score(X, Y, weights))
    network = connect(make_graph("star", 1), contiguous(4, 1))
    kept = {"model_type": "edda", "covariance_type": ["diag"]}

    def fit(rows):
        return fit_discriminant(X[rows], Y[rows], network, sample_weight=weights[rows], **kept)

    wrong = np.zeros(150, dtype=bool)
    for fold, missed in held_out_classes(fit, X, Y, 2, 0):
        wrong[fold] = missed
    assert held["held_out_error"] == pytest.approx(np.average(wrong, weights=weights))
    assert held["held_out_error"] != pytest.approx(wrong.mean())
