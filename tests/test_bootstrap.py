"""Standard errors and tests of components by the bootstrap."""

import numpy as np
import pytest

from vpem import VPEM, DistributedGaussianMixture, InputError
from vpem.fits.selection.bootstrap import ENOUGH, Resampling

from .cli_support import done, run
from .tables import each


def two_clusters(n=120, gap=6.0, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)) + gap * rng.integers(2, size=n)[:, None]


def fitted(X, k=1, **more):
    return VPEM(k, agents=3, graph="star", random_state=0, reg_covar=0, **more).fit(X)


@each("kind", ["weighted", "parametric"])
def test_errors_of_one_component_are_those_of_textbooks(kind):
    X = two_clusters(200, gap=0.0)
    found = fitted(X).bootstrap(X, kind=kind, n_replicates=120)
    n, variances = len(X), X.var(axis=0)
    assert found.standard_errors["weights"] == pytest.approx([0.0])
    assert found.standard_errors["means"][0] == pytest.approx(np.sqrt(variances / n), rel=0.2)
    errors = np.diagonal(found.standard_errors["covariances"][0])
    fourth = ((X - X.mean(axis=0)) ** 4).mean(axis=0)
    law = fourth - variances**2 if kind == "weighted" else 2 * variances**2
    assert errors == pytest.approx(np.sqrt(law / n), rel=0.2)
    half = 1.96 * np.sqrt(variances / n)
    assert found.lower["means"][0] == pytest.approx(X.mean(axis=0) - half, abs=0.05)
    assert found.upper["means"][0] == pytest.approx(X.mean(axis=0) + half, abs=0.05)


def test_replicates_by_hand_and_the_same_for_features_and_rows():
    X = two_clusters()
    model = VPEM(2, random_state=0).fit(X)
    rows = DistributedGaussianMixture(2, workers=4, random_state=0).fit(X)
    found, again = model.bootstrap(X, n_replicates=4), model.bootstrap(X, n_replicates=4)
    drawn = []
    for number in range(4):
        rng = np.random.default_rng([0, 3, number]).spawn(2)[0]
        weights = rng.exponential(size=len(X))
        weights *= len(X) / weights.sum()
        refit = VPEM(2, random_state=0, init=model.mixture_).fit(X, sample_weight=weights)
        drawn.append(refit.means_)
    assert found.standard_errors["means"] == pytest.approx(np.std(drawn, axis=0, ddof=1))
    for name, values in found.standard_errors.items():
        assert np.array_equal(again.standard_errors[name], values)
    start = VPEM(2, random_state=0, init=rows.mixture_).fit(X)
    apart = start.mixture_.means - rows.mixture_.means
    assert np.abs(apart).max() < 0.1
    of_rows = rows.bootstrap(X, n_replicates=4).standard_errors["means"]
    order = np.argsort(model.means_[:, 0]), np.argsort(rows.means_[:, 0])
    assert of_rows[order[1]] == pytest.approx(found.standard_errors["means"][order[0]], rel=0.05)


def test_random_weights_add_up_to_those_of_the_rows():
    """Priors and floors weigh as much in a refit as in the fit."""
    X = two_clusters(20)
    given = np.linspace(0, 9, 20)
    drawn = Resampling(None, X, given, fitted(X).mixture_, "weighted", 0).draw(0)[1]
    assert drawn.sum() == pytest.approx(given.sum())
    assert drawn[0] == 0


def test_each_hub_draws_its_features_from_a_stream_of_its_own():
    X = two_clusters(50)
    mixture = fitted(X, 2).mixture_
    values = Resampling(None, X, None, mixture, "parametric", 5).draw(2)[0]
    streams = np.random.default_rng([5, 3, 2]).spawn(4)
    labels = streams[0].choice(2, size=50, p=mixture.assembled_weights)
    means, variances = mixture.assembled_means, mixture.assembled_covariances
    for j, own in enumerate(streams[1:]):
        drawn = means[labels, j] + np.sqrt(variances[labels, j, j]) * own.standard_normal(50)
        assert values[:, j] == pytest.approx(drawn)


def test_components_that_switched_are_matched():
    X = two_clusters()
    model = fitted(X, 2)

    def refit(X, weights, n_components, **more):
        fit = model.fit_
        return type("Refit", (), {
            "degenerate": [], "mixture": fit.mixture.permuted(np.array([1, 0])),
        })()  # fmt: skip

    one = Resampling(refit, X, None, model.mixture_, "weighted", 0).run(0)
    assert one["moved"]
    assert np.array_equal(one["means"], model.means_)


def test_the_test_stops_at_the_first_that_is_not_rejected():
    X = two_clusters()
    model = fitted(X, covariance_type="diag")
    first, second = model.test_components(X, range(1, 5), n_replicates=19)
    ratio = 2 * len(X) * (fitted(X, 2, covariance_type="diag").score(X) - model.score(X))
    assert first["statistic"] == pytest.approx(ratio, rel=1e-6)
    assert (first["n_larger"], first["p_value"], first["n_components"]) == (0, 1 / 20, 1)
    assert second["p_value"] > 0.05
    if second["stopped_early"]:
        assert second["p_value"] == ENOUGH / second["n_replicates"]


def test_what_the_bootstrap_refuses():
    X = two_clusters(40)
    model = fitted(X, 2)
    with pytest.raises(InputError, match="have no weights"):
        model.bootstrap(X, np.ones(40), kind="parametric")
    with pytest.raises(InputError, match="kind must be one of"):
        model.bootstrap(X, kind="jackknife")
    with pytest.raises(InputError, match="n_replicates"):
        model.bootstrap(X, n_replicates=1)
    known = VPEM(2, random_state=0).fit(X, labels_for_fit=[0, 1] + [None] * 38)
    with pytest.raises(InputError, match="without labels of rows"):
        known.bootstrap(X, n_replicates=2)
    for wrong in (0, 1.5, "two"):
        with pytest.raises(InputError, match="n_jobs"):
            model.bootstrap(X, n_replicates=2, n_jobs=wrong)
        with pytest.raises(InputError, match="n_jobs"):
            model.test_components(X, [1], n_replicates=2, n_jobs=wrong)
    with pytest.raises(InputError, match="without factors"):
        fitted(X, 1, n_factors=1).bootstrap(X)


def test_the_command(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X = two_clusters()
    np.savetxt("x.csv", X, delimiter=",", header="a,b,c", comments="")
    words = ("bootstrap", "x.csv", "--agents", 3, "--replicates", 5, "--covariance", "diag")
    one, two = (done(capsys, *words, "-j", jobs, "--json").json for jobs in (1, 2))
    assert one["standard_errors"] == two["standard_errors"]
    assert np.shape(one["standard_errors"]["covariances"]) == (2, 3)
    shown = done(capsys, *words, "-j", 1).out
    assert "matched with the fit's" in shown
    assert "variance a" in shown
    tests = done(capsys, *words, "-k", "1-3", "--test", "-j", 1, "--json").json
    assert tests["tests"][0]["n_components"] == 1
    assert "give one number" in run(capsys, *words, "-k", "1-3").sentence
    assert "--level" in run(capsys, *words, "--test", "--level", 0.9).sentence
