"""What a mixture loses without each party, by SciPy, and what separates its components."""

import json
from itertools import combinations

import numpy as np
import pytest
from scipy.special import logsumexp, rel_entr
from scipy.stats import multivariate_normal
from sklearn.metrics import adjusted_rand_score

from vpem import VPEM, InputError, Model, fit_vpem, read_dataset, read_model
from vpem.engines.placement import Placement
from vpem.fits.answer import boundaries
from vpem.fits.contribution import contribution, spread_contribution
from vpem.fits.spread_rows import SpreadRows
from vpem.network.partition import Blocks, from_lists
from vpem.pictures.page import draw
from vpem.pictures.saved import read_saved
from vpem.settings import COVARIANCE_TYPES

from .cli_support import done, make_data, run
from .missing_support import clusters, dense, network, random_mixture
from .tables import over
from .thread_engine import together

BLOCKS = Blocks((np.array([4, 0]), np.array([1, 5, 2]), np.array([3])), (0, 1, 2), ((0,),) * 3)
NAMES = tuple("uvwxyz")
PARTIES = {"a": [0, 4], "b": [1], "c": [2, 5], "d": [3]}
ACROSS = {"a": [0, 3], "b": [4, 1], "c": [2]}
"""Features of several hubs; nobody has the last."""
X = clusters(1, 70, 6, 3)


def model_of(mixture):
    return Model(mixture, NAMES, {}, np.empty((0, 3)))


def holed(data):
    """Rows of which some miss what others have, and one everything of the first party."""
    found = data.copy()
    found[::3, [1, 4]], found[1::3, [3]], found[4] = np.nan, np.nan, np.nan
    found[4, 5] = data[4, 5]
    return found


def joint(mixture, data, columns):
    """``log pi_k + log p_k`` of some features of each row, what is missing left out, by SciPy."""
    means, covariances = dense(mixture)
    columns = np.array(columns)
    found = np.tile(np.log(mixture.assembled_weights), (len(data), 1))
    patterns, which = np.unique(np.isnan(data), axis=0, return_inverse=True)
    for number, missed in enumerate(patterns):
        rows, kept = np.flatnonzero(which.ravel() == number), columns[~missed[columns]]
        for k in range(len(means) if len(kept) else 0):
            own = multivariate_normal(means[k][kept], covariances[k][np.ix_(kept, kept)])
            found[rows, k] += own.logpdf(data[np.ix_(rows, kept)])
    return found


def by_definition(mixture, data, own, weights):
    rest = [j for j in range(6) if j not in own]
    every, alone, without = (joint(mixture, data, some) for some in (range(6), own, rest))
    scores = [logsumexp(one, axis=1) for one in (every, alone, without)]
    shares = [
        np.exp(one - score[:, None])
        for one, score in zip((every, alone, without), scores, strict=True)
    ]
    prior = np.broadcast_to(mixture.assembled_weights, shares[0].shape)
    each = {
        "log_likelihood_lost": scores[0] - scores[2],
        "shared_information": scores[0] - scores[2] - scores[1],
        "information": rel_entr(shares[1], prior).sum(axis=1),
        "information_lost": rel_entr(shares[0], shares[2]).sum(axis=1),
        "rows_moved": shares[0].argmax(axis=1) != shares[2].argmax(axis=1),
    }
    found = {name: np.average(values, weights=weights) for name, values in each.items()}
    return found, np.average(scores[0], weights=weights), shares


