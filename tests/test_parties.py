"""Parties: who they are, what is read of whom, and the dataset they make together."""

import gzip
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from vpem.engines.engine import Engine
from vpem.engines.placement import Placement
from vpem.errors import FileError, InputError, VpemError, VpemWarning
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.parties.joining import cut, file_stems, join_parties, joined_names, stack_parties
from vpem.files.parties.observing import observe_parties
from vpem.files.parties.opening import (
    Holding,
    OpenParties,
    Party,
    choose_parties,
    open_parties,
    open_party,
    read_manifest,
)
from vpem.files.table_settings import TableSettings
from vpem.fits.imputation import fit_imputation
from vpem.network.graph import make_graph
from vpem.network.partition import Partition, contiguous
from vpem.sums.connect import connect_workers, spread_workers
from vpem.terms.lowrank.entries import from_triplets

from .tables import each
from .thread_engine import ThreadEngine, together


def put(file, names, ids=None, *, n_samples=4, seed=0, **more):
    """Write a party's file; returns its values."""
    n_samples = n_samples if ids is None else len(ids)
    X = np.random.default_rng(seed).normal(size=(n_samples, len(names)))
    ids = None if ids is None else np.array(ids)
    write_dataset(file, Dataset(X, tuple(names), ids=ids, **more), force=True)
    return X


@pytest.fixture
def files(tmp_path):
    """Three parties' files: two rows in common, an age that two of them know."""
    X = {
        "hospital": put(tmp_path / "hospital.h5", ["age", "pulse"], ["a", "b", "c", "d"]),
        "lab": put(tmp_path / "lab.h5", ["iron"], ["d", "x", "b"], seed=1),
        "insurer": put(tmp_path / "insurer.h5", ["age", "cost"], ["b", "c", "d"], seed=2),
    }
    return tmp_path, X


ALL = ("hospital", "lab", "insurer")


def of(*features, **how):
    """How a file is read of which these are the features."""
    return TableSettings(features=list(features), **how)


def chosen(folder, *names):
    return choose_parties([folder / f"{name}.h5" for name in names])


def opened(file, *how):
    """The first party's file, opened as all are."""
    return open_parties([Party(file.stem, str(file), *how)]).holdings[0]


def filled(held, rows=None):
    out = np.empty((held.n_samples if rows is None else len(rows), len(held.feature_names)))
    held.fill(out, None if rows is None else np.array(rows))
    return out


# ---- who they are -------------------------------------------------------------------------------


def test_a_party_is_called_as_its_file():
    parties = choose_parties(["data/hospital.h5", "lab.csv.gz", "b.c.parquet"])
    assert [party.name for party in parties] == ["hospital", "lab", "b.c"]
    for paths, sentence in (
        (["one/x.h5", "two/x.csv"], "two parties are called 'x'; name them in a manifest"),
        (["all.toml", "x.h5"], "give it without other files"),
    ):
        with pytest.raises(InputError, match=sentence):
            choose_parties(paths)
    assert file_stems(("a b", "../x", "été", "...")) == ["a_b", "x", "été", "_"]
    with pytest.raises(InputError, match="'a b' and 'A_b' would have one file"):
        file_stems(("a b", "A_b"))


def test_a_manifest(tmp_path):
    (tmp_path / "all.toml").write_text(
        '[[party]]\nname = "clinic"\nfile = "sub/*.csv"\nids = "who"\nlabels = "class"\n'
        'columns = ["x", "y"]\n\n[[party]]\nfile = "lab.csv"\nid-column = 2\ndrop = "z"\n'
        'na = ["?", -999]\ndecimal = ","\nno_header = true\n'
    )
    clinic, lab = choose_parties([tmp_path / "all.toml"], TableSettings(encoding="latin-1"))
    how = {"features": ["x", "y"], "id_column": "who", "label_column": "class"}
    assert (clinic.name, clinic.file, clinic.folder) == ("clinic", "sub/*.csv", str(tmp_path))
    assert clinic.table == TableSettings(encoding="latin-1", **how)
    how = {"id_column": 2, "drop": "z", "na": ["?", -999], "decimal": ",", "no_header": True}
    assert lab.table == TableSettings(encoding="latin-1", **how)
    assert lab.path == tmp_path / "lab.csv"


