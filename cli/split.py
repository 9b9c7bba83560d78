"""`vpem data split`: files of parties, cut from one dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import DatasetPath, Force, Json, Quiet
from .roles import FOLDER, READ, writes

__all__ = ["split"]


def split(
    source: Annotated[Path, READ, typer.Argument(help="Dataset (HDF5).")],
    output: Annotated[
        Path,
        FOLDER,
        typer.Option("--output", "-o", help="Folder for the files; made if it is not there."),
    ],
    agents: Annotated[
        int | None,
        typer.Option(
            help="Divide the features among so many parties, in order. Default: the partition "
            "stored in the dataset."
        ),
    ] = None,
    partition: Annotated[
        Path | None, READ, typer.Option(help="JSON file that says which party gets which features.")
    ] = None,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Put each party's rows in an order of its own.")
    ] = False,
    drop_ids: Annotated[
        float, typer.Option(help="Share of the rows that each party lacks, drawn for each anew.")
    ] = 0.0,
    dataset: DatasetPath = None,
    seed: Annotated[int, typer.Option(help="Seeds --shuffle and --drop-ids.")] = 0,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Cut a dataset into one file a party, with ids.

    The files are there to try 'vpem fit --parties'. Labels go to the first party; rows without ids
    are called by their numbers.

    Example: vpem data split data/breast_cancer.h5 --agents 5 --shuffle --drop-ids 0.05 -o parties
    """
    from .output import Screen, plural, print_json

    with Screen(quiet) as screen:
        from vpem.errors import FileError, InputError
        from vpem.files.datasets import read_dataset, write_dataset
        from vpem.files.hdf5 import check_writable
        from vpem.files.holdings import read_partition
        from vpem.files.parties.cutting import cut, file_stems
        from vpem.network.holdings import contiguous

        if agents is not None and partition is not None:
            raise InputError("give --agents or --partition, not both")
        whole = read_dataset(source, dataset)
        if agents is not None:
            names = [f"party{number}" for number in range(max(agents, 0))]
            held = contiguous(whole.n_features, agents, names=names)
        elif partition is not None:
            held = read_partition(partition, whole.n_features, whole.feature_names)
        elif whole.partition is not None:
            held = whole.partition
        else:
            raise InputError(
                f"{source} does not say which party gets which features; give --agents N or "
                "--partition FILE"
            )
        parts = cut(whole, held, shuffle=shuffle, drop_ids=drop_ids, seed=seed)
        files = [output / f"{stem}.h5" for stem in file_stems(held.names)]
        writes("--output", *files)
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"folder {output} cannot be made: {error.strerror}") from None
        for file in files:
            check_writable(file, force, "datasets")
        new = [file for file in files if not file.exists()]
        try:
            for file, part in zip(files, parts, strict=True):
                write_dataset(file, part, force)
        except BaseException:
            for file in new:
                file.unlink(missing_ok=True)
            raise
        for file, part in zip(files, parts, strict=True):
            screen.say(
                f"wrote {file}: {plural(part.n_samples, 'row')}, "
                f"{plural(part.n_features, 'feature')}"
            )
    if json:
        print_json(
            {
                "source": str(source),
                "seed": seed,
                "shuffled": shuffle,
                "drop_ids": drop_ids,
                "parties": [
                    {
                        "name": file.stem,
                        "file": str(file),
                        "rows": part.n_samples,
                        "features": list(part.feature_names),
                    }
                    for file, part in zip(files, parts, strict=True)
                ],
            }
        )
