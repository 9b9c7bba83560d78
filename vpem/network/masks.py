"""Masked sums, of which no party sees another's term: fixed point, and masks that cancel.

Keys of two parties come of X25519 key pairs of one run; nothing of them is ever written or sent but
public keys, and `cryptography` does what is cryptographic.

A party's vector becomes integers modulo 2^64 (`FixedPoint`), to which it adds its *mask*: for each
other party a *pad*, the keystream of a key that only the two have. The lower of the two adds it,
the other subtracts it, so that masks cancel to the last bit in the sum of all, and what one party
sends looks like random words. Sums of integers do not depend on their order: they are the same
bits wherever parties live.

Where sums go on without a party that is lost, each adds a pad of its own, too, and gives its key
away once the vectors of all are there (`Masks.veil`).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Never

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem._core.masks import add_scaled, add_tag, values_of
from vpem._core.threads import thread_count
from vpem.checks import AnyArray
from vpem.errors import InputError, Setting, VpemError
from vpem.network.faults import Objection, Outlast

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305


PRIME = 2**127 - 1
"""Tags are numbers modulo this."""

BLOCK = 64
"""Words of a tag at a time."""

KEY_BYTES = 32
"""Of a public key, and of one that a pair shares."""

SEALED_BYTES = KEY_BYTES + 16
"""Of a key that is sealed for one party (ChaCha20-Poly1305)."""

PROTOCOL = b"vpem masked sums 3"

Ring = NDArray[np.uint64]

Sent = tuple[bytes, tuple[int, ...]]
"""A vector that was hidden: its nonce, and who takes part."""

FEWEST = 3
"""Parties of a masked sum: with two, each subtracts its own term and has the other's."""

FRACTION_BITS = 32

TILE = 1 << 15
"""Words of a keystream that are made at a time."""

ZEROS = memoryview(bytes(8 * TILE))
"""What is encrypted to have a keystream as it is."""

TAG_WORDS = 4
"""Of a tag, 32 bits each: their sums are exact."""

MOST_WORDS = 1 << 32
"""Of one vector: an eighth of what the block counter of a keystream can count."""

MOST_VECTORS = 1 << 32
"""Of one sum."""


