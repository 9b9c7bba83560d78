"""Small files that would take the machine: refused in a sentence before it is taken."""

import bz2
import gzip
import io
import json
import lzma
import os
import resource
import tomllib
import zipfile
import zlib

import h5py
import numpy as np
import pytest

from tests.cli_support import run
from vpem.errors import FileError, InputError
from vpem.files import hdf5, json_text, opening
from vpem.files.checkpoints import read_state
from vpem.files.data import read_dataset
from vpem.files.matrix import FileMatrix
from vpem.files.networks import read_graph, read_partition, read_workers
from vpem.files.observations import read_observations
from vpem.files.parties.alignment import read_key
from vpem.files.parties.opening import read_manifest
from vpem.fits.answer import read_labels
from vpem.saem.formats.individuals import read_devices, read_individuals

from .tables import each, over

MB = 1 << 20


@pytest.fixture
def path(tmp_path):
    return tmp_path / "small.h5"


def deflated(n_bytes):
    """Zeros packed as tightly as deflate can."""
    packer = zlib.compressobj(9)
    parts = [packer.compress(bytes(MB)) for _ in range(n_bytes // MB)]
    return b"".join([*parts, packer.flush()])


def soft_links(file):
    last = "end"
    file[last] = h5py.SoftLink("/")
    for level in range(14):
        file[f"level{level}"] = h5py.SoftLink("/" + "/".join([last] * 20))
        last = f"level{level}"
    file["X"] = h5py.SoftLink(f"/{last}/Y")
    file["Y"] = np.eye(3)


def wide(file):
    file.create_dataset("X", (1, 1 << 26), "i1")


def high(file):
    file.create_dataset("X", (1 << 26, 1), "i1", chunks=(1 << 16, 1), compression="gzip")


def large_chunk(file):
    plain = {"chunks": ((1 << 27) - 1, 2), "maxshape": (None, 2), "compression": "gzip"}
    X = file.create_dataset("X", (8, 2), "f8", **plain)
    X.id.write_direct_chunk((0, 0), zlib.compress(bytes(128)))


def many_chunks(file):
    X = file.create_dataset("X", (1 << 17, 1), "f8", chunks=(1, 1))
    X[:3] = 1


def packed_twice(file):
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((64, 2))
    plist.set_deflate(9)
    plist.set_deflate(9)
    space = h5py.h5s.create_simple((64, 2))
    X = h5py.h5d.create(file.id, b"X", h5py.h5t.IEEE_F64LE, space, plist)
    X.write_direct_chunk((0, 0), zlib.compress(deflated(64 * MB), 9))


def packed_tightly(file):
    """One layer of deflate, but what it unpacks to is a hundred times the chunk."""
    X = file.create_dataset("X", (1 << 17, 1), "f8", chunks=(1 << 17, 1), compression="gzip")
    X.id.write_direct_chunk((0, 0), deflated(128 * MB))


def many_bombs(file, size, rows=4):
    """Chunks that unpack to 16 MB each, stored in at least ``size`` bytes: 1 GB of them in all."""
    X = file.create_dataset("X", (64 * rows, 8), "f8", chunks=(rows, 8), compression="gzip")
    packed = deflated(16 * MB).ljust(size, b"\0")
    for number in range(64):
        X.id.write_direct_chunk((number * rows, 0), packed)


def overfull(file):
    many_bombs(file, 20_000)


def full(file):
    many_bombs(file, 16_500, 256)


def just_fitting(file):
    """As `full`, but each is small; only together they are much."""
    X = file.create_dataset("X", (4 * 128, 8), "f8", chunks=(4, 8), compression="gzip")
    packed = deflated(MB)
    for number in range(128):
        X.id.write_direct_chunk((number * 4, 0), packed)


def refers(file, length=3000, times=60_000, **options):
    """Strings of variable length that are all the same one of the file."""
    file["X"] = np.zeros((times, 1), dtype="i1")
    ids = file.create_dataset("ids", (times,), h5py.string_dtype(), **options)
    ids[0] = "x" * length
    return ids


def alike(path, length=3000, times=60_000):
    """Write such strings: HDF5 itself would write each of them."""
    with h5py.File(path, "w") as file:
        where = refers(file, length, times).id.get_offset()
    with open(path, "r+b") as raw:
        raw.seek(where)
        one = raw.read(16)
        raw.seek(where)
        raw.write(one * times)


ATTACKS = {
    soft_links: "X is a soft link, which is not followed",
    wide: "X declares 1 x 67108864 values, .* stores 0 bytes of it; .*VPEM_READ_LIMIT=4096M",
    high: "X declares 67108864 x 1 values",
    large_chunk: "X has chunks of 2.147 GB, far larger than itself",
    many_chunks: "X is in 131072 chunks of 1 x 1, which would take 0.5369 GB to read",
    packed_twice: "X is packed several times over",
    packed_tightly: "X has a chunk that unpacks to more than its 1048576 bytes",
    overfull: "X has a chunk of 256 bytes that is stored in 20000",
    full: "X has a chunk that unpacks to more than its 16384 bytes",
    just_fitting: "X has a chunk that unpacks to more than its 256 bytes",
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_small_files_take_nothing(path, attack, capsys):
    with h5py.File(path, "w") as file:
        attack(file)
    assert path.stat().st_size < 2_000_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FileError, match=ATTACKS[attack]):
        read_dataset(path)
    with pytest.raises(FileError, match=ATTACKS[attack]), hdf5.open_read(path) as file:
        hdf5.read_strings(file, "X") if attack is soft_links else hdf5.read_array(file, "X")
    assert run(capsys, "data", "describe", path).code == 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


def test_a_heap_that_never_ends_is_refused(path):
    with h5py.File(path, "w") as file:
        file.attrs["name"] = "text of any length"
        file["labels"] = np.array(["a", "bc"], dtype=h5py.string_dtype())
    whole = path.read_bytes()
    at = whole.index(b"GCOL")
    size = int.from_bytes(whole[at + 8 : at + 16], "little")
    with hdf5.open_read(path) as file:
        assert hdf5.read_attribute(file, "name") == "text of any length"
    path.write_bytes(whole[: at + 16] + bytes(size - 16) + whole[at + size :])
    with pytest.raises(FileError, match="a heap of its strings never ends"), hdf5.open_read(path):
        pass


@each("attack", [packed_twice, packed_tightly, overfull, full, just_fitting])
def test_what_stays_on_disk_is_looked_at_too(path, attack):
    with h5py.File(path, "w") as file:
        attack(file)
    with pytest.raises(FileError, match=r"packed several|unpacks to more|is stored in"):
        FileMatrix(path)[0:8]


@pytest.mark.parametrize(
    ("length", "times", "sentence"),
    [
        (3000, 60_000, "holds strings of more than 67108864 bytes"),
        (9000, 99, "holds a string of more than 4096"),
    ],
)
def test_strings_that_are_one_are_counted(path, length, times, sentence):
    alike(path, length, times)
    with pytest.raises(FileError, match=f"ids {sentence}"):
        read_dataset(path)


@each(
    "options",
    [
        {"compression": "gzip", "shuffle": True},
        {"compression": "gzip"},
        {"compression": "lzf"},
        {"chunks": (7,)},
        {},
    ],
)
def test_strings_are_read_however_they_are_packed(path, options):
    names = [f"{'long ' * 40}{number}" for number in range(100)]
    with h5py.File(path, "w") as file:
        file.create_dataset("names", data=names, dtype=h5py.string_dtype(), **options)
    with hdf5.open_read(path) as file:
        assert hdf5.read_strings(file, "names") == tuple(names)


def test_one_long_name_does_not_make_a_file_of_vpem_unreadable(path, monkeypatch):
    monkeypatch.setenv("VPEM_READ_LIMIT", "1M")
    names = [f"patient {number}" for number in range(3000)]
    names[7] = "x" * 4096
    with hdf5.create(path, "vpem-thing", "0.1.0") as file:
        hdf5.write_strings(file, "names", names)
    assert path.stat().st_size < 3000 * 4096 // 100
    with hdf5.open_read(path) as file:
        assert hdf5.read_strings(file, "names") == tuple(names)


def test_strings_that_unpack_to_far_more_are_refused(path, monkeypatch):
    monkeypatch.setenv("VPEM_READ_LIMIT", "1M")
    with h5py.File(path, "w") as file:
        names = np.full(3000, b"x" * 4096)
        file.create_dataset("names", data=names, compression="gzip")
    with (
        hdf5.open_read(path) as file,
        pytest.raises(FileError, match="names holds strings of more than"),
    ):
        hdf5.read_strings(file, "names")


@each(
    "options",
    [
        {"compression": "gzip", "shuffle": True, "fletcher32": True},
        {"compression": "lzf"},
        {"scaleoffset": 0},
        {"chunks": (1000, 3), "maxshape": (None, None)},
    ],
)
def test_ordinary_packing_is_read(path, options):
    X = np.arange(30_000).reshape(-1, 3)
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=X, **options)
    np.testing.assert_array_equal(read_dataset(path).X, X)
    matrix = FileMatrix(path)
    np.testing.assert_array_equal(matrix[5:9999], X[5:9999])
    matrix.close()


def one_hot(dtype):
    X = np.zeros((20_000, 60), dtype)
    X[np.arange(len(X)), np.random.default_rng(0).integers(0, 60, len(X))] = 1
    return X


GZIP = {"compression": "gzip", "compression_opts": 9}
HONEST = {
    "one_hot": (lambda: one_hot("f4"), GZIP),
    "one_hot_double": (lambda: one_hot("f8"), GZIP),
    "one_hot_in_small_chunks": (lambda: one_hot("f8"), GZIP | {"chunks": (50, 60)}),
    "rare_ones": (lambda: (np.random.default_rng(0).random((20_000, 60)) < 0.005) * 1.0, GZIP),
    "zeros": (lambda: np.zeros((90_000, 10)), GZIP),
    "constant": (lambda: np.full((90_000, 10), 7.5), GZIP | {"chunks": (9000, 10)}),
    "noise": (lambda: np.random.default_rng(0).random((20_000, 8)), GZIP | {"chunks": (4, 8)}),
    "noise_scaled": (
        lambda: np.random.default_rng(0).integers(-(2**52), 2**52, (9000, 8)),
        GZIP | {"chunks": (4, 8), "scaleoffset": 0},
    ),
    "noise_lzf": (lambda: np.random.default_rng(0).random((9000, 8)), {"compression": "lzf"}),
    "row_by_row": (lambda: np.random.default_rng(0).random((1000, 4)), {"chunks": (1, 4)}),
}


@each("honest", HONEST)
def test_what_packs_well_is_read_without_a_setting(path, honest, monkeypatch):
    monkeypatch.setenv("VPEM_READ_LIMIT", "2M")  # as 300 MB are by the usual limit
    make, options = HONEST[honest]
    X = make()
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=X, **options)
    np.testing.assert_array_equal(read_dataset(path).X, X)
    matrix = FileMatrix(path)
    np.testing.assert_array_equal(matrix[:], X)
    matrix.close()


