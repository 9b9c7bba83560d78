"""Individuals or documents: read for `vpem saem`, or for what commands do with its fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from vpem.errors import FileError, InputError, MissingColumnError, Setting, did_you_mean
from vpem.files.table_settings import TableSettings
from vpem.pictures.contents import plural
from vpem.records import beside, changed, not_both, unless, unset
from vpem.rules import OF_ONE_FILE

from ..data import OF_FILES, PartySettings
from ..display import as_plain, print_json
from ..outputs import READ, TableOutput
from .use import CORPUS_MODEL, StoredFile, UseRequest

if TYPE_CHECKING:
    from vpem.engines.engine import Engine
    from vpem.files.parties.opening import Party
    from vpem.network.partition import Workers
    from vpem.network.schema import Report
    from vpem.saem.individuals import Individuals
    from vpem.saem.results import SavedSaem
    from vpem.sums.connect import Network

    from ..display import Screen
    from ..runner import CommandRun

    Parts = dict[int, Individuals]
    """Those of files, or parties, by their places."""

DeviceFiles = Annotated[
    list[Path],
    READ,
    typer.Argument(
        help="Individuals: CSV with a line for each measurement, the first line the names of "
        "columns, or HDF5 of individuals; with --parties a file each, or a manifest."
    ),
]

THREE = ("id", "time", "value")
"""Columns of all tables."""

OF_ROWS = beside(f" is not for the model {CORPUS_MODEL}; leave it out", model=CORPUS_MODEL)
OF_DOCUMENTS = unless(f" is for {CORPUS_MODEL} alone; leave it out", model=CORPUS_MODEL)
WORDS_SHOWN = beside(
    "{secure_sum} hides what parties have, but without a common vocabulary they exchange their "
    "words; name the words in a file, {vocabulary}",
    model=CORPUS_MODEL,
    parties=...,
    secure_sum=...,
    vocabulary=None,
)
SHOWN = beside(
    " shows in how many documents of each party a word is, which {secure_sum} hides; leave out "
    "one of the two",
    parties=...,
    secure_sum=...,
)


class HeldIndividuals(PartySettings, heading="Individuals", kept=False):
    """What columns hold, which words of documents count, and who holds which individuals."""

    parties: bool = changed(heading="Individuals", idle=[OF_FILES, WORDS_SHOWN])
    vocabulary: Path | None = unset(
        "lda: the words, a line each; others are left out. Default: all in the documents.",
        file="read",
        idle=OF_DOCUMENTS,
    )
    min_documents: int | None = unset(
        "lda: leave out words of fewer documents.", least=1, idle=[OF_DOCUMENTS, SHOWN]
    )
    max_share: float | None = unset(
        "lda: leave out words of more than this share of the documents.",
        least=1e-9,
        most=1.0,
        idle=[OF_DOCUMENTS, SHOWN],
    )
    dataset: str | None = unset(
        "lda: where in HDF5 the counts are, such as layers/counts. Default: X.",
        local=True,
        idle=OF_DOCUMENTS,
    )
    id: str | None = unset(
        "Column of individuals. Default: id or document.", local=True, often=True
    )
    time: str | None = unset("Column with the time. Default: time or word.", local=True, often=True)
    value: str | None = unset(
        "Column with the value. Default: value or count.", local=True, often=True
    )
    covariates: str | None = unset(
        "Other columns to read, with commas between; dose=amt reads the "
        "column amt as the dose. Default: those that the model needs.",
        local=True,
        idle=OF_ROWS,
        often=True,
    )
    doses: str | None = unset(
        "Lines may be doses: columns that are not named amt, rate, duration, "
        "evid, mdv, addl or ii, as amt=AMT_MG. Default: they are if the model needs a dose and "
        "there is amt.",
        local=True,
        idle=OF_ROWS,
    )
    sample_weight: str | None = unset(
        "Column with each individual's weight, in copies of it, above 0. Default: 1.", idle=OF_ROWS
    )
    devices: int | None = unset(
        "Devices, which hold individuals in order. Default: 1.",
        heading="Network",
        least=1,
        idle=OF_ONE_FILE,
        often=True,
    )
    device_individuals: Path | None = unset(
        'Individuals of each device, JSON: {"name": ["individual", ...], ...}.',
        heading="Network",
        file="read",
        idle=[not_both("devices", "device_individuals"), OF_ONE_FILE],
    )

    def share_words(
        self, parts: Parts, engine: Engine | None, screen: Screen, masked: bool = False
    ) -> tuple[Parts, tuple[str, ...]]:
        """Give the documents of all parties one vocabulary; return them and it.

        Sums over documents that are ``masked`` are not taken.
        """
        import numpy as np

        from vpem.saem.formats.individuals import read_vocabulary
        from vpem.saem.individuals import document_counts, in_words, join_words

        corpora, left = dict(parts), np.zeros(2)  # words and documents that are left out

        def spell(words: tuple[str, ...]) -> None:
            for part, one in corpora.items():
                corpora[part], n_unknown = in_words(one, words)
                left[:] += n_unknown, one.n_individuals - corpora[part].n_individuals

        if self.vocabulary is not None:
            words = read_vocabulary(self.vocabulary)
        else:
            local = list({one.words for one in corpora.values() if one.words is not None})
            everyones = [local] if engine is None else engine.allgather(local)
            words = join_words(sorted({tuple(one) for some in everyones for one in some}))
        spell(words)
        if self.min_documents is not None or self.max_share is not None:
            each = [np.append(document_counts(one), one.n_individuals) for one in corpora.values()]
            total = np.sum([np.zeros(len(words) + 1, dtype=np.intp), *each], axis=0)
            *counts, n = (total if engine is None else engine.allreduce(total)).tolist()
            least = self.min_documents or 0
            most = n * (1.0 if self.max_share is None else self.max_share)
            kept = [word for word, n in zip(words, counts, strict=True) if least <= n <= most]
            if not kept:
                raise InputError(
                    f"none of the {len(words)} words is in {least} documents or more, and in "
                    f"{most:g} at most; give another ", Setting("min_documents"), " or ",
                    Setting("max_share"),
                )  # fmt: skip
            spell(words := tuple(kept))
        n_words, n_documents = left if engine is None or masked else engine.allreduce(left)
        if n_words:
            times = plural(int(n_words), "time")
            screen.print_note(f"words outside the vocabulary, which occur {times}, are left out")
        if n_documents:
            documents = plural(int(n_documents), "document")
            screen.warn(f"{documents} left out: the vocabulary has none of their words")
        return corpora, words


def words_of(text: str) -> list[str]:
    """Read words with commas between; "none" is no words."""
    words = [word.strip() for word in text.split(",")]
    return [] if words == ["none"] else words


@dataclass(frozen=True)
class Reader:
    """Reads individuals, or documents, with what a model reads of them, and their weights.

    ``settings`` has ``covariates`` (dose=amt,weight) and ``doses`` (amt=AMT,rate=RATE) as the user
    typed them, and names of columns; where it has none they are as in ``fitted``, the
    `Individuals.columns` of a fit.
    """

    settings: Any
    model: str
    options: Mapping[str, Any]
    missing: bool
    fitted: Mapping[str, Any] = field(default_factory=dict)
    weight: str | None = None
    apart: bool = False  # refuses words, which other parties would learn

    def read(self, file: Path, id_column: str | None = None) -> Individuals:
        """Read the individuals of a file."""
        from vpem.files.observations import is_long_csv
        from vpem.saem.formats.individuals import (
            COLUMNS,
            numbered_as,
            read_corpus,
            read_individuals,
        )
        from vpem.saem.models.model import MODELS, model_class

        settings, fitted, is_table = self.settings, self.fitted, is_long_csv(file)
        columns = {name: getattr(settings, name) for name in THREE}
        columns |= {} if id_column is None else {"id": id_column}  # of a party
        named = {what: column for what, column in columns.items() if column is not None}
        if self.model == CORPUS_MODEL:
            known = {one: fitted.get(one) for one in COLUMNS if is_table}
            other = {one: name for one, name in known.items() if name not in (None, COLUMNS[one])}
            return read_corpus(file, other | named, settings.dataset)
        typed = _typed("covariates", settings.covariates, "dose=amt,weight")
        flags = [*named, *([] if settings.doses is None else ["doses"])]
        if flags and not is_table:
            raise InputError(
                f"{', '.join(f'--{name}' for name in flags)} name columns of a CSV table, but "
                f"{file} is none"
            )
        three: Report = {name: named.get(name) or fitted.get(name) or name for name in THREE}
        if len(set(three.values())) < len(three):
            raise InputError("--id, --time and --value must be three different columns")
        options, is_known = self.options, self.model in MODELS
        needed = list(model_class(self.model, options).reads(options)) if is_known else []
        needed += [] if self.weight is None else [self.weight]
        column_of = fitted.get("covariates") or {}
        # Bifactor and gmm are of tables, whose columns are times.
        also = [] if self.model in ("bifactor", "gmm") else ["outcome", "censored"]
        also += ["dose"] if self.model == "curve" else []
        read = {name: column_of.get(name, name) for name in needed} | typed
        maybe = {name: column_of.get(name, name) for name in also if name not in read}
        events = None if "dose" in typed else self._events(file, (read | maybe).get("dose"))
        if events is not None:
            read.pop("dose", None)
            maybe.pop("dose", None)
        elif "dose" in read and not is_table:
            maybe["dose"] = read.pop("dose")
        texts = [] if self.apart else {*needed} & {*read} - {"dose"}
        try:
            individuals = read_individuals(
                file, covariates=read, also=maybe, texts=texts, missing=self.missing,
                doses=events, **(three if is_table else {}),
            )  # fmt: skip
        except MissingColumnError as error:
            left = [name for name, column in {**three, **read}.items()
                    if column in error.columns and name not in (*named, *typed)]  # fmt: skip
            if not left:
                raise
            names = [f"--{name}" if name in THREE else repr(name) for name in left]
            advice = [f"--{name} COLUMN" for name in left if name in THREE]
            if others := [f"{name}=COLUMN" for name in left if name not in THREE]:
                advice.append(f"--covariates {','.join(others)}")
            of_fit = f"; that is {' and '.join(names)} of the fit" if fitted else ""
            several = "the names of these columns" if left[1:] else "the name of this column"
            said = f"{error}{of_fit}; give {several}: {' '.join(advice)}"
            raise InputError(said) from None
        # Words have the numbers of the fit.
        individuals = numbered_as(individuals, fitted.get("words") or {})
        return individuals if self.weight is None else individuals.with_weights(self.weight)

    def _events(self, file: Path, dose: str | None) -> dict[str, str] | None:
        """Return columns of doses with unusual names; None: there are no doses.

        There are if the user names some, the fit had some, or amounts take the place of a
        covariate, whose column is ``dose``.
        """
        from vpem.files.observations import header_of

        if self.settings.doses is not None:
            return _typed("doses", self.settings.doses, "amt=AMT,rate=RATE")
        fitted: dict[str, str] | None = self.fitted.get("doses")
        header = [column.strip() for column in header_of(file)]
        if fitted is not None:
            return {name: column for name, column in fitted.items() if column in header}
        amounts = "amt" in [column.lower() for column in header]
        return {} if dose is not None and dose not in header and amounts else None


def _typed(option: str, text: str | None, like: str) -> dict[str, str]:
    """Return columns by their contents, as the user typed them: ``dose=amt,weight``."""
    column_of: dict[str, str] = {}
    for word in [] if text is None else words_of(text):
        name, _, column = word.partition("=")
        if not name or name in column_of:
            raise InputError(
                f"--{option} must be different names with commas between, such as {like}, got "
                f"{text!r}"
            )
        column_of[name] = column or name
    return column_of


def files_in(paths: Sequence[Path]) -> list[Path]:
    """Return the files given, those of a folder in the order of their names."""
    files: list[Path] = []
    for path in map(Path, paths):  # of an address there is none
        folder = sorted(path.iterdir()) if path.is_dir() else [path]
        inside = [one for one in folder if one is path or not one.name.startswith(".")]
        if not inside:
            raise FileError(f"the folder {path} is empty")
        files += inside
    return files


class Source:
    """Individuals in this process, of a file or of files of parties, and who ``held`` which of all.

    They are all of a file, or those of this process's parties, party by party; ``numbers`` (n,)
    are their places among all.
    """

    individuals: Individuals
    held: Workers
    numbers: Any

    def __init__(self, files: Sequence[Path], reader: Reader, run: CommandRun, masked: bool):
        import numpy as np

        from vpem.network.partition import evenly
        from vpem.saem.formats.individuals import read_devices

        self.reader, self.run, self.masked, settings = reader, run, masked, reader.settings
        if settings.parties:
            usual = TableSettings()
            self._of_parties(run.where.parties(files_in(files), usual, columns=False), usual)
            return
        if len(files) > 1 or Path(files[0]).is_dir():
            got = f"got {len(files)}" if len(files) > 1 else f"but {files[0]} is a folder"
            raise InputError(
                f"give one file of individuals, {got}; add --parties if each file is one party's"
            )
        individuals = self.individuals = self._share({0: reader.read(files[0])}, None)[0][0]
        n, number = individuals.n_individuals, settings.devices or 1
        self.numbers = np.arange(n)
        if settings.device_individuals is not None:
            self.held = read_devices(settings.device_individuals, individuals.names)
        elif number > n:
            raise InputError(
                f"--devices must be at most the {n} individuals of {individuals.source}, got "
                f"{number}"
            )
        else:
            self.held = evenly(n, number, [f"device {place}" for place in range(number)])

    def _share(self, parts: Parts, engine: Engine | None) -> tuple[Parts, tuple[str, ...] | None]:
        from vpem.saem.formats.individuals import numbered_alike

        if self.reader.model != CORPUS_MODEL:
            return numbered_alike(parts, engine), None
        settings: HeldIndividuals = self.reader.settings
        return settings.share_words(parts, engine, self.run.screen, self.masked)

    def _of_parties(self, parties: Sequence[Party], usual: TableSettings) -> None:
        """Read the individuals of this process's parties, named party/individual."""
        import numpy as np

        from vpem.engines.placement import for_each
        from vpem.network.partition import Workers
        from vpem.saem.doses import Doses
        from vpem.saem.formats.individuals import chain
        from vpem.saem.individuals import Individuals

        run, reader = self.run, self.reader
        holders = run.where.place(parties, run.labels)
        if run.engine.size > len(parties) and not run.where.own_users:
            raise InputError(
                f"there are {run.engine.size} processes, but only {len(parties)} parties: every "
                "process needs one; take fewer processes"
            )

        def read_party(place: int) -> Individuals:
            party = parties[place]
            for name, value in party.table.values("id_column").items():
                if value != getattr(usual, name):
                    raise InputError(
                        f"party {party.name!r}: {name} is for tables of features, but these are "
                        "measurements of individuals; leave it out"
                    )
            own = chain([reader.read(file, party.table.id_column) for file in party.find()])
            return replace(own, names=tuple(f"{party.name}/{name}" for name in own.names))

        read, words = self._share(for_each(holders, range(len(parties)), read_party), run.engine)
        said = holders.allgather({
            party: (some.n_individuals, list(some.covariates), some.doses is not None)
            for party, some in read.items()
        })  # fmt: skip
        sizes, covariates, dosed = zip(*(said[party] for party in range(len(parties))), strict=True)
        # Every process, even a server without data, has the covariates that all parties have.
        common = [name for name in covariates[0] if all(name in names for names in covariates)]
        rows = tuple(np.arange(a, b) for a, b in pairwise(np.cumsum([0, *sizes])))
        self.numbers = np.concatenate([np.empty(0, np.intp), *(rows[one] for one in holders.own)])
        self.held = Workers(rows, tuple(party.name for party in parties))
        run.where.watch(self.held.n_samples, True)
        nothing = np.empty(0)
        individuals = (
            chain([read[party] for party in holders.own])
            if read
            else Individuals(  # of a server that brings no data
                (), np.zeros(1, np.intp), nothing, nothing, dict.fromkeys(common, nothing),
                weights=None if reader.weight is None else nothing, words=words,
                doses=Doses.once(nothing) if dosed[0] else None,
            )
        )  # fmt: skip
        shared = {name: individuals.covariates[name] for name in common}
        self.individuals = replace(individuals, covariates=shared)

    def individuals_in(self, network: Network) -> Individuals:
        """Return the individuals of this process's devices alone."""
        import numpy as np

        if not self.run.engine.apart or len(self.numbers) < self.held.n_samples:
            return self.individuals
        rows = [self.held.rows[device] for device in network.total.holders.own]
        return self.individuals.take(np.concatenate([np.empty(0, np.intp), *rows]))

    def places(self, text: str) -> list[int]:
        """Return the places of individuals by their names, with commas between."""
        import numpy as np

        place = dict(zip(self.individuals.names, self.numbers.tolist(), strict=True))
        words = words_of(text)
        local = np.array([place.get(word, -1) for word in words])
        rows: list[int] = self.run.engine.allreduce(local, "max").tolist()
        for word, row in zip(words, rows, strict=True):
            if row < 0:
                raise InputError(
                    f"--init-individuals: {self.individuals.source} has no individual {word!r}"
                    f"{did_you_mean(word, place)}"
                )
        return rows


