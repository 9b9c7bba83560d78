"""Names in messages: parameters by the option of a shell or the name in Python, users' as given."""

import inspect
import pickle

import numpy as np
import pytest

import vpem
import vpem_cli.app
from vpem.checks import check_int
from vpem.errors import FileError, InputError, Setting, VpemWarning
from vpem_cli.names import is_flag, leaves, meant

from .cli_support import done, kinds_of, make_data, overlapping, run
from .tables import each

PARAMETERS = ("radius", "n_init", "tol", "max_iter", "worst radius", "n components", "force=True")
LEAVES = list(leaves(vpem_cli.app.command()))

# ---- names of users -----------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch, capsys):
    """The working directory: a dataset, a table named like parameters, a matrix, curves."""
    monkeypatch.chdir(tmp_path)
    make_data("d.h5", n_samples=40)
    rng = np.random.default_rng(0)
    values = rng.standard_normal((12, len(PARAMETERS)))
    lines = [",".join(PARAMETERS), *(",".join(f"{x:.3f}" for x in row) for row in values)]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    cells = [f"{o},{i},{j},{(i * j + o) % 5}" for o in range(2) for i in range(6) for j in range(4)]
    (tmp_path / "m.csv").write_text("\n".join(["observer,row,column,value", *cells]) + "\n")
    curves = [f"s{i},{t},{i + t + 0.1 * ((7 * i + t) % 5)}" for i in range(5) for t in range(4)]
    (tmp_path / "c.csv").write_text("\n".join(["id,time,value", *curves]) + "\n")
    done(capsys, "fit", "d.h5", "-q", "-o", "model.h5", "--max-iter", 500)
    return tmp_path


def test_a_manifest_keeps_names_of_columns_that_are_called_like_parameters(capsys, folder):
    (folder / "m.toml").write_text(
        '[[party]]\nfile = "t.csv"\ncolumns = ["radios"]\n[[party]]\nfile = "d.h5"\n'
    )
    said = run(capsys, "fit", "--parties", "m.toml").sentence
    assert f"the columns are {', '.join(PARAMETERS)}" in said
    (folder / "twice.csv").write_text("tol,tol\n1,2\n3,4\n")
    said = run(capsys, "data", "import", "twice.csv", "-o", "x.h5").err
    assert "further ones are called 'tol.1'" in said


def test_warnings_keep_names_of_features(capsys, folder):
    lines = (folder / "t.csv").read_text().splitlines()
    constant = [lines[0], *(f"1{line[line.index(',') :]}" for line in lines[1:])]
    (folder / "t.csv").write_text("\n".join(constant) + "\n")
    told = done(capsys, "fit", "t.csv", "-k", 1, "--features", "radius,tol").err
    assert "rows: 'radius'; their variance is --reg-covar (1e-06) alone" in told


def test_a_file_that_is_called_like_a_parameter(capsys, folder):
    assert "'max_iter' does not exist" in run(capsys, "fit", "max_iter").sentence
    (folder / "force=True").write_text("")
    said = run(capsys, "sample", "model.h5", "-o", "force=True").sentence
    assert said.startswith(
        "results are written to .csv, .parquet, .h5 or .hdf5 files, got force=True"
    )


# ---- names of parameters, in a shell ------------------------------------------------------------

WORDS = {
    "fit": "d.h5", "select": "d.h5 -k 1,2", "kmeans": "d.h5 --workers 2",
    "fedem": "d.h5 --workers 2 --variance-reduction", "impute": "m.csv", "saem": "c.csv",
    "predict": "model.h5 d.h5", "score": "model.h5 d.h5", "sample": "model.h5",
    "model contribution": "model.h5 d.h5", "plot": "model.h5 -o p.png",
    "data simulate": "-o s.h5", "data split": "d.h5 -o parts",
    "data import": "t.csv -o t.h5", "topology describe": "cycle --agents 3",
    "party init": "--name lab", "party renew": "d.h5", "study init": "heart --star h:1",
    "party check": "d.h5",
}  # fmt: skip
"""What commands need besides; those without an entry take no numbers."""


def numeric():
    """Yield every option of every command that takes a number."""
    for path, member in LEAVES:
        for param in member.params:
            option = param.param_type_name == "option" and not is_flag(param)
            if option and kinds_of(member, param) & {int, float}:
                yield path, param


@each(("path", "param"), list(numeric()))
def test_a_number_out_of_range_is_named_by_its_option(capsys, folder, path, param):
    words = WORDS[" ".join(path)].split()
    result = run(capsys, *path, *words, param.opts[-1], "-1")
    assert result.code == 2
    assert any(f"{word} " in result.sentence for word in param.opts), result.sentence


@each(
    ("words", "said"),
    [
        ("fit d.h5 --covariance bad", "--covariance must be one of full, "),
        ("fit d.h5 --topology ring", "--topology must be one of star, "),
        ("fit d.h5 --consensus all", "--consensus must be one of auto, "),
        ("fit d.h5 --step-size 0.6", "there are no batches; give --batch-size"),
        ("fit d.h5 --dataset none", "2-D numeric datasets with --dataset: "),
        ("fit d.h5 -o d.h5 --resume --checkpoint x", "d.h5 is the input"),
        ("fit d.h5 --resume --checkpoint x", "out to begin, or give --resume-if-any"),
        ("sample model.h5 -o model.csv --seed -1", "--seed must be an integer of at least 0"),
        (
            "fit d.h5 --topology cycle --rounds 5 --link-failure 0.1 --acceleration chebyshev",
            "take --acceleration none",
        ),
        ("plot model.h5 --kind pear -o p.png", "--kind must be one of "),
    ],
)
def test_other_sentences_name_options(capsys, folder, words, said):
    result = run(capsys, *words.split())
    assert result.code == 2
    assert said in result.sentence


