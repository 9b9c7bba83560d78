"""Parties agree on rows by their ids before a fit, showing each other as little as they choose.

Inner join: the rows that every party has, in the order of the first party's file. Outer join
(``keep_missing``): the rows that any party has, those of the first party first, then what the
second has besides, and so on, each in the order of its file.

What each level reveals is said in docs/reference/parties.md. Everything is a sequence of steps over
a `vpem.engines.placement.Placement`, the same in every process, so that it runs in one process or
in many.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import unicodedata
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import AnyArray, Labels
from vpem.engines.placement import Placement, for_each
from vpem.errors import InputError, Setting, VpemWarning, brief, check_choice, shorten
from vpem.files.opening import check_readable, open_regular
from vpem.network.schema import Report
from vpem.settings import ALIGNMENTS

Tokens = NDArray[np.bytes_]
"""Ids, or hashes of them, as bytes of fixed width."""

Places = NDArray[np.intp]
"""Where each row that is agreed on (M,) is among those that a party sent; -1: nowhere."""

SHORTEST_KEY = 32  # bytes

STRETCHED: dict[str, int] = {"n": 1 << 15, "r": 8, "p": 1, "maxmem": 1 << 26, "dklen": 32}
"""By scrypt (RFC 7914): each guess at a typed key takes 0.1 s and 32 MB."""

LEAST_SHARE = 0.1  # of the smallest party; fewer rows in common are warned about


@dataclass(frozen=True)
class Alignment:
    level: str  # one of `ALIGNMENTS`
    keep_missing: bool  # also rows that some parties lack
    names: tuple[str, ...]
    n_samples: int  # rows agreed on, M
    sizes: tuple[int, ...]  # rows of each party's file
    present: tuple[int, ...]  # how many of the M each party has
    n_complete: int  # how many of the M all have
    rows: dict[int, NDArray[np.intp]]  # (M,), -1: lacked
    by_position: bool = False  # nothing but their places says which rows belong together

    def describe(self) -> Report:
        """Return whose rows are complete, lost (not used) and absent (of the M), for JSON."""
        return {
            "level": self.level,
            "join": "outer" if self.keep_missing else "inner",
            "rows": self.n_samples,
            "complete": self.n_complete,
            "parties": [
                {"name": name, "rows": size, "lost": size - has, "absent": self.n_samples - has}
                for name, size, has in zip(self.names, self.sizes, self.present, strict=True)
            ],
        }


def align(
    ids: Mapping[int, Labels | int],
    names: Sequence[str],
    holders: Placement,
    level: str | None = None,
    *,
    keys: Mapping[int, bytes] | None = None,
    keep_missing: bool = False,  # with levels ids and hmac
) -> Alignment:
    """Agree on the rows that belong together; ``rows`` of the result are of the parties held here.

    ``ids`` are what a party's rows are called (m,), or how many there are if they have no names.
    Level none: rows go together by their places, with a VpemWarning where checksums of ids differ;
    None (not specified): such are refused, as are ids that only some have, and, where processes
    belong to different organisations, any ids, since no checksum of them is sent. ids: the first
    party gets the ids; hmac: it gets hashes of them by the ``keys``, the same for all; psi: private
    set intersections between the first party and each other. What cannot be aligned raises the same
    InputError in every process; VpemWarning where very few ids are in common.
    """
    if level is not None:
        check_choice("align", level, ALIGNMENTS)
    names = tuple(names)
    parties = range(len(names))
    if keep_missing and level not in ("ids", "hmac"):
        why = (
            "by private set intersection a party learns nothing of rows it lacks"
            if level == "psi"
            else "without ids it is not known which rows are missing"
        )
        raise InputError(
            f"rows that some parties lack cannot be kept with align {level or 'none'}, since "
            f"{why}; align by ids or hmac"
        )
    read = for_each(holders, parties, lambda party: read_ids(ids[party], names[party], level))
    every = holders.allgather({party: facts for party, (_, facts) in read.items()})
    facts = [every[party] for party in parties]
    for fact, name in zip(facts, names, strict=True):
        if fact["respelled"]:
            warnings.warn(
                f"{fact['respelled']} ids of party {name!r} have white space around them or "
                f"letters composed in another way (first in row {fact['first']}), which was "
                "normalised",
                VpemWarning,
                stacklevel=2,
            )
    tokens = {
        party: own_tokens for party, (own_tokens, _) in read.items() if own_tokens is not None
    }
    sizes = tuple(int(fact["rows"]) for fact in facts)
    check_ids(facts, names, level, not holders.engine.open)
    if level in (None, "none"):
        by_position = not _same_order(tokens, sizes, facts, names, holders, level is None)
        rows = {party: np.arange(sizes[party]) for party in read}
        return Alignment("none", False, names, sizes[0], sizes, sizes, sizes[0], rows, by_position)
    limit = holders.engine.limit if level in ("hmac", "psi") else None
    for_each(holders, parties, lambda party: limit and limit(sizes, party, names))
    if level == "hmac":
        tokens = _hashed(tokens, names, keys, holders)
    if level == "psi":
        rows, n_complete = intersect(tokens, sizes, names, holders)
    else:
        rows, n_complete = _matched(tokens, names, holders, keep_missing)
    counts = {party: [len(part), int((part >= 0).sum())] for party, part in rows.items()}
    known = holders.allgather(counts)
    if any(known[party][0] != known[0][0] for party in parties):
        raise InputError(
            f"party {names[0]!r} has not sent all parties the same rows: they have "
            f"{shorten(known[party][0] for party in parties)}"
        )
    present = tuple(known[party][1] for party in parties)
    if n_complete < LEAST_SHARE * min(sizes):
        warnings.warn(
            f"only {n_complete} {'row is' if n_complete == 1 else 'rows are'} in common, while the "
            f"smallest party has {min(sizes)}; are ids written alike everywhere (zeros in front, "
            "upper case)?",
            VpemWarning,
            stacklevel=2,
        )
    return Alignment(level, keep_missing, names, known[0][0], sizes, present, n_complete, rows)


def read_key(path: str | os.PathLike[str]) -> bytes:
    """Read the key that all parties share, stripped; InputError if it is short or monotonous."""
    with open_regular(check_readable(path)) as file:
        key = file.read(1 << 20).strip()
    if len(key) < SHORTEST_KEY:
        raise InputError(
            f"the key in {os.fspath(path)} has {len(key)} bytes, too short to withstand guessing; "
            f"make one of at least {SHORTEST_KEY}, as 'openssl rand -hex 32' does"
        )
    if len(set(key)) < 8:
        raise InputError(
            f"the key in {os.fspath(path)} repeats {len(set(key))} different bytes, which is easy "
            "to guess; make one by 'openssl rand -hex 32'"
        )
    return key


def read_ids(ids: Labels | int, name: str, level: str | None) -> tuple[Tokens | None, Report]:
    """Return a party's ids (m,) as bytes, stripped and composed (NFC), and what others may know.

    That is the number of rows, the kind of ids, how many were respelled, and the first such row.
    InputError names rows, never ids; they must differ where a ``level`` matches them.
    """
    if isinstance(ids, int):
        return None, {"rows": ids, "kind": "none", "respelled": 0, "first": 0}
    values: AnyArray = np.asarray(ids)
    respelled = np.zeros(0, dtype=np.intp)
    if values.dtype.kind == "f":
        largest = 2.0 ** (np.finfo(values.dtype).nmant + 1)
        wrong = ~(np.isfinite(values) & (np.abs(values) <= largest))
        wrong[~wrong] = values[~wrong] != np.round(values[~wrong])
        if wrong.any():
            raise InputError(
                f"row {int(np.argmax(wrong))} of party {name!r} has an id that is not a whole "
                f"number a {values.dtype} holds exactly; store ids as integers or strings"
            )
        values = values.astype(np.int64)
    if values.dtype.kind in "iu":
        kind, tokens = "whole numbers", values.astype("S21")
    elif values.dtype.kind == "U" or all(isinstance(value, str) for value in values.flat):
        kind = "strings"
        texts = values.tolist()
        spelled = [unicodedata.normalize("NFC", text).strip() for text in texts]
        pairs = zip(texts, spelled, strict=True)
        respelled = np.flatnonzero([old != new for old, new in pairs])
        if "" in spelled:
            raise InputError(
                f"row {spelled.index('')} of party {name!r} has an empty id; fill it in or remove "
                "the row"
            )
        tokens = np.array([text.encode() for text in spelled], dtype=np.bytes_)
    else:
        raise InputError(f"the ids of party {name!r} must be strings or whole numbers")
    if level not in (None, "none"):
        order = np.argsort(tokens, kind="stable")
        ordered = tokens[order]
        again = np.flatnonzero(ordered[1:] == ordered[:-1])
        if again.size:
            # The first row that repeats an earlier one, and that one; the id itself is not shown.
            later = int(order[again + 1].min())
            earlier = int(np.flatnonzero(tokens == tokens[later])[0])
            more = f" ({again.size} repeat others in all)" if again.size > 1 else ""
            raise InputError(
                f"rows {earlier} and {later} of party {name!r} have the same id{more}; each row "
                "must have an id of its own"
            )
    first = int(respelled[0]) if respelled.size else 0
    count = int(respelled.size)
    return tokens, {"rows": len(tokens), "kind": kind, "respelled": count, "first": first}


def checksum(tokens: Tokens, salt: bytes) -> str:
    """Return a hash of ids in their order, by a salt of one run, so that runs tell it apart."""
    digest = hashlib.sha256(salt)
    for token in tokens.tolist():
        digest.update(b"%d:%b" % (len(token), token))
    return digest.hexdigest()


def match(tokens: Sequence[Tokens]) -> tuple[list[Places], int | None]:
    """Match the rows that all have: places (M,) in what each sent; and a party alone in its ids."""
    first = tokens[0]
    order = np.argsort(first)
    ordered = first[order]
    common = np.ones(len(first), dtype=bool)
    where = [np.arange(len(first))]
    alone = None
    for party, other in enumerate(tokens[1:], 1):
        at = np.minimum(np.searchsorted(ordered, other), len(first) - 1)
        matched = np.flatnonzero(ordered[at] == other)
        place = np.full(len(first), -1, dtype=np.intp)
        place[order[at[matched]]] = matched
        where.append(place)
        common &= place >= 0
        if alone is None and not common.any():
            alone = party
    return [place[common] for place in where], alone


FALSE_POSITIVES = 1e-12  # a parameter of the library, without effect: it sends raw sets here
POINT_BYTES = 35  # of an encrypted id in a message: a point of P-256, and what says that it is one


def intersect(
    tokens: dict[int, Tokens], sizes: Sequence[int], names: Sequence[str], holders: Placement
) -> tuple[dict[int, NDArray[np.intp]], int]:
    """Intersect the first party's ids with those of each other party in turn.

    In each run the first party is the client, with the ids still in question, and alone learns what
    is in common; others answer as many ids as it has announced and kept, and no more. In the end it
    tells the others the ids in common, which they have: it could leave some out. The protocol is
    that of openmined-psi (elliptic curve Diffie-Hellman), for parties that keep to it. Returned are
    the rows in common (M,) of each party held here, in the first's order, and M. Tokens (m,) are
    all different, ``sizes`` the rows of every party.
    """
    parties = range(len(names))
    library = for_each(holders, parties, lambda _: _library())
    kept = np.arange(sizes[0]) if holders.mine(0) else np.zeros(0, dtype=np.intp)
    n_kept = sizes[0]
    client: Any = None
    for other in parties[1:]:
        request = None
        if holders.mine(0):
            client = library[0].client.CreateWithNewKey(True)
            texts = [token.decode() for token in tokens[0][kept].tolist()]
            request = client.CreateRequest(texts).SerializeToString()
        request = holders.send(request, 0, other)
        answer = partial(_answer, library, request, n_kept, tokens, names)
        sent = holders.send(for_each(holders, [other], answer).get(other), other, 0)
        look = partial(_common, library, client, sent, (sizes[other], n_kept), names[other])
        matched = for_each(holders, [0], look)
        kept = kept[matched[0]] if matched else kept
        count = holders.bcast(len(kept))
        if not isinstance(count, int) or not 0 <= count <= min(n_kept, sizes[other]):
            raise InputError(
                f"party {names[0]!r} says that {brief(count)} ids are in common with party "
                f"{names[other]!r}, of at most {min(n_kept, sizes[other])}"
            )
        n_kept = count
        check_common(None if n_kept else other, names)
    common = _to_each([tokens[0][kept] if holders.mine(0) else None] * len(names), holders)

    def rows_of(party: int) -> NDArray[np.intp]:
        ids = np.asarray(common[party])
        if ids.shape != (n_kept,) or ids.dtype.kind != "S":
            raise InputError(
                f"party {names[0]!r} sent a list of {ids.size} ids in common, expected {n_kept}"
            )
        (_, place), alone = match([ids, tokens[party]])
        if alone is not None or len(place) != n_kept:
            raise InputError(
                f"party {names[party]!r} lacks ids that the set intersection found; run it again"
            )
        return np.asarray(place, dtype=np.intp)

    return for_each(holders, parties, rows_of), n_kept


def _to_each(values: Sequence[object], holders: Placement) -> dict[int, object]:
    """Send each party a value of the first one; returned are those of the parties held here."""
    received = {}
    for party, value in enumerate(values):
        value = holders.send(value, 0, party)
        if holders.mine(party):
            received[party] = value
    return received


def _answer(
    library: dict[int, Any], request: object, n_ids: int, tokens: dict[int, Tokens],
    names: Sequence[str], party: int,
) -> list[bytes]:  # fmt: skip
    """Return a party's messages to the first one, whose request must have ``n_ids`` ids."""
    psi = library[party]
    with _read_from(names[0]):
        parsed = _read(psi.Request, request, n_ids, names[0])
        server = psi.server.CreateWithNewKey(True)
        answer = server.ProcessRequest(parsed).SerializeToString()
    texts = [token.decode() for token in tokens[party].tolist()]
    setup = server.CreateSetupMessage(FALSE_POSITIVES, n_ids, texts, psi.DataStructure.RAW)
    return [setup.SerializeToString(), answer]


