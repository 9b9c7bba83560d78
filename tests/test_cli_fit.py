"""`vpem fit`: its start, who holds what, what it says and what it makes of missing values."""

import h5py
import numpy as np
import pytest

import vpem
from vpem import Dataset, read_dataset, write_dataset

from .cli_support import AGENTS, HELD, NAMES, done, make_data, overlapping, run
from .tables import each, over


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data") / "patients.h5")


@pytest.fixture(scope="module")
def nameless(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data") / "numbers.h5", named=False)


@pytest.fixture
def fit(capsys, data):
    """Function: run `vpem fit` on the data and return its JSON."""

    def call(*words, source=data):
        return done(capsys, "fit", source, "--json", *words).json

    return call


# ---- the JSON object ----------------------------------------------------------------------------


@each(("covariance", "scale"), [("full", "standard"), ("diag", "none"), ("tied", "standard")])
def test_the_log_likelihood_is_that_of_the_written_model(
    fit, capsys, data, tmp_path, covariance, scale
):
    report = fit("--topology", "star", "--covariance", covariance, "--scale", scale,
                 "-o", tmp_path / "m.h5", "--force")  # fmt: skip
    score = done(capsys, "score", tmp_path / "m.h5", data, "--json").json
    assert report["model"] == str(tmp_path / "m.h5")
    for name in ("log_likelihood", "bic", "aic", "n_parameters"):
        assert report[name] == pytest.approx(score[name], rel=1e-10)


# ---- options -----------------------------------------------------------------------------------


def test_the_graph_has_a_seed_of_its_own(fit, nameless):
    words = ("--topology", "tree", "--max-iter", 1, "--init", "random")
    one = fit(*words, "--graph-seed", 1, "--seed", 2, source=nameless)
    two = fit(*words, "--graph-seed", 1, "--seed", 3, source=nameless)
    assert one["edges"] == two["edges"]
    assert one["init_rows"] != two["init_rows"]
    graphs = {str(fit(*words, "--graph-seed", seed, source=nameless)["edges"]) for seed in range(4)}
    assert len(graphs) > 1


def test_a_model_as_a_start(fit, tmp_path):
    first = fit("--max-iter", 5, "--tol", 0, "-o", tmp_path / "m.h5")
    whole = fit("--max-iter", 9, "--tol", 0)
    rest = fit("--max-iter", 4, "--tol", 0, "--init-model", tmp_path / "m.h5")
    # Every root goes on from the mean of the mixing weights, which differ by consensus error only.
    np.testing.assert_allclose(rest["history"], whole["history"][5:], rtol=1e-7)
    assert first["history"] == whole["history"][:5]
    assert rest["init_rows"] is None


def test_a_seed_beside_a_start_is_said_to_draw_nothing(capsys, data, tmp_path):
    """Unless something else is drawn by it."""
    words = ("fit", data, "--max-iter", 2, "--tol", 10)
    done(capsys, *words, "-q", "-o", tmp_path / "m.h5")
    begin = (*words, "--init-model", tmp_path / "m.h5")
    for more, told in (
        ((), False), (("--seed", 3), True), (("--seed", 3, "--hops", 1), False),
        (("--seed", 3, "--batch-size", 20), False), (("--seed", 3, "--quiet"), False),
    ):  # fmt: skip
        err = done(capsys, *begin, *more).err
        assert ("--seed draws no other: it matters only where" in err) == told, more


# ---- who holds what, and who talks to whom -------------------------------------------------------


def test_by_default_partition_and_graph_are_those_of_the_dataset(fit, nameless, tmp_path):
    """Without them a feature has an agent in a network, and else all have one."""
    report = fit("--max-iter", 2)
    assert (report["topology"], report["edges"]) == ("dataset", [[0, 1], [1, 2]])
    assert report["agent_names"] == list(AGENTS)
    assert [hub["features"] for hub in report["hubs"]] == list(map(list, HELD))
    (tmp_path / "g.txt").write_text("clinic lab\nlab registry\n")
    report = fit("--graph", tmp_path / "g.txt", "--max-iter", 2)
    assert (report["topology"], report["edges"]) == ("file", [[0, 2], [1, 2]])
    for asked in (
        ("--topology", "star"), ("--topology", "cycle"), ("--topology", "path", "--sum", "tree"),
        ("--sum", "tree"), ("--compress", "float32"), ("--secure-sum",), (),
    ):  # fmt: skip
        report = fit(*asked, "--max-iter", 2, source=nameless)
        features = [[j] for j in range(6)] if asked else [[0, 1, 2, 3, 4, 5]]
        assert [hub["features"] for hub in report["hubs"]] == features, asked


# ---- what is written and what is said ------------------------------------------------------------


def test_strict_tells_a_script_that_it_has_not_converged(capsys, data, tmp_path):
    words = ("fit", data, "--max-iter", 1, "--json")
    loose = done(capsys, *words)
    assert "not converged after 1 iterations" in loose.err
    assert loose.json["converged"] is False
    strict = run(capsys, *words, "--strict", "-o", tmp_path / "m.h5")
    assert strict.code == 3
    assert strict.json["warnings"] == loose.json["warnings"] != []
    assert (tmp_path / "m.h5").exists()
    assert run(capsys, "fit", data, "--strict", "--quiet").code == 0


def test_few_rounds_say_how_many_would_do(capsys, nameless):
    words = ("fit", nameless, "--topology", "path", "--json")
    few = done(capsys, *words, "--rounds", 5)
    (warning,) = few.json["warnings"]
    assert "5 rounds are too few" in warning
    assert few.json["consensus_error"] > 1e-3
    enough = int(warning.split("; ")[-1].split()[0])
    quiet = done(capsys, *words, "--rounds", enough, "--quiet")
    assert quiet.err == ""
    assert quiet.json["consensus_error"] <= 1e-3
    short = done(capsys, *words, "--rounds", enough - 1)
    assert "too few" in short.err
    assert short.json["consensus_error"] > 1e-3


def test_constant_features_are_named_and_fitted(capsys, data, tmp_path):
    with h5py.File(data) as file, h5py.File(tmp_path / "d.h5", "w") as other:
        X = file["X"][()]
        X[:, 2] = 7
        other["X"] = X
        other["feature_names"] = list(NAMES)
    result = done(capsys, "fit", tmp_path / "d.h5", "--agents", 1, "--json")
    (warning,) = result.json["warnings"]
    assert "constant features" in warning
    assert "'pulse'" in warning
    assert result.err == f"vpem: warning: {warning}\n"


@over(
    words=["fit -k 2", "kmeans --split features -k 2", "select -k 1-2 -j 1", "topology describe"],
    n_agents=[1, 2, 4],
)
def test_agents_that_are_asked_for_leave_the_stored_graph_aside(capsys, data, words, n_agents):
    words = words.split()
    command = 2 if words[0] == "topology" else 1
    told = done(capsys, *words[:command], data, *words[command:], "--agents", n_agents, "--json")
    note = (
        "the graph of 3 agents stored in the dataset is ignored, since there are "
        f"--agents {n_agents}"
    )
    assert told.err.count(note) == 1
    kept = done(capsys, *words[:command], data, *words[command:], "--json")
    assert "is ignored" not in kept.err


def test_a_star_sums_at_its_server_whatever_tree_is_asked_for(capsys, data):
    for words, said in ((("--sum", "tree"), True), (("--sum", "server"), False), ((), False)):
        told = done(capsys, "fit", data, "--topology", "star", "--max-iter", 1, *words)
        assert ("a tree around its server: sums are taken there" in told.err) == said


# ---- missing values ------------------------------------------------------------------------------


@pytest.fixture
def gappy(tmp_path):
    X, _ = overlapping()
    rng = np.random.default_rng(0)
    X[rng.random(X.shape) < 0.1] = np.nan
    X[:40, 3:] = np.nan
    X[np.isnan(X).all(axis=1), 0] = 0.0
    path = tmp_path / "d.h5"
    write_dataset(path, Dataset(X, NAMES))
    return path


SHORT = ("--components", 2, "--max-iter", 8, "--threads", 1)


# ---- tables with empty cells --------------------------------------------------------------------


def with_gaps(path, X, names=NAMES, ids=None):
    """Write a table whose missing values are empty cells or words for nothing."""
    empty = ["", "NA", "nan"]
    head = list(names) if ids is None else ["id", *names]
    lines = [",".join(head)]
    for row, values in enumerate(X):
        cells = [
            empty[(row + j) % 3] if np.isnan(value) else repr(float(value))
            for j, value in enumerate(values)
        ]
        lines.append(",".join(cells if ids is None else [str(ids[row]), *cells]))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_empty_cells_of_a_table_are_kept(capsys, gappy, tmp_path):
    X = read_dataset(gappy).X
    table, imported = with_gaps(tmp_path / "t.csv", X), tmp_path / "t.h5"
    told = done(capsys, "data", "import", table, "-o", imported, "--missing", "keep")
    assert f"{np.isnan(X).sum()} values missing" in told.err
    np.testing.assert_array_equal(read_dataset(imported).X, X)
    found = done(capsys, "data", "describe", imported, "--json").json
    assert found["n_missing"] == found["n_non_finite"] == np.isnan(X).sum()
    assert [one["missing"] for one in found["features"]] == np.isnan(X).sum(axis=0).tolist()
    shown = " ".join(done(capsys, "data", "describe", imported).out.split())
    assert f"values missing (NaN) {np.isnan(X).sum()} ({100 * np.isnan(X).mean():.2g} %)" in shown


def test_empty_cells_of_parties(capsys, gappy, tmp_path):
    X = read_dataset(gappy).X
    ids = np.random.default_rng(1).permutation(len(X))
    for name, columns in (("a", slice(0, 3)), ("b", slice(3, 6))):
        with_gaps(tmp_path / f"{name}.csv", X[:, columns], NAMES[columns], ids)
    tables = "".join(f'[[party]]\nfile = "{name}.csv"\nids = "id"\n' for name in "ab")
    (tmp_path / "p.toml").write_text(tables)
    words = ("fit", tmp_path / "p.toml", "--parties", "--align", "ids", *SHORT, "--json")
    found = done(capsys, *words, "--missing", "marginalize").json
    whole = done(capsys, "fit", gappy, "--agents", 2, *SHORT, "--json", "--missing", "marginalize")
    np.testing.assert_allclose(found["history"], whole.json["history"], rtol=1e-12)


def test_a_row_without_values_counts_alike_in_fit_and_score(capsys, tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 3))
    X[7] = np.nan
    X[3, 1] = np.nan
    path, model = tmp_path / "d.h5", tmp_path / "m.h5"
    write_dataset(path, Dataset(X, ("a", "b", "c")))
    fitted = run(
        capsys, "fit", path, "--missing", "marginalize", "--tol", 1e-10, "--json", "-o", model
    )
    assert "1 of 60 rows have no values" in fitted.err
    scored = done(capsys, "score", model, path, "--missing", "marginalize", "--json").json
    assert scored["n_without_values"] == 1
    assert scored["log_likelihood"] == pytest.approx(fitted.json["log_likelihood"], rel=1e-9)
    assert scored["bic"] == pytest.approx(fitted.json["bic"], rel=1e-9)
    loaded, named = vpem.load(model), Dataset(X, ("a", "b", "c"))
    assert loaded.score(named) == pytest.approx(scored["log_likelihood"], rel=1e-12)
    assert loaded.bic(named) == pytest.approx(scored["bic"], rel=1e-12)
    heavy = np.random.default_rng(1).uniform(0.1, 3.0, 60)
    write_dataset(path, Dataset(X, ("a", "b", "c"), sample_weight=heavy), force=True)
    words = ("score", model, path, "--sample-weight", "sample_weight", "--json")
    found = done(capsys, *words).json["log_likelihood"]
    there = ~np.isnan(X).all(axis=1)
    expected = np.average(loaded.score_samples(named)[there], weights=heavy[there])
    assert found == pytest.approx(expected, rel=1e-12)
    assert loaded.score(named, sample_weight=heavy) == pytest.approx(expected, rel=1e-12)
