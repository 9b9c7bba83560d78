"""Fits under masks: what crosses beside the terms of a sum, what they bear, and for how many.

What leaves an agent depends on what all have *together*, and on nothing that one of them has. So
three fits are compared: one, the same again, and one in which every agent has what its neighbour
had. A number that is the same in all three says nothing of one agent: totals of whole numbers do
not depend on who adds which. A number that comes again with the same data, and not with others', is
somebody's: it leaks. Numbers that never come again must be masked words, and look random.
"""

import pickle
import re
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from vpem import (
    Blocks,
    InputError,
    connect,
    connect_workers,
    fit_fedem,
    fit_saem,
    fit_vpem,
    make_graph,
)
from vpem.engines.placement import Placement, agree
from vpem.fits.feature_kmeans import kmeans_features
from vpem.fits.imputation import fit_imputation
from vpem.fits.row_kmeans import kmeans_rows
from vpem.fits.rows import fit_em
from vpem.fits.selection.trials import Cell, Problem, Trial
from vpem.fits.spread import fit_spread, own_columns
from vpem.fits.spread_rows import SpreadRows
from vpem.network.ledger import Ledger
from vpem.network.masks import Masks
from vpem.network.partition import Partition, contiguous, from_worker_of_row
from vpem.saem.individuals import from_long
from vpem.sums.connect import spread, spread_workers
from vpem.sums.private import in_common_units, powers_above
from vpem.terms.lowrank.entries import from_matrices
from vpem.terms.units import Scaling

from .cli_support import overlapping
from .missing_support import random_mixture, with_holes
from .tables import each, over
from .thread_engine import ThreadEngine, together

quiet = pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
ROOT = Path(__file__).resolve().parents[1]


def masked(engine, n_agents):
    place = Placement.evenly(engine, n_agents)
    place.masks = agree(place)
    return place


def test_agents_learn_sums_flags_and_largest_numbers_and_not_whose():
    values = np.random.default_rng(0).normal(size=(4, 6)) * [1e-30, 1.0, 1e9, 0.0, 1e150, -3.0]

    def work(engine):
        place = masked(engine, 4)
        flags = place.any([engine.rank == 1, False, engine.rank < 2])
        own = values[place.own]
        largest = place.largest(np.array([[3], [9], [2], [0]])[place.own], 0, 100)
        return flags, place.add_up(own), place.add_up(own, columns=1), largest

    for flags, apart, alike, largest in together(3, work):
        np.testing.assert_array_equal(flags, [True, False, True])
        np.testing.assert_allclose(apart, values.sum(axis=0), rtol=1e-14)
        np.testing.assert_allclose(alike, values.sum(axis=0), atol=1e136)
        assert largest == [9]


SCALES = [[1e9, 2.0], [3.0, 1e-5], [0.0, -1e-200]], [[-1e9, 1e-9], [7e8, 3.0], [4e4, 0.0]]
"""Of three agents, whose largest powers of two are the same, and nothing else is."""


LOOKS = {
    "units": lambda total, own: in_common_units(total, own).exponents,
    "powers": lambda total, own: powers_above(total, np.abs(own)),
}


@each("look", LOOKS)
@each(["topology", "how"], [("star", {}), ("path", {"sum": "tree"})])
def test_of_sizes_nothing_is_seen_but_the_largest_power(topology, how, look, monkeypatch):
    """Of two sets of scales all hear totals that are 0 or not at the same places."""
    heard, said = [], []
    monkeypatch.setattr(Masks, "hear", lambda _, ring: heard.append((ring != 0).tolist()))
    network = connect(make_graph(topology, 3), HELD, secure_sum=True, **how)

    def work(engine, values):
        total = spread(network, engine).total.counted_on(Ledger(network.graph))
        return LOOKS[look](total, np.array(values)[total.holders.own]).tolist()

    for values in SCALES:
        found = together(3, partial(work, values=values))
        said.append((found, sorted(heard)))
        heard.clear()
    assert said[0] == said[1]
    assert [len(one) for one in said[0][1]] == [31 * 2 + 1] * 6  # two questions, heard by three