@each(
    ("text", "kind", "sentence"),
    [
        ("[[party]", FileError, "is not TOML"),
        ("\n", InputError, "names no party"),
        ("party = 3", InputError, "names no party"),
        ("party = [3]", InputError, "party 0 must be a table"),
        ("partys = 1", InputError, r"unknown key 'partys' \(did you mean 'party'\?\)"),
        ('[[party]]\nname = "a"', InputError, "party 0 has no file"),
        ('[[party]]\nfile = "a.h5"\ncolumn = ["x"]', InputError, "did you mean 'columns'"),
        ('[[party]]\nfile = "a.h5"\ndecimal = ";"', InputError, "decimal must be one of"),
        ('[[party]]\nfile = "a.h5"\nids = "a"\nid_column = "b"', InputError, "id_column twice"),
        ('[[party]]\nfile = "a.h5"\nname = ""', InputError, "name must be a string"),
        ('[[party]]\nfile = "a.h5"\n[[party]]\nfile = "b/a.csv"', InputError, "two parties are"),
    ],
)
def test_a_manifest_that_is_wrong(tmp_path, text, kind, sentence):
    (tmp_path / "m.toml").write_text(text)
    with pytest.raises(kind, match=sentence) as caught:
        read_manifest(tmp_path / "m.toml")
    assert "m.toml" in str(caught.value)


# ---- what is read -------------------------------------------------------------------------------


def test_files_of_others_are_not_opened(files):
    folder, X = files
    parties = chosen(folder, *ALL)
    for name in ("hospital", "insurer"):
        (folder / f"{name}.h5").unlink()

    class OnlyLab(Engine):
        rank = 1

    held = open_parties(parties, Placement(OnlyLab(), (0, 1, 2))).holdings
    assert list(held) == [1]
    assert np.array_equal(filled(held[1], [2, 0]), X["lab"][[2, 0]])


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Folder of a party's two files, from each of which more than one read is made."""
    folder = tmp_path_factory.mktemp("many")
    names = [f"f{j}" for j in range(60)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vpem.files.datasets.CHUNK_BYTES", 1 << 15)
        patch.setattr("vpem.files.matrix.LEAST_READ", 1 << 16)
        parts = [put(folder / f"{n}.h5", names, n_samples=250, seed=n) for n in range(2)]
        yield folder, np.concatenate(parts)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-1, 499), max_size=60))
def test_rows_are_filled_in_from_several_files_whatever_their_order(many, rows):
    folder, X = many
    held = open_party(Party("many", "[01].h5", folder=str(folder)))
    assert held.parts[0].step < 250
    out = np.zeros((len(rows), 62))
    held.fill(out[:, 1:-1], np.array(rows, dtype=np.intp))
    held.close()
    expected = X[rows]
    expected[np.array(rows, dtype=int) < 0] = np.nan
    assert np.array_equal(out[:, 1:-1], expected, equal_nan=True)
    assert not out[:, [0, -1]].any()


TABLE = "who,city,x,class,y\n 7,Rome,1.5,ill,2\n5,Oslo,2.5,well,3\n"


@each("suffix", ["csv", "csv.gz", "parquet"])
def test_tables(tmp_path, suffix):
    file = tmp_path / f"clinic.{suffix}"
    if suffix == "parquet":
        columns = {"who": [7, 5], "city": ["Rome", "Oslo"], "x": [1.5, 2.5], "y": [2, 3]}
        parquet.write_table(pa.table({**columns, "class": ["ill", "well"]}), file)
    else:
        file.write_bytes(gzip.compress(TABLE.encode()) if suffix == "csv.gz" else TABLE.encode())
    named = {"id_column": "who", "label_column": "class"}
    held = opened(file, of("y", "x", **named))
    assert held.ids.tolist() == [7, 5]
    assert held.labels.tolist() == ["ill", "well"]
    assert held.parts[0].tolist() == [[2, 1.5], [3, 2.5]]
    told, plain = [], TableSettings(**named)
    held = open_party(Party("clinic", str(file), plain), tell=lambda *it: told.append(it))
    assert held.feature_names == ("x", "y")
    [(found, *asked)] = told
    assert (found.left_out, asked) == ({"city": "text"}, [plain, None])
    for how, sentence in (
        (of("x", "who", id_column="who"), "'who' cannot be a feature: it holds ids"),
        (of("x", "x"), "'x' cannot be a feature: it is one already"),
    ):
        with pytest.raises(InputError, match=sentence):
            opened(file, how)
    # A model that was fitted to other names of rows is used all the same.
    kept = TableSettings(id_column="patient", label_column="class")
    assert opened(file, of("x"), kept).labels.tolist() == ["ill", "well"]


