"""What a study says it shows to whom is what its members' logs have: kinds, and who gets them."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from vpem.engines.tls.trust import Member, Roster
from vpem.files.studies.logs import messages
from vpem.files.studies.study import Study
from vpem.pictures.disclosures import disclosures
from vpem_cli import app
from vpem_cli.study.options import agreed_before

from .company_support import make_company
from .tables import each

PARTIES = ("lab", "clinic", "bank")
N = 60

SUMS = {"setup", "server", "estep", "check", "labels", "features"}
"""Kinds of what is a party's own."""

FIT = {"components": 2, "max-iter": 2, "tol": 0.0}
FEATURES = FIT | {"hops": 0, "align": "none"}
ROWS = FIT | {"split": "rows"}
NOISE = {"components": 2, "max-iter": 2, "delta": 1e-3, "bounds": "-9,9"}
PRIVATE = NOISE | {"split": "rows", "epsilon": 19.0}
RELEASED = NOISE | {"hops": 0, "align": "ids", "release-epsilon": 19.0}
CLASSES = FEATURES | {"components": "1-2", "covariance": "diag"}
KMEANS = {"clusters": 2, "max-iter": 2}
MASKS = {"secure-sum": True}
CYCLE, PATH, TREE = {"topology": "cycle"}, {"topology": "path"}, {"topology": "path", "sum": "tree"}
LABELS = ["--labels", "labels.csv"]
MATRIX = {"max-iter": 2, "align": "ids"}
LOWRANK = MATRIX | {"method": "lowrank", "rank": 1}
MIXTURE = MATRIX | {"method": "mixture", "components": 1}
CURVES = {"model": "linear", "max-iter": 2}
HUBS = FIT | {"hops": 1, "align": "ids"}

THREE = {"hubs"}
"""Studies that need three parties, as masks do."""

ALONE = {
    "psi", "ids under masks", "release", "k-means", "one shot", "rows under masks", "matrix",
    "mixture", "curves",
}  # fmt: skip
"""Studies without a server: what it does the first party does."""

SHARDED = {"hmac"}
"""Studies whose parameters stay with the features."""

STUDIES = {
    "features on a path": [("fit", FEATURES | PATH, LABELS)],
    "hmac": [("fit", FEATURES | {"align": "hmac", "accelerate": "squarem"}, LABELS)],
    "psi": [("fit", FEATURES | {"align": "psi", "init": "random"}, LABELS)],
    "ids under masks": [("fit", FEATURES | {"align": "ids"} | MASKS, LABELS)],
    "hubs": [
        ("fit", HUBS | CYCLE | {"hubs": "likelihood"}, [*LABELS, "-o", "model.h5"]),
        ("predict", {"align": "ids"}, ["-o", "found.csv"]),
    ],
    "release": [("fit", RELEASED, LABELS)],
    "bootstrap": [("bootstrap", FEATURES | {"replicates": 2}, [])],
    "classes": [("discriminant", CLASSES, [])],
    "k-means": [("kmeans", KMEANS | {"split": "features", "align": "ids"}, [])],
    "one shot": [("kmeans", KMEANS | {"split": "features", "align": "ids", "method": "grid"}, [])],
    "rows": [("kmeans", KMEANS | {"split": "rows"} | TREE, [])],
    "rows under masks": [("fit", ROWS | MASKS, [])],
    "epsilon": [("fit", PRIVATE, [])],
    "FedEM on a path": [("fedem", FIT | PATH, [])],
    "matrix": [("impute", LOWRANK, [])],
    "mixture": [("impute", MIXTURE, [])],
    "curves": [("saem", CURVES, ["--value", "y"])],
}  # fmt: skip
"""Commands that are run one after the other, their options, and what members add to them."""

rng = np.random.default_rng(0)
CLUSTER = np.arange(N) % 2
TOGETHER = 2 * rng.normal(size=N)
"""What features of all parties have in common, so that hubs of several are likely."""


