"""What cells of k-means share: data, Lloyd's algorithm in plain NumPy, comparisons."""

import warnings
from functools import partial

import numpy as np
import pytest

from vpem.engines.engine import Engine
from vpem.errors import InputError
from vpem.rules import WAYS

from .cells_support import first_of, over_members, report_of
from .cli_support import overlapping
from .missing_support import with_holes
from .resume_support import check_resumes
from .thread_engine import together

X, _ = overlapping(160, 6, 4, gap=3.0, seed=9)
HOLES = with_holes(X, 1)
WEIGHTS = np.random.default_rng(2).integers(0, 3, len(X)).astype(float)
START = [3, 40, 77, 111]


def lloyd(data, start, weights=None):
    """By what there is of each row: history of the inertia, labels, centres."""
    weights = np.ones(len(data)) if weights is None else weights
    centres, labels, history = data[start], None, []
    means = weights @ np.nan_to_num(data) / (weights @ ~np.isnan(data))
    centres = np.where(np.isnan(centres), means, centres)
    while True:
        off = np.nansum((data[:, None] - centres) ** 2, axis=2)
        if labels is not None and (off.argmin(axis=1) == labels).all():
            return [*history, weights @ off.min(axis=1)], labels, centres
        labels = off.argmin(axis=1)
        history.append(weights @ off.min(axis=1))
        for k in range(len(centres)):
            own, share = data[labels == k], weights[labels == k, None]
            there = (share * ~np.isnan(own)).sum(axis=0)
            moved = np.nansum(share * own, axis=0) / np.maximum(there, 1e-9)
            centres[k] = np.where(there > 0, moved, centres[k])


def is_lloyd(found, data, start, weights=None, tolerance=1e-9):
    """Whether it went and ended as Lloyd's algorithm over pooled rows."""
    history, labels, centres = lloyd(data, start, weights)
    np.testing.assert_allclose(found.history, history, tolerance)
    np.testing.assert_array_equal(found.labels, labels)
    np.testing.assert_allclose(found.centres, centres, tolerance, 10 * tolerance)


def same(found, wanted, tolerance=1e-10, more=0):
    """Iteration by iteration, but for so many more without a change, and at the end."""
    history = found.history[: found.n_iter - more]
    np.testing.assert_allclose(history, wanted.history, tolerance)
    for name in ("centres", "distances", "root_inertia", "counts"):
        ours, theirs = getattr(found, name), np.array(getattr(wanted, name))
        np.testing.assert_allclose(ours + 0 * theirs, theirs, tolerance, 10 * tolerance)
    np.testing.assert_array_equal(found.labels, wanted.labels)
    for name in ("converged", "init_rows", "reseeded", "disagreement"):
        assert getattr(found, name) == getattr(wanted, name)


def same_optimum(found, wanted, tolerance):
    """Where the plain algorithm ends: its clusters, its centres within the tolerance."""
    assert found.converged
    assert wanted.converged
    np.testing.assert_array_equal(found.labels, wanted.labels)
    np.testing.assert_allclose(found.centres, wanted.centres, tolerance, 10 * tolerance)
    np.testing.assert_allclose(found.inertia, wanted.inertia, tolerance)


def tells_of_far_values(masked, far_for_few):
    """Where one value takes the digits of all others, masked sums say so, and not whose it is."""
    far = X.copy()
    far[3, 2] = 1e9
    with pytest.raises(InputError, match="have no digits left for these: look for a code"):
        masked(far)
    far[3, 2] = far_for_few
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        masked(far)
    assert any("have few digits left for these" in str(one.message) for one in caught)


def is_at_rest(found, data=X, weights=None):
    """Whether one more of Lloyd's iterations, over pooled rows, would change nothing."""
    assert found.converged
    weights = np.ones(len(data)) if weights is None else weights
    hard = (found.labels == np.arange(len(found.centres))[:, None]) * weights
    centres = hard @ np.nan_to_num(data) / (hard @ ~np.isnan(data))
    np.testing.assert_allclose(found.centres, centres, 1e-5, 1e-5)
    off = np.nansum((data[:, None] - centres) ** 2, axis=2)
    np.testing.assert_array_equal(off.argmin(axis=1), found.labels)


