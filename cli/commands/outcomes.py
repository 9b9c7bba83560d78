"""`vpem outcomes`: what an outcome is in each class of a fit, or what predicts the class."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.errors import InputError, Setting
from vpem.files.table_settings import ID_NAMES, ROW_NAMES, TableSettings
from vpem.pictures.contents import plural
from vpem.records import Table, changed, not_both, setting, unset, words_in
from vpem.settings import ASSIGNMENTS, CORRECTIONS, WorkerSettings

from ..data import read_one
from ..display import Screen, print_json, show
from ..options import Without
from ..outputs import READ, Printing
from ..session import Where

if TYPE_CHECKING:
    from vpem.files.datasets import Dataset
    from vpem.network.schema import Report

NO_CLASSES = (
    "{} has no responsibilities, which 'vpem predict MODEL DATA --proba -o classes.csv' writes"
)
SHARES = frozenset((*(f"proba_{k}" for k in range(1000)), "proba_noise"))


class OutcomeSettings(Printing, heading="Model", kept=False):
    """What is described by class, or predicts it, and how."""

    outcome: Any = unset(
        "Columns of DATA to describe by class, each on its own, with commas. Numbers have means "
        "and variances, text has proportions; so have codes, by --family NAME=categorical.",
        often=True,
    )
    covariates: Any = unset(
        "Columns of DATA, numbers, that together predict the class, in place of --outcome.",
        often=True, idle=not_both("outcome", "covariates"),
    )  # fmt: skip
    method: str = setting(
        "bch", "bch weighs rows, and assumes nothing of the outcome; ml is maximum likelihood, "
        "with normal numbers.", choices=CORRECTIONS, often=True,
    )  # fmt: skip
    assignment: str = setting(
        "modal", "Rows belong to their most responsible class, or (proportional) to all.",
        choices=ASSIGNMENTS,
    )  # fmt: skip
    level: float = setting(0.95, "Level of intervals.", least=0, most=1, above=True)
    sample_weight: str | None = changed(WorkerSettings, "sample_weight")


def outcomes(
    classes: Annotated[
        Path, READ, typer.Argument(help="Table of responsibilities, from 'vpem predict --proba'.")
    ],
    data: Annotated[Path, READ, typer.Argument(help="Table of the same rows, with the outcome.")],
    *,
    settings: OutcomeSettings,
    table: Annotated[TableSettings, Without("features drop worker_column label_column")],
) -> None:
    """Describe outcomes by class, or predict classes.

    This is the third step, after the fit and 'vpem predict --proba'. Classification errors, which
    draw classes together, are corrected; standard errors are robust. Who has the outcome needs
    neither the model nor the features, so no other party.

    Example: vpem predict model.h5 data/breast_cancer.h5 --proba -o classes.csv

    Example: vpem outcomes classes.csv data/breast_cancer.h5 --outcome "mean radius"

    Example: vpem outcomes classes.csv data/breast_cancer.h5 --covariates "mean radius"
    """
    with Screen(settings.quiet) as screen:
        import h5py
        import numpy as np

        from vpem.files.data import open_frame
        from vpem.files.families import FamilyChoice, settle
        from vpem.terms.three_step import three_step

        named = "covariates" if settings.outcome is None else "outcome"
        columns = [str(one) for one in words_in(named, getattr(settings, named))]
        choice = FamilyChoice.parse(table.family) or FamilyChoice()
        if not {choice.rest, *choice.named.values()} <= {"auto", "categorical", "gaussian"}:
            raise InputError(Setting("family"), " of an outcome is categorical or gaussian")
        source = read_one(
            data, table.changed(family=table.family or "auto"), Where(), None,
            columns=columns or None, sample_weight=settings.sample_weight, keep_constant=True,
        )  # fmt: skip
        if not columns:
            raise InputError("give ", Setting("outcome"), " or ", Setting("covariates"))
        try:
            if h5py.is_hdf5(classes):
                raise InputError("a model")
            frame, table = open_frame(classes, TableSettings()), TableSettings()
            if frame is not None and frame.names[0].casefold() in (*ID_NAMES, *ROW_NAMES):
                table = table.changed(id_column=frame.names[0])  # also if it has one twice
            rows = read_one(classes, table, Where(), None, columns=SHARES)
        except InputError:
            raise InputError(NO_CLASSES.format(classes)) from None
        source, line = settle(source, choice), _lines(rows, source)
        called = [name.removeprefix("proba_") for name in rows.feature_names]
        proba = rows.X[line]
        there = (line >= 0) & (np.nan_to_num(proba).sum(axis=1) > 0)  # trimmed rows have zeros
        if not there.all():
            screen.print_note(f"without a class: {plural(int((~there).sum()), 'row')} of {data}")
        values = {name: source.X[there, j] for j, name in enumerate(source.feature_names)}
        for name, levels in source.levels.items():
            codes = np.nan_to_num(values[name], nan=-1).astype(int)
            values[name] = np.array([*levels, None], dtype=object)[codes]
        weights = None if source.sample_weight is None else source.sample_weight[there]
        options: Report = settings.values("outcome", "covariates", "json", "quiet", "sample_weight")
        each = {name: {name: one} for name, one in values.items()}
        found = {
            name: three_step(proba[there], sample_weight=weights, **options | {named: one})
            | {"classes": called}
            for name, one in (each if named == "outcome" else {named: values}).items()
        }
        if settings.json:
            print_json({"outcomes": found, "warnings": list(screen.warnings)})
        elif not settings.quiet:
            show(*(one for name, report in found.items() for one in _tables(name, report)))


def _lines(rows: Dataset, source: Dataset) -> Any:
    """Return the line of classes of each row of the data, by ids if there are any; -1: none."""
    import numpy as np

    names = f"{rows.source} and {source.source}"
    theirs, ours = (one.table and one.table.id_column for one in (rows, source))
    ids: Any = () if source.ids is None else source.ids
    if rows.ids is None or (theirs in ROW_NAMES and ours not in ROW_NAMES):
        ids = range(len(source.X)) if source.counted is None else source.counted
        if len(rows.X) != len(ids):
            counts = f"{len(rows.X)} and {len(ids)} rows"
            raise InputError(f"{names} have {counts}, and no ids say which belong together")
    named, ids = [*map(str, ids if rows.ids is None else rows.ids)], [*map(str, ids)]
    if named == ids:
        return np.arange(len(ids))
    places = {one: place for place, one in enumerate(named)}
    line = np.array([places.get(one, -1) for one in ids])
    if len(places) < len(rows.X) or not (line >= 0).any():
        said = f"{names} have no ids in common, or one of them twice; name their column with "
        raise InputError(said, Setting("id_column"))
    return line


def _tables(name: str, report: Report) -> list[Table]:
    from vpem.fits.answer import estimates_table

    correct = float(report["sizes"] @ report["classification"].diagonal())
    facts = [
        ("rows", f"{report['n_samples']}, and {report['n_missing']} left out without a value"),
        ("assigned rightly", f"{correct:.1%} ({report['assignment']})"),
    ]
    tested = [
        (what, f"{one['statistic']:.4f}", str(one["degrees_of_freedom"]), f"{one['p_value']:.4g}")
        for what, one in report["tests"].items()
    ]
    heads = ("equal in all classes", "Wald", "d.f.", "p")
    return [Table(facts, caption=f"{name}, by {report['method']}"), estimates_table(report),
            Table(tested, heads)]  # fmt: skip
