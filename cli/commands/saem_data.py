"""Individuals or documents for `vpem saem`, from a file or from files of parties."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.errors import FileError, InputError, Setting, did_you_mean
from vpem.files.table_settings import TableSettings
from vpem.records import changed, setting

from ..data import PartySettings
from ..display import plural
from ..outputs import READ
from ..session import place_parties
from .kinds import CORPUS_MODEL
from .saem_choices import RowReader, read_if_there, words_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vpem.engines.engine import Engine
    from vpem.files.parties.opening import Party
    from vpem.network.partition import Workers
    from vpem.saem.individuals import Individuals
    from vpem.sums.connect import Network

    from ..display import Screen
    from ..runner import CommandRun


CORPUS_SETTINGS = ("vocabulary", "min_documents", "max_share", "dataset")
"""Settings for documents alone."""


class CorpusSettings(PartySettings, heading="Individuals", kept=False):
    """Which words of documents count."""

    parties: bool = changed(PartySettings, "parties", heading="Individuals")
    vocabulary: Path | None = setting(
        None, "lda: the words, a line each; others are left out. Default: all in the documents.",
        file="read",
    )  # fmt: skip
    min_documents: int | None = setting(None, "lda: leave out words of fewer documents.", least=1)
    max_share: float | None = setting(
        None, "lda: leave out words of more than this share of the documents.", least=1e-9,
        most=1.0,
    )  # fmt: skip
    dataset: str | None = setting(
        None, "lda: where in HDF5 the counts are, such as layers/counts. Default: X.", local=True
    )


@dataclass(frozen=True)
class CorpusReader:
    """Reads documents; under masks (``hidden``) no sum over documents is taken without them.

    ``columns`` names those of id, time and value; None where none was given.
    """

    columns: Mapping[str, str | None]
    settings: CorpusSettings
    screen: Screen
    hidden: bool = False
    weight: None = None

    def __post_init__(self) -> None:
        """Refuse options by which others would learn words of documents that masks hide."""
        if not (self.hidden and self.settings.parties):
            return
        secure = Setting("secure_sum", True)
        if self.settings.vocabulary is None:
            raise InputError(
                secure, " hides what parties have, but without a common vocabulary they exchange "
                "their words; name the words in a file, ", Setting("vocabulary"),
            )  # fmt: skip
        for name in ("min_documents", "max_share"):
            if getattr(self.settings, name) is not None:
                raise InputError(
                    Setting(name), " shows in how many documents of each party a word is, which ",
                    secure, " hides; leave out one of the two",
                )  # fmt: skip

    def read(self, file: Path, id_column: str | None = None) -> Individuals:
        from vpem.saem.formats.individuals import read_corpus

        named = {**self.columns, **({} if id_column is None else {"id": id_column})}
        columns = {name: column for name, column in named.items() if column is not None}
        return read_corpus(file, columns, self.settings.dataset)

    def share(
        self, parts: Mapping[int, Individuals], engine: Engine | None
    ) -> tuple[dict[int, Individuals], tuple[str, ...]]:
        """Give the documents of all parties one vocabulary; return them and it."""
        import numpy as np

        from vpem.saem.individuals import document_counts, in_words, join_words

        corpora = dict(parts)
        settings, left = self.settings, np.zeros(2)  # words and documents that are left out

        def spelled(words: tuple[str, ...]) -> dict[int, Individuals]:
            nonlocal left
            documents = {}
            for part, one in corpora.items():
                documents[part], n_unknown = in_words(one, words)
                left += n_unknown, one.n_individuals - documents[part].n_individuals
            return documents

        if settings.vocabulary is not None:
            words = _vocabulary(settings.vocabulary)
        else:
            vocabularies = [one.words for one in corpora.values() if one.words is not None]
            if engine is not None:  # the vocabularies of all processes, each once
                vocabularies = [
                    tuple(one) for some in engine.allgather(list(set(vocabularies))) for one in some
                ]
            words = join_words(sorted(set(vocabularies)))
        corpora = spelled(words)
        if settings.min_documents is not None or settings.max_share is not None:
            each = [np.append(document_counts(one), one.n_individuals) for one in corpora.values()]
            total = np.sum([np.zeros(len(words) + 1, dtype=np.intp), *each], axis=0)
            counts = (total if engine is None else engine.allreduce(total)).tolist()
            most = counts[-1] * (1.0 if settings.max_share is None else settings.max_share)
            least, n_words = settings.min_documents or 0, len(words)
            words = tuple(
                word
                for word, count in zip(words, counts[:-1], strict=True)
                if least <= count <= most
            )
            if not words:
                raise InputError(
                    f"none of the {n_words} words is in {least} documents or more, and in {most:g} "
                    "at most; give another ", Setting("min_documents"), " or ",
                    Setting("max_share"),
                )  # fmt: skip
            corpora = spelled(words)
        left = left if engine is None or self.hidden else engine.allreduce(left)
        n_others, n_documents = (int(one) for one in left)
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
    wrong = next((word for word in words if len(word) > LONGEST_NAME or "\0" in word), None)
    if wrong is not None or not words or len(set(words)) < len(words):
        raise InputError(f"{path} must be a vocabulary: words, a line each, all different")
    return tuple(words)


def files_in(paths: Sequence[Path]) -> list[Path]:
    """Return the files given, those of a folder in the order of their names."""
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        inside = sorted(one for one in path.iterdir() if not one.name.startswith("."))
        if not inside:
            raise FileError(f"the folder {path} is empty")
        files += inside
    return files


DeviceFiles = Annotated[
    list[Path],
    READ,
    typer.Argument(
        help="Individuals: CSV with a line for each measurement, the first line the names of "
        "columns, or HDF5 of individuals; with --parties a file each, or a manifest."
    ),
]


class HeldIndividuals(CorpusSettings, heading="Individuals", kept=False):
    """What columns hold, and who holds which individuals."""

    id: str | None = setting(None, "Column of individuals. Default: id or document.", local=True)
    time: str | None = setting(None, "Column with the time. Default: time or word.", local=True)
    value: str | None = setting(None, "Column with the value. Default: value or count.", local=True)
    covariates: str | None = setting(
        None, "Other columns to read, with commas between; dose=amt reads the column amt as the "
        "dose. Default: those that the model needs.", local=True,
    )  # fmt: skip
    doses: str | None = setting(
        None, "Lines may be doses: columns that are not named amt, rate, duration, evid, mdv, addl "
        "or ii, as amt=AMT_MG. Default: they are if the model needs a dose and there is amt.",
        local=True,
    )  # fmt: skip
    sample_weight: str | None = setting(
        None, "Column with each individual's weight, in copies of it, above 0. Default: 1."
    )
    devices: int | None = setting(
        None, "Devices, which hold individuals in order. Default: 1.",
        heading="Network", least=1,
    )  # fmt: skip
    device_individuals: Path | None = setting(
        None, 'Individuals of each device, JSON: {"name": ["individual", ...], ...}.',
        heading="Network", file="read",
    )  # fmt: skip


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


def read_source(
    files: Sequence[Path],
    settings: HeldIndividuals,
    model: str,
    needed: Sequence[str],
    missing: bool,
    run: CommandRun,
    masked: bool = False,
) -> Source:
    """Read the individuals of a file, or of files of parties.

    ``needed`` are covariates of the model; values may be ``missing``; sums will be ``masked``.
    """
    import numpy as np

    from vpem.network.partition import evenly
    from vpem.saem.formats.individuals import read_devices

    columns = {name: getattr(settings, name) for name in ("id", "time", "value")}
    of_documents = model == CORPUS_MODEL
    for name in ("covariates", "doses", "sample_weight") if of_documents else CORPUS_SETTINGS:
        if getattr(settings, name) is not None:
            where = f"not for the model {model}" if of_documents else f"for {CORPUS_MODEL} alone"
            raise InputError(Setting(name), f" is {where}; leave it out")
    reader: CorpusReader | RowReader
    if of_documents:
        reader = CorpusReader(columns, settings, run.screen, masked)
    else:
        apart = settings.parties and run.engine.size > 1
        reader = RowReader(
            columns, settings.covariates, needed, missing, settings.sample_weight, settings.doses,
            read_if_there(model), apart,
        )  # fmt: skip
    if settings.parties:
        for name in ("devices", "device_individuals"):
            if getattr(settings, name) is not None:
                raise InputError(Setting(name), " is for one file; with --parties leave it out")
        named = run.where.parties(files_in(files), TableSettings(), columns=False)
        return _of_parties(named, reader, run)
    if len(files) > 1 or files[0].is_dir():
        got = f"got {len(files)}" if len(files) > 1 else f"but {files[0]} is a folder"
        raise InputError(
            f"give one file of individuals, {got}; add --parties if each file is one party's"
        )
    parts, _ = reader.share({0: reader.read(files[0])}, None)
    individuals, number = parts[0], settings.devices or 1
    n = individuals.n_individuals
    if settings.devices is not None and settings.device_individuals is not None:
        raise InputError("give --devices or --device-individuals, not both")
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
    common_covariates = [
        name for name in said[0][1] if all(name in names for _, names, _ in said.values())
    ]
    rows = tuple(np.arange(a, b) for a, b in pairwise(ends))
    numbers = np.concatenate([np.empty(0, np.intp), *(rows[party] for party in holders.own)])
    workers = Workers(rows, tuple(party.name for party in parties))
    run.where.watch(workers.n_samples, True, run.screen)
    if not read:  # a server that brings no data
        nothing = np.empty(0)
        weights = None if reader.weight is None else nothing
        individuals = Individuals(
            (), np.zeros(1, np.intp), nothing, nothing, weights=weights, words=words,
            doses=Doses.once(nothing) if said[0][2] else None,
        )  # fmt: skip
    else:
        individuals = chain([read[party] for party in holders.own])
    some = individuals.covariates
    individuals = replace(
        individuals, covariates={name: some.get(name, np.empty(0)) for name in common_covariates}
    )
    return Source(individuals, workers, numbers, run.engine)


def rows_of_names(source: Source, text: str) -> list[int]:
    """Return the places of individuals by their names, with commas between."""
    import numpy as np

    names = source.individuals.names
    place = dict(zip(names, source.numbers.tolist(), strict=True))
    words = words_of(text)
    rows = source.engine.allreduce(np.array([place.get(word, -1) for word in words]), "max")
    for word, row in zip(words, rows, strict=True):
        if row < 0:
            raise InputError(
                f"--init-individuals: {source.individuals.source} has no individual {word!r}"
                f"{did_you_mean(word, place)}"
            )
    return [int(row) for row in rows]
