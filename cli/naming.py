"""Names of options: what the library calls them, what users may call them, and how they are typed.

A sentence of the library keeps names of parameters apart from all other text
(`vpem.errors.Setting`); here they become the options of the command that runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from .config import is_flag, key_of

if TYPE_CHECKING:
    from vpem.errors import Setting, VpemError, VpemWarning

__all__ = ["ALIKE", "in_options", "name_of", "nearest", "speak_of", "spoken"]

ALIKE: tuple[tuple[str, ...], ...] = (
    ("components", "clusters", "k", "classes"),
    ("max-iter", "iterations", "iter", "max-iterations", "iters", "epochs"),
    ("sampler-steps", "steps"),
    ("step-size", "step", "learning-rate", "lr"),
    ("tol", "tolerance"),
    ("epsilon", "eps"),
    ("n-init", "restarts", "starts"),
    ("init", "start", "initialization"),
    ("seed", "random-state", "random-seed"),
    ("covariance", "covariance-type", "cov"),
    ("reg-covar", "regularization"),
    ("threads", "jobs", "cores", "cpus"),
    ("samples", "rows", "n"),
    ("features", "dimensions", "d"),
    ("labels", "label-column", "label", "target", "y"),
    ("id-column", "id", "ids"),
    ("drop-column", "drop-columns", "exclude"),
    ("no-header", "header"),
    ("delimiter", "sep", "separator"),
    ("agents", "clients", "nodes"),
    ("workers", "devices", "clients", "nodes"),
    ("align", "level"),
    ("compress", "codec", "compression"),
    ("gradient-compress", "gradient-codec"),
    ("conditional-draws", "conditional"),
    ("importance-draws", "importance"),
    ("missing", "missing-values", "nan"),
    ("consensus", "path"),
    ("output", "out", "output-file", "o", "save"),
    ("plot", "figure", "picture"),
    ("force", "overwrite", "replace"),
    ("quiet", "silent"),
    ("dtype", "precision"),
    ("proba", "probabilities", "responsibilities"),
    ("from", "given"),
    ("fit", "train", "em", "gmm"),
    ("kmeans", "k-means", "cluster"),
    ("select", "search", "tune"),
    ("impute", "complete", "fill"),
)
"""Words of one meaning, without dashes: what the library or another tool calls an option."""

PREFIXES = ("n-", "num-", "number-of-")
CLOSE = 0.75
"""How much alike two spellings are of which one may be meant by the other."""

_options: list[Any] = []
"""Parameters of the command that runs."""


def speak_of(options: Iterable[Any]) -> None:
    """Take the words of sentences from these parameters of a command."""
    _options[:] = options


def name_of(option: Any) -> str:
    """Return an option or argument as its user calls it."""
    if option.param_type_name == "argument":
        return str(option.name).upper()
    long = any(word.startswith("--") for word in option.opts)
    return f"--{key_of(option)}" if long else str(option.opts[0])


def in_options(told: VpemError | VpemWarning) -> str:
    """Return a sentence of the library in the words of the command that runs."""
    return told.told(_typed)


def spoken(error: VpemError) -> str:
    """Return the sentence of an error, and what was noted on its way, in words of the command."""
    return "; ".join([in_options(error), *getattr(error, "__notes__", ())])


def _typed(setting: Setting) -> str:
    """Return what a user types to set a parameter; its name in Python if that is nothing."""
    options = {key_of(one): one for one in _options if one.param_type_name == "option"}
    # An own option for one value: resume="if-any", --resume-if-any.
    own = options.get(f"{setting.name}-{setting.value}")
    named = {one.name: key for key, one in options.items()}
    key = named.get(setting.name) or next(
        (key for key in _alike(setting.name) if key in options), None
    )
    if own is not None or key is None:
        return str(setting) if own is None else name_of(own)
    flag = name_of(options[key])
    if setting.value is None or is_flag(options[key]):
        return flag
    values = setting.value if isinstance(setting.value, list) else [setting.value]
    return " ".join(f"{flag} {value}" for value in values)


def _alike(word: str) -> Iterator[str]:
    """Yield names that may stand for a word: itself, without what counts it, of its meaning."""
    plain = word.lower().replace("_", "-").strip("-")
    bare = next((plain.removeprefix(one) for one in PREFIXES if plain.startswith(one)), plain)
    own = dict.fromkeys((plain, bare))
    yield from own
    for name in own:
        for group in ALIKE:
            if name in group:
                yield from group
    if len(bare) > 2:
        yield from (f"{bare}s", bare.removesuffix("s"))


def nearest(word: str, names: Iterable[str]) -> str | None:
    """Return which of some names of options, without dashes, a word may stand for.

    By meaning, by its beginning, or by spelling; a single letter only by meaning.

    Names of commands alike.

    Parameters
    ----------
    word : str
        As it was typed, with or without dashes.
    names : iterable of str
        That there are.
    """
    known = list(names)
    plain = word.lower().replace("_", "-").strip("-")
    meant = next((name for name in _alike(word) if name in known), None)
    if meant is not None or len(plain) < 2:
        return meant
    begun = [name for name in known if len(plain) > 2 and name.startswith(plain)]
    if len(begun) == 1:
        return begun[0]
    return next(iter(get_close_matches(plain, known, n=1, cutoff=CLOSE)), None)
