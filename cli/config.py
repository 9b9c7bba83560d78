"""Names of options, and values of options from files and the environment.

A sentence of the library keeps names of parameters apart from all other text
(`vpem.errors.Setting`); here they become the options of the command that runs.

Values are taken from the command line, the environment, a file, or defaults, in this order. The
parser of the commands looks them up (`default_map`, `envvar`); this module provides them, and the
source of each value: for errors, for the comparison of ranks, and for `--show-config`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from vpem.errors import InputError, did_you_mean
from vpem.idle import REFUSED, WAYS, refusal

if TYPE_CHECKING:
    from vpem.errors import Setting, VpemError, VpemWarning
    from vpem.network.schema import Report

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
"""Words that may stand for several options: all of these that a command has are suggested."""

ELSE: tuple[tuple[tuple[str, ...], str], ...] = (
    (("verbose", "v", "debug", "progress"), "progress is shown unless --quiet is given"),
    (("input", "i", "data", "file", "in", "infile"), "files to read are given without an option"),
    (("color", "colour", "no-color", "no-colour"), "the variable NO_COLOR turns colours off"),
    (("version", "V"), "'vpem --version' prints the version"),
)
"""What to do in place of options and commands that do not exist."""

PREFIXES = ("n-", "num-", "number-of-")
CLOSE = 0.75
"""Similarity from which on one spelling may be meant by another."""

_options: list[Any] = []
"""Parameters of the command that runs."""


def speak_of(options: Iterable[Any]) -> None:
    """Let sentences name these parameters of a command."""
    _options[:] = options


def name_of(option: Any) -> str:
    """Return an option or argument as its user calls it."""
    if option.param_type_name == "argument":
        return str(option.name).upper()
    long = any(word.startswith("--") for word in option.opts)
    return f"--{key_of(option)}" if long else str(option.opts[0])


def in_options(error: VpemError | VpemWarning) -> str:
    """Return a sentence of the library with the options of the command that runs."""
    return error.sentence_with(_typed)


def spoken(error: VpemError) -> str:
    """Return the sentence of an error and its notes, with the options of the command."""
    return "; ".join([in_options(error), *getattr(error, "__notes__", ())])


def _typed(setting: Setting) -> str:
    """Return what a user types to set a parameter; its name in Python if no option sets it."""
    options = {key_of(one): one for one in _options if one.param_type_name == "option"}
    # A separate option for one value: resume="if-any", --resume-if-any.
    value_option = options.get(f"{setting.name}-{setting.value}")
    named = {one.name: key for key, one in options.items()}
    key = named.get(setting.name) or next(
        (key for key in _alike(setting.name) if key in options), None
    )
    if value_option is not None or key is None:
        return str(setting) if value_option is None else name_of(value_option)
    flag = name_of(options[key])
    if setting.value is None or is_flag(options[key]):
        return flag
    values = setting.value if isinstance(setting.value, list) else [setting.value]
    return " ".join(f"{flag} {quote(str(value))}" for value in values)


def _alike(word: str) -> Iterator[str]:
    """Yield names that a word may stand for: itself, without its prefix, with the same meaning."""
    plain = _letters(word)
    bare = next((plain.removeprefix(one) for one in PREFIXES if plain.startswith(one)), plain)
    spellings = dict.fromkeys((plain, bare))
    yield from spellings
    for name in spellings:
        for group in ALIKE:
            if name in group:
                yield from group
    if len(bare) > 2:
        yield from (f"{bare}s", bare.removesuffix("s"))


def meant(word: str, names: Iterable[str]) -> list[str]:
    """Return those of some names that a word may stand for; see `nearest`."""
    known, plain = list(names), _letters(word)
    several = [name for name in SEVERAL.get(plain, ()) if name in known]
    if several and several[0] == "samples":
        return several[:1]
    one = nearest(word, known)
    return several or ([] if one is None else [one])


def _letters(word: str) -> str:
    return word.lower().replace("_", "-").strip("-")


def nearest(word: str, names: Iterable[str]) -> str | None:
    """Return the name of an option or command that a word most likely stands for, or None.

    By meaning, by its beginning, or by spelling; a single letter only by meaning. Names have no
    leading dashes; the word may.
    """
    known, plain = list(names), _letters(word)
    alike = next((name for name in _alike(word) if name in known), None)
    if alike is not None or len(plain) < 2:
        return alike
    begun = [name for name in known if len(plain) > 2 and name.startswith(plain)]
    if len(begun) == 1:
        return begun[0]
    return next(iter(get_close_matches(plain, known, n=1, cutoff=CLOSE)), None)


NOT_IN_FILES = ("config", "show-config", "help-all")

FILE = "vpem.file"
"""Under this name a context keeps the file that --config names."""

STUDY = "vpem.study"
"""Under this name a context keeps the study that a member takes part in."""

FILES = "vpem.files"
"""Under this name a context keeps the files that values are from, by names of parameters."""


def is_flag(param: Any) -> bool:
    """Whether a parameter is an option without a value."""
    return bool(getattr(param, "is_flag", False))


def leaves(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command below a group, with the words that name it."""
    for name, member in group.commands.items():
        if hasattr(member, "commands"):
            yield from leaves(member, (*path, name))
        else:
            yield (*path, name), member


