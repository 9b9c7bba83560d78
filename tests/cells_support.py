"""What cells of the table share (see test_table.py)."""

import json
from contextlib import redirect_stdout
from io import StringIO

import numpy as np
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

import vpem_cli
from vpem._core.threads import one_blas_thread
from vpem.engines.engine import Engine, StalledError
from vpem.engines.placement import Placement
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.parties.joining import join_parties, stack_parties
from vpem.files.parties.opening import Party

from .tls_support import members_together


def lost_messages(sent, n_edges):
    """Whether rounds had far fewer messages than two a link: links, or agents, really failed."""
    return 0 < sent["messages"] < 0.9 * 2 * n_edges * sent["rounds"]


def first_of(found):
    """What the first rank found, if none failed."""
    failed = [one for one in found if isinstance(one, BaseException)]
    for one in sorted(failed, key=lambda one: isinstance(one, StalledError)):
        raise one
    return found[0]


def keys_exchanged(masked, plain):
    """Whether a fit took the messages by which masks begin, which a fit without them has not."""
    setup, other = (fit.communication["by_kind"]["setup"] for fit in (masked, plain))
    return setup["messages"] > other["messages"]


def over_members(n_parties, work):
    """Run ``work(engine)`` at the members of a study: a server without data, and so many parties.

    Returns what each gave, or the error it raised, as `tests.thread_engine.together` does.
    """
    return members_together(n_parties + 1, work, seats=tuple(range(1, n_parties + 1)))


def report_of(*words):
    """The report of a command."""
    printed = StringIO()
    with redirect_stdout(printed):
        assert vpem_cli.run([*map(str, words), "--json", "--quiet"]) == 0
    return json.loads(printed.getvalue())


def files_of_columns(folder, X, names, held, called):
    """A file of each party, which has some features of all rows."""
    files = []
    for party, columns in zip(called, held.features, strict=True):
        files.append(folder / f"{party}.h5")
        write_dataset(files[-1], Dataset(X[:, columns], tuple(names[j] for j in columns)))
    return files


def files_of_rows(folder, X, names, held, called):
    """A file of each party, which has all features of some rows."""
    files = []
    for party, rows in zip(called, held.rows, strict=True):
        files.append(folder / f"{party}.h5")
        write_dataset(files[-1], Dataset(X[rows], names))
    return files


def opened(engine, files, names, rows):
    """What each party has in a file, rows or columns, as the ranks of an engine hold it."""
    n = len(names)
    place = Placement.evenly(engine, n, names) if engine.apart else Placement.here(n)
    held = [Party(name, str(path)) for name, path in zip(names, files, strict=True)]
    return stack_parties(held, holders=place) if rows else join_parties(held, holders=place)[0]


def same(found, wanted, tolerance=1e-10):
    """Iteration by iteration, and at the end."""
    np.testing.assert_allclose(found.history, wanted.history + 0 * found.history, tolerance)
    for name in ("weights", "means", "covariances"):
        ours, theirs = getattr(found.mixture, name), getattr(wanted.mixture, name)
        np.testing.assert_allclose(ours, theirs + 0 * ours, tolerance, 10 * tolerance)


def compare_over(run, fit, ways, of_parties, bits=lambda fit: fit.history):
    """Compare fits in several processes, of their own files too, with one process."""

    def everything(engine):
        return [*(fit(engine=engine, **how) for how in ways), of_parties(engine)]

    wanted = [*(fit(**how) for how in ways), of_parties(Engine())]
    with one_blas_thread():
        found = first_of(run(everything))
    for ours, theirs in zip(found, wanted, strict=True):
        same(ours, theirs)
        np.testing.assert_allclose(ours.log_prior, theirs.log_prior, 1e-9)
        assert ours.communication == theirs.communication
        if ours.network.agents.masks is not None:  # whole numbers are the same in any order
            np.testing.assert_array_equal(bits(ours), bits(theirs))


def em_by_hand(X, start, blocks, n_iter):
    """EM with block-diagonal covariances: log-likelihoods before each step, and the means."""

    def spread(own, share=None):
        cov = np.atleast_2d(np.cov(X[:, own].T, bias=True, aweights=share))
        return cov + 1e-6 * np.eye(len(own))

    k, history = len(start), []
    weights, means = np.full(k, 1 / k), X[start]
    covariances = [[spread(own)] * k for own in blocks]
    for _ in range(n_iter):
        logs = np.tile(np.log(weights), (len(X), 1))
        for own, each in zip(blocks, covariances, strict=True):
            for one in range(k):
                law = multivariate_normal(means[one, own], each[one])
                logs[:, one] += law.logpdf(X[:, own])
        history.append(logsumexp(logs, axis=1).sum())
        shares = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
        weights = shares.mean(axis=0)
        means = shares.T @ X / shares.sum(axis=0)[:, None]
        covariances = [[spread(own, share) for share in shares.T] for own in blocks]
    return history, means


PENALISED = {
    "penalty": "elastic-net:0.1:0.7,inverse-wishart,dirichlet:2",
    "covariance_type": "diag",
    "init": "kmeans",
}
