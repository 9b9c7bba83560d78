"""`vpem data`: make datasets and look at them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.records import Settings, changed, setting
from vpem.settings import HoldingSettings

from . import examples
from .choices import partition_of
from .fetch import fetch
from .options import Without
from .roles import READ, WRITTEN
from .split import split

if TYPE_CHECKING:
    from vpem.files.datasets import Dataset
    from vpem.network.holdings import Partition
    from vpem.network.schema import Report

    from .tables import Table

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Import, fetch, simulate, split and describe datasets.\n\n"
    "Example: vpem data describe data/breast_cancer.h5",
)

MOST_ROWS = 100  # rows of one table; --json has them all

Output = Annotated[Path, WRITTEN, typer.Option("--output", "-o", help="The HDF5 file to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="No messages.")]


class TableSettings(Settings, heading="Data", kept=False):
    """What the columns of a table are."""

    label_column: str | None = setting(
        None, "Column of known classes: its name, or its number (-1 is the last)."
    )
    id_column: str | None = setting(None, "Column that names the rows: its name or number.")
    worker_column: str | None = setting(
        None, "Column that says which worker holds each row: its name or number."
    )
    weight_column: str | None = setting(
        None,
        "Column of the rows' weights: its name or number. They are written as sample_weight, for "
        "'vpem fit --sample-weight sample_weight'.",
    )
    no_header: bool = setting(False, "The first row is data, not names.")
    delimiter: str | None = setting(
        None, "Character between fields, or 'tab'; found in the first line if absent."
    )
    drop_columns: list[str] | None = setting(
        None, "Column to leave out; may be repeated.", flags="--drop-column"
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
    source: Annotated[
        Path, READ, typer.Argument(help="A .csv, .tsv, .txt (also .gz) or .parquet file.")
    ],
    output: Output,
    force: Force = False,
    quiet: Quiet = False,
    *,
    table: TableSettings,
    held: Annotated[ImportHolding, Without("split workers worker_rows dataset sample_weight")],
) -> None:
    """Turn a CSV or Parquet table into a dataset.

    Every column that is not dropped and holds no labels, ids, workers or weights becomes a feature.

    Example: vpem data import pulsars.csv --no-header --label-column -1 --agents 8 -o pulsars.h5
    """
    from .output import Screen

    with Screen(quiet) as screen:
        from dataclasses import replace

        from vpem.files.datasets import write_dataset
        from vpem.files.hdf5 import check_writable
        from vpem.files.importers import read_table

        check_writable(output, force, "datasets")
        how = table.values("no_header", "drop_columns")
        dataset = read_table(
            source, header=not table.no_header, drop_columns=table.drop_columns or (), **how
        )
        if held.agents is not None or held.partition is not None:
            dataset = replace(dataset, partition=partition_of(dataset, held))
        write_dataset(output, dataset, force)
        screen.say(f"wrote {output}: {_size(dataset, table.missing == 'keep')}")


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
        from vpem.files.hdf5 import check_writable
        from vpem.files.simulate import simulate as draw

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
        from vpem.files.about import read_about
        from vpem.files.data import read_dataset
        from vpem.files.datasets import read_truth, write_dataset
        from vpem.files.hdf5 import check_writable

        check_writable(output, force, "datasets")
        found = read_dataset(source, dataset, memory_limit=0)
        write_dataset(output, found, force, truth=read_truth(source), about=read_about(source))
        screen.say(f"wrote {output}")


app.command("list")(examples.list_)
app.command("copy")(examples.copy)
app.command("fetch")(fetch)
app.command("split")(split)


@app.command()
def describe(
    data: Annotated[
        Path, READ, typer.Argument(help="A dataset: vpem HDF5, dense .h5ad, or any HDF5.")
    ],
    dataset: Annotated[
        str | None, typer.Option(help="Path of a 2-D dataset inside the file, instead of X.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of tables.")
    ] = False,
) -> None:
    """Show a dataset's size, agents, labels, graph and features.

    Example: vpem data describe data/breast_cancer.h5
    """
    from .output import Screen, print_json, show

    with Screen():
        from vpem.files.about import read_about
        from vpem.files.data import read_dataset

        summary = _describe(read_dataset(data, dataset)) | {"about": read_about(data)}
    if json:
        print_json(summary)
    else:
        show(*_tables(summary))


def _size(dataset: Dataset, count_missing: bool = False) -> str:
    """Return what was written, in words."""
    from .output import plural

    parts = [plural(dataset.n_samples, "row"), plural(dataset.n_features, "feature")]
    parts += ["ids"] if dataset.ids is not None else []
    parts += ["labels"] if dataset.labels is not None else []
    if dataset.partition is not None:
        parts.append(plural(dataset.partition.n_agents, "agent"))
    if count_missing:
        from vpem.files.summary import summarize_features

        parts.append(f"{summarize_features(dataset.X).missing.sum()} values missing")
    return ", ".join(parts)


def _describe(dataset: Dataset) -> Report:
    """Return everything that `describe` shows, as plain values."""
    import numpy as np

    from vpem.files.summary import summarize_features

    held = dataset.partition
    of = None if held is None else held.agent_of
    statistics = summarize_features(dataset.X)
    counts = None
    if dataset.labels is not None:
        values, times = np.unique(dataset.labels, return_counts=True)
        counts = [
            {"label": value, "count": count}
            for value, count in zip(values.tolist(), times.tolist(), strict=True)
        ]
    features = [
        {
            "name": name,
            "agent": None if held is None or of is None else held.names[of[column]],
            "mean": float(statistics.mean[column]),
            "sd": float(statistics.sd[column]),
            "min": float(statistics.min[column]),
            "max": float(statistics.max[column]),
            "constant": bool(statistics.constant[column]),
            "non_finite": int(statistics.non_finite[column]),
            "missing": int(statistics.missing[column]),
        }
        for column, name in enumerate(dataset.feature_names)
    ]
    return {
        "path": dataset.source,
        "n_samples": dataset.n_samples,
        "n_features": dataset.n_features,
        "dtype": str(dataset.X.dtype),
        "bytes": dataset.X.nbytes,
        "has_ids": dataset.ids is not None,
        "n_agents": None if held is None else held.n_agents,
        "agents": None if held is None else _agents(held, dataset.feature_names),
        "labels": counts,
        "edges": None if dataset.edges is None else dataset.edges.tolist(),
        "n_non_finite": int(statistics.non_finite.sum()),
        "n_missing": int(statistics.missing.sum()),
        "n_constant": int(statistics.constant.sum()),
        "features": features,
    }


def _agents(partition: Partition, names: tuple[str, ...]) -> list[Report]:
    """Return name and features of each agent."""
    return [
        {"name": name, "features": [names[column] for column in part]}
        for name, part in zip(partition.names, partition.features, strict=True)
    ]


def _tables(summary: Report) -> list[Table]:
    """Return the tables of `describe`: the whole, agents, labels, features."""
    from vpem.errors import shorten

    from .output import number, plural

    edges, labels, agents = summary["edges"], summary["labels"], summary["agents"]
    facts = [
        ("file", summary["path"]),
        *summary["about"].items(),
        ("rows", summary["n_samples"]),
        ("features", summary["n_features"]),
        ("type", f"{summary['dtype']}, {summary['bytes'] / 1e6:.4g} MB"),
        ("ids", "yes" if summary["has_ids"] else "no"),
        ("labels", "no" if labels is None else f"{len(labels)} different"),
        ("agents", "not assigned" if agents is None else summary["n_agents"]),
        ("graph", "none" if edges is None else plural(len(edges), "edge")),
        ("constant features", summary["n_constant"]),
        ("values missing (NaN)", _share(summary)),
        ("values infinite", summary["n_non_finite"] - summary["n_missing"]),
    ]
    tables = [_filled(facts, "dataset", "")]
    if agents is not None:
        held = [(a["name"], len(a["features"]), shorten(a["features"])) for a in agents]
        tables.append(_filled(held, "agent", "number", "features", right=("number",)))
    if labels is not None:
        counts = [(item["label"], item["count"]) for item in labels]
        tables.append(_filled(counts, "label", "rows", right=("rows",)))
    heads = ("mean", "sd", "min", "max")
    features = [
        (f["name"], *(number(f[head]) for head in heads), _notes(f)) for f in summary["features"]
    ]
    tables.append(_filled(features, "feature", *heads, "note", right=heads))
    return tables


def _share(summary: Report) -> str:
    """Return how many values are missing, and their share."""
    count = summary["n_missing"]
    if not count:
        return "0"
    share = count / (summary["n_samples"] * summary["n_features"])
    return f"{count} ({100 * share:.2g} %)"


def _notes(feature: Report) -> str:
    """Return what is unusual about a feature."""
    notes = ["constant"] if feature["constant"] else []
    if feature["missing"]:
        notes.append(f"{feature['missing']} missing")
    if feature["non_finite"] > feature["missing"]:
        notes.append(f"{feature['non_finite'] - feature['missing']} infinite")
    return ", ".join(notes)


def _filled(rows: Sequence[tuple[Any, ...]], *columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return a table of the first rows, saying how many it leaves out."""
    from .output import table

    left = len(rows) - MOST_ROWS
    caption = f"and {left} more; --json shows all" if left > 0 else None
    return table(rows[:MOST_ROWS], *columns, right=right, caption=caption)
