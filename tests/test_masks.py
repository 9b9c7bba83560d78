"""Masks that cancel, keys that nobody else has, and what is done about a party that cheats."""

import copy
import pickle
import struct
import threading

import numpy as np
import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from vpem.engines.placement import Placement, agree
from vpem.engines.tls.engine import TlsEngine
from vpem.engines.tls.trust import INTRODUCTION, Member, MemberSigns, Roster
from vpem.errors import InputError, VpemError
from vpem.fits.spread import fit_spread
from vpem.network.graph import make_graph
from vpem.network.masks import TILE, Masks, OwnKeys, PairKeys, Tag
from vpem.network.messages import encode
from vpem.network.partition import contiguous
from vpem.sums.connect import connect, spread

from .resume_support import Breaking, Broken
from .tables import each, over
from .thread_engine import QueuePost, ThreadEngine, over_queues, together
from .tls_support import certify, der


def place_of(n_parties, engine=None, ranks=None):
    place = Placement.here(n_parties) if engine is None else Placement(engine, ranks)
    place.masks = agree(place)
    return place


# ---- sums ---------------------------------------------------------------------------------------


@over(n_parties=[3, 4, 6], size=[0, 1, TILE - 1, TILE, 2 * TILE + 1], some=[False, True])
def test_masks_cancel_to_the_last_bit(n_parties, size, some):
    masks = place_of(n_parties).masks
    who = None if n_parties == 3 or not some else np.arange(n_parties)[1:]
    rng = np.random.default_rng(size)
    values = rng.normal(size=(n_parties if who is None else len(who), size))
    plain = np.zeros(size, dtype=np.uint64)
    for own in values:
        masks.fixed.add(own, None, plain)
    shares = masks.hide(values, who=who, apart=True)
    np.testing.assert_array_equal(shares.sum(axis=0), plain)
    np.testing.assert_array_equal(masks.hide(values, who=who), plain)
    np.testing.assert_allclose(masks.total(plain), values.sum(axis=0), rtol=0, atol=9 * 2.0**-32)
    if size > 1:
        assert (shares != plain).all()


@over(
    engine=[ThreadEngine, over_queues],
    ranks=[(0, 1, 2, 2, 1), (1, 1, 2, 0, 2), (1, 2, 1, 2, 2)],  # the last: a first that only adds
    dtype=[np.float64, np.float32],
)
def test_same_bits_wherever_parties_live(engine, ranks, dtype):
    rng = np.random.default_rng(5)
    values = (rng.normal(size=(5, 300)) * 1000).astype(dtype)
    exponents, who = rng.integers(10, 30, 300), np.array([0, 2, 3])

    def work(engine):
        place = place_of(5, engine, ranks)
        place.begin("estep", 1)
        some = [party for party in place.own if party in who]
        return (
            place.add(values[place.own]),
            place.add(values[some], who=who),
            place.add(values[place.own], exponents=exponents),
        )

    here = place_of(5)
    alone = (here.add(values), here.add(values[who], who=who),
             here.add(values, exponents=exponents))  # fmt: skip
    for found in together(3, work, engine):
        for one, other in zip(found, alone, strict=True):
            assert one.dtype == dtype
            np.testing.assert_array_equal(one, other)
    total = values.sum(axis=0, dtype=np.float64)
    np.testing.assert_allclose(alone[0], total, rtol=1e-7, atol=2.0**-30)


def test_what_does_not_fit_is_refused_without_its_value():
    masks = place_of(3).masks
    for bad, exponents, sentence in (
        (np.nan, None, "value 2 of 4 that agent 1 adds to a masked sum is NaN or infinite"),
        (-np.inf, None, "is NaN or infinite"),
        (-1.2345e9, None, r"is larger than 3.579e\+08, which is what fits for 3 parties"),
        (1.2345e9, [0, 0, 1, 0], r"is larger than 7.158e\+08"),
    ):
        values = np.ones((3, 4))
        values[1, 2] = bad
        with pytest.raises(InputError, match=sentence) as error:
            masks.hide(values, exponents=exponents)
        assert "2345" not in str(error.value)


