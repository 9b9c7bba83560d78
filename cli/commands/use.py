"""Fits at work: `vpem predict`, `score`, `sample` and `evaluate`, and pictures of them.

What a command (`UseRequest`) does with a kind of file is the business of that: one class a kind
(`StoredFile`; those of rows and of SAEM are in `rows` and `individuals`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from vpem.errors import FileError, InputError, Setting, brief, check_choice, printable
from vpem.pictures.contents import lines_of, plural
from vpem.records import Settings, changed, off, setting, unset
from vpem.settings import FitSettings, WorkerSettings

from ..data import OF_A_FIT, DataParties
from ..display import Screen, print_json, show, table
from ..names import in_options
from ..options import Without
from ..outputs import READ, LabelFile, ResultSettings, writes
from ..session import EngineSettings, where_of

if TYPE_CHECKING:
    from vpem.network.schema import Report
    from vpem.pictures.contents import Lines
    from vpem.pictures.contents import Table as Contained
    from vpem.pictures.page import Data
    from vpem.pictures.saved import Saved

    from ..display import PrintedTable
    from ..session import Where


MOST_TIMES = 100_000


class RowSettings(Settings, heading="Data", kept=False):
    """Options about rows of data."""

    labels: str = setting(
        "labels",
        "Where the labels are: a dataset inside the HDF5 file, or a text file with one a line; "
        "a table has them in its --label-column.",
        file="read",
        local=True,
        often=True,
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
    )  # fmt: skip

    def grid(self) -> list[float] | None:
        from vpem.checks import read_float

        if self.times is None:
            return None
        steps = ":" in self.times
        words = self.times.split(":" if steps else ",")
        numbers = [n for n in (read_float(word, finite=True) for word in words) if n is not None]
        if len(numbers) == len(words) <= MOST_TIMES and not steps:
            return numbers
        if len(numbers) == len(words) == 3 and numbers[2] > 0:
            first, last, step = numbers
            count = (last - first) / step * (1 + 1e-12) + 1e-9
            if 0 <= count < MOST_TIMES:
                return [first + place * step for place in range(int(count) + 1)]
        raise InputError(
            "--times must be from:to:step with a step above 0, such as 0:24:0.5, or numbers with "
            f"commas between, at most {MOST_TIMES}, got {brief(self.times)}"
        )

    def known_values(self, words: Mapping[str, Sequence[str]]) -> dict[str, float]:
        """Values of covariates, numbers or words of a fit: ``dose=4.5,weight=70,Sex=Male``."""
        from vpem.checks import read_float

        values: dict[str, float] = {}
        for word in [] if self.covariates is None else self.covariates.split(","):
            name, _, text = (part.strip() for part in word.partition("="))
            value, known = read_float(text, finite=True), list(words.get(name, ()))
            if known:
                value = float(known.index(text)) if text in known else None
            if value is None or not name or name in values:
                raise InputError(
                    "without DATA --covariates must be values with commas between, such as "
                    f"dose=4.5,weight=70, got {brief(self.covariates)}"
                )
            values[name] = value
            values |= {f"{name}={one}": float(at == value) for at, one in enumerate(known)}
        return values


class UseSettings(
    ResultSettings, EngineSettings, IndividualSettings, DataParties, RowSettings, kept=False
):
    """All options about a fit at work; each command has some."""


ABOUT: dict[str, type[Settings]] = {
    "rows": RowSettings, "parties": DataParties, "individuals": IndividualSettings,
    "processes": EngineSettings,
}  # fmt: skip
INDIVIDUALS, RUNNING = map(" ".join, (IndividualSettings.settings_by_name,
                                      EngineSettings.settings_by_name))  # fmt: skip
WRITTEN = "output force quote_formulas digits"
NOT_DRAWN = f"missing sample_weight secure_sum quote_formulas digits {RUNNING} {OF_A_FIT}"
NOT_DATA = "times population latents residuals"


class PredictSettings(UseSettings, kept=False):
    """Options about what is predicted, with data or without."""

    individual: list[str] | None = changed(
        UseSettings,
        "individual",
        help="Fits of SAEM: this individual only, of DATA or, without DATA, of the fit. Several: "
        "repeat it.",
    )
    covariates: str | None = changed(
        UseSettings,
        "covariates",
        help="Fits of SAEM: dose=amt reads the column amt as the dose (default: as fitted); "
        "without DATA, with --population, dose=4.5 is the dose.",
    )


def refuse_given(options: Settings, sentence: str, *without: str) -> None:
    """Refuse the first option that was given, by its name followed by the sentence."""
    for one in options.fields():
        if one.name not in without and getattr(options, one.name) != one.default:
            raise InputError(Setting(one.name), f" {sentence}")


@dataclass
class UseRequest:
    """What a command does with a fit."""

    model: Path
    files: Sequence[Path]  # the data
    settings: UseSettings
    proba: bool = False  # responsibilities, too
    labelled: bool = False  # rows must have labels
    labels: bool = True  # are read, if there are any

    def __post_init__(self) -> None:
        self.screen = Screen(self.settings.quiet)

    def refuse(self, about: str, sentence: str, *without: str) -> None:
        """Refuse the first option that was given of those about these (`ABOUT`)."""
        for name in about.split():
            refuse_given(self.settings.into(ABOUT[name]), sentence, *without)

    @cached_property
    def stored(self) -> StoredFile:
        return stored_at(self.model, self.settings.curve)

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

    def run(self, command: str, *arguments: object) -> None:
        """Have a file do what a command asks, and print what was written, if anything was."""
        from vpem.files.hdf5 import check_writable

        with self.screen:
            file = self.settings.output
            if file is not None and command == "predict" and self.tables:
                file = None  # but one for each party
            if file is not None and self.where.speaks:
                check_writable(file, self.settings.force, "results")
            written = self.stored.able(command)(self, *arguments)
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

    def beside(self, ending: str) -> Path:
        """Return where a picture or page goes: by default to the model's name, with an ending."""
        if self.settings.output is not None:
            return self.settings.output
        output = self.model.parent / f"{self.model.stem}{ending}"
        writes("--output", output)
        return output


