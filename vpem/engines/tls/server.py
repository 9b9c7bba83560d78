"""The listening side: strangers are few, small and brief; members come in.

Besides links they find a relay, and answers to checks.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from vpem.engines.tls.check import CHECK, Answers
from vpem.engines.tls.relay import MOST, RELAY, Relay
from vpem.engines.tls.trust import Identity, Member, Roster, believed, not_valid, refusal_of
from vpem.engines.tls.wire import Answered, Host, answer, certificate_of, last_words
from vpem.errors import InputError, Setting

CHECKS = 4
"""Checks that a member may have at a time."""

REASON = 120
"""Bytes of the sentence with which a connection is closed, at most."""

WAITING = 16
"""Connections that have not said anything yet, each of which has a socket and nothing else."""

STRANGERS = 8
"""Connections in the middle of TLS's handshake, each of which takes some 300 kB of buffers."""

SAID = 20
"""Sentences about ends that were turned away, at most."""


class Lobby:
    """Serves members who ask for anything but a link; without a relay nothing is passed on."""

    def __init__(self, roster: Roster, identity: Identity, relay: Relay | None = None) -> None:
        self.identity = identity
        self.relay = relay
        self._here: set[Answered] = set()
        self._checks: Counter[str] = Counter()
        self.renew(roster)

    def renew(self, roster: Roster) -> None:
        """Take up another edition: who is no member any more is sent away."""
        self.roster = roster
        self._answers = Answers(roster, self.identity)
        if self.relay is not None:
            self.relay.most = MOST + len(roster.members)
        for connection in self._here:
            if self._member(connection) is None:
                connection.cut()

    async def welcome(self, connection: Answered, path: str) -> None:
        """Serve a connection until it ends."""
        member = self._member(connection)
        late = "it is no member" if member is None else not_valid(member.name, member.certificate)
        if member is None or late:
            await connection.leave(1008, late.partition(" (")[0][:REASON])
            return
        self._here.add(connection)
        try:
            if path.startswith(RELAY) and self.relay is not None:
                await self.relay.serve(connection, member.name, path)
            elif path == CHECK:
                await self._check(connection, member)
            else:
                place = path[:40].encode("ascii", "replace").decode()
                await connection.leave(1008, f"{self.identity.name} has nothing at {place}")
        finally:
            self._here.discard(connection)

    async def _check(self, connection: Answered, member: Member) -> None:
        """Answer a check, of few at a time."""
        if self._checks[member.name] >= CHECKS:
            await connection.leave(1013, f"{member.name} checks {CHECKS} times already")
            return
        self._checks[member.name] += 1
        try:
            await self._answers.serve(connection, member)
        finally:
            self._checks[member.name] -= 1

    async def leave(self, why: str) -> None:
        """End all connections."""
        await asyncio.gather(*(each.leave(1001, why[:REASON]) for each in list(self._here)))

    def _member(self, connection: Answered) -> Member | None:
        shown = certificate_of(connection)
        return next((one for one in believed(self.roster) if one.certificate == shown), None)


def listening(host: str, port: int, who: str = "this member") -> socket.socket:
    """Return a socket that listens; an empty host stands for all that this machine has."""
    both = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, dualstack_ipv6=both)
    except OSError as error:
        why = str(error.strerror or error).partition(" (")[0].lower()
        raise InputError(
            f"{who} cannot listen at {host or '*'}:{port} ({why}); end what listens there, or give "
            "another address or port with ",
            Setting("listen"),
        ) from None


@dataclass(eq=False)
class Guest:
    """A connection that has not shown a certificate yet."""

    task: asyncio.Task[None]
    address: str
    begun: bool = False
    gone: bool = False


