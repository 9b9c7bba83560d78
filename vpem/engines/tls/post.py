"""Messages between this member of a study and all others."""

from __future__ import annotations

import hmac
import math
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from vpem.engines.tls.door import listening
from vpem.engines.tls.here import Pace
from vpem.engines.tls.link import Link
from vpem.engines.tls.members import Identity, Roster
from vpem.engines.tls.news import Parted, Returned, Sent, Unheard
from vpem.engines.tls.streams import Message
from vpem.engines.tls.switchboard import LOOK_EVERY, Switchboard
from vpem.engines.tls.trust import identity_error
from vpem.engines.tls.wire import FAREWELL, TEXT, UNHEARD, Missed, Refusal
from vpem.errors import InputError, Setting, VpemError, printable

SAY_AFTER = (10.0, 60.0)
"""Seconds without a member that is waited for after which that is said: at first, and again."""


class Post:
    """Links of a member to all others, which live in a thread of their own.

    Others dial this member at ``listen``, by default the port of its address, and may be unheard of
    for ``timeout`` seconds (None: for ever); for ``beginning`` seconds the first member may be in
    any case, since it begins again where the others go on without somebody. In the thread of the
    program, ``note`` is given every message (`Sent`), and ``tell`` sentences about who is waited
    for or turned away.
    """

    def __init__(
        self,
        roster: Roster,
        identity: Identity,
        *,
        listen: tuple[str, int] | socket.socket | None = None,
        timeout: float | None = None,
        note: Callable[[Sent], None] | None = None,
        tell: Callable[[str], None] | None = None,
        pace: Pace | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        wrong = identity_error(roster, identity, None if clock is None else clock())
        if wrong:
            raise InputError(wrong)
        rank = roster.rank_of(identity.name)
        assert rank is not None
        self.rank: int = rank
        self.timeout = timeout
        self.beginning, self.log_key = 0.0, b""
        self.roster = roster
        self.names = [member.name for member in roster.members]
        self._note = note
        self._tell = tell
        self._listen = listen
        self._changed = threading.Condition()
        self._boxes: dict[tuple[int, int], deque[Message]] = defaultdict(deque)
        self._asked: set[tuple[int, int]] = set()
        self._failed: VpemError | None = None
        self._sentences: deque[str] = deque(maxlen=50)
        self._turned_away = ""
        self._listener: socket.socket | None = None
        self._board = Switchboard(
            roster,
            identity,
            Pace() if pace is None else pace,
            arrived=self._arrived,
            changed=self._wake,
            failed=self._fail,
            say=self._say,
            clock=clock or _utc,
        )
        self._links = self._board.links

    # ---- the program's side ----------------------------------------------------------------------

    @property
    def address(self) -> tuple[str, int] | None:
        """Where this member listens, once it has started."""
        return None if self._listener is None else self._listener.getsockname()[:2]

    def start(self) -> None:
        """Begin to listen, if others can dial this member; links are opened when first needed."""
        own = self.roster.members[self.rank]
        where = self._listen
        if where is None and own.address is not None:
            where = ("", own.address[1])
        if isinstance(where, socket.socket):
            self._listener = where
        elif where is not None:
            self._listener = listening(*where, own.name)
        self._board.start(self._listener)

    def put(
        self, to: int, tag: int, message: bytes | bytearray | memoryview, topic: str = ""
    ) -> None:
        """Send a message to another member; it is on its way at once, and nobody is waited for."""
        kept = message if isinstance(message, bytes) else bytes(message)
        if to == self.rank:
            self._arrived(to, Message(tag, topic, kept))
            return
        self._noted(True, to, topic, kept)
        self._board.call(self._links[to].add, Message(tag, topic, kept))

    def arrived(self, source: int, tag: int) -> bool:
        """Whether a message has come."""
        with self._changed:
            return bool(self._boxes.get((source, tag)))

    def ask(self, source: int, tags: Sequence[int]) -> None:
        """Say what will be taken of a member, which may send only so much of anything else."""
        self._asked.update((source, tag) for tag in tags)
        self._board.call(self._links[source].ask, tags)

    def take(self, source: int, tag: int) -> bytes | bytearray | memoryview:
        """Wait for a message of another member, and return it.

        Unheard if it is not heard of for too long, at the first member also if another says that;
        GoneOn or LeftOut if the first goes on without some or this one; Parted, Returned as that
        member ends or begins again.
        """
        if source != self.rank and (source, tag) not in self._asked:
            self.ask(source, [tag])
        self._asked.discard((source, tag))
        message = self._found(source, tag)
        if message is None:
            message = self._wait(source, tag)
        if source != self.rank:
            self._noted(False, source, message.topic, message.data)
        return message.data

    def flush(self, seconds: float = 10.0) -> None:
        """Wait, for so long at most, until all that was sent over links that are there has come."""
        end, put = time.monotonic() + seconds, threading.Event()
        self._board.call(put.set)  # behind all that was put
        put.wait(seconds)
        while any(link.connection and link.out.kept for link in self._links.values()):
            if time.monotonic() > end:
                return
            with self._changed:
                self._changed.wait(LOOK_EVERY)

    def part(self, sentence: str, code: int) -> None:
        """Tell all other members why this one ends."""
        farewell = Refusal(printable(sentence)[:TEXT], code)
        self._board.part(farewell)
        for other, link in self._links.items():
            if not (link.finished or link.parted):
                self.put(other, FAREWELL, farewell.pack(), "farewell")

    @property
    def silent(self) -> list[str]:
        """Names of members who were there, and have not been heard of for too long."""
        return [
            link.member.name for link in self._links.values()
            if link.session and link.connection is None and link.silent > (self.timeout or math.inf)
        ]  # fmt: skip

    def report(self, name: str, sentence: str) -> None:
        """Tell the first member who has not been heard of, and wait for what it makes of that.

        Raises GoneOn, Parted or Unheard, as it goes on without that member, ends, or is silent too.
        """
        self.put(0, UNHEARD, Missed(name, printable(sentence)[:TEXT]).pack(), "farewell")
        self._wait(0, UNHEARD)

    def close(self) -> None:
        """End all links, when all that was sent has been received, or after a few seconds."""
        self._board.close()
        if self._listener is not None:
            self._listener.close()

    # ---- waiting ---------------------------------------------------------------------------------

    def _found(self, source: int, tag: int) -> Message | None:
        with self._changed:
            box = self._boxes.get((source, tag))
            if not box:
                return None
            message = box.popleft()
            if not box:
                del self._boxes[source, tag]
            return message

    def _wait(self, source: int, tag: int) -> Message:
        """Wait until a message has come, or never will."""
        link = self._links[source]
        self._board.call(link.need)
        said = 0
        while True:
            ending = self._ending(link)  # before a look for what came before the end
            message = self._found(source, tag)
            if message is not None:
                return message
            if ending is not None:
                raise ending
            said = self._report(link, said)
            with self._changed:
                if not self._boxes.get((source, tag)):
                    self._changed.wait(LOOK_EVERY)

    def _ending(self, link: Link) -> VpemError | None:
        """Return what ends the wait for a member, if anything does."""
        if self._failed is not None:
            return self._failed
        for other in self._links.values():
            if other.parted is not None:
                name, parted = other.member.name, other.parted
                return Parted(name, parted.sentence, parted.exit_code)
            if other.returned:
                return Returned(other.member.name)
            if other.missed is not None and self.rank == 0:
                return Unheard(other.missed.name, f"{other.member.name}: {other.missed.sentence}")
        name = link.member.name
        if link.finished:
            return Parted(name, "it has finished without what others wait for", 1)
        longest = math.inf if self.timeout is None else self.timeout
        if link.rank == 0:
            longest = max(longest, self.beginning)
        if link.silent <= longest or link.connection is not None:
            return None  # a link that only seems to be there is cut by its own clock
        start = "" if link.session else "start it, "
        why = link.trouble or ("" if link.session else self._turned_away)
        why = why or f"{start}look at its machine and at the network, or allow more time"
        return Unheard(
            name,
            f"nothing has been heard of {name} for {link.silent:.0f} s (",
            Setting("timeout", longest),
            f"): {why}",
        )

    def _report(self, link: Link, said: int) -> int:
        """Say who is waited for, once in a while; how often that was said."""
        while self._sentences and self._tell is not None:
            self._tell(self._sentences.popleft())
        first, again = SAY_AFTER
        if self._tell is None:
            return said
        if said and link.connection is not None:
            self._tell(f"{link.member.name} is there")
            return 0
        if link.connection is None and link.silent > first + again * said:
            since = time.strftime("%H:%M:%S", time.localtime(time.time() - link.silent))
            why = f": {link.trouble}" if link.trouble else ""
            self._tell(f"waiting for {link.member.name} (not connected since {since}){why}")
            return said + 1
        return said

    def _noted(
        self, sent: bool, other: int, topic: str, data: bytes | bytearray | memoryview
    ) -> None:
        if self._note is not None:
            # Whoever copies a log cannot try guesses of data on it.
            digest = hmac.digest(self.log_key, data, "sha256").hex()
            self._note(Sent(time.time(), sent, self.names[other], topic, len(data), digest))

    # ---- what links report, in their thread ------------------------------------------------------

    def _arrived(self, source: int, message: Message) -> None:
        with self._changed:
            self._boxes[source, message.tag].append(message)
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _fail(self, error: VpemError) -> None:
        if self._failed is None:
            self._failed = error
        self._wake()

    def _say(self, sentence: str) -> None:
        self._sentences.append(sentence)
        self._turned_away = sentence
        self._wake()


def _utc() -> datetime:
    return datetime.now(UTC)