@over(kind=COVARIANCE_TYPES, parties=[PARTIES, ACROSS], missing=["refuse", "marginalize"])
def test_figures_are_what_they_are_called(kind, parties, missing):
    mixture = random_mixture(np.random.default_rng(3), BLOCKS, kind, 3)
    data = X if missing == "refuse" else holed(X)
    weights = np.random.default_rng(5).integers(0, 3, len(data))
    truth = np.random.default_rng(6).choice(["ill", "well"], len(data))
    found = contribution(
        model_of(mixture), data, parties=parties, sample_weight=weights, labels=truth,
        missing=missing,
    )  # fmt: skip
    copies = np.repeat(np.arange(len(data)), weights)
    assert {one.name for one in found.parties} == set(parties)
    lost = [one.information_lost for one in found.parties]
    assert lost == sorted(lost, reverse=True)
    for one in found.parties:
        wanted, score, shares = by_definition(mixture, data, parties[one.name], weights)
        assert one.features == tuple(NAMES[j] for j in parties[one.name])
        for name, value in wanted.items():
            assert getattr(one, name) == pytest.approx(value, rel=1e-9, abs=1e-12), name
        with_it, without = (shares[at].argmax(axis=1)[copies] for at in (0, 2))
        assert one.agreement == pytest.approx(adjusted_rand_score(with_it, without))
        assert one.adjusted_rand_index == pytest.approx(adjusted_rand_score(truth[copies], without))
        assert found.log_likelihood == pytest.approx(score)
        assert found.adjusted_rand_index == pytest.approx(
            adjusted_rand_score(truth[copies], with_it)
        )
    assert found.n_samples == np.count_nonzero(weights)
    alone = {
        name: by_definition(mixture, data, [j], weights)[0]["information"]
        for j, name in enumerate(NAMES)
    }
    assert [one.name for one in found.features] == sorted(NAMES, key=lambda name: -alone[name])
    for one in found.features:
        assert one.information == pytest.approx(alone[one.name], rel=1e-9)
        assert one.share == pytest.approx(alone[one.name] / found.entropy)
    table = found.columns()
    assert table["name"].tolist() == [one.name for one in (*found.parties, *found.features)]
    np.testing.assert_allclose(table["share"], table["information"] / found.entropy)
    assert table["information_lost"][: len(parties)].tolist() == lost
    assert table["information_lost"].mask[len(parties) :].all()


def test_rows_of_the_mixture_tell_mutual_information():
    """The chain rule: what all tell is what others tell, and what only this party does."""
    mixture = random_mixture(np.random.default_rng(8), BLOCKS, "full", 3)
    drawn = mixture.sample(5_000, np.random.default_rng(0))[0]
    model = model_of(mixture)
    all_of_it = contribution(model, drawn, parties={"all": range(6)}).parties[0]
    for name, own in PARTIES.items():
        one = contribution(model, drawn, parties={name: own}).parties[0]
        rest = [j for j in range(6) if j not in own]
        others = contribution(model, drawn, parties={"rest": rest}).parties[0]
        chained = others.information + one.information_lost
        assert all_of_it.information == pytest.approx(chained, abs=0.03)
        assert one.shared_information == pytest.approx(others.shared_information, rel=1e-9)
        assert one.shared_information > 0
    # A party that has everything shares it with nobody, and all that is known goes with it.
    assert all_of_it.shared_information == pytest.approx(0, abs=1e-12)
    assert all_of_it.information_lost == all_of_it.information


def test_a_row_that_lies_far_away_takes_no_digits_of_others():
    mixture = random_mixture(np.random.default_rng(3), BLOCKS, "full", 3)
    far = X.copy()
    far[:, 3] = 1e9
    one = contribution(model_of(mixture), far, parties={"d": [3]}).parties[0]
    kept = np.delete(far, 3, axis=1)
    scores = mixture.marginal([0, 1, 2, 4, 5]).score_samples(kept)
    lost = (mixture.score_samples(far) - scores).mean()
    assert one.log_likelihood_lost == pytest.approx(lost, rel=1e-12)
    assert np.isfinite(one.information_lost)


def test_a_variational_posterior_is_judged_at_its_means():
    model = VPEM(
        n_components=3, agents=6, weight_concentration_prior_type="dirichlet_process", tol=1e-3
    )
    fitted = model.fit(X).mixture_
    found, wanted = (
        contribution(model_of(one), X, parties=PARTIES) for one in (fitted, fitted.plain)
    )
    assert found.describe() == wanted.describe()
    assert found.log_likelihood == pytest.approx(fitted.plain.score_samples(X).mean(), rel=1e-12)


def spread_over(engine, held, data, mixture, *how):
    """Contributions by the ranks of an engine, and what they sent."""
    place = Placement.evenly(engine, held.n_agents, held.names)
    own = np.concatenate([held.features[party] for party in place.own])
    rows = SpreadRows(data[:, own], held, range(6), place, NAMES, *how)
    return spread_contribution(rows, mixture, NAMES), rows.communication