def expanded(secret: bytes, what: bytes, rest: bytes) -> bytes:
    """Return a key for something, of a secret (HKDF, expansion)."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    head = PROTOCOL + what
    info = len(head).to_bytes(8, "big") + head + rest
    return HKDFExpand(SHA256(), KEY_BYTES, info).derive(secret)


class OfOneProcess:
    """What is neither copied nor used in any other process than that which made it."""

    def __init__(self) -> None:
        self._process = os.getpid()

    def check_process(self) -> None:
        """Raise VpemError in a copy of the process that made this."""
        if os.getpid() != self._process:
            raise VpemError(
                "masks and their keys are of one process: start others with keys of their own "
                "instead of copying it"
            )

    def __reduce_ex__(self, protocol: object) -> Never:
        raise TypeError("masks and their keys are never copied or written")


class OwnKeys(OfOneProcess):
    """Fresh key pairs of the parties that live in this process; ``public`` has a key for each."""

    def __init__(self, parties: Iterable[int]) -> None:
        super().__init__()
        try:
            import cryptography  # noqa: F401
            from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
        except ImportError:
            raise InputError("masked sums need vpem[secure]: pip install 'vpem[secure]'") from None
        self._private = {int(party): X25519PrivateKey.generate() for party in parties}
        self.public = {
            party: key.public_key().public_bytes_raw() for party, key in self._private.items()
        }

    def private(self, party: int) -> X25519PrivateKey:
        self.check_process()
        return self._private[party]


class PairKeys(OfOneProcess):
    """Keys that the parties of this process share with each other party, by whose ``public`` keys.

    ``facts`` are what all agree on besides. InputError if a public key is none, is another's too,
    or is one with which nothing is secret.
    """

    def __init__(
        self, own_keys: OwnKeys, public: Sequence[bytes], facts: Sequence[str], names: Sequence[str]
    ) -> None:
        super().__init__()
        self.here = sorted(own_keys.public)
        self.names = list(names)
        self._own, self._public = own_keys, list(public)
        first: dict[bytes, int] = {}
        for party, key in enumerate(public):
            if party in own_keys.public and key != own_keys.public[party]:
                raise InputError(
                    f"the key of {names[party]} for masked sums came back changed; the process "
                    "that passes keys on does not follow the protocol"
                )
            if first.setdefault(key, party) != party:
                raise InputError(
                    f"{names[party]} has sent the key of {names[first[key]]} for masked sums as "
                    "its own; every party makes one itself"
                )
        # The hash of what all parties agree on: facts of study and sum, and public keys.
        count = len(facts).to_bytes(8, "big")
        fields = [PROTOCOL, count, *(fact.encode() for fact in facts), *public]
        sized = b"".join(len(one).to_bytes(8, "big") + one for one in fields)
        self.transcript = hashlib.sha256(sized).digest()
        self._shared: dict[tuple[int, int], bytes] = {}
        self._derived: dict[tuple[int, int], bytes] = {}
        self._for: tuple[tuple[int, ...], bytes] = (), b""
        elsewhere = set(range(len(public))) - set(self.here)
        for party in self.here:
            for other in sorted(elsewhere):
                self._extracted(party, other)

    def _extracted(self, party: int, other: int) -> bytes:
        """Return the secret of a pair, of which its keys are derived (HKDF, extraction)."""
        pair = min(party, other), max(party, other)
        if pair not in self._shared:
            from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

            private = self._own.private(party)
            try:
                secret = private.exchange(X25519PublicKey.from_public_bytes(self._public[other]))
            except ValueError:  # not 32 bytes, or a point of small order: the secret is all zeros
                raise InputError(
                    f"{self.names[other]} has sent a key for masked sums with which nothing is "
                    "secret; it must be a fresh X25519 key"
                ) from None
            self._shared[pair] = hmac.digest(self.transcript, secret, "sha256")
        return self._shared[pair]

    def sealing(self, party: int, other: int) -> ChaCha20Poly1305:
        """Return what seals and opens one message between a party here and any other."""
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        return ChaCha20Poly1305(self._expanded(party, other, b" group", b""))

    def share(self, owner: int, other: int, nonce: bytes) -> bytes:
        """Return one pair's share of the key of the pad that the owner alone adds to a vector."""
        self.check_process()
        numbers = owner.to_bytes(8, "big") + other.to_bytes(8, "big")
        return expanded(self._extracted(owner, other), b" own", numbers + nonce)

    def between(self, party: int, other: int, among: tuple[int, ...], heard: bytes) -> bytes:
        """Return the key of a party here and any other, for sums ``among`` these (increasing).

        ``heard`` is the hash of all totals so far: who received different ones share no key any
        more.
        """
        self.check_process()
        if (among, heard) != self._for:
            self._for, self._derived = (among, heard), {}
        pair = min(party, other), max(party, other)
        if pair not in self._derived:
            rest = b"".join(each.to_bytes(8, "big") for each in among) + heard
            self._derived[pair] = self._expanded(party, other, b" pad", rest)
        return self._derived[pair]

    def _expanded(self, party: int, other: int, what: bytes, rest: bytes) -> bytes:
        """Return a key of a pair for something (HKDF, expansion)."""
        pair = min(party, other), max(party, other)
        numbers = b"".join(each.to_bytes(8, "big") for each in pair)
        return expanded(self._extracted(party, other), what, numbers + rest)


def check_parties(count: int) -> None:
    if count < FEWEST:
        raise InputError(
            f"a masked sum needs at least {FEWEST} parties, got {count}: with fewer, each "
            "subtracts its own term and has the other's; leave out ",
            Setting("secure_sum", True),
        )