def test_few_parties_are_refused():
    for n_parties in (1, 2):
        with pytest.raises(InputError, match=f"at least 3 parties, got {n_parties}"):
            agree(Placement.here(n_parties))
    with pytest.raises(InputError, match="at least 3 parties, got 2"):
        place_of(4).add(np.ones((2, 1)), who=[1, 3])


def test_masks_that_do_not_cancel_are_noticed():
    """And of such nobody takes flags."""
    masks = place_of(3).masks
    shares = masks.hide(np.ones((3, 100)), apart=True)
    with pytest.raises(InputError, match="their masks do not cancel"):
        masks.total(shares[:2].sum(axis=0))

    def work(engine):
        place = place_of(3, engine, [0, 1, 2])
        if engine.rank == 1:
            place.masks.begin()  # it counts its sums otherwise than the others
        return place.any([False])

    for found in together(3, work):
        with pytest.raises(InputError, match="their masks do not cancel"):
            raise found


def sized(*parts):
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def test_tags_are_those_of_the_page():
    """Made again from docs/reference/masked-protocol.md: a sum of two vectors of three."""
    masks, prime = place_of(3).masks, 2**127 - 1

    def made(what, *rest):
        info = sized(b"vpem masked sums 3 " + what) + b"".join(rest)
        key = HKDFExpand(SHA256(), 32, info).derive(masks._group)
        return int.from_bytes(key[:16], "little") % 2**127 % prime

    masks.begin(5)
    nonce = (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
    point, total, parts = made(b"point"), 0, []
    values = np.random.default_rng(0).normal(0, 1e6, size=(3, 10))
    for rows, columns in ((3, slice(0, 6)), (2, slice(6, 10))):
        tag = masks.tag(rows)
        parts.append(
            masks.total(masks.hide(values[:, columns], tag=tag, apart=True).sum(axis=0), None, tag)
        )
        numbers = np.rint(values[:, columns] * 2.0**32).astype(np.int64).sum(axis=0).tolist()
        for number in numbers:
            total = (total + number) * point % prime
    wanted = (total + made(b"tag", bytes(32), nonce)) % prime
    # The same sum, of which the tags are read as they are.
    masks._number, masks._heard = 0, bytes(32)
    masks.begin(5)
    for rows, columns in ((3, slice(0, 6)), (2, slice(6, 10))):
        ring = masks.hide(values[:, columns], tag=masks.tag(rows), apart=True).sum(axis=0)
    assert sum(word << 32 * n for n, word in enumerate(ring[4:].tolist())) % prime == wanted
    np.testing.assert_allclose(np.concatenate(parts), values.sum(axis=0), atol=1e-9)


# ---- what is sent -------------------------------------------------------------------------------


# ---- keys ---------------------------------------------------------------------------------------


def test_no_keystream_comes_twice(monkeypatch):
    """A run that is killed and goes on makes its masks anew, and takes the same sums again."""
    seen, ends, sums = set(), {}, {}

    def register(key, nonce, party):
        assert (key, nonce, party) not in seen
        seen.add((key, nonce, party))
        ends.setdefault((key, nonce), []).append(party)
        assert sums.setdefault((key, nonce), now) == now

    monkeypatch.setattr(Masks, "register", staticmethod(register))
    n_runs, sets = 201, (None, [1, 2, 3])
    for run in range(n_runs):
        masks = place_of(4).masks
        for number in range(2):  # iterations that are lost come again
            masks.begin()
            for chunk, who in enumerate(sets):
                now = run, number, chunk
                masks.hide(np.ones((4 if who is None else 3, 1)), who=who, apart=True)
    assert len(seen) == n_runs * 2 * (12 + 6)
    assert {len(set(both)) for both in ends.values()} == {2}
    assert {nonce[:4] for _, nonce, _ in seen} == {bytes(4)}  # blocks are counted from 0


def test_threads_have_nonces_of_their_own(monkeypatch):
    masks, seen, pack = place_of(3).masks, [], struct.pack
    other = threading.Thread(target=lambda: masks.hide(np.ones((3, 1)), apart=True))

    def slow_pack(*parts):
        if not other.ident:
            other.start()  # while this one takes a nonce
            other.join(timeout=0.1)
        return pack(*parts)

    monkeypatch.setattr(Masks, "register", staticmethod(lambda *use: seen.append(use)))
    monkeypatch.setattr(struct, "pack", slow_pack)
    masks.hide(np.ones((3, 1)), apart=True)
    other.join()
    assert len(set(seen)) == len(seen) == 12


def test_fits_that_go_on_have_other_keys(monkeypatch):
    """A fit of three processes is killed and resumed four times: the same bits, other masks.

    Their keys are in no message and in no checkpoint.
    """
    seen, secrets, sent = [], set(), []
    monkeypatch.setattr(Masks, "register", staticmethod(lambda *use: seen.append(use)))
    between, post = PairKeys.between, ThreadEngine.post

    def remember(keys, *pair):
        private = [key.private_bytes_raw() for key in keys._own._private.values()]
        secrets.update([between(keys, *pair), *private, *keys._shared.values()])
        return between(keys, *pair)

    def listen(engine, to, what, value):
        sent.append(encode(value))
        post(engine, to, what, value)

    monkeypatch.setattr(PairKeys, "between", remember)
    monkeypatch.setattr(ThreadEngine, "post", listen)
    X = np.random.default_rng(0).normal(size=(60, 3))
    network = connect(make_graph("star", 3), contiguous(3, 3), secure_sum=True)

    def run(savers):
        def work(engine):
            try:
                return fit_spread(
                    X[:, engine.rank : engine.rank + 1], spread(network, engine), n_components=2,
                    max_iter=8, tol=0.0, seed=1, saver=savers[engine.rank],
                ).history  # fmt: skip
            except Broken:
                return None

        found = together(3, work)
        assert not any(isinstance(each, BaseException) for each in found)
        return found[0]

    whole, uses = run([None] * 3), len(seen)
    saved = [None] * 3
    for _ in range(4):
        savers = [Breaking(2, saved=each) for each in saved]
        assert run(savers) is None
        saved = [saver.state for saver in savers]
        sent += [pickle.dumps([saver.state, saver.facts]) for saver in savers]
    np.testing.assert_array_equal(run([Breaking(saved=each) for each in saved]), whole)
    assert len(seen) > 2 * uses > 100
    assert len(set(seen)) == len(seen)
    assert len({(key, nonce) for key, nonce, _ in seen}) == len(seen) / 2
    there = b"".join(sent)
    assert len(secrets) > 6 * (3 + 3 + 3)  # six runs, of three parties and pairs
    assert not any(secret in there or secret.hex().encode() in there for secret in secrets)


def test_keys_stay_where_they_are(monkeypatch):
    masks = place_of(3).masks
    masks.hide(np.ones((3, 1)), apart=True)
    keys = masks._keys
    secrets = [*keys._shared.values(), *keys._derived.values()]
    assert len(set(secrets)) == 6
    for thing in (masks, keys, keys._own):
        assert not any(secret.hex() in repr(thing) or repr(secret) in repr(thing)
                       for secret in secrets)  # fmt: skip
        for copied in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="never copied or written"):
                copied(thing)
    monkeypatch.setattr("os.getpid", lambda: -1)  # as in a process forked from this one
    for use in (
        lambda: masks.hide(np.ones((3, 1)), apart=True),
        lambda: keys.between(0, 1, (0, 1, 2), b""),
    ):
        with pytest.raises(VpemError, match="masks and their keys are of one process"):
            use()


