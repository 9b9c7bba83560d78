"""Commands on fits of SAEM, of individuals or of topics of documents."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vpem.errors import InputError
from vpem.files.hdf5 import atomic_write, check_writable
from vpem.files.observations import is_long_csv
from vpem.files.temporaries import ending_of

from ..display import as_plain, plural, print_json, show, table
from .kinds import StoredFile, reported
from .loading import PredictedSettings, UseRequest, refuse_given
from .saem_data import RowReader, as_rows, latents_of, named_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vpem.network.schema import Report
    from vpem.pictures.saved import Saved
    from vpem.saem.conditional import Conditional
    from vpem.saem.individuals import Individuals
    from vpem.saem.prediction import FittedCurves, Latents, Predictor
    from vpem.saem.results import SavedSaem
    from vpem.saem.topics import Heard, Topics

    Predicted = tuple[str, Report, Report]
    """What a table holds, its columns, and what JSON says in their place."""


class IndividualsFile(StoredFile):
    """A fit of units in one file, whatever they are."""

    units: ClassVar[str]

    @abstractmethod
    def evaluation_data(self, request: UseRequest) -> Individuals | None:
        """Read the data, if any: all individuals, or those of --individual."""
        for about in (request.parties, request.engine):
            refuse_given(about, f"is for mixtures and clusters; {self.units} are in one file")
        return None

    def needed_data(self, request: UseRequest) -> Individuals:
        individuals = self.evaluation_data(request)
        assert individuals is not None
        return individuals

    @abstractmethod
    def predicted(self, request: UseRequest) -> Predicted:
        """Predict of data, or of the individuals of the fit."""

    def predict(self, request: UseRequest) -> int:
        output = request.output
        kind, columns, report = self.predicted(request)
        output.write(columns, kind)
        if output.json:
            path = None if output.output is None else str(output.output)
            of_data = ("model", "n_individuals", "n_unknown", "n_left_out")
            head = {name: report.pop(name) for name in of_data if name in report}
            print_json({**head, "output": path, **(report if path is None else {})})
        return len(next(iter(columns.values())))

    @abstractmethod
    def scored(self, request: UseRequest) -> tuple[Report, Report]:
        """Return the report of how well it describes data, and facts of it for a reader."""

    def score(self, request: UseRequest) -> None:
        report, facts = self.scored(request)
        if request.output.json:
            print_json(report)
        else:
            show(table(facts.items(), "", ""))

    @abstractmethod
    def arrays(self) -> Report:
        """What an archive of NumPy holds."""

    def export(self, output: Path, force: bool, quote_formulas: bool) -> None:
        import json

        import numpy as np

        check_writable(output, force, "exported models")
        content, arrays = self.as_json(), self.arrays()
        with atomic_write(output, force, "exported models") as temporary:
            if ending_of(output) == ".json":
                with open(temporary, "w", encoding="utf-8") as stream:
                    json.dump(as_plain(content), stream, allow_nan=False)
                    stream.write("\n")
                return
            with open(temporary, "wb") as binary:
                np.savez(binary, **arrays)


class SaemFile(IndividualsFile):
    """What `vpem saem` has written."""

    holds = "a fit of SAEM"
    units = "individuals"
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
        return RowReader(request.individuals, saved.model, saved.model_options, missing, fitted)

    def evaluation_data(self, request: UseRequest) -> Individuals | None:
        super().evaluation_data(request)
        refuse_given(request.rows, "is for mixtures and clusters; individuals are used as is")
        if request.data is None:
            if not isinstance(request.individuals, PredictedSettings):
                refuse_given(request.individuals, "is about the data: give them after the model")
            return None
        individuals, names = self.reader(request).read(request.data), request.individuals.individual
        return individuals if names is None else individuals.named(names)

    def predicted(self, request: UseRequest) -> Predicted:
        from vpem.saem.models.model import has_curves
        from vpem.saem.prediction import Predictor

        saved, options = self.stored, request.individuals
        predictor, times = Predictor(saved), options.grid()
        curves = has_curves(saved.model, saved.model_options) and not options.latents
        self._check(request, curves)
        individuals = self.evaluation_data(request)
        head: Report = {"model": saved.model}
        if curves and not options.residuals:
            if options.population:
                words = self.reader(request).words
                values = options.known_values(words) if individuals is None else None
                fitted = predictor.population(times, values, individuals)
            elif individuals is None:
                fitted = predictor.stored(options.individual, times)
            else:
                fitted = predictor.curves(individuals, times)
            columns, report = _curves(fitted)
            return "vpem-saem-curves", columns, head | report
        if not curves and not saved.discrete:
            estimates = (
                predictor.stored_latents(options.individual)
                if individuals is None
                else predictor.latents(individuals)
            )
            head |= {"n_individuals": len(estimates.names), "level": estimates.level}
            latents = latents_of(saved.latents, estimates)
            head["individuals"] = as_rows({"id": estimates.names, "latents": latents})
            return "vpem-saem-individuals", _table(estimates.names, saved.latents, estimates), head
        if individuals is None:
            raise InputError(
                f"the model {saved.model} predicts classes of individuals from their rows; give "
                "DATA"
            )
        head["n_individuals"] = individuals.n_individuals
        if options.residuals:
            columns = _residuals(predictor, individuals)
            return "vpem-saem-residuals", columns, head | {"residuals": columns}
        columns, report = _classes(predictor, individuals, request.proba)
        return "vpem-predictions", columns, head | report

    def _check(self, request: UseRequest, curves: bool) -> None:
        """Refuse options that exclude each other, or that this model or no DATA excludes."""
        saved, data, options = self.stored, request.data, request.individuals
        names, population = options.individual, options.population
        timed = population or options.times is not None
        column = next((name for name, value in options.columns.items() if value), None)
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

    def scored(self, request: UseRequest) -> tuple[Report, Report]:
        import numpy as np

        from vpem.pictures.saem_contents import how_described
        from vpem.saem.estimates import criteria_of
        from vpem.saem.prediction import Predictor

        individuals = self.needed_data(request)
        n, n_rows = individuals.n_individuals, individuals.n_rows
        likelihood = Predictor(self.stored).score(individuals)
        report = {
            "n_individuals": n,
            "n_samples": n_rows,
            "n_parameters": len(self.stored.parameters),
            "log_likelihood": {
                "value": likelihood.value, "error": likelihood.error,
                "least_effective_draws": np.min(likelihood.effective),
                "linearized": likelihood.linearized,
            },
            "individuals": as_rows({"id": individuals.names, "log_likelihood": likelihood.each}),
            **criteria_of(self.stored, likelihood.value, n, n_rows),
        }  # fmt: skip
        return report, how_described(self.stored, individuals, likelihood)

    def as_json(self) -> Report:
        from vpem.saem.formats.fits import saem_as_json

        return saem_as_json(self.stored)

    def arrays(self) -> Report:
        import numpy as np

        from vpem.saem.formats.fits import ARRAYS

        texts = ("parameters", "latents", "names")
        return {name: getattr(self.stored, name) for name in ARRAYS} | {
            name: np.array(getattr(self.stored, name), dtype=np.str_) for name in texts
        }


def _curves(curves: FittedCurves) -> tuple[Report, Report]:
    import numpy as np

    at = curves.at
    columns: Report = {"time": at.times}
    if np.isfinite(at.values).any():
        columns["value"] = at.values
    columns |= {name: getattr(curves, name) for name in ("fitted", "lower", "upper")}
    listed = []
    for one, name in enumerate(at.names):
        rows = slice(at.first[one], at.first[one + 1])
        listed.append({"id": name} | {key: values[rows] for key, values in columns.items()})
    report = {
        "n_individuals": at.n_individuals, "level": curves.level, "interval_of": "curve",
        "curves": listed,
    }  # fmt: skip
    return {"id": np.array(at.names, dtype=np.str_)[at.individual_of], **columns}, report


def _table(names: Sequence[str], latents: Sequence[str], estimates: Any) -> Report:
    import numpy as np

    from vpem.saem.results import latent_columns

    return {"id": np.array(names, dtype=np.str_), **latent_columns(latents, estimates)}


def _residuals(predictor: Predictor, individuals: Individuals) -> Report:
    import numpy as np

    from vpem.saem.diagnostics import residuals_of

    residuals = residuals_of(predictor, individuals)
    return {
        "id": np.array(individuals.names, dtype=np.str_)[individuals.individual_of],
        "time": individuals.times,
        "value": individuals.values,
        "population": residuals.population,
        "fitted": residuals.fitted,
        "iwres": residuals.individual,
        "pwres": residuals.among,
        "npde": residuals.npde,
    }


def _classes(predictor: Predictor, individuals: Individuals, proba: bool) -> tuple[Report, Report]:
    """Return the most probable class of each individual given its rows."""
    import numpy as np

    shares = predictor.responsibilities(individuals)
    labels = shares.argmax(axis=1)
    columns = {"id": np.array(individuals.names, dtype=np.str_), "label": labels}
    report: Report = {"counts": np.bincount(labels, minlength=shares.shape[1]), "labels": labels}
    if proba:
        columns |= {f"proba_{k}": column for k, column in enumerate(shares.T)}
        report["proba"] = shares
    return columns, report


NO_DOCUMENTS = "is not for documents, which have words and counts"


class TopicsFile(IndividualsFile):
    """What `vpem saem --model lda` has written."""

    holds = "topics"
    units = "documents"
    instead: ClassVar = {
        "sample": "from which no documents are drawn",
        "evaluate": "which are not compared with labels; 'vpem predict' gives the proportions of "
        "documents",
    }

    @cached_property
    def stored(self) -> Topics:
        from vpem.saem.formats.fits import read_saem
        from vpem.saem.topics import Topics

        return Topics(read_saem(self.path))

    @cached_property
    def saved(self) -> Saved:
        from vpem.pictures.saved import saved_of

        return saved_of(str(self.path), self.stored.saved)

    def evaluation_data(self, request: UseRequest) -> Individuals | None:
        from vpem.saem.formats.individuals import COLUMNS, read_corpus

        super().evaluation_data(request)
        options = request.individuals
        refuse_given(request.rows, NO_DOCUMENTS, "dataset")
        refuse_given(options, NO_DOCUMENTS, "individual", "id", "time", "value")
        if request.data is None:
            return None
        columns = named_columns(options)
        if is_long_csv(request.data):
            fitted = reported(self.stored.saved.settings, "columns", dict) or {}
            for one, usual in COLUMNS.items():
                if isinstance(fitted.get(one), str) and fitted[one] != usual:
                    columns.setdefault(one, fitted[one])
        documents, names = (
            read_corpus(request.data, columns, request.rows.dataset),
            options.individual,
        )
        return documents if names is None else documents.named(names, "document")

    def _hear(self, request: UseRequest, documents: Individuals) -> Heard:
        """Apply the topics to documents, and report words that they lack."""
        heard = self.stored.hear(documents)
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

    def predicted(self, request: UseRequest) -> Predicted:
        from vpem.saem.prediction import Predictor

        saved, documents = self.stored.saved, self.evaluation_data(request)
        report: Report = {"model": "lda", "level": saved.level}
        found: Latents | Conditional
        if documents is None:
            found = Predictor(saved).stored_latents(request.individuals.individual)
            names = found.names
        else:
            heard = self._hear(request, documents)
            found, names = heard.proportions(), heard.model.individuals.names
            report |= {"n_unknown": heard.n_unknown, "n_left_out": heard.n_left_out}
        ends = {"proportions": found.means, "lower": found.lower, "upper": found.upper}
        report |= {"n_individuals": len(names), "individuals": as_rows({"id": names, **ends})}
        return "vpem-saem-individuals", _table(names, saved.latents, found), report

    def scored(self, request: UseRequest) -> tuple[Report, Report]:
        heard = self._hear(request, self.needed_data(request))
        each = heard.log_likelihood()
        report = {
            "n_individuals": heard.model.n,
            "n_tokens": heard.n_tokens,
            "n_unknown": heard.n_unknown,
            "n_left_out": heard.n_left_out,
            "log_likelihood": {"lower_bound": each.sum()},
            "perplexity": heard.perplexity,
            "perplexity_of_completion": heard.completed,
            "individuals": as_rows({"id": heard.model.individuals.names, "log_likelihood": each}),
        }
        return report, heard.facts()

    def as_json(self) -> Report:
        topics, saved = self.stored, self.stored.saved
        return {
            "encoding-type": "vpem-saem",
            "model": saved.model,
            **self.arrays(),
            "topics": topics.describe(),
            "level": saved.level,
            "n_tokens": topics.n_tokens,
            "log_likelihood": {"lower_bound": saved.log_likelihood.value},
            "perplexity": topics.perplexity,
            "converged": saved.converged,
            "grounds": saved.grounds,
            **{name: getattr(saved, name)
               for name in ("model_options", "settings", "communication", "versions")},
        }  # fmt: skip

    def arrays(self) -> Report:
        import numpy as np

        topics, saved = self.stored, self.stored.saved
        texts = {"words": topics.words, "names": saved.names, "device_names": topics.device_names}
        return {
            **{name: np.array(text) for name, text in texts.items()},
            "probabilities": topics.topics,
            "proportions": saved.means,
            "device_shares": topics.device_shares,
            "perplexities": topics.perplexities,
            **{name: getattr(saved, name) for name in ("lower", "upper", "trace", "bytes")},
        }
