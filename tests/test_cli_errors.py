"""Bad input: exit code 2, one sentence on stderr, nothing written, what was there untouched."""

import json
import os
import pty
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest

import vpem_cli
from vpem_cli.names import leaves, name_of

from .cli_support import MAIN, NAMES, done, kinds_of, listing, make_data, overlapping, run, spawn
from .tables import each, over


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Bytes of a dataset, and of a model fitted to it."""
    folder = tmp_path_factory.mktemp("sound")
    make_data(folder / "d.h5", n_samples=60)
    words = ["fit", str(folder / "d.h5"), "--max-iter", "5", "--tol", "10", "-q"]
    assert vpem_cli.run([*words, "-o", str(folder / "m.h5")]) == 0
    return {name: (folder / name).read_bytes() for name in ("d.h5", "m.h5")}


@pytest.fixture
def folder(tmp_path, sound, monkeypatch):
    """The working directory: a dataset, a model, and a result that must not be touched."""
    for name, content in sound.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "old.h5").write_bytes(b"precious")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refused(capsys, folder):
    """Function: run a command that must fail; return its one sentence."""

    def call(*words):
        before = listing(folder)
        result = run(capsys, *words)
        assert result.code == 2
        assert result.out == ""
        assert listing(folder) == before
        return result.sentence

    return call


def write(path, **elements):
    """Write a bare HDF5 file."""
    with h5py.File(path, "w") as file:
        for name, value in elements.items():
            file[name] = value


# ---- data ---------------------------------------------------------------------------------------


@over(
    written=[(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")],
    command=["fit", "predict", "score", "evaluate"],
)
def test_values_that_are_not_finite(refused, folder, command, written):
    value, word = written
    with h5py.File(folder / "d.h5", "a") as file:
        file["X"][17, 2] = value
        file["X"][30, 4] = value
    words = ("fit", "d.h5", "-o", "new.h5") if command == "fit" else (command, "m.h5", "d.h5")
    said = refused(*words)
    assert "row 17," in said
    assert f"('pulse') is {word if word != 'nan' else 'NaN'};" in said
    assert "2 values" in said


BAD_DATA = {
    "text": ({"X": [["a", "b"], ["c", "d"]]}, "X holds strings"),
    "complex": ({"X": np.ones((9, 2), complex)}, "X holds complex numbers"),
    "1-D": ({"X": np.ones(9)}, "must have 2 dimensions, got 9"),
    "3-D": ({"X": np.ones((9, 2, 2))}, "must have 2 dimensions, got 9 x 2 x 2"),
    "scalar": ({"X": 3.0}, "must have 2 dimensions, got a single value"),
    "no rows": ({"X": np.ones((0, 3))}, "has no values"),
    "no features": ({"X": np.ones((3, 0))}, "has no values"),
    "a group": ({"X/data": np.ones((3, 3))}, "is a group"),
    "no X": ({"Y": np.ones((3, 3))}, "has no X; pass one of its 2-D numeric datasets"),
    "names": ({"X": np.ones((9, 2)), "feature_names": ["a"]}, "2 features but 1 feature_names"),
    "ids": ({"X": np.ones((9, 2)), "ids": ["a"]}, "X has 9 rows, but ids have shape 1"),
    "partition": ({"X": np.ones((9, 2)), "partition": [0]}, "partition must have shape 2"),
    "gap": ({"X": np.ones((9, 2)), "partition": [0, 2]}, "agent 1 holds no feature"),
    "edges": (
        {"X": np.ones((9, 2)), "partition": [0, 1], "graph/edges": [[0, 2]]}, "edge 0 of graph",
    ),
    "loop": ({"X": np.ones((9, 2)), "graph/edges": [[1, 1]]}, "joins agent 1 to itself"),
}  # fmt: skip


@each("fault", BAD_DATA)
def test_data_of_another_kind(refused, folder, fault):
    elements, said = BAD_DATA[fault]
    write(folder / "bad.h5", **elements)
    assert said in refused("fit", "bad.h5", "-o", "new.h5")


def test_fewer_rows_than_components(refused, folder):
    write(folder / "few.h5", X=overlapping(4)[0])
    said = refused("fit", "few.h5", "-k", 5, "-o", "new.h5")
    assert "5 components need at least as many rows, got 4" in said


def test_features_that_leave_no_covariance(capsys, folder):
    write(folder / "same.h5", X=np.ones((20, 3)))
    before = listing(folder)
    result = run(capsys, "fit", "same.h5", "--reg-covar", 0, "-o", "new.h5")
    *warnings, error = result.err.splitlines()
    assert result.code == 2
    assert all(line.startswith("vpem: warning: constant features") for line in warnings)
    assert error.startswith("vpem: error: ")
    assert "a number above 0 for --reg-covar" in error
    assert listing(folder) == before


# ---- files --------------------------------------------------------------------------------------


def bad_files(folder, sound):
    (folder / "cut.h5").write_bytes(sound[: len(sound) // 2])
    (folder / "text.h5").write_text("not HDF5\n")
    (folder / "empty.h5").write_bytes(b"")
    (folder / "folder.h5").mkdir()
    return {
        "missing.h5": "does not exist",
        "cut.h5": "cut short",
        "text.h5": "not an HDF5 file",
        "empty.h5": "is empty",
        "folder.h5": "is a folder",
        "/dev/null": "not an ordinary file",
    }


@pytest.mark.parametrize(
    "words",
    [
        ("fit", "FILE", "-o", "new.h5"),
        ("fit", "d.h5", "--init-model", "FILE", "-o", "new.h5"),
        ("predict", "FILE", "d.h5", "-o", "new.csv"),
        ("predict", "m.h5", "FILE", "-o", "new.csv"),
        ("score", "FILE", "d.h5"),
        ("score", "m.h5", "FILE", "--json"),
        ("sample", "FILE", "-o", "new.csv"),
        ("evaluate", "m.h5", "FILE"),
    ],
    ids=" ".join,
)
def test_files_that_cannot_be_read(refused, folder, sound, words):
    for name, said in bad_files(folder, sound["d.h5"]).items():
        assert said in refused(*(name if word == "FILE" else word for word in words))


def test_a_dataset_is_no_model_and_a_model_no_dataset(refused):
    assert "d.h5 holds a dataset, which" in refused("score", "d.h5", "d.h5")
    assert "m.h5 is a vpem-model file, not a vpem-dataset" in refused("fit", "m.h5")


@pytest.mark.parametrize(
    "words",
    [
        ("fit", "d.h5", "-o", "OUT.h5"),
        ("predict", "m.h5", "d.h5", "-o", "OUT.h5"),
        ("predict", "m.h5", "d.h5", "--proba", "-o", "OUT.csv"),
        ("sample", "m.h5", "-o", "OUT.h5"),
        ("sample", "m.h5", "-o", "OUT.csv"),
        ("model", "export", "m.h5", "-o", "OUT.npz"),
        ("model", "export", "m.h5", "-o", "OUT.json"),
    ],
    ids=" ".join,
)
def test_outputs_that_cannot_be_written(refused, folder, words):
    suffix = words[-1].removeprefix("OUT")
    (folder / f"old{suffix}").write_bytes(b"precious")
    (folder / f"folder{suffix}").mkdir()
    for place, said in (
        (f"old{suffix}", "exists; pass --force to replace it"),
        (f"nowhere/new{suffix}", "there is no folder"),
        (f"m.h5/new{suffix}", "there is no folder"),
        (f"folder{suffix}", "is a folder"),
    ):
        assert said in refused(*words[:-1], place)
    assert "is a folder" in refused(*words[:-1], f"folder{suffix}", "--force")


@each(
    ("words", "said"),
    [
        ("fit d.h5 -k 2-3 --checkpoint /", "/ is a folder; give the name of a file"),
        ("fit d.h5 -k 2-3 --checkpoint .", ". is a folder; give the name of a file"),
        ("fit d.h5 --checkpoint /", "/ is a folder; give the name of a file"),
        ("select d.h5 -k 2-3 -o /", "/ is a folder; give the name of a file"),
        ("fit d.h5 -o /dev/full", "/dev/full is not an ordinary file; write to another name"),
    ],
)
def test_outputs_that_are_no_files(refused, words, said):
    assert refused(*words.split()).startswith(said)


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="needs /dev/fd")
def test_a_pipe_is_no_file_to_write(refused):
    ends = os.pipe()
    assert "is not an ordinary file" in refused("fit", "d.h5", "-o", f"/dev/fd/{ends[1]}")
    for end in ends:
        os.close(end)


def test_an_output_that_exists_is_refused_before_any_work(refused):
    assert "old.h5 exists" in refused("fit", "missing.h5", "-o", "old.h5")
    assert "there is no folder" in refused("sample", "missing.h5", "-o", "nowhere/s.csv")


@over(
    name=["p.txt", "p", "p.csv.gz", "p.json"],
    words=[("predict", "m.h5", "d.h5"), ("sample", "m.h5")],
)
def test_results_of_another_format(refused, words, name):
    assert "results are written to .csv, .parquet, .h5 or .hdf5 files" in refused(
        *words, "-o", name
    )


# ---- who holds what, and who talks to whom -------------------------------------------------------

BAD_PARTITIONS = {
    "misses": ([[0, 1], [2, 3, 4]], "misses feature 5"),
    "repeats": ([[0, 1, 2], [2, 3, 4, 5]], "repeats feature 2"),
    "both": ([[0, 0], [2, 3, 4]], "misses feature 1, 5 and repeats feature 0"),
    "outside": ([[0, 1, 2], [3, 4, 6]], "names feature 6, but the 6 features are numbered 0 to 5"),
    "unknown": ([["heigth", 1, 2], [3, 4, 5]], "no feature 'heigth' (did you mean 'height'?)"),
    "real": ([[0.5, 1, 2], [3, 4, 5]], "features are given by integers, got 0.5"),
    "flat": ([0, 1, 2, 3, 4, 5], "an object of lists of features"),
    "number": (3, "an object of lists of features"),
    "nothing": ([], "at least one agent"),
    "nameless": ({"": [0, 1, 2, 3, 4, 5]}, "agent names must be non-empty"),
}


@each("fault", BAD_PARTITIONS)
def test_partitions_that_are_none(refused, folder, fault):
    content, said = BAD_PARTITIONS[fault]
    (folder / "p.json").write_text(json.dumps(content))
    sentence = refused("fit", "d.h5", "--partition", "p.json", "--topology", "path", "-o", "n.h5")
    assert said in sentence
    assert "p.json" in sentence


@each("content", ["{", "", "a,b", "[[0,1],", '{"a": [0], "a": [1]}'])
def test_a_partition_file_that_is_not_json(refused, folder, content):
    (folder / "p.json").write_text(content)
    assert "p.json" in refused("fit", "d.h5", "--partition", "p.json", "-o", "new.h5")


BAD_GRAPHS = {
    "too many": ("0 1\n1 2\n2 3\n", "4 nodes but there are 3 agents"),
    "disconnected": ("clinic lab\n", "2 components, (clinic, lab), (registry)"),
    "unknown": ("clinic lab\nlab ward\n", "no agents: ward; the agents are clinic, registry, lab"),
    "one word": ("clinic\n", "line 1 of g.txt must hold two nodes"),
    "no edges": ("# nothing\n", "holds no edges"),
    "empty": ("", "is empty"),
    "bytes": ("\0\1", "is not UTF-8 text"),
}


@each("fault", BAD_GRAPHS)
def test_graphs_that_do_not_fit(refused, folder, fault):
    content, said = BAD_GRAPHS[fault]
    (folder / "g.txt").write_text(content)
    assert said in refused("fit", "d.h5", "--graph", "g.txt", "-o", "new.h5")


def test_a_graph_of_another_number_of_agents(refused, folder):
    graph = {"nodes": [{"id": 0}, {"id": 1}], "edges": [{"source": 0, "target": 1}]}
    (folder / "g.json").write_text(json.dumps(graph))
    assert "2 nodes but there are 3 agents" in refused("fit", "d.h5", "--graph", "g.json")
    (folder / "p.json").write_text(json.dumps([[0, 1], [2, 3, 4, 5]]))
    said = refused("fit", "d.h5", "--partition", "p.json")
    assert "joins 3 agents, but 2 hold the features" in said


def test_a_stored_graph_that_is_not_connected(refused, folder):
    with h5py.File(folder / "d.h5", "a") as file:
        del file["graph/edges"]
        file["graph/edges"] = [[1, 2]]
    assert "2 components, (clinic), (registry, lab)" in refused("fit", "d.h5", "-o", "new.h5")


# ---- options ------------------------------------------------------------------------------------

MANY = "9" * 5000

BAD_OPTIONS = [
    ("--topology cyle", "'cyle' (did you mean 'cycle'?)"),
    ("--topology ring", "topology must be one of star, cycle, path"),
    ("--weights metropolys", "'metropolys' (did you mean 'metropolis'?)"),
    ("--init kmean", "'kmean' (did you mean 'kmeans'?)"),
    ("--covariance ful", "'ful' (did you mean 'full'?)"),
    ("--covariance bad", "--covariance must be one of full, diag, spherical, tied, tied-diag"),
    ("--covariance tied-full", "did you mean 'tied"),
    ("--scale standart", "'standart' (did you mean 'standard'?)"),
    ("--dtype float16", "--dtype must be one of float64, float32"),
    ("--consensus operater", "'operater' (did you mean 'operator'?)"),
    ("--consensus both", "--consensus must be one of auto, operator, rounds, got 'both'"),
    ("--toplogy cycle", "no such option: --toplogy (did you mean '--topology'?)"),
    ("--component 2", "did you mean '--components'?"),
    ("--hops -1", "hops must be an integer of at least 0, got -1"),
    ("--hops 1.5", "--hops"),
    ("--hops many", "--hops"),
    ("--rounds 0", "rounds must be an integer of at least 1"),
    ("-k 0", "--components must be an integer of at least 1, got 0"),
    ("-k -3", "--components must be an integer of at least 1, got -3"),
    ("-k two", "--components must be numbers and ranges"),
    ("-k --5", "--components must be numbers and ranges"),
    ("-k ٣", "--components must be numbers and ranges"),
    (f"-k {MANY}", f"such as 1-8, 1,2,5 or 2-20:3, got '{MANY[:60]}...'"),
    ("--rounds=--5", "--rounds must be an integer of at least 1, or auto, got '--5'"),
    (f"--rounds={MANY}", "--rounds must be an integer of at least 1, or auto, got '999"),
    ("--reg-covar=1_0", "--reg-covar must be a number of at least 0, or auto, got '1_0'"),
    (f"--memory-limit {MANY}M", "a size must be a number of bytes such as 600MB or 2G"),
    ("--memory-limit ٣M", "a size must be a number of bytes such as 600MB or 2G"),
    (f"--compress topk:{MANY}", "fraction"),
    ("--compress topk:1_0", "topk takes the fraction of values to send"),
    ("--compress qsgd:²bits", "bits of qsgd must be an integer from 1 to 16, got '²'"),
    ("--accelerate local:²", "--accelerate must be squarem, local:N"),
    ("--n-init 9999999999999999999999", "--n-init must be an integer of at least 1 and at most"),
    ("--tol -1", "tol must be a finite number of at least 0, got -1"),
    ("--tol nan", "tol must be a finite number of at least 0, got nan"),
    ("--tol inf", "tol must be a finite number of at least 0, got inf"),
    ("--max-iter -1", "--max-iter must be an integer of at least 0, got -1"),
    ("--reg-covar -1e-6", "--reg-covar must be a number from 0 to 1e+100, got -1e-06"),
    ("--reg-covar nan", "--reg-covar must be a number from 0 to 1e+100, got nan"),
    ("--threads 0", "threads must be an integer of at least 1"),
    ("--seed -1", "seed must be an integer of at least 0, got -1"),
    ("--topology geometric --graph-seed -1", "seed must be an integer of at least 0, got -1"),
    ("--n-init 0", "--n-init must be an integer of at least 1 and at most 1000000, got 0"),
    ("--init-rows junk", "row numbers with commas between, such as 3,77,120, got 'junk'"),
    ("--init-rows 1,,2", "row numbers with commas between"),
    ("--init-rows 1.5,2", "row numbers with commas between"),
    ("--init-rows 1,٣", "row numbers with commas between"),
    (f"--init-rows 1,{MANY}", "row numbers with commas between"),
    ("--init-rows 5", "2 components need as many init rows, got 1"),
    ("--init-rows 1,2,3", "2 components need as many init rows, got 3"),
    ("--init-rows 1,60", "must lie between 0 and 59, got [1, 60]"),
    ("--init-rows -1,6", "must lie between 0 and 59, got [-1, 6]"),
    ("--init-rows 7,7", "must differ from each other, got [7, 7]"),
    ("--init-rows 1,2 --init-model m.h5", "--init-rows or --init-model, not both"),
    ("--init-model m.h5 -k 3", "starting model has 2 components, the fit has 3"),
    ("--init-model other.h5", "the model has 6 features, the data have 4"),
    ("--agents 0", "agents must be an integer of at least 1, got 0"),
    ("--agents -2", "agents must be an integer of at least 1, got -2"),
    ("--agents 7", "7 agents cannot share 6 features"),
    ("--agents 2 --partition p.json", "--agents or --partition, not both"),
    ("--partition missing.json", "'missing.json' does not exist"),
    ("--topology path --graph g.txt", "--topology or --graph, not both"),
    ("--graph missing.txt", "'missing.txt' does not exist"),
    ("--graph d.h5", "name must end in"),
    ("--topology cycle --radius 0.5", "--radius is for geometric"),
    ("--radius 0.5", "--radius needs the topology of a random graph"),
    ("--topology geometric --radius 0", "--radius must be a number above 0"),
    ("--topology geometric --radius nan", "--radius must be a number above 0"),
    ("--topology geometric --radius 1e-9", "was connected: raise --radius"),
    ("--topology geometric --radius 1 --mean-degree 2", "give --radius or --mean-degree, not both"),
    ("--topology erdos-renyi --mean-degree 9", "at most 2 for 3 agents"),
    ("--dataset nothing", "has no nothing; pass one of its 2-D numeric datasets"),
    ("--dataset labels", "labels holds strings"),
    ("more", "give one dataset, got 2 files; add --parties"),
    ("--json=3", "'--json' does not take a value; see 'vpem fit --help'"),
    ("--output", "requires an argument; see 'vpem fit --help'"),
]


@each(("words", "said"), BAD_OPTIONS)
def test_options_of_fit(refused, folder, words, said):
    data = "d.h5"
    if "other.h5" in words:
        data, words = "other.h5", "--init-model m.h5"
        write(folder / "other.h5", X=overlapping(60, 4)[0])
    assert said in refused("fit", data, "-o", "new.h5", *words.split())


@each("text", ["--5", "1_0", "²", "٣", "five", " "])
def test_all_options_that_are_numbers_read_them_alike(refused, text):
    count = 0
    for path, command in leaves(vpem_cli.app.command()):
        for param in command.params:
            if (kind := kinds_of(command, param)) in ({int}, {float}):
                said = refused(*path, max(param.opts, key=len), text)
                number = "an integer" if int in kind else "a number"
                assert said.startswith(f"{name_of(param)} must be {number}, got {text!r}; see ")
                count += 1
    assert count > 150


@over(
    name=["COLUMNS", "LINES", "OMP_NUM_THREADS", "PMI_SIZE"], text=["²", MANY, "-1", "0", "x", ""]
)
def test_variables_of_others_that_hold_no_numbers(capsys, monkeypatch, folder, name, text):
    monkeypatch.setenv(name, text)
    done(capsys, "fit", "d.h5", "--max-iter", 2, "--tol", 10)


@each(
    ("words", "said"),
    [
        ("fitt d.h5", "no such command: fitt (did you mean 'fit'?)"),
        ("model shwo m.h5", "no such command: shwo (did you mean 'show'?)"),
        ("data imprt x", "no such command: imprt (did you mean 'import'?)"),
        ("fit", "missing argument"),
        ("score m.h5", "missing argument"),
        ("model export m.h5", "missing option"),
        ("predict m.h5 d.h5 --prob", "did you mean '--proba'?"),
        ("sample m.h5 -n 99999999999999999999", "a sample of 99999999999999999999 rows needs"),
        ("data split d.h5 -o s --agents 9223372036854775807", "agents cannot share 6 features"),
        ("data simulate -k 9223372036854775807 -o s.h5", "the covariances of the mixture needs"),
        ("topology describe cycle -n 9223372036854775807", "agents needs"),
        ("topology describe cycle -n 5 --features 9223372036854775807", "features needs"),
        ("topology describe cycle -n 5 --samples 9223372036854775807", "--samples must be"),
        ("topology describe cycle -n 5 -k 9223372036854775807", "--components must be"),
        ("fedem d.h5 --workers 2 --participation 1e-320", "must be a number from 1e-06 to 1"),
        ("fedem d.h5 --workers 2 --reg-covar 1e308", "must be a number from 0 to 1e+100"),
        ("sample m.h5 -n 0", "--samples must be an integer of at least 1, got 0"),
        ("sample m.h5 --seed -1", "seed must be an integer of at least 0, got -1"),
        ("evaluate m.h5 d.h5 --labels nowhere", "neither a file 'nowhere' nor such a dataset"),
        ("evaluate m.h5 d.h5 --labels feature_names", "60 rows, feature_names has 6 labels"),
        ("evaluate m.h5 d.h5 --labels X", "X must have 1 dimension"),
        ("score m.h5 d.h5 --dataset partition", "must have 2 dimensions"),
    ],
)
def test_words_of_other_commands(refused, words, said):
    assert said in refused(*words.split())


def test_data_without_the_features_of_the_model(refused, folder):
    X = overlapping(60, 5)[0]
    write(folder / "less.h5", X=X, feature_names=[*NAMES[:4], "other"])
    write(folder / "nameless.h5", X=X)
    for words in (("predict", "-o", "new.csv"), ("score",), ("evaluate",)):
        said = refused(words[0], "m.h5", "less.h5", *words[1:])
        assert "lack features of the model: 'iron', 'sugar'" in said
        said = refused(words[0], "m.h5", "nameless.h5", *words[1:])
        assert "the model has 6 features, the data have 5" in said


def test_a_process_ends_with_the_code_and_no_traceback(folder):
    before = listing(folder)
    result = spawn("fit", "d.h5", "--topology", "cyle", "-o", "new.h5", cwd=folder)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("vpem: error: --topology must be one of ")
    assert listing(folder) == before


# ---- Ctrl-C -------------------------------------------------------------------------------------

# Shells start what runs in the background with Ctrl-C ignored; a foreground process has it.
FOREGROUND = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {MAIN}"


def test_ctrl_c_ends_a_long_fit_and_leaves_nothing(folder):
    """The progress, shown in a terminal after a second, says when the fit is on its way."""
    before = listing(folder)
    words = ["fit", "d.h5", "--max-iter", str(10**8), "--tol", "0", "-o", "new.h5"]
    terminal, its_end = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen(
        [sys.executable, "-c", FOREGROUND, *words],
        stdout=subprocess.PIPE, stderr=its_end, cwd=folder, env=environment,
    ) as process:  # fmt: skip
        os.close(its_end)
        read_until(terminal, b"/s")
        process.send_signal(signal.SIGINT)
        shown = read_until(terminal, None)
        assert process.stdout.read() == b""
        assert process.wait(timeout=30) == 130
    os.close(terminal)
    assert b"Traceback" not in shown
    assert shown.count(b"vpem: error: interrupted; nothing was written\r\n") == 1
    assert shown.count(b"error") == 1
    assert b"\x1b[?25l" not in shown  # the cursor was never hidden
    assert shown.endswith(b"\r\x1b[Jvpem: error: interrupted; nothing was written\r\n")
    assert listing(folder) == before


def read_until(terminal, word):
    """Read what a terminal shows until a word or, with None, its end."""
    shown = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            part = b""
        shown += part
        if not part or (word is not None and word in shown):
            break
    assert word is None or word in shown
    return shown


def test_nothing_bad_was_a_matter_of_the_fixture(capsys, folder):
    """The files of this module are sound: the same commands without the faults succeed."""
    (folder / "p.json").write_text(json.dumps([[0, 1], [2, 3, 4, 5]]))
    (folder / "g.txt").write_text("clinic lab\nlab registry\n")
    for words in ("fit d.h5 --graph g.txt -o new.h5", "fit d.h5 --partition p.json --topology path",
                  "fit d.h5 --init-model m.h5", "predict m.h5 d.h5 -o new.csv",
                  "evaluate m.h5 d.h5"):  # fmt: skip
        assert done(capsys, *words.split()).err.count("error: ") == 0
