"""Options that would have no effect beside others: refused, with the reason, before any work.

What depends on data, such as whether the graph stored in a dataset has a server, is refused by the
library in the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .config import path_of
from .naming import name_of
from .sources import is_given

__all__ = ["refuse_idle"]

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Idle:
    """Options that do nothing where something holds.

    Attributes
    ----------
    commands : tuple of str
        Commands that have them.
    options : tuple of str
        Names of their parameters.
    where : callable
        Of the values of all options by name: whether these are idle.
    why : str
        What follows the option's name in a sentence.
    """

    commands: tuple[str, ...]
    options: tuple[str, ...]
    where: Callable[[Values], bool]
    why: str


IDLE = (
    Idle(
        ("select",),
        ("folds", "one_standard_error"),
        lambda given: given["criterion"] != "heldout",
        "is for --criterion heldout; leave it out",
    ),
)
"""The table of them."""


def refuse_idle(context: Any) -> None:
    """Raise InputError where an option was given that has no effect.

    Values from files and the environment count where they are not the default, so that what
    --show-config prints can be given back.

    Parameters
    ----------
    context : Context
        Of the command, whose options have been read.

    Raises
    ------
    InputError
        With the first of them.
    """
    from vpem.errors import InputError

    known = getattr(context.command.callback, "settings", {})
    for param in context.command.params:
        rule = known[param.name].idle if param.name in known else None
        if rule and is_given(context, param) and rule[0](context.params):
            raise InputError(f"{name_of(param)}", *rule[1])
    command, values = " ".join(path_of(context)), context.params
    params = {param.name: param for param in context.command.params}
    for rule in IDLE:
        if command not in rule.commands or not rule.where(values):
            continue
        for name in rule.options:
            if name in params and is_given(context, params[name]):
                raise InputError(f"{name_of(params[name])} {rule.why}")
