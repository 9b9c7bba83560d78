"""The listening side: strangers are few, small and brief; members come in.

Besides links they find a relay, and answers to checks, also while no run is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import math
import signal
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from websockets.server import ServerProtocol

from vpem.engines.tls.link import calls
from vpem.engines.tls.party_check import CHECK, Examination, Finding, answer_checks
from vpem.engines.tls.relay import MOST, RELAY, Relay
from vpem.engines.tls.trust import (
    Identity,
    Member,
    Roster,
    believed,
    not_valid,
    refusal_of,
    server_context,
    whose,
    written_address,
)
from vpem.engines.tls.wire import (
    FRAME,
    OPTIONS,
    Answered,
    Work,
    answer,
    certificate_of,
    chain_of,
    last_words,
    quiet,
)
from vpem.errors import InputError, Setting, VpemError

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

LOOK_EVERY = 5.0
"""Seconds between looks at the file of a study."""


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
        if self.relay is not None:
            self.relay.most = MOST + len(roster.members)
        for connection in self._here:
            if self._member(connection) is None:
                connection.cut()

    def context(self) -> ssl.SSLContext:
        """Return what believes the members."""
        return server_context(self.identity, believed(self.roster))

    async def welcome(self, connection: Answered, path: str) -> None:
        """Serve a connection until it ends."""
        member, why = whose(believed(self.roster), chain_of(connection))
        if member is not None:
            why = not_valid(member.name, certificate_of(connection))
        if member is None or why:
            why = why.partition(" (by ")[0].encode()[:REASON].decode(errors="ignore")
            await connection.leave(1008, why)
            return
        self._here.add(connection)
        try:
            if path.startswith(RELAY) and self.relay is not None:
                await self.relay.serve(connection, member.name, path)
            elif path == CHECK and self._checks[member.name] >= CHECKS:  # few at a time
                why = f"{member.name} checks {CHECKS} times already"
                await connection.leave(1013, why)
            elif path == CHECK:
                self._checks[member.name] += 1
                try:
                    await answer_checks(self.roster, self.identity, connection, member)
                finally:
                    self._checks[member.name] -= 1
            else:
                place = path[:40].encode("ascii", "replace").decode()
                await connection.leave(1008, f"{self.identity.name} has nothing at {place}")
        finally:
            self._here.discard(connection)

    async def leave(self, why: str) -> None:
        await asyncio.gather(*(each.leave(1001, why[:REASON]) for each in list(self._here)))

    def _member(self, connection: Answered) -> Member | None:
        return whose(believed(self.roster), chain_of(connection))[0]


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port at which nothing listens, kept for a minute for those who give its number.

    A connection has just ended there: the system gives such a port to no socket that takes any.
    """
    with socket.create_server((host, 0)) as door:
        port = int(door.getsockname()[1])
        with socket.create_connection((host, port)):
            door.accept()[0].close()
    return port


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
        # What `ServerConnection` has for a server.
        self.handler_tasks: set[asyncio.Task[None]] = set()
        self.logger = quiet

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
                protocol = ServerProtocol(max_size=FRAME, logger=quiet)
                connection = Answered(protocol, self, **OPTIONS)  # type: ignore[arg-type]
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

    async def handler(self, connection: Answered) -> None:
        """Talk over a connection once TLS is up; whatever happens it is closed afterwards."""
        try:
            with contextlib.suppress(TimeoutError, OSError, EOFError):
                async with asyncio.timeout(self._seconds):
                    path = await answer(connection)
                if path:
                    await self._handler(connection, path)
        finally:
            connection.cut()
            self.handler_tasks.discard(asyncio.current_task())

    def is_serving(self) -> bool:
        """Whether connections are accepted: those that are not never come here."""
        return True


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


