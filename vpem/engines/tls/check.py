"""Both ends of `vpem party check`: what stands between this member and another.

A check is a conversation at ``/check``: texts of JSON, and binary messages that only weigh
something. The first text says who answers; then the member that dialled asks ``take``, ``give`` or
``dial``, and the other sends, counts or dials back.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from websockets.exceptions import ConnectionClosed

from vpem import __version__
from vpem.engines.tls.dial import dial, proxy_to
from vpem.engines.tls.faults import Fault, Met, clock, closed, explain, others_clock
from vpem.engines.tls.link import through
from vpem.engines.tls.trust import (
    Identity,
    Member,
    Roster,
    client_context,
    validity,
    written_address,
)
from vpem.engines.tls.wire import Answered, Called
from vpem.errors import printable

CHECK = "/check"

WEIGHT = 1 << 14
"""Bytes of a message that only weighs something: what a relay passes on at once."""

MOST = 1 << 26
"""Bytes that are sent or counted in a check, at most."""

ASKED = re.compile("give|dial|take [0-9]{1,18}")

LONGEST = 600.0
"""Seconds that a check may take, idle time with it."""

SOON = timedelta(days=30)
PINGS = 9
SIZE = 1 << 22
"""Bytes that are sent each way, at most."""
SECONDS = 2.0
"""For how long, about."""
PATIENCE = 20.0
"""Seconds to wait for any answer."""

STEPS = ("name", "proxy", "port", "tls", "certificate", "clock", "answer")
"""What has to be right before anything can be measured, in this order."""


class Answers:
    """Answers checks, for a study as it is known here."""

    def __init__(self, roster: Roster, identity: Identity) -> None:
        self.roster = roster
        self.identity = identity

    async def serve(self, connection: Answered, member: Member) -> None:
        """Answer a member until it ends."""
        connection.ping_interval, connection.ping_timeout = 10.0, 20.0
        connection.start_keepalive()
        connection.transport.set_write_buffer_limits(4 * WEIGHT)
        until = time.monotonic() + LONGEST
        with suppress(ConnectionClosed):
            roster, name = self.roster, self.identity.name
            hello: dict[str, Any] = {"name": name, "version": __version__, "study": roster.study}
            hello |= {"edition": roster.edition, "text": roster.text}
            await connection.send(json.dumps(hello))
            left = MOST
            while time.monotonic() < until and left > 0:
                message = await connection.recv()
                request = message if isinstance(message, str) and ASKED.fullmatch(message) else ""
                if request == "give":
                    left -= await _count(connection)
                elif request.startswith("take "):
                    size = min(left, int(request.partition(" ")[2]))
                    for _ in range(size // WEIGHT):
                        await connection.send(bytes(WEIGHT))
                        await asyncio.sleep(0)  # others have their turn where the network is fast
                    await connection.send("end")
                    left -= size
                elif request == "dial":
                    left -= WEIGHT
                    await connection.send(json.dumps(await self._dial(member)))
                else:
                    break
            await connection.leave(1008, "a check asks to give, take or dial, and not too much")

    async def _dial(self, member: Member) -> dict[str, Any]:
        """Dial a member where the study says that it can be, and no other address."""
        if member.address is None:
            return {"fault": "it has no address in the study", "kind": "name"}
        context = client_context(self.identity, [member])
        try:
            opened = await dial(
                self.identity.name, member, context, path=CHECK, members=self.roster.members
            )
        except Fault as fault:
            return {"fault": str(fault), "kind": fault.kind}
        opened.cut()
        return {"fault": None, "kind": None}


async def _count(connection: Answered) -> int:
    """Take messages until a text, and say what they weighed."""
    weight = 0
    while weight <= MOST:
        message = await connection.recv()
        if isinstance(message, str):
            await connection.send(json.dumps({"got": weight}))
            return max(weight, 1)
        weight += len(message)
    return weight


@dataclass(frozen=True)
class Finding:
    """One line of a check."""

    peer: str  # with whom
    what: str  # was looked at
    state: str  # "ok", "note" or "fails"
    observation: str  # what was seen, in a few words
    sentence: str = ""  # what is wrong, and what to try
    value: float | None = None  # seconds, or bytes a second


@dataclass
class Examined:
    """What a member checks."""

    roster: Roster
    identity: Identity
    idle: float = 5.0  # seconds for which a link is left alone
    measuring: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def own(self) -> Member:
        """Who checks."""
        rank = self.roster.rank_of(self.identity.name)
        assert rank is not None
        return self.roster.members[rank]


async def examine(
    examined: Examined, member: Member, relay: Member | None = None
) -> AsyncIterator[Finding]:
    """Look at all between two members, directly or by a relay, until something fails."""
    peer = member.name if relay is None else f"{member.name} through {relay.name}"
    host, port = member.address or (member.name, 443)
    met = Met(examined.identity.name, member, host, port, proxy_to(host, port))
    try:
        if relay is None:
            async for finding in _way(met):
                yield finding
        opened = await _open(examined, member, relay)
    except Fault as fault:
        if fault.kind == "absent":
            yield Finding(peer, "answer", "note", "not there at present")
            return
        kind = {"cut": "tls"}.get(fault.kind, fault.kind)
        good = {"port": "open", "tls": "1.3", "certificate": "as in the study"}
        for step in STEPS[: STEPS.index(kind)] if kind in STEPS else ():
            if relay is None and step in good and kind != "proxy":
                yield Finding(peer, step, "ok", good[step])
        yield Finding(peer, kind, "fails", "", str(fault))
        return
    try:
        seen = _seen(opened, member, peer)
        try:
            hello = await _hello(opened, member)
        except Fault as fault:
            for finding in seen:
                if finding.what != fault.kind:
                    yield finding
            yield Finding(peer, fault.kind, "fails", "", str(fault))
            return
        for finding in seen:
            yield finding
        yield _compare(examined, hello, member, peer)
        async for finding in _measured(examined, opened, member, peer):
            yield finding
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        sentence = f"{member.name} answers what no member does; are both of the same version?"
        yield Finding(peer, "answer", "fails", "something else", sentence)
    except (ConnectionClosed, TimeoutError):
        sentence = (
            f"{member.name} stopped answering in the midst of the check: something on the way "
            "drops what is sent; try again, then ask who keeps the network"
        )
        if opened.close_code:
            sentence = str(closed(member, opened))
        yield Finding(peer, "answer", "fails", "cut", sentence)
    finally:
        opened.cut()


async def _way(met: Met) -> AsyncIterator[Finding]:
    name = met.member.name
    if met.proxy is not None:
        yield Finding(name, "proxy", "ok", met.proxy)
        return
    try:
        async with asyncio.timeout(PATIENCE):
            addresses = await asyncio.get_running_loop().getaddrinfo(met.host, met.port, type=1)
    except (OSError, TimeoutError) as error:
        raise explain(error, met) from None
    places = list(dict.fromkeys(str(one[4][0]) for one in addresses))
    shown = met.host if met.host in places else f"{met.host} is {', '.join(places[:3])}"
    yield Finding(name, "name", "ok", shown)
    yield Finding(name, "proxy", "ok", "none")


async def _open(examined: Examined, member: Member, relay: Member | None) -> Called:
    stream = None
    if relay is not None:
        stream = await through(relay, member, examined.identity, examined.roster, wait=False)
    context = client_context(examined.identity, [member])
    pings = {"ping_interval": 10.0, "ping_timeout": 20.0}
    name, members = examined.identity.name, examined.roster.members
    return await dial(name, member, context, stream, path=CHECK, members=members, **pings)


def _seen(opened: Called, member: Member, peer: str) -> list[Finding]:
    tls = opened.transport.get_extra_info("ssl_object")
    until = validity(member.certificate)[1]
    soon = ""
    if until - datetime.now(UTC) < SOON:
        soon = (
            f"the certificate of {member.name} is valid until {until:%Y-%m-%d} only: it should "
            "renew it soon (vpem party renew)"
        )
    seen = [
        Finding(peer, "port", "ok", "open"),
        Finding(peer, "tls", "ok", f"{str(tls.version()).removeprefix('TLSv')}, {tls.cipher()[0]}"),
        Finding(peer, "certificate", "note" if soon else "ok", f"until {until:%Y-%m-%d}", soon),
    ]
    theirs = others_clock(opened.response.headers if opened.response else {})
    if theirs is not None:
        off = (theirs - datetime.now(UTC)).total_seconds()
        wrong = clock(member.name, theirs)
        observation = (
            "the same" if abs(off) < 2 else f"{abs(off):.0f} s {'behind' if off > 0 else 'ahead'}"
        )
        seen.append(Finding(peer, "clock", "fails" if wrong else "ok", observation, wrong, off))
    return seen


async def _hello(opened: Called, member: Member) -> Any:
    try:
        async with asyncio.timeout(PATIENCE):
            return json.loads(await opened.recv())
    except ConnectionClosed:
        raise closed(member, opened) from None


async def _measured(
    examined: Examined, opened: Called, member: Member, peer: str
) -> AsyncIterator[Finding]:
    """Measure the link, and let the other end dial this one."""
    async with examined.measuring:
        trip = statistics.median([await _ping(opened) for _ in range(PINGS)])
        rates = []
        for measure in (_up, _down):
            async with asyncio.timeout(PATIENCE + SECONDS):
                rates.append(await measure(opened, trip))
    yield Finding(peer, "round trip", "ok", f"{trip * 1e3:.3g} ms (median of {PINGS})", value=trip)
    for what, rate in zip(("up", "down"), rates, strict=True):
        yield Finding(peer, what, "ok", f"{rate / 1e6:.3g} MB/s", value=rate)
    names = [one.name for one in examined.roster.members]
    own, seconds = examined.own, examined.idle
    if own.address is not None and member.name in names:
        await opened.send("dial")
        async with asyncio.timeout(2 * PATIENCE):
            fault = json.loads(await opened.recv())["fault"]
        if fault is None:
            dialled = f"dials {own.name} at {written_address(own.address)}"
            yield Finding(peer, "back", "ok", dialled)
        else:
            why = f"{member.name} cannot dial {own.name}: {printable(fault)[:600]}"
            yield Finding(peer, "back", "fails", "", why)
    # The link is left alone but for pings, as a fit does while others compute.
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await opened.wait_closed()
    try:
        await _ping(opened)
    except (ConnectionClosed, TimeoutError):
        sentence = (
            f"the link to {member.name} did not last {seconds:g} s without data, though both ends "
            "ping every 10 s: something on the way limits how long connections live; a fit opens "
            "them again, but ask who keeps the network for more"
        )
        yield Finding(peer, "idle", "fails", "cut", sentence)
    else:
        yield Finding(peer, "idle", "ok", f"{seconds:g} s", value=seconds)


def _compare(examined: Examined, hello: Any, member: Member, peer: str) -> Finding:
    """Hold what the other end runs against what this one does."""
    version, study = printable(hello["version"])[:40], printable(hello["study"])[:40]
    edition = int(hello["edition"])
    roster, own_name = examined.roster, examined.identity.name
    observation = f"vpem {version}, edition {edition}"
    sentence = ""
    if study != roster.study:
        sentence = (
            f"{member.name} serves another study ({study[:8]}, not {roster.study[:8]}): both need "
            f"the same file {roster.name}.toml"
        )
    elif edition != roster.edition:
        older = own_name if edition > roster.edition else member.name
        sentence = (
            f"{member.name} has edition {edition} of {roster.name} and {own_name} has edition "
            f"{roster.edition}: {older} needs the newest"
        )
    elif (text := str(hello["text"])) != roster.text:
        sentence = roster.texts_differ(own_name, member.name, printable(text))
    elif version != __version__:
        sentence = (
            f"{member.name} has vpem {version} and {own_name} has {__version__}: all members need "
            "the same version"
        )
    return Finding(peer, "answer", "fails" if sentence else "ok", observation, sentence)


async def _ping(opened: Called) -> float:
    async with asyncio.timeout(PATIENCE):
        return float(await (await opened.ping()))


async def _up(opened: Called, trip: float) -> float:
    """Return bytes a second to the other end."""
    began, sent = time.perf_counter(), 0
    await opened.send("give")
    while sent < SIZE and time.perf_counter() - began < SECONDS:
        await opened.send(bytes(WEIGHT))
        await asyncio.sleep(0)
        sent += WEIGHT
    await opened.send("end")
    got = json.loads(await opened.recv())["got"]
    return float(got) / max(time.perf_counter() - began - trip, 1e-6)


async def _down(opened: Called, trip: float) -> float:
    """Return bytes a second from the other end: some, then as many as fill the time."""
    rate, size = 0.0, 8 * WEIGHT
    while True:
        began, got = time.perf_counter(), 0
        await opened.send(f"take {size}")
        while not isinstance(piece := await opened.recv(), str):
            got += len(piece)
        taken = max(time.perf_counter() - began - trip, 1e-6)
        rate = got / taken
        if size >= SIZE or taken > SECONDS / 8:
            return rate
        size = min(SIZE, max(2 * size, int(rate * SECONDS / 2) // WEIGHT * WEIGHT))