# ---- parties and carriers that cheat ------------------------------------------------------------


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    folder = tmp_path_factory.mktemp("members")
    names = [f"member {number}" for number in range(3)]
    return [certify(folder / name, name) for name in names]


def study_of(identities, spoil, edition=lambda rank: 1):
    """Return what makes the engine of a member, whose first hears what ``spoil`` makes of it."""
    members = tuple(Member(each.name, der(each)) for each in identities)

    def member(rank, size, mail):
        roster = Roster("0" * 32, "heart", edition(rank), members)
        engine = TlsEngine(QueuePost(rank, mail), roster, MemberSigns(roster, identities[rank]))
        engine.seats = [0, 1, 2]
        heard = engine.allgather

        def allgather(value):
            found = heard(value)
            kind = "signatures" if isinstance(value, bytes) else "keys"
            return spoil(kind, found) if rank == 0 else found

        engine.allgather = allgather
        return engine

    return member


FOREIGN = OwnKeys([0]).public[0]


def changing(kind, rank, said):
    """Make what the first member hears of another in place of what that said."""

    def spoil(now, found):
        if now == kind:
            found[rank] = said(found) if callable(said) else said
        return found

    return spoil


def untouched(kind, found):
    return found


@pytest.mark.parametrize("how", ["changed", "of another time", "of another run", "cut"])
def test_what_the_first_member_passes_on_is_what_was_said(identities, how):
    members = tuple(Member(each.name, der(each)) for each in identities)
    roster = Roster("0" * 32, "heart", 1, members)
    others = []

    class Forging(QueuePost):
        def put(self, to, tag, message, topic=""):
            if tag == 4 and how == "changed":
                message = bytes(message).replace(b"honest", b"forged")
            elif tag == 4 and how == "cut":
                message = bytes(message)[:20]
            elif tag == 6 and how == "of another time":
                message = others[1]
            elif tag == 6 and how == "of another run":
                message = members_say(roster, identities, [1, 2], b"run before")
            others.append(bytes(message))
            super().put(to, tag, message, topic)

    def member(rank, size, mail):
        post = Forging(rank, mail) if rank == 0 else QueuePost(rank, mail)
        signs = MemberSigns(roster, identities[rank])
        signs.run = b"this run"
        return TlsEngine(post, roster, signs)

    def work(engine):
        heard = []
        try:
            heard += engine.allgather([engine.rank])
            heard.append(engine.bcast("honest" if engine.rank == 1 else None, 1))
            values = np.array([1, 2]) if engine.rank == 1 else np.zeros(2, dtype=int)
            engine.bcast_array(values, 1)
            heard.append(values.tolist())
        except InputError as error:
            heard.append(str(error))
        return heard

    first, author, third = together(3, work, member)
    honest = [[0], [1], [2], "honest", [1, 2]]
    assert first == author == honest
    assert third == [*honest[: 3 + (how.startswith("of"))], third[-1]]
    assert "a message of member 1 has come otherwise than it was signed; member 0" in third[-1]


