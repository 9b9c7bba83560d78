"""Individuals or documents for `vpem saem`, from a file or from files of parties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.errors import FileError, InputError, MissingColumnError, Setting, did_you_mean
from vpem.files.table_settings import TableSettings
from vpem.pictures.contents import plural
from vpem.records import Rule, changed, not_both, setting

from ..data import PartySettings
from ..outputs import READ
from ..session import place_parties
from .use import CORPUS_MODEL, reported

if TYPE_CHECKING:
    from collections.abc import Collection

    from vpem.engines.engine import Engine
    from vpem.files.parties.opening import Party
    from vpem.network.partition import Workers
    from vpem.network.schema import Report
    from vpem.saem.individuals import Individuals
    from vpem.sums.connect import Network

    from ..display import Screen
    from ..runner import CommandRun

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

OF_ROWS: Rule = (
    lambda given: given.get("model") == CORPUS_MODEL,
    (f" is not for the model {CORPUS_MODEL}; leave it out",),
)
OF_DOCUMENTS: Rule = (
    lambda given: given.get("model", CORPUS_MODEL) != CORPUS_MODEL,
    (f" is for {CORPUS_MODEL} alone; leave it out",),
)
SHOWN: Rule = (
    lambda given: given["parties"] and bool(given.get("secure_sum")),
    (
        " shows in how many documents of each party a word is, which ",
        Setting("secure_sum", True),
        " hides; leave out one of the two",
    ),
)
OF_ONE_FILE: Rule = (
    lambda given: given["parties"],
    (" is for one file; with --parties leave it out",),
)


class HeldIndividuals(PartySettings, heading="Individuals", kept=False):
    """What columns hold, which words of documents count, and who holds which individuals."""

    parties: bool = changed(PartySettings, "parties", heading="Individuals")
    vocabulary: Path | None = setting(
        None, "lda: the words, a line each; others are left out. Default: all in the documents.",
        file="read", idle=OF_DOCUMENTS,
    )  # fmt: skip
    min_documents: int | None = setting(
        None, "lda: leave out words of fewer documents.", least=1, idle=[OF_DOCUMENTS, SHOWN]
    )
    max_share: float | None = setting(
        None, "lda: leave out words of more than this share of the documents.", least=1e-9,
        most=1.0, idle=[OF_DOCUMENTS, SHOWN],
    )  # fmt: skip
    dataset: str | None = setting(
        None, "lda: where in HDF5 the counts are, such as layers/counts. Default: X.", local=True,
        idle=OF_DOCUMENTS,
    )  # fmt: skip
    id: str | None = setting(
        None, "Column of individuals. Default: id or document.", local=True, often=True
    )
    time: str | None = setting(
        None, "Column with the time. Default: time or word.", local=True, often=True
    )
    value: str | None = setting(
        None, "Column with the value. Default: value or count.", local=True, often=True
    )
    covariates: str | None = setting(
        None, "Other columns to read, with commas between; dose=amt reads the column amt as the "
        "dose. Default: those that the model needs.", local=True, idle=OF_ROWS, often=True,
    )  # fmt: skip
    doses: str | None = setting(
        None, "Lines may be doses: columns that are not named amt, rate, duration, evid, mdv, addl "
        "or ii, as amt=AMT_MG. Default: they are if the model needs a dose and there is amt.",
        local=True, idle=OF_ROWS,
    )  # fmt: skip
    sample_weight: str | None = setting(
        None, "Column with each individual's weight, in copies of it, above 0. Default: 1.",
        idle=OF_ROWS,
    )  # fmt: skip
    devices: int | None = setting(
        None, "Devices, which hold individuals in order. Default: 1.",
        heading="Network", least=1, idle=OF_ONE_FILE, often=True,
    )  # fmt: skip
    device_individuals: Path | None = setting(
        None, 'Individuals of each device, JSON: {"name": ["individual", ...], ...}.',
        heading="Network", file="read",
        idle=[not_both("devices", "device_individuals"), OF_ONE_FILE],
    )  # fmt: skip


def words_of(text: str) -> list[str]:
    """Read words with commas between; "none" is no words."""
    words = [word.strip() for word in text.split(",")]
    return [] if words == ["none"] else words


def named_columns(settings: Any, id_column: str | None = None) -> dict[str, str]:
    """Return the columns that options name, or that a party does, by what they hold."""
    named = {name: getattr(settings, name) for name in THREE}
    named |= {} if id_column is None else {"id": id_column}
    return {name: column for name, column in named.items() if column is not None}


@dataclass(frozen=True)
class CorpusReader:
    """Reads documents; under masks (``hidden``) no sum over documents is taken without them."""

    settings: HeldIndividuals
    screen: Screen
    hidden: bool = False
    weight: None = None

    def read(self, file: Path, id_column: str | None = None) -> Individuals:
        from vpem.saem.formats.individuals import read_corpus

        return read_corpus(file, named_columns(self.settings, id_column), self.settings.dataset)

    def share(
        self, parts: Mapping[int, Individuals], engine: Engine | None
    ) -> tuple[dict[int, Individuals], tuple[str, ...]]:
        """Give the documents of all parties one vocabulary; return them and it."""
        import numpy as np

        from vpem.saem.individuals import document_counts, in_words, join_words

        corpora = dict(parts)
        settings, left = self.settings, np.zeros(2)  # words and documents that are left out

        def spell(words: tuple[str, ...]) -> None:
            for part, one in corpora.items():
                corpora[part], n_unknown = in_words(one, words)
                left[:] += n_unknown, one.n_individuals - corpora[part].n_individuals

        if settings.vocabulary is not None:
            words = _vocabulary(settings.vocabulary)
        else:
            local = list({one.words for one in corpora.values() if one.words is not None})
            everyones = [local] if engine is None else engine.allgather(local)
            words = join_words(sorted({tuple(one) for some in everyones for one in some}))
        spell(words)
        if settings.min_documents is not None or settings.max_share is not None:
            each = [np.append(document_counts(one), one.n_individuals) for one in corpora.values()]
            total = np.sum([np.zeros(len(words) + 1, dtype=np.intp), *each], axis=0)
            *counts, n = (total if engine is None else engine.allreduce(total)).tolist()
            least = settings.min_documents or 0
            most = n * (1.0 if settings.max_share is None else settings.max_share)
            kept = [least <= count <= most for count in counts]
            if not any(kept):
                raise InputError(
                    f"none of the {len(words)} words is in {least} documents or more, and in "
                    f"{most:g} at most; give another ", Setting("min_documents"), " or ",
                    Setting("max_share"),
                )  # fmt: skip
            words = tuple(word for word, stays in zip(words, kept, strict=True) if stays)
            spell(words)
        if engine is not None and not self.hidden:
            left = engine.allreduce(left)
        n_others, n_documents = map(int, left)
        if n_others:
            times = plural(n_others, "time")
            self.screen.print_note(
                f"words outside the vocabulary, which occur {times}, are left out"
            )
        if n_documents:
            documents = plural(n_documents, "document")
            self.screen.warn(f"{documents} left out: the vocabulary has none of their words")
        return corpora, words


def _vocabulary(path: Path) -> tuple[str, ...]:
    from vpem.files.observations import LONGEST_NAME
    from vpem.files.opening import open_text

    try:
        with open_text(path) as lines:
            words = [line.strip() for line in lines if line.strip()]
    except UnicodeDecodeError:
        raise FileError(f"{path} is not UTF-8 text; save it as UTF-8") from None
    wrong = any(len(word) > LONGEST_NAME or "\0" in word for word in words)
    if wrong or not words or len(set(words)) < len(words):
        raise InputError(f"{path} must be a vocabulary: words, a line each, all different")
    return tuple(words)


@dataclass(frozen=True)
class RowReader:
    """Reads measurements of individuals, with what a model reads of them, and their weights.

    ``settings`` has ``covariates`` (dose=amt,weight) and ``doses`` (amt=AMT,rate=RATE) as the user
    typed them, and names of columns; where it has none they are as in ``fitted``, the
    `Individuals.columns` of a fit, of which nothing is trusted.
    """

    settings: Any
    model: str
    options: Mapping[str, Any]
    missing: bool
    fitted: Mapping[str, Any] = field(default_factory=dict)
    weight: str | None = None
    apart: bool = False  # refuses words, which other parties would learn

    @property
    def needed(self) -> list[str]:
        """Covariates that must be there."""
        from vpem.saem.models.model import MODELS, model_class

        known = self.model in MODELS
        reads = model_class(self.model, self.options).reads(self.options) if known else ()
        return [*reads, *([] if self.weight is None else [self.weight])]

    @property
    def words(self) -> dict[str, list[str]]:
        """Words of covariates of the fit."""
        stored = reported(self.fitted, "words", dict) or {}
        return {
            name: words for name, words in stored.items()
            if isinstance(words, list) and all(isinstance(word, str) for word in words)
        }  # fmt: skip

    def read(self, file: Path, id_column: str | None = None) -> Individuals:
        """Read the individuals of a file."""
        from vpem.files.observations import is_long_csv
        from vpem.saem.formats.individuals import numbered_as, read_individuals

        settings, needed, is_table = self.settings, self.needed, is_long_csv(file)
        named = named_columns(settings, id_column)
        typed = _typed("covariates", settings.covariates, "dose=amt,weight")
        flags = [*named, *([] if settings.doses is None else ["doses"])]
        if flags and not is_table:
            raise InputError(
                f"{', '.join(f'--{name}' for name in flags)} name columns of a CSV table, but "
                f"{file} is none"
            )
        known, known_covariates = _texts(self.fitted), _texts(self.fitted.get("covariates"))
        three: Report = {name: named.get(name, known.get(name, name)) for name in THREE}
        if len(set(three.values())) < len(three):
            raise InputError("--id, --time and --value must be three different columns")
        column_of = {**{name: known_covariates.get(name, name) for name in needed}, **typed}
        # Bifactor and gmm are of tables, whose columns are times.
        also = [] if self.model in ("bifactor", "gmm") else ["outcome", "censored"]
        also += ["dose"] if self.model == "curve" else []
        maybe = {name: known_covariates.get(name, name) for name in also if name not in column_of}
        events = None if "dose" in typed else self._events(file, {**column_of, **maybe}.get("dose"))
        if "dose" in column_of and (events is not None or not is_table):
            maybe["dose"] = column_of.pop("dose")
        if events is not None:
            maybe.pop("dose", None)
        texts = [] if self.apart else [name for name in needed if name in {*column_of} - {"dose"}]
        try:
            individuals = read_individuals(
                file, covariates=list(column_of.values()), also=list(maybe.values()),
                words=[{**column_of, **maybe}.get("outcome", "outcome")],
                texts=[column_of[name] for name in texts], missing=self.missing, doses=events,
                **(three if is_table else {}),
            )  # fmt: skip
        except MissingColumnError as error:
            left = {
                name: column for name, column in {**three, **column_of}.items()
                if column in error.columns and name not in (*named, *typed)
            }  # fmt: skip
            if not left:
                raise
            raise InputError(f"{error}{_advice(left, bool(self.fitted))}") from None
        column_of |= {
            name: column for name, column in maybe.items() if column in individuals.covariates
        }
        others = {name: column for name, column in column_of.items() if name != column}
        columns = {**individuals.columns, **({"covariates": others} if others else {})}
        if "words" in columns:
            stored = columns["words"]
            columns["words"] = {
                name: stored[one] for name, one in column_of.items() if one in stored
            }
        covariates = {name: individuals.covariates[one] for name, one in column_of.items()}
        individuals = replace(individuals, covariates=covariates, columns=columns)
        individuals = numbered_as(individuals, self.words)  # words have the numbers of the fit
        if self.weight is None:
            return individuals
        weights = individuals.constant(self.weight)
        if (weights <= 0).any():
            who = int(weights.argmin())
            raise InputError(
                f"{file}: the weight of individual {individuals.names[who]!r} must be above 0, got "
                f"{weights[who]:g}; leave out individuals of weight 0"
            )
        return replace(individuals, weights=weights)

    def _events(self, file: Path, dose: str | None) -> dict[str, str] | None:
        """Return columns of doses with unusual names; None: there are no doses.

        There are if the user names some, the fit had some, or amounts take the place of a
        covariate, whose column is ``dose``.
        """
        from vpem.files.observations import header_of

        if self.settings.doses is not None:
            return _typed("doses", self.settings.doses, "amt=AMT,rate=RATE")
        fitted = self.fitted.get("doses")
        header = [column.strip() for column in header_of(file)]
        if isinstance(fitted, dict):
            return {name: column for name, column in fitted.items() if column in header}
        amounts = "amt" in [column.lower() for column in header]
        return {} if dose is not None and dose not in header and amounts else None

    def share(
        self, parts: Mapping[int, Individuals], engine: Engine | None
    ) -> tuple[dict[int, Individuals], None]:
        """Number the words of all parties alike; if some individuals have doses, all have."""
        from vpem.saem.doses import doses_of
        from vpem.saem.formats.individuals import join_numbers, numbered_as

        local = [(one.doses is not None, one.columns.get("words", {})) for one in parts.values()]
        everyones = [local] if engine is None else engine.allgather(local)
        known = [one for some in everyones for one in some]
        tables = join_numbers([words for _, words in known])
        numbered = {place: numbered_as(part, tables) for place, part in parts.items()}
        if any(has_doses for has_doses, _ in known):
            numbered = {
                place: replace(part, doses=doses_of(part)) for place, part in numbered.items()
            }
        return numbered, None


def _texts(stored: Any) -> dict[str, str]:
    """Return what is text of something that a file may hold."""
    named = stored.items() if isinstance(stored, dict) else ()
    return {name: column for name, column in named if isinstance(column, str) and column}


def _advice(left: Collection[str], fitted: bool) -> str:
    """Return which options name columns that the table lacks, and what to give instead."""
    flags = [f"--{name} COLUMN" for name in left if name in THREE]
    others = [f"{name}=COLUMN" for name in left if name not in THREE]
    names = [f"--{name}" if name in THREE else repr(name) for name in left]
    of_fit = f"; that is {' and '.join(names)} of the fit" if fitted else ""
    typed = " ".join([*flags, *([f"--covariates {','.join(others)}"] if others else [])])
    several = "the names of these columns" if len(left) > 1 else "the name of this column"
    return f"{of_fit}; give {several}: {typed}"


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
    for path in paths:
        folder = sorted(path.iterdir()) if path.is_dir() else [path]
        inside = [one for one in folder if one is path or not one.name.startswith(".")]
        if not inside:
            raise FileError(f"the folder {path} is empty")
        files += inside
    return files


@dataclass(frozen=True)
class Source:
    """Individuals in this process, and who holds which of all.

    They are all of a file, or those of this process's parties, party by party; ``numbers`` (n,)
    are their places among all.
    """

    individuals: Individuals
    held: Workers
    numbers: Any
    engine: Engine

    def individuals_in(self, network: Network) -> Individuals:
        """Return the individuals of this process's devices alone."""
        import numpy as np

        if not self.engine.apart or len(self.numbers) < self.held.n_samples:
            return self.individuals
        rows = [self.held.rows[device] for device in network.total.holders.own]
        return self.individuals.take(np.concatenate([np.empty(0, np.intp), *rows]))

    def places(self, text: str) -> list[int]:
        """Return the places of individuals by their names, with commas between."""
        import numpy as np

        place = dict(zip(self.individuals.names, self.numbers.tolist(), strict=True))
        words = words_of(text)
        rows = self.engine.allreduce(np.array([place.get(word, -1) for word in words]), "max")
        for word, row in zip(words, rows, strict=True):
            if row < 0:
                raise InputError(
                    f"--init-individuals: {self.individuals.source} has no individual {word!r}"
                    f"{did_you_mean(word, place)}"
                )
        return [int(row) for row in rows]


