"""Fits of SAEM on disk: estimates, how sure they are, the latents of individuals, the trace."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.errors import FileError, VpemError
from vpem.files.hdf5 import (
    atomic_write,
    check_encoding,
    create,
    find,
    is_group,
    open_read,
    read_array,
    read_attribute,
    read_strings,
    read_value,
    write_array,
    write_attribute,
    write_strings,
)
from vpem.files.json_text import read_json_element, write_json_element
from vpem.files.models import current_versions
from vpem.saem.likelihood import LogLikelihood
from vpem.saem.models.catalogue import MODELS, OWN
from vpem.saem.models.protocol import Vector
from vpem.saem.recipes import SaemFit

__all__ = [
    "ENCODING",
    "SavedSaem",
    "as_saved",
    "is_saem",
    "read_saem",
    "saem_as_json",
    "save_saem",
]

ENCODING = "vpem-saem"
VERSION = "0.1.0"
DEEPEST = 8
TOLERANCE = 1e-8
"""Relative size to which matrices must be symmetric and have no negative eigenvalues."""

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class SavedSaem:
    """A fit as a file keeps it: all that `SaemFit` tells, without the rows.

    Attributes
    ----------
    model : str
        One of `vpem.saem.models.catalogue.MODELS`, or ``own`` for a user's own.
    model_class : str
        Name of its class.
    model_options : dict
        What it is made with, besides individuals.
    parameters, latents : tuple of str
        Names (p,) and (q,).
    discrete : bool
        Whether latents are numbers of classes.
    theta, standard_errors : ndarray of shape (p,)
        Estimates, and their standard errors (NaN: unknown).
    information : ndarray of shape (p, p)
        Observed information.
    log_likelihood : LogLikelihood
        With its Monte Carlo error.
    names : tuple of str
        Of the individuals, (n,).
    means : ndarray of shape (n, q)
        Conditional means of the latents.
    covariances : ndarray of shape (n, q, q)
        Conditional covariances.
    lower, upper : ndarray of shape (n, q)
        Ends of intervals of the latents.
    level : float
        Probability of an interval.
    shrinkage : ndarray of shape (q,)
        As `vpem.saem.conditional.Conditional` has it.
    n_draws : int
        Draws of each individual's latents.
    acceptance : ndarray of shape (n,) or None
        Share of accepted moves.
    trace : ndarray of shape (n_iter + 1, p)
        Parameters, the start first.
    bytes : ndarray of shape (n_iter,)
        Payload bytes sent until each iteration.
    n_iter : int
        Iterations.
    converged : bool
        Whether the parameters had settled.
    change : float
        How far the farthest parameter was at the last look from where it settles, in its standard
        error; NaN: not looked at.
        Without ``grounds``, from an older vpem, a relative change.
    covariates : dict of str to ndarray of shape (n,)
        Those that do not change within any individual; NaN where missing.
    time_range : tuple of float
        First and last time of the rows.
    settings : dict
        How the fit was asked for.
    communication : dict
        What was sent, as `vpem.network.ledger.Ledger.summary` tells.
    versions : dict
        Of vpem, Python and the libraries.
    grounds : str
        A sentence on whether it converged; empty where none was asked for.
    """

    model: str
    model_class: str
    model_options: dict[str, Any]
    parameters: tuple[str, ...]
    latents: tuple[str, ...]
    discrete: bool
    theta: Vector
    standard_errors: Vector
    information: Vector
    log_likelihood: LogLikelihood
    names: tuple[str, ...]
    means: Vector
    covariances: Vector
    lower: Vector
    upper: Vector
    level: float
    shrinkage: Vector
    n_draws: int
    acceptance: Vector | None
    trace: Vector
    bytes: NDArray[np.int64]
    n_iter: int
    converged: bool
    change: float
    covariates: dict[str, Vector]
    time_range: tuple[float, float]
    settings: dict[str, Any] = field(default_factory=dict)
    communication: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    grounds: str = ""

    @property
    def estimates(self) -> dict[str, float]:
        """Estimates by the names of the parameters."""
        return dict(zip(self.parameters, self.theta.tolist(), strict=True))

    @property
    def errors(self) -> dict[str, float]:
        """Standard errors by the names of the parameters."""
        return dict(zip(self.parameters, self.standard_errors.tolist(), strict=True))


def as_saved(fit: SaemFit | SavedSaem) -> SavedSaem:
    """Return what a file would keep of a fit."""
    if isinstance(fit, SavedSaem):
        return fit
    data, given = fit.model.individuals, fit.given
    covariates = {}
    for name, values in data.covariates.items():
        each = values[data.first[:-1]]
        same = (values == each[data.individual_of]) | np.isnan(values)
        if same.all():
            covariates[name] = each
    return SavedSaem(
        fit.model_name,
        type(fit.model).__name__,
        fit.model_options,
        tuple(fit.model.parameters),
        tuple(fit.model.latents),
        fit.model.discrete,
        fit.theta,
        fit.standard_errors,
        fit.information,
        fit.log_likelihood,
        data.names,
        given.means,
        given.covariances,
        given.lower,
        given.upper,
        given.level,
        given.shrinkage,
        given.n_draws,
        fit.acceptance,
        fit.trace,
        fit.bytes,
        fit.n_iter,
        fit.converged,
        fit.change,
        covariates,
        (float(data.times.min()), float(data.times.max())),
        {"data": data.source, "n_rows": data.n_rows, **fit.settings},
        fit.ledger.summary(),
        current_versions(),
        fit.grounds,
    )


ARRAYS = (
    "theta", "standard_errors", "information", "means", "covariances", "lower", "upper",
    "shrinkage", "trace", "bytes",
)  # fmt: skip
TEXTS = ("model_options", "settings", "communication", "versions")


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
        If a name cannot be stored.
    """
    saved = as_saved(fit)
    with (
        atomic_write(path, force, "fits of SAEM") as temporary,
        create(temporary, ENCODING, VERSION) as file,
    ):
        write_attribute(file, "model", saved.model)
        write_attribute(file, "model_class", saved.model_class)
        write_attribute(file, "grounds", saved.grounds)
        for name in ("discrete", "level", "n_draws", "n_iter", "converged", "change"):
            file.attrs[name] = getattr(saved, name)
        for name in ("parameters", "latents", "names"):
            write_strings(file, name, getattr(saved, name))
        for name in ARRAYS:
            write_array(file, name, getattr(saved, name))
        if saved.acceptance is not None:
            write_array(file, "acceptance", saved.acceptance)
        likelihood = file.create_group("log_likelihood")
        for name in ("value", "error", "each", "effective"):
            write_array(likelihood, name, getattr(saved.log_likelihood, name))
        write_strings(file, "covariate_names", tuple(saved.covariates))
        table = np.array(list(saved.covariates.values())).reshape(-1, len(saved.names))
        write_array(file, "covariates", table)
        write_array(file, "time_range", np.array(saved.time_range))
        for name in TEXTS:
            write_json_element(file, name, getattr(saved, name))


