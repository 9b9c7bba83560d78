"""In which format a file of data is: by what it begins with, not by what it is called."""

from __future__ import annotations

from pathlib import Path

from vpem.errors import FileError, Setting
from vpem.files.opening import PathLike, check_readable, open_regular
from vpem.files.packed import open_unpacked, open_zip, packing_of

START = 4096
"""Bytes that are looked at."""

KNOWN = (
    (b"PAR1", "parquet"), (b"ARROW1", "arrow"), (b"\x93NUMPY", "npy"),
    (b"\x89HDF\r\n\x1a\n", "hdf5"), (b"MATLAB 7.3 MAT-file", "hdf5"),
)  # fmt: skip

ENDINGS = {
    ".h5": "an HDF5 file", ".hdf5": "an HDF5 file", ".h5ad": "an HDF5 file",
    ".parquet": "a Parquet file", ".pq": "a Parquet file", ".feather": "a Feather file",
    ".arrow": "an Arrow file", ".npy": "an array of NumPy", ".npz": "an archive of NumPy",
}  # fmt: skip
"""What files are that are no text, by what their names end in."""

SAVE_CSV = "save the sheet as CSV"
OTHERS: tuple[tuple[bytes, str, str], ...] = (
    (b"\xd0\xcf\x11\xe0", "an Excel file", SAVE_CSV),
    (b"FEA1", "a Feather file of version 1", "write it again with a newer pandas or R (version 2)"),
    (b"SQLite format 3\0", "an SQLite database", "export the table as CSV"),
    (b"MATLAB 5.0 MAT-file", "a MATLAB file before version 7.3",
     "save it with -v7.3, or write the matrix as CSV (writematrix)"),
    (b"<stata_dta>", "a Stata file", "write it as CSV (export delimited)"),
    (b"$FL2", "an SPSS file", "save it as CSV"),
    (b"$FL3", "an SPSS file", "save it as CSV"),
    (b"RDX", "a file of R's save()", "write the table as CSV (write.csv)"),
    (b"X\n\0\0\0", "a file of R's saveRDS()", "write the table as CSV (write.csv)"),
    (b"\x28\xb5\x2f\xfd", "packed by zstd", "unpack it first (unzstd)"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", "unpack it, and give the file that is meant"),
    (b"Rar!", "a RAR archive", "unpack it, and give the file that is meant"),
    (b"%PDF", "a PDF file", "give the table itself, as CSV"),
    (b"\x89PNG", "a picture", "give a table, as CSV"),
    (b"Obj\x01", "an Avro file", "write it as Parquet or CSV"),
    (b"ORC", "an ORC file", "write it as Parquet or CSV"),
)  # fmt: skip
"""What other files begin with, what they are, and what to do."""

TEXTS = ((b"<?xml", "XML"), (b"{", "JSON"), (b'[{', "JSON"), (b"[[", "JSON"), (b"[\n", "JSON"),
         (b"[ ", "JSON"), (b"@relation", "an ARFF file (Weka)"))  # fmt: skip
"""What other text begins with, in small letters."""

WIDE = (b"\xff\xfe", b"\xfe\xff")

PICKLES = tuple(b"\x80" + bytes([version]) for version in range(2, 6))


def format_of(path: PathLike, source: str, encoding: str | None = None) -> str:
    """Return the format of a file: "hdf5", "parquet", "arrow", "npy", "npz" or "text".

    FileError for formats that are not read, with what to do. ``encoding`` is of text, if it is
    known.
    """
    file = check_readable(path)
    with open_regular(file) as opened:
        start = opened.read(START)
        if packing_of(start) == "zip" and (kind := _of_zip(file, source)):
            return kind
    for mark, kind in KNOWN:
        if start.startswith(mark):
            return kind
    if _is_hdf5(file):
        return "hdf5"
    if packing_of(start) is None:
        _refuse_other(start, source, file, encoding)
        return _text(file, source)
    with open_unpacked(file) as stream:
        inner = stream.read(START)
    for mark, kind in KNOWN:
        if inner.startswith(mark):
            raise FileError(f"{source} is packed {kind.upper()}; unpack it first")
    if inner[257:262] == b"ustar":
        raise FileError(f"{source} is an archive (tar); unpack it, and give the file meant")
    if packing_of(inner) is not None:
        raise FileError(f"{source} is packed twice; unpack it first")
    _refuse_other(inner, source, file, encoding)
    return _text(file, source)


def _text(file: Path, source: str) -> str:
    """Return "text", but of a file that is called otherwise."""
    called = ENDINGS.get(file.suffix.lower())
    if called is not None:
        raise FileError(f"{source} is not {called}, although it is called so; is it damaged?")
    return "text"


def _is_hdf5(file: Path) -> bool:
    """Whether HDF5 lies in a file behind something else."""
    import h5py

    return bool(h5py.is_hdf5(str(file)))


def _of_zip(file: Path, source: str) -> str | None:
    """Return the format of what is a zip file by itself; None of a packed file."""
    with open_regular(file) as opened, open_zip(opened, source) as archive:
        names = archive.namelist()
    if names and all(name.endswith(".npy") for name in names):
        return "npz"
    if any(name.startswith(("xl/", "word/", "ppt/")) for name in names):
        raise FileError(f"{source} is an Excel file; {SAVE_CSV}")
    if "mimetype" in names or "Index/Document.iwa" in names:
        raise FileError(f"{source} is a spreadsheet or document; {SAVE_CSV}")
    return None


def _refuse_other(start: bytes, source: str, file: Path, encoding: str | None) -> None:
    """Raise FileError if a file is no table of text."""
    for mark, what, instead in OTHERS:
        if start.startswith(mark):
            raise FileError(f"{source} is {what}; {instead}")
    if start.startswith(PICKLES):
        raise FileError(
            f"{source} is a pickle, which could run any program and is not read; write the table "
            "as Parquet or CSV"
        )
    plain = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if plain[:15].lower().startswith((b"<!doctype html", b"<html")):
        raise FileError(f"{source} is a web page, not a table; download the file itself")
    for mark, what in TEXTS:
        if plain[: len(mark)].lower() == mark or (mark[:1] == b"@" and mark in plain.lower()):
            raise FileError(f"{source} is {what}; write the table as CSV")
    if b"\0" in start and encoding is None and not start.startswith(WIDE):
        halves = {order: start[at::2] for order, at in (("le", 1), ("be", 0))}
        order = next((one for one, half in halves.items() if 2 * half.count(0) > len(half)), None)
        if order is not None and not min(half.count(0) for half in halves.values()):
            raise FileError(f"{source} is no UTF-8 text; name its encoding: ",
                            Setting("encoding", f"utf-16-{order}"))  # fmt: skip
        raise FileError(
            f"{source} is no text, and {file.suffix or 'its format'} is not read; give CSV, "
            "Parquet, Feather, .npy, .npz, .h5ad or HDF5"
        )
