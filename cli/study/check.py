"""Ports kept open, and data and links looked at: for `vpem relay` and `vpem party check`."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from vpem.engines.tls import trust
from vpem.engines.tls.check import Examined, Finding, examine
from vpem.engines.tls.link import calls
from vpem.engines.tls.relay import Passed, Relay
from vpem.engines.tls.server import Door, Lobby, listening
from vpem.errors import FileError, InputError, VpemError, VpemWarning, printable
from vpem.files.studies import identities
from vpem.files.studies.study import Study, read_study
from vpem.files.table_settings import TableSettings
from vpem.network.schema import Report
from vpem.pictures.contents import plural

from ..commands.use import refuse_given
from ..display import Screen, show, table
from ..names import spoken
from .agreed import INDIVIDUALS, look_at

LOOK_EVERY = 5.0
"""Seconds between looks at the study's file."""


class Serving:
    """A port that answers members that dial while no run of the study is here.

    ``identify`` returns the identity that answers, given an edition of the study.
    """

    def __init__(
        self,
        study: Study,
        identify: Callable[[Study], trust.Identity],
        screen: Screen,
        relay: Relay | None = None,
    ) -> None:
        self.study = study
        self.screen = screen
        self._identify = identify
        self.lobby = Lobby(study.roster, identify(study), relay)
        context = trust.server_context(self.lobby.identity, trust.believed(study.roster))
        self.door = Door(context, self.lobby.welcome, screen.say)
        self._seen = _mark(study.path)

    def run(self, where: tuple[str, int] | None, what: str, greeting: str) -> None:
        """Serve until a signal arrives, which is raised as a VpemError.

        It listens at ``where``, if anywhere, calls itself ``what`` in sentences ("the relay"), and
        prints a ``greeting`` when it is ready.
        """
        # Garbage may grow to a quarter of all counted objects before it is collected: without what
        # exists now, mostly modules, or members' connections would pile up.
        gc.freeze()
        number = asyncio.run(self._serve(where, what, greeting))
        name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
        ended = VpemError(f"{what} was ended by {name}; members who need it wait for it")
        ended.exit_code = 128 + number  # type: ignore[attr-defined]
        raise ended

    async def _serve(self, where: tuple[str, int] | None, what: str, greeting: str) -> int:
        """Serve, and return the number of the signal that ends it."""
        loop = asyncio.get_running_loop()
        # What strangers, and members that have gone, do to transports needs no report.
        loop.set_exception_handler(lambda *_: None)
        logging.getLogger("asyncio").disabled = True
        ended: asyncio.Future[int] = loop.create_future()

        def end(number: int) -> None:
            if not ended.done():
                ended.set_result(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end, number)
        look = asyncio.Event()
        loop.add_signal_handler(signal.SIGHUP, look.set)
        listener = None if where is None else listening(*where, what)
        place = ""
        if listener is not None:
            place = f" at {trust.written_address(listener.getsockname()[:2])}"
        serving = self._stay_registered() if listener is None else self.door.serve(listener)
        self.screen.say(f"{what} of {self.study.name} for {_names(self.study)}{place}{greeting}")
        tasks = [loop.create_task(work) for work in (serving, self._renew(look))]
        try:
            return await ended
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if listener is not None:
                listener.close()
            await self.lobby.leave(f"{what} ends")

    async def _stay_registered(self) -> None:
        """Stay registered at the relay, for members that can reach this one only through it."""
        roster = self.study.roster
        relay = roster.relay or roster.members[0]
        said: set[str] = set()

        def tell(fault: Exception) -> None:
            if str(fault) not in said:
                said.add(str(fault))
                self.screen.warn(str(fault))

        def deliver(stream: Any) -> None:
            self.door.admit(stream, relay.name)

        await calls(relay, self.lobby.identity, roster, deliver, tell)

    async def _renew(self, look: Any) -> None:
        """Use newer editions of the study; one that cannot be used leaves the last in use."""
        while True:
            try:
                await asyncio.wait_for(look.wait(), LOOK_EVERY)
            except TimeoutError:
                if _mark(self.study.path) == self._seen:
                    continue
            look.clear()
            self._seen = _mark(self.study.path)
            try:
                edition = read_study(self.study.path)
                self.lobby.identity = identity = self._identify(edition)
            except VpemError as error:
                self.screen.warn(f"{error}; edition {self.study.edition} stays in use")
                continue
            self.study = edition
            self.lobby.renew(edition.roster)
            self.door.context = trust.server_context(identity, trust.believed(edition.roster))
            use = f"edition {edition.edition} of {edition.name} is in use"
            self.screen.say(f"{use}, for {_names(edition)}")


def _names(study: Study) -> str:
    return ", ".join(member.name for member in study.roster.members)


