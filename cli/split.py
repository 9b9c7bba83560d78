"""`vpem data split`: files of parties, cut from one dataset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vpem.files.table_settings import TableSettings
from vpem.records import changed
from vpem.settings import HoldingSettings

from .choices import partition_of
from .options import Force, Printing, Without
from .reading import DataFile, read_one, tell_families, teller
from .roles import FOLDER, writes
from .where import Where

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vpem.files.datasets import Dataset


class PartyHolding(HoldingSettings, heading="Data", kept=False):
    """Which party is to have which features."""

    agents: int | None = changed(
        HoldingSettings,
        "agents",
        help="Divide the features among so many parties, in order. Default: the partition stored "
        "in the dataset.",
    )
    partition: Path | None = changed(
        HoldingSettings, "partition", help="JSON file that says which party gets which features."
    )


def split(
    source: DataFile,
    output: Annotated[
        Path,
        FOLDER,
        typer.Option("--output", "-o", help="Folder for the files; made if it is not there."),
    ],
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Put each party's rows in an order of its own.")
    ] = False,
    drop_ids: Annotated[
        float, typer.Option(help="Share of the rows that each party lacks, drawn for each anew.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seeds --shuffle and --drop-ids.")] = 0,
    force: Force = False,
    *,
    table: TableSettings,
    held: Annotated[PartyHolding, Without("split workers worker_rows sample_weight")],
    printing: Printing,
) -> None:
    """Cut a dataset into one file a party, with ids.

    The files are there to try 'vpem fit --parties'. Labels go to the first party; rows without ids
    are called by their numbers.

    Example: vpem data split data/breast_cancer.h5 --agents 5 --shuffle --drop-ids 0.05 -o parties
    """
    from .output import Screen, plural, print_json

    with Screen(printing.quiet) as screen:
        from vpem.errors import InputError
        from vpem.files.families import Asked, settle
        from vpem.files.parties.joining import cut, file_stems
        from vpem.network.partition import contiguous

        tell = teller(screen.say, families=True)
        whole = read_one(source, table, Where(), tell, dataset=held.dataset)
        if held.agents is not None:
            # More agents than features are refused.
            names = [f"party{number}" for number in range(min(held.agents, whole.n_features))]
            parties = contiguous(whole.n_features, held.agents, names=names)
        elif held.partition is None and whole.partition is None:
            raise InputError(
                f"{source} does not say which party gets which features; give --agents N or "
                "--partition FILE"
            )
        else:
            parties = partition_of(whole, held, True)
        whole = settle(whole, Asked.of(table.family), parties)
        if table.family is not None:
            tell_families(whole, table, screen.say)
        parts = cut(whole, parties, shuffle=shuffle, drop_ids=drop_ids, seed=seed)
        files = [output / f"{stem}.h5" for stem in file_stems(parties.names)]
        _write(output, files, parts, force)
        for file, part in zip(files, parts, strict=True):
            screen.say(
                f"wrote {file}: {plural(part.n_samples, 'row')}, "
                f"{plural(part.n_features, 'feature')}"
            )
    if printing.json:
        listed = [
            {
                "name": file.stem,
                "file": str(file),
                "rows": part.n_samples,
                "features": list(part.feature_names),
            }
            for file, part in zip(files, parts, strict=True)
        ]
        how = {"seed": seed, "shuffled": shuffle, "drop_ids": drop_ids}
        print_json({"source": str(source), **how, "parties": listed})


def _write(folder: Path, files: Sequence[Path], parts: Sequence[Dataset], force: bool) -> None:
    """Write all files, or none."""
    from vpem.files.datasets import write_dataset
    from vpem.files.hdf5 import check_writable
    from vpem.files.temporaries import new_folder

    writes("--output", *files)
    with new_folder(folder, parents=True):
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
