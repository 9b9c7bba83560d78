"""HDF5 that anybody may have made: read as it is, or refused in a sentence before it takes much."""

import os
import resource
import zlib

import h5py
import numpy as np
import pytest

from vpem.errors import FileError, InputError
from vpem.files import hdf5
from vpem.files.data import read_dataset
from vpem.files.matrix import FileMatrix
from vpem.files.observations import read_observations

from .cli_support import run
from .tables import each

MB = 1 << 20


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.h5"


def made(path, **items):
    with h5py.File(path, "w") as file:
        for name, value in items.items():
            file[name] = value
    return path


# Opening ------------------------------------------------------------------------------------------


NO_HDF5 = [b"a,b\n1,2\n", b"\x89HDF\r\n\x1a", b"\x89HDG\r\n\x1a\n" * 99, b"\0" * 4096]


@each(
    ("name", "sentence"),
    [("none.h5", "does not exist"), ("", "does not exist"), (".", "is a folder"),
     ("x" * 5000, "cannot be read"), ("pipe", "not an ordinary file"), ("empty.h5", "is empty"),
     *((content, "is not an HDF5 file") for content in NO_HDF5)],
)  # fmt: skip
def test_what_is_no_hdf5_is_refused(tmp_path, name, sentence):
    path = name and tmp_path / (name if isinstance(name, str) else "none.csv")
    if isinstance(name, bytes):
        path.write_bytes(name)
    elif name == "empty.h5":
        path.touch()
    elif name == "pipe":
        os.mkfifo(path)
    with pytest.raises(FileError, match=sentence), hdf5.open_read(path):
        pass


def test_a_file_cut_anywhere_is_refused(path):
    made(path, X=np.arange(6000.0).reshape(1000, 6))
    content = path.read_bytes()
    said = []
    for length in np.linspace(1, len(content) - 1, 60).astype(int):
        path.write_bytes(content[:length])
        with pytest.raises(FileError) as caught, hdf5.open_read(path) as file:
            hdf5.read_array(file, "X")
        said.append(str(caught.value))
    assert all(str(path) in sentence for sentence in said)
    assert "cut short" in said[-1]


# Reading ------------------------------------------------------------------------------------------


def test_arrays_come_back_native_and_contiguous(path):
    values = np.arange(6, dtype=">f8").reshape(2, 3)
    made(path, big_endian=values, scalar=3)
    with hdf5.open_read(path) as file:
        array = hdf5.read_array(file, "big_endian", ndim=2, shape=(None, 3))
        assert array.dtype == np.dtype(float)
        assert array.dtype.isnative
        assert array.flags.c_contiguous
        np.testing.assert_array_equal(array, values)
        assert hdf5.read_array(file, "scalar", ndim=0).shape == ()


@each(
    ("value", "sentence"),
    [
        (np.array([True]), "holds true/false values; it must hold integers or real numbers"),
        (np.array([1j]), "complex"),
        (["text"], "strings"),
        (np.array([b"text"]), "strings"),
        (np.zeros(2, dtype=[("a", int), ("b", float)]), "records"),
        (h5py.Empty("f8"), "is empty"),
        (h5py.vlen_dtype(np.int32), "holds strings or other objects"),
        (h5py.ref_dtype, "holds strings or other objects"),
    ],
)
def test_arrays_of_other_types_are_refused(path, value, sentence):
    with h5py.File(path, "w") as file:
        if isinstance(value, np.dtype):
            file.create_dataset("item", (3,), dtype=value)
        else:
            file["item"] = value
    with hdf5.open_read(path) as file:
        with pytest.raises(FileError, match=sentence):
            hdf5.read_array(file, "item")
        if isinstance(value, np.dtype):
            with pytest.raises(FileError, match="it must hold UTF-8 strings"):
                hdf5.read_strings(file, "item")


def test_shapes_are_checked(path):
    made(path, item=np.ones((2, 3)))
    with hdf5.open_read(path) as file:
        with pytest.raises(FileError, match="must have 1 dimension, got 2 x 3"):
            hdf5.read_array(file, "item", ndim=1)
        for shape in ((2, 4), (None, 4), (2,), (2, 3, 1)):
            with pytest.raises(FileError, match="must have shape"):
                hdf5.read_array(file, "item", shape=shape)
        with pytest.raises(FileError, match="item/deeper does not exist"):
            hdf5.read_array(file, "item/deeper")
        with pytest.raises(FileError, match="root group is a group, not a dataset"):
            hdf5.read_array(file, "/")


