"""How parties agree on the keys of masked sums: public keys go around once, signed in a study."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from vpem.engines.engine import Signs, about
from vpem.engines.placement import Placement
from vpem.errors import InputError
from vpem.network.masks import (
    FRACTION_BITS,
    KEY_BYTES,
    FixedPoint,
    Masks,
    OwnKeys,
    PairKeys,
    check_parties,
)


def agree(
    place: Placement,
    names: Sequence[str] = (),
    *,
    fraction_bits: int = FRACTION_BITS,
    n_threads: int | None = None,
) -> Masks:
    """Make the masks of a run: fresh keys, which all parties exchange.

    Where processes have an identity (`Engine.signs`), each signs what it has heard of all, so that
    whoever passes keys on can neither change nor repeat them. A process without parties only passes
    on. Parties are called ``names`` in messages, by default as their processes; they must be three
    at least.
    """
    engine, fixed = place.engine, FixedPoint(place.n_agents, fraction_bits)
    if not names:
        ranks = place.ranks.tolist()
        apart = len(set(ranks)) == len(ranks)
        names = [engine.names[r] if apart else f"agent {a}" for a, r in enumerate(ranks)]
    check_parties(place.n_agents)
    own = OwnKeys(place.own.tolist())
    with about(engine, "agreement"):
        public = _exchanged(place, list(own.public.values()), names)
        signs = engine.signs
        facts = [str(fixed.n_parties), str(fixed.fraction_bits), *names]
        if signs is not None:
            facts += signs.facts
        keys = PairKeys(own, public, facts, names)
        if signs is not None:
            _check_signatures(place, signs, keys.transcript)
        group = _group_key(place, keys)
    return Masks(fixed, keys, group, n_threads, engine.outlast)


def _exchanged(place: Placement, own: list[bytes], names: Sequence[str]) -> list[bytes]:
    """Return the public key of every party."""
    engine = place.engine
    found: dict[int, bytes] = {}
    for rank, said in enumerate(engine.allgather(own)):
        parties = [a for a, r in enumerate(place.ranks.tolist()) if r == rank]
        keys = said if isinstance(said, list) else []
        for party, key in zip(parties, keys, strict=False):
            if isinstance(key, bytes) and len(key) == KEY_BYTES:
                found[party] = key
        if not isinstance(said, list) or len(keys) != len(parties):
            raise _wrong(engine.names[rank], "the keys of its parties for masked sums")
    for party, name in enumerate(names):
        if party not in found:
            raise _wrong(name, f"a key of {KEY_BYTES} bytes for masked sums")
    return [found[party] for party in range(place.n_agents)]


def _check_signatures(place: Placement, signs: Signs, transcript: bytes) -> None:
    """Sign what this process has heard, and look at what the others have signed."""
    engine = place.engine
    said: list[Any] = engine.allgather(signs.sign(transcript) if len(place.own) else b"")
    others: list[str] = []
    for rank in sorted(set(place.ranks.tolist())):
        signature = said[rank]
        if not isinstance(signature, bytes) or not signature:
            raise _wrong(engine.names[rank], "a signature of the keys for masked sums")
        if not signs.holds(rank, transcript, signature):
            others.append(engine.names[rank])
    if others:
        raise InputError(
            f"{' and '.join(others)} signed other keys for masked sums than this process has: "
            "keys of another run or another edition of the study, or such as were changed on their "
            "way"
        )


def _group_key(place: Placement, keys: PairKeys) -> bytes | None:
    """Return the key that all parties share, made by the first; None where no party lives."""
    from cryptography.exceptions import InvalidTag

    once, key = bytes(12), os.urandom(KEY_BYTES)  # each sealing key is for this one message
    sealed: dict[int, bytes] | None = None
    if place.mine(0):
        elsewhere = np.flatnonzero(place.ranks != place.ranks[0]).tolist()
        sealed = {to: keys.sealing(0, to).encrypt(once, key, None) for to in elsewhere}
    if place.engine.size > 1:
        sealed = place.bcast(sealed)
    if place.mine(0) or not len(place.own):
        return key if place.mine(0) else None
    party = int(place.own[0])
    try:
        assert isinstance(sealed, dict)
        return keys.sealing(party, 0).decrypt(once, sealed[party], None)
    except (AssertionError, InvalidTag, KeyError, TypeError):
        raise InputError(
            f"the key by which totals are checked did not come from {keys.names[0]} as it was "
            "sent; whoever passes keys on does not follow the protocol"
        ) from None


def _wrong(name: str, expected: str) -> InputError:
    return InputError(
        f"{name} has sent something else than {expected}; do all run the same version of vpem?"
    )
