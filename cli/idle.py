"""Options that would have no effect beside others: refused, with the reason, before any work.

What depends on data, such as whether the graph stored in a dataset has a server, is refused by the
library in the same words.
"""

from __future__ import annotations

from typing import Any

from .naming import name_of
from .sources import is_given

__all__ = ["refuse_idle"]


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
