"""What strangers do to a door: they have no certificate of the study, and never get in."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vpem.engines.tls.trust import Identity

from .lines import dialled, heard, hello_of_tls, opening, reset, sealed
from .mutations import pick

HELD = 60
"""Connections that stand open and say nothing, at most."""

SOURCES = tuple(f"127.0.0.{number}" for number in range(2, 8))
"""From where strangers come; members come from elsewhere."""

PLAIN = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"SSH-2.0-OpenSSH_9\r\n", b"EHLO x\r\n", b"\n", b"\0",
    b"CONNECT 10.0.0.1:22 HTTP/1.1\r\n\r\n", b"\x16", b"\x16\x03\x01", b"\x16\x03\x01\xff\xff",
    b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + bytes(16379), b"\x15\x03\x03\x00\x02\x02\x28",
    b"\x14\x03\x03\x00\x01\x01" * 40, b"\x17\x03\x03\x40\x00" + bytes(16384), b"\x80\x2e\x01\x03",
    b"\x16\x03\x01\x00\x00" * 200, b"\x18\x03\x03\x00\x03\x01\x40\x00",
)  # fmt: skip


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """Return bytes of which some are others, gone, or there twice."""
    made = bytearray(content)
    begin, end = sorted(rng.integers(len(made) + 1, size=2).tolist())
    how = int(rng.integers(6))
    if how == 0:
        return bytes(made[:end])
    if how == 1:
        return bytes(made[:end] + made[begin:])
    if how == 2:
        return bytes(made[:begin] + rng.bytes(int(pick(rng, (1, 4, 64, 2000)))) + made[begin:])
    if how == 3:
        width = int(pick(rng, (1, 2, 3, 8)))
        made[begin : begin + width] = pick(rng, (b"\xff", b"\0", b"\x80", b"\x7f")) * width
        return bytes(made)
    for _ in range(int(pick(rng, (1, 2, 8, 64)))):
        made[int(rng.integers(len(made)))] ^= 1 << int(rng.integers(8))
    return bytes(made)


@dataclass
class Stranger:
    """Somebody who knows where a door is, with a certificate of which the study knows nothing."""

    identity: Identity
    rng: np.random.Generator
    held: list[socket.socket] = field(default_factory=list)

    def come(self, address: tuple[str, int]) -> None:
        """Do something to a door, once."""
        source = str(pick(self.rng, SOURCES))
        ways: tuple[Callable[..., None], ...] = (
            self._says, self._says, self._says, self._says, self._says, self._stays, self._slowly,
            self._handshake, self._goes,
        )  # fmt: skip
        with contextlib.suppress(OSError, ssl.SSLError):
            pick(self.rng, ways)(address, source)

    def end(self) -> None:
        """Let go of all connections."""
        while self.held:
            reset(self.held.pop())

    def _words(self) -> bytes:
        rng = self.rng
        if rng.random() < 0.3:
            return bytes(pick(rng, PLAIN))
        if rng.random() < 0.2:
            return rng.bytes(int(pick(rng, (1, 5, 100, 5000, 70_000))))
        version = pick(rng, (None, ssl.TLSVersion.TLSv1_2))
        return damaged(hello_of_tls(None, version), rng)

    def _says(self, address: tuple[str, int], source: str) -> None:
        """Say something, and go one way or another."""
        line = dialled(address, source)
        try:
            line.sendall(self._words())
            if self.rng.random() < 0.1:
                heard(line, 0.05)
        finally:
            self._leave(line)

    def _leave(self, line: Any) -> None:
        what = self.rng.random()
        if what < 0.3:
            self._hold(line)
        elif what < 0.6:
            reset(line)
        else:
            line.close()

    def _hold(self, line: socket.socket) -> None:
        self.held.append(line)
        while len(self.held) > HELD:
            reset(self.held.pop(int(self.rng.integers(HELD))))

    def _stays(self, address: tuple[str, int], source: str) -> None:
        """Say nothing, and stay."""
        self._hold(dialled(address, source))

    def _goes(self, address: tuple[str, int], source: str) -> None:
        reset(dialled(address, source))

    def _slowly(self, address: tuple[str, int], source: str) -> None:
        """Say a byte, and say more when others have been there."""
        self._hold(dialled(address, source))
        for line in self.held:
            with contextlib.suppress(OSError):
                line.send(hello_of_tls()[:1] if self.rng.random() < 0.5 else self.rng.bytes(1))

    def _handshake(self, address: tuple[str, int], source: str) -> None:
        """Shake hands with another certificate, none, or an older TLS, and ask for a link."""
        own = self.identity if self.rng.random() < 0.7 else None
        version = ssl.TLSVersion.TLSv1_2 if self.rng.random() < 0.2 else None
        with sealed(address, own, source, version) as line:
            line.settimeout(0.2)
            line.sendall(opening("/vpem"))
            if line.recv(4096):
                raise AssertionError("a stranger was let in")
