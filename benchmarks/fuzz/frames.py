"""What a member with a certificate of the study can send that no program of members does."""

from __future__ import annotations

import contextlib
import json
import secrets
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vpem.engines.tls.dial import PATH
from vpem.engines.tls.trust import VERSION, Identity, Roster
from vpem.engines.tls.wire import Ack, Data, Got, Hello, Refusal
from vpem.network.messages import encode

from .lines import frame, greeting, heard, opening, sealed
from .mutations import ODD_VALUES, change_json, pick
from .state_mutations import changed
from .strangers import damaged

BRIEF = 0.5
"""Seconds for anything that is waited for."""

ODD_NUMBERS = (0, 1, 2, 3, 255, 2**18, 2**28, 2**31, 2**32 - 1, 2**48, 2**63 - 1, 2**63, 2**64 - 1)
ODD_TAGS = (0, 1, 2, 3, 4, -1, -2, -3, 2**40, 2**63 - 1, -(2**63))
PATHS = (
    "/", "/vpem/", "/check", "/relay/", "/relay/wait", "/relay/call/lab", "/relay/find/clinic",
    "/relay/call/hub", "/relay/answer/0", "/relay/answer/" + "0" * 32, "/relay/call/../lab",
    "/relay/find/%1b[31m", "/relay/call/" + "x" * 3000, "/relay/nothing", "/vpem?x=1", "*", "//x",
)  # fmt: skip
HEADS = (
    b"GET", b"POST", b"/vpem", b"HTTP/1.1", b"websocket", b"Upgrade", b"13", b"dGhlIHNhbX", b"\r\n",
    b"Connection: Upgrade", b"Host: 127.0.0.1",
)  # fmt: skip
ODD_HEADS = (
    b"", b"\0", b"\x1b[31m", b"x" * 9000, b"\r\n" * 200, b"HTTP/9.9", b"websocket, h2c", b"8",
    b"Content-Length: 99999999999", b"Transfer-Encoding: chunked", b"\xff\xfe", b"a: b\r\n" * 300,
    b"Sec-WebSocket-Extensions: permessage-deflate\r\n", b"Origin: x", b" ", b"\n", b"GET / HTTP",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    ["fit", {"--seed": ["1", "default"]}, []], {"names": ["iron"], "rows": 40, "ids": "text"},
    np.arange(6.0).reshape(2, 3), np.zeros((0, 3)), [1, 2.5, None, "x", b"y"], (True, np.int64(3)),
    {"a": {"b": [np.array(["u", "vw"])]}}, np.ones(50_000),
)  # fmt: skip


def odd_message(rng: np.random.Generator) -> bytes:
    """Return an encoded value that is another, damaged, or none."""
    value = pick(rng, VALUES)
    how = rng.random()
    if how < 0.4:
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            return encode(changed(value, rng))
    made = encode(value)
    if how < 0.7:
        size = struct.unpack_from("<Q", made, 4)[0]
        header = json.dumps(change_json(json.loads(made[12 : 12 + size]), rng)).encode()
        return made[:4] + struct.pack("<Q", len(header)) + header + made[12 + size :]
    if how < 0.8:
        return made[:4] + struct.pack("<Q", int(pick(rng, ODD_NUMBERS))) + made[12:]
    return damaged(made, rng)


def damaged_head(content: bytes, rng: np.random.Generator) -> bytes:
    """Return the opening of a WebSocket of which something is another."""
    if rng.random() < 0.3:
        return damaged(content, rng)
    return content.replace(pick(rng, HEADS), pick(rng, ODD_HEADS), 1)


