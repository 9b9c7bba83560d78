"""Imputation by a mixture: what fills gaps, whoever holds what, and draws for Rubin's rules."""

import csv
import json
from functools import cache

import numpy as np
import pytest
from scipy.stats import multivariate_normal

import vpem
from vpem import InputError, connect_workers, make_graph
from vpem.errors import VpemWarning
from vpem.files.results import read_imputed
from vpem.fits.mixture_imputation import write_imputation
from vpem.fits.observers import score_holdout
from vpem.sums.connect import spread_workers
from vpem.terms.lowrank.entries import from_matrices, hide, split

from .cli_support import done
from .mpi_support import run_cli
from .tables import each, each_once
from .thread_engine import AtHome, ThreadEngine, together

EXACT = {"method": "mixture", "reg_covar": 0.0, "tol": 1e-13, "max_iter": 5000}


ENDS = {"method": "mixture", "tol": 1e-10}


def holed(seed=0, n=120, d=4, share=0.2, groups=1):
    """Rows of overlapping correlated groups, in unlike units, of which a share is missing."""
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(d, d)) + 2 * np.eye(d)
    centres = 3.0 * rng.normal(size=(groups, d))
    X = rng.normal(size=(n, d)) @ mixing + centres[rng.integers(groups, size=n)]
    X = X * 10.0 ** np.arange(-1, d - 1) + 5
    gaps = rng.random(X.shape) < share
    gaps[np.arange(n), np.arange(n) % d] = False
    return np.where(gaps, np.nan, X)


def normal_em(X, n_iter=20000):
    """Fit a normal law to what there is, by the textbook: means and covariance."""
    mean, cov = np.nanmean(X, axis=0), np.diag(np.nanvar(X, axis=0))
    for _ in range(n_iter):
        filled, spread = X.copy(), np.zeros_like(cov)
        for row in filled:
            m, o = np.isnan(row), ~np.isnan(row)
            if m.any():
                gain = cov[np.ix_(m, o)] @ np.linalg.inv(cov[np.ix_(o, o)])
                row[m] = mean[m] + gain @ (row[o] - mean[o])
                spread[np.ix_(m, m)] += cov[np.ix_(m, m)] - gain @ cov[np.ix_(o, m)]
        before, mean = (mean, cov), filled.mean(axis=0)
        away = filled - mean
        cov = (away.T @ away + spread) / len(X)
        if np.allclose(mean, before[0], 1e-14, 0) and np.allclose(cov, before[1], 1e-12, 0):
            break
    return filled


def in_deviations(X, one, other):
    """How far two matrices are apart at most, in standard deviations of their columns."""
    return np.abs((one - other) / np.nanstd(X, axis=0)).max()


def dealt_to(kind, n_observers, topology="star"):
    """Return what deals a matrix out by rows or columns, and joins the observers."""

    def found(X, **how):
        given = split(from_matrices(X), n_observers, kind)
        network = connect_workers(make_graph(topology, n_observers))
        return vpem.fit_imputation(given, network=network, **how)

    return found


def test_one_normal_law_with_one_agent_is_the_textbook():
    X = holed()
    found = vpem.fit_imputation(from_matrices(X), **EXACT)
    assert found.converged
    assert in_deviations(X, found.imputed, normal_em(X)) < 1e-6
    # At the same parameters the conditional means are the same to rounding.
    mean, cov = found.fit.mixture.assembled_means[0], found.fit.mixture.assembled_covariances[0]
    for row, whole in zip(X, found.imputed, strict=True):
        m, o = np.isnan(row), ~np.isnan(row)
        gain = cov[np.ix_(m, o)] @ np.linalg.inv(cov[np.ix_(o, o)])
        expected = mean[m] + gain @ (row[o] - mean[o])
        np.testing.assert_allclose(whole[m], expected, rtol=1e-8)


def test_agents_with_one_normal_law_are_alone_with_their_columns():
    X = holed(d=6)
    for begin in (0, 2, 4):
        X[np.isnan(X[:, begin : begin + 2]).all(axis=1), begin] = 5.0
    found = dealt_to("features", 3)(X, **EXACT)
    for columns in found.held.features:
        alone = vpem.fit_imputation(
            from_matrices(X[:, columns], row_names=found.observations.row_names), **EXACT
        )
        assert in_deviations(X[:, columns], found.imputed[:, columns], alone.imputed) < 1e-6


