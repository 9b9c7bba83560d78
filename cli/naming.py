"""Names of options: what the library calls them, what users may call them, and how they are typed.

A sentence of the library keeps names of parameters apart from all other text
(`vpem.errors.Setting`); here they become the options of the command that runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from shlex import quote
from typing import TYPE_CHECKING, Any

from .config import is_flag, key_of

if TYPE_CHECKING:
    from vpem.errors import Setting, VpemError, VpemWarning


ALIKE: tuple[tuple[str, ...], ...] = (
    ("components", "clusters", "k", "classes", "mixtures", "groups"),
    ("max-iter", "iterations", "iter", "max-iterations", "iters", "epochs"),
    ("sampler-steps", "steps"),
    ("step-size", "step", "learning-rate", "lr"),
    ("tol", "tolerance", "threshold", "eps"),
    ("epsilon", "eps", "privacy", "dp"),
    ("n-init", "restarts", "starts", "repeats"),
    ("init", "start", "initialization", "init-params"),
    ("seed", "random-state", "random-seed"),
    ("covariance", "covariance-type", "cov", "cov-type"),
    ("reg-covar", "regularization", "reg"),
    ("scale", "standardize", "standardise", "normalize", "normalise", "zscore", "scaling"),
    ("threads", "jobs", "cores", "cpus", "processes"),
    ("memory-limit", "memory", "max-memory", "ram"),
    ("samples", "rows", "n"),
    ("features", "columns", "cols", "variables", "vars", "dimensions", "d", "use-columns"),
    ("drop", "drop-column", "drop-columns", "exclude", "ignore", "leave-out", "without"),
    ("value", "response", "outcome", "y"),
    ("label-column", "labels", "label", "target", "y", "class", "class-column", "truth"),
    ("labels", "label", "assignments", "predictions"),
    ("id-column", "id", "ids", "index", "index-column", "index-col"),
    ("worker-column", "site", "site-column", "party-column", "group-column"),
    ("sample-weight", "weight-column", "weight", "row-weights"),
    ("na", "na-values", "null-values", "missing-marks", "null"),
    ("decimal", "decimal-separator", "decimal-mark", "dec"),
    ("thousands", "thousands-separator", "thousands-sep"),
    ("encoding", "charset", "codepage"),
    ("no-header", "header"),
    ("delimiter", "sep", "separator"),
    ("dataset", "key", "sheet", "layer"),
    ("agents", "clients", "nodes", "parties"),
    ("workers", "devices", "clients", "nodes", "sites"),
    ("align", "level"),
    ("compress", "codec", "compression", "quantize"),
    ("gradient-compress", "gradient-codec"),
    ("conditional-draws", "conditional"),
    ("importance-draws", "importance"),
    ("missing", "missing-values", "nan"),
    ("consensus", "path"),
    ("topology", "network"),
    ("secure-sum", "secure", "mask", "masks"),
    ("time", "t", "x"),
    ("id", "subject", "individual"),
    ("individual", "subject", "id"),
    ("output", "out", "output-file", "o", "save", "outfile", "model-file", "write"),
    ("kind", "type", "plot-type"),
    ("plot", "figure", "picture"),
    ("force", "overwrite", "replace", "yes", "f"),
    ("quiet", "silent", "s"),
    ("dtype", "precision"),
    ("proba", "probabilities", "responsibilities"),
    ("from", "given"),
    ("fit", "train", "em", "gmm", "mixture", "vpem", "run"),
    ("kmeans", "k-means", "cluster", "clusters", "clustering", "lloyd"),
    ("fedem", "federated", "federate", "fed"),
    ("saem", "nlme", "mixed", "latent"),
    ("select", "search", "tune", "choose"),
    ("impute", "complete", "fill", "fillna"),
    ("predict", "assign", "classify", "label", "transform", "apply"),
    ("score", "likelihood", "log-likelihood", "loglik"),
    ("sample", "generate", "draw-rows"),
    ("evaluate", "compare", "validate", "test", "accuracy", "confusion"),
    ("plot", "draw", "visualize", "visualise", "picture", "figure"),
    ("doctor", "info", "check-install", "diagnose"),
    ("report", "html", "page"),
    ("topology", "graph", "network"),
    ("describe", "inspect", "head", "summary", "summarize", "profile"),
    ("show", "inspect", "print", "cat", "view"),
    ("import", "convert", "load", "read"),
    ("fetch", "download", "get"),
    ("list", "datasets", "examples", "ls"),
    ("copy", "cp", "example"),
    ("export", "dump"),
)
"""Words of one meaning, without dashes: what the library or another tool calls an option."""

SEVERAL: dict[str, tuple[str, ...]] = {
    "n": ("samples", "components", "clusters", "n-init"),
    "c": ("components", "clusters"),
    "label": ("label-column", "labels"),
    "target": ("label-column", "labels"),
}
"""Words that may stand for several options: either that which there is, or all that there are."""

ELSE: tuple[tuple[tuple[str, ...], str], ...] = (
    (("verbose", "v", "debug", "progress"), "progress is shown unless --quiet is given"),
    (("input", "i", "data", "file", "in", "infile"), "files to read are given without an option"),
    (("color", "colour", "no-color", "no-colour"), "the variable NO_COLOR turns colours off"),
    (("version", "V"), "'vpem --version' prints the version"),
)
"""What to do in place of options and commands that there are not."""

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
    return " ".join(f"{flag} {quote(str(value))}" for value in values)


def _alike(word: str) -> Iterator[str]:
    """Yield names that may stand for a word: itself, without what counts it, of its meaning."""
    plain = _plain(word)
    bare = next((plain.removeprefix(one) for one in PREFIXES if plain.startswith(one)), plain)
    own = dict.fromkeys((plain, bare))
    yield from own
    for name in own:
        for group in ALIKE:
            if name in group:
                yield from group
    if len(bare) > 2:
        yield from (f"{bare}s", bare.removesuffix("s"))


def meant(word: str, names: Iterable[str]) -> list[str]:
    """Return which of some names a word may stand for; see `nearest`."""
    known, plain = list(names), _plain(word)
    several = [name for name in SEVERAL.get(plain, ()) if name in known]
    if several and several[0] == "samples":
        return several[:1]
    one = nearest(word, known)
    return several or ([] if one is None else [one])


def in_place_of(word: str) -> str | None:
    """Return what to do in place of an option or a command, if that is known."""
    return next((told for words, told in ELSE if word.strip("-") in words), None)


def _plain(word: str) -> str:
    return word.lower().replace("_", "-").strip("-")


def nearest(word: str, names: Iterable[str]) -> str | None:
    """Return which of some names of options or commands a word may stand for.

    By meaning, by its beginning, or by spelling; a single letter only by meaning. Names have no
    dashes, the word may.
    """
    known, plain = list(names), _plain(word)
    alike = next((name for name in _alike(word) if name in known), None)
    if alike is not None or len(plain) < 2:
        return alike
    begun = [name for name in known if len(plain) > 2 and name.startswith(plain)]
    if len(begun) == 1:
        return begun[0]
    return next(iter(get_close_matches(plain, known, n=1, cutoff=CLOSE)), None)
