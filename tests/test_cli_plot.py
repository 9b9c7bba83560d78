"""`vpem plot`: files are written completely, hints are true, errors are one sentence."""

import re
import shutil
import xml.etree.ElementTree as ET

import h5py
import numpy as np
import pytest

from vpem.files.data import read_dataset
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.models import read_model, write_model
from vpem.pictures.page import kinds_of
from vpem.pictures.saved import read_saved

from .cli_support import done, listing, run
from .pictures_support import fitted, make_labelled, shared_folder

BEGINS = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml", "pdf": b"%PDF-"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return shared_folder(tmp_path_factory)


@pytest.fixture
def model(home):
    return fitted(home, "graph")


@pytest.fixture
def data(home, model):
    return home / "data.h5"


def test_data_that_a_kind_does_not_show_are_mentioned(capsys, model, data, tmp_path):
    for kind, said in (("history", True), ("projection", False)):
        told = done(capsys, "plot", model, data, "--kind", kind, "-o", tmp_path / f"{kind}.png")
        assert (f"note: the kind {kind} shows nothing of DATA" in told.err) == said


@pytest.mark.parametrize(("kind", "ending"), [("graph", "png"), ("confusion", "svg"),
                                              ("sparsity", "pdf")])  # fmt: skip
def test_pictures_are_written(capsys, model, data, tmp_path, kind, ending):
    path = tmp_path / f"picture.{ending}"
    result = done(capsys, "plot", model, data, "--kind", kind, "-o", path)
    assert result.out == ""
    assert result.err.splitlines()[0] == f"wrote {path}"
    assert path.read_bytes().startswith(BEGINS[ending])
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("words", "name"),
    [(("plot", "fit.1.h5"), "fit.1-profile.png"),
     (("plot", "fit.1.h5", "--kind", "graph"), "fit.1-graph.png"),
     (("report", "fit.1.h5"), "fit.1.html")],
    ids=["plot", "plot of a kind", "report"],
)  # fmt: skip
def test_without_an_output_it_lies_beside_the_model(capsys, model, tmp_path, words, name):
    path = tmp_path / "fit.1.h5"
    shutil.copy(model, path)
    words = (words[0], path, *words[2:])
    assert done(capsys, *words).err.splitlines()[0] == f"wrote {tmp_path / name}"
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([path.name, name])
    kept = listing(tmp_path)
    assert run(capsys, *words).sentence == f"{tmp_path / name} exists; pass --force to replace it"
    assert listing(tmp_path) == kept
    if words[0] == "plot":  # a page takes its time
        told = done(capsys, *words, "--force", "--json", "-q").json
        assert told["plot"] == str(tmp_path / name)


def test_a_picture_beside_the_model_is_not_what_is_drawn(capsys, model, data, tmp_path):
    shutil.copy(model, tmp_path / "m.h5")
    shutil.copy(data, tmp_path / "m-graph.png")
    words = ("plot", tmp_path / "m.h5", tmp_path / "m-graph.png", "--kind", "graph", "--force")
    kept = listing(tmp_path)
    assert run(capsys, *words).code == 2
    assert listing(tmp_path) == kept


def test_hints_name_the_other_kinds_and_what_they_need(capsys, model, tmp_path):
    result = done(capsys, "plot", model, "--kind", "graph", "-o", tmp_path / "g.png")
    assert result.err.splitlines()[1] == (
        "next, --kind: profile, history, sparsity, communication; with DATA: projection, "
        "marginals, pairs, responsibilities; with DATA with labels: confusion"
    )
    found = done(capsys, "plot", model, "--kind", "graph", "-o", tmp_path / "h.png", "--json", "-q")
    assert found.err == ""
    assert found.json["plot"] == str(tmp_path / "h.png")
    assert set(found.json["next"]) == set(kinds_of(read_saved(model))) - {"graph"}
    assert found.json["description"].startswith("The cycle graph with 4 agents in ")


def test_names_that_mean_something_elsewhere_are_drawn_as_they_are(capsys, model, data, tmp_path):
    path = tmp_path / "names.svg"
    done(capsys, "plot", model, data, "--kind", "marginals", "-o", path, "-q")
    texts = [
        "".join(node.itertext()) for node in ET.parse(path).iter() if node.tag.endswith("}text")
    ]
    assert "$x_1$ & <b>" in texts
    assert "height" in texts


def test_a_name_beyond_the_font_is_warned_of(capsys, tmp_path):
    data = make_labelled(tmp_path / "data.h5", ("長さ", "b"))
    done(capsys, "fit", data, "--max-iter", 2, "-o", tmp_path / "m.h5", "-q")
    path = tmp_path / "p.png"
    result = done(capsys, "plot", tmp_path / "m.h5", "--kind", "sparsity", "-o", path)
    assert "the font of pictures has not" in " ".join(result.err.split())
    assert result.err.count("warning: ") == 1


