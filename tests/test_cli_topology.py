"""`vpem topology describe`: tables, JSON, pictures, and errors of one sentence."""

import json
from pathlib import Path

import numpy as np
import pytest

from vpem import find_hubs, make_graph
from vpem.pictures.figure import save_picture
from vpem.pictures.network import HUBS_NAMED, draw_hubs

from .cli_support import AGENTS, done, listing, make_data, run
from .tables import each, over

DESCRIBE = ("topology", "describe")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data") / "data.h5")


@pytest.fixture
def edges(tmp_path):
    path = tmp_path / "net.csv"
    path.write_text("clinic,lab\nlab,registry\nregistry,ward\nward,clinic\n")
    return path


def told(capsys, *words):
    return done(capsys, *DESCRIBE, *words, "--json").json


def test_tables_of_a_cycle(capsys):
    out = done(capsys, *DESCRIBE, "cycle", "-n", "8", "--hops", "1", "--rounds", "30").out
    for line in (
        ("graph", "cycle, 8 agents, 8 links"),
        ("degrees", "2 to 2, mean 2"),
        ("diameter", "4 hops"),
        ("hubs", "3 of 1 hop"),
        ("metropolis *", "0.804738", "0.195"),
        ("laplacian", "0.744521"),
        ("30 *",),
        ("0.001", "35", "13"),
        ("1e-06", "67", "23"),
        ("setup", "flooding", "80", "1.54 kB", "5"),
        ("iteration", "stopping", "64", "64 B", "4"),
    ):
        assert any(
            all(word in text for word in line) and text.strip().startswith(line[0])
            for text in out.splitlines()
        ), line
    assert "1000 rows, 2 components, float64" in out


def test_json_is_the_plan(capsys):
    from vpem.fits.plan import plan

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


def test_a_dataset_brings_its_own(capsys, data):
    found = told(capsys, data)
    assert found["agent_names"] == list(AGENTS)
    assert (found["topology"], found["edges"]) == ("dataset", [[0, 1], [1, 2]])
    assert (found["n_samples"], found["n_features"]) == (150, 6)
    assert [hub["n_features"] for hub in found["hubs"]] == [2, 1, 3]
    out = done(capsys, *DESCRIBE, data).out
    assert "clinic" in out
    assert "150 rows" in out


def test_a_dataset_with_overrides(capsys, data, tmp_path):
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


@pytest.mark.parametrize(
    "words",
    [
        ("--topology", "path", "--hops", "1"),
        ("--topology", "star", "--compress", "qsgd:8bits"),
        ("--topology", "cycle", "--agents", "6", "--compress", "natural:12bits"),
        ("--topology", "cycle", "--agents", "6", "--compress", "qsgd:8bits", "--rounds", "30"),
        ("--topology", "star", "--batch-size", "40"),
        ("--topology", "cycle", "--agents", "6", "--batch-size", "50", "--hops", "1"),
    ],
)
def test_the_plan_of_a_dataset_is_the_ledger_of_its_fit(capsys, data, words):
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
            continue
        assert fitted["communication"][what] == expected
        for kind, row in fitted["communication"]["by_kind"].items():
            first, middle, end = (part["by_kind"][kind][what] for part in (setup, iteration, last))
            assert row[what] == first + fitted["n_iter"] * middle + end


def test_the_plan_with_faults_is_near_the_ledger_of_a_fit(capsys, data):
    options = (
        data, "--topology", "cycle", "--agents", "6", "--link-failure", "0.1",
        "--stragglers", "0.05",
    )  # fmt: skip
    planned = told(capsys, *options)
    fitted = run(
        capsys, "fit", *options, "--init-rows", "3,77", "--tol", "1e-14", "--max-iter", "12",
        "--json",
    ).json  # fmt: skip
    assert fitted["partitions"] == []
    assert planned["faults"] == fitted["faults"]
    assert planned["rounds"] == fitted["rounds"]
    sent = planned["communication"]
    assert sent["is_expected"]
    for what in ("messages", "bytes", "rounds"):
        expected = sent["setup"][what] + fitted["n_iter"] * sent["iteration"][what]
        near = pytest.approx(expected + sent["last"][what], rel=0.03)
        assert fitted["communication"][what] == near