def table_of(command, options, name):
    """Return the lines of a party's table, and its columns."""
    if command == "saem":
        cells = [[f"{name}{row // 4}", row % 4, rng.normal() + row % 4] for row in range(40)]
        return ["id", "time", "y"], cells
    X = rng.normal(size=(N, 2)) + (6 * CLUSTER + TOGETHER)[:, None]
    ids = [[f"p{row}"] for row in range(N)]
    if command == "impute":
        seen = np.where(rng.random((N, 2)) < 0.2, "", X.astype(str))
        if options["method"] == "mixture":
            ids = [[f"{name}{row}"] for row in range(N)]
        return ["id", "x", "y"], [[*one, *row] for one, row in zip(ids, seen.tolist(), strict=True)]
    if command == "fedem" or options.get("split") == "rows":
        return ["x", "y"], X.tolist()
    names = [f"{name}{column}" for column in range(2)]
    if command == "discriminant" and name == "lab":
        return [*names, "class"], np.column_stack([X, CLUSTER]).tolist()
    if options["align"] == "none":
        return names, X.tolist()
    return ["id", *names], [[*one, *row] for one, row in zip(ids, X.tolist(), strict=True)]


def run(folder, name):
    """Run a study: its members, and who got messages of which kind from whom in each command."""
    runs = STUDIES[name]
    command, options, _ = runs[0]
    parties = PARTIES if name in THREE or "secure-sum" in options else PARTIES[:2]
    company = make_company(
        folder, parties, {one: asked for one, asked, _ in runs},
        server=None if "topology" in options or name in ALONE else "hub",
        result="shards" if name in SHARDED else "all",
    )  # fmt: skip
    files = {one: ["own.csv"] for one in parties}
    for one in parties:
        head, cells = table_of(command, options, one)
        lines = [",".join(map(str, line)) for line in [head, *cells]]
        (company.folders[one] / "own.csv").write_text("\n".join(lines) + "\n")
    if command == "discriminant":
        files["lab"] += ["--label-column", "class"]
    if options.get("align") == "hmac":
        for one in company.names:
            (company.folders[one] / "key").write_text("0123456789abcdef" * 4)
            files[one] = [*files.get(one, []), "--align-key", "key"]
    went = {}
    for command, _, words in runs:
        own = files
        if command == "predict":
            own = {one: ["model.h5", *files.get(one, [])] for one in company.names}
        ended = company.run(command, *words, "--quiet", own=own)
        assert {one.code for one in ended.values()} == {0}, ended
        logs = {one: folder / f"{one}-heart.log" for one, folder in company.folders.items()}
        went[command] = {
            (entry["kind"], entry["peer"], one)
            for one, log in logs.items()
            for entry in messages([log])
            if entry["way"] == "received"
        }
        for log in logs.values():
            log.unlink()
    return company, went


def takes(to, sender, receiver, names, topology):
    """Whether a message from one member to another is one of those that go so."""
    links = {*pairwise(PARTIES), *[("lab", "bank")] * (topology == "cycle")}
    if topology == "star":
        links = {(sender, names[0])}
    return {
        "all": names[0] in (sender, receiver),
        "first": receiver == names[0],
        "sum": bool({(sender, receiver), (receiver, sender)} & links),
        "joining": {sender, receiver} <= {*PARTIES},
        "first party": receiver == "lab" and sender in PARTIES,
        "parties": sender == "lab" and receiver in PARTIES,
    }[to]


NAMED = {
    "all": ("all members",),
    "first": ("the server hub", "the server lab", "the first member lab"),
    "sum": ("the server ", "its neighbours on the graph", "the party above it in the spanning"),
    "joining": ("to parties up to", "to the one of them that has the most"),
    "first party": ("the first party that has data",),
    "parties": ("the other parties",),
}


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """Run all, some at a time."""
    with ThreadPoolExecutor(3) as pool:
        folders = [tmp_path_factory.mktemp("study") for _ in STUDIES]
        return dict(zip(STUDIES, pool.map(run, folders, STUDIES), strict=True))


