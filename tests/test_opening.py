"""Only regular files are read, no deeper or larger than they may be; what names of files end in."""

import bz2
import gzip
import io
import json
import lzma
import os
import tomllib
import zipfile
from functools import cache

import h5py
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from vpem import VPEM, DistributedKMeans, FedMissEM
from vpem.errors import FileError, InputError
from vpem.files import hdf5, json_text
from vpem.files.checkpoints import read_state
from vpem.files.data import read_dataset
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.models import read_model, write_export, write_model
from vpem.files.networks import read_graph, read_partition, read_workers
from vpem.files.observations import read_observations, write_observations
from vpem.files.parties.alignment import read_key
from vpem.files.parties.opening import read_manifest
from vpem.files.results import write_clustering
from vpem.files.temporaries import ENDINGS, INSTEAD, check_ending, ending_of
from vpem.fits.answer import read_labels
from vpem.fits.mixture_imputation import write_imputation
from vpem.pictures.figure import save_picture
from vpem.saem.formats.individuals import read_devices, read_individuals
from vpem.terms.lowrank.entries import from_matrices

from .cli_support import listing, run
from .tables import each, over


def zipped(content):
    """Return a zip file of one member."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("t.csv", content)
    return packed.getvalue()


def arrays(X):
    """Return what NumPy packs."""
    packed = io.BytesIO()
    np.savez_compressed(packed, X=X)
    return packed.getvalue()


READERS = {
    "graph.txt": read_graph,
    "graph.json": read_graph,
    "table.csv": read_dataset,
    "table.csv.gz": read_dataset,
    "table.parquet": read_dataset,
    "observed.csv": read_observations,
    "observed.h5": read_observations,
    "people.csv": read_individuals,
    "people.h5": read_individuals,
    "data.h5": read_dataset,
    "state.ckpt": read_state,
    "parties.toml": read_manifest,
    "key": lambda path: read_key(path),
    "partition.json": lambda path: read_partition(path, 3),
    "workers.json": lambda path: read_workers(path, 3),
    "devices.json": lambda path: read_devices(path, ["a"]),
    "labels.txt": lambda path: read_labels(path, str(path), 3),
}
ODD = {
    "pipe": (os.mkfifo, "is not an ordinary file but a pipe"),
    "folder": (os.mkdir, "is a folder, not a file"),
    "device": (lambda path: os.symlink("/dev/zero", path), "is not an ordinary file but a device"),
    "loop": (lambda path: os.symlink(path, path), "is a link that leads to itself"),
}


@over(odd=ODD, name=READERS)
def test_only_regular_files_are_read(tmp_path, name, odd):
    make, sentence = ODD[odd]
    folder = tmp_path / odd
    folder.mkdir(exist_ok=True)
    make(folder / name)
    with pytest.raises(FileError, match=sentence):
        READERS[name](folder / name)


@each(
    ("text", "sentence"),
    [
        ('{"a": NaN}', "NaN is not finite"),
        ('{"a": -Infinity}', "-Infinity is not finite"),
        ('{"a": 1e999}', "1e999 is not finite"),
        ('{"a": 1, "b": 2, "a": 3}', "'a' appears more than once"),
        ("[" * 20 + "]" * 20, "nested more than 16 deep"),
        ("[" * 10**5, "nested more than 16 deep"),
        ("{", "Expecting"),
        ("9" * 5000, "too many digits"),
    ],
)
def test_json_is_strict(text, sentence):
    with pytest.raises(ValueError, match=sentence):
        json_text.parse_json(text)


@each("value", [{"a": float("nan")}, {"a": [[[[]]]] * 2, "b": "\ud800"}])
def test_json_in_hdf5(tmp_path, value):
    path = tmp_path / "small.h5"
    text = json.dumps(value).encode()
    with h5py.File(path, "w") as file:
        file["told"] = np.frombuffer(text, dtype=np.uint8)
        file["list"] = np.frombuffer(b"[]", dtype=np.uint8)
        file["long"] = np.frombuffer(b"{}", dtype=np.uint8).astype(np.int64)
    with hdf5.open_read(path) as file:
        for name in ("list", "long"):
            with pytest.raises(FileError, match=f"{name}"):
                json_text.read_json_element(file, name)
        if "b" in value:
            assert json_text.read_json_element(file, "told") == value
        else:
            with pytest.raises(FileError, match=r"told is not JSON text \(NaN is not finite\)"):
                json_text.read_json_element(file, "told")


def test_packed_json_is_bounded(tmp_path, monkeypatch):
    path = tmp_path / "small.h5"
    monkeypatch.setenv("VPEM_READ_LIMIT", "1M")
    with h5py.File(path, "w") as file:
        text = np.frombuffer(b'{"a": [' + b"[]," * 200_000 + b"[]]}", dtype=np.uint8)
        file.create_dataset("packed", data=text, compression="gzip")
        file.create_dataset("plain", data=text)
    with hdf5.open_read(path) as file:
        with pytest.raises(FileError, match="packed"):
            json_text.read_json_element(file, "packed")
        assert len(json_text.read_json_element(file, "plain")["a"]) == 200_001


@each("name", ["graph.json", "partition.json", "workers.json", "devices.json"])
def test_json_files_may_have_an_eighth_of_the_limit(tmp_path, monkeypatch, name):
    monkeypatch.setenv("VPEM_READ_LIMIT", "1M")
    (tmp_path / name).write_text('{"a":[' + "[]," * 50_000 + "[]]}")
    with pytest.raises(FileError, match=r"150010 bytes, more than the 131072 .*READ_LIMIT=2M"):
        READERS[name](tmp_path / name)
    monkeypatch.setenv("VPEM_READ_LIMIT", "2M")
    with pytest.raises((FileError, InputError)) as refused:  # read, and not what it should be
        READERS[name](tmp_path / name)
    assert "bytes" not in str(refused.value)


@each(
    "text",
    [
        "a" + ".a" * 2000 + " = 1",
        "[a" + " . 'a'" * 2000 + "]",
        "[[party]]\nx = {" + '"a#" .' * 2000 + "a = 1}",
        'x = """\n"""" # "\ny' + ".y" * 2000 + "= 1",
        "x = " + "[" * 17 + "]" * 17,
        "x = " + "{a = " * 17 + "1" + "}" * 17,
    ],
)
def test_toml_is_looked_over_before_it_is_parsed(tmp_path, capsys, text, monkeypatch):
    monkeypatch.setattr("tomllib.loads", lambda text: pytest.fail("was parsed"))
    path = tmp_path / "parties.toml"
    path.write_text(text)
    with pytest.raises(FileError, match=r"nested more than 16 deep, .* in line \d"):
        read_manifest(path)
    result = run(capsys, "fit", "d.h5", "--config", path)
    assert (result.code, "nested more than 16 deep" in result.sentence) == (2, True)


@each(
    "text",
    [
        "x = [" + "1.5, " * 100 + "[0.1]]\ny = " + "[" * 16 + "]" * 16,
        'x = "' + "[." * 100 + '\\""\ny = ' + "'" + "[." * 100 + "\\'",
        'x = """' + "[.\n" * 100 + '\\"""""" # ' + "[." * 100,
        "x = '''" + "[.\n" * 100 + "'''''",
        "[a" + ".b" * 16 + "]\nc" + ".d" * 16 + " = 2020-01-01T07:32:00.5",
        "\n".join(f"x{n} = []" for n in range(100)),
    ],
)
def test_brackets_and_dots_of_toml_that_nest_nothing(tmp_path, text):
    path = tmp_path / "some.toml"
    path.write_text(text)
    assert json_text.read_toml(path) == tomllib.loads(text)


