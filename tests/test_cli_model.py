"""Models at work and on show: predict, score, sample, evaluate, show, export."""

import csv
import io
import json
import subprocess
from contextlib import closing
from itertools import permutations

import h5py
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

import vpem_cli
from vpem import read_dataset, read_model, write_model
from vpem.engines.tls.trust import fingerprint_words
from vpem.files.studies.identities import read_certificate, write_request
from vpem.files.studies.logs import MessageLog
from vpem.files.studies.policy import EXAMPLE

from .cli_support import AGENTS, HELD, MAIN, NAMES, done, listing, make_data, run, spawn
from .forks import interpreter
from .study_support import make_study


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


# ---- what a model holds: show and export ---------------------------------------------------------


@pytest.fixture(scope="module")
def rough(tmp_path_factory):
    """A model whose roots differ a little: few rounds, scaled features."""
    folder = tmp_path_factory.mktemp("model")
    make_data(folder / "d.h5")
    words = ["fit", folder / "d.h5", "--rounds", 40, "--acceleration", "none",
             "--scale", "standard", "--seed", 3, "-q", "-o", folder / "m.h5"]  # fmt: skip
    assert vpem_cli.run([str(word) for word in words]) == 0
    return folder / "m.h5"


def test_show_has_what_a_reader_wants(capsys, rough):
    result = done(capsys, "model", "show", rough)
    assert result.err == ""
    assert "\x1b" not in result.out
    mixture = read_model(rough).mixture
    for said in (*NAMES, *AGENTS, "2 components, 6 features", "40 rounds", "150 rows", "vpem 0.1",
                 f"{mixture.assembled_weights[0]:.4f}", "spread over roots",
                 f"{mixture.assembled_means[1, 3]:.6g}"):  # fmt: skip
        assert said in result.out


def test_show_as_json(capsys, rough):
    found = done(capsys, "model", "show", rough, "--json").json
    kept = read_model(rough)
    assert found["encoding-type"] == "vpem-model"
    assert found["feature_names"] == list(NAMES)
    assert [hub["features"] for hub in found["hubs"]] == list(map(list, HELD))
    assert len({str(hub["weights"]) for hub in found["hubs"]}) == 3
    np.testing.assert_array_equal(found["means"], kept.mixture.assembled_means)
    np.testing.assert_array_equal(found["history"], kept.history)
    assert found["options"]["seed"] == 3
    assert found["scaling"]["scale"] == kept.mixture.scaling.scale.tolist()


def test_exports_agree_with_each_other_and_with_the_model(capsys, rough, tmp_path):
    for name in ("m.npz", "m.json"):
        result = done(capsys, "model", "export", rough, "-o", tmp_path / name)
        assert (result.out, result.err) == ("", f"wrote {tmp_path / name}\n")
    assert done(capsys, "model", "export", rough, "-q", "-o", tmp_path / "n.npz").err == ""
    mixture = read_model(rough).mixture
    plain = json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))
    with np.load(tmp_path / "m.npz", allow_pickle=False) as archive:
        for name in ("weights", "means", "covariances"):
            wanted = getattr(mixture, f"assembled_{name}")
            np.testing.assert_array_equal(archive[name], wanted)
            np.testing.assert_array_equal(plain[name], wanted)
        assert archive["feature_names"].tolist() == list(NAMES)
    assert plain["report"]["agent_names"] == list(AGENTS)


def test_the_exported_mixture_is_in_the_units_of_the_data(capsys, rough, tmp_path):
    from scipy.special import logsumexp
    from scipy.stats import multivariate_normal

    done(capsys, "model", "export", rough, "-o", tmp_path / "m.npz", "-q")
    found = done(capsys, "score", rough, rough.with_name("d.h5"), "--json").json
    with h5py.File(rough.with_name("d.h5")) as file:
        X = file["X"][()]
    with np.load(tmp_path / "m.npz", allow_pickle=False) as archive:
        logs = [
            np.log(weight) + multivariate_normal(mean, covariance).logpdf(X)
            for weight, mean, covariance in zip(
                archive["weights"], archive["means"], archive["covariances"], strict=True
            )
        ]
    assert logsumexp(logs, axis=0).mean() == pytest.approx(found["log_likelihood"], rel=1e-10)


