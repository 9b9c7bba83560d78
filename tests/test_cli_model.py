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
from matplotlib.collections import PathCollection
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

import vpem
import vpem_cli
from vpem import read_dataset, read_model
from vpem.engines.tls.trust import fingerprint_words
from vpem.files.studies.identities import read_certificate, write_request
from vpem.files.studies.logs import MessageLog

from .cli_support import AGENTS, MAIN, NAMES, done, make_data, run
from .forks import interpreter
from .study_support import make_study
from .tables import each


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


def test_predictions_are_those_of_the_mixture(capsys, data, model, tmp_path):
    columns = table(done(capsys, "predict", model, data, "--proba", "--digits", 17).out)
    source, mixture = read_dataset(data), read_model(model).mixture
    assert columns["id"] == source.ids.tolist()
    proba = np.array([columns[f"proba_{k}"] for k in range(4)], dtype=float).T
    np.testing.assert_array_equal(proba, mixture.predict_proba(source.X))
    labels = np.array(columns["label"], dtype=int)
    np.testing.assert_array_equal(labels, proba.argmax(axis=1))
    np.testing.assert_array_equal(labels, mixture.predict(source.X))
    assert proba.max(axis=1).min() < 0.9  # clusters that overlap leave doubt
    for digits, least in ((3, 1e-8), (7, 1e-12), (12, 1e-17)):
        more = ("--digits", digits) if digits != 7 else ()
        columns = table(done(capsys, "predict", model, data, "--proba", *more).out)
        for k, shares in enumerate(proba.T):
            for cell, share in zip(columns[f"proba_{k}"], shares, strict=True):
                assert cell == ("0" if share < min(least, 1e-12) else f"{share:.{digits}g}")
    whole = done(capsys, "predict", model, data, "--json").json
    assert whole["labels"] == labels.tolist()
    assert whole["counts"] == np.bincount(labels, minlength=4).tolist()


def test_rows_are_called_as_an_index_counts_them(capsys, tmp_path):
    """As R writes tables, from 1."""
    lines = [f'"{n}",{n % 3}.5,{n % 5}' for n in range(1, 13)]
    (tmp_path / "r.csv").write_text("\n".join(['"","a","b"', *lines]) + "\n")
    done(capsys, "fit", tmp_path / "r.csv", "-o", tmp_path / "r.h5", "--labels", tmp_path / "l.csv")
    columns = table(done(capsys, "predict", tmp_path / "r.h5", tmp_path / "r.csv").out)
    assert columns["row"] == [str(n) for n in range(1, 13)]
    assert table((tmp_path / "l.csv").read_text())["row"] == columns["row"]


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


# ---- evaluate -----------------------------------------------------------------------------------


def best_accuracy(truth, clusters):
    size = max(truth.max(), clusters.max()) + 1
    return max(np.mean(np.array(order)[clusters] == truth) for order in permutations(range(size)))


@each("k", [2, 4])
def test_more_and_fewer_components_than_labels(capsys, folder, data, k):
    model = folder / f"m{k}.h5"
    found = done(capsys, "evaluate", model, data, "--json").json
    source = read_dataset(data)
    names, truth = np.unique(source.labels, return_inverse=True)
    clusters = read_model(model).mixture.predict(source.X)
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
        assert process.wait(timeout=300) == 0


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


def test_exports_agree_with_each_other_and_with_the_model(capsys, rough, tmp_path):
    """And with what is scored, in the units of the data."""
    for name in ("m.npz", "m.json"):
        result = done(capsys, "model", "export", rough, "-o", tmp_path / name)
        assert (result.out, result.err) == ("", f"wrote {tmp_path / name}\n")
    mixture = read_model(rough).mixture
    plain = json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))
    with np.load(tmp_path / "m.npz", allow_pickle=False) as archive:
        assert archive["feature_names"].tolist() == list(NAMES)
        parts = [archive[name] for name in ("weights", "means", "covariances")]
    for name, found in zip(("weights", "means", "covariances"), parts, strict=True):
        wanted = getattr(mixture, f"assembled_{name}")
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(plain[name], wanted)
    assert plain["report"]["agent_names"] == list(AGENTS)
    found = done(capsys, "score", rough, rough.with_name("d.h5"), "--json").json
    X = read_dataset(rough.with_name("d.h5")).X
    logs = [
        np.log(weight) + multivariate_normal(mean, covariance).logpdf(X)
        for weight, mean, covariance in zip(*parts, strict=True)
    ]
    assert logsumexp(logs, axis=0).mean() == pytest.approx(found["log_likelihood"], rel=1e-10)


