"""Those who go on without a member that is lost: what they begin at, and what masks let them."""

import json
import os
import queue
import warnings
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

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
from vpem.engines.engine import Engine, StalledError
from vpem.engines.tls.faults import Unheard
from vpem.errors import InputError, VpemError, VpemWarning
from vpem.files.checkpoints import FileSaver
from vpem.fits.local_rows import read_rows
from vpem.fits.spread import fit_spread, own_columns
from vpem.network.faults import Outlast
from vpem.network.masks import FixedPoint, Masks, OwnKeys, PairKeys
from vpem.network.messages import decode, encode
from vpem.network.partition import Blocks, contiguous, from_worker_of_row
from vpem.steps.recovery import Keeper
from vpem.sums.connect import spread, spread_workers
from vpem.terms.mixture import Mixture
from vpem.terms.units import Scaling

from . import by_the_page
from .cli_support import overlapping
from .resume_support import Breaking, Broken
from .tables import each
from .thread_engine import QueuePost, over_queues, together

X, _ = overlapping(120, 8, 3, gap=2.0, seed=6)
HOLDER = np.repeat([0, 1, 2, 3], [40, 20, 35, 25])
COMMON = {"n_init": 2, "n_threads": 1, "seed": 3}
EM = {"n_components": 3, "tol": 0.0, "reg_covar": 1e-3, **COMMON}
LLOYD = {"n_clusters": 3, "init": "random", **COMMON}
FED = {"n_components": 3, "tol": 0.0, "step_size": 0.5, "n_threads": 1, "seed": 3}


class Killed(Exception):
    """A process that is no more, or nobody goes on."""


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
    starts = begun_at([one[done] for one in kept[1:4]], held)
    assert len(starts) == options.get("n_init", 1)
    init, one = (
        starts[getattr(ours, "best_restart", 0)],
        {"n_init": 1} if "n_init" in options else {},
    )
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


def begun_at(parts, held):
    """What parameters of parties are together, by restart: centres, or a mixture."""
    found = {}
    for number in parts[0]:
        own = [part[number] for part in (parts if held is over_features else parts[:1])]
        whole = {name: np.concatenate([one[name] for one in own], axis=-1)
                 for name in own[0] if name != "weights"}  # fmt: skip
        if "centres" in whole:
            found[number] = whole["centres"]
            continue
        n, d = len(own), whole["means"].shape[1]
        blocks = Blocks(contiguous(d, n).features, tuple(range(n)), tuple((b,) for b in range(n)))
        weights, units = own[0]["weights"], Scaling.none(d)
        found[number] = Mixture(blocks, "full", weights=weights, scaling=units, **whole)
    return found


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


VECTORS = Path(__file__).parent / "vectors" / "masked_sums.json"
NAMES = ["clinic", "lab", "imaging", "gp"]


def known(party):
    """Keys of a party that others can make, too: for tests alone."""
    own = OwnKeys([party])
    own._private[party] = X25519PrivateKey.from_private_bytes(bytes([party + 1]) * 32)
    own.public[party] = own._private[party].public_key().public_bytes_raw()
    return own


def members(facts=("4", "32", *NAMES), outlast=lambda: Outlast(lambda names: None)):
    """Masks of four members, each as in a process of its own."""
    own = [known(party) for party in range(4)]
    public = [one.public[party] for party, one in enumerate(own)]
    return [
        Masks(FixedPoint(4), PairKeys(one, public, facts, NAMES), bytes(range(32)), 1, outlast())
        for one in own
    ]


# ---- vectors ------------------------------------------------------------------------------------

LOST_BEFORE, LOST_AFTER = 3, 2
"""Who is lost before its vector of the second sum is there, and after that of the third is."""

TAKEN = [
    (1, [0, 1, 2, 3], True),
    (2, [0, 1, 2, 3], False),
    (2, [0, 1, 2], True),
    (3, [0, 1, 2], True),
]
"""Number of a sum, who takes part, and whether it is opened."""


def values_of(party):
    return np.array([1.5, -0.25, party + 0.125, 1e6]) * (party + 1)


def words(ring):
    return [f"{int(word):016x}" for word in ring]


