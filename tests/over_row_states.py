"""Recipes that are broken off on ranks go on to the same bits, over rows and over features.

Every rank breaks off at the same iteration, and
goes on from what it saved itself. That to save changes nothing is for cells of the table.
"""

from dataclasses import replace

from tests.over_rows import overlapping
from tests.over_sums import agents_on
from tests.resume_support import check_resumes
from vpem.engines.placement import Placement
from vpem.fits.fedem import fit_fedem
from vpem.fits.local_rows import read_rows
from vpem.fits.row_kmeans import kmeans_rows
from vpem.fits.rows import fit_em
from vpem.fits.spread import fit_spread, own_columns
from vpem.network.graph import make_graph
from vpem.network.partition import contiguous, evenly
from vpem.sums.connect import connect, connect_workers, spread, spread_workers


class Ranks:
    """Breaks recipes off over these ranks."""

    def __init__(self, engine, n_workers):
        self.engine = engine
        self.X = overlapping()
        self.workers = evenly(len(self.X), n_workers)
        own = Placement.evenly(engine, n_workers).own
        self.own = read_rows(self.X, [self.workers.rows[worker] for worker in own])
        self.n_checked = 0

    def check(self, recipe, network, **options):
        """The result, and what was handed over, must be those of a run that was let alone."""

        def run(saver):
            ranked = spread_workers(network, self.engine)
            found = recipe(self.own, self.workers, ranked, saver=saver, n_threads=1, **options)
            traffic = ranked.total.traffic
            return found, dict(traffic.delivered), dict(traffic.on_wire)

        self.n_checked += 1
        return check_resumes(run)[0]

    def check_features(self, topology, batch_size=None, **how):
        """The same of VP-EM, over sums that keep something."""
        rounds = {} if topology == "star" else {"n_rounds": 6}
        n = agents_on(self.engine, 3)
        joined = connect(make_graph(topology, n), contiguous(3, n), hops=0, **rounds, **how)

        def run(saver):
            ranked = spread(joined, self.engine)
            own = self.X[:, own_columns(ranked)] if len(ranked.agents.own) else None
            found = fit_spread(
                own, ranked, saver=saver, n_components=2, max_iter=3, tol=0, seed=1, n_threads=1,
                batch_size=batch_size,
            )  # fmt: skip
            traffic = ranked.total.traffic
            return found, dict(traffic.delivered), dict(traffic.on_wire)

        self.n_checked += 1
        check_resumes(run)


def main(engine):
    n_workers = agents_on(engine)
    ranks = Ranks(engine, n_workers)
    star = connect_workers(make_graph("star", n_workers))
    cycle = connect_workers(make_graph("cycle", n_workers), n_rounds=3, acceleration="none")
    three = {"n_components": 3, "max_iter": 2, "tol": 0.0, "seed": 1}
    reduced = {"variance_reduction": True, "inner": 2, "participation": 0.7, "init": "k-means++"}
    first = fit_em(ranks.X, ranks.workers, star, n_components=3, max_iter=2).mixture
    means = first.means.copy()
    means[2] += 90.0
    disturbed = connect_workers(
        make_graph("path", n_workers), n_rounds=8, link_failure=0.2, compress="qsgd:8bits"
    )
    ranks.check(fit_fedem, disturbed, batch_size=9, init=[3, 77, 120], **three)
    ranks.check_features("star", compress="topk:0.4")
    ranks.check_features("star", compress="natural:12bits", batch_size=60)
    ranks.check_features("cycle", compress="qsgd:8bits", link_failure=0.1, agent_dropout=0.1)
    for network in (star, cycle):
        ranks.check(fit_em, network, n_init=2, init="random", **three)
        ranks.check(kmeans_rows, network, n_clusters=4, n_init=2, seed=2, max_iter=4)
        ranks.check(fit_fedem, network, batch_size=9, **reduced, **three)
    # A component that holds nothing: the stream goes on where it was.
    mended = ranks.check(fit_em, cycle, init=replace(first, means=means), **three)
    assert mended.recoveries
    ranks.check(kmeans_rows, star, init=means, n_clusters=3, scale="standard")
    ranks.check(fit_fedem, star, compress="randk:0.5", batch_size=6, **reduced, **three)
    return f"checked {ranks.n_checked}"