def test_strings(path):
    made(path, text=["a", "\u00e9", ""], fixed=np.array([b"x", b"yz"]), number=[1, 2])
    with hdf5.open_read(path) as file:
        assert hdf5.read_strings(file, "text") == ("a", "\u00e9", "")
        assert hdf5.read_strings(file, "fixed", shape=(2,)) == ("x", "yz")
        with pytest.raises(FileError, match="must have shape 2, got 3"):
            hdf5.read_strings(file, "text", shape=(2,))
        with pytest.raises(FileError, match="holds integers; it must hold UTF-8"):
            hdf5.read_strings(file, "number")
        assert hdf5.read_column(file, "text").tolist() == ["a", "\u00e9", ""]
        assert hdf5.read_column(file, "number").tolist() == [1, 2]


def test_bad_strings_are_refused(path):
    made(path, latin=np.array([b"\xe9"]), long=["x" * 5000], flat="one")
    with h5py.File(path, "a") as file:
        file.create_dataset("many", (10**12,), dtype=h5py.string_dtype(), chunks=(1000,))
    with hdf5.open_read(path) as file:
        for name, sentence in (
            ("latin", "cannot be read"),
            ("long", "more than 4096"),
            ("flat", "1 dimension"),
            ("many", r"1000000000000 values.* stores 0 bytes of it"),
        ):
            with pytest.raises(FileError, match=sentence):
                hdf5.read_strings(file, name)


def test_links_do_not_lead_out_of_the_file(path, tmp_path):
    other = made(tmp_path / "secret.h5", X=np.ones((2, 2)))
    raw = tmp_path / "raw.bin"
    raw.write_bytes(b"\0" * 32)
    with h5py.File(path, "w") as file:
        file["external"] = h5py.ExternalLink(other.name, "/X")
        file["folder"] = h5py.ExternalLink(other.name, "/")
        file["detour"] = h5py.SoftLink("/external")
        file["around"] = h5py.SoftLink("/around")
        file["dangling"] = h5py.SoftLink("/nowhere")
        file.create_dataset("outside", (2, 2), "f8", external=[(raw.name, 0, 32)])
        layout = h5py.VirtualLayout((2, 2), "f8")
        layout[:] = h5py.VirtualSource(other.name, "X", (2, 2))
        file.create_virtual_dataset("virtual", layout)
        file["group/inside"] = np.eye(2)
        file["group/again"] = file["group/inside"]
        file["group/near"] = h5py.SoftLink("inside")
        file["far"] = h5py.SoftLink("/group/near")
    with hdf5.open_read(path) as file:
        for name in ("external", "folder/X"):
            with pytest.raises(FileError, match="link to another file"):
                hdf5.read_array(file, name)
        for name in ("outside", "virtual"):
            with pytest.raises(FileError, match="in other files"):
                hdf5.read_array(file, name)
        for name in ("around", "dangling", "dangling/X", "detour", "group/near", "far"):
            with pytest.raises(FileError, match="is a soft link, which is not followed"):
                hdf5.find(file, name)
        assert hdf5.find(file, "nowhere/X") is None
        assert list(hdf5.list_datasets(file)) == ["group/again"]  # one object, one path
        for name in ("group/inside", "/group/inside", "./group//again"):
            np.testing.assert_array_equal(hdf5.read_array(file, name), np.eye(2))


def test_attributes(path):
    odd = {"empty": h5py.Empty("f8"), "real": [1.0, 2.0], "list": ["a", "b"], "number": 3}
    with h5py.File(path, "w") as file:
        file.attrs.update({"text": "a", "bytes": np.bytes_(b"b"), **odd})
    with hdf5.open_read(path) as file:
        found = [hdf5.read_attribute(file, name) for name in ("text", "bytes", "none", *odd)]
        several = [hdf5.read_value(file, name) for name in ("empty", "real", "list")]
    assert found == ["a", "b", None, *[None] * len(odd)]
    assert several == [None] * 3


@each(
    ("kind", "version", "sentence"),
    [
        ("vpem-model", "0.1.0", "is a vpem-model file, not a vpem-dataset file"),
        ("vpem-dataset", "1.0.0", "newer vpem"),
        ("vpem-dataset", "new", "no readable encoding-version"),
        ("vpem-dataset", None, "no readable encoding-version"),
        ("vpem-dataset", "٣.0", "no readable encoding-version"),
        ("vpem-dataset", "9" * 5000, r"no readable encoding-version \(got '9{60}\.\.\.'\)"),
        ("vpem-dataset", "0.9.3", None),
        (None, None, None),
    ],
)
def test_other_encodings_are_refused(path, kind, version, sentence):
    with h5py.File(path, "w") as file:
        for name, value in (("type", kind), ("version", version)):
            if value is not None:
                file.attrs[f"encoding-{name}"] = value
    with hdf5.open_read(path) as file:
        if sentence is None:
            assert hdf5.check_encoding(file, "vpem-dataset", "0.1.0") == kind
            return
        with pytest.raises(FileError, match=sentence):
            hdf5.check_encoding(file, "vpem-dataset", "0.1.0")


