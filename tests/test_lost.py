"""Those who go on without a member that is lost: what they begin at, and who decides it."""

import warnings
from functools import partial

import numpy as np
import pytest

from vpem import (
    connect,
    connect_workers,
    fit_em,
    fit_fedem,
    fit_vpem,
    kmeans_features,
    kmeans_rows,
    make_graph,
)
from vpem.engines.engine import Engine
from vpem.errors import VpemWarning
from vpem.files.checkpoints import FileSaver
from vpem.fits.local_rows import read_rows
from vpem.fits.spread import fit_spread, own_columns
from vpem.network.partition import Blocks, contiguous, from_worker_of_row
from vpem.steps.recovery import Keeper
from vpem.sums.connect import spread, spread_workers
from vpem.terms.mixture import Mixture
from vpem.terms.units import Scaling

from .cli_support import overlapping
from .resume_support import Breaking, Broken
from .tables import each
from .thread_engine import over_queues, together

X, _ = overlapping(120, 8, 3, gap=2.0, seed=6)
HOLDER = np.repeat([0, 1, 2, 3], [40, 20, 35, 25])
COMMON = {"n_init": 2, "n_threads": 1, "seed": 3}
EM = {"n_components": 3, "tol": 0.0, "reg_covar": 1e-3, **COMMON}
LLOYD = {"n_clusters": 3, "init": "random", **COMMON}
FED = {"n_components": 3, "tol": 0.0, "step_size": 0.5, "n_threads": 1, "seed": 3}


class Killed(Exception):
    """Nobody goes on."""


class Until(Keeper):
    """Keeps what there is until all stop, in the second restart if there is one."""

    def offer(self, state, *, last=False):
        super().offer(state, last=last)
        if self.done == 10:
            raise Killed


def over_features(fit, n_parties, engine=None, saver=None, masked=False, **options):
    """The first so many of four parties, which have two features each."""
    held = contiguous(2 * n_parties, n_parties)
    joined = connect(make_graph("star", n_parties), held, secure_sum=masked)
    if engine is None:
        return fit(X[:, : 2 * n_parties], joined, saver=saver, **options)
    ranked = spread(joined, engine)
    columns = own_columns(ranked)
    fit = fit_spread if fit is fit_vpem else fit
    return fit(X[:, columns] if len(columns) else None, ranked, saver=saver, **options)


def over_rows(fit, n_parties, engine=None, saver=None, **options):
    """The first so many of four parties, which have rows."""
    data = X[n_parties > HOLDER, :3]
    held = from_worker_of_row(HOLDER[n_parties > HOLDER], tuple("abcd"[:n_parties]))
    joined = connect_workers(make_graph("star", n_parties))
    if engine is not None:
        joined = spread_workers(joined, engine)
        data = read_rows(data, [held.rows[worker] for worker in joined.agents.own])
    return fit(data, held, joined, saver=saver, **options)


