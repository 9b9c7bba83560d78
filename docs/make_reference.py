"""Write docs/cli.md, the reference of the command line, from the commands themselves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vpem_cli.app import command
from vpem_cli.config import key_of
from vpem_cli.headings import HEADINGS, grouped

TARGET = Path(__file__).with_name("cli.md")

HEAD = """# Command line

Written by `make docs` from the commands themselves; `vpem COMMAND --help` shows the same.

Data and results go to standard output, messages and progress to standard error. `--json` prints one
JSON object for programs. `NO_COLOR` is respected, `--quiet` leaves only warnings and errors.

Every command also has `--help`, `--config FILE` (its options from a TOML file) and `--show-config`
(every option's value and where it is from). Every option has an environment variable, such as
`VPEM_FIT_COMPONENTS`. Shells complete words. See [configuration](configuration.md).

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | a defect of vpem |
| 2 | input, options or files that cannot be used: one sentence on standard error, nothing written |
| 3 | not converged, under `--strict` |
| 4 | a rank did not answer, with `--engine mpi --timeout` |
| 130 | interrupted by Ctrl-C |
| 143 | ended by SIGTERM |
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


def section(path: tuple[str, ...], member: Any) -> str:
    """Markdown of one command."""
    arguments = [p for p in member.params if p.param_type_name == "argument"]
    common = HEADINGS["Configuration"]
    own = [param for param in member.params if key_of(param) not in common]
    usage = " ".join([*path, *(p.name.upper() for p in arguments), "[OPTIONS]"])
    help_text = "\n".join(line.strip() for line in (member.help or "").splitlines())
    lines = [f"## {' '.join(path)}", "", f"    {usage}", "", help_text.strip(), ""]
    if arguments:
        lines += ["| argument | |", "|---|---|"]
        lines += [f"| `{p.name.upper()}` | {p.help or ''} |" for p in arguments]
        lines.append("")
    for heading, options in grouped(own):
        lines += [f"| {heading.lower()} | default | |", "|---|---|---|"]
        for option in options:
            names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
            cells = [names, default_of(option), (option.help or "").replace("|", "\\|")]
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def reference() -> str:
    """Return the whole page."""
    pages = [HEAD, *(section(path, member) for path, member in leaves(command(), ("vpem",)))]
    return "\n".join(pages)


if __name__ == "__main__":
    TARGET.write_text(reference(), encoding="utf-8")
    print(f"wrote {TARGET.name}", file=sys.stderr)
