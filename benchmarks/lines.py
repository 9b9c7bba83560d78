"""What may lie between two members, or answer in the place of one, on this machine."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

HERE = "127.0.0.1"
Answer = Callable[[socket.socket], object]

CLOCK = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t which, struct timespec *now) {
    int found = syscall(SYS_clock_gettime, which, now);
    const char *ahead = getenv("CLOCK_AHEAD");
    if (!found && ahead && which == CLOCK_REALTIME) now->tv_sec += atol(ahead);
    return found;
}
time_t time(time_t *kept) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (kept) *kept = now.tv_sec;
    return now.tv_sec;
}
"""
"""A library that is loaded before others, and sets the clock of one process."""


class Listener:
    """Something that answers at a port (0: at any), each connection in a thread of its own."""

    def __init__(self, port: int, answer: Answer) -> None:
        self._answer = answer
        self._door = socket.create_server((HERE, port))
        self.port = int(self._door.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                opened, _ = self._door.accept()
                threading.Thread(target=self._talk, args=(opened,), daemon=True).start()

    def _talk(self, opened: socket.socket) -> None:
        with contextlib.suppress(OSError, ssl.SSLError):
            self._answer(opened)
        opened.close()

    def close(self) -> None:
        """Listen no more."""
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()


class Line(Listener):
    """A port whose connections lead to another one, until they are cut."""

    def __init__(self, port: int, target: int) -> None:
        self.target, self.cuts = target, 0
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        super().__init__(port, self._join)

    def _join(self, near: socket.socket) -> None:
        pair = (near, socket.create_connection((HERE, self.target)))
        self._pairs.add(pair)
        both_ways(*pair)
        self._pairs.discard(pair)

    def cut(self) -> bool:
        """Cut all connections; whether there were any."""
        pairs = list(self._pairs)
        for pair in pairs:
            _end(*pair)
        self.cuts += bool(pairs)
        return bool(pairs)

    def close(self) -> None:
        """Listen no more, and cut all connections."""
        super().close()
        self.cut()


def both_ways(one: socket.socket, other: socket.socket) -> None:
    """Copy what comes from each of two connections to the other, until one has ended."""
    for end in (one, other):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        _end(source, target)

    back = threading.Thread(target=copy, args=(other, one), daemon=True)
    back.start()
    copy(one, other)
    back.join()
    other.close()


def _end(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def proxy(target: int, status: str = "200 OK", credentials: bytes = b"") -> Listener:
    """Return a proxy of HTTP in front of one port, which connects only with the status "200 OK".

    A question without the credentials is answered 407.
    """

    def answer(opened: socket.socket) -> None:
        question = b""
        while b"\r\n\r\n" not in question:
            question += opened.recv(1 << 12)
        told = status if credentials in question else "407 Proxy Authentication Required"
        if told == "200 OK":
            opened.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            both_ways(opened, socket.create_connection((HERE, target)))
        else:
            opened.sendall(f"HTTP/1.1 {told}\r\nContent-Length: 0\r\n\r\n".encode())

    return Listener(0, answer)


def other_clock(folder: Path, seconds: float) -> dict[str, str]:
    """Return variables of a process whose clock is ahead by some seconds; needs a C compiler."""
    library = folder / "clock.so"
    if not library.exists():
        subprocess.run(
            [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)],
            input=CLOCK, text=True, check=True,
        )  # fmt: skip
    return {"LD_PRELOAD": str(library), "CLOCK_AHEAD": f"{seconds:.0f}"}


def ssh(opened: socket.socket) -> None:
    """Answer as SSH does."""
    opened.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
    opened.recv(1 << 10)
    time.sleep(0.2)


def http(opened: socket.socket) -> None:
    """Answer as HTTP does."""
    opened.recv(1 << 10)
    opened.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
