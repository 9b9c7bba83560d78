"""Tables of several files: parts are one file to the same bits, in memory and read from disk."""

import os
import shutil
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, feather, parquet

from vpem import FileError, InputError, TableSettings, choose_parties, read_dataset
from vpem.engines.tls.server import free_port
from vpem.files.lakes import as_address, find_files
from vpem.files.matrix import FileMatrix
from vpem.files.parties.opening import open_party

from .cli_support import done, run
from .tables import each, over

N = 1000
CUTS = (0, 250, 251, 251, 500, 750, N)
WRITE = {
    "parquet": lambda table, path: parquet.write_table(table, path, row_group_size=170),
    "csv": lambda table, path: csv.write_csv(table, path),
    "feather": lambda table, path: feather.write_feather(table, path),
}


def table(seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, 4)) + 3 * rng.integers(2, size=(N, 1))
    columns = {f"x{j}": X[:, j] for j in range(4)}
    columns["x1"] = pa.array(columns["x1"], mask=np.arange(N) == N)
    return pa.table({**columns, "w": rng.random(N), "label": rng.integers(3, size=N)})


def write_parts(folder, kind, whole, names="part-{}"):
    """Write a table in parts, one of them empty, with what Spark leaves beside them."""
    folder.mkdir(parents=True)
    for number, (start, stop) in enumerate(pairwise(CUTS), 7):
        if kind == "parquet" or stop > start:
            path = folder / f"{names.format(number)}.{kind}"
            path.parent.mkdir(exist_ok=True)
            WRITE[kind](whole.slice(start, stop - start), path)
    for junk in ("_SUCCESS", "_metadata", ".part.crc", "part-0._COPYING_", "_temporary/0/p"):
        (folder / junk).parent.mkdir(parents=True, exist_ok=True)
        (folder / junk).write_text("junk" if "_" not in junk[1:] else "")
    (folder / f"part-1.{kind}").touch()
    return folder


@pytest.fixture(scope="module")
def lakes(tmp_path_factory):
    """The same rows in one file and in folders."""
    folder, whole = tmp_path_factory.mktemp("lakes"), table()
    for kind, write in WRITE.items():
        write(whole, folder / f"one.{kind}")
        write_parts(folder / kind, kind, whole)
    write_parts(folder / "hive", "parquet", whole, "year=20{:02}/part")
    return folder


