"""Fits at work: `vpem predict`, `score`, `sample` and `evaluate`, and pictures of them.

What a command (`UseRequest`) does with a kind of file is the business of that: one class a kind
(`StoredFile`; those of rows and of SAEM are in `rows` and `individuals`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from vpem.errors import FileError, InputError, printable
from vpem.pictures.contents import lines_of, plural
from vpem.records import Settings, beside, changed, not_both, off, rule, setting, unset, words_in
from vpem.settings import OF_DATA, FitSettings, WorkerSettings, lacks_data

from ..data import OF_A_FIT, DataParties
from ..display import Screen, print_json, show, table
from ..names import in_options
from ..options import Without, refuse_beside
from ..outputs import READ, LabelFile, ResultSettings, writes
from ..session import EngineSettings, where_of

if TYPE_CHECKING:
    from vpem.network.schema import Report
    from vpem.pictures.contents import Lines
    from vpem.pictures.contents import Table as Contained

    from ..display import PrintedTable
    from ..session import Where


class RowSettings(Settings, heading="Data", kept=False):
    """Options about rows of data."""

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
        "Features that profile, marginals or pairs draw, by name or number (from 0), with commas "
        "between. Default: those in which components differ most.",
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
    """Options about individuals."""

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


INDIVIDUALS, PARTIES, RUNNING = (
    " ".join(one.settings_by_name) for one in (IndividualSettings, DataParties, EngineSettings)
)


class UseSettings(
    ResultSettings, EngineSettings, IndividualSettings, DataParties, RowSettings, kept=False,
    rows=[
        (INDIVIDUALS, *beside(
            " is for fits of SAEM, which {model} is not; leave it out", holds="rows")),
        (f"{PARTIES} {RUNNING}", *beside(
            " is for mixtures and clusters; individuals and documents are in one file",
            holds=("individuals", "documents"))),
        ("labels dataset sample_weight drawn missing", *beside(
            " is for mixtures and clusters; individuals are used as is", holds="individuals")),
        ("labels sample_weight drawn missing times population latents residuals covariates doses "
         "curve", *beside(
            " is not for documents, which have words and counts", holds="documents")),
        ("parties align align_key missing_parties split secure_sum labels dataset sample_weight "
         "missing id time value doses", *OF_DATA),
        ("engine", *beside("{engine=mpi} is for parties, each read by a rank of its own; add "
                           "{parties}", apart=True, parties=False)),
        ("split", *beside(
            "a party that has all features of a row needs no other party: let each use the model "
            "on its own file, without {engine=mpi}", apart=True, split="rows")),
    ],
):  # fmt: skip
    """All options about a fit at work; each command has some."""

    proba: bool = False


WRITTEN = "output force quote_formulas digits"
NOT_DRAWN = f"missing sample_weight secure_sum quote_formulas digits {RUNNING} {OF_A_FIT}"
NOT_DATA = "times population latents residuals"


class PredictSettings(
    UseSettings, kept=False,
    rows=[
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
    individual: list[str] | None = changed(
        help="Fits of SAEM: this individual only, of DATA or, without DATA, of the fit. Several: "
        "repeat it."
    )
    covariates: str | None = changed(
        help="Fits of SAEM: dose=amt reads the column amt as the dose (default: as fitted); "
        "without DATA, with --population, dose=4.5 is the dose."
    )


@dataclass
class UseRequest:
    """What a command does with a fit."""

    command: str
    model: Path
    files: Sequence[Path]  # the data
    settings: UseSettings
    labelled: bool = False  # rows must have labels
    labels: bool = True  # are read, if there are any

    def __post_init__(self) -> None:
        self.screen = Screen(self.settings.quiet)

    @cached_property
    def stored(self) -> Any:
        stored = stored_at(self.model, self.command, self.settings.curve)
        refuse_beside(**stored.facts)
        return stored

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

    def run(self, *arguments: object) -> None:
        """Have the file do what the command asks, and print what was written, if anything was."""
        from vpem.files.hdf5 import check_writable

        with self.screen:
            file = self.settings.output
            if file is not None and self.command == "predict" and self.tables:
                file = None  # but one for each party
            if file is not None and self.where.speaks:
                check_writable(file, self.settings.force, "results")
            written = getattr(self.stored, self.command.split()[-1])(self, *arguments)
            if file is not None:
                what = plural(written, "row") if isinstance(written, int) else written
                self.screen.say(f"wrote {what} to {file}")

    def leave_it_to_the_first(self) -> None:
        """Exit where another process prints for all, once it has this one's warnings."""
        self.where.tell_warnings()
        if not self.where.speaks:
            raise typer.Exit

    def tell(self, report: Report, facts: Lines, *tables: PrintedTable | str) -> None:
        """Print a report as JSON, or a table of its facts, and others."""
        if self.settings.json:
            print_json(report)
        else:
            show(table(lines_of(report, facts), "", ""), *tables)

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

