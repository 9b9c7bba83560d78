"""Commands of a group, made when they are asked for: most runs need one of them only."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, MutableMapping
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from .options import spread

if TYPE_CHECKING:
    from vpem.network.schema import Report

__all__ = ["Members", "tree"]


class Members(MutableMapping[str, Any]):
    """Commands and groups by name, each made at its first use; help is the first paragraph."""

    def __init__(
        self, makers: dict[str, Callable[[], Any]], helps: dict[str, str], groups: Report
    ) -> None:
        self._makers = makers
        self._made: Report = {}
        self.helps = helps
        self.groups = groups

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __setitem__(self, name: str, member: Any) -> None:
        self._makers[name] = partial(_itself, member)
        self._made[name] = member

    def __delitem__(self, name: str) -> None:
        del self._makers[name]
        self._made.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __contains__(self, name: object) -> bool:
        return name in self._makers


def tree(
    app: typer.Typer, finish: Callable[[tuple[str, ...], Any], None], path: tuple[str, ...] = ()
) -> Any:
    """Return the group of an app whose commands are made when they are asked for.

    ``finish`` is given the words that name a command and the command, once it is made; ``path``
    names the group.
    """
    group = _alone(app, [])
    makers: dict[str, Callable[[], Any]] = {}
    helps: dict[str, str] = {}
    groups: Report = {}
    for info in app.registered_commands:
        name = info.name or info.callback.__name__.replace("_", "-")  # type: ignore[union-attr]
        helps[name] = _first(inspect.getdoc(info.callback) if info.callback else None)
        makers[name] = _maker(app, info, finish, (*path, name))
    for below in app.registered_groups:
        name, inside = str(below.name), below.typer_instance
        assert inside is not None
        made = tree(inside, finish, (*path, name))
        made.name = name
        groups[name] = made
        helps[name] = _first(made.help)
        makers[name] = partial(_itself, made)
    group.commands = Members(makers, helps, groups)
    return group


def _maker(
    app: typer.Typer, info: Any, finish: Callable[[tuple[str, ...], Any], None],
    path: tuple[str, ...],
) -> Callable[[], Any]:  # fmt: skip
    def make() -> Any:
        one = typer.Typer(add_completion=False, rich_markup_mode=None)
        one.registered_commands = [copy(info)]
        one.registered_commands[0].callback = spread(info.callback)
        made = typer.main.get_command(one)
        finish(path, made)
        return made

    return make


def _itself(member: Any) -> Any:
    return member


def _alone(app: typer.Typer, nothing: list[Any]) -> Any:
    """Make the group of an app without what is below it."""
    commands, groups = app.registered_commands, app.registered_groups
    app.registered_commands, app.registered_groups = nothing, nothing
    try:
        # With its options for completion, where it has them.
        made = typer.main.get_command if app.registered_callback else typer.main.get_group
        return made(app)
    finally:
        app.registered_commands, app.registered_groups = commands, groups


def _first(text: str | None) -> str:
    return " ".join((text or "").partition("\n\n")[0].split())
