"""Options that a study says for all members: parsed by the commands that will be run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .agreement import OWN as ALONE
from .config import is_flag, key_of
from .naming import name_of, nearest, speak_of

if TYPE_CHECKING:
    from vpem.files.studies.study import Study
    from vpem.network.schema import Report


OWN = ("engine", "parties", "shards", "threads", "jobs", "strict")
"""Options of one member's machine, or what a study says elsewhere, besides those that are local."""

OF_ONE_FILE = ("agents", "workers", "worker-rows", "partition", "dataset")
"""Options of data in one file, which members of a study do not have."""

NUMBER = re.compile(r"-\.?\d.*")


class Agreed:
    """What a study says of one command.

    ``table`` has its options by their names in files, as they were given, ``values`` those of all
    settings, and ``params`` are its parameters.
    """

    def __init__(self, command: str, table: Report, values: Report, params: Any = ()) -> None:
        self.command, self.table, self.values, self.params = command, table, values, params

    def words(self) -> list[str]:
        """Return its options, as they are typed."""
        words = []
        for name, value in self.table.items():
            if isinstance(value, bool):
                words.append(f"--{name}" if value else f"--no-{name}")
            else:
                for one in value if isinstance(value, list) else [value]:
                    words += [f"--{name}", str(one)]
        return words

    def line(self) -> str:
        """Return the command with its options."""
        return " ".join(["vpem", self.command, *self.words()])


def runnable(root: Any) -> list[str]:
    """Return the commands that members of a study can run: those with --engine."""
    return [
        name for name, leaf in root.commands.items()
        if not hasattr(leaf, "commands") and any(key_of(param) == "engine" for param in leaf.params)
    ]  # fmt: skip


def _is_own(leaf: Any, param: Any) -> bool:
    """Whether each member says a parameter of a command for itself: it is local, or names files."""
    known = getattr(leaf.callback, "settings", {}).get(param.name)
    return (
        param.name in leaf.roles()
        or param.name in ALONE
        or key_of(param) in OWN
        or (known is not None and known.local)
    )


def agree_on(
    context: Any,
    commands: Sequence[str],
    name: str,  # what was taken for the study's
    topology: str,  # of commands that have one
    before: Mapping[str, Report] | None = None,
) -> list[Agreed]:
    """Return what a study says of some commands.

    The context, of the command that makes or changes the study, has words that it does not know
    itself: options, each of which goes to the commands that have it. What the study has said of
    commands ``before`` holds where no option says otherwise. InputError if an option is each
    member's own, or a command refuses what it gets; ClickException if no command has an option, or
    its value is of a wrong type.
    """
    from vpem.errors import InputError, check_choice

    root = context.find_root().command
    for one in commands:
        check_choice("command", one, runnable(root))
    early = name.startswith("-")
    if early and any(_param(root.commands[one], name) for one in commands):
        raise InputError(f"the name of the study comes first, before {name}")
    known = {one: dict(table) for one, table in (before or {}).items()}
    known |= {one: {} for one in commands if one not in known}
    added: dict[str, list[str]] = {one: [] for one in known}
    for group in _groups(context, [*([name] if early else []), *context.args]):
        takers = [one for one in commands if _param(root.commands[one], group[0])]
        if not takers:
            refuse_as_own(context, group[0])
        # What none has the first refuses, in its words.
        for one in takers or commands[:1]:
            added[one] += group
            known[one].pop(key_of(_param(root.commands[one], group[0])) if takers else "", None)
    shares = {one: [*Agreed(one, known[one], {}).words(), *added[one]] for one in known}
    agreed = [_agreed(context, one, share, topology) for one, share in shares.items()]
    speak_of(context.command.params)
    return agreed


def agreed_before(context: Any, study: Study) -> list[Agreed]:
    """Return what a study says of its commands, parsed as each would."""
    from .new_study import setup_of

    topology = setup_of(study).topology
    return [
        _agreed(context, one, Agreed(one, table, {}).words(), topology)
        for one, table in study.options.items()
    ]


def refuse_as_own(context: Any, word: str) -> None:
    """Refuse a word that is nearly an option of the command itself, as it would."""
    known = [opt.lstrip("-") for param in context.command.params for opt in param.opts]
    if nearest(word.partition("=")[0], known) is not None:
        parser = context.command.make_parser(context)
        parser.ignore_unknown_options = False
        parser.parse_args([word])


