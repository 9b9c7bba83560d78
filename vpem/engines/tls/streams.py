"""The two directions of a link: what is to be sent again, and what has been received."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from vpem.checks import available_memory
from vpem.engines.tls.wire import PIECE, Ack, Damaged, Data, Got

UNASKED = 1 << 24
"""Bytes that a member may have sent of what nobody has asked for yet."""

OVERHEAD = 2048
"""Bytes that a message counts beside its own: a box and a frame, which an empty one has too."""


@dataclass(frozen=True)
class Message:
    """What a member has for another."""

    tag: int
    topic: str
    data: bytes | bytearray | memoryview

    @property
    def cost(self) -> int:
        """Bytes of memory that it counts for."""
        return len(self.data) + OVERHEAD


class Outgoing:
    """Messages to a member, kept until it has acknowledged them."""

    def __init__(self) -> None:
        self.kept: deque[Message] = deque()
        self.done = Got()
        self._next = Got()
        self._sent = 0
        self._done_bytes = 0
        self.room = UNASKED

    @property
    def waits(self) -> bool:
        """Whether anything has been sent that is not acknowledged."""
        return self._next != self.done

    @property
    def held_back(self) -> bool:
        """Whether the member has no room for more."""
        return self._sent >= self.room

    def add(self, message: Message) -> None:
        """Send a message when all before it have been sent."""
        self.kept.append(message)

    def rewind(self, got: Got) -> None:
        """Go on, over a new connection, from where the member has received."""
        self.acknowledge(got)
        self._next = got
        self._sent = self._done_bytes + (OVERHEAD + got.part if got.part else 0)

    def acknowledge(self, got: Got, room: int = 0) -> bool:
        """Forget what the member has received; whether that is more than before.

        Damaged if it is more than has been sent, or less than was received before.
        """
        if not self.done <= got <= self._next:
            raise Damaged
        more = got > self.done
        for _ in range(got.messages - self.done.messages):
            self._done_bytes += self.kept.popleft().cost
        if got.part and (not self.kept or got.part >= len(self.kept[0].data)):
            raise Damaged
        self.done = got
        self.room = max(self.room, room)
        return more

    def piece(self, ack: Ack) -> Data | None:
        """Return the next piece of what is to be sent, if there is room for it."""
        number, begin = self._next
        place = number - self.done.messages
        if place >= len(self.kept) or self.held_back:
            return None
        message = self.kept[place]
        size = len(message.data)
        piece = memoryview(message.data)[begin : begin + PIECE]
        end = begin + len(piece)
        self._sent += len(piece) + OVERHEAD * (begin == 0)
        self._next = Got(number + 1, 0) if end == size else Got(number, end)
        return Data(ack, number, begin, size, message.tag, message.topic, piece)


class Incoming:
    """Messages from a member: those that are asked for, by their tags, and others up to a bound."""

    def __init__(self, unasked: int = UNASKED, largest: int | None = None) -> None:
        self.messages = 0
        self._part = bytearray()
        self._size = self._tag = 0
        self._largest = available_memory() if largest is None else largest
        self._received = 0
        self._most = self.room = unasked
        self._unasked = 0
        self._is_asked = False
        self._asked: Counter[int] = Counter()  # messages that have not begun to come
        self._early: dict[int, deque[int]] = {}  # sizes of messages that nobody has asked for

    @property
    def got(self) -> Got:
        """How far messages have been received."""
        return Got(self.messages, len(self._part))

    def ack(self) -> Ack:
        """Return what the member is told of that."""
        return Ack(self.got, self.room)

    def ask(self, tags: Iterable[int]) -> None:
        """Note that the program wants a message of each tag, which may be of any size.

        Damaged if they are behind more of others than may come.
        """
        for tag in tags:
            if early := self._early.get(tag):
                self._unasked -= early.popleft()
                if not early:
                    del self._early[tag]
            elif self._part and tag == self._tag and not self._is_asked:
                self._is_asked = True
                self._unasked -= len(self._part) + OVERHEAD
            else:
                self._asked[tag] += 1
        self._check()

    def make_room(self) -> bool:
        """Allow the member to send on; whether it must hear of that, lest it be held back."""
        room = self._received + self._most - self._unasked
        more = room > self.room and self.room - self._received < self._most // 2
        if more:
            self.room = room
        return more

    def put(self, data: Data) -> Message | None:
        """Add the next piece (Damaged: it is another); the message, if it was its last."""
        if (data.number, data.begin) != self.got:
            raise Damaged
        if data.begin and data.size != self._size:
            raise Damaged
        if data.size > self._largest:
            have = f"{self._largest / 1e9:.4g} GB, half of this machine's memory"
            raise Damaged(f"has {data.size / 1e9:.4g} GB, but no more than {have}, can be read")
        self._check(self._received >= self.room)
        cost = len(data.piece)
        if data.begin == 0:
            cost += OVERHEAD
            self._size, self._tag = data.size, data.tag
            self._is_asked = data.tag < 0 or data.tag in self._asked
            if self._asked[data.tag] > 1:
                self._asked[data.tag] -= 1
            else:
                del self._asked[data.tag]  # of what is not there too
        self._received += cost
        self._unasked += 0 if self._is_asked else cost
        self._check()
        whole: bytearray | memoryview = data.piece
        if len(data.piece) < data.size:
            self._part += data.piece
            if len(self._part) < data.size:
                return None
            whole, self._part = self._part, bytearray()
        self.messages += 1
        if not self._is_asked:
            self._early.setdefault(data.tag, deque()).append(data.size + OVERHEAD)
        return Message(data.tag, data.topic, whole)

    def _check(self, full: bool = False) -> None:
        """Raise Damaged where what is asked for is behind as much as may come, or there is more."""
        if full or (self._asked and self._unasked >= self._most):
            raise Damaged(f"comes behind {self._unasked / 1e6:.3g} MB that nobody has asked for")
