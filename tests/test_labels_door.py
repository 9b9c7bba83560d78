"""Labels of some rows at the command line: columns, files, paths, parties, refusals."""

import csv

import h5py
import numpy as np
import pytest

from vpem import read_model

from .cli_support import done, overlapping, run
from .tables import over

HEADS = ["a", "b", "c", "d", "e", "f"]
NAMES = np.array(["well", "ill"])


def write(path, heads, *columns):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([heads, *zip(*columns, strict=True)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One labelling of the same rows in every form."""
    home = tmp_path_factory.mktemp("labels")
    X, codes = overlapping()
    known = np.random.default_rng(1).random(len(X)) < 0.3
    ids, words = [f"p{row}" for row in range(len(X))], NAMES[codes]
    told = np.where(known, words, np.where(np.arange(len(X)) % 2, "", "?"))
    shares = np.where(known[:, None], codes[:, None] == [1, 0], np.nan)
    soft = [["" if one != one else one for one in column] for column in shares.T.tolist()]
    write(home / "data.csv", ["id", *HEADS, "state", "was ill", "was well"], ids, *X.T, told, *soft)
    (home / "lines.txt").write_text("\n".join(told) + "\n")
    write(home / "headed.csv", ["state"], told)
    some = np.flatnonzero(known)[::-1]
    write(home / "few.csv", ["id", "state"], [ids[row] for row in some], words[some])
    write(home / "rows.csv", ["row", "state"], some, words[some])
    write(home / "one.csv", ["id", *HEADS[:3]], ids, *X.T[:3])
    write(home / "two.csv", ["id", *HEADS[3:], "state"], ids, *X.T[3:], told)
    (home / "parties.toml").write_text(
        '[[party]]\nfile = "one.csv"\n[[party]]\nfile = "two.csv"\nlabels-for-fit = "state"\n'
    )
    with h5py.File(home / "data.h5", "w") as file:
        file["X"], file["known/state"], file["known/soft"] = X, told.astype("S4"), shares
    return home


HOW = ("-k", "2", "--agents", "2", "--json", "--max-iter", "30", "--features", "a,b,c,d,e,f")
PLAIN = HOW[:-2]


def fit(capsys, folder, words, monkeypatch):
    monkeypatch.chdir(folder)
    return done(capsys, "fit", *words)


FORMS = [
    ["data.csv", *HOW, "--labels-for-fit", word]
    for word in ("lines.txt", "headed.csv", "few.csv", "rows.csv", "was ill,was well")
] + [
    ["data.h5", *PLAIN, "--dataset", "X", "--labels-for-fit", "known/state"],
    ["data.h5", *PLAIN, "--dataset", "X", "--labels-for-fit", "known/soft"],
    ["data.csv", *HOW, "--labels-for-fit", "state", "--labels-at", "agent 1"],
    ["parties.toml", "--parties", "--align", "ids", "-k", "2", "--json", "--max-iter", "30"],
    ["one.csv", "two.csv", "--parties", "--align", "ids", "-k", "2", "--json", "--max-iter", "30",
     "--labels-for-fit", "state", "--labels-at", "two"],
]  # fmt: skip


@over(words=FORMS)
def test_all_ways_to_give_labels_are_one_fit(words, capsys, folder, monkeypatch):
    first = fit(capsys, folder, ["data.csv", *HOW, "--labels-for-fit", "state"], monkeypatch)
    other = fit(capsys, folder, words, monkeypatch)
    np.testing.assert_allclose(other.json["history"], first.json["history"], rtol=1e-9)
    told, same = other.json["labels_for_fit"], first.json["labels_for_fit"]
    assert told["rows"] == same["rows"]
    assert same["names"] == ["ill", "well"]
    assert "component 0 is ill (" in first.err


def test_names_are_kept_and_found_again_by_a_start(capsys, folder, monkeypatch, tmp_path):
    model = tmp_path / "m.h5"
    words = ["data.csv", *HOW, "--labels-for-fit", "state", "--drop", "was ill,was well"]
    fit(capsys, folder, [*words, "-o", model], monkeypatch)
    assert read_model(model).report["labels_for_fit"]["names"] == ["ill", "well"]
    write(tmp_path / "well.csv", ["id", "s"], ["p3"], ["well"])
    go_on = ["data.csv", *HOW, "--init-model", model, "--labels-for-fit", tmp_path / "well.csv"]
    assert fit(capsys, folder, go_on, monkeypatch).json["labels_for_fit"]["rows"] == [0, 1]


@over(case=[
    (["--labels-for-fit", "state", "-k", "1"], "fit --components 2"),
    (["--labels-for-fit", "state", "-k", "2-3"], "not counted by BIC"),
    (["--labels-for-fit", "state", "--split", "rows"], "leave it out"),
    (["--labels-for-fit", "state", "--release-epsilon", "1", "--delta", "1e-5"], "data too"),
    (["--labels-for-fit", "state", "--labels-at", "9"], "must be an agent"),
    (["--labels-for-fit", "state", "--labels-at", "9" * 5000], "must be an agent"),
    (["--labels-for-fit", "stat"], "neither a column nor a file"),
    (["--labels-for-fit", "strange.csv"], "'px', of which the data have no row"),
    (["--labels-for-fit", "twice.csv"], "two labels of 'p1'"),
    (["--labels-for-fit", "short.csv"], "has 3 lines, but the data have 150 rows"),
    (["--labels-for-fit", "sum.csv"], "add up to 1"),
    (["--labels-for-fit", "state,a"], "it holds labels"),
    (["--labels-at", "1"], "add --labels-for-fit"),
])  # fmt: skip
def test_refused_in_a_sentence(case, capsys, folder, monkeypatch):
    words, sentence = case
    monkeypatch.chdir(folder)
    write("strange.csv", ["id", "s"], ["p1", "px"], ["ill", "ill"])
    write("twice.csv", ["id", "s"], ["p1", "p1"], ["ill", "ill"])
    write("short.csv", ["s"], ["ill", "ill"])
    write("sum.csv", ["id", "x", "y"], ["p1"], [0.5], [0.7])
    found = run(capsys, "fit", "data.csv", "-k", "2", *HOW[-2:], *words)
    assert found.code == 2
    assert sentence in found.err