@each_once(kind=["full", "tied", "diag", "spherical", "tied-spherical", "full"], n_observers=[3, 1])
def test_gaps_of_a_mixture_by_its_twin(kind, n_observers):
    X = holed(d=5, groups=3, share=0.3)
    X[7] = np.nan
    with pytest.warns(VpemWarning, match="1 of 120 rows have no values"):
        found = dealt_to("features", n_observers)(
            X, n_components=3, covariance_type=kind, reg_covar=0.01, method="mixture", tol=1e-4
        )
    mixture, seen = found.fit.mixture, ~np.isnan(X)
    k, d = mixture.means.shape
    means, dense = mixture.means[:, mixture.blocks.position], np.zeros((k, d, d))
    for b, columns in enumerate(mixture.blocks.features):
        dense[:, columns[:, None], columns] = mixture.dense(b)
    scaled = (mixture.scaling.apply(one) for one in (X, found.imputed))
    for row, whole in zip(*scaled, strict=True):
        o, m = ~np.isnan(row), np.isnan(row)
        logs, fills = np.log(mixture.assembled_weights), np.tile(row, (k, 1))
        for j in range(k):
            fills[j, m] = means[j, m]
            if o.any():
                block = dense[j][np.ix_(o, o)]
                logs[j] += multivariate_normal.logpdf(row[o], means[j, o], block)
                gain = np.linalg.solve(block, row[o] - means[j, o])
                fills[j, m] += dense[j][np.ix_(m, o)] @ gain
        shares = np.exp(logs - logs.max())
        np.testing.assert_allclose(whole, shares @ fills / shares.sum(), rtol=1e-7, atol=1e-8)
    np.testing.assert_array_equal(found.imputed[seen], X[seen])
    assert np.isfinite(found.imputed).all()


@each("kind", ["full", "diag", "spherical"])
def test_units_and_origins_of_columns_change_nothing(kind):
    X = holed(groups=2, share=0.1)
    units, origin = np.array([1e-6, 3.0, 1e5, 0.2]), np.array([0.0, 10.0, -1e6, 2.0])
    how = {"n_components": 2, "covariance_type": kind, "draws": 2} | ENDS
    one = vpem.fit_imputation(from_matrices(X), **how)
    other = vpem.fit_imputation(from_matrices(X * units + origin), **how)
    assert in_deviations(X, one.imputed, (other.imputed - origin) / units) < 1e-6
    drawn = (other.completed(1) - origin) / units
    assert in_deviations(X, one.completed(1), drawn) < 1e-6


TWO = {"n_components": 2, "draws": 2, **ENDS}


@cache
def of_one():
    """What one observer fills, by one thread."""
    return vpem.fit_imputation(from_matrices(holed(groups=2, share=0.1)), **TWO, n_threads=1)


@each(("dealt", "how"), [
    (dealt_to("rows", 4), {}),
    (dealt_to("rows", 3, "cycle"), {}),
    (dealt_to("features", 1), {"n_threads": 2}),
])  # fmt: skip
def test_rows_of_workers_are_filled_as_those_of_one(dealt, how):
    X = holed(groups=2, share=0.1)
    alone, found = of_one(), dealt(X, **TWO, **how)
    assert in_deviations(X, found.imputed, alone.imputed) < 1e-3
    assert in_deviations(X, found.completed(1), alone.completed(1)) < 1e-3
    np.testing.assert_array_equal(found.gaps, alone.gaps)


def test_draws_follow_the_seed():
    X = holed()
    one, same, other = (
        vpem.fit_imputation(from_matrices(X), draws=3, seed=seed, method="mixture")
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one.draws, same.draws)
    assert (np.abs(one.draws - other.draws) > 1e-6).any()
    assert (np.ptp(one.draws, axis=0) > 0).all()
    for number in range(3):
        whole = one.completed(number)
        np.testing.assert_array_equal(whole[~np.isnan(X)], X[~np.isnan(X)])
        assert np.isfinite(whole).all()


