"""Options that a study sets for all its members, parsed by the commands that will be run.

All members must run the same command with the same options, except those that are local to each.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from glob import has_magic
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vpem.errors import InputError, Setting, VpemError, VpemWarning, check_choice
from vpem.files.table_settings import TableSettings
from vpem.fits.settings import parse_numbers

from ..data import STDIN, refuse_families, teller
from ..display import plural
from ..names import STUDY, in_options, is_flag, key_of, name_of, nearest, speak_of
from ..options import in_files, options_of, path_of, refuse_idle, source_of, take_defaults
from ..outputs import writes

if TYPE_CHECKING:
    from collections.abc import Callable

    from vpem.files.parties.opening import Party
    from vpem.files.studies.study import Study
    from vpem.network.schema import Report

OWN_OPTIONS = ("data", "memory_limit", "proba")
"""Local parameters that are no settings (`vpem.records.About.local`); outputs are local as well."""

IF_ANY = "if any"
"""Stands for --resume-if-any, which any member may give: all resume then, or start."""

NOT_THERE = "nothing"


def terms_of(context: Any) -> dict[str, list[str]]:
    """Return the value and source of every option that all members must share, by option.

    Of input files the content counts, not the name; of a checkpoint whether there is one.
    """
    from vpem.files.studies.policy import file_digest

    known = getattr(context.command.callback, "settings", {})
    roles = context.command.roles()
    terms = {}
    for param in in_files(context):
        about, role = known.get(param.name), roles.get(param.name)
        if param.name in OWN_OPTIONS or (about is not None and about.local):
            continue
        value = context.params.get(param.name)
        if role is not None and role.writes:
            if param.name != "checkpoint":
                continue
            value = None if value is None else "given"
        elif role is not None and value is not None:
            value = f"a file with SHA-256 {file_digest(value)[:16]}"
        if param.name == "resume" and context.params.get("resume_if_any"):
            value = IF_ANY
        if param.name != "resume_if_any":
            kind, place = source_of(context, param)
            word = NOT_THERE if value is None or value is False else str(value)
            terms[name_of(param)] = [word, Path(place).name if place else kind]
    return terms


def check_alike(names: Sequence[str], everyones: Sequence[Any], study: str) -> None:
    """Raise InputError unless all members run the same command with the same options.

    ``everyones`` has the introduction of each member: the words of its command, its `terms_of`,
    the outputs that it requests, and the fewest parties with data that its policy allows.
    """
    command, terms, *_ = everyones[0]
    for name, (theirs, others, *_) in zip(names[1:], everyones[1:], strict=True):
        if theirs != command:
            raise InputError(
                f"{names[0]} runs 'vpem {command}' and {name} 'vpem {theirs:.40}'; all members of "
                f"{study} must run the same command"
            )
        for option in sorted({*terms, *others} - ({"--resume"} if goes_on(everyones) else set())):
            one, two = (each.get(option, [NOT_THERE, "default"]) for each in (terms, others))
            if one[0] != two[0]:
                raise InputError(
                    f"{option} is set differently: {names[0]} has {one[0]:.300} ({one[1]:.60}), "
                    f"{name} has {two[0]:.300} ({two[1]:.60}); all members of {study} "
                    "must have the same"
                )


def goes_on(everyones: Sequence[Any]) -> bool:
    """Whether all resume from their checkpoints, if there are any: a member has come back."""
    return any(terms.get("--resume", [None])[0] == IF_ANY for _, terms, *_ in everyones)


def introduced(value: Any, name: str) -> Any:
    """Return a member's introduction, which ends with a nonce and a signature.

    InputError if it is none.
    """
    if isinstance(value, list) and [*map(type, value)] == [str, dict, list, int, bytes, bytes]:
        _, terms, outputs, *_ = value
        pairs = all(isinstance(term, list) and len(term) == 2 for term in terms.values())
        words = (*terms, *outputs, *(chain(*terms.values()) if pairs else [None]))
        if all(isinstance(word, str) for word in words):
            return value
    raise InputError(f"{name} has sent no introduction; do all run the same version?")


def check_own(options: dict[str, Any]) -> None:
    """Raise the errors that this member alone can mend, before others connect and have to end."""
    from vpem._core.threads import thread_count
    from vpem.checks import check_number
    from vpem.files.opening import check_readable
    from vpem.files.temporaries import check_ending

    check_number("--timeout", float(options["timeout"]), least=0.0, above=True)
    thread_count(options.get("n_threads"))
    for file in map(str, options.get("data") or ()):
        if file == STDIN:
            raise InputError(
                "standard input (-) can be read only once; a member of a study names a file"
            )
        if not has_magic(file):
            check_readable(file)
    if (labels := options.get("labels_file")) is not None:
        check_ending(labels, "results")
        writes("--labels", labels)


OWN = ("engine", "parties", "shards", "threads", "jobs", "strict")
"""Further options of one member's machine, or set elsewhere in the study."""

