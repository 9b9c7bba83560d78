"""The datasets that come with vpem: listed, copied as they are or as tables, and demonstrated."""

import numpy as np
import pytest

from vpem import InputError, example_path, read_dataset, read_individuals
from vpem.files.examples import EXAMPLES
from vpem.saem.formats.individuals import read_corpus

from .cli_support import done, listing, run
from .pages_support import inside


def columns_of(path):
    """Rows and columns of a dataset."""
    if path.suffix == ".csv":
        lines = path.read_text(encoding="utf-8").splitlines()
        if path.name != "heart.csv":
            read = read_corpus if path.name == "notices.csv" else read_individuals
            assert read(path).n_rows == len(lines) - 1
        return len(lines) - 1, lines[0].count(",") + 1
    return read_dataset(path).X.shape


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_listed_is_what_comes(capsys, name):
    assert columns_of(example_path(name)) == (EXAMPLES[name].rows, EXAMPLES[name].columns)
    assert name in done(capsys, "data", "list").out
    about = (example_path(name).parent / "README.md").read_text(encoding="utf-8")
    assert f"`{example_path(name).name}`" in about
    told = done(capsys, "data", "list", "--json").json[name]
    assert (told["rows"], told["licence"]) == (EXAMPLES[name].rows, EXAMPLES[name].licence)


def test_copies_are_the_files_themselves(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "6 datasets" in done(capsys, "data", "copy").err
    done(capsys, "data", "copy", "theophylline")
    done(capsys, "data", "copy", "wine", "-o", "data/mine.h5", "--quiet")
    found = listing(tmp_path)
    for name, example in EXAMPLES.items():
        assert found[f"data/{example.file}"] == example_path(name).read_bytes()
    assert found["data/mine.h5"] == found["data/wine.h5"]
    assert found["theophylline.csv"] == found["data/theophylline.csv"]
    assert len(found) == len(EXAMPLES) + 3  # the two above, and README.md
    (tmp_path / "data" / "wine.h5").unlink()
    for words in ((), ("oxford_boys", "-o", "data"), ("theophylline",)):
        before = listing(tmp_path)
        assert run(capsys, "data", "copy", *words).sentence.endswith("pass --force to replace it")
        assert listing(tmp_path) == before


def test_a_copy_that_is_a_table(capsys, tmp_path):
    target = tmp_path / "wine.csv"
    done(capsys, "data", "copy", "wine", "-o", target)
    table, stored = read_dataset(target, label_column="label"), read_dataset(example_path("wine"))
    np.testing.assert_array_equal(table.X, stored.X)
    assert table.feature_names == stored.feature_names
    assert table.labels.tolist() == stored.labels.tolist()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["win"], "(did you mean 'wine'?)"),
        (["wine", "-o", "wine.png"], "got wine.png"),
        (["oxford_boys", "-o", "boys.h5"], "oxford_boys is copied to a .csv file, got boys.h5"),
        (["-o", "no/where"], "cannot be made: No such file or directory; give another folder"),
    ],
)
def test_what_cannot_be_copied(capsys, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "data", "copy", *words).sentence.endswith(said)
    assert not listing(tmp_path)


def test_an_unknown_example():
    with pytest.raises(InputError, match="name must be one of breast_cancer"):
        example_path("iris")


def test_the_demonstration(tmp_path, monkeypatch):
    """Its commands, run in this process; in the end nothing is there but what is kept."""

    def alone(play, who, words):
        play.show(who, "vpem", *words.split())
        done = inside(["vpem", *words.split()], play.home)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    monkeypatch.setattr("vpem_cli.commands.doctor.Play.run", alone)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    shown = inside(["vpem", "demo", "--keep", "try"], tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "\n$ vpem fit breast_cancer.h5 " in shown.stdout
    assert "accuracy" in shown.stdout
    kept = {"breast_cancer.h5", "model.h5", "components.csv", "profile.png"}
    assert {path.name for path in (tmp_path / "try").iterdir()} == kept
    assert {path.name for path in tmp_path.iterdir()} == {"try"}
    again = inside(["vpem", "demo", "--keep", "try"], tmp_path)
    assert again.stderr.endswith("try cannot be made: File exists; give a new folder\n")


def test_commands_find_them_from_any_folder(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert done(capsys, "data", "describe", "data/wine.h5", "--json").json["n_samples"] == 178
    done(capsys, "fit", "data/wine.h5", "-o", "m.h5")
    assert done(capsys, "predict", "m.h5", "data/wine.h5").out.startswith("row,label\n0,")
    assert "does not exist" in run(capsys, "fit", "data/none.h5").sentence
    # One's own goes first.
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "wine.h5").write_bytes(b"mine")
    assert "data/wine.h5" in run(capsys, "fit", "data/wine.h5").sentence
