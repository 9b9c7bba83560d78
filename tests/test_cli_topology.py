"""`vpem topology describe`: tables, JSON, pictures, and errors of one sentence."""

import json
from pathlib import Path

import pytest

from vpem import make_graph
from vpem.fits.plan import plan
from vpem.pictures.planning import tables_of_plan

from .cli_support import AGENTS, done, listing, make_data, run
from .tables import each, each_once

DESCRIBE = ("topology", "describe")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data") / "data.h5")


@pytest.fixture(autouse=True)
def no_fastest_weights(monkeypatch):
    """Which a plan of few agents looks for to show them, by a solver; `tests/golden` has them."""
    monkeypatch.setattr("vpem.fits.plan.SMALL", 0)


@pytest.fixture
def edges(tmp_path):
    path = tmp_path / "net.csv"
    path.write_text("clinic,lab\nlab,registry\nregistry,ward\nward,clinic\n")
    return path


def told(capsys, *words):
    return done(capsys, *DESCRIBE, *words, "--json").json


TABLES = {
    "cycle -n 10 --compress natural:12bits": [
        "compressed by natural:12bits", "Rounds needed, metropolis weights, uncompressed",
        "Communication: 1000 rows, 2 components, float64, estimates", "!19 *",
        "iteration estep 380 573 kB 19", "last E-step estep 380 573 kB 19",
    ],
    "cycle -n 8 --batch-size 300 --rounds 30 --hops 1": [
        "Communication: 1000 rows, batches of 300, 2 components, float64",
        "batch estep 485 1.17 MB 31", "iteration estep 1940 3.9 MB 124",
        "iteration stopping 64 64 B 4", "last E-step estep 485 3.88 MB 31",
    ],
    "cycle -n 6 --agent-dropout 0.1 --rounds 40": [
        "sum 40 rounds, metropolis weights, mixing rate 0.6667,", "agent dropout 0.1",
        "disconnected in ", "Communication: 1000 rows, 2 components, float64, means",
        "last E-step estep 480 3.84 MB 40", "Rounds needed, metropolis weights, without failures",
    ],
    "star -n 4": ["exact at the server", "agent 0 - server", "!Mixing"],
    "path -n 1": ["1 agent, 0 links"],
    "path -n 120": ["<= "],
    "cycle -n 30": ["and 10 more; --json shows all"],
}  # fmt: skip
"""Words, beside those of `tests/golden`, and what lines have; none has what follows a "!"."""


@each("words", TABLES)
def test_tables(capsys, words):
    lines = [" ".join(line.split()) for line in done(capsys, *DESCRIBE, *words.split()).out
             .splitlines()]  # fmt: skip
    for wanted in TABLES[words]:
        there = any(wanted.removeprefix("!").strip() in line for line in lines)
        assert there != wanted.startswith("!"), wanted


def test_json_is_the_plan_and_tables_are_made_of_it(capsys):
    found = told(
        capsys, "geometric", "-n", "15", "--mean-degree", "5", "--graph-seed", "3", "--hops", "1",
        "--samples", "77", "-k", "4", "--dtype", "float32", "--features", "31",
        "--weights", "laplacian", "--acceleration", "none", "--consensus-tol", "1e-4",
    )  # fmt: skip
    graph = make_graph("geometric", 15, mean_degree=5, seed=3)
    expected = plan(
        graph, [3] + [2] * 14, hops=1, n_samples=77, n_components=4, dtype="float32", seed=3,
        weights="laplacian", acceleration="none", consensus_tol=1e-4,
    )  # fmt: skip
    assert found == {**json.loads(json.dumps(expected)), "warnings": [], "plot": None}
    tables = [*tables_of_plan(expected)]
    assert [one.caption for one in tables][:3] == ["", "Hubs", "Mixing (* chosen)"]
    assert "<td" in tables[0]._repr_html_()
    assert len(told(capsys, "cycle", "-n", "30")["hubs"]) == 30


def test_a_dataset_brings_its_own_with_overrides(capsys, data, tmp_path):
    found = told(capsys, data)
    assert found["agent_names"] == list(AGENTS)
    assert (found["topology"], found["edges"]) == ("dataset", [[0, 1], [1, 2]])
    assert (found["n_samples"], found["n_features"]) == (150, 6)
    assert [hub["n_features"] for hub in found["hubs"]] == [2, 1, 3]
    out = done(capsys, *DESCRIBE, data).out
    assert "clinic" in out
    assert "150 rows" in out
    found = told(capsys, data, "--topology", "cycle", "--agents", "6", "--samples", "9")
    assert (found["topology"], found["n_agents"], found["n_samples"]) == ("cycle", 6, 9)
    assert told(capsys, data, "--topology", "star")["server"] == 3
    held = tmp_path / "held.json"
    held.write_text('{"a": ["height", "weight"], "b": ["pulse", "age", "iron"], "c": ["sugar"]}')
    found = told(capsys, data, "--partition", held, "--topology", "path")
    assert found["agent_names"] == ["a", "b", "c"]
    net = tmp_path / "net.csv"
    net.write_text("clinic,lab\nlab,registry\nregistry,clinic\n")
    assert told(capsys, data, "--graph", net)["n_edges"] == 3


def test_a_graph_from_a_file(capsys, edges):
    found = told(capsys, "--graph", edges)
    assert found["agent_names"] == ["clinic", "lab", "registry", "ward"]
    assert (found["topology"], found["n_edges"], found["diameter"]) == ("file", 4, 2)
    assert "clinic" in done(capsys, *DESCRIBE, "--graph", edges, "--hops", "1").out


