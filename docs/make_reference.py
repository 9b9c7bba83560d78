"""Write the reference: commands, public names, and the table of what goes with what."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import vpem
from vpem.errors import InputError, Setting
from vpem.records import refused
from vpem.rules import ALGORITHMS, OF_ONE_FILE, ROWS, WAYS, refusal, why_never
from vpem_cli.app import HEADINGS, command, grouped
from vpem_cli.names import in_options, key_of, speak_of
from vpem_cli.options import rules_of

PYTHON_HEAD = """# Python

Written by `make docs` from the public names; `help(vpem.fit_vpem)` shows the same. Every name is
imported from `vpem`, when it is first used: `import vpem` alone loads nothing heavy.
"""

ROOMS = {
    "Estimators": ("vpem.fits.estimators",),
    "Recipes": (
        "vpem.fits.vpem", "vpem.fits.rows", "vpem.fits.row_kmeans", "vpem.fits.feature_kmeans",
        "vpem.fits.fedem", "vpem.fits.exponential", "vpem.fits.imputation", "vpem.saem.fit",
    ),
    "Data and models": (
        "vpem.files", "vpem.terms", "vpem.network.partition", "vpem.network.partition",
        "vpem.fits", "vpem.saem",
    ),
    "Files and pictures": ("vpem.pictures",),
    "Networks": ("vpem.network", "vpem.sums.connect"),
    "Parties": ("vpem.files.parties",),
    "Settings": ("vpem.settings", "vpem.fits.settings"),
    "Errors": ("vpem.errors", "vpem"),
}  # fmt: skip
"""Headings of the page of Python, and the modules whose names they hold; the longest that fits."""

HOMES = [(prefix, heading) for heading, prefixes in ROOMS.items() for prefix in prefixes]

Row = tuple[str, str]
"""Names of an option, and what it says."""

SUMMARY = ("```{eval-rst}", ".. autosummary::", "   :toctree: api", "")
"""What begins a list of names, each of which gets a page."""

HEAD = """# Command line

Written by `make docs` from the commands themselves; `vpem COMMAND --help-all` shows the
same, and `--help` (or `vpem help COMMAND`) the options that most people need.

Data and results go to standard output, messages and progress to standard error. `--json` prints one
JSON object for programs. `NO_COLOR` is respected, `--quiet` leaves only errors; warnings are in
what `--json` prints.

