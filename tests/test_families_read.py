"""Categories come in by name and go out by name: files, parties, frames, and models used again."""

from __future__ import annotations

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import feather

from vpem import DistributedKMeans, FedEM
from vpem.errors import FileError, InputError, VpemWarning
from vpem.files.data import read_data, read_dataset
from vpem.files.datasets import write_dataset
from vpem.files.families import words_for_model
from vpem.files.levels import MOST_LEVELS
from vpem.files.models import write_model
from vpem.files.parties.joining import join_parties, stack_parties
from vpem.files.parties.opening import choose_parties, read_manifest
from vpem.files.table_settings import TableSettings
from vpem.fits.estimators.base import dataset_for_fit
from vpem.fits.estimators.mixtures import VPEM
from vpem.network.partition import contiguous
from vpem.terms.families.kinds import Kinds

from .cli_support import done, run
from .tables import each

FRAME = pd.DataFrame(
    {
        "age": [63.5, 37.0, 41.0, 56.0, 57.0, 44.0],
        "sex": ["m", "f", None, "f", "m", "m"],
        "smoker": [True, False, True, True, False, False],
        "visits": [0, 1, 3, 2, 0, 1],
        "stay": [0, 9, 1, 0, 0, 2],
        "grade": [3, 4, 5, 4, 3, 4],
    }
)
FAMILIES = ("gaussian", "categorical", "bernoulli", "poisson", "negative-binomial", "gaussian")
SEX = [1, 0, np.nan, 0, 1, 1]


def _declared(path):
    frame = FRAME.assign(sex=FRAME.sex.astype("category"))
    return (
        frame.to_parquet(path) if path.suffix == ".parquet" else feather.write_feather(frame, path)
    )


WRITERS = {
    "a.csv": lambda path: FRAME.to_csv(path, index=False),
    "a.csv.gz": lambda path: FRAME.to_csv(path, index=False),
    "a.parquet": lambda path: FRAME.to_parquet(path),
    "declared.parquet": _declared,
    "declared.feather": _declared,
    "a.h5": lambda path: write_dataset(path, settle_frame("auto")),
}


def settle_frame(family):
    """What `VPEM` makes of a data frame."""
    return dataset_for_fit(FRAME, family, lambda found: contiguous(6, 2, names=["lab", "who"]))


@pytest.mark.parametrize("name", WRITERS)
def test_the_same_table_has_the_same_codes_and_families_in_every_file(tmp_path, name):
    WRITERS[name](tmp_path / name)
    found = read_dataset(tmp_path / name, family="auto")
    assert found.kinds.families == FAMILIES
    assert found.levels == {"sex": ("f", "m")}
    np.testing.assert_array_equal(found.X[:, 1], SEX)
    plain = read_dataset(tmp_path / name)
    if name == "a.h5":  # on purpose: 'vpem data import --family' wrote it
        assert plain.kinds.families == FAMILIES
    else:
        assert plain.kinds is None
        assert plain.left_out == {"sex": "text"}


WORDS = {
    "auto": FAMILIES,
    "age=t,grade=categorical": ("t", *FAMILIES[1:5], "categorical"),
    "lab=t,poisson,sex=categorical,smoker=auto": (
        "t", "categorical", "bernoulli", "poisson", "poisson", "poisson"
    ),
    ("t", *FAMILIES[1:]): ("t", *FAMILIES[1:]),
}  # fmt: skip


@each("said", WORDS)
def test_what_is_said_goes_before_what_values_show(said):
    found = settle_frame(list(said) if isinstance(said, tuple) else said)
    assert found.kinds.families == WORDS[said]
    if "grade" in said:
        assert found.levels["grade"] == ("3", "4", "5")
        np.testing.assert_array_equal(found.X[:, 5], FRAME.grade - 3)


REFUSED = {
    "age=bernouli": "did you mean 'bernoulli'",
    "aeg=t": "did you mean 'age'",
    "poisson,t": "without saying of which",
    "age=t,age=gamma": "twice",
    "sex=gamma": "'sex'",
    "name=categorical": "a different value in each of its 6 rows",
}


@each("said", REFUSED)
def test_what_cannot_be_is_refused_in_a_sentence(tmp_path, said):
    FRAME.assign(name=list("abcdef")).to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(InputError, match=REFUSED[said]):
        read_dataset(tmp_path / "a.csv", family=said)