def test_every_file_is_shown_by_one_command(capsys, rough, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = rough.with_name("d.h5")
    done(capsys, "predict", rough, data, "-o", "p.h5")
    done(capsys, "kmeans", data, "-o", "k.h5", "-q")
    done(capsys, "select", data, "-k", "1-2", "--state", "s.h5", "-q", "-j", 1)
    for file, said in (
        (rough, "Components"), (data, "features  "), ("p.h5", "label    whole numbers "),
        ("k.h5", "Clusters"), ("s.h5", "selection"),
    ):  # fmt: skip
        shown = done(capsys, "show", file)
        assert said in shown.out
        assert done(capsys, "model", "show", file).out == shown.out
    columns = done(capsys, "show", "p.h5", "--json").json["columns"]
    (label,) = (one for one in columns if one["name"] == "label")
    assert (label["least"], label["most"], label["different"], label["missing"]) == (0, 1, 2, 0)


def test_show_calls_what_shows_other_files(capsys, tmp_path):
    """What it shows of each, golden results tell."""
    made = make_study(tmp_path, "lab")["lab"]
    request = write_request(made, "lab", features=("age", "sex")).path
    certificate = made.folder / "lab.crt"
    with closing(MessageLog(tmp_path / "lab.log", command="fit")):
        pass
    for file, as_other in (
        (made.path, ("study", "show")), (certificate, ("party", "show")),
        (tmp_path / "lab.log", ("party", "log")),
    ):  # fmt: skip
        assert done(capsys, "show", file).out == done(capsys, *as_other, file).out
    assert "asks to be in heart" in done(capsys, "show", request).out
    words = done(capsys, "show", request, "--json").json["words"]
    assert words == fingerprint_words(read_certificate(certificate))


def test_scores_along_directions_and_their_plane(capsys, tmp_path, monkeypatch):
    """Scores in a file are those of the formula, and the picture's plane is that of the first."""
    monkeypatch.chdir(tmp_path)
    make_data("d.h5", n_components=3)
    done(capsys, "fit", "d.h5", "-k", 3, "--agents", 1, "-o", "m.h5")
    model, data = read_model("m.h5"), read_dataset("d.h5")
    for share, is_told in ((0.5, False), (1, True)):
        said = "predict", "m.h5", "d.h5", "--directions", share
        mixture = model.mixture
        centred = data.X - mixture.assembled_weights @ mixture.assembled_means
        wanted = centred @ mixture.directions(share)[0]
        if is_told:
            np.testing.assert_allclose(done(capsys, *said, "--json").json["scores"], wanted)
            continue
        done(capsys, *said, "-o", "s.csv")
        table = np.genfromtxt("s.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")
        for axis, column in enumerate(wanted.T, 1):
            np.testing.assert_allclose(table[f"direction_{axis}"], column, atol=1e-12)
        picture = vpem.plot(model, "projection", data, directions=share)
        marks = [
            one for one in picture.figure.axes[0].collections if isinstance(one, PathCollection)
        ]
        drawn = np.concatenate([one.get_offsets() for one in marks])
        for axis in (0, 1):  # in the order of components, and turned
            alike = [
                np.corrcoef(np.sort(drawn[:, axis]), np.sort(sign * wanted[:, axis]))[0, 1]
                for sign in (1, -1)
            ]
            assert max(alike) > 1 - 1e-9
    done(capsys, "kmeans", "d.h5", "-k", 2, "-o", "c.h5")
    done(capsys, "fit", "d.h5", "-k", 1, "-o", "o.h5")
    done(capsys, "fit", "d.h5", "-k", 2, "--family", "t", "-o", "t.h5")
    for words, reason in (
        (("predict", "m.h5", "d.h5", "--directions", 2), "from 0 to 1"),
        (("predict", "o.h5", "d.h5", "--directions", 1), "differ in no direction"),
        (("plot", "o.h5", "d.h5", "--kind", "projection", "--directions", 1), "in no direction"),
        (("predict", "c.h5", "d.h5", "--directions", 1), "those of a mixture"),
        (("predict", "t.h5", "d.h5", "--directions", 1), "of Gaussian features alone"),
        (("plot", "c.h5", "d.h5", "--kind", "projection", "--directions", 1), "of a mixture, not"),
        (("plot", "m.h5", "d.h5", "--kind", "pairs", "--directions", 1), "are for projection"),
    ):
        result = run(capsys, *words)
        assert (result.code, reason in result.sentence) == (2, True), result.sentence
