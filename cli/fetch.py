"""`vpem data fetch`: open datasets, from where they are published or from a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["fetch"]


def fetch(
    name: Annotated[str, typer.Argument(help="Which dataset: htru2 (pulsar candidates, UCI).")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write here (HDF5). Default: NAME.h5."),
    ] = None,
    given: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Read this copy (CSV, or the zip it comes in) and download nothing."
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            help="Folder where the download is kept. Default: $VPEM_CACHE, or the user's cache."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No messages.")] = False,
) -> None:
    """Write an open dataset, downloaded once and checked.

    It is checked by its SHA-256. One agent holds each feature. Downloads need pooch: pip install
    'vpem[fetch]'.

    Example: vpem data fetch htru2 --from pulsars.csv -o htru2.h5
    """
    from .output import Screen

    with Screen(quiet) as screen:
        from vpem.errors import InputError, check_choice
        from vpem.files.datasets import write_dataset
        from vpem.files.fetching import OPEN, fetch
        from vpem.files.hdf5 import check_distinct, check_writable

        check_choice("dataset", name, OPEN)
        if given is not None and cache is not None:
            raise InputError("--cache is where downloads are kept, but with --from there is none")
        target = output or Path(f"{name}.h5")
        check_distinct(target, given)
        check_writable(target, force)
        dataset, about = fetch(name, given, cache)
        write_dataset(target, dataset, force, about=about)
        screen.say(
            f"wrote {target}: {dataset.n_samples} rows, {dataset.n_features} features, labels, "
            f"{dataset.n_features} agents; {about['source']}"
        )
