"""Fits at work: what a command does with one (`UseRequest`), and what every kind of fit has.

How a kind of file does what a command asks is the business of its class (`StoredFile`): those of
rows and of SAEM are in `rows` and `individuals`, the commands, which choose among them, in `model`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from vpem.errors import InputError
from vpem.files.table_settings import TableSettings
from vpem.pictures.contents import lines_of
from vpem.records import (
    Settings,
    Table,
    beside,
    changed,
    mild,
    not_both,
    off,
    rule,
    setting,
    unset,
    words_in,
)
from vpem.settings import OF_DATA, FitSettings, WorkerSettings, lacks_data

from ..data import DataParties
from ..display import Screen, print_json, show
from ..options import Json
from ..outputs import READ, LabelFile, ResultSettings, writes
from ..session import EngineSettings, where_of

if TYPE_CHECKING:
    from vpem.network.schema import Report
    from vpem.pictures.contents import Lines

    from ..session import Where


FITS = ("vpem-model", "vpem-clustering", "vpem-saem", "vpem-imputation")
"""Kinds of fits, by what files say that they are."""

HELD = {
    "vpem-dataset": "a dataset",
    "vpem-checkpoint": "a checkpoint, from which its run goes on with --checkpoint and --resume",
    "vpem-predictions": "predictions",
    "vpem-contributions": "contributions of parties and features",
    "vpem-imputed": "imputed values",
    "vpem-samples": "rows drawn from a model",
    "vpem-observations": "observations of curves",
    "vpem-individuals": "individuals and their observations",
    "vpem-saem-individuals": "estimates of individuals",
    "vpem-saem-curves": "predicted curves",
    "vpem-saem-residuals": "residuals of a fit of SAEM",
    "vpem-topic-words": "words of topics",
    "vpem-trace": "a trace of a fit, which 'vpem plot' draws",
}
"""What else files of vpem hold, in words."""

OF_COLUMNS = {*HELD} - {"vpem-dataset", "vpem-checkpoint", "vpem-observations", "vpem-individuals"}
"""Of these, those that have columns of one length."""


class RowSettings(Settings, heading="Data", kept=False):
    labels: str = setting(
        "labels",
        "Where the labels are: a dataset inside the HDF5 file, or a text file with one a line; "
        "a table has them in its --label-column.",
        file="read",
        local=True,
        often=True,
        idle=rule(
            lambda given: given["labels"] != "labels" and given.get("align") not in (None, "none"),
            " has one label a line, but parties are aligned by their ids; give labels to one "
            "party, or align them first",
        ),
    )
    dataset: str | None = changed(WorkerSettings, "dataset", local=True)
    sample_weight: str | None = changed(WorkerSettings, "sample_weight")
    drawn: str | None = unset(
        "Features that profile, marginals, pairs or boundaries draw, by name or number (from 0), "
        "with commas between. Default: those in which components differ most.",
        flags="--features",
    )
    missing: str | None = changed(
        FitSettings,
        "missing",
        None,
        help="Missing values (NaN): refuse, or marginalize, which integrates them out as missing "
        "at random. Default: as fitted.",
    )


class IndividualSettings(Settings, heading="Individuals", kept=False):
    individual: list[str] | None = unset(
        "Fits of SAEM: this individual of DATA only. Several: repeat it.", often=True
    )
    times: str | None = unset(
        "Fits of SAEM: when to predict, 0:24:0.5 (from, to, step) or 0,1,2.5. Default: at the "
        "rows of DATA; without DATA 50 times over those of the fit.",
        often=True,
    )
    population: bool = off(
        "Fits of SAEM: the curve of the mean latents, for individuals without rows."
    )
    latents: bool = off("Fits of SAEM: means and intervals of latents, not curves.")
    residuals: bool = off(
        "Fits of SAEM: predictions of the rows of DATA and their residuals, weighted (IWRES, "
        "PWRES) and as prediction distribution errors (npde).",
    )
    id: str | None = unset("Fits of SAEM: column of a CSV with the individual. Default: as fitted.")
    time: str | None = unset("Fits of SAEM: column with the time. Default: as fitted.")
    value: str | None = unset("Fits of SAEM: column with the measurement. Default: as fitted.")
    covariates: str | None = unset(
        "Fits of SAEM: dose=amt reads the column amt as the dose. Default: as fitted."
    )
    doses: str | None = unset(
        "Fits of SAEM: columns of lines that are doses: amt=AMT. Default: as fitted."
    )
    curve: str | None = unset(
        "Fits of SAEM to a curve of your own: FILE.py:NAME again, which is run; nothing in "
        "the file of a fit is run.",
    )


INDIVIDUALS, TABLES, RUNNING = (
    " ".join(one.settings_by_name) for one in (IndividualSettings, TableSettings, EngineSettings)
)


class UseSettings(
    ResultSettings, EngineSettings, IndividualSettings, DataParties, RowSettings, kept=False,
    rows=[
        (INDIVIDUALS, *beside(
            " is for fits of SAEM, which {model} is not; leave it out",
            holds=("rows", "entries", "iterates"))),
        (f"parties engine study {TABLES}", *mild(beside(
            " is for mixtures and clusters; individuals and documents are in one file",
            holds=("individuals", "documents")))),
        (f"parties labels dataset drawn {TABLES}", *mild(beside(
            " is for data, and imputations are shown with their own; leave it out",
            holds="entries"))),
        (f"parties labels dataset drawn {TABLES}", *mild(beside(
            " is about data, of which a trace has none; give other traces after the first, and "
            "nothing else", holds="iterates"))),
        ("labels dataset sample_weight drawn missing", *mild(beside(
            " is for mixtures and clusters; individuals are used as is", holds="individuals"))),
        ("labels sample_weight drawn missing times population latents residuals covariates doses",
         *mild(beside(" is not for documents, which have words and counts", holds="documents"))),
        ("parties labels dataset missing id time value doses", *OF_DATA),
        ("engine", *beside("{engine=mpi} is for parties, each read by a rank of its own; add "
                           "{parties}", apart=True, parties=False)),
        ("split", *beside(
            "a party that has all features of a row needs no other party: let each use the model "
            "on its own file, without {engine=mpi}", apart=True, split="rows")),
    ],
):  # fmt: skip
    """All options about a fit at work; each command has some."""

    proba: bool = False
    merge_to: str | None = None
    directions: float | None = None


TO_MERGE = ("merge_to", *beside(
    " merges components of a mixture over rows, which {model} is not; leave it out",
    holds=("individuals", "documents", "entries", "iterates")))  # fmt: skip


class PredictSettings(
    UseSettings, kept=False,
    rows=[
        TO_MERGE,
        ("directions", *beside(
            " are those of a mixture over rows, which {model} is not; leave it out",
            holds=("individuals", "documents", "entries", "iterates"))),
        ("directions", *beside(
            "parts of scores show a party's features where it has no more of them than there are "
            "directions; read all parties in one process, or leave out {directions}", apart=True)),
        ("times", *not_both("latents", "times")),
        ("population", *not_both("latents", "population")),
        ("residuals", lambda given: any(given[one] for one in ("latents", "population", "times")),
         " belongs to the rows of {data}; leave out {latents}, {population} and {times}"),
        ("residuals", lacks_data,
         " belongs to measurements, which a fit does not keep; give {data}"),
        ("times population residuals", *beside(
            " is for curves over time, of which {model} has none; leave it out", curves=False)),
        ("individual", lambda given: lacks_data(given) and given["population"],
         " without {data} is an individual of the fit; leave out {population}"),
        ("covariates", lambda given: lacks_data(given) and not given["population"],
         "the fit knows its individuals' covariates; leave out {covariates}"),
        ("digits", *beside(
            " is about the probabilities that {proba} adds; give that, or leave it out",
            proba=False)),
    ],
):  # fmt: skip
    """Options about what is predicted, with data or without."""

    proba: bool = off(
        "Add the responsibilities of every component.",
        local=True,
        often=True,
        idle=beside(
            " adds probabilities of components or classes, of which {model} has none; leave it "
            "out, or fit a mixture",
            classes=False,
        ),
    )
    merge_to: str | None = unset(
        "Merge components to so many clusters, by the entropy of these rows ('vpem model merge'); "
        "or merge those that are given, 0+2,1. Clusters are numbered by their first component.",
        local=True,
        idle=beside(
            " merges components of a mixture, of which {model} has none; leave it out",
            classes=False,
        ),
    )
    directions: float | None = unset(
        "Add scores along the directions in which components differ most: by their means (1), or "
        "also by their covariances (0.5, the lambda of mclust's MclustDR).",
        least=0.0,
        most=1.0,
        local=True,
        idle=beside(
            " are those of a mixture, which {model} is not; leave it out",
            classes=False,
        ),
    )
    individual: list[str] | None = changed(
        help="Fits of SAEM: this individual only, of DATA or, without DATA, of the fit. Several: "
        "repeat it."
    )
    covariates: str | None = changed(
        help="Fits of SAEM: dose=amt reads the column amt as the dose (default: as fitted); "
        "without DATA, with --population, dose=4.5 is the dose."
    )


class ContributionSettings(
    UseSettings, kept=False,
    rows=[(
        "labels", lambda given: bool(given.get("apart")) and given["labels"] != "labels",
        "{labels} are compared with the components of rows without each party, which only the root "
        "of its hub knows; leave it out, or read all parties' files in one process",
    )],
):  # fmt: skip
    """By which rows parties are judged, where these live, and where figures go."""

    output: Path | None = changed(
        help="Write all figures here, a row for each party and feature: .csv, .parquet or .h5."
    )
    engine: str = changed(
        help="simulator: one process holds all agents. mpi: each party is a rank of its own, or "
        "some share one (mpiexec -n 3 {command} ... --engine mpi; needs vpem[mpi]).",
        choices=("simulator", "mpi"),
        idle=None,
    )
    digits: int = changed(  # of files of an earlier --show-config
        hidden=True, idle=beside(" has no effect here: no figure is rounded; leave it out")
    )


class MergeSettings(ContributionSettings, kept=False):
    """By which rows components are merged, and where labels go."""

    output: Path | None = changed(
        help="Write the cluster of each row with 1, 2, ... all clusters here: .csv, .parquet, .h5."
    )


@dataclass
class UseRequest:
    command: str
    model: Path
    files: Sequence[Path]  # the data
    settings: UseSettings
    labelled: bool = False  # rows must have labels
    labels: bool = True  # are read, if there are any

    def __post_init__(self) -> None:
        self.screen = Screen(self.settings.quiet)

    @cached_property
    def where(self) -> Where:
        return where_of(self.settings, self.screen)

    @cached_property
    def tables(self) -> LabelFile:
        """Tables of parties' rows, each party's in its process; none if one process has all."""
        apart = self.where.engine.apart and bool(self.settings.parties)
        return LabelFile(self.settings, self.where, True, "output", here=apart)

    @property
    def data(self) -> Path | None:
        if len(self.files) > 1:
            raise InputError(f"give one file of individuals, got {len(self.files)}")
        return self.files[0] if self.files else None

    def leave_it_to_the_first(self) -> None:
        """Exit where another process prints for all, once it has this one's warnings."""
        self.where.tell_warnings()
        if not self.where.speaks:
            raise typer.Exit

    def tell(self, report: Report, lines: Lines, *tables: Table | str) -> None:
        if self.settings.json:
            print_json(report)
        else:
            show(Table(lines_of(report, lines)), *tables)

    def beside(self, ending: str, kind: str) -> Path:
        """Return where a picture or page goes: by default to the model's name, with an ending."""
        from vpem.files.hdf5 import check_writable

        output = self.settings.output or self.model.parent / f"{self.model.stem}{ending}"
        if self.settings.output is None:
            writes("--output", output)
        check_writable(output, self.settings.force, kind)
        return output

    def tell_drawn(self, facts: Report, notes: Sequence[str], more: str = "") -> None:
        """Print that a picture or page was written, the first of the facts."""
        self.screen.say(f"wrote {next(iter(facts.values()))}")
        for note in notes:
            self.screen.print_note(note)
        if more:
            self.screen.say(more)
        if self.settings.json:
            print_json(facts | {"warnings": list(self.screen.warnings)})