def _mark(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is replaced."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def show_findings(findings: list[Finding], title: str) -> None:
    """Print a table, and a sentence for whatever is to be noted."""
    rows, before = list[tuple[str, ...]](), ""
    for one in findings:
        peer, before = "" if one.peer == before else one.peer, one.peer
        rows.append((peer, one.what, one.observation, "" if one.state == "ok" else one.state))
    show(table(rows, "with", "what", "found", "", title=title))
    for one in findings:
        if one.sentence:
            print(printable(f"{one.state}: {one.sentence}"))


def look_at_data(
    context: typer.Context,
    study: Study,
    name: str,
    data: list[Path],
    settings: TableSettings,
    screen: Screen,
) -> list[Finding]:
    """Open a member's data as the runs of a study will."""
    if not study.member(name).holds:
        if data:
            raise InputError(
                f"{name} brings no data to the study {study.name}; leave out {data[0]}"
            )
        return []
    if not data:
        refuse_given(settings, "applies to DATA; name the file")
        sentence = f"name your data: vpem party check {study.path.name} {name}.csv"
        return [Finding(name, "data", "note", "not checked", sentence)]
    if {*study.options} == {INDIVIDUALS}:
        sentence = f"not checked: 'vpem {INDIVIDUALS}' reads them by options of its own"
        return [Finding(name, "data", "ok", sentence)]
    try:
        features = study.features.get(name, ())
        names, n_rows = look_at(context, study, name, data, settings, screen.say, features)
    except VpemError as error:
        return [Finding(name, "data", "fails", "", spoken(error))]
    sentence = f"{plural(n_rows, 'row')}, {plural(len(names), 'feature')}, as the study takes them"
    return [Finding(name, "data", "ok", sentence)]


def look_at_links(
    study: Study, name: str, door: tuple[str, int] | None, idle: float
) -> list[Finding]:
    """Look at a member's certificate, and its links with all whom it may talk with."""
    sentence, state = "", "ok"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", VpemWarning)
        try:
            identity = identities.identity_of(study, name)
        except InputError as error:
            # Others are dialled all the same: the clock may be wrong.
            identity = identities.read_identity(study.folder, name)
            state, sentence = "fails", str(error)
            identities.key_of(identity)
            since = study.roster.revoked.get(trust.fingerprint(identities.certificate_of(identity)))
            if since is not None:
                sentence = (
                    f"the certificate of {name} was revoked on {since}: make another key (vpem "
                    f"party renew) and ask {study.organiser}"
                )
    for one in caught:
        if isinstance(one.message, VpemWarning):
            sentence, state = str(one.message), "note"
    certificate = identities.certificate_of(identity)
    until = f"until {trust.validity(certificate)[1]:%Y-%m-%d}"
    links = asyncio.run(examine_all(Examined(study.roster, identity, idle), door))
    clock_fails = any((one.what, one.state) == ("clock", "fails") for one in links)
    if clock_fails and trust.not_valid(name, certificate):
        state, until, sentence = "note", f"{until}, so not by this machine's clock", ""
    return [Finding(name, "certificate", state, until, sentence), *links]


async def examine_all(examined: Examined, door: tuple[str, int] | None) -> list[Finding]:
    """Check the links with all whom this member may talk with.

    Meanwhile it listens, so that others can dial it back, unless another process of it does.
    """

    async def collected(member: trust.Member, relay: trust.Member | None) -> list[Finding]:
        return [finding async for finding in examine(examined, member, relay)]

    roster, relay = examined.roster, examined.roster.relay
    others = [one for one in roster.members if one.name != examined.own.name]
    pairs: list[tuple[trust.Member, trust.Member | None]]
    pairs = [(one, None) for one in others if one.address]
    if relay is not None:
        pairs.append((relay, None))
        if examined.own.address is None:
            pairs += [(one, relay) for one in others if one.address is None]
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    listener, tasks = None, []
    with suppress(InputError):  # a run of the study, or --serve, listens already
        listener = None if door is None else listening(*door)
    if listener is not None:
        context = trust.server_context(examined.identity, trust.believed(roster))
        answers = Door(context, Lobby(roster, examined.identity).welcome, lambda _: None)
        tasks.append(asyncio.create_task(answers.serve(listener)))
    try:
        findings = await asyncio.gather(*(collected(*pair) for pair in pairs))
        return [finding for one in findings for finding in one]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if listener is not None:
            listener.close()


def relay_identity(study: Study) -> trust.Identity:
    """Return the relay's key and certificate; InputError unless the study names them."""
    named = study.roster.relay
    if named is None:
        raise InputError(f"{study.path} names no relay any more")
    identity = identities.usable(identities.read_identity(study.folder, named.name))
    if identities.certificate_of(identity) != named.certificate:
        raise InputError(
            f"the certificate {identity.certificate} is not the one that {study.path} has for its "
            f"relay {named.name}; give it to {study.organiser}"
        )
    return identity


def noting(path: Path, screen: Screen, study: Study) -> Callable[[Passed], None]:
    """Return what adds a line of JSON on what a relay passes on; a full disk stops no relay.

    The file may be moved away meanwhile.
    """
    written = True

    def write(line: Report) -> None:
        dated = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **line}
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(dated) + "\n")
        except OSError as error:
            raise FileError(f"{path} cannot be written: {error.strerror or error}") from None

    def note(passed: Passed) -> None:
        nonlocal written
        try:
            if written:
                write({
                    "event": passed.event, "from": passed.source, "to": passed.target,
                    "bytes": passed.there, "bytes_back": passed.back,
                    "seconds": round(passed.seconds, 3),
                })  # fmt: skip
        except FileError as error:
            screen.warn(f"{error}; nothing is logged any more")
            written = False

    write({"event": "begun", "study": study.id, "edition": study.edition})
    return note