def read_source(
    files: Sequence[Path],
    settings: HeldIndividuals,
    model: str,
    options: Report,
    missing: bool,  # values may be
    run: CommandRun,
    masked: bool,  # sums will be
) -> Source:
    """Read the individuals of a file, or of files of parties, for a model with these options."""
    import numpy as np

    from vpem.network.partition import evenly
    from vpem.saem.formats.individuals import read_devices

    reader: CorpusReader | RowReader
    if model != CORPUS_MODEL:
        apart = settings.parties and run.engine.size > 1
        reader = RowReader(
            settings, model, options, missing, weight=settings.sample_weight, apart=apart
        )
    elif masked and settings.parties and settings.vocabulary is None:
        raise InputError(
            Setting("secure_sum", True), " hides what parties have, but without a common "
            "vocabulary they exchange their words; name the words in a file, ",
            Setting("vocabulary"),
        )  # fmt: skip
    else:
        reader = CorpusReader(settings, run.screen, masked)
    if settings.parties:
        named = run.where.parties(files_in(files), TableSettings(), columns=False)
        return _of_parties(named, reader, run)
    if len(files) > 1 or files[0].is_dir():
        got = f"got {len(files)}" if len(files) > 1 else f"but {files[0]} is a folder"
        raise InputError(
            f"give one file of individuals, {got}; add --parties if each file is one party's"
        )
    individuals = reader.share({0: reader.read(files[0])}, None)[0][0]
    n, number = individuals.n_individuals, settings.devices or 1
    if settings.device_individuals is not None:
        devices = read_devices(settings.device_individuals, individuals.names)
    elif number > n:
        raise InputError(
            f"--devices must be at most the {n} individuals of {individuals.source}, got {number}"
        )
    else:
        devices = evenly(n, number, [f"device {place}" for place in range(number)])
    return Source(individuals, devices, np.arange(n), run.engine)


