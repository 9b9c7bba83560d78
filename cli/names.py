"""Names of options: as a sentence says them, and what a mistyped one may stand for.

A sentence of the library keeps names of parameters apart from all other text
(`vpem.errors.Setting`); here they become the options of the command that runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from shlex import quote
from typing import TYPE_CHECKING, Any

from vpem.errors import InputError
from vpem.rules import why_never

if TYPE_CHECKING:
    from vpem.errors import Setting, VpemError, VpemWarning

MEANINGS = """
components clusters k classes mixtures groups; max-iter iterations iter max-iterations iters epochs;
sampler-steps steps; step-size step learning-rate lr; tol tolerance threshold eps; epsilon eps
privacy dp; n-init restarts starts repeats; init start initialization init-params; seed random-state
random-seed; covariance covariance-type cov cov-type; reg-covar regularization reg; scale
standardize standardise normalize normalise zscore scaling; threads jobs cores cpus processes;
memory-limit memory max-memory ram; samples rows n; features columns cols variables vars dimensions
d use-columns; drop drop-column drop-columns exclude ignore leave-out without; value response
outcome y; label-column labels label target y class class-column truth; labels label assignments
predictions; id-column id ids index index-column index-col; worker-column site site-column
party-column group-column; sample-weight weight-column weight row-weights; na na-values null-values
missing-marks null; decimal decimal-separator decimal-mark dec; thousands thousands-separator
thousands-sep; encoding charset codepage; no-header header; delimiter sep separator; dataset key
sheet layer; agents clients nodes parties; workers devices clients nodes sites; align level;
compress codec compression quantize; gradient-compress gradient-codec; conditional-draws
conditional; importance-draws importance; missing missing-values nan; consensus path; topology
network; secure-sum secure mask masks; time t x; id subject individual; individual subject id;
output out output-file o save outfile model-file write; kind type plot-type; plot figure picture;
force overwrite replace yes f; quiet silent s; dtype precision; proba probabilities
responsibilities; from given; fit train em gmm mixture vpem run; kmeans k-means cluster clusters
clustering lloyd; fedem federated federate fed; saem nlme mixed latent; select search tune choose;
impute complete fill fillna; predict assign classify label transform apply; score likelihood
log-likelihood loglik; sample generate draw-rows; evaluate compare validate test accuracy confusion;
plot draw visualize visualise picture figure; doctor info check-install diagnose; report html page;
topology graph network; describe inspect head summary summarize profile; show inspect print cat
view; import convert load read; fetch download get; list datasets examples ls; copy cp example;
export dump
"""

ALIKE = tuple(tuple(group.split()) for group in MEANINGS.split(";"))
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

FILE, FILES, STUDY = "vpem.file", "vpem.files", "vpem.study"
SHOW, WHOLE = "vpem.show", "vpem.whole"
"""Under these names a context keeps the file that --config names, the files that values are from
(by names of parameters), the study that a member takes part in, whether values are only shown
(--show-config), and whether help is (--help-all)."""


def speak_of(options: Iterable[Any]) -> None:
    """Let sentences name these parameters of a command."""
    _options[:] = options


def key_of(param: Any) -> str:
    """Name of an option or argument in files: the first long option without its dashes."""
    names = [opt for opt in param.opts if opt.startswith("--")] or param.opts
    return str(names[0].lstrip("-").replace("_", "-"))


def name_of(option: Any) -> str:
    """Return an option or argument as its user calls it."""
    if option.param_type_name == "argument":
        return str(option.metavar or option.name).upper()
    return f"--{key_of(option)}"


def is_flag(param: Any) -> bool:
    return bool(getattr(param, "is_flag", False))


def leaves(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command below a group, with the words that name it."""
    for name, member in group.commands.items():
        if hasattr(member, "commands"):
            yield from leaves(member, (*path, name))
        else:
            yield (*path, name), member


def in_options(error: VpemError | VpemWarning) -> str:
    """Return a sentence of the library, and its notes, with the options of the command."""
    return "; ".join([error.sentence_with(_typed), *getattr(error, "__notes__", ())])


def _typed(setting: Setting) -> str:
    """Return what a user types to set a parameter; its name in Python if no option sets it."""
    options = {key_of(one): one for one in _options if one.param_type_name == "option"}
    # A separate option for one value: resume="if-any", --resume-if-any.
    if f"{setting.name}-{setting.value}" in options:
        return name_of(options[f"{setting.name}-{setting.value}"])
    named = {one.name: one for one in _options}
    alike = (options[key] for key in _alike(setting.name) if key in options)
    option = named.get(setting.name) or next(alike, None)
    if option is None:
        return str(setting)
    if setting.value is None or is_flag(option) or option.param_type_name == "argument":
        return name_of(option)
    values = setting.value if isinstance(setting.value, list) else [setting.value]
    return " ".join(f"{name_of(option)} {quote(str(value))}" for value in values)


def _alike(word: str) -> Iterator[str]:
    """Yield names that a word may stand for: itself, without its prefix, with the same meaning."""
    plain = word.lower().replace("_", "-").strip("-")
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
    """Return those of the names of options or commands that a word most likely stands for.

    By meaning, by their beginning, or by spelling; a single letter only by meaning. Names have no
    leading dashes; the word may.
    """
    known, plain = list(names), next(_alike(word))
    several = [name for name in SEVERAL.get(plain, ()) if name in known]
    if several:
        return several[:1] if several[0] == "samples" else several
    alike = [name for name in _alike(word) if name in known]
    if alike or len(plain) < 2:
        return alike[:1]
    begun = [name for name in known if len(plain) > 2 and name.startswith(plain)]
    return begun if len(begun) == 1 else get_close_matches(plain, known, n=1, cutoff=CLOSE)


def hint(near: Iterable[str]) -> str:
    """Suggest what a word may stand for, if anything is known."""
    words = " or ".join(map(repr, near))
    return f" (did you mean {words}?)" if words else ""


def misuse(context: Any, *parts: str | None) -> InputError:
    """Return the error of a command that is called wrongly, which leads to its help."""
    return InputError("; ".join(filter(None, (*parts, f"see '{context.command_path} --help'"))))


def _no_such(context: Any, what: str, word: str, near: Iterable[str]) -> InputError:
    advice = (f"; {advice}" for words, advice in ELSE if word.strip("-") in words)
    return misuse(context, f"no such {what}: {word}{hint(near) or next(advice, '')}")


def no_such_command(context: Any, word: str) -> InputError:
    """Return the error that a group has no such command, with those that may be meant."""
    near = meant(word, context.command.commands)
    # Commands of other groups are called by their full names.
    below = [path for path, _ in leaves(context.find_root().command) if len(path) > 1]
    if not near or word in {path[-1] for path in below}:
        found = meant(word, dict.fromkeys(path[-1] for path in below))
        near = [" ".join(("vpem", *path)) for path in below if path[-1] in found] or near
    return _no_such(context, "command", word, near)


def no_such_option(context: Any, name: str, words: list[str]) -> InputError:
    """Return the error that a command has no such option, with the one that may be meant."""
    if why := why_never(context.info_name, name[2:].replace("-", "_")):
        return InputError(name, *why)
    known = {word.lstrip("-"): name_of(one) for one in context.command.params for word in one.opts}
    # A long option with one dash is read as short ones: search for the word as typed.
    typed = [word for word in words if word.startswith(name) and name[1] != "-"]
    word = next(iter(typed), name)
    return _no_such(context, "option", word, [known[one] for one in meant(word, known)])