def same(one, other):
    assert one.feature_names == other.feature_names
    assert one.X.dtype == other.X.dtype
    np.testing.assert_array_equal(one.X[:], other.X[:])
    for name in ("labels", "sample_weight", "ids"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    return True


# ---- parts are one file --------------------------------------------------------------------------


@over(kind=[*WRITE, "hive"], on_disk=[False, True], named=["folder", "pattern", "files"])
def test_parts_are_one_file(lakes, kind, on_disk, named):
    limit = {"csv": 60_000, "feather": 47_000}.get(kind, 20_000) if on_disk else None
    options = {"label_column": "label", "sample_weight": "w"}
    one = read_dataset(lakes / f"one.{'parquet' if kind == 'hive' else kind}", **options)
    inside = "year=*/*.parquet" if kind == "hive" else f"part*.{kind}"
    files = [path for path in (lakes / kind).glob(inside) if path.stat().st_size]
    path = {"folder": lakes / kind, "pattern": f"{lakes / kind}/{inside}", "files": files[::-1]}
    if named == "pattern" and kind != "hive":
        (lakes / kind / f"part-1.{kind}").unlink(missing_ok=True)  # who names a file means it
    parts = read_dataset(path[named], memory_limit=limit, **options)
    assert isinstance(parts.X, FileMatrix) == on_disk
    assert same(parts, one)
    assert parts.left_out == ({"year": "of folders"} if kind == "hive" else {})


def test_rows_on_disk_are_those_in_memory(lakes):
    """Runs, scattered rows, groups of rows and columns, in any order."""
    path = lakes / "parquet"
    X = read_dataset(path, features="x0,x1,x2,x3").X
    stored = read_dataset(path, memory_limit=1, features="x0,x1,x2,x3").X
    rng = np.random.default_rng(1)
    for step in (1, 7, 64, N):
        matrix = stored.in_reads_of(step)
        for _ in range(10):
            start, stop = sorted(rng.integers(N + 1, size=2))
            np.testing.assert_array_equal(matrix[start:stop], X[start:stop])
        rows = rng.integers(N, size=40)
        np.testing.assert_array_equal(matrix.take(rows), X[rows])
        groups = [np.sort(rng.permutation(N)[:60]), np.arange(100, 333)]
        some = matrix.of_rows(groups).select([2, 0])
        np.testing.assert_array_equal(some[:], X[np.concatenate(groups)][:, [2, 0]])
        runs = [(start, part.copy()) for start, part in matrix.runs()]
        np.testing.assert_array_equal(np.concatenate([part for _, part in runs]), X)


@each(
    ["command", "figure"],
    [(("fit", "--split", "rows", "--workers", "3"), "log_likelihood"),
     (("fit", "--agents", "2"), "log_likelihood"), (("kmeans",), "inertia"),
     (("fedem", "--workers", "3", "--max-iter", "4"), "log_likelihood")],
)  # fmt: skip
def test_fits_are_those_of_one_file(lakes, capsys, monkeypatch, command, figure):
    monkeypatch.chdir(lakes)
    words = (*command, "-k", "2", "--label-column", "label", "--drop", "w", "--json")
    parts = sorted(map(str, Path("parquet").glob("part-?*.parquet")))
    parts = [part for part in parts if os.path.getsize(part)]
    for limit in ((), ("--memory-limit", "20K")):
        found = [
            done(capsys, *words, *limit, *data).json[figure]
            for data in (["one.parquet"], ["parquet"], parts, ["hive"])
        ]
        assert len({*map(float, found)}) == 1, found


def test_models_are_used_on_parts(lakes, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(lakes)
    model, data = tmp_path / "m.h5", ("--label-column", "label")
    done(capsys, "fit", "parquet", *data, "--drop", "w", "-k", "2", "-o", model)
    for command in (("score",), ("evaluate", "--label-column", "label")):
        first, *others = (
            done(capsys, command[0], model, path, *command[1:], "--json").json
            for path in ("one.csv", "csv", "hive")
        )
        assert all(other == first for other in others)
    done(capsys, "predict", model, "csv/part-8.csv", "csv/part-7.csv", "-o", tmp_path / "p.csv")
    done(capsys, "predict", model, "one.csv", "-o", tmp_path / "q.csv")
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines == (tmp_path / "q.csv").read_text().splitlines()[: len(lines)]
    assert len(lines) == 252
    words = ("select", "feather", *data, "--drop", "w", "-k", "1-2", "--jobs", 1)
    chosen = done(capsys, *words, "--json").json
    assert chosen["cells"][chosen["chosen"]]["n_components"] == 2
    facts = done(capsys, "data", "describe", "hive", "--json").json
    assert [one["use"] for one in facts["columns"] if one["name"] == "year"] == [
        "left out (of folders)"
    ]
    part = lakes / "csv/part-7.csv"
    refused = run(capsys, "predict", model, "csv", "-o", part, "--force")
    assert "is the input" in refused.sentence
    assert part.exists()


def test_a_party_may_have_a_lake(lakes):
    features = TableSettings(features="x0,x1,x2,x3")
    [party] = choose_parties([lakes / "parquet"], features)
    holding = open_party(party)
    out = np.empty((holding.n_samples, 4))
    holding.fill(out)
    assert party.name == "parquet"
    np.testing.assert_array_equal(out, read_dataset(lakes / "one.parquet", table=features).X)


# ---- which files, in which order -----------------------------------------------------------------


def test_files_are_in_order_of_their_numbers(tmp_path):
    for name in ("p-10.csv", "p-9.csv", "b/p-1.csv", "p-09b.csv", "a=1/p-3.csv", "_a=2/p-3.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n1\n")
    found = [Path(one.path).relative_to(tmp_path).as_posix() for one in find_files([tmp_path])]
    assert found == ["_a=2/p-3.csv", "a=1/p-3.csv", "b/p-1.csv", "p-9.csv", "p-09b.csv", "p-10.csv"]
    assert find_files([tmp_path / "b", tmp_path / "a=1"])[0].folders == {"a": "1"}


def write_all(folder, content):
    for name, what in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(what, dict):
            parquet.write_table(pa.table(what), path)
        else:
            path.write_text(what)


A = {"x": [1.0, 2.0, 4.0], "y": [0.5, 0.1, 0.9]}
REFUSED = {
    r"b.parquet has no column 'y', which \S*a.parquet has": {
        "a.parquet": A, "b.parquet": {"x": [1.0]}},
    r"a.parquet has no column 'z', which \S*b.parquet has": {
        "a.parquet": A, "b.parquet": {**A, "z": [1.0, 1.5, 2.0]}},
    r"b.parquet has string in column 'y', where \S*a.parquet has double": {
        "a.parquet": A, "b.parquet": {**A, "y": ["1", "2", "3"]}},
    "c.parquet has bool in column 'y', where .*b.parquet has int64": {
        "a.parquet": {**A, "y": pa.nulls(3)}, "b.parquet": {**A, "y": [1, 2, 3]},
        "c.parquet": {**A, "y": [True, False, True]}},
    r"all text: \S*README.md is text, \S*a.parquet is parquet": {
        "a.parquet": A, "README.md": "words,more\n1,2\n"},
    "is a Delta table, whose log": {"a.parquet": A, "_delta_log/0.json": "{}"},
    "is a Hudi table": {"a.parquet": A, ".hoodie/x": "{}"},
    "b.parquet cannot be read as Parquet": {"a.parquet": A, "b.parquet": "PAR1 and no more"},
    r"of \S*b.parquet and \S*a.parquet only one is in a folder k=": {
        "k=1/a.parquet": A, "z/b.parquet": A},
    "is a folder, not a file, and has no files of rows": {"_a.parquet": A, "b.parquet": ""},
    "has no rows": {"a.parquet": {"x": pa.array([], pa.float64())}},
}  # fmt: skip


@each("sentence", REFUSED)
def test_files_that_are_no_table_are_refused(tmp_path, sentence):
    folder = tmp_path / "lake"
    shutil.rmtree(folder, ignore_errors=True)
    write_all(folder, REFUSED[sentence])
    for limit in (None, 8):
        with pytest.raises((FileError, InputError), match=sentence):
            read_dataset(folder, memory_limit=limit)


def test_files_that_are_named_wrongly_are_refused(tmp_path, capsys, monkeypatch):
    write_all(tmp_path, {"a.parquet": A, "lake/k=1/b.parquet": A, "m.toml": ""})
    shutil.copy(Path(__file__).parents[1] / "data/wine.h5", tmp_path / "w.h5")
    os.symlink(tmp_path / "lake", tmp_path / "lake/k=1/again")
    write_all(tmp_path, {"part/b.parquet": A, "part/_old/b.parquet": A})
    os.symlink(tmp_path, tmp_path / "part/_old/all")
    os.symlink("nowhere", tmp_path / "part/c.parquet")
    os.symlink(tmp_path / "a.parquet", tmp_path / "part/a.parquet")
    monkeypatch.chdir(tmp_path)
    for words, sentence in {
        ("a.parquet", "./a.parquet"): "a.parquet is there twice",
        ("a.parquet", "w.h5"): "give one dataset, got 2 files; add --parties",
        ("a.parquet", "m.toml"): "m.toml is no dataset; add --parties",
        ("a.parquet", "-"): "standard input (-) is one file",
        ("a.parquet", "part/a.parquet"): "part/a.parquet is there twice; its rows",
        ("lake",): "lake/k=1/again is a link to a folder that it is in",
        ("part",): "No such file or directory: 'part/c.parquet'",
        ("b*.parquet",): "no file fits 'b*.parquet'",
        ("https://a.b/c.csv",): "is not read over the web; download",
        ("s3://me:secret@bucket/x",): "would be kept in models",
        ("s3://bucket/x?access_key=me",): "would be kept in models",
        ("a.parquet", "-o", "s3://bucket/m.h5"): "is an address, where nothing is written",
    }.items():
        refused = run(capsys, "fit", "-k", "2", *words)
        assert refused.code == 2
        assert sentence in refused.sentence, refused.sentence
    with pytest.raises(InputError, match="no file of data is named"):
        read_dataset([])


def test_names_may_be_of_any_bytes(tmp_path):
    write_all(tmp_path, {"a.parquet": A})
    strange = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.mkdir(strange)
    os.rename(tmp_path / "a.parquet", f"{strange}/a.parquet")
    assert read_dataset(tmp_path).X.shape == (3, 2)


def test_a_change_of_a_file_while_it_is_read_is_seen(tmp_path):
    write_parts(tmp_path / "lake", "parquet", table())
    X = read_dataset(tmp_path / "lake", memory_limit=1, features="x0,x1").X
    assert len(X[:400]) == 400
    parquet.write_table(table(1).slice(0, 250), tmp_path / "lake/part-11.parquet")
    with pytest.raises(FileError, match=r"part-11.parquet was changed while it was read"):
        X[:]


# ---- columns -------------------------------------------------------------------------------------


@each(
    ["texts", "whole"],
    [
        (("x,y\n1,2\n3,4\n", "x,y\n0.5,7\n2.5,\n"), "x,y\n1,2\n3,4\n0.5,7\n2.5,\n"),
        (("x,id\n1,17\n3,4\n", "id,x\nA1,0.5\n5,2.5\n"), "x,id\n1,17\n3,4\n0.5,A1\n2.5,5\n"),
        (("x,key\n1,17\n3,4\n", "key,x\nA1,0.5\n5,2.5\n"), "x,key\n1,17\n3,4\n0.5,A1\n2.5,5\n"),
        (("x,y\n1,\n3,\n", "x,y\n1,7\n2,8\n"), "x,y\n1,\n3,\n1,7\n2,8\n"),
        (("x,c\n1,5\n3,5\n", "x,c\n1,5\n2,5\n"), "x,c\n1,5\n3,5\n1,5\n2,5\n"),
        (("x,c\n1,\n3,\n", "x,c\n1,\n2,\n"), "x,c\n1,\n3,\n1,\n2,\n"),
    ],
)
def test_types_of_parts_are_those_of_one_file(tmp_path, texts, whole):
    for name, text in zip("ab", texts, strict=True):
        (tmp_path / f"lake-{name}.csv").write_text(text)
    (tmp_path / "one.csv").write_text(whole)
    one = read_dataset(tmp_path / "one.csv")
    parts = read_dataset(str(tmp_path / "lake-*.csv"))
    assert same(parts, one)
    assert parts.left_out == one.left_out


@each(
    ["columns", "why"],
    [({"c": [5.0] * 6}, {"c": "constant"}), ({"c": pa.nulls(6)}, {"c": "no values"}),
     ({"c": [5, 5, 5, 5, 5, 6]}, {}), ({"c": pa.array([1, 2, None, 4, 5, None])}, {}),
     ({"c": pa.array([1.5, 2, 3, 4, 5, 6], pa.float32())}, {}),
     ({"id": list("abcdef"), "t": list("aabbcc")}, {"t": "text"})],
)  # fmt: skip
def test_columns_on_disk_are_judged_as_in_memory(tmp_path, columns, why):
    whole = pa.table({"x": pa.array([1.0, 2, 4, 8, 16, 31], pa.float32()), **columns})
    parquet.write_table(whole.slice(0, 4), tmp_path / "part-1.parquet", row_group_size=3)
    parquet.write_table(whole.slice(4), tmp_path / "part-2.parquet")
    memory = read_dataset(tmp_path)
    disk = read_dataset(tmp_path, memory_limit=1)
    disk.ids = memory.ids = None  # of rows on disk they are read where a column is named
    assert same(disk, memory)
    assert {**memory.left_out, **disk.left_out} == why if why else not disk.left_out


def test_columns_may_stand_in_another_order(tmp_path):
    write_all(tmp_path, {"k=1/a.parquet": A, "k=2/b.parquet": dict(reversed(A.items()))})
    for limit in (None, 1):
        X = read_dataset(tmp_path, memory_limit=limit, features="y,x,k").X[:]
        np.testing.assert_array_equal(X[3:], np.column_stack([A["y"], A["x"], [2] * 3]))
        np.testing.assert_array_equal(X[:3, :2], X[3:, :2])


@each("other", [{"z": ["a", "b", "c"]}, {"z": [[1], [2], [3]]}, {}, {"patient": [1, 2, 3]}])
def test_columns_that_are_not_used_may_be_unlike(tmp_path, other):
    own = {} if "patient" in other else {"z": [1, 2, 4]}
    write_all(tmp_path, {"a.parquet": {**A, **other}, "b.parquet": {**A, **own}})
    for limit in (None, 1):
        X = read_dataset(tmp_path, memory_limit=limit, features="x,y").X[:]
        np.testing.assert_array_equal(X, np.tile(np.column_stack([*A.values()]), (2, 1)))
        for also in ({}, {"features": "x,y,z"}, {"features": "x,y", "label_column": "z"}):
            with pytest.raises(InputError, match=r"in column 'z', where|no (label )?column '(z|p)"):
                read_dataset(tmp_path, memory_limit=limit, **also)


def test_decimals_and_whole_numbers_are_numbers(tmp_path):
    money = pa.array([1.25, 2, 3]).cast(pa.decimal128(10, 2))
    write_all(tmp_path, {"a.parquet": {**A, "z": money}, "b.parquet": {**A, "z": [7, 8, 9]}})
    for limit in (None, 1):
        X = read_dataset(tmp_path, memory_limit=limit).X[:]
        assert X[:, 2].tolist() == [1.25, 2, 3, 7, 8, 9]


def test_text_far_down_a_file_on_disk_is_refused(tmp_path):
    for name, value in {"a": 1.5, "b": 2.5, "c": "lots"}.items():
        rows = (f"{row},{value}\n" for row in range(20))
        (tmp_path / f"{name}.csv").write_text(f"x,y\n0.5,1.5\n{''.join(rows)}")
    with pytest.raises(InputError, match=r"c.csv has string in column 'y', where \S*b.csv has"):
        read_dataset(tmp_path, memory_limit=450, features="x,y").X[:]


def test_indices_of_pandas_count_on_in_parts(tmp_path):
    pandas = pytest.importorskip("pandas")
    whole = pandas.DataFrame({"x": np.arange(6) ** 2 / 4, "y": [1.5, 0, 2, 8, 1, 0]})
    for number, (start, stop) in enumerate(pairwise((0, 2, 6))):
        whole[start:stop].to_parquet(tmp_path / f"{number}.parquet")
    for limit in (None, 1):
        assert read_dataset(tmp_path, memory_limit=limit).feature_names == ("x", "y")
    one = read_dataset(tmp_path / "1.parquet")
    assert one.ids.tolist() == [2, 3, 4, 5]


def test_text_cannot_stay_on_disk(tmp_path):
    write_all(tmp_path, {"a.parquet": {"x": [1.0, 2, 3], "t": ["a", "a", "b"]}})
    with pytest.raises(InputError, match="'t' is text, which becomes codes"):
        read_dataset(tmp_path / "a.parquet", memory_limit=1, family={"t": "categorical"})
    with pytest.raises(InputError, match="na changes values"):
        read_dataset(tmp_path / "a.parquet", memory_limit=1, na="-9")


def test_folders_say_what_is_so_of_their_rows(tmp_path):
    for key in ("k=1/site=a%20b", "k=2/site=c", "k=__HIVE_DEFAULT_PARTITION__/site=c"):
        write_all(tmp_path, {f"{key}/p.parquet": A})
    every = read_dataset(tmp_path)
    assert every.feature_names == ("x", "y")
    assert every.left_out == {"k": "of folders", "site": "text"}
    chosen = read_dataset(tmp_path, features="x,k", worker_column="site", label_column="y")
    np.testing.assert_array_equal(chosen.X[:, 1], [1] * 3 + [2] * 3 + [np.nan] * 3)
    assert chosen.workers.names == ("a b", "c")
    disk = read_dataset(tmp_path, features="x,k", label_column="site", memory_limit=1)
    np.testing.assert_array_equal(disk.X[:], chosen.X)
    assert disk.labels.tolist() == ["a b"] * 3 + ["c"] * 6
    coded = read_dataset(tmp_path, family={"site": "categorical"})
    assert coded.levels == {"site": ("a b", "c")}
    for years in (("1", "3"), ("01", "1")):  # a worker a folder, not one for each number
        folder = tmp_path / "-".join(years)
        write_all(folder, {f"year={year}/p.parquet": A for year in years})
        for limit in (None, 1):
            workers = read_dataset(folder, worker_column="year", memory_limit=limit).workers
            assert workers.names == years
            assert [len(rows) for rows in workers.rows] == [3, 3]
    files = {"k=5/q.parquet": {**A, "k": [7, 8, 9]}}  # a file that knows it itself
    write_all(tmp_path / "own", files)
    own = read_dataset(tmp_path / "own")
    assert own.feature_names == ("x", "y", "k")
    np.testing.assert_array_equal(own.X[:, 2], [7, 8, 9])


# ---- object stores -------------------------------------------------------------------------------


@each(
    ["path", "address"],
    [("s3://bucket/a/b", "s3://bucket/a/b"), ("s3:/bucket/a", "s3://bucket/a"),
     ("s3:/b/k?endpoint_override=http:/h:1", "s3://b/k?endpoint_override=http://h:1"),
     ("data/x.csv", None), ("/s3:/x", None), ("C:/data/x.csv", None), ("a:b", None)],
)  # fmt: skip
def test_addresses_are_found_again_in_paths(path, address):
    assert as_address(path) == address
    assert as_address(Path(path)) == address


def test_files_that_are_no_data_have_no_address(capsys):
    for words in (("saem",), ("impute", "-o", "i.csv"), ("report", "-o", "r.html"), ("show",)):
        assert "does not exist" in run(capsys, *words, "s3://bucket/x.csv").sentence


@pytest.fixture(scope="module")
def store(lakes):
    """A server of S3 with the lakes in a bucket; the address of what is there."""
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    from pyarrow import fs

    port = free_port()
    host = f"127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with pytest.MonkeyPatch.context() as patch, subprocess.Popen(command, **quiet) as server:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        try:
            for _ in range(300):
                time.sleep(0.1)
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
            system = fs.S3FileSystem(endpoint_override=host, scheme="http", **MADE)
            system.create_dir("bucket")
            for name in ("parquet", "csv", "hive"):
                fs.copy_files(str(lakes / name), f"bucket/{name}", destination_filesystem=system)
            wine = Path(__file__).parents[1] / "data/wine.h5"
            fs.copy_files(str(wine), "bucket/wine.h5", destination_filesystem=system)
            fs.copy_files(str(wine), "bucket/a é", destination_filesystem=system)
            with system.open_output_stream("bucket/delta/_delta_log/0.json") as log:
                log.write(b"{}")
            yield lambda path: f"s3://{path}?endpoint_override={host}&scheme=http"
        finally:
            server.terminate()


MADE = {"allow_bucket_creation": True}


def test_a_store_is_read_as_a_folder(lakes, store, capsys):
    options = {"label_column": "label", "sample_weight": "w"}
    one = read_dataset(lakes / "one.parquet", **options)
    for path in ("parquet", "hive/", "par*/part-*.parquet", "csv", "hive/year=*", "hi**/*.parquet"):
        assert same(read_dataset(store(f"bucket/{path}"), **options), one)
    assert read_dataset(store("bucket/a é").replace("s3:", "S3:")).X.shape == (178, 13)
    disk = read_dataset(store("bucket/hive"), memory_limit=20_000, **options)
    assert isinstance(disk.X, FileMatrix)
    assert same(disk, one)
    assert read_dataset(store("bucket/wine.h5"), memory_limit=1).X[:].shape == (178, 13)
    words = ("--label-column", "label", "-k", "2", "--json")
    assert done(capsys, "fit", store("bucket/parquet"), *words).json["data"] == store(
        "bucket/parquet"
    )
    for path, sentence in {
        "bucket/none": "does not exist", "nobucket/x": "does not exist",
        "bucket/parquet/*.csv": "no file fits", "bucket": "is a Delta table",
        "bucket/*": "all Feather or all text", "bucket/de*/*": "no file fits",
    }.items():  # fmt: skip
        refused = run(capsys, "fit", store(path), "-k", "2")
        assert refused.code == 2
        assert sentence in refused.sentence


def test_a_store_out_of_reach_is_said(store, capsys):
    refused = run(capsys, "fit", "s3://bucket/x?endpoint_override=127.0.0.1:9&scheme=http", "-k2")
    assert refused.code == 2
    assert "s3://bucket/x?endpoint_override=127.0.0.1:9&scheme=http cannot" in refused.sentence
