"""Help: options under headings, and values that a shell completes.

`--help` shows the most needed options, in brief; `--help-all` and the reference show all. Settings
of records have their choices there. Those of other options are repeated here, because a shell waits
for them and the library takes long to load; tests compare the two. An option that is not here
offers the words that its help lists.
"""

from __future__ import annotations

import inspect
import re
from collections import UserDict
from collections.abc import Callable, Collection, Sequence
from copy import copy
from functools import partial
from importlib import import_module
from typing import Annotated, Any

import typer

from .names import is_flag, key_of
from .options import spread

HEADINGS: dict[str, tuple[str, ...]] = {
    "Options": (),
    "Study": ("command", "as"),
    "Selection": (),
    "Data": ("agents", "dataset", "samples", "features", "drop-ids", "shuffle"),
    "Individuals": (),
    "Model": (),
    "Prior": (),
    "Network": (),
    "Messages and faults": (),
    "Privacy": (),
    "Start": ("init-model", "seed"),
    "Sampler": (),
    "Method": (),
    "Stopping": (),
    "Draws at the estimates": (),
    "Running": (),
    "Checkpoints": (),
    "Output": ("output", "plot", "quote-formulas", "force", "json", "quiet"),
    "Configuration": ("config", "show-config", "help", "help-all"),
}  # fmt: skip
"""Headings in order, and the options below them that are not settings of a record, by name."""

FEW = 9
"""Most options, without those of the last heading, that need no headings."""


