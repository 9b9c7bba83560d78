"""`vpem saem --model lda` and what becomes of its topics: doors from documents to pictures."""

import csv
import json
import re

import numpy as np
import pytest

from vpem import read_saem
from vpem.saem.topics import Topics

from .cli_support import ROOT, done, run

NOTICES = ROOT / "data" / "notices.csv"
SHORT = ("--iterations", "40", "--burn-in", "30", "--tol", "0", "--conditional-draws", "8")
TRUE = {"boat", "bread", "seed", "song"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Folder with topics of the notices on three devices, and with these as two parties'."""
    folder = tmp_path_factory.mktemp("topics")
    lines = NOTICES.read_text().splitlines()
    (folder / "villages").mkdir()
    for name, part in (("hill", lines[1:2500]), ("shore", lines[2500:])):
        (folder / "villages" / f"{name}.csv").write_text("\n".join([lines[0], *part]) + "\n")
    return folder


@pytest.fixture(scope="module")
def fitted(home):
    """The file of topics."""
    from vpem_cli import main

    words = ("saem", NOTICES, "--model", "lda", "-k", "4", "--devices", "3", "--max-share", "0.6",
             *SHORT, "-q", "-o", home / "t.h5", "--topics", home / "words.csv",
             "--individuals", home / "documents.csv")  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert not ended.value.code
    return home / "t.h5"


def test_words_take_the_place_of_a_table_by_force_alone(capsys, home, tmp_path):
    table = tmp_path / "words.csv"
    table.write_text("mine\n")
    words = ("saem", NOTICES, "--model", "lda", "-k", "3", *SHORT, "-q", "--topics", table)
    found = run(capsys, *words)
    assert found.code == 2
    assert "--force" in found.err
    assert table.read_text() == "mine\n"
    done(capsys, *words, "--force")
    assert "topic 2" in rows(table)[0]


def rows(path):
    """Lines of a table, by the names of its columns."""
    with open(path, newline="") as stream:
        return list(csv.DictReader(stream))


def test_topics_are_found_and_written(fitted, home):
    found = Topics(read_saem(fitted))
    assert {own[0][0] for own in found.top()} == TRUE
    assert found.coherence.min() > 0.2
    np.testing.assert_allclose(found.shares.sum(), 1)
    np.testing.assert_allclose(found.device_shares.mean(axis=0), found.shares, atol=0.01)
    table = rows(home / "words.csv")
    assert [row["word"] for row in table] == list(found.words)
    assert sum(float(row["topic 2"]) for row in table) == pytest.approx(1)
    documents = rows(home / "documents.csv")
    assert len(documents) == 240
    assert float(documents[0]["topic 0"]) == pytest.approx(found.saved.means[0, 0])


def test_parties_of_a_folder_say_what_they_are_of(capsys, home):
    words = ("saem", home / "villages", "--parties", "--model", "lda", "-k", "4", *SHORT, "--json")
    told = done(capsys, *words).json
    assert told["device_names"] == ["hill", "shore"]
    assert told["individuals"][0]["id"] == "hill/notice 1"
    assert {next(iter(one["words"])) for one in told["topics"]} == TRUE


def test_a_fit_begins_with_topics_of_another(capsys, fitted, tmp_path):
    begin = ("saem", NOTICES, "--model", "lda", "-k", "4", *SHORT)
    again = done(capsys, *begin, "--max-share", "0.6", "--init-model", fitted, "--json").json
    assert again["iterations"] == 40
    told = run(capsys, *begin, "--init-model", fitted)
    assert "not those of this lda" in told.sentence


def test_new_documents_may_have_other_words(capsys, fitted, tmp_path):
    (tmp_path / "new.csv").write_text("document,word\na,boat\na,tide\na,zebra\nb,lion\n")
    told = done(capsys, "predict", fitted, tmp_path / "new.csv", "--json")
    assert "occur 2 times of 4" in told.err
    assert "1 document left out" in told.err
    assert (told.json["n_individuals"], told.json["n_unknown"]) == (1, 2)
    found = Topics(read_saem(fitted))
    harbour = next(k for k, own in enumerate(found.top()) if own[0][0] == "boat")
    assert np.argmax(told.json["individuals"][0]["proportions"]) == harbour
    scored = done(capsys, "score", fitted, NOTICES, "--json").json
    assert scored["perplexity"] == pytest.approx(found.perplexity)
    assert scored["n_unknown"] == 9600 - found.n_tokens


def test_topics_are_shown_drawn_and_exported(capsys, fitted, tmp_path):
    shown = " ".join(done(capsys, "model", "show", fitted).out.split())
    assert "boat" in shown
    assert re.search(r"4 topics of \d+ documents: the largest, topic \d, has \d\d % of", shown)
    for kind in ("topics", "shares", "spreads"):
        told = done(
            capsys, "plot", fitted, "--kind", kind, "-o", tmp_path / f"{kind}.svg", "--json"
        )
        assert "topic 3" in told.json["description"]
    done(capsys, "report", fitted, NOTICES, "-o", tmp_path / "page.html")
    assert "harbour" in (tmp_path / "page.html").read_text()
    done(capsys, "model", "export", fitted, "-o", tmp_path / "t.json")
    assert len(json.loads((tmp_path / "t.json").read_text())["probabilities"]) == 4


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--model", "lda", "--sample-weight", "w"), "--sample-weight is not for the model lda"),
        (("--model", "linear", "--min-documents", "2"), "--min-documents is for lda alone"),
        (("--model", "linear", "--topics", "x.csv"), "--topics is for the model lda"),
        (("--model", "gmm", "--alpha", "1"), "--alpha is for the model lda"),
        (("--model", "lda", "--parties", "--secure-sum"), "without a common vocabulary"),
        (
            (
                "--model",
                "lda",
                "--parties",
                "--secure-sum",
                "--max-share",
                "0.6",
                "--vocabulary",
                NOTICES,
            ),
            "--max-share shows in how many documents",
        ),
    ],
)
def test_what_documents_have_not(capsys, words, sentence):
    told = run(capsys, "saem", NOTICES, *words)
    assert told.code == 2
    assert sentence in told.sentence
