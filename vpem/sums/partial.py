"""Messages that are compressed, memories of what was received, and senders that are absent.

FedEM's and SAEM's messages to a server are an `Uplink`: how vectors differ from memories is sent,
by some of the senders, in few bits. Rounds between neighbours carry states and not terms, and sums
of terms are compressed both ways: those `send_changes` of vectors from what is known of them.
Compressed sums remember all rows, or those of every batch apart.

An agent that is absent at times counts with what was heard of it last (`HeardAtServer`,
`HeardByNeighbours`). A sum of those who are there would have no fixed point: it changes with who
that is. Here only what has changed at an agent moves the sum, so that it comes to rest where all
agents have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vpem.checks import AnyArray, Doubles, Floats, least_participation, parse_participation
from vpem.errors import InputError, Setting, did_you_mean, shorten
from vpem.network.codecs import Codec, Keys, draw_keys
from vpem.network.ledger import Ledger
from vpem.network.schema import COUNT, Array, Maybe, Report, Schema, State, restore, save
from vpem.sums.consensus import codec_within
from vpem.sums.counted import SUM_KIND, AtServer
from vpem.sums.exchanges import follow_first
from vpem.sums.quantizer import Quantizer
from vpem.sums.sum import ALL, WENT, Scalars, Sum, flattened, message_bytes, unflattened

Senders = NDArray[np.intp]

Carry = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]
"""Brings messages (a, size) of this process to others; returns those that it hears itself."""


@dataclass(frozen=True)
class Presence:
    """Who of n senders takes part, and what a message of one stands for.

    Each takes part with a probability of its own (Dieuleveut et al. 2021, A 9), so that its message
    divided by that is, on average, what it would always send. Or there is a ``schedule`` of who
    takes part in one iteration after the other, again and again: probabilities are then shares of
    its iterations. With ``weights`` (n,) the total is a mean over those who are there.
    """

    probabilities: Doubles  # (n,)
    schedule: tuple[Senders, ...] = ()
    weights: Doubles | None = None

    @classmethod
    def of(cls, value: object, names: Sequence[str], weights: Doubles | None = None) -> Presence:
        """Read who of these senders takes part; InputError where names or numbers do not fit."""
        known: Any = parse_participation(value)
        least, n, number = least_participation(known), len(names), Setting("participation")
        if isinstance(known, float):
            return cls(np.full(n, least), (), weights)
        if isinstance(known, dict):
            places = _places(known, names)
            if absent := [name for at, name in enumerate(names) if at not in places]:
                raise InputError(number, f" has no probability of {shorten(map(repr, absent))}")
            return cls(np.array(list(known.values()))[np.argsort(places)], (), weights)
        if not isinstance(known[0], tuple):
            if len(known) != n:
                raise InputError(
                    number, f" has {len(known)} probabilities, but {n} could take part"
                )
            return cls(np.array(known), (), weights)
        schedule = tuple(np.sort(_places(one, names)) for one in known)
        times = np.bincount(np.concatenate(schedule), minlength=n)
        if absent := [names[at] for at in np.flatnonzero(times == 0).tolist()]:
            raise InputError(
                number, f" has {shorten(map(repr, absent))} in no iteration, so that what they "
                "hold would never count; add them, or leave their rows out",
            )  # fmt: skip
        return cls(times / len(schedule), schedule, weights)

    @property
    def plain(self) -> Any:
        """The same by numbers of senders: a probability, one for each, or who is there when."""
        if self.schedule and self.probabilities.min() < 1:
            return tuple(tuple(one.tolist()) for one in self.schedule)
        alike = (self.probabilities == self.probabilities[0]).all()
        return float(self.probabilities[0]) if alike else tuple(self.probabilities.tolist())

    def draw(self, rng: np.random.Generator, iteration: int, among: Senders) -> Senders:
        """Draw who takes part in an iteration, counted from 1."""
        if self.schedule:
            there = self.schedule[(iteration - 1) % len(self.schedule)]
            return among[np.isin(among, there)]
        chances = self.probabilities[among]
        return among if (chances == 1).all() else among[rng.random(len(among)) < chances]

    def chance(self, active: Senders) -> float | Doubles:
        """By what the messages of those who take part are divided: all by one number, or (a,)."""
        if self.weights is not None:
            return float(self.weights[active].sum()) if len(active) else 1.0
        alike = (self.probabilities == self.probabilities[0]).all()
        return float(self.probabilities[0]) if alike else self.probabilities[active]


def describe_presence(value: object, n: int) -> Report:
    """Say with which probability senders take part: the least, and all where they differ."""
    presence = Presence.of(value, [str(number) for number in range(n)])
    report: Report = {"participation": float(presence.probabilities.min())}
    if not isinstance(presence.plain, float):
        report["participation_by_worker"] = presence.probabilities.tolist()
    return report


def _places(given: Iterable[str], known: Sequence[str]) -> Senders:
    """Numbers of the senders of these names; InputError for others and for repeated ones.

    Where no name is a number, numbers from 0 will do.
    """
    places = {name: at for at, name in enumerate(known)}
    if not any(name.isdecimal() for name in known):
        places |= {str(at): at for at in range(len(known))}
    found: list[int] = []
    for name in given:
        at = places.get(name, -1)
        if at < 0:
            raise InputError(
                Setting("participation"), f" names {name!r}{did_you_mean(name, known)}, but there "
                f"are {shorten(map(repr, known))}",
            )  # fmt: skip
        if at in found:
            raise InputError(Setting("participation"), f" has {known[at]!r} twice")
        found.append(at)
    return np.array(found, dtype=np.intp)


class Uplink(Sum):
    """Messages to a server from some of the senders, in few bits, of what differs from a memory.

    Each of the three may be left out; without any it is the server's sum (`AtServer`), of
    which nothing is kept but memories, by their owners.

    In few bits: by the codec of a ``quantizer``, if it has one. Keys of messages are drawn by
    ``keys``, of so many at a time; a generator does as `draw_keys`.

    Of some senders: of those ``among`` all who can, as a `Presence` says, drawn by the generator.
    Where they are as likely to be there their total is divided by that, so that it is that of all
    on average. None: all take part.

    Of a memory: see `remember`.
    """

    n_roots = 1
    whole = at_server = True
    server: AtServer
    step: float | Doubles = 1.0
    values: Doubles | None = None
    kept: Doubles | None = None
    iteration = 0
    """Of what is drawn next, by which a schedule goes."""

    def __init__(
        self,
        server: AtServer,
        quantizer: Quantizer | None = None,
        keys: np.random.Generator | Callable[[int], Keys] | None = None,
        presence: Presence | None = None,
        among: Senders | None = None,
    ) -> None:
        self.server = server
        self.ledger, self.way, self.holders = server.ledger, server.way, server.holders
        self.quantizer = None if quantizer is None or quantizer.codec is None else quantizer
        self.biased = self.quantizer is not None and self.quantizer.biased
        """Whether the mean of what is received is something else than what was sent."""
        self._keys = partial(draw_keys, keys) if isinstance(keys, np.random.Generator) else keys
        self.presence, self._rng = presence, keys
        if presence is not None:
            self._among = self.active = np.arange(server.n_senders) if among is None else among

    def remember(self, step: float | Doubles, values: Doubles, kept: Doubles | None = None) -> Self:
        """Let the server have a vector of each sender, who has it too: only what differs is sent.

        Both add what was received of a message, times the step, so that they keep the same whatever
        the codec loses; as vectors settle messages become small, and their noise with them. DIANA,
        Mishchenko et al. 2019; of biased codecs EF21, Richtarik et al. 2021.

        The ``step``, one or (P,), is the part of a message that is added: ``1 / (1 + omega)`` for
        noise, 1 for biased codecs. ``values`` (n, P) are the first states, which are moved in
        place; ``kept`` (1, P) is their sum, likewise, for `estimate`.
        """
        self.step, self.values, self.kept = step, values, kept
        return self

    @property
    def senders(self) -> Senders:
        """Numbers (a,) of the active senders, also where all are."""
        return np.arange(self.server.n_senders) if self.active is None else self.active

    # ---- the two halves of a sum -----------------------------------------------------------------

    def count(self, sizes: int | NDArray[np.int64], senders: Senders | None = None) -> None:
        self.server.count(sizes, senders)

    def send(self, values: Doubles, senders: Senders | None = None) -> Doubles:
        """Send a vector of each active sender (a, P): what the server has received of them.

        In the few bytes of a codec, if there is one; whatever a memory has of them.
        """
        senders = self.active if senders is None else senders
        if self.quantizer is None or self._keys is None:
            return self.server.send(values, senders)
        self.count(np.full(len(values), self.quantizer.message_size), senders)
        is_local = self.server.here(senders)
        if is_local is None:
            return self.quantizer.transmit(values, self._keys)
        messages = self.quantizer.pack(values, self._keys, is_local)
        heard = self.quantizer.unpack(self.server.hear(messages, senders))
        if len(heard) == len(values):  # at the server, where all are heard
            return heard
        received = np.zeros(values.shape)
        received[is_local] = heard
        return received

    def aggregate(self, received: Doubles, senders: Senders | None = None) -> Doubles:
        """Add up what the server has of the active senders (a, P), or of some: shape (1, P)."""
        senders = self.active if senders is None else senders
        if self.quantizer is not None and self.holders.apart:
            return self.server.announce(received, senders)
        return self.server.aggregate(received, senders)

    def broadcast(self, size: int, receivers: Senders | None = None) -> None:
        self.server.broadcast(size, self.active if receivers is None else receivers)

    @property
    def chance(self) -> float | Doubles:
        """By what messages of the active senders are divided: one number, or (a,)."""
        return 1.0 if self.presence is None else self.presence.chance(self.senders)

    def draw(self) -> None:
        if self.presence is not None:
            assert isinstance(self._rng, np.random.Generator)
            self.active = self.presence.draw(self._rng, self.iteration, self._among)

    def add(self, values: Doubles) -> Doubles:
        """Sum vectors (1, P) by those of the active senders (a, P): an estimate of that of all.

        With a memory it is the sum of what the server has of all, once the active ones have sent.
        """
        if self.values is not None:
            self.add_received(self.send(self.differ(values)))
            return self.total()
        return self.aggregate(self.send(values)) / self.chance

    # ---- with a memory ---------------------------------------------------------------------------

    @property
    def _held(self) -> Senders | slice:
        return slice(None) if self.active is None else self.active

    def differ(self, values: Doubles, about: Doubles | None = None) -> Doubles:
        """Return vectors (a, P), or their distances from others, less the states."""
        assert self.values is not None
        changes: Doubles = values - self.values[self._held]
        return changes if about is None else changes - about

    def add_received(self, received: Doubles) -> None:
        """Add what was received (a, P), times the step, in its own memory."""
        assert self.values is not None
        received *= self.step
        self.values[self._held] += received

    def total(self) -> Doubles:
        """Sum what the server has of all senders (1, P)."""
        assert self.values is not None
        return self.aggregate(self.values, np.arange(self.server.n_senders))

    def estimate(self, values: Doubles, about: Doubles) -> Doubles:
        """Estimate the sum of vectors (a, P) of the active senders without bias: shape (1, P).

        It is the sum of the memories as they were, which the server keeps, plus an estimate of what
        differs. Of biased messages it is that of the memories as they become. Vectors are taken
        about ``about``, which all know.
        """
        assert self.kept is not None
        changes, chance = self.differ(values, about), 1.0 if self.biased else self.chance
        if isinstance(chance, float):
            received = self.send(changes)
            seen = self.aggregate(received)
            total: Doubles = self.kept + 1.0 / chance * seen
        else:
            # A server makes two sums of what it hears; along a tree both are sent.
            summed = self.quantizer is None and self.server.tree is not None
            sent = self.send(_both(changes, chance) if summed else changes)
            both = sent if summed else _both(sent, chance)
            weighed, seen = np.split(self.aggregate(both), 2, axis=1)
            received, total = both[:, changes.shape[1] :], self.kept + weighed
        # Sum and memories begin as they are elsewhere: a process keeps those of its own.
        self.add_received(self.server.ours(received, self.active))
        self.kept += self.step * seen
        return total

    # ---- as a sum of terms -----------------------------------------------------------------------

    def begin(
        self, kind: str, n_samples: int, n_values: int, itemsize: int, n_scalars: int = 0
    ) -> None:
        """Begin a sum: the server sends those that take part what it had; see `Sum.begin`.

        Messages to the server are counted as they are formed.
        """
        self.holders.begin(kind, n_samples)
        self.draw()
        self.server.charge_as(kind)
        self.broadcast(message_bytes(n_samples, n_values, itemsize, n_scalars))

    def reduce(self, terms: Floats, rows: slice = ALL, scalars: Scalars | None = None) -> AnyArray:
        """Sum terms (a, m, K), all rows at once: shape (1, m, K)."""
        flat = self.holders.padded(flattened(terms, scalars))
        return unflattened(self.add(flat), terms, scalars)

    def agree(self, kind: str, size: int = 1, source: int | None = None) -> None:
        self.server.agree(kind, size, source)

    def schema(self) -> dict[str, Schema]:
        return {}


def _both(values: Doubles, chance: Doubles) -> Doubles:
    """Vectors (a, P) divided by the chance of each (a,), and behind them as they are: (a, 2P)."""
    return np.concatenate([values / chance[:, None], values], axis=1)


def send_changes(
    quantizer: Quantizer,
    values: Doubles,
    known: Doubles,
    keys: Keys,
    carry: Carry | None = None,
    senders: Senders | None = None,
) -> None:
    """Send how vectors (a, P) differ from what is known of their senders, which moves in place.

    ``keys`` (a,) are of their messages, of one piece each. Of the ``senders`` those of this process
    come first, in rows of what is known (n, P). Where others hear the bytes of their messages, and
    they those of others, ``carry`` brings them: what is received is then decoded by all who hear
    it, by its sender too, so that all have the same.
    """
    held = slice(None) if senders is None else as_run(senders)
    changes = values - known[held][: len(values)]
    if carry is None:
        received = quantizer.transmit(changes, lambda _: keys)
    else:
        messages = quantizer.pack(changes, lambda _: keys)
        received = quantizer.unpack(np.concatenate([messages, carry(messages)]))
    received *= quantizer.steps
    known[held] += received


def as_run(rows: Senders) -> Senders | slice:
    """Rows as a slice, if each follows the one before: what is read there is then not copied."""
    first = int(rows[0]) if len(rows) else 0
    return slice(first, first + len(rows)) if (np.diff(rows) == 1).all() else rows


def short_keys(rng: np.random.Generator, n_messages: int) -> Keys:
    """Draw keys of 63 bits, as sums of terms do."""
    return rng.integers(1 << 63, size=n_messages, dtype=np.uint64)


class GoesOn(Sum):
    """A sum in a codec that goes on from the one before of the same rows, and draws again in each.

    It has a memory, a record of arrays, of the sum taken last, or in batches one of each.
    """

    codec: Codec | None
    seed: int
    _coder: Codec | None
    n_rounds: int | None
    least: int
    make_memory: type[Any]
    unnamed: tuple[str, ...] = ()
    """Arrays of a memory that stand in states by themselves, and not in one of a "memory"."""
    _number = 0
    """Of sums up to now, which seeds what is drawn."""
    _kind = "setup"
    _batch = 0
    _lasting = False
    """Whether a sum in which all take part is followed by others.

    In batches it is the first, and else the last.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._memories: list[Any] = [None]

    def counted_on(self, ledger: Ledger) -> Self:
        counted = super().counted_on(ledger)
        counted._number, counted._memories = 0, [None]
        counted._batch, counted._lasting = 0, False
        return counted

    def turn_to(self, batch: int, n_batches: int | None) -> None:
        if n_batches is None:  # rows come once: there is nothing to go on from
            self._memories, self._number = [None], batch
            return
        if not self._lasting or len(self._memories) != n_batches:
            self._memories, self._lasting = [None] * n_batches, True
        self._batch = batch

    def begin(
        self, kind: str, n_samples: int, n_values: int, itemsize: int, n_scalars: int = 0
    ) -> None:
        """Begin a sum, whose messages are counted as they are formed."""
        self.holders.begin(kind, n_samples)
        if self._kind == "setup" and kind != "setup":
            # What is summed for a start has nothing to do with terms.
            self._memories[self._batch] = None
        self._kind = kind
        self.charge_as(kind)
        largest = inf if kind == "setup" else 0.0
        self._coder = None if self.codec is None else codec_within(largest, self.codec)
        self._number += 1

    def _keep(self, memory: object) -> None:
        """Keep the memory of the sum begun last, if others go on from it."""
        ended = self._kind == "check" and not self._lasting
        self._memories[self._batch] = None if ended else memory

    def state(self) -> State:
        """Return memories, how many sums there were, and of several processes what went."""
        every = [None if one is None else dict(vars(one)) for one in self._memories]
        kept: State = {"batches": every}
        if not self._lasting:
            kept = {"memory": every[0]}
            if self.unnamed:
                kept = every[0] or dict.fromkeys(self.unnamed)
        went = save(WENT, self) if self.holders.apart else {}
        return {"number": self._number, "kind": self._kind, **kept, **went}

    def expect(self, n_values: int) -> None:
        self.least = self.n_rounds or 0

    def memory_schema(self, n_values: str) -> dict[str, Schema]:
        """What a memory must be; ``n_values`` names how many there are of an agent."""
        raise NotImplementedError

    def schema(self) -> dict[str, Schema]:
        n_batches = len(self._memories)
        kept: dict[str, Schema] = {
            "batches": [Maybe(self.memory_schema(f"V{number}")) for number in range(n_batches)]
        }
        if not self._lasting:
            kept = {"memory": Maybe(self.memory_schema("V0"))}
            if self.unnamed:
                kept = {name: Maybe(one) for name, one in self.memory_schema("V").items()}
        return {"number": COUNT, "kind": SUM_KIND, **kept, **(WENT if self.holders.apart else {})}

    def restore(self, state: State) -> None:
        self._number, self._kind = state["number"], state["kind"]
        if self._lasting:
            every = state["batches"]
        elif self.unnamed:
            arrays = {name: state[name] for name in self.unnamed}
            every = [None if any(one is None for one in arrays.values()) else arrays]
        else:
            every = [state["memory"]]
        self._memories = [None if one is None else self.make_memory(**one) for one in every]
        if self.holders.apart:
            restore(WENT, self, state)


