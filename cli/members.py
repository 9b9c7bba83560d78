"""Commands of a group, made when they are asked for: most runs need one of them only."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, MutableMapping
from copy import copy
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer

from .options import spread

if TYPE_CHECKING:
    from vpem.network.schema import Report


class Elsewhere:
    """Stands for a command or a group of another module, "module.name", until it is called."""

    def __init__(self, home: str, told: str) -> None:
        self.home = home
        self.__doc__ = told

    def __call__(self) -> Any:
        """Load the module, and return what it stands for."""
        module, name = self.home.split(".")
        return getattr(import_module(f".{module}", __package__), name)


class Members(MutableMapping[str, Any]):
    """Commands and groups by name, each made at its first use; help is the first paragraph."""

    def __init__(
        self, makers: dict[str, Callable[[], Any]], helps: dict[str, str], groups: Collection[str]
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
    app: typer.Typer,
    dress: Callable[[typer.Typer], typer.Typer],
    finish: Callable[[tuple[str, ...], Any], None],
    path: tuple[str, ...] = (),
) -> Any:
    """Return the group of an app whose commands and groups are made when they are asked for.

    ``dress`` chooses the classes of an app's commands; ``finish`` is given the words that name a
    command and the command, once it is made; ``path`` names the group.
    """
    group = _alone(dress(app), [])
    makers: dict[str, Callable[[], Any]] = {}
    helps: dict[str, str] = {}
    groups = []
    for info in app.registered_commands:
        name = info.name or info.callback.__name__.replace("_", "-")  # type: ignore[union-attr]
        helps[name] = _first(inspect.getdoc(info.callback) if info.callback else None)
        makers[name] = partial(_make, info, dress, finish, (*path, name))
        if isinstance(info.callback, Elsewhere) and info.callback.home.endswith(".app"):
            groups.append(name)
    group.commands = Members(makers, helps, groups)
    return group


def _make(
    info: Any,
    dress: Callable[[typer.Typer], typer.Typer],
    finish: Callable[[tuple[str, ...], Any], None],
    path: tuple[str, ...],
) -> Any:
    """Make a command, or a group."""
    callback = info.callback
    if isinstance(callback, Elsewhere):
        callback = callback()
    if isinstance(callback, typer.Typer):
        group = tree(callback, dress, finish, path)
        group.name = path[-1]
        return group
    one = typer.Typer(add_completion=False, rich_markup_mode=None)
    one.registered_commands = [copy(info)]
    one.registered_commands[0].callback = spread(callback)
    made = typer.main.get_command(one)
    finish(path, made)
    return made


def _itself(member: Any) -> Any:
    return member


def _alone(app: typer.Typer, nothing: list[Any]) -> Any:
    """Make the group of an app without what is below it."""
    commands, app.registered_commands = app.registered_commands, nothing
    try:
        # With its options for completion, where it has them.
        made = typer.main.get_command if app.registered_callback else typer.main.get_group
        return made(app)
    finally:
        app.registered_commands = commands


def _first(text: str | None) -> str:
    return " ".join((text or "").partition("\n\n")[0].split())