def saem_as_json(saved: SavedSaem) -> dict[str, Any]:
    """Return a whole fit as values that JSON can hold, once NaN and infinite numbers are None."""
    likelihood = saved.log_likelihood
    listed = {one.name: getattr(saved, one.name) for one in fields(saved)}
    arrays = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in listed.items()
    }
    return {
        "encoding-type": ENCODING,
        "encoding-version": VERSION,
        **arrays,
        "estimates": saved.estimates,
        "standard_errors": saved.errors,
        "log_likelihood": {
            "value": likelihood.value,
            "error": likelihood.error,
            "each": likelihood.each.tolist(),
            "effective": likelihood.effective.tolist(),
        },
        "covariates": {name: values.tolist() for name, values in saved.covariates.items()},
    }


def is_saem(path: PathLike) -> bool:
    """Whether a file says that it is a fit of SAEM; `FileError` if it cannot be read."""
    with open_read(path) as file:
        return read_attribute(file, "encoding-type") == ENCODING


def read_saem(path: PathLike) -> SavedSaem:
    """Read a fit, trusting nothing in the file.

    Raises
    ------
    FileError
        If the file is missing, damaged, no fit of SAEM, from a newer vpem, or its parts do not
        agree.
    """
    with open_read(path) as file:
        if check_encoding(file, ENCODING, VERSION) != ENCODING:
            raise FileError(f"{path} is not a {ENCODING} file; 'vpem saem --output' writes one")
        try:
            return _read_parts(file)
        except FileError:
            raise
        except (VpemError, KeyError, ValueError, TypeError) as error:
            raise FileError(f"{path} is damaged: {error}") from error


