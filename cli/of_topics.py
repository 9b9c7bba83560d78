"""What commands do with topics, whose data are documents."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from .kinds import StoredFile, reported
from .output import number, plural, print_json, show
from .requests import Request, refuse_given
from .tables import table

if TYPE_CHECKING:
    from vpem.network.schema import Report
    from vpem.pictures.saved import Saved
    from vpem.saem.individuals import Individuals
    from vpem.saem.topics import Heard, Topics


NO_DOCUMENTS = "is not for documents, which have words and counts"


class TopicsFile(StoredFile):
    """What `vpem saem --model lda` has written."""

    holds = "topics"
    instead: ClassVar = {
        "sample": "from which no documents are drawn",
        "evaluate": "which no labels are compared with; 'vpem predict' has the proportions of "
        "documents",
    }

    @cached_property
    def stored(self) -> Topics:
        """The topics."""
        from vpem.saem.formats.fits import read_saem
        from vpem.saem.topics import Topics

        return Topics(read_saem(self.path))

    @cached_property
    def saved(self) -> Saved:
        """What pictures are drawn of."""
        from vpem.pictures.saved import saved_of

        return saved_of(str(self.path), self.stored.saved)

    def _documents(self, request: Request) -> Individuals | None:
        """Read documents, or those of them that are wanted, if there are data."""
        from vpem.files.observations import is_long_csv
        from vpem.saem.formats.individuals import COLUMNS, read_corpus

        options, data = request.individuals, request.data
        for about in (request.parties, request.engine):
            refuse_given(about, "is for mixtures and clusters; documents are in one file")
        refuse_given(request.rows, NO_DOCUMENTS, "dataset")
        refuse_given(options, NO_DOCUMENTS, "individual", "id", "time", "value")
        if data is None:
            return None
        given = {name: column for name, column in options.columns.items() if column is not None}
        if is_long_csv(data):
            fitted = reported(self.stored.saved.settings, "columns", dict) or {}
            given = {
                **{
                    one: fitted[one]
                    for one, usual in COLUMNS.items()
                    if isinstance(fitted.get(one), str) and fitted[one] != usual
                },
                **given,
            }
        found = read_corpus(data, given, request.rows.dataset)
        return found if options.individual is None else found.named(options.individual, "document")

    def evaluation_data(self, request: Request) -> Individuals | None:
        """Read the documents that topics are held against."""
        return self._documents(request)

    def _hear(self, request: Request, found: Individuals) -> Heard:
        """Hold the topics against documents, and say what of these they do not know."""
        heard = self.stored.hear(found)
        if heard.n_unknown:
            times = plural(int(heard.n_unknown), "time")
            known = f"of {int(heard.n_unknown + heard.n_tokens)}"
            request.screen.note(f"words that the topics do not have come {times} {known}")
        if heard.n_left_out:
            request.screen.warn(
                f"{plural(heard.n_left_out, 'document')} left out, of whose words the topics have "
                "none"
            )
        return heard

    def predict(self, request: Request) -> int:
        """Predict proportions of the topics: of documents, or of those of the fit."""
        from .saem_topics import document_columns

        output, saved = request.output, self.stored.saved
        found = self._documents(request)
        unknown: Report = {}
        if found is None:
            which = saved.places(request.individuals.individual)
            names = [saved.names[one] for one in which]
            ends = (saved.means[which], saved.lower[which], saved.upper[which])
        else:
            heard = self._hear(request, found)
            given = heard.proportions()
            names, ends = list(heard.model.individuals.names), (
                given.means, given.lower, given.upper,
            )  # fmt: skip
            unknown = {"n_unknown": heard.n_unknown, "n_left_out": heard.n_left_out}
        columns = document_columns(names, *ends)
        output.write(columns, "vpem-saem-individuals")
        if output.json:
            told: Report = {
                "model": "lda", "n_individuals": len(names), **unknown,
                "output": None if output.output is None else str(output.output),
            }  # fmt: skip
            if output.output is None:
                told |= {"level": saved.level, "individuals": _listed(names, *ends)}
            print_json(told)
        return len(names)

    def score(self, request: Request) -> None:
        """Print the perplexity of documents."""
        found = self._documents(request)
        assert found is not None
        heard = self._hear(request, found)
        each = heard.log_likelihood()
        value, n_tokens = float(each.sum()), heard.n_tokens
        if request.output.json:
            print_json({
                "n_individuals": heard.model.n,
                "n_tokens": n_tokens,
                "n_unknown": heard.n_unknown,
                "n_left_out": heard.n_left_out,
                "log_likelihood": {"lower_bound": value},
                "perplexity": heard.perplexity,
                "perplexity_of_completion": heard.completed,
                "individuals": [
                    {"id": name, "log_likelihood": one}
                    for name, one in zip(heard.model.individuals.names, each.tolist(), strict=True)
                ],
            })  # fmt: skip
            return
        facts: list[tuple[str, Any]] = [
            ("documents", heard.model.n),
            ("words of the vocabulary", int(n_tokens)),
            ("other words", int(heard.n_unknown)),
            ("log-likelihood, a lower bound", f"{value:.2f}"),
            ("perplexity, by this bound", number(heard.perplexity, 6)),
        ]
        if heard.completed is not None:
            facts.append(("perplexity of half of the words, given the other half",
                          number(heard.completed, 6)))  # fmt: skip
        show(table(facts, "", ""))

    def as_json(self) -> Report:
        """Return all that there is."""
        from .saem_topics import topic_facts

        saved = self.stored.saved
        return {
            "encoding-type": "vpem-saem",
            "model": saved.model,
            "words": list(self.stored.words),
            "topics": topic_facts(self.stored),
            "probabilities": self.stored.topics.tolist(),
            "device_names": list(self.stored.device_names),
            "device_shares": self.stored.device_shares.tolist(),
            "names": list(saved.names),
            "proportions": saved.means.tolist(),
            "lower": saved.lower.tolist(),
            "upper": saved.upper.tolist(),
            "level": saved.level,
            "n_tokens": self.stored.n_tokens,
            "log_likelihood": {"lower_bound": saved.log_likelihood.value},
            "perplexity": self.stored.perplexity,
            "converged": saved.converged,
            "grounds": saved.grounds,
            "trace": saved.trace.tolist(),
            "perplexities": self.stored.perplexities.tolist(),
            "bytes": saved.bytes.tolist(),
            **{name: getattr(saved, name)
               for name in ("model_options", "settings", "communication", "versions")},
        }  # fmt: skip

    def export(self, output: Path, force: bool, quote_formulas: bool) -> None:
        """Write all as JSON, or its arrays as a NumPy archive."""
        import json

        import numpy as np

        from vpem.files.hdf5 import atomic_write, check_writable
        from vpem.files.temporaries import ending_of

        from .output import as_plain

        check_writable(output, force, "exported models")
        with atomic_write(output, force, "exported models") as temporary:
            told = self.as_json()
            if ending_of(output) == ".json":
                with open(temporary, "w", encoding="utf-8") as stream:
                    json.dump(as_plain(told), stream, allow_nan=False)
                    stream.write("\n")
                return
            arrays: Report = {name: np.array(told[name]) for name in
                      ("words", "probabilities", "names", "proportions", "lower", "upper", "trace",
                       "perplexities", "bytes", "device_names", "device_shares")}  # fmt: skip
            with open(temporary, "wb") as binary:
                np.savez(binary, **arrays)


def _listed(names: list[str], means: Any, lower: Any, upper: Any) -> list[Report]:
    """Return proportions of each document, for JSON."""
    parts = zip(names, means, lower, upper, strict=True)
    return [
        {"id": name, "proportions": mean, "lower": low, "upper": high}
        for name, mean, low, high in parts
    ]
