"""`vpem data`: make datasets and look at them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vpem.files.table_settings import TableSettings
from vpem.records import changed, setting
from vpem.settings import HoldingSettings

from . import examples
from .choices import partition_of
from .describe import describe
from .fetch import fetch
from .options import Force, Quiet, Without
from .reading import DataFile, read_one, tell_families, teller
from .roles import READ, WRITTEN
from .split import split
from .where import Where

if TYPE_CHECKING:
    from vpem.files.datasets import Dataset


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Import, fetch, simulate, split and describe datasets.\n\n"
    "Example: vpem data describe data/breast_cancer.h5",
)

Output = Annotated[Path, WRITTEN, typer.Option("--output", "-o", help="The HDF5 file to write.")]


class ImportSettings(TableSettings, heading="Data", kept=False):
    """What the columns of a table are, and what else becomes of them."""

    sample_weight: str | None = setting(
        None,
        "Column of the rows' weights: its name or place. They are written as sample_weight, for "
        "'vpem fit --sample-weight sample_weight'.",
    )
    missing: str = setting(
        "refuse",
        "Empty cells of features: refuse, or keep them as missing values (NaN), for 'vpem fit "
        "--missing marginalize'.",
        choices=("refuse", "keep"),
    )


class ImportHolding(HoldingSettings, heading="Data", kept=False):
    """Who is to hold which features of a table."""

    agents: int | None = changed(
        HoldingSettings, "agents", help="Divide the features among so many agents, in order."
    )


@app.command("import")
def import_(
    source: DataFile,
    output: Output,
    force: Force = False,
    quiet: Quiet = False,
    *,
    table: ImportSettings,
    held: Annotated[ImportHolding, Without("split workers worker_rows dataset sample_weight")],
) -> None:
    """Turn a table into a dataset in HDF5, which is read in parts.

    Fits read tables as they are; this is for large ones, and to say once who holds which features.
    Columns of text, dates and constants are left out, which is said. With --family text becomes
    categories, whose names are kept.

    Example: vpem data import pulsars.csv --no-header --label-column -1 --agents 8 -o pulsars.h5
    """
    from .output import Screen

    with Screen(quiet) as screen:
        from dataclasses import replace

        from vpem.files.datasets import write_dataset
        from vpem.files.families import Asked, settle
        from vpem.files.hdf5 import check_writable

        check_writable(output, force, "datasets")
        how = table.into(TableSettings)
        tell = teller(screen.say, families=True)
        dataset = read_one(source, how, Where(), tell, sample_weight=table.sample_weight)
        _check_values(dataset, table.missing == "keep")
        if held.agents is not None or held.partition is not None:
            dataset = replace(dataset, partition=partition_of(dataset, held, True))
        dataset = settle(dataset, Asked.of(how.family), dataset.partition)
        tell_families(dataset, how, screen.say)
        write_dataset(output, dataset, force)
        screen.say(f"wrote {output}: {_size(dataset, table.missing == 'keep')}")


def _check_values(dataset: Dataset, keep: bool) -> None:
    """Raise InputError where values are infinite or, unless these are kept, missing."""
    from vpem.checks import check_finite
    from vpem.errors import InputError, Setting
    from vpem.terms.rows import check_missing

    try:
        if keep:
            check_missing(dataset.X, dataset.feature_names)
        else:
            kept = Setting("missing", "keep")
            hint = ("say with ", kept, " that they are to be kept as missing")
            check_finite(dataset.X, dataset.feature_names, hint)
    except InputError as error:
        raise InputError(f"{dataset.source}: ", *error.parts) from None


@app.command()
def simulate(
    output: Output,
    samples: Annotated[int, typer.Option("--samples", "-n", help="Number of examples.")] = 1000,
    features: Annotated[int, typer.Option("--features", "-d", help="Number of features.")] = 10,
    components: Annotated[
        int, typer.Option("--components", "-k", help="Number of components.")
    ] = 3,
    overlap: Annotated[
        float,
        typer.Option(
            help="Share of examples that the true mixture itself would assign to a wrong component."
        ),
    ] = 0.05,
    agents: Annotated[
        int | None, typer.Option(help="Divide the features among so many agents, in order.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed draws the same data.")] = 0,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Draw a dataset from a random Gaussian mixture.

    Covariances are full. The labels are the true components; the true parameters are stored in the
    group "truth".

    Example: vpem data simulate -n 5000 -d 12 -k 4 --overlap 0.1 --agents 6 -o mixture.h5
    """
    from .output import Screen, plural

    with Screen(quiet) as screen:
        from vpem.files.datasets import write_dataset
        from vpem.files.examples import simulate as draw
        from vpem.files.hdf5 import check_writable

        check_writable(output, force, "datasets")
        dataset, truth = draw(
            samples, features, components, overlap=overlap, n_agents=agents, seed=seed
        )
        write_dataset(output, dataset, force, truth)
        screen.say(
            f"wrote {output}: {_size(dataset)}, {plural(components, 'component')}, overlap "
            f"{float(truth['overlap']):.4g}"
        )


@app.command()
def repack(
    source: Annotated[Path, READ, typer.Argument(help="Dataset (HDF5).")],
    output: Output,
    dataset: Annotated[
        str | None,
        typer.Option(help="Path of a 2-D dataset inside the HDF5 file, instead of X."),
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write a dataset anew in chunks of whole rows.

    These are quick to read. Memory stays small.

    Example: vpem data repack data/wine.h5 -o repacked.h5
    """
    from .output import Screen

    with Screen(quiet) as screen:
        from vpem.files.data import read_dataset
        from vpem.files.datasets import read_about, read_truth, write_dataset
        from vpem.files.hdf5 import check_writable

        check_writable(output, force, "datasets")
        found = read_dataset(source, dataset, memory_limit=0)
        write_dataset(output, found, force, truth=read_truth(source), about=read_about(source))
        screen.say(f"wrote {output}")


app.command("list")(examples.list_)
app.command("copy")(examples.copy)
app.command("fetch")(fetch)
app.command("split")(split)
app.command("describe")(describe)


def _size(dataset: Dataset, count_missing: bool = False) -> str:
    """Return what was written, in words."""
    from .output import plural

    parts = [plural(dataset.n_samples, "row"), plural(dataset.n_features, "feature")]
    parts += ["ids"] if dataset.ids is not None else []
    parts += ["labels"] if dataset.labels is not None else []
    if dataset.partition is not None:
        parts.append(plural(dataset.partition.n_agents, "agent"))
    if count_missing:
        from vpem.files.families import summarize_features

        parts.append(f"{summarize_features(dataset.X).missing.sum()} values missing")
    return ", ".join(parts)
