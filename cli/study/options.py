"""What a study says for all its members: what is run, and with which options.

Options are parsed by the commands that will be run. That all members run the same is checked as
they meet (`vpem_cli.study.member`).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from vpem.engines.tls.trust import Member
from vpem.errors import InputError, Setting, VpemError, VpemWarning, check_choice
from vpem.files.parties.alignment import check_ids
from vpem.files.parties.joining import check_own_ids, refuse_gaps, refuse_shared
from vpem.files.parties.observing import entries_of, read_observed
from vpem.files.parties.opening import Party, choose_parties, open_party
from vpem.files.studies import identities
from vpem.files.studies.policy import COMMANDS, PolicyError, refuse_repeatable
from vpem.files.studies.study import Study, read_study
from vpem.files.table_settings import TableSettings
from vpem.fits.settings import parse_numbers
from vpem.network.graph import make_graph
from vpem.network.schema import Report
from vpem.pictures.contents import plural
from vpem.pictures.disclosures import disclosures
from vpem.records import Condition, refused
from vpem.rules import OF_ONE_FILE, summing
from vpem.sums.connect import settled

from ..data import names_file, refuse_families, refuse_unused, teller
from ..names import STUDY, in_options, key_of, meant, name_of, no_such_option, speak_of
from ..options import options_of, path_of, refuse_idle, rules_of, source_of, take_defaults
from ..session import Where

OWN_OPTIONS = ("data", "memory_limit", "proba")
"""Local parameters that are no settings (`vpem.records.About.local`); outputs are local as well."""

OWN = ("engine", "parties", "shards", "threads", "jobs", "strict")
"""Further options of one member's machine, or set elsewhere in the study."""

LISTS = ("components", "hops")
"""Options that may be lists of numbers, which are read only when a command runs."""

NUMBER = re.compile(r"-\.?\d.*")


USUAL_PACE = "local:8"
"""Acceleration in a job of NVFlare, where a sum takes longer than a step."""


class Agreed(NamedTuple):
    command: str
    table: Report  # the given options, by their names in files
    values: Report  # all options, by names of parameters
    params: Sequence[Any]


NEEDS_ALL: Mapping[str, Condition] = {
    "is not possible with 'vpem select', which compares fits to the features of the same parties;":
        lambda given: given["command"] == "select",
    "is not possible with 'vpem bootstrap' and 'vpem discriminant', whose fits are of the same "
    "parties;":
        lambda given: given["command"] in ("bootstrap", "discriminant"),
    "is not possible with --epsilon, which is spent where a run begins again;":
        lambda given: given.get("epsilon") is not None,
    "is not possible with --release-epsilon, which is spent where a run begins again;":
        lambda given: given.get("release_epsilon") is not None,
    "is possible with --secure-sum only for 'vpem fit' and 'vpem kmeans' over features, at a "
    "server: others start with sums that would be taken again without the lost member;":
        lambda given: bool(given.get("secure_sum")) and (
            given.get("split") == "rows" or given["command"] not in ("fit", "kmeans")
            or summing(given.get("sum")).has_root
        ),
    "is not possible with --hops above 0: hubs have features of others, and of a lost member; give "
    "--hops 0, or":
        lambda given: given.get("split") != "rows" and str(given.get("hops") or 0) != "0",
}  # fmt: skip
"""Why a run cannot go on without a lost member, though the study says so; and when."""


def typed(table: Report) -> list[str]:
    """Return options of a study as the words of a command line."""
    words = []
    for name, value in table.items():
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{name}")
        else:
            for one in value if isinstance(value, list) else [value]:
                words += [f"--{name}", str(one)]
    return words


def agree_on(
    context: Any, study: Study, commands: Sequence[str], topology: str | None = None
) -> Study:
    """Return a study that runs these commands, too, and says what that shows to whom.

    Words that the command of the context ('vpem study init' or 'change') does not know itself are
    options of these commands; each goes to those that have it. What the study has stays where no
    new option replaces it. InputError if an option is local to each member, a command refuses its
    options, or a run could not go on without a lost member, but should; ClickException if no
    command has an option, or its value has the wrong type.
    """
    leaves = context.find_root().command.commands
    for one in commands:
        check_choice("command", one, COMMANDS)
    tables = {one: dict(study.options.get(one, {})) for one in (*study.options, *commands)}
    added: dict[str, list[str]] = {one: [] for one in tables}
    takers: dict[str, Any] = {}  # of the last option, and of the values after it
    for word in context.args:
        if word.startswith("-") and not NUMBER.fullmatch(word):
            takers = {one: param for one in commands if (param := _param(leaves[one], word))}
            for one, param in takers.items():
                tables[one].pop(key_of(param), None)
            if not takers:
                refuse_as_own(context, word)
                takers = {commands[0]: None}  # which refuses it, in its words
        elif not takers:
            raise InputError(
                f"{word!r} is neither an option nor its value; {EXAMPLES[context.info_name]}"
            )
        for one in takers:
            added[one].append(word)
    agreed = agreed_before(context, replace(study, options=tables), added, topology)
    speak_of(context.command.params)
    for run in agreed if study.if_lost == "without" else ():
        for why, when in NEEDS_ALL.items():
            if when({**run.values, "command": run.command}):
                raise InputError(Setting("if_lost", "without"), f" {why} let it wait")
    study = replace(study, options={one.command: one.table for one in agreed})
    shows = disclosures(study, {one.command: one.values for one in agreed})
    runs = (" ".join(["vpem", one.command, *typed(one.table)]) for one in agreed)
    return replace(study, runs=tuple(runs), shows=tuple(one.text for one in shows))