def as_told():
    """What parties of vpem send in the sums of the vectors, written down."""
    masks, sums = members(), []
    keys = masks[0]._keys
    for number, who, opened in TAKEN:
        sent, found = {}, []
        tags = {}
        for party in who:
            while masks[party]._number < number:
                masks[party].begin()
            tags[party] = masks[party].tag()
            among = None if len(who) == 4 else who
            sent[party] = masks[party].hide(values_of(party)[None], who=among, tag=tags[party])
        last = masks[who[0]].latest
        given = {party: masks[party].veil(last) for party in who}
        shares = {party: [masks[i].shares_of(party, last) for i in who if i != party]
                  for party in who}  # fmt: skip
        for party in who if opened else ():
            ring = sum(sent.values())
            lost = LOST_AFTER if number == 3 else None
            of_all = sum(own for other, own in given.items() if other != lost)
            of_lost = None if lost is None else sum(shares[lost])
            total = masks[party].unveiled(ring, last, of_all, of_lost)
            found.append(words(total))
            np.testing.assert_allclose(
                masks[party].total(total, None, tags[party]), sum(map(values_of, who)), rtol=1e-9
            )
        assert all(one == found[0] for one in found)
        sums.append({
            "number": number, "who": who, "nonce": last[0].hex(),
            "sent": {str(p): words(own) for p, own in sent.items()},
            "keys": {str(p): words(own[p]) for p, own in given.items()},
            "shares": {f"{p} by {i}": words(own[i]) for p in who
                       for i, own in zip([i for i in who if i != p], shares[p], strict=True)},
            "total": found[0] if found else None,
        })  # fmt: skip
    return {
        "facts": ["4", "32", *NAMES], "transcript": keys.transcript.hex(),
        "private": [bytes([party + 1]).hex() * 32 for party in range(4)],
        "public": [key.hex() for key in keys._public], "group": bytes(range(32)).hex(),
        "values": [values_of(party).tolist() for party in range(4)],
        "sums": sums,
    }  # fmt: skip


def test_vectors_are_those_of_vpem_and_of_the_page():
    """Two programs that share no line find what the file has; OVERWRITE=1 writes it anew."""
    told = as_told()
    if os.environ.get("OVERWRITE"):
        VECTORS.write_text(json.dumps(told, indent=1) + "\n")
    vectors = json.loads(VECTORS.read_text())
    assert told == vectors
    taken = [
        (one["number"],
         {p: [round(x * 2**32) for x in vectors["values"][p]] for p in one["who"]},
         one["total"] is not None)
        for one in vectors["sums"]
    ]  # fmt: skip
    private = list(map(bytes.fromhex, vectors["private"]))
    found = by_the_page.sums(vectors["facts"], private, bytes.fromhex(vectors["group"]), taken)
    assert found["transcript"].hex() == vectors["transcript"]
    assert [key.hex() for key in found["public"]] == vectors["public"]

    def in_words(key):
        return words(np.frombuffer(key, dtype="<u8"))

    for ours, theirs in zip(vectors["sums"], found["sums"], strict=True):
        assert ours["nonce"] == theirs["nonce"].hex()
        assert ours["keys"] == {str(p): in_words(key) for p, key in theirs["keys"].items()}
        shares = {f"{p} by {i}": in_words(key) for (p, i), key in theirs["shares"].items()}
        assert ours["shares"] == shares
        assert ours["sent"] == {str(p): words(own) for p, own in theirs["sent"].items()}
        assert ours["total"] == (words(theirs["total"]) if "total" in theirs else None)


# ---- whoever passes messages on -----------------------------------------------------------------


def test_of_a_sum_without_one_nobody_opens_the_same_with_it():
    """A server that is a party keeps all, has gp's vector and key, and says that gp is lost."""
    plain = members(outlast=lambda: None)
    whole = sum(plain[p].hide(values_of(p)[None]) for p in range(4))
    rest = sum(plain[p].hide(values_of(p)[None], who=[0, 1, 2]) for p in range(3))
    values = plain[0].fixed.values
    np.testing.assert_allclose(values(whole - rest, None), values_of(3), atol=1e-9)

    masks, told = members(), []
    gp = np.rint(values_of(3) * 2.0**32).astype(np.int64).astype(np.uint64)
    for _ in range(100):
        for own in masks:
            own.begin()
        whole = sum(masks[p].hide(values_of(p)[None]) for p in range(4))
        first = masks[0].latest
        rest = sum(masks[p].hide(values_of(p)[None], who=[0, 1, 2]) for p in range(3))
        second = masks[0].latest
        keys = sum(masks[p].veil(second) for p in range(3))
        rest = masks[0].unveiled(rest, second, keys)
        np.testing.assert_allclose(values(rest, None), sum(map(values_of, range(3))), atol=1e-9)
        # gp, which hears that all is well, gives its key; of lab's and imaging's, who have heard
        # otherwise, both have their own shares, and none that lab and imaging have of each other.
        keys = masks[0].veil(first) + masks[3].veil(first)
        for p in (1, 2):
            known = [masks[q].shares_of(p, first)[q] for q in (0, 3)]
            keys[p] = np.bitwise_xor.reduce(known)
        told.append(masks[0].unveiled(whole.copy(), first, keys) - rest - gp)
    bits = np.unpackbits(np.array(told).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(bits))
    # With the two that are missing it would be nothing.
    for p, q in ((1, 2), (2, 1)):
        keys[p] ^= masks[q].shares_of(p, first)[q]
    assert (masks[0].unveiled(whole, first, keys) - rest == gp).all()


