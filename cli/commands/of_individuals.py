"""Commands on fits of SAEM, of individuals or of topics of documents."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vpem.errors import InputError
from vpem.files.observations import is_long_csv
from vpem.pictures.contents import plural

from ..display import as_plain, print_json
from .saem_data import RowReader, named_columns
from .use import PredictSettings, StoredFile, UseRequest, reported

if TYPE_CHECKING:
    from vpem.network.schema import Report
    from vpem.saem.individuals import Individuals
    from vpem.saem.results import SavedSaem
    from vpem.saem.topics import Heard, Topics


class SaemFile(StoredFile):
    """What `vpem saem` has written."""

    holds = "a fit of SAEM"
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

    def reader(self, request: UseRequest) -> RowReader:
        saved = self.stored
        fitted = reported(saved.settings, "columns", dict) or {}
        missing = saved.settings.get("missing") == "marginalize"
        return RowReader(request.settings, saved.model, saved.model_options, missing, fitted)

    def evaluation_data(self, request: UseRequest) -> Individuals | None:
        options, sentence = request.settings, "is for mixtures and clusters; individuals are "
        request.refuse("parties processes", f"{sentence}in one file")
        request.refuse("rows", f"{sentence}used as is")
        if request.data is None:
            if not isinstance(options, PredictSettings):
                request.refuse("individuals", "is about the data: give them after the model")
            return None
        individuals, names = self.reader(request).read(request.data), options.individual
        return individuals if names is None else individuals.named(names)

    def predict(self, request: UseRequest) -> int:
        from vpem.saem.diagnostics import residuals_of
        from vpem.saem.models.model import has_curves
        from vpem.saem.prediction import Predictor
        from vpem.saem.results import Classes

        saved, options = self.stored, request.settings
        predictor, times = Predictor(saved), options.grid()
        curves = has_curves(saved.model, saved.model_options) and not options.latents
        self._check(request, curves)
        individuals = self.evaluation_data(request)
        found: Any
        if options.residuals and individuals is not None:
            return self._tell(request, residuals_of(predictor, individuals))
        if curves and options.population:
            words = self.reader(request).words
            values = options.known_values(words) if individuals is None else None
            return self._tell(request, predictor.population(times, values, individuals))
        if individuals is None:
            of_fit = options.individual
            if saved.discrete:
                raise InputError(
                    f"the model {saved.model} predicts classes of individuals from their rows; "
                    "give DATA"
                )
            found = predictor.stored(of_fit, times) if curves else predictor.stored_latents(of_fit)
        elif curves:
            found = predictor.curves(individuals, times)
        elif saved.discrete:
            shares = predictor.responsibilities(individuals)
            found = Classes(individuals.names, shares, request.proba)
        else:
            found = predictor.latents(individuals)
        return self._tell(request, found)

    def _tell(self, request: UseRequest, found: Any, **more: Any) -> int:
        """Write what is predicted as a table, or print it as JSON; return the number of rows."""
        output, columns = request.settings, found.columns()
        output.write(columns, found.kind)
        if output.json:
            path = None if output.output is None else str(output.output)
            head = {"model": self.stored.model, "n_individuals": len(found.names), **more}
            print_json(head | {"output": path} | (found.describe() if path is None else {}))
        return len(columns["id"])

    def _check(self, request: UseRequest, curves: bool) -> None:
        """Refuse options that exclude each other, or that this model or no DATA excludes."""
        saved, data, options = self.stored, request.data, request.settings
        names, population = options.individual, options.population
        timed = population or options.times is not None
        column = next(iter(named_columns(options)), None)
        what = "--latents" if options.latents else f"the model {saved.model}"
        for wrong, sentence in (
            (options.residuals and (options.latents or timed),
             "--residuals belong to the rows of DATA; leave out --latents, --population and "
             "--times"),
            (options.residuals and not curves,
             f"the model {saved.model} has no curves over time, and so no residuals; leave out "
             "--residuals"),
            (options.residuals and data is None,
             "--residuals belong to measurements, which a fit does not keep; give DATA"),
            (names is not None and len(set(names)) < len(names),
             "--individual must name different individuals"),
            (request.proba and not saved.discrete,
             f"{self.path} has no classes; leave out --proba"),
            (population and options.latents, "give --population or --latents, not both"),
            (data is None and column, f"--{column} names a column of DATA; give DATA"),
            (not curves and timed,
             f"{what} has no curves over time; leave out --times and --population"),
            (data is None and not population and options.covariates is not None,
             "the fit knows its individuals' covariates; leave out --covariates"),
            (data is None and population and names is not None,
             "--individual without DATA is an individual of the fit; leave out --population"),
        ):  # fmt: skip
            if wrong:
                raise InputError(sentence)

    def score(self, request: UseRequest) -> None:
        from vpem.pictures.saem_contents import DESCRIBED
        from vpem.saem.prediction import Predictor

        individuals = self.evaluation_data(request)
        assert individuals is not None
        request.tell(Predictor(self.stored).describe_score(individuals), DESCRIBED)

    def as_json(self) -> Report:
        from vpem.saem.formats.fits import saem_as_json

        return saem_as_json(self.stored)

    def arrays(self) -> Report:
        """What an archive of NumPy holds."""
        import numpy as np

        from vpem.saem.formats.fits import ARRAYS

        saved, texts = self.stored, ("parameters", "latents", "names")
        arrays = {name: getattr(saved, name) for name in ARRAYS}
        return arrays | {name: np.array(getattr(saved, name), dtype=np.str_) for name in texts}

    def export(self, output: Path, force: bool, quote_formulas: bool) -> None:
        from vpem.files.results import arrays_or_json

        arrays_or_json(output, self.arrays, lambda: as_plain(self.as_json()), force)


NO_DOCUMENTS = "is not for documents, which have words and counts"


class TopicsFile(SaemFile):
    """What `vpem saem --model lda` has written."""

    holds = "topics"
    instead: ClassVar = {
        "sample": "from which no documents are drawn",
        "evaluate": "which are not compared with labels; 'vpem predict' gives the proportions of "
        "documents",
    }

    @property
    def topics(self) -> Topics:
        found: Topics = self.saved.stored
        return found

    def evaluation_data(self, request: UseRequest) -> Individuals | None:
        from vpem.saem.formats.individuals import COLUMNS, read_corpus

        options, kept = request.settings, ("dataset", "individual", "id", "time", "value")
        sentence = "is for mixtures and clusters; documents are in one file"
        request.refuse("parties processes", sentence)
        request.refuse("rows individuals", NO_DOCUMENTS, *kept)
        if request.data is None:
            return None
        columns = named_columns(options)
        if is_long_csv(request.data):
            fitted = reported(self.stored.settings, "columns", dict) or {}
            for one, usual in COLUMNS.items():
                if isinstance(fitted.get(one), str) and fitted[one] != usual:
                    columns.setdefault(one, fitted[one])
        documents = read_corpus(request.data, columns, request.settings.dataset)
        if options.individual is None:
            return documents
        return documents.named(options.individual, "document")

    def _hear(self, request: UseRequest, documents: Individuals) -> Heard:
        """Apply the topics to documents, and report words that they lack."""
        heard = self.topics.hear(documents)
        if heard.n_unknown:
            times = plural(int(heard.n_unknown), "time")
            known = f"of {int(heard.n_unknown + heard.n_tokens)}"
            request.screen.print_note(f"words that the topics lack occur {times} {known}")
        if heard.n_left_out:
            request.screen.warn(
                f"{plural(heard.n_left_out, 'document')} left out: the topics have none of their "
                "words"
            )
        return heard

    def predict(self, request: UseRequest) -> int:
        from vpem.saem.prediction import Predictor

        documents = self.evaluation_data(request)
        if documents is None:
            found = Predictor(self.stored).stored_latents(request.settings.individual)
            return self._tell(request, found)
        heard = self._hear(request, documents)
        unknown = {"n_unknown": heard.n_unknown, "n_left_out": heard.n_left_out}
        return self._tell(request, heard.latents(), **unknown)

    def score(self, request: UseRequest) -> None:
        from vpem.pictures.saem_contents import DESCRIBED_BY_TOPICS

        documents = self.evaluation_data(request)
        assert documents is not None
        request.tell(self._hear(request, documents).describe(), DESCRIBED_BY_TOPICS)

    def arrays(self) -> Report:
        import numpy as np

        topics, saved = self.topics, self.stored
        texts = {"words": topics.words, "names": saved.names, "device_names": topics.device_names}
        return {
            **{name: np.array(text) for name, text in texts.items()},
            "probabilities": topics.topics,
            "proportions": saved.means,
            "device_shares": topics.device_shares,
            "perplexities": topics.perplexities,
            **{name: getattr(saved, name) for name in ("lower", "upper", "trace", "bytes")},
        }

    def as_json(self) -> Report:
        topics, saved = self.topics, self.stored
        kept = (
            "model", "level", "converged", "grounds", "model_options", "settings", "communication",
            "versions",
        )  # fmt: skip
        return {
            "encoding-type": "vpem-saem",
            **self.arrays(),
            **{name: getattr(saved, name) for name in kept},
            "topics": topics.describe(),
            "n_tokens": topics.n_tokens,
            "log_likelihood": {"lower_bound": saved.log_likelihood.value},
            "perplexity": topics.perplexity,
        }
