"""`vpem relay`: passes sealed bytes on between members of a study that cannot be dialled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vpem.errors import FileError, InputError

from ..display import Screen
from ..options import Quiet
from ..outputs import READ, WRITTEN

if TYPE_CHECKING:
    from vpem.engines.tls.relay import Passed
    from vpem.engines.tls.trust import Identity
    from vpem.files.studies.study import Study
    from vpem.network.schema import Report


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
            show_default=False,
            help="Where to listen; 0.0.0.0 or [::] means all addresses of this machine. Default: "
            "the port of the study's address, on all interfaces.",
        ),
    ] = None,
    log: Annotated[
        Path | None,
        WRITTEN,
        typer.Option(
            show_default=False,
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
    from .check import Serving

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
        serving = Serving(study, _identity, screen, Relay(_Log(log, screen, study).record_event))
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


class _Log:
    """Lines of JSON about what a relay passes on, in a file that may be moved away meanwhile."""

    def __init__(self, path: Path | None, screen: Screen, study: Study) -> None:
        self.path = path
        self._screen = screen
        if path is not None:
            self._write({"event": "begun", "study": study.id, "edition": study.edition})

    def record_event(self, passed: Passed) -> None:
        """Add a line; a full disk stops no relay."""
        if self.path is None:
            return
        try:
            self._write({
                "event": passed.event, "from": passed.source, "to": passed.target,
                "bytes": passed.there, "bytes_back": passed.back,
                "seconds": round(passed.seconds, 3),
            })  # fmt: skip
        except FileError as error:
            self._screen.warn(f"{error}; nothing is logged any more")
            self.path = None

    def _write(self, line: Report) -> None:
        import json
        import time

        assert self.path is not None
        dated = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **line}
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(dated) + "\n")
        except OSError as error:
            raise FileError(f"{self.path} cannot be written: {error.strerror or error}") from None