def key_of(param: Any) -> str:
    """Name of an option or argument in files: the first long option without its dashes."""
    long = [opt for opt in param.opts if opt.startswith("--")]
    return str((long or param.opts)[0].lstrip("-").replace("_", "-"))


def variables(path: tuple[str, ...], command: Any) -> Report:
    """Options of a command that environment variables may set, by variable."""
    return {
        "_".join(("vpem", *path, key_of(param))).upper().replace("-", "_"): param
        for param in command.params
        if param.param_type_name == "option" and key_of(param) not in ("show-config", "help-all")
    }


def path_of(context: Any) -> tuple[str, ...]:
    """Words that name the command of a context, without the program's."""
    words: list[str] = []
    while context.parent is not None:
        words.insert(0, str(context.info_name))
        context = context.parent
    return tuple(words)


def options_of(content: Report, path: Path, context: Any) -> dict[tuple[str, ...], Report]:
    """Return the options of every command with a table, by the words of the command.

    Tables are called ``[fit]``, ``[data.import]``; options come by names of parameters. InputError
    if a file names commands or options that do not exist.
    """
    try:
        return _tables(content, context.find_root().command, ())
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def take_defaults(context: Any, path: Path, values: Report, *, last: bool = False) -> None:
    """Take values of options, by names of parameters, from a file.

    They replace those of earlier files; if ``last``, those of earlier files stay.
    """
    known, files = dict(context.default_map or {}), context.meta.setdefault(FILES, {})
    for name, value in values.items():
        if not last or name not in known:
            known[name], files[name] = value, path
    context.default_map = known


def _tables(content: Report, group: Any, path: tuple[str, ...]) -> dict[tuple[str, ...], Report]:
    """Check all tables of a file, and return the values of every command in it."""
    tables: dict[tuple[str, ...], Report] = {}
    for name, value in content.items():
        table = ".".join((*path, name))
        member = group.commands.get(name)
        if member is None and not isinstance(value, dict):
            home = ".".join((*path, next(iter(group.commands))))
            raise InputError(
                f"{table!r} is not in the table of a command; put it below its command's name, "
                f"such as [{home}]"
            )
        if member is None:
            hint = did_you_mean(name, group.commands)
            raise InputError(f"[{table}] is not a table of a command{hint}; see 'vpem --help'")
        if not isinstance(value, dict):
            raise InputError(f"{table!r} must be a table, [{table}], got {value!r}")
        if hasattr(member, "commands"):
            tables |= _tables(value, member, (*path, name))
        else:
            tables[(*path, name)] = _values(value, member, table)
    return tables