@over(
    kind=["full", "tied-diag"], n_ranks=[1, 2, 4], missing=["refuse", "marginalize"], secure=[0, 1]
)
def test_processes_find_what_one_finds(kind, n_ranks, missing, secure):
    blocks = Blocks(tuple(map(np.array, PARTIES.values())), (0, 1, 2, 3), ((0,),) * 4)
    blocks = BLOCKS if not secure else blocks
    mixture = random_mixture(np.random.default_rng(3), blocks, kind, 3)
    data = X if missing == "refuse" else holed(X)
    held = from_lists(list(PARTIES.values()), 6, tuple(PARTIES))

    wanted = contribution(model_of(mixture), data, parties=PARTIES, missing=missing).describe()
    work = lambda engine: spread_over(engine, held, data, mixture, missing, bool(secure))  # noqa: E731
    for found, sent in together(n_ranks, work):
        described = found.describe()
        for kind_of in ("parties", "features"):
            for one, other in zip(described.pop(kind_of), wanted[kind_of], strict=True):
                numbers = {name for name in one if isinstance(one[name], float)}
                # Under masks terms are in fixed point.
                assert {n: one[n] for n in numbers} == pytest.approx(
                    {n: other[n] for n in numbers}, rel=1e-6 if secure else 1e-9, abs=1e-9
                )
                assert {n: one[n] for n in one.keys() - numbers} == {
                    n: other[n] for n in one.keys() - numbers
                }
        assert described["log_likelihood"] == pytest.approx(wanted["log_likelihood"], rel=1e-8)
        # Six figures a party, and one a feature.
        assert sent["figures"]["bytes"] == 8 * (6 * 4 + 6)


def test_a_party_in_hubs_of_several_roots_is_refused_by_all():
    held = from_lists([[0, 4, 3], [1, 2, 5]], 6, ("a", "b"))
    both = Blocks((np.array([4, 0]), np.array([1, 5, 2, 3])), (0, 1), ((0,),) * 2)
    mixture = random_mixture(np.random.default_rng(3), both, "full", 2)
    for error in together(2, lambda engine: spread_over(engine, held, X, mixture)):
        assert isinstance(error, InputError)
        assert "'a' has features in hubs of several roots" in str(error)


# ---- on the command line, and in Python ---------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("contribution")
    make_data(path / "d.h5")
    return path


def test_parties_of_the_data_are_those_that_are_judged(capsys, folder, tmp_path):
    """What is shown, and tables, are among the golden files."""
    data, model = folder / "d.h5", tmp_path / "m.h5"
    done(capsys, "data", "split", data, "-o", tmp_path / "apart", "-q")
    files = sorted((tmp_path / "apart").glob("*.h5"))
    done(capsys, "fit", *files, "--parties", "-k", 2, "-o", model, "-q")
    found = done(capsys, "model", "contribution", model, data, "--json").json
    source, kept = read_dataset(data), read_model(model)
    X = source.X[:, [source.feature_names.index(name) for name in kept.feature_names]]
    wanted = contribution(kept, X, labels=source.labels).describe()
    assert found == json.loads(json.dumps(wanted))
    assert {one["name"] for one in found["parties"]} == {"clinic", "registry", "lab"}
    apart = done(capsys, "model", "contribution", model, *files, "--parties", "--json").json
    for one, other in zip(apart["parties"], found["parties"], strict=True):
        assert (one["name"], one["features"]) == (other["name"], other["features"])
        assert one["information_lost"] == pytest.approx(other["information_lost"], rel=1e-9)


def test_of_rows_there_are_features_only_and_clusters_have_none(capsys, folder, tmp_path):
    data, model, groups = folder / "d.h5", tmp_path / "m.h5", tmp_path / "c.h5"
    done(capsys, "fit", data, "--split", "rows", "--workers", 3, "-o", model, "-q")
    found = done(capsys, "model", "contribution", model, data, "--json").json
    assert found["parties"] == []
    assert len(found["features"]) == 6
    done(capsys, "kmeans", data, "-o", groups, "-q")
    assert "holds clusters" in run(capsys, "model", "contribution", groups, data).sentence


def test_estimators_tell_it_too():
    made = VPEM(2, agents=[[0, 1], [2], [3, 4, 5]], random_state=0).fit(X)
    fit = fit_vpem(X, network([[0, 1], [2], [3, 4, 5]]), n_components=2)
    found = made.contribution(X)
    assert [len(one.features) for one in found.parties] != []
    assert found.log_likelihood == pytest.approx(fit.log_likelihood, rel=1e-6)
    with pytest.raises(InputError, match="different numbers from 0 to 5"):
        contribution(made.kept(), X, parties={"a": [0, 6]})


# ---- decision boundaries -------------------------------------------------------------------------

RNG = np.random.default_rng(2)
SCALE = np.array([1.0, 1e4, 1e-3])
ROWS = np.concatenate([
    RNG.multivariate_normal(mean, spread * np.eye(3) + 0.3, 60)
    for mean, spread in (([0, 0, 0], 1.0), ([3, 1, 0], 0.5), ([0, 3, 3], 2.0))
]) * SCALE + 5 * SCALE  # fmt: skip


def log_density(x, mean, covariance):
    off = x - mean
    quadratic = np.einsum("mi,ij,mj->m", off, np.linalg.inv(covariance), off)
    return -0.5 * (quadratic + np.linalg.slogdet(2 * np.pi * covariance)[1])


