"""Which agents live in which process, and what is said between agents rather than processes.

Agents are all that hold something: parties of a protocol, workers with rows, roots of hubs. What is
written with these steps runs in one process as in many. Public keys of masked sums go around once,
signed in a study (`agree`); work of each agent fails everywhere if it fails anywhere (`for_each`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem import errors
from vpem.checks import AnyArray, Floats
from vpem.engines.engine import Engine, set_topic
from vpem.errors import InputError, Setting, VpemError, printable
from vpem.network.faults import FewerError
from vpem.network.masks import (
    KEY_BYTES,
    FixedPoint,
    Masks,
    OwnKeys,
    PairKeys,
    Sent,
    check_parties,
)
from vpem.network.schema import State

T = TypeVar("T")

Ask = Callable[[NDArray[np.bool_]], NDArray[np.bool_]]  # whether any process has each flag (n,)

PIECE_BYTES = 1 << 24
"""Of rows that are sent at a time."""

LEAST_POWER, MOST_POWER = -480, 543
"""Binary exponents by which agents compare the sizes of numbers."""

DIGIT = 32
"""Base in which the largest number of all agents is found, a digit in one message."""


def agree(place: Placement, names: Sequence[str] = (), *, n_threads: int | None = None) -> Masks:
    """Make the masks of a run: fresh keys, which all parties, at least three, exchange.

    Where processes have an identity (`Engine.signs`), each signs what it has heard of all, so that
    a process that passes keys on can neither change nor repeat them. One without parties only
    passes on. Parties are called ``names`` in messages, by default as their processes.
    """
    engine, fixed = place.engine, FixedPoint(place.n_agents)
    if not names:
        ranks = place.ranks.tolist()
        apart = len(set(ranks)) == len(ranks)
        names = [engine.names[r] if apart else f"agent {a}" for a, r in enumerate(ranks)]
    check_parties(place.n_agents)
    own_keys = OwnKeys(place.own.tolist())  # whose sentence says what is not installed
    from cryptography.exceptions import InvalidTag

    with set_topic(engine, "agreement"):
        keys_of: dict[int, bytes] = {}
        for rank, sent in enumerate(engine.allgather(list(own_keys.public.values()))):
            parties = np.flatnonzero(place.ranks == rank).tolist()
            if not isinstance(sent, list) or len(sent) != len(parties):
                raise _wrong(engine.names[rank], "the keys of its parties for masked sums")
            keys_of.update(zip(parties, sent, strict=True))
        public: list[bytes] = [keys_of[party] for party in range(place.n_agents)]
        for name, public_key in zip(names, public, strict=True):
            if not isinstance(public_key, bytes) or len(public_key) != KEY_BYTES:
                raise _wrong(name, f"a key of {KEY_BYTES} bytes for masked sums")
        signs = engine.signs
        facts = [str(fixed.n_parties), str(fixed.fraction_bits), *names]
        if signs is not None:
            facts += signs.facts
        keys = PairKeys(own_keys, public, facts, names)
        if signs is not None:
            transcript = keys.transcript
            said = engine.allgather(signs.sign(transcript) if len(place.own) else b"")
            others: list[str] = []
            for rank in sorted(set(place.ranks.tolist())):
                if not isinstance(said[rank], bytes) or not said[rank]:
                    raise _wrong(engine.names[rank], "a signature of the keys for masked sums")
                if not signs.holds(rank, transcript, said[rank]):
                    others.append(engine.names[rank])
            if others:
                raise InputError(
                    f"{' and '.join(others)} signed other keys for masked sums than this process "
                    "has: keys of another run or another edition of the study, or changed on "
                    "their way"
                )
        # The key that all parties share is made by the first; none where no party lives.
        once, key = bytes(12), os.urandom(KEY_BYTES)  # each sealing key is for this one message
        sealed: dict[int, bytes] | None = None
        if place.mine(0):
            elsewhere = np.flatnonzero(place.ranks != place.ranks[0]).tolist()
            sealed = {to: keys.sealing(0, to).encrypt(once, key, None) for to in elsewhere}
        if engine.size > 1:
            sealed = place.bcast(sealed)
        group = key if place.mine(0) else None
        if group is None and len(place.own):
            party = int(place.own[0])
            try:
                assert isinstance(sealed, dict)
                group = keys.sealing(party, 0).decrypt(once, sealed[party], None)
            except (AssertionError, InvalidTag, KeyError, TypeError):
                raise InputError(
                    f"the key by which totals are checked did not come from {keys.names[0]} as it "
                    "was sent; the process that passes keys on does not follow the protocol"
                ) from None
    return Masks(fixed, keys, group, n_threads, engine.outlast)


def _wrong(name: str, expected: str) -> InputError:
    return InputError(
        f"{name} has sent something else than {expected}; do all run the same version of vpem?"
    )


class Placement:
    """Agents and the processes that they live in: ``ranks`` (N,).

    ``own`` are the agents of this process, in their order; ``masks`` hide each agent's values where
    they are added up (`vpem.engines.placement.agree`), if there are any.
    """

    def __init__(self, engine: Engine, ranks: ArrayLike, masks: Masks | None = None) -> None:
        self.engine, self.masks = engine, masks
        self.ranks = np.asarray(ranks, dtype=np.intp)
        self.own: NDArray[np.intp] = np.flatnonzero(self.ranks == engine.rank)
        self.n_agents = len(self.ranks)
        """Number of agents of all processes, N."""
        self.apart = engine.apart
        """Whether agents may live in other processes."""
        self.nodes = np.append(self.ranks, 0)
        """Process of each agent and, as the last, of a server, which lives in the first."""

    def __getstate__(self) -> State:
        """Return what a copy elsewhere, of one process with all agents, is made of: no keys."""
        state = dict(vars(self))
        if self.masks is not None and not self.apart:
            state["masks"] = tuple(self.masks.names)
        return state

    def __setstate__(self, state: State) -> None:
        """Become such a copy, with masks of its own."""
        vars(self).update(state)
        if self.masks is not None:
            vars(self).update(masks=agree(self, state["masks"]))

    @classmethod
    def here(cls, n_agents: int) -> Self:
        return cls(Engine(), np.zeros(n_agents, dtype=np.intp))

    @classmethod
    def evenly(cls, engine: Engine, n_agents: int, names: Sequence[str] = ()) -> Self:
        """Spread agents over the processes in runs, as evenly as can be.

        Where there are more processes than agents the last have none: they only take part in what
        all do together. In messages, processes are called by the ``names`` of their agents. An
        engine whose processes stand for agents (`Engine.seats`) says itself where each lives.
        """
        if engine.seats is not None:
            if len(engine.seats) != n_agents:
                raise InputError(
                    f"{len(engine.seats)} parties have data, but there are {n_agents} agents; "
                    "parties are the agents, one each"
                )
            return cls(engine, engine.seats)
        used = min(engine.size - engine.first_holder, n_agents)
        ends = (np.arange(used + 1) * n_agents) // max(used, 1)
        if engine.first_holder:
            return cls(engine, np.repeat(engine.first_holder + np.arange(used), np.diff(ends)))
        engine.names[:] = [f"rank {rank} (no agent)" for rank in range(engine.size)]
        for rank, (begin, end) in enumerate(
            zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
        ):
            called = [names[a] if a < len(names) else f"agent {a}" for a in (begin, end - 1)]
            run = called[0] if end - begin == 1 else " to ".join(called)
            engine.names[rank] = f"rank {rank} ({run})"
        return cls(engine, np.repeat(np.arange(used), np.diff(ends)))

    def mine(self, agent: int) -> bool:
        return bool(self.nodes[agent] == self.engine.rank)

    def begin(self, kind: str, n_rows: int) -> None:
        """Report to the watch that a sum over so many rows begins (`vpem.sums.sum.Sum.begin`)."""
        if self.masks is not None:
            self.masks.begin(n_rows)
        if self.engine.watch is not None:
            self.engine.watch(kind, n_rows)

    # ---- values of agents -----------------------------------------------------------------------

    def gather(self, values: dict[int, T], to: int | None = 0) -> dict[int, T] | None:
        """Bring together what agents have, at one of them, or at all where ``to`` is None.

        The result is by agent, or None elsewhere. InputError if a process sends what is not its
        own.
        """
        engine = self.engine
        if to is None:
            parts: list[dict[int, T]] | None = engine.allgather(values)
        else:
            parts = engine.gather(values, int(self.nodes[to]))
        if parts is None:
            return None

        gathered = {}
        for node, part in enumerate(parts):
            if not isinstance(part, dict) or not all(
                isinstance(agent, int | np.integer)
                and 0 <= int(agent) < len(self.nodes)
                and int(self.nodes[int(agent)]) == node
                for agent in part
            ):
                raise InputError(
                    f"{engine.names[node]} has sent something else than what it has; are all of "
                    "the same version of vpem?"
                )
            gathered.update(part)
        return dict(sorted(gathered.items()))

    def allgather(self, values: dict[int, T]) -> dict[int, T]:
        gathered = self.gather(values, None)
        assert gathered is not None
        return gathered

    def bcast(self, value: object, owner: int = 0) -> Any:
        """Return, in every process, what the process of an agent has."""
        return self.engine.bcast(value, int(self.nodes[owner]))

    def send(self, value: object, source: int, target: int) -> Any:
        """Send a value from one agent to another: what the target gets, None elsewhere."""
        sender, receiver = int(self.nodes[source]), int(self.nodes[target])
        rank = self.engine.rank
        if rank == sender == receiver:
            return value
        if rank == sender:
            self.engine.send(value, receiver)
        return self.engine.recv(sender) if rank == receiver != sender else None

    def send_rows(
        self,
        rows: Floats | None,
        shape: tuple[int, int],
        dtype: np.dtype[np.floating],
        source: int,
        target: int,
    ) -> Floats | None:
        """Send rows (m, d) from one agent to another, some at a time; None but at the target."""
        if self.mine(source) == self.mine(target):
            return rows
        sender, receiver = int(self.nodes[source]), int(self.nodes[target])
        step = max(1, PIECE_BYTES // max(1, shape[1] * dtype.itemsize))
        received = np.empty(shape, dtype) if self.mine(target) else None
        for begin in range(0, shape[0], step):
            some = slice(begin, begin + step)
            if received is not None:
                self.engine.recv_array(received[some], sender)
            else:
                assert rows is not None
                self.engine.send_array(np.ascontiguousarray(rows[some], dtype=dtype), receiver)
        return received

    # ---- arrays and lists of all processes ------------------------------------------------------

    def allreduce(self, values: AnyArray, op: str = "sum", *, announced: bool = False) -> AnyArray:
        """Return the "sum" or the "max" of all processes' arrays.

        With masks no floats go this way, which would be in the open: `add` hides them. The watch
        hears of a sum, unless `begin` has ``announced`` it, or no rows are in what it adds up.
        """
        if self.masks is not None and values.dtype.kind == "f":
            raise RuntimeError("numbers of agents were about to be sent without masks")
        if op == "sum" and not announced and self.engine.watch is not None:
            self.engine.watch("sum", 1)
        return self.engine.allreduce(values, op)

    def add(
        self,
        values: AnyArray,
        *,
        who: NDArray[np.intp] | None = None,
        exponents: ArrayLike | None = None,
        announced: bool = False,
    ) -> AnyArray:
        """Return the sum (P,) of what agents have, everywhere the same, under masks if there are.

        ``values`` (n, P) are those of the agents that live here and take part, ``who``, by default
        all, is increasing, and ``exponents`` (P,) are powers of two of magnitudes for masks; see
        `Masks.hide`, and `allreduce` for ``announced``.
        """
        masks = self.masks
        if masks is None:
            return self.allreduce(values.sum(axis=0), announced=announced)
        tags = []

        def hidden(who: NDArray[np.intp] | None) -> NDArray[np.uint64]:
            tags.append(masks.tag())
            return masks.hide(values, exponents=exponents, who=who, tag=tags[-1])

        ring = self.summed(hidden, who, announced=announced)
        return masks.total(ring, exponents, tags[-1]).astype(values.dtype, copy=False)

    def left(self, who: NDArray[np.intp] | None = None) -> NDArray[np.intp] | None:
        """Return who of some, or of all, is not lost; None: all are there."""
        outlast = self.engine.outlast
        if outlast is None or not outlast.gone:
            return who
        every = np.arange(self.n_agents) if who is None else who
        return every[~np.isin(self.ranks[every], list(outlast.gone))]

    def summed(
        self,
        hidden: Callable[[NDArray[np.intp] | None], NDArray[np.uint64]],
        who: NDArray[np.intp] | None = None,
        *,
        announced: bool = True,
    ) -> NDArray[np.uint64]:
        """Add up what is ``hidden`` under masks, of some or of all, and open the total.

        Where one is lost meanwhile no process opens it: it is taken again of those who are left.
        """
        assert self.masks is not None
        if self.engine.outlast is None:
            return self.allreduce(hidden(who), announced=announced)
        if not announced and self.engine.watch is not None:
            self.engine.watch("sum", 1)
        while True:
            ring = hidden(self.left(who))
            sent = self.masks.latest
            try:
                self.engine.iallreduce(ring)()
            except FewerError:
                continue
            return self.opened(ring, sent)

    def opened(self, ring: NDArray[np.uint64], sent: Sent) -> NDArray[np.uint64]:
        """Open a sum of vectors by the keys of all, and by shares of the key of one who is lost."""
        masks, outlast = self.masks, self.engine.outlast
        assert masks is not None
        assert outlast is not None
        keys, shares = masks.veil(sent), None
        try:
            self.engine.iallreduce(keys)()
        except FewerError:
            lost = [p for p in sent[1] if int(self.ranks[p]) in outlast.gone]
            keys, shares = masks.veil(sent), masks.shares_of(lost[0], sent)
            try:
                if len(lost) > 1:  # of each the share of the other is needed
                    raise
                for each in (keys, shares):
                    self.engine.iallreduce(each)()
            except FewerError:
                assert outlast.error is not None
                raise outlast.error from None
        return masks.unveiled(ring, sent, keys, shares)

    def any(self, flags: ArrayLike) -> NDArray[np.bool_]:
        """Whether any process has each of some flags (n,).

        With masks nothing else is learned: who has a flag adds a random number for it, and a total
        other than 0 says that one did (all but once in 2^64 times), not who or how many.
        """
        local_flags = np.asarray(flags, dtype=np.bool_)
        masks = self.masks
        if masks is not None:
            return masks.anybody(self.summed(lambda who: masks.any(local_flags, who)))
        if not self.apart:
            return local_flags
        return self.allreduce(local_flags.astype(np.uint8), "max").astype(np.bool_)

    def in_order(self, values: Floats) -> NDArray[np.float64]:
        """Return the sum (1, P) of what agents have, (n, P), as one process with all finds it."""
        parts = self.gather(dict(zip(self.own.tolist(), values, strict=True)), -1)
        total = np.empty((1, values.shape[1]))
        if parts is not None:
            total[...] = np.ones((1, self.n_agents)) @ np.stack([*parts.values()])
        self.engine.bcast_array(total)
        return total

    def add_up(
        self, values: Floats, *, columns: int | None = None, announced: bool = False
    ) -> NDArray[np.float64]:
        """Return the sums (P,) of what all agents have, (n, P), of whatever size it is.

        With masks agents find out first how large numbers are, and keep as many bits as there are:
        of each by itself or, of rows of a flat matrix of ``columns``, of those of a column
        together.
        """
        if self.masks is None:
            return self.add(values, announced=announced)
        sizes = values
        if columns is not None:
            shape = (len(values), values.shape[1] // columns, columns)
            sizes = np.abs(values).reshape(shape).max(axis=1, initial=0.0)
        exponents = self.exponents(sizes)
        times = values.shape[1] // max(1, sizes.shape[1])
        return self.add(values, exponents=np.tile(exponents, times), announced=announced)

    def largest(
        self, values: NDArray[np.integer], least: int, most: int, ask: Ask | None = None
    ) -> NDArray[np.integer]:
        """Return the largest of whole numbers (n, P) of all agents, from ``least`` to ``most``.

        With masks it is found digit by digit, by whether any is beyond: all learn it, not whose it
        is, and nothing of smaller ones. They ``ask`` that, by default by `any`.
        """
        low, span = np.full(values.shape[1], least), most - least + 1
        if self.masks is None:
            return self.allreduce(np.vstack([low, values]).max(axis=0), "max")
        while span > 1:
            span = -(-span // DIGIT)
            edges = low + span * np.arange(1, DIGIT)[:, None]
            beyond = (ask or self.any)(
                np.array([(values >= edge).any(axis=0) for edge in edges]).ravel()
            )
            low = low + span * beyond.reshape(edges.shape).sum(axis=0)
        return low

    def exponents(self, values: Floats, ask: Ask | None = None) -> NDArray[np.integer]:
        """Binary exponents by which `add` keeps all bits that masked sums of values (n, P) can.

        Of each value all learn the largest power of two of all agents; ``ask`` as in `largest`.
        """
        assert self.masks is not None
        powers = np.where(values == 0, LEAST_POWER, np.frexp(values)[1])
        powers = powers.clip(LEAST_POWER, MOST_POWER)
        most = self.largest(powers, LEAST_POWER, MOST_POWER, ask)
        return most - self.masks.fixed.powers

    def join(self, values: AnyArray) -> AnyArray:
        """Return what every agent has, (N, ...), from what agents here have, which come first."""
        local = values[: len(self.own)]
        if not self.apart:
            return local
        if self.n_agents == 1:
            return np.asarray(self.bcast(local))
        if local.dtype == np.bool_:  # which MPI has no sum of
            return self.join(local.astype(np.uint8)).astype(np.bool_)
        return self.allreduce(self.padded(local), announced=True)

    def padded(self, values: AnyArray) -> AnyArray:
        """Put what this process's agents have (n_i, ...) among zeros for all others, (N, ...)."""
        if len(self.own) == self.n_agents:
            return values
        padded = np.zeros((self.n_agents, *values.shape[1:]), dtype=values.dtype)
        padded[self.own] = values[: len(self.own)]
        return padded

    def pool(self, items: list[T]) -> list[T]:
        """Return the items of all processes, by process: whose they are, so not with masks."""
        if self.masks is not None:
            raise RuntimeError("items of agents were about to be sent without masks")
        if not self.apart:
            return items
        if not self.any([bool(items)])[0]:
            return []
        return [item for part in self.engine.allgather(items) for item in part]


