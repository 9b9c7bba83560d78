"""What goes over a link: frames of bounded size, each checked before it is believed."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

PIECE = 1 << 18
"""Bytes of a message in one frame: few enough that what is urgent passes between."""

FRAME = PIECE + (1 << 12)
"""Bytes of the largest frame."""

KIND_HELLO, KIND_DATA, KIND_ACK, KIND_REFUSAL = range(1, 5)

ACK = struct.Struct(">BQQQ")
"""Kind; messages that have been received whole, bytes of the next; bytes that there is room for."""

DATA = struct.Struct(">QQQqB")
"""Number of the message; where in it the piece begins; its size; its tag; length of the topic."""

TEXT = 1 << 11
"""Characters of a sentence, at most."""

TOPIC = 64
"""Characters of a topic, at most."""


FAREWELL, FINISHED, UNHEARD = -1, -2, -3
"""Tags of the messages that a member ends because of an error, that it is done, and that it has not
heard of another for too long."""

MOST = 200
"""Members that can be left out."""


class Damaged(Exception):
    """A frame that no member of the same version sends."""


class Got(NamedTuple):
    """How far a sender's messages have been received: whole ones, and bytes of the next."""

    messages: int = 0
    part: int = 0


@dataclass(frozen=True)
class Hello:
    """The first frame in each direction."""

    study: str
    edition: int
    text: str  # SHA-256 of what was signed
    version: str
    name: str
    session: str  # number of this process
    yours: str  # of the other's, if it has talked with it before
    got: Got  # received of that process
    without: tuple[str, ...] = ()  # who is left out of what runs

    def pack(self) -> bytes:
        """Write it down."""
        return _pack_json(KIND_HELLO, vars(self))


@dataclass(frozen=True)
class Refusal:
    """The last frame to somebody with whom no link is wanted, and why.

    ``taken``: another process of the same member is there already, so that nobody else is to hear
    anything of this one. ``left_out``: the others have gone on without the member that hears this.
    """

    sentence: str
    exit_code: int = 0  # the sender's; 0: only no link
    taken: bool = False
    left_out: bool = False

    def pack(self) -> bytes:
        """Write it down."""
        shown = {"sentence": self.sentence[:TEXT], "exit_code": self.exit_code}
        shown |= {"taken": self.taken, "left_out": self.left_out}
        return _pack_json(KIND_REFUSAL, shown)


@dataclass(frozen=True)
class Missed:
    """What a member says to the first one: whom it has not heard of for too long, and how."""

    name: str
    sentence: str

    def pack(self) -> bytes:
        """Write it down."""
        return json.dumps([self.name, self.sentence[:TEXT]]).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Missed:
        """Read it."""
        try:
            name, sentence = json.loads(data)
            return cls(_text(name, 256), _text(sentence, TEXT))
        except (ValueError, TypeError, RecursionError):
            raise Damaged from None


@dataclass(frozen=True)
class Ack:
    """How far messages have been received, and up to which byte of all there is room."""

    got: Got
    room: int

    def pack(self) -> bytes:
        """Write it down."""
        return ACK.pack(KIND_ACK, *self.got, self.room)


@dataclass(frozen=True)
class Data:
    """A piece of a message, and an acknowledgement."""

    ack: Ack
    number: int
    begin: int
    size: int
    tag: int
    topic: str
    piece: memoryview

    def pack(self) -> bytes:
        """Write it down."""
        topic = self.topic.encode()
        head = ACK.pack(KIND_DATA, *self.ack.got, self.ack.room)
        about = DATA.pack(self.number, self.begin, self.size, self.tag, len(topic))
        return b"".join([head, about, topic, self.piece])


def parse(frame: bytes | str) -> Hello | Refusal | Ack | Data:
    """Read a frame."""
    if isinstance(frame, str) or not frame:
        raise Damaged
    try:
        kind = frame[0]
        if kind == KIND_DATA:
            return _parse_data(frame)
        if kind == KIND_ACK and len(frame) == ACK.size:
            return _parse_ack(frame)
        if kind == KIND_HELLO:
            return _parse_hello(json.loads(frame[1:]))
        if kind == KIND_REFUSAL:
            found = json.loads(frame[1:])
            code = _number(found["exit_code"], 255)
            sentence = _text(found["sentence"], TEXT)
            return Refusal(sentence, code, found["taken"] is True, found["left_out"] is True)
    except (ValueError, KeyError, TypeError, IndexError, struct.error, RecursionError):
        raise Damaged from None
    raise Damaged


def _pack_json(kind: int, value: object) -> bytes:
    return bytes([kind]) + json.dumps(value).encode()


def _parse_ack(frame: bytes) -> Ack:
    _, messages, part, room = ACK.unpack_from(frame)
    return Ack(Got(messages, part), room)


def _parse_data(frame: bytes) -> Data:
    number, begin, size, tag, length = DATA.unpack_from(frame, ACK.size)
    place = ACK.size + DATA.size + length
    topic = frame[place - length : place].decode("ascii")
    piece = memoryview(frame)[place:]
    if place > len(frame) or begin + len(piece) > size or not topic.isprintable():
        raise Damaged
    if (not len(piece) and size) or length > TOPIC or (tag < 0 and size > FRAME):
        raise Damaged
    return Data(_parse_ack(frame), number, begin, size, tag, topic, piece)


def _parse_hello(found: Any) -> Hello:
    messages, part = found["got"]
    without = found["without"]
    if not isinstance(without, list) or len(without) > MOST:
        raise ValueError
    return Hello(
        _text(found["study"], 64),
        _number(found["edition"]),
        _text(found["text"], 64),
        _text(found["version"], 64),
        _text(found["name"], 256),
        _text(found["session"], 64),
        _text(found["yours"], 64),
        Got(_number(messages), _number(part)),
        tuple(_text(name, 256) for name in without),
    )


def _text(value: Any, most: int) -> str:
    if not isinstance(value, str) or len(value) > most or not value.isprintable():
        raise ValueError
    return value


def _number(value: Any, most: int = 1 << 63) -> int:
    if type(value) is not int or not 0 <= value < most:
        raise ValueError
    return value