def test_names_of_rows_are_no_category_and_levels_have_a_bound(tmp_path):
    many = [f"v{n}" for n in range(MOST_LEVELS + 1)]
    frame = pd.DataFrame({"id": range(3003), "word": many * 3, "x": np.arange(3003) / 4})
    frame.to_csv(tmp_path / "a.csv", index=False)
    found = read_dataset(tmp_path / "a.csv", family="auto")
    assert found.left_out == {"word": "text, 1001 different"}
    assert found.kinds is None
    with pytest.raises(InputError, match="more than 1000 different"):
        read_dataset(tmp_path / "a.csv", family="word=categorical")


def test_numbers_on_disk_become_codes_as_they_are_read(tmp_path):
    X = np.array([[5, 1.5], [1, 2.5], [2, 3.5], [5, 0.5], [np.nan, 1.0]])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["X"] = X
    found = read_dataset(tmp_path / "a.h5", memory_limit=0, family={"feature 0": "categorical"})
    assert found.levels == {"feature 0": ("1", "2", "5")}
    assert not isinstance(found.X, np.ndarray)
    np.testing.assert_array_equal(found.X[:][:, 0], [2, 0, 1, 2, np.nan])
    np.testing.assert_array_equal(found.X.take(np.array([3, 1]))[:, 0], [2, 0])
    np.testing.assert_array_equal(found.X[:][:, 1], X[:, 1])


DAMAGES = {
    "a name twice": lambda file: file["levels/1"].__setitem__(1, "f"),
    "a level lost": lambda file: file["n_levels"].__setitem__(1, 3),
    "no such family": lambda file: file["families"].__setitem__(0, "gauss"),
    "levels of a number": lambda file: file["n_levels"].__setitem__(0, 2),
}


@each("damage", DAMAGES)
def test_families_of_a_file_are_not_trusted(tmp_path, damage):
    write_dataset(tmp_path / "a.h5", settle_frame("auto"), force=True)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        DAMAGES[damage](file)
    with pytest.raises((FileError, InputError)):
        read_dataset(tmp_path / "a.h5")


def test_parties_decide_for_their_own_columns_and_by_manifest(tmp_path):
    FRAME[["age", "sex"]].to_csv(tmp_path / "lab.csv", index=False)
    FRAME[["sex", "visits"]].to_csv(tmp_path / "survey.csv", index=False)
    files = [tmp_path / "lab.csv", tmp_path / "survey.csv"]

    def families(parties):
        found, _ = join_parties(parties, "none", keep_empty=True)
        return found.kinds.families, found.levels

    both = {"lab.sex": ("f", "m"), "survey.sex": ("f", "m")}
    told = TableSettings(family="lab.age=t,survey=categorical")
    assert families(choose_parties(files, told)) == (
        ("t", "categorical", "categorical", "categorical"), {**both, "visits": ("0", "1", "2", "3")}
    )  # fmt: skip
    (tmp_path / "m.toml").write_text(
        '[[party]]\nfile = "lab.csv"\nfamily = {age = "gamma"}\n[[party]]\nfile = "survey.csv"\n'
        'family = "auto"\n'
    )
    assert families(read_manifest(tmp_path / "m.toml")) == (
        ("gamma", "categorical", "categorical", "poisson"), both
    )  # fmt: skip
    with pytest.raises(InputError, match="'survy', which is neither"):
        families(choose_parties(files, TableSettings(family="survy=t")))


def test_ids_of_a_party_are_found_for_a_model_that_has_categories_of_others(tmp_path):
    FRAME.assign(word=list("uvwxyz"))[["word", "age"]].to_csv(tmp_path / "lab.csv", index=False)
    of_model = words_for_model(Kinds(("gaussian", "categorical"), (0, 2)), ["age", "sex"])
    found = read_data(tmp_path / "lab.csv", kept=TableSettings(family=of_model))
    assert (found.feature_names, list(found.ids)) == (("age",), list("uvwxyz"))


