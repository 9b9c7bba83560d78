"""Latent Dirichlet allocation: laws by enumeration, topics recovered; doors from documents on."""

import csv
import itertools
import json
import re

import h5py
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.special import gammaln

import vpem_cli
from vpem.errors import FileError, InputError
from vpem.saem.fit import fit_saem
from vpem.saem.formats.fits import read_saem, save_saem
from vpem.saem.individuals import from_counts, from_long
from vpem.saem.models.lda import LdaModel, TopicNames
from vpem.saem.prediction import Predictor
from vpem.saem.results import Topics
from vpem.saem.samplers import sampler_of

from .cli_support import ROOT, done, run
from .tables import each

RNG = np.random.default_rng(3)
TRUE = RNG.dirichlet(np.full(30, 0.1), 3)
SHARES = RNG.dirichlet(np.full(3, 0.3), 120)
CORPUS = from_counts(np.array([RNG.multinomial(40, shares @ TRUE) for shares in SHARES]))
FEW = CORPUS.take(np.arange(60))


def fit(data=FEW, **options):
    short = {"n_iter": 8, "burn_in": 4, "n_conditional": 2, "tol": 0.0}
    return fit_saem(data, "lda", model_options={"n_topics": 3}, **{**short, **options})


def enumerated(counts, theta, alpha):
    """Log-likelihood of a document, and expected counts (K, V), over all topics of its words."""
    words = np.repeat(np.arange(len(counts)), counts)
    K = len(theta)
    odds, hits = [], []
    for labels in itertools.product(range(K), repeat=len(words)):
        held = np.bincount(labels, minlength=K)
        prior = gammaln(K * alpha) - gammaln(K * alpha + len(words))
        prior += (gammaln(alpha + held) - gammaln(alpha)).sum()
        odds.append(prior + np.log(theta[list(labels), words]).sum())
        hit = np.zeros(theta.shape)
        np.add.at(hit, (list(labels), words), 1.0)
        hits.append(hit)
    weights = np.exp(odds)
    return np.log(weights.sum()), np.tensordot(weights / weights.sum(), hits, 1)


@pytest.fixture(scope="module")
def tiny():
    counts = np.array([[2, 1, 0, 1]])
    theta = np.array([[0.6, 0.2, 0.1, 0.1], [0.1, 0.1, 0.3, 0.5]])
    model = LdaModel(from_counts(counts), 2, alpha=0.4, n_words=4)
    return model, theta, enumerated(counts[0], theta, 0.4)


@each(("sampler", "n_iter"), [("gibbs", 300), ("mala", 600)])
def test_samplers_find_what_enumeration_finds(tiny, sampler, n_iter):
    model, theta, (_, wanted) = tiny
    moves = sampler_of(sampler)
    chains = moves.begin(model, theta.ravel(), np.zeros((1, 2)), 200, 5)
    found = np.zeros(8)
    about = model.expand_about(theta.ravel())
    for now in range(n_iter):
        moves.move(model, theta.ravel(), chains, now + 1, max(0, now - 100))
        if now >= n_iter // 3:
            found += about.means(chains.z, [np.arange(1)])[0]
    found /= n_iter - n_iter // 3
    np.testing.assert_allclose(found, wanted.ravel(), atol=0.015)


def test_the_bound_lies_below_and_slopes_are_slopes(tiny):
    model, theta, (wanted, _) = tiny
    bound = model.marginal(theta.ravel())[0]
    assert wanted - 0.6 < bound < wanted
    one = LdaModel(model.individuals, 1, n_words=4)
    np.testing.assert_allclose(one.marginal(theta[0]), np.log(theta[0]) @ [2, 1, 0, 1])
    z, nudge = np.array([[[0.3, -1.0]]]), 1e-6
    for k, way in enumerate(np.eye(2)):
        up, down = (model.log_complete(z + s * nudge * way, theta.ravel()) for s in (1, -1))
        slope = model.gradient(z, theta.ravel())[0, 0, k]
        assert abs((up - down)[0, 0] / (2 * nudge) - slope) < 1e-6