def _common(
    library: dict[int, Any], client: Any, sent: Any, sizes: Sequence[int], name: str, first: int
) -> NDArray[np.intp]:
    """Return which of the first party's ids another has too, by the messages that it sent."""
    psi = library[first]
    with _read_from(name):
        setup = _read(psi.ServerSetup, sent[0], sizes[0], name)
        answer = _read(psi.Response, sent[1], sizes[1], name)
        # In no order; each once, since ids differ.
        return np.unique(np.array(client.GetIntersection(setup, answer), dtype=np.intp))


def _read(kind: Any, message: Any, n_ids: int, name: str) -> Any:
    """Read a message of so many encrypted ids: of others nothing is made, or computed with."""
    parsed, n_found = None, len(message) // POINT_BYTES
    if n_found == n_ids:
        parsed = kind()
        parsed.ParseFromString(message)
        n_found = len(getattr(parsed, "raw", parsed).encrypted_elements)
    if n_found != n_ids:
        raise InputError(
            f"party {name!r} sent {n_found} encrypted ids, but it may send {n_ids}, as many as it "
            "has announced or as are still in question"
        )
    return parsed


@contextmanager
def _read_from(name: str) -> Iterator[None]:
    """Turn whatever the library raises into InputError that names the sender."""
    try:
        yield
    except InputError:
        raise
    except Exception:
        raise InputError(
            f"party {name!r} has sent something else than encrypted ids; are all of the same "
            "version of vpem?"
        ) from None


