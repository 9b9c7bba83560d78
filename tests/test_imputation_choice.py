"""Method, rank and ridge of an imputation, chosen by entries that everybody hides by itself."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_iris, load_wine

import vpem
from vpem.errors import InputError, VpemWarning
from vpem.fits.imputation import fit_imputation
from vpem.fits.mixture_imputation import MixtureImputation
from vpem.network.graph import make_graph
from vpem.sums.connect import connect_workers, spread_workers
from vpem.terms.lowrank.entries import from_matrices, hide, split

from .cli_support import done, run
from .resume_support import check_resumes
from .tables import each
from .thread_engine import ThreadEngine, together

pytestmark = pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")


class AtHome(ThreadEngine):
    """A member of a study that is a thread: values stay where they are."""

    open = False


def low_rank(seed=0, shape=(30, 8), noise=0.3):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(shape[0], 2)) @ rng.normal(size=(2, shape[1]))
    X = X * 10.0 ** rng.integers(-2, 3, size=shape[1]) + noise * X.std(axis=0) * rng.normal(
        size=shape
    )
    return np.where(rng.random(shape) < 0.15, np.nan, X)


def counts(seed=0, shape=(30, 10)):
    rng = np.random.default_rng(seed)
    theta = 1 + 0.8 * rng.normal(size=(shape[0], 1)) @ rng.normal(size=(1, shape[1]))
    return np.where(rng.random(shape) < 0.2, np.nan, rng.poisson(np.exp(theta)).astype(float))


def standardized(found, kept, hidden):
    """Error on hidden entries in standard deviations of what is left of their columns."""
    mean, spread = np.nanmean(kept.mean, axis=0), np.nanstd(kept.mean, axis=0)
    columns = hidden.places % kept.shape[1]
    away = (found.ravel()[hidden.places] - hidden.values) / spread[columns]
    return np.sqrt(np.mean(away**2)), mean


@each("load", [load_iris, load_wine, load_diabetes])
def test_the_default_is_about_as_good_as_the_better_of_column_means_and_a_normal_law(load):
    kept, hidden = hide(from_matrices(load().data), 0.1, np.random.default_rng(3))
    ours, mean = standardized(fit_imputation(kept).fitted, kept, hidden)
    means, _ = standardized(np.tile(mean, (kept.shape[0], 1)), kept, hidden)
    normal, _ = standardized(fit_imputation(kept, method="mixture").fitted, kept, hidden)
    assert ours <= 1.1 * min(means, normal)


def test_what_is_explicit_is_taken_and_costs_nothing():
    given = split(from_matrices(low_rank()), 3, "random", np.random.default_rng(0))
    fit = fit_imputation(given, rank=2, max_iter=5, tol=0.0)
    assert (fit.choice, fit.rank, fit.ridge) == (None, 2, 1.0)
    assert fit_imputation(given, ridge=3.0, max_iter=5).rank == 2
    open_ = fit_imputation(given, max_iter=5, tol=0.0)
    chosen = open_.choice
    assert chosen["error"] == min(one["error"] for one in chosen["candidates"])
    assert {"rank": open_.rank, "ridge": open_.ridge}.items() <= min(
        chosen["candidates"], key=lambda one: one["error"]
    ).items()
    again = fit_imputation(given, rank=open_.rank, ridge=open_.ridge, max_iter=5, tol=0.0)
    np.testing.assert_array_equal(again.fitted, open_.fitted)
    assert again.communication["bytes"] < open_.communication["bytes"]
    ridge = fit_imputation(given, rank=2, ridge="auto", max_iter=5).choice["candidates"]
    assert {one["rank"] for one in ridge} == {2}
    rank = fit_imputation(given, rank="auto", ridge=2.0, max_iter=5).choice["candidates"]
    assert {one["ridge"] for one in rank} == {2.0}


def test_a_mixture_is_compared_where_nothing_is_sent():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 1)) @ np.ones((1, 4)) + 0.05 * rng.normal(size=(80, 4))
    X = np.where(rng.random(X.shape) < 0.2, np.nan, X)
    alone = fit_imputation(from_matrices(X))
    assert alone.choice["mixture"] == "tried"
    assert {one["method"] for one in alone.choice["candidates"]} == {"lowrank", "mixture"}
    parts = split(from_matrices(X), 2, "rows")
    for given, how, why in (
        (parts, {}, "several observers"),
        (from_matrices(X), {"method": "lowrank"}, "the method was given"),
        (from_matrices(X), {"copies": "fewest"}, "copies"),
    ):
        found = fit_imputation(given, **how)
        assert why in found.choice["mixture"]
        assert not isinstance(found, MixtureImputation)
        assert {one["method"] for one in found.choice["candidates"]} == {"lowrank"}


NETWORKS = {
    "server": {},
    "masked": {"secure_sum": True},
    "path": {"graph": "path", "sum": "tree"},
    "rounds": {"graph": "complete"},
}


@each("way", list(NETWORKS))
@each("how", [{}, {"copies": "fewest"}, {"participation": 0.7}])
def test_processes_choose_as_one_does_and_no_entry_is_gathered(way, how, monkeypatch):
    if way == "masked" and "participation" in how:
        return
    options = dict(NETWORKS[way])
    graph = make_graph(options.pop("graph", "star"), 3)
    given = split(from_matrices(low_rank(shape=(12, 6))), 3, "random", np.random.default_rng(0))
    how = {"max_iter": 4, "tol": 0.0, "n_threads": 1} | how
    monkeypatch.setattr("vpem.fits.imputation.MOST_FOLDS", 2)
    alone = fit_imputation(given, network=connect_workers(graph, **options), **how)

    def fit(member):
        network = spread_workers(connect_workers(graph, **options), member)
        own = given.seen_by(set(network.total.holders.own.tolist()))
        return fit_imputation(own, network=network, **how)

    engine = ThreadEngine if way == "rounds" else AtHome
    for found in together(3, fit, engine):
        assert (found.rank, found.ridge) == (alone.rank, alone.ridge)
        np.testing.assert_allclose(found.choice["error"], alone.choice["error"], rtol=1e-9)
        np.testing.assert_allclose(found.fitted, alone.fitted, rtol=1e-7, atol=1e-9)
        assert found.communication == alone.communication


def test_everybody_hides_the_same_places_and_keeps_an_entry():
    X = low_rank()
    given = from_matrices([X, np.where(np.arange(X.size).reshape(X.shape) % 3, X, np.nan)])
    from vpem.fits.observers import Observers
    from vpem.network.ledger import Ledger

    network = connect_workers(make_graph("star", 2))
    ledger = Ledger(network.graph)
    observers = Observers(given, network, ledger)
    hidden = np.random.default_rng(1).random(X.size) < 0.2
    rest, held, _ = observers.hold_out(hidden)
    assert ledger.messages == 0
    for one in range(2):
        assert hidden[held.observations.places[one]].all()
        assert not hidden[rest.observations.places[one]].any()
        both = np.concatenate([held.observations.places[one], rest.observations.places[one]])
        np.testing.assert_array_equal(np.sort(both), given.places[one])
    rest, held, _ = observers.hold_out(np.ones(X.size, dtype=bool))
    assert [len(own) for own in rest.observations.places] == [1, 1]


@each("law", ["poisson", "bernoulli"])
def test_other_laws_choose_by_deviance(law):
    X = counts()
    X = X if law == "poisson" else np.where(np.isnan(X), np.nan, X > 2)
    found = fit_imputation(from_matrices(X), law=law, max_iter=60)
    chosen = found.choice
    assert chosen["loss"] == {"poisson": "deviance", "bernoulli": "log_loss"}[law]
    assert chosen["error"] < chosen["column_means"]
    assert found.rank <= 3
    worst = max(one["error"] for one in chosen["candidates"])
    assert chosen["error"] < worst


def test_where_columns_tell_nothing_of_each_other_their_means_are_taken():
    X = np.random.default_rng(0).normal(size=(60, 5)) * [1, 10, 100, 1, 1] + 7
    X[np.random.default_rng(1).random(X.shape) < 0.1] = np.nan
    with pytest.warns(VpemWarning, match="means of their columns"):
        found = fit_imputation(from_matrices(X), seed=2)
    assert found.choice["column_means_win"]
    expected = np.tile(np.nanmean(X, axis=0), (60, 1))
    np.testing.assert_allclose(found.fitted, expected, rtol=1e-9)


STRANGE = {
    "one row": np.array([[1.0, 2.0, np.nan, 4.0]])[:, [0, 1, 3]],
    "one column": np.array([[1.0], [2.0], [4.0]]),
    "one entry": np.array([[5.0]]),
    "constant": np.full((6, 3), 2.5),
    "nearly empty": np.where(np.eye(5) > 0, 3.0, np.nan),
    "huge": low_rank() * 1e60,
    "two values": np.array([[1.0, np.nan], [np.nan, 2.0]]),
    "wide": low_rank(shape=(4, 30)),
}


@each("name", list(STRANGE))
def test_strange_tables_are_filled(name):
    found = fit_imputation(from_matrices(STRANGE[name]))
    assert np.isfinite(found.imputed).all()
    assert found.choice is not None
    assert "NaN" not in str(found.describe()["choice"])


def test_a_chosen_fit_goes_on_from_its_checkpoint_to_the_bit(monkeypatch):
    monkeypatch.setattr("vpem.fits.imputation.MOST_FOLDS", 1)
    given = split(from_matrices(low_rank(shape=(12, 6))), 2, "random", np.random.default_rng(0))
    check_resumes(lambda saver: fit_imputation(
        given, saver=saver, max_iter=6, tol=0.0, participation=0.6, seed=3, n_threads=1
    ))  # fmt: skip


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [",".join("" if np.isnan(v) else f"{v:.5g}" for v in row) for row in low_rank()]
    (tmp_path / "t.csv").write_text("\n".join([",".join("abcdefgh"), *rows]))
    return "t.csv"


def test_the_shell_tells_the_choice(table, capsys):
    found = done(capsys, "impute", table, "--json").json
    assert [one["column"] for one in found["choice"]["by_column"]] == list("abcdefgh")
    shown = done(capsys, "impute", table).out
    assert "on held-out entries, column means" in shown
    assert "Entries held out to choose" in shown
    assert done(capsys, "impute", table, "-q", "-o", "x.h5").out == ""
    assert "held-out" not in done(capsys, "impute", table, "--rank", 2).out
    plotted = done(capsys, "impute", table, "--plot", "p.svg", "--json").json
    assert plotted["algorithm"] == "fedmissem"
    parts = done(capsys, "impute", table, "--workers", 3, "--json").json
    assert parts["rank"] == min(parts["choice"]["candidates"], key=lambda one: one["error"])["rank"]


@each("case", [
    ("--rank some", "rank must be an integer of at least 1, or auto"),
    ("--ridge -1", "ridge must be"),
    ("-k 2", "belongs to --method mixture"),
    ("--draws 3", "belongs to --method mixture"),
])  # fmt: skip
def test_what_cannot_be_asked_for(table, capsys, case):
    words, sentence = case
    result = run(capsys, "impute", table, *words.split())
    assert result.code == 2
    assert sentence in result.err


def test_every_door_has_the_same_choice(table, capsys):
    X = np.genfromtxt(table, delimiter=",", skip_header=1)
    shell = done(capsys, "impute", table, "--json").json["choice"]
    model = vpem.FedMissEM().fit(X)
    assert model.imputation_.choice["candidates"] == shell["candidates"]
    seen = ~np.isnan(X)
    np.testing.assert_array_equal(model.transform(X)[seen], X[seen])
    with pytest.raises(InputError, match="rank must be"):
        vpem.FedMissEM(rank="most").fit(X)
