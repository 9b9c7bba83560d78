"""`vpem fedem`: what it prints, writes, draws and refuses."""

import json

import numpy as np
import pytest

from vpem import Dataset, fit_fedem, read_dataset, read_model, write_dataset
from vpem.network.partition import by_label, evenly

from .cli_support import done, listing, make_data, run
from .tables import each

KEYS = {
    "algorithm", "n_samples", "n_features", "n_workers", "worker_names", "worker_rows",
    "n_components", "covariance_type", "topology", "converged", "n_iter", "n_epochs", "seconds",
    "log_likelihood", "history", "recorded", "mean_field", "epochs", "bytes_up", "projections",
    "mixing_weights", "compress", "step_size", "participation", "memory", "alpha", "omega",
    "communication", "warnings", "seed", "data", "model", "plot", "init_rows", "disagreement",
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("fedem") / "d.h5", n_samples=120)


@pytest.fixture
def fedem(capsys, data):
    """Function: run `vpem fedem --json` on the data and return the object."""

    def call(*words):
        return done(capsys, "fedem", data, "--max-iter", "20", "--json", *words).json

    return call


def test_everything_promised_is_there(fedem):
    found = fedem("--workers", "5", "--compress", "qsgd:8bits", "--participation", "0.7")
    assert set(found) >= KEYS
    assert found["algorithm"] == "fedem"
    lists = [found[name] for name in ("history", "mean_field", "epochs", "bytes_up", "recorded")]
    assert {len(values) for values in lists} == {21}
    assert len(found["communication"]["bytes_by_iteration"]) == 21
    assert found["log_likelihood"] == found["history"][-1]
    assert found["epochs"][0] == 1
    assert found["n_epochs"] == found["epochs"][-1]
    assert sum(found["worker_rows"]) == 120
    sent = found["communication"]["by_kind"]
    assert sum(kind["bytes"] for kind in sent.values()) == found["communication"]["bytes"]


def test_it_is_the_function(fedem, data):
    source = read_dataset(data)
    found = fedem(
        "--workers", "4", "--sort-by-label", "--compress", "natural:12bits", "--step-size",
        "decreasing:0.9,0.6", "--init-rows", "3,77", "--seed", "5", "--covariance", "tied",
    )  # fmt: skip
    wanted = fit_fedem(
        source.X, by_label(source.labels, 4), init=[3, 77], compress="natural:12bits", seed=5,
        step_size="decreasing:0.9,0.6", covariance_type="tied", max_iter=20, tol=0.0,
    )  # fmt: skip
    assert found["history"] == pytest.approx(wanted.run.history.objective, abs=1e-12)
    assert found["init_rows"] == [3, 77]


def test_variance_reduction(fedem):
    found = fedem("--workers", "4", "--variance-reduction", "--batch-size", "5", "--inner", "4")
    assert found["algorithm"] == "vr-fedem"
    assert found["epochs"][1] == 2
    assert found["epochs"][2] == pytest.approx(2 + 2 * 4 * 5 / 120)


def test_epochs_end_it(fedem):
    found = fedem("--workers", "4", "--epochs", "6.5")
    assert found["n_iter"] == 6
    assert found["epochs"][-1] == 7


@pytest.mark.parametrize("topology", ["cycle", "complete"])
def test_on_a_graph(fedem, topology):
    words = ("--workers", "5", "--topology", topology, "--compress", "natural:12bits")
    found = fedem(*words, "--participation", "0.8")
    assert found["server"] is None
    assert found["compress"] == "natural:12bits"
    assert found["rounds"] > 0
    assert found["bytes_up"][-1] == found["communication"]["bytes"]
    assert found["disagreement"] < 1e-2