def members_say(roster, identities, values, run):
    """Return an array as the second member signs it in some run."""
    signs = MemberSigns(roster, identities[1])
    signs.run = run
    return signs.seal(6, np.array(values).tobytes())


def agreeing(engine):
    """Agree on keys, and say so where that fails, as commands do."""
    try:
        return agree(Placement.evenly(engine, 3))
    except VpemError as error:
        engine.announce_end(str(error))
        raise


@each(
    ["spoil", "sentence"],
    [
        (changing("keys", 1, [FOREIGN]), "^member 1 and member 2 signed other keys"),
        (changing("keys", 0, [FOREIGN]), "the key of member 0 .* came back changed"),
        (changing("keys", 1, lambda said: said[2]), "member 2 has sent the key of member 1"),
        (changing("keys", 1, lambda said: said[0]), "member 1 has sent the key of member 0"),
        (changing("keys", 2, [bytes(32)]), "member 2 has sent a key .* nothing is secret"),
        (changing("keys", 2, [b"\1" + bytes(31)]), "member 2 .* nothing is secret"),
        (changing("keys", 2, [FOREIGN[:31]]), "member 2 .* else than a key of 32 bytes"),
        (changing("keys", 2, [FOREIGN, FOREIGN]), "member 2 .* else than the keys of its parties"),
        (changing("keys", 2, "key"), "member 2 .* else than the keys of its parties"),
        (changing("keys", 2, [None]), "member 2 .* else than a key of 32 bytes"),
        (changing("signatures", 1, b""), "member 1 .* else than a signature"),
        (changing("signatures", 1, None), "member 1 .* else than a signature"),
        (changing("signatures", 1, bytes(64)), "^member 1 signed other keys"),
        (changing("signatures", 1, lambda said: said[2]), "^member 1 signed other keys"),
    ],
)
def test_cheating_is_noticed(spoil, sentence, identities):
    found, *_ = together(3, agreeing, study_of(identities, spoil))
    with pytest.raises(InputError, match=sentence):
        raise found


