"""How much memory an answer takes beside its numbers, and what columns read in pieces hold."""

import subprocess
import sys
from io import BytesIO
from pathlib import Path

import pytest
from pyarrow import csv

from vpem.files.readers import text
from vpem.files.readers.frames import MISSING_MARKS
from vpem.files.table_settings import TableSettings

from .cli_support import done, run
from .tables import each

COPIES, SPARE = 2, 40e6
"""What a command takes beside what it takes of few rows: copies of the numbers, and bytes for runs
of rows and pieces of files, however many these are."""

PEAKS = """
import ctypes
import gc
import sys
import h5py
import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet
import vpem_cli

def memory(name):
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith(name))

def write(values, name):
    np.save(name + ".npy", values)
    with h5py.File(name + ".h5", "w") as file:
        file["X"] = values
    table = pa.table({f"feature {j}": column for j, column in enumerate(values.T)})
    csv.write_csv(table, name + ".csv")
    parquet.write_table(table, name + ".parquet")

rng = np.random.default_rng(0)
values = rng.standard_normal((100_000, 20)) + 3 * rng.integers(0, 3, (100_000, 1))
write(values[:500], "few")
write(values, "many")
gaps = {"id": [f"patient {n:07d}" for n in range(100_000)]}
gaps |= {f"{j}": pa.array(x, mask=rng.random(100_000) < 0.05) for j, x in enumerate(values.T)}
for name, n_rows in ("few", 500), ("many", 100_000):
    parquet.write_table(pa.table(gaps)[:n_rows], name + ".pq")
late = {"x": ["1.5"] * 80_000 + ["word"] * 20_000} | {f"{j}": x for j, x in enumerate(values.T)}
csv.write_csv(pa.table(late)[-500:], "few.txt")
csv.write_csv(pa.table(late), "many.txt")
del gaps, late
n_bytes = values.nbytes
del values
FIT = "fit -k 3 --max-iter 2 -o m.h5 --force -q"
PREDICT, SCORE = "predict m.h5 -o p.csv --force -q", "score m.h5 -q"
for kind, commands in {
    "csv": (FIT, FIT + " --agents 10", PREDICT, SCORE),
    "parquet": (FIT, PREDICT, SCORE, FIT + " --agents 10"),
    "npy": (FIT + " --agents 10", PREDICT),
    "h5": (FIT, SCORE),
    "txt": (FIT,),
    "pq": (FIT + " --missing marginalize",),
}.items():
    for words in commands:
        vpem_cli.run([*words.split(), f"few.{kind}"])
        # What the last one has left behind, and would be used again, goes back to the system.
        gc.collect()
        pa.default_memory_pool().release_unused()
        getattr(ctypes.CDLL(None), "malloc_trim", lambda most: 0)(0)
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before = memory("VmRSS")
        vpem_cli.run([*words.split(), f"many.{kind}"])
        print("PEAK", kind, words.split()[0], (memory("VmHWM") - before) / n_bytes, n_bytes)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux says the peak of a while")
def test_an_answer_takes_two_copies_of_its_numbers(tmp_path):
    """From text, Parquet, HDF5 and NumPy, by one agent and by ten; three where values are missing.

    Of the text one column holds words from beyond its first pieces on.
    """
    ended = subprocess.run(
        [sys.executable, "-c", PEAKS], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    peaks = [line.split()[1:] for line in ended.stdout.splitlines() if line.startswith("PEAK")]
    assert len(peaks) == 14, ended.stdout + ended.stderr
    most = COPIES + SPARE / int(peaks[0][-1])
    assert [one for one in peaks if not 0.5 < float(one[-2]) < most + (one[0] == "pq")] == []


WIDE = """
import pyarrow.csv
from vpem.files.data import read_data

def memory():
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

