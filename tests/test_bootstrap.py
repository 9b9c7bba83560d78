"""Standard errors and tests of components by the bootstrap."""

from dataclasses import replace

import numpy as np
import pytest

from vpem import VPEM, DistributedGaussianMixture, InputError, load
from vpem.errors import VpemWarning
from vpem.files.checkpoints import read_state, write_state
from vpem.fits.selection.bootstrap import ENOUGH, Resampling, check_components
from vpem.fits.selection.trials import Cell, Problem

from .cli_support import done, run
from .tables import each


def two_clusters(n=120, gap=6.0, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)) + gap * rng.integers(2, size=n)[:, None]


def fitted(X, k=1, **more):
    return VPEM(k, agents=3, graph="star", random_state=0, reg_covar=0, **more).fit(X)


def resampled(model, X, kind="weighted", seed=0, sample_weight=None):
    fit = model.fit_
    problem = Problem(
        X, {0: fit.network}, getattr(fit, "workers", None), {}, sample_weight=sample_weight
    )
    return Resampling(problem, Cell(fit.mixture.n_components, 0, "full"), fit, kind, seed)


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
    found, drawn = rows.bootstrap(X, n_replicates=3), []
    for number in range(3):
        weights = resampled(rows, X).draw(number)[1]
        refit = VPEM(2, random_state=0, init=rows.mixture_).fit(X, sample_weight=weights)
        drawn.append(refit.means_)
    assert found.standard_errors["means"] == pytest.approx(np.std(drawn, axis=0, ddof=1), rel=1e-3)


def test_random_weights_add_up_to_those_of_the_rows():
    """Priors and floors weigh as much in a refit as in the fit."""
    X = two_clusters(20)
    given = np.linspace(0, 9, 20)
    drawn = resampled(fitted(X), X, sample_weight=given).draw(0)[1]
    assert drawn.sum() == pytest.approx(given.sum())
    assert drawn[0] == 0


def test_a_row_of_weight_four_is_four_rows():
    X = two_clusters(200, gap=0.0)
    heavy = np.full(len(X), 4.0)
    rows = DistributedGaussianMixture(1, workers=2, random_state=0).fit(X, sample_weight=heavy)
    for model in (VPEM(1, random_state=0).fit(X, sample_weight=heavy), rows):
        errors = model.bootstrap(X, heavy, n_replicates=60).standard_errors["means"]
        assert errors[0] == pytest.approx(np.sqrt(X.var(axis=0) / 800), rel=0.3)


def test_each_hub_draws_its_features_from_a_stream_of_its_own():
    X = two_clusters(50)
    model = fitted(X, 2)
    values = resampled(model, X, "parametric", 5).draw(2)[0]
    streams = np.random.default_rng([5, 3, 2]).spawn(4)
    labels = streams[0].choice(2, size=50, p=model.weights_)
    means, variances = model.means_, model.covariances_
    for j, own in enumerate(streams[1:]):
        drawn = means[labels, j] + np.sqrt(variances[labels, j, j]) * own.standard_normal(50)
        assert values[:, j] == pytest.approx(drawn)


def test_each_worker_draws_its_rows_from_a_stream_of_its_own():
    X = two_clusters(50)
    holders = np.arange(50) % 7 % 3
    model = DistributedGaussianMixture(2, workers=holders, random_state=0).fit(X)
    values = resampled(model, X, "parametric", 5).draw(2)[0]
    weights = resampled(model, X, "weighted", 5).draw(2)[1]
    _, *streams = np.random.default_rng([5, 3, 2]).spawn(4)
    lower = np.linalg.cholesky(model.covariances_)
    for worker, own in enumerate(streams):
        n = (holders == worker).sum()
        labels = own.choice(2, size=n, p=model.weights_)
        noise = np.einsum("nij,nj->ni", lower[labels], own.standard_normal((n, 3)))
        assert values[holders == worker] == pytest.approx(model.means_[labels] + noise)
    _, *streams = np.random.default_rng([5, 3, 2]).spawn(4)
    drawn = np.empty(50)
    for worker, own in enumerate(streams):
        drawn[holders == worker] = own.exponential(size=(holders == worker).sum())
    assert weights == pytest.approx(drawn * 50 / drawn.sum())