@pytest.mark.parametrize("name", ["m.npz", "m.json"])
def test_an_existing_export_is_replaced_only_by_force(capsys, rough, tmp_path, name):
    (tmp_path / name).write_text("precious")
    words = ("model", "export", rough, "-o", tmp_path / name)
    result = run(capsys, *words)
    assert result.code == 2
    assert "exists; pass --force" in result.sentence
    assert listing(tmp_path) == {name: b"precious"}
    done(capsys, *words, "--force")
    assert listing(tmp_path)[name] != b"precious"


def test_every_file_is_shown_by_one_command(capsys, rough, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = rough.with_name("d.h5")
    done(capsys, "predict", rough, data, "-o", "p.h5")
    done(capsys, "kmeans", data, "-o", "k.h5", "-q")
    done(capsys, "impute", data, "-o", "i.h5", "-q")
    done(capsys, "fit", data, "--checkpoint", "c.h5", "-q")
    done(capsys, "select", data, "-k", "1-2", "--state", "s.h5", "-q", "-j", 1)
    for file, said in (
        (rough, "Components"), (data, "features  "), ("p.h5", "label    whole numbers "),
        ("k.h5", "Clusters"), ("i.h5", "Trend over"), ("c.h5", "--components  "),
        ("s.h5", "selection"),
    ):  # fmt: skip
        shown = done(capsys, "show", file)
        assert said in shown.out
        assert done(capsys, "model", "show", file).out == shown.out
        assert done(capsys, "show", file, "--json").json
    (label,) = (
        one for one in done(capsys, "show", "p.h5", "--json").json["columns"]
        if one["name"] == "label"
    )  # fmt: skip
    assert (label["least"], label["most"], label["different"], label["missing"]) == (0, 1, 2, 0)


def test_show_calls_what_shows_other_files(capsys, rough, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = rough.with_name("d.h5")
    for name in ("m.json", "m.npz"):
        done(capsys, "model", "export", rough, "-o", name)
    for name in ("p.csv", "p.parquet"):
        done(capsys, "predict", rough, data, "-o", name, "--quiet")
    made = make_study(tmp_path, "lab")["lab"]
    request = write_request(made, "lab", features=("age", "sex")).path
    certificate = made.folder / "lab.crt"
    with closing(MessageLog("lab.log", command="fit")):
        pass
    (tmp_path / "policy.toml").write_text(EXAMPLE, encoding="utf-8")
    for file, said, as_other in (
        ("m.json", "list of 2 x 6", None), ("m.npz", "float64, 2 x 6 x 6", None),
        ("p.csv", "label", None), ("p.parquet", "label", None),
        (made.path, "What is shown to whom", ("study", "show")),
        (certificate, "in words", ("party", "show")), ("lab.log", "runs", ("party", "log")),
        (request, "2 features: age, sex", None), ("policy.toml", "fewest-parties", None),
    ):  # fmt: skip
        shown = done(capsys, "show", file)
        assert said in shown.out
        assert done(capsys, "show", file, "--json").json
        if as_other:
            assert shown.out == done(capsys, *as_other, file).out
    assert "asks to be in heart" in done(capsys, "show", request).out
    assert (
        fingerprint_words(read_certificate(certificate))
        == (done(capsys, "show", request, "--json").json["words"])
    )


def test_log_likelihood_against_bytes(capsys, tmp_path):
    data, out = make_data(tmp_path / "d.h5"), tmp_path / "m.h5"
    told = done(capsys, "fit", data, "--topology", "cycle", "-o", out, "--json").json
    shown = done(capsys, "model", "show", out).out
    assert "Log-likelihood against bytes" in shown
    last = np.mean(told["history"][-1]) / told["n_samples"]
    assert f"{last:.8g}" in shown
    rough = read_model(out)
    rough.report["communication"]["bytes_by_iteration"].pop()
    write_model(out, rough, force=True)
    assert "against bytes" not in done(capsys, "model", "show", out).out