def test_floats_and_items_cannot_go_without_masks_by_mistake():
    place = Placement.here(3)
    place.masks = agree(place)
    for send in (place.allreduce, lambda own: place.pool(list(own))):
        with pytest.raises(RuntimeError, match="without masks"):
            send(np.ones(3))


# ---- whole fits ----------------------------------------------------------------------------------

HELD = contiguous(6, 3)
X, _ = overlapping(48, 6, 2, gap=2.0, seed=4)
HOLES = with_holes(X, 1)
WORKERS = from_worker_of_row(np.repeat(range(3), 16))
MIX = np.random.default_rng(1).permutation(48)
MIXED = X[MIX]

HOLED = HOLES[MIX]
HOLED[5] = np.nan
"""Of which one row has no value: whose it is nobody says."""

CONSTANT = X.copy()
CONSTANT[:, 3] = 2.5
COLLAPSED = X.copy()
COLLAPSED[:46, 2:4] = 0.0
"""Of which one agent finds a singular covariance."""

SHORT = {"n_components": 2, "max_iter": 2, "seed": 0}


def at_agents(engine, topology="star", **how):
    """Three agents with features, a rank each, whose sums are masked."""
    return spread(connect(make_graph(topology, 3), HELD, hops=0, secure_sum=True, **how), engine)


def at_workers(engine, topology="star", **how):
    """Three workers, observers or devices, a rank each, whose sums are masked."""
    network = connect_workers(make_graph(topology, 3), secure_sum=True, **how)
    return spread_workers(network, engine)


def fitted(engine, data, recipe=fit_spread, network=None, **options):
    """Fit over features of three agents, a rank each."""
    joined = at_agents(engine, **(network or {}))
    return recipe(data[:, own_columns(joined)], joined, n_threads=1, **options)


def fitted_to_rows(engine, data, recipe=fit_em, network=None, weighed=False, **options):
    """Fit over rows of three workers, a rank each, which weigh what follows from them."""
    joined = at_workers(engine, **(network or {}))
    own = data[WORKERS.rows[int(joined.agents.own[0])]]
    if weighed:
        options["sample_weight"] = np.maximum(0.0, 2.0 + np.nan_to_num(own[:, 0]))
    return recipe(own, WORKERS, joined, n_threads=1, **options)


def imputed(engine, data, network=None, **options):
    """Impute a matrix of which three observers, a rank each, saw as many entries."""
    joined = at_workers(engine, **(network or {}))
    names = ("ann", "bob", "eve")
    weights = {name: 1.0 + np.abs(own) for name, own in zip(names, data, strict=True)}
    seen = from_matrices(dict(zip(names, data, strict=True)), weights=weights)
    own = seen.seen_by(set(joined.agents.own.tolist()))
    return fit_imputation(own, network=joined, n_threads=1, **{"rank": 2, "seed": 0, **options})


def imputed_by_mixture(engine, data, of_rows=False, weighed=False, **options):
    """Impute a matrix of which three observers, a rank each, have two columns or 16 rows each."""
    joined = at_workers(engine)
    parts = {}
    for i, name in enumerate(("ann", "bob", "eve")):
        at = (WORKERS.rows[i], slice(None)) if of_rows else (slice(None), HELD.features[i])
        parts[name] = np.full(data.shape, np.nan)
        parts[name][at] = data[at]
    weights = None
    if weighed:
        weigh = np.where(np.isnan(data).any(axis=1), 2.0, 3.0)[:, None]
        weights = {name: np.broadcast_to(weigh, data.shape) for name in parts}
    own = from_matrices(parts, weights=weights).seen_by(set(joined.agents.own.tolist()))
    return fit_imputation(
        own, network=joined, method="mixture", n_threads=1, max_iter=2, seed=0, **options
    )


def simulated(engine, data, network=None, **options):
    """Run SAEM on curves of individuals of three devices, a rank each."""
    joined = at_workers(engine, **(network or {}))
    held = from_worker_of_row(np.repeat(range(3), 5))
    own = data.take(held.rows[int(joined.agents.own[0])])
    short = {"n_iter": 2, "burn_in": 1, "n_conditional": 2, "n_importance": 10, "tol": 0.0}
    return fit_saem(own, devices=held, network=joined, **short, **options)