Every command also has `--help`, `--help-all`, `--config FILE` (its options from a TOML file) and
`--show-config` (every option's value and where it is from). Every option has an environment
variable, such as `VPEM_FIT_COMPONENTS`. Shells complete words. See
[configuration](../how-to/configuration.md).

Below each command is a table of the options that only it has, then a list of those that it shares,
which the [last section](#options-of-several-commands) describes.

## Exit codes

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | a defect of vpem |
| 2 | input, options or files that cannot be used: one sentence on standard error, nothing written |
| 3 | not converged, under `--strict` |
| 4 | a rank or a member of a study was not heard of for as long as `--timeout` says |
| 130 | interrupted by Ctrl-C |
| 143 | ended by SIGTERM |

After 130 and 143 a run with `--checkpoint` has written its state. A rank that is killed ends the
job with the code of the launcher (MPICH: 9).
"""

SHARED = """## Options of several commands

A command links here for the options below, where their text and default are the same for it as for
others. Where an option stands here twice, each row names its commands.
"""

TABLE_HEAD = """# What goes with what

`make docs` writes this table from `vpem/rules.py`, which also decides what the code refuses; a test
tries every cell. A ✓ works as the plain algorithm does. A number leads to the sentence below the
table that says why mathematics forbids the combination.

Columns can be combined with each other too, and all of them with MPI and TLS. The exceptions are
each refused with one sentence:

* links or agents that fail at a server, and agents that drop out along a tree, since such a sum
  needs every one of them (`--participation` is the alternative where an algorithm has it);
* missing values in data that stay on disk, since which values are there is kept in memory;
* `--memory-limit` with `--parties`, whose rows are brought together in memory;
* batches of k-means over features with absent agents, whose last terms are of other rows;
* masked sums with consensus or `--compress`, and [a few others](secure-sum.md#what-is-refused).

What works with `vpem fit` works with `vpem select` and with several numbers of components
(`vpem fit -k 2-6`), except for starts at given rows or models. `vpem select` has `--state` in place
of `--checkpoint`.
"""


RULES_HEAD = """## Options that exclude each other

An option that is given where a rule excludes it, because it would have no effect or has no meaning
there, is refused with the rule's sentence; none is ignored. The same rules hold for settings in
Python (`vpem/rules.py` and the records of settings), and a test breaks every one of them.
"""


def leaves(group: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command below a group with its path."""
    for name, member in group.commands.items():
        if hasattr(member, "commands"):
            yield from leaves(member, (*path, name))
        else:
            yield (*path, name), member


def default_of(option: Any) -> str:
    """Default of an option as the reader types it."""
    value = option.default
    if value is None or value is False or value == () or callable(value):
        return ""
    return f"`{value}`"


def row_of(path: tuple[str, ...], option: Any) -> Row:
    """Names and text of an option, the same for all commands that say the same of it."""
    names = sorted(option.opts, key=lambda name: name.startswith("--"))
    text = (option.help or "").replace(" ".join(path), "vpem COMMAND").replace("|", "\\|")
    default = default_of(option)
    return ", ".join(f"`{name}`" for name in names), text + f" Default: {default}." * bool(default)


def section(path: tuple[str, ...], member: Any, rows: list[Row], shared: dict[Row, str]) -> str:
    """Markdown of one command: what it alone has, and the names of what others have too."""
    arguments = [p for p in member.params if p.param_type_name == "argument"]
    usage = " ".join([*path, *(p.name.upper() for p in arguments), "[OPTIONS]"])
    help_text = "\n".join(line.strip() for line in (member.help or "").splitlines())
    help_text = re.sub(r"^Example: (.*)$", r"Example: `\1`", help_text, flags=re.MULTILINE)
    lines = [f"## {' '.join(path)}", "", f"    {usage}", "", help_text.strip(), ""]
    own = [(f"`{p.name.upper()}`", p.help or "") for p in arguments]
    own += [row for row in rows if row not in shared]
    if own:
        lines += ["| | |", "|---|---|", *(f"| {names} | {text} |" for names, text in own), ""]
    for heading in HEADINGS:
        names = [re.search("`--[^`]+`", row[0])[0] for row in rows if shared.get(row) == heading]
        if names:
            lines.append(f"* [{heading}](#{heading.lower().replace(' ', '-')}): {', '.join(names)}")
    return "\n".join(lines).replace("vpem COMMAND", " ".join(path)).rstrip() + "\n"


def python_reference() -> str:
    """Return the page of Python: lists of the public names, each with a page made by Sphinx."""
    rooms: dict[str, list[str]] = {heading: [] for heading in ROOMS}
    for name in sorted(set(vpem.__all__) - {"__version__"}, key=lambda name: (name.lower(), name)):
        home = getattr(vpem, name).__module__
        fitting = [(prefix, heading) for prefix, heading in HOMES if home.startswith(prefix)]
        rooms[max(fitting, key=lambda one: len(one[0]))[1]].append(name)
    pages = [PYTHON_HEAD]
    for heading, names in rooms.items():
        listed = [f"   vpem.{name}" for name in names]
        pages += [f"## {heading}", "", *SUMMARY, *listed, "```", ""]
    return "\n".join(pages)


def reference() -> str:
    """Return the page of the command line, at its end the options that several commands have."""
    commands = dict(leaves(command(), ("vpem",)))
    rows: dict[tuple[str, ...], list[Row]] = {path: [] for path in commands}
    users: dict[Row, list[str]] = {}
    headings: dict[Row, str] = {}
    for path, member in commands.items():
        params = [one for one in member.params if one.rich_help_panel != "Configuration"]
        for heading, options in grouped(params):
            for row in (row_of(path, option) for option in options):
                rows[path].append(row)
                users.setdefault(row, []).append(f"`{' '.join(path[1:])}`")
                if heading != "Options":  # which a short list has alone
                    headings.setdefault(row, heading)
    shared = {row: heading for row, heading in headings.items() if len(users[row]) > 1}
    pages = [HEAD, *(section(path, commands[path], rows[path], shared) for path in commands)]
    pages += [SHARED]
    for heading in dict.fromkeys(shared.values()):
        by_option: dict[str, list[Row]] = {}
        for row in (row for row in shared if shared[row] == heading):
            by_option.setdefault(re.findall("`--[^`]+`", row[0])[0], []).append(row)
        pages += [f"### {heading}", "", "| | |", "|---|---|"]
        for several in by_option.values():
            for names, text in several:
                whose = f" of {', '.join(users[names, text])}" if len(several) > 1 else ""
                pages.append(f"| {names}{whose} | {text} |")
        pages.append("")
    return "\n".join(pages)


def table() -> str:
    """Return the page of what goes with what, with a number for each sentence of refusal."""
    sentences: list[str] = []
    rows = []
    speak_of(dict(leaves(command(), ()))[("fit",)].params)
    for algorithm, title in ALGORITHMS.items():
        cells = [title]
        for way in WAYS:
            if (why := refusal(algorithm, way)) is None:
                cells.append("✓")
                continue
            sentence = in_options(why)
            if sentence not in sentences:
                sentences.append(sentence)
            cells.append(f"no ({sentences.index(sentence) + 1})")
        rows.append(cells)
    heads = ["", *(way.title for way in WAYS.values())]
    lines = [heads, ["---"] * len(heads), *rows]
    asked = ["by", *("`" + "`, `".join(way.flags) + "`" for way in WAYS.values())]
    lines.insert(2, asked)
    grid = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    reasons = [f"{n}. {text[0].upper()}{text[1:]}." for n, text in enumerate(sentences, 1)]
    return "\n".join([TABLE_HEAD, grid, "", *reasons, "", RULES_HEAD, *excluded(), ""])


def excluded() -> list[str]:
    """Return a line for every rule: its options, the commands that have them, and its sentence."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for path, leaf in leaves(command(), ()):
        speak_of(leaf.params)
        rules = rules_of(leaf)
        names = {one.name: f"--{key_of(one)}" for one in leaf.params}
        reasons = [(names[one.name], why) for one in leaf.params if not one.hidden
                   for _, why in rules.get(one.name, ())]  # fmt: skip
        for name in {row.setting: None for row in ROWS if row.setting not in names}:
            if why := why_never(" ".join(path), name):
                reasons.append((f"--{name.replace('_', '-')}", why))
        for flag, why in reasons:
            lacks = [isinstance(one, Setting) and in_options(InputError(one)) == str(one)
                     for one in why]  # fmt: skip
            if any(lacks) or (why == OF_ONE_FILE[1] and "parties" not in names):
                continue
            sentence = in_options(refused("", why)).strip().removeprefix(": ")
            options, commands = found.setdefault(sentence, ([], []))
            options += [f"`{flag}`"] * (f"`{flag}`" not in options)
            name = " ".join(path)
            commands += [name] * (name not in commands)
    return [
        f"* {', '.join(sorted(options))} ({', '.join(commands)}): {sentence}."
        for sentence, (options, commands) in found.items()
    ]


PAGES = {"cli.md": reference, "python.md": python_reference, "table.md": table}
"""What is written, and by what."""


if __name__ == "__main__":
    for target, make in PAGES.items():
        (Path(__file__).parent / "reference" / target).write_text(make(), encoding="utf-8")
        print(f"wrote {target}", file=sys.stderr)
