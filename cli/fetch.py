"""`vpem data fetch`: open datasets, from where they are published or from a copy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Quiet
from .roles import FOLDER, READ, Role, reads

if TYPE_CHECKING:
    from collections.abc import Mapping


def _target(value: Path | None, options: Mapping[str, Any]) -> list[Path]:
    """Return where the dataset is written."""
    return [value or Path(f"{options['name']}.h5")]


def fetch(
    name: Annotated[str, typer.Argument(help="Which dataset: htru2 (pulsar candidates, UCI).")],
    output: Annotated[
        Path | None,
        Role(writes=True, files=_target),
        typer.Option("-o", "--output", help="Write here (HDF5). Default: NAME.h5."),
    ] = None,
    given: Annotated[
        Path | None,
        READ,
        typer.Option(
            "--from", help="Read this copy (CSV, or the zip it comes in) and download nothing."
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        FOLDER,
        typer.Option(
            help="Folder where the download is kept. Default: $VPEM_CACHE, or the user's cache."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output.")] = False,
    quiet: Quiet = False,
) -> None:
    """Write an open dataset, downloaded once and checked.

    It is checked by its SHA-256. Downloads need pooch: pip install
    'vpem[fetch]'.

    Example: vpem data fetch htru2 --from pulsars.csv -o htru2.h5
    """
    from .output import Screen

    with Screen(quiet) as screen:
        from vpem.errors import InputError, check_choice
        from vpem.files.datasets import write_dataset
        from vpem.files.examples import OPEN, fetch, kept_in
        from vpem.files.hdf5 import check_writable

        check_choice("dataset", name, OPEN)
        if given is not None and cache is not None:
            raise InputError("--cache is where downloads are kept, but with --from there is none")
        if given is None:
            reads("--cache", kept_in(OPEN[name], cache))
        (target,) = _target(output, {"name": name})
        check_writable(target, force, "datasets")
        dataset, about = fetch(name, given, cache)
        write_dataset(target, dataset, force, about=about)
        screen.say(
            f"wrote {target}: {dataset.n_samples} rows, {dataset.n_features} features, labels, "
            f"{dataset.n_features} agents; {about['source']}"
        )
