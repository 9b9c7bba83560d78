"""Commands on fits of SAEM, of individuals or of topics of documents."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vpem.errors import InputError
from vpem.files.hdf5 import atomic_write, check_writable
from vpem.files.observations import is_long_csv
from vpem.files.temporaries import ending_of

from ..display import as_plain, number, plural, print_json, show, table
from .kinds import StoredFile, reported
from .loading import IndividualSettings, UseRequest, refuse_given
from .saem_choices import individuals_of, needed_covariates, read_if_there, words_in
from .saem_report import document_columns, latent_columns, latents_of, topic_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vpem.network.schema import Report
    from vpem.pictures.saved import Saved
    from vpem.saem.individuals import Individuals
    from vpem.saem.prediction import FittedCurves, Predictor
    from vpem.saem.results import SavedSaem
    from vpem.saem.topics import Heard, Topics

    Tables = tuple[Report, Report]
    """A report, and the columns of a table."""


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

    def individuals(self, request: UseRequest) -> Individuals | None:
        """Read the data, if any: all individuals, or those of --individual."""
        saved, data, options = self.stored, request.data, request.individuals
        for about in (request.parties, request.engine):
            refuse_given(about, "is for mixtures and clusters; individuals are in one file")
        if data is None:
            return None
        needed = needed_covariates(saved.model, saved.model_options)
        fitted = reported(saved.settings, "columns", dict) or {}
        individuals = individuals_of(
            data, options.columns, options.covariates, needed, fitted,
            saved.settings.get("missing") == "marginalize", options.doses,
            read_if_there(saved.model),
        )  # fmt: skip
        return individuals if options.individual is None else individuals.named(options.individual)

    def evaluation_data(self, request: UseRequest) -> Individuals | None:
        refuse_given(request.rows, "is for mixtures and clusters; a fit of SAEM has individuals")
        if request.data is None:
            refuse_given(request.individuals, "is about the data: give them after the model")
        return self.individuals(request)

    def predict(self, request: UseRequest) -> int:
        from vpem.saem.models.model import has_curves
        from vpem.saem.prediction import Predictor

        refuse_given(request.rows, "is for mixtures; a fit of SAEM takes individuals as they are")
        saved = self.stored
        predictor = Predictor(saved)
        options, output = request.individuals, request.output
        times = options.grid()
        curves = has_curves(saved.model, saved.model_options) and not options.latents
        self._check(request, curves)
        individuals = self.individuals(request)
        if options.residuals:
            assert individuals is not None
            report, columns = _residuals(predictor, individuals)
            kind = "vpem-saem-residuals"
        elif curves:
            report, columns = _curves(predictor, individuals, times, options)
            kind = "vpem-saem-curves"
        elif saved.discrete:
            report, columns = _classes(predictor, individuals, request.proba)
            kind = "vpem-predictions"
        else:
            report, columns = _latents(predictor, individuals, options.individual)
            kind = "vpem-saem-individuals"
        output.write(columns, kind)
        if output.json:
            head = {"model": saved.model, "n_individuals": report.pop("n_individuals")}
            path = None if output.output is None else str(output.output)
            print_json({**head, "output": path, **(report if path is None else {})})
        return len(next(iter(columns.values())))

    def _check(self, request: UseRequest, curves: bool) -> None:
        """Refuse options that exclude each other, or that this model or no DATA excludes."""
        saved, data, options = self.stored, request.data, request.individuals
        if options.residuals:
            if options.latents or options.population or options.times is not None:
                raise InputError(
                    "--residuals belong to the rows of DATA; leave out --latents, --population "
                    "and --times"
                )
            if not curves:
                raise InputError(
                    f"the model {saved.model} has no curves over time, and so no residuals; leave "
                    "out --residuals"
                )
            if data is None:
                raise InputError(
                    "--residuals belong to measurements, which a fit does not keep; give DATA"
                )
        names = options.individual
        if names is not None and len(set(names)) < len(names):
            raise InputError("--individual must name different individuals")
        if request.proba and not saved.discrete:
            raise InputError(f"{self.path} has no classes; leave out --proba")
        if options.population and options.latents:
            raise InputError("give --population or --latents, not both")
        if data is None and any(options.columns.values()):
            option = next(name for name, value in options.columns.items() if value)
            raise InputError(f"--{option} names a column of DATA; give DATA")
        if not curves and (options.population or options.times is not None):
            what = "--latents" if options.latents else f"the model {saved.model}"
            raise InputError(f"{what} has no curves over time; leave out --times and --population")
        if data is None and not options.population and options.covariates is not None:
            raise InputError("the fit knows its individuals' covariates; leave out --covariates")
        if data is None and options.population and names is not None:
            raise InputError(
                "--individual without DATA is an individual of the fit; leave out --population"
            )

    def score(self, request: UseRequest) -> None:
        import numpy as np

        from vpem.saem.estimates import criteria_of
        from vpem.saem.prediction import Predictor

        refuse_given(request.rows, "is for mixtures; a fit of SAEM takes individuals as they are")
        predictor = Predictor(self.stored)
        individuals = self.individuals(request)
        assert individuals is not None
        likelihood = predictor.score(individuals)
        value, p = likelihood.value, len(self.stored.parameters)
        effective = float(np.min(likelihood.effective))
        criteria = criteria_of(self.stored, value, individuals.n_individuals, individuals.n_rows)
        if request.output.json:
            print_json({
                "n_individuals": individuals.n_individuals,
                "n_samples": individuals.n_rows,
                "n_parameters": p,
                "log_likelihood": {
                    "value": value, "error": likelihood.error, "least_effective_draws": effective,
                    "linearized": likelihood.linearized,
                },
                "individuals": [
                    {"id": name, "log_likelihood": each}
                    for name, each in zip(individuals.names, likelihood.each.tolist(), strict=True)
                ],
                **criteria,
            })  # fmt: skip
            return
        error = f", Monte Carlo error {likelihood.error:.2g}" if likelihood.error else ""
        facts = (
            ("individuals", individuals.n_individuals),
            ("rows", individuals.n_rows),
            ("parameters", p),
            ("log-likelihood, total", f"{value:.4f}{error}"),
            ("log-likelihood per individual", number(value / individuals.n_individuals, 8)),
            ("BIC, of individuals", f"{criteria['bic']:.4f}"),
            ("AIC", f"{criteria['aic']:.4f}"),
        )
        show(table(facts, "", ""))

    def as_json(self) -> Report:
        from vpem.saem.formats.fits import saem_as_json

        return saem_as_json(self.stored)

    def export(self, output: Path, force: bool, quote_formulas: bool) -> None:
        import numpy as np

        from vpem.saem.formats.fits import ARRAYS

        saved = self.stored
        arrays = {name: getattr(saved, name) for name in ARRAYS} | {
            name: np.array(getattr(saved, name), dtype=np.str_)
            for name in ("parameters", "latents", "names")
        }
        _export(output, force, self.as_json(), arrays)


def _export(output: Path, force: bool, content: Report, arrays: Mapping[str, Any]) -> None:
    """Write contents of a fit as JSON or, by the ending, its arrays as an archive of NumPy."""
    import json

    import numpy as np

    check_writable(output, force, "exported models")
    with atomic_write(output, force, "exported models") as temporary:
        if ending_of(output) == ".json":
            with open(temporary, "w", encoding="utf-8") as stream:
                json.dump(as_plain(content), stream, allow_nan=False)
                stream.write("\n")
            return
        with open(temporary, "wb") as binary:
            np.savez(binary, **arrays)


def _curves(
    predictor: Predictor,
    individuals: Individuals | None,
    times: list[float] | None,
    options: IndividualSettings,
) -> Tables:
    import numpy as np

    if options.population:
        words = words_in(reported(predictor.saved.settings, "columns", dict) or {})
        values = options.known_values(words) if individuals is None else None
        curves: FittedCurves = predictor.population(times, values, individuals)
    elif individuals is None:
        curves = predictor.stored(options.individual, times)
    else:
        curves = predictor.curves(individuals, times)
    at = curves.at
    measured = bool(np.isfinite(at.values).any())
    columns = {
        "id": np.array(at.names, dtype=np.str_)[at.individual_of],
        "time": at.times,
        **({"value": at.values} if measured else {}),
        "fitted": curves.fitted,
        "lower": curves.lower,
        "upper": curves.upper,
    }
    listed = []
    for one, name in enumerate(at.names):
        rows = slice(at.first[one], at.first[one + 1])
        part = {key: values[rows] for key, values in columns.items() if key != "id"}
        listed.append({"id": name, **part})
    report = {
        "n_individuals": at.n_individuals,
        "level": curves.level,
        "interval_of": "curve",
        "curves": listed,
    }
    return report, columns


def _residuals(predictor: Predictor, individuals: Individuals) -> Tables:
    import numpy as np

    from vpem.saem.diagnostics import residuals_of

    residuals = residuals_of(predictor, individuals)
    numbers = {
        "time": individuals.times,
        "value": individuals.values,
        "population": residuals.population,
        "fitted": residuals.fitted,
        "iwres": residuals.individual,
        "pwres": residuals.among,
        "npde": residuals.npde,
    }
    names = np.array(individuals.names, dtype=np.str_)[individuals.individual_of]
    report = {"n_individuals": individuals.n_individuals, "residuals": {"id": names, **numbers}}
    return report, {"id": names, **numbers}


def _latents(
    predictor: Predictor, individuals: Individuals | None, names: list[str] | None
) -> Tables:
    """Return latents given rows, or those of the fit."""
    import numpy as np

    estimates = (
        predictor.stored_latents(names) if individuals is None else predictor.latents(individuals)
    )
    latents = predictor.saved.latents
    ids = np.array(estimates.names, dtype=np.str_)
    listed = [
        {"id": name, "latents": values}
        for name, values in zip(estimates.names, latents_of(latents, estimates), strict=True)
    ]
    report = {"n_individuals": len(ids), "level": estimates.level, "individuals": listed}
    return report, {"id": ids, **latent_columns(latents, estimates)}


def _classes(predictor: Predictor, individuals: Individuals | None, proba: bool) -> Tables:
    """Return the most probable class of each individual given its rows."""
    import numpy as np

    if individuals is None:
        raise InputError(
            f"the model {predictor.saved.model} predicts classes of individuals from their rows; "
            "give DATA"
        )
    shares = predictor.responsibilities(individuals)
    labels = shares.argmax(axis=1)
    names = np.array(individuals.names, dtype=np.str_)
    more = {f"proba_{k}": column for k, column in enumerate(shares.T)} if proba else {}
    counts = np.bincount(labels, minlength=shares.shape[1])
    report: Report = {"n_individuals": len(names), "counts": counts, "labels": labels}
    if proba:
        report["proba"] = shares
    return report, {"id": names, "label": labels, **more}


NO_DOCUMENTS = "is not for documents, which have words and counts"


class TopicsFile(StoredFile):
    """What `vpem saem --model lda` has written."""

    holds = "topics"
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
        """Read the data, if any: all documents, or those of --individual."""
        from vpem.saem.formats.individuals import COLUMNS, read_corpus

        options, data = request.individuals, request.data
        for about in (request.parties, request.engine):
            refuse_given(about, "is for mixtures and clusters; documents are in one file")
        refuse_given(request.rows, NO_DOCUMENTS, "dataset")
        refuse_given(options, NO_DOCUMENTS, "individual", "id", "time", "value")
        if data is None:
            return None
        columns = {name: column for name, column in options.columns.items() if column is not None}
        if is_long_csv(data):
            fitted = reported(self.stored.saved.settings, "columns", dict) or {}
            columns = {
                **{
                    one: fitted[one]
                    for one, usual in COLUMNS.items()
                    if isinstance(fitted.get(one), str) and fitted[one] != usual
                },
                **columns,
            }
        documents = read_corpus(data, columns, request.rows.dataset)
        return (
            documents
            if options.individual is None
            else documents.named(options.individual, "document")
        )

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

    def predict(self, request: UseRequest) -> int:
        output, saved = request.output, self.stored.saved
        documents = self.evaluation_data(request)
        unknown: Report = {}
        if documents is None:
            which = saved.places(request.individuals.individual)
            names = [saved.names[one] for one in which]
            ends = (saved.means[which], saved.lower[which], saved.upper[which])
        else:
            heard = self._hear(request, documents)
            proportions = heard.proportions()
            names, ends = list(heard.model.individuals.names), (
                proportions.means, proportions.lower, proportions.upper,
            )  # fmt: skip
            unknown = {"n_unknown": heard.n_unknown, "n_left_out": heard.n_left_out}
        columns = document_columns(names, *ends)
        output.write(columns, "vpem-saem-individuals")
        if output.json:
            report: Report = {
                "model": "lda", "n_individuals": len(names), **unknown,
                "output": None if output.output is None else str(output.output),
            }  # fmt: skip
            if output.output is None:
                listed = [
                    {"id": name, "proportions": mean, "lower": low, "upper": high}
                    for name, mean, low, high in zip(names, *ends, strict=True)
                ]
                report |= {"level": saved.level, "individuals": listed}
            print_json(report)
        return len(names)

    def score(self, request: UseRequest) -> None:
        documents = self.evaluation_data(request)
        assert documents is not None
        heard = self._hear(request, documents)
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
        import numpy as np

        content = self.as_json()
        names = ("words", "probabilities", "names", "proportions", "lower", "upper", "trace",
                 "perplexities", "bytes", "device_names", "device_shares")  # fmt: skip
        _export(output, force, content, {name: np.array(content[name]) for name in names})