def _library() -> Any:
    try:
        import private_set_intersection.python as psi
    except ImportError:
        raise InputError(
            "align psi needs openmined-psi; pip install 'vpem[psi]', or align by hmac"
        ) from None
    return psi


def check_common(alone: int | None, names: Sequence[str]) -> None:
    """Raise InputError if there is a party that has nothing in common with those before it."""
    if alone is not None:
        before = f"with party {names[0]!r}" if alone == 1 else "with the parties before it"
        raise InputError(
            f"party {names[alone]!r} has no id in common {before}; are ids written alike "
            "everywhere (zeros in front, upper case), and are these the right files?"
        )


BY_POSITION = (", or join them by position all the same with ", Setting("align", "none"))


def check_ids(
    facts: Sequence[Report],  # of each party, as `read_ids` tells them
    names: Sequence[str],
    level: str | None,
    apart: bool,  # the processes are other people's
) -> None:
    """Raise InputError if ids are missing, cannot be compared, or it is not said what they do."""
    kinds = [fact["kind"] for fact in facts]
    having = [name for name, kind in zip(names, kinds, strict=True) if kind != "none"]
    if level not in (None, "none") and "none" in kinds:
        elsewhere = (
            " or in a manifest, store them in its HDF5 file (ids), or say ",
            Setting("align", "none"),
            " if rows are aligned already",
        )
        raise InputError(
            f"party {names[kinds.index('none')]!r} has no ids, by which rows could be aligned; "
            "name their column with ",
            Setting("id_column"),
            *((", or store them in its HDF5 file (ids)",) if apart else elsewhere),
        )
    if level is None and having and apart:
        raise InputError(
            f"party {having[0]!r} has ids, but whether to match rows by them was not specified; "
            "align them by adding ", Setting("align", "ids"), " (or hmac, psi), or say ",
            Setting("align", "none"), " if all files have the same rows in the same order",
        )  # fmt: skip
    if level is None and having and "none" in kinds:
        raise InputError(
            f"party {having[0]!r} has ids and party {names[kinds.index('none')]!r} has none, so "
            "nothing says whether their rows are the same; name their column with ",
            Setting("id_column"), " and align them by adding ", Setting("align", "ids"),
            " (or hmac, psi)", *BY_POSITION,
        )  # fmt: skip
    of_kind = dict(zip(reversed(kinds), reversed(names), strict=True))
    of_kind.pop("none", None)
    if len(of_kind) > 1 and level != "none":
        raise InputError(
            f"the ids of party {of_kind['whole numbers']!r} are whole numbers, those of party "
            f"{of_kind['strings']!r} strings, which are never equal; store both as strings, "
            "written alike"
        )