# ---- fits -------------------------------------------------------------------------------------


class SaemFile(StoredFile):
    """What `vpem saem` has written."""

    holds = "a fit of SAEM"
    noun: ClassVar = "individual"
    instead: ClassVar = {
        "sample": "from which no rows are drawn; 'vpem predict' gives its curves",
        "evaluate": "whose individuals have no labels here; 'vpem predict' gives the classes of a "
        "mixture",
    }

    @cached_property
    def stored(self) -> SavedSaem:
        from vpem.saem.formats.fits import read_saem
        from vpem.saem.structures.formulas import is_own

        saved = read_saem(self.path)
        if self.curve is None:
            return saved
        fitted = str(saved.model_options.get("curve"))
        if not is_own(self.curve) or not is_own(fitted):
            raise InputError(
                f"--curve FILE.py:NAME is for fits of a curve of your own, but {self.path} is a "
                f"fit of {saved.model}, got {self.curve!r}; leave it out or name a file"
            )
        return replace(saved, own_curve=self.curve)

    @cached_property
    def facts(self) -> Report:  # type: ignore[override]
        from vpem.saem.models.model import has_curves

        saved = self.stored
        curves = has_curves(saved.model, saved.model_options)
        return {"holds": f"{self.noun}s", "classes": saved.discrete, "curves": curves}

    def evaluation_data(self, request: UseRequest) -> Individuals | None:
        saved, options = self.stored, request.settings
        if request.data is None:
            return None
        missing, fitted = saved.settings.get("missing"), saved.settings.get("columns") or {}
        how = saved.model, saved.model_options, missing == "marginalize", fitted
        individuals, names = Reader(options, *how).read(request.data), options.individual
        return individuals if names is None else individuals.named(names, self.noun)

    def predict(self, request: UseRequest) -> int:
        from vpem.saem.diagnostics import residuals_of
        from vpem.saem.prediction import Predictor
        from vpem.saem.results import Classes

        saved, options = self.stored, request.settings
        predictor, times = Predictor(saved), options.times
        curves, names = self.facts["curves"] and not options.latents, options.individual
        if names is not None and len(set(names)) < len(names):
            raise InputError(Setting("individual"), " must name different individuals")
        if request.data is None and saved.discrete:
            raise InputError(
                f"the model {saved.model} predicts classes of individuals from their rows; give "
                "DATA"
            )
        individuals = self.evaluation_data(request)
        found: Any
        heard = self.heard(request, individuals)
        if options.residuals and individuals is not None:
            found = residuals_of(predictor, individuals)
        elif curves and options.population:
            found = predictor.population(times, options.covariates, individuals)
        elif individuals is None:
            found = predictor.stored(names, times) if curves else predictor.stored_latents(names)
        elif curves:
            found = predictor.curves(individuals, times)
        elif saved.discrete:
            shares = predictor.responsibilities(individuals)
            found = Classes(individuals.names, shares, options.proba)
        else:
            found = predictor.latents(individuals)
        columns = found.columns()
        options.write(columns, found.kind)
        if options.json:
            head = {"model": saved.model, "n_individuals": len(set(columns["id"])), **heard}
            more = found.describe() if options.output is None else {}
            print_json(head | {"output": options.output} | more)
        return len(columns["id"])

    def score(self, request: UseRequest) -> None:
        from vpem.pictures.saem_contents import DESCRIBED, DESCRIBED_BY_TOPICS
        from vpem.saem.prediction import Predictor

        individuals = self.evaluation_data(request)
        assert individuals is not None
        self.heard(request, individuals)
        lines = DESCRIBED if self.stored.corpus is None else DESCRIBED_BY_TOPICS
        request.tell(Predictor(self.stored).describe_score(individuals), lines)

    def heard(self, request: UseRequest, individuals: Individuals | None) -> Report:
        """Report what of the data the fit does not know."""
        return {}

    def as_json(self) -> Report:
        from vpem.saem.formats.fits import saem_as_json

        return saem_as_json(self.stored)

    def export(self, output: Path, table: TableOutput) -> None:
        from vpem.files.results import arrays_or_json
        from vpem.saem.formats.fits import arrays_of

        content = partial(arrays_of, self.stored), lambda: as_plain(self.as_json())
        arrays_or_json(output, *content, table.force)


class TopicsFile(SaemFile):
    """What `vpem saem --model lda` has written."""

    holds = "topics"
    noun = "document"
    instead: ClassVar = {
        "sample": "from which no documents are drawn",
        "evaluate": "which are not compared with labels; 'vpem predict' gives the proportions of "
        "documents",
    }

    def heard(self, request: UseRequest, individuals: Individuals | None) -> Report:
        from vpem.saem.results import heard_in

        if individuals is None:
            return {}
        documents, n_unknown, n_left_out = heard_in(self.stored, individuals)
        if n_unknown:
            times = plural(int(n_unknown), "time")
            known = f"of {int(n_unknown + documents.values.sum())}"
            request.screen.print_note(f"words that the topics lack occur {times} {known}")
        if n_left_out:
            request.screen.warn(
                f"{plural(n_left_out, 'document')} left out: the topics have none of their words"
            )
        return {"n_unknown": n_unknown, "n_left_out": n_left_out}
