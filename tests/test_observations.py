"""Partial matrices: files, names, what is refused, how entries are dealt out and hidden."""

from contextlib import contextmanager

import h5py
import numpy as np
import pytest

from vpem.errors import FileError, InputError
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.observations import read_observations, write_observations
from vpem.terms.lowrank.entries import from_matrices, hide, split, weighted
from vpem.terms.lowrank.observations import check_law, make_law

from .tables import each, over

CSV = """\
observer,row,column,value
ann,pond,2020-01,3
ann,lake,2020-02,0
bob,pond,2020-01,5
bob,pond,2020-02,1
bob,lake,2019-12,2
"""


def partial(seed=0, shape=(7, 5), share=0.6):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=shape)
    seen = rng.random(shape) < share
    seen[np.arange(shape[0]), np.arange(shape[0]) % shape[1]] = True
    return np.where(seen, X, np.nan)


def entries(rows, columns):
    """A file in which the observer has a list in place of a matrix."""
    lists = {"rows": rows, "columns": columns, "values": [1.0, 2.0]}
    return {"observers/a": None} | {f"observers/a/{name}": one for name, one in lists.items()}


@contextmanager
def refused(words):
    """What is raised says this, in one line."""
    with pytest.raises((InputError, FileError)) as caught:
        yield
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def same(one, two):
    assert (one.row_names, one.column_names, one.names) == (
        two.row_names, two.column_names, two.names,
    )  # fmt: skip
    for name in ("places", "values"):
        for a, b in zip(getattr(one, name), getattr(two, name), strict=True):
            np.testing.assert_array_equal(a, b)


# ---- CSV ----------------------------------------------------------------------------------------


def test_a_long_table(tmp_path):
    found = read_observations(write(tmp_path / "a.csv", CSV))
    assert found.names == ("ann", "bob")
    assert found.row_names == ("lake", "pond")
    assert found.column_names == ("2019-12", "2020-01", "2020-02")
    np.testing.assert_array_equal(found.matrix(1), [[2, np.nan, np.nan], [np.nan, 5, 1]])
    np.testing.assert_array_equal(found.mean, [[2, np.nan, 0], [np.nan, 4, 1]])
    np.testing.assert_array_equal(found.times_seen, [[1, 0, 1], [0, 2, 1]])
    assert found.counts.tolist() == [2, 3]


def test_order_of_lines_and_columns_does_not_matter(tmp_path):
    lines = CSV.splitlines()
    turned = [",".join(reversed(line.split(","))) for line in [lines[0], *reversed(lines[1:])]]
    one = read_observations(write(tmp_path / "a.csv", CSV))
    two = read_observations(write(tmp_path / "b.csv", "\ufeff" + "\n".join(turned) + "\n\n"))
    same(one, two)
    noted = "\n".join([f"note,{lines[0]}", *(f"sunny,{line}" for line in lines[1:])])
    same(one, read_observations(write(tmp_path / "c.csv", noted)))


def test_numbers_are_ordered_by_size(tmp_path):
    lines = [f"{o},{r},{c},1" for o in (10, 9) for r in (100, 20) for c in (-1, 3.5, 11)]
    text = "observer,row,column,value\n" + "\n".join(lines)
    found = read_observations(write(tmp_path / "a.csv", text))
    names = (found.names, found.row_names, found.column_names)
    assert names == (("9", "10"), ("20", "100"), ("-1", "3.5", "11"))


@each(
    ("text", "words"),
    [
        ("", "is empty"),
        ("observer,row,column,value\n", "has a header but no entries"),
        ("observer,row,value\na,b,1\n", "has no column 'column'"),
        ("observer,row,colum,value\na,b,c,1\n", "(did you mean 'colum'?)"),
        ("observer,row,column,value,Value\na,b,c,1,2\n", "has the column 'value' twice"),
        ("a,b,c,1\n", "has no rows"),
        (CSV + "ann,pond,2020-01,4\n", "'ann' has row 'pond', column '2020-01' twice (3 and 4)"),
        (CSV + "ann,pond\n", "line 7 has 2 fields, the header 4"),
        (CSV + "ann,sea,2020-01,\n", "line 7 has the value '', which is no finite number"),
        (CSV + "ann,sea,2020-01,nan\n", "value 'nan', which is no finite number"),
        (CSV + "ann,sea,2020-01,inf\n", "value 'inf', which is no finite number"),
        (CSV + "ann,sea,2020-01,1e999\n", "value '1e999', which is no finite number"),
        (CSV + "ann,sea,2020-01,many\n", "leave out the lines of what was not seen"),
        (CSV + ",sea,2020-01,3\n", "line 7 names no observer"),
        (CSV + "ann,,2020-01,3\n", "line 7 names no row"),
        (CSV + 'ann,"sea,2020-01,3\n', "is no CSV"),
    ],
)
def test_bad_tables(tmp_path, text, words):
    with refused(words):
        read_observations(write(tmp_path / "a.csv", text))