CLASSES = {
    "vpem-model": ("rows", "MixtureFile"),
    "vpem-clustering": ("rows", "ClustersFile"),
    "vpem-saem": ("individuals", "SaemFile"),
}
"""Where the class of each kind of fit is, by what files say that they are."""

HELD = {
    "vpem-dataset": "a dataset",
    "vpem-checkpoint": "a checkpoint, from which its run goes on with --checkpoint and --resume",
    "vpem-imputation": "an imputation, a completed matrix (see 'vpem model export')",
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
}
"""What else files of vpem hold, in words."""


def stored_at(path: Path, command: str = "plot", curve: str | None = None) -> Any:
    """Return a fit for a command, unless it cannot use such; one of no kind is read as a model."""
    import h5py

    from vpem.files.hdf5 import attribute_of
    from vpem.files.opening import check_readable

    if not h5py.is_hdf5(str(check_readable(path))):
        raise FileError(
            f"{path} is not an HDF5 file, which fits write; give the model before the data"
        )
    encoding, instead = attribute_of(path), dict[str, str]()
    holds = HELD.get(encoding, "neither a model nor another fit")
    if encoding in CLASSES or not encoding.startswith("vpem-"):
        module, name = CLASSES.get(encoding, CLASSES["vpem-model"])
        if encoding == "vpem-saem" and attribute_of(path, "model") == CORPUS_MODEL:
            name = "TopicsFile"
        kind = getattr(import_module(f"{__package__}.{module}"), name)
        if command in ("plot", "report") or hasattr(kind, command.split()[-1]):
            return kind(path, curve)
        holds, instead = kind.holds, kind.instead
    why = instead.get(command, f"which 'vpem {command}' cannot use")
    raise InputError(f"{path} holds {holds}, {why}")


NUMBER = re.compile(r"[\d,]*\.?[\d,]*%*")


def as_printed(item: Contained | list[str] | str, heading: str = "") -> Sequence[Any]:
    """Return part of a fit's contents as a terminal shows it: lines, or one table."""
    if isinstance(item, str | list):
        return [item] if isinstance(item, str) else item
    columns = [*zip(item.heads, *item.rows, strict=False)][1:]
    numbers = [
        head for head, *cells in columns
        if item.numbers or all(NUMBER.fullmatch(str(cell)) for cell in cells)
    ]  # fmt: skip
    heads = item.heads or ("",) * len(item.rows[0])
    return [table(item.rows, *heads, title=item.caption or heading, right=numbers)]


def show_fit(file: Path, json: bool) -> None:
    """Print what a page on a fit says."""
    stored = stored_at(file)
    if json:
        print_json(stored.as_json())
        return
    from vpem.pictures.page import contents_of

    contents = contents_of(stored.saved)
    # Names and words in them come from the author of the file.
    printed: list[Any] = [printable(contents.title), printable(contents.lead)]
    for section in contents.sections:
        for item in section.items:
            printed += as_printed(item, section.heading)
    show(*printed)


