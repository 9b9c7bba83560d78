"""Connections as no program of members makes them: bytes of any kind, over TCP or over TLS."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from vpem.engines.tls.trust import Identity

PATIENCE = 10.0
"""Seconds for a member to be let in."""

OPENING = (
    "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def dialled(
    address: tuple[str, int], source: str = "127.0.0.1", seconds: float = PATIENCE
) -> socket.socket:
    """Connect, from one of this machine's addresses."""
    made = socket.create_connection(address, seconds, (source, 0))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def reset(line: socket.socket) -> None:
    """End a connection as a machine does that goes down."""
    with contextlib.suppress(OSError):
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.close()


@functools.cache
def context_of(identity: Identity | None, version: int | None = None) -> ssl.SSLContext:
    """Return what dials with somebody's certificate, or none, and believes everybody."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    if version is not None:
        made.minimum_version = made.maximum_version = ssl.TLSVersion(version)
    if identity is not None:
        made.load_cert_chain(identity.certificate, identity.key)
    return made


@contextmanager
def sealed(
    address: tuple[str, int], identity: Identity | None, source: str = "127.0.0.1",
    version: int | None = None, seconds: float = PATIENCE,
) -> Iterator[ssl.SSLSocket]:  # fmt: skip
    """Connect over TLS, with somebody's certificate or with none."""
    line = dialled(address, source, seconds)
    try:
        over = context_of(identity, version).wrap_socket(line)
    except BaseException:
        line.close()
        raise
    try:
        yield over
    finally:
        over.close()


def hello_of_tls(identity: Identity | None = None, version: int | None = None) -> bytes:
    """Return the first bytes of a handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    begun = context_of(identity, version).wrap_bio(incoming, outgoing)
    with contextlib.suppress(ssl.SSLWantReadError):
        begun.do_handshake()
    return outgoing.read()


def opening(path: str) -> bytes:
    """Return how a WebSocket is asked for."""
    return OPENING.format(path=path).encode()


def greeting(line: ssl.SSLSocket, path: str) -> bytes:
    """Ask for a WebSocket, and return what is answered, with what comes at once behind it."""
    line.sendall(opening(path))
    found = b""
    while b"\r\n\r\n" not in found:
        piece = line.recv(4096)
        if not piece:
            return found
        found += piece
    return found


def frame(payload: bytes, opcode: int = 2, first: int | None = None) -> bytes:
    """Return a frame of WebSocket, masked by zeros; ``first`` replaces its first byte."""
    size = len(payload)
    begin = bytes([0x80 | opcode if first is None else first])
    if size < 126:
        head = begin + bytes([0x80 | size])
    elif size < 1 << 16:
        head = begin + bytes([0x80 | 126]) + struct.pack(">H", size)
    else:
        head = begin + bytes([0x80 | 127]) + struct.pack(">Q", size)
    return head + bytes(4) + payload


def heard(line: socket.socket, seconds: float = 1.0, most: int = 1 << 20) -> bytes:
    """Return what somebody says until it ends, or for so long."""
    found = b""
    with contextlib.suppress(OSError):
        line.settimeout(seconds)
        while len(found) < most and (piece := line.recv(1 << 16)):
            found += piece
    return found


def resident(process: int, what: str = "VmRSS") -> int:
    """Return the bytes of memory that a process has, or (VmHWM) has had at most."""
    with open(f"/proc/{process}/status", encoding="ascii") as lines:
        kilobytes = next(line.split()[1] for line in lines if line.startswith(what))
    return 1024 * int(kilobytes)


def forget_peak(process: int) -> None:
    """Let `resident` count the most from now on."""
    with contextlib.suppress(OSError):
        fd = os.open(f"/proc/{process}/clear_refs", os.O_WRONLY)
        os.write(fd, b"5")
        os.close(fd)
