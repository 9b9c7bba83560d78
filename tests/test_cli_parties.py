"""Each party with its own file: `vpem fit --parties`, `vpem data split`, models at work."""

import csv
import gc
import json
import re
import secrets

import h5py
import numpy as np
import pytest

from vpem import choose_parties, read_dataset, read_model
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.table_settings import TableSettings
from vpem.network.partition import Partition
from vpem.pictures import page
from vpem.pictures.contents import NETWORK, lines_of

from .cli_support import HELD, NAMES, ROOT, done, listing, make_data, run
from .missing_support import observed_scores
from .tables import each, each_once, over

BREAST_CANCER = ROOT / "data" / "breast_cancer.h5"

try:
    import private_set_intersection.python  # noqa: F401
except ImportError:
    LEVELS = ("ids", "hmac")
else:
    LEVELS = ("ids", "hmac", "psi")


def split(capsys, folder, *words, source=BREAST_CANCER):
    """Cut a dataset; returns the files."""
    report = done(capsys, "data", "split", source, "-o", folder, "--json", *words).json
    return [party["file"] for party in report["parties"]]


@pytest.fixture
def five(capsys, tmp_path):
    """Five files with shuffled rows, 5 % of ids missing at each, and a key."""
    (tmp_path / "key").write_text(secrets.token_hex(32) + "\n")
    words = ("--agents", 5, "--shuffle", "--drop-ids", 0.05, "--seed", 4)
    return split(capsys, tmp_path / "five", *words), tmp_path


def by_hand(files, target, gaps=False):
    """Join files by h5py and dictionaries, rows that all have or, with ``gaps``, all rows."""
    parts = []
    for file in files:
        with h5py.File(file) as opened:
            rows = dict(zip(opened["ids"][()].tolist(), opened["X"][()], strict=True))
            parts.append((rows, opened["feature_names"].asstr()[()].tolist()))
    every = dict.fromkeys(i for rows, _ in parts for i in rows)
    kept = [i for i in every if gaps or all(i in rows for rows, _ in parts)]
    nothing = [np.full(len(names), np.nan) for _, names in parts]
    X = np.array(
        [
            np.concatenate(
                [rows.get(i, none) for (rows, _), none in zip(parts, nothing, strict=True)]
            )
            for i in kept
        ]
    )
    ends = np.cumsum([len(names) for _, names in parts])
    held = np.split(np.arange(X.shape[1]), ends[:-1])
    names = tuple(name for _, own in parts for name in own)
    agents = tuple(f"party{n}" for n in range(len(files)))
    write_dataset(target, Dataset(X, names, partition=Partition(tuple(held), agents)))
    return target, X


def align_words(level, home):
    return ("--align", level, *(("--align-key", home / "key") if level == "hmac" else ()))


# ---- the same fit -------------------------------------------------------------------------------


@each_once(level=LEVELS, network=[("star",), ("cycle", "--hops", 1)])
def test_five_parties_fit_as_data_joined_by_hand(capsys, five, level, network):
    files, home = five
    whole, X = by_hand(files, home / "whole.h5")
    n_kept = len(X)
    words = ("--topology", *network, "-k", 3, "--seed", 1, "--tol", 1e-3, "--json")
    result = done(capsys, "fit", *files, "--parties", *align_words(level, home), *words)
    expected = done(capsys, "fit", whole, *words).json
    found = result.json
    assert n_kept < 0.85 * 569
    for name in ("history", "mixing_weights", "log_likelihood", "bic"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-10)
    for name in ("n_samples", "n_iter", "hubs", "communication", "feature_names", "agent_names"):
        assert found[name] == expected[name]
    alignment = found["alignment"]
    assert (alignment["level"], alignment["join"], alignment["rows"]) == (level, "inner", n_kept)
    assert alignment["parties"] == [
        {"name": f"party{n}", "rows": 541, "lost": 541 - n_kept, "absent": 0} for n in range(5)
    ]
    table = result.err.splitlines()
    if network[0] == "cycle":
        assert "along a spanning tree (--sum tree)" in table.pop()
    if "parameters for" in table[-1]:
        table.pop()
    assert table[0].split() == ["party", "rows", "lost"]
    assert table[1].split() == ["party0", "541", str(541 - n_kept)]
    assert table[-1] == f"{n_kept} rows together (align {level})"
    assert "alignment" not in expected