@dataclass(frozen=True)
class FixedPoint:
    """How numbers become integers modulo 2^64, so that sums of all parties' fit.

    A value ``x`` with binary exponent ``e`` (0 where there is none) is ``round(x 2^(f - e))``,
    ``f`` the fraction bits, halves to even: each party's rounding error is at most
    ``2^(e - f - 1)``. No value may be larger than ``2^62 / N`` in the ring: no sum overflows, and
    half of all words are none, by which it shows where masks do not cancel.
    """

    n_parties: int
    fraction_bits: int = FRACTION_BITS
    limit: float = field(init=False)
    """Largest magnitude in the ring: an integer, as large as a float64 can have it."""
    largest: float = field(init=False)
    """Largest magnitude of a value without an exponent."""
    powers: int = field(init=False)
    """A power of two that values without an exponent may be below."""

    def __post_init__(self) -> None:
        most = 2**62 // self.n_parties
        nearest = float(most)
        limit = nearest if int(nearest) <= most else float(np.nextafter(nearest, 0.0))
        largest = limit * 2.0**-self.fraction_bits
        vars(self).update(limit=limit, largest=largest, powers=int(np.frexp(largest)[1]) - 1)

    def scales(self, exponents: ArrayLike | None) -> NDArray[np.float64]:
        """Return ``2^(f - e)``: one for all values, or one for each."""
        if exponents is None:
            return np.array([2.0**self.fraction_bits])
        powers = self.fraction_bits - np.asarray(exponents, dtype=np.int64)
        if (np.abs(powers) > 1022).any():
            raise InputError("binary exponents of a masked sum must be those of finite numbers")
        # The bits of powers of two, which ldexp takes twenty times as long to find.
        return ((powers + 1023) << 52).view(np.float64)

    def add(
        self, values: AnyArray, exponents: ArrayLike | None, ring: Ring, n_threads: int = 1
    ) -> int:
        """Add values (P,) to the ring; return where a NaN, infinite or too large one is, or -1."""
        if values.dtype == np.uint64:  # in the ring already
            ring += values
            return -1
        dtype = np.float32 if values.dtype == np.float32 else np.float64
        flat = np.ascontiguousarray(values, dtype=dtype)
        return int(add_scaled(flat, self.scales(exponents), self.limit, ring, n_threads))

    def values(
        self, ring: Ring, exponents: ArrayLike | None, n_threads: int = 1
    ) -> NDArray[np.float64]:
        """Return the values (P,) of a sum of all parties, each rounded once to float64.

        InputError if a value is larger than what all parties together can have added.
        """
        values, most = np.empty(ring.shape), float(self.n_parties * int(self.limit))
        place = values_of(ring, self.scales(exponents), most, values, n_threads)
        if place >= 0:
            raise _standing(
                f"value {place} of {len(ring)} of a masked sum is larger than all parties can have "
                "made it"
            )
        return values


def _standing(sign: str) -> InputError:
    return InputError(
        f"{sign}, so their masks do not cancel; all must run the same command of the same "
        "version of vpem"
    )


class Tag:
    """What shows that a total is what parties have added: a number that they alone can make.

    Of the whole numbers ``x_1 ... x_n`` that a party adds to a sum, in one vector or several, the
    tag is ``x_1 s^n + ... + x_n s`` modulo 2^127 - 1, for a point ``s`` that only parties know, and
    one of them adds a ``pad``, another one each time. Tags add up as the numbers do, so the total's
    must be their sum: who changes totals without knowing ``s`` is found out but for a chance of n
    in 2^127 (Wegman and Carter, 1981). A process without parties has no ``powers`` of ``s`` (see
    `tests.twins.codecs.add_tag`), and looks at nothing.
    """

    def __init__(self, powers: Ring | None, pad: int, n_own: int) -> None:
        self._powers, self._pad = powers, pad
        self._own = np.zeros((n_own, 2), dtype=np.uint64)
        self._told = np.zeros(2, dtype=np.uint64)

    def add(self, shares: Ring, behind: Ring, pads: bool) -> None:
        """Go on by what parties here add (n, P); put their tags behind it (n, 4), or (n, 0)."""
        if self._powers is None:
            return
        for place, share in enumerate(shares):
            add_tag(share, self._powers, self._own[place])
            tag = _number(self._own[place], 64) + self._pad * (pads and place == 0)
            behind[place] = [tag % PRIME >> 32 * n & 0xFFFFFFFF for n in range(behind.shape[1])]

    def hear(self, ring: Ring, behind: Ring) -> None:
        """Go on by a part of the total (P,); where the tags' sum is behind it, look at both."""
        if self._powers is None:
            return
        add_tag(ring, self._powers, self._told)
        tag = _number(self._told, 64) + self._pad
        if len(behind) and (tag - _number(behind, 32)) % PRIME:
            raise InputError(
                "the total of a masked sum is not what parties have added: it was changed on its "
                "way, or their masks do not cancel; all must run the same command of the same "
                "version of vpem"
            )