# ---- who is lost at any moment ------------------------------------------------------------------

VICTIM, EVERY = 3, 11
"""Who is lost, and before which of its messages: every one was tried, which takes minutes."""


class Mortal(QueuePost):
    """Links of a member, of whom one dies before it sends so many messages."""

    silent = ()

    def __init__(self, rank, mail, moment=None):
        super().__init__(rank, mail)
        self.left = moment if rank == VICTIM else None

    def put(self, to, tag, message, topic=""):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.mail.dead = True
                raise Killed
        super().put(to, tag, message, topic)

    def receive(self, source, tag):
        waited = 0.0
        while not self.mail.broken and waited < self.timeout:
            dead = getattr(self.mail, "dead", False)
            try:
                return self.mail.box(source, self.rank, tag).get(timeout=0.02)
            except queue.Empty:
                waited += 0.02
            if dead and source == VICTIM:
                raise Unheard(f"member {VICTIM}", "nothing has been heard of it")
        raise StalledError(f"member {source} has not answered")


def mortal(rank, size, mail, known=None, moment=None):
    engine = over_queues(rank, size, mail, tuple(range(size)))
    engine._post = Mortal(rank, mail, moment)
    engine.outlast = Outlast(lambda names: None, known)
    return engine


@pytest.fixture
def opened(monkeypatch):
    """Of each party, numbers that it has added to totals that were opened, and of whom these are.

    Flags, which are not floats, and zeros are left out.
    """
    found, hide, unveiled = defaultdict(set), Masks.hide, Masks.unveiled

    def hidden(self, values, **how):
        ring = hide(self, values, **how)
        if values.dtype.kind == "f" and values.any():
            self.values = getattr(self, "values", {}) | {self.latest: values.tobytes()}
        return ring

    def note(self, ring, sent, *rest):
        if sent in getattr(self, "values", {}):
            names = frozenset(self.names[p] for p in sent[1])
            found[self.names[self.here[0]], self.values[sent]].add(names)
        return unveiled(self, ring, sent, *rest)

    monkeypatch.setattr(Masks, "hide", hidden)
    monkeypatch.setattr(Masks, "unveiled", note)
    return found


SHORT_EM, SHORT_LLOYD = EM | {"n_init": 1, "max_iter": 4}, LLOYD | {"max_iter": 4}


def twice(fit, moment, opened, **options):
    """Run with four, of whom one dies, and go on with three, if they do: what these found."""

    def first(engine):
        keeper = Keeper(None, engine)
        try:
            over_features(fit, 4, engine, keeper, masked=True, **options)
        except Killed:
            return None
        except VpemError as error:
            engine._post.mail.broken |= engine.outlast.error is None
            return error, keeper
        return None, keeper

    begun = together(4, first, partial(mortal, moment=moment))
    assert all(isinstance(one, tuple) for one in begun[:VICTIM]), begun
    if begun[VICTIM] is not None:
        return None
    left = [f"member {rank}" for rank in range(VICTIM)]
    keepers = [keeper for _, keeper in begun[:VICTIM]]
    if any(keeper.outlast.repeats(keeper.newest(), left) for keeper in keepers):
        return "stopped", {}

    def again(engine):
        keeper, known = keepers[engine.rank], keepers[engine.rank].outlast.state()
        engine.outlast = Outlast(lambda names: None, known)
        now = Keeper(None, engine, [(f"member {VICTIM}", -1)], keeper.newest())
        return over_features(fit, 3, engine, now, masked=True, **options)

    found = together(3, again, mortal)
    kept = [keeper.newest() for keeper in keepers]
    starts = {done: [one[done] for one in kept] for done in set.intersection(*map(set, kept))}
    return found, starts


