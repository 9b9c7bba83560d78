"""The two directions of a link: what is to be sent again, and what has been received."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from vpem.checks import available_memory
from vpem.engines.tls.wire import PIECE, Ack, Damaged, Data, Got

__all__ = ["Incoming", "Message", "Outgoing"]

UNREAD = 1 << 28
"""Bytes that a member may have sent ahead of what is read."""

OVERHEAD = 1536
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
        self._began = 0
        self._done_bytes = 0
        self.room = UNREAD

    @property
    def waits(self) -> bool:
        """Whether anything has been sent that is not acknowledged."""
        return self._next != self.done

    def add(self, message: Message) -> None:
        """Send a message when all before it have been sent."""
        self.kept.append(message)

    def rewind(self, got: Got) -> None:
        """Go on, over a new connection, from where the member has received."""
        self.acknowledge(got)
        self._next = got
        begun = self.kept[0].cost if got.part else 0
        self._began = self._done_bytes + begun

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
        if place >= len(self.kept):
            return None
        message = self.kept[place]
        size = len(message.data)
        if begin == 0:
            if self._began >= self.room:
                return None
            self._began += message.cost
        piece = memoryview(message.data)[begin : begin + PIECE]
        end = begin + len(piece)
        self._next = Got(number + 1, 0) if end == size else Got(number, end)
        return Data(ack, number, begin, size, message.tag, message.topic, piece)


class Incoming:
    """Messages from a member."""

    def __init__(self, unread: int = UNREAD, largest: int | None = None) -> None:
        self.messages = 0
        self._part = bytearray()
        self._size = 0
        self._largest = available_memory() if largest is None else largest
        self._unread = unread
        self.received = 0
        self.taken = 0
        self.room = unread

    @property
    def got(self) -> Got:
        """How far messages have been received."""
        return Got(self.messages, len(self._part))

    def ack(self) -> Ack:
        """Return what the member is told of that."""
        return Ack(self.got, self.room)

    def make_room(self, waiting: bool) -> bool:
        """Allow the member to send on; whether that is more than it knew by a good deal.

        What is waited for may come behind what is not: then nothing holds it back.
        """
        room = (self.received if waiting else self.taken) + self._unread
        more = room - self.room > self._unread // 4
        if more:
            self.room = room
        return more

    def put(self, data: Data) -> Message | None:
        """Add the next piece (Damaged: it is another); the message, if it was its last."""
        if (data.number, data.begin) != self.got:
            raise Damaged
        if data.begin == 0:
            if data.size > self._largest:
                have = f"{self._largest / 1e9:.4g} GB, half of this machine's memory"
                raise Damaged(f"has {data.size / 1e9:.4g} GB, but no more than {have}, can be read")
            if self.received >= self.room:
                raise Damaged
            if self.received - self.taken > self._largest:
                ahead = (self.received - self.taken) / 1e9
                raise Damaged(f"comes behind {ahead:.4g} GB that nobody has asked for")
            self._size = data.size
            self.received += data.size + OVERHEAD
        elif data.size != self._size:
            raise Damaged
        whole: bytearray | memoryview = data.piece
        if len(data.piece) < data.size:
            self._part += data.piece
            if len(self._part) < data.size:
                return None
            whole, self._part = self._part, bytearray()
        self.messages += 1
        return Message(data.tag, data.topic, whole)