class HeardAtServer(Uplink):
    """A server's sum to which every sender contributes with some probability, drawn each time.

    The server keeps what it has of each. All take part in what is summed for a start and in a
    "check". With a codec senders say in few bits how they differ from what the server has of them.
    """

    seed: int

    def __init__(
        self,
        server: AtServer,
        probability: float,
        *,
        seed: int = 0,
        codec: Codec | None = None,
        n_threads: int = 1,
    ) -> None:
        super().__init__(server, None, None, Presence(np.full(server.n_senders, probability)))
        self.seed, self.codec, self.n_threads = seed, codec, n_threads
        self.values_per_item = server.n_senders
        self.roots = server.roots
        self._number = 0
        self._kind = "setup"

    def counted_on(self, ledger: Ledger) -> Self:
        counted = super().counted_on(ledger)
        counted.server = self.server.counted_on(ledger)
        counted._number, counted.values = 0, None
        return counted

    def begin(
        self, kind: str, n_samples: int, n_values: int, itemsize: int, n_scalars: int = 0
    ) -> None:
        """Begin a sum: the server sends those that take part what it had, which they answer."""
        self.holders.begin(kind, n_samples)
        self._number += 1
        self._kind, self.active = kind, None
        if kind == "estep":
            self._rng = np.random.default_rng([self.seed, self._number])
            self.draw()
        self.server.charge_as(kind)
        self.broadcast(message_bytes(n_samples, n_values, itemsize, n_scalars))

    def reduce(self, terms: Floats, rows: slice = ALL, scalars: Scalars | None = None) -> AnyArray:
        flat = self.holders.padded(flattened(terms, scalars))
        if self._kind == "setup":
            return unflattened(self.server.aggregate(self.server.send(flat)), terms, scalars)
        if self.values is None or self.values.shape != flat.shape:
            self.values = np.zeros_like(flat)
        if self.codec is not None:
            self._keys = partial(short_keys, np.random.default_rng([self.seed, self._number, 1]))
            n_exact = 0 if scalars is None else scalars.own.shape[1]
            n_values = flat.shape[1] - n_exact
            self.quantizer = Quantizer(self.codec, n_values, self.n_threads, n_exact=n_exact)
            self.step = self.quantizer.steps
        return unflattened(
            self.add(flat if self.active is None else flat[self.active]), terms, scalars
        )

    def schema(self) -> dict[str, Schema]:
        values = Maybe(Array("f8", (self.server.n_senders, "own")))
        return {"number": COUNT, "values": values, "inner": self.server}