def test_hdf5_has_ids_without_a_name_and_columns_in_the_order_that_is_wanted(files):
    folder, X = files
    held = opened(folder / "hospital.h5", of("pulse", "age"))
    assert held.feature_names == ("pulse", "age")
    assert np.array_equal(filled(held), X["hospital"][:, ::-1])
    for how, sentence in (
        (of("puls"), r"no column 'puls' \(did you mean 'pulse'\?\)"),
        (of("age", "age"), "'age' cannot be a feature: it is one already"),
        (TableSettings(id_column="who"), r"party 'hospital': .* there is no id column 'who'"),
    ):
        with pytest.raises(InputError, match=sentence):
            opened(folder / "hospital.h5", how)


@each(
    ("table", "found"),
    [
        ("id,x\n1,2.5\n2,3.5\n", "id"),
        ("name,IDs,x\na,1,2.5\nb,2,3.5\n", "IDs"),
        ("x,patient\n2.5,P1\n3.5,P2\n4,7\n", "patient"),
        ("patient,x,sex\nP1,2.5,f\nP2,3.5,f\n", "patient"),
        ("patient,x\nP1,2.5\nP1,3.5\n", None),
        ("patient,x\nP1,2.5\n,3.5\n", None),
        ("patient,x,name\nP1,2.5,Ann\nP2,3.5,Bob\n", None),
        ("number,x\n1,2.5\n2,3.5\n", None),
    ],
)
def test_ids_are_found_where_nobody_has_named_them(tmp_path, table, found):
    file, told = tmp_path / "clinic.csv", []
    file.write_text(table)
    parquet.write_table(pyarrow.csv.read_csv(file), tmp_path / "clinic.parquet")
    for one in (file, tmp_path / "clinic.parquet"):
        party = Party("c", str(one), of("x"))
        held = open_party(party, tell=lambda data, *_: told.append(data))
        assert (held.ids is not None) == (found is not None)
    assert [data.table.id_column for data in told] == [found, found]


def test_files_of_a_pattern_follow_one_another(tmp_path):
    one = put(tmp_path / "2024.h5", ["x", "y"], ["a", "b"])
    two = put(tmp_path / "2025.h5", ["y", "x"], ["c"], seed=1)
    years = Party("years", "20*.h5", folder=str(tmp_path))
    held = open_party(years)
    assert np.array_equal(filled(held), np.concatenate([one, two[:, ::-1]]))
    assert held.ids.tolist() == ["a", "b", "c"]
    for file, names, sentence in (
        ("2026", ["x", "y"], "ids of party 'years' cannot be put together: some of"),
        ("2023", ["x"], r"2024.h5 has the feature 'y', which .*2023.h5 has not"),
        ("2022", ["x", "z"], r"2023.h5 has no feature 'z', which .*2022.h5 has"),
    ):
        put(tmp_path / f"{file}.h5", names)
        with pytest.raises(InputError, match=sentence):
            open_parties([years])
    with pytest.raises(FileError, match="party 'years': no file fits"):
        open_parties([Party("years", "19*.h5", folder=str(tmp_path))])
    put(tmp_path / "x[1].h5", ["x"])
    assert open_party(Party("x", "x[1].h5", folder=str(tmp_path))).n_samples == 4


# ---- features side by side ----------------------------------------------------------------------