@contextlib.asynccontextmanager
async def _beside(listener: socket.socket | None, *works: Work) -> AsyncIterator[None]:
    """Let a port be served, and other work done, until a block ends."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if listener is not None:
            listener.close()


class Serving(Lobby):
    """A port that answers members that dial while no run of the study is here.

    ``path`` is the study's file, of which ``read`` returns the roster and the identity that
    answers; ``say`` and ``warn`` print a sentence. In sentences it is called ``what``.
    """

    def __init__(
        self,
        path: Path,
        read: Callable[[], tuple[Roster, Identity]],
        what: str,
        say: Callable[[str], None],
        warn: Callable[[str], None],
        relay: Relay | None = None,
    ) -> None:
        super().__init__(*read(), relay)
        self._path, self._read, self._what, self._say, self._warn = path, read, what, say, warn
        self._door, self._seen = Door(self.context(), self.welcome, say), _mark(path)

    def run(self, where: tuple[str, int] | None, greeting: str) -> None:
        """Listen, if anywhere, and print a ``greeting``; a signal ends it, as a VpemError."""
        # Garbage may grow to a quarter of all counted objects before it is collected: without what
        # exists now, mostly modules, or members' connections would pile up.
        gc.freeze()
        number = asyncio.run(self._serve(where, greeting))
        name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
        ended = VpemError(f"{self._what} was ended by {name}; members who need it wait for it")
        ended.exit_code = 128 + number  # type: ignore[attr-defined]
        raise ended

    async def _serve(self, where: tuple[str, int] | None, greeting: str) -> int:
        """Serve, and return the number of the signal that ends it."""
        loop, look, ended = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        logging.getLogger("asyncio").disabled = True
        caught: list[int] = []

        def end(number: int) -> None:
            caught.append(number)
            ended.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end, number)
        loop.add_signal_handler(signal.SIGHUP, look.set)
        listener = None if where is None else listening(*where, self._what)
        place = f" at {written_address(listener.getsockname()[:2])}" if listener else ""
        self._say(f"{self._what} of {self.roster.name} for {self._names()}{place}{greeting}")
        serving = self._door.serve(listener) if listener else self._stay_registered()
        async with _beside(listener, serving, self._look(look)):
            await ended.wait()
        await self.leave(f"{self._what} ends")
        return caught[0]

    def _names(self) -> str:
        return ", ".join(member.name for member in self.roster.members)

    async def _stay_registered(self) -> None:
        """Stay registered at the relay, for members that can reach this one only through it."""
        relay, said = self.roster.relay or self.roster.members[0], set[str]()

        def tell(fault: Exception) -> None:
            if str(fault) not in said:
                said.add(str(fault))
                self._warn(str(fault))

        admit = partial(self._door.admit, address=relay.name)
        await calls(relay, self.identity, self.roster, admit, tell)

    async def _look(self, look: asyncio.Event) -> None:
        """Use newer editions of the study; one that cannot be used leaves the last in use."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(look.wait(), LOOK_EVERY)
            before, self._seen = self._seen, _mark(self._path)
            if not look.is_set() and self._seen == before:
                continue
            look.clear()
            try:
                roster, self.identity = self._read()
            except VpemError as error:
                self._warn(f"{error}; edition {self.roster.edition} stays in use")
                continue
            self.renew(roster)
            self._door.context = self.context()
            self._say(f"edition {roster.edition} of {roster.name} is in use, for {self._names()}")


def _mark(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is replaced."""
    with contextlib.suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns
    return None


async def examine_all(
    roster: Roster, identity: Identity, where: tuple[str, int] | None, idle: float
) -> list[Finding]:
    """Check the links with all whom a member may talk with.

    Meanwhile it listens, so that others can dial it back, unless another process of it does. Each
    link is left alone for ``idle`` seconds.
    """
    relay, measuring = roster.relay, asyncio.Lock()
    (own,) = (one for one in roster.members if one.name == identity.name)
    others = [one for one in roster.members if one is not own]
    pairs: list[tuple[Member, Member | None]] = [(one, None) for one in others if one.address]
    if relay is not None:
        pairs.append((relay, None))
        if own.address is None:
            pairs += [(one, relay) for one in others if one.address is None]
    listener, works = None, list[Work]()
    with contextlib.suppress(InputError):  # a run of the study, or --serve, listens already
        listener = None if where is None else listening(*where)
    if listener is not None:
        lobby = Lobby(roster, identity)
        works.append(Door(lobby.context(), lobby.welcome, lambda _: None).serve(listener))
    async with _beside(listener, *works):
        looks = (
            Examination(roster, identity, *pair, idle=idle, measuring=measuring) for pair in pairs
        )
        findings = await asyncio.gather(*(look.run() for look in looks))
        return [finding for one in findings for finding in one]