@dataclass
class FalseMember:
    """Somebody who has a key of the study, and no good intentions."""

    identity: Identity
    roster: Roster
    rng: np.random.Generator
    session: str = ""

    def talk(self, address: tuple[str, int], path: str = PATH, most: int = 12) -> int:
        """Open a link or something else, and send some messages; return how many."""
        rng, sent = self.rng, 0
        # A connection that comes between two lives belongs to nobody.
        brief = sealed(address, self.identity, seconds=BRIEF)
        with contextlib.suppress(OSError, ssl.SSLError), brief as line:
            if rng.random() < 0.1:
                sent += 1
                there = path if rng.random() < 0.7 else str(pick(rng, PATHS))
                line.sendall(damaged_head(opening(there), rng))
                heard(line, 0.1)
                return sent
            answered = greeting(line, path)
            if b" 101 " not in answered[:20]:
                return 1
            begin = self._hello()
            if path == PATH and rng.random() < 0.9:
                line.sendall(frame(begin))
                sent += 1
            for number in range(int(rng.integers(1, most))):
                line.sendall(self._next(number, path))
                sent += 1
            if rng.random() < 0.5:
                heard(line, 0.05)
        return max(sent, 1)

    def _hello(self) -> bytes:
        """Return the first frame of a link, which may be another."""
        rng = self.rng
        if not self.session or rng.random() < 0.3:
            self.session = secrets.token_hex(16)
        hello = Hello(
            self.roster.study, self.roster.edition, self.roster.text, VERSION,
            self.identity.name, self.session, "", Got(),
        )  # fmt: skip
        how = rng.random()
        if how < 0.7:
            return hello.pack()
        if how < 0.8:
            fields: dict[str, Any] = {
                "study": "0" * 32, "edition": 2, "text": "\x1b[2J", "version": "\x1b[2J",
                "name": "clinic", "yours": "f" * 32, "got": Got(int(pick(rng, ODD_NUMBERS[:9])), 3),
            }  # fmt: skip
            name = str(pick(rng, list(fields)))
            return replace(hello, **{name: fields[name]}).pack()
        if how < 0.95:
            read = json.loads(hello.pack()[1:])
            return b"\x01" + json.dumps(change_json(read, rng)).encode()
        return damaged(hello.pack(), rng)

    def _next(self, number: int, path: str) -> bytes:
        """Return the next frame of WebSocket, or what is none."""
        rng, how = self.rng, self.rng.random()
        if how < 0.6 and path == PATH:
            return frame(self._data(number))
        ways: tuple[Callable[[], bytes], ...] = (
            lambda: frame(damaged(self._data(number), rng)),
            lambda: frame(rng.bytes(int(pick(rng, (0, 1, 26, 100, 20_000, 280_000))))),
            lambda: frame(str(pick(rng, ("give", "take 99999999", "take ", "dial", "end", "x" * 99,
                                         "take 1\x1b"))).encode(), 1),
            lambda: frame(rng.bytes(20), 1),  # no UTF-8
            lambda: frame(Ack(Got(*rng.integers(0, 5, 2).tolist()), 2**40).pack()),
            lambda: frame(Ack(Got(int(pick(rng, ODD_NUMBERS)), 0), 0).pack()),
            lambda: frame(b"", 0) * 50,  # goes on with nothing
            lambda: frame(b"a" * 10, 2, first=0x02) + frame(b"", 0, first=0x00) * 300,
            lambda: frame(b"p" * 125, 9) * 20,
            lambda: frame(b"p" * 125, 10),
            lambda: frame(struct.pack(">H", int(rng.integers(65536))) + b"\xff" * 5, 8),
            lambda: damaged(frame(self._data(number)), rng),
            lambda: b"\x82\xff" + struct.pack(">Q", int(pick(rng, ODD_NUMBERS))) + bytes(8),
            lambda: frame(self._refusal()),
        )  # fmt: skip
        return pick(rng, ways)()

    def _data(self, number: int) -> bytes:
        """Return a piece of a message, of which something may be another."""
        rng = self.rng
        content = odd_message(rng) if rng.random() < 0.8 else encode(pick(rng, VALUES))
        tag = int(pick(rng, ODD_TAGS)) if rng.random() < 0.3 else 2 * number + 2
        piece = Data(Ack(Got(), 0), number, 0, len(content), tag, "estep", memoryview(content))
        if rng.random() < 0.35:
            odd: dict[str, Any] = {
                "number": int(pick(rng, ODD_NUMBERS)),
                "begin": int(pick(rng, ODD_NUMBERS)),
                "size": int(pick(rng, ODD_NUMBERS)),
                "tag": int(rng.integers(1 << 40)),
                "topic": str(pick(rng, ("", "x" * 255, "\x1b[31m", "a b"))),
                "piece": memoryview(content[: len(content) // 2]),
                "ack": Ack(Got(int(pick(rng, ODD_NUMBERS)), int(pick(rng, ODD_NUMBERS))), 5),
            }
            name = str(pick(rng, list(odd)))
            piece = replace(piece, **{name: odd[name]})
        return piece.pack()

    def _refusal(self) -> bytes:
        rng = self.rng
        if rng.random() < 0.5:
            shown = {"sentence": pick(rng, ODD_VALUES), "exit_code": pick(rng, ODD_VALUES)}
            return b"\x04" + json.dumps(shown).encode()
        sentence = str(pick(rng, ("\x1b]0;x\x07", "a" * 5000, "a\nb", "\u202ex", "it is over")))
        return Refusal(sentence, int(rng.integers(256))).pack()