def test_topics_are_recovered_and_a_run_ends_when_perplexity_stays():
    found = fit(CORPUS, n_iter=400, burn_in=60, window=20, tol=0.5)
    assert found.converged
    assert found.n_iter < 400
    assert found.change < 0.5
    assert "the perplexity" in found.grounds
    looks = found.corpus.perplexities
    assert looks[:3, 0].tolist() == [4, 8, 12]
    assert looks[-1, 0] == found.n_iter
    assert looks[-1, 1] == found.model.perplexity(found.theta) < looks[0, 1]
    assert looks[-1, 1] < 1.05 * found.model.perplexity(TRUE.ravel() + 1e-9)
    theta = found.theta.reshape(3, 30)
    ours, theirs = (one / np.linalg.norm(one, axis=1)[:, None] for one in (theta, TRUE))
    rows, columns = linear_sum_assignment(-ours @ theirs.T)
    assert ((ours @ theirs.T)[rows, columns] > 0.95).all()
    shares = found.given.means[:, rows]
    assert np.corrcoef(shares.ravel(), SHARES[:, columns].ravel())[0, 1] > 0.95
    assert np.isnan(found.standard_errors).all()
    assert found.trace.shape == (found.n_iter + 1, 3)


def test_weights_are_copies():
    """Pseudo-counts weigh half as much beside twice the words."""
    found, plain = fit(FEW.__class__(**{**vars(FEW), "weights": np.full(60, 2.0)})), fit()
    assert np.abs(found.theta - plain.theta).max() < 0.05
    assert abs(found.log_likelihood.value - 2 * found.model.marginal(found.theta).sum()) < 1e-6


def test_new_documents_are_scored_and_have_proportions():
    found = fit(CORPUS.take(np.arange(90)), n_iter=60, burn_in=30)
    new = CORPUS.take(np.arange(90, 120))
    at_work, model = Predictor(found, n_draws=40), LdaModel(new, 3, n_words=30)
    np.testing.assert_allclose(at_work.score(new).each, model.marginal(found.theta))
    each_half, words = model.completion(found.theta, 1)
    assert 400 < words.sum() < 800
    flat = model.completion(np.full(90, 1 / 30), 1)[0]
    np.testing.assert_allclose(flat, -words * np.log(30))
    assert each_half.sum() > 1.2 * flat.sum() / 1.4
    shares = at_work.latents(new)
    np.testing.assert_allclose(shares.means.sum(axis=1), 1)
    assert ((shares.lower <= shares.means) & (shares.means <= shares.upper)).mean() > 0.9
    np.testing.assert_allclose(at_work.latents(new.take([3, 5])).means, shares.means[[3, 5]])


def test_files_keep_topics(tmp_path):
    """Words' names too; what does not agree is refused."""
    found = fit()
    save_saem(tmp_path / "topics.h5", found)
    again = read_saem(tmp_path / "topics.h5")
    np.testing.assert_array_equal(again.theta, found.theta)
    assert again.words == CORPUS.words
    assert again.parameters[31] == "topic 1 1"
    score = Predictor(found).score(FEW)
    np.testing.assert_array_equal(Predictor(again).score(FEW).each, score.each)
    assert 5 < Predictor(again).describe_score(FEW)["perplexity_of_completion"] < 30
    with h5py.File(tmp_path / "topics.h5", "r+") as file:
        del file["words"]
        file["words"] = np.array(["a", "b"], dtype=h5py.string_dtype())
    with pytest.raises(FileError, match="must be those of a vocabulary"):
        read_saem(tmp_path / "topics.h5")


@each(
    ("table", "options", "words"),
    [
        (([0], [0.5], [1.0]), {}, "word \\(time\\) 0.5"),
        (([0], [1], [1.5]), {}, "count \\(value\\) 1.5"),
        (([0], [1], [1e9]), {}, "1000000000 times"),
        (([0], [4], [1.0]), {"n_words": 4}, "has the word 4"),
        (([0], [1], [1.0]), {"n_topics": 0}, "n_topics"),
        (([0], [1], [1.0]), {"alpha": -1.0}, "alpha"),
    ],
)
def test_what_is_no_corpus_is_refused(table, options, words):
    with pytest.raises(InputError, match=words):
        LdaModel(from_long(*table), **options)


