"""Small real datasets that come with the package: their names, where they lie, and copies."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from vpem.errors import InputError, check_choice
from vpem.files.hdf5 import atomic_write, check_writable
from vpem.files.opening import PathLike
from vpem.files.temporaries import check_ending, ending_of, new_folder


@dataclass(frozen=True)
class Example:
    """A dataset that comes with the package."""

    file: str
    rows: int
    columns: int  # features; of tables all columns
    what: str  # what was measured
    source: str
    licence: str


_UCI = "UCI Machine Learning Repository"

EXAMPLES = {
    "breast_cancer": Example(
        "breast_cancer.h5", 569, 30, "cell nuclei of breast masses; labels, 10 agents",
        f"W. H. Wolberg, W. N. Street, O. L. Mangasarian, {_UCI}", "CC BY 4.0",
    ),
    "wine": Example(
        "wine.h5", 178, 13, "wines of three growers; labels",
        f"M. Forina and others, S. Aeberhard, {_UCI}", "CC BY 4.0",
    ),
    "heart": Example(
        "heart.csv", 303, 15, "patients with chest pain: numbers and categories; a diagnosis",
        f"A. Janosi, W. Steinbrunn, M. Pfisterer, R. Detrano, {_UCI}", "CC BY 4.0",
    ),
    "oxford_boys": Example(
        "oxford_boys.csv", 234, 3, "heights of 26 boys, nine each; for vpem saem",
        "H. Goldstein (1987), table Oxboys of R's nlme", "GPL 2 or later (nlme)",
    ),
    "theophylline": Example(
        "theophylline.csv", 132, 5, "a drug in 12 subjects over 24 h; for vpem saem",
        "R. Upton, table Theoph of R's datasets", "GPL 2 or later (R)",
    ),
    "notices": Example(
        "notices.csv", 4920, 3, "240 notices of a village, simulated; for vpem saem --model lda",
        "data/scripts/make_notices.py", "that of vpem",
    ),
}  # fmt: skip
"""The datasets, by name."""


def folder_of_examples() -> Path:
    """Return where they lie: in the installed package, or in the folder ``data/`` of a clone."""
    package = Path(__file__).parents[1]
    installed = package / "examples"
    return installed if installed.is_dir() else package.parent / "data"


def example_path(name: str) -> Path:
    """Return the file of a small real dataset that comes with vpem.

    Parameters
    ----------
    name : str
        ``"breast_cancer"`` (569 rows, 30 features), ``"wine"`` (178 rows, 13 features) or
        ``"heart"`` (303 rows; numbers and categories), for `read_dataset`; ``"oxford_boys"`` (26
        individuals) or ``"theophylline"`` (12 individuals), for `read_individuals`.

    Returns
    -------
    Path
        A file to read. `vpem data copy` makes a copy to write to.

    Raises
    ------
    InputError
        If there is no such dataset.

    Notes
    -----
    Sources and licences: ``vpem data list``, and the file ``README.md`` beside them.
    """
    check_choice("name", name, EXAMPLES)
    return folder_of_examples() / EXAMPLES[name].file


def copy_example(name: str, target: PathLike, force: bool = False) -> None:
    """Copy a dataset of `EXAMPLES`, all or nothing; to a .csv file as features, then labels."""
    source = example_path(name)
    if ending_of(source) == ".csv":
        if ending_of(target) not in (".csv", ""):
            raise InputError(f"{name} is copied to a .csv file, got {os.fspath(target)}")
    elif check_ending(target, "results") not in (".h5", ".hdf5"):
        from vpem.files.data import read_dataset
        from vpem.files.results import write_columns

        dataset = read_dataset(source)
        columns = dict(zip(dataset.feature_names, dataset.X.T, strict=True))
        if dataset.labels is not None:
            columns["label"] = dataset.labels
        write_columns(target, columns, "table", force)
        return
    _copy(source, target, force)


def copy_all(folder: PathLike, force: bool = False) -> None:
    """Copy all datasets and licences into a folder; nothing if a file exists, unless ``force``."""
    home = Path(folder)
    names = [*(example.file for example in EXAMPLES.values()), "README.md"]
    with new_folder(home):
        for name in names:
            check_writable(home / name, force)
        for name in names:
            _copy(folder_of_examples() / name, home / name, force)


def _copy(source: Path, target: PathLike, force: bool) -> None:
    with atomic_write(target, force) as temporary:
        shutil.copyfile(source, temporary)