def searched(own, *held, n_threads, **trial):
    """Judge one model of features, or of workers' rows, as a search does."""
    *workers, network = held
    options = {"seed": 0, "max_iter": 2, "missing": "refuse" if workers else "marginalize"}
    problem = Problem(own, {0: network}, workers[0] if workers else None, options)
    return problem.run(Trial(Cell(2, 0, "full"), 0, **trial))


def used(engine, data, blocks=HELD.features):
    """Responsibilities and nearest centres of a model whose features three parties have."""
    place = Placement.evenly(engine, 3)
    own = data[:, HELD.features[int(place.own[0])]]
    rows = SpreadRows(own, HELD, range(6), place, "uvwxyz", "marginalize", secure_sum=True)
    members = tuple((agent,) for agent in range(len(blocks)))
    model = Blocks(tuple(map(np.array, blocks)), tuple(range(len(blocks))), members)
    mixture = random_mixture(np.random.default_rng(3), model, "full", 2)
    return *rows.posteriors(mixture), rows.nearest(X[:2], Scaling.none(6))[1], mixture, rows.n_blank


def alike(engine, data):
    """Take sums that are the same whoever has which features."""
    place = Placement.evenly(engine, 3)
    own = data[:, HELD.features[int(place.own[0])]]
    rows = SpreadRows(own, HELD, range(6), place, "uvwxyz", "marginalize", secure_sum=True)
    return rows.nearest(np.zeros((2, 6)), Scaling.none(6)), rows.n_blank


@quiet
def test_models_are_used_under_masks():
    data = HOLES * [1.0, 1.0, 1e3, 1.0, 1.0, 1.0]
    for proba, scores, distances, mixture, n_blank in together(3, lambda e: used(e, data)):
        wanted = mixture.score_samples(data, missing="marginalize")
        np.testing.assert_allclose(scores, wanted, rtol=1e-9)
        np.testing.assert_allclose(
            proba, mixture.predict_proba(data, missing="marginalize"), atol=1e-9
        )
        squares = np.nansum((data[:, None] - X[:2]) ** 2, axis=2)
        np.testing.assert_allclose(distances, squares.min(axis=1), 1e-9, 1e-9)
        assert n_blank == 0
    shown = together(3, lambda engine: used(engine, X, [[0, 2], [1, 3], [4, 5]]))
    with pytest.raises(InputError, match="'agent 1' would show 'agent 0' features of one block"):
        raise shown[0]


def moved(data, work, of_rows=False):
    """Give every agent, worker or observer what the next one had."""
    if work is imputed:
        return np.roll(data, -1, axis=0)
    if work is simulated:
        return data.take(np.roll(np.arange(15), -5))
    of_rows = of_rows or work is fitted_to_rows
    return np.roll(data, -16, axis=0) if of_rows else np.roll(data, -2, axis=1)


def kept_apart(data=X, work=fitted, **how):
    """What three agents say in the open that is one's own: three fits, compared."""
    one, again, other = (
        recorded(3, lambda engine, own=own: work(engine, own, **how))
        for own in (data, data, moved(data, work, how.get("of_rows", False)))
    )
    return leaks(one, again, other)


DRAWN = np.random.default_rng(2)
SEEN = np.where(
    DRAWN.random((3, 48)).argsort(axis=1) < 30, DRAWN.normal(size=(3, 48)), np.nan
).reshape(3, 8, 6)
"""Entries that three observers saw, as many each."""

CURVES = from_long(
    np.repeat(range(15), 4), np.tile(range(4), 15), DRAWN.normal(size=60) + np.tile(range(4), 15)
)

OF_ROWS = SHORT | {"work": fitted_to_rows, "data": MIXED}
OF_KMEANS = {
    "work": fitted_to_rows, "recipe": kmeans_rows, "n_clusters": 2, "seed": 0, "data": MIXED,
}  # fmt: skip

