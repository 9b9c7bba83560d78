"""`vpem data list` and `vpem data copy`: small real datasets that come with the package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from .options import Json, Quiet
from .roles import Role

FOLDER = Path("data")
"""Where all are copied to: pages and help name them there."""


def _targets(value: Path | None, options: Mapping[str, Any]) -> list[Path]:
    """Return the files that are written."""
    from vpem.files.examples import EXAMPLES

    name = options["name"]
    if name is None:
        folder = value or FOLDER
        return [*(folder / example.file for example in EXAMPLES.values()), folder / "README.md"]
    file = EXAMPLES[name].file if name in EXAMPLES else ""
    return [value / file if value.is_dir() else value] if value else [Path(file)]


def list_(
    json: Json = False,
) -> None:
    """List the datasets that come with vpem.

    Example: vpem data list
    """
    from vpem.files.examples import EXAMPLES

    from .output import print_json, show
    from .tables import table

    if json:
        print_json({name: vars(example) for name, example in EXAMPLES.items()})
        return
    sizes = [(name, e.rows, e.columns, e.what) for name, e in EXAMPLES.items()]
    heads = ("dataset", "rows", "columns", "")
    rights = [(name, e.source, e.licence) for name, e in EXAMPLES.items()]
    show(
        table(sizes, *heads, right=("rows", "columns")),
        table(rights, "dataset", "from", "licence"),
        "'vpem data copy' copies all to the folder data/, 'vpem data copy wine' one to this folder",
    )


def copy(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Which dataset: breast_cancer, wine, heart, oxford_boys, theophylline, notices. "
            "Default: all."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        Role(writes=True, files=_targets),
        typer.Option(
            "-o",
            "--output",
            help="Write here; a name that ends in .csv makes a table. Default: the dataset's own "
            "name, in this folder; of all, the folder data.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    quiet: Quiet = False,
) -> None:
    """Copy a dataset that comes with vpem, or all of them.

    Once all are in the folder data, examples of help and pages run as they are shown.

    Example: vpem data copy wine -o wine.csv

    Example: vpem data copy -o examples
    """
    from .output import Screen

    with Screen(quiet) as screen:
        from vpem.errors import check_choice
        from vpem.files.examples import EXAMPLES, copy_all, copy_example

        if name is None:
            folder = output or FOLDER
            copy_all(folder, force)
            screen.say(f"wrote {len(EXAMPLES)} datasets, and where they are from, to {folder}")
            return
        check_choice("dataset", name, EXAMPLES)
        (target,) = _targets(output, {"name": name})
        copy_example(name, target, force)
        example = EXAMPLES[name]
        screen.say(
            f"wrote {target}: {example.rows} rows, {example.columns} columns; {example.source} "
            f"({example.licence})"
        )
