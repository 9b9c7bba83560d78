import csv
import io
import subprocess
from itertools import permutations

import h5py
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

import vpem_cli
from vpem import read_dataset, read_model

from .cli_support import MAIN, NAMES, done, listing, make_data, spawn
from .forks import interpreter


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data, and models of two and four components fitted to them."""
    folder = tmp_path_factory.mktemp("use")
    make_data(folder / "d.h5", n_components=3, n_samples=120)
    for k in (2, 4):
        words = ["fit", str(folder / "d.h5"), "-k", str(k), "-o", str(folder / f"m{k}.h5"), "-q"]
        assert vpem_cli.run(words) == 0
    return folder


@pytest.fixture
def data(folder):
    return folder / "d.h5"


@pytest.fixture
def model(folder):
    return folder / "m4.h5"


def table(text):
    rows = list(csv.reader(io.StringIO(text, newline="")))
    return dict(zip(rows[0], (list(column) for column in zip(*rows[1:], strict=True)), strict=True))


# ---- predict ------------------------------------------------------------------------------------


def test_predictions_are_those_of_the_mixture(capsys, data, model):
    columns = table(done(capsys, "predict", model, data, "--proba", "--digits", 17).out)
    source, mixture = read_dataset(data), read_model(model).mixture
    assert columns["id"] == source.ids.tolist()
    proba = np.array([columns[f"proba_{k}"] for k in range(4)], dtype=float).T
    np.testing.assert_array_equal(proba, mixture.predict_proba(source.X))
    np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-12)
    labels = np.array(columns["label"], dtype=int)
    np.testing.assert_array_equal(labels, proba.argmax(axis=1))
    np.testing.assert_array_equal(labels, mixture.predict(source.X))
    assert proba.max(axis=1).min() < 0.9  # clusters that overlap leave doubt


@pytest.mark.parametrize(("digits", "least"), [(3, 1e-8), (7, 1e-12), (12, 1e-17)])
def test_probabilities_have_so_many_digits(capsys, data, model, digits, least):
    more = ("--digits", digits) if digits != 7 else ()
    columns = table(done(capsys, "predict", model, data, "--proba", *more).out)
    shares = read_model(model).mixture.predict_proba(read_dataset(data).X).T
    for k, column in enumerate(shares):
        for cell, share in zip(columns[f"proba_{k}"], column, strict=True):
            assert cell == ("0" if share < min(least, 1e-12) else f"{share:.{digits}g}")


def test_rows_are_called_as_an_index_counts_them(capsys, tmp_path):
    """As R writes tables, from 1."""
    lines = [f'"{n}",{n % 3}.5,{n % 5}' for n in range(1, 13)]
    (tmp_path / "r.csv").write_text("\n".join(['"","a","b"', *lines]) + "\n")
    done(capsys, "fit", tmp_path / "r.csv", "-o", tmp_path / "r.h5", "--labels", tmp_path / "l.csv")
    columns = table(done(capsys, "predict", tmp_path / "r.h5", tmp_path / "r.csv").out)
    assert columns["row"] == [str(n) for n in range(1, 13)]
    assert table((tmp_path / "l.csv").read_text())["row"] == columns["row"]


def test_without_proba_there_are_labels_only(capsys, data, model):
    assert list(table(done(capsys, "predict", model, data).out)) == ["id", "label"]


def test_files_hold_what_stdout_shows(capsys, data, model, tmp_path):
    whole = ("predict", model, data, "--proba", "--digits", 17)
    shown = done(capsys, *whole).out
    written = done(capsys, *whole, "-o", tmp_path / "p.csv")
    assert written.out == ""
    assert written.err == f"wrote 120 rows to {tmp_path / 'p.csv'}\n"
    assert (tmp_path / "p.csv").read_text(encoding="utf-8") == shown
    quiet = done(capsys, "predict", model, data, "--proba", "-q", "-o", tmp_path / "p.h5")
    assert quiet.out == quiet.err == ""
    columns = table(shown)
    with h5py.File(tmp_path / "p.h5") as file:
        assert file.attrs["encoding-type"] == b"vpem-predictions"
        assert sorted(file) == sorted(columns)
        assert file["id"].asstr()[()].tolist() == columns["id"]
        for name in set(columns) - {"id"}:
            np.testing.assert_array_equal(file[name][()], np.array(columns[name], dtype=float))
    assert sorted(listing(tmp_path)) == ["p.csv", "p.h5"]


def test_rows_without_ids_are_numbered(capsys, model, data, tmp_path):
    with h5py.File(data) as file, h5py.File(tmp_path / "d.h5", "w") as other:
        other["X"] = file["X"][:7]
    columns = table(done(capsys, "predict", model, tmp_path / "d.h5").out)
    assert list(columns) == ["row", "label"]
    assert columns["row"] == [str(row) for row in range(7)]


def test_numbers_as_ids(capsys, model, data, tmp_path):
    with h5py.File(data) as file, h5py.File(tmp_path / "d.h5", "w") as other:
        other["X"] = file["X"][:3]
        other["ids"] = [30, 10, 20]
    columns = table(done(capsys, "predict", model, tmp_path / "d.h5").out)
    assert columns["id"] == ["30", "10", "20"]


def test_features_are_matched_by_name(capsys, data, model, tmp_path):
    order = [4, 2, 0, 5, 1, 3]
    with h5py.File(data) as file, h5py.File(tmp_path / "d.h5", "w") as other:
        X = file["X"][()]
        other["X"] = np.column_stack([X[:, order], np.full(len(X), 1e9)])
        other["feature_names"] = [*(NAMES[j] for j in order), "one more"]
    one = table(done(capsys, "predict", model, data, "--proba").out)
    two = table(done(capsys, "predict", model, tmp_path / "d.h5", "--proba").out)
    assert one["label"] == two["label"]
    assert one["proba_0"] == two["proba_0"]
    scores = [done(capsys, "score", model, file).out for file in (data, tmp_path / "d.h5")]
    assert scores[0] == scores[1]


def test_predictions_as_json(capsys, data, model, tmp_path):
    whole = done(capsys, "predict", model, data, "--json", "--proba").json
    columns = table(done(capsys, "predict", model, data).out)
    assert whole["labels"] == [int(label) for label in columns["label"]]
    assert np.shape(whole["proba"]) == (120, 4)
    assert whole["counts"] == np.bincount(whole["labels"], minlength=4).tolist()
    filed = done(capsys, "predict", model, data, "--json", "-q", "-o", tmp_path / "p.csv")
    assert filed.err == ""
    assert filed.json == {
        "n_samples": 120, "counts": whole["counts"], "output": str(tmp_path / "p.csv"),
    }  # fmt: skip


# ---- score --------------------------------------------------------------------------------------


def test_scores(capsys, data, model):
    found = done(capsys, "score", model, data, "--json").json
    mixture = read_model(model).mixture
    scores = mixture.score_samples(read_dataset(data).X)
    assert found["n_samples"] == 120
    assert found["total_log_likelihood"] == pytest.approx(scores.sum(), rel=1e-12)
    assert found["log_likelihood"] == pytest.approx(scores.mean(), rel=1e-12)
    # Three hubs of two, one and three features: block-diagonal, so 3 + 1 + 6 entries.
    p = 3 + 4 * 6 + 4 * (3 + 1 + 6)
    assert found["n_parameters"] == p
    assert found["bic"] == pytest.approx(-2 * scores.sum() + p * np.log(120), rel=1e-12)
    assert found["aic"] == pytest.approx(-2 * scores.sum() + 2 * p, rel=1e-12)


def test_scores_as_a_table(capsys, data, model):
    found = done(capsys, "score", model, data, "--json").json
    out = done(capsys, "score", model, data).out
    for name in ("log_likelihood", "bic", "aic"):
        assert f"{found[name]:.4f}"[:-1] in out


# ---- sample -------------------------------------------------------------------------------------


def test_samples_have_the_moments_of_the_mixture(capsys, model):
    columns = table(done(capsys, "sample", model, "-n", 20_000, "--seed", 1).out)
    assert list(columns) == [*NAMES, "component"]
    X = np.array([columns[name] for name in NAMES], dtype=float).T
    component = np.array(columns["component"], dtype=int)
    mixture = read_model(model).mixture
    weights = np.bincount(component, minlength=4) / 20_000
    np.testing.assert_allclose(weights, mixture.assembled_weights, atol=0.02)
    for k in range(4):
        deviation = np.sqrt(np.diag(mixture.assembled_covariances[k]))
        own = X[component == k]
        error = np.abs(own.mean(axis=0) - mixture.assembled_means[k])
        assert (error < 5 * deviation / np.sqrt(len(own))).all()
        spread = np.cov(own.T) - mixture.assembled_covariances[k]
        assert np.abs(spread / np.outer(deviation, deviation)).max() < 7 / np.sqrt(len(own))


def test_a_seed_draws_the_same_rows_everywhere(capsys, model, tmp_path):
    words = ("sample", model, "-n", 12, "--seed", 3)
    shown = done(capsys, *words).out
    assert done(capsys, *words).out == shown
    assert done(capsys, "sample", model, "-n", 12, "--seed", 4).out != shown
    assert done(capsys, *words, "-o", tmp_path / "s.csv").out == ""
    assert (tmp_path / "s.csv").read_text(encoding="utf-8") == shown
    assert "wrote 12 rows" in done(capsys, *words, "-o", tmp_path / "s.h5").err
    drawn = read_dataset(tmp_path / "s.h5")
    columns = table(shown)
    assert drawn.feature_names == NAMES
    np.testing.assert_array_equal(drawn.X.T, [list(map(float, columns[name])) for name in NAMES])
    assert drawn.labels.tolist() == [int(label) for label in columns["component"]]


def test_a_sample_can_be_fitted_and_evaluated(capsys, model, tmp_path):
    done(capsys, "sample", model, "-n", 400, "-o", tmp_path / "s.h5", "-q")
    done(capsys, "fit", tmp_path / "s.h5", "-k", 4, "-q", "-o", tmp_path / "m.h5")
    found = done(capsys, "evaluate", tmp_path / "m.h5", tmp_path / "s.h5", "--json").json
    assert found["labels"] == [0, 1, 2, 3]
    assert found["n_samples"] == 400


# ---- evaluate -----------------------------------------------------------------------------------


def best_accuracy(truth, clusters):
    size = max(truth.max(), clusters.max()) + 1
    return max(np.mean(np.array(order)[clusters] == truth) for order in permutations(range(size)))


@pytest.mark.parametrize("k", [2, 4])
def test_more_and_fewer_components_than_labels(capsys, folder, data, k):
    model = folder / f"m{k}.h5"
    found = done(capsys, "evaluate", model, data, "--json").json
    source = read_dataset(data)
    names, truth = np.unique(source.labels, return_inverse=True)
    clusters = read_model(model).mixture.predict(source.X)
    assert found["n_samples"] == 120
    assert found["labels"] == names.tolist() == ["ill", "unsure", "well"]
    assert found["accuracy"] == pytest.approx(best_accuracy(truth, clusters))
    assert found["adjusted_rand_index"] == pytest.approx(adjusted_rand_score(truth, clusters))
    assert found["normalized_mutual_information"] == pytest.approx(
        normalized_mutual_info_score(truth, clusters)
    )
    confusion = np.zeros((3, k), dtype=int)
    np.add.at(confusion, (truth, clusters), 1)
    assert found["confusion"] == confusion.tolist()
    assert len(set(found["mapping"].values())) == len(found["mapping"]) == min(k, 3)
    assert 0.4 < found["accuracy"] < 1


def test_labels_never_enter_the_fit(capsys, data, model, tmp_path):
    with h5py.File(data) as file, h5py.File(tmp_path / "d.h5", "w") as other:
        for name in set(file) - {"labels"}:
            file.copy(name, other)
    done(capsys, "fit", tmp_path / "d.h5", "-k", 4, "-q", "-o", tmp_path / "m.h5")
    one, two = read_model(model).mixture, read_model(tmp_path / "m.h5").mixture
    np.testing.assert_array_equal(one.means, two.means)


def test_labels_from_elsewhere(capsys, data, model, tmp_path):
    wanted = done(capsys, "evaluate", model, data, "--json").json
    labels = read_dataset(data).labels
    (tmp_path / "truth.txt").write_text("\n".join(labels) + "\n")
    with h5py.File(data) as file, h5py.File(tmp_path / "d.h5", "w") as other:
        for name in set(file) - {"labels"}:
            file.copy(name, other)
        file.copy("labels", other, "seen/by/experts")
    for words in ((data, "--labels", tmp_path / "truth.txt"),
                  (tmp_path / "d.h5", "--labels", "seen/by/experts")):  # fmt: skip
        assert done(capsys, "evaluate", model, *words, "--json").json == wanted


def test_the_evaluation_as_tables(capsys, data, model):
    found = done(capsys, "evaluate", model, data, "--json").json
    out = done(capsys, "evaluate", model, data).out
    assert f"{found['accuracy']:.4f}" in out
    assert "unsure" in out
    for cluster, label in found["mapping"].items():
        assert f"{cluster} = {label}" in out


# ---- in a pipe ----------------------------------------------------------------------------------


def test_a_reader_that_stops_early_is_told_nothing(model):
    words = [interpreter(), "-c", MAIN, "sample", str(model), "-n", "100000"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline().startswith(b"height,")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0


def test_stdout_of_a_process_parses(data, model):
    found = spawn("predict", model, data, "--proba")
    assert found.returncode == 0
    assert found.stderr == ""
    assert len(table(found.stdout)["proba_3"]) == 120
