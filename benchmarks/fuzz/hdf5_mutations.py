"""How a file of HDF5 is changed so that it is whole, but not what it should be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from .mutations import ODD_VALUES, Change, as_text, change_json, nested, pick

LARGE = (2**20, 2**31, 2**40, 2**62)
NAME = "mutated"
"""What members are called that nothing should look for."""


def _members(file: h5py.File, kind: Any = (h5py.Dataset, h5py.Group)) -> list[str]:
    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if isinstance(item, kind) else None)
    return found


def _inside(change: Callable[[h5py.File, np.random.Generator], str]) -> Change:
    """Make a change of an open file one of a path."""

    def changed(path: Path, rng: np.random.Generator) -> str:
        with h5py.File(path, "r+") as file:
            return change(file, rng)

    return changed


def _replace(file: h5py.File, name: str, **made: Any) -> None:
    """Put another dataset in place of a member, with the attributes of what was there."""
    kept = dict(file[name].attrs)
    del file[name]
    new = file.create_dataset(name, **made)
    for key, value in kept.items():
        new.attrs[key] = value


def _values(values: Any, rng: np.random.Generator) -> tuple[Any, str]:
    """Return values of another type or shape, or others of the same."""
    number = values.dtype.kind in "iufb"
    ways = {
        "as strings": lambda: values.astype(str).astype(object),
        "as bytes": lambda: np.full(values.shape, b"\xff\xfe"),
        "as true/false": lambda: np.ones(values.shape, bool),
        "as complex numbers": lambda: np.ones(values.shape, complex),
        "as records": lambda: np.zeros(values.shape, [("a", "f8"), ("b", "i4")]),
        "as integers": lambda: np.nan_to_num(values).astype("i8") if number else np.ones(3, "i8"),
        "as small integers": lambda: np.zeros(values.shape, "u1"),
        "as other-endian": lambda: values.astype(values.dtype.newbyteorder(">")),
        "as unsigned": lambda: np.nan_to_num(np.abs(values)).astype("u8") if number else values,
        "as float32": lambda: values.astype("f4") if number else np.ones(values.shape, "f4"),
        "negated": lambda: -values if values.dtype.kind in "if" else values,
        "as float16": lambda: np.zeros(values.shape, "f2"),
        "as long double": lambda: np.zeros(values.shape, np.longdouble),
        "as one value": lambda: (
            values.reshape(-1)[:1].reshape(()) if values.size else np.array(0.0)
        ),
        "as none": lambda: h5py.Empty("f8"),
        "of length 0": lambda: values[:0] if values.ndim else np.zeros(0),
        "one shorter": lambda: values[:-1] if values.ndim else np.zeros(1),
        "one longer": lambda: np.concatenate([values, values[-1:]]) if values.ndim else np.ones(2),
        "transposed": lambda: values.T,
        "of one dimension": lambda: values.reshape(-1),
        "of one dimension more": lambda: values[..., None],
        "many times": lambda: np.tile(values, (3,) * max(values.ndim, 1)),
    }
    for value in (np.nan, np.inf, -1, 0, 1, 1e308, 1e-308, 2**31, 2**62, -(2**63)):
        ways[f"with {value}"] = lambda value=value: _with(values, value, rng)
    how = pick(rng, list(ways))
    return ways[how](), how


def _with(values: Any, value: float, rng: np.random.Generator) -> Any:
    """Return the values with some, or all, replaced by one."""
    made = values.copy()
    if made.dtype.kind not in "iuf":
        return np.full(made.shape, value)
    if made.dtype.kind in "iu":
        limits = np.iinfo(made.dtype)
        value = int(np.clip(np.nan_to_num(value, posinf=2**62), limits.min, limits.max // 2))
    flat = made.reshape(-1)
    if flat.size:
        flat[rng.random(flat.size) < pick(rng, (1 / flat.size, 0.2, 1.0))] = value
    return flat.reshape(made.shape)


def other_values(file: h5py.File, rng: np.random.Generator) -> str:
    """Put values of another type, shape or size in place of a dataset's."""
    name = pick(rng, _members(file, h5py.Dataset))
    with np.errstate(all="ignore"):
        values, how = _values(np.asarray(file[name][()]), rng)
    _replace(file, name, data=values)
    return f"{name} {how}"


