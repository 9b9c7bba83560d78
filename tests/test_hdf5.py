import os
import stat

import h5py
import numpy as np
import pytest

from vpem.errors import FileError, InputError
from vpem.files import hdf5

from .tables import each


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.h5"


def made(path, **items):
    with h5py.File(path, "w") as file:
        for name, value in items.items():
            file[name] = value
    return path


# Opening ------------------------------------------------------------------------------------------


def test_what_is_no_file_is_refused(tmp_path, path):
    with pytest.raises(FileError, match="does not exist"), hdf5.open_read(path):
        pass
    with pytest.raises(FileError, match="does not exist"), hdf5.open_read(""):
        pass
    with pytest.raises(FileError, match="is a folder"), hdf5.open_read(tmp_path):
        pass
    with pytest.raises(FileError, match="cannot be read"), hdf5.open_read("x" * 5000):
        pass
    os.mkfifo(path)
    with pytest.raises(FileError, match="not an ordinary file"), hdf5.open_read(path):
        pass


@pytest.mark.parametrize("content", [b"a,b\n1,2\n", b"\x89HDF\r\n\x1a", b"\0" * 4096])
def test_what_is_not_hdf5_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(FileError, match="not an HDF5 file"), hdf5.open_read(path):
        pass


def test_a_table_is_no_hdf5(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("a,b\n1,2\n")
    with pytest.raises(FileError, match="is not an HDF5 file"), hdf5.open_read(table):
        pass


def test_an_empty_file_is_refused(path):
    path.touch()
    with pytest.raises(FileError, match="is empty"), hdf5.open_read(path):
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


@pytest.mark.parametrize("position", range(8))
def test_a_changed_signature_is_refused(path, position):
    made(path, X=np.ones((2, 2)))
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(FileError, match="not an HDF5 file"), hdf5.open_read(path):
        pass


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
    ],
)
def test_arrays_of_other_types_are_refused(path, value, sentence):
    made(path, item=value)
    with hdf5.open_read(path) as file, pytest.raises(FileError, match=sentence):
        hdf5.read_array(file, "item")


