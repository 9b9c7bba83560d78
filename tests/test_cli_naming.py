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


def test_names_of_columns_that_are_called_like_parameters_are_kept(capsys, folder):
    (folder / "twice.csv").write_text("tol,tol\n1,2\n3,4\n")
    said = run(capsys, "data", "import", "twice.csv", "-o", "x.h5").err
    assert "further ones are called 'tol.1'" in said


def test_warnings_keep_names_of_features(capsys, folder):
    lines = (folder / "t.csv").read_text().splitlines()
    constant = [lines[0], *(f"1{line[line.index(',') :]}" for line in lines[1:])]
    (folder / "t.csv").write_text("\n".join(constant) + "\n")
    told = done(capsys, "fit", "t.csv", "-k", 1, "--features", "radius,tol").err
    assert "rows: 'radius'; their variance is --reg-covar (1e-06) alone" in told


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


def test_a_single_letter_is_never_near_by_spelling():
    assert meant("-n", ["json", "quiet", "new"]) == []
    assert meant("--n", ["samples", "json"]) == ["samples"]
    assert meant("xyz", []) == []