def table_of(
    reports: Sequence[Report], columns: Lines, most: int | None = None, **looks: Any
) -> PrintedTable:
    """Return a table with a row for each of the first reports, but no column without a cell."""
    rows = [dict(lines_of(one, columns)) for one in reports[:most]]
    heads = [head for head in columns if any(head in row for row in rows)]
    if len(rows) < len(reports):
        looks["caption"] = f"and {len(reports) - len(rows)} more; --json shows all"
    return table(([row.get(head, "-") for head in heads] for row in rows), *heads, **looks)


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
        """Return the command that fitted it, where that is known."""
        return None


ModelFile = Annotated[Path, READ, typer.Argument(help="Model, from 'vpem fit --output'.")]
FitFile = Annotated[
    Path, READ, typer.Argument(help="Model, clusters or fit of SAEM, from the --output of a fit.")
]
DATA = "Dataset with the model's features; with --parties a file each, or a manifest."
DataFile = Annotated[list[Path], READ, typer.Argument(help=DATA)]
OptionalData = Annotated[
    list[Path] | None,
    READ,
    typer.Argument(help=f"{DATA} Individuals for a fit of SAEM. Pictures may need none."),
]


def predict(
    model: FitFile,
    data: OptionalData = None,
    *,
    settings: Annotated[
        PredictSettings, Without(f"labels drawn sample_weight label_column shards {OF_A_FIT}")
    ],
) -> None:
    """Assign rows to components or centres; predict individuals.

    A row goes to its most responsible component, or to its nearest centre, with the distance to it
    (of clusters fitted with --scale standard that of standardized features).

    With a fit of SAEM: the curve of each individual given its rows, with an interval of the curve
    (not of new measurements); the classes of a mixture; the factors of bifactor.

    Example: vpem predict model.h5 data/breast_cancer.h5 --proba -o labels.csv

    Example: vpem predict clusters.h5 data/breast_cancer.h5 -o labels.csv

    Example: vpem predict growth.h5 data/oxford_boys.csv --individual 7 --times -1:1:0.5
    """
    UseRequest("predict", model, data or (), settings, labels=False).run()


def score(
    model: FitFile,
    data: DataFile,
    *,
    settings: Annotated[
        UseSettings,
        Without(f"labels drawn label_column shards individual {NOT_DATA} {WRITTEN} {OF_A_FIT}"),
    ],
) -> None:
    """Compute log-likelihood, BIC and AIC of data under a model.

    Under clusters: inertia. Under a fit of SAEM: log-likelihood of individuals, by formula or
    importance sampling.

    Example: vpem score model.h5 data/breast_cancer.h5 --json
    """
    UseRequest("score", model, data, settings, labels=False).run()


class DrawSettings(Settings, kept=False):
    """How many rows are drawn."""

    n: int = setting(100, "Rows to draw.", flags="-n --samples", least=1)
    seed: int = setting(0, "Seed of the draw.", least=0)


def sample(
    model: ModelFile,
    *,
    rows: DrawSettings,
    results: Annotated[ResultSettings, Without("json digits")],
) -> None:
    """Draw rows from a model, each labelled with its component.

    Example: vpem sample model.h5 -n 1000 -o drawn.h5
    """
    UseRequest("sample", model, (), results.into(UseSettings)).run(rows.n, rows.seed)


def evaluate(
    model: FitFile,
    data: DataFile,
    *,
    settings: Annotated[
        UseSettings,
        Without(f"drawn sample_weight secure_sum {INDIVIDUALS} {RUNNING} {WRITTEN} {OF_A_FIT}"),
    ],
) -> None:
    """Compare components or clusters with labels.

    The fit never saw these labels. Accuracy is that of the best one-to-one mapping of components to
    labels.

    Example: vpem evaluate model.h5 data/breast_cancer.h5 --labels labels
    """
    UseRequest("evaluate", model, data, settings).run()