# Small files that would take the machine ----------------------------------------------------------


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
    if attack in (packed_twice, packed_tightly, overfull, full, just_fitting):  # or stays on disk
        with pytest.raises(FileError, match=r"packed several|unpacks to more|is stored in"):
            FileMatrix(path)[0:8]
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


@each(
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
    "options", [{"compression": "gzip", "shuffle": True}, {"compression": "lzf"}, {"chunks": (7,)}]
)
def test_strings_are_read_however_they_are_packed(path, options):
    names = [f"{'long ' * 40}{number}" for number in range(100)]
    with h5py.File(path, "w") as file:
        file.create_dataset("names", data=names, dtype=h5py.string_dtype(), **options)
    with hdf5.open_read(path) as file:
        assert hdf5.read_strings(file, "names") == tuple(names)


def test_one_long_name_does_not_make_a_file_of_vpem_unreadable_but_many_do(path, monkeypatch):
    monkeypatch.setenv("VPEM_READ_LIMIT", "1M")
    names = [f"patient {number}" for number in range(3000)]
    names[7] = "x" * 4096
    with hdf5.create(path, "vpem-thing", "0.1.0") as file:
        hdf5.write_strings(file, "names", names)
    assert path.stat().st_size < 3000 * 4096 // 100
    with hdf5.open_read(path) as file:
        assert hdf5.read_strings(file, "names") == tuple(names)
    with h5py.File(path, "w") as file:
        file.create_dataset("names", data=np.full(3000, b"x" * 4096), compression="gzip")
    told = pytest.raises(FileError, match="names holds strings of more than")
    with hdf5.open_read(path) as file, told:
        hdf5.read_strings(file, "names")


def one_hot(dtype):
    X = np.zeros((6_000, 60), dtype)
    X[np.arange(len(X)), np.random.default_rng(0).integers(0, 60, len(X))] = 1
    return X


def ordinary():
    return np.arange(30_000).reshape(-1, 3)


GZIP = {"compression": "gzip", "compression_opts": 9}
HONEST = {
    "one_hot": (lambda: one_hot("f4"), GZIP),
    "one_hot_double": (lambda: one_hot("f8"), GZIP),
    "one_hot_in_small_chunks": (lambda: one_hot("f8"), GZIP | {"chunks": (50, 60)}),
    "rare_ones": (lambda: (np.random.default_rng(0).random((6_000, 60)) < 0.005) * 1.0, GZIP),
    "zeros": (lambda: np.zeros((27_000, 10)), GZIP),
    "constant": (lambda: np.full((27_000, 10), 7.5), GZIP | {"chunks": (2700, 10)}),
    "noise": (lambda: np.random.default_rng(0).random((6_000, 8)), GZIP | {"chunks": (4, 8)}),
    "noise_scaled": (
        lambda: np.random.default_rng(0).integers(-(2**52), 2**52, (3000, 8)),
        GZIP | {"chunks": (4, 8), "scaleoffset": 0},
    ),
    "noise_lzf": (lambda: np.random.default_rng(0).random((3000, 8)), {"compression": "lzf"}),
    "row_by_row": (lambda: np.random.default_rng(0).random((300, 4)), {"chunks": (1, 4)}),
    "checked": (ordinary, {"compression": "gzip", "shuffle": True, "fletcher32": True}),
    "lzf": (ordinary, {"compression": "lzf"}),
    "scaled": (ordinary, {"scaleoffset": 0}),
    "growing": (ordinary, {"chunks": (1000, 3), "maxshape": (None, None)}),
}


@each("honest", HONEST)
def test_what_packs_well_is_read_without_a_setting(path, honest, monkeypatch):
    monkeypatch.setenv("VPEM_READ_LIMIT", "600K")  # as 300 MB are by the usual limit
    make, options = HONEST[honest]
    X = make()
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=X, **options)
    np.testing.assert_array_equal(read_dataset(path).X, X)
    matrix = FileMatrix(path)
    np.testing.assert_array_equal(matrix[:], X)
    np.testing.assert_array_equal(matrix[5:900], X[5:900])
    matrix.close()


def test_the_bound_is_a_setting(path, monkeypatch):
    monkeypatch.setenv("VPEM_READ_LIMIT", "8M")
    with h5py.File(path, "w") as file:
        file.create_dataset("X", (1 << 21, 1), "i1", fillvalue=3)
    with pytest.raises(FileError, match="if you trust the file, set VPEM_READ_LIMIT=16M"):
        read_dataset(path)
    monkeypatch.setenv("VPEM_READ_LIMIT", "16M")
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