class Door:
    """Accepts connections, and hands on those whose certificates are believed.

    ``handler`` is given each connection and the path it asks for, ``say`` a sentence about each
    kind of rejected connection. A stranger has ``seconds`` to become a member.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        handler: Callable[[Answered, str], Awaitable[None]],
        say: Callable[[str], None],
        seconds: float = 10.0,
    ) -> None:
        self.context = context
        """Believes certificates; another one may take its place."""
        self._handler = handler
        self._say = say
        self._seconds = seconds
        self._guests: list[Guest] = []
        self._said: set[str] = set()
        self._host = Host(self._welcome)

    async def serve(self, listener: socket.socket) -> None:
        """Accept connections for ever."""
        listener.setblocking(False)
        while True:
            # Not by `sock_accept`: cancelled in the wrong moment, it loses what it has accepted.
            await _readable(listener)
            try:
                accepted, address = listener.accept()
            except OSError:  # out of descriptors, or gone before it was accepted
                await asyncio.sleep(0.1)
                continue
            self.admit(accepted, _home(str(address[0])) if address else "a relay")

    def admit(self, accepted: socket.socket, address: str) -> None:
        """Take a connection from somewhere."""
        accepted.setblocking(False)
        self._make_place(begun=False, most=WAITING)
        task = asyncio.create_task(self._meet(accepted, address))
        guest = Guest(task, address)
        self._guests.append(guest)

        def leave(_: object) -> None:
            self._guests.remove(guest)
            if not guest.begun:
                accepted.close()

        task.add_done_callback(leave)

    def _make_place(self, begun: bool, most: int) -> None:
        """End the oldest of the address that has the most, if there are too many."""
        there = [guest for guest in self._guests if guest.begun == begun and not guest.gone]
        if len(there) < most:
            return
        crowds = Counter(guest.address for guest in there)
        worst = max(there, key=lambda guest: crowds[guest.address])  # the first of them
        worst.gone = True
        worst.task.cancel()

    async def _meet(self, accepted: socket.socket, address: str) -> None:
        """Wait for a stranger's first byte, then for TLS."""
        try:
            async with asyncio.timeout(self._seconds):
                await _readable(accepted)
                if accepted.recv(1, socket.MSG_PEEK) != b"\x16":  # as TLS begins
                    return
                self._make_place(begun=True, most=STRANGERS)
                task = asyncio.current_task()
                for guest in self._guests:
                    guest.begun |= guest.task is task
                connection = self._host.connection()
                with last_words(accepted):
                    await asyncio.get_running_loop().connect_accepted_socket(
                        lambda: connection, accepted, ssl=self.context,
                        ssl_handshake_timeout=math.ceil(self._seconds), ssl_shutdown_timeout=1.0,
                    )  # fmt: skip
        except (OSError, TimeoutError) as error:
            self._turned_away(refusal_of(error), address)
            _let_go(error)
        except asyncio.CancelledError as error:
            _let_go(error)
            raise

    def _turned_away(self, kind: str, address: str) -> None:
        sentences = {
            "unknown": f"a connection from {address} was rejected: its certificate is not in the "
            "study, or has been revoked",
            "refused": f"{address} does not trust the certificate of this member; "
            "compare the editions of the study",
        }
        sentence = sentences.get(kind, "")
        if sentence and sentence not in self._said and len(self._said) < SAID:
            self._said.add(sentence)
            self._say(sentence)

    async def _welcome(self, connection: Answered) -> None:
        with contextlib.suppress(TimeoutError, OSError, EOFError):
            async with asyncio.timeout(self._seconds):
                path = await answer(connection)
            if path:
                await self._handler(connection, path)


def _home(address: str) -> str:
    """Return a caller's address: of IPv6 its network, which has addresses without end."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv4Address):
        return address
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((int(ip), 64), strict=False))


def _let_go(error: BaseException | None) -> None:
    """Forget what an error came through: frames keep TLS's buffers until garbage is collected.

    Of 1,000 strangers in the middle of a handshake, 318 MB stay without it, 3 MB with it.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


async def _readable(line: socket.socket) -> None:
    """Wait until something can be read, or a connection has come."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    number = line.fileno()
    loop.add_reader(number, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(number)
