"""Ports kept open, and links looked at: `vpem relay` and `vpem party check`."""

from __future__ import annotations

import asyncio
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.errors import FileError, InputError, VpemError, VpemWarning, printable
from vpem.files.table_settings import TableSettings

from ..commands.use import refuse_given
from ..display import Screen, plural, print_json, show, table
from ..names import spoken
from ..options import Json, Quiet, Without
from ..outputs import READ, WRITTEN
from .handshake import INDIVIDUALS, look_at
from .party import As, StudyFile

if TYPE_CHECKING:
    from vpem.engines.tls.check import Finding
    from vpem.engines.tls.relay import Passed, Relay
    from vpem.engines.tls.trust import Identity
    from vpem.files.studies.study import Study
    from vpem.network.schema import Report

LOOK_EVERY = 5.0
"""Seconds between looks at the study's file."""

LONGEST = 500.0
"""Most seconds of idle time after which the other end still answers."""


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


def check(
    context: typer.Context,
    file: StudyFile,
    data: Annotated[
        list[Path] | None,
        READ,
        typer.Argument(
            help="The member's data, which are opened as the study's runs will, and searched for "
            "what these will refuse. Default: they are not checked.",
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
        from vpem.engines.tls.relay import Relay
        from vpem.files.studies.identities import identity_of, only_identity
        from vpem.files.studies.signed import address_of
        from vpem.files.studies.study import read_study

        check_number("idle", idle, least=0.0, most=LONGEST)
        study = read_study(file)
        who = only_identity(study.folder, name)
        member, relay = study.member(who), study.roster.relay
        door = study.listens.get(who) or (member.address and ("", member.address[1]))
        door = door if listen is None else address_of(listen)
        findings = _look(context, study, who, data or [], settings, screen)
        if serve and all(one.state == "ok" for one in findings):
            first = study.roster.members[0]
            if door is None and relay is None and (first is member or first.address is None):
                raise InputError(
                    f"no member can dial {who}, which has neither an address nor a relay"
                )
            passes_on = Relay() if first is member and relay is None else None
            serving = Serving(study, lambda one: identity_of(one, who), screen, passes_on)
            serving.run(door, who, ": it answers checks until Ctrl-C")
        certificate, *links = _check(study, who, door, idle)
        findings = [certificate, *findings, *links]
        failed = [one for one in findings if one.state == "fails"]
        if json:
            about = {"study": study.id, "edition": study.edition, "name": who}
            checks = [
                {"with": one.peer, "what": one.what, "state": one.state, "found": one.observation,
                 "value": one.value, "sentence": one.sentence or None}
                for one in findings
            ]  # fmt: skip
            print_json({"works": not failed, **about, "checks": checks})
        elif not quiet:
            _show(findings, f"{study.name} as {who}")
            if not failed:
                print(f"{who} can take part in {study.name}.")
        closed = [one.peer for one in failed if one.what == "port"]
        command = f"vpem party check {study.path.name} --serve"
        if closed:
            screen.say(f"{', '.join(closed)} answers only while it runs the study or '{command}'")
        elif member.address is not None:
            screen.say(f"others reach {who} only while it runs the study or '{command}'")
        if failed:
            raise typer.Exit(2)


def _show(findings: list[Finding], title: str) -> None:
    rows, before = list[tuple[str, ...]](), ""
    for one in findings:
        peer, before = "" if one.peer == before else one.peer, one.peer
        rows.append((peer, one.what, one.observation, "" if one.state == "ok" else one.state))
    show(table(rows, "with", "what", "found", "", title=title))
    for one in findings:
        if one.sentence:
            print(printable(f"{one.state}: {one.sentence}"))


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


def _check(study: Study, name: str, door: tuple[str, int] | None, idle: float) -> list[Finding]:
    """Look at a member's certificate, and its links with all whom it may talk with."""
    from vpem.engines.tls.check import Examined, Finding, examine_all
    from vpem.engines.tls.trust import fingerprint, not_valid, validity
    from vpem.files.studies.identities import certificate_of, identity_of, key_of, read_identity

    sentence, state = "", "ok"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", VpemWarning)
        try:
            identity = identity_of(study, name)
        except InputError as error:
            # Others are dialled all the same: the clock may be wrong.
            identity, state, sentence = read_identity(study.folder, name), "fails", str(error)
            key_of(identity)
            since = study.roster.revoked.get(fingerprint(certificate_of(identity)))
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
    links = asyncio.run(examine_all(Examined(study.roster, identity, idle), door))
    clock_fails = any((one.what, one.state) == ("clock", "fails") for one in links)
    if clock_fails and not_valid(name, certificate):
        state, until, sentence = "note", f"{until}, so not by this machine's clock", ""
    return [Finding(name, "certificate", state, until, sentence), *links]


def relay(
    file: Annotated[
        Path,
        READ,
        typer.Argument(
            metavar="STUDY",
            help="The study, NAME.toml, which names this relay; its key and "
            "certificate lie beside it.",
        ),
    ],
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where to listen; 0.0.0.0 or [::] means all addresses of this machine. Default: "
            "the port of the study's address, on all interfaces.",
        ),
    ] = None,
    log: Annotated[
        Path | None,
        WRITTEN,
        typer.Option(
            help="Add a line of JSON to this file whenever a member connects, leaves, or talks "
            "with another: when, how long, how many bytes.",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Pass sealed messages on between members of a study.

    It links members of which neither can be dialled: all dial the relay, which needs a port that
    they can reach, and no data. Inside they speak TLS with each other, so that the relay learns who
    talks with whom, when and how much, and nothing else. It runs until Ctrl-C or SIGTERM; a newer
    edition of the study takes effect when the file is replaced.

    Make its key with 'vpem party init --name relay', and give its certificate to the organiser.

    Example: vpem relay heart.toml --listen 0.0.0.0:443
    """  # fmt: skip
    with Screen(quiet) as screen:
        from vpem.engines.tls.relay import Relay
        from vpem.files.studies.signed import address_of
        from vpem.files.studies.study import read_study

        study = read_study(file)
        known = study.roster.relay
        if listen is not None:
            where = address_of(listen)
        elif known is not None and known.address is not None:
            where = ("", known.address[1])
        else:
            raise InputError(
                f"{study.path} names no relay; its organiser names one when the study is made: "
                "vpem study init --relay HOST:PORT --relay-certificate FILE"
            )
        note = None if log is None else _noting(log, screen, study)
        serving = Serving(study, _identity, screen, Relay(note))
        knows = ": it sees who talks with whom and how much, and nothing else"
        serving.run(where, "the relay", knows)


def _identity(study: Study) -> Identity:
    """Return the relay's key and certificate; InputError unless the study names them."""
    from vpem.files.studies.identities import certificate_of, read_identity, usable

    named = study.roster.relay
    if named is None:
        raise InputError(f"{study.path} names no relay any more")
    identity = usable(read_identity(study.folder, named.name))
    if certificate_of(identity) != named.certificate:
        raise InputError(
            f"the certificate {identity.certificate} is not the one that {study.path} has for its "
            f"relay {named.name}; give it to {study.organiser}"
        )
    return identity


def _noting(path: Path, screen: Screen, study: Study) -> Callable[[Passed], None]:
    """Return what adds a line of JSON on what a relay passes on; a full disk stops no relay.

    The file may be moved away meanwhile.
    """
    import json
    import time

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