@each("name", list(STUDIES))
def test_who_gets_what_is_said_and_what_is_said_goes(studies, name):
    company, went = studies[name]
    names, study = company.names, company.study
    root = app.command()
    for one in agreed_before(root.context_class(root, info_name="vpem"), study):
        told = disclosures(study, {one.command: one.values})
        ways = partial(takes, names=names, topology=study.topology)
        check(told, went[one.command], names[0], ways)


def check(told, went, first, takes):
    """Hold sentences against messages."""
    for kind, *way in went:
        # What a party has of its own is no matter of all.
        own = kind in SUMS and way[0] != first
        said = [one for one in told if kind in one.kinds.split() and takes(one.to, *way)]
        assert [one for one in said if one.to != "all" or not own], f"nothing says {kind} {way}"
    for one in told:
        assert not one.kinds or any(named in one.text.lower() for named in NAMED[one.to]), one
        for kind in one.kinds.split():
            gone = any(how[0] == kind and takes(one.to, *how[1:]) for how in went)
            assert gone, f"no {kind} has gone, but: {one.text}"


HUB = Member("hub", b"", holds=False)
STAR = Study(
    Path("heart.toml"), "heart", "", 1, "", "hub", "", "all", 600.0, {}, Roster("", "", 1, (HUB,))
)
ON_A_PATH = replace(STAR, options={"fit": {"topology": "path"}})
BRINGS_DATA = replace(STAR, roster=replace(STAR.roster, members=(replace(HUB, holds=True),)))
NOISY = {"split": "rows", "epsilon": 2.0, "delta": 1e-6, "n_components": 2, "init": "k-means++"}
OVER = {"hops": 0, "align": "ids", "init": "k-means++", "n_components": 2}
ALL = "protects from all who see what is published"


@each(
    ["study", "values", "said", "unsaid"],
    [
        (STAR, NOISY, [
            f"privacy epsilon 2, delta 1e-06, of one row, {ALL}; the server sees",
            "the server hub adds noise to the total before others get it, and sees what each party",
            "No row is shown"], ["become a start"]),
        (STAR, NOISY | {"secure_sum": True}, [
            f"{ALL}; every worker adds its share", "each party adds its share of the noise"],
            ["become a start", "adds noise to the total"]),
        (ON_A_PATH, NOISY | {"sum": "tree"}, [
            f"{ALL}; the root of the tree", "the root of the tree adds noise to the total"],
            ["become a start"]),
        (STAR, {**NOISY, "epsilon": None}, ["Rows that become a start"], ["privacy"]),
        (STAR, OVER | {"release_epsilon": 4.0, "delta": 1e-6}, [
            "privacy epsilon 4, delta 1e-06, of one row, protects from outsiders who see the model "
            "alone; parties see terms", "the sizes of components, with noise"],
            ["squared distances of all rows"]),
        # The links of a star are a tree already: it is the server's sum.
        (STAR, OVER | {"sum": "tree"},
         ["every id of every party from each directly; hub gets none"], ["spanning tree"]),
        (STAR, OVER, ["every id of every party from each directly; hub gets none",
                      "also to the first party"], ["privacy"]),
        (BRINGS_DATA, OVER, ["gets every id of every party (align ids)"],
         ["gets none", "also to the first party"]),
        (ON_A_PATH, OVER, ["gets every id of every party (align ids)"],
         ["gets none", "also to the first party"]),
    ],
)  # fmt: skip
def test_noise_and_ways_are_told_as_they_are(study, values, said, unsaid):
    text = " ".join(one.text for one in disclosures(study, {"fit": values}))
    assert [words for words in said if words not in text] == []
    assert [words for words in unsaid if words in text] == []