class PictureSettings(UseSettings, kept=False, rows=[("individual covariates curve", *OF_DATA)]):
    """What is drawn, and where the picture goes."""

    output: Path | None = changed(
        help="Write here: .png, .svg or .pdf. Default: beside the model, as model-KIND.png.",
        often=False,
    )
    force: bool = changed(idle=None)


class PageSettings(PictureSettings, kept=False):
    """What a page is about, and where it goes."""

    output: Path | None = changed(
        help="Write here: .html. Default: beside the model, as model.html."
    )


def plot(
    model: FitFile,
    data: OptionalData = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="profile, history, graph, sparsity, communication; projection, marginals and "
            "pairs, best with DATA; responsibilities, of DATA; confusion, of DATA with labels. "
            "Fits of SAEM: traces; curves, observed, residuals, vpc and effects, of DATA. "
            "Default: profile, of two features pairs, of SAEM traces."
        ),
    ] = None,
    *,
    settings: Annotated[PictureSettings, Without(f"{NOT_DATA} {NOT_DRAWN}")],
) -> None:
    """Draw a model: its components, how they differ, how the fit went.

    Colours are distinct to the colour-blind, and in grey by lines, marks, hatches or numbers.

    Example: vpem plot model.h5

    Example: vpem plot model.h5 data/breast_cancer.h5 --kind projection

    Example: vpem plot model.h5 data/breast_cancer.h5 --kind marginals -o marginals.svg

    Example: vpem plot growth.h5 data/oxford_boys.csv --kind curves -o curves.png
    """
    request = UseRequest("plot", model, data or (), settings)
    with request.screen:
        from vpem.pictures.page import check_kind, draw, kinds_of, next_kinds

        saved = request.stored.saved
        kind = kind or next(iter(kinds_of(saved)))
        request.labelled = check_kind(kind, saved).labels
        output = request.beside(f"-{kind}.png", "pictures")
        evaluation = request.stored.evaluation_data(request)
        features = None
        if settings.drawn is not None:  # none at all are refused, as an empty variable of a shell
            features = [name for name in words_in("drawn", settings.drawn) if name != ""]
        picture = draw(kind, saved, evaluation, features=features)
        others = next_kinds(kind, saved, evaluation)
        picture.save(output, force=settings.force)
        listed = "; ".join(
            f"{f'with {needs}: ' if needs else ''}{', '.join(names)}"
            for needs, names in others.items()
        )
        facts = {
            "plot": str(output), "kind": kind, "description": picture.alt, "notes": picture.notes,
            "next": [name for names in others.values() for name in names],
        }  # fmt: skip
        request.tell_drawn(facts, picture.notes, f"next, --kind: {listed}" if listed else "")


def report(
    context: typer.Context,
    model: FitFile,
    data: OptionalData = None,
    *,
    settings: Annotated[PageSettings, Without(f"drawn individual {NOT_DATA} {NOT_DRAWN}")],
) -> None:
    """Write a page on a model: how well it fits, with all pictures.

    The page is one file that needs no network and runs nothing; it can be printed.

    Example: vpem report model.h5 data/breast_cancer.h5

    Example: vpem report growth.h5 data/oxford_boys.csv --output growth.html
    """
    request = UseRequest("report", model, data or (), settings)
    with request.screen:
        output = request.beside(".html", "reports")
        from vpem.pictures.page import write_page

        stored = request.stored
        rows = stored.evaluation_data(request)
        command = stored.command(context.find_root().command)
        left_out = write_page(output, stored.saved, rows, command=command, force=settings.force)
        not_drawn = [f"{one}: {in_options(error)}" for one, error in left_out.items()]
        facts = {"report": str(output), "not_drawn": not_drawn}
        request.tell_drawn(facts, [f"no picture of {line}" for line in not_drawn])