def _read_parts(file: Any) -> SavedSaem:
    where = file.filename

    def need(fine: object, what: str) -> None:
        if not fine:
            raise FileError(f"{where}: {what}")

    model = read_attribute(file, "model") or ""
    need(model in (*MODELS, OWN), f"attribute 'model' is {model[:40]!r}, no model of vpem")
    named: dict[str, Any] = {
        name: read_strings(file, name) for name in ("parameters", "latents", "names")
    }
    for name, strings in named.items():
        need(strings, f"{name} has no values")
        need(len(set(strings)) == len(strings), f"{name} must all be different")
    p, q, n = map(len, named.values())
    n_iter = _whole(file, "n_iter", 1)
    shapes = {
        "theta": (p,), "standard_errors": (p,), "information": (p, p), "means": (n, q),
        "covariances": (n, q, q), "lower": (n, q), "upper": (n, q), "shrinkage": (q,),
        "trace": (n_iter + 1, p), "bytes": (n_iter,),
    }  # fmt: skip
    read: dict[str, Any] = {
        name: read_array(file, name, shape=shape, kinds="iu" if name == "bytes" else "f")
        for name, shape in shapes.items()
    }
    for name in ("theta", "means", "covariances", "lower", "upper", "shrinkage", "trace"):
        need(np.isfinite(read[name]).all(), f"{name} must be finite numbers")
    need((read["lower"] <= read["upper"]).all(), "lower must not be above upper")
    need(_is_share(read["shrinkage"]), "shrinkage must be between 0 and 1")
    _check_bytes(read["bytes"], need)
    read["bytes"] = read["bytes"].astype(np.int64)
    need(_semidefinite(read["covariances"]), "covariances must be positive semi-definite")
    errors = read["standard_errors"]
    need(
        not (errors < 0).any() and not np.isinf(errors).any(),
        "standard_errors must not be negative or infinite",
    )
    if np.isfinite(errors).all():
        need(_semidefinite(read["information"][None]), "information must be positive semi-definite")
    if find(file, "acceptance") is not None:
        read["acceptance"] = read_array(file, "acceptance", shape=(n,), kinds="f")
        need(_is_share(read["acceptance"]), "acceptance must be between 0 and 1")
    level, change = _real(file, "level"), _real(file, "change")
    need(0 < level < 1, f"attribute 'level' must be between 0 and 1, got {level!r}")
    need(not change < 0, f"attribute 'change' must not be negative, got {change!r}")
    covariates = read_strings(file, "covariate_names")
    need(len(set(covariates)) == len(covariates), "covariate_names must all be different")
    table = read_array(file, "covariates", shape=(len(covariates), n), kinds="f")
    need(not np.isinf(table).any(), "covariates must not be infinite")
    first, last = read_array(file, "time_range", shape=(2,), kinds="f").tolist()
    need(math.isfinite(first) and math.isfinite(last) and first <= last, "time_range is no range")
    texts: dict[str, Any] = {name: read_json_element(file, name, DEEPEST) for name in TEXTS}
    for name, value in texts["model_options"].items():
        # A model makes no more of an option than there are parameters.
        large = isinstance(value, list) and len(value) > p
        large = large or (isinstance(value, int) and value > p)
        need(not large, f"model option {name[:40]!r} is too large for {p} parameters")
    return SavedSaem(
        model=model,
        model_class=read_attribute(file, "model_class") or "",
        **named,
        discrete=_flag(file, "discrete"),
        log_likelihood=_read_likelihood(file, n, need),
        level=level,
        n_draws=_whole(file, "n_draws", 1),
        n_iter=n_iter,
        converged=_flag(file, "converged"),
        change=change,
        grounds=read_attribute(file, "grounds") or "",
        covariates=dict(zip(covariates, table, strict=True)),
        time_range=(first, last),
        acceptance=read.pop("acceptance", None),
        **read,
        **texts,
    )


def _read_likelihood(file: Any, n: int, need: Callable[[object, str], None]) -> LogLikelihood:
    group = find(file, "log_likelihood")
    need(is_group(group), "there is no group log_likelihood")
    value, error = (
        float(read_array(group, name, shape=(), kinds="f")) for name in ("value", "error")
    )
    each, effective = (
        read_array(group, name, shape=(n,), kinds="f") for name in ("each", "effective")
    )
    need(value != np.inf and not (each == np.inf).any(), "log_likelihood must not be infinite")
    if math.isfinite(value):
        near = abs(float(each.sum()) - value) <= 1e-6 * max(1.0, float(np.abs(each).sum()))
        need(near, "log_likelihood/value must be the sum of log_likelihood/each")
    need(not (error < 0 or (effective < 0).any()), "log_likelihood has an error that is negative")
    return LogLikelihood(value, error, each, effective)


def _check_bytes(sent: NDArray[Any], need: Callable[[object, str], None]) -> None:
    rising = sent[0] >= 0 and int(sent.max()) < 1 << 62 and (sent[1:] >= sent[:-1]).all()
    need(rising, "bytes must be whole numbers that do not fall")


def _is_share(values: Vector) -> bool:
    return bool(((values >= 0) & (values <= 1)).all())


def _semidefinite(matrices: Vector) -> bool:
    """Whether matrices (m, k, k) are symmetric with no negative eigenvalue, units aside."""
    if not np.isfinite(matrices).all():
        return False
    sizes = np.sqrt(np.maximum(np.einsum("mii->mi", matrices), 0.0))
    sizes = np.where(sizes > 0, sizes, 1.0)
    scaled = matrices / sizes[:, :, None] / sizes[:, None, :]
    if not np.isfinite(scaled).all() or np.abs(scaled - scaled.transpose(0, 2, 1)).max() > 1e-6:
        return False
    return bool(np.linalg.eigvalsh(scaled).min() >= -TOLERANCE * matrices.shape[-1])


def _whole(file: Any, name: str, least: int) -> int:
    value = read_value(file, name)
    if not isinstance(value, int | np.integer) or not least <= int(value) < 1 << 31:
        raise FileError(
            f"{file.filename}: attribute {name!r} must be an integer of at least {least}, got "
            f"{str(value)[:40]}"
        )
    return int(value)


def _real(file: Any, name: str) -> float:
    value = read_value(file, name)
    if not isinstance(value, float | np.floating):
        raise FileError(
            f"{file.filename}: attribute {name!r} must be a real number, got {str(value)[:40]}"
        )
    return float(value)


def _flag(file: Any, name: str) -> bool:
    value = read_value(file, name)
    if not isinstance(value, bool | np.bool_):
        raise FileError(
            f"{file.filename}: attribute {name!r} must be true or false, got {str(value)[:40]}"
        )
    return bool(value)
