"""Documents for `vpem saem --model lda`: files, a vocabulary that all share, and what it leaves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpem.errors import InputError, Setting
from vpem.records import changed, setting

from .output import plural
from .parties import PartySettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vpem.engines.engine import Engine
    from vpem.saem.individuals import Individuals

    from .output import Screen


CORPUS_SETTINGS = ("vocabulary", "min_documents", "max_share", "dataset")
"""Settings that are for documents alone."""


class CorpusSettings(PartySettings, heading="Individuals", kept=False):
    """Which words of documents there are."""

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
    """Reads documents.

    Attributes
    ----------
    columns : mapping
        Names of the columns id, time and value; None where none was given.
    asked : CorpusSettings
        Which words of theirs count.
    screen : Screen
        Is told what is left out.
    hidden : bool
        Whether sums are masked, so that none of documents may be made in the open.
    """

    columns: Mapping[str, str | None]
    asked: CorpusSettings
    screen: Screen
    hidden: bool = False
    weight: None = None

    def __post_init__(self) -> None:
        """Refuse what would tell others the words of documents that masks are to hide."""
        if not (self.hidden and self.asked.parties):
            return
        secure = Setting("secure_sum", True)
        if self.asked.vocabulary is None:
            raise InputError(
                secure, " hides what parties have, but without a common vocabulary they tell their "
                "words; name the words in a file, ", Setting("vocabulary"),
            )  # fmt: skip
        for name in ("min_documents", "max_share"):
            if getattr(self.asked, name) is not None:
                raise InputError(
                    Setting(name), " has parties tell in how many documents each word is, which ",
                    secure, " is to hide; leave out one of the two",
                )  # fmt: skip

    def read(self, file: Path, id_column: str | None = None) -> Individuals:
        """Read the documents of a file."""
        from vpem.saem.formats.individuals import read_corpus

        named = {**self.columns, **({} if id_column is None else {"id": id_column})}
        given = {name: column for name, column in named.items() if column is not None}
        return read_corpus(file, given, self.asked.dataset)

    def share(
        self, parts: Mapping[int, Individuals], engine: Engine | None
    ) -> tuple[dict[int, Individuals], tuple[str, ...]]:
        """Give the documents of all sources one vocabulary, and return it too.

        Parameters
        ----------
        parts : mapping of int to Individuals
            Those of this process.
        engine : Engine, optional
            The processes, where each has its own; None: all are here.
        """
        import numpy as np

        from vpem.saem.individuals import document_counts, join_words

        found = dict(parts)
        asked, left = self.asked, np.zeros(2)
        if asked.vocabulary is not None:
            words = _vocabulary(asked.vocabulary)
        else:
            own = [one.words for one in found.values() if one.words is not None]
            words = join_words(sorted(set(own)) if engine is None else _of_all(own, engine))
        found, left = _spelled(found, words, left)
        if asked.min_documents is not None or asked.max_share is not None:
            each = [np.append(document_counts(one), one.n_individuals) for one in found.values()]
            total = np.sum([np.zeros(len(words) + 1, dtype=np.intp), *each], axis=0)
            words = _kept(words, total if engine is None else engine.allreduce(total), asked)
            found, left = _spelled(found, words, left)
        self._tell(left if engine is None or self.hidden else engine.allreduce(left))
        return found, words

    def _tell(self, left: Any) -> None:
        """Say what the vocabulary left out."""
        n_words, n_documents = (int(one) for one in left)
        if n_words:
            times = plural(n_words, "time")
            self.screen.note(f"words outside the vocabulary, which come {times}, are left out")
        if n_documents:
            self.screen.warn(
                f"{plural(n_documents, 'document')} left out, of whose words none is in the "
                "vocabulary"
            )


def _spelled(
    parts: Mapping[int, Individuals], words: tuple[str, ...], left: Any
) -> tuple[dict[int, Individuals], Any]:
    """Return documents in a vocabulary, and add how many words and documents that leaves out."""
    from vpem.saem.individuals import in_words

    found = {}
    for part, one in parts.items():
        found[part], n_unknown = in_words(one, words)
        gone = one.n_individuals - found[part].n_individuals
        left += n_unknown, gone
    return found, left


def _of_all(own: Sequence[tuple[str, ...]], engine: Engine) -> list[tuple[str, ...]]:
    """Return the vocabularies of all processes, each once."""
    return sorted({tuple(one) for some in engine.allgather(list(set(own))) for one in some})


def _kept(words: Sequence[str], total: Any, asked: CorpusSettings) -> tuple[str, ...]:
    """Return the words that are in enough documents, and not in too many."""
    most = total[-1] * (1.0 if asked.max_share is None else asked.max_share)
    least = asked.min_documents or 0
    kept = tuple(
        word
        for word, count in zip(words, total[:-1].tolist(), strict=True)
        if least <= count <= most
    )
    if not kept:
        raise InputError(
            f"none of the {len(words)} words is in {least} documents or more, and in {most:g} at "
            "most; give another ", Setting("min_documents"), " or ", Setting("max_share"),
        )  # fmt: skip
    return kept


def _vocabulary(path: Path) -> tuple[str, ...]:
    """Read words, a line each."""
    from vpem.errors import FileError
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
    """Return the files that are named, those of a folder in the order of their names."""
    from vpem.errors import FileError

    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(one for one in path.iterdir() if not one.name.startswith("."))
        if not inside:
            raise FileError(f"the folder {path} is empty")
        found += inside
    return found