@each(
    ("fit", "options"),
    [
        (fit_vpem, SHORT_EM | {"init": "random", "n_init": 2}),
        (fit_vpem, SHORT_EM | {"init": "random", "scale": "standard"}),
        (kmeans_features, SHORT_LLOYD),
    ],
)
def test_at_any_moment_they_go_on_rightly_or_stop(fit, options, opened, monkeypatch):
    """And never is a total of numbers of which there is another with who was lost opened."""
    monkeypatch.setattr("vpem.terms.rows.CHUNK_BYTES", 1)  # chunks of 64 rows
    ends, moment = [], 0
    while (found := twice(fit, moment, opened, **options)) is not None:
        moment += EVERY
        ends.append(found[0] == "stopped")
        assert all(len(sets) == 1 for sets in opened.values()), moment
        opened.clear()
        if found[0] == "stopped":
            continue
        runs, starts = found
        assert not any(isinstance(run, Exception) for run in runs), (moment, runs)
        if starts:
            (init,) = begun_at(starts[max(starts)], over_features).values()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", VpemWarning)
                alone = over_features(fit, 3, **(options | {"init": init, "n_init": 1}))
            np.testing.assert_allclose(runs[0].history, alone.history, rtol=1e-7)
    # It stops where starts are drawn, in first iterations, and at ends.
    assert not ends[0]
    assert 0 < sum(ends) < len(ends), ends


# ---- what a party remembers ---------------------------------------------------------------------


def test_a_party_remembers_with_whom_it_has_opened_what():
    def fresh(known=None):
        return Outlast(lambda names: None, known)

    four, three, start, next_one = set(NAMES), set(NAMES[:3]), np.zeros(2), np.ones(2)
    one = fresh()
    assert "summed twice" in one.refusal(["gp"])
    assert one.once("units", lambda: one.record_opening(NAMES) or 7) == 7
    assert one.once("units", lambda: 8) == 7
    assert not one.repeats({}, three)  # scales are not found again
    one.moved(None)
    assert "summed twice" in one.refusal(["gp"])  # starts may draw a row twice
    one.record_opening(NAMES)
    assert one.repeats({}, three)
    assert not one.repeats({}, four)
    one.moved(start)
    assert not one.repeats({4: start}, three)
    assert one.refusal(["gp"]) is None
    one.record_opening(NAMES)
    one.moved(start)
    assert "summed twice" in one.refusal(["gp"])  # gone back to
    one.moved(next_one, last=True)
    assert "summed twice" in one.refusal(["gp"])  # labels are of the same sums
    one.moved(next_one)
    assert one.refusal(["gp"]) is None
    again = fresh(decode(encode(one.state())))
    for each_one in (one, again):
        assert each_one.repeats({4: start}, three)
        assert not each_one.repeats({4: next_one}, three)
        assert each_one.once("units", lambda: 8) == 7
    # Where somebody came back all find scales again, with all of them only.
    back = fresh(decode(encode(one.state(NAMES))))
    assert back.once("units", lambda: 8) == 8
    assert not back.repeats({4: next_one}, three)
    assert fresh(one.state(NAMES[:3])).repeats({4: next_one}, three)
    # Who was told of half a scale, or goes on from a checkpoint, does not know what there was.
    half = fresh()
    with pytest.raises(ZeroDivisionError):
        half.once("units", lambda: half.record_opening(NAMES) or 1 / 0)
    assert half.repeats({4: next_one}, three)
    resumed = fresh()
    resumed.resumed(NAMES)
    assert resumed.repeats({4: next_one}, three)
    again.resumed(NAMES)  # which knows it
    assert not again.repeats({4: next_one}, three)


def test_nobody_goes_on_from_a_checkpoint_of_all_under_masks(tmp_path):
    """What was opened behind it is not known there."""
    options = SHORT_EM | {"init": "random", "masked": True}

    def begin(engine):
        saver = FileSaver(tmp_path / f"{engine.rank}.h5", every=2, engine=engine)
        over_features(fit_vpem, 4, engine, Keeper(saver, engine), **options)

    together(4, begin, mortal)

    def onward(engine):
        path = tmp_path / f"{engine.rank}.h5"
        saver = FileSaver(path, engine=engine, gone_on=True, resume="if-any")
        return over_features(fit_vpem, 3, engine, Keeper(saver, engine, [("gp", -1)]), **options)

    errors = together(3, onward, mortal)
    assert all(isinstance(error, StalledError) for error in errors)
    said = "the others cannot go on without gp: they have opened a masked sum"
    assert any(str(error).startswith(said) for error in errors)


def test_masked_sums_along_a_tree_wait():
    def work(engine):
        joined = connect(make_graph("path", 4), contiguous(8, 4), sum="tree", secure_sum=True)
        return spread(joined, engine)

    for error in together(4, work, mortal):
        with pytest.raises(InputError, match="masked sums along a tree need all members"):
            raise error