CORPUS_MODEL = "lda"
"""The model of documents."""

CLASSES = {
    "vpem-model": ("rows", "MixtureFile"),
    "vpem-clustering": ("rows", "ClustersFile"),
    "vpem-saem": ("individuals", "SaemFile"),
    "vpem-imputation": ("use", "ImputationFile"),
}
"""Where the class of each kind is, by what files say that they are."""

REFUSED = {
    "vpem-dataset": "a dataset",
    "vpem-checkpoint": "a checkpoint of a run, which goes on with --checkpoint and --resume",
}
"""What files of other kinds hold, which commands only refuse."""


def stored_at(path: Path, curve: str | None = None) -> StoredFile:
    """Return a file by its kind; one of no kind is read, and refused, as a model."""
    import h5py

    from vpem.files.hdf5 import open_read, read_attribute
    from vpem.files.opening import check_readable

    if not h5py.is_hdf5(str(check_readable(path))):
        raise FileError(
            f"{path} is not an HDF5 file, which fits write; give the model before the data"
        )
    with open_read(path) as file:
        encoding = read_attribute(file, "encoding-type") or ""
        of_documents = encoding == "vpem-saem" and read_attribute(file, "model") == CORPUS_MODEL
    stored = StoredFile(path)
    stored.holds = REFUSED.get(encoding, "neither a model nor another fit")
    if encoding in CLASSES or not encoding.startswith("vpem-"):
        module, name = CLASSES.get(encoding, CLASSES["vpem-model"])
        name = "TopicsFile" if of_documents else name
        stored = getattr(import_module(f"{__package__}.{module}"), name)(path)
    stored.curve = curve
    return stored


def as_printed(item: Contained, heading: str = "") -> Any:
    """Return a table of a fit's contents as a terminal shows it."""

    def is_number(cell: object) -> bool:
        return str(cell).rstrip("%").replace(",", "").replace(".", "", 1).isdecimal()

    right = tuple(
        head
        for head, *cells in zip(item.heads, *item.rows, strict=False)
        if head != item.heads[0] and (item.numbers or all(map(is_number, cells)))
    )
    heads = item.heads or ("",) * len(item.rows[0])
    return table(item.rows, *heads, title=item.caption or heading, right=right)


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
    """A file of a fit, as commands use it; a command that its kind has no method for is refused.

    Methods are ``predict``, ``score``, ``evaluate``, ``contribution`` and ``sample``, of a
    `UseRequest`, which return what was written, or how many rows; and ``export``.
    """

    holds: str
    instead: ClassVar[dict[str, str]] = {}
    """Why commands cannot use it, and what to do instead."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.curve: str | None = None  # of the user's own, as the command names it

    def able(self, command: str) -> Callable[..., Any]:
        """Return its method for a command, called as the last word of that."""
        method: Callable[..., Any] | None = getattr(self, command.split()[-1], None)
        if method is None:
            why = self.instead.get(command, f"which 'vpem {command}' cannot use")
            raise InputError(f"{self.path} holds {self.holds}, {why}")
        return method

    @cached_property
    def stored(self) -> Any:
        return self.able("plot")

    @cached_property
    def saved(self) -> Saved:
        from vpem.pictures.saved import saved_of

        return saved_of(str(self.path), self.stored)

    def as_json(self) -> Report:
        raise NotImplementedError

    def show(self, json: bool) -> None:
        if json:
            print_json(self.as_json())
            return
        from vpem.pictures.page import contents_of

        contents = contents_of(self.saved)
        # Names and words in them come from the author of the file.
        printed: list[Any] = [printable(contents.title), printable(contents.lead)]
        for section in contents.sections:
            for item in section.items:
                if isinstance(item, str | list):
                    printed += [item] if isinstance(item, str) else item
                else:
                    printed.append(as_printed(item, section.heading))
        show(*printed)

    def evaluation_data(self, request: UseRequest) -> Data | None:
        """Read data to compare the fit with, if there are any; refuse options about others."""
        self.able("plot")
        return None

    def command(self, root: Any) -> str | None:
        """Return the command that fitted it, where that is known."""
        return None


class ImputationFile(StoredFile):
    """A completed matrix."""

    holds = "an imputation"
    instead: ClassVar = dict.fromkeys(
        ("model contribution", "predict", "score", "sample", "evaluate", "plot"),
        "a completed matrix: 'vpem model export' writes it as a table",
    )

    def export(self, output: Path, force: bool, quote_formulas: bool) -> None:
        from vpem.files.hdf5 import check_writable
        from vpem.files.results import read_imputed, write_imputed

        check_writable(output, force, "imputed values")
        write_imputed(output, read_imputed(self.path), force, quote_formulas)


def reported(facts: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return what a fit reported, or None where it is absent or of another type."""
    value = facts.get(name)
    return value if type(value) is kind else None