CORPUS_MODEL = "lda"
"""The model of documents."""


class StoredFile:
    """A fit, as commands use it; a command that its kind has no method for is refused.

    Methods are ``predict``, ``score``, ``evaluate``, ``contribution`` and ``sample``, of a
    `UseRequest`, which return what was written, or how many rows; and ``export``. All have
    ``as_json``, and ``evaluation_data``: data to compare the fit with, if there are any.
    """

    holds: ClassVar[str]
    instead: ClassVar[dict[str, str]] = {}
    """Why commands cannot use it, and what to do instead."""
    stored: Any
    facts: Report
    """What rules of options ask about it: what it ``holds``, and whether it has ``classes`` with
    probabilities, and ``curves``."""

    def __init__(self, path: Path, curve: str | None) -> None:
        self.path, self.curve = path, curve  # a curve of the user's own, as the command names it

    @cached_property
    def saved(self) -> Any:
        from vpem.pictures.saved import saved_of

        return saved_of(str(self.path), self.stored)

    def command(self, root: Any) -> str | None:
        return None


class TraceFile(StoredFile):
    """Iterates of a fit, or of several, whose files are named after the first."""

    holds = "a trace"
    facts: Report = {"holds": "iterates"}  # noqa: RUF012

    @cached_property
    def stored(self) -> Any:
        from vpem.files.traces import read_trace

        return read_trace(self.path)

    def evaluation_data(self, request: UseRequest) -> Any:
        from vpem.files.traces import read_trace

        return [read_trace(path) for path in request.files]


