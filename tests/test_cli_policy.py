"""What a party allows and what it sent, as its commands say; and what others hear of it."""

import json
import tomllib
from contextlib import closing

import numpy as np
import pytest

from vpem import read_model
from vpem.files.studies.logs import MessageLog, log_beside, messages

from .cli_support import done
from .company_support import make_company
from .study_support import make_study
from .test_message_log import message

PARTIES = ("clinic", "lab")


def test_an_example_is_printed(capsys):
    assert tomllib.loads(done(capsys, "party", "policy").out)["largest-hops"] == 0


def test_a_log_is_summed_up(capsys, tmp_path):
    path = log_beside(tmp_path / "heart.toml", "lab")
    with closing(MessageLog(path, command="fit")) as log:
        for size in (1000, 2500):
            log.record_message(message(b"x" * size))
        log.record_message(message(sent=False, peer="bank\x1b[31m"))
    shown = done(capsys, "party", "log", path).out
    assert "fit" in shown
    assert "\x1b" not in shown
    assert next(line.split() for line in shown.splitlines() if "estep" in line) == [
        "estep", "hub", "2", "3,500", "0", "0"
    ]  # fmt: skip
    told = json.loads(done(capsys, "party", "log", path, "--last", "--json").out)
    assert (told["messages"], told["bytes"], len(told["totals"])) == (3, 3504, 2)


def test_a_study_and_a_request_say_what_the_policy_refuses(capsys, tmp_path, monkeypatch):
    folder = make_study(tmp_path, "lab", "clinic", options={"fit": {"hops": 1, "align": "ids"}})
    monkeypatch.chdir(folder["lab"].folder)
    policy = "largest-hops = 0\nalign = ['psi']\nfewest-parties = 3\n"
    (folder["lab"].folder / "policy.toml").write_text(policy)
    hops = "policy.toml allows at most 0 hops, but got --hops 1; this member will refuse 'vpem fit'"
    align = "policy.toml allows only the alignment psi, but got --align ids; this member will"
    few = "policy.toml requires at least 3 parties, but the study has 2 with data; this member"
    for words, count in (("study show heart.toml", 3), ("party request heart.toml", 2)):
        told = done(capsys, *words.split()).err
        lines = [line for line in told.splitlines() if line.startswith("vpem: warning: policy")]
        assert len(lines) == count
        assert hops in told
        assert align in told
        assert (few in told) == (count == 3)


@pytest.fixture(scope="module")
def company(tmp_path_factory):
    rng = np.random.default_rng(0)
    made = make_company(
        tmp_path_factory.mktemp("company"), PARTIES,
        {"fit": {"components": 2, "tol": 0.0, "covariance": "diag"}}, server="hub",
    )  # fmt: skip
    for name in PARTIES:
        rows = rng.normal(size=(50, 2)).tolist()
        lines = [f"p{row},{one!r},{other!r}" for row, (one, other) in enumerate(rows)]
        for file, some in (("own", lines), ("few", lines[:4])):
            head = f"id,{name}1,{name}2"
            (made.folders[name] / f"{file}.csv").write_text("\n".join([head, *some]) + "\n")
    return made


@pytest.mark.parametrize(
    ("policy", "rule", "align", "shown"),
    [
        ("most-esteps = 3", "allows at most 3 E-steps in a run", "none", 3),
        ("fewest-rows = 51", "requires at least 51 rows", "none", 0),
        ("fewest-rows = 5", "requires at least 5 rows", "ids", 0),
        ("largest-ratio-of-rows = 12", "allows others at most 12 times as many ids as it "
         "has", "psi", 0),
    ],
)  # fmt: skip
def test_a_refusal_is_told_in_full_and_named_elsewhere(company, policy, rule, align, shown):
    folder = company.folders["lab"]
    (folder / "policy.toml").write_text(policy)
    log_beside(folder / "heart.toml", "lab").unlink(missing_ok=True)
    own = {"clinic": ["own.csv"], "lab": ["own.csv" if align == "none" else "few.csv"]}
    found = company.run("fit", "--init-rows", "0,1", "--align", align, own=own)
    assert {one.code for one in found.values()} == {2}
    assert found["lab"].sentence.startswith(f"policy.toml {rule}, ")
    for name in ("hub", "clinic"):
        assert found[name].sentence.removeprefix("lab ended: ") == f"lab's policy {rule}; ask there"
    sent = [
        one for one in messages([log_beside(folder / "heart.toml", "lab")]) if one["way"] == "sent"
    ]
    assert sum(one["kind"] == "server" for one in sent) == shown