def test_twenty_thousand_chunks_are_few(path):
    X = np.random.default_rng(0).random((20_000, 4)).astype("f4")
    with h5py.File(path, "w") as file:
        stored = file.create_dataset("X", X.shape, "f4", chunks=(1, 4))
        for number, row in enumerate(X):
            stored.id.write_direct_chunk((number, 0), row.tobytes())
    np.testing.assert_array_equal(read_dataset(path).X, X)


def test_chunks_large_enough_to_be_looked_at_are_read(path):
    X = np.random.default_rng(0).integers(0, 50, (1 << 18, 2)).astype("f8")
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=X, chunks=(1 << 17, 2), compression="gzip")
        assert file["X"].id.get_chunk_info(0).size > opening.USUAL_LIMIT // 1032
    np.testing.assert_array_equal(read_dataset(path).X, X)


def test_the_bound_is_a_setting(path, monkeypatch):
    with h5py.File(path, "w") as file:
        file.create_dataset("X", (1 << 24, 1), "i1", fillvalue=3)
    with pytest.raises(FileError, match="if you trust the file, set VPEM_READ_LIMIT=128M"):
        read_dataset(path)
    monkeypatch.setenv("VPEM_READ_LIMIT", "128M")
    assert (read_dataset(path, dtype="float32").X == 3).all()
    monkeypatch.setenv("VPEM_READ_LIMIT", "much")
    with pytest.raises(InputError, match="the environment variable VPEM_READ_LIMIT"):
        read_dataset(path)


