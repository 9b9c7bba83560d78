"""`vpem party check`: whether a member of a study can reach the others, and its data can be used.

`Serving` keeps a port open until a signal ends it: for a relay, or to answer checks.
"""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.errors import InputError, VpemError, VpemWarning, printable
from vpem.files.table_settings import TableSettings

from ..commands.loading import refuse_given
from ..display import Screen, plural, print_json, show, table
from ..names import spoken
from ..options import Json, Quiet, Without
from ..outputs import READ
from .handshake import INDIVIDUALS, look_at
from .party import As, StudyFile

if TYPE_CHECKING:
    from vpem.engines.tls.check import Examined, Finding
    from vpem.engines.tls.relay import Relay
    from vpem.engines.tls.trust import Identity, Member
    from vpem.files.studies.study import Study

LOOK_EVERY = 5.0
"""Seconds between looks at the study's file."""


class Serving:
    """A port that answers members that dial while no run of the study is here.

    ``identify`` returns the identity that answers, given an edition of the study.
    """

    def __init__(
        self,
        study: Study,
        identify: Callable[[Study], Identity],
        screen: Screen,
        relay: Relay | None = None,
    ) -> None:
        from vpem.engines.tls.server import Door, Lobby
        from vpem.engines.tls.trust import believed, server_context

        self.study = study
        self.screen = screen
        self._identify = identify
        self.identity = identify(study)
        self.lobby = Lobby(study.roster, self.identity, relay)
        context = server_context(self.identity, believed(study.roster))
        self.door = Door(context, self.lobby.welcome, screen.say)
        self._seen = _mark(study.path)

    def run(self, where: tuple[str, int] | None, what: str, greeting: str) -> None:
        """Serve until a signal arrives, which is raised as a VpemError.

        It listens at ``where``, if anywhere, calls itself ``what`` in sentences ("the relay"), and
        prints a ``greeting`` when it is ready.
        """
        import asyncio
        import gc

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
        import asyncio
        import logging

        from vpem.engines.tls.server import listening
        from vpem.engines.tls.trust import written_address

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
            place = f" at {written_address(listener.getsockname()[:2])}"
        serving = self._stay_registered() if listener is None else self.door.serve(listener)
        names = ", ".join(member.name for member in self.study.roster.members)
        self.screen.say(f"{what} of {self.study.name} for {names}{place}{greeting}")
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
        from vpem.engines.tls.link import calls

        roster = self.study.roster
        relay = roster.relay or roster.members[0]
        said: set[str] = set()

        def tell(fault: Exception) -> None:
            if str(fault) not in said:
                said.add(str(fault))
                self.screen.warn(str(fault))

        def deliver(stream: Any) -> None:
            self.door.admit(stream, relay.name)

        await calls(relay, self.identity, roster, deliver, tell)

    async def _renew(self, look: Any) -> None:
        """Use newer editions of the study; one that cannot be used leaves the last in use."""
        import asyncio

        from vpem.engines.tls.trust import believed, server_context
        from vpem.files.studies.study import read_study

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
                self.identity = self._identify(edition)
            except VpemError as error:
                self.screen.warn(f"{error}; edition {self.study.edition} stays in use")
                continue
            self.study = edition
            self.lobby.identity = self.identity
            self.lobby.renew(edition.roster)
            self.door.context = server_context(self.identity, believed(edition.roster))
            names = ", ".join(member.name for member in edition.roster.members)
            self.screen.say(f"edition {edition.edition} of {edition.name} is in use, for {names}")


def _mark(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is replaced."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


LONGEST = 500.0
"""Most seconds of idle time after which the other end still answers."""


def check(
    context: typer.Context,
    file: StudyFile,
    data: Annotated[
        list[Path] | None,
        READ,
        typer.Argument(
            help="The member's data, which are opened as the study's runs will, and searched for "
            "what these will refuse. Default: they are not checked.",
            show_default=False,
        ),
    ] = None,
    name: As = None,
    idle: Annotated[
        float,
        typer.Option(
            help="Leave each link without data for so many seconds: some networks cut links that "
            "are silent for long."
        ),
    ] = 3.0,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve",
            help="Answer the checks of others, until Ctrl-C. A member that waits in a run of the "
            "study, and a relay, answer them anyway.",
        ),
    ] = False,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            show_default=False,
            help="Where to listen for others. Default: the port of the member's address, if it has "
            "one, on all interfaces.",
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    *,
    settings: Annotated[TableSettings, Without("worker_column")],
) -> None:
    """Check this member's data, and its links with others.

    Data, if they are named: ids, types and missing values, as the study's commands take them; this
    is not sent to others. Links: certificates, names, proxy (https_proxy, no_proxy), port, TLS,
    clocks, versions and editions, round trip, bytes a second both ways, idle time, and whether
    others can dial this member, if it has an address. Prints a table, and a sentence for whatever
    fails. The exit code is 2 if anything fails, otherwise 0.

    Example: vpem party check heart.toml lab.csv
    """
    with Screen(quiet) as screen:
        from vpem.checks import check_number
        from vpem.files.studies.identities import only_identity
        from vpem.files.studies.signed import address_of
        from vpem.files.studies.study import read_study

        check_number("idle", idle, least=0.0, most=LONGEST)
        study = read_study(file)
        who = only_identity(study.folder, name)
        member = study.member(who)
        door = study.listens.get(who) or (member.address and ("", member.address[1]))
        door = door if listen is None else address_of(listen)
        own_data = _look(context, study, who, data or [], settings, screen)
        if serve and all(one.state == "ok" for one in own_data):
            _serve(study, who, door, screen)
        certificate, *others = _check(study, who, door, idle)
        findings = [certificate, *own_data, *others]
        _show(study, who, findings, json, quiet)
        closed = [one.peer for one in findings if (one.what, one.state) == ("port", "fails")]
        command = f"vpem party check {study.path.name} --serve"
        if closed:
            screen.say(f"{', '.join(closed)} answers only while it runs the study or '{command}'")
        elif member.address is not None:
            screen.say(f"others reach {member.name} only while it runs the study or '{command}'")
        if any(one.state == "fails" for one in findings):
            raise typer.Exit(2)