def grouped(params: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    """Return the options of a command by headings, without hidden ones; a short list has one."""
    options = [one for one in params if one.param_type_name == "option" and not one.hidden]
    last = HEADINGS["Configuration"]
    if sum(key_of(option) not in last for option in options) <= FEW:
        return [("Options", options)]
    home = {name: heading for heading, names in HEADINGS.items() for name in names}
    groups: dict[str, list[Any]] = {heading: [] for heading in HEADINGS}
    for option in options:
        heading = option.rich_help_panel or home.get(key_of(option), "Options")
        groups[heading].append(option)
    return [(heading, group) for heading, group in groups.items() if group]


LAST = " output force json quiet"

OFTEN: dict[str, str] = {
    "fit": "components covariance family scale split agents parties align topology hops features "
    "drop id-column label-column missing n-init max-iter seed labels output json quiet",
    "select": "components covariance family criterion scale hops split agents parties align "
    "topology id-column missing n-init max-iter seed jobs output quiet",
    "kmeans": "clusters scale split workers agents parties align features drop id-column "
    "label-column missing n-init max-iter seed labels output force json quiet",
    "fedem": "components covariance scale workers parties features drop id-column label-column "
    "missing compress participation max-iter seed labels output json quiet",
    "impute": "method rank components draws law workers parties id-column holdout max-iter seed "
    "output json quiet",
    "saem": "model components id time value covariates devices parties missing iterations seed "
    "labels individuals output json quiet",
    "predict": f"proba missing individual times latents parties align id-column{LAST}",
    "score": "missing parties align id-column dataset json",
    "evaluate": "labels label-column missing parties align id-column json",
    "plot": f"kind labels features individual parties align id-column{LAST}",
    "report": f"labels parties align id-column{LAST}",
    "data import": "features drop id-column label-column family na decimal delimiter no-header "
    "agents output force quiet",
    "data describe": "features drop id-column label-column family na decimal delimiter no-header "
    "json",
    "data split": "agents partition shuffle drop-ids seed id-column label-column family output "
    "force json quiet",
    "party request": "as address listen features id-column label-column family na decimal",
    "party check": "as idle serve listen features id-column na decimal json quiet",
    "model contribution": f"labels label-column missing parties align id-column{LAST}",
    "topology describe": "agents topology hops sum rounds compress samples components features "
    "json plot",
    "study init": "command as star relay topology address data result",
}
"""Options that `--help` of a command shows, in order; for other commands it shows all."""

FIRST = re.compile(r"(?<=[\w)\]'])\.(?= [A-Z])")
"""The end of a sentence that is followed by another."""


def brief(text: str) -> str:
    """Return the first sentence of a help text, and its default.

    "Number of things. They are many. Default: all." becomes "Number of things.  [default: all]".
    """
    sentence, _, default = text.partition(" Default: ")
    sentence = FIRST.split(sentence)[0].removesuffix(".")
    default = FIRST.split(default)[0].removesuffix(".")
    return f"{sentence}.{f'  [default: {default}]' * bool(default)}"


def often(path: str, options: Sequence[Any]) -> list[Any] | None:
    """Return the options that `--help` shows, with brief help; None if it shows all."""
    known = {key_of(one): one for one in options}
    frequent = [known[name] for name in OFTEN.get(path, "").split() if name in known]
    if not frequent:
        return None
    shown = []
    for one in map(copy, frequent):
        one.help = brief(one.help or "")
        short = [word for word in one.opts if not word.startswith("--")]
        one.opts = [*short, f"--{key_of(one)}"]
        shown.append(one)
    return shown


CHOICES: dict[str, tuple[str, ...]] = {
    "kind": (
        "profile", "projection", "history", "graph", "sparsity", "communication", "marginals",
        "pairs", "responsibilities", "confusion", "traces", "curves", "observed",
        "residuals", "vpc", "effects", "topics", "shares", "spreads",
    ),
    "data copy name": ("breast_cancer", "wine", "heart", "oxford_boys", "theophylline",
                       "notices"),
    "data fetch name": ("htru2",),
    "model best criterion": ("log-likelihood", "bic", "aic"),
    "topology describe source": ("star", "cycle", "path", "complete", "grid", "geometric",
                                 "erdos-renyi", "small-world", "scale-free", "tree"),
}  # fmt: skip
"""Words that options take, by the option's name, for one command by its words and that name."""

_WORD = re.compile(r"[a-z][\w.+-]*(:[\w.]+)?")


def words_of(path: tuple[str, ...], param: Any) -> tuple[str, ...]:
    """Return the words that an option or argument of a command takes; none if it takes any."""
    key = key_of(param)
    choices = CHOICES.get(" ".join((*path, key)))
    if choices is not None:
        return choices
    text = re.search(r"\bPath\b", str(getattr(param, "type_descriptor", ""))) is None
    listed = listed_in(param.help or "") if text else ()
    if param.param_type_name == "argument" or is_flag(param):
        return ()
    known = CHOICES.get(key, ())
    if isinstance(param.default, str) and param.default not in known:
        known = ()
    if known and not (listed and set(listed) - set(known)):
        return known
    return listed if not isinstance(param.default, str) or param.default in listed else ()


def listed_in(text: str) -> tuple[str, ...]:
    """Return the choices that a help text lists: "Start: random (shared rows), kmeans."."""
    plain = re.sub(r"\s*\([^()]*\)", "", text.partition(" Default:")[0])
    for part in re.split(r": |\. ", plain):
        words = re.split(r", or |; or |, |; | or ", part.strip().rstrip("."))
        if len(words) > 1 and all(_WORD.fullmatch(word) for word in words):
            return tuple(words)
    return ()


def complete_values(path: tuple[str, ...], command: Any) -> None:
    """Let the options of a command complete their values; files are left to the shell."""
    known = getattr(command.callback, "settings", {})
    for param in command.params:
        setting = known.get(param.name)
        words = setting.choices or setting.words if setting else words_of(path, param)
        if words and param._custom_shell_complete is None:
            param._custom_shell_complete = partial(_beginning, words)


def _beginning(words: tuple[str, ...], context: Any, param: Any, incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def _begun(context: typer.Context, incomplete: str) -> list[str]:
    """Return the commands with which the words so far may continue."""
    node: Any = context.find_root().command
    for word in context.params.get("words") or ():
        node = getattr(node, "commands", {}).get(word)
    return [name for name in getattr(node, "commands", ()) if name.startswith(incomplete)]


def show_help(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND",
            help="Words that name a command, such as: data import.",
            autocompletion=_begun,
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Show every option, as COMMAND --help-all does.")
    ] = False,
) -> None:
    """Show the help of a command.

    Example: vpem help fit

    Example: vpem help data import
    """
    root = context.find_root().command
    flag = "--help-all" if everything else "--help"
    with root.make_context("vpem", [*(words or ()), flag]) as again:
        root.invoke(again)


class Elsewhere:
    """Stands for a command, or a group (``app``), of another module until it is called."""

    def __init__(self, module: str, name: str, summary: str) -> None:
        self.module, self.name = module, name
        self.__doc__ = summary

    def __call__(self) -> Any:
        return getattr(import_module(f".{self.module}", __package__), self.name)


class Members(UserDict[str, Any]):
    """Commands and groups by name, each made at its first use."""

    def __init__(
        self, makers: dict[str, Callable[[], Any]], helps: dict[str, str], groups: Collection[str]
    ) -> None:
        self.data = dict.fromkeys(makers)
        self._makers, self.helps, self.groups = makers, helps, groups

    def __getitem__(self, name: str) -> Any:
        if name in self._makers:
            self[name] = self._makers[name]()
        return self.data[name]

    def __setitem__(self, name: str, member: Any) -> None:
        self.data[name] = member
        self._makers.pop(name, None)


def tree(
    app: typer.Typer,
    dress: Callable[[typer.Typer], typer.Typer],
    finish: Callable[[tuple[str, ...], Any], None],
    path: tuple[str, ...] = (),
) -> Any:
    """Return the group of an app whose commands and groups are made at their first use.

    ``dress`` chooses the classes of an app's commands; ``finish`` is called with the words that
    name a command and the command, once it is made; ``path`` names the group.
    """
    # The group itself, without commands, and with its options for completion, if it has them.
    dress(app)
    commands, app.registered_commands = app.registered_commands, []
    try:
        make = typer.main.get_command if app.registered_callback else typer.main.get_group
        group: Any = make(app)
    finally:
        app.registered_commands = commands
    makers: dict[str, Callable[[], Any]] = {}
    helps: dict[str, str] = {}
    groups = []
    for info in commands:
        name = info.name or info.callback.__name__.replace("_", "-")  # type: ignore[union-attr]
        text = inspect.getdoc(info.callback) if info.callback else None
        helps[name] = " ".join((text or "").partition("\n\n")[0].split())
        makers[name] = partial(_make, info, dress, finish, (*path, name))
        if isinstance(info.callback, Elsewhere) and info.callback.name == "app":
            groups.append(name)
    group.commands = Members(makers, helps, groups)
    return group


def _make(
    info: Any,
    dress: Callable[[typer.Typer], typer.Typer],
    finish: Callable[[tuple[str, ...], Any], None],
    path: tuple[str, ...],
) -> Any:
    callback = info.callback
    if isinstance(callback, Elsewhere):
        callback = callback()
    if isinstance(callback, typer.Typer):
        group = tree(callback, dress, finish, path)
        group.name = path[-1]
        return group
    one = typer.Typer(add_completion=False, rich_markup_mode=None)
    one.registered_commands = [copy(info)]
    one.registered_commands[0].callback = spread(callback)
    command = typer.main.get_command(one)
    finish(path, command)
    return command