def test_no_model_leaves_that_tells_of_few_rows(tmp_path):
    """Of 178 wines 20 components would have some of one row, whose means are that row."""
    from vpem import example_path, read_dataset

    X = read_dataset(example_path("wine")).X
    columns = {"clinic": range(4), "lab": range(4, 9), "shop": range(9, 13)}
    few = {"components": 20, "seed": 0, "max-iter": 60}
    made = make_company(
        tmp_path, list(columns), {"fit": few, "kmeans": {"clusters": 60, "split": "features"}},
        server="hub",
    )  # fmt: skip
    for name, own in columns.items():
        np.savetxt(made.folders[name] / "own.csv", X[:, own], delimiter=",", comments="",
                   header=",".join(f"{name}{j}" for j in own))  # fmt: skip
    data = {name: ["own.csv"] for name in columns}

    def means(words, *more):
        own = {n: [*own, "-o", "m.h5", "--force"] for n, own in data.items()}
        found = made.run(*words, *more, own=own)
        assert {one.code for one in found.values()} == {0}, found
        model = read_model(made.folders["lab"] / "m.h5").mixture
        rows = model.assembled_weights * len(X)
        apart = np.abs(X[:, None] - model.assembled_means).max(axis=2)
        return rows, int((apart.min(axis=0) < 1e-6 * np.abs(X).max()).sum())

    rows, alike = means(["fit"])
    assert ((rows == 0) | (rows >= 5 * (1 - 1e-9))).all()
    assert (rows >= 5).any()
    assert alike == 0

    for found in made.run("kmeans", own=data | {"hub": []}).values():
        assert found.code == 2
        assert "clusters of fewer than 5 rows: " in found.err
    for name, found in made.run("fit", "--publish-anyway", own=data).items():
        assert found.code == 2
        assert "publish-anyway" in found.err, name

    for name in columns:
        (made.folders[name] / "policy.toml").write_text("publish-anyway = true\n")
    rows, alike = means(["fit"], "--publish-anyway")
    assert (rows < 2.5).any()
    assert alike > 0


def test_what_was_left_out_is_no_row_and_neither_starts_nor_heavy_rows_leave(tmp_path):
    from vpem import example_path, read_dataset

    X = read_dataset(example_path("wine")).X
    flag, heavy = (np.arange(178) % 3 == 0) * 1.0, np.where(np.arange(178) == 7, 400.0, 1.0)
    tables = {"clinic": [X[:, :4], heavy], "lab": [X[:, 4:9], flag], "shop": [X[:, 9:]]}
    made = make_company(tmp_path, list(tables), {"fit": {"max-iter": 40}}, server="hub")
    for name, own in tables.items():
        table = np.column_stack(own)
        heads = [f"{name}{j}" for j in range(table.shape[1])]
        np.savetxt(made.folders[name] / "own.csv", table, delimiter=",", comments="",
                   header=",".join(heads))  # fmt: skip

    def run(*words, **drop):
        own = {name: ["own.csv", "-o", "m.h5", "--force"] for name in tables}
        for name, column in drop.items():
            own[name] += ["--drop", column]
        return made.run("fit", *words, own=own).values()

    told = run("--family", "auto", "-k", "20", clinic="clinic4")
    assert [one.err for one in told if one.code] == []
    mixture = read_model(made.folders["lab"] / "m.h5").mixture
    cores = [part.core.assembled_means for part in mixture.parts if part.core is not None]
    assert (mixture.assembled_weights == 0).any()
    assert np.abs(X[:, None] - np.concatenate(cores, axis=1)).max(axis=2).min() > 1e-6
    start = run("--max-iter", "0", "--init-rows", "0,60", "-k", "2", clinic="clinic4", lab="lab5")
    weighs = run("--sample-weight", "clinic4", "-k", "1", "--covariance", "diag", lab="lab5")
    for found, sentence in ((start, "the start of a fit"), (weighs, "than 5 rows: 0 (1.44)")):
        assert [one.code for one in found] == [2] * 4
        assert all(sentence in one.err for one in found)
