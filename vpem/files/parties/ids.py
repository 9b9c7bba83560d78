"""Ids of rows as bytes that are equal where the ids are, checked, and what others may know."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Labels
from vpem.errors import InputError
from vpem.network.schema import Report

Tokens = NDArray[np.bytes_]
"""Ids, or hashes of them, as bytes of fixed width."""


def read_ids(ids: Labels | int, name: str, level: str | None) -> tuple[Tokens | None, Report]:
    """Return a party's ids (m,) as bytes, stripped and composed (NFC), and what others may know.

    These facts are the number of rows, the kind of ids, how many were respelled so, and the row of
    the first that was. InputError names rows, never ids; they must differ where a ``level`` matches
    them.
    """
    if isinstance(ids, int):
        return None, {"rows": ids, "kind": "none", "respelled": 0, "first": 0}
    values = np.asarray(ids)
    respelled = np.zeros(0, dtype=np.intp)
    if values.dtype.kind == "f":
        values = _whole(values, name)
    if values.dtype.kind in "iu":
        kind, tokens = "whole numbers", values.astype("S21")
    elif values.dtype.kind == "U" or all(isinstance(value, str) for value in values.flat):
        kind = "strings"
        given = values.tolist()
        spelled = [unicodedata.normalize("NFC", text).strip() for text in given]
        pairs = zip(given, spelled, strict=True)
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
        _check_repeats(tokens, name)
    first = int(respelled[0]) if respelled.size else 0
    return tokens, {
        "rows": len(tokens), "kind": kind, "respelled": int(respelled.size), "first": first,
    }  # fmt: skip


def _whole(values: NDArray[Any], name: str) -> NDArray[np.int64]:
    """Return floats as the integers that they are."""
    largest = 2.0 ** (np.finfo(values.dtype).nmant + 1)
    wrong = ~(np.isfinite(values) & (np.abs(values) <= largest))
    wrong[~wrong] = values[~wrong] != np.round(values[~wrong])
    if wrong.any():
        raise InputError(
            f"row {int(np.argmax(wrong))} of party {name!r} has an id that is not a whole number a "
            f"{values.dtype} holds exactly; store ids as integers or strings"
        )
    return values.astype(np.int64)


def _check_repeats(tokens: Tokens, name: str) -> None:
    """Raise InputError if two rows have one id; the id itself is not told."""
    order = np.argsort(tokens, kind="stable")
    ordered = tokens[order]
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    if again.size:
        # The first row that repeats an earlier one, and that one.
        later = int(order[again + 1].min())
        earlier = int(np.flatnonzero(tokens == tokens[later])[0])
        more = f" ({again.size} repeat others in all)" if again.size > 1 else ""
        raise InputError(
            f"rows {earlier} and {later} of party {name!r} have the same id{more}; each row must "
            "have an id of its own"
        )


def checksum(tokens: Tokens, salt: bytes) -> str:
    """Return a hash of ids in their order, by a salt of one run, so that runs tell it apart."""
    digest = hashlib.sha256(salt)
    for token in tokens.tolist():
        digest.update(b"%d:%b" % (len(token), token))
    return digest.hexdigest()


def match(tokens: Sequence[Tokens]) -> tuple[list[Any], int | None]:
    """Match the rows that all have: places (M,) in what each party sent, in the first's order.

    Also returned: a party that has nothing in common with those before it, or None.
    """
    own = tokens[0]
    order = np.argsort(own)
    ordered = own[order]
    kept = np.ones(len(own), dtype=bool)
    where = [np.arange(len(own))]
    alone = None
    for party, other in enumerate(tokens[1:], 1):
        at = np.minimum(np.searchsorted(ordered, other), len(own) - 1)
        found = np.flatnonzero(ordered[at] == other)
        place = np.full(len(own), -1, dtype=np.intp)
        place[order[at[found]]] = found
        where.append(place)
        kept &= place >= 0
        if alone is None and not kept.any():
            alone = party
    return [place[kept] for place in where], alone
