"""How the state in a checkpoint is changed, and written with a digest that is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .mutations import ODD_VALUES, Change, nested, pick

ODD = (*ODD_VALUES[:9], *ODD_VALUES[10:19], *ODD_VALUES[20:], b"", (), np.zeros(0), np.bool_(True))


def _other_array(value: Any, rng: np.random.Generator) -> Any:
    """Return an array of another type or shape, or with other values."""
    if rng.random() < 0.5:
        made = value.copy()
        if made.size and made.dtype.kind in "iuf":
            odd = (0, 1, 100) if made.dtype.kind in "iu" else (np.nan, np.inf, -1.0, 1e300, 0.0)
            made.reshape(-1)[int(rng.integers(made.size))] = pick(rng, odd)
        return made
    ways = (
        lambda: value.astype("f8"), lambda: value.astype("f4"), lambda: value.astype("i8"),
        lambda: value.astype(bool), lambda: value.reshape(-1), lambda: value[None],
        lambda: value[:0] if value.ndim else value, lambda: value.T.copy(),
        lambda: value[:-1] if value.ndim else value, lambda: np.asfortranarray(value),
        lambda: np.concatenate([value, value]) if value.ndim else value,
        lambda: value.tolist(), lambda: np.array(0.0),
    )  # fmt: skip
    with np.errstate(all="ignore"):
        return pick(rng, ways)()


def changed(value: Any, rng: np.random.Generator) -> Any:
    """Return a value of a state with one thing in it changed, added or gone."""
    if rng.random() < 0.03:
        return pick(rng, (nested(30), nested(30, True), *ODD))
    if isinstance(value, dict) and value:
        key = pick(rng, list(value))
        what = rng.random()
        if what < 0.08:
            return {name: item for name, item in value.items() if name != key}
        if what < 0.12:
            return {**value, "more": value[key]}
        return {**value, key: changed(value[key], rng)}
    if isinstance(value, list | tuple) and value:
        items = list(value)
        place = int(rng.integers(len(items)))
        what = rng.random()
        if what < 0.08:
            del items[place]
        elif what < 0.12:
            items.append(items[place])
        elif what < 0.15:
            return items if isinstance(value, tuple) else tuple(items)
        else:
            items[place] = changed(items[place], rng)
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, np.ndarray) and rng.random() < 0.8:
        return _other_array(value, rng)
    if type(value) in (int, float) and rng.random() < 0.6:
        return pick(rng, (value + 1, value - 1, -value, 0, 2**31, 1e9, -1, 10**6, float(value)))
    return pick(rng, ODD)


def other_state(path: Path, rng: np.random.Generator) -> str:
    """Change some values of the state."""
    from vpem.files.checkpoints import read_state, write_state

    state = read_state(path)
    for _ in range(int(pick(rng, (1, 1, 1, 2, 4)))):
        new = changed(state, rng)
        state = new if isinstance(new, dict) and new else state
    try:
        write_state(path, state)
    except (TypeError, ValueError, OverflowError):
        # Not every value can be written.
        return other_state(path, rng)
    return "values of the state changed"


STATES: tuple[Change, ...] = (other_state,)