def test_parties_joined(files):
    folder, X = files
    joined, found = join_parties(chosen(folder, *ALL), "ids")
    parts = [X["hospital"][[1, 3]], X["lab"][[2, 0]], X["insurer"][[0, 2]]]
    assert np.array_equal(joined.X, np.concatenate(parts, axis=1))
    assert joined.feature_names == ("hospital.age", "pulse", "iron", "insurer.age", "cost")
    assert joined.partition.names == ALL
    assert [part.tolist() for part in joined.partition.features] == [[0, 1], [2], [3, 4]]
    assert joined.ids.tolist() == ["b", "d"]
    assert found.describe() == {
        "level": "ids", "join": "inner", "rows": 2, "complete": 2,
        "parties": [
            {"name": "hospital", "rows": 4, "lost": 2, "absent": 0},
            {"name": "lab", "rows": 3, "lost": 1, "absent": 0},
            {"name": "insurer", "rows": 3, "lost": 1, "absent": 0},
        ],
    }  # fmt: skip
    # Rows that some lack are NaN there.
    joined, found = join_parties(chosen(folder, *ALL), "ids", keep_missing=True)
    assert joined.ids.tolist() == ["a", "b", "c", "d", "x"]
    assert np.array_equal(joined.X[:4, :2], X["hospital"])
    assert np.array_equal(joined.X[[3, 4, 1], 2:3], X["lab"])
    assert np.array_equal(joined.X[1:4, 3:], X["insurer"])
    absent = {(4, 0), (4, 1), (0, 2), (2, 2), (0, 3), (0, 4), (4, 3), (4, 4)}
    assert set(map(tuple, np.argwhere(np.isnan(joined.X)).tolist())) == absent
    assert [party["absent"] for party in found.describe()["parties"]] == [1, 2, 2]
    assert found.n_complete == 2
    # A key is for hashes, and nothing is warned about without reason.
    (folder / "key").write_bytes(bytes(range(33, 80)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", VpemWarning)
        join_parties(chosen(folder, *ALL), "hmac", key=folder / "key")
    with pytest.raises(InputError, match="a key is for align hmac only"):
        join_parties(chosen(folder, "hospital", "lab"), "ids", key=folder / "key")


TABLES = {
    "clinic": "patient,age,iron\n3,40,1\n1,50,2\n2,60,3\n",
    "lab": "patient,age,zinc\n1,40,4\n2,40,5\n3,70,6\n",
    "one": "age,pulse\n40,9.5\n40,8.5\n41,7.5\n",
    "two": "age,sugar\n40,1.5\n41,1.5\n40,2.5\n",
    "bare": "cost,days\n4,9\n5,8\n6,7\n",
    "named": "name,mass\nc,4\na,5\nb,6\n",
    "again": "name,size\nc,4\na,5\nb,6\n",
    "turned": "name,size\na,5\nc,4\nb,6\n",
    "twice": "name,mass\na,4\na,5\nb,6\n",
    "often": "name,size\na,1\na,2\nb,3\n",
}


@each(
    ("names", "how", "sentence"),
    [
        (
            ["clinic", "lab"],
            {"features": ["patient", "age"]},
            "parties 'clinic' and 'lab' both have a column 'patient', and no ids say whether their "
            "rows are the same; align them by align='ids' id_column='patient', or join them by",
        ),
        (["one", "bare", "two"], {}, "'one' and 'two' both have a column 'age', .*='NAME'"),
        (["twice", "often"], {}, "both have a column 'name', and no ids"),
        (["named", "turned"], {}, "'turned' has the same ids in another order than party 'named'"),
        (["named", "bare"], {}, "party 'named' has ids and party 'bare' has none, so nothing says"),
        (["named", "again"], {}, None),
        (["bare"], {}, None),
        (["named"], {}, None),
    ],
)
def test_rows_are_joined_by_position_where_nothing_says_otherwise(tmp_path, names, how, sentence):
    for name in names:
        (tmp_path / f"{name}.csv").write_text(TABLES[name])
    parties = choose_parties([tmp_path / f"{name}.csv" for name in names], TableSettings(**how))
    if sentence is None:
        assert join_parties(parties)[0].n_samples == 3
    else:
        with pytest.raises(InputError, match=sentence):
            join_parties(parties)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)  # of ids that differ
        joined, found = join_parties(parties, "none")
    assert (joined.n_samples, found.describe()["level"]) == (3, "none")
    assert joined.partition.n_agents == len(names)


def test_ids_and_gaps_are_told_together(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n3,4\n5,7\n")
    (tmp_path / "b.csv").write_text("name,z\np,1\nq,\nr,3\n")
    parties = choose_parties([tmp_path / "a.csv", tmp_path / "b.csv"])
    no_ids = "party 'a' has no ids, by which rows could be aligned; name .*"
    gap = "party 'b': .*b.csv: row 1, feature 0 .'z'. is NaN"
    for level, how, sentence in (
        ("ids", {}, f"{no_ids}; also, {gap}"),
        (None, {}, r"'b' has ids and party 'a' has none.*; also, party 'b'"),
        ("none", {}, f"^{gap}"),
        ("ids", {"keep_empty": True}, f"^{no_ids}"),
    ):
        with pytest.raises(InputError, match=sentence) as caught:
            join_parties(parties, level, **how)
        assert ("; also, " in str(caught.value)) == ("; also, " in sentence)
    for error in together(2, lambda engine: join_parties(
        parties, "ids", holders=Placement(engine, (0, 0)))):  # fmt: skip
        assert isinstance(error, VpemError)
        assert "; also, " in str(error)


def test_names_that_repeat_even_with_their_partys(tmp_path):
    def names(**features):
        parties = [Party(name, "") for name in features]
        held = {
            place: Holding(party, own, (), None, None)
            for place, (party, own) in enumerate(zip(parties, features.values(), strict=True))
        }
        return joined_names(OpenParties(parties, held, Placement.here(len(parties))))[0]

    assert names(a=("x", "y"), b=("y", "z")) == ("x", "a.y", "b.y", "z")
    with pytest.raises(InputError, match=r"two features would be called 'a\.x'"):
        names(a=("x",), b=("x", "a.x"))
    for name in ("one", "two"):  # columns without names are not shared
        np.save(tmp_path / f"{name}.npy", np.arange(6.0).reshape(3, 2))
    _, found = join_parties(choose_parties([tmp_path / "one.npy", tmp_path / "two.npy"]))
    assert found.by_position


@each(
    ("which", "expected"),
    [(["one"], ["u", "v", "w"]), (["two"], ["w", "u", "v"]), (["one", "two"], None), ([], None)],
)
def test_labels_are_kept_if_one_party_has_them(tmp_path, which, expected):
    for place, name in enumerate(("one", "two")):
        labels = np.array(["u", "v", "w"]) if name in which else None
        ids = [3, 1, 2][place:] + [3, 1, 2][:place]
        put(tmp_path / f"{name}.h5", [name], ids, labels=labels)
    joined, _ = join_parties(chosen(tmp_path, "one", "two"), "ids")
    assert (None if joined.labels is None else joined.labels.tolist()) == expected


def test_precision_is_single_only_if_all_are(tmp_path):
    for name, dtype in (("one", np.float32), ("two", np.float64), ("three", np.float32)):
        write_dataset(tmp_path / f"{name}.h5", Dataset(np.ones((3, 1), dtype=dtype), (name,)))
    assert join_parties(chosen(tmp_path, "one", "two"))[0].X.dtype == np.float64
    assert join_parties(chosen(tmp_path, "one", "three"))[0].X.dtype == np.float32
    assert stack_parties(chosen(tmp_path, "one")).X.dtype == np.float32


# ---- rows one below the other -------------------------------------------------------------------


def test_parties_stacked(tmp_path):
    one = put(tmp_path / "one.h5", ["x", "y", "z"], ["a", "b"], labels=np.array([0, 1]))
    two = put(tmp_path / "two.h5", ["z", "x", "y"], ["a", "c", "d"], seed=1,
              labels=np.array([1, 1, 0]))  # fmt: skip
    stacked = stack_parties(chosen(tmp_path, "one", "two"))
    assert np.array_equal(stacked.X, np.concatenate([one, two[:, [1, 2, 0]]]))
    assert stacked.feature_names == ("x", "y", "z")
    assert stacked.workers.names == ("one", "two")
    assert [rows.tolist() for rows in stacked.workers.rows] == [[0, 1], [2, 3, 4]]
    assert stacked.ids.tolist() == ["a", "b", "a", "c", "d"]
    assert stacked.labels.tolist() == [0, 1, 1, 1, 0]
    put(tmp_path / "two.h5", ["x", "y", "z"], [1, 2])
    stacked = stack_parties(chosen(tmp_path, "one", "two"))
    assert stacked.ids is stacked.labels is None
    for names, sentence in (
        (["x", "z"], "party 'two' has no feature 'y', which party 'one' has"),
        (["x", "y", "z", "u"], "party 'one' has no feature 'u', which party 'two' has"),
    ):
        put(tmp_path / "two.h5", names)
        with pytest.raises(InputError, match=sentence):
            stack_parties(chosen(tmp_path, "one", "two"))


# ---- cutting ------------------------------------------------------------------------------------


def test_cutting():
    rng = np.random.default_rng(0)
    whole = Dataset(rng.normal(size=(100, 5)), tuple("abcde"), labels=np.arange(100) % 2)
    half, mixed = contiguous(5, 2), {"shuffle": True, "drop_ids": 0.1, "seed": 3}
    parts = cut(whole, half, **mixed)
    assert [part.feature_names for part in parts] == [("a", "b", "c"), ("d", "e")]
    assert parts[1].labels is None
    for part, columns in zip(parts, (slice(0, 3), slice(3, 5)), strict=True):
        assert len(part.ids) == len(set(part.ids.tolist())) == 90
        assert np.array_equal(part.X, whole.X[part.ids, columns])
        assert (np.diff(part.ids) < 0).any()
    assert np.array_equal(parts[0].labels, whole.labels[parts[0].ids])
    assert not np.array_equal(np.sort(parts[0].ids), np.sort(parts[1].ids))
    assert np.array_equal(cut(whole, half, **mixed)[1].X, parts[1].X)
    assert all(np.array_equal(part.ids, np.arange(100)) for part in cut(whole, half))
    assert (np.diff(cut(whole, half, drop_ids=0.1)[0].ids) > 0).all()
    relay = Partition((np.arange(5), np.arange(0)), ("all", "none"))
    for held, how, sentence in (
        (half, {"drop_ids": 1.0}, "dropping 1 of 100 rows leaves none"),
        (half, {"drop_ids": -0.1}, "drop_ids must be"),
        (relay, {}, "agent 'none' holds no feature"),
    ):
        with pytest.raises(InputError, match=sentence):
            cut(whole, held, **how)


# ---- observers ----------------------------------------------------------------------------------


@each(
    ("second", "sentence"),
    [
        ("a,b\n1,2\n3,4\n5,7\n", "'one' has 2 rows and party 'two' 3, without ids"),
        ("a,b\n5,7\n", "'one' has 2 rows and party 'two' 1, without ids"),
        ("id,a,b\nx,1,2\ny,3,4\n", "rows of party 'one' have no ids, so they"),
    ],
)
def test_observers_of_rows_that_may_differ_are_refused(tmp_path, second, sentence):
    for name, table in (("one", "a,b\n1,2\n3,4\n"), ("two", second)):
        (tmp_path / f"{name}.csv").write_text(table)
    with pytest.raises(InputError, match=sentence):
        observe_parties(choose_parties([tmp_path / "one.csv", tmp_path / "two.csv"]))


class AtHome(ThreadEngine):
    """A member of a study that is a thread: what a result says of entries stays with it."""

    open = False


def test_an_observer_has_values_that_it_saw_and_fitted_ones_else():
    rng = np.random.default_rng(0)
    observer, row, column = np.nonzero(rng.random((3, 12, 4)) < 0.6)
    found = from_triplets(
        observer, row, column, rng.normal(size=len(row)), names=list("abc"),
        row_names=[f"r{one}" for one in range(12)], column_names=list("wxyz"),
    )  # fmt: skip
    alone = fit_imputation(found, rank=1, max_iter=3, tol=0.0)

    def fit(engine):
        network = spread_workers(connect_workers(make_graph("star", 3)), engine)
        own = found.seen_by({engine.rank})
        return fit_imputation(own, network=network, rank=1, max_iter=3, tol=0.0), own

    for ours, own in together(3, fit, AtHome):
        np.testing.assert_allclose(ours.fitted, alone.fitted, rtol=1e-10)
        np.testing.assert_array_equal(ours.seen.times, alone.seen.times)
        np.testing.assert_array_equal(np.isnan(ours.seen.mean), own.times_seen == 0)
        saw = own.times_seen > 0
        np.testing.assert_array_equal(ours.imputed[~saw], ours.fitted[~saw])