def _values(content: Report, command: Any, table: str) -> Report:
    known = {key_of(param): param for param in command.params}
    known |= {opt[2:]: param for param in command.params for opt in param.opts if opt[:2] == "--"}
    known = {key: param for key, param in known.items() if key not in NOT_IN_FILES}
    values: Report = {}
    for name, value in content.items():
        key = name.replace("_", "-")
        param = known.get(key)
        if param is None:
            near = nearest(key, known)
            hint = f" (did you mean {near!r}?)" if near else ""
            see = f"vpem {table.replace('.', ' ')} --help"
            raise InputError(f"[{table}] has no option {name!r}{hint}; see '{see}'")
        if param.name in values:
            raise InputError(f"[{table}] gives {key!r} twice, once as {name!r}")
        where, several = f"[{table}] {name}", param.multiple or param.nargs == -1
        if is_flag(param):
            if not isinstance(value, bool):
                raise InputError(f"{where} must be true or false, got {value!r}")
            values[param.name] = value
        elif several:
            items = value if isinstance(value, list) else [value]
            values[param.name] = [_word(item, where) for item in items]
        elif isinstance(value, list):
            raise InputError(f"{where} takes one value, written as on the command line, got a list")
        else:
            values[param.name] = _word(value, where)
    return values


def _word(value: Any, where: str) -> str:
    """Return one value as the word that a command line would have."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        got = {dict: "a table", list: "a list", bool: str(value).lower()}.get(
            type(value), f"a {type(value).__name__}"
        )
        raise InputError(f"{where} must be a number or a string, got {got}")
    return str(value)


def check_environment(context: Any) -> None:
    """Raise InputError where a variable is named like an option that the command does not have."""
    path = path_of(context)
    start = "_".join(("VPEM", *path, "")).upper().replace("-", "_")
    names = [name for name in os.environ if name.startswith(start)]
    if not names:
        return
    root = context.find_root().command
    known = {key_of(param): name for name, param in variables(path, context.command).items()}
    all_known = {name for at, leaf in leaves(root) for name in variables(at, leaf)}
    for name in sorted(names):
        if name not in all_known:
            near = nearest(name.removeprefix(start), known)
            hint = f" (did you mean {known[near]}?)" if near else ""
            raise InputError(
                f"the environment has {name}, but '{context.command_path}' has no such option"
                f"{hint}; unset it"
            )


WORDS = "vpem.words"
"""Under this name a context keeps the words that follow the name of its command."""

SOURCES = {
    "COMMANDLINE": "command line",
    "ENVIRONMENT": "environment",
    "DEFAULT_MAP": "file",
    "DEFAULT": "default",
}
"""What the parser calls a source, and what users call it."""


def in_files(context: Any) -> Iterator[Any]:
    """Options and arguments of a command that a file may set."""
    for param in context.command.params:
        if key_of(param) not in NOT_IN_FILES:
            yield param


def source_of(context: Any, param: Any) -> tuple[str, str | None]:
    """Source of a parameter's value, and the name of the variable or file."""
    source = context.get_parameter_source(param.name)
    kind = SOURCES.get(getattr(source, "name", ""), "default")
    if kind == "environment":
        return kind, str(param.envvar)
    return kind, str(context.meta[FILES][param.name]) if kind == "file" else None


def is_given(context: Any, param: Any) -> bool:
    """Whether a user set a parameter.

    Values from files and the environment count where they are not the default, so that the output
    of --show-config can be used as a file.
    """
    typed = source_of(context, param)[0] == "command line"
    return typed or context.params.get(param.name) != param.default


MOST_FILES = 10_000
"""Most files of a folder that are searched for a name like that of a missing one."""


def origin_of(context: Any, param: Any) -> str | None:
    """Say which file or variable a value is from; None for one from the command line."""
    kind, place = source_of(context, param)
    return None if place is None else f"{name_of(param)} is from {kind} {place}"


def given(context: Any, param: Any, words: list[str]) -> object:
    """Return the value of a parameter as it was given, before it was converted to its type.

    ``words`` are those after the name of the command.
    """
    kind, place = source_of(context, param)
    if kind == "environment" and place is not None:
        return os.environ.get(place)
    if kind == "file":
        return context.default_map.get(param.name)
    return context.command.make_parser(context).parse_args(list(words))[0].get(param.name)