def for_each(place: Placement, agents: Iterable[int], work: Callable[[int], T]) -> dict[int, T]:
    """Do some work for every agent that lives here, and fail everywhere if it fails anywhere.

    ``agents`` are the same in every process, and ``work`` must not talk to others. The VpemError of
    the first agent whose work raised one is raised in all; where processes are others'
    (`Engine.open`), only where it happened, and others hear that it did (`VpemError.elsewhere`).
    """
    engine = place.engine
    done: dict[int, T] = {}
    raised: dict[int, VpemError] = {}
    for agent in agents:
        if place.mine(agent):
            try:
                done[agent] = work(agent)
            except VpemError as error:
                raised[agent] = error
    reports: dict[int, Any] = {}
    for agent, cause in raised.items():
        reports[agent] = cause.elsewhere(engine.names[engine.rank])
        if engine.open:
            parts = [one if isinstance(one, str) else (one.name, one.value) for one in cause.parts]
            reports[agent] = [type(cause).__name__, parts]
    everywhere = place.allgather(reports)
    if raised and not engine.open:
        raise raised[min(raised)]
    if everywhere:
        said = everywhere[min(everywhere)]
        if isinstance(said, str):
            raise InputError(printable(said))
        kind, sentence = said
        raise getattr(errors, kind, InputError)(
            *(part if isinstance(part, str) else Setting(*part) for part in sentence)
        )
    return done
