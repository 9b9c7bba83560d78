"""Streams to members through a relay, and those that other members open so."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from socket import socket, socketpair
from typing import Any

from websockets.exceptions import ConnectionClosed

from vpem.engines.tls.dial import dial
from vpem.engines.tls.faults import Fault, Trouble, closed
from vpem.engines.tls.members import Identity, Member, Roster
from vpem.engines.tls.relay import ABSENT, CHUNK, PAIRED, PING, RELAY, WAIT, either
from vpem.engines.tls.sockets import Called
from vpem.engines.tls.trust import client_context

PAUSES = 0.5, 5.0
"""Seconds before a relay that was lost is dialled again: the first time, and at most."""

OPTIONS: dict[str, Any] = {
    "ping_interval": PING,
    "ping_timeout": 2 * PING,
    "max_size": 4 * CHUNK,
    "write_limit": 4 * CHUNK,
}

MOST = 500
"""Streams at a time, whatever a relay calls for."""

_running: set[asyncio.Task[None]] = set()
"""Streams that are being carried: a loop by itself would forget its tasks."""


def _run(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    _running.add(task)
    task.add_done_callback(_running.discard)


async def through(
    relay: Member, member: Member, identity: Identity, roster: Roster, *, wait: bool = True
) -> socket:
    """Return a stream to a member that is registered (`calls`) at a relay or the server of a star.

    It is one end of a pair of sockets: what is written comes out at the member's. If ``wait``, the
    member may come within 20 seconds.
    """
    opened = await _open(relay, identity, roster, f"{'call' if wait else 'find'}/{member.name}")
    return await _stream(opened, relay, member.name)


async def calls(
    relay: Member,
    identity: Identity,
    roster: Roster,
    deliver: Callable[[socket], None],
    tell: Callable[[Fault], None] | None = None,
) -> None:
    """Stay registered at the relay, for ever, and deliver a stream for each member that calls.

    A stream is one end of a pair of sockets. ``tell`` is given why the relay could not be reached;
    it is dialled again all the same.
    """
    pause = PAUSES[0]
    while True:
        try:
            opened = await _open(relay, identity, roster, "wait")
            pause = PAUSES[0]
            try:
                async for number in opened:
                    if len(_running) < MOST:
                        _run(_answer(relay, identity, roster, str(number)[:64], deliver))
                raise closed(relay, opened)
            except ConnectionClosed:
                raise closed(relay, opened) from None
            finally:
                opened.cut()
        except Fault as fault:
            if tell is not None:
                tell(fault)
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(PAUSES[1], 2 * pause)


async def _open(relay: Member, identity: Identity, roster: Roster, what: str) -> Called:
    """Open a connection to the relay."""
    context: ssl.SSLContext = client_context(identity, [relay])
    return await dial(identity.name, relay, context, path=RELAY + what, members=roster.members,
                      **OPTIONS)  # fmt: skip


async def _answer(
    relay: Member,
    identity: Identity,
    roster: Roster,
    number: str,
    deliver: Callable[[socket], None],
) -> None:
    # Who called and has gone meanwhile calls again.
    with suppress(Fault):
        opened = await _open(relay, identity, roster, f"answer/{number}")
        deliver(await _stream(opened, relay, "the caller"))


async def _stream(opened: Called, relay: Member, name: str) -> socket:
    """Return a socket that is carried over a connection once this is paired."""
    try:
        async with asyncio.timeout(WAIT + PING):
            paired = await opened.recv() == PAIRED
    except (ConnectionClosed, TimeoutError):
        paired = False
    except asyncio.CancelledError:
        opened.cut()
        raise
    if not paired:
        absent = opened.close_reason == ABSENT
        opened.cut()
        raise (
            Trouble(f"{name} is not connected to {relay.name}, which passes on what is sent to it: "
                    f"start {name}", "absent")
            if absent
            else closed(relay, opened)
        )  # fmt: skip
    ours, theirs = socketpair()
    _run(_carry(opened, theirs))
    return ours


async def _carry(opened: Called, end: socket) -> None:
    """Copy between a socket and a WebSocket until one of them has ended."""
    reader, writer = await asyncio.open_connection(sock=end, limit=2 * CHUNK)

    async def out() -> None:
        with suppress(ConnectionClosed, OSError):
            while piece := await reader.read(CHUNK):
                await opened.send(piece)

    async def back() -> None:
        with suppress(ConnectionClosed, OSError):
            async for piece in opened:
                if isinstance(piece, str):
                    return
                writer.write(piece)
                await writer.drain()

    try:
        await either(out(), back())
    finally:
        writer.close()
        await opened.leave()
