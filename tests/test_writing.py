"""Writing: all or nothing, whatever is written, on a full disk too; and what systems may lack."""

import contextlib
import csv
import io
import os
import resource
import shutil
import signal
import stat
from dataclasses import replace

import h5py
import numpy as np
import pytest
from pyarrow import parquet

from vpem import checks
from vpem.errors import FileError, InputError
from vpem.files import hdf5
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.models import Model, write_export, write_model
from vpem.files.observations import write_observations
from vpem.files.results import write_columns
from vpem.fits.selection import search
from vpem.network.partition import Blocks
from vpem.terms.lowrank.entries import from_matrices
from vpem.terms.mixture import Mixture
from vpem.terms.units import Scaling

from .cli_support import done, listing, make_data, run
from .tables import each, over


def test_elements_describe_themselves_and_strings_are_of_fixed_length(tmp_path):
    path, words = tmp_path / "file.h5", ["a", "\u00e9t\u00e9", "", "x" * 4096]
    kept = {"words": words, "blank": [""], "none": []}
    with hdf5.create(path, "vpem-\u00e9", "0.1.0") as file:
        hdf5.write_array(file, "numbers", np.arange(3))
        hdf5.write_array(file, "one", 0.5)
        for name, values in kept.items():
            hdf5.write_strings(file, name, values)
        for text in ("nul\0", "x" * 4097, "half \ud800"):
            with pytest.raises(InputError, match=r"cannot be stored|is not Unicode"):
                hdf5.write_strings(file, "bad", [text])
    with hdf5.open_read(path) as file:
        assert hdf5.read_attribute(file, "encoding-type") == "vpem-\u00e9"
        assert {name: list(hdf5.read_strings(file, name)) for name in kept} == kept
        kinds = [h5py.check_string_dtype(file[name].dtype) for name in kept]
        assert {(kind.encoding, kind.length) for kind in kinds} == {("utf-8", 4096), ("utf-8", 1)}
        attribute = file.attrs.get_id("encoding-type").get_type()
        assert not attribute.is_variable_str()
        assert attribute.get_cset() == h5py.h5t.CSET_UTF8
        assert {file[name].attrs["encoding-version"] for name in file} == {b"0.2.0"}
        kinds = {name: hdf5.read_attribute(file[name], "encoding-type") for name in file}
    described = {"numbers": "array", "one": "numeric-scalar"} | dict.fromkeys(kept, "string-array")
    assert kinds == described


COLUMNS = {
    "id": np.array(["plain", "with, comma", 'with "quotes"', "two\nlines", "größe"]),
    "label": np.array([3, 0, -1, 2, 7]),
    "proba_0": np.array([1 / 3, 0.1, 1e-300, 123456789.123456789, 0.0]),
}
X = np.arange(6.0).reshape(3, 2)
SEEN = from_matrices(X, row_names=list("uvw"), column_names=list("ab"), source="")
KEPT = Model(
    Mixture(
        Blocks((np.arange(2),), (0,), ((0,),)), "diag", np.full((1, 2), 0.5), X[:2], X[1:],
        Scaling.none(2),
    ),
    ("a", "b"), {}, np.zeros((1, 1)),
)  # fmt: skip


def broken(model):
    """A model whose last part no format can hold."""
    return replace(model, versions={"vpem": {1, 2}})


def columns(path, columns, **how):
    write_columns(path, columns, "vpem-predictions", **how)


NUL = {"label": np.arange(3), "id": np.array(["a", "b\0c", "d"])}
SHORTER = {"label": np.arange(3), "id": np.array(["a", "b"])}
WRITERS = {
    "model.h5": (write_model, KEPT, broken(KEPT)),
    "model.npz": (write_export, KEPT, None),
    "model.json": (write_export, KEPT, broken(KEPT)),
    "table.csv": (columns, COLUMNS, SHORTER),
    "table.h5": (columns, COLUMNS, NUL),
    "table.parquet": (columns, COLUMNS, None),
    "dataset.h5": (write_dataset, Dataset(X, ("a", "b")), Dataset(X, ("a", "nul\0"))),
    "observations.h5": (write_observations, SEEN, replace(SEEN, names=("nul\0",))),
}


@pytest.mark.parametrize("name", WRITERS)
def test_an_existing_file_is_replaced_only_by_force_and_when_all_is_written(tmp_path, name):
    path, (write, whole, wrong) = tmp_path / name, WRITERS[name]
    path.write_text("precious")
    with pytest.raises(FileError, match="exists; pass force=True"):
        write(path, whole)
    if wrong is not None:
        with pytest.raises((ValueError, TypeError)):
            write(path, wrong, force=True)
    assert path.read_text() == "precious"
    write(path, whole, force=True)
    assert path.read_bytes() != b"precious"
    assert [file.name for file in tmp_path.iterdir()] == [name]
    with pytest.raises(FileError, match=r"there is no folder .*nowhere"):
        write(tmp_path / "nowhere" / name, whole)


