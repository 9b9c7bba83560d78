"""What commands ask of the file of a fit: which data, of whom, and where results go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vpem.errors import InputError, Setting
from vpem.records import Settings, changed, setting
from vpem.settings import FitSettings, WorkerSettings

from .driver import Output, TableOutput
from .engine import EngineSettings, where_of
from .idle import NO_CSV_AT_ALL
from .options import Printing
from .parties import DataParties

if TYPE_CHECKING:
    from vpem.engines.engine import Engine

    from .labels import LabelFile
    from .output import Screen
    from .where import Where


MOST_TIMES = 100_000


class RowSettings(Settings, heading="Data", kept=False):
    """What there is to say about rows of data."""

    labels: str = setting(
        "labels",
        "Where the labels are: a dataset inside the HDF5 file, or a text file with one a line; "
        "those of a table are in its --label-column.",
        file="read",
        local=True,
    )
    dataset: str | None = changed(WorkerSettings, "dataset", local=True)
    sample_weight: str | None = changed(WorkerSettings, "sample_weight")
    features: str | None = setting(
        None,
        "Features that profile, marginals or pairs draw, by name or number (from 0), with commas "
        "between. Default: those in which components differ most.",
    )
    missing: str | None = changed(
        FitSettings,
        "missing",
        None,
        help="What to do about missing values (NaN): refuse, or marginalize. That integrates them "
        "out, missing at random. Default: as fitted.",
    )


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
    residuals: bool = setting(
        False,
        "Fits of SAEM: predictions of the rows of DATA and their residuals, weighted (IWRES, "
        "PWRES) and as prediction distribution errors (npde).",
    )
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
    doses: str | None = setting(
        None, "Fits of SAEM: columns of lines that are doses: amt=AMT. Default: as fitted."
    )

    curve: str | None = setting(
        None, "Fits of SAEM to a curve of your own: FILE.py:NAME again, which is run; no file of a "
        "fit has anything run.",
    )  # fmt: skip

    @property
    def columns(self) -> dict[str, str | None]:
        """Columns of a table, by what they hold."""
        return {"id": self.id, "time": self.time, "value": self.value}

    def grid(self) -> list[float] | None:
        """Times to predict at: from:to:step, or numbers with commas between."""
        from vpem.checks import read_float
        from vpem.errors import InputError, brief

        text = self.times
        if text is None:
            return None
        words = text.split(":" if ":" in text else ",")
        found = [n for n in (read_float(word, finite=True) for word in words) if n is not None]
        if len(found) == len(words) <= MOST_TIMES and ":" not in text:
            return found
        if len(found) == len(words) == 3 and found[2] > 0:
            first, last, step = found
            count = (last - first) / step * (1 + 1e-12) + 1e-9
            if 0 <= count < MOST_TIMES:
                return [first + place * step for place in range(int(count) + 1)]
        raise InputError(
            "--times must be from:to:step with a step above 0, such as 0:24:0.5, or numbers with "
            f"commas between, at most {MOST_TIMES}, got {brief(text)}"
        )

    def known_values(self, words: Mapping[str, Sequence[str]]) -> dict[str, float]:
        """Values of covariates, numbers or words of a fit: ``dose=4.5,weight=70,Sex=Male``."""
        from vpem.checks import read_float
        from vpem.errors import InputError, brief

        text = self.covariates
        found: dict[str, float] = {}
        for word in [] if text is None else text.split(","):
            name, _, number = (part.strip() for part in word.partition("="))
            known = list(words.get(name, ()))
            value = read_float(number, finite=True)
            if known:
                value = float(known.index(number)) if number in known else None
            if value is None or not name or name in found:
                raise InputError(
                    "without DATA --covariates must be values with commas between, such as "
                    f"dose=4.5,weight=70, got {brief(text)}"
                )
            found[name] = value
            found |= {f"{name}={one}": float(at == value) for at, one in enumerate(known)}
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
        "Write here: .csv, .parquet or .h5. Default: CSV on stdout.",
        flags="-o --output",
        file="written",
    )
    force: bool = changed(Output, "force")
    quote_formulas: bool = changed(TableOutput, "quote_formulas", idle=NO_CSV_AT_ALL)
    digits: int = setting(
        7,
        "Significant digits of probabilities in CSV. With 7, which single precision has, those "
        "below 1e-12 are 0.",
        least=1,
        most=17,
        local=True,
        idle=NO_CSV_AT_ALL,
    )
    json: bool = changed(Printing, "json")
    quiet: bool = changed(Printing, "quiet")

    def write(self, columns: Mapping[str, Any], kind: str) -> None:
        """Write a table, unless JSON is all that is wanted."""
        from vpem.files.tables import write_columns

        if self.output is not None or not self.json:
            write_columns(
                self.output, dict(columns), kind, self.force, self.quote_formulas, self.digits
            )


@dataclass(frozen=True)
class Request:
    """What a command is to do with a fit."""

    files: Sequence[Path]  # it is used on
    screen: Screen
    rows: RowSettings = field(default_factory=RowSettings)
    individuals: IndividualSettings = field(default_factory=IndividualSettings)
    output: ResultSettings = field(default_factory=ResultSettings)
    proba: bool = False  # responsibilities are wanted
    labelled: bool = False  # rows must have labels
    labels: bool = True  # are of use, if there are any
    parties: DataParties = field(default_factory=DataParties)  # is each file of rows one party's?
    engine: EngineSettings = field(default_factory=EngineSettings)

    @cached_property
    def where(self) -> Where:
        """Where the command runs."""
        return where_of(self.engine, self.screen)

    @cached_property
    def tables(self) -> LabelFile:
        """Where parties' rows go, each party's where it is; nowhere if one process has them all."""
        from .labels import LabelFile

        out = self.output
        apart = self.processes.apart and self.parties.parties
        how = {"force": out.force, "quote_formulas": out.quote_formulas, "digits": out.digits}
        return LabelFile("output", out.output if apart else None, self.where, True, **how)

    @property
    def processes(self) -> Engine:
        """The processes in which parties live."""
        return self.where.engine

    def leave_it_to_the_first(self) -> None:
        """End here where another process prints for all, once it has this one's warnings."""
        self.where.tell_warnings(self.screen)
        if not self.where.speaks:
            raise typer.Exit

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
    def missing(self) -> str | None:
        """What is done where values are missing, which they are in rows that parties lack.

        None: as the model was fitted.
        """
        return "marginalize" if self.parties.missing_parties else self.rows.missing
