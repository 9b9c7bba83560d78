import json
from contextlib import closing

import h5py
import numpy as np
import pytest

import vpem_cli
from vpem import read_model, write_model
from vpem.engines.tls.trust import fingerprint_words
from vpem.files.studies.identities import read_certificate, write_request
from vpem.files.studies.logs import MessageLog
from vpem.files.studies.policy import EXAMPLE

from .cli_support import AGENTS, HELD, NAMES, done, listing, make_data, run
from .study_support import make_study


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model whose roots differ a little: few rounds, scaled features."""
    folder = tmp_path_factory.mktemp("model")
    make_data(folder / "d.h5")
    words = ["fit", folder / "d.h5", "--rounds", 40, "--acceleration", "none",
             "--scale", "standard", "--seed", 3, "-q", "-o", folder / "m.h5"]  # fmt: skip
    assert vpem_cli.run([str(word) for word in words]) == 0
    return folder / "m.h5"


def test_show_has_what_a_reader_wants(capsys, model):
    result = done(capsys, "model", "show", model)
    assert result.err == ""
    assert "\x1b" not in result.out
    mixture = read_model(model).mixture
    for said in (*NAMES, *AGENTS, "2 components, 6 features", "40 rounds", "150 rows", "vpem 0.1",
                 f"{mixture.assembled_weights[0]:.4f}", "spread over roots",
                 f"{mixture.assembled_means[1, 3]:.6g}"):  # fmt: skip
        assert said in result.out


def test_show_as_json(capsys, model):
    found = done(capsys, "model", "show", model, "--json").json
    kept = read_model(model)
    assert found["encoding-type"] == "vpem-model"
    assert found["feature_names"] == list(NAMES)
    assert [hub["features"] for hub in found["hubs"]] == list(map(list, HELD))
    assert len({str(hub["weights"]) for hub in found["hubs"]}) == 3
    np.testing.assert_array_equal(found["means"], kept.mixture.assembled_means)
    np.testing.assert_array_equal(found["history"], kept.history)
    assert found["options"]["seed"] == 3
    assert found["scaling"]["scale"] == kept.mixture.scaling.scale.tolist()


def test_exports_agree_with_each_other_and_with_the_model(capsys, model, tmp_path):
    for name in ("m.npz", "m.json"):
        result = done(capsys, "model", "export", model, "-o", tmp_path / name)
        assert (result.out, result.err) == ("", f"wrote {tmp_path / name}\n")
    assert done(capsys, "model", "export", model, "-q", "-o", tmp_path / "n.npz").err == ""
    mixture = read_model(model).mixture
    plain = json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))
    with np.load(tmp_path / "m.npz", allow_pickle=False) as archive:
        for name in ("weights", "means", "covariances"):
            wanted = getattr(mixture, f"assembled_{name}")
            np.testing.assert_array_equal(archive[name], wanted)
            np.testing.assert_array_equal(plain[name], wanted)
        assert archive["feature_names"].tolist() == list(NAMES)
    assert plain["report"]["agent_names"] == list(AGENTS)


def test_the_exported_mixture_is_in_the_units_of_the_data(capsys, model, tmp_path):
    from scipy.special import logsumexp
    from scipy.stats import multivariate_normal

    done(capsys, "model", "export", model, "-o", tmp_path / "m.npz", "-q")
    found = done(capsys, "score", model, model.with_name("d.h5"), "--json").json
    with h5py.File(model.with_name("d.h5")) as file:
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
def test_an_existing_export_is_replaced_only_by_force(capsys, model, tmp_path, name):
    (tmp_path / name).write_text("precious")
    words = ("model", "export", model, "-o", tmp_path / name)
    result = run(capsys, *words)
    assert result.code == 2
    assert "exists; pass --force" in result.sentence
    assert listing(tmp_path) == {name: b"precious"}
    done(capsys, *words, "--force")
    assert listing(tmp_path)[name] != b"precious"


def test_every_file_is_shown_by_one_command(capsys, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = model.with_name("d.h5")
    done(capsys, "predict", model, data, "-o", "p.h5")
    done(capsys, "kmeans", data, "-o", "k.h5", "-q")
    done(capsys, "impute", data, "-o", "i.h5", "-q")
    done(capsys, "fit", data, "--checkpoint", "c.h5", "-q")
    done(capsys, "select", data, "-k", "1-2", "--state", "s.h5", "-q", "-j", 1)
    for file, said in (
        (model, "Components"), (data, "features  "), ("p.h5", "label    whole numbers "),
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


def test_show_calls_what_shows_other_files(capsys, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = model.with_name("d.h5")
    for name in ("m.json", "m.npz"):
        done(capsys, "model", "export", model, "-o", name)
    for name in ("p.csv", "p.parquet"):
        done(capsys, "predict", model, data, "-o", name, "--quiet")
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
    model = read_model(out)
    model.report["communication"]["bytes_by_iteration"].pop()
    write_model(out, model, force=True)
    assert "against bytes" not in done(capsys, "model", "show", out).out