def _below_prime(key: bytes) -> int:
    return int.from_bytes(key[:16], "little") % 2**127 % PRIME


def _number(words: Ring, bits: int) -> int:
    """Return a number of words that count so many bits, the lowest first."""
    return sum(word << bits * place for place, word in enumerate(words.tolist()))


def _powers_of(point: int) -> Ring:
    """Return what `add_tag` knows of the powers of a point."""
    power, added, rows = 1, 0, []
    for _ in range(BLOCK):
        power = power * point % PRIME
        added = (added + power) % PRIME
        shifted = -(added << 63) % PRIME
        rows.append([part for n in (power, shifted) for part in (n & (2**64 - 1), n >> 64)])
    return np.array(rows[::-1], dtype=np.uint64)


class Masks(OfOneProcess):
    """The masks of one run, of the parties that live in this process (``here``).

    All processes call the same methods in the same order, `total` and `anybody` too: the totals
    that they receive go into the keys of what is hidden after them, so that who sends some another
    total than others has masks that do not cancel, and learns nothing. Every call that hides
    something takes a nonce of its own, in whichever thread, and nothing turns their numbers back: a
    sum that is taken again is another. ``register`` is called for every keystream that is expanded:
    SHA-256 of its key, its nonce, and by whom. InputError if parties are fewer than `FEWEST`.

    ``outlast`` notes with whom totals are opened, where sums continue without who is lost: then
    each vector is veiled, and has a tag that is by itself; ``latest`` was hidden last.
    """

    latest: Sent
    register: Callable[[bytes, bytes, int], None] | None = None

    def __init__(
        self,
        fixed: FixedPoint,
        keys: PairKeys,
        group: bytes | None,  # a key that all parties share; None where none lives here
        n_threads: int | None = None,
        outlast: Outlast | None = None,
    ) -> None:
        super().__init__()
        self.fixed, self._keys, self.outlast = fixed, keys, outlast
        self.here, self.names = keys.here, keys.names
        self.n_parties = fixed.n_parties  # of all processes, N
        self._all = tuple(range(fixed.n_parties))
        check_parties(len(self._all))
        self._number, self._chunk = 0, 0
        self._heard = bytes(hashlib.sha256().digest_size)
        self._taken = threading.Lock()
        self._n_threads = thread_count(n_threads)
        self._pad = np.empty(TILE, dtype=np.uint64)
        self._group, self._powers = group, None
        if group is not None:
            self._powers = _powers_of(_below_prime(expanded(group, b" point", b"")))
        self._rows = 0
        self._running: Tag | None = None

    def begin(self, n_rows: int = 1) -> None:
        """Begin another sum, over so many rows, or the same one once more."""
        with self._taken:
            self._number, self._chunk = self._number + 1, 0
            self._rows, self._running = n_rows, None

    def tag(self, n_rows: int | None = None) -> tuple[Tag, bool]:
        """Return the tag that a vector goes into, and whether it ends with that and goes with it.

        Vectors of the rows of the sum that has begun have one tag together; one of its own has
        another that is by itself (None).
        """
        n_rows = n_rows if self.outlast is None else None
        with self._taken:
            if n_rows is not None:
                self._rows -= n_rows
            tag = None if n_rows is None else self._running
            if tag is None:
                number, pad = self._next(TAG_WORDS), 0
                if self._group is not None:
                    pad = _below_prime(expanded(self._group, b" tag", self._heard + number))
                tag = Tag(self._powers, pad, len(self.here))
            if n_rows is None:
                return tag, True
            self._running = tag if self._rows > 0 else None
            return tag, self._rows <= 0

    def hide(
        self,
        values: AnyArray,
        *,
        exponents: ArrayLike | None = None,
        who: ArrayLike | None = None,
        tag: tuple[Tag, bool] | None = None,
        apart: bool = False,
        objection: Objection | None = None,
    ) -> Ring:
        """Return what this process adds to a sum (P,): zeros where none that takes part lives here.

        Pads of two parties that both live here cancel before anything leaves it, and are not made.
        They are where parties are ``apart``: what each sends where it sends it on its own, (n, P).
        ``values`` (n, P) are of the parties here that take part, ``who`` are all that do,
        increasing, and ``exponents`` (P,) the powers of two of magnitudes, which all know (default:
        0). With a ``tag`` (see `tag`) that ends, four words more are behind the others. Where an
        ``objection`` is raised all are random instead: such a total shows nothing.
        """
        among, local, rings = self._added(values, exponents, who, tag, apart=apart)
        if objection is not None and objection.raised:
            rings[:1] = np.frombuffer(os.urandom(rings[0].nbytes), dtype=np.uint64)
        near = set() if apart else set(self.here)
        others = [party for party in among if party not in near]
        with self._taken:
            nonce = self._next(rings.shape[1])
            for place, party in enumerate(local):
                self._mask(rings[place * apart], party, others, among, nonce)
            self.latest = nonce, among
        return rings[: len(local)] if apart else rings[0]

    def veil(self, sent: Sent) -> Ring:
        """Give away the keys of the own pads here of a vector, since those of all are there.

        Each party's are four words among zeros (N, 4). Whoever has given them takes part in no sum
        of the same numbers without one of these.
        """
        assert self.outlast is not None
        self.outlast.record_opening([self.names[party] for party in sent[1]])
        return self._table({p: self._veil(p, *sent) for p in self.here if p in sent[1]})

    def shares_of(self, lost: int, sent: Sent) -> Ring:
        """Give away what parties here know of the key of one who is lost and has not given it.

        They have given their own keys: the vector of the lost one is in the total.
        """
        parties = [party for party in self.here if party in sent[1]]
        return self._table({party: self._keys.share(lost, party, sent[0]) for party in parties})

    def _table(self, keys: Mapping[int, bytes]) -> Ring:
        words = np.zeros((self.n_parties, KEY_BYTES // 8), dtype=np.uint64)
        for party, key in keys.items():
            words[party] = np.frombuffer(key, dtype=np.uint64)
        return words

    def unveiled(self, ring: Ring, sent: Sent, keys: Ring, shares: Ring | None = None) -> Ring:
        """Take the own pads of all who take part off a sum of their vectors, by their keys (N, 4).

        That of one who is lost, and has given none, is made of the ``shares`` of all others.
        """
        if shares is not None:
            known = keys.any(axis=1, keepdims=True)
            keys = np.where(known, keys, np.bitwise_xor.reduce(shares, axis=0))
        with self._taken:
            self._pads(ring, [(keys[p].tobytes(), np.subtract) for p in sent[1]], sent[0])
        return ring

    def any(self, flags: NDArray[np.bool_], who: ArrayLike | None = None) -> Ring:
        """Return what this process adds where all learn of flags (P,) whether any party has one.

        Who has a flag adds a random word, and others 0: see `anybody`. One word more is no party's.
        """
        party_flags = np.zeros((len(self.here), len(flags)), dtype=np.bool_)
        party_flags[:1] = flags
        return self.hide(self.words(party_flags), who=who)

    @staticmethod
    def words(flags: NDArray[np.bool_]) -> Ring:
        """Return what is hidden of parties' flags (n, P): (n, P + 1); see `any`."""
        words = np.zeros((len(flags), flags.shape[1] + 1), dtype=np.uint64)
        drawn = os.urandom(8 * int(flags.sum()))
        words[:, :-1][flags] = np.frombuffer(drawn, dtype=np.uint64)
        return words

    def anybody(self, ring: Ring) -> NDArray[np.bool_]:
        """Return of flags (P,) whether any party has one, once what `any` gave is added up.

        InputError if masks do not cancel, by which all would seem to have all.
        """
        self.hear(ring)
        if ring[-1] != 0:
            raise _standing("parties have added to a word of a masked sum that belongs to no party")
        return np.asarray(ring[:-1] != 0)

    def total(
        self,
        ring: Ring,
        exponents: ArrayLike | None = None,
        tag: tuple[Tag, bool] | None = None,
        objection: Objection | None = None,
    ) -> NDArray[np.float64]:
        """Return the sum (P,) of all that `hide` gave; InputError if it is another.

        Where there may be an ``objection`` it is that, and the sum 0.
        """
        self.hear(ring)
        ring, behind = np.split(ring, [len(ring) - TAG_WORDS * (tag is not None and tag[1])])
        if objection is not None and objection.heard:
            return np.zeros(len(ring))
        try:
            if tag is not None:
                tag[0].hear(ring, behind)
            return self.fixed.values(ring, exponents, self._n_threads)
        except InputError as error:
            if objection is None:
                raise
            objection.heard, objection.error = True, error
            return np.zeros(len(ring))

    def hear(self, total: AnyArray) -> None:
        """Make all further keys depend on what all receive: who received another shares none."""
        heard = hashlib.sha256(np.ascontiguousarray(total).data).digest()
        with self._taken:
            self._heard = hashlib.sha256(self._heard + heard).digest()

    def _next(self, n_words: int) -> bytes:
        """Return the next nonce: the block counter from 0, then numbers that never come again."""
        if n_words > MOST_WORDS or self._chunk >= MOST_VECTORS:
            raise VpemError(
                f"a masked sum has at most {MOST_VECTORS} vectors of {MOST_WORDS} values; take "
                "fewer rows at a time"
            )
        nonce = struct.pack("<IIQ", 0, self._chunk, self._number)
        self._chunk += 1
        return nonce

    def _added(
        self,
        values: AnyArray,
        exponents: ArrayLike | None,
        who: ArrayLike | None,
        tag: tuple[Tag, bool] | None,
        *,
        apart: bool,
    ) -> tuple[tuple[int, ...], list[int], Ring]:
        """Return who takes part, who of them is here, and what these add, together or apart.

        There are no masks in it yet, and room for tags that end.
        """
        self.check_process()
        among = self._all if who is None else tuple(np.asarray(who).tolist())
        check_parties(len(among))
        taking = set(among)
        if not taking <= set(self._all) or list(among) != sorted(taking):
            raise ValueError("parties must be named once each, in increasing order")
        local = [party for party in self.here if party in taking]
        if len(local) != len(values):
            raise ValueError(f"{len(values)} vectors of {len(local)} parties")
        rows, n_words = np.arange(len(local)) * apart, values.shape[1]
        rings = np.zeros((rows.max(initial=0) + 1, n_words), dtype=np.uint64)
        for party, terms, row in zip(local, values, rows, strict=True):
            place = self.fixed.add(terms, exponents, rings[row], self._n_threads)
            if place < 0:
                continue
            what = f"value {place} of {len(terms)} that {self.names[party]} adds to a masked sum"
            if not np.isfinite(terms[place]):
                raise InputError(f"{what} is NaN or infinite")
            power = 0 if exponents is None else int(np.asarray(exponents)[place])
            raise InputError(
                f"{what} is larger than {np.ldexp(self.fixed.largest, power):.4g}, which is what "
                f"fits for {self.n_parties} parties; standardise features, or leave out ",
                Setting("secure_sum", True),
            )
        if tag is None:
            return among, local, rings
        behind = np.zeros((len(rings), TAG_WORDS * tag[1]), dtype=np.uint64)
        tag[0].add(rings, behind, among[0] in local)
        return among, local, np.concatenate([rings, behind], axis=1)

    def _mask(
        self, ring: Ring, party: int, others: list[int], among: tuple[int, ...], nonce: bytes
    ) -> None:
        """Add a party's pads with some others, and its own."""
        keys = []
        for other in (each for each in others if each != party):
            key = self._keys.between(party, other, among, self._heard)
            keys.append((key, np.subtract if party > other else np.add))
        if self.outlast is not None:
            keys.append((self._veil(party, nonce, among), np.add))
        if self.register is not None:
            for key, _ in keys:
                self.register(hashlib.sha256(key).digest(), nonce, party)
        self._pads(ring, keys, nonce)

    def _veil(self, party: int, nonce: bytes, among: tuple[int, ...]) -> bytes:
        """Return the key of a party's own pad of a vector: each other one has a share of it."""
        shares = {p: self._keys.share(party, p, nonce) for p in among if p != party}
        key: Ring = np.bitwise_xor.reduce(self._table(shares), axis=0)
        return key.tobytes()

    def _pads(self, ring: Ring, keys: Sequence[tuple[bytes, np.ufunc]], nonce: bytes) -> None:
        """Add or subtract pads, some words of all of them at a time."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        streams = [
            (Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor(), add)
            for key, add in keys
        ]
        for begin in range(0, len(ring), TILE):
            some = ring[begin : begin + TILE]
            pad = self._pad[: len(some)]
            for stream, add in streams:
                stream.update_into(ZEROS[: some.nbytes], pad.data.cast("B"))
                add(some, pad, out=some)
