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
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from websockets.exceptions import ConnectionClosed

from vpem.engines.tls.dial import dial, proxy_to
from vpem.engines.tls.faults import Fault, Met, clock, closed, explain, others_clock
from vpem.engines.tls.link import through
from vpem.engines.tls.trust import VERSION, Identity, Member, Roster, client_context, validity
from vpem.engines.tls.wire import Answered, Called, certificate_of
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


async def answer_checks(
    roster: Roster, identity: Identity, connection: Answered, member: Member
) -> None:
    """Answer a member until it ends, for a study as it is known here."""
    connection.ping_interval, connection.ping_timeout = 10.0, 20.0
    connection.start_keepalive()
    connection.transport.set_write_buffer_limits(4 * WEIGHT)
    until, left = time.monotonic() + LONGEST, MOST
    hello: dict[str, str | int] = {
        "name": identity.name,
        "version": VERSION,
        "study": roster.study,
    }
    hello |= {"edition": roster.edition, "text": roster.text}
    with suppress(ConnectionClosed):
        await connection.send(json.dumps(hello))
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
                # Where the study says that it can be, and at no other address.
                left -= WEIGHT
                met: dict[str, str | None] = {"fault": None, "kind": None}
                context, name = client_context(identity, [member]), identity.name
                try:
                    if member.address is None:
                        raise Fault("it has no address in the study", "name")
                    (await dial(name, member, context, path=CHECK, members=roster.members)).cut()
                except Fault as fault:
                    met = {"fault": str(fault), "kind": fault.kind}
                await connection.send(json.dumps(met))
            else:
                break
        await connection.leave(1008, "a check asks to give, take or dial, and not too much")


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
    peer: str  # with whom
    what: str  # was looked at
    state: str  # "ok", "note" or "fails"
    observation: str  # what was seen, in a few words
    sentence: str = ""  # what is wrong, and what to try
    value: float | None = None  # seconds, or bytes a second


