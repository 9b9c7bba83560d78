"""Rows read ahead from a file are the rows in memory."""

import tempfile

import h5py
import numpy as np
import pytest

from vpem import (
    FileError,
    InputError,
    NotConvergedWarning,
    VpemWarning,
    connect,
    fit_vpem,
    make_graph,
    read_dataset,
)
from vpem.checks import parse_bytes
from vpem.files.datasets import write_dataset
from vpem.files.matrix import FileMatrix, FileRows, Spool
from vpem.network.partition import Blocks, contiguous
from vpem.terms.rows import MemoryRows, arrange_rows
from vpem.terms.units import Scaling

from .tables import each, each_once, over

M, D = 30_000, 12


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.normal(size=(M, D)) + rng.choice([0.0, 1.5], size=M)[:, None]


@pytest.fixture
def matrix(X, tmp_path):
    """The same numbers in a file, about eleven rows of a hundred to a read of one megabyte."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", data=X, chunks=(700, D))
    made = FileMatrix(tmp_path / "x.h5", "X", read_bytes=1)
    yield made
    made.close()


def blocks():
    parts = (np.array([5, 1, 7]), np.array([0, 2, 3, 4]), np.array([6, 8, 9, 10, 11]))
    return Blocks(parts, (0, 1, 2), ((0,), (1,), (2,)))


def test_a_matrix_in_a_file_is_the_array(X, matrix):
    assert matrix.shape == X.shape
    assert len(matrix) == M
    assert matrix.step % 700 == 0
    assert M // matrix.step > 1
    np.testing.assert_array_equal(matrix[100:2000], X[100:2000])
    np.testing.assert_array_equal(matrix.take(np.array([7, 3, M - 1])), X[[7, 3, M - 1]])
    np.testing.assert_array_equal(np.concatenate([part.copy() for _, part in matrix.runs()]), X)
    chosen = matrix.select([4, 0])
    assert chosen.shape == (M, 2)
    np.testing.assert_array_equal(chosen[5:9], X[5:9][:, [4, 0]])


@each_once(
    dtype=["<f4", "<f8", ">f8", "<i2"], shuffle=[True, False, False, True],
    chunks=[(700, D), (1900, 5)],
)  # fmt: skip
def test_packed_chunks_are_unpacked_by_threads_as_by_hdf5(
    X, tmp_path, monkeypatch, chunks, shuffle, dtype
):
    monkeypatch.setattr("vpem.files.storage.processors", lambda: 2)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        packing = {"compression": "gzip", "shuffle": shuffle, "fillvalue": 3}
        stored = file.create_dataset("X", X.shape, dtype, chunks=chunks, **packing)
        stored[2500:] = 100 * X[2500:]  # rows before have the fill value, and no chunk
        if dtype == "<f8":
            plain = np.full(chunks, 7.0)
            stored.id.write_direct_chunk((2 * chunks[0], 0), plain.tobytes(), filter_mask=3)
        wanted = stored[...]
    matrix = FileMatrix(tmp_path / "x.h5")
    assert matrix._unpacking is not None
    np.testing.assert_array_equal(matrix[:], wanted)
    np.testing.assert_array_equal(matrix[2400:8003], wanted[2400:8003])
    np.testing.assert_array_equal(matrix.in_precision(np.dtype("f4"))[5:], wanted[5:].astype("f4"))
    matrix.close()


@pytest.mark.parametrize("zeroed", [False, True])
def test_a_damaged_packed_chunk_is_refused(X, tmp_path, monkeypatch, zeroed):
    monkeypatch.setattr("vpem.files.storage.processors", lambda: 2)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        stored = file.create_dataset("X", data=X, chunks=(700, D), compression="gzip")
        chunk = stored.id.get_chunk_info(4)
    with open(tmp_path / "x.h5", "r+b") as file:
        file.seek(chunk.byte_offset + (0 if zeroed else chunk.size // 2))
        file.write(bytes(chunk.size) if zeroed else bytes(range(60)))
    with pytest.raises(FileError, match="cannot be read; the file is damaged"):
        list(FileMatrix(tmp_path / "x.h5").runs())


def test_numbers_of_fewer_bits_than_their_bytes_are_left_to_hdf5(X, tmp_path, monkeypatch):
    monkeypatch.setattr("vpem.files.storage.processors", lambda: 2)
    kind, plan = h5py.h5t.STD_I16LE.copy(), h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    kind.set_precision(12)
    kind.set_offset(4)
    plan.set_chunk((1000, D))
    plan.set_deflate(1)
    wanted = np.round(100 * X).astype("i2").clip(-2000, 2000)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        space = h5py.h5s.create_simple(X.shape)
        stored = h5py.h5d.create(file.id, b"X", kind, space, plan)
        stored.write(h5py.h5s.ALL, h5py.h5s.ALL, wanted)
    matrix = FileMatrix(tmp_path / "x.h5")
    np.testing.assert_array_equal(matrix[:], wanted)
    matrix.close()


@pytest.mark.parametrize("scale", ["none", "standard"])
def test_a_fit_passes_over_its_file_thrice_before_the_first_iteration(matrix, scale):
    read, inside = [], matrix._read

    def noted(out, start):
        read.append(len(out))
        inside(out, start)

    matrix._read = noted  # copies share it
    seen = []
    matrix.observer = lambda path, part: seen.append((path, part))
    network = connect(make_graph("star", 1), contiguous(D, 1), hops=0)
    options = {"n_components": 2, "init": [0, 1], "scale": scale, "tol": 0.0, "max_iter": 2}
    with pytest.warns(NotConvergedWarning):
        fit_vpem(matrix, network, **options)
    passes = 3
    # Looking, units, the covariance, two iterations and the last E-step; one run came too early,
    # and one shows that rows differ.
    assert 0 <= sum(read) - (passes + 3) * M <= 2 * matrix.step + 2
    # An observer hears of every run of every pass.
    runs = -(-M // matrix.step)
    assert len(seen) == (passes + 3) * runs
    assert seen.count((matrix.path, 1.0)) == passes + 3


@pytest.mark.parametrize("size", [-1000, 0, 1000])
def test_a_file_that_changes_while_it_is_read_is_refused(X, matrix, size):
    np.testing.assert_array_equal(matrix[5:9], X[5:9])
    with open(matrix.path, "r+b") as file:
        length = file.seek(0, 2)
        file.truncate(length + size)
        file.seek(length // 2)
        file.write(b"other values")
    with pytest.raises(FileError, match="was changed while it was read; run again"):
        for _ in matrix.runs():
            pass


GROUPS = {
    "runs": lambda rng: [np.arange(2500, 9000), np.arange(0, 2500), np.arange(9000, M)],
    "some": lambda rng: [np.flatnonzero(rng.random(M) < 0.3), np.arange(17, 18)],
    "few": lambda rng: [np.sort(rng.choice(M, 40, replace=False)), np.empty(0, dtype=int)],
    "all, at two workers": lambda rng: np.split(rng.permuted(np.arange(M)), [11_000]),
}


@each("groups", GROUPS)
def test_some_rows_of_a_file_are_a_matrix_too(X, matrix, groups):
    rng = np.random.default_rng(0)
    parts = [np.sort(part) for part in GROUPS[groups](rng)]
    rows = np.concatenate(parts)
    chosen = matrix.of_rows(parts)
    assert chosen.shape == (len(rows), D)
    np.testing.assert_array_equal(chosen[3 : len(rows) - 1], X[rows][3:-1])
    np.testing.assert_array_equal(
        np.concatenate([part.copy() for _, part in chosen.runs()]), X[rows]
    )
    np.testing.assert_array_equal(chosen.take(np.array([5, 0, 5])), X[rows[[5, 0, 5]]])
    again = chosen.select([7, 1]).of_rows([np.array([2, 9, 11])])
    np.testing.assert_array_equal(again[:], X[rows[[2, 9, 11]]][:, [7, 1]])
    found = arrange_rows(chosen.in_reads_of(1000), blocks(), Scaling.none(D), np.float64)
    wanted = arrange_rows(X[rows], blocks(), Scaling.none(D), np.float64)
    for run in found.runs():
        np.testing.assert_array_equal(found.read(run), wanted.read(run))


def test_few_rows_take_few_reads(matrix):
    """Neighbours come together, and what lies between distant rows is not read."""
    reads = []
    matrix._read = lambda out, start, read=matrix._read: [reads.append(len(out)), read(out, start)]
    matrix.take(np.array([700, 9, 3, 5, 701, 20_000]))
    assert sorted(reads) == [1, 2, 7]
    reads.clear()
    matrix.of_rows([np.arange(0, M, 3)])[0:300]
    assert reads == [898]


@over(dtype=[np.float64, np.float32], standard=[False, True])
def test_runs_in_block_order_and_units(X, matrix, dtype, standard):
    scaling = Scaling.standard(X, None) if standard else Scaling.none(D)
    wanted = arrange_rows(X, blocks(), scaling, dtype)
    found = arrange_rows(matrix, blocks(), scaling, dtype)
    assert isinstance(wanted, MemoryRows)
    assert isinstance(found, FileRows)
    for _ in range(2):
        place = 0
        for run in found.runs():
            assert run.start == place
            place = run.stop
            for part in (run, slice(run.start + 1, run.stop - 1), run):
                read = found.read(part)
                assert read.dtype == dtype
                assert read.flags.c_contiguous
                np.testing.assert_array_equal(read, wanted.read(part))
        assert place == M
    # Out of order as well.
    for start in (0, 21_000, 7_000, 0):
        part = slice(start, start + 50)
        np.testing.assert_array_equal(found.read(part), wanted.read(part))
    some = np.array([5, 29_999, 0])
    np.testing.assert_array_equal(found.take(some), wanted.take(some))


@each_once(dtype=[np.float64, np.float32], standard=[True, False], size=[1, 700, 9999, 12_000])
def test_parts_in_any_order(X, matrix, dtype, standard, size):
    """A part is its rows, read alone; the part that follows is read ahead."""
    scaling = Scaling.standard(X, None) if standard else Scaling.none(D)
    wanted = arrange_rows(X, blocks(), scaling, dtype)
    found = arrange_rows(matrix, blocks(), scaling, dtype)
    starts = np.random.default_rng(0).permutation(np.arange(0, M, size))[:20]
    order = [slice(int(start), min(int(start) + size, M)) for start in starts]
    for rows, following in zip(order, [*order[2:], None, None], strict=True):
        whole = wanted.slice_rows(rows)
        part = found.slice_rows(rows, following)
        assert part.n_samples == whole.n_samples == rows.stop - rows.start
        place = 0
        for run in part.runs():
            assert run.start == place
            assert run.stop - run.start <= matrix.step
            place = run.stop
            for piece in (run, slice(run.stop - 1, run.stop), run):
                np.testing.assert_array_equal(part.read(piece), whole.read(piece))
        assert place == part.n_samples
        some = np.array([part.n_samples - 1, 0])
        np.testing.assert_array_equal(part.take(some), whole.take(some))
        inner = slice(part.n_samples // 3, part.n_samples)
        again = part.slice_rows(inner).slice_rows(slice(0, 1))
        np.testing.assert_array_equal(
            again.read(slice(0, 1)), whole.slice_rows(inner).read(slice(0, 1))
        )
    # Whole runs after parts.
    for run in found.runs():
        np.testing.assert_array_equal(found.read(run), wanted.read(run))


@each("size", [500, 4000])
def test_nothing_but_the_parts_is_read(X, matrix, size):
    read = []
    inside = type(matrix).read_into.__get__(matrix)
    matrix.read_into = lambda out, start: (read.append((start, len(out))), inside(out, start))[1]
    found = arrange_rows(matrix, blocks(), Scaling.none(D), np.float64)
    order = [slice(start, start + size) for start in (8000, 0, 20_000)]
    for rows, following in zip(order, [*order[1:], None], strict=True):
        part = found.slice_rows(rows, following)
        for _ in range(2):
            np.testing.assert_array_equal(part.read(slice(3, 9)), X[rows][3:9][:, blocks().order])
    assert read == [(rows.start, size) for rows in order]


def test_a_value_that_is_not_finite_is_found_in_a_file(X, tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"] = X
        file["X"][29_000, 3] = np.inf
    network = connect(make_graph("star", 3), contiguous(D, 3), hops=0)
    with pytest.raises(InputError, match="row 29000, feature 3 is inf"):
        fit_vpem(FileMatrix(tmp_path / "x.h5"), network)


def test_large_data_stay_on_disk_only_if_they_must(X, tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["X"] = X
        file["ids"] = np.arange(M)
    whole = read_dataset(path, memory_limit=2 * X.nbytes)
    assert isinstance(whole.X, np.ndarray)
    lazy = read_dataset(path, memory_limit=2 * X.nbytes - 1)
    assert isinstance(lazy.X, FileMatrix)
    np.testing.assert_array_equal(lazy.ids, np.arange(M))
    write_dataset(tmp_path / "copy.h5", lazy)
    copy = read_dataset(tmp_path / "copy.h5")
    np.testing.assert_array_equal(copy.X, X)
    np.testing.assert_array_equal(copy.ids, lazy.ids)


def test_chunks_that_make_reading_by_rows_slow_are_warned_of(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        X = file.create_dataset("X", shape=(2_000_000, 5), dtype="f8", chunks=(2_000_000, 1))
        X[:, 0] = 1.0
    with pytest.warns(VpemWarning, match="chunks of 2000000 rows.*vpem data repack"):
        FileMatrix(tmp_path / "x.h5").close()


def test_sizes():
    sizes = {"1048576": 1 << 20, "600MB": 600 << 20, "2G": 2 << 30, "1.5 gib": 3 << 29}
    assert {text: parse_bytes(text) for text in sizes} == sizes
    for text in ("", "MB", "-5", "0", "10 parsecs", "1e9", "nan", "٣M", "9" * 5000):
        with pytest.raises(InputError, match="a size must be a number of bytes such as 600MB"):
            parse_bytes(text)


def test_components_need_as_many_weighted_rows_in_a_file_too(tmp_path):
    X = np.random.default_rng(0).standard_normal((50, 4))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"] = X
    weights = np.zeros(50)
    weights[[3, 40]] = 1.0
    network = connect(make_graph("star", 2), contiguous(4, 2), hops=0)
    matrix = FileMatrix(tmp_path / "x.h5")
    for data in (X, matrix):
        with pytest.raises(InputError, match="got 2 with a positive weight"):
            fit_vpem(data, network, n_components=3, sample_weight=weights)
    matrix.close()


# ---- rows that arrive ---------------------------------------------------------------------------


def test_rows_that_arrive_are_kept_in_a_file_without_a_name(X, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spool = Spool(X.shape, X.dtype)
    for start in range(0, M, 7000):
        spool.add(X[start : start + 7000])
    assert len(list(tmp_path.iterdir())) == 1
    matrix = spool.matrix(5000)
    assert matrix.step == 5000
    assert not list(tmp_path.iterdir())
    np.testing.assert_array_equal(np.concatenate([part.copy() for _, part in matrix.runs()]), X)
    matrix.close()
    with pytest.raises(FileError, match="name another in the environment variable TMPDIR"):
        Spool((1 << 40, 1 << 10), X.dtype)
    assert not list(tmp_path.iterdir())