def test_components_that_switched_are_matched(monkeypatch):
    X = two_clusters()
    model = fitted(X, 2)
    one = resampled(model, X)
    switched = replace(model.fit_, mixture=model.mixture_.permuted(np.array([1, 0])))
    monkeypatch.setattr(Problem, "fit", lambda *_, **__: switched)
    found = one.run(0)
    assert found["moved"]
    assert np.array_equal(found["means"], model.means_)


def test_components_are_matched_by_what_rows_weigh():
    X = two_clusters(13)
    ours, theirs = np.eye(2)[np.arange(13) % 2], np.eye(2)[np.arange(13) % 2 ^ (np.arange(13) > 9)]
    for weights, order in ((None, [0, 1]), (np.arange(13.0) > 9, [1, 0])):
        one = resampled(fitted(X, 2), X, sample_weight=weights)
        one._shares, one.held.responsibilities = ours, lambda _: theirs
        assert one.matching(one.mixture).tolist() == order


def test_ratios_of_replicates_have_the_starts_of_the_observed_one():
    """Both fits of each replicate are those of the estimator to its rows."""
    X = two_clusters(60, gap=1.0)
    model = VPEM(1, covariance_type="diag", random_state=0, n_init=2, tol=1e-3)
    problem = Problem(X, {0: model.fit(X).fit_.network}, None, {"seed": 0, "tol": 1e-3})
    found = check_components(problem, "diag", [2], n_init=2, n_replicates=3, significance=1.0)
    fits = [model.set_params(n_components=k).fit(X).fit_ for k in (2, 3)]
    observed = 120 * (fits[1].log_likelihood - fits[0].log_likelihood)
    seed = int(np.random.default_rng([0, 3, 2]).integers(1 << 31))
    one = Resampling(problem, Cell(2, 0, "diag"), fits[0], "parametric", seed, 2)
    ratios = []
    for number in range(3):
        rows = one.draw(number)[0]
        small, large = (model.set_params(n_components=k).fit(rows).fit_ for k in (2, 3))
        ratios.append(120 * (large.log_likelihood - small.log_likelihood))
    assert one.run(2)["statistic"] == pytest.approx(ratios[2])
    assert found[0]["statistic"] == pytest.approx(observed)
    assert found[0]["n_larger"] == np.sum(np.array(ratios) >= observed)


def test_a_model_of_a_file_has_the_errors_of_its_fit(tmp_path):
    X = two_clusters(60)
    model = fitted(X, 2, tol=1e-10)
    model.save(tmp_path / "m.h5")
    ours, theirs = (one.bootstrap(X, n_replicates=3) for one in (load(tmp_path / "m.h5"), model))
    assert np.array_equal(ours.estimates["means"], theirs.estimates["means"])
    assert ours.standard_errors["means"] == pytest.approx(theirs.standard_errors["means"])
    with pytest.raises(InputError, match="the model was fitted to other rows"):
        load(tmp_path / "m.h5").bootstrap(X[:50], n_replicates=3)
    # A row at the border of those that are trimmed counts in part.
    trimmed = fitted(X, 2, trim=0.03)
    trimmed.save(tmp_path / "t.h5")
    for one in (trimmed, load(tmp_path / "t.h5")):
        assert len(one.bootstrap(X, n_replicates=3).standard_errors["weights"]) == 2