def test_weights_missing_values_and_data_on_disk(capsys, data, tmp_path):
    X = np.array(read_dataset(data).X)
    weights = np.random.default_rng(0).integers(0, 3, len(X)).astype(float)
    X[weights == 2, 1] = np.nan
    path = tmp_path / "holes.h5"
    write_dataset(path, Dataset(X, tuple("abcdef"), sample_weight=weights))
    words = ("--workers", "4", "--max-iter", "5", "--tol", "0", "--json", "--quiet")
    refused = run(capsys, "fedem", path, *words)
    assert refused.code == 2
    assert refused.sentence.endswith("integrate them out with --missing marginalize")
    asked = ("--missing", "marginalize", "--sample-weight", "sample_weight")
    found = done(capsys, "fedem", path, *words, *asked).json
    wanted = fit_fedem(
        X, evenly(len(X), 4), missing="marginalize", sample_weight=weights, max_iter=5, tol=0
    )
    assert found["log_likelihood"] == pytest.approx(wanted.log_likelihood, rel=1e-12)
    assert (found["total_weight"], found["sample_weight"]) == (weights.sum(), "sample_weight")
    whole, stored = (
        done(capsys, "fedem", data, *words, *limit).json
        for limit in ((), ("--memory-limit", "1KB"))
    )
    np.testing.assert_allclose(stored["history"], whole["history"], rtol=1e-10)


def test_worker_rows_of_a_file(fedem, tmp_path):
    file = tmp_path / "rows.json"
    file.write_text(json.dumps({"here": list(range(100)), "there": list(range(100, 120))}))
    found = fedem("--worker-rows", file, "--weighting", "workers")
    assert found["worker_names"] == ["here", "there"]
    assert found["worker_rows"] == [100, 20]


def test_the_model_is_read_by_the_other_commands(capsys, fedem, data, tmp_path):
    output = tmp_path / "m.h5"
    found = fedem("--workers", "5", "--compress", "qsgd:8bits", "-o", output)
    assert found["model"] == str(output)
    model = read_model(output)
    assert model.history[:, 0] / 120 == pytest.approx(found["history"])
    assert model.report["projections"] == found["projections"]
    scored = done(capsys, "score", output, data, "--json").json
    assert scored["log_likelihood"] == pytest.approx(found["log_likelihood"], abs=1e-12)
    assert len(done(capsys, "predict", output, data, "--json").json["labels"]) == 120
    assert "5 workers" in done(capsys, "model", "show", output).out
    again = fedem("--workers", "5", "--init-model", output)
    assert again["history"][0] >= found["log_likelihood"] - 1e-9


def test_the_table(capsys, data, tmp_path):
    picture = tmp_path / "p.png"
    words = ("--workers", "5", "--compress", "qsgd:4bits", "--participation", "0.5")
    result = done(capsys, "fedem", data, *words, "--plot", picture)
    for text in ("5 workers", "qsgd:4bits", "participation 0.5", "projections", "sent by workers"):
        assert text in result.out
    assert "warning" not in result.err
    assert picture.read_bytes().startswith(b"\x89PNG")
    words = ("--workers", "5", "--topology", "cycle", "--sum", "tree")
    shown = " ".join(done(capsys, "fedem", data, *words).out.split())
    assert "exact along a tree" in shown
    assert "None" not in shown


def test_the_same_seed_gives_the_same_run(fedem):
    words = ("--workers", "5", "--compress", "qsgd:4bits", "--batch-size", "6")
    one, two, other = (fedem(*words, "--seed", seed) for seed in ("1", "1", "2"))
    assert one["history"] == two["history"] != other["history"]


def test_it_says_whether_it_converged(capsys, data, tmp_path):
    words = ("fedem", data, "--workers", "3", "--covariance", "tied")
    told = done(capsys, *words)
    assert told.err == ""
    assert ", converged, " in told.out
    found = done(capsys, *words, "--json").json
    assert found["converged"] is True
    assert found["n_iter"] < 1000
    model = tmp_path / "m.h5"
    noisy = done(capsys, *words, "--batch-size", "9", "--strict", "-o", model)
    assert ", converged to within noise, " in noisy.out
    assert ", converged to within noise, " in done(capsys, "model", "show", model).out
    assert "noise of batches, which stays in the result" in noisy.err
    noisy = run(capsys, *words, "--batch-size", "9", "--max-iter", "30", "--strict")
    assert noisy.code == 3
    assert ", not converged, " in noisy.out
    assert "the noise of batches keeps them there" in noisy.err
    endless = done(capsys, *words, "--tol", "0", "--max-iter", "150")
    assert "converged" not in endless.out + endless.err
    assert " 150, " in endless.out