def without(file: h5py.File, rng: np.random.Generator) -> str:
    """Take a member out."""
    name = pick(rng, _members(file))
    del file[name]
    return f"without {name}"


def other_place(file: h5py.File, rng: np.random.Generator) -> str:
    """Swap two members, or put a group in place of a dataset, or something more into a group."""
    names = _members(file)
    one, two = (pick(rng, names) for _ in range(2))
    how = rng.random()
    if how < 0.4:
        del file[one]
        file.create_group(one)[NAME] = 1.0
        return f"{one} as a group"
    if how < 0.7 or one == two or one in two or two in one:
        where = pick(rng, [name for name in ["/", *names] if isinstance(file[name], h5py.Group)])
        new = pick(rng, (NAME, "0", "00", "-1", "9" * 30, "é", "\x1b[31m", "a" * 300))
        file[where].create_dataset(new, data=np.arange(3.0))
        return f"{new[:20]!r} more in {where}"
    file.move(one, NAME)
    file.move(two, one)
    file.move(NAME, two)
    return f"{one} and {two} swapped"


def linked(file: h5py.File, rng: np.random.Generator) -> str:
    """Put a link in place of a member, or cycles and nests of links beside it."""
    name = pick(rng, _members(file))
    how = pick(rng, ("itself", "nothing", "root", "file", "other", "cycle", "nest"))
    if how == "nest":
        return _nest(file, rng)
    del file[name]
    if how == "cycle":
        file[name] = file["/"]
    elif how == "file":
        file[name] = h5py.ExternalLink("data.h5", "/X")
    else:
        rest = _members(file)
        to = {"itself": f"/{name}", "nothing": "/nowhere", "root": "/"}.get(how)
        file[name] = h5py.SoftLink(to or f"/{pick(rng, rest) if rest else name}")
    return f"{name} a link to {how}"


def _nest(file: h5py.File, rng: np.random.Generator, deep: int = 14, wide: int = 20) -> str:
    """Make groups each of whose many links leads to the next, in the file or in a member."""
    hard = bool(rng.random() < 0.3)
    for level in range(deep):
        group = file.create_group(f"{NAME} {level}")
        for number in range(wide):
            below = f"/{NAME} {level + 1}"
            group[str(number)] = file.require_group(below) if hard else h5py.SoftLink(below)
        if hard:
            break
    return f"{deep} groups of {wide} {'hard' if hard else 'soft'} links"


def other_attribute(file: h5py.File, rng: np.random.Generator) -> str:
    """Change, add or take out an attribute."""
    places = ["/", *_members(file)]
    having = [name for name in places if len(file[name].attrs)]
    name = pick(rng, having if having and rng.random() < 0.9 else places)
    attrs = file[name].attrs
    key = pick(rng, list(attrs)) if len(attrs) else "encoding-type"
    how = rng.random()
    if how < 0.15 and key in attrs:
        del attrs[key]
        return f"{name} without the attribute {key}"
    new = pick(
        rng,
        (0, -1, 2**62, 1.5, np.nan, True, "", "x", "vpem-model", "vpem-dataset", "0.2.0", "9.0.0",
         "-1", "a" * 5000, "\x1b]0;x\x07", b"\xff\xfe", np.arange(3), np.zeros((2, 0)),
         h5py.Empty("f8"), np.array(["a", "b"], dtype=object), np.void(b"abc"), 1j),
    )  # fmt: skip
    attrs[key] = new
    return f"{name}: the attribute {key} is {str(new)[:20]!r}"