def test_rows_of_several_parties_and_files_have_one_code_a_level(tmp_path):
    for name, words in (("a", "pqpqpp"), ("b", "rqrqqr")):
        FRAME.assign(word=list(words))[["age", "word"]].to_csv(
            tmp_path / f"{name}.csv", index=False
        )
    table = TableSettings(family="auto")
    stacked = stack_parties(choose_parties([tmp_path / "a.csv", tmp_path / "b.csv"], table))
    whole, _ = join_parties(choose_parties([tmp_path / "[ab].csv"], table))
    assert stacked.levels == whole.levels == {"word": ("p", "q", "r")}
    np.testing.assert_array_equal(stacked.X, whole.X)
    np.testing.assert_array_equal(stacked.X[:, 1], [0, 1, 0, 1, 0, 0, 2, 1, 2, 1, 1, 2])


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A frame of two groups, and the folder of a model of it."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 120)
    frame = pd.DataFrame(
        {
            "age": rng.normal(10 * group, 1),
            "job": np.where(rng.random(120) < 0.9, group, 1 - group),
            "visits": rng.poisson(2 + 6 * group),
        }
    )
    frame["job"] = frame.job.map({0: "nurse", 1: "clerk"}).mask(rng.random(120) < 0.2, "other")
    folder = tmp_path_factory.mktemp("fitted")
    frame.to_csv(folder / "all.csv", index=False)
    model = VPEM(2, family="visits=poisson", missing="refuse").fit(frame)
    write_model(folder / "m.h5", model)
    return frame, model, folder


def test_an_array_takes_a_family_for_each_column(fitted):
    X = fitted[0][["age", "visits"]].to_numpy(dtype=float)
    assert VPEM(2, family=["gaussian", "poisson"], max_iter=0).fit(X).mixture_.kinds.families == (
        "gaussian", "poisson",
    )  # fmt: skip
    with pytest.raises(InputError, match=r"a list of 3 families; .* of which there are 2"):
        VPEM(2, family=["gaussian", "poisson", "t"]).fit(X)


def test_frames_of_other_levels_and_orders_are_read_by_name(fitted):
    frame, model, _ = fitted
    assert model.mixture_.kinds.families == ("gaussian", "categorical", "poisson")
    some = frame[frame.job != "clerk"].iloc[:9]
    other = some.assign(job=some.job.astype("category"))[["visits", "job", "age"]]
    for given in (some, other, pa.Table.from_pandas(some, preserve_index=False).to_pandas()):
        np.testing.assert_array_equal(
            model.predict_proba(given), model.predict_proba(frame)[some.index]
        )
    with pytest.raises(InputError, match=r"1 value of 'job' is a level that .* \('pilot'\)"):
        model.predict(some.assign(job=["pilot", *some.job[1:]]))


def test_commands_read_levels_by_name_and_give_names_back(fitted, tmp_path, capsys):
    frame, model, folder = fitted
    some = frame[frame.job != "clerk"].iloc[:4]
    some.to_csv(tmp_path / "some.csv", index=False)
    said = done(capsys, "predict", folder / "m.h5", tmp_path / "some.csv").out.splitlines()
    assert [int(line.split(",")[1]) for line in said[1:]] == model.predict(some).tolist()
    some.assign(job="pilot").to_csv(tmp_path / "new.csv", index=False)
    refused = run(capsys, "score", folder / "m.h5", tmp_path / "new.csv").err
    assert "4 values of 'job' are levels" in refused
    assert "--missing marginalize" in refused
    without = ("--missing", "marginalize")
    again = done(capsys, "predict", folder / "m.h5", tmp_path / "new.csv", *without)
    assert "taken as missing" in again.err
    done(capsys, "sample", folder / "m.h5", "-n", "20", "-o", tmp_path / "drawn.csv")
    assert set(pd.read_csv(tmp_path / "drawn.csv").job) <= {"nurse", "clerk", "other"}
    done(capsys, "sample", folder / "m.h5", "-n", "20", "-o", tmp_path / "drawn.h5")
    assert read_dataset(tmp_path / "drawn.h5").levels == {"job": ("clerk", "nurse", "other")}
    spread = run(capsys, "fit", tmp_path / "drawn.h5", "--split", "rows")
    assert (spread.code, "but 'job' is categorical" in spread.err) == (2, True)
    told = run(capsys, "kmeans", tmp_path / "drawn.h5").err
    assert "feature 'job' is kept as categorical" in told