def test_keys_of_another_run_or_edition_are_refused(identities):
    heard = {}

    def keep(kind, found):
        heard[kind] = list(found)
        return found

    def replay(kind, found):
        found[1] = heard[kind][1]
        return found

    first = together(3, agreeing, study_of(identities, keep))
    assert not any(isinstance(found, Exception) for found in first)
    again = together(3, agreeing, study_of(identities, replay))[0]
    editions = study_of(identities, untouched, edition=lambda rank: 1 + (rank == 2))
    for error in (again, together(3, agreeing, editions)[0]):
        with pytest.raises(InputError, match="another run or another edition of the study"):
            raise error


class Forging(ThreadEngine):
    """A rank that is told something else in place of a masked total of rows' terms."""

    left, forge, told = 0, None, (0, 1, 2)

    def iallreduce(self, values, op="sum", **how):
        wait = super().iallreduce(values, op, **how)
        if values.dtype != np.uint64 or len(values) < 60:
            return wait
        self.left -= 1
        if self.left or self.rank not in self.told:
            return wait
        return lambda: (wait(), type(self).forge(values))


def fit_of_a_party(engine):
    X = np.random.default_rng(0).normal(size=(60, 3))
    network = connect(make_graph("star", 3), contiguous(3, 3), secure_sum=True)
    own = X[:, engine.rank : engine.rank + 1]
    return fit_spread(own, spread(network, engine), n_components=2, tol=0.0, seed=1)


@pytest.mark.parametrize("which", [1, 2, 5])
def test_whoever_is_told_another_total_shares_no_mask(which, monkeypatch):
    """A server that tells two of three zeros would read the third's terms in the next sum."""
    monkeypatch.setattr(Tag, "hear", lambda *_: None)  # as if parties shared nothing
    for name, value in {"left": which, "forge": lambda ring: ring.fill(0), "told": (0, 1)}.items():
        monkeypatch.setattr(Forging, name, staticmethod(value) if name == "forge" else value)
    for found in together(3, fit_of_a_party, Forging):
        with pytest.raises(InputError, match="their masks do not cancel"):
            raise found


def double(ring):
    ring += ring


def swap(ring):
    ring[:2] = ring[1::-1]


def one_more(ring):
    ring[7] += np.uint64(1)


def as_a_fourth(ring):
    """Of a party that adds nothing but a tag of its own."""
    ring[3], ring[-4] = ring[3] + np.uint64(1), ring[-4] + np.uint64(1)


@over(forge=[double, swap, one_more, as_a_fourth, lambda ring: ring.fill(0)], which=[1, 4])
def test_a_total_that_nobody_has_added_is_refused_by_all(forge, which, monkeypatch):
    """One forged total told to all would draw parameters of the server's own choosing."""
    monkeypatch.setattr(Forging, "left", which)
    monkeypatch.setattr(Forging, "forge", staticmethod(forge))
    for found in together(3, fit_of_a_party, Forging):
        with pytest.raises(InputError, match="is not what parties have added"):
            raise found


def test_what_members_run_is_signed(identities):
    """Whoever passes introductions on cannot change them, nor tell some others than others."""
    members = tuple(Member(each.name, der(each)) for each in identities)
    said = [b"fit -k 2", b"fit -k 2", b"fit -k 2, other outputs"]

    def signs(rank, text="a"):
        return MemberSigns(Roster("0" * 32, "heart", 1, members, text=text), identities[rank])

    signed = [(one, signs(rank).sign(one, INTRODUCTION)) for rank, one in enumerate(said)]
    one, two, others = signs(0), signs(1), signs(2)
    one.introduced(signed)
    two.introduced(signed)
    others.introduced([*signed[:2], (said[0], signs(2).sign(said[0], INTRODUCTION))])
    assert one.facts == two.facts != others.facts
    assert signs(0).facts != signs(0, text="b").facts
    for changed in ((b"fit -k 3", signed[1][1]), (said[1], signed[0][1]),
                    (said[1], signs(1).sign(said[1])), (said[1], b"")):  # fmt: skip
        with pytest.raises(InputError, match="member 1 has signed another command"):
            signs(0).introduced([signed[0], changed, signed[2]])