def _of_parties(
    parties: Sequence[Party], reader: CorpusReader | RowReader, run: CommandRun
) -> Source:
    """Read the individuals of this process's parties, named party/individual."""
    import numpy as np

    from vpem.engines.placement import for_each
    from vpem.network.partition import Workers
    from vpem.saem.doses import Doses
    from vpem.saem.formats.individuals import chain
    from vpem.saem.individuals import Individuals

    holders = place_parties(parties, run.out.output, False, run.where, run.labels)
    if run.engine.size > len(parties) and not run.where.own_users:
        raise InputError(
            f"there are {run.engine.size} processes, but only {len(parties)} parties: every "
            "process needs one; take fewer processes"
        )

    def read_party(place: int) -> Individuals:
        party, usual = parties[place], TableSettings()
        for name, value in party.table.values("id_column").items():
            if value != getattr(usual, name):
                raise InputError(
                    f"party {party.name!r}: {name} is for tables of features, but these are "
                    "measurements of individuals; leave it out"
                )
        individuals = chain([reader.read(file, party.table.id_column) for file in party.find()])
        return replace(
            individuals, names=tuple(f"{party.name}/{name}" for name in individuals.names)
        )

    local_parts = for_each(holders, range(len(parties)), read_party)
    read, words = reader.share(local_parts, run.engine)
    said = holders.allgather({
        party: (some.n_individuals, list(some.covariates), some.doses is not None)
        for party, some in read.items()
    })  # fmt: skip
    ends = np.cumsum([0, *(said[party][0] for party in range(len(parties)))])
    # Every process, even a server without data, has the covariates that all parties have.
    common = [name for name in said[0][1] if all(name in names for _, names, _ in said.values())]
    rows = tuple(np.arange(a, b) for a, b in pairwise(ends))
    numbers = np.concatenate([np.empty(0, np.intp), *(rows[party] for party in holders.own)])
    workers = Workers(rows, tuple(party.name for party in parties))
    run.where.watch(workers.n_samples, True, run.screen)
    nothing = np.empty(0)
    individuals = (
        chain([read[party] for party in holders.own])
        if read
        else Individuals(  # of a server that brings no data
            (), np.zeros(1, np.intp), nothing, nothing, dict.fromkeys(common, nothing),
            weights=None if reader.weight is None else nothing, words=words,
            doses=Doses.once(nothing) if said[0][2] else None,
        )
    )  # fmt: skip
    covariates = {name: individuals.covariates[name] for name in common}
    individuals = replace(individuals, covariates=covariates)
    return Source(individuals, workers, numbers, run.engine)