def without_storage(file: h5py.File, rng: np.random.Generator) -> str:
    """Declare far more values than are stored."""
    name = pick(rng, _members(file, h5py.Dataset))
    long = int(pick(rng, LARGE))
    old = file[name].shape or ()
    shape = tuple(long if place == int(rng.integers(max(len(old), 1))) else length
                  for place, length in enumerate(old or (1,)))  # fmt: skip
    shape = pick(rng, (shape, (long,), (10, long), (long, 6)))
    dtype = pick(rng, (file[name].dtype, np.dtype("f8")))
    if rng.random() < 0.5:
        chunks = tuple(min(length, 64) for length in shape)
        _replace(file, name, shape=shape, dtype=dtype, chunks=chunks)
    else:
        _replace(file, name, shape=shape, dtype=dtype)
    return f"{name} of shape {shape} without storage"


def large_chunk(file: h5py.File, rng: np.random.Generator) -> str:
    """Store a dataset in one compressed chunk that is far larger than it."""
    name = pick(rng, _members(file, h5py.Dataset))
    values = np.zeros(file[name].shape or (1,))
    size = int(pick(rng, (1 << 20, 1 << 24, 1 << 27)))
    shape = values.shape
    made = {"shape": shape, "dtype": "f8", "maxshape": (None,) * len(shape)}
    chunks = (size // int(np.prod(shape[1:], dtype=int) or 1) or 1, *(n or 1 for n in shape[1:]))
    _replace(file, name, chunks=chunks, compression="gzip", compression_opts=1, **made)
    # Written as a chunk of zeros packed by ourselves: the library would take all of its memory.
    import zlib

    packer = zlib.compressobj(1)
    piece = bytes(1 << 20)
    packed = b"".join(packer.compress(piece) for _ in range(8 * size >> 20)) + packer.flush()
    file[name].id.write_direct_chunk((0,) * len(shape), packed)
    return f"{name} in a chunk of {8 * size} bytes"


def shared_strings(path: Path, rng: np.random.Generator) -> str:
    """Make strings of variable length that are all kept in one place."""
    count, long = int(pick(rng, (100, 50_000))), int(pick(rng, (4000, 60_000)))
    with h5py.File(path, "r+") as file:
        texts = [name for name in _members(file, h5py.Dataset) if file[name].dtype.kind in "SO"]
        name = pick(rng, texts) if texts else "ids"
        if name in file:
            del file[name]
        made = file.create_dataset(name, (count,), h5py.string_dtype())
        made[0] = "x" * long
        offset = made.id.get_offset()
    if offset is not None:
        content = bytearray(path.read_bytes())
        content[offset : offset + 16 * count] = content[offset : offset + 16] * count
        path.write_bytes(content)
    return f"{name}: {count} strings of {long} in one place"


def other_json(file: h5py.File, rng: np.random.Generator) -> str:
    """Change a value in text of JSON."""
    texts = {}
    for name in _members(file, h5py.Dataset):
        if file[name].dtype == np.uint8 and file[name].ndim == 1:
            texts[name] = file[name][()].tobytes()
    if not texts:
        return other_values(file, rng)
    name = pick(rng, list(texts))
    value = json.loads(texts[name].decode("utf-8", "surrogatepass"))
    how = rng.random()
    if how < 0.1:
        new = as_text(pick(rng, ODD_VALUES))
    elif how < 0.2:
        new = pick(rng, ("[" * 100_000, '{"a":' * 50_000, "1" * 5000, "", "{", "\0"))
    elif how < 0.3:
        new = as_text(nested(200, bool(rng.random() < 0.5)))
    else:
        new = as_text(change_json(value, rng))
    _replace(file, name, data=np.frombuffer(new.encode("utf-8", "surrogatepass"), np.uint8))
    return f"{name}: JSON is {new[:20]!r}" if how < 0.3 else f"{name}: a value of JSON"


HDF5: tuple[Change, ...] = (
    *[_inside(other_values)] * 4,
    _inside(without),
    _inside(other_place),
    _inside(linked),
    *[_inside(other_attribute)] * 2,
    _inside(without_storage),
    _inside(large_chunk),
    shared_strings,
    *[_inside(other_json)] * 2,
)