# ---- names of parameters, in Python -------------------------------------------------------------

NEEDS = {
    "inner": {"variance_reduction": True},
    "step_size": {"batch_size": 10},
    "n_rounds": {"graph": "cycle"},
    "consensus_tol": {"graph": "cycle"},
    "link_failure": {"graph": "cycle"},
    "agent_dropout": {"graph": "cycle"},
    "stragglers": {"graph": "cycle"},
}
"""Other parameters, with which these are looked at."""

NO_DEFAULT = (
    "agents", "batch_size", "step_size", "inner", "alpha", "n_epochs", "floor", "variance",
    "n_rounds", "max_iter", "random_state", "n_threads", "workers",
)  # fmt: skip
"""Numbers that are something else by default."""


def numbers():
    """Yield every parameter of every estimator that takes a number."""
    for name in ("VPEM", "DistributedGaussianMixture", "DistributedKMeans", "FedEM", "FedMissEM"):
        for one in inspect.signature(getattr(vpem, name)).parameters.values():
            plain = isinstance(one.default, int | float) and not isinstance(one.default, bool)
            if plain or one.name in NO_DEFAULT:
                yield name, one.name


@each(("name", "parameter"), list(numbers()))
def test_a_number_out_of_range_is_named_by_its_parameter(name, parameter):
    kind = getattr(vpem, name)
    known = inspect.signature(kind).parameters
    asked = {"workers": 2} if "workers" in known else {}
    asked |= {key: value for key, value in NEEDS.get(parameter, {}).items() if key in known}
    with pytest.raises(ValueError, match=rf"\b{parameter}\b") as caught:
        kind(**{**asked, parameter: -1}).fit(overlapping(40, 6)[0])
    assert "--" not in str(caught.value)


def test_sentences_in_parts():
    for kind in (InputError, FileError, VpemWarning):
        told = kind("m.h5 exists; pass ", Setting("force", True), " to replace ", "it")
        assert str(told) == "m.h5 exists; pass force=True to replace it"
        assert told.args == (str(told),)
        assert told.sentence_with(lambda setting: f"--{setting.name}") == str(told).replace(
            "force=True", "--force"
        )
        assert pickle.loads(pickle.dumps(told)).parts == told.parts
    with pytest.raises(InputError) as caught:
        check_int("levels of qsgd", 0, least=1)
    assert not any(isinstance(part, Setting) for part in caught.value.parts)


# ---- what was meant -----------------------------------------------------------------------------

MEANT = {
    "fit": {
        "--clusters": "--components", "--n-clusters": "--components", "--k": "--components",
        "-K": "--components", "--n_components": "--components", "--out": "--output",
        "--output-file": "--output", "--max-iterations": "--max-iter", "--random-state": "--seed",
        "--iterations": "--max-iter", "--n_jobs": "--threads", "--missing-values": "--missing",
        "--cov": "--covariance", "--tolerance": "--tol", "--overwrite": "--force",
        "--regcovar": "--reg-covar", "-n": "--components' or '--n-init", "--zzz": None,
        "--n-components": "--components", "--standardize": "--scale",
    },
    "kmeans": {"--components": "--clusters", "--num-clusters": "--clusters",
               "-n": "--clusters' or '--n-init"},
    "saem": {"--max-iterations": "--iterations", "--n-chains": "--chains"},
    "evaluate": {"--label": "--label-column' or '--labels"},
    "data import": {"--labels": "--label-column", "--sep": "--delimiter"},
    "data simulate": {"--rows": "--samples", "--n-samples": "--samples", "--dim": None},
    "": {"train": "fit", "cluster": "kmeans", "fitt": "fit",
         "download": "vpem data fetch", "draw": "plot", "datasets": "vpem data list",
         "zzz": None},
}  # fmt: skip


@each("path", MEANT)
def test_what_was_meant(capsys, path):
    for typed, wanted in MEANT[path].items():
        said = run(capsys, *path.split(), typed, "3").sentence
        assert said.startswith(f"no such {'option' if path else 'command'}: {typed}")
        assert (f"(did you mean '{wanted}'?)" in said) if wanted else ("did you mean" not in said)


@each(
    ("words", "told"),
    [("fit --verbose", "--quiet"), ("fit -v", "--quiet"), ("fit --input d.h5", "without an option"),
     ("fit --no-color", "NO_COLOR"), ("version", "'vpem --version'")],
)  # fmt: skip
def test_what_there_is_in_place_of_words_of_other_programs(capsys, words, told):
    said = run(capsys, *words.split()).sentence
    assert said.startswith("no such ")
    assert told in said


def test_a_single_letter_is_never_near_by_spelling():
    assert meant("-n", ["json", "quiet", "new"]) == []
    assert meant("--n", ["samples", "json"]) == ["samples"]
    assert meant("xyz", []) == []
