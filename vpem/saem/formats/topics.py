"""Topics on disk: their words, how much of the corpus they are, proportions of the documents."""

from __future__ import annotations

import os
from dataclasses import fields

import numpy as np

from vpem.errors import FileError, VpemError
from vpem.files.elements import Elements, Json, Strings, check_written, read_elements
from vpem.files.hdf5 import (
    atomic_write,
    check_encoding,
    create,
    open_read,
    write_array,
    write_attribute,
    write_strings,
)
from vpem.files.json_text import write_json_element
from vpem.files.reports import COMMUNICATION
from vpem.network.schema import (
    FLAG,
    PLAIN,
    TEXT,
    Array,
    Integer,
    Mapping,
    Maybe,
    Number,
    Report,
)
from vpem.saem.formats.fits import DEEPEST, LARGEST, SETTINGS
from vpem.saem.topics import Topics

__all__ = ["ENCODING", "read_topics", "save_topics", "topics_as_json"]

ENCODING = "vpem-topics"
VERSION = "0.1.0"

PathLike = str | os.PathLike[str]

STRINGS = ("words", "names", "device_names")
ARRAYS = (
    "topics", "shares", "coherence", "proportions", "lower", "upper", "each", "device_shares",
    "trace", "bytes",
)  # fmt: skip
NUMBERS = ("level", "log_likelihood", "n_tokens", "n_iter", "converged", "change")
TEXTS = ("model_options", "settings", "communication", "versions")

OF_DOCUMENTS = Array("f", ("documents", "topics"), 0, 1)
SHARE = Number(0, 1e6)

TOPICS: Elements = {
    "@grounds": Maybe(TEXT),
    "@level": Number(0.0, 1.0),
    "@log_likelihood": Number(-LARGEST, 0.0),
    "@n_tokens": Number(1.0, LARGEST),
    "@n_iter": Integer(1, (1 << 31) - 1, size="iterations"),
    "@converged": FLAG,
    "@change": Number(0.0, nan=True),
    "words": Strings("words", least=1, different=True),
    "names": Strings("documents", different=True),
    "device_names": Strings("devices", least=1, different=True),
    "topics": Array("f", ("topics", "words"), 0, 1, positive=True),
    "shares": Array("f", ("topics",), 0, 1),
    "coherence": Array("f", ("topics",), -1, 1),
    "proportions": OF_DOCUMENTS,
    "lower": OF_DOCUMENTS,
    "upper": OF_DOCUMENTS,
    "each": Array("f", ("documents",), -LARGEST, 0),
    "device_shares": Array("f", ("told devices", "topics"), 0, 1),
    "trace": Array("f", ("points", "topics"), 0),
    "bytes": Array("i", ("iterations",), 0, (1 << 62) - 1),
    "model_options": Json(Mapping(PLAIN, known={"alpha": SHARE, "eta": SHARE}), DEEPEST),
    "settings": Json(SETTINGS, DEEPEST),
    "communication": Json(COMMUNICATION, DEEPEST),
    "versions": Json(Mapping(TEXT), DEEPEST),
}


def save_topics(path: PathLike, found: Topics, *, force: bool = False) -> None:
    """Write topics, all or nothing.

    Parameters
    ----------
    path : path
        The file (HDF5).
    found : Topics
        What to write.
    force : bool
        Replace an existing file.

    Raises
    ------
    FileError
        If the file exists and ``force`` is False, or cannot be written.
    InputError
        If a word cannot be stored, or the settings have what no reader takes.
    """
    texts = {name: getattr(found, name) for name in TEXTS}
    check_written(path, TOPICS, **texts)
    with (
        atomic_write(path, force, "fits of SAEM") as temporary,
        create(temporary, ENCODING, VERSION) as file,
    ):
        write_attribute(file, "grounds", found.grounds)
        for name in NUMBERS:
            file.attrs[name] = getattr(found, name)
        for name in STRINGS:
            write_strings(file, name, getattr(found, name))
        for name in ARRAYS:
            write_array(file, name, getattr(found, name))
        for name, value in texts.items():
            write_json_element(file, name, value)


def topics_as_json(found: Topics) -> Report:
    """Return all that there is as values that JSON can hold, once NaN are None."""
    listed = {one.name: getattr(found, one.name) for one in fields(found)}
    plain = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in listed.items()
    }
    return {
        "encoding-type": ENCODING, "encoding-version": VERSION, **plain,
        "perplexity": found.perplexity,
    }  # fmt: skip


def read_topics(path: PathLike) -> Topics:
    """Read topics, trusting nothing in the file.

    Raises
    ------
    FileError
        If the file is missing, damaged, of no topics, from a newer vpem, or its parts do not
        agree.
    """
    with open_read(path) as file:
        if check_encoding(file, ENCODING, VERSION) != ENCODING:
            raise FileError(
                f"{path} is not a {ENCODING} file; 'vpem saem --model lda --output' writes one"
            )
        try:
            n_iter = read_elements(file, {"@n_iter": TOPICS["@n_iter"]})["n_iter"]
            found = read_elements(file, TOPICS, points=n_iter + 1)
        except FileError:
            raise
        except (VpemError, KeyError, ValueError, TypeError) as error:
            raise FileError(f"{path} is damaged: {error}") from error

    def need(fine: object, what: str) -> None:
        if not fine:
            raise FileError(f"{path}: {what}")

    need(0 < found["level"] < 1, "attribute 'level' must be between 0 and 1, and neither")
    need((found["lower"] <= found["upper"]).all(), "lower must not be above upper")
    need((np.diff(found["bytes"]) >= 0).all(), "bytes must be whole numbers that do not fall")
    for name in ("topics", "shares", "proportions", "device_shares"):
        sums = found[name].sum(axis=-1)
        need((np.abs(sums - 1) < 1e-6).all(), f"{name} must add up to 1")
    told = len(found["device_shares"])
    need(told in (0, len(found["device_names"])), "device_shares must be of all devices or none")
    found["grounds"] = found["grounds"] or ""
    return Topics(**found)