FITS = {
    "EM": SHORT | {"labels": [0, 1, 2]},
    "units": SHORT | {"scale": "standard", "init": "random"},
    "squarem": SHORT | {"accelerate": "squarem", "max_iter": 6, "init": [3, 40]},
    "batches": SHORT | {"batch_size": 24, "max_iter": 2, "init": "random"},
    "tree": SHORT | {"network": {"topology": "path", "sum": "tree"}},
    "missing": SHORT | {"data": HOLES, "missing": "marginalize"},
    "collapsed": SHORT | {"data": COLLAPSED, "n_components": 3, "reg_covar": 0.0},
    "k-means": {"recipe": kmeans_features, "n_clusters": 2, "seed": 0},
    "k-means in batches": {
        "recipe": kmeans_features, "n_clusters": 2, "seed": 0, "batch_size": 24, "data": HOLES,
        "missing": "marginalize", "max_iter": 2,
    },
    "search": {"recipe": searched, "data": CONSTANT},
    "rows in batches": OF_ROWS | {
        "batch_size": 12, "dtype": "float32", "data": HOLED, "missing": "marginalize",
        "weighed": True, "scale": "standard",
    },
    "rows along a tree": OF_ROWS | {"network": {"topology": "path", "sum": "tree"}},
    "rows collapsed": OF_ROWS | {"n_components": 7, "max_iter": 6, "reg_covar": 0.0},
    "k-means of rows in batches": {
        **OF_KMEANS, "batch_size": 12, "max_iter": 2, "data": np.roll(HOLES, 3, axis=0),
        "missing": "marginalize", "weighed": True, "scale": "standard",
    },
    "search of rows": {"work": fitted_to_rows, "recipe": searched, "data": MIXED},
    "VR-FedEM": OF_ROWS | {
        "recipe": fit_fedem, "tol": 0.0, "batch_size": 5, "variance_reduction": True,
        "scale": "standard",
    },
    "imputation": {
        "work": imputed, "data": SEEN, "max_iter": 2, "scale": "standard", "batch_size": 7,
    },
    "mixture imputation": {"work": imputed_by_mixture, "data": HOLES, "draws": 2},
    "mixture imputation of rows": {
        "work": imputed_by_mixture, "data": HOLES[MIX], "of_rows": True, "weighed": True,
    },
    "SAEM": {"work": simulated, "data": CURVES},
    "use": {"work": alike, "data": HOLES},
    "held-out rows": {"recipe": searched, "n_folds": 3, "data": HOLES},
}  # fmt: skip


@quiet
@over(fit=FITS)
def test_what_agents_say_in_the_open_is_nobodys_own(fit):
    assert kept_apart(**FITS[fit]) == []


@quiet
@each(["fit", "hub"], [("collapsed", None), ("rows collapsed", 0)])
def test_a_component_that_collapses_does_not_say_in_whose_hub(fit, hub):
    how = {"work": fitted, **FITS[fit]}
    data, work = how.pop("data"), how.pop("work")
    for found in together(3, lambda engine: work(engine, data, **how)):
        assert {one.hub for one in found.recoveries} == {hub}


def add_in_the_open(place, values, **_):
    return place.engine.allreduce(values.sum(axis=0))


def any_in_the_open(place, flags):
    return place.engine.allreduce(np.asarray(flags, dtype=np.uint8), "max").astype(bool)


