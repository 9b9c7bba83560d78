"""`vpem data`: import, fetch, copy, simulate, split and describe datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.errors import InputError, Setting, check_choice, shorten
from vpem.files.table_settings import TableSettings
from vpem.pictures.contents import lines_of, plural, table_of
from vpem.records import Settings, Table, beside, changed, off, setting, unset
from vpem.settings import HoldingSettings

from ..data import (
    STDIN,
    DataFile,
    partition_of,
    read_one,
    tell_families,
    teller,
    transform,
)
from ..display import Screen, print_json, show
from ..options import Json, Without
from ..outputs import FOLDER, READ, WRITTEN, Printing, Role, reads, writes
from ..session import Where

if TYPE_CHECKING:
    from vpem.files.datasets import Dataset
    from vpem.network.schema import Report


app = typer.Typer(
    help="Import, fetch, simulate, split and describe datasets.\n\n"
    "Example: vpem data describe data/breast_cancer.h5"
)

MOST_ROWS = 100  # rows of one table; --json has them all

Inside = Annotated[
    str | None, typer.Option(help="Path of a 2-D dataset inside the HDF5 file, instead of X.")
]
Output = Annotated[Path, WRITTEN, typer.Option("--output", "-o", help="The HDF5 file to write.")]


class Writing(Settings, kept=False):
    force: bool = off("Replace an existing output.")
    quiet: bool = off("Print only errors, and the output of --json.", flags="-q --quiet")

    @contextmanager
    def to(self, output: Path) -> Iterator[tuple[Screen, Callable[..., None]]]:
        """Check where a dataset will go; inside, a function writes it and prints what it has."""
        with Screen(self.quiet) as screen:
            from vpem.files.datasets import write_dataset
            from vpem.files.hdf5 import check_writable

            check_writable(output, self.force, "datasets")

            def write(dataset: Dataset, more: str = "", **beside: Any) -> None:
                write_dataset(output, dataset, self.force, **beside)
                screen.say(f"wrote {output}: {_size(dataset)}{more}")

            yield screen, write


def _size(dataset: Dataset) -> str:
    parts = [plural(dataset.n_samples, "row"), plural(dataset.n_features, "feature")]
    parts += [name for name in ("ids", "labels") if getattr(dataset, name) is not None]
    parts += [plural(dataset.partition.n_agents, "agent")] if dataset.partition else []
    return ", ".join(parts)


class ImportSettings(HoldingSettings, TableSettings, heading="Data", kept=False):
    """What the columns of a table are, which are kept, and who holds which features."""

    features: str | None = changed(often=True)
    drop: str | None = changed(often=True)
    family: str | None = changed(often=True)
    na: str | None = changed(often=True)
    decimal: str | None = changed(often=True)
    delimiter: str | None = changed(often=True)
    worker_column: Any = changed(idle=None)
    sample_weight: str | None = unset(
        "Column of the rows' weights: its name or place. It is written as sample_weight, for "
        "'vpem fit --sample-weight sample_weight'."
    )
    missing: str = setting(
        "refuse",
        "Empty cells of features: refuse, or keep them as missing values (NaN), for 'vpem fit "
        "--missing marginalize'.",
        choices=("refuse", "keep"),
    )
    agents: int | None = changed(help="Divide the features among this many agents, in order.")
    power: str | None = unset(
        "Make features nearly normal by the power transform of Yeo and Johnson, each by an "
        "exponent of its own: fit finds it, and the dataset keeps it; the name of such a dataset "
        "takes those, for new rows."
    )


@app.command("import")
def import_(
    source: DataFile,
    output: Output,
    *,
    writing: Writing,
    table: Annotated[ImportSettings, Without("split workers worker_rows dataset")],
) -> None:
    """Turn a table into a dataset in HDF5, which is read in parts.

    Fits read tables as they are; this is for large ones, and to say once who holds which features.
    Columns of text, dates and constants are left out, with a note. With --family text becomes
    categories, whose names are kept.

    Example: vpem data import pulsars.csv --no-header --label-column -1 --agents 8 -o pulsars.h5
    """
    with writing.to(output) as (screen, write):
        from vpem.checks import check_finite
        from vpem.files.families import settle, summarize_features

        reading = table.into(TableSettings)
        tell = teller(screen.say, families=True)
        dataset = read_one(source, reading, Where(), tell, sample_weight=table.sample_weight)
        keep = table.missing == "keep"
        hint = ("keep them as missing with ", Setting("missing", "keep"))
        try:
            check_finite(dataset.X, dataset.feature_names, hint, gaps=keep)
        except InputError as error:
            raise InputError(f"{dataset.source}: ", *error.parts) from None
        if table.agents is not None or table.partition is not None:
            dataset = replace(dataset, partition=partition_of(dataset, table, True))
        dataset = settle(dataset, reading.family, dataset.partition)
        tell_families(dataset, reading, screen.say)
        about = {} if table.power is None else {"power": _powers(dataset, table.power)}
        n_missing = summarize_features(dataset.X)["missing"].sum() if keep else 0
        missing = f", {n_missing} values missing" if keep else ""
        write(dataset, missing, about=about)


def _powers(dataset: Dataset, power: str) -> str:
    """Transform features by their own exponents, or by those of a dataset; return them as JSON."""
    from json import dumps

    from vpem.files.datasets import read_about, read_exponents

    known = None
    if power != "fit":
        known = read_exponents(read_about(Path(power)).get("power"), power)
        lacking = [name for name in dataset.feature_names if name not in known]
        if lacking:
            raise InputError(f"{power} has no exponents of {shorten(map(repr, lacking))}")
    transform(dataset, known)
    return dumps(dataset.powers)


class SimulationSettings(Settings, kept=False):
    n_samples: int = setting(1000, "Number of examples.", flags="--samples -n")
    n_features: int = setting(10, "Number of features.", flags="--features -d")
    n_components: int = setting(3, "Number of components.", flags="--components -k")
    overlap: float = setting(
        0.05, "Share of examples that the true mixture itself assigns to a wrong component."
    )
    n_agents: int | None = unset(
        "Divide the features among this many agents, in order.", flags="--agents"
    )
    seed: int = setting(0, "The same seed draws the same data.")


@app.command()
def simulate(output: Output, *, mixture: SimulationSettings, writing: Writing) -> None:
    """Draw a dataset from a random Gaussian mixture.

    Covariances are full. The labels are the true components; the true parameters are stored in the
    group "truth".

    Example: vpem data simulate -n 5000 -d 12 -k 4 --overlap 0.1 --agents 6 -o mixture.h5
    """
    with writing.to(output) as (_, write):
        from vpem.files.examples import simulate as draw

        dataset, truth = draw(**mixture.values())
        components = plural(mixture.n_components, "component")
        write(dataset, f", {components}, overlap {float(truth['overlap']):.4g}", truth=truth)


@app.command()
def repack(
    source: Annotated[Path, READ, typer.Argument(help="Dataset (HDF5).")],
    output: Output,
    dataset: Inside = None,
    *,
    writing: Writing,
) -> None:
    """Rewrite a dataset in chunks of whole rows.

    These are quick to read. Memory stays small.

    Example: vpem data repack data/wine.h5 -o repacked.h5
    """
    with writing.to(output) as (_, write):
        from vpem.files.data import read_dataset
        from vpem.files.datasets import read_about, read_truth

        whole = read_dataset(source, dataset, memory_limit=0)
        write(whole, truth=read_truth(source), about=read_about(source))


@app.command("list")
def list_(json: Json = False) -> None:
    """List the datasets that come with vpem.

    Example: vpem data list
    """
    from vpem.files.examples import EXAMPLES

    if json:
        print_json({name: vars(example) for name, example in EXAMPLES.items()})
        return
    sizes = [(name, e.rows, e.columns, e.what) for name, e in EXAMPLES.items()]
    rights = [(name, e.source, e.licence) for name, e in EXAMPLES.items()]
    show(
        Table(sizes, ("dataset", "rows", "columns", ""), right=("rows", "columns")),
        Table(rights, ("dataset", "from", "licence"), right=()),
        "'vpem data copy' copies all to the folder data/, 'vpem data copy wine' one to this folder",
    )


def _targets(value: Path | None, options: Mapping[str, Any]) -> Iterable[Path]:
    from vpem.files.examples import copies

    return copies(options["name"], value)


class CopySettings(Settings, kept=False):
    output: Path | None = unset(
        "Write here; a name that ends in .csv makes a table. Default: the dataset's own name, in "
        "this folder; for all, the folder data.",
        flags="-o --output",
        file=Role(writes=True, files=_targets),
    )


@app.command()
def copy(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Which dataset: breast_cancer, wine, heart, oxford_boys, theophylline, notices. "
            "Default: all."
        ),
    ] = None,
    *,
    to: CopySettings,
    writing: Writing,
) -> None:
    """Copy a dataset that comes with vpem, or all of them.

    Once all are in the folder data, the examples of help and pages run as shown.

    Example: vpem data copy wine -o wine.csv

    Example: vpem data copy -o examples
    """
    with Screen(writing.quiet) as screen:
        from vpem.files.examples import EXAMPLES, copies, copy_files

        sources = copies(name, to.output)
        copy_files(sources, writing.force)
        target = next(iter(sources))
        example = EXAMPLES.get(name or "")
        if example is None:
            screen.say(f"wrote {len(EXAMPLES)} datasets, and their sources, to {target.parent}")
        else:
            sizes = f"{example.rows} rows, {example.columns} columns"
            screen.say(f"wrote {target}: {sizes}; {example.source} ({example.licence})")


class FetchSettings(Settings, kept=False):
    """Where an open dataset comes from, and goes."""

    output: Path | None = unset(
        "Write here (HDF5). Default: NAME.h5.",
        flags="-o --output",
        file=Role(writes=True, files=lambda path, options: [path or Path(f"{options['name']}.h5")]),
    )
    given: Path | None = unset(
        "Read this copy (CSV, or the zip it comes in) and download nothing.",
        flags="--from",
        file="read",
    )
    cache: Path | None = unset(
        "Folder where the download is kept. Default: $VPEM_CACHE, or the user's cache.",
        file=FOLDER,
        idle=beside(" is for downloads, but with {given} there is none; leave one out", given=...),
    )


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="Which dataset: htru2 (pulsar candidates, UCI).")],
    *,
    files: FetchSettings,
    writing: Writing,
) -> None:
    """Write an open dataset, downloaded once and checked.

    It is checked by its SHA-256. Downloads need pooch: pip install
    'vpem[fetch]'.

    Example: vpem data fetch htru2 --from pulsars.csv -o htru2.h5
    """
    from vpem.files.examples import OPEN, fetch, kept_in

    check_choice("dataset", name, OPEN)
    if files.given is None:
        reads("--cache", kept_in(OPEN[name], files.cache))
    with writing.to(files.output or Path(f"{name}.h5")) as (_, write):
        dataset, about = fetch(name, files.given, files.cache)
        write(dataset, f"; {about['source']}", about=about)


class CutSettings(HoldingSettings, kept=False):
    """Which party gets which features, and how rows of parties differ."""

    agents: int | None = changed(
        help="Divide the features among this many parties, in order. Default: the partition stored "
        "in the dataset.",
        often=True,
    )
    shuffle: bool = off("Shuffle the rows of each party on their own.", often=True)
    drop_ids: float = setting(
        0.0, "Share of the rows that each party lacks, drawn for each on its own.", often=True
    )
    seed: int = setting(
        0,
        "Seeds --shuffle and --drop-ids.",
        idle=beside(
            " seeds {shuffle} and {drop_ids}, of which there is neither; give one, or leave it out",
            shuffle=False,
            drop_ids=0.0,
        ),
    )


@app.command()
def split(
    source: DataFile,
    output: Annotated[
        Path,
        FOLDER,
        typer.Option("--output", "-o", help="Folder for the files; created if need be."),
    ],
    *,
    cutting: Annotated[CutSettings, Without("split workers worker_rows sample_weight")],
    writing: Annotated[Writing, Without("quiet")],
    table: TableSettings,
    printing: Printing,
) -> None:
    """Cut a dataset into one file for each party, with ids.

    The files are for trying 'vpem fit --parties'. Labels go to the first party; rows without ids
    get their numbers.

    Example: vpem data split data/breast_cancer.h5 --agents 5 --shuffle --drop-ids 0.05 -o parties
    """
    with Screen(printing.quiet) as screen:
        from vpem.files.datasets import write_dataset
        from vpem.files.families import settle
        from vpem.files.hdf5 import check_writable
        from vpem.files.parties.joining import cut, file_stems
        from vpem.files.temporaries import new_folder
        from vpem.network.partition import Partition

        tell = teller(screen.say, families=True)
        whole = read_one(source, table, Where(), tell, dataset=cutting.dataset)
        if cutting.agents is None and cutting.partition is None and whole.partition is None:
            raise InputError(
                f"{source} does not say which party gets which features; give --agents N or "
                "--partition FILE"
            )
        parties = partition_of(whole, cutting, True)
        if cutting.agents is not None:
            names = tuple(f"party{number}" for number in range(parties.n_agents))
            parties = Partition(parties.features, names)
        whole = settle(whole, table.family, parties)
        tell_families(whole, table, screen.say)
        how: Report = {name: getattr(cutting, name) for name in ("seed", "shuffle", "drop_ids")}
        parts = cut(whole, parties, **how)
        files = [output / f"{stem}.h5" for stem in file_stems(parties.names)]
        writes("--output", *files)
        with new_folder(output, *files, parents=True):
            for file in files:
                check_writable(file, writing.force, "datasets")
            for file, part in zip(files, parts, strict=True):
                write_dataset(file, part, writing.force)
        listed = []
        for file, part in zip(files, parts, strict=True):
            screen.say(f"wrote {file}: {_size(part)}")
            listed.append({"name": file.stem, "file": str(file), "rows": part.n_samples,
                           "features": list(part.feature_names)})  # fmt: skip
    if printing.json:
        print_json({"source": str(source), "seed": cutting.seed, "shuffled": cutting.shuffle,
                    "drop_ids": cutting.drop_ids, "parties": listed})  # fmt: skip


@app.command()
def describe(
    data: DataFile, dataset: Inside = None, *, table: TableSettings, printing: Printing
) -> None:
    """Show a dataset's size, agents, labels, graph and features.

    Of a table: what each column holds, and how a fit takes it.

    Example: vpem data describe data/breast_cancer.h5
    """
    with Screen(printing.quiet):
        _describe(data, table, printing.json, printing.quiet, dataset)


def show_data(path: Path, json: bool = False) -> None:
    """Print what `describe` does; a table of results may have no features but labels."""
    try:
        _describe(path, TableSettings(), json)
    except InputError as error:
        try:
            _describe(path, TableSettings(features="label"), json)
        except InputError:
            raise error from None


def _describe(
    data: Path, reading: TableSettings, json: bool, quiet: bool = False, path: str | None = None
) -> None:
    import h5py

    from vpem.files.datasets import read_about
    from vpem.files.families import describe_dataset, settle
    from vpem.pictures.planning import OF_DATA

    profiles: list[Report] = []
    dataset = read_one(data, reading, Where(), None, dataset=path, profiles=profiles)
    dataset = settle(dataset, reading.family, dataset.partition)
    about = read_about(data) if str(data) != STDIN and h5py.is_hdf5(str(data)) else {}
    summary = describe_dataset(dataset) | {"about": about}
    listed = () if dataset.kinds is None else summary["features"]
    families = {one["name"]: one["family"] for one in listed}
    columns = [one | {"use": families.get(one["name"], one["use"])} for one in profiles]
    summary["columns"] = columns
    if json:
        print_json(summary)
    elif not quiet:
        facts = [("file", dataset.source), *about.items(), *lines_of(summary, OF_DATA["sizes"])]
        tables = [
            table_of(summary[name], OF_DATA[name], MOST_ROWS, right=NUMBERS)
            for name in ("agents", "labels", "columns" if columns else "features")
            if summary[name] is not None
        ]
        show(Table(facts, ("dataset", ""), right=()), *tables)


NUMBERS = ("number", "rows", "missing", "least", "most", "mean", "sd", "min", "max")
"""Columns that are aligned on the right."""