def test_strict(capsys, data):
    words = ("fedem", data, "--workers", "3", "--covariance", "tied", "--step-size", "constant:1")
    short = run(capsys, *words, "--tol", "1e-14", "--max-iter", "2", "--strict")
    assert short.code == 3
    assert "not converged within 2 iterations" in short.err
    enough = (*words, "--tol", "1e-14", "--max-iter", "3000", "--strict")
    assert run(capsys, *enough).code == 0


@each(
    ("words", "why"),
    [
        (("--workers", "121"), "121 workers cannot share 120 rows"),
        (("--workers", "3", "--worker-rows", "x.json"), "--workers or --worker-rows, not both"),
        (("--workers", "3", "--participation", "0"), "--participation must be a number from 1e-06"),
        (("--workers", "3", "--participation", "1.1"), "a number from 1e-06 to 1"),
        (("--workers", "3", "--compress", "qsgd:1bits"), "bits of qsgd"),
        (("--workers", "3", "--compress", "gzip"), "codec must be one of"),
        (("--workers", "3", "--compress", "topk:0.1", "--memory", "none"), "is biased"),
        (("--workers", "3", "--step-size", "constant:2"), "constant --step-size"),
        (("--workers", "3", "--batch-size", "0"), "--batch-size must be"),
        (("--workers", "3", "--inner", "2"), "variance reduction"),
        (("--workers", "3", "--memory", "frist"), "did you mean 'first'"),
        (("--workers", "3", "--weighting", "row"), "did you mean 'rows'"),
        (("--workers", "3", "--strict", "--tol", "0"), "--strict needs a --tol"),
        (("--workers", "3", "--link-failure", "0.1"), "graph of agents"),
        (("--workers", "3", "--init-rows", "0,1", "--init-model", "m.h5"), "not both"),
        (("--workers", "3", "--init-rows", "0,999"), "between 0 and 119"),
        (("--workers", "3", "--plot", "p.jpg"), "pictures are written"),
        (("--workers", "3", "--seed", "-1"), "--seed"),
        (("--workers", "3", "-k", "0"), "--components"),
        (("--workers", "3", "-k", "500"), "500 components need"),
        (("--workers", "3", "--topology", "ring"), "topology"),
    ],
)
def test_bad_input_is_one_sentence(capsys, data, tmp_path, monkeypatch, words, why):
    monkeypatch.chdir(tmp_path)
    result = run(capsys, "fedem", data, *words)
    assert result.code == 2
    assert why in result.sentence
    assert result.out == ""
    assert listing(tmp_path) == {}


def test_labels_are_needed_to_sort_by(capsys, tmp_path):
    bare = make_data(tmp_path / "bare.h5", named=False, n_samples=30)
    result = run(capsys, "fedem", bare, "--workers", "3", "--sort-by-label")
    assert result.code == 2
    assert "no labels" in result.sentence


def test_nothing_is_overwritten(capsys, data, tmp_path):
    output = tmp_path / "m.h5"
    output.write_bytes(b"precious")
    result = run(capsys, "fedem", data, "--workers", "3", "-o", output)
    assert result.code == 2
    assert "--force" in result.sentence
    assert output.read_bytes() == b"precious"
    assert run(capsys, "fedem", data, "--workers", "3", "-o", data, "--force").code == 2


def test_few_rows_a_worker(capsys, tmp_path):
    small = make_data(tmp_path / "s.h5", n_samples=12)
    words = ("--workers", "12", "--covariance", "spherical", "--json")
    found = done(capsys, "fedem", small, *words).json
    assert found["worker_rows"] == [1] * 12
    assert np.isfinite(found["log_likelihood"])
    assert evenly(12, 12).n_workers == 12
