"""Fits of SAEM on disk: estimates, how sure they are, the latents of individuals, the trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from vpem.checks import Doubles
from vpem.errors import FileError
from vpem.files.elements import (
    COMMUNICATION,
    Elements,
    Json,
    Strings,
    check_written,
    read_elements,
    write_elements,
)
from vpem.files.hdf5 import SAEM_FIT, made_of, read_file, write_file
from vpem.files.opening import PathLike
from vpem.network.schema import (
    COUNT,
    FLAG,
    PLAIN,
    REAL,
    TEXT,
    Array,
    Choice,
    Fields,
    Integer,
    ListOf,
    Maybe,
    Number,
    Report,
    State,
    TableOf,
)
from vpem.saem.conditional import LogLikelihood
from vpem.saem.doses import Doses
from vpem.saem.estimates import Summary, criteria_of
from vpem.saem.models.lda import TopicNames
from vpem.saem.models.model import MODELS, OWN, model_class
from vpem.saem.results import CorpusFacts, SaemFit, SavedSaem, Topics

if TYPE_CHECKING:
    import h5py

ENCODING = SAEM_FIT
VERSION = "0.1.0"
DEEPEST = 8
TOLERANCE = 1e-8
"""Relative size to which matrices must be symmetric and have no negative eigenvalues."""

LARGEST = float(np.finfo(np.float64).max)

ARRAYS = (
    "theta", "standard_errors", "information", "means", "covariances", "lower", "upper",
    "shrinkage", "trace", "bytes",
)  # fmt: skip
OF_TOPICS = ("lower", "upper", "trace", "bytes")
"""Those of a fit of topics, whose estimates are probabilities of words."""

LIKELIHOOD = ("value", "error", "each", "effective", "linearized")
OF_CORPUS = ("shares", "coherence", "n_tokens", "device_shares", "perplexities")
OF_DOSES = ("times", "amounts", "durations")
TEXTS = ("model_options", "settings", "communication", "versions")
KEPT = ("model", "level", "converged", "grounds", *TEXTS)

COLUMNS: Fields = {
    **dict.fromkeys(("id", "time", "value"), TEXT),
    **dict.fromkeys(("covariates", "doses"), TableOf(TEXT)),
    "words": TableOf(ListOf(TEXT)),
}
SETTINGS = TableOf(
    PLAIN,
    known={
        **dict.fromkeys(("devices", "n_chains", "n_individuals", "n_rows", "burn_in"), COUNT),
        **dict.fromkeys(("sampler", "average", "shares", "codec", "feedback", "data"), TEXT),
        "tol": REAL,
        "participation": REAL,
        "sampler_options": TableOf(PLAIN),
        "columns": TableOf(PLAIN, known=COLUMNS),
    },
)
"""What is read of the settings again."""

LATENT = Array("f", ("individuals", "latents"))

SAEM: Elements = {
    "@model": Choice((*MODELS, OWN)),
    "@model_class": Maybe(TEXT),
    "@grounds": Maybe(TEXT),
    "@discrete": FLAG,
    "@level": Number(0.0, 1.0),
    "@n_draws": Integer(0, (1 << 31) - 1),
    "@n_iter": Integer(1, (1 << 31) - 1, size="iterations"),
    "@converged": FLAG,
    "@change": Number(0.0, nan=True),
    "parameters": Maybe(Strings("parameters", least=1, different=True)),
    "words": Maybe(Strings("words", different=True)),
    "latents": Strings("latents", least=1, different=True),
    "corpus/device_names": Maybe(Strings("devices", least=1, different=True)),
    "corpus/shares": Maybe(Array("f", ("latents",), 0, 1)),
    "corpus/coherence": Maybe(Array("f", ("latents",), -1, 1)),
    "corpus/n_tokens": Maybe(Array("f", (), 1, LARGEST)),
    "corpus/device_shares": Maybe(Array("f", ("listed devices", "latents"), 0, 1)),
    "corpus/perplexities": Maybe(Array("f", ("looks", 2), 0, LARGEST)),
    "names": Strings("individuals", different=True),
    "theta": Array("f", ("parameters",)),
    "standard_errors": Array("f", ("parameters",), 0, nan=True),
    "information": Array("f", ("informed", "informed"), nan=True, inf=True),
    "covariance": Maybe(Array("f", ("informed", "informed"), nan=True)),
    "freedom": Maybe(Array("f", ("parameters",), 0, nan=True, inf=True)),
    "test_errors": Maybe(Array("f", ("parameters",), 0, nan=True)),
    "means": LATENT,
    "covariances": Array("f", ("individuals", "spread", "spread")),
    "lower": LATENT,
    "upper": LATENT,
    "shrinkage": Array("f", ("latents",), 0, 1),
    "acceptance": Maybe(Array("f", ("individuals",), 0, 1)),
    "trace": Array("f", ("points", "followed")),
    "bytes": Array("i", ("iterations",), 0, (1 << 62) - 1),
    "log_likelihood/value": Array("f", (), most=LARGEST, nan=True, inf=True),
    "log_likelihood/error": Array("f", (), 0, nan=True, inf=True),
    "log_likelihood/each": Array("f", ("individuals",), most=LARGEST, nan=True, inf=True),
    "log_likelihood/effective": Array("f", ("individuals",), 0, nan=True, inf=True),
    "log_likelihood/linearized": Maybe(Array("f", (), most=LARGEST, nan=True, inf=True)),
    "covariate_names": Strings("covariates", different=True),
    "covariates": Array("f", ("covariates", "individuals"), nan=True),
    "time_range": Array("f", (2,)),
    "doses/counts": Maybe(Array("i", ("individuals",), 0)),
    "doses/times": Maybe(Array("f", ("doses",))),
    "doses/amounts": Maybe(Array("f", ("doses",), 0)),
    "doses/durations": Maybe(Array("f", ("doses",), 0)),
    "model_options": Json(TableOf(PLAIN, known={"slopes": ListOf(TEXT)}), DEEPEST),
    "settings": Json(SETTINGS, DEEPEST),
    "communication": Json(COMMUNICATION, DEEPEST),
    "versions": Json(TableOf(TEXT), DEEPEST),
}


def save_saem(path: PathLike, fit: SaemFit | SavedSaem, *, force: bool = False) -> None:
    """Write a fit, all or nothing.

    Of a model of a user's own its estimates are written, not its class: to predict with it, the
    class is given again.

    Parameters
    ----------
    path : path
        The file (HDF5).
    fit : SaemFit or SavedSaem
        What to write.
    force : bool
        Replace an existing file.

    Raises
    ------
    FileError
        If the file exists and ``force`` is False, or cannot be written.
    InputError
        If a name cannot be stored, or the settings have what no reader takes.
    """
    saved = fit.saved
    wide, doses = saved.wide, saved.doses
    table = np.array(list(saved.covariates.values()))
    values = vars(saved) | {
        # Names of very many parameters follow from those of words.
        "parameters": None if wide else saved.parameters,
        "words": saved.words if wide else None,
        "covariate_names": tuple(saved.covariates),
        "covariates": table.reshape(len(saved.covariates), len(saved.names)),
        "time_range": np.array(saved.time_range),
        "doses/counts": None if doses is None else doses.counts.astype(np.int64),
    }
    for group, part, names in (
        ("log_likelihood", saved.log_likelihood, LIKELIHOOD),
        ("doses", doses, OF_DOSES),
        ("corpus", saved.corpus, ("device_names", *OF_CORPUS)),
    ):
        values |= {
            f"{group}/{name}": None if part is None else getattr(part, name) for name in names
        }
    check_written(path, SAEM, values)
    with write_file(path, force, "fits of SAEM", ENCODING, VERSION) as file:
        write_elements(file, SAEM, values)


def arrays_of(saved: SavedSaem) -> Report:
    """Arrays of a fit, or of topics, and what these are of: an archive of NumPy."""
    texts = {name: getattr(saved, name) for name in ("parameters", "latents", "names")}
    arrays = {name: getattr(saved, name) for name in ARRAYS}
    if saved.corpus is not None:
        topics, arrays = Topics(saved), {name: arrays[name] for name in OF_TOPICS}
        arrays |= {"probabilities": topics.topics, "proportions": saved.means}
        arrays |= {name: getattr(saved.corpus, name) for name in ("device_shares", "perplexities")}
        texts = {name: getattr(topics, name) for name in ("words", "device_names")}
        texts["names"] = saved.names
    return arrays | {name: np.array(one, dtype=np.str_) for name, one in texts.items()}


def saem_as_json(saved: SavedSaem) -> Report:
    """A whole fit as values that JSON can hold, once NaN and infinite numbers are None."""
    if saved.corpus is not None:
        kept = {name: getattr(saved, name) for name in KEPT}
        arrays = {name: one.tolist() for name, one in arrays_of(saved).items()}
        return {"encoding-type": ENCODING, **arrays, **kept, **Topics(saved).as_json()}
    likelihood = saved.log_likelihood
    rows = saved.settings.get("n_rows")
    listed, values = (
        {name: one.tolist() if isinstance(one, np.ndarray) else one
         for name, one in vars(some).items() if name != "own_curve"}  # no part of the fit
        for some in (saved, likelihood)
    )  # fmt: skip
    doses = None
    if saved.doses is not None:
        columns = zip(OF_DOSES, saved.doses.columns, strict=True)
        doses = {"counts": saved.doses.counts.tolist()}
        doses |= {name: column.tolist() for name, column in columns}
    return {
        "encoding-type": ENCODING,
        "encoding-version": VERSION,
        **listed,
        "parameters": list(saved.parameters),
        "estimates": saved.estimates,
        "standard_errors": saved.errors,
        "log_likelihood": values,
        "criteria": criteria_of(saved, likelihood.value, saved.n_individuals, rows),
        "summary": Summary(saved).as_json(),
        "covariates": {name: values.tolist() for name, values in saved.covariates.items()},
        "doses": doses,
    }


def read_saem(path: PathLike) -> SavedSaem:
    """Read a fit, trusting nothing in the file.

    Raises
    ------
    FileError
        If the file is missing, damaged, no fit of SAEM, from a newer vpem, or its parts do not
        agree.
    """
    otherwise = f"a {ENCODING} file; 'vpem saem --output' writes one"
    with read_file(path, ENCODING, VERSION, otherwise) as file, made_of(path):
        return _read_parts(file)


def _read_parts(file: h5py.File) -> SavedSaem:
    n_iter = read_elements(file, {"@n_iter": SAEM["@n_iter"]})["n_iter"]
    elements = read_elements(file, SAEM, points=n_iter + 1)

    def need(fine: object, what: str) -> None:
        if not fine:
            raise FileError(f"{file.filename}: {what}")

    elements["parameters"] = _names_of(elements, need)
    elements["words"] = elements["words"] or ()
    elements["corpus"] = _corpus_of(elements, need)
    need(0 < elements["level"] < 1, "attribute 'level' must be between 0 and 1, and neither")
    need((elements["lower"] <= elements["upper"]).all(), "lower must not be above upper")
    need((np.diff(elements["bytes"]) >= 0).all(), "bytes must be whole numbers that do not fall")
    need(_semidefinite(elements["covariances"]), "covariances must be positive semi-definite")
    if np.isfinite(elements["standard_errors"]).all():
        need(
            _semidefinite(elements["information"][None]),
            "information must be positive semi-definite",
        )
    first, last = elements.pop("time_range").tolist()
    need(first <= last, "time_range is no range: its first time is after its last")
    for name, value in elements["model_options"].items():
        # A model makes no more of an option than there are parameters.
        count = len(value) if isinstance(value, list) else value if isinstance(value, int) else 0
        need(
            count <= len(elements["parameters"]),
            f"model option {name[:40]!r} is too large for {len(elements['parameters'])} parameters",
        )
    value, error, each, effective = (
        elements.pop(f"log_likelihood/{name}") for name in ("value", "error", "each", "effective")
    )
    tangent = elements.pop("log_likelihood/linearized")
    likelihood = LogLikelihood(
        float(value), float(error), each, effective, math.nan if tangent is None else float(tangent)
    )
    summed = elements["names"] and not elements["settings"].get("weighted")
    if math.isfinite(likelihood.value) and summed:
        size = max(1.0, float(np.abs(likelihood.each).sum()))
        near = abs(float(likelihood.each.sum()) - likelihood.value) <= 1e-6 * size
        need(near, "log_likelihood/value must be the sum of log_likelihood/each")
    covariates = dict(zip(elements.pop("covariate_names"), elements.pop("covariates"), strict=True))
    # Doses of individuals, if all that says so is there and agrees.
    counts, *columns = (elements.pop(f"doses/{name}") for name in ("counts", *OF_DOSES))
    there = [value is not None for value in (counts, *columns)]
    need(all(there) or not any(there), "doses must be there with counts, times and amounts, or not")
    elements["doses"] = None
    if counts is not None:
        total = len(columns[0])
        need(counts.max(initial=0) <= total, f"the counts of doses must add up to {total} doses")
        need(int(counts.sum()) == total, f"the counts of doses must add up to {total} doses")
        whose = np.repeat(np.arange(len(counts)), counts)
        elements["doses"] = Doses.from_lists(len(counts), whose, *columns)
    for name in ("model_class", "grounds"):
        elements[name] = elements[name] or ""
    return SavedSaem(
        **elements, log_likelihood=likelihood, covariates=covariates, time_range=(first, last)
    )


def _is_wide(elements: State) -> bool:
    return elements["model"] in MODELS and bool(model_class(elements["model"]).wide)


def _names_of(elements: State, need: Callable[[object, str], None]) -> Sequence[str]:
    """Names of parameters, if all that has as many agrees."""
    p, q = len(elements["theta"]), len(elements["latents"])
    wide = _is_wide(elements)
    shapes = [elements[name].shape[-1] for name in ("information", "covariances", "trace")]
    sizes = [0, 0, q] if wide else [p, q, p]
    need(shapes == sizes, f"information, covariances and trace must be of {sizes} numbers each")
    need(wide == (elements["parameters"] is None), "there must be names of parameters, or of words")
    if not wide:
        names: Sequence[str] = elements["parameters"]
        return names
    words, V = elements["words"], elements["model_options"].get("n_words")
    fits = type(V) is int and V > 0 and q * V == p and len(words or ()) in (0, V)
    need(fits, f"{p} probabilities of words in {q} topics must be those of a vocabulary")
    return TopicNames(q, V, words or None)


def _corpus_of(elements: State, need: Callable[[object, str], None]) -> CorpusFacts | None:
    """Facts of a corpus, if all that says so is there and agrees."""
    parts = {name: elements.pop(f"corpus/{name}") for name in ("device_names", *OF_CORPUS)}
    there = [value is not None for value in parts.values()]
    wide = _is_wide(elements)
    need(there == [wide] * len(there), "a corpus must say of which topics it is, and nothing else")
    if not wide:
        return None
    topics = elements["theta"].reshape(len(elements["latents"]), -1)
    for values in (topics, parts["shares"], parts["device_shares"], elements["means"]):
        need((np.abs(values.sum(axis=-1) - 1) < 1e-6).all(), "shares of topics must add up to 1")
    count = len(parts["device_shares"])
    need(count in (0, len(parts["device_names"])), "shares must be of all devices, or of none")
    return CorpusFacts(**{**parts, "n_tokens": float(parts["n_tokens"])})


def _semidefinite(matrices: Doubles) -> bool:
    """Whether matrices (m, k, k) are symmetric with no negative eigenvalue, units aside."""
    if not matrices.size:
        return True
    if not np.isfinite(matrices).all():
        return False
    sizes = np.sqrt(np.maximum(np.einsum("mii->mi", matrices), 0.0))
    sizes = np.where(sizes > 0, sizes, 1.0)
    scaled = matrices / sizes[:, :, None] / sizes[:, None, :]
    if not np.isfinite(scaled).all() or np.abs(scaled - scaled.transpose(0, 2, 1)).max() > 1e-6:
        return False
    return bool(np.linalg.eigvalsh(scaled).min() >= -TOLERANCE * matrices.shape[-1])