EXAMPLES = {
    "init": "the name of the study comes first: vpem study init heart --star hub.org:443 --hops 0",
    "change": "the study comes first: vpem study change heart.toml --hops 0 -k 2",
}


def _groups(context: Any, words: list[str]) -> list[list[str]]:
    """Return options with the values after them."""
    from vpem.errors import InputError

    found: list[list[str]] = []
    for word in words:
        if word.startswith("-") and not NUMBER.fullmatch(word):
            found.append([word])
        elif found:
            found[-1].append(word)
        else:
            raise InputError(
                f"{word!r} is neither an option nor its value; {EXAMPLES[context.info_name]}"
            )
    return found


def _param(leaf: Any, word: str) -> Any:
    """Return the option of a command that a word names, or None."""
    long = word.partition("=")[0]
    for param in leaf.params:
        for opt in (*param.opts, *param.secondary_opts):
            if opt == long or (is_flag(param) and f"--no-{opt[2:]}" == long):
                return param
            if len(opt) == 2 and not word.startswith("--") and word.startswith(opt):
                return param
    return None


def _agreed(context: Any, name: str, words: list[str], topology: str) -> Agreed:
    """Parse the options of one command, and check them as it would."""
    from vpem.errors import InputError

    above = context.find_root()
    root = above.command
    leaf = root.commands[name]
    keys = {key_of(param) for param in leaf.params}
    needed = [param for param in leaf.params if param.param_type_name == "argument"]
    implied = ["--parties"] if "parties" in keys else []
    if "topology" in keys:
        implied += ["--topology", topology]
    parsed, rest, _ = leaf.make_parser(_context(above, leaf, name)).parse_args(list(words))
    stray = [*rest, *(word for param in needed for word in _words(parsed.get(param.name)))]
    if stray:
        raise InputError(
            f"{stray[0]!r} is neither an option of 'vpem {name}' nor the value of one; data are "
            "named by each member for itself"
        )
    files = ["DATA" for param in needed if param.required]
    context = leaf.make_context(name, [*files, *implied, *words], parent=above)
    given = _given(context, leaf)
    for param in leaf.params:
        if param.name in given and key_of(param) in OF_ONE_FILE:
            raise InputError(f"{name_of(param)} is for one file, and members have one each")
        if param.name in given and _is_own(leaf, param) and key_of(param) != "parties":
            raise InputError(
                f"{name_of(param)} is not for a study: each member says it for itself when it runs "
                f"'vpem {name} --study'"
            )
    _check(context)
    table = {
        key_of(param): context.params[param.name]
        for param in leaf.params
        if param.name in given and key_of(param) != "parties"
    }
    return Agreed(name, table, dict(context.params), leaf.params)


def _words(value: Any) -> Iterable[str]:
    """Return the words that were taken for an argument."""
    return value if isinstance(value, list | tuple) else [value] if isinstance(value, str) else []


def _context(above: Any, leaf: Any, name: str) -> Any:
    """Return the context of a command of which nothing was parsed."""
    return leaf.context_class(leaf, info_name=name, parent=above)


def _given(context: Any, leaf: Any) -> set[str]:
    """Return the names of the options that were typed."""
    sources = {param.name: context.get_parameter_source(param.name) for param in leaf.params}
    return {
        name for name, source in sources.items()
        if getattr(source, "name", "") == "COMMANDLINE"
        and not any(p.name == name and p.param_type_name == "argument" for p in leaf.params)
    }  # fmt: skip


def _check(context: Any) -> None:
    """Refuse what the command would refuse before it looks at data."""
    from .idle import refuse_idle
    from .policy import refuse_repeatable

    refuse_idle(context)
    refuse_repeatable(context.params)
    records = context.command.callback.records(context.params)
    if "sums" in records and (topology := context.params.get("topology")):
        from vpem.network.graph import make_graph
        from vpem.sums.exchanges import settled

        # Of the graph only whether it has a server counts, and how many it has is not known yet.
        settled(make_graph("star" if topology == "star" else "path", 3), records["sums"])