def test_toml_is_bounded(tmp_path, capsys):
    path = tmp_path / "parties.toml"
    path.write_text("#" * ((1 << 20) + 1))
    said = "has 1048577 bytes, more than the 1048576 that are read at once"
    with pytest.raises(FileError, match=said):
        read_manifest(path)
    assert said in run(capsys, "fit", "d.h5", "--config", path).sentence


def test_text_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setenv("VPEM_READ_LIMIT", "1000")
    for name in ("graph.txt", "partition.json", "labels.txt"):
        (tmp_path / name).write_text("0 1\n" * 300)
        with pytest.raises(FileError, match=r"has 1200 bytes, .*VPEM_READ_LIMIT=1M"):
            READERS[name](tmp_path / name)


@each(
    ("name", "pack"),
    [("t.csv.gz", gzip.compress), ("t.csv.bz2", bz2.compress), ("t.csv.xz", lzma.compress),
     ("t.zip", zipped), ("t.npz", lambda content: arrays(np.frombuffer(content, "u1")))],
)  # fmt: skip
def test_what_unpacks_to_far_more_is_refused(tmp_path, monkeypatch, name, pack):
    monkeypatch.setenv("VPEM_READ_LIMIT", "64K")
    table = tmp_path / name
    table.write_bytes(pack(b"a,b\n" + b"0,0\n" * 200_000 + b"1,1\n"))
    with pytest.raises(FileError, match=f"{name} (unpacks to more than 100 times|declares values)"):
        read_dataset(table)
    if name != "t.npz":
        monkeypatch.setenv("VPEM_READ_LIMIT", "64M")
        assert read_dataset(table).X.shape == (200_001, 2)