@pytest.mark.parametrize("option", ["-o", "--checkpoint"])
@pytest.mark.parametrize("split", ["features", "rows"])
def test_nothing_takes_the_place_of_a_file_of_a_manifest(capsys, five, option, split):
    _, home = five
    (home / "all.toml").write_text('[[party]]\nname = "p"\nfile = "five/party[0-9].h5"\n')
    before = listing(home)
    target = home / "five" / "party3.h5"
    words = ("--parties", "--split", split, option, target, "--force", "--max-iter", 2)
    result = run(capsys, "fit", home / "all.toml", *words)
    assert result.code == 2
    assert "party3.h5 (party 'p') itself; write to another name" in result.sentence
    gc.collect()  # a process that ends removes its lock; here whoever holds it goes
    assert listing(home) == before


DOORS = {
    "fit": ["fit"],
    "kmeans": ["kmeans", "--split", "features"],
    "select": ["select", "-k", "1-2", "--jobs", 1],
    "predict": ["predict", "m.h5"],
    "score": ["score", "m.h5"],
}
HOW = {
    "text": "party 'lab' has other ids than party 'clinic', so their rows are not aligned; align "
    "them by adding --align ids (or hmac, psi), or join them by position all the same with --align "
    "none",
    "numbers": "parties 'clinic' and 'lab' both have a column 'patient', and no ids say whether "
    "their rows are the same; align them by --align ids --id-column patient, or join them by "
    "position all the same with --align none",
    "turned": "party 'lab' has the same ids in another order than party 'clinic', so their rows "
    "are not aligned; align them by adding --align ids (or hmac, psi)",
}
HOW["digits"] = HOW["turned"]


GLUED = [("fit", "text"), ("fit", "numbers"), ("kmeans", "turned"), ("select", "digits"),
         ("predict", "text"), ("score", "turned")]  # fmt: skip
"""All that may differ, and all doors: of a model the column of ids is known, if it has numbers."""


@each(("door", "how"), GLUED)
def test_rows_of_different_patients_are_never_glued(capsys, tmp_path, monkeypatch, door, how):
    monkeypatch.chdir(tmp_path)
    files = ["clinic.csv", "lab.csv"]
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)) + 3 * (np.arange(60) % 2)[:, None]
    for first, file in enumerate(files):
        rows = np.arange(first * (how == "text"), 50 + first * (how == "text"))
        rows = rows[::-1] if how != "text" and first else rows
        names = [str(10 + row) if how in ("numbers", "digits") else f"p{row}" for row in rows]
        column = f"{'ab'[first]},{'cd'[first]}"
        lines = [f"{n},{X[r, first]:.4f},{X[r, 2]:.4f}" for n, r in zip(names, rows, strict=True)]
        (tmp_path / file).write_text("\n".join([f"patient,{column}", *lines]))
    if "m.h5" in DOORS[door]:
        ids = ["--parties", "--align", "ids", "--id-column", "patient"]
        done(capsys, "fit", *files, *ids, "-k", 2, "-o", "m.h5", "--force")
    words = [*DOORS[door], *files, "--parties"]
    # Numbers are ids unless somebody says that they are a feature.
    told = run(capsys, *words, *["--features", "patient"] * (how == "numbers"), "--quiet")
    assert (told.code, told.out) == (2, "")
    assert HOW[how] in told.err.splitlines()[-1]
    aligning = re.search("--align ids( --id-column patient)?", HOW[how])[0].split()
    told = done(capsys, *words, *aligning, "--json")
    assert told.json
    assert f"{50 - (how == 'text')} rows together (align ids)" in told.err
    by_word = run(capsys, *words, "--align", "none")
    assert (by_word.code, "50 rows together (align none)" in by_word.err) == (0, True)


