"""Sealed bytes passed on between members of whom neither can be dialled.

A member stays registered at ``/relay/wait``; another asks for it at ``/relay/call/NAME`` (or at
``/relay/find/NAME``, which hardly waits); the first is sent a number and comes to
``/relay/answer/NUMBER``. Then what each of these two connections brings is copied to the other. The
two members speak TLS with each other inside: the relay learns who talks with whom, when and how
much.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from websockets.exceptions import ConnectionClosed

from vpem.engines.tls.wire import Answered, Work
from vpem.errors import FileError

RELAY = "/relay/"
"""How the paths begin that a relay serves."""

CHUNK = 1 << 14
"""Bytes of a message that is passed on, at most."""

PAIRED = "paired"
"""What both members are sent before anything of the other's."""

ABSENT = "absent"
"""Why a call ends whose member has not come."""

WAIT = 20.0
"""Seconds that a call waits for the other member."""

BRIEF = 3.0
"""Seconds that a member is looked for that should be there."""

RING = 2.0
"""Seconds after which a member that has not answered is called again."""

REGISTERED = 4
"""Processes of a member that may wait for calls; the newest is called."""

MOST = 16
"""Connections that a member may have, and one more for each member."""

LONGEST = 80
"""Characters of a path that are looked at: names and numbers are shorter, and so are logs."""

PING = 10.0

Event = dict[str, object]
"""What is noted: "waits", "left", "paired", "ended" or "absent", and of whom."""