OF_ONE_FILE = ("agents", "workers", "worker-rows", "partition", "dataset")
"""Options for data in one file, which members of a study do not have."""

NUMBER = re.compile(r"-\.?\d.*")


class Agreed(NamedTuple):
    """One command of a study."""

    command: str
    table: Report  # the given options, by their names in files
    values: Report  # all options, by names of parameters
    params: Sequence[Any]


def typed(table: Report) -> list[str]:
    """Return options of a study as the words of a command line."""
    words = []
    for name, value in table.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            for one in value if isinstance(value, list) else [value]:
                words += [f"--{name}", str(one)]
    return words


def agree_on(
    context: Any,
    commands: Sequence[str],
    name: str,  # the word taken for the study's name
    topology: str,  # for commands with --topology
    before: Mapping[str, Report] | None = None,
) -> list[Agreed]:
    """Return some commands of a study with their options.

    Words that the command of the context ('vpem study init' or 'change') does not know itself are
    options of these commands; each goes to those that have it. The options ``before`` hold where
    no new one replaces them. InputError if an option is local to each member, or a command refuses
    its options; ClickException if no command has an option, or its value has the wrong type.
    """
    leaves = context.find_root().command.commands
    runnable = [  # those with --engine
        one
        for one, leaf in leaves.items()
        if not hasattr(leaf, "commands") and any(key_of(param) == "engine" for param in leaf.params)
    ]
    for one in commands:
        check_choice("command", one, runnable)
    early = [name] if name.startswith("-") else []
    if early and any(_param(leaves[one], name) for one in commands):
        raise InputError(f"the name of the study comes first, before {name}")
    known = {one: dict(table) for one, table in (before or {}).items()}
    known |= {one: {} for one in commands if one not in known}
    added: dict[str, list[str]] = {one: [] for one in known}
    for group in _groups(context, [*early, *context.args]):
        takers = {one: param for one in commands if (param := _param(leaves[one], group[0]))}
        if not takers:
            refuse_as_own(context, group[0])
            added[commands[0]] += group  # which refuses it, in its words
        for one, param in takers.items():
            added[one] += group
            known[one].pop(key_of(param), None)
    agreed = [
        _agreed(context, one, [*typed(table), *added[one]], topology)
        for one, table in known.items()
    ]
    speak_of(context.command.params)
    return agreed


def agreed_before(context: Any, study: Study) -> list[Agreed]:
    """Return the commands of a study, their options parsed as each command would."""
    tables = study.options.items()
    return [_agreed(context, one, typed(table), study.topology) for one, table in tables]