def test_one_dataset_by_many_names_counts_every_time(path, monkeypatch):
    monkeypatch.setenv("VPEM_READ_LIMIT", "1M")
    with h5py.File(path, "w") as file:
        file.create_dataset("0", (100_000,), "f8")
        for number in range(1, 5):
            file[str(number)] = file["0"]
    with hdf5.open_read(path) as file:
        for number in ("0", "1", "2"):
            hdf5.read_array(file, number)
        with pytest.raises(FileError, match="all that the file declares takes more than"):
            hdf5.read_array(file, "3")
    with hdf5.open_read(path) as file:  # and is counted anew the next time
        hdf5.read_array(file, "4")


def test_datasets_without_values_are_not_offered(path):
    with h5py.File(path, "w") as file:
        file["index/sorted"] = np.empty((0, 127))
        file["index/bounds"] = np.empty((3, 0))
    with pytest.raises(FileError, match="has no X; nor another 2-D dataset"):
        read_dataset(path)
    with h5py.File(path, "r+") as file:
        file["matrix"] = np.eye(2)
    with pytest.raises(FileError, match=r"2-D numeric datasets with .*: matrix \(2 x 2\)$"):
        read_dataset(path)


def test_groups_that_hold_each_other_are_listed_once(path):
    with h5py.File(path, "w") as file:
        groups = [file.create_group(f"level{level}") for level in range(30)]
        for above, below in zip(groups, [*groups[1:], groups[0]], strict=True):
            for number in range(20):
                above[f"door{number}"] = below
        groups[-1]["matrix"] = np.eye(2)
    with pytest.raises(FileError, match=r"2-D numeric datasets .*matrix \(2 x 2\)"):
        read_dataset(path)