def test_the_test_stops_at_the_first_that_is_not_rejected():
    X = two_clusters()
    more = {"covariance_type": "diag", "tol": 1e-4}
    model = fitted(X, **more)
    first, second = model.test_components(X, range(1, 5), n_replicates=19)
    assert model.test_components(X, 1, n_replicates=19) == [first]
    ratio = 2 * len(X) * (fitted(X, 2, **more).score(X) - model.score(X))
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
    for others in (X[:30], X + 1.0):
        with pytest.raises(InputError, match="was fitted to other rows"):
            model.bootstrap(others, n_replicates=2)
    with pytest.raises(InputError, match=r"40 rows had .* 80 here have"):
        model.bootstrap(X, np.full(40, 2.0), n_replicates=2)
    with pytest.raises(InputError, match="belong to none with trim"):
        fitted(X, 1, trim=0.1).test_components(X, 1)
    with pytest.warns(VpemWarning, match=r"no p below 0\.333, so that none is rejected at 0\.05"):
        model.test_components(X, 1, n_replicates=2)
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
    with pytest.raises(InputError, match="leaves refits where they start"):
        fitted(X, 1, max_iter=0).bootstrap(X)
    with pytest.raises(InputError, match="without noise"):
        VPEM(1, release_epsilon=1.0).test_components(X, 1)
    with pytest.raises(InputError, match="n_components must have at least one"):
        model.test_components(X, [])
    with pytest.raises(InputError, match="without factors"):
        fitted(X, 1, n_factors=1).bootstrap(X)


def test_fits_that_look_unlike_their_rows_have_errors():
    """A posterior has a likelihood of its own, trimming counts fewer rows, noise has a share."""
    X = two_clusters(60)
    prior = {"weight_concentration_prior_type": "dirichlet_process"}
    for more in (prior, {"trim": 0.1}, {"noise": True}):
        model = VPEM(2, random_state=0, tol=1e-4, **more).fit(X)
        assert (model.bootstrap(X, n_replicates=2).standard_errors["means"] > 0).all()


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
    kept = (*words, "-j", 1, "--state", "s.h5", "--json")
    done(capsys, *kept, "--replicates", 2)
    assert done(capsys, *kept).json["standard_errors"] == one["standard_errors"]
    assert (
        "was 'weighted', now it is 'parametric'"
        in run(capsys, *kept, "--kind", "parametric").sentence
    )
    # Replicates from before, by other weights of rows, are not taken with these.
    np.savetxt("w.csv", np.column_stack([X, np.arange(len(X)) % 2 + 1]), header="a,b,c,w",
               delimiter=",", comments="")  # fmt: skip
    weighed = ("bootstrap", "w.csv", "--sample-weight", "w", "-j", 1, "--state", "w_state.h5")
    weighed += ("--covariance", "diag", "--replicates", 2)
    done(capsys, *weighed)
    state = read_state("w_state.h5")
    del state["facts"]["weights of rows"]
    write_state("w_state.h5", state)
    assert "weights of rows was None, now" in run(capsys, *weighed).sentence
    done(capsys, "fit", "x.csv", "--agents", 3, "--covariance", "diag", "-o", "m.h5")
    of_file = ("bootstrap", "x.csv", "--agents", 3, "--replicates", 5, "--model", "m.h5", "--json")
    of_file = done(capsys, *of_file, "-j", 1).json
    for name, values in one["standard_errors"].items():
        assert np.array(of_file["standard_errors"][name]) == pytest.approx(np.array(values))
    assert (
        "--components is that of --model"
        in run(capsys, *words, "--model", "m.h5", "-k", 3).sentence
    )
    np.savetxt("y.csv", X[:99], delimiter=",", header="a,b,c", comments="")
    other = run(capsys, "bootstrap", "y.csv", "--agents", 3, "--model", "m.h5")
    assert "m.h5 was fitted to other rows or weights, or by other agents" in other.sentence
    tests = done(capsys, *words, "-k", "1-3", "--test", "-j", 1, "--json").json
    assert tests["tests"][0]["n_components"] == 1
    assert "give one number" in run(capsys, *words, "-k", "1-3").sentence
    assert "--level" in run(capsys, *words, "--test", "--level", 0.9).sentence