@quiet
@each(
    ["owner", "method", "instead"],
    [
        (Masks, "_mask", lambda *_: None),
        (Placement, "add", add_in_the_open),
        (Placement, "any", any_in_the_open),
    ],
)
def test_a_number_in_the_open_is_found(owner, method, instead, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(owner, method, instead)
        assert kept_apart(HOLES, missing="marginalize", max_iter=1, n_components=2) != []


# ---- what talks at all ---------------------------------------------------------------------------

VERBS = re.compile(
    r"(?<!asyncio)\.(i?allreduce|allgather|gather|bcast|bcast_array|send_array|send_rows|pool)\("
)
"""What says things in the open; `Placement.add`, `add_up`, `any`, `largest` and `join` may not."""

TALKERS = {
    "cli": "outputs session",
    "cli/commands": "bootstrap individuals rows",
    "cli/study": "member",
    "vpem/files": "checkpoints",
    "vpem/files/parties": "alignment joining observing opening",
    "vpem/fits": "clusters contribution discriminant feature_kmeans fedem labels likely_hubs "
    "local_rows mixture_imputation observers parts prepare privacy row_kmeans rows spread "
    "spread_rows vpem",
    "vpem/fits/selection": "bootstrap search trials",
    "vpem/saem": "individuals results saem",
    "vpem/saem/formats": "individuals",
    "vpem/steps": "feature_lloyd fedem fedem_sums private recovery row_lloyd row_sampling runs "
    "starts",
    "vpem/sums": "compressed_server consensus counted exchanges gossip server",
}
"""Modules that say something to other processes without masks, each looked at by the table of
docs/reference/secure-sum.md. Whoever adds one adds a line there, or takes a verb that masks."""


def test_nothing_else_talks_in_the_open():
    found = defaultdict(set)
    for file in (*ROOT.glob("vpem/**/*.py"), *ROOT.glob("cli/**/*.py")):
        if VERBS.search(file.read_text("utf-8")):
            found[file.parent.relative_to(ROOT).as_posix()].add(file.stem)
    talkers = {folder: set(files.split()) for folder, files in TALKERS.items()}
    assert {folder: own for folder, own in found.items() if "engines" not in folder} == talkers


ROWS, _ = overlapping(90, 6, 2, gap=3.0, seed=4)


def masked_network(topology="star", n_agents=3, held=None, **how):
    held = contiguous(6, n_agents) if held is None else held
    return connect(make_graph(topology, held.n_agents), held, secure_sum=True, **how)


def relaying(*features):
    """Agents of these features, some of whom hold none and only relay."""
    held = tuple(np.array(own, dtype=np.intp) for own in features)
    return Partition(held, tuple("abcd"[: len(held)]))


@quiet
@pytest.mark.parametrize("held", [contiguous(6, 2), relaying([0, 1], [], [2, 3, 4, 5])])
def test_of_two_parties_that_hold_something_each_would_see_the_others_terms(held):
    with pytest.raises(InputError, match="at least 3 parties that hold something, got 2: of two"):
        masked_network(held=held)


@quiet
def test_a_party_that_holds_nothing_adds_nothing():
    held = relaying([0, 1], [], [2, 3], [4, 5])
    fits = [fit_vpem(ROWS, connect(make_graph("star", 4), held, secure_sum=s), max_iter=4, tol=0,
                     init=[3, 77]) for s in (True, False)]  # fmt: skip
    np.testing.assert_allclose(fits[0].history, fits[1].history, 0, 1e-8 * len(ROWS))


@quiet
def test_a_row_that_is_very_far_away_fits_in():
    """Its terms differ by far more than masks can hold, of which responsibilities show nothing."""
    outlier = ROWS.copy()
    outlier[-1] = 3e4
    how = {"init": [3, 60], "max_iter": 1, "tol": 0, "covariance_type": "diag"}
    start = fit_vpem(ROWS, connect(make_graph("star", 3), contiguous(6, 3)), **how).mixture
    fits = [
        fit_vpem(outlier, network, init=start, max_iter=2, tol=0)
        for network in (masked_network(), connect(make_graph("star", 3), contiguous(6, 3)))
    ]
    np.testing.assert_allclose(fits[0].history, fits[1].history, 1e-9)
    np.testing.assert_allclose(*(fit.mixture.means for fit in fits), 1e-9)


@quiet
def test_what_is_too_large_all_the_same_is_an_error():
    huge = ROWS.copy()
    huge[-1, 0] = 1e15
    start = fit_vpem(ROWS, masked_network(), init=[3, 60], max_iter=1, tol=0).mixture
    with pytest.raises(InputError, match="agent 0 adds to a masked sum is larger than"):
        fit_vpem(huge, masked_network(), init=start, max_iter=2, tol=0)


@quiet
def test_a_copy_in_another_process_has_masks_of_its_own():
    network = masked_network("path", sum="tree")
    copied = pickle.loads(pickle.dumps(network))
    assert copied.total.holders is copied.agents
    assert copied.agents.masks is not network.agents.masks
    assert copied.agents.masks.names == network.agents.masks.names
    ours, theirs = (fit_vpem(ROWS, one, init=[3, 77], max_iter=3) for one in (copied, network))
    np.testing.assert_array_equal(ours.history, theirs.history)


# ---- what agents tell each other -----------------------------------------------------------------

RESULTS = ("result",)
"""Kinds of messages that have what each agent has: the model, which is what users ask for."""

KEY_BYTES, SEALED_BYTES = 32, 48
TAGS = 2**34
"""What sums of parts of tags are below, which are other ones in every run; no masked word is."""


class Recording(ThreadEngine):
    """A rank that remembers what it has sent: to whom, about what, and the message."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.sent = []

    def post(self, to, what, value):
        if to != self.rank and self.topic not in RESULTS:
            copied = value.copy() if isinstance(value, np.ndarray) else value
            self.sent.append((to, self.topic, copied))
        super().post(to, what, value)


def recorded(size, work, **options):
    """Run ``work(engine)`` on so many ranks: what they have sent, one rank after the other."""

    def run(engine):
        work(engine)
        return [(engine.rank, *sent) for sent in engine.sent]

    found = together(size, run, Recording, **options)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [sent for own in found for sent in own]


def leaks(first, again, moved):
    """Say what agents have sent that is one's own.

    Parameters
    ----------
    first, again, moved : list
        From `recorded`: of a fit, of the same again, and of one whose agents have others' data.
    """
    masked, found = [], []
    if not len(first) == len(again) == len(moved):
        found.append(f"messages are {len(first)}, {len(again)} and {len(moved)}")
    for one, two, other in zip(first, again, moved, strict=False):
        rank, to, topic, message = one
        if not one[:3] == two[:3] == other[:3]:
            found.append(f"rank {rank} to {to}, {topic!r}: another kind of message")
        elif not _hidden(message, two[3], other[3], masked):
            found.append(f"rank {rank} to {to}, {topic!r}: {message!r:.80}")
    if not masked:
        found.append("nothing is masked")
    elif chi_square(np.concatenate(masked)) > CRITICAL:
        found.append("masked words are not uniform")
    return found


def _hidden(first, again, moved, masked):
    """Whether no part of three messages is somebody's; masked words are added to a list."""
    every = first, again, moved
    if not type(first) is type(again) is type(moved):
        return False
    if isinstance(first, np.ndarray):
        if (
            not (first.shape, first.dtype)
            == (again.shape, again.dtype)
            == (moved.shape, moved.dtype)
        ):
            return False
        if first.dtype != np.uint64:
            return first.tobytes() == again.tobytes() == moved.tobytes()
        fresh = first != again
        hidden = fresh & ~np.all([each < TAGS for each in every], axis=0)
        masked += [first[hidden], again[hidden], (first - again)[hidden]]
        return bool((moved == first)[~fresh].all())
    if isinstance(first, dict):
        return list(first) == list(again) == list(moved) and _hidden(
            *([part for name, part in one.items() if name != "seconds"] for one in every), masked
        )
    if isinstance(first, list | tuple):
        return len(first) == len(again) == len(moved) and all(
            _hidden(*parts, masked) for parts in zip(first, again, moved, strict=True)
        )
    if isinstance(first, bytes) and len(first) in (KEY_BYTES, SEALED_BYTES) and first != again:
        return True  # public keys and sealed ones, fresh in every run
    return repr(first) == repr(again) == repr(moved)


CRITICAL = 20.0
"""Standard deviations; of random words a chi-square is never that far out."""


def chi_square(words):
    """How far the bytes of words are from uniform, place by place: the worst, standardised.

    A message to several others counts once.
    """
    words = np.unique(words)
    expected = len(words) / 256
    places = words.view(np.uint8).reshape(-1, 8).T
    counts = np.stack([np.bincount(place, minlength=256) for place in places])
    found = ((counts - expected) ** 2 / expected).sum(axis=1)
    return float(((found - 255) / np.sqrt(2 * 255)).max())