class Ways:
    """Laws that k-means over rows and over features share.

    Parameters
    ----------
    cluster : callable
        Clusters the data, by four agents at a star if nothing else is said.
    kept : sequence of dict
        Runs that are broken off, and go on.
    """

    def __init__(self, cluster, kept):
        self.cluster = cluster
        self.kept = kept

    def server(self, folder):
        is_lloyd(self.cluster(), X, START)

    def consensus(self, folder):
        found = self.cluster(topology="cycle", network={"consensus_tol": 1e-12})
        wanted = self.cluster()
        for name in ("history", "centres", "distances"):
            np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), 1e-9)
        np.testing.assert_array_equal(found.labels, wanted.labels)

    def tree(self, folder):
        for topology in ("path", "geometric"):
            same(self.cluster(topology=topology, network={"sum": "tree"}), self.cluster())

    def compressed(self, folder):
        for topology in ("star", "cycle"):
            found = self.cluster(topology=topology, network={"compress": "natural:12bits"})
            plain = self.cluster(topology=topology)
            same_optimum(found, plain, 1e-5)
            few, many = (
                one.communication["bytes"] / one.communication["messages"] for one in (found, plain)
            )
            assert few < 0.35 * many
            for seed, codec in enumerate(("qsgd:8bits", "qsgd:4bits:32", "topk:0.3")):
                network = {"compress": codec, "seed": seed}
                drawn = {"init": "random", "seed": seed}
                if topology == "cycle" and codec == "topk:0.3":
                    with pytest.raises(InputError, match=r"and so sends 2\.4 times as much: take"):
                        self.cluster(topology=topology, network=network, **drawn)
                    continue
                is_at_rest(self.cluster(topology=topology, network=network, **drawn))

    def absent(self, folder):
        for seed in range(2):
            drawn = {"init": "random", "seed": seed}
            for compress in (None, "natural:12bits"):
                network = {"agent_dropout": 0.3, "compress": compress, "seed": seed}
                is_at_rest(self.cluster(topology="complete", network=network, **drawn))
                network = {"compress": compress, "seed": seed}
                is_at_rest(self.cluster(network=network, participation=0.4, **drawn))
        same(self.cluster(participation=1 - 1e-12), self.cluster(), more=1)

    def links(self, folder):
        faults = {"link_failure": 0.2, "stragglers": 0.1}
        for topology in ("cycle", "complete"):
            found = self.cluster(topology=topology, network=faults)
            same_optimum(found, self.cluster(), 1e-7)
        few = {**faults, "n_rounds": 2}
        assert self.cluster(topology="path", network=few, max_iter=30).partitions

    def batches(self, folder):
        same(self.cluster(batch_size=len(X)), self.cluster())
        for how in ({}, {"data": HOLES, "missing": "marginalize"}):
            for seed in range(2):
                found = self.cluster(batch_size=37, init="random", seed=seed, **how)
                is_at_rest(found, how.get("data", X))
                assert (np.diff(found.history) <= 1e-12 * found.history[0]).all()
                np.testing.assert_allclose(found.history[-1], found.inertia, 1e-10)
        found = self.cluster(topology="cycle", batch_size=37)
        same_optimum(found, self.cluster(batch_size=37), 1e-5)
        weighed = {"sample_weight": WEIGHTS, "init": np.flatnonzero(WEIGHTS)[:4]}
        assert self.cluster(batch_size=37, **weighed).converged

    def missing(self, folder):
        same(self.cluster(missing="marginalize"), self.cluster())
        found = self.cluster(HOLES, missing="marginalize")
        is_lloyd(found, HOLES, START)
        assert (np.diff(found.history) < 0).all()
        weighed = {"sample_weight": WEIGHTS + 1, "missing": "marginalize"}
        is_lloyd(self.cluster(HOLES, **weighed), HOLES, START, WEIGHTS + 1)

    def weights(self, folder):
        start = np.flatnonzero(WEIGHTS)[[0, 30, 60, 90]]
        is_lloyd(self.cluster(init=start, sample_weight=WEIGHTS), X, start, WEIGHTS)

    def checkpoint(self, folder):
        for how in self.kept:
            check_resumes(lambda saver, how=how: self.cluster(saver=saver, **how))

    def over(self, run, of_parties, ways):
        """Compare runs in several processes, of their own files too, with one process."""

        def work(engine):
            return [of_parties(engine), *(self.cluster(engine=engine, **how) for how in ways)]

        ways = [{"max_iter": 4} | how for how in ways]
        wanted = [of_parties(Engine()), *(self.cluster(**how) for how in ways)]
        for ours, theirs in zip(first_of(run(work)), wanted, strict=True):
            same(ours, theirs)
            assert ours.communication == theirs.communication

    def over_ranks(self, of_parties, ways, few):
        """Compare all ways over two ranks, and a few over five."""
        self.over(partial(together, 2), of_parties, ways.values())
        self.over(partial(together, 5), of_parties, [ways[name] for name in few])

    def over_members(self, of_parties, ways, few):
        """Compare a few ways over the members of a study."""
        self.over(partial(over_members, 4), of_parties, [ways[name] for name in few])

    def cells(self, **others):
        """Cells by way, of which others than these are given."""
        return {way: others[way] if way in others else getattr(self, way) for way in WAYS}


KEPT = (
    {},
    {"batch_size": 37, "data": HOLES, "missing": "marginalize"},
    {"topology": "cycle", "init": "k-means++", "n_init": 2},
    {"network": {"compress": "natural:12bits"}, "participation": 0.6},
    {"topology": "complete", "network": {"compress": "natural:12bits", "agent_dropout": 0.2}},
    {"topology": "path", "network": {"link_failure": 0.3, "n_rounds": 3}, "max_iter": 20},
)

OVER_RANKS = {
    "few rounds": {"topology": "path", "network": {"n_rounds": 5, "acceleration": "none"}},
    "tree": {"topology": "path", "network": {"sum": "tree"}},
    "absent": {"participation": 0.5, "init": "random"},
    "compressed, absent": {"network": {"compress": "qsgd:8bits"}, "participation": 0.5},
    "rounds": {"topology": "cycle", "network": {"compress": "natural:12bits"}, "max_iter": 6},
    "silent": {"topology": "complete", "network": {"agent_dropout": 0.2}, "max_iter": 6},
    "links": {"topology": "cycle", "network": {"link_failure": 0.2}, "max_iter": 6},
    "start": {"init": "k-means++", "n_init": 2, "scale": "standard"},
    "batches": {"batch_size": 37, "topology": "cycle"},
    "missing in batches": {"data": HOLES, "missing": "marginalize", "batch_size": 50},
    "weights": {"sample_weight": WEIGHTS, "init": "random"},
    "empty": {"init": X[START] + 99.0 * np.arange(4)[:, None], "topology": "cycle"},
}


def in_shell(*words):
    """Cluster by the command line; returns its report."""
    return report_of("kmeans", *words, "-k", "4", "--init-rows", "3,40,77,111")
