"""An iteration is one sum where all have its total: what comes of it is agreed on with the next."""

from collections import Counter
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from vpem.errors import InputError
from vpem.files.checkpoints import FileSaver, read_state
from vpem.fits.rows import fit_em
from vpem.fits.spread import fit_spread, own_columns
from vpem.fits.vpem import fit_vpem
from vpem.network.graph import make_graph
from vpem.network.partition import contiguous, evenly, from_lists
from vpem.steps import em
from vpem.sums.connect import connect, connect_workers, spread, spread_workers
from vpem.sums.server import ServerSum

from .over_fits import HELD, overlapping
from .tables import over
from .thread_engine import over_queues, together

WAYS = {
    "star": ("star", (1, 2, 3), {}),
    "tree": ("path", (0, 1, 2), {"sum": "tree"}),
    "masked star": ("star", (1, 2, 3), {"secure_sum": True}),
    "masked tree": ("path", (0, 1, 2), {"sum": "tree", "secure_sum": True}),
}
"""Topology, seats of those that hold something, and how they sum."""

pytestmark = [
    pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning"),
    pytest.mark.filterwarnings("ignore::vpem.NotConvergedWarning"),
]

X = overlapping(120)
X[:3] = 40.0 + np.arange(8)  # a component of these alone has no covariance


@cache
def start(at=None):
    """Return where fits begin; the last component may be ``at`` some distance from all rows."""
    network = connect(make_graph("star", 3), from_lists(HELD[3], 8))
    first = fit_vpem(X[3:], network, n_components=3, max_iter=1, init=[3, 77, 110]).mixture
    means = first.means.copy()
    if at is not None:
        means[2] = at + np.arange(8)
    return replace(first, means=means)


def fits(way, over_rows=False, spoil=lambda engine: None, at=None, checkpoint=None, **options):
    """Fit over members of a study whose links are queues: what each found, and what it sent."""
    topology, seats, how = WAYS[way]
    graph, workers = make_graph(topology, 3), evenly(len(X), 3)
    held = from_lists(HELD[3], 8)
    whole = connect_workers(graph, **how) if over_rows else connect(graph, held, **how)
    options = {"n_components": 3, "init": start(at), "max_iter": 12, **options}

    def member(engine):
        spoil(engine)
        saver = None
        if checkpoint is not None:
            saver = FileSaver(f"{checkpoint}/{engine.rank}.h5", engine=engine, every=3, force=True)
        if over_rows:
            ranked = spread_workers(whole, engine)
            rows = [workers.rows[worker] for worker in ranked.agents.own]
            own = X[np.concatenate([np.empty(0, int), *rows])]
            return fit_em(own, workers, ranked, saver=saver, **options), Counter(engine._post.sent)
        ranked = spread(whole, engine)
        own = X[:, own_columns(ranked)] if len(ranked.agents.own) else None
        return fit_spread(own, ranked, saver=saver, **options), Counter(engine._post.sent)

    return together(max(seats) + 1, member, engine=over_queues, seats=seats)


def asking_all(monkeypatch):
    """Have all asked what came of each sum, as where totals differ."""
    monkeypatch.setattr(ServerSum, "is_alike", property(lambda total: False))


@over(way=WAYS, over_rows=[False, True])
def test_an_iteration_is_one_sum(way, over_rows):
    three, five = ([sent for _, sent in fits(way, over_rows, max_iter=n)] for n in (3, 5))
    extra = [more - few for more, few in zip(five, three, strict=True)]
    assert {topic for one in extra for _, topic, _ in one} <= {"server", "estep"}
    links = 3 if WAYS[way][0] == "star" else 2
    assert sum(sum(one.values()) for one in extra) == 2 * 2 * links  # up and down, two more


@cache
def changes(way):
    """By how much the log-likelihood of a sample grows, iteration by iteration."""
    return np.abs(np.diff(fits(way, tol=0.0, max_iter=7)[0][0].history[:, 0])) / len(X)


COLLAPSES = {
    "no row": {"at": 90.0, "max_iter": 12},  # in which it converges
    "no covariance": {"at": 40.0, "reg_covar": 0.0},
    "given up": {"at": 40.0, "reg_covar": 0.0, "least_rows": 1},
    "accelerated": {"at": 90.0, "accelerate": "squarem"},
    "no covariance, accelerated": {"at": 40.0, "reg_covar": 0.0, "accelerate": "squarem"},
    "at the end, accelerated": {
        "at": 40.0,
        "reg_covar": 0.0,
        "accelerate": "squarem",
        "tol": 1.0,
    },
}


@over(way=WAYS, over_rows=[False, True], how=COLLAPSES, tol=[0.0, 1e-2])
def test_what_one_party_finds_all_act_on_one_sum_later(way, over_rows, how, tol):
    """The same numbers to the last bit as where all are asked after every sum."""
    options = {"tol": tol, "max_iter": 8, **COLLAPSES[how]}
    found = fits(way, over_rows, **options)
    with pytest.MonkeyPatch.context() as patch:
        asking_all(patch)
        asked = fits(way, over_rows, **options)
    assert found[0][0].recoveries
    for (ours, _), (theirs, _) in zip(found, asked, strict=True):
        assert ours.recoveries == theirs.recoveries
        assert (ours.n_iter, ours.converged) == (theirs.n_iter, theirs.converged)
        np.testing.assert_array_equal(ours.history, theirs.history)
        for name in ("weights", "means", "covariances"):
            np.testing.assert_array_equal(*(getattr(f.mixture, name) for f in (ours, theirs)))
    fit = found[0][0]
    n_links, told = 3 if way.endswith("star") else 2, fit.n_iter + len(fit.lost)
    stops = fit.communication["by_kind"]["stopping"]["messages"]
    assert stops == (told * n_links if "accelerate" in options and not over_rows else 0)