def _same_order(
    tokens: dict[int, Tokens],
    sizes: Sequence[int],
    facts: Sequence[Report],
    names: Sequence[str],
    holders: Placement,
    refuse: bool,  # ids that differ, of which there is a warning else
) -> bool:
    """Whether ids of all parties say that rows are the same; InputError where they cannot be."""
    for size, name in zip(sizes, names, strict=True):
        if size != sizes[0]:
            nameless = any(fact["kind"] == "none" for fact in facts)
            column = (" ", Setting("id_column", "NAME")) if nameless else ()
            raise InputError(
                f"party {name!r} has {size} rows, party {names[0]!r} {sizes[0]}, so they are not "
                "aligned; align them by adding ",
                Setting("align", "ids"),
                *column,
                " (or hmac, psi)",
            )
    salt = holders.bcast(secrets.token_bytes(16))
    sums = holders.allgather(
        {
            party: [checksum(part, salt), checksum(np.sort(part), salt)]
            for party, part in tokens.items()
        }
    )
    having = sorted(sums)
    for party in having[1:]:
        if sums[party] != sums[having[0]]:
            same = sums[party][1] == sums[having[0]][1]
            difference = "has the same ids in another order than" if same else "has other ids than"
            what = f"party {names[party]!r} {difference} party {names[having[0]]!r}"
            if refuse:
                raise InputError(
                    f"{what}, so their rows are not aligned; align them by adding ",
                    Setting("align", "ids"), " (or hmac, psi)", *BY_POSITION * (not same),
                )  # fmt: skip
            warnings.warn(f"{what}; rows are joined by position", VpemWarning, stacklevel=3)
            return False
    return len(having) == len(names)