class Relay:
    """Pairs members' connections and copies what they bring.

    ``note`` is given each event; ``pairs`` are connected; ``most`` connections a member.
    """

    def __init__(self, note: Callable[[Event], None] | None = None) -> None:
        self.note = note or (lambda event: None)
        self.pairs = 0
        self.most = MOST
        self._waiting: dict[str, list[Answered]] = {}
        self._here: Counter[str] = Counter()
        self._come = asyncio.Condition()
        self._calls: dict[str, tuple[str, asyncio.Future[Answered]]] = {}

    def note_in(self, path: Path, warn: Callable[[str], None], **about: object) -> None:
        """Add lines of JSON to a file: what it is ``about``, then each event; it may be moved away.

        A disk that is full later stops no relay.
        """
        works = True

        def note(event: Event, begun: bool = False) -> None:
            nonlocal works
            line = {"time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", **event}
            try:
                if works:
                    with open(path, "a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
            except OSError as error:
                works, sentence = False, f"{path} cannot be written: {error.strerror or error}"
                if begun:
                    raise FileError(sentence) from None
                warn(f"{sentence}; nothing is logged any more")

        note({"event": "begun", **about}, begun=True)
        self.note = note

    def _note(
        self,
        event: str,
        source: str,
        target: str,
        there: int = 0,
        back: int = 0,
        seconds: float = 0.0,
    ) -> None:
        """Note what a relay knows of two members: who called, and whom, or itself; bytes so far."""
        sizes = {"bytes": there, "bytes_back": back, "seconds": round(seconds, 3)}
        self.note({"event": event, "from": source, "to": target, **sizes})

    async def serve(self, connection: Answered, name: str, path: str) -> None:
        """Serve a member's connection until it ends; the path it asks for is `RELAY` and more."""
        connection.transport.set_write_buffer_limits(4 * CHUNK)
        connection.ping_interval, connection.ping_timeout = PING, 2 * PING
        connection.start_keepalive()
        verb, _, rest = path.removeprefix(RELAY)[:LONGEST].partition("/")
        works: dict[str, Callable[[Answered, str, str], Work]] = {
            "wait": self._wait,
            "call": partial(self._call, seconds=WAIT),
            "find": partial(self._call, seconds=BRIEF),
            "answer": self._answer,
        }
        work = works.get(verb)
        if work is None:
            await connection.leave(1008, "requests to a relay are wait, call, find and answer")
        elif self._here[name] >= self.most:
            await connection.leave(1013, f"{name} has {self.most} connections already")
        else:
            self._here[name] += 1
            try:
                await work(connection, name, rest)
            finally:
                self._here[name] -= 1

    async def _wait(self, connection: Answered, name: str, _: str) -> None:
        waiting = self._waiting.setdefault(name, [])
        waiting.append(connection)
        self._note("waits", name, name)
        if len(waiting) > REGISTERED:
            await waiting.pop(0).leave(1008, f"{name} waits {REGISTERED} times already")
        async with self._come:
            self._come.notify_all()
        try:
            # Nothing is expected: what sends something there is no member's program.
            with suppress(ConnectionClosed):
                await connection.recv()
                await connection.leave(1008, "nothing is to be sent while one waits")
        finally:
            if connection in waiting:
                waiting.remove(connection)
            self._note("left", name, name)

    async def _call(self, connection: Answered, name: str, callee: str, seconds: float) -> None:
        number = secrets.token_hex(16)
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._calls[number] = callee, answer
        called = asyncio.create_task(self._fetch(callee, number, answer))
        # Nothing is to be sent before the other is there: this ends when the caller does.
        caller = asyncio.create_task(connection.recv())
        try:
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait([called, caller], timeout=seconds, return_when=first)
        finally:
            del self._calls[number]
            for task in (called, caller):
                task.cancel()
            ends = await asyncio.gather(called, caller, return_exceptions=True)
        if not isinstance(ends[0], BaseException):
            await self._pair(connection, name, ends[0], callee)
        elif isinstance(ends[1], asyncio.CancelledError):
            self._note(ABSENT, name, callee)
            await connection.leave(1013, ABSENT)
        else:
            await connection.leave(1008, "nothing is to be sent before the other is there")

    async def _fetch(self, callee: str, number: str, answer: asyncio.Future[Answered]) -> Answered:
        """Call a member, and return the connection with which it answers."""
        while not answer.done():  # what was rung may be cut before it has answered
            await self._ring(callee, number)
            await asyncio.wait([answer], timeout=RING)
        return answer.result()

    async def _ring(self, callee: str, number: str) -> None:
        """Send a call to a process of this member that waits, as soon as there is one."""
        while True:
            async with self._come:
                await self._come.wait_for(lambda: self._waiting.get(callee))
            waiting = self._waiting[callee]
            while waiting:
                newest = waiting[-1]
                # No other waits for one that does not read.
                with suppress(ConnectionClosed, TimeoutError):
                    async with asyncio.timeout(RING):
                        await newest.send(number)
                    return
                newest.cut()
                if newest in waiting:
                    waiting.remove(newest)

    async def _answer(self, connection: Answered, name: str, number: str) -> None:
        callee, answer = self._calls.get(number, ("", None))
        if answer is None or callee != name or answer.done():
            await connection.leave(1008, "there is no such call any more")
            return
        answer.set_result(connection)
        await connection.wait_closed()

    async def _pair(self, caller: Answered, name: str, called: Answered, other: str) -> None:
        began, sizes = time.monotonic(), [0, 0]
        self.pairs += 1
        self._note("paired", name, other)
        try:
            with suppress(ConnectionClosed):
                for one in (caller, called):
                    await one.send(PAIRED)
                await either(_copy(caller, called, sizes, 0), _copy(called, caller, sizes, 1))
        finally:
            self.pairs -= 1
            self._note("ended", name, other, sizes[0], sizes[1], time.monotonic() - began)
            await asyncio.gather(caller.leave(), called.leave())


async def either(*works: Work) -> None:
    """Do several things until one of them is done."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _copy(source: Answered, target: Answered, sizes: list[int], way: int) -> None:
    """Pass on what one sends, as fast as the other reads it."""
    with suppress(ConnectionClosed):
        while True:
            message = await source.recv()
            if isinstance(message, str) or len(message) > CHUNK:
                await source.leave(1009, f"messages are binary, of {CHUNK} bytes at most")
                return
            await target.send(message)
            sizes[way] += len(message)