def test_import_keeps_names_describe_shows_them_and_split_hands_them_on(fitted, tmp_path, capsys):
    _, _, folder = fitted
    table, auto = folder / "all.csv", ("--family", "auto")
    made = done(capsys, "data", "import", table, *auto, "-o", tmp_path / "a.h5")
    assert "categorical: job (3 levels)" in made.err
    told = done(capsys, "data", "describe", tmp_path / "a.h5", "--json").json["features"][1]
    assert (told["family"], told["levels"]) == ("categorical", ["clerk", "nurse", "other"])
    done(capsys, "data", "split", tmp_path / "a.h5", "--agents", "3", "-o", tmp_path / "parts")
    kept = read_dataset(tmp_path / "parts" / "party1.h5")
    assert kept.levels == {"job": ("clerk", "nurse", "other")}
    left = done(capsys, "data", "import", folder / "all.csv", "-o", tmp_path / "b.h5").err
    assert "left out: job (text); --family auto, or --family job=categorical" in left


# ---- data frames that hold more than measurements ------------------------------------------------


@each("kind", [VPEM, DistributedKMeans, FedEM])
def test_text_in_a_data_frame_is_named_with_the_way_on(kind):
    frame = pa.table({"a": np.arange(9.0) % 4, "sex": ["m", "f", "m"] * 3})
    with pytest.raises(InputError, match=r"'sex' of X holds 'm', .*drop.*family='auto'"):
        kind(2).fit(frame)
    said = r"column 0 of X holds 'm', .*: np.delete\(X, 0, axis=1\)$"
    with pytest.raises(InputError, match=said):
        kind(2).fit([["m", 1.0], ["f", 2.0], ["m", 3.0]])
    model = kind(1).fit(pa.table({"a": np.arange(9.0) % 4, "sex": np.arange(9.0) % 2}))
    with pytest.raises(InputError, match=r"column 'sex' of X holds 'm', which is no number$"):
        model.predict(frame)


@each(
    ("cells", "content"),
    [
        (pd.date_range("2024-01-01", periods=2), "dates or times"),
        (pd.date_range("2024-01-01", periods=2, tz="UTC"), "dates or times"),
        (pd.to_timedelta([1, 2], "h"), "dates or times"),
        (pd.period_range("2024-01", periods=2, freq="M"), "2024-01"),
        (pd.arrays.IntervalArray.from_breaks([0, 1, 2]), r"\(0, 1\]"),
        ([1.0 + 1j, 2.0], r"\(1\+1j\)"),
        ([None, [1, 2]], r"\[1, 2\]"),
        ([pd.NA, b"a"], "b'a'"),
    ],
)
def test_cells_that_are_no_numbers_are_named(cells, content):
    with pytest.raises(InputError, match=rf"'q' of X holds {content}, which .*columns='q'\)$"):
        VPEM(2).fit(pd.DataFrame({"a": [1.0, 2.0], "q": cells}))


@each("how", [{}, {"family": "auto"}])
def test_columns_of_one_name_in_a_data_frame_are_told_apart(how):
    X = np.random.default_rng(0).normal(size=(60, 2))
    frame = pd.DataFrame(X, columns=["a", "a"])
    with pytest.warns(VpemWarning, match="further ones are called 'a.1'"):
        model = VPEM(2, **how).fit(frame)
    assert list(model.feature_names_in_) == ["a", "a.1"]
    np.testing.assert_allclose(model.means_, VPEM(2).fit(X).means_, rtol=1e-6)
    with pytest.warns(VpemWarning, match=r"'a.1'"):
        assert len(model.predict(frame)) == len(X)


def test_columns_of_a_data_frame_that_are_no_measurements_are_warned_of():
    rng = np.random.default_rng(0)
    frame = {"patient": rng.permutation(90)[:40], "a": rng.normal(size=40), "class": [0, 1] * 20}
    said = r"'patient' .an id .* 'class' .known .* not: X.drop\(columns=.'patient', 'class'.\)"
    with pytest.warns(VpemWarning, match=said) as told:
        model = VPEM(2, reg_covar=0.1).fit(pa.table(frame))
    assert len([one for one in told if "patient" in str(one.message)]) == 1
    model.predict(pa.table(frame))
    with pytest.warns(VpemWarning, match="'patient' .an id or code"):
        VPEM(2, family="auto", reg_covar=0.1).fit(pa.table(frame))
    del frame["class"]
    VPEM(2, family={"patient": "gaussian"}).fit(pa.table(frame))
    frame["a"][[2, 7]] = -999
    with pytest.warns(VpemWarning, match="column 0 .row numbers. is fitted"):
        VPEM(1).fit(np.column_stack([np.arange(40), rng.normal(size=40)]))
    with pytest.warns(VpemWarning, match="-999 in 'a': far .* missing='marginalize'"):
        VPEM(1).fit(pa.table({"a": frame["a"]}))