def accelerate(
    context: Any,
    first: Study,
    commands: Sequence[str],
    topology: str | None,
    say: Callable[[str], None],
) -> None:
    """Add to the words of a context what fits have in a job of NVFlare, whose sums are slow.

    Not where they have --accelerate already ("none" is taken out), or cannot have it.
    """
    words, leaves = context.args, context.find_root().command.commands
    for place, word in enumerate(words):
        if word.partition("=")[0] == "--accelerate":
            after = place + 1 + (word == "--accelerate")
            if " ".join(words[place:after]).replace("=", " ") == "--accelerate none":
                del words[place:after]
            return
    if any(one in leaves and _param(leaves[one], "--accelerate") for one in commands):
        context.args = [*words, "--accelerate", USUAL_PACE]
        try:
            agree_on(context, first, commands, topology)
        except VpemError as error:
            context.args = words
            agree_on(context, first, commands, topology)  # unless others are wrong
            why = in_options(error)
            say(f"without --accelerate {USUAL_PACE}, usual with --engine nvflare: {why}")


def agreed_before(
    context: Any,
    study: Study,
    added: Mapping[str, Sequence[str]] | None = None,
    topology: str | None = None,  # default: the study's
) -> list[Agreed]:
    """Return the commands of a study, their options, and words added, parsed as each would."""
    return [
        _agreed(
            context, one, [*typed(table), *(added or {}).get(one, ())], topology or study.topology
        )
        for one, table in study.options.items()
    ]


def refuse_as_own(context: Any, word: str) -> None:
    """Refuse a word that resembles an option of the command itself, as its parser would."""
    known = [opt.lstrip("-") for param in context.command.params for opt in param.opts]
    if meant(name := word.partition("=")[0], known):
        raise no_such_option(context, name, [word])


def refuse_first(context: Any, word: Path | str) -> None:
    """Refuse an option where the name of a study is to be, which comes first."""
    if str(word).startswith("-"):
        refuse_as_own(context, str(word))
        raise InputError(EXAMPLES[context.info_name])


EXAMPLES = {
    "init": "the name of the study comes first: vpem study init heart --star hub.org:443 --hops 0",
    "change": "the study comes first: vpem study change heart.toml --hops 0 -k 2",
}


def _param(leaf: Any, word: str) -> Any:
    """Return the option of a command that a word names, or None."""
    known = {opt: one for one in leaf.params for opt in (*one.opts, *one.secondary_opts)}
    short = None if word.startswith("--") else known.get(word[:2])
    return short or known.get(word.partition("=")[0])


def _agreed(context: Any, name: str, words: Sequence[str], topology: str) -> Agreed:
    """Parse the options of one command, and check them as the command would."""
    above = context.find_root()
    leaf = above.command.commands[name]
    arguments = [one for one in leaf.params if one.param_type_name == "argument"]
    options = [one for one in leaf.params if one not in arguments]
    keys = [*map(key_of, options)]
    implied = ["DATA" for one in arguments if one.required]
    more = ["--parties"] * ("parties" in keys) + ["--topology", topology] * ("topology" in keys)
    context = leaf.make_context(name, [*implied, *more, *words], parent=above)
    given = (context.params[one.name] or () for one in arguments)
    files = chain.from_iterable(one if isinstance(one, list | tuple) else [one] for one in given)
    for stray in islice(files, len(implied), None):
        raise InputError(
            f"{str(stray)!r} is neither an option of 'vpem {name}' nor the value of one; each "
            "member names its data itself"
        )
    settings, rules, table = leaf.callback.settings, rules_of(leaf), dict[str, Any]()
    local = {
        *leaf.callback.roles,
        *OWN_OPTIONS,
        *(one for one, about in settings.items() if about.local),
    }
    for param, key in zip(options, keys, strict=True):
        if key == "parties" or source_of(context, param)[0] != "command line":
            continue
        value = table[key] = context.params[param.name]
        if key == "topology" and value != topology:
            raise InputError(
                "--topology says how members reach each other; for another one make a new study: "
                "vpem study init"
            )
        if OF_ONE_FILE in rules.get(param.name, ()):
            raise refused(name_of(param), OF_ONE_FILE[1])
        if param.name in local or key in OWN:
            raise InputError(
                f"{name_of(param)} is not for a study: each member gives it itself when it runs "
                f"'vpem {name} --study'"
            )
    refuse_idle(context, engine="tls", study="FILE", align_key="FILE")  # which each member gives
    refuse_repeatable(context.params)
    records = leaf.callback.records(context.params)
    for key in set(table).intersection(LISTS):
        parse_numbers(f"--{key}", str(table[key]))
    if "sums" in records and names_file(records["sums"].weights):
        raise InputError(
            f"--weights {records['sums'].weights} is a file of one member, and all members must "
            "have the same weights; give a name of weights, or a number"
        )
    if "sums" in records and (topology := context.params.get("topology")):
        # Only whether the graph has a server matters here; its size is not known yet.
        settled(make_graph("star" if topology == "star" else "path", 3), records["sums"])
    return Agreed(name, table, dict(context.params), leaf.params)


