"""Sums in which an agent that is absent counts with what was heard of it last.

A sum of those who are there would have no fixed point: it changes with who that is. Here only what
has changed at an agent moves the sum, so that it comes to rest where all agents have.
"""

from __future__ import annotations

from functools import partial
from typing import Self

import numpy as np

from vpem.checks import AnyArray, Doubles, Floats
from vpem.network.codecs import Codec
from vpem.network.ledger import Ledger
from vpem.network.schema import COUNT, Array, Maybe, Schema
from vpem.sums.counted import AtServer
from vpem.sums.exchanges import follow_first
from vpem.sums.partial import Uplink, short_keys
from vpem.sums.quantizer import Quantizer
from vpem.sums.sum import ALL, Scalars, Sum, flattened, message_bytes, unflattened


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
        super().__init__(server)
        self.probability = probability
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
            drawn = np.random.default_rng([self.seed, self._number]).random(self.server.n_senders)
            self.active = np.flatnonzero(drawn < self.probability)
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
        """What the server has, and how many sums there were."""
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
