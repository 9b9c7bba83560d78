"""Make heart.csv of data/ from the copy of UCI's Heart Disease that comes with Orange.

Nothing of Orange is run: its wheel is fetched and read as an archive::

    pip download --no-deps --only-binary :all: orange3
    python data/scripts/make_heart.py orange3-*.whl

``--force`` replaces the file, ``--folder`` writes elsewhere.
"""

from __future__ import annotations

import argparse
import csv
import io
import zipfile
from pathlib import Path

from vpem.files.hdf5 import atomic_write

__all__ = ["main"]

TABLE = "Orange/datasets/heart_disease.tab"
N_PATIENTS = 303

COLUMNS = (
    "age", "sex", "chest_pain", "resting_pressure", "cholesterol", "high_fasting_sugar",
    "resting_ecg", "max_heart_rate", "exercise_angina", "st_depression", "st_slope",
    "coloured_vessels", "thallium_scan", "diagnosis",
)  # fmt: skip

SPELLED = {
    "chest_pain": {"typical ang": "typical angina", "atypical ang": "atypical angina"},
    "resting_ecg": {
        "left vent hypertrophy": "hypertrophy", "ST-T abnormal": "abnormal ST-T",
    },
    "thallium_scan": {"reversable defect": "reversible defect"},
    "diagnosis": {"0": "healthy", "1": "diseased"},
}  # fmt: skip
"""What is written for a word of the table, where it is another."""


def rows_of(text: str) -> list[list[str]]:
    """Return the patients, each with a name, from a table whose first three lines describe it."""
    rows = []
    for number, line in enumerate(text.splitlines()[3:], start=1):
        values = ["" if value == "?" else value.strip() for value in line.split("\t")]
        if len(values) != len(COLUMNS):
            raise SystemExit(f"line {number} has {len(values)} values, not {len(COLUMNS)}")
        told = [
            SPELLED.get(name, {}).get(value, value)
            for name, value in zip(COLUMNS, values, strict=True)
        ]
        rows.append([f"P{number:03}", *told])
    if len(rows) != N_PATIENTS:
        raise SystemExit(f"the table has {len(rows)} patients, not {N_PATIENTS}")
    return rows


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--force", action="store_true", help="replace the file")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parents[1])
    asked = parser.parse_args()
    with zipfile.ZipFile(asked.wheel) as wheel:
        rows = rows_of(wheel.read(TABLE).decode())
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(["patient", *COLUMNS])
    writer.writerows(rows)
    with atomic_write(asked.folder / "heart.csv", asked.force) as temporary:
        Path(temporary).write_text(written.getvalue())


if __name__ == "__main__":
    main()