def lines_of(out):
    return [" ".join(line.split()) for line in out.splitlines()]


def test_tables_with_compression(capsys):
    lines = lines_of(
        done(capsys, *DESCRIBE, "cycle", "-n", "10", "--compress", "natural:12bits").out
    )
    assert "compressed by natural:12bits" in " ".join(lines)
    assert "Rounds needed, metropolis weights, uncompressed" in lines
    assert not any(line.startswith("19 *") for line in lines)
    assert "Communication: 1000 rows, 2 components, float64, estimates" in lines
    assert "iteration estep 380 573 kB 19" in lines
    assert "last E-step estep 380 573 kB 19" in lines


def test_tables_of_batches(capsys):
    words = ("cycle", "-n", "8", "--batch-size", "300", "--rounds", "30", "--hops", "1")
    lines = lines_of(done(capsys, *DESCRIBE, *words).out)
    assert "Communication: 1000 rows, batches of 300, 2 components, float64" in lines
    assert "batch estep 485 1.17 MB 31" in lines
    assert "iteration estep 1940 3.9 MB 124" in lines
    assert "iteration stopping 64 64 B 4" in lines
    assert "last E-step estep 485 3.88 MB 31" in lines


def test_tables_with_faults(capsys):
    words = ("cycle", "-n", "6", "--agent-dropout", "0.1", "--rounds", "40")
    lines = lines_of(done(capsys, *DESCRIBE, *words).out)
    assert "sum 40 rounds, metropolis weights, mixing rate 0.6667," in lines
    assert "agent dropout 0.1" in lines
    assert any(line.startswith("disconnected in ") for line in lines)
    assert "Communication: 1000 rows, 2 components, float64, means" in lines
    assert "last E-step estep 480 3.84 MB 40" in lines
    assert "Rounds needed, metropolis weights, without failures" in lines


@over(
    width=[80, 120],
    words=[
        ("--compress", "natural:12bits"),
        ("--batch-size", "300"),
        ("--agent-dropout", "0.02"),
        (),
    ],
)
def test_tables_fit_a_terminal(capsys, monkeypatch, width, words):
    monkeypatch.setenv("COLUMNS", str(width))
    result = done(
        capsys, *DESCRIBE, "geometric", "-n", "30", "--samples", "1000000", "--hops", "1", *words
    )
    assert max(map(len, result.out.splitlines())) <= width


def test_a_graph_from_a_file(capsys, edges):
    found = told(capsys, "--graph", edges)
    assert found["agent_names"] == ["clinic", "lab", "registry", "ward"]
    assert (found["topology"], found["n_edges"], found["diameter"]) == ("file", 4, 2)
    assert "clinic" in done(capsys, *DESCRIBE, "--graph", edges, "--hops", "1").out


def test_many_hubs_are_cut_short_in_tables_only(capsys):
    result = done(capsys, *DESCRIBE, "cycle", "-n", "30")
    assert "and 10 more; --json shows all" in result.out
    assert len(told(capsys, "cycle", "-n", "30")["hubs"]) == 30


def test_bounds_are_marked(capsys):
    assert "<= " in done(capsys, *DESCRIBE, "path", "-n", "120").out


def test_a_star_and_a_single_agent(capsys):
    out = done(capsys, *DESCRIBE, "star", "-n", "4").out
    assert "exact at the server" in out
    assert "agent 0 - server" in out
    assert "Mixing" not in out
    assert "1 agent, 0 links" in done(capsys, *DESCRIBE, "path", "-n", "1").out


def test_warnings_are_told_and_kept(capsys):
    result = run(capsys, *DESCRIBE, "path", "-n", "20", "--rounds", "3", "--json")
    assert result.code == 0
    assert "3 rounds are too few" in result.err
    assert len(result.json["warnings"]) == 1


# ---- pictures -----------------------------------------------------------------------------------

MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize("ending", MAGIC)
def test_pictures(capsys, tmp_path, ending):
    path = tmp_path / f"net{ending}"
    words = (*DESCRIBE, "grid", "-n", "12", "--hops", "1", "--plot", path)
    result = done(capsys, *words)
    assert result.err == f"wrote {path}\n"
    first = path.read_bytes()
    assert first.startswith(MAGIC[ending])
    assert list(listing(tmp_path)) == [path.name]
    refused = run(capsys, *words)
    assert refused.code == 2
    assert refused.sentence == f"{path} exists; pass --force to replace it"
    assert done(capsys, *words, "--force", "--quiet").err == ""
    assert path.read_bytes() == first  # the same picture, to the byte


def test_a_picture_tells_hubs_roots_and_names(tmp_path):
    path = tmp_path / "net.svg"
    names = ["a$b", "<i>", "c" * 60, *(f"n{i}" for i in range(7))]
    graph = make_graph("path", 10, names=names)
    hubs = find_hubs(graph, 1)
    save_picture(path, draw_hubs(graph, hubs))
    text = path.read_text()
    assert "path: 10 agents, 9 links" in text
    assert "root of a hub" in text
    for number, hub in enumerate(hubs):
        count = sum(f">{number}</text>" in line for line in text.splitlines())
        assert count == len(hub.agents)


@pytest.mark.parametrize(
    ("topology", "n", "hops"),
    [("star", 5, 0), ("path", 1, 0), ("path", 2, 0), ("geometric", 60, 0), ("tree", 160, 1),
     ("erdos-renyi", 420, 1), ("complete", 5, 0), ("grid", 9, 1)],
)  # fmt: skip
def test_any_graph_can_be_drawn(tmp_path, topology, n, hops):
    graph = make_graph(topology, n, seed=0)
    path = tmp_path / "net.png"
    save_picture(path, draw_hubs(graph, find_hubs(graph, hops)))
    assert path.stat().st_size > 5000


@pytest.mark.parametrize("n", [30, 64])
def test_agents_on_a_circle_do_not_hide_one_another(n):
    graph = make_graph("cycle", n)
    picture = draw_hubs(graph, find_hubs(graph, 0))
    told = ["names are left out, as they would cover each other"] if n > HUBS_NAMED else []
    assert picture.notes == told
    picture.figure.draw_without_rendering()
    axes = picture.figure.axes[0]
    roots = next(one for one in axes.collections if len(one.get_offsets()) == n)
    places = axes.transData.transform(roots.get_offsets())
    dots = picture.figure.dpi / 72
    side = dots * (roots.get_sizes()[0] ** 0.5 + roots.get_linewidths()[0])
    nearest = np.abs(places - np.roll(places, 1, axis=0)).max(axis=1)
    assert nearest.min() > side


