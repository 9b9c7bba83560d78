"""Private set intersection of ids, by openmined-psi: in turn, the first party with each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.engines.each import for_each
from vpem.engines.placement import Placement
from vpem.errors import InputError, brief
from vpem.files.parties.ids import Tokens, match

FALSE_POSITIVES = 1e-12  # asked of the set intersection, which here has none: it sends raw sets
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
            request = client.CreateRequest(_texts(tokens[0][kept])).SerializeToString()
        request = holders.send(request, 0, other)
        answer = partial(_answer, library, request, n_kept, tokens, names)
        sent = holders.send(for_each(holders, [other], answer).get(other), other, 0)
        look = partial(_common, library, client, sent, (sizes[other], n_kept), names[other])
        found = for_each(holders, [0], look)
        kept = kept[found[0]] if found else kept
        told = holders.bcast(len(kept))
        if not isinstance(told, int) or not 0 <= told <= min(n_kept, sizes[other]):
            raise InputError(
                f"party {names[0]!r} says that {brief(told)} ids are in common with party "
                f"{names[other]!r}, of at most {min(n_kept, sizes[other])}"
            )
        n_kept = told
        check_common(None if n_kept else other, names)
    agreed = tokens[0][kept] if holders.mine(0) else None
    passed = {}
    for party in parties:
        value = holders.send(agreed, 0, party)
        if holders.mine(party):
            passed[party] = value

    def rows_of(party: int) -> NDArray[np.intp]:
        ids = np.asarray(passed[party])
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


def _answer(
    library: dict[int, Any], request: object, n_ids: int, tokens: dict[int, Tokens],
    names: Sequence[str], party: int,
) -> list[bytes]:  # fmt: skip
    """Return what a party answers the first one, which asks with so many ids and no others."""
    psi = library[party]
    with _read_from(names[0]):
        asked = _read(psi.Request, request, n_ids, names[0])
        server = psi.server.CreateWithNewKey(True)
        answer = server.ProcessRequest(asked).SerializeToString()
    texts = _texts(tokens[party])
    setup = server.CreateSetupMessage(FALSE_POSITIVES, n_ids, texts, psi.DataStructure.RAW)
    return [setup.SerializeToString(), answer]


def _common(
    library: dict[int, Any], client: Any, sent: Any, sizes: Sequence[int], name: str, first: int
) -> NDArray[np.intp]:
    """Return which of the ids that the first party has asked for another has, by what that sent."""
    psi = library[first]
    with _read_from(name):
        setup = _read(psi.ServerSetup, sent[0], sizes[0], name)
        answer = _read(psi.Response, sent[1], sizes[1], name)
        # In no order; each once, since ids differ.
        return np.unique(np.array(client.GetIntersection(setup, answer), dtype=np.intp))


def _read(kind: Any, message: Any, n_ids: int, name: str) -> Any:
    """Read a message of so many encrypted ids: of others nothing is made, or computed with."""
    found, n_found = None, len(message) // POINT_BYTES
    if n_found == n_ids:
        found = kind()
        found.ParseFromString(message)
        n_found = len(getattr(found, "raw", found).encrypted_elements)
    if n_found != n_ids:
        raise InputError(
            f"party {name!r} sent {n_found} encrypted ids, but it may send {n_ids}, as many as it "
            "has announced or as are still in question"
        )
    return found


@contextmanager
def _read_from(name: str) -> Iterator[None]:
    """Say whose messages cannot be read; the library raises what it likes."""
    try:
        yield
    except InputError:
        raise
    except Exception:
        raise InputError(
            f"party {name!r} has sent something else than encrypted ids; are all of the same "
            "version of vpem?"
        ) from None


def _texts(tokens: Tokens) -> list[str]:
    return [token.decode() for token in tokens.tolist()]


def _library() -> Any:
    """Return openmined-psi."""
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
