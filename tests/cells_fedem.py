"""FedEM, and VR-FedEM (cells_vr_fedem.py), every way (see test_table.py)."""

from functools import partial

import numpy as np
import pytest

from vpem import connect_workers, fit_em, fit_fedem, make_graph
from vpem.errors import InputError
from vpem.files.data import read_dataset
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.matrix import FileMatrix
from vpem.fits.local_rows import read_rows
from vpem.network.partition import Workers, from_worker_of_row
from vpem.rules import WAYS
from vpem.sums.connect import spread_workers

from .cells_support import (
    PENALISED,
    compare_over,
    files_of_rows,
    keys_exchanged,
    lost_messages,
    opened,
    over_members,
    report_of,
    same,
)
from .cli_support import overlapping
from .missing_support import observed_scores, with_holes
from .resume_support import check_resumes
from .thread_engine import together

NAMES = ("east", "north", "west")
FEATURES = ("u", "v", "w")
X, _ = overlapping(120, 3, 2, gap=2.0, seed=6)
HELD = from_worker_of_row(np.repeat([0, 1, 2], [50, 30, 40]), NAMES)
START = [3, 77]

HOLES = with_holes(X, 1)
HOLES[10] = np.nan
WEIGHTS = np.random.default_rng(2).integers(0, 4, len(X)).astype(float)
WEIGHTS[START] = 2

MASKED = {"secure_sum": True}
SIZES = {"data": X * [1e-6, 1e6, 1.0] + [0, 5e6, 3.0], "reg_covar": 1e-14}
"""Features of any size beside each other."""

COMPRESSED = {"compress": "qsgd:8bits:32"}
ABSENT = {"participation": 0.6}
SAFE = {"step_size": "auto", "max_iter": 4000, "record_every": 4000}
TREE = {"topology": "path", "network": {"sum": "tree"}}
FAILING = {"topology": "complete", "network": {"link_failure": 0.2, "stragglers": 0.1}}


