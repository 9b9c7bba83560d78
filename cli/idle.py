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
from .sources import is_typed

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


def _by_rows(given: Values) -> bool:
    return bool(given["split"] == "rows")


def _by_features(given: Values) -> bool:
    return bool(given["split"] == "features")


def _starts_somewhere(given: Values) -> bool:
    return given.get("init_rows") is not None or given.get("init_model") is not None


IDLE = (
    Idle(
        ("fit", "select"),
        ("hops", "agents", "partition", "batch_size", "step_size"),
        _by_rows,
        "is for data split by features; leave it out",
    ),
    Idle(
        ("fit", "select"),
        ("workers", "worker_rows"),
        _by_features,
        "is for data split by rows; add --split rows",
    ),
    Idle(
        ("kmeans",),
        ("agents", "partition", "hops"),
        _by_rows,
        "is about who holds which features: it needs --split features",
    ),
    Idle(
        ("kmeans",),
        ("workers", "worker_rows"),
        _by_features,
        "is about who holds which rows: it needs --split rows",
    ),
    Idle(
        ("fit", "kmeans"),
        ("n_init",),
        _starts_somewhere,
        "starts anew from other rows, but --init-rows or --init-model says from where; leave it "
        "out",
    ),
    Idle(
        ("fit", "kmeans", "fedem"),
        ("init",),
        _starts_somewhere,
        "finds a start, but --init-rows or --init-model says from where; leave it out",
    ),
    Idle(
        ("select",),
        ("folds", "one_standard_error"),
        lambda given: given["criterion"] != "heldout",
        "is for --criterion heldout; leave it out",
    ),
    Idle(
        ("fit", "select", "kmeans", "fedem", "topology describe"),
        ("consensus_tol",),
        lambda given: given["rounds"] != "auto",
        "is what --rounds auto reaches, but --rounds says how many there are; leave one out",
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

    command, values = " ".join(path_of(context)), context.params
    params = {param.name: param for param in context.command.params}
    for rule in IDLE:
        if command not in rule.commands or not rule.where(values):
            continue
        for name in rule.options:
            if name in params and _is_given(context, params[name]):
                raise InputError(f"{name_of(params[name])} {rule.why}")


def _is_given(context: Any, param: Any) -> bool:
    return is_typed(context, param) or context.params.get(param.name) != param.default
