"""The engine of the members of a study, who talk over links of their own.

What all do together goes by the first member: others send it theirs, and it sends all the same
answer. What it passes on is signed by whose it is. Neighbours talk to each other directly. Arrays
whose shapes both ends know travel as their bytes alone; other values are messages
(`vpem.network.messages`).

Where masked sums go on without a member that is lost (`Outlast`) the first member says of each
whether the vectors of all are there, and otherwise whose are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from vpem.checks import AnyArray, Floats
from vpem.engines.engine import Engine, Neighbours, StalledError, Wait
from vpem.engines.tls.faults import GoneOn, Unheard
from vpem.engines.tls.trust import MemberSigns, Roster
from vpem.errors import InputError
from vpem.network.faults import FewerError
from vpem.network.messages import decode, encode

if TYPE_CHECKING:
    from vpem.engines.tls.mailbox import Post


HELLO = 0
"""Tag of the introductions, which come before anything else; what follows has numbers from 2."""

SEGMENT = 1 << 18
"""Bytes that are added up at a time: while one segment travels back, others still come in."""

WITHOUT = b"\0"
"""Begins what the first member says in place of an answer: numbers of members who are lost."""

ADDED: dict[str, np.ufunc] = {"sum": np.add, "max": np.maximum}


class TlsEngine(Engine):
    """Members of a study, by rank: ``post`` has links to all, ``signs`` proves words passed on."""

    apart = True
    open = False
    topic = "agreement"

    def __init__(self, post: Post, roster: Roster, signs: MemberSigns | None) -> None:
        self._post, self.signs = post, signs
        self.rank: int = post.rank
        self.size = len(roster.members)
        self.names = [member.name for member in roster.members]
        self.seats = [rank for rank, member in enumerate(roster.members) if member.holds]
        self.copies = 1 if self.rank else self.size - 1
        self._number = 0
        self._pairs: dict[tuple[int, int], int] = {}
        self._waiting: list[int] = []

    def introduce(
        self, said: Sequence[object], seconds: float, tell: Callable[[str], None]
    ) -> list[list[Any]]:
        """Return what each member has said and signed, once all are there.

        ``said`` is a command, its options with values and sources, the outputs that it requests,
        and a number. The first member waits for all, for so many seconds at least, and passes on
        what they say: meanwhile by `tell_waiting` what others are to ``tell``.
        """
        signs, post, usual = self.signs, self._post, self._post.timeout
        assert signs is not None
        own = [*said, signs.nonce()]  # no two runs are introduced alike
        own.append(signs.vouch(encode([*signs.about, *own])))
        post.timeout = None if usual is None else max(usual, seconds)
        every: Any = [own]
        if self.rank:
            post.put(0, HELLO, encode(own), "options")
            while isinstance(every := decode(post.receive(0, HELLO)), str):
                tell(every)
        else:
            for rank in self._others():
                every.append(introduced(decode(post.receive(rank, HELLO)), self.names[rank]))
                self._waiting.append(rank)
            for rank in self._others():
                post.put(rank, HELLO, encode(every), "options")
        post.timeout = usual
        if not isinstance(every, list) or len(every) != self.size:
            raise InputError(f"{self.names[0]} has not sent the introductions of all")
        every = list(map(introduced, every, self.names))
        signs.introduced([(encode([*signs.about, *one[:-1]]), one[-1]) for one in every])
        post.log_key = signs.run
        return list(every)

    def tell_waiting(self, sentence: str) -> None:
        """Let those hear a sentence of the first member who wait for others there."""
        for rank in () if self.rank else self._others():
            if rank in self._waiting or self._post.arrived(rank, HELLO):
                self._post.put(rank, HELLO, encode(f"{self.names[0]}: {sentence}"), "options")

    def send(self, value: object, to: int) -> None:
        self._post.put(to, self._pair(self.rank, to), encode(value), self.topic)

    def recv(self, source: int) -> Any:
        return self._read(source, self._pair(source, self.rank))

    def send_array(self, values: AnyArray, to: int) -> None:
        self._post.put(to, self._pair(self.rank, to), values.tobytes(), self.topic)

    def recv_array(self, values: AnyArray, source: int) -> None:
        values[...] = self._array(source, self._pair(source, self.rank), values)

    def bcast(self, value: object, root: int = 0) -> Any:
        """Return, in every process, the root's value, which goes by the first member."""
        if self.rank != root:
            return self._hear(root, self._decode)
        self._send_all(encode(value))
        return value

    def bcast_array(self, values: AnyArray, root: int = 0) -> None:
        if self.rank != root:
            values[...] = self._hear(
                root, lambda message, source: self._as(values, message, source)
            )
        else:
            self._send_all(values.tobytes())

    def gather(self, value: object, root: int | None = 0) -> list[Any] | None:
        """Return every process's value at the root, None elsewhere; others see nothing of them.

        Without a root all return them, which go by the first member.
        """
        if root is not None:
            tag = self._together()
            if self.rank != root:
                self._post.put(root, tag, encode(value), self.topic)
                return None
            self._ask(self._others(), [tag])
            return [value if r == root else self._read(r, tag) for r in range(self.size)]
        if self.outlast is not None and self.outlast.error is not None:
            raise self.outlast.error  # of who is lost there is none
        tag, message = self._together(), encode(value)
        if self.rank:
            self._post.put(0, tag, self._sealed(tag, message), self.topic)
            parts = self._read(0, tag)
            if not isinstance(parts, list) or len(parts) != self.size:
                raise self._wrong(0, "what all members have")
        else:
            self._ask(self._others(), [tag])
            parts = [message, *(bytes(self._post.receive(r, tag)) for r in self._others())]
            every = encode(parts)
            for to in self._others():
                self._post.put(to, tag, every, self.topic)
        return [
            value if r == self.rank else self._decode(self._opened(r, tag, part), r)
            for r, part in enumerate(parts)
        ]

    def iallreduce(self, values: AnyArray, op: str = "sum", *, masked: bool = True) -> Wait:
        """Begin to add arrays, or take the largest, in the order of members.

        Of masked sums that others outlast the result is FewerError where one of them is lost.
        """
        masked = masked and self.outlast is not None
        flat, add, topic, gone = values.reshape(-1), ADDED[op], self.topic, len(self._gone)
        step = max(1, SEGMENT // values.itemsize)
        parts = [
            (flat[begin : begin + step], self._together()) for begin in range(0, flat.size, step)
        ]

        tags = [tag for _, tag in parts]
        self._ask([0] if self.rank else self._others(), tags)

        def answer() -> None:
            left = list(tags)
            try:
                for part, tag in parts:
                    for source in self._others():
                        add(part, self._array(source, tag, part), out=part)
                    message = part.tobytes()
                    for to in self._others():
                        self._post.put(to, tag, message, topic)
                    left.remove(tag)
            except Unheard as error:
                if not masked:
                    raise
                self._without(error, left[0], topic)

        def read() -> None:
            for part, tag in parts:
                message = self._post.receive(0, tag)
                if masked and len(message) % part.itemsize:
                    self._hear_without(message)
                part[...] = self._as(part, message, 0)

        def wait() -> None:
            if len(self._gone) != gone:  # it began before
                raise FewerError
            (read if self.rank else answer)()

        for part, tag in parts if self.rank else ():
            self._post.put(0, tag, part.tobytes(), topic)
        return wait

    @property
    def _gone(self) -> set[int]:
        return set() if self.outlast is None else self.outlast.gone

    def _without(self, error: Unheard, tag: int, topic: str) -> NoReturn:
        """Send the others without whom sums continue; raises the error if they cannot."""
        outlast = self.outlast
        if outlast is None:
            raise error
        inactive = set(self._post.silent) - {self.names[rank] for rank in outlast.gone}
        names = [error.name, *sorted(inactive - {error.name})]
        if outlast.refusal(names) is not None:
            raise error
        ranks = np.array([self.names.index(name) for name in names], dtype="<i8")
        outlast.gone.update(ranks.tolist())
        outlast.error = error
        for to in self._others():
            self._post.put(to, tag, WITHOUT + ranks.tobytes(), topic)
        raise FewerError

    def _hear_without(self, message: Any) -> None:
        """Hear without whom sums continue; raises FewerError, or why this member does not."""
        outlast = self.outlast
        if outlast is None or len(message) % 8 != 1 or bytes(message[:1]) != WITHOUT:
            return
        ranks = set(np.frombuffer(bytes(message)[1:], dtype="<i8").tolist())
        if not ranks or not ranks <= set(range(1, self.size)) - {self.rank} - outlast.gone:
            raise self._wrong(0, "a sum")
        names = [self.names[rank] for rank in sorted(ranks)]
        reason, gone_on = outlast.refusal(names), GoneOn(self.names[0], tuple(names))
        if reason is not None:
            raise StalledError(f"{gone_on}; here that cannot be: {reason}")
        outlast.gone |= ranks
        outlast.error = gone_on
        raise FewerError

    def neighbours(self, ranks: Sequence[int]) -> Neighbours:
        """Join members over links of their own; of empty runs nothing is sent."""

        def ialltoallv(
            sent: Floats, n_sent: Sequence[int], received: Floats, n_received: Sequence[int]
        ) -> Wait:
            tag = self._together()
            for rank, run in zip(ranks, _runs(sent, n_sent), strict=True):
                if run.size:
                    self._post.put(rank, tag, run.tobytes(), self.topic)
            come = [
                (rank, run)
                for rank, run in zip(ranks, _runs(received, n_received), strict=True)
                if run.size
            ]
            self._ask([rank for rank, _ in come], [tag])

            def wait() -> None:
                for rank, run in come:
                    run[...] = self._array(rank, tag, run)

            return wait

        return ialltoallv

    def announce_end(self, reason: str, patient: bool = True, code: int = 2) -> bool:
        """Send others why this process ends; each says so itself."""
        self._post.announce_end(reason, code)
        return True

    def abort(self, code: int) -> None:
        """End this process, once what it has sent has arrived; others hear by `announce_end`."""
        self._post.close()
        raise SystemExit(code)

    def _together(self) -> int:
        """Number of what all do together next."""
        self._number += 1
        return 2 * self._number

    def _pair(self, source: int, to: int) -> int:
        """Number of what one sends another next."""
        self._pairs[source, to] = self._pairs.get((source, to), 0) + 1
        return 2 * self._pairs[source, to] + 1

    def _others(self) -> Iterator[int]:
        return (rank for rank in range(self.size) if rank not in {self.rank, *self._gone})

    def _ask(self, sources: Iterable[int], tags: Sequence[int]) -> None:
        """Say what will be read of others: until then they are held back."""
        for source in sources:
            self._post.ask(source, tags)

    def _send_all(self, message: bytes) -> None:
        """Send all others what they hear (`_hear`) of this member."""
        tag = self._together()
        message = self._sealed(tag, message)
        for to in [0] if self.rank else self._others():
            self._post.put(to, tag, message, self.topic)

    def _sealed(self, tag: int, message: bytes) -> bytes:
        """Return a message of this member as it goes by the first, whose own go to all directly."""
        return message if not self.rank or self.signs is None else self.signs.seal(tag, message)

    def _opened(self, root: int, tag: int, message: Any) -> Any:
        """Return a member's message, which has come by the first one or is its own."""
        if not root or self.signs is None:
            return message
        if not isinstance(message, bytes | bytearray | memoryview):
            raise self._wrong(root, "a message")
        return self.signs.unseal(root, tag, message)

    def _hear(self, root: int, read: Callable[[Any, int], Any]) -> Any:
        """Return what is read in the root's message; the first member passes on what can be."""
        tag, source = self._together(), 0 if self.rank else root
        message = self._post.receive(source, tag)
        value = read(self._opened(root, tag, message), root)
        for to in [] if self.rank else self._others():
            if to != root:
                self._post.put(to, tag, message, self.topic)
        return value

    def _read(self, source: int, tag: int) -> Any:
        return self._decode(self._post.receive(source, tag), source)

    def _decode(self, message: object, source: int) -> Any:
        if not isinstance(message, bytes | bytearray | memoryview):
            raise self._wrong(source, "a message")
        try:
            return decode(message)
        except InputError:
            raise self._wrong(source, "a message") from None

    def _array(self, source: int, tag: int, like: AnyArray) -> AnyArray:
        """Return what a member has sent in place of an array like this one."""
        return self._as(like, self._post.receive(source, tag), source)

    def _as(self, like: AnyArray, message: Any, source: int) -> AnyArray:
        """Read an array like this one that came from a member."""
        data = memoryview(message).cast("B")
        if len(data) != like.nbytes:
            raise self._wrong(source, f"{like.nbytes} bytes", f", got {len(data)}")
        return np.frombuffer(data, like.dtype).reshape(like.shape)

    def _wrong(self, source: int, expected: str, got: str = "") -> InputError:
        return InputError(
            f"{self.names[source]} has sent something else than {expected}{got}; "
            "do all members run the same command of the same version of vpem?"
        )


def introduced(value: object, name: str) -> Any:
    """Return a member's introduction, which ends with a nonce and a signature, if it is one."""
    if isinstance(value, list) and [*map(type, value)] == [str, dict, list, int, bytes, bytes]:
        _, terms, outputs, *_ = value
        pairs = all(isinstance(term, list) and len(term) == 2 for term in terms.values())
        words = (*terms, *outputs, *(chain(*terms.values()) if pairs else [None]))
        if all(isinstance(word, str) for word in words):
            return value
    raise InputError(f"{name} has sent no introduction; do all run the same version?")


def _runs(values: Floats, counts: Sequence[int]) -> Iterator[Floats]:
    """Cut values, in their order in memory, into runs of so many each."""
    flat, begin = values.reshape(-1), 0
    for count in counts:
        yield flat[begin : begin + count]
        begin += count