def test_names_are_made_when_asked_for():
    names = TopicNames(2, 3, ("a", "b", "c"))
    assert (len(names), names[4], names[-1]) == (6, "topic 1 b", "topic 1 c")
    assert names[1:3] == ["topic 0 b", "topic 0 c"]


# ---- from documents to pictures -----------------------------------------------------------------

NOTICES = ROOT / "data" / "notices.csv"
SHORT = ("--iterations", "40", "--burn-in", "30", "--tol", "0", "--conditional-draws", "8")
FIT = ("saem", NOTICES, "--model", "lda", "-k", "4", *SHORT)
FIRST = {"boat", "bread", "seed", "song"}


def rows(path):
    """Lines of a table, by the names of its columns."""
    with open(path, newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """The file of topics of the notices on three devices, beside tables of them."""
    home = tmp_path_factory.mktemp("topics")
    (home / "words.csv").write_text("mine\n")
    words = (*FIT, "--devices", "3", "--max-share", "0.6", "-q", "-o", home / "t.h5",
             "--topics", home / "words.csv", "--individuals", home / "documents.csv")  # fmt: skip
    assert vpem_cli.run([str(word) for word in words]) == 2  # a table's place is taken by force
    assert (home / "words.csv").read_text() == "mine\n"
    assert vpem_cli.run([*map(str, words), "--force"]) == 0
    return home / "t.h5"


def test_topics_are_found_and_written(fitted):
    found = Topics(read_saem(fitted))
    assert {own[0][0] for own in found.top()} == FIRST
    assert found.coherence.min() > 0.2
    np.testing.assert_allclose(found.shares.sum(), 1)
    np.testing.assert_allclose(found.device_shares.mean(axis=0), found.shares, atol=0.01)
    table = rows(fitted.with_name("words.csv"))
    assert [row["word"] for row in table] == list(found.words)
    assert sum(float(row["topic 2"]) for row in table) == pytest.approx(1)
    documents = rows(fitted.with_name("documents.csv"))
    assert len(documents) == 240
    assert float(documents[0]["topic 0"]) == pytest.approx(found.saved.means[0, 0])


def test_parties_of_a_folder_say_what_they_are_of(capsys, tmp_path):
    head, *lines = NOTICES.read_text().splitlines()
    for name, part in (("hill", lines[:2499]), ("shore", lines[2499:])):
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *part]) + "\n")
    told = done(capsys, "saem", tmp_path, "--parties", *FIT[2:], "--json").json
    assert told["device_names"] == ["hill", "shore"]
    assert told["individuals"][0]["id"] == "hill/notice 1"
    assert {next(iter(one["words"])) for one in told["topics"]} == FIRST


def test_a_fit_begins_with_topics_of_another(capsys, fitted):
    again = done(capsys, *FIT, "--max-share", "0.6", "--init-model", fitted, "--json").json
    assert again["iterations"] == 40
    told = run(capsys, *FIT, "--init-model", fitted)
    assert (told.code, "not those of this lda" in told.sentence) == (2, True)


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


def test_topics_are_shown_drawn_and_exported(capsys, fitted, tmp_path, monkeypatch):
    shown = " ".join(done(capsys, "model", "show", fitted).out.split())
    assert "boat" in shown
    assert re.search(r"4 topics of \d+ documents: the largest, topic \d, has \d\d % of", shown)
    for kind in ("topics", "shares", "spreads"):
        words = ("--kind", kind, "-o", tmp_path / f"{kind}.svg", "--json")
        assert "topic 3" in done(capsys, "plot", fitted, *words).json["description"]
    monkeypatch.setattr("vpem.pictures.page.as_source", lambda figure: "data:,")  # drawn above
    done(capsys, "report", fitted, NOTICES, "-o", tmp_path / "page.html")
    assert "harbour" in (tmp_path / "page.html").read_text()
    done(capsys, "model", "export", fitted, "-o", tmp_path / "t.json")
    assert len(json.loads((tmp_path / "t.json").read_text())["probabilities"]) == 4
