"""`vpem data describe`: what is in a dataset, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.files.table_settings import TableSettings

from .kinds import FactsFile
from .options import Printing
from .reading import STDIN, DataFile, read_one
from .where import Where

if TYPE_CHECKING:
    from pathlib import Path

    from vpem.files.datasets import Dataset
    from vpem.files.readers.tabular import ColumnProfile
    from vpem.network.partition import Partition
    from vpem.network.schema import Report

    from .tables import Table


MOST_ROWS = 100  # rows of one table; --json has them all


def describe(
    data: DataFile,
    dataset: Annotated[
        str | None, typer.Option(help="Path of a 2-D dataset inside the file, instead of X.")
    ] = None,
    *,
    table: TableSettings,
    printing: Printing,
) -> None:
    """Show a dataset's size, agents, labels, graph and features.

    Of a table: what each column holds, and what a fit makes of it.

    Example: vpem data describe data/breast_cancer.h5
    """
    from .output import Screen, print_json, show

    with Screen(printing.quiet):
        summary = _summary(data, table, dataset)
    if printing.json:
        print_json(summary)
    elif not printing.quiet:
        show(*_tables(summary))


class DatasetFile(FactsFile):
    """Data, in the format of vpem."""

    holds = "a dataset"

    @cached_property
    def facts(self) -> Report:
        """What there is to say of it."""
        return _summary(self.path, TableSettings())

    def show(self) -> None:
        """Print what `vpem data describe` prints."""
        from .output import show

        show(*_tables(self.facts))


class TableFile(DatasetFile):
    """A table, of data or of results; those of rows and labels alone have no features else."""

    @cached_property
    def facts(self) -> Report:
        """What there is to say of it."""
        from vpem.errors import InputError

        try:
            return _summary(self.path, TableSettings())
        except InputError as error:
            with suppress(InputError):
                return _summary(self.path, TableSettings(features="label"))
            raise error from None


def _summary(data: Path, table: TableSettings, dataset: str | None = None) -> Report:
    """Return everything that is shown of a file, as plain values."""
    from vpem.files.datasets import read_about
    from vpem.files.families import Asked, settle
    from vpem.files.opening import format_of

    columns: list[ColumnProfile] = []
    found = read_one(data, table, Where(), None, dataset=dataset, profiles=columns)
    found = settle(found, Asked.of(table.family), found.partition)
    summary = _describe(found)
    stored = str(data) != STDIN and format_of(data, str(data)) == "hdf5"
    summary["about"] = read_about(data) if stored else {}
    summary["columns"] = [vars(column) for column in columns]
    if found.kinds is not None:
        families = dict(zip(found.feature_names, found.kinds.families, strict=True))
        for one in summary["columns"]:
            if one["use"] == "feature":
                one["use"] = families[one["name"]]
    return summary


def _describe(dataset: Dataset) -> Report:
    """Return what there is to say of data once they are read."""
    import numpy as np

    from vpem.files.families import summarize_features

    held = dataset.partition
    of = None if held is None else held.agent_of
    statistics = summarize_features(dataset.X)
    families = ["gaussian"] * dataset.n_features
    if dataset.kinds is not None:
        families = list(dataset.kinds.families)
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
            "family": families[column],
            "levels": list(dataset.levels.get(name, ())) or None,
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
        "left_out": dataset.left_out,
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
    if summary["columns"]:
        return [*tables, _columns(summary["columns"])]
    heads = ("mean", "sd", "min", "max")
    features = [
        (f["name"], *(number(f[head]) for head in heads), _notes(f)) for f in summary["features"]
    ]
    tables.append(_filled(features, "feature", *heads, "note", right=heads))
    return tables


def _columns(columns: Sequence[Report]) -> Table:
    """Return the table of what the columns of a table hold."""
    rows = []
    for one in columns:
        few = one["kind"] == "text" and one["different"] is not None
        kind = f"text, {one['different']} different" if few else one["kind"]
        ends = (one["least"] or "-", one["most"] or "-")
        missing = "-" if one["missing"] is None else one["missing"]
        rows.append((one["name"], kind, missing, *ends, one["use"]))
    heads = ("column", "holds", "missing", "least", "most", "use")
    return _filled(rows, *heads, right=("missing", "least", "most"))


def _share(summary: Report) -> str:
    """Return how many values are missing, and their share."""
    count = summary["n_missing"]
    if not count:
        return "0"
    share = count / (summary["n_samples"] * summary["n_features"])
    return f"{count} ({100 * share:.2g} %)"


def _notes(feature: Report) -> str:
    """Return what is unusual about a feature."""
    from vpem.errors import shorten

    notes = ["constant"] if feature["constant"] else []
    if feature["levels"]:
        notes.append(f"categorical: {shorten(feature['levels'])}")
    elif feature["family"] != "gaussian":
        notes.append(feature["family"])
    if feature["missing"]:
        notes.append(f"{feature['missing']} missing")
    if feature["non_finite"] > feature["missing"]:
        notes.append(f"{feature['non_finite'] - feature['missing']} infinite")
    return ", ".join(notes)


def _filled(rows: Sequence[tuple[Any, ...]], *columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return a table of the first rows, saying how many it leaves out."""
    from .tables import table

    left = len(rows) - MOST_ROWS
    caption = f"and {left} more; --json shows all" if left > 0 else None
    return table(rows[:MOST_ROWS], *columns, right=right, caption=caption)
