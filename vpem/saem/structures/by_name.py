"""Curves by name: formulas of vpem, or what a file of Python holds."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from vpem.errors import FileError, InputError, did_you_mean
from vpem.saem.structures.formulas import FORMULAS, Formula
from vpem.saem.structures.own import OwnCurve
from vpem.saem.structures.structure import Structure


def is_own(name: str) -> bool:
    """Whether a name is a user's file of Python, and a function in it: ``FILE.py:function``."""
    return ".py:" in name


def structure_of(name: str, scales: Mapping[str, str] | None = None) -> Structure:
    """Return a curve by name: one of `FORMULAS`, or ``FILE.py:function``, which runs the file.

    Nothing but the user may name it, so a name that is read from a file must not be given here.
    ``scales`` are of parameters, of formulas of vpem.
    """
    if not is_own(name):
        if name not in FORMULAS:
            raise InputError(
                f"there is no curve {name!r}{did_you_mean(name, FORMULAS)}; take one of "
                f"{', '.join(FORMULAS)}, or a function of your own, FILE.py:function"
            )
        return Formula(name, scales)
    if scales:
        raise InputError(f"{name} says the scales of its parameters itself; leave them out here")
    file, _, word = name.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise FileError(f"{path} does not exist; name a file of Python, FILE.py:function")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except Exception as error:  # whatever a user's file raises
        raise InputError(f"{path} fails: {type(error).__name__}: {error}") from error
    known = [key for key, value in vars(module).items() if callable(value) or _is(value)]
    if word not in known:
        raise InputError(f"{path} has no function {word!r}{did_you_mean(word, known)}")
    found = getattr(module, word)
    if _is(found):
        return found  # type: ignore[no-any-return]
    try:
        return OwnCurve(found, {})
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _is(value: object) -> bool:
    return isinstance(value, Structure)