read_data("few.csv")
before = memory()
X = read_data("wide.csv").X
print((memory() - before) / X.nbytes)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux says what is in memory")
def test_what_has_parsed_many_columns_is_given_back(tmp_path):
    """To the system, before a fit takes memory of its own."""
    lines = [",".join(f"x{j}" for j in range(2000))]
    lines += [",".join(f"{n}.{j:04d}" for j in range(2000)) for n in range(1000)]
    (tmp_path / "wide.csv").write_text("\n".join(lines))
    (tmp_path / "few.csv").write_text("\n".join(lines[:9]))
    ended = subprocess.run(
        [sys.executable, "-c", WIDE], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert 0.9 < float(ended.stdout) < 2.3


@each(
    ("first", "later", "found_out"),
    [
        ("1", "2", True),
        ("1", "2.5", True),  # whole numbers, and then others
        ("1", "1e5", True),
        ("", "7", True),  # nothing, and then numbers
        ("", "7.25", True),
        ("NA", "-1e3", True),
        ("1.5", "0x1F", True),
        ("1", "word", True),
        ("1", "true", False),  # yes and no are 1 and 0, too: no piece shows what all hold
        ("true", "5", True),
        ("true", "1", True),
        ("", "word", True),
        ("", "2024-01-31", True),
        ("1", '"two\nlines, and a comma"', False),
        ("word", "3", True),
        ('"1"', "2.5", True),
        ("2024-01-31", "soon", True),
        ("2024-01-31", "2024-01-31 10:00:00", False),
        ("inf", "1", True),
        (" 4", "x", True),
    ],
)
def test_pieces_of_a_text_are_what_the_whole_is(tmp_path, monkeypatch, first, later, found_out):
    """What a column holds is found out by all of it, by pieces of it where they can show it."""
    lines = ["a,b", *(f"{one},{row / 8}" for row, one in enumerate([first] * 90 + [later] * 10))]
    content = "\n".join(lines).encode()
    file = tmp_path / "table.csv"
    file.write_bytes(content)
    monkeypatch.setattr(text, "PIECE_BYTES", 200)
    monkeypatch.setattr(text, "OF_A_PIECE", 1)
    frame = text.text_frame(file, "table", TableSettings(), ",")
    options = csv.ConvertOptions(null_values=[*MISSING_MARKS])
    parsing = csv.ParseOptions(newlines_in_values=True)
    expected = csv.read_csv(BytesIO(content), parse_options=parsing, convert_options=options)
    reads, read_csv = [], csv.read_csv
    monkeypatch.setattr(csv, "read_csv", lambda *args: reads.append(args) or read_csv(*args))
    found = frame.read([0, 1], [])
    monkeypatch.setattr(csv, "read_csv", read_csv)
    assert [one.type for one in found] == expected.schema.types
    assert all(one.equals(other) for one, other in zip(found, expected.columns, strict=True))
    assert ({*reads[-1][-1].column_types} == {"0", "1"}) == found_out


def test_columns_that_change_are_found_out_in_one_pass(tmp_path, monkeypatch):
    """However many become fractions or words, each at another place."""
    rows = [["7"] * 8 for _ in range(100)]
    for place, row in enumerate(range(20, 100, 10)):
        rows[row][place] = "x" if place % 3 == 1 else "7.5"
    file = tmp_path / "table.csv"
    file.write_text("\n".join(",".join(row) for row in [[*"abcdefgh"], *rows]))
    monkeypatch.setattr(text, "PIECE_BYTES", 100)
    monkeypatch.setattr(text, "OF_A_PIECE", 1)
    monkeypatch.setattr(text, "BLOCK_BYTES", 200)
    frame, opened = text.text_frame(file, "table", TableSettings(), ","), []
    own = text.TextTable.open
    monkeypatch.setattr(text.TextTable, "open", lambda self: opened.append(1) or own(self))
    kinds = [str(one.type) for one in frame.read(range(8), [])]
    assert kinds == ["string" if place % 3 == 1 else "double" for place in range(8)]
    assert len(opened) == 4  # of these the first is for a piece of it alone


@each(
    "words",
    [
        "fit {} -k 2 -o new.h5",
        "select {} -k 1-2",
        "bootstrap {} -k 2",
        "discriminant {} --label-column label -o new.h5",
        "kmeans {} -k 2 -o new.h5",
        "fedem {} -k 2 -o new.h5",
        "predict m.h5 {}",
        "score m.h5 {}",
        "evaluate m.h5 {} --label-column label",
    ],
)
def test_a_gap_is_named_however_many_rows_there_are(tmp_path, capsys, monkeypatch, words):
    """And nothing is made before that has a number for each pair of rows."""
    monkeypatch.chdir(tmp_path)
    if not Path("m.h5").exists():
        rows = "a,1.5,2\nb,2.5,7\n"
        Path("few.csv").write_text("label,x,y\n" + rows * 50)
        Path("many.csv").write_text("label,x,y\n" + rows + "a,1.25,\n" + rows * 100_000)
        done(capsys, "fit", "few.csv", "-k", "1", "-o", "m.h5")
    result = run(capsys, *words.format("many.csv").split())
    said = result.err.splitlines()[-1]
    assert (result.code, result.out) == (2, "")
    assert said.startswith("vpem: error: row 2, feature 1 ('y') is NaN; fill in or remove")
