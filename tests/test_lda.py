"""Latent Dirichlet allocation: kernels as their twins, laws by enumeration, devices as one."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.special import gammaln, softmax

from vpem import connect_workers, make_graph
from vpem._core import topics
from vpem.errors import FileError, InputError
from vpem.network.partition import evenly
from vpem.saem.fit import fit_saem
from vpem.saem.formats.fits import read_saem, save_saem
from vpem.saem.individuals import Streams, from_counts, from_long
from vpem.saem.models.lda import LdaModel, TopicNames
from vpem.saem.prediction import Predictor
from vpem.saem.samplers import Gibbs

from .resume_support import check_resumes
from .tables import each
from .twins import models as numpy_twins

RNG = np.random.default_rng(3)
TRUE = RNG.dirichlet(np.full(30, 0.1), 3)
SHARES = RNG.dirichlet(np.full(3, 0.3), 120)
CORPUS = from_counts(np.array([RNG.multinomial(40, shares @ TRUE) for shares in SHARES]))
FEW = CORPUS.take(np.arange(60))
SHORT = {"n_iter": 8, "burn_in": 4, "n_conditional": 2, "tol": 0.0}


def fit(data=FEW, **options):
    return fit_saem(data, "lda", model_options={"n_topics": 3}, **{**SHORT, **options})


@each(("n_topics", "n_chains"), [(1, 1), (4, 2)])
def test_kernels_do_what_their_twins_do(n_topics, n_chains):
    """One topic and several, one chain and two, words that come often, on two threads."""
    counts = RNG.poisson(0.7, (9, 12))
    counts[0] = [30, *[0] * 11]
    counts[:, 1] += 1
    model = LdaModel(from_counts(counts), n_topics)
    rows = model._first, model._words, model._counts
    phi = np.ascontiguousarray(RNG.dirichlet(np.ones(12), n_topics).T)
    z = RNG.normal(size=(n_chains, 9, n_topics)) * 3
    keys = np.ascontiguousarray(Streams.from_names(model.individuals.names, 1).keys_at(2, 4))
    shares = softmax(z, axis=-1)
    group = np.array([0, 1, -1, 1, 0, 0, 1, 1, 0])

    def run(kernels, n_threads):
        moved, out = z.copy(), np.zeros((2, n_topics, 12))
        value, slope = np.empty((n_chains, 9)), np.empty(z.shape)
        gamma, bound = np.empty((9, n_topics)), np.empty(9)
        kernels.sweep_topics(*rows, phi, 0.3, keys, moved, n_threads)
        by_word = model._by_word
        kernels.means_of_topics(*by_word, phi, shares, group, np.arange(9.0), out, n_threads)
        kernels.density_of_topics(*rows, phi, 0.3, z, value, slope, n_threads)
        kernels.bound_of_topics(*rows, phi, 0.3, 50, 1e-6, gamma, bound, n_threads)
        return moved, out, value, slope, gamma, bound

    for ours, theirs in zip(run(topics, 2), run(numpy_twins, 1), strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-9, 1e-9)


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
    from vpem.saem.samplers import sampler_of

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


def test_topics_are_recovered():
    found = fit(CORPUS, n_iter=150, burn_in=60)
    theta = found.theta.reshape(3, 30)
    ours, theirs = (one / np.linalg.norm(one, axis=1)[:, None] for one in (theta, TRUE))
    rows, columns = linear_sum_assignment(-ours @ theirs.T)
    assert ((ours @ theirs.T)[rows, columns] > 0.95).all()
    shares = found.given.means[:, rows]
    assert np.corrcoef(shares.ravel(), SHARES[:, columns].ravel())[0, 1] > 0.95
    assert found.model.perplexity(found.theta) < 1.05 * found.model.perplexity(TRUE.ravel() + 1e-9)
    assert np.isnan(found.standard_errors).all()
    assert found.trace.shape == (151, 3)


def test_devices_find_what_one_machine_finds():
    alone = fit()
    for network in (None, {"sum": "tree"}, {"secure_sum": True}, {"consensus_tol": 1e-12}):
        joined = network and connect_workers(
            make_graph("star" if "secure_sum" in network else "path", 3), **network
        )
        found = fit(devices=evenly(60, 3), network=joined)
        np.testing.assert_allclose(found.theta, alone.theta, 1e-5, 1e-12)
        np.testing.assert_allclose(found.given.means, alone.given.means, 1e-5, 1e-9)
    order = np.random.default_rng(0).permutation(60)
    mixed = fit(FEW.take(order), devices=2)
    np.testing.assert_allclose(mixed.theta, alone.theta, 1e-8)
    np.testing.assert_allclose(mixed.given.means, alone.given.means[order], 1e-8)


@each(
    "how",
    [
        {"codec": "topk:0.3", "feedback": "error"},
        {"codec": "qsgd:4bits", "participation": 0.6, "batch_size": 7},
        {"tol": 1e3, "window": 1},
        {"average": "models"},
    ],
)
def test_runs_go_on_to_the_bit(how):
    check_resumes(lambda saver: fit(devices=3, saver=saver, **how))


def test_weights_are_copies():
    from dataclasses import replace

    twice = replace(FEW, weights=np.full(60, 2.0))
    found, plain = fit(twice), fit()
    # Pseudo-counts weigh half as much beside twice the words.
    wanted = plain.theta
    assert np.abs(found.theta - wanted).max() < 0.05
    assert abs(found.log_likelihood.value - 2 * found.model.marginal(found.theta).sum()) < 1e-6


def test_a_run_ends_when_perplexity_stays():
    found = fit(CORPUS, n_iter=400, burn_in=60, window=20, tol=0.5)
    assert found.converged
    assert found.n_iter < 400
    assert found.change < 0.5
    assert "the perplexity" in found.grounds
    looks = found.corpus.perplexities
    assert looks[:3, 0].tolist() == [4, 8, 12]
    assert looks[-1, 0] == found.n_iter
    assert looks[-1, 1] == found.model.perplexity(found.theta) < looks[0, 1]


def test_new_documents_are_scored_and_have_proportions():
    found = fit(CORPUS.take(np.arange(90)), n_iter=60, burn_in=30)
    new = CORPUS.take(np.arange(90, 120))
    at_work = Predictor(found, n_draws=40)
    score = at_work.score(new)
    np.testing.assert_allclose(score.each, LdaModel(new, 3, n_words=30).marginal(found.theta))
    each_half, words = LdaModel(new, 3, n_words=30).completion(found.theta, 1)
    assert 400 < words.sum() < 800
    flat = LdaModel(new, 3, n_words=30).completion(np.full(90, 1 / 30), 1)[0]
    np.testing.assert_allclose(flat, -words * np.log(30))
    assert each_half.sum() > 1.2 * flat.sum() / 1.4
    shares = at_work.latents(new)
    np.testing.assert_allclose(shares.means.sum(axis=1), 1)
    assert ((shares.lower <= shares.means) & (shares.means <= shares.upper)).mean() > 0.9
    some = at_work.latents(new.take([3, 5]))
    np.testing.assert_allclose(some.means, shares.means[[3, 5]])


def test_files_keep_topics(tmp_path):
    """Words' names too; what does not agree is refused."""
    import h5py

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
    assert (len(names), names[4], names[-1], names[1:3]) == (
        6, "topic 1 b", "topic 1 c", ["topic 0 b", "topic 0 c"],
    )  # fmt: skip
    assert Gibbs().name == "gibbs"