Clustered = Annotated[Path, READ, typer.Argument(help="Model or clusters, from a fit's --output.")]


def show_boundaries(
    model: Clustered,
    *,
    features: Annotated[
        str | None,
        typer.Option(
            help="Boundaries of who sees these features alone, with commas. Default: all features.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show decision boundaries of components or clusters.

    Where constant + linear + quadratic terms are above 0, the first of a pair is more likely. They
    are linear where both have the same covariance (--covariance tied, clusters), else quadratic.
    'vpem plot --kind boundaries' draws them in two features.

    Example: vpem model boundaries model.h5 --features 0,1
    """
    with Screen() as screen:
        from vpem.files.datasets import powers_of
        from vpem.fits.answer import boundaries
        from vpem.pictures.densities import pick_features
        from vpem.pictures.saved import SavedFit, read_saved

        saved = read_saved(model)
        if not isinstance(saved, SavedFit):
            raise InputError(f"{model} holds {saved.holds}, which has no components to divide")
        weights, means, covariances = saved.gaussians()
        chosen = None if features is None else [str(one) for one in words_in("features", features)]
        columns = pick_features(saved, chosen, len(saved.feature_names))
        columns = list(range(means.shape[1])) if columns is None else columns
        names = [saved.feature_names[column] for column in columns]
        here = covariances[:, columns][:, :, columns]
        found = boundaries(weights, means[:, columns], here)
        powers = powers_of(saved.stored)[columns]
        if json:
            pairs = [{**vars(one), "kind": _kind_of(one.quadratic)} for one in found]
            power = {"power": powers} if (powers != 1).any() else {}
            print_json({"features": names, "boundaries": pairs, **power})
            return
        if (powers != 1).any():
            screen.print_note("features are those after the model's power transform")
        for one in found:
            terms = [("constant", one.constant), *zip(names, one.linear.tolist(), strict=True)]
            if one.quadratic is not None:
                terms += [
                    (f"{names[i]} * {names[j]}", (1 + (i != j)) * float(one.quadratic[i, j]))
                    for i in range(len(names))
                    for j in range(i, len(names))
                    if one.quadratic[i, j] != 0
                ]
            title = f"{saved.noun} {one.one} or {one.two}: {_kind_of(one.quadratic)}"
            cells = [(name, f"{value:.6g}") for name, value in terms]
            show(Table(cells, ("term", "coefficient"), title, ("coefficient",)))


def _kind_of(quadratic: Any) -> str:
    return "linear" if quadratic is None else "quadratic"