def test_draws_vary_as_the_law_says_and_with_its_parameters():
    rng = np.random.default_rng(3)
    x = rng.normal(size=40)
    y = x + rng.normal(size=40)
    X = np.stack([x, np.where(np.arange(40) < 20, np.nan, y)], axis=1)
    found = vpem.fit_imputation(from_matrices(X), draws=150, method="mixture", tol=1e-6)
    left = found.fit.mixture.assembled_covariances[0]
    residual = left[1, 1] - left[0, 1] ** 2 / left[0, 0]
    # Of one entry: what is left of it, and what is not known of the line.
    drawn = found.draws.var(axis=0)
    assert (drawn > 0.6 * residual).all()
    assert drawn.mean() > 1.03 * residual
    # The mean of all 20 tells the line's own error, beside a 20th of what is left of each.
    assert found.draws.mean(axis=1).var() > 1.5 * residual / 20


def test_bic_chooses_among_several_numbers():
    X = holed(groups=2, d=3, n=200)
    alone = [
        vpem.fit_imputation(from_matrices(X), n_components=k, method="mixture") for k in (1, 2, 3)
    ]
    best = min(alone, key=lambda found: found.fit.bic)
    found = vpem.fit_imputation(from_matrices(X), n_components="1-3", method="mixture")
    assert found.fit.bic == best.fit.bic
    np.testing.assert_array_equal(found.imputed, best.imputed)


def test_hidden_entries_tell_how_well_it_imputes():
    X = holed(n=300, share=0.1)
    kept, hidden = hide(from_matrices(X), 0.1, np.random.default_rng(0))
    found = vpem.fit_imputation(kept, method="mixture")
    scores = score_holdout(found, hidden, 0.1, 0)
    assert scores["model"]["rmse"] < scores["column_means"]["rmse"]
    away = found.imputed.ravel()[hidden.places] - hidden.values
    assert scores["model"]["rmse"] == pytest.approx(np.sqrt(np.mean(away**2)))
    units = found.fit.mixture.scaling.scale[hidden.places % 4]
    assert scores["model"]["standardized_rmse"] == pytest.approx(
        np.sqrt(np.mean((away / units) ** 2))
    )


def test_weights_of_rows():
    X = holed()
    weights = np.random.default_rng(0).integers(1, 4, len(X)).astype(float)
    one = vpem.fit_imputation(
        from_matrices(X, weights=np.broadcast_to(weights[:, None], X.shape)), **EXACT
    )
    copies = np.repeat(np.arange(len(X)), weights.astype(int))
    other = vpem.fit_imputation(from_matrices(X[copies]), **EXACT)
    assert in_deviations(X, one.imputed[copies], other.imputed) < 1e-6
    uneven = np.ones(X.shape)
    uneven[3] = np.arange(1, 5)
    with pytest.raises(InputError, match="a mixture weights rows, but entries of row 'row 3'"):
        vpem.fit_imputation(from_matrices(X, weights=uneven), method="mixture")


def test_a_table_without_gaps_and_columns_that_are_constant():
    X = np.nan_to_num(holed())
    found = vpem.fit_imputation(from_matrices(X), method="mixture", draws=2)
    np.testing.assert_array_equal(found.imputed, X)
    np.testing.assert_array_equal(found.completed(1), X)
    X[:, 2], X[4, 2] = 7.0, np.nan
    with pytest.warns(VpemWarning, match="constant features"):
        found = vpem.fit_imputation(from_matrices(X), method="mixture", draws=2)
    assert found.imputed[4, 2] == pytest.approx(7.0)
    assert found.completed(0)[4, 2] == pytest.approx(7.0, abs=0.01)


