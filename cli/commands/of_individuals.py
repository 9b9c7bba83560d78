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
from .saem_data import RowReader, as_rows, named_columns
from .use import PredictSettings, StoredFile, UseRequest, reported

if TYPE_CHECKING:
    from vpem.network.schema import Report
    from vpem.saem.conditional import Conditional
    from vpem.saem.individuals import Individuals
    from vpem.saem.prediction import Latents
    from vpem.saem.results import SavedSaem
    from vpem.saem.topics import Heard, Topics


def _tell(
    request: UseRequest, kind: str, columns: Report, report: Report, model: str, n: int, **more: Any
) -> int:
    """Write what is predicted as a table, or print it as JSON; return the number of its rows."""
    output = request.settings
    output.write(columns, kind)
    if output.json:
        path = None if output.output is None else str(output.output)
        head = {"model": model, "n_individuals": n, **more, "output": path}
        print_json(head | (report if path is None else {}))
    return len(next(iter(columns.values())))


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
        import numpy as np

        from vpem.saem.diagnostics import residuals_of
        from vpem.saem.models.model import has_curves
        from vpem.saem.prediction import Predictor
        from vpem.saem.results import latent_columns, latents_of_each

        saved, options = self.stored, request.settings
        predictor, times = Predictor(saved), options.grid()
        curves = has_curves(saved.model, saved.model_options) and not options.latents
        self._check(request, curves)
        individuals = self.evaluation_data(request)
        if options.residuals and individuals is not None:
            kind, names = "vpem-saem-residuals", individuals.names
            columns = residuals_of(predictor, individuals).columns()
            report: Report = {"residuals": columns}
        elif curves:
            if options.population:
                words = self.reader(request).words
                values = options.known_values(words) if individuals is None else None
                fitted = predictor.population(times, values, individuals)
            elif individuals is None:
                fitted = predictor.stored(options.individual, times)
            else:
                fitted = predictor.curves(individuals, times)
            kind, names, columns = "vpem-saem-curves", fitted.at.names, fitted.columns()
            each = [
                {"id": name}
                | {key: values[first:last] for key, values in columns.items() if key != "id"}
                for name, first, last in zip(
                    names, fitted.at.first, fitted.at.first[1:], strict=False
                )
            ]
            report = {"level": fitted.level, "interval_of": "curve", "curves": each}
        elif not saved.discrete:
            if individuals is None:
                found = predictor.stored_latents(options.individual)
            else:
                found = predictor.latents(individuals)
            kind, names = "vpem-saem-individuals", found.names
            columns = {"id": np.array(names, np.str_), **latent_columns(saved.latents, found)}
            each = as_rows({"id": names, "latents": latents_of_each(saved.latents, found)})
            report = {"level": found.level, "individuals": each}
        elif individuals is None:
            raise InputError(
                f"the model {saved.model} predicts classes of individuals from their rows; give "
                "DATA"
            )
        else:
            kind, names = "vpem-predictions", individuals.names
            shares = predictor.responsibilities(individuals)
            labels = shares.argmax(axis=1)
            columns = {"id": np.array(names, dtype=np.str_), "label": labels}
            report = {"counts": np.bincount(labels, minlength=shares.shape[1]), "labels": labels}
            if request.proba:
                columns |= {f"proba_{k}": column for k, column in enumerate(shares.T)}
                report["proba"] = shares
        return _tell(request, kind, columns, report, saved.model, len(names))

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
        individuals = self.evaluation_data(request)
        assert individuals is not None
        report, facts = self.scored(individuals, request)
        request.tell(report, {name: str(fact) for name, fact in facts.items()})

    def scored(self, individuals: Individuals, request: UseRequest) -> tuple[Report, Report]:
        """Return how well the fit describes individuals, and facts of it for a reader."""
        import numpy as np

        from vpem.pictures.saem_contents import how_described
        from vpem.saem.estimates import criteria_of
        from vpem.saem.prediction import Predictor

        n, n_rows, saved = individuals.n_individuals, individuals.n_rows, self.stored
        likelihood = Predictor(saved).score(individuals)
        report = {
            "n_individuals": n,
            "n_samples": n_rows,
            "n_parameters": len(saved.parameters),
            "log_likelihood": {
                "value": likelihood.value, "error": likelihood.error,
                "least_effective_draws": np.min(likelihood.effective),
                "linearized": likelihood.linearized,
            },
            "individuals": as_rows({"id": individuals.names, "log_likelihood": likelihood.each}),
            **criteria_of(saved, likelihood.value, n, n_rows),
        }  # fmt: skip
        return report, how_described(saved, individuals, likelihood)

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
        import numpy as np

        from vpem.saem.prediction import Predictor
        from vpem.saem.results import latent_columns

        saved, documents = self.stored, self.evaluation_data(request)
        found: Latents | Conditional
        unknown: Report = {}
        if documents is None:
            found = Predictor(saved).stored_latents(request.settings.individual)
            names = found.names
        else:
            heard = self._hear(request, documents)
            found, names = heard.proportions(), heard.model.individuals.names
            unknown = {"n_unknown": heard.n_unknown, "n_left_out": heard.n_left_out}
        ends = {"proportions": found.means, "lower": found.lower, "upper": found.upper}
        report = {"level": saved.level, "individuals": as_rows({"id": names, **ends})}
        columns = {"id": np.array(names, np.str_), **latent_columns(saved.latents, found)}
        return _tell(
            request, "vpem-saem-individuals", columns, report, "lda", len(names), **unknown
        )

    def scored(self, individuals: Individuals, request: UseRequest) -> tuple[Report, Report]:
        heard = self._hear(request, individuals)
        names, each = heard.model.individuals.names, heard.log_likelihood()
        report = {
            "n_individuals": heard.model.n,
            "n_tokens": heard.n_tokens,
            "n_unknown": heard.n_unknown,
            "n_left_out": heard.n_left_out,
            "log_likelihood": {"lower_bound": each.sum()},
            "perplexity": heard.perplexity,
            "perplexity_of_completion": heard.completed,
            "individuals": as_rows({"id": names, "log_likelihood": each}),
        }
        return report, heard.facts()

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