@each(
    ("fit", "held", "options", "n_iter"),
    [
        (fit_vpem, over_features, EM, 7),
        (fit_vpem, over_features, EM | {"scale": "standard", "masked": True}, 7),
        (fit_em, over_rows, EM, 7),
        (fit_fedem, over_rows, FED, 12),
        (kmeans_features, over_features, LLOYD, 7),
        (kmeans_rows, over_rows, LLOYD, 7),
    ],
)
def test_the_others_go_on_from_their_own_parameters(fit, held, options, n_iter):
    """As one process that has what they have would, and that begins at these parameters."""
    options = options | {"max_iter": n_iter}

    def until(engine):
        keeper = Until(None, engine)
        with pytest.raises(Killed):
            held(fit, 4, engine, keeper, **options)
        return keeper.newest()

    kept = together(5, until, over_queues, seats=(1, 2, 3, 4))
    assert all(list(one) == list(kept[0]) for one in kept), kept

    def onward(engine):
        # One has not come as far as the others: all go on from where it is.
        mine = dict(kept[engine.rank])
        if engine.rank == 3:
            mine.pop(max(mine))
        keeper = Keeper(None, engine, [("d", -1)], mine)
        return held(fit, 3, engine, keeper, **options), keeper.lost

    found = together(4, onward, over_queues, seats=(1, 2, 3))
    (ours, lost), done = found[0], min(kept[0])
    assert lost == [("d", done)]
    starts, one = joined(fit, kept, done, held), {"n_init": 1} if "n_init" in options else {}
    assert len(starts) == options.get("n_init", 1)
    start = starts[getattr(ours, "best_restart", 0)]
    if "centres" in start:
        init = start["centres"]
    else:
        d = start["means"].shape[1]
        blocks = contiguous(d, 3).features if held is over_features else (np.arange(d),)
        blocks = Blocks(blocks, tuple(range(len(blocks))), tuple((b,) for b in range(len(blocks))))
        init = Mixture(blocks, "full", **start, scaling=Scaling.none(d))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        alone = held(fit, 3, **(options | one | {"init": init}))
    np.testing.assert_allclose(ours.history, alone.history, rtol=1e-10)
    if fit in (fit_vpem, fit_em):
        assert np.all(np.diff(ours.history[:, 0]) > 0)


@each(("fit", "held", "width"), [(kmeans_features, over_features, 6), (kmeans_rows, over_rows, 3)])
def test_those_who_went_on_are_resumed(fit, held, width):
    """Their restart began at no rows, but at the centres that they had kept."""
    options = LLOYD | {"n_init": 1, "max_iter": 7}

    def go_on(inner):
        kept = {4: {0: {"centres": X[:3, :width]}}}
        return held(fit, 3, None, Keeper(inner, Engine(), [("d", 4)], kept), **options)

    breaking = Breaking(3)
    with pytest.raises(Broken):
        go_on(breaking)
    resumed, whole = held(fit, 3, None, Breaking(saved=breaking.state), **options), go_on(None)
    assert resumed.history == whole.history
    np.testing.assert_array_equal(resumed.labels, whole.labels)
    np.testing.assert_allclose(resumed.centres, whole.centres, rtol=1e-13)


def joined(fit, kept, done, held):
    """What the three who are left have kept, together as one process would have it."""
    own = [one[done] for one in kept[1:4]]
    if held is over_rows:
        return own[0]

    def along(name, number):
        return np.concatenate([one[number][name] for one in own], axis=-1)

    starts = {}
    for number in own[0]:
        if fit is kmeans_features:
            starts[number] = {"centres": along("centres", number)}
        else:
            starts[number] = {
                "weights": own[0][number]["weights"],
                "means": along("means", number),
                "covariances": along("covariances", number),
            }
    return starts


def test_they_go_on_from_a_checkpoint_of_all(tmp_path):
    """As where all were ended, and one of them does not come back."""
    options = EM | {"max_iter": 7}

    def begin(engine):
        saver = FileSaver(tmp_path / "c.h5", every=5, engine=engine)
        with pytest.raises(Killed):
            over_features(fit_vpem, 4, engine, Until(saver, engine), **options)

    together(5, begin, seats=(1, 2, 3, 4))

    def onward(engine, **how):
        saver = FileSaver(tmp_path / "c.h5", engine=engine, gone_on=True, **how)
        keeper = Keeper(saver, engine, [("d", -1)])
        fit = over_features(fit_vpem, 3, engine, keeper, **options)
        return fit.history, fit.init_rows, keeper.lost, sorted(saver.former)

    found = together(4, partial(onward, resume="if-any"), seats=(1, 2, 3))
    (history, rows, lost, there), *_ = found
    assert (rows, lost, there) == (None, [("d", 10)], [7, 10])
    anew, *_ = together(4, onward, seats=(1, 2, 3))
    assert anew[1] is not None
    assert anew[2] == [("d", 0)]
    assert history[0, 0] > anew[0][0, 0]