class HeardByNeighbours(Sum):
    """A sum among neighbours whose agents keep it, where some of them are inactive at times.

    Each agent has an estimate of the sum, to which it adds what has changed in its own terms, N
    times; then those who are awake average theirs. That keeps the mean of all estimates at the sum
    of what each has said last, whichever are inactive (dynamic average consensus, Zhu and Martinez
    2010). How many are awake they find by the same rounds. A "check" is a sum of its own, in which
    all take part. The ``inner`` sum is by rounds, each holder a root of its own.
    """

    whole = True

    def __init__(self, inner: Sum) -> None:
        self.inner = inner
        self.ledger = inner.ledger
        self.n_roots = inner.n_roots
        self.values_per_item = inner.values_per_item
        self.way = inner.way
        self.silent, self.holders, self.roots = inner.silent, inner.holders, inner.roots
        self._some_follow = bool(self.holders.any([inner.n_roots > len(self.holders.own)])[0])
        self._kind = "setup"
        self._terms: Doubles | None = None
        self._sums: Doubles | None = None

    def counted_on(self, ledger: Ledger) -> Self:
        return type(self)(self.inner.counted_on(ledger))

    def begin(
        self, kind: str, n_samples: int, n_values: int, itemsize: int, n_scalars: int = 0
    ) -> None:
        self._kind = kind
        if kind == "estep":
            if n_samples > 1:  # the sum inside is one of vectors
                self.holders.begin(kind, n_samples)
            n_values, itemsize = n_samples * n_values + n_scalars + 1, 8
            n_samples, n_scalars = 1, 0
        try:
            self.inner.begin(kind, n_samples, n_values, itemsize, n_scalars)
        finally:
            self.silent = self.inner.silent

    def reduce(self, terms: Floats, rows: slice = ALL, scalars: Scalars | None = None) -> AnyArray:
        """Sum terms (B, m, K), all rows at once: one estimate a root."""
        if self._kind != "estep":
            return self.inner.reduce(terms, rows, scalars)
        flat = flattened(terms, scalars)
        if self._terms is None or self._sums is None or self._terms.shape != flat.shape:
            self._terms, self._sums = np.zeros_like(flat), np.zeros_like(flat)
        silent = self.silent
        awake = slice(None) if silent is None else ~silent[: len(flat)]
        self._sums[awake] += self.holders.n_agents * (flat - self._terms)[awake]
        self._terms[awake] = flat[awake]
        said = np.concatenate([self._sums, np.ones((len(flat), 1))], axis=1)[:, :, None]
        mixed = self.inner.reduce(said, slice(0, said.shape[1]))[: len(flat), :, 0]
        self._sums[awake] = mixed[awake, :-1] / mixed[awake, -1:]
        estimates = self._sums
        if self._some_follow:
            estimates = follow_first(self.roots, estimates)
        return unflattened(estimates, terms, scalars)

    def turn_to(self, batch: int, n_batches: int | None) -> None:
        """Take up the rows of a batch, of which no agent has said anything."""
        self._terms = self._sums = None
        self.inner.turn_to(batch, n_batches)

    def kept_bytes(self, n_values: int) -> int:
        return self.inner.kept_bytes(n_values) + 16 * len(self.holders.own) * n_values

    def agree(self, kind: str, size: int = 1, source: int | None = None) -> None:
        self.inner.agree(kind, size, source)

    def schema(self) -> dict[str, Schema]:
        values = Maybe(Array("f8", (len(self.holders.own), "own")))
        return {"terms": values, "sums": values, "inner": self.inner}