def _look(
    context: typer.Context,
    study: Study,
    name: str,
    data: list[Path],
    settings: TableSettings,
    screen: Screen,
) -> list[Finding]:
    from vpem.engines.tls.check import Finding

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


def _serve(study: Study, name: str, door: tuple[str, int] | None, screen: Screen) -> None:
    from vpem.engines.tls.relay import Relay
    from vpem.files.studies.identities import identity_of

    first = study.roster.rank_of(name) == 0
    if (
        door is None
        and study.roster.relay is None
        and (first or study.roster.members[0].address is None)
    ):
        raise InputError(f"no member can dial {name}, which has neither an address nor a relay")
    relay = Relay() if first and study.roster.relay is None else None
    serving = Serving(study, lambda one: identity_of(one, name), screen, relay)
    serving.run(door, name, ": it answers checks until Ctrl-C")


def _check(study: Study, name: str, door: tuple[str, int] | None, idle: float) -> list[Finding]:
    import asyncio

    from vpem.engines.tls.check import Examined, Finding
    from vpem.engines.tls.trust import fingerprint, not_valid, validity
    from vpem.files.studies.identities import certificate_of, identity_of, key_of, read_identity

    sentence, state = "", "ok"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", VpemWarning)
        try:
            identity = identity_of(study, name)
        except InputError as error:
            # Others are dialled all the same: the clock may be wrong.
            identity, state = read_identity(study.folder, name), "fails"
            key_of(identity)
            mark = fingerprint(certificate_of(identity))
            since = study.roster.revoked.get(mark)
            sentence = str(error)
            if since is not None:
                sentence = (
                    f"the certificate of {name} was revoked on {since}: make another key (vpem "
                    f"party renew) and ask {study.organiser}"
                )
    for one in caught:
        if isinstance(one.message, VpemWarning):
            sentence, state = str(one.message), "note"
    certificate = certificate_of(identity)
    until = f"until {validity(certificate)[1]:%Y-%m-%d}"
    links = asyncio.run(_all(Examined(study.roster, identity, idle), door))
    clock_fails = any((one.what, one.state) == ("clock", "fails") for one in links)
    if clock_fails and not_valid(name, certificate):
        state, until, sentence = "note", f"{until}, so not by this machine's clock", ""
    return [Finding(name, "certificate", state, until, sentence), *links]


async def _all(examined: Examined, door: tuple[str, int] | None) -> list[Finding]:
    """Check the links with all whom this member may talk with.

    Meanwhile it listens, so that others can dial it back, unless another process of it does.
    """
    import asyncio

    from vpem.engines.tls.check import examine
    from vpem.engines.tls.server import Door, Lobby, listening
    from vpem.engines.tls.trust import believed, server_context

    async def collected(member: Member, relay: Member | None) -> list[Finding]:
        return [finding async for finding in examine(examined, member, relay)]

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    listener, tasks = None, []
    with suppress(InputError):  # a run of the study, or --serve, listens already
        listener = None if door is None else listening(*door)
    if listener is not None:
        lobby = Lobby(examined.roster, examined.identity)
        context = server_context(examined.identity, believed(examined.roster))
        answers = Door(context, lobby.welcome, lambda _: None)
        tasks.append(asyncio.create_task(answers.serve(listener)))
    try:
        findings = await asyncio.gather(*(collected(*pair) for pair in _others(examined)))
        return [finding for one in findings for finding in one]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if listener is not None:
            listener.close()


def _others(examined: Examined) -> list[tuple[Member, Member | None]]:
    """Return the members to check, and the relay through which each is reached, if any."""
    roster, member = examined.roster, examined.own
    relay = roster.relay
    others = [one for one in roster.members if one.name != member.name]
    pairs: list[tuple[Member, Member | None]] = [(one, None) for one in others if one.address]
    if relay is not None:
        pairs.append((relay, None))
        if member.address is None:
            pairs += [(one, relay) for one in others if one.address is None]
    return pairs


def _show(study: Study, name: str, findings: list[Finding], json: bool, quiet: bool) -> None:
    works = not any(one.state == "fails" for one in findings)
    if json:
        plain = [
            {"with": one.peer, "what": one.what, "state": one.state, "found": one.observation,
             "value": one.value, "sentence": one.sentence or None}
            for one in findings
        ]  # fmt: skip
        about = {"study": study.id, "edition": study.edition, "name": name}
        print_json({"works": works, **about, "checks": plain})
        return
    if quiet:
        return
    rows: list[tuple[str, ...]] = []
    for before, one in zip([None, *findings], findings, strict=False):
        peer = "" if before is not None and before.peer == one.peer else one.peer
        rows.append((peer, one.what, one.observation, "" if one.state == "ok" else one.state))
    show(table(rows, "with", "what", "found", "", title=f"{study.name} as {name}"))
    for one in findings:
        if one.sentence:
            print(printable(f"{one.state}: {one.sentence}"))
    if works:
        print(f"{name} can take part in {study.name}.")