def _hashed(
    tokens: dict[int, Tokens],
    names: Sequence[str],
    keys: Mapping[int, bytes] | None,
    holders: Placement,
) -> dict[int, Tokens]:
    """Replace ids by keyed hashes (HMAC-SHA256) of this run, after checking that keys agree."""
    salt = holders.bcast(secrets.token_bytes(16))
    keys = {} if keys is None else keys
    stretched = {key: hashlib.scrypt(key, salt=salt, **STRETCHED) for key in set(keys.values())}

    def mark(party: int) -> str:
        if party not in keys:
            raise InputError(
                Setting("align", "hmac"),
                " needs a key that all parties share; give its file by ",
                Setting("align_key"),
            )
        return hmac.digest(stretched[keys[party]], b"vpem: which key", "sha256").hex()

    marks = holders.allgather(for_each(holders, range(len(names)), mark))
    for party, name in enumerate(names):
        if not hmac.compare_digest(marks[party], marks[0]):
            raise InputError(
                f"party {name!r} has another key than party {names[0]!r}; give all the same file"
            )
    out = {}
    for party, part in tokens.items():
        key = stretched[keys[party]]
        digests = [hmac.digest(key, b"vpem: id " + token, "sha256") for token in part.tolist()]
        out[party] = np.frombuffer(b"".join(digests), dtype="S32")
    return out