@each("value", [[1.0, 2.0], ["a", "b"], h5py.Empty("f8")])
def test_attributes_that_are_several_values_are_not_read(path, value):
    with h5py.File(path, "w") as file:
        file.attrs["some"] = value
    with hdf5.open_read(path) as file:
        assert hdf5.read_value(file, "some") is None


def test_names_that_are_no_text_are_a_sentence(path):
    with h5py.File(path, "w") as file:
        group = file.create_group("observers")
        h5py.h5g.create(group.id, b"\xff\xfe")
    with pytest.raises(FileError, match="observers cannot be read"):
        read_observations(path)


def test_what_h5py_raises_is_a_sentence_and_our_own_defects_are_not(path):
    with h5py.File(path, "w"):
        pass
    with pytest.raises(FileError, match="is damaged"), hdf5.open_read(path) as file:
        file["nothing"]
    with pytest.raises(AttributeError), hdf5.open_read(path):
        b"ours".isdecimal()


# Text ---------------------------------------------------------------------------------------------


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
def test_json_in_hdf5(path, value):
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


def test_packed_json_is_bounded(path, monkeypatch):
    monkeypatch.setenv("VPEM_READ_LIMIT", "1M")
    with h5py.File(path, "w") as file:
        text = np.frombuffer(b'{"a": [' + b"[]," * 200_000 + b"[]]}", dtype=np.uint8)
        file.create_dataset("packed", data=text, compression="gzip")
        file.create_dataset("plain", data=text)
    with hdf5.open_read(path) as file:
        with pytest.raises(FileError, match="packed"):
            json_text.read_json_element(file, "packed")
        assert len(json_text.read_json_element(file, "plain")["a"]) == 200_001


@pytest.mark.parametrize("name", ["graph.json", "partition.json", "workers.json", "devices.json"])
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
    import pyarrow as pa
    from pyarrow import parquet

    monkeypatch.setenv("VPEM_READ_LIMIT", "64K")
    parquet.write_table(pa.table({"a": np.zeros(1_000_000)}), tmp_path / "table.parquet")
    with pytest.raises(FileError, match=r"declares values of 0.008 GB"):
        read_dataset(tmp_path / "table.parquet")


def test_text_of_parquet_is_bounded_before_it_is_unpacked(tmp_path, monkeypatch):
    import pyarrow as pa
    from pyarrow import parquet

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


@pytest.mark.parametrize("name", ["wide.csv", "wide.csv.gz"])
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