def load_study(context: Any, value: Path) -> Path:
    """Take the options that a study sets for the command of a context."""
    if context.resilient_parsing:
        return value
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
    implied = {"parties": True, "timeout": str(study.timeout), "shards": shards}
    implied["engine"] = study.engine
    implied = {name: chosen for name, chosen in implied.items() if name in known and chosen}
    take_defaults(context, value, {**implied, **tables[path]}, last=True)
    context.meta[STUDY] = study
    return value


def check_data(context: Any) -> None:
    """Raise InputError unless members with data, and only these, give data."""
    study = context.meta[STUDY]
    member = study.member(identities.only_identity(study.folder, context.params.get("member")))
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
    refuse_data(study, member, data_files)
    if not context.params.get("parties"):
        raise InputError("members of a study are its parties; leave out --no-parties")


def refuse_data(study: Study, member: Member, files: Sequence[Path] | None) -> None:
    """Raise InputError where a member names data but brings none."""
    if files and not member.holds:
        raise InputError(
            f"{member.name} brings no data to the study {study.name}, in which it only serves; "
            f"leave out {files[0]}"
        )


def own_party(
    name: str,
    files: Sequence[Path],
    table: TableSettings,
    model_table: TableSettings | None = None,
    features: Sequence[str] = (),  # named by the study; the table's own choice comes first
) -> Party:
    """Return a member as a party of a run."""
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
    if tried and not isinstance(error, PolicyError):
        error.add_note(
            f"only {study.organiser} can change the options of {study.name}: vpem study change "
            f"{study.path.name} {' '.join(tried)}"
        )


USES = ("predict", "score")  # they need what their model says
INDIVIDUALS = "saem"  # its files are no tables of features, and are read by options of its own


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
    names, n_rows, formats = dict[str, None](), 0, set[str]()
    tell: Any = teller(say, formats=formats)
    agreed = agreed_before(context, study)
    others = [one for one in agreed if one.command != INDIVIDUALS]
    fits = [one for one in others if one.command not in USES]
    with warnings.catch_warnings():
        for one in others or agreed:
            speak_of([*context.command.params, *one.params])
            brought = features if one.command != "impute" else ()
            try:
                party = own_party(name, files, table, features=brought)
                columns, n_rows = _opened(one, study, party, tell)
            except VpemError as error:
                whose_options(error, study)
                raise
            tell = None  # once is enough
            warnings.simplefilter("ignore", VpemWarning)
            if one in fits or not fits:  # predict and score take the features of the fit
                names |= dict.fromkeys(columns)
    speak_of(context.command.params)
    refuse_unused(table, formats, Where())
    return tuple(names), n_rows


def _opened(one: Agreed, study: Study, party: Party, tell: Any) -> tuple[Sequence[str], int]:
    """Return the names of features and the number of rows as a command will read them."""
    given, by_features = one.values.get, one.values.get("split") == "features"
    weight, level = given("sample_weight"), given("align")
    if one.command == "impute":
        seen = read_observed(party, weight, tell)
        if level == "ids":
            kind = "none" if seen.rows is None else "strings"
            check_ids([{"kind": kind}], [party.name], level, apart=True)
        rows = seen.rows or [f"row {number}" for number in range(seen.shape[0])]
        entries_of(party, seen, rows, seen.columns)
        return seen.columns, seen.shape[0]
    # For predict and score, the model says whether values may be missing.
    gaps = one.command in (*USES, INDIVIDUALS) or given("missing") == "marginalize"
    holding = open_party(
        party, gaps or bool(given("missing_parties")), weights=weight, tell=tell, on_disk=True,
        keep_constant=not by_features or one.command in USES,
    )  # fmt: skip
    holding.close()

    names, n_rows = holding.feature_names, holding.n_samples
    check_ids_too = partial(check_own_ids, [holding], level, apart=True)
    refuse_gaps([holding], *[check_ids_too] * by_features)
    if by_features:
        check_ids_too()
    if by_features and level is None:
        others = (one for one in study.roster.members if one.name != party.name)
        known = {party.name: names, **{one.name: one.features for one in others}}
        refuse_shared([*known], [*known.values()])
    # The smallest fit must not have more components than the party has rows.
    for noun in ("components", "clusters") if by_features and not given("missing_parties") else ():
        counts = parse_numbers(f"--{noun}", str(given(f"n_{noun}") or 1), least=1)
        if n_rows < min(counts):
            raise InputError(
                f"party {party.name!r} has {plural(n_rows, 'row')}, and {min(counts)} {noun} need "
                "at least as many rows that all parties share"
            )
    if one.command in ("kmeans", "fedem"):
        refuse_families(holding.kinds, names, str(party.path))
    return names, n_rows