@pytest.fixture
def in_a_shell(tmp_path, capsys):
    """Fit in a shell, and return the file."""
    rows = "\n".join(",".join(map(repr, row)) for row in ROWS.tolist())
    (tmp_path / "x.csv").write_text("a,b,c\n" + rows)

    def fit(words):
        command, *options = words.split()
        done(capsys, command, tmp_path / "x.csv", "-k", 3, *options, "-q", "-o", tmp_path / "m.h5")
        return tmp_path / "m.h5"

    return fit


@pytest.mark.parametrize("kind", ["full", "diag", "spherical", "tied", "tied-diag"])
def test_they_are_log_ratios_of_posteriors(kind, in_a_shell):
    file = in_a_shell(f"fit --covariance {kind} --init-rows 5,70,130 --max-iter 9 --agents 1")
    weights, means, covariances = read_saved(file).gaussians()
    for columns in ([0, 1, 2], [2, 0]):
        here = covariances[:, columns][:, :, columns]
        found = boundaries(weights, means[:, columns], here)
        assert [(one.one, one.two) for one in found] == list(combinations(range(3), 2))
        for one in found:
            wanted = np.log(weights[one.one] / weights[one.two])
            wanted = wanted + log_density(ROWS[:, columns], means[one.one, columns], here[one.one])
            wanted = wanted - log_density(ROWS[:, columns], means[one.two, columns], here[one.two])
            np.testing.assert_allclose(one.at(ROWS[:, columns]), wanted, rtol=1e-8, atol=1e-8)
            assert (one.quadratic is None) == kind.startswith("tied")
    found = boundaries(weights, means, covariances)
    first = (found[0].at(ROWS) > 0) & (found[1].at(ROWS) > 0)
    np.testing.assert_array_equal(first, read_saved(file).assign(ROWS) == 0)


def test_equal_variances_have_the_line_of_the_slides():
    """``c + w^T x`` with ``w = (mu_i - mu_j) / sigma^2``, as "Distributed Clustering" has it."""
    weights, means, variance = np.array([0.3, 0.7]), np.array([[1.0, 2.0], [-1.0, 0.5]]), 1.7
    [line] = boundaries(weights, means, np.tile(variance * np.eye(2), (2, 1, 1)))
    constant = np.log(0.3 / 0.7) - (means[0] @ means[0] - means[1] @ means[1]) / (2 * variance)
    np.testing.assert_allclose(line.linear, (means[0] - means[1]) / variance, rtol=1e-14)
    assert line.constant == pytest.approx(constant, rel=1e-13)
    assert line.quadratic is None
    assert boundaries(np.array([1.0, 0.0]), means, np.tile(np.eye(2), (2, 1, 1))) == []


@pytest.mark.parametrize("scale", ["none", "standard"])
def test_clusters_are_divided_halfway(scale, in_a_shell, capsys):
    file = in_a_shell(f"kmeans --workers 2 --scale {scale}")
    lines = boundaries(*read_saved(file).gaussians())
    nearer = np.stack([one.at(ROWS) > 0 for one in lines])  # of 0 to 1, 0 to 2, 1 to 2
    labels = np.where(nearer[0] & nearer[1], 0, np.where(nearer[2], 1, 2))
    np.testing.assert_array_equal(labels, read_saved(file).stored.labels)
    shown = done(capsys, "model", "boundaries", file, "--features", "c,a").out
    assert shown.count("linear") == 3


def test_the_shell_shows_and_draws_them(in_a_shell, capsys):
    file = in_a_shell("fit --agents 1")
    report = json.loads(done(capsys, "model", "boundaries", file, "--json").out)
    [first, *_] = report["boundaries"]
    weights, means, covariances = read_saved(file).gaussians()
    wanted = boundaries(weights, means, covariances)[0]
    np.testing.assert_allclose(first["quadratic"], wanted.quadratic)
    assert (first["kind"], report["features"]) == ("quadratic", ["a", "b", "c"])
    shown = done(capsys, "model", "boundaries", file, "--features", "a,c").out
    assert "a * c" in shown
    assert run(capsys, "model", "boundaries", file, "--features", "z").code == 2
    picture = draw("boundaries", read_saved(file), None, features=["a", "c"])
    assert "curves" in picture.alt
    with pytest.raises(InputError, match="name two"):
        draw("boundaries", read_saved(file), None, features=["a", "b", "c"])
    refused = run(
        capsys, "model", "boundaries", in_a_shell("fit --prior dirichlet_process --force")
    )
    assert refused.code == 2
    assert "variational" in refused.err