def where_from(context: Any, sentence: str) -> list[str]:
    """Return the files or variables of the values that a sentence of an error speaks of."""
    origins: dict[bool, list[str]] = {True: [], False: []}
    for param in context.command.params:
        origin = origin_of(context, param)
        if origin is None:
            continue
        value = context.params.get(param.name)
        values = value if isinstance(value, list | tuple) else [value]
        plain = "[-_ ]".join(key_of(param).split("-"))
        named = re.search(rf"(?<![\w-]){name_of(param)}(?![\w-])", sentence)
        if named or any(repr(str(each)) in sentence for each in values):
            origins[True].append(origin)
        elif re.search(rf"(?<![\w-]){plain}(?![\w-])", sentence):
            origins[False].append(origin)
    return origins[True] or origins[False]


def near_file(sentence: str) -> list[str]:
    """Return a hint for a sentence that a file does not exist: a similar name, or its source."""
    missing = re.fullmatch(r"'(.+)' does not exist|there is no file (.+)", sentence)
    if missing is None:
        return []
    path = Path(missing[1] or missing[2])
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in islice(entries, MOST_FILES)]
    except OSError:
        names = []
    # Without endings, which would make all names alike.
    stems = {name.partition(".")[0]: name for name in sorted(names, reverse=True)}
    near = get_close_matches(path.name.partition(".")[0], stems, n=1, cutoff=0.75)
    if near:
        return [f"did you mean {str(path.with_name(stems[near[0]]))!r}?"]
    from vpem.files.examples import EXAMPLES

    examples = [name for name, example in EXAMPLES.items() if example.file == path.name]
    if path.parent == Path("data"):
        return ["'vpem data copy' writes it" for _ in examples]
    if not path.parent.is_dir():
        return []
    return [f"'vpem data copy {name} -o {quote(str(path))}' writes it" for name in examples]


ROWS = {
    "fit": ("vp-em", "em-rows"),
    "kmeans": ("kmeans-rows", "kmeans-features"),
    "fedem": ("fedem", "vr-fedem"),
    "impute": ("fedmissem",),
    "saem": ("saem",),
}
"""Algorithms of each command, as rows of `vpem.idle`."""

INSTEAD = {
    **{(command, "--agent-dropout"): "absent agents are drawn by --participation; take that"
       for command in ("fedem", "impute", "saem")},
    ("fit", "--participation"): "on a graph agents are absent with --agent-dropout, and a server's "
    "sum needs every agent; rows over workers that take turns are fitted by vpem fedem",
    ("impute", "--missing"): "missing entries are what is imputed; leave it out",
    ("fedem", "--accelerate"): "FedEM steps are taken on statistics, and no sum shows a "
    "log-likelihood by which to reject one; rows are fitted in fewer sums by vpem fit --split rows "
    "--accelerate squarem",
    ("impute", "--accelerate"): "steps are taken on statistics, and no sum shows a log-likelihood "
    "by which to reject one; leave it out",
    ("saem", "--accelerate"): "latents are drawn again in every iteration, so that no sum shows "
    "whether a longer step was too long; leave it out",
    ("saem", "--spread"): "parameters that --random does not name are fixed, without any spread; "
    "leave it out",
    ("kmeans", "--accelerate"): "Lloyd's iterations end by themselves after finitely many; for "
    "fewer of them give --max-iter",
}  # fmt: skip
"""What a command offers in place of an option of others, or why it needs none."""


def why_refused(command: str, option: str) -> InputError | None:
    """Return why a command lacks an option, where `vpem.idle` or another option explains it."""
    if (command, option) in INSTEAD:
        return InputError(f"{option}: {INSTEAD[command, option]}")
    for way, about in WAYS.items():
        if option in (flag.split()[0] for flag in about.flags):
            rows = [row for row in ROWS.get(command, ()) if (row, way) in REFUSED]
            if rows and len(rows) == len(ROWS[command]):
                return refusal(rows[0], way)
    return None


def refuse_idle(context: Any) -> None:
    """Raise InputError where an option was given that has no effect."""
    known = getattr(context.command.callback, "settings", {})
    for param in context.command.params:
        if param.name not in known or not is_given(context, param):
            continue
        if why := known[param.name].why_idle(context.params):
            raise InputError(f"{name_of(param)}", *why)
