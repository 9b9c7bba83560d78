import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from typer import Exit

from vpem.errors import FileError, InputError
from vpem.files.data import read_dataset
from vpem.files.datasets import Dataset, write_dataset
from vpem_cli.app import command
from vpem_cli.names import in_options

DATA = Path(__file__).parents[1] / "data"
PEOPLE = "name,age,height,sick\nann,30,1.7,yes\nbob,41,1.8,no\ncid,52,1.9,no\n"


def run(*words):
    """Run a command of `vpem data`; the error is kept, not told."""
    root, error, code = command(), None, 0
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            with root.make_context("vpem", ["data", *map(str, words)]) as context:
                root.invoke(context)
        except Exit as end:
            code = end.exit_code
        except Exception as raised:
            error = raised
    texts = {"stdout": out.getvalue(), "stderr": err.getvalue()}
    return SimpleNamespace(exception=error, exit_code=code, output="".join(texts.values()), **texts)


def works(*words):
    result = run(*words)
    assert result.exception is None, result.exception
    assert result.exit_code == 0
    return result


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(PEOPLE)
    return path


@pytest.fixture
def target(tmp_path):
    return tmp_path / "out.h5"


# import -------------------------------------------------------------------------------------------


def test_import(csv, target):
    result = works(
        "import", csv, "-o", target, "--label-column", "sick", "--id-column", "name", "--agents", 2
    )
    assert result.stdout == ""
    assert result.stderr == f"wrote {target}: 3 rows, 2 features, ids, labels, 2 agents\n"
    data = read_dataset(target)
    assert data.X.tolist() == [[30, 1.7], [41, 1.8], [52, 1.9]]
    assert data.feature_names == ("age", "height")
    assert data.labels.tolist() == ["yes", "no", "no"]
    assert data.ids.tolist() == ["ann", "bob", "cid"]
    assert data.partition.agent_of.tolist() == [0, 1]


def test_import_without_header_and_by_number(tmp_path, target):
    source = tmp_path / "numbers.txt"
    source.write_text("1|0|3|0\n4|1|6|1\n")
    options = ["--no-header", "--label-column", "-1", "--drop", "0", "--worker-column", "1"]
    result = works("import", source, "-o", target, *options, "--delimiter", "|", "--quiet")
    assert result.output == ""
    data = read_dataset(target)
    assert data.X.tolist() == [[3], [6]]
    assert data.feature_names == ("column 2",)
    assert data.labels.tolist() == [0, 1]
    assert data.partition is None


def test_import_with_a_partition_file(csv, tmp_path, target):
    parts = tmp_path / "parts.json"
    parts.write_text('{"scale": ["height"], "registry": ["age"], "mast": []}')
    options = ["--drop", "name", "--label-column", "sick", "--partition", parts]
    result = works("import", csv, "-o", target, *options)
    assert "vpem: warning: 'mast' holds no features and only relays" in result.stderr
    with pytest.warns(UserWarning, match="'mast'"):
        data = read_dataset(target)
    assert data.partition.names == ("scale", "registry", "mast")
    assert data.partition.agent_of.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--features", "age,sick"], "holds text"),
        (["--features", "age", "--drop", "age"], "it is dropped"),
        (["--agents", "2", "--partition", "x.json"], "give agents or partition, not both"),
        (["--label-column", "sick", "--id-column", "name", "--agents", "3"], "3 agents cannot"),
        (["--label-column", "sik"], "did you mean 'sick'"),
        (["--worker-column", "ward"], "there is no worker column 'ward'"),
    ],
)
def test_import_refuses_and_writes_nothing(csv, target, options, sentence):
    result = run("import", csv, "-o", target, *options)
    assert isinstance(result.exception, InputError)
    assert sentence in str(result.exception)
    assert sorted(path.name for path in target.parent.iterdir()) == ["people.csv"]


def test_an_existing_output_is_seen_before_the_work(csv, target):
    target.write_text("old")
    for words in (["import", csv.with_name("none.csv")], ["simulate", "-n", 10**15]):
        result = run(*words, "-o", target)
        assert isinstance(result.exception, FileError)
        assert "exists; pass --force to replace it" in in_options(result.exception)
    assert target.read_text() == "old"
    works("simulate", "-o", target, "-n", 20, "--force")
    assert read_dataset(target).n_samples == 20


# simulate -----------------------------------------------------------------------------------------