@over(kind=[RuntimeError, KeyboardInterrupt, SystemExit, InputError, OSError], exists=[False, True])
def test_an_exception_leaves_everything_as_it_was(tmp_path, kind, exists):
    target = tmp_path / "result.h5"
    target.unlink(missing_ok=True)
    if exists:
        target.write_text("old")

    def write():
        with hdf5.atomic_write(target, force=True) as temporary:
            assert (temporary.parent, temporary.suffix) == (tmp_path, ".h5")
            temporary.write_text("half")
            raise OSError(28, "stop") if kind is OSError else kind("stop")

    told = r"result.h5 could not be written: stop" if kind is OSError else "stop"
    with pytest.raises(FileError if kind is OSError else kind, match=told):
        write()
    assert os.listdir(tmp_path) == (["result.h5"] if exists else [])
    assert not exists or target.read_text() == "old"


def test_an_existing_target_needs_force(tmp_path):
    target = tmp_path / "result.h5"
    target.write_text("old")
    target.chmod(0o600)
    with pytest.raises(FileError, match="exists; pass force=True to replace it"):
        hdf5.check_writable(target)
    with pytest.raises(FileError, match="exists; pass force=True"), hdf5.atomic_write(target):
        pass
    assert target.read_text() == "old"
    with hdf5.atomic_write(target, force=True) as temporary:
        temporary.write_text("new")
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_a_target_that_appears_meanwhile_is_not_replaced(tmp_path):
    target = tmp_path / "result.h5"

    def write():
        with hdf5.atomic_write(target) as temporary:
            temporary.write_text("mine")
            target.write_text("theirs")

    with pytest.raises(FileError, match="exists; pass force=True"):
        write()
    assert target.read_text() == "theirs"
    assert os.listdir(tmp_path) == ["result.h5"]


def test_a_link_is_written_through_and_a_new_file_has_the_usual_mode(tmp_path):
    (tmp_path / "deep").mkdir()
    real, link = tmp_path / "deep" / "real.h5", tmp_path / "link.h5"
    link.symlink_to(real)
    with hdf5.atomic_write(link) as temporary:
        temporary.write_text("new")
        assert not real.exists()
    assert link.is_symlink()
    assert real.read_text() == "new"
    (tmp_path / "ordinary").touch()
    assert real.stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_places_that_cannot_be_written_are_refused(tmp_path):
    parent = tmp_path / "file"
    parent.touch()
    os.mkfifo(tmp_path / "pipe")
    for target, sentence in (
        (tmp_path, "is a folder"),
        (tmp_path / "none" / "result.h5", "there is no folder"),
        (parent / "result.h5", "cannot be written"),
        (tmp_path / "pipe", "not an ordinary file"),
        (tmp_path / ("x" * 300), "cannot be written"),
        ("", "name of the output file is empty"),
        ("nul\0", "cannot be written"),
    ):
        with pytest.raises(FileError, match=sentence):
            hdf5.check_writable(target, force=True)
        with pytest.raises(FileError, match=sentence), hdf5.atomic_write(target, force=True):
            pass
    assert sorted(os.listdir(tmp_path)) == ["file", "pipe"]


# ---- tables of results ---------------------------------------------------------------------------


def check_csv(text):
    head, *rows = csv.reader(io.StringIO(text, newline=""))
    columns = list(zip(*rows, strict=True))
    assert head == list(COLUMNS)
    assert list(columns[0]) == COLUMNS["id"].tolist()
    assert [int(word) for word in columns[1]] == COLUMNS["label"].tolist()
    assert [float(word) for word in columns[2]] == COLUMNS["proba_0"].tolist()


def test_csv_gives_back_every_digit_and_character(tmp_path, capsys):
    write_columns(tmp_path / "a.csv", COLUMNS, "vpem-predictions")
    check_csv((tmp_path / "a.csv").read_bytes().decode("utf-8"))
    write_columns(None, COLUMNS, "vpem-predictions")
    check_csv(capsys.readouterr().out)