def test_features_in_another_order_are_matched_by_name(capsys, model, data, tmp_path):
    source = read_dataset(data)
    turned = Dataset(
        np.ascontiguousarray(source.X[:, ::-1]), source.feature_names[::-1], labels=source.labels
    )
    write_dataset(tmp_path / "turned.h5", turned)
    told = [
        done(capsys, "plot", model, file, "--kind", "confusion", "-o", tmp_path / "c.png",
             "--force", "--json", "-q").json["description"]
        for file in (data, tmp_path / "turned.h5")
    ]  # fmt: skip
    assert told[0] == told[1]


def test_labels_from_a_text_file(capsys, model, data, tmp_path):
    (tmp_path / "labels.txt").write_text("".join(f"{row % 2}\n" for row in range(90)))
    words = ("plot", model, data, "--kind", "confusion", "-o", tmp_path / "c.png", "--json", "-q")
    found = done(capsys, *words, "--labels", tmp_path / "labels.txt").json
    assert "Rows of 2 labels in 2 components" in found["description"]


def test_rows_on_disk_are_drawn_as_those_in_memory(capsys, monkeypatch, model, data, tmp_path):
    import vpem.checks

    told = []
    for limit in (1 << 30, 100):
        monkeypatch.setattr(vpem.checks, "available_memory", lambda limit=limit: limit)
        path = tmp_path / f"{limit}.svg"
        done(capsys, "plot", model, data, "--kind", "confusion", "-o", path, "-q")
        told.append(path.read_bytes())
    assert told[0] == told[1]


def test_an_old_file_says_what_it_lacks_and_the_rest_is_drawn(capsys, model, tmp_path):
    old = read_model(model)
    del old.report["communication"]["by_link"], old.report["edges"]
    write_model(tmp_path / "old.h5", old)
    path = tmp_path / "p.png"
    result = run(capsys, "plot", tmp_path / "old.h5", "--kind", "graph", "-o", path)
    assert result.code == 2
    assert "does not say who was linked to whom" in result.sentence
    result = done(capsys, "plot", tmp_path / "old.h5", "--kind", "communication", "-o", path)
    assert result.err.splitlines()[1].startswith("note: ")
    assert "does not say how much each link carried" in result.err


# ---- what is wrong is said, and nothing is written ----------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("{model}", "--kind", "grph", "-o", "{out}/p.png"), "did you mean 'graph'"),
        (("{model}", "-o", "{out}/p.jpg"), "pictures are written to .png, .svg or .pdf files"),
        (("{model}", "-o", "{out}/there.png"), "exists"),
        (("{model}", "-o", "{model}"), "is the input"),
        (("{out}/none.h5", "-o", "{out}/p.png"), "none.h5"),
        (("{data}", "-o", "{out}/p.png"), "holds a dataset, which"),
        (("{out}/text.h5", "-o", "{out}/p.png"), "HDF5"),
        (("{model}", "--kind", "marginals", "--features", "", "-o", "{out}/p.png"),
         "must be named once each"),
        (("{model}", "--kind", "confusion", "-o", "{out}/p.png"), "give the data after the model"),
        (("{model}", "--labels", "classes", "-o", "{out}/p.png"), "--labels is about the data"),
        (("{model}", "--dataset", "X", "-o", "{out}/p.png"), "--dataset is about the data"),
        (("{model}", "--kind", "graph", "--features", "age", "-o", "{out}/p.png"),
         "--features are for profile, marginals and pairs, not for graph"),
        (("{model}", "{out}/other.h5", "--kind", "pairs", "-o", "{out}/p.png"), "age"),
        (("{kmeans}", "--kind", "sparsity", "-o", "{out}/p.png"), "holds clusters"),
        (("{kmeans}", "{out}/holes.h5", "--kind", "pairs", "-o", "{out}/p.png"), "missing|NaN|nan"),
    ],
    ids=["kind", "ending", "exists", "itself", "none", "dataset", "text", "no name", "no data",
         "labels", "inside", "features", "other data", "clusters", "holes"],
)  # fmt: skip
def test_errors(capsys, home, model, data, tmp_path, words, sentence):
    (tmp_path / "there.png").write_bytes(b"mine")
    (tmp_path / "text.h5").write_text("no HDF5")
    make_labelled(tmp_path / "other.h5", ("height", "weight"))
    source = read_dataset(data)
    source.X[3, 1] = np.nan
    write_dataset(tmp_path / "holes.h5", source)
    places = {"model": model, "data": data, "out": tmp_path, "kmeans": fitted(home, "kmeans")}
    before = listing(tmp_path), model.read_bytes()
    result = run(capsys, "plot", *(word.format(**places) for word in words))
    assert result.code == 2
    assert result.out == ""
    assert re.search(sentence, result.sentence), result.sentence
    assert (listing(tmp_path), model.read_bytes()) == before


def test_another_file_of_vpem_is_told_apart(capsys, tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.attrs["encoding-type"] = "vpem-predictions"
    result = run(capsys, "plot", tmp_path / "x.h5", "-o", tmp_path / "p.png")
    assert "x.h5 holds predictions" in result.sentence


def test_force_replaces_a_picture(capsys, model, tmp_path):
    path = tmp_path / "p.png"
    path.write_bytes(b"old")
    done(capsys, "plot", model, "--kind", "sparsity", "-o", path, "--force", "-q")
    assert path.read_bytes().startswith(BEGINS["png"])