def test_simulate(target):
    options = ["-n", 300, "-d", 4, "-k", 2, "--overlap", 0.2, "--agents", 2, "--seed", 3]
    result = works("simulate", "-o", target, *options)
    assert result.stdout == ""
    assert "300 rows, 4 features, labels, 2 agents, 2 components, overlap 0.2" in result.stderr
    data = read_dataset(target)
    assert data.X.shape == (300, 4)
    assert set(data.labels.tolist()) == {0, 1}
    with h5py.File(target) as file:
        assert file["truth/covariances"].shape == (2, 4, 4)
        assert file["truth/overlap"][()] == pytest.approx(0.2, rel=0.01)
    again = target.with_name("again.h5")
    works("simulate", "-o", again, *options)
    assert again.read_bytes() == target.read_bytes()


def test_simulate_refuses(target):
    result = run("simulate", "-o", target, "--overlap", 0.9)
    assert isinstance(result.exception, InputError)
    assert "overlap must lie above 0 and below 0.6667" in str(result.exception)
    assert not target.exists()


# describe -----------------------------------------------------------------------------------------


def test_describe_as_json():
    summary = json.loads(works("describe", DATA / "breast_cancer.h5", "--json").stdout)
    assert (summary["n_samples"], summary["n_features"], summary["n_agents"]) == (569, 30, 10)
    assert summary["dtype"] == "float64"
    assert summary["bytes"] == 569 * 30 * 8
    assert summary["agents"][0] == {
        "name": "radius",
        "features": ["mean radius", "radius error", "worst radius"],
    }
    assert summary["labels"] == [
        {"label": "benign", "count": 357},
        {"label": "malignant", "count": 212},
    ]
    assert summary["edges"][9] == [9, 0]
    assert summary["n_non_finite"] == summary["n_constant"] == 0
    X = read_dataset(DATA / "breast_cancer.h5").X
    feature = summary["features"][10]
    assert (feature["name"], feature["agent"]) == ("radius error", "radius")
    assert feature["mean"] == pytest.approx(X[:, 10].mean())
    assert feature["sd"] == pytest.approx(X[:, 10].std())
    assert (feature["min"], feature["max"]) == (X[:, 10].min(), X[:, 10].max())


def test_describe_in_silence():
    found = works("describe", DATA / "wine.h5", "-q")
    assert (found.stdout, found.stderr) == ("", "")
    assert (
        json.loads(works("describe", DATA / "wine.h5", "-q", "--json").stdout)["n_samples"] == 178
    )


def test_describe_as_tables():
    text = works("describe", DATA / "breast_cancer.h5").stdout
    for part in ("569", "10 edges", "malignant", "212", "worst area", "agents", "labels"):
        assert part in text


def test_describe_flags_what_is_unusual(target):
    X = np.array([[1.0, np.nan, 2], [1, np.nan, np.inf], [1, np.nan, 4]])
    write_dataset(target, Dataset(X, ("same", "[red]none[/red]", "with\x1b[31m inf")))
    text = works("describe", target).stdout
    assert "constant" in text
    assert "3 missing" in text
    assert "1 infinite" in text
    assert "[red]none[/red]" in text
    assert "\x1b" not in text
    summary = json.loads(works("describe", target, "--json").stdout)
    assert [f["constant"] for f in summary["features"]] == [True, False, False]
    assert [f["non_finite"] for f in summary["features"]] == [0, 3, 1]
    assert summary["features"][1]["mean"] is None
    assert summary["features"][2]["max"] == 4
    assert (summary["n_non_finite"], summary["n_constant"]) == (4, 1)
    assert summary["labels"] is summary["agents"] is summary["edges"] is None


def test_describe_shortens_long_tables(target):
    write_dataset(target, Dataset(np.ones((1, 130)), tuple(f"gene {n}" for n in range(130))))
    text = works("describe", target).stdout
    assert "gene 99" in text
    assert "gene 100" not in text
    assert "and 30 more; --json shows all" in text
    assert len(json.loads(works("describe", target, "--json").stdout)["features"]) == 130


def test_describe_another_matrix(target):
    with h5py.File(target, "w") as file:
        file["deep/matrix"] = np.ones((4, 2))
    summary = json.loads(works("describe", target, "--dataset", "deep/matrix", "--json").stdout)
    assert (summary["n_samples"], summary["n_features"]) == (4, 2)
    result = run("describe", target)
    assert isinstance(result.exception, FileError)
    assert "--dataset: deep/matrix (4 x 2)" in in_options(result.exception)


# help ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["import"], ["simulate"], ["describe"]])
def test_every_help_has_an_example(command):
    assert "Example: vpem data " in works(*command, "--help").stdout