class Ways:
    """Cells of one algorithm.

    Parameters
    ----------
    algorithm : dict
        Settings that make FedEM this one.
    """

    def __init__(self, algorithm):
        self.algorithm = algorithm

    def fit(self, data=X, topology="star", network=None, engine=None, held=HELD, **options):
        """Three workers, on the ranks of an engine or in one process."""
        options = {"n_components": 2, "max_iter": 6, "tol": 0.0, "init": START, **options}
        joined = connect_workers(make_graph(topology, 3), **(network or {}))
        if engine is not None:
            joined = spread_workers(joined, engine)
            rows = [held.rows[worker] for worker in joined.agents.own]
            stored = not isinstance(data, np.ndarray)
            data = data.of_rows(rows) if stored else read_rows(data, rows)
            if "sample_weight" in options:
                options["sample_weight"] = read_rows(options["sample_weight"][:, None], rows)[:, 0]
        return fit_fedem(data, held, joined, n_threads=1, **self.algorithm | options)

    @property
    def averaged(self):
        """Batches, in such steps that their noise vanishes."""
        if self.algorithm:
            return {"batch_size": 5}
        return {"step_size": "decreasing:1,0.6", "batch_size": 25, "max_iter": 300}

    def same_optimum(self, tolerance, given=None, **how):
        """To the end, where the plain algorithm comes to."""
        ended = {"tol": 1e-16, "max_iter": 600, "step_size": 1.0, "record_every": 600}
        ended |= given or {}
        found, wanted = self.fit(**ended | how), self.fit(**ended)
        assert wanted.converged
        assert abs(found.log_likelihood - wanted.log_likelihood) < tolerance
        return found

    def server(self, folder):
        """With all rows in every batch and step 1 it is EM; else it ends where EM does."""
        em = fit_em(
            X, HELD, connect_workers(make_graph("star", 3)), n_components=2, max_iter=7, tol=0.0,
            init=START, n_threads=1,
        )  # fmt: skip
        found = self.fit(batch_size=len(X), step_size=1.0)
        np.testing.assert_allclose(found.history[:-1], em.history[1:7], 1e-9)
        assert self.same_optimum(1e-9).converged

    def consensus(self, folder):
        same(self.fit(topology="cycle", network={"consensus_tol": 1e-12}), self.fit(), 1e-8)
        operator = self.fit(topology="cycle", network={"consensus": "operator"})
        same(self.fit(topology="cycle", network={"consensus": "rounds"}), operator)

    def tree(self, folder):
        same(self.fit(**TREE), self.fit())
        same(self.fit(init="kmeans", **TREE), self.fit(init="kmeans"))
        assert self.same_optimum(1e-6, **TREE, **ABSENT, **SAFE).network.total.way == "tree"

    def compressed(self, folder):
        few = self.same_optimum(1e-6, **COMPRESSED).communication
        plain = self.fit(max_iter=600, record_every=600, step_size=1.0, tol=1e-16).communication
        each = [sent["by_kind"]["server"] for sent in (few, plain)]
        few, many = (sent["bytes"] / sent["messages"] for sent in each)
        assert few < 0.7 * many
        codec = {"topology": "cycle", "network": {"compress": "natural:12bits"}}
        assert self.same_optimum(1e-6, **codec).network.compress == "natural:12bits"

    def absent(self, folder):
        assert self.same_optimum(1e-6, **ABSENT, **SAFE).converged
        every = {"batch_size": len(X)}
        same(self.fit(participation=1 - 1e-12, **every), self.fit(**every), 1e-9)

    def links(self, folder):
        found = self.same_optimum(1e-6, **FAILING)
        assert lost_messages(found.communication["by_kind"]["estep"], found.network.graph.n_edges)

    def batches(self, folder):
        same(self.fit(batch_size=len(X)), self.fit(variance_reduction=False))
        found = self.same_optimum(1e-8 if self.algorithm else 5e-3, **self.averaged)
        assert found.converged == bool(self.algorithm)

    def missing(self, folder):
        """With all rows in every batch and step 1 it is EM, starts and all."""
        same(self.fit(missing="marginalize"), self.fit())
        for kind in ("full", "tied", "diag", "tied-spherical"):
            how = {"data": HOLES, "missing": "marginalize", "covariance_type": kind}
            found = self.fit(step_size=1.0, batch_size=len(X), **how)
            data, common = how.pop("data"), {"n_components": 2, "tol": 0.0, "n_threads": 1}
            server = connect_workers(make_graph("star", 3))
            em = fit_em(data, HELD, server, init=START, max_iter=7, **common, **how)
            np.testing.assert_allclose(found.history[:-1], em.history[1:7], 1e-9)
        scores = observed_scores(found.mixture, HOLES).sum() / (len(X) - 1)
        np.testing.assert_allclose(found.log_likelihood, scores, 1e-10)
        ended = {"data": HOLES, "missing": "marginalize", "covariance_type": "tied-diag"}
        assert self.same_optimum(1e-5, ended, **COMPRESSED)
        for kind in ("diag", "full"):
            how = {"data": HOLES, "missing": "marginalize", "covariance_type": kind}
            found = self.fit(init="kmeans", **how, **COMPRESSED)
            plain = self.fit(init="kmeans", **how)
            assert abs(found.log_likelihood - plain.log_likelihood) < 1e-2

    def disk(self, folder):
        path = folder / "data.h5"
        order = np.random.default_rng(0).permutation(len(X))
        write_dataset(path, Dataset(X[order], FEATURES))
        stored = read_dataset(path, memory_limit=2 * X.nbytes - 1).X.in_reads_of(16)
        place = np.argsort(order)
        held = Workers(tuple(np.sort(place[rows]) for rows in HELD.rows), NAMES)
        for how in ({}, {"init": "kmeans"}, {"batch_size": 9, **COMPRESSED, **ABSENT}):
            start = {"init": how.get("init", place[START]), "held": held}
            same(self.fit(stored, **how | start), self.fit(X[order], **how | start))
        noisy = {"batch_size": 9, "held": held, "init": place[START], **COMPRESSED}
        check_resumes(lambda saver: self.fit(stored, saver=saver, max_iter=3, **noisy))

    def weights(self, folder):
        """An integer is as many rows; of batches the mean is that of all."""
        times = WEIGHTS.astype(int)
        first = np.cumsum(times) - times
        copies = {
            "data": np.repeat(X, times, axis=0),
            "held": from_worker_of_row(np.repeat(HELD.worker_of, times), NAMES),
        }
        whole = {"batch_size": 10 * len(X)}
        for how in ({"init": START}, {"init": "kmeans", "weighting": "workers"}, COMPRESSED):
            found = self.fit(sample_weight=WEIGHTS, **whole | how)
            again = {"init": first[START]} if how.get("init") != "kmeans" else {}
            wanted = self.fit(**copies, **whole | how | again)
            same(found, wanted)
            np.testing.assert_allclose((found.bic, found.total_weight), (wanted.bic, times.sum()))
        unlike = {"sample_weight": WEIGHTS + 0.5}
        assert self.same_optimum(1e-8 if self.algorithm else 5e-3, unlike, **self.averaged)

    def checkpoint(self, folder):
        check_resumes(lambda saver: self.fit(saver=saver, batch_size=9, **COMPRESSED, **ABSENT))
        check_resumes(lambda saver: self.fit(saver=saver, **FAILING))
        check_resumes(lambda saver: self.fit(saver=saver, **PENALISED, **ABSENT))
        check_resumes(lambda saver: self.fit(saver=saver, **TREE, **ABSENT))
        given = {"data": HOLES, "missing": "marginalize", "sample_weight": WEIGHTS + 0.5}
        check_resumes(lambda saver: self.fit(saver=saver, batch_size=9, **given))

    def masked(self, folder):
        """As without masks to 1e-8 nats a sample; a tree, and going on, to the bit."""
        for kind in ("full", "diag", "tied"):
            how = {"batch_size": 9, "covariance_type": kind, **SIZES}
            start = self.fit(network=MASKED, **how | {"init": "kmeans", "max_iter": 1}).mixture
            found = self.fit(network=MASKED, **how | {"init": start})
            wanted = self.fit(**how | {"init": start})
            apart = np.abs(found.history - wanted.history) / len(X)
            assert apart.max() < 1e-8
            assert keys_exchanged(found, wanted)
        along = {"topology": "path", "network": MASKED | {"sum": "tree"}}
        np.testing.assert_array_equal(self.fit(**along, init="kmeans").history,
                                      self.fit(network=MASKED, init="kmeans").history)  # fmt: skip
        check_resumes(lambda saver: self.fit(network=MASKED, init="kmeans", saver=saver))
        for how, words in (
            ({}, "the holders of the rows to start at would have to show them"),
            ({"init": "kmeans", **ABSENT}, "totals over changing sets of workers"),
            ({"init": "kmeans", **COMPRESSED}, "and cannot be added"),
        ):
            with pytest.raises(InputError, match=words):
                self.fit(network=MASKED, **how)

    def parties(self, folder):
        flags = ["--variance-reduction"] if self.algorithm else []
        files = files_of_rows(folder, X, FEATURES, HELD, NAMES)
        report = report_of(
            "fedem", *files, "--parties", "--init-rows", "3,77", "--max-iter", 6, "--tol", 0,
            *flags,
        )  # fmt: skip
        np.testing.assert_allclose(report["history"], self.fit().history[:, 0] / len(X), 1e-10)
        assert report["worker_names"] == list(NAMES)
        assert report["worker_rows"] == [50, 30, 40]

    def over_ranks(self):
        """What is compared with one process, by name."""
        return {
            "server": {},
            "start": {"init": "kmeans"},
            "consensus": {"topology": "path", "network": {"n_rounds": 6}},
            "compressed": COMPRESSED,
            "compressed on a graph": {"topology": "cycle", "network": {"compress": "qsgd:8bits"}},
            "absent": ABSENT,
            "links": FAILING,
            "batches": {"batch_size": 18},
            "masked": {"network": MASKED, "init": "kmeans", "batch_size": 18},
            "tree": TREE | ABSENT,
            "penalty": PENALISED,
            "missing": {"data": HOLES, "missing": "marginalize", "init": "kmeans"},
            "weights": {"sample_weight": WEIGHTS, "batch_size": 18, "init": "random"},
            "weights of rows that miss values": {
                "data": HOLES,
                "missing": "marginalize",
                "sample_weight": WEIGHTS + 0.5,
                "batch_size": 18,
            },
        }

    def mpi(self, folder):
        ways = self.over_ranks()
        few = ("compressed", "masked", "weights of rows that miss values")
        some = {way: ways[way] for way in (few if self.algorithm else ways)}
        self.in_processes(folder, partial(together, 2), some)

    def tls(self, folder):
        # Rounds are those of parties; what is reduced goes as all else does.
        few = ("masked",) if self.algorithm else ("compressed", "masked")
        ways = self.over_ranks()
        self.in_processes(folder, partial(over_members, 3), {way: ways[way] for way in few})

    def in_processes(self, folder, run, ways):
        """Compare fits in several processes, of their own files too, with one process."""
        files = files_of_rows(folder, X, FEATURES, HELD, NAMES)
        write_dataset(folder / "data.h5", Dataset(X, FEATURES))
        stored = {"data": FileMatrix(folder / "data.h5").in_reads_of(16), "init": "kmeans"}

        def of_parties(engine):
            held = opened(engine, files, NAMES, rows=True)
            network = spread_workers(connect_workers(make_graph("path", 3), n_rounds=6), engine)
            how = {"n_components": 2, "max_iter": 3, "tol": 0.0, "init": START, "n_threads": 1}
            return fit_fedem(held.X, held.workers, network, **self.algorithm | how)

        ways = [{"max_iter": 3} | how for how in (*ways.values(), stored | COMPRESSED)]
        compare_over(run, self.fit, ways, of_parties, lambda fit: fit.run.statistic)

    def cells(self):
        """Cells by way."""
        return {way: getattr(self, way) for way in (*WAYS, "masked")}


CELLS = Ways({}).cells()
