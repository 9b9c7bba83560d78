"""Outcomes of classes in three steps, without the bias that uncertain classes bring.

A mixture is fitted (step 1), rows are assigned to its classes (2), and an outcome is described by
class, or covariates predict it (3). Assigned classes are not the true ones, but responsibilities
say how often they differ: ``D[t, s]``, the chance that a row of class t is assigned to class s.
Step 3 goes back to true classes by weights (BCH: Bolck, Croon and Hagenaars 2004) or by maximum
likelihood (Vermunt 2010). It needs responsibilities and the outcome, and no other data.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from vpem.checks import Doubles, as_array, check_number, check_weights
from vpem.errors import InputError, VpemWarning, check_choice, not_converged, shorten
from vpem.network.schema import Report
from vpem.settings import ASSIGNMENTS, CORRECTIONS
from vpem.terms.merging import check_responsibilities

Tables = dict[str, Doubles]
COEFFICIENTS = "coefficients"
MISSING, MOST_LEVELS = ("None", "nan", "<NA>", "NaT"), 100
EM_STEPS, MOST_STEPS = 5, 500
"""The first steps are of EM, those that follow of Newton, where these make rows likelier."""
CLOSE, SINGULAR, TINY = 1e-10, 1e-12, 1e-15
BOUNDARY, LEAST_VARIANCE, WORST = 1e-7, 1e-8, 1e8
"""Of proportions with an error, of a class in variances of all rows, and the condition of D."""
LARGEST, UNKNOWN, EXACT = 1e100, 1e-9, 1e-6
"""Of values; of what rows say of a parameter, in what they could; of a variance that is none."""


def three_step(
    proba: ArrayLike,
    outcome: Any = None,
    covariates: Any = None,
    sample_weight: ArrayLike | None = None,
    *,
    method: str = "bch",
    assignment: str = "modal",
    level: float = 0.95,
) -> Report:
    """Describe an outcome by class, or predict the class by covariates, in three steps.

    ``bch`` weighs rows by ``sum_s w_is D^-1[s, t]`` and assumes nothing of the outcome within a
    class. ``ml`` maximises ``sum_i sum_s w_is log sum_t pi_t(z_i) f(y_i | t) D[t, s]``, where
    numbers are normal; its errors are smaller if they are (Bakk and Vermunt 2016).

    Parameters
    ----------
    proba : array of shape (M, K)
        Responsibilities of the rows, as from ``predict_proba``.
    outcome : array of shape (M,), optional
        Numbers, or strings or booleans, which are levels. Rows that lack it are left out of step 3.
    covariates : array or data frame of shape (M, q), or dict of arrays of shape (M,), optional
        Numbers that predict the class, in place of an outcome.
    sample_weight : array of shape (M,), optional
        Weight of each row. Zero has no effect, an integer equals as many copies.
    method : {"bch", "ml"}
    assignment : {"modal", "proportional"}
        Rows belong to their most responsible class, or to each by its responsibility.
    level : float
        Of the intervals.

    Returns
    -------
    dict
        ``estimates``, ``standard_errors`` (by the sandwich, D as known; nan at a boundary),
        ``lower`` and ``upper``: dicts of ``means`` and ``variances`` (K,); or ``proportions``
        (K, L); or ``coefficients`` (K, 1 + q), with ``z`` and ``p_values``, 0 of the first class.
        ``tests``: Wald tests of equality over classes. ``names`` of levels or columns, ``kind``,
        ``classification`` D (K, K), ``sizes`` of classes (K,), ``n_samples``, ``n_missing``.

    Raises
    ------
    InputError
        If these are no responsibilities, values cannot be used, or a class has no rows.

    References
    ----------
    J. K. Vermunt (2010), Latent class modeling with covariates: two improved three-step approaches,
    Political Analysis 18(4). Z. Bakk, J. K. Vermunt (2016), Robustness of stepwise latent class
    modeling with continuous distal outcomes, Structural Equation Modeling 23(1).
    """
    shares = check_responsibilities(proba)
    weights = np.ones(len(shares))
    check_choice("method", method, CORRECTIONS)
    check_choice("assignment", assignment, ASSIGNMENTS)
    level = check_number("level", level, least=0, most=1, above=True)
    if sample_weight is not None:
        weights = check_weights(sample_weight, len(shares))
    if (outcome is None) == (covariates is None):
        raise InputError("give an outcome or covariates, one of the two")
    what, given = ("outcome", outcome) if covariates is None else ("covariates", covariates)
    names, values, levels = _read(what, given, weights)
    if what == "covariates" and shares.shape[1] == 1:
        raise InputError("there is one class only, which covariates cannot predict")
    rows = ~np.isnan(values).any(axis=1)
    if not rows.any():
        raise InputError(f"no row has the {what}")
    sizes, assigned = weights @ shares, shares
    if not (sizes > 0).all():
        empty = shorten(np.flatnonzero(~(sizes > 0)))
        raise InputError(f"class {empty} has no rows; fit fewer components, or merge them")
    if assignment == "modal":
        assigned = np.eye(len(sizes))[shares.argmax(axis=1)]
    errors = (shares * weights[:, None]).T @ assigned / sizes[:, None]
    third = _Third(values[rows], len(levels), what, weights[rows], assigned[rows], errors, method)
    if third.constant.any():
        constant = np.array(names)[third.constant].tolist()
        raise InputError(f"{shorten(map(repr, constant))} has one value only, in all these rows")
    least, among = np.linalg.eigh((third.x * third.weights[:, None]).T @ third.x)
    if least[0] < SINGULAR * least[-1]:
        same = np.array(names)[abs(among[1:, 0]) > BOUNDARY].tolist()
        raise InputError(f"covariates {shorten(map(repr, same))} determine each other; drop one")
    found, covariance, unknown = third.solve()
    exact = found[:, -1] < EXACT if "variances" in third.reported else np.zeros(1)
    if exact.any() and method == "ml":
        sentence = "has one value in class {}, which normal numbers fit without end; take bch"
        sentence = sentence.format(shorten(np.flatnonzero(exact)))
        warnings.warn(VpemWarning(f"{names[0]!r} {sentence}"), stacklevel=2)
    if unknown.size:
        classes = shorten(np.flatnonzero((abs(unknown) > BOUNDARY).any(axis=(1, 2))))
        sentence = (
            f"class {classes} has no rows with an outcome: estimates are arbitrary, errors nan"
        )
        if what == "covariates":
            sentence = f"covariates separate class {classes} from others: slopes have no errors"
            sentence += "" if method == "ml" else "; take ml"
        warnings.warn(VpemWarning(sentence), stacklevel=2)
    report: Report = {
        "kind": "categorical" if levels else "continuous" if what == "outcome" else what,
        "names": levels or names, "method": method, "assignment": assignment, "level": level,
        "estimates": {}, "standard_errors": {}, "tests": {}, "classification": errors,
        "sizes": sizes / sizes.sum(), "n_samples": int(rows.sum()),
        "n_missing": int((~rows & (weights > 0)).sum()),
    }  # fmt: skip
    for name, (move, shift) in third.reported.items():
        estimate = found @ move.T + shift
        spread = np.einsum("oa,kalb,pb->kolp", move, covariance, move)
        along = abs(np.einsum("oa,kan->kon", move, unknown)).max(axis=2, initial=0.0)
        spread[along > BOUNDARY * abs(move).max(axis=1)] = np.nan
        error = np.sqrt(np.maximum(np.einsum("koko->ko", spread), 0))
        tested = {name: [*range(max(len(move) - 1, 1))]}
        if what == "covariates":
            tested = {one: [j] for j, one in enumerate(names, 1)}
        elif name != "means" and method == "ml":
            estimate = np.maximum(estimate, 0.0)  # it is less by rounding only
        elif name != "means" and (estimate < 0).any():
            classes = shorten(np.flatnonzero((estimate < 0).any(axis=1)))
            sentence = f"{name} are below 0 in class {classes}, since BCH weights are: take ml"
            warnings.warn(VpemWarning(sentence), stacklevel=2)
        report["tests"] |= {one: _wald(estimate, spread, at) for one, at in tested.items()}
        if levels:
            error[abs(estimate - 0.5) > 0.5 - BOUNDARY] = np.nan
        if report["kind"] == "continuous":
            estimate, error = estimate[:, 0], error[:, 0]
        report["estimates"][name], report["standard_errors"][name] = estimate, error
    return report | inference(report["estimates"], report["standard_errors"], level)


def inference(estimates: Tables, errors: Tables, level: float = 0.95) -> dict[str, Tables]:
    """Return the normal interval of each estimate, and z and p of those that may be 0, by name."""
    from scipy.special import ndtr, ndtri

    found: dict[str, Tables] = {}
    for name, estimate in estimates.items():
        known = np.where(errors[name] > 0, errors[name], np.nan)
        z, half = estimate / known, ndtri((1 + level) / 2) * known
        said = {"lower": estimate - half, "upper": estimate + half}
        if name == COEFFICIENTS:
            said = {"z": z, "p_values": 2 * ndtr(-abs(z))} | said
        for what, values in said.items():
            found.setdefault(what, {})[name] = values
    return found


def _read(what: str, given: Any, weights: Doubles) -> tuple[list[str], Doubles, list[str]]:
    """Return names of columns, their values (M, q), nan where missing, and levels of text."""
    names, n = [str(one) for one in getattr(given, "columns", ())], len(weights)
    if isinstance(given, dict):
        if len({np.shape(one) for one in given.values()}) != 1:
            raise InputError(f"{what} must be columns, all as long, got {len(given)}")
        names, given = [*given], np.column_stack([*given.values()])
    values = as_array(what, given)
    width = values[:1].size
    fits = width > 0 if what == "covariates" else width == 1
    if values.ndim not in (1, 2) or len(values) != n or not fits:
        raise InputError(f"{what} must have a value for each of {n} rows, got {values.shape}")
    values = values.reshape(n, -1)
    if len(names) != values.shape[1]:
        name = getattr(given, "name", None) or what.rstrip("s")
        names = [f"{name} {j}" for j in range(values.shape[1])] if values.shape[1] > 1 else [name]
    cells, numbers = values.ravel().tolist(), np.full(values.size, np.nan)
    there = np.array([repr(one) not in MISSING for one in cells])
    there &= np.repeat(weights > 0, values.shape[1])
    known = [one for one, is_there in zip(cells, there, strict=True) if is_there]
    levels: list[str] = []
    if all(isinstance(one, int | float) and not isinstance(one, bool) for one in known):
        numbers[there] = known
    elif what == "covariates":
        raise InputError("covariates must be numbers; give text a column of 0 and 1 for a level")
    else:
        words, numbers[there] = np.unique([str(one) for one in known], return_inverse=True)
        levels = words.tolist()
        if not 2 <= len(levels) <= MOST_LEVELS:
            raise InputError(f"the outcome has {len(levels)} levels; it needs 2 to {MOST_LEVELS}")
    if (abs(numbers) > LARGEST).any():
        raise InputError(f"{what} must be finite, and at most {LARGEST:g}")
    return names, numbers.reshape(values.shape), levels


def _wald(estimate: Doubles, spread: Doubles, columns: list[int]) -> Report:
    """Test that these columns of an estimate (K, q) are the same in all classes."""
    from scipy.special import chdtrc

    off = (estimate[1:] - estimate[:1])[:, columns].ravel()
    contrast = np.hstack([-np.ones((len(estimate) - 1, 1)), np.eye(len(estimate) - 1)])
    of_columns = spread[:, columns][..., columns]
    covered = np.einsum("sk,kolp,tl->sotp", contrast, of_columns, contrast)
    covered = covered.reshape(len(off), len(off))
    values, vectors = np.linalg.eigh(np.nan_to_num(covered))
    sound = values > SINGULAR * values.max(initial=0.0)
    lost = abs(off @ vectors[:, ~sound])  # what differs and has no error
    if np.isnan(covered).any() or (lost > BOUNDARY * abs(off).max(initial=0.0)).any():
        return {"statistic": np.nan, "degrees_of_freedom": len(off), "p_value": np.nan}
    statistic, rank = float(np.square(off @ vectors[:, sound]) @ (1 / values[sound])), sound.sum()
    p_value = float(chdtrc(rank, statistic)) if rank else 1.0
    return {"statistic": statistic, "degrees_of_freedom": int(rank), "p_value": p_value}


def _moments(y: Doubles, at: Doubles) -> tuple[Doubles, Doubles, Doubles, bool]:
    """A number y (M, 1), and mean and variance of each class (K, 2).

    Returned are what is 0 in the mean of a class and derivatives of the log-density, (M, K, 2),
    that but for a constant (M, K), and whether there is one: a variance of BCH may be negative.
    """
    mean, variance = at.T
    off = y - mean
    apart = np.stack([off, np.square(off) - variance], axis=2)
    with np.errstate(all="ignore"):
        logs = -0.5 * (np.square(off) / variance + np.log(variance))
        slopes = apart / np.stack([variance, 2 * np.square(variance)], axis=1)
    return apart, slopes, logs, bool(variance.min() > LEAST_VARIANCE)


def _levels(y: Doubles, at: Doubles) -> tuple[Doubles, Doubles, Doubles, bool]:
    """The same of a category, one-hot (M, L), and proportions of all levels but the last."""
    chances = np.hstack([at, 1 - at.sum(axis=1, keepdims=True)])
    some = np.maximum(chances, TINY)
    slopes = y[:, None] / some
    slopes = slopes[..., :-1] - slopes[..., -1:]
    return y[:, None, :-1] - at, slopes, y @ np.log(some).T, bool(chances.min() > -CLOSE)


class _Third:
    """Step 3 as estimating equations, 0 in the sum over rows.

    Of each class they have p coefficients of x, which are 0 of the first class, and the moments of
    an outcome, together q, of columns in units of their own.
    """

    def __init__(
        self, values: Doubles, n_levels: int, what: str, weights: Doubles, assigned: Doubles,
        errors: Doubles, method: str,
    ) -> None:  # fmt: skip
        self.weights, self.assigned, self.errors = weights, assigned, errors
        if n_levels:
            values = np.eye(n_levels)[values[:, 0].astype(np.intp)]
        centre = np.average(values, axis=0, weights=weights)
        unit = np.ptp(values, axis=0)
        self.x, self.constant = np.ones((len(values), 1)), ~(unit > 0) & (n_levels == 0)
        unit[~(unit > 0)] = 1.0
        scale = np.sqrt(np.average(np.square((values - centre) / unit), axis=0, weights=weights))
        scale = np.where(scale > 0, scale * unit, 1.0)
        # What is reported of a class is linear in its parameters (q,): a map, and a shift.
        self.reported: dict[str, tuple[Doubles, Any]]
        if n_levels:
            self.y, self.law, self.pooled, one = values, _levels, centre[:-1], np.eye(n_levels)
            move = np.eye(n_levels, k=1) - np.outer(one[-1], 1 - one[0])
            self.reported = {"proportions": (move, one[-1])}
        elif what == "outcome":
            self.y, self.law, self.pooled = (values - centre) / scale, _moments, np.array([0.0, 1])
            mean, variance = np.eye(3)[1:, None] * scale
            self.reported = {"means": (mean, centre), "variances": (variance * scale, 0.0)}
        else:
            self.x, self.pooled = np.hstack([self.x, (values - centre) / scale]), np.empty(0)
            move = np.diag([1.0, *1 / scale])
            move[0, 1:] = -centre / scale
            self.reported = {COEFFICIENTS: (move, 0.0)}
        self.fixed = None  # weights of BCH
        if method == "bch":
            if np.linalg.cond(errors) > WORST:
                raise InputError(
                    "classes overlap too much, or one has no assigned rows, so that classification "
                    "errors have no inverse; take ml, or proportional assignment"
                )
            self.fixed = assigned @ np.linalg.inv(errors)
            if not (weights @ self.fixed > 0).all():
                raise InputError("a class has no rows with an outcome; take ml, or fewer classes")

    def equations(self, at: Doubles) -> tuple[float, Doubles, Doubles, Doubles]:
        """Return the log-likelihood, equations of rows (M, P), and their derivatives (P, P).

        These are for responsibilities that follow, and for such as stay what they are. Parameters
        are P = K q - p, class by class.
        """
        from scipy.special import log_softmax, logsumexp, softmax

        (n, p), k, w = self.x.shape, len(self.errors), self.weights
        at = np.append(np.zeros(p), at).reshape(k, -1)
        q = at.shape[1]
        logs = log_softmax(self.x @ at[:, :p].T, axis=1)
        pi, apart, inside = np.exp(logs), np.repeat(self.x[:, None], k, axis=1), True
        slopes = apart
        if q > p:
            of_y, along, densities, inside = self.law(self.y, at[:, p:])
            apart = np.concatenate([apart, of_y], axis=2)
            if self.fixed is None:
                slopes, logs = np.concatenate([slopes, along], axis=2), logs + densities
        stays, moves = np.zeros((k, q, k, q)), np.zeros((k, q, k, q))
        if self.fixed is not None:
            shares, value = self.fixed, float(w @ (self.fixed * logs).sum(axis=1))
        elif not inside:
            return -np.inf, apart, moves, stays
        else:
            value, shares, pairs = 0.0, np.zeros((n, k)), np.zeros((n, k, k))
            for part, chances in zip(self.assigned.T, self.errors.T, strict=True):
                here = np.flatnonzero(part)  # few, where assignment is modal
                joint = logs[here] + np.log(np.maximum(chances, TINY))
                value += float((w * part)[here] @ logsumexp(joint, axis=1))
                after = softmax(joint, axis=1)
                weighed = part[here, None] * after
                shares[here] += weighed
                pairs[here] += weighed[:, :, None] * (np.eye(k) - after[:, None])
            for t, u in np.ndindex(k, k):
                moves[t, :, u] = (apart[:, t] * (w * pairs[:, t, u])[:, None]).T @ slopes[:, u]
        for t, u in np.ndindex(k, k):
            both = w * pi[:, t] * ((t == u) - pi[:, u])
            stays[t, :p, u, :p] = -(self.x * both[:, None]).T @ self.x
            stays[t, range(p, q), u, range(p, q)] = -(t == u) * (w @ shares[:, t])
        apart = apart * shares[:, :, None]
        apart[:, :, :p] -= pi[:, :, None] * self.x[:, None]
        moves, stays = (one.reshape(k * q, k * q)[p:, p:] for one in (moves + stays, stays))
        return value, apart.reshape(n, -1)[:, p:], moves, stays

    def solve(self) -> tuple[Doubles, Doubles, Doubles]:
        """Return parameters (K, q), and their covariance (K, q, K, q) by the sandwich.

        The third are directions (K, q, n) of which rows say nothing: classes have none there.
        """
        k, p, w = len(self.errors), self.x.shape[1], self.weights
        at = np.tile(np.append(np.zeros(p), self.pooled), k)[p:]
        value, rows, moves, stays = self.equations(at)
        for count in range(MOST_STEPS):
            before, total = at, w @ rows
            for derivative in (moves, stays)[count < EM_STEPS :]:
                step = np.linalg.lstsq(derivative, -total, rcond=SINGULAR)[0]
                for halvings in range(10):
                    tried = before + step / 2**halvings
                    found = self.equations(tried)
                    if found[0] >= value - SINGULAR * max(1.0, abs(value)):
                        at, (value, rows, moves, stays) = tried, found
                        break
                if at is not before:
                    break
            if abs(at - before).max(initial=0.0) < CLOSE * max(1.0, abs(at).max(initial=0.0)):
                break
        else:
            sentence = f"step 3 did not converge in {MOST_STEPS} steps: something separates classes"
            warnings.warn(not_converged(sentence), stacklevel=3)
        bread = np.linalg.pinv(moves)
        spread = bread @ ((rows * w[:, None]).T @ rows) @ bread.T
        shape = (k, p + len(self.pooled))
        root = np.eye(shape[1]) / np.sqrt(w.sum())
        root[:p, :p] = np.linalg.inv(np.linalg.cholesky((self.x * w[:, None]).T @ self.x))
        root = np.kron(np.eye(k), root)[p:, p:]
        known, ways = np.linalg.eigh(-root @ stays @ root.T)
        unknown = np.pad(root.T @ ways[:, known < UNKNOWN], ((p, 0), (0, 0)))
        return (
            np.append(np.zeros(p), at).reshape(shape), np.pad(spread, (p, 0)).reshape(shape * 2),
            (unknown / abs(unknown).max(axis=0)).reshape(*shape, -1),
        )  # fmt: skip
