"""The state of a run on disk: nested values and arrays, whole or not at all, trusting nothing.

A state is a dict of str keys whose values are None, bool, int, float, str, bytes, NumPy arrays,
and dicts, lists and tuples of these. What it looks like is written as JSON; the numbers of all
arrays of one type stand one after the other in one dataset, so that very many small arrays cost no
more than one. A digest tells whether anything has changed since.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Labels
from vpem.errors import FileError, VpemError
from vpem.files.hdf5 import (
    _flush,
    check_encoding,
    check_writable,
    create,
    describe_element,
    find,
    is_group,
    open_read,
    read_array,
    read_attribute,
    write_attribute,
)
from vpem.files.json_text import parse_json, read_json_bytes
from vpem.files.opening import PathLike
from vpem.network.schema import State

ENCODING = "vpem-checkpoint"
VERSION = "0.1.0"

DTYPES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")
"""Types of arrays."""

DEEPEST = 100
"""How deep values may be nested in a state."""

MOST_DIMENSIONS = 16

MOST_EMPTY = 1 << 16
"""Arrays without numbers in a list: a few characters must not become very many of them."""

DAMAGED = "is damaged: begin anew, or take a copy"


class _Writer:
    """Takes a state apart into JSON and pools of numbers."""

    def __init__(self) -> None:
        self.pools: dict[str, list[Labels]] = {}

    def plain(self, value: Any) -> Any:
        """Describe a value in JSON; numbers of arrays go to the pools."""
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int):
            return value
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else ["float", repr(float(value))]
        if isinstance(value, np.bool_ | np.integer):
            return value.item()
        if isinstance(value, bytes):
            return ["bytes", *self._kept(np.frombuffer(value, dtype=np.uint8))[2]]
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, dict):
            return self._mapping(value)
        if isinstance(value, list | tuple):
            return self._sequence(value)
        raise TypeError(f"a state holds no {type(value).__name__}")

    def _kept(self, array: Labels) -> tuple[str, Labels, list[int]]:
        name = array.dtype.str[1:]
        if name not in DTYPES:
            raise TypeError(f"a state holds no arrays of {array.dtype}")
        self.pools.setdefault(name, []).append(array.reshape(-1))
        return name, array, list(array.shape)

    def _array(self, value: Labels) -> list[object]:
        # How numbers lie in memory decides in which order they are added up.
        turned = value.ndim > 1 and value.flags.f_contiguous and not value.flags.c_contiguous
        name, _, shape = self._kept(value.T if turned else value)
        return ["turned" if turned else "array", name, shape]

    def _mapping(self, value: State) -> State:
        if not all(isinstance(key, str) for key in value):
            raise TypeError("the keys of a state are strings")
        return {key: self.plain(item) for key, item in value.items()}

    def _sequence(self, value: Sequence[object]) -> list[object]:
        if isinstance(value, list) and len(value) > 1 and _alike(value):
            made = np.stack(value)
            name, _, shape = self._kept(made)
            return ["arrays", name, shape]
        kind = "tuple" if isinstance(value, tuple) else "list"
        return [kind, *map(self.plain, value)]


def _alike(values: Sequence[object]) -> bool:
    """Whether these are arrays of one shape and type that have numbers, in C order."""
    first = values[0]
    return isinstance(first, np.ndarray) and all(
        isinstance(one, np.ndarray)
        and one.size > 0
        and one.shape == first.shape
        and one.dtype == first.dtype
        and one.flags.c_contiguous
        for one in values
    )


class _Reader:
    """Puts a state together again."""

    def __init__(self, pools: dict[str, Labels]) -> None:
        self.pools = pools
        self.places = dict.fromkeys(pools, 0)

    def value(self, plain: Any) -> Any:
        """Return what a piece of JSON describes."""
        if isinstance(plain, dict):
            return {key: self.value(item) for key, item in plain.items()}
        if not isinstance(plain, list):
            return plain
        if not plain or not isinstance(plain[0], str):
            raise ValueError("a list does not say what it is")
        kind, rest = plain[0], plain[1:]
        if kind in ("list", "tuple"):
            items = [self.value(item) for item in rest]
            return tuple(items) if kind == "tuple" else items
        if kind == "float":
            return float(rest[0])
        if kind == "bytes":
            return self._take("u1", rest).tobytes()
        name, shape = rest
        if kind == "array":
            return self._take(name, shape)
        if kind == "turned":
            return self._take(name, shape).T
        if kind == "arrays":
            arrays = self._take(name, shape)
            if not arrays.size and len(arrays) > MOST_EMPTY:
                raise ValueError("there are too many arrays without numbers")
            return [one.copy() for one in arrays]
        raise ValueError(f"there are no values of kind {kind[:20]!r}")

    def _take(self, name: str, shape: Sequence[int]) -> Labels:
        """Take the next numbers of a pool."""
        if (
            not isinstance(shape, list)
            or len(shape) > MOST_DIMENSIONS
            or not all(type(length) is int and length >= 0 for length in shape)
        ):
            raise ValueError("an array has no shape")
        count = math.prod(shape)
        if count == 0:
            if name not in DTYPES:
                raise ValueError("an array has no type")
            return np.empty(shape, dtype=name)
        begin = self.places[name]
        if count > len(self.pools[name]) - begin:
            raise ValueError("an array is longer than its numbers")
        self.places[name] = begin + count
        return self.pools[name][begin : begin + count].reshape(shape).copy()


def _digest(text: NDArray[np.uint8], pools: dict[str, Labels]) -> str:
    """Sum that changes with any bit of a state."""
    made = hashlib.blake2b(text.tobytes(), digest_size=32)
    for name in sorted(pools):
        made.update(name.encode())
        made.update(pools[name].view(np.uint8).data)
    return made.hexdigest()


def part_of(path: PathLike) -> Path:
    """Return what a state is written to before it takes the place of the one before.

    Always the same name: what a killed process has left is used by the next.
    """
    target = Path(os.path.realpath(path))
    return target.parent / f".{target.name}.part"


def write_state(path: PathLike, state: State, keep: PathLike | None = None) -> None:
    """Write a state in place of the one before, which goes to ``keep``, all or nothing.

    See the head of this module for what a state holds; TypeError for anything else.
    """
    writer = _Writer()
    structure = json.dumps(writer.plain(state), allow_nan=False, separators=(",", ":"))
    text = np.frombuffer(structure.encode("utf-8"), dtype=np.uint8)
    pools = {name: np.concatenate(parts) for name, parts in writer.pools.items()}
    pools = {name: pool for name, pool in pools.items() if len(pool)}
    if "b1" in pools:
        pools["b1"] = pools["b1"].view(np.uint8)
    target = check_writable(path, force=True)
    temporary = part_of(target)
    try:
        temporary.unlink(missing_ok=True)
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        with create(temporary, ENCODING, VERSION) as file:
            write_attribute(file, "digest", _digest(text, pools))
            dataset = file.create_dataset("structure", data=text, track_times=False)
            describe_element(dataset, "json-utf8", VERSION)
            for name, numbers in pools.items():
                file.create_dataset(f"numbers/{name}", data=numbers, track_times=False)
        _flush(temporary)
        if keep is not None and target.exists():
            os.replace(target, Path(os.path.realpath(keep)))
        os.replace(temporary, target)
        _flush(target.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise FileError(
            f"the checkpoint {path} could not be written: {error.strerror or error}"
        ) from error


def read_state(path: PathLike) -> State:
    """Read a state; FileError if damaged, cut short, no checkpoint, or from a newer vpem."""
    with open_read(path) as file:
        if check_encoding(file, ENCODING, VERSION) != ENCODING:
            raise FileError(f"{path} is not a vpem checkpoint; 'vpem fit --checkpoint' writes one")
        text = read_json_bytes(file, "structure")
        pools = {}
        numbers = find(file, "numbers")
        for name in DTYPES:
            if is_group(numbers) and find(numbers, name) is not None:
                pools[name] = read_array(numbers, name, ndim=1, kinds="iuf")
        digest = read_attribute(file, "digest")
    if digest != _digest(text, pools):
        raise FileError(f"{path} {DAMAGED} (its content is not what was written)")
    for name, pool in pools.items():
        if pool.dtype != ("u1" if name == "b1" else name):
            raise FileError(f"{path} {DAMAGED}")
    if "b1" in pools:
        pools["b1"] = pools["b1"] != 0
    try:
        state = _Reader(pools).value(parse_json(text.tobytes().decode("utf-8"), DEEPEST))
    except VpemError:
        raise
    except (ValueError, TypeError, LookupError, RecursionError, MemoryError) as error:
        raise FileError(f"{path} {DAMAGED} ({error})") from error
    if not isinstance(state, dict):
        raise FileError(f"{path} {DAMAGED}")
    return state