def test_the_estimator_is_the_recipe():
    X = holed(groups=2)
    model = vpem.FedMissEM(method="mixture", n_components=2, draws=3, n_workers=3)
    filled = model.fit_transform(X)
    found = dealt_to("rows", 3)(X, n_components=2, draws=3, method="mixture")
    np.testing.assert_array_equal(filled, found.imputed)
    np.testing.assert_array_equal(model.imputation_.draws, found.draws)
    np.testing.assert_allclose(model.transform(X), filled, rtol=1e-9)
    assert model.log_likelihood_ == pytest.approx(model.history_[-1], abs=1e-5)
    assert "Imputation by a mixture of n_components = 2" in model.summary()
    columns = vpem.FedMissEM(method="mixture", n_workers=2, split="features").fit(X)
    np.testing.assert_allclose(columns.transform(X), columns.impute(), rtol=1e-9)
    assert len(columns.imputation_.fit.mixture.blocks.features) == 2


def test_an_iteration_is_told_by_those_who_took_part(tmp_path):
    network = connect_workers(make_graph("path", 2), agent_dropout=0.5)
    halves = split(from_matrices(holed(n=40)), 2, "rows", np.random.default_rng(0))
    with pytest.warns(VpemWarning):
        fit = vpem.fit_imputation(halves, network=network, method="mixture", max_iter=8)
    history = fit.fit.history
    assert np.isnan(history).any()
    told = fit.describe()["history"]
    np.testing.assert_allclose(told, np.nanmean(history, axis=1) / fit.fit.total_weight, 1e-14)
    write_imputation(tmp_path / "a.h5", fit)
    assert json.loads(json.dumps(read_imputed(tmp_path / "a.h5").report))["history"] == told


@each(
    ("engine", "kind", "more"),
    [
        (ThreadEngine, "features", {"secure_sum": True}),
        (AtHome, "rows", {"secure_sum": True}),
        (AtHome, "features", {}),
    ],
)
@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
def test_members_fill_what_is_theirs(tmp_path, engine, kind, more):
    X = holed(d=6, groups=2)
    X[5] = np.nan
    given = split(from_matrices(X), 3, kind)
    how = {"n_components": 2, "draws": 2, "method": "mixture"}
    alone = vpem.fit_imputation(given, network=connect_workers(make_graph("star", 3)), **how)

    def fit(member):
        network = spread_workers(connect_workers(make_graph("star", 3), **more), member)
        return vpem.fit_imputation(given.seen_by({member.rank}), network=network, **how)

    for rank, ours in enumerate(together(3, fit, engine)):
        held = ours.held.parts[rank]
        theirs = np.zeros(X.shape, dtype=bool)
        theirs[held if kind == "rows" else (slice(None), held)] = True
        know = np.ones(X.shape, dtype=bool) if engine.open else theirs
        pairs = [(ours.completed(number), alone.completed(number)) for number in range(2)]
        for one, other in [(ours.imputed, alone.imputed), *pairs]:
            np.testing.assert_array_equal(np.isfinite(one), know)
            np.testing.assert_allclose(one[know], other[know], rtol=1e-3)
        assert ours.describe()["log_likelihood"] == pytest.approx(alone.log_likelihood)
        np.testing.assert_array_equal(ours.seen.times, alone.seen.times)
        path = tmp_path / f"{engine.__name__}-{kind}-{rank}.h5"
        write_imputation(path, ours)
        shape = ours.imputed[np.ix_(know.any(axis=1), know.any(axis=0))].shape
        assert read_imputed(path).values.shape == shape
        assert read_imputed(path).draws.shape == (2, *shape)


# ---- the command ---------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Go where a table with gaps is, with text and a column that is called draw."""
    monkeypatch.chdir(tmp_path)
    X = holed(seed=2, n=30)
    lines = [["name", "draw", "b", "c", "d"]]
    for number, row in enumerate(X):
        lines.append([f"n{number}", *("" if np.isnan(one) else repr(float(one)) for one in row)])
    with open("holes.csv", "w", newline="") as stream:
        csv.writer(stream).writerows(lines)
    with open("parts.json", "w") as stream:
        json.dump({"lab": ["draw", "d"], "ward": ["b", "c"]}, stream)
    return X


