"""`vpem help`: the help of any command."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def _begun(context: typer.Context, incomplete: str) -> list[str]:
    """Return the commands that the words so far may go on with."""
    node: Any = context.find_root().command
    for word in context.params.get("words") or ():
        node = getattr(node, "commands", {}).get(word)
    return [name for name in getattr(node, "commands", ()) if name.startswith(incomplete)]


def show_help(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND",
            help="Words that name a command, such as: data import.",
            autocompletion=_begun,
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Show every option, as COMMAND --help-all does.")
    ] = False,
) -> None:
    """Show the help of a command.

    Example: vpem help fit

    Example: vpem help data import
    """
    root = context.find_root().command
    flag = "--help-all" if everything else "--help"
    with root.make_context("vpem", [*(words or ()), flag]) as again:
        root.invoke(again)
