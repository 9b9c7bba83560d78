"""The ending of a file agrees with what is in it, whoever writes it."""

from functools import cache

import numpy as np
import pytest

from vpem import VPEM, DistributedKMeans, FedMissEM
from vpem.errors import InputError
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.models import read_model, write_export, write_model
from vpem.files.observations import write_observations
from vpem.files.results import write_clustering
from vpem.files.temporaries import ENDINGS, INSTEAD, check_ending, ending_of
from vpem.fits.mixture_imputation import write_imputation
from vpem.pictures.figure import save_picture
from vpem.terms.lowrank.entries import from_matrices

from .cli_support import listing, run
from .tables import each, over

X = np.random.default_rng(0).standard_normal((30, 3))
OTHER = (".csv", ".json", ".png", ".npz", ".parquet", ".pkl", ".txt", ".csv.gz", ".html", ".xlsx")

# Every command that writes, with words enough to get to work: what it writes where.
COMMANDS = {
    "fit {data} -k 1 -o {out}": "models",
    "fit {data} -k 1 --checkpoint {out}": "checkpoints",
    "fit {data} -k 1 --split rows --workers 2 -o {out}": "models",
    "kmeans {data} -k 2 --workers 2 -o {out}": "clusterings",
    "fedem {data} -k 1 --workers 2 -o {out}": "models",
    "fedem {data} -k 1 --workers 2 --plot {out}": "pictures",
    "select {data} -k 1-2 -o {out}": "models",
    "impute {data} -o {out}": "imputations",
    "impute {data} --checkpoint {out}": "checkpoints",
    "impute {data} --plot {out}": "pictures",
    "saem {table} -o {out}": "fits of SAEM",
    "saem {table} --traces {out}": "pictures",
    "saem {table} --individuals {out}": "results",
    "data import {table} -o {out}": "datasets",
    "data simulate -n 20 -d 2 -k 1 -o {out}": "datasets",
    "data repack {data} -o {out}": "datasets",
    "model best {model} {model} -o {out}": "models",
    "model join {model} -o {out}": "models",
    "model export {model} -o {out}": "exported models",
    "predict {model} {data} -o {out}": "results",
    "sample {model} -o {out}": "results",
    "plot {model} -o {out}": "pictures",
    "report {model} -o {out}": "reports",
    "topology describe cycle -n 5 --plot {out}": "pictures",
}


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    folder = tmp_path_factory.mktemp("endings")
    write_dataset(folder / "d.h5", Dataset(X, ("a", "b", "c")))
    WRITERS["models"](folder / "m.h5")
    (folder / "t.csv").write_text("id,time,value\n1,0,1\n1,1,2\n2,0,1\n2,1,3\n")
    return {"data": folder / "d.h5", "model": folder / "m.h5", "table": folder / "t.csv"}


@each("command", COMMANDS)
def test_a_command_refuses_the_ending_of_something_else_before_it_works(
    capsys, given, tmp_path, command
):
    kind = COMMANDS[command]
    wrong = [ending for ending in OTHER if ending not in ENDINGS[kind]]
    for ending in wrong[list(COMMANDS).index(command) % 4 :: 4]:
        out = tmp_path / f"out{ending}"
        result = run(capsys, *command.format(out=out, **given).split())
        assert (result.code, result.out) == (2, "")
        assert result.sentence.startswith(f"{kind} are written to ."), result.sentence
        assert str(out) in result.sentence
    assert listing(tmp_path) == {}


def test_names_without_an_ending_are_as_good(capsys, given, tmp_path):
    for name in ("fit", "fit-0.5", "fit.h5", "fit.HDF5"):
        words = ("fit", given["data"], "-k", "1", "-o", tmp_path / name, "-q", "--json")
        assert run(capsys, *words).code == 0
        assert read_model(tmp_path / name).feature_names == ("a", "b", "c")


@cache
def fit_once(kind, *given, **options):
    return kind(*given, **options).fit(X)


WRITERS = {
    "models": lambda path: write_model(path, fit_once(VPEM, 1, agents=1, graph="star")),
    "clusterings": lambda path: write_clustering(path, fit_once(DistributedKMeans, 2)),
    "datasets": lambda path: write_dataset(path, Dataset(X, ("a", "b", "c"))),
    "observations": lambda path: write_observations(path, from_matrices(X)),
    "imputations": lambda path: write_imputation(path, fit_once(FedMissEM)),
    "pictures": lambda path: save_picture(path, None),
}


@over(kind=WRITERS, ending=OTHER)
def test_writers_in_python_refuse_it_too(tmp_path, kind, ending):
    if ending in ENDINGS[kind]:
        return
    with pytest.raises(InputError, match=f"{kind} are written to"):
        WRITERS[kind](tmp_path / f"out{ending}")
    assert listing(tmp_path) == {}


def test_exports_refuse_it_too(tmp_path, given):
    with pytest.raises(InputError, match="exported models are written to"):
        write_export(tmp_path / "m.csv", read_model(given["model"]))


@each(
    ("name", "ending"),
    [
        ("a.h5", ".h5"),
        ("a.H5", ".h5"),
        ("a", ""),
        ("a-0.5", ""),
        ("a.2", ""),
        ("a.b/c", ""),
        (".h5", ""),
        ("a.csv.gz", ".gz"),
        ("a.", ""),
    ],
)
def test_what_an_ending_is(name, ending):
    assert ending_of(name) == ending


def test_every_kind_lists_its_endings():
    for kind, endings in ENDINGS.items():
        assert check_ending(f"a{endings[0]}", kind) == endings[0]
        with pytest.raises(InputError) as caught:
            check_ending("a.xyz", kind)
        said = str(caught.value)
        assert all(one in said for one in endings)
        assert f"files, got a.xyz{f'; {INSTEAD[kind]}' if kind in INSTEAD else ''}" in said