def test_colours_differ_in_grey_from_their_numbers():
    from vpem.pictures.figure import HUBS

    def light(code):
        parts = np.array([int(code[place : place + 2], 16) for place in (1, 3, 5)]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    for colour in HUBS:
        assert (light(colour) + 0.05) / 0.05 > 3


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


# ---- errors -------------------------------------------------------------------------------------


@each(
    ("words", "message"),
    [
        ((), "give the name of a topology with -n, a dataset, or --graph"),
        (("cycle",), "how many agents? give -n: vpem topology describe cycle -n 8"),
        (("cicle", "-n", "8"), "did you mean 'cycle'"),
        (("missing.h5",), "missing.h5"),
        (("cycle", "-n", "0"), "--agents must be an integer of at least 1, got 0"),
        (("cycle", "-n", "5", "--hops", "-1"), "hops must be an integer of at least 0"),
        (("cycle", "-n", "5", "--samples", "0"), "--samples must be"),
        (("cycle", "-n", "5", "-k", "0"), "--components must be"),
        (("cycle", "-n", "5", "--features", "3"), "5 agents cannot share 3 features"),
        (("cycle", "-n", "5", "--dtype", "float16"), "--dtype must be one of float64, float32"),
        (("cycle", "-n", "5", "--weights", "fast"), "weights must be one of"),
        (("cycle", "-n", "5", "--acceleration", "chebychev"), "did you mean 'chebyshev'"),
        (
            ("cycle", "-n", "5", "--rounds", "many"),
            "--rounds must be an integer",
        ),
        (("cycle", "-n", "5", "--rounds", "0"), "rounds must be an integer of at least 1"),
        (("cycle", "-n", "5", "--consensus-tol", "0"), "--consensus-tol must be"),
        (("geometric", "-n", "5", "--graph-seed", "-1"), "--graph-seed must be"),
        (("cycle", "-n", "5", "--radius", "0.3"), "--radius is for geometric"),
        (("cycle", "-n", "5", "--topology", "path"), "--topology is for a dataset"),
        (
            ("cycle", "-n", "5", "--partition", "p.json"),
            "--partition is about the data",
        ),
        (("cycle", "-n", "5", "--link", "fast"), "--link is bandwidth and one-way latency"),
        (("cycle", "-n", "5", "--link", "0Mbit,1ms"), "such as 100Mbit,30ms"),
        (("cycle", "-n", "5", "--graph", "g.csv"), "give a topology or --graph, not both"),
        (("--graph", "g.csv"), "g.csv"),
        (("--graph", "g.csv", "--radius", "1"), "--radius needs the topology"),
        (("cycle", "-n", "5", "--plot", "net.bmp"), "pictures are written to .png, .svg or .pdf"),
        (("cycle", "-n", "5", "--plot", "no/net.png"), "there is no folder"),
        (("cycle", "-n", "5", "--compress", "qsdg:8bits"), "did you mean 'qsgd'"),
        (("cycle", "-n", "5", "--batch-size", "0"), "--batch-size must be an integer of at least"),
        (("star", "-n", "5", "--stragglers", "0.1"), "--stragglers makes links fail or agents"),
        (("cycle", "-n", "5", "--link-failure", "1"), "--link-failure must be a probability"),
        (
            ("cycle", "-n", "5", "--link-failure", "0.1", "--acceleration", "chebyshev"),
            "which Chebyshev acceleration needs",
        ),
        (
            ("cycle", "-n", "5", "--split", "rows", "--compress", "qsgd:8bits"),
            "corrects this: vpem fedem --compress",
        ),
        (
            ("star", "-n", "5", "--split", "rows", "--dtype", "float32"),
            "--dtype is the precision of terms",
        ),
        (("cycle", "-n", "200", "--weights", "fastest"), "at most 150 agents"),
        (("cycle", "-n", "5", "--hps", "1"), "did you mean '--hops'"),
    ],
)
def test_errors_are_one_sentence(capsys, monkeypatch, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    result = run(capsys, *DESCRIBE, *words)
    assert (result.code, result.out) == (2, "")
    assert message in result.sentence
    assert listing(tmp_path) == {}


def test_errors_with_a_dataset(capsys, data):
    for words, message in (
        (("--features", "3"), "--features is for plans without a dataset"),
        (("--agents", "9", "--topology", "cycle"), "9 agents cannot share 6 features"),
        (("--topology", "cycle", "--graph", "g.csv"), "give --topology or --graph, not both"),
        (("--radius", "0.4"), "--radius needs the topology"),
        (("--plot", data), "is the input"),
    ):
        result = run(capsys, *DESCRIBE, data, *words)
        assert (result.code, result.out) == (2, "")
        assert message in result.sentence


def test_a_disconnected_graph_is_refused(capsys, tmp_path):
    net = tmp_path / "net.csv"
    net.write_text("a,b\nc,d\n")
    result = run(capsys, *DESCRIBE, "--graph", net)
    assert result.code == 2
    assert "2 components" in result.sentence


def test_notebooks_show_the_tables_of_a_plan():
    from vpem.fits.plan import plan
    from vpem.network.graph import make_graph
    from vpem.pictures.planning import tables_of_plan

    tables = [*tables_of_plan(plan(make_graph("cycle", 4), [1, 1, 1, 1]))]
    assert [one.caption for one in tables][:3] == ["", "Hubs", "Mixing (* chosen)"]
    assert "<td" in tables[0]._repr_html_()
