"""Make oxford_boys.csv and theophylline.csv of data/ from R's own data files.

R is not needed, but its packages and a reader of its files::

    apt-get download r-cran-nlme r-base-core
    for package in r-*.deb; do dpkg-deb -x $package unpacked; done
    pip install rdata
    python data/scripts/make_longitudinal.py unpacked/usr/lib/R/library

``--force`` replaces the files, ``--folder`` writes elsewhere.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import lzma
import warnings
import zlib
from pathlib import Path
from typing import Any

from vpem.files.hdf5 import atomic_write

__all__ = ["main", "read_table"]

TABLES = {
    "oxford_boys.csv": (
        "nlme", "Oxboys", {"id": "Subject", "time": "age", "value": "height"},
    ),
    "theophylline.csv": (
        "datasets", "Theoph",
        {"id": "Subject", "time": "Time", "value": "conc", "dose": "Dose", "weight": "Wt"},
    ),
}  # fmt: skip
"""File, package, table in it, and its columns under our names."""


def _inflate(packed: bytes) -> bytes:
    """Unpack what R stores of one object: the length, perhaps a letter, then the packed bytes."""
    if packed[4:5] == b"Z":
        lzma2 = [{"id": lzma.FILTER_LZMA2, "preset": 6}]
        return lzma.decompress(packed[5:], format=lzma.FORMAT_RAW, filters=lzma2)
    return zlib.decompress(packed[4:])


def read_table(library: Path, package: str, name: str) -> Any:
    """Read a data frame out of the lazy-load database of an installed R package."""
    import rdata

    def convert(data: bytes) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # classes that are no Python classes
            return rdata.conversion.convert(rdata.parser.parse_data(data))

    base = library / package / "data" / "Rdata"
    index = base.with_suffix(".rdx").read_bytes()
    gzipped = index[:2] == b"\x1f\x8b"
    variables = convert(gzip.decompress(index) if gzipped else zlib.decompress(index))["variables"]
    place, length = (int(number) for number in variables[name])
    return convert(_inflate(base.with_suffix(".rdb").read_bytes()[place : place + length]))


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description="Make oxford_boys.csv and theophylline.csv.")
    parser.add_argument("library", type=Path, help="folder with the packages nlme and datasets")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--force", action="store_true", help="replace existing files")
    options = parser.parse_args()
    for file, (package, name, columns) in TABLES.items():
        table = read_table(options.library, package, name)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        # Sorted by the number of the individual, as text in R: rows of one stay as they are.
        order = sorted(range(len(table)), key=lambda row: int(table[columns["id"]].iloc[row]))
        for row in order:
            cells = [table[column].iloc[row] for column in columns.values()]
            writer.writerow([cells[0], *(repr(float(cell)) for cell in cells[1:])])
        target = options.folder / file
        with atomic_write(target, options.force) as temporary:
            temporary.write_text(text.getvalue(), encoding="utf-8")
        print(f"wrote {target}")


if __name__ == "__main__":
    main()
