"""The kinds of files that fits write, and what commands do with each: one class a kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from vpem.errors import InputError, Setting
from vpem.records import Settings, changed, setting
from vpem.settings import FitSettings, WorkerSettings

from .driver import Output
from .options import Printing
from .parties import DataParties

if TYPE_CHECKING:
    from vpem.pictures.kinds import Data
    from vpem.pictures.reported import Saved

__all__ = [
    "ImputationFile",
    "IndividualSettings",
    "PredictedSettings",
    "Request",
    "ResultSettings",
    "RowSettings",
    "StoredFile",
    "refuse_given",
    "reported",
    "stored_at",
]

KINDS = {
    "vpem-model": ("of_mixtures", "MixtureFile"),
    "vpem-clustering": ("of_rows", "ClustersFile"),
    "vpem-saem": ("of_individuals", "SaemFile"),
    "vpem-imputation": ("kinds", "ImputationFile"),
}
"""Where the class of each kind is, by what files say that they are."""


MOST_TIMES = 100_000


def stored_at(path: Path) -> StoredFile:
    """Return what commands do with a file; one that is of no kind is read, and refused, as a model.

    Raises
    ------
    FileError
        If the file cannot be read.
    """
    from vpem.files.hdf5 import open_read, read_attribute

    with open_read(path) as file:
        encoding = read_attribute(file, "encoding-type")
    module, name = KINDS.get(encoding or "", KINDS["vpem-model"])
    found: StoredFile = getattr(import_module(f"{__package__}.{module}"), name)(path)
    return found


class RowSettings(Settings, heading="Data", kept=False):
    """What there is to say about rows of data."""

    labels: str = setting(
        "labels",
        "Where the labels are: a dataset inside the HDF5 file, or a text file with one a line.",
        file="read",
    )
    dataset: str | None = changed(WorkerSettings, "dataset")
    features: str | None = setting(
        None,
        "Features that marginals or pairs draw, by name or number (from 0), with commas between. "
        "Default: those in which components differ most.",
    )
    missing: str = changed(FitSettings, "missing")


class IndividualSettings(Settings, heading="Individuals", kept=False):
    """What there is to say about individuals."""

    individual: list[str] | None = setting(
        None,
        "Fits of SAEM: this individual of DATA only. Several: repeat it.",
    )
    times: str | None = setting(
        None,
        "Fits of SAEM: when to predict, 0:24:0.5 (from, to, step) or 0,1,2.5. Default: at the "
        "rows of DATA; without DATA 50 times over those of the fit.",
    )
    population: bool = setting(
        False, "Fits of SAEM: the curve of the mean latents, for individuals without rows."
    )
    latents: bool = setting(False, "Fits of SAEM: means and intervals of latents, not curves.")
    id: str | None = setting(
        None, "Fits of SAEM: column of a CSV with the individual. Default: as fitted."
    )
    time: str | None = setting(None, "Fits of SAEM: column with the time. Default: as fitted.")
    value: str | None = setting(
        None, "Fits of SAEM: column with the measurement. Default: as fitted."
    )
    covariates: str | None = setting(
        None,
        "Fits of SAEM: dose=amt reads the column amt as the dose. Default: as fitted.",
    )

    @property
    def columns(self) -> dict[str, str | None]:
        """Columns of a table, by what they hold."""
        return {"id": self.id, "time": self.time, "value": self.value}

    def grid(self) -> list[float] | None:
        """Times to predict at: from:to:step, or numbers with commas between."""
        from math import floor, isfinite

        from vpem.errors import InputError

        text = self.times
        if text is None:
            return None
        try:
            if ":" in text:
                first, last, step = (float(word) for word in text.split(":"))
                if not (isfinite(first) and isfinite(last) and isfinite(step) and step > 0):
                    raise ValueError
                count = floor((last - first) / step * (1 + 1e-12) + 1e-9) + 1
                if not 0 < count <= MOST_TIMES:
                    raise ValueError
                return [first + place * step for place in range(count)]
            found = [float(word) for word in text.split(",")]
            if not all(map(isfinite, found)) or len(found) > MOST_TIMES:
                raise ValueError
        except (ValueError, OverflowError):
            raise InputError(
                "--times must be from:to:step with a step above 0, such as 0:24:0.5, or numbers "
                f"with commas between, at most {MOST_TIMES}, got {text[:60]!r}"
            ) from None
        return found

    def known_values(self) -> dict[str, float]:
        """Values of covariates: ``dose=4.5,weight=70``."""
        from math import isfinite

        from vpem.errors import InputError

        text = self.covariates
        found: dict[str, float] = {}
        for word in [] if text is None else text.split(","):
            name, _, number = word.partition("=")
            try:
                value = float(number)
                if not name.strip() or not isfinite(value) or name.strip() in found:
                    raise ValueError
            except ValueError:
                raise InputError(
                    "without DATA --covariates must be values with commas between, such as "
                    f"dose=4.5,weight=70, got {text!r}"
                ) from None
            found[name.strip()] = value
        return found


def refuse_given(options: Settings, sentence: str, *without: str) -> None:
    """Refuse the first of the options that were given; the sentence goes on after its name."""
    for one in options.fields():
        if one.name not in without and getattr(options, one.name) != one.default:
            raise InputError(Setting(one.name), f" {sentence}")


class PredictedSettings(IndividualSettings, heading="Individuals", kept=False):
    """What there is to say about individuals that are predicted, with data or without."""

    individual: list[str] | None = changed(
        IndividualSettings,
        "individual",
        help="Fits of SAEM: this individual only, of DATA or, without DATA, of the fit. Several: "
        "repeat it.",
    )
    covariates: str | None = changed(
        IndividualSettings,
        "covariates",
        help="Fits of SAEM: dose=amt reads the column amt as the dose (default: as fitted); "
        "without DATA, with --population, dose=4.5 is the dose.",
    )


class ResultSettings(Printing, heading="Output", kept=False):
    """Where results go: to a file, or to standard output as CSV or as JSON."""

    output: Path | None = setting(
        None,
        "Write here: .csv or .h5. Default: CSV on stdout.",
        flags="-o --output",
        file="written",
    )
    force: bool = changed(Output, "force")
    quote_formulas: bool = setting(
        False,
        "In CSV, put an apostrophe before text that begins with =, +, - or @, which spreadsheets "
        "would compute.",
    )
    json: bool = changed(Printing, "json", help="Print one JSON object.")
    quiet: bool = changed(Printing, "quiet", help="No messages.")

    def write(self, columns: Mapping[str, Any], kind: str) -> None:
        """Write a table, unless JSON is all that is wanted."""
        from vpem.files.tables import write_columns

        if self.output is not None or not self.json:
            write_columns(self.output, dict(columns), kind, self.force, self.quote_formulas)


@dataclass(frozen=True)
class Request:
    """What a command is to do with a fit.

    Attributes
    ----------
    files : sequence of Path
        What it is used on.
    say : callable
        Prints a message.
    rows, individuals : RowSettings, IndividualSettings
        More about the data, of either kind.
    parties : DataParties
        Whether each file of rows is one party's.
    output : ResultSettings
        Where results go.
    proba : bool
        Whether responsibilities are wanted.
    labelled : bool
        Whether rows must have labels.
    """

    files: Sequence[Path]
    say: Callable[[str], None]
    rows: RowSettings = field(default_factory=RowSettings)
    individuals: IndividualSettings = field(default_factory=IndividualSettings)
    output: ResultSettings = field(default_factory=ResultSettings)
    proba: bool = False
    labelled: bool = False
    parties: DataParties = field(default_factory=DataParties)

    @property
    def data(self) -> Path | None:
        """The one file, or None where there is none."""
        from vpem.errors import InputError

        if len(self.files) > 1:
            raise InputError(f"one file of individuals is taken, got {len(self.files)}")
        return self.files[0] if self.files else None

    @property
    def source(self) -> str:
        """What the data are called."""
        return ", ".join(map(str, self.files))

    @property
    def missing(self) -> str:
        """What is done where values are missing, which they are in rows that parties lack."""
        return "marginalize" if self.parties.missing_parties else self.rows.missing


class StoredFile:
    """A file of a fit, as commands use it; what a kind has not is refused.

    Parameters
    ----------
    path : Path
        Where it is.
    """

    holds: ClassVar[str]
    instead: ClassVar[dict[str, str]] = {}
    """Why commands cannot use it, and what can be done."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def stored(self) -> Any:
        """What is in the file."""
        raise NotImplementedError

    @cached_property
    def saved(self) -> Saved:
        """What pictures are drawn of."""
        from vpem.pictures.saved import saved_of

        return saved_of(str(self.path), self.stored)

    def _refuse(self, command: str) -> NoReturn:
        from vpem.errors import InputError

        why = self.instead.get(command, f"which 'vpem {command}' cannot use")
        raise InputError(f"{self.path} holds {self.holds}, {why}")

    def as_json(self) -> dict[str, Any]:
        """Return all that is in it as values that JSON can hold."""
        self._refuse("model show")

    def show(self) -> None:
        """Print what there is to say of it."""
        from vpem.pictures.contents import Table
        from vpem.pictures.page import contents_of

        from .output import show, table

        contents = contents_of(self.saved)
        printed: list[Any] = [contents.title, contents.lead]
        for section in contents.sections:
            for item in section.items:
                if isinstance(item, Table):
                    title = item.caption or section.heading
                    right = tuple(item.heads[1:]) if item.numbers else ()
                    heads = item.heads or ("",) * len(item.rows[0])
                    printed.append(table(item.rows, *heads, title=title, right=right))
                else:
                    printed += [item] if isinstance(item, str) else item.lines
        show(*printed)

    def export(self, output: Path, force: bool, quote_formulas: bool) -> None:
        """Write it for another program."""
        self._refuse("model export")

    def predict(self, request: Request) -> int:
        """Predict of data; return how many rows were written."""
        self._refuse("predict")

    def score(self, request: Request) -> None:
        """Print how well data are described."""
        self._refuse("score")

    def sample(self, count: int, seed: int, output: ResultSettings) -> None:
        """Draw rows."""
        self._refuse("sample")

    def evaluate(self, request: Request) -> None:
        """Print how well it agrees with labels."""
        self._refuse("evaluate")

    def evaluation_data(self, request: Request) -> Data | None:
        """Read data that the fit is held against, if there are any; refuse options about others."""
        self._refuse("plot")

    def command(self, root: Any) -> str | None:
        """Return the command that fitted it, where that is known."""
        return None


class ImputationFile(StoredFile):
    """A completed matrix."""

    holds = "an imputation"
    instead: ClassVar = dict.fromkeys(
        ("model show", "predict", "score", "sample", "evaluate", "plot"),
        "a matrix that is completed: 'vpem model export' writes it as a table",
    )

    @cached_property
    def saved(self) -> Saved:
        """No pictures are drawn of it here."""
        self._refuse("plot")

    def export(self, output: Path, force: bool, quote_formulas: bool) -> None:
        """Write the completed matrix as CSV."""
        from vpem.files.hdf5 import check_writable
        from vpem.files.imputations import read_imputed, write_imputed

        check_writable(output, force, "imputed values")
        write_imputed(output, read_imputed(self.path), force, quote_formulas)


def reported(facts: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return what a fit reported, or None where it is absent or of another type."""
    value = facts.get(name)
    return value if type(value) is kind else None
