"""Studies that are made: how members are linked, and the first edition."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vpem.records import Settings, setting
from vpem.settings import TOPOLOGIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vpem.engines.tls.members import Member
    from vpem.files.studies.study import Study
    from vpem.network.schema import Report

    from .agreed import Agreed
    from .disclosure import Setup


class NewStudy(Settings, heading="Study", kept=False):
    """How members of a new study are linked, and what they will have."""

    star: str | None = setting(
        None, "HOST:PORT where others dial its organiser, who adds up (a star)."
    )
    relay: str | None = setting(
        None,
        "HOST:PORT of a 'vpem relay', which passes sealed messages on between members that cannot "
        "be dialled; needs --relay-certificate.",
    )
    relay_certificate: Path | None = setting(None, "The relay's certificate (.crt).", file="read")
    topology: str | None = setting(
        None,
        "Graph of the members: star, cycle, path, complete, ... Default: star.",
        choices=TOPOLOGIES,
    )
    address: str | None = setting(
        None, "HOST:PORT where others can dial the organiser, on other graphs than a star."
    )
    listen: str | None = setting(
        None, "HOST:PORT of the organiser's door on its own machine, if others know another."
    )
    data: bool = setting(
        False, "The organiser brings data too. Without --star or --topology star it always does."
    )
    result: str = setting(
        "all",
        "Who has the result: all members, or each the parameters of its own features (shards).",
        choices=("all", "shards"),
    )
    timeout: float = setting(
        600.0, "Seconds after which a member that is not heard of is given up.", least=1.0
    )
    if_lost: str = setting(
        "wait",
        "What becomes of a run then: it ends, and goes on from checkpoints once that member is "
        "back (wait), or the others go on (without).",
        choices=("wait", "without"),
    )


def check_links(how: NewStudy) -> None:
    """Raise InputError where members could not reach each other, or options do not go together."""
    from vpem.errors import InputError, Setting

    star = how.topology in (None, "star")
    if how.star is not None and not star:
        raise InputError(
            Setting("star"), " says where a star's server is; for other graphs it is ",
            Setting("address"),
        )  # fmt: skip
    if how.star is not None and how.address is not None:
        raise InputError("give ", Setting("star"), " or ", Setting("address"), ", not both")
    if how.star is None and how.relay is None and star:
        raise InputError(
            "how do members reach each other? Say ", Setting("star", "HOST:PORT"),
            ", where the others dial this one, or ", Setting("relay", "HOST:PORT"),
        )  # fmt: skip
    if (how.relay is None) != (how.relay_certificate is None):
        raise InputError(
            Setting("relay"), " and ", Setting("relay_certificate"), " go together: members pin it"
        )  # fmt: skip
    if how.listen is not None and how.star is None and how.address is None:
        raise InputError(
            Setting("listen"), " is for a member that others dial; give ", Setting("star"), " or ",
            Setting("address"),
        )  # fmt: skip


def new_study(name: str, organiser: str | None, how: NewStudy, agreed: Sequence[Agreed]) -> Study:
    """Return the first edition of a study, of its organiser alone.

    Where nobody is named, the organiser is the one whose key alone lies in this folder.
    """
    import secrets
    from datetime import UTC, datetime

    from vpem import __version__
    from vpem.engines.tls.members import Member, Roster
    from vpem.files.studies.identities import certificate_of, only_identity, read_identity
    from vpem.files.studies.signed import address_of, check_name, moment
    from vpem.files.studies.study import Study

    from .disclosure import Setup

    check_name(name, "the name of a study")
    folder, topology = Path(), how.topology or "star"
    who = only_identity(folder, organiser)
    address = how.star or how.address
    member = Member(
        who,
        certificate_of(read_identity(folder, who)),
        None if address is None else address_of(address),
        holds=how.data or topology != "star",
    )
    relay, number = _relay(how), secrets.token_hex(16)
    setup = Setup(
        who,
        topology,
        None if relay is None else relay.name,
        how.result,
        how.if_lost,
        how.timeout,
        member.holds,
    )
    return Study(
        folder / f"{name}.toml", name, number, 1, __version__, who,
        moment(datetime.now(UTC)), how.result, float(how.timeout),
        roster=Roster(number, name, 1, (member,), relay),
        features={who: ()},
        listens={} if how.listen is None else {who: address_of(how.listen)},
        if_lost=how.if_lost,
        **what_is_run(setup, agreed),
    )  # fmt: skip


def what_is_run(setup: Setup, agreed: Sequence[Agreed]) -> Report:
    """Return the fields of a study that say what is run, and what that shows to whom."""
    from .disclosure import disclosures

    if setup.if_lost == "without":
        check_goes_on(agreed)
    told = {one.command: one.values for one in agreed}
    return {
        "options": {one.command: one.table for one in agreed},
        "runs": tuple(one.line() for one in agreed),
        "shows": tuple(one.text for one in disclosures(setup, told)),
    }


def check_goes_on(agreed: Sequence[Agreed]) -> None:
    """Raise InputError where a run cannot go on without a member, saying why."""
    from vpem.errors import InputError, Setting

    for one in agreed:
        if one.command == "select":
            raise InputError(
                Setting("if_lost", "without"), " cannot be had with 'vpem select', which compares "
                "fits to the features of the same parties; let it wait",
            )  # fmt: skip
        for name in ("epsilon", "release_epsilon"):
            if one.values.get(name) is not None:
                raise InputError(
                    Setting("if_lost", "without"),
                    f" cannot be had with --{name.replace('_', '-')}, which is spent where a run "
                    "begins again; let it wait",
                )  # fmt: skip
        over_rows = one.values.get("split") == "rows" or one.command not in ("fit", "kmeans")
        if one.values.get("secure_sum") and (over_rows or one.values.get("sum") == "tree"):
            raise InputError(
                Setting("if_lost", "without"), " can be had with --secure-sum for 'vpem fit' and "
                "'vpem kmeans' over features, at a server: others begin with sums that would be "
                "taken again without who is lost; let it wait",
            )  # fmt: skip
        hops = one.values.get("hops") if one.values.get("split") != "rows" else None
        if str(hops or 0) != "0":
            raise InputError(
                Setting("if_lost", "without"), " cannot be had with --hops above 0: hubs have "
                "features of others, and of a lost one; give --hops 0, or let it wait",
            )  # fmt: skip


def setup_of(study: Study) -> Setup:
    """Return how the members of a study are linked."""
    from .disclosure import Setup

    graphs = [table["topology"] for table in study.options.values() if "topology" in table]
    relay = study.roster.relay
    return Setup(
        study.organiser, next(iter(graphs), "star"), None if relay is None else relay.name,
        study.result, study.if_lost, study.timeout, study.roster.members[0].holds,
    )  # fmt: skip


def _relay(how: NewStudy) -> Member | None:
    """Return the relay of a new study."""
    from vpem.engines.tls.members import Member
    from vpem.files.studies.identities import read_certificate
    from vpem.files.studies.signed import address_of, common_name

    if how.relay is None or how.relay_certificate is None:
        return None
    made = read_certificate(how.relay_certificate)
    return Member(common_name(made), made, address_of(how.relay), holds=False)