def refuse_as_own(context: Any, word: str) -> None:
    """Refuse a word that resembles an option of the command itself, as its parser would."""
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
    """Return a list for each option: the option and the values after it."""
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("-") and not NUMBER.fullmatch(word):
            groups.append([word])
        elif groups:
            groups[-1].append(word)
        else:
            raise InputError(
                f"{word!r} is neither an option nor its value; {EXAMPLES[context.info_name]}"
            )
    return groups


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
    """Parse the options of one command, and check them as the command would."""
    from vpem.files.studies.policy import refuse_repeatable

    above = context.find_root()
    leaf = above.command.commands[name]
    keys = {key_of(param) for param in leaf.params}
    needed = [param for param in leaf.params if param.param_type_name == "argument"]
    parser = leaf.make_parser(leaf.context_class(leaf, info_name=name, parent=above))
    parsed, stray, _ = parser.parse_args(list(words))
    for value in [parsed.get(param.name) for param in needed]:
        stray += [value] if isinstance(value, str) else value or []
    if stray:
        raise InputError(
            f"{stray[0]!r} is neither an option of 'vpem {name}' nor the value of one; each member "
            "names its data itself"
        )
    files = ["DATA" for param in needed if param.required]
    implied = ["--parties"] * ("parties" in keys)
    implied += ["--topology", topology] * ("topology" in keys)
    context = leaf.make_context(name, [*files, *implied, *words], parent=above)
    local, table = {*leaf.roles(), *OWN_OPTIONS}, {}
    local |= {key for key, about in leaf.callback.settings.items() if about.local}
    for param in leaf.params:
        source, key = context.get_parameter_source(param.name), key_of(param)
        if param in needed or key == "parties" or getattr(source, "name", "") != "COMMANDLINE":
            continue
        if key in OF_ONE_FILE:
            raise InputError(f"{name_of(param)} is for one file, and members have one each")
        if param.name in local or key in OWN:
            raise InputError(
                f"{name_of(param)} is not for a study: each member gives it itself when it runs "
                f"'vpem {name} --study'"
            )
        table[key] = context.params[param.name]
    refuse_idle(context)
    refuse_repeatable(context.params)
    records = leaf.callback.records(context.params)
    if "sums" in records and (topology := context.params.get("topology")):
        from vpem.network.graph import make_graph
        from vpem.sums.exchanges import settled

        # Only whether the graph has a server matters here; its size is not known yet.
        settled(make_graph("star" if topology == "star" else "path", 3), records["sums"])
    return Agreed(name, table, dict(context.params), leaf.params)


def load_study(context: Any, value: Path) -> Path:
    """Take the options that a study sets for the command of a context."""
    if context.resilient_parsing:
        return value
    from vpem.files.studies.study import read_study

    study = read_study(value)
    path = path_of(context)
    tables = options_of(study.options, value, context)
    if path not in tables:
        listed = ", ".join(f"vpem {' '.join(words)}" for words in tables) or "no command"
        raise InputError(
            f"the study {study.name} runs {listed}, not vpem {' '.join(path)}; its organiser, "
            f"{study.organiser}, can add that by 'vpem study change {study.path.name}'"
        )
    known = {param.name for param in context.command.params}
    shards = study.result == "shards"
    if shards and "shards" not in known:
        raise InputError(
            f"the study {study.name} leaves each member its own part of the result (result = "
            f"'shards'), and the result of 'vpem {' '.join(path)}' has no parts"
        )
    implied = {"engine": "tls", "parties": True, "timeout": str(study.timeout), "shards": shards}
    implied = {name: chosen for name, chosen in implied.items() if name in known and chosen}
    take_defaults(context, value, {**implied, **tables[path]}, last=True)
    context.meta[STUDY] = study
    return value


def check_data(context: Any) -> None:
    """Raise InputError unless members with data, and only these, give data."""
    from vpem.files.studies.identities import only_identity

    study = context.meta[STUDY]
    member = study.member(only_identity(study.folder, context.params.get("member")))
    data_files = context.params.get("data")
    if not study.n_parties:
        raise InputError(
            f"{study.name}, edition {study.edition}, has no member with data; parties join by "
            f"'vpem party request {study.path.name}', and {study.organiser} approves them"
        )
    if member.holds and not data_files:
        raise InputError(
            f"{member.name} brings data to the study {study.name}; name its file after the command"
        )
    if data_files and not member.holds:
        raise InputError(
            f"{member.name} brings no data to the study {study.name}, in which it only serves; "
            f"leave out {data_files[0]}"
        )
    if not context.params.get("parties"):
        raise InputError("members of a study are its parties; leave out --no-parties")


def own_party(
    name: str,
    files: Sequence[Path],
    table: TableSettings,
    model_table: TableSettings | None = None,
    features: Sequence[str] = (),  # named by the study; the table's own choice comes first
) -> Party:
    """Return a member as a party of a run."""
    from vpem.files.parties.opening import choose_parties

    parties = choose_parties(files[:1], table, model_table)
    if len(parties) > 1:
        raise InputError(f"{files[0]} names {len(parties)} parties, but {name} is one")
    party = replace(parties[0], name=name, more=tuple(map(str, files[1:])))
    if features and party.table.features is None:
        party = replace(party, table=party.table.changed(features=list(features)))
    return party


