"""Options that would have no effect, or that mathematics forbids: refused, with the reason.

What depends on data, such as whether the graph stored in a dataset has a server, is refused by the
library in the same words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vpem.records import Rule

from .naming import name_of
from .sources import is_given

if TYPE_CHECKING:
    from vpem.errors import InputError


NAMED_OUTPUTS = (
    "output", "plot", "state", "checkpoint", "individuals", "topics", "traces", "labels_file",
)  # fmt: skip

NOTHING_REPLACED: Rule = (
    # A record of outputs alone, which knows of no input, does not know of a checkpoint either.
    lambda given: (
        not {"data", "model", "topology"}.isdisjoint(given)
        and not any(given.get(name) for name in NAMED_OUTPUTS)
    ),
    (" replaces files that are there, but nothing is to be written; leave it out",),
)


def _writes_csv(given: Any) -> bool:
    """Whether one of the files that a command writes is CSV."""
    files = (given.get("output"), given.get("individuals"), given.get("labels_file"))
    return any(file is not None and str(file).lower().endswith(".csv") for file in files)


NO_CSV: Rule = (
    lambda given: not _writes_csv(given),
    (" is for CSV, and none is written; leave it out",),
)
NO_CSV_AT_ALL: Rule = (
    lambda given: (
        not _writes_csv(given) and (given.get("output") is not None or bool(given.get("json")))
    ),
    NO_CSV[1],
)
"""Where CSV goes to standard output by default."""


FEW_VARY: Rule = (
    lambda given: given["covariance"] == "full" and "," not in (given["random"] or ","),
    (" is of two or more that vary; let more of them vary, or leave it out",),
)

ROWS = {
    "fit": ("vp-em", "em-rows"),
    "kmeans": ("kmeans-rows", "kmeans-features"),
    "fedem": ("fedem", "vr-fedem"),
    "impute": ("fedmissem",),
    "saem": ("saem",),
}
"""Algorithms of each command, as rows of `vpem.table`."""


INSTEAD = {
    **{(command, "--agent-dropout"): "who is absent is drawn by --participation; take that"
       for command in ("fedem", "impute", "saem")},
    ("fit", "--participation"): "on a graph agents are absent with --agent-dropout, and a server's "
    "sum needs every agent; rows over workers that take part by turns are fitted by vpem fedem",
    ("impute", "--missing"): "what nobody saw is what is imputed; leave it out",
    ("fedem", "--accelerate"): "steps of FedEM are of statistics, of which no sum shows a "
    "log-likelihood to take them back by; rows are fitted in fewer sums by vpem fit --split rows "
    "--accelerate squarem",
    ("impute", "--accelerate"): "steps are of statistics, of which no sum shows a log-likelihood "
    "to take them back by; leave it out",
    ("saem", "--accelerate"): "latents are drawn anew in every iteration, so that no sum shows "
    "whether a longer step was too much; leave it out",
    ("saem", "--spread"): "parameters that --random does not name are fixed, without any spread; "
    "leave it out",
    ("kmeans", "--accelerate"): "Lloyd's iterations end by themselves after finitely many; with "
    "fewer of them take --max-iter",
}  # fmt: skip
"""What a command has for an option of others, or why it needs none."""


def why_refused(command: str, option: str) -> InputError | None:
    """Return why a command lacks an option, where `vpem.table` or another option explains it."""
    from vpem.errors import InputError
    from vpem.table import REFUSED, WAYS, refusal

    if (command, option) in INSTEAD:
        return InputError(f"{option}: {INSTEAD[command, option]}")
    for way, asked in WAYS.items():
        if option in (flag.split()[0] for flag in asked.flags):
            rows = [row for row in ROWS.get(command, ()) if (row, way) in REFUSED]
            if rows and len(rows) == len(ROWS[command]):
                return refusal(rows[0], way)
    return None


def refuse_idle(context: Any) -> None:
    """Raise InputError where an option was given that has no effect.

    Values from files and the environment count where they are not the default, so that what
    --show-config prints can be given back.
    """
    from vpem.errors import InputError

    known = getattr(context.command.callback, "settings", {})
    for param in context.command.params:
        if param.name not in known or not is_given(context, param):
            continue
        if why := known[param.name].why_idle(context.params):
            raise InputError(f"{name_of(param)}", *why)