ModelFile = Annotated[Path, READ, typer.Argument(help="Model, from 'vpem fit --output'.")]
FitFile = Annotated[
    Path, READ, typer.Argument(help="Model, clusters or fit of SAEM, from the --output of a fit.")
]
DATA = "Dataset with the model's features; with --parties a file each, or a manifest."
DataFile = Annotated[list[Path], READ, typer.Argument(help=DATA)]


def predict(
    model: FitFile,
    data: Annotated[
        list[Path] | None,
        READ,
        typer.Argument(help=f"{DATA} Individuals for a fit of SAEM, which can also do without."),
    ] = None,
    proba: Annotated[
        bool, typer.Option("--proba", help="Add the responsibilities of every component.")
    ] = False,
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
    UseRequest(model, data or (), settings, proba, labels=False).run("predict")


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
    UseRequest(model, data, settings, labels=False).run("score")


def sample(
    model: ModelFile,
    n: Annotated[int, typer.Option("-n", "--samples", help="Rows to draw.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    *,
    results: Annotated[ResultSettings, Without("json digits")],
) -> None:
    """Draw rows from a model, each labelled with its component.

    Example: vpem sample model.h5 -n 1000 -o drawn.h5
    """
    from vpem.checks import check_int

    count = check_int("-n", n, least=1)
    check_int("seed", seed, least=0)
    UseRequest(model, (), results.into(UseSettings)).run("sample", count, seed)


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
    UseRequest(model, data, settings).run("evaluate")


OptionalData = Annotated[
    list[Path] | None,
    READ,
    typer.Argument(help=f"For pictures of rows. {DATA} Individuals for a fit of SAEM."),
]


class PictureSettings(UseSettings, kept=False):
    """What is drawn, and where the picture goes."""

    output: Path | None = changed(
        UseSettings,
        "output",
        help="Write here: .png, .svg or .pdf. Default: beside the model, as model-KIND.png.",
        often=False,
    )
    force: bool = changed(UseSettings, "force", idle=None)


class PageSettings(PictureSettings, kept=False):
    """What a page is about, and where it goes."""

    output: Path | None = changed(
        PictureSettings,
        "output",
        help="Write here: .html. Default: beside the model, as model.html.",
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
    request = UseRequest(model, data or (), settings)
    with request.screen as screen:
        from vpem.pictures.figure import check_picture, save_picture
        from vpem.pictures.page import KINDS, check_kind, draw, kinds_of, next_kinds

        if kind is not None:
            check_choice("kind", kind, KINDS)
        saved = request.stored.saved
        kind = kind or next(iter(kinds_of(saved)))
        request.labelled = check_kind(kind, saved).labels
        output = request.beside(f"-{kind}.png")
        check_picture(output, settings.force)
        evaluation = request.stored.evaluation_data(request)
        features = None
        if settings.drawn is not None:
            features = [name.strip() for name in settings.drawn.split(",") if name.strip()]
        picture = draw(kind, saved, evaluation, features=features)
        next_ones = next_kinds(kind, saved, evaluation)
        save_picture(output, picture, force=settings.force)
        for note in picture.notes:
            screen.print_note(note)
        screen.say(f"wrote {output}")
        if next_ones:
            listed = "; ".join(
                f"{f'with {needs}: ' if needs else ''}{', '.join(names)}"
                for needs, names in next_ones.items()
            )
            screen.say(f"next, --kind: {listed}")
        if settings.json:
            print_json({
                "plot": str(output),
                "kind": kind,
                "description": picture.alt,
                "notes": picture.notes,
                "next": [name for names in next_ones.values() for name in names],
                "warnings": list(screen.warnings),
            })  # fmt: skip


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
    request = UseRequest(model, data or (), settings)
    with request.screen as screen:
        from vpem.files.hdf5 import check_writable

        output = request.beside(".html")
        check_writable(output, settings.force, "reports")
        from vpem.pictures.page import write_page

        stored = request.stored
        evaluation = stored.evaluation_data(request)
        command = stored.command(context.find_root().command)
        left_out = write_page(
            output, stored.saved, evaluation, command=command, force=settings.force
        )
        screen.say(f"wrote {output}")
        not_drawn = [f"{one}: {in_options(error)}" for one, error in left_out.items()]
        for line in not_drawn:
            screen.print_note(f"no picture of {line}")
        if settings.json:
            report = {"report": str(output), "not_drawn": not_drawn}
            print_json(report | {"warnings": list(screen.warnings)})