def whose_options(error: VpemError, study: Study) -> None:
    """Note on an error that suggests an option of the study that only the organiser sets it."""
    tried = [
        in_options(InputError(part))
        for part in error.parts
        if isinstance(part, Setting) and part.name in ("align", "missing") and part.value != "none"
    ]
    if tried:
        error.add_note(
            f"only {study.organiser} can change the options of {study.name}: vpem study change "
            f"{study.path.name} {' '.join(tried)}"
        )


USES = ("predict", "score")
"""Commands that use a model, which says what they need."""

INDIVIDUALS = "saem"
"""The command whose files are not tables of features, and are read by options of its own."""


def look_at(
    context: Any,
    study: Study,
    name: str,
    files: Sequence[Path],
    table: TableSettings,
    say: Callable[[str], None],
    features: Sequence[str] = (),  # named by the study
) -> tuple[tuple[str, ...], int]:
    """Open a member's files as all commands of a study will; return its features and row count."""
    names, n_rows = dict[str, None](), 0
    agreed = agreed_before(context, study)
    others = [one for one in agreed if one.command != INDIVIDUALS]
    fits = [one for one in others if one.command not in USES]
    for place, one in enumerate(others or agreed):
        speak_of([*context.command.params, *one.params])
        brought = features if one.command != "impute" else ()
        with warnings.catch_warnings():
            if place:  # the first has warned already
                warnings.simplefilter("ignore", VpemWarning)
            try:
                party = own_party(name, files, table, features=brought)
                columns, n_rows = _opened(one, study, party, teller(say) if place == 0 else None)
            except VpemError as error:
                whose_options(error, study)
                raise
        if one in fits or not fits:  # predict and score take the features of the fit
            names |= dict.fromkeys(columns)
    speak_of(context.command.params)
    return tuple(names), n_rows


def _opened(one: Agreed, study: Study, party: Party, tell: Any) -> tuple[Sequence[str], int]:
    """Return the names of features and the number of rows as a command will read them."""
    from vpem.files.parties.alignment import check_ids
    from vpem.files.parties.joining import check_own_ids, refuse_gaps, refuse_shared
    from vpem.files.parties.observing import entries_of, read_observed
    from vpem.files.parties.opening import open_party

    weight, level = one.values.get("sample_weight"), one.values.get("align")
    if one.command == "impute":
        seen = read_observed(party, weight, tell)
        if level == "ids":
            kind = "none" if seen.rows is None else "strings"
            check_ids([{"kind": kind}], [party.name], level, apart=True)
        rows = seen.rows or [f"row {number}" for number in range(seen.shape[0])]
        entries_of(party, seen, rows, seen.columns)
        return seen.columns, seen.shape[0]
    over_features = one.values.get("split") == "features"
    # For predict and score, the model says whether values may be missing.
    empty = one.values.get("missing") == "marginalize" or bool(one.values.get("missing_parties"))
    empty |= one.command in (*USES, INDIVIDUALS)
    constant = not over_features or one.command in USES
    holding = open_party(
        party, empty, keep_constant=constant, weights=weight, tell=tell, on_disk=True
    )
    holding.close()

    def look_at_ids() -> None:
        if over_features:
            check_own_ids([holding], level, apart=True)

    refuse_gaps([holding], look_at_ids)
    look_at_ids()
    names = holding.feature_names
    if over_features and level is None:
        others = {who: features for who, features in study.features.items() if who != party.name}
        refuse_shared([party.name, *others], [names, *others.values()])
    if over_features and not one.values.get("missing_parties"):
        _check_rows(one, holding.n_samples, party.name)
    if one.command in ("kmeans", "fedem"):
        refuse_families(holding.kinds, names, str(party.path))
    return names, holding.n_samples


def _check_rows(one: Agreed, n_rows: int, name: str) -> None:
    """Raise InputError where a party has fewer rows than the smallest fit has components."""
    for noun in ("components", "clusters"):
        requested = one.values.get(f"n_{noun}")
        least = 0 if requested is None else min(parse_numbers(f"--{noun}", str(requested), least=1))
        if n_rows < least:
            raise InputError(
                f"party {name!r} has {plural(n_rows, 'row')}, and {least} {noun} need at least "
                "as many rows that all parties share"
            )
