"""Run under mpiexec by test_mpi.py, each rank in a directory of its own party's file.

What cannot be aligned is said by all ranks alike, and they can go on.
"""

import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.mpi_support import on_ranks
from vpem.engines.placement import Placement
from vpem.errors import FileError, InputError, VpemWarning
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.parties.joining import join_parties
from vpem.files.parties.opening import Party

NAMES = ("a", "b", "c")


def main(engine):
    warnings.simplefilter("error")
    holders = Placement.evenly(engine, 3, NAMES)
    rank = engine.rank
    n_checked = 0

    def share(ids, *words, features=("x", "y"), **options):
        for file in Path().glob("*.h5"):
            file.unlink()
        own = ids[rank] if isinstance(ids, list) else ids
        if own is not None:
            X = np.arange(2.0 * len(own)).reshape(-1, 2) + 100 * rank
            write_dataset(f"{NAMES[rank]}.h5", Dataset(X, features, ids=own))
        parties = [Party(name, f"{name}.h5") for name in NAMES]
        return join_parties(parties, *words, holders=holders, **options)

    def refused(kind, sentence, *words, **options):
        nonlocal n_checked
        with pytest.raises(kind, match=sentence) as caught:
            share(*words, **options)
        told = engine.allgather(str(caught.value))
        assert told == told[:1] * engine.size
        n_checked += 1

    rows = np.arange(40)
    share(rows)
    kept, found = share([rows, rows[::-1], rows[5:]], "ids")
    assert kept.X.shape == (35, 2)
    assert kept.n_features == 6
    assert np.array_equal(kept.X[:, 0] - 100 * rank, 2.0 * found.rows[rank])
    assert kept.feature_names[:3] == ("a.x", "a.y", "b.x")
    twice = np.array([1, 2, 1])
    words = np.array([f"p{row}" for row in rows])
    refused(InputError, "rows 0 and 2 of party 'b' have", [rows, twice, rows], "ids")
    refused(InputError, "of party 'c' strings", [rows, rows, words], "ids")
    refused(InputError, "party 'c' has no id in common", [rows, rows, rows + 40], "ids")
    refused(InputError, "'b' has the same ids in another order", [rows, rows[::-1], rows])
    refused(FileError, "party 'b': 'b.h5' does not exist", [rows, None, rows], "ids")
    refused(FileError, "party 'a': 'a.h5' does not exist", [None, None, None], "ids")
    refused(InputError, "party 'b' has 39 rows, party 'a' 40", [rows, rows[1:], rows])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", VpemWarning)
        share([rows, rows + 38, rows + 38], "ids")
    assert ["only 2 rows are in common" in str(one.message) for one in caught] == [True]
    for number, key in enumerate(("0123456789abcdef" * 4, "fedcba9876543210" * 4)):
        Path(f"key{number}").write_text(key)
    keys = {"key": f"key{int(rank == 2)}"}
    refused(InputError, "party 'c' has another key than party 'a'", rows, "hmac", **keys)
    if rank == 1:
        Path("key0").unlink()
    refused(FileError, "'key0' does not exist", rows, "hmac", key="key0")
    return f"checked {n_checked}"


if __name__ == "__main__":
    on_ranks(main)