def test_a_parquet_file_that_declares_far_more_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("VPEM_READ_LIMIT", "64K")
    parquet.write_table(pa.table({"a": np.zeros(1_000_000)}), tmp_path / "table.parquet")
    with pytest.raises(FileError, match=r"declares values of 0.008 GB"):
        read_dataset(tmp_path / "table.parquet")


def test_text_of_parquet_is_bounded_before_it_is_unpacked(tmp_path, monkeypatch):
    numbers = np.arange(300) / 4
    path = tmp_path / "table.parquet"
    for kind in (pa.string(), pa.large_string(), pa.binary()):
        long = pa.array(["x" * 17_000] * 300).cast(kind)
        parquet.write_table(pa.table({"a": long, "n": numbers}), path)
        with pytest.raises(FileError, match="'a' holds a text of 17000 bytes, more than 4096"):
            read_dataset(path, label_column="a")
        for options in ({}, {"drop": ["a"]}):
            assert read_dataset(path, **options).X.shape == (300, 1)
    monkeypatch.setenv("VPEM_READ_LIMIT", "64K")
    parquet.write_table(pa.table({"a": ["x" * 4000] * 300, "n": numbers}), path)
    with pytest.raises(FileError, match=r"declares values of .*VPEM_READ_LIMIT=5M"):
        read_dataset(path, label_column="a")
    monkeypatch.setenv("VPEM_READ_LIMIT", "8M")
    assert set(read_dataset(path, label_column="a").labels) == {"x" * 4000}
    nested = pa.array([["x" * 4000]] * 300)
    parquet.write_table(pa.table({"a": nested, "n": numbers}), path)
    assert read_dataset(path).left_out == {"a": "lists"}
    with pytest.raises(InputError, match="'a' holds list<"):
        read_dataset(path, label_column="a")


@each("name", ["wide.csv", "wide.csv.gz"])
def test_columns_are_bounded(tmp_path, monkeypatch, name):
    monkeypatch.setenv("VPEM_READ_LIMIT", "64K")
    n_columns = 400
    text = ",".join(f"c{n}" for n in range(n_columns)) + "\n" + "1," * (n_columns - 1) + "1\n"
    packed = gzip.compress(text.encode()) if name.endswith("gz") else text.encode()
    (tmp_path / name).write_bytes(packed)
    with pytest.raises(FileError, match=r"has 400 columns in \d+ bytes; .*VPEM_READ_LIMIT=2M"):
        read_dataset(tmp_path / name)
    monkeypatch.delenv("VPEM_READ_LIMIT")
    assert read_dataset(tmp_path / name).X.shape == (1, n_columns)


def test_one_long_label_does_not_fill_the_memory(tmp_path):
    (tmp_path / "labels.txt").write_text("x" * 100_000 + "\n" * 1000)
    with pytest.raises(FileError, match=r"declares values of 0.4\d* GB"):
        READERS["labels.txt"](tmp_path / "labels.txt")


def test_parts_of_a_split_appear_together_or_not_at_all(tmp_path, capsys, monkeypatch):
    written = []

    def write(path, *args):
        if written:
            raise FileError("the disk is full")
        written.append(path)
        path.write_bytes(b"part")

    monkeypatch.setattr("vpem.files.datasets.write_dataset", write)
    with h5py.File(tmp_path / "whole.h5", "w") as file:
        file["X"] = np.eye(4)
    words = ("data", "split", tmp_path / "whole.h5", "--agents", "2", "-o", tmp_path / "parts")
    result = run(capsys, *words)
    assert (result.code, result.sentence) == (2, "the disk is full")
    assert len(written) == 1
    assert not (tmp_path / "parts").exists()


# ---- endings -------------------------------------------------------------------------------------

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