# ---- HDF5 ---------------------------------------------------------------------------------------


def test_what_is_written_is_read_again(tmp_path):
    given = from_matrices(
        {"b/c": partial(0), "ä": partial(1)}, row_names=[f"r{i}" for i in range(7)]
    )
    write_observations(tmp_path / "a.h5", given)
    same(read_observations(tmp_path / "a.h5"), given)
    with pytest.raises(FileError, match="exists"):
        write_observations(tmp_path / "a.h5", given)


def test_matrices_with_nan_and_lists_without_names(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in ("10", "9"):
            file[f"observers/{name}"] = partial(int(name))
        file["column_names"] = np.arange(2000, 2005)
    found = read_observations(tmp_path / "a.h5")
    assert (found.names, found.column_names[0]) == (("9", "10"), "2000")
    np.testing.assert_array_equal(found.matrix(0), partial(9))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, values in entries([1, 0], [0, 1]).items():
            if values is not None:
                file[name] = values
    found = read_observations(tmp_path / "a.h5")
    assert found.row_names == ("row 0", "row 1")
    np.testing.assert_array_equal(found.mean, [[np.nan, 2], [1, np.nan]])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["Y"] = np.ones((2, 2))
    with pytest.raises(FileError, match="has no X"):
        read_observations(tmp_path / "a.h5")
    assert read_observations(tmp_path / "a.h5", "Y").shape == (2, 2)


def test_a_dataset_with_nan_is_one_observer(tmp_path):
    X = partial(3)
    ids = np.array([f"s{i}" for i in range(7)])
    write_dataset(tmp_path / "a.h5", Dataset(X, tuple("abcde"), ids=ids))
    found = read_observations(tmp_path / "a.h5")
    assert (found.n_observers, found.column_names, found.row_names[0]) == (1, tuple("abcde"), "s0")
    np.testing.assert_array_equal(found.mean, X)
    np.testing.assert_array_equal(read_observations(tmp_path / "a.h5", "X").mean, X)


@each(
    ("changes", "words"),
    [
        ({"observers/a": np.array([[b"x"]])}, "must hold"),
        ({"observers/b": np.ones((3, 3))}, "must have shape 7 x 5, got 3 x 3"),
        ({"observers/a": None}, "the group observers is empty"),
        ({"observers": 3}, "observers must be a group"),
        ({"observer_names": ["a", "b"]}, "must have shape 1, got 2"),
        ({"observers/b": partial(0), "observer_names": ["a", "a"]}, "two observers are called 'a'"),
        ({"row_names": ["a"]}, "must have shape 1 x any, got 7 x 5"),
        ({"observers/b/c": [0]}, "all have matrices or all have lists"),
        ({"observers/b": h5py.ExternalLink("other.h5", "/x")}, "is a link to another file"),
        (entries([0, 1], [0]), "must have shape 2, got 1"),
        (entries([0, -1], [0, 1]), "has an entry in row -1"),
        (entries([0, 10**12], [0, 1]), "number them from 0"),
        ({"encoding-type": "vpem-model"}, "is a vpem-model file"),
        ({"encoding-type": "vpem-observations", "encoding-version": "9.0"}, "newer vpem"),
    ],
)
def test_bad_files(tmp_path, changes, words):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["observers/a"] = partial(0)
        for path, value in changes.items():
            home = file.attrs if path.startswith("encoding") else file
            if path in home:
                del home[path]
            if value is not None:
                home[path] = value
    with refused(words):
        read_observations(tmp_path / "a.h5")


# ---- what is refused ----------------------------------------------------------------------------


def holed(rows=(), columns=()):
    X = np.ones((4, 3))
    X[list(rows)] = np.nan
    X[:, list(columns)] = np.nan
    return X


@each(
    ("given", "words"),
    [
        (holed(columns=[0, 2]), "any entry of columns 'column 0', 'column 2'"),
        (
            holed(rows=[1], columns=[1]),
            "of row 'row 1' and of column 'column 1', so nothing can be imputed there; leave such "
            "rows and columns out",
        ),
        (np.full((2, 2), np.nan), "no observer saw a single entry"),
        ([np.ones((2, 2)), np.full((2, 2), np.nan)], "observer 1 saw nothing"),
        (np.array([[1, np.inf], [1, 1]]), "at row 'row 0', column 'column 1' is inf"),
        (np.array([["a"]]), "must have a matrix of numbers"),
        (np.ones(3), "must have a matrix of numbers"),
        (np.ones((0, 3)), "must have a matrix of numbers"),
        ([], "there are no observers"),
        ([np.ones((2, 2)), np.ones((2, 3))], "that of observer 1 is 2 x 3"),
        ({"a": np.ones((2, 2)), 1: np.ones((2, 2)), "1": np.ones((2, 2))}, "have the same name"),
    ],
)
def test_matrices_that_cannot_be_used(given, words):
    with refused(words):
        from_matrices(given)


@each(
    ("law", "value", "words"),
    [
        ("poisson", 1.5, "must be counts (0, 1, 2, ...), but what observer 0 saw"),
        ("poisson", -1, "is -1"),
        ("poisson", 1e300, "is 1e+300"),
        ("bernoulli", 2, "must be 0 or 1"),
        ("bernoulli", 0.5, "row 'row 1', column 'column 2' is 0.5"),
        ("gaussian", 1e200, "must be at most 1e+100"),
    ],
)
def test_values_that_are_not_of_the_law(law, value, words):
    X = np.ones((3, 3))
    check_law(from_matrices(X), make_law(law))
    X[1, 2] = value
    with refused(words):
        check_law(from_matrices(X), make_law(law))


def test_an_entry_of_weight_2_counts_as_two():
    given = from_matrices([partial(0), partial(1), partial(1)])
    once = from_matrices([partial(0), partial(1)])
    heavy = weighted(once, [np.ones(len(once.values[0])), np.full(len(once.values[1]), 2.0)])
    np.testing.assert_allclose(heavy.mean, given.mean, rtol=1e-15)
    np.testing.assert_array_equal(heavy.column_sums()[0], given.times_seen.sum(axis=0))
    with refused("weights must be finite and not negative"):
        weighted(once, [-np.ones(len(one)) for one in once.values])


# ---- dealt out and hidden -----------------------------------------------------------------------


@over(by=["random", "rows"], n=[1, 3, 7])
def test_parts_of_one_matrix(by, n):
    one = from_matrices(partial(4, (9, 6)))
    parts = split(one, n, by, np.random.default_rng(0))
    assert (parts.n_observers, parts.n_copies) == (n, 1)
    assert parts.times_seen.max() == 1
    np.testing.assert_array_equal(parts.mean, one.mean)
    if by == "random":
        assert np.ptp(parts.counts) <= 1
    else:
        holders = np.array([~np.isnan(parts.matrix(i)).all(axis=1) for i in range(n)])
        assert (holders.sum(axis=0) == 1).all()


@each(
    ("given", "n", "by", "words"),
    [
        (partial(4), 8, "rows", "cannot share 7 rows"),
        (np.ones((3, 2)), 7, "random", "cannot share 6 entries"),
        (partial(4), 0, "random", "at least 1, got 0"),
        (partial(4), 2, "columns", "split must be one of"),
        ([partial(0), partial(1)], 2, "random", "has 2 observers of its own"),
    ],
)
def test_what_cannot_be_dealt_out(given, n, by, words):
    with refused(words):
        split(from_matrices(given), n, by, np.random.default_rng(0))


@each("seed", range(4))
def test_hidden_entries_are_hidden_from_all(seed):
    rng = np.random.default_rng(seed)
    given = from_matrices([partial(seed, (20, 12)), partial(seed + 9, (20, 12))])
    kept, hidden = hide(given, 0.1, rng)
    seen = given.times_seen > 0
    assert hidden.n_places == round(0.1 * seen.sum())
    away = np.zeros(seen.size, dtype=bool)
    away[hidden.places] = True
    np.testing.assert_array_equal(kept.times_seen.ravel() > 0, seen.ravel() & ~away)
    assert kept.n_entries + len(hidden.values) == given.n_entries
    for place in np.unique(hidden.places):
        found = np.sort(hidden.values[hidden.places == place])
        both = [given.matrix(i).ravel()[place] for i in range(2)]
        np.testing.assert_array_equal(found, np.sort([v for v in both if not np.isnan(v)]))


def test_hiding_spares_the_last_of_a_row_a_column_and_an_observer():
    X = np.full((30, 30), np.nan)
    np.fill_diagonal(X, 1.0)
    X[0], X[:, 0] = 1.0, 1.0
    single = np.full((30, 30), np.nan)
    single[0, 0] = 2.0
    kept, hidden = hide(from_matrices([X, single]), 0.9, np.random.default_rng(0))
    seen = kept.times_seen > 0
    assert seen.any(axis=0).all()
    assert seen.any(axis=1).all()
    assert kept.counts.all()
    assert 0 not in hidden.places


@each(
    ("X", "share", "words"),
    [
        (np.where(np.eye(4) > 0, 1.0, np.nan), 0.5, "no entry can be hidden"),
        *((partial(), share, "holdout must be") for share in (0, 1, -0.1, 1.5, np.nan, "x")),
    ],
)
def test_shares_that_cannot_be_hidden(X, share, words):
    with refused(words):
        hide(from_matrices(X), share, np.random.default_rng(0))