class Examination:
    """A look at all between two members, directly or by a relay, until something fails.

    A link is left alone for ``idle`` seconds; links are measured one after the other, by the lock.
    """

    def __init__(
        self,
        roster: Roster,
        identity: Identity,
        member: Member,
        relay: Member | None = None,
        *,
        idle: float = 5.0,
        measuring: asyncio.Lock | None = None,
    ) -> None:
        self.roster, self.identity, self.member, self.relay = roster, identity, member, relay
        self.idle, self._measuring = idle, measuring or asyncio.Lock()
        self.peer = member.name if relay is None else f"{member.name} through {relay.name}"
        self.findings: list[Finding] = []

    def add(
        self, what: str, found: str, sentence: str = "", state: str = "", value: float | None = None
    ) -> None:
        """Add a finding; where there is a sentence, something fails, if no state says else."""
        state = state or ("fails" if sentence else "ok")
        self.findings.append(Finding(self.peer, what, state, found, sentence, value))

    async def run(self) -> list[Finding]:
        try:
            if self.relay is None:
                await self._look_at_way()
            opened = await self._open()
        except Fault as fault:
            kind = {"cut": "tls"}.get(fault.kind, fault.kind)
            if kind == "absent":
                self.add("answer", "not there at present", state="note")
                return self.findings
            good = {"port": "open", "tls": "1.3", "certificate": "as in the study"}
            known = kind in STEPS and kind != "proxy" and self.relay is None
            for step in STEPS[: STEPS.index(kind)] if known else ():
                if step in good:
                    self.add(step, good[step])
            self.add(kind, "", str(fault))
            return self.findings
        name = self.member.name
        try:
            self._look_at_link(opened)
            try:
                async with asyncio.timeout(PATIENCE):
                    hello = json.loads(await opened.recv())
            except ConnectionClosed:
                raise closed(self.member, opened) from None
            self._compare(hello)
            await self._measure(opened)
        except Fault as fault:
            self.findings = [one for one in self.findings if one.what != fault.kind]
            self.add(fault.kind, "", str(fault))
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
            sentence = f"{name} answers what no member does; are both of the same version?"
            self.add("answer", "something else", sentence)
        except (ConnectionClosed, TimeoutError):
            sentence = (
                f"{name} stopped answering in the midst of the check: something on the way drops "
                "what is sent; try again, then ask who keeps the network"
            )
            sentence = str(closed(self.member, opened)) if opened.close_code else sentence
            self.add("answer", "cut", sentence)
        finally:
            opened.cut()
        return self.findings

    async def _look_at_way(self) -> None:
        host, port = self.member.address or (self.member.name, 443)
        met = Met(self.identity.name, self.member, host, port, proxy_to(host, port))
        if met.proxy is None:
            try:
                async with asyncio.timeout(PATIENCE):
                    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=1)
            except (OSError, TimeoutError) as error:
                raise explain(error, met) from None
            places = list(dict.fromkeys(str(one[4][0]) for one in found))
            self.add("name", host if host in places else f"{host} is {', '.join(places[:3])}")
        self.add("proxy", met.proxy or "none")

    async def _open(self) -> Called:
        identity, roster, stream = self.identity, self.roster, None
        if self.relay is not None:
            stream = await through(self.relay, self.member, identity, roster, wait=False)
        context = client_context(identity, [self.member])
        pings = {"ping_interval": 10.0, "ping_timeout": 20.0}
        return await dial(
            identity.name, self.member, context, stream, path=CHECK, members=roster.members, **pings
        )

    def _look_at_link(self, opened: Called) -> None:
        name, until = self.member.name, validity(certificate_of(opened))[1]
        tls, soon = opened.transport.get_extra_info("ssl_object"), ""
        self.add("port", "open")
        self.add("tls", f"{str(tls.version()).removeprefix('TLSv')}, {tls.cipher()[0]}")
        if until - datetime.now(UTC) < SOON:
            soon = (
                f"the certificate of {name} is valid until {until:%Y-%m-%d} only: it should renew "
                "it soon (vpem party renew)"
            )
        self.add("certificate", f"until {until:%Y-%m-%d}", soon, state="note" if soon else "ok")
        theirs = others_clock(opened.response.headers if opened.response else {})
        if theirs is not None:
            off = (theirs - datetime.now(UTC)).total_seconds()
            ahead = f"{abs(off):.0f} s {'behind' if off > 0 else 'ahead'}"
            found = "the same" if abs(off) < 2 else ahead
            self.add("clock", found, clock(name, theirs), value=off)

    def _compare(self, hello: Any) -> None:
        """Hold what the other end runs against what this one does."""
        version, study, text = (printable(hello[key])[:64] for key in ("version", "study", "text"))
        edition, own_name = int(hello["edition"]), self.identity.name
        about = version, study, edition, text
        sentence = self.roster.differs(own_name, self.member.name, *about)
        self.add("answer", f"vpem {version}, edition {edition}", sentence)

    async def _measure(self, opened: Called) -> None:
        """Measure the link, and let the other end dial this one."""
        name, seconds = self.member.name, self.idle
        own = next(one for one in self.roster.members if one.name == self.identity.name)
        async with self._measuring:
            trip = statistics.median([await _ping(opened) for _ in range(PINGS)])
            rates = []
            for measure in (_up, _down):
                async with asyncio.timeout(PATIENCE + SECONDS):
                    rates.append(await measure(opened, trip))
        self.add("round trip", f"{trip * 1e3:.3g} ms (median of {PINGS})", value=trip)
        for what, rate in zip(("up", "down"), rates, strict=True):
            self.add(what, f"{rate / 1e6:.3g} MB/s", value=rate)
        if own.where is not None and self.roster.rank_of(name) is not None:
            await opened.send("dial")
            async with asyncio.timeout(2 * PATIENCE):
                fault = json.loads(await opened.recv())["fault"]
            if fault is None:
                self.add("back", f"dials {own.name} at {own.where}")
            else:
                self.add("back", "", f"{name} cannot dial {own.name}: {printable(fault)[:600]}")
        # The link is left alone but for pings, as a fit does while others compute.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await opened.wait_closed()
        try:
            await _ping(opened)
        except (ConnectionClosed, TimeoutError):
            sentence = (
                f"the link to {name} did not last {seconds:g} s without data, though both ends "
                "ping every 10 s: something on the way limits how long connections live; a fit "
                "opens them again, but ask who keeps the network for more"
            )
            self.add("idle", "cut", sentence)
        else:
            self.add("idle", f"{seconds:g} s", value=seconds)


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