def test_object_types_are_refused(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("ragged", (3,), dtype=h5py.vlen_dtype(np.int32))
        file.create_dataset("pointers", (3,), dtype=h5py.ref_dtype)
    with hdf5.open_read(path) as file:
        for name in ("ragged", "pointers"):
            with pytest.raises(FileError, match=f"{name} holds strings or other objects"):
                hdf5.read_array(file, name)
            with pytest.raises(FileError, match="it must hold UTF-8 strings"):
                hdf5.read_strings(file, name)


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


def test_a_declared_size_that_the_file_cannot_hold_is_refused(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("X", (10**12, 30), dtype="f4", chunks=(1000, 30))
        file.create_dataset("words", (10**12,), dtype=h5py.string_dtype(), chunks=(1000,))
    with hdf5.open_read(path) as file:
        with pytest.raises(FileError, match=r"1000000000000 x 30 values.* stores 0 bytes of it"):
            hdf5.read_array(file, "X")
        with pytest.raises(FileError, match=r"1000000000000 values.* stores 0 bytes of it"):
            hdf5.read_strings(file, "words")


def test_well_compressed_data_are_read(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=np.zeros((20_000, 50)), compression="gzip")
    assert path.stat().st_size < 200_000
    with hdf5.open_read(path) as file:
        assert hdf5.read_array(file, "X").sum() == 0


def test_more_than_the_memory_is_refused():
    with pytest.raises(InputError, match="the matrix needs 1e\\+09 GB"):
        hdf5.check_memory(10**18, "the matrix")


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
    with hdf5.open_read(path) as file:
        for name, sentence in (
            ("latin", "cannot be read"),
            ("long", "more than 4096"),
            ("flat", "1 dimension"),
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


def test_a_filter_that_is_not_there_is_a_sentence(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=np.arange(100.0), compression="gzip", chunks=(100,))
        offset = file["X"].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[offset : offset + 16] = b"\xff" * 16
    path.write_bytes(content)
    with hdf5.open_read(path) as file, pytest.raises(FileError, match="X cannot be read"):
        hdf5.read_array(file, "X")


def test_attributes(path):
    with h5py.File(path, "w") as file:
        file.attrs.update({"text": "a", "bytes": np.bytes_(b"b"), "number": 3, "list": ["a", "b"]})
    with hdf5.open_read(path) as file:
        found = [
            hdf5.read_attribute(file, name) for name in ("text", "bytes", "number", "list", "none")
        ]
    assert found == ["a", "b", None, None, None]


@pytest.mark.parametrize(
    ("kind", "version", "sentence"),
    [
        ("vpem-model", "0.1.0", "is a vpem-model file, not a vpem-dataset file"),
        ("vpem-dataset", "1.0.0", "newer vpem"),
        ("vpem-dataset", "new", "no readable encoding-version"),
        ("vpem-dataset", None, "no readable encoding-version"),
        ("vpem-dataset", "٣.0", "no readable encoding-version"),
        ("vpem-dataset", "9" * 5000, r"no readable encoding-version \(got '9{60}\.\.\.'\)"),
    ],
)
def test_other_encodings_are_refused(path, kind, version, sentence):
    with h5py.File(path, "w") as file:
        file.attrs["encoding-type"] = kind
        if version is not None:
            file.attrs["encoding-version"] = version
    with hdf5.open_read(path) as file, pytest.raises(FileError, match=sentence):
        hdf5.check_encoding(file, "vpem-dataset", "0.1.0")


def test_known_and_absent_encodings_pass(path):
    with hdf5.create(path, "vpem-dataset", "0.9.3"):
        pass
    with hdf5.open_read(path) as file:
        assert hdf5.check_encoding(file, "vpem-dataset", "0.1.0") == "vpem-dataset"
    made(path)
    with hdf5.open_read(path) as file:
        assert hdf5.check_encoding(file, "vpem-dataset", "0.1.0") is None


# Writing ------------------------------------------------------------------------------------------


def test_elements_describe_themselves(path):
    with hdf5.create(path, "vpem-thing", "0.1.0") as file:
        hdf5.write_array(file, "numbers", np.arange(3))
        hdf5.write_array(file, "one", 0.5)
        hdf5.write_strings(file, "words", ["a", "\u00e9"])
        hdf5.write_strings(file, "none", [])
        for text in ("nul\0", "x" * 5000):
            with pytest.raises(InputError, match="cannot be stored"):
                hdf5.write_strings(file, "bad", [text])
    with h5py.File(path) as file:
        kinds = {name: hdf5.read_attribute(file[name], "encoding-type") for name in file}
        assert {file[name].attrs["encoding-version"] for name in file} == {b"0.2.0"}
        assert dict(file.attrs) == {"encoding-type": b"vpem-thing", "encoding-version": b"0.1.0"}
    assert kinds == {
        "numbers": "array",
        "one": "numeric-scalar",
        "words": "string-array",
        "none": "string-array",
    }


def test_strings_are_of_fixed_length(path):
    words = ["a", "\u00e9t\u00e9", "", "x" * 4096]
    with hdf5.create(path, "vpem-\u00e9", "0.1.0") as file:
        hdf5.write_strings(file, "words", words)
        hdf5.write_strings(file, "blank", [""])
        hdf5.write_strings(file, "none", [])
        for text in ("nul\0", "x" * 4097, "half \ud800"):
            with pytest.raises(InputError, match=r"cannot be stored|is not Unicode"):
                hdf5.write_strings(file, "bad", [text])
    with hdf5.open_read(path) as file:
        assert hdf5.read_attribute(file, "encoding-type") == "vpem-\u00e9"
        assert hdf5.read_strings(file, "words") == tuple(words)
        assert hdf5.read_strings(file, "blank") == ("",)
        assert hdf5.read_strings(file, "none") == ()
        kinds = [h5py.check_string_dtype(file[name].dtype) for name in file]
        assert {(kind.encoding, kind.length) for kind in kinds} == {("utf-8", 4096), ("utf-8", 1)}
        attribute = file.attrs.get_id("encoding-type").get_type()
        assert not attribute.is_variable_str()
        assert attribute.get_cset() == h5py.h5t.CSET_UTF8


def test_metadata_have_checksums(path):
    with hdf5.create(path, "vpem-thing", "0.1.0") as file:
        file.create_dataset("X", data=np.zeros((2, 2)), chunks=(1, 2))
    content = path.read_bytes()
    assert content[8] == 3  # version of the superblock, whose every part has a checksum
    assert content.count(b"OHDR") >= 2  # headers of the version that has one


def test_writing_replaces_the_target_only_when_complete(tmp_path):
    target = tmp_path / "result.csv"
    with hdf5.atomic_write(target) as temporary:
        assert temporary.parent == tmp_path
        assert temporary.suffix == ".csv"
        temporary.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"
    assert os.listdir(tmp_path) == ["result.csv"]


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt, SystemExit, InputError])
@pytest.mark.parametrize("exists", [True, False])
def test_an_exception_leaves_everything_as_it_was(tmp_path, kind, exists):
    target = tmp_path / "result.h5"
    if exists:
        target.write_text("old")

    def write():
        with hdf5.atomic_write(target, force=True) as temporary:
            temporary.write_text("half")
            raise kind("stop")

    with pytest.raises(kind, match="stop"):
        write()
    assert os.listdir(tmp_path) == (["result.h5"] if exists else [])
    assert not exists or target.read_text() == "old"


def test_a_failing_disk_is_a_sentence(tmp_path):
    def write():
        with hdf5.atomic_write(tmp_path / "result.h5"):
            raise OSError(28, "No space left on device")

    with pytest.raises(FileError, match=r"result.h5 could not be written: No space left"):
        write()
    assert os.listdir(tmp_path) == []


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


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "deep").mkdir()
    real, link = tmp_path / "deep" / "real.h5", tmp_path / "link.h5"
    link.symlink_to(real)
    with hdf5.atomic_write(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_a_new_file_has_the_usual_mode(tmp_path):
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    with hdf5.atomic_write(tmp_path / "result.h5"):
        pass
    assert (tmp_path / "result.h5").stat().st_mode == ordinary.stat().st_mode


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