@each(
    "words",
    [
        ("--topology", "cycle", "--agents", "6", "--batch-size", "50", "--hops", "1"),
        ("--topology", "star", "--compress", "qsgd:8bits"),
    ],
)
def test_the_plan_of_a_dataset_is_the_ledger_of_its_fit(capsys, data, words):
    """Over other networks `test_planning` holds a plan against fits."""
    options = (data, *words, "-k", "2")
    planned = told(capsys, *options)
    fitted = done(
        capsys, "fit", *options, "--init-rows", "3,77", "--tol", "1e-3", "--json", "-q"
    ).json
    assert fitted["recoveries"] == []
    for name in ("rounds", "compress", "faults", "batch_size", "mixing_rate", "consensus_error"):
        assert planned[name] == fitted[name]
    setup, iteration, last = (
        planned["communication"][part] for part in ("setup", "iteration", "last")
    )
    for what in ("messages", "bytes", "rounds"):
        expected = setup[what] + fitted["n_iter"] * iteration[what] + last[what]
        if planned["communication"]["is_expected"]:  # rounds go on until agents agree
            assert expected / 3 < fitted["communication"][what] < 3 * expected
        else:
            assert fitted["communication"][what] == expected


@each_once(
    width=[80, 120],
    words=[("--compress", "natural:12bits"), ("--agent-dropout", "0.02", "--rounds", "20")],
)
def test_tables_fit_a_terminal(capsys, monkeypatch, width, words):
    monkeypatch.setenv("COLUMNS", str(width))
    result = done(
        capsys, *DESCRIBE, "geometric", "-n", "12", "--samples", "1000000", "--hops", "1", *words
    )
    assert max(map(len, result.out.splitlines())) <= width


def test_warnings_are_told_and_kept(capsys):
    result = run(capsys, *DESCRIBE, "path", "-n", "20", "--rounds", "3", "--json")
    assert result.code == 0
    assert "3 rounds are too few" in result.err
    assert len(result.json["warnings"]) == 1


@each(("ending", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_pictures(capsys, tmp_path, ending, begins):
    path = tmp_path / f"net{ending}"
    words = (*DESCRIBE, "grid", "-n", "9", "--hops", "1", "--plot", path)
    assert done(capsys, *words).err == f"wrote {path}\n"
    first = path.read_bytes()
    assert first.startswith(begins)
    assert list(listing(tmp_path)) == [path.name]
    if ending == ".pdf":
        return
    assert run(capsys, *words).sentence == f"{path} exists; pass --force to replace it"
    assert done(capsys, *words, "--force", "--quiet").err == ""
    assert path.read_bytes() == first  # the same picture, to the byte
    path.unlink()


def test_a_picture_that_fails_leaves_nothing(capsys, monkeypatch, tmp_path):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    path = tmp_path / "net.png"
    path.write_bytes(b"before")
    monkeypatch.setattr(Path, "write_bytes", full)
    result = run(capsys, *DESCRIBE, "cycle", "-n", "5", "--plot", path, "--force")
    assert result.code == 2
    assert "No space left" in result.sentence
    assert listing(tmp_path) == {"net.png": b"before"}


@each(
    ("words", "message"),
    [
        ("", "give the name of a topology with -n, a dataset, or --graph"),
        ("cycle", "how many agents? give -n: vpem plan cycle -n 8"),
        ("missing.h5", "missing.h5"),
        ("cycle -n 5 --features 3", "5 agents cannot share 3 features"),
        ("cycle -n 5 --topology path", "--topology is for a dataset"),
        ("cycle -n 5 --partition p.json", "--partition is about the data"),
        ("cycle -n 5 --link fast", "--link is bandwidth and one-way latency"),
        ("cycle -n 5 --link 0Mbit,1ms", "such as 100Mbit,30ms"),
        ("cycle -n 5 --graph g.csv", "give a topology or --graph, not both"),
        ("--graph g.csv", "g.csv"),
        ("--graph g.csv --radius 1", "--radius needs the topology"),
        ("--graph {apart}", "2 components"),
        ("cycle -n 5 --plot net.bmp", "pictures are written to .png, .svg or .pdf"),
        ("cycle -n 5 --plot no/net.png", "there is no folder"),
        ("star -n 5 --stragglers 0.1", "--stragglers makes links fail or agents"),
        ("cycle -n 5 --link-failure 0.1 --acceleration chebyshev",
         "which Chebyshev acceleration needs"),
        ("cycle -n 5 --split rows --compress qsgd:8bits",
         "corrects this: vpem fedem --compress"),
        ("star -n 5 --split rows --dtype float32", "--dtype is the precision of terms"),
        ("cycle -n 200 --weights fastest", "at most 150 agents"),
        ("star -n 1000000", "(star) has 1,000,000; take fewer agents, or a graph with fewer"),
        ("tree -n 1000000 --sum tree", "(tree) has 999,999"),
        ("{data} --features 3", "--features is for plans without a dataset"),
        ("{data} --agents 9 --topology cycle", "9 agents cannot share 6 features"),
        ("{data} --topology cycle --graph g.csv", "give --topology or --graph, not both"),
        ("{data} --radius 0.4", "--radius needs the topology"),
        ("{data} --plot {data}", "is the input"),
    ],
)  # fmt: skip
def test_errors_are_one_sentence(capsys, monkeypatch, tmp_path, data, words, message):
    monkeypatch.chdir(tmp_path)
    Path("apart.csv").write_text("a,b\nc,d\n")
    before = listing(tmp_path)
    places = {"data": data, "apart": "apart.csv"}
    result = run(capsys, *DESCRIBE, *(word.format(**places) for word in words.split()))
    assert (result.code, result.out) == (2, "")
    assert message in result.sentence
    assert listing(tmp_path) == before