def test_draws_in_a_table(capsys, folder):
    words = ("impute", "holes.csv", "--method", "mixture", "--drop", "name")
    done(capsys, *words, "--draws", 3, "-o", "long.csv", "-q")
    done(capsys, *words, "--draws", 3, "-o", "kept.h5", "-q")
    with open("long.csv", newline="") as stream:
        header, *lines = csv.reader(stream)
    assert header == ["draw_", "name", "draw", "b", "c", "d"]
    assert [line[0] for line in lines] == np.repeat(["1", "2", "3"], 30).tolist()
    assert [line[1] for line in lines] == [f"n{number}" for number in range(30)] * 3
    found = np.array([line[2:] for line in lines], dtype=float).reshape(3, 30, 4)
    np.testing.assert_array_equal(found, read_imputed("kept.h5").draws)
    seen = ~np.isnan(folder)
    for table in found:
        np.testing.assert_array_equal(table[seen], folder[seen])
    done(capsys, "model", "export", "kept.h5", "-o", "again.csv")
    with open("again.csv", newline="") as stream:
        header, *lines = csv.reader(stream)
    assert header == ["draw_", "row", "draw", "b", "c", "d"]
    np.testing.assert_array_equal(
        np.array([line[2:] for line in lines], dtype=float), found.reshape(90, 4)
    )


def test_who_holds_what(capsys, folder):
    words = ("impute", "holes.csv", "--method", "mixture", "--drop", "name", "--json")
    alone, rows, agents, files, split_so = (
        done(capsys, *words, *more).json
        for more in ((), ("--workers", 3), ("--agents", 2), ("--partition", "parts.json"),
                     ("--workers", 2, "--split", "features"))
    )  # fmt: skip
    assert (alone["split"], rows["split"], agents["split"]) == ("features", "rows", "features")
    assert rows["log_likelihood"] == pytest.approx(alone["log_likelihood"])
    assert agents["log_likelihood"] < alone["log_likelihood"]
    assert files["worker_names"] == ["lab", "ward"]
    assert files["log_likelihood"] != pytest.approx(agents["log_likelihood"])
    assert split_so["log_likelihood"] == agents["log_likelihood"]
    assert alone["communication"]["bytes"] == 0 < agents["communication"]["bytes"]
    shown = done(capsys, *words[:-1], "-k", "1-2", "--draws", 2, "--holdout", 0.1).out
    assert "draws" in shown
    assert "Error on" in shown


def test_parties_hold_columns_or_rows(capsys, folder):
    with open("holes.csv", newline="") as stream:
        header, *lines = csv.reader(stream)

    def write(name, rows, columns):
        with open(name, "w", newline="") as stream:
            named = [["id", *header[columns]], *([row[0], *row[columns]] for row in lines[rows])]
            csv.writer(stream).writerows(named)

    write("left.csv", slice(None), slice(1, 3))
    write("right.csv", slice(None), slice(3, 5))
    write("upper.csv", slice(0, 12), slice(1, 5))
    write("lower.csv", slice(12, 30), slice(1, 5))
    words = ("impute", "--method", "mixture", "--parties", "--json")
    one = ("impute", "holes.csv", "--method", "mixture", "--drop", "name", "--json")
    for names, dealt, kind in (
        (("left.csv", "right.csv"), ("--agents", 2), "features"),
        (("upper.csv", "lower.csv"), (), "rows"),
    ):
        found, whole = done(capsys, *words, *names).json, done(capsys, *one, *dealt).json
        assert found["split"] == kind
        assert found["log_likelihood"] == pytest.approx(whole["log_likelihood"], rel=1e-6)
        np.testing.assert_allclose(
            sorted(found["column_trend"]), sorted(whole["column_trend"]), rtol=1e-4
        )


def test_ranks_fill_what_one_process_fills(capsys, folder):
    words = ("impute", "holes.csv", "--method", "mixture", "--drop", "name", "--draws", 2)
    words += ("--force", "-q", "--json", "--workers", 3, "--holdout", 0.1, "--max-iter", 5)
    one = done(capsys, *words, "-o", "one.h5").json
    found = run_cli(2, *words, "-o", "two.h5", "--engine", "mpi")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["bic"] == pytest.approx(one["bic"])
    alone, spread = read_imputed("one.h5"), read_imputed("two.h5")
    np.testing.assert_allclose(spread.values, alone.values, rtol=1e-8)
    np.testing.assert_allclose(spread.draws, alone.draws, rtol=1e-6)
    np.testing.assert_array_equal(spread.times_seen, alone.times_seen)