@over(way=WAYS, accelerate=[None, "squarem"], off=[1, 2])
def test_members_that_round_otherwise_take_as_many_iterations(way, accelerate, off, monkeypatch):
    """One finds that the run is over where others do not, by the last bit of what it computes."""
    expect, n_here = em.log_likelihood, []

    def rounding(terms, total, *args, **more):
        found = expect(terms, total, *args, **more)
        odd = total.holders.engine.rank == off
        n_here.append(odd)
        return found * (1 + odd * 3e-16)

    change = changes(way)[4]
    monkeypatch.setattr(em, "log_likelihood", rounding)
    for tol in (change, np.nextafter(change, 1)):
        found = fits(way, tol=tol, accelerate=accelerate)
        assert not any(isinstance(one, BaseException) for one in found), found
        assert len({(fit.n_iter, fit.converged) for fit, _ in found}) == 1
        assert len({fit.log_likelihood for fit, _ in found}) == 1
    assert any(n_here)


@over(way=["star", "masked tree"], accelerate=[None, "squarem"])
def test_an_annealed_step_is_taken_again_where_the_one_before_collapsed(way, accelerate):
    options = {"at": 40.0, "reg_covar": 0.0, "max_iter": 3, "accelerate": accelerate}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(em, "iterate", partial(em.iterate, powers=(0.5, 0.8)))
        found = fits(way, **options)
        asking_all(patch)
        asked = fits(way, **options)
    assert found[0][0].recoveries[0].iteration == 0
    for (ours, _), (theirs, _) in zip(found, asked, strict=True):
        np.testing.assert_array_equal(ours.history, theirs.history)


@over(way=["star", "tree"], steps=[1, 3, 5])
def test_members_that_round_otherwise_keep_checkpoints_alike(way, steps, tmp_path):
    """One has ended where others go on, until they hear of it with the next sum."""

    def rounding(*args, expect=em.log_likelihood, **more):
        return expect(*args, **more) * (1 + (args[1].holders.engine.rank == 1) * 3e-16)

    change = changes(way)[steps]
    for tol in (change, np.nextafter(change, 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(em, "log_likelihood", rounding)
            found = fits(way, tol=tol, checkpoint=tmp_path)
        assert not any(isinstance(one, BaseException) for one in found), found
        states = [read_state(tmp_path / f"{rank}.h5") for rank in range(len(found))]
        assert {state["generation"] for state in states} == {found[0][0].n_iter}


@over(way=WAYS, over_rows=[False, True], accelerate=[None, "squarem"])
def test_a_member_that_objects_for_ever_is_refused(way, over_rows, accelerate):
    take_sum = em.Loop.take_sum

    def objecting(loop, *args):
        loop.objects |= loop.step.total.holders.engine.rank == 1 and loop.iteration == 3
        return take_sum(loop, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(em.Loop, "take_sum", objecting)
        found = fits(way, over_rows, accelerate=accelerate)
    for one in found:
        assert isinstance(one, InputError), one
        assert "objects again" in str(one)


@over(way=["masked star"], accelerate=[None, "squarem"], which=["server", "agreement"])
def test_a_hub_that_tells_one_member_otherwise_is_found_out(way, accelerate, which):
    """With the next sum at the latest nobody opens anything, and nobody waits for ever."""
    if (accelerate is None) and which == "agreement":
        return  # nothing is told beside totals

    def lies(engine):
        put, told = engine._post.put, []

        def lying(to, tag, message, topic=""):
            if (engine.rank, to, topic) == (0, 2, which) and (
                which == "server" or len(message) == 16
            ):
                told.append(tag)
                if len(told) > 3:
                    message = bytes([message[0] ^ 1]) + bytes(message)[1:]
            put(to, tag, message, topic)

        engine._post.put, engine._post.timeout = lying, 1.0

    found = fits(way, accelerate=accelerate, spoil=lies, tol=0.0)
    assert all(isinstance(one, BaseException) for one in found[1:]), found
    assert any(isinstance(one, InputError) for one in found)


@over(topology=["star", "path"], rows=[False, True])
def test_no_byte_is_sent_to_stop_where_all_have_the_same_total(topology, rows):
    """The paper: "no additional communication"."""
    values = np.random.default_rng(0).standard_normal((80, 4)) + np.repeat([[0], [3]], 40, axis=0)
    graph, how = make_graph(topology, 4), {"sum": "tree"} if topology == "path" else {}
    if rows:
        fit = fit_em(values, evenly(80, 4), connect_workers(graph, **how), n_components=2)
    else:
        fit = fit_vpem(values, connect(graph, contiguous(4, 4), **how), n_components=2)
    assert fit.converged
    assert fit.communication["by_kind"]["stopping"]["bytes"] == 0
