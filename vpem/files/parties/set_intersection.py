"""Private set intersection of ids, by openmined-psi: in turn, the first party with each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.engines.each import for_each
from vpem.engines.placement import Placement
from vpem.errors import InputError
from vpem.files.parties.ids import Tokens, match

__all__ = ["check_common", "intersect"]

FALSE_POSITIVES = 1e-12  # asked of the set intersection, which here has none: it sends raw sets


def intersect(
    tokens: dict[int, Tokens], sizes: Sequence[int], names: Sequence[str], holders: Placement
) -> tuple[dict[int, NDArray[np.intp]], int]:
    """Intersect the first party's ids with those of each other party in turn.

    In each run the first party is the client, with the ids still in question, and alone learns what
    is in common. In the end it tells the others the ids in common, which they have. The protocol is
    that of openmined-psi (elliptic curve Diffie-Hellman), for parties that keep to it. Returned are
    the rows in common (M,) of each party held here, in the first's order, and M. Tokens (m,) are
    all different, ``sizes`` the rows of every party.
    """
    parties = range(len(names))
    library = for_each(holders, parties, lambda _: _library())
    kept = np.arange(sizes[0]) if holders.mine(0) else np.zeros(0, dtype=np.intp)
    n_kept = sizes[0]
    for other in parties[1:]:
        client: Any = None
        setup = answer = request = None
        if holders.mine(0):
            client = library[0].client.CreateWithNewKey(True)
            request = client.CreateRequest(_texts(tokens[0][kept])).SerializeToString()
        request = holders.send(request, 0, other)
        if holders.mine(other):
            psi = library[other]
            server = psi.server.CreateWithNewKey(True)
            setup = server.CreateSetupMessage(
                FALSE_POSITIVES, n_kept, _texts(tokens[other]), psi.DataStructure.RAW
            ).SerializeToString()
            asked = psi.Request()
            asked.ParseFromString(request)
            answer = server.ProcessRequest(asked).SerializeToString()
        setup = holders.send(setup, other, 0)
        answer = holders.send(answer, other, 0)
        if holders.mine(0):
            psi = library[0]
            set_up, answered = psi.ServerSetup(), psi.Response()
            set_up.ParseFromString(setup)
            answered.ParseFromString(answer)
            # Numbers of what was asked for, in no order; each once, since ids differ.
            common = np.array(client.GetIntersection(set_up, answered), dtype=np.intp)
            kept = kept[np.unique(common)]
        n_kept = holders.bcast(len(kept))
        check_common(None if n_kept else other, names)
    agreed = tokens[0][kept] if holders.mine(0) else None
    passed = {}
    for party in parties:
        value = holders.send(agreed, 0, party)
        if holders.mine(party):
            passed[party] = value

    def rows_of(party: int) -> NDArray[np.intp]:
        (_, place), alone = match([np.asarray(passed[party]), tokens[party]])
        if alone is not None or len(place) != n_kept:
            raise InputError(
                f"party {names[party]!r} lacks ids that the set intersection found; run it again"
            )
        return np.asarray(place, dtype=np.intp)

    return for_each(holders, parties, rows_of), n_kept


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