def _matched(
    tokens: dict[int, Tokens], names: Sequence[str], holders: Placement, keep_missing: bool
) -> tuple[dict[int, NDArray[np.intp]], int]:
    """Let the first party match what all parties send it, and tell each which rows to take."""
    # In an inner join the order in which a party sends means nothing: sorted, it tells nothing of
    # its file.
    orders = {
        party: np.arange(len(part)) if keep_missing or party == 0 else np.argsort(part)
        for party, part in tokens.items()
    }
    sent = holders.gather({party: part[orders[party]] for party, part in tokens.items()}, 0)
    places: Sequence[Places | None] = [None] * len(names)
    alone: int | None = None
    n_complete = 0
    if sent is not None and holders.mine(0):
        everyone = [sent[party] for party in range(len(names))]
        found, alone = _outer(everyone) if keep_missing else match(everyone)
        places = found
        n_complete = int(np.all([place >= 0 for place in found], axis=0).sum())
    alone, n_complete = holders.bcast([alone, n_complete])
    check_common(alone, names)
    chosen_rows = _to_each(places, holders)

    def rows_of(party: int) -> NDArray[np.intp]:
        chosen, order = np.asarray(chosen_rows[party]), orders[party]
        fits = chosen.ndim == 1 and chosen.dtype.kind == "i"
        fits = fits and -keep_missing <= chosen.min(initial=0) <= chosen.max(initial=0) < len(order)
        if not fits or len(np.unique(chosen[chosen >= 0])) < (chosen >= 0).sum():
            raise InputError(
                f"party {names[0]!r} must tell party {names[party]!r} which of its {len(order)} "
                f"rows are used, each once, got {brief(chosen_rows[party])}"
            )
        out = np.full(len(chosen), -1, dtype=np.intp)
        out[chosen >= 0] = order[chosen[chosen >= 0]]
        return out

    return for_each(holders, range(len(names)), rows_of), n_complete


def _outer(tokens: Sequence[Tokens]) -> tuple[list[Places], int | None]:
    """Match the rows that any has, in the order in which they first appear; see `match`."""
    _, first, of = np.unique(np.concatenate(tokens), return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.intp)
    rank[np.argsort(first)] = np.arange(len(first))
    ends = np.cumsum([len(part) for part in tokens])
    places = []
    for group in np.split(rank[of.reshape(-1)], ends[:-1]):
        place = np.full(len(first), -1, dtype=np.intp)
        place[group] = np.arange(len(group))
        places.append(place)
    seen = places[0] >= 0
    for party, place in enumerate(places[1:], 1):
        if not (seen & (place >= 0)).any():
            return places, party
        seen |= place >= 0
    return places, None