@each(
    ("column", "step", "turned", "named"),
    [
        ("code", 10, True, "--id-column code"),
        ("code", 10, False, None),  # the same row by row
        ("patient", 0.5, True, "--id-column NAME"),  # visits
        ("iron", 0.3, True, None),  # both have measured it
        ("klasse", 0, True, None),
    ],
)
def test_observers_of_different_rows_are_never_glued(
    capsys, tmp_path, monkeypatch, column, step, turned, named
):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for file, own, by in (("a.csv", "x", 1), ("b.csv", "y", -1 if turned else 1)):
        rows = np.arange(50)[::by]
        if column == "code":
            rows = np.roll(rows, 7)
        values = {0: rows % 2, 0.3: 0.3 * rows, 0.5: rows // 2, 10: 1000 + 10 * rows}[step]
        lines = [f"{n},{v:.3f}" for n, v in zip(values.tolist(), rng.normal(size=50), strict=True)]
        (tmp_path / file).write_text("\n".join([f"{column},{own}", *lines]))
    words = ["impute", "a.csv", "b.csv", "--parties", "--rank", 1, "-q"]
    told = run(capsys, *words)
    if named is None:
        assert told.code == 0, told.err
        return
    assert told.code == 2
    assert told.sentence == (
        f"parties 'a' and 'b' both have a column {column!r}, and no ids say whether their rows "
        f"are the same; align them by --align ids {named}, or join them by position all the same "
        "with --align none"
    )
    assert run(capsys, *words, "--align", "none").code == 0
    if column == "code":
        done(capsys, *words, "--align", "ids", "--id-column", "code", "-o", "full.csv")
        assert (tmp_path / "full.csv").read_text().startswith("row,x,y\n")


def test_files_without_ids_are_joined_by_position_and_it_is_said(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in "ab":
        np.savetxt(f"{name}.csv", rng.normal(size=(50, 2)), "%.4f", ",", header=f"{name}x,{name}y",
                   comments="")  # fmt: skip
    said = "no party has ids, so rows are the same by position: row 0 of each file, and so on"
    for words, notes in (([], 1), (["--align", "none"], 0), (["--quiet"], 0)):
        told = done(capsys, "fit", "a.csv", "b.csv", "--parties", *words).err
        assert told.count(said) == notes
    assert said in done(capsys, "impute", "a.csv", "b.csv", "--parties", "--rank", 1).err
    assert said not in done(capsys, "fit", "a.csv", "--parties").err


# ---- what is kept of it -------------------------------------------------------------------------


@pytest.mark.parametrize("alignment", [3, {}, {"join": "inner", "rows": "many", "parties": [1]}])
def test_a_model_may_say_anything_of_its_parties(alignment):
    assert "parties" not in dict(lines_of({"alignment": alignment}, NETWORK))


def test_rows_that_some_parties_lack(capsys, five):
    files, _ = five
    words = ("fit", *files, "--parties", "--missing-parties")
    result = run(capsys, *words, "--align", "ids", "--max-iter", 2)
    lines = result.err.splitlines()
    assert lines[0].split() == ["party", "rows", "absent"]
    assert lines[1].split() == ["party0", "541", "28"]
    assert lines[6].startswith("569 rows together, ")
    assert "of them complete (align ids)" in lines[6]
    assert result.code == 0
    for level in ("none", "psi"):
        refused = run(capsys, *words, "--align", level)
        assert refused.code == 2
        assert f"cannot be kept with align {level}, since" in refused.sentence


@pytest.mark.parametrize("network", [("star",), ("path", "--hops", 1)])
def test_what_parties_lack_is_integrated_out(capsys, tmp_path, network):
    data = make_data(tmp_path / "data.h5")
    files = split(
        capsys, tmp_path / "parts", "--agents", 3, "--shuffle", "--drop-ids", 0.3, source=data
    )
    _, X = by_hand(files, tmp_path / "whole.h5", gaps=True)
    assert 0.2 < np.isnan(X).mean() < 0.4
    words = ("--topology", *network, "--max-iter", 12, "--tol", 0, "--json", "-q")
    model = tmp_path / "m.h5"
    asked = ("--parties", "--align", "ids", "--missing-parties", "-o", model)
    found = done(capsys, "fit", *files, *asked, *words).json
    whole = done(capsys, "fit", tmp_path / "whole.h5", "--missing", "marginalize", *words).json
    np.testing.assert_allclose(found["history"], whole["history"], rtol=1e-12)
    fitted = read_model(model)
    assert fitted.options["missing"] == "marginalize"
    for party, columns in zip(found["alignment"]["parties"], ((0,), (2,), (4,)), strict=True):
        assert party["absent"] == np.isnan(X[:, columns[0]]).sum()
    assert "lacks" in done(capsys, "model", "show", model).out
    if network == ("star",):
        told = found["log_likelihood"]
        assert told == pytest.approx(observed_scores(fitted.mixture, X).mean(), rel=1e-12)


# ---- the page -----------------------------------------------------------------------------------


def fenced(language):
    page = (ROOT / "docs/reference/parties.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)


def test_the_manifest_of_the_page(tmp_path):
    (tmp_path / "parties.toml").write_text(fenced("toml")[0])
    hospital, lab = choose_parties([tmp_path / "parties.toml"])
    assert hospital.table.features == ["pulse", "age"]
    how = {"id_column": "patient", "label_column": "diagnosis", "na": ["?", "-999"]}
    assert (lab.file, lab.table) == ("lab/20*.csv", TableSettings(**how, decimal=","))


# ---- vpem data split ----------------------------------------------------------------------------


def test_split_by_a_file(capsys, tmp_path):
    data = make_data(tmp_path / "whole.h5")
    (tmp_path / "who.json").write_text(json.dumps({"a": [0, 5], "b": [1, 2, 3, 4]}))
    files = split(capsys, tmp_path / "parts", "--partition", tmp_path / "who.json", source=data)
    whole, first = read_dataset(data), read_dataset(files[0])
    assert first.feature_names == ("height", "sugar")
    assert np.array_equal(first.X, whole.X[:, [0, 5]])
    assert np.array_equal(first.ids, whole.ids)
    assert np.array_equal(first.labels, whole.labels)


# ---- a model used on data of parties -------------------------------------------------------------


PARTIES = ("clinic", "registry", "lab")
COMMANDS = {
    "predict": ["--proba", "--json"],
    "score": ["--json"],
    "evaluate": ["--json"],
}


@pytest.fixture
def models(tmp_path, monkeypatch, capsys):
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


@over(model=["model.h5", "clusters.h5"], command=COMMANDS, first=[0, 2])
def test_parties_are_as_good_as_one_file(models, capsys, model, command, first):
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


def test_ids_go_with_labels_and_rows_that_some_lack_are_kept(models, capsys):
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


def test_rows_of_parties_are_put_together(models, capsys):
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


def test_pictures_and_pages_of_parties(models, capsys, monkeypatch):
    with open("parties.toml", "w") as file:
        for name in PARTIES:
            file.write(f'[[party]]\nfile = "{name}.h5"\n')
    asked = ["parties.toml", "--parties", "--align", "ids", "--quiet"]
    done(capsys, "plot", "model.h5", *asked, "--kind", "confusion", "-o", "confusion.svg")
    assert (models / "confusion.svg").exists()
    held = []
    monkeypatch.setattr(page, "write_page", lambda _, saved, data, **rest: held.append(data) or {})
    done(capsys, "report", "model.h5", *asked, "-o", "page.html")
    [data] = held
    assert data.X.shape == (140, 6)
    assert data.where == "parties.toml"