@each("name", ["a.h5", "a.hdf5"])
def test_hdf5_says_what_it_is(tmp_path, name):
    write_columns(tmp_path / name, COLUMNS, "vpem-predictions")
    with h5py.File(tmp_path / name) as file:
        assert file.attrs["encoding-type"] == b"vpem-predictions"
        assert file.attrs["encoding-version"] == b"0.1.0"
        assert sorted(file) == sorted(COLUMNS)
        assert file["id"].asstr()[()].tolist() == COLUMNS["id"].tolist()
        np.testing.assert_array_equal(file["label"][()], COLUMNS["label"])
        np.testing.assert_array_equal(file["proba_0"][()], COLUMNS["proba_0"])


def test_parquet_has_nulls_where_values_are_masked(tmp_path):
    lost = {"share": np.ma.array([0.5, np.nan, 0.1, 2.0, 3.0], mask=[0, 0, 1, 0, 0])}
    write_columns(tmp_path / "a.parquet", COLUMNS | lost, "vpem-predictions")
    found = parquet.read_table(tmp_path / "a.parquet").to_pydict()
    assert list(found) == [*COLUMNS, "share"]
    for name, column in COLUMNS.items():
        assert found[name] == column.tolist()
    assert (found["share"][0], found["share"][2:]) == (0.5, [None, 2.0, 3.0])
    assert np.isnan(found["share"][1])


@each("name", ["a.txt", "a", "a.csv.gz", ".csv", "a.npz"])
def test_other_endings_are_refused_before_anything_is_written(tmp_path, name):
    with pytest.raises(InputError, match=r"written to \.csv, \.parquet, \.h5 or \.hdf5 files, got"):
        write_columns(tmp_path / name, COLUMNS, "vpem-predictions")
    assert list(tmp_path.iterdir()) == []


# ---- full disks, and other systems --------------------------------------------------------------

COMMANDS = (
    "fit d.h5 --max-iter 3 -q --checkpoint out.ckpt --checkpoint-every 1 -o out.h5",
    "kmeans d.h5 -q -o out.h5",
    "impute d.h5 -r 1 --max-iter 3 -q -o out.h5",
    "predict m.h5 d.h5 -o out.h5",
    "predict m.h5 d.h5 --proba -o out.csv",
    "model export m.h5 -o out.json",
    "model export m.h5 -o out.npz",
    "data repack d.h5 -o out.h5",
    "data simulate -n 300 -d 6 -o out.h5",
    "data split d.h5 -o out/deep",
    "data copy -o out",
    *(f"plot m.h5 --kind graph -o out.{ending}" for ending in ("png", "svg", "pdf")),
)


@contextlib.contextmanager
def room_for(n_bytes):
    """Refuse to make a file longer than this, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("full") / "d.h5").parent


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_a_sentence(capsys, home, monkeypatch, command):
    monkeypatch.chdir(home)
    if not (home / "m.h5").exists():
        done(capsys, "fit", "d.h5", "--max-iter", 3, "-q", "-o", "m.h5")
    before = listing(home)
    # The first metadata, the first values, and all but the end find no place; of pictures anything.
    for n_bytes in (0, 700, 1500) if "plot" not in command else (700,):
        with room_for(n_bytes):
            result = run(capsys, *command.split())
        assert result.code == 2
        assert result.err.splitlines()[-1].startswith("vpem: error: ")
        assert result.err.endswith(" could not be written: File too large\n")
        assert listing(home) == before
        assert not (home / "out").exists()
    assert run(capsys, *command.split()).code == 0
    for name in set(listing(home)) - set(before):
        (home / name).unlink()
    shutil.rmtree(home / "out", ignore_errors=True)


LACKING = {
    os: ("O_CLOEXEC", "O_NONBLOCK", "fork", "geteuid", "getuid", "pread", "sched_getaffinity",
         "sched_yield", "sysconf"),
    signal: ("SIGHUP", "SIGKILL", "pthread_sigmask"),
}  # fmt: skip
"""What Windows has not."""


def test_commands_need_nothing_that_windows_lacks(capsys, tmp_path, monkeypatch):
    for module, names in LACKING.items():
        for name in names:
            monkeypatch.delattr(module, name, raising=False)
    monkeypatch.setattr(checks, "_memory", lambda: 8 << 30)  # asked otherwise there
    monkeypatch.chdir(tmp_path)
    make_data(tmp_path / "d.h5")
    done(capsys, "fit", "d.h5", "-k", "2", "--tol", "0.01", "--checkpoint", "c.h5", "-o", "m.h5")
    done(capsys, "predict", "m.h5", "d.h5", "-o", "labels.csv")
    done(capsys, "select", "d.h5", "-k", "1-2", "--tol", "0.01", "--jobs", "1", "-o", "best.h5")
    assert {path.name for path in tmp_path.iterdir()} >= {"m.h5", "labels.csv", "best.h5"}
    monkeypatch.setattr(search.sys, "platform", "win32")
    with search._masked():
        pass
