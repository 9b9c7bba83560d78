"""Models used on data that parties have in files of their own, as on the same data in one."""

import csv

import h5py
import numpy as np
import pytest

from vpem.files.data import read_dataset
from vpem.files.datasets import Dataset, write_dataset
from vpem.pictures import page

from .cli_support import HELD, NAMES, done, make_data, run
from .tables import over

PARTIES = ("clinic", "registry", "lab")
COMMANDS = {
    "predict": ["--proba", "--json"],
    "score": ["--json"],
    "evaluate": ["--json"],
}


@pytest.fixture
def folder(tmp_path, monkeypatch, capsys):
    """One dataset, the same in files of parties, in other orders, and a model of each kind."""
    monkeypatch.chdir(tmp_path)
    source = read_dataset(make_data("data.h5"))
    rng = np.random.default_rng(0)
    for name, columns in zip(PARTIES, HELD, strict=True):
        order = rng.permutation(150) if name != "lab" else np.arange(150)
        there = order[order >= 10] if name == "registry" else order
        own = list(columns)[::-1]
        write_dataset(f"{name}.h5", Dataset(
            source.X[np.ix_(there, own)], tuple(NAMES[column] for column in own),
            ids=source.ids[there], labels=source.labels[there] if name == "clinic" else None,
        ))  # fmt: skip
    done(capsys, "fit", "data.h5", "-o", "model.h5")
    done(capsys, "kmeans", "data.h5", "--init-rows", "3,70", "-o", "clusters.h5")
    return tmp_path


def files(*names):
    return [f"{name}.h5" for name in names]


@over(model=["model.h5", "clusters.h5"], command=COMMANDS, first=[0, 1, 2])
def test_parties_are_as_good_as_one_file(folder, capsys, model, command, first):
    """Whoever is named first: rows are in the order of that party."""
    more = [one for one in COMMANDS[command] if (model, one) != ("clusters.h5", "--proba")]
    order = [PARTIES[first], *(name for name in PARTIES if name != PARTIES[first])]
    told = run(capsys, command, model, *files(*order), "--parties", "--align", "ids", *more)
    assert told.code == 0, told.err
    assert "140 rows together (align ids)" in told.err
    found = told.json
    assert found.pop("alignment")["rows"] == 140
    joined = read_dataset("data.h5")
    with h5py.File(f"{order[0]}.h5") as file:
        ids = file["ids"].asstr()[:]
    row = [int(one[1:]) for one in ids if int(one[1:]) >= 10]
    write_dataset("joined.h5", Dataset(
        joined.X[row], NAMES, ids=joined.ids[row], labels=joined.labels[row]
    ), force=True)  # fmt: skip
    wanted = done(capsys, command, model, "joined.h5", *more).json
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if isinstance(value, float):
            assert found[name] == pytest.approx(value, rel=1e-12)
        elif name == "proba":
            np.testing.assert_allclose(found[name], value, atol=1e-12)
        elif name != "distances":
            assert found[name] == value


def test_ids_go_with_labels_and_rows_that_some_lack_are_kept(folder, capsys):
    parties = [*files(*PARTIES), "--parties", "--align", "ids"]
    done(capsys, "predict", "model.h5", *parties, "--missing-parties", "-o", "labels.csv")
    with open("labels.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 150
    assert sorted(row["id"] for row in rows) == [f"p{row:03}" for row in range(150)]
    holes = read_dataset("data.h5")
    holes.X[:10, 1] = np.nan
    write_dataset("holes.h5", holes)
    wanted = done(capsys, "predict", "model.h5", "holes.h5", "--missing", "marginalize", "--json")
    place = dict(zip(holes.ids, wanted.json["labels"], strict=True))
    assert all(place[row["id"]] == int(row["label"]) for row in rows)
    told = done(capsys, "score", "model.h5", *parties, "--missing-parties", "--json").json
    same = done(capsys, "score", "model.h5", "holes.h5", "--missing", "marginalize", "--json").json
    assert told["log_likelihood"] == pytest.approx(same["log_likelihood"], rel=1e-12)
    agreed = done(capsys, "evaluate", "model.h5", *parties, "--missing-parties", "--json").json
    assert agreed["n_samples"] == 150


def test_rows_of_parties_are_put_together(folder, capsys):
    source = read_dataset("data.h5")
    for name, rows in (("north", slice(0, 60)), ("south", slice(60, 150))):
        write_dataset(f"{name}.h5", Dataset(source.X[rows][:, ::-1], NAMES[::-1]))
    stacked = ["north.h5", "south.h5", "--parties", "--split", "rows", "--json"]
    for command in ("predict", "score"):
        found = done(capsys, command, "model.h5", *stacked).json
        wanted = done(capsys, command, "model.h5", "data.h5", "--json").json
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            assert found[name] == (pytest.approx(value) if isinstance(value, float) else value)


def test_pictures_and_pages_of_parties(folder, capsys, monkeypatch):
    with open("parties.toml", "w") as file:
        for name in PARTIES:
            file.write(f'[[party]]\nfile = "{name}.h5"\n')
    asked = ["parties.toml", "--parties", "--align", "ids", "--quiet"]
    done(capsys, "plot", "model.h5", *asked, "--kind", "confusion", "-o", "confusion.svg")
    assert (folder / "confusion.svg").exists()
    held = []
    monkeypatch.setattr(page, "write_page", lambda _, saved, data, **rest: held.append(data) or {})
    done(capsys, "report", "model.h5", *asked, "-o", "page.html")
    [data] = held
    assert data.X.shape == (140, 6)
    assert data.where == "parties.toml"
