"""Student t features: terms are log-densities of t, and steps those of the textbooks."""

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma, logsumexp
from scipy.stats import multivariate_t

from vpem.network.blocks import Blocks
from vpem.settings import COVARIANCE_TYPES
from vpem.terms.families.student import (
    LEAST_DOF,
    MOST_DOF,
    StudentTerms,
    degrees_of_freedom,
)
from vpem.terms.missing import terms_of
from vpem.terms.scaling import Scaling

from .missing_support import clusters, dense, random_mixture, with_holes
from .tables import over

BLOCKS = Blocks((np.array([3, 0]), np.array([1, 4, 2])), (0, 1), ((0,), (1,)))


def student_terms(X, kind, blocks=BLOCKS, **options):
    d = X.shape[1]
    missing = bool(np.isnan(X).any())
    options = {"scaling": Scaling.none(d), "reg_covar": 0.0, **options}
    return StudentTerms(terms_of(X, blocks, kind, missing=missing, **options))


def one_step(terms, mixture, dof, roots=1):
    """Log-likelihood, and the parameters after one step of EM by an exact sum, rows in two runs."""
    factors = terms.prepare(mixture, dof)
    inner = terms.inner
    statistics = terms.empty(mixture.means, roots)
    found, half = 0.0, inner.n_samples // 2
    for rows in (slice(0, half), slice(half, inner.n_samples)):
        sums = terms.local(factors, rows).sum(axis=0, keepdims=True)
        sums = np.ascontiguousarray(np.repeat(sums, roots, axis=0))
        shares, some = inner.responsibilities(mixture, sums, rows)
        terms.summarize(statistics, shares, rows, factors)
        found += some[0]
    return found + inner.log_constant, *terms.update(statistics, dof)


def step_by_rows(X, weights, kind, blocks, mixing, means, scatters, dof):
    """One step of EM by its equations, a row, a hub and a component at a time (user's order).

    The scale of a row is known from what it has of the hub; where scatter is full its missing
    values are filled by their conditional mean, and vary by their conditional scatter.
    """
    (M, d), K = X.shape, len(means)
    there = ~np.isnan(X)
    logs, scales, log_scales = np.tile(np.log(mixing), (M, 1)), {}, {}
    for b, columns in enumerate(blocks.features):
        for m in range(M):
            own = columns[there[m, columns]]
            for k in range(K):
                nu, part = dof[k, b], scatters[k][np.ix_(own, own)]
                if len(own):
                    logs[m, k] += multivariate_t(means[k, own], part, nu).logpdf(X[m, own])
                away = X[m, own] - means[k, own]
                delta = away @ np.linalg.solve(part, away)
                scales[m, k, b] = (nu + len(own)) / (nu + delta)
                log_scales[m, k, b] = digamma((nu + len(own)) / 2) - np.log((nu + delta) / 2)
    totals = logsumexp(logs, axis=1)
    g = np.exp(logs - totals[:, None]) * weights[:, None]
    new_means, divided, new_dof = means.copy(), np.zeros((K, d, d)), dof.copy()
    number = np.zeros((K, d))
    factor = np.ones((K, len(blocks.features)))
    tied, full = kind.startswith("tied"), kind in ("full", "tied")
    for b, columns in enumerate(blocks.features):
        has = there[:, columns].any(axis=1)
        for k in range(K):
            own = g[:, k] * has
            u = np.array([scales[m, k, b] for m in range(M)])
            mean_u = own @ u / own.sum()
            mean_log = own @ [log_scales[m, k, b] for m in range(M)] / own.sum()
            factor[k, b] = 1.0 if tied else mean_u
            right = mean_log - (mean_u - 1 if tied else np.log(mean_u))

            def slope(nu, right=right):
                return np.log(nu / 2) - digamma(nu / 2) + right

            new_dof[k, b] = brentq(slope, LEAST_DOF, MOST_DOF, xtol=1e-13, rtol=1e-14)
            filled, spread = X[:, columns].copy(), np.zeros((M, len(columns), len(columns)))
            if full:
                for m in np.flatnonzero(has):
                    o, w = columns[there[m, columns]], columns[~there[m, columns]]
                    gain = scatters[k][np.ix_(w, o)] @ np.linalg.inv(scatters[k][np.ix_(o, o)])
                    lost = ~there[m, columns]
                    filled[m, lost] = means[k, w] + gain @ (X[m, o] - means[k, o])
                    spread[m][np.ix_(lost, lost)] = (
                        scatters[k][np.ix_(w, w)] - gain @ scatters[k][np.ix_(o, w)]
                    )
            know = has[:, None] if full else there[:, columns]
            filled = np.where(know, filled, 0.0)
            by = (own * u)[:, None] * know
            new_means[k, columns] = (by * filled).sum(axis=0) / by.sum(axis=0)
            away = np.where(know, filled - new_means[k, columns], 0.0)
            moment = (by * away).T @ away + np.einsum("m,mij->ij", own, spread)
            divided[k][np.ix_(columns, columns)] = moment / factor[k, b]
            number[k, columns] = own @ np.broadcast_to(know, away.shape)
    return totals @ weights, *_finished(g, new_means, divided, number, kind, blocks), new_dof


def _finished(g, means, scatter, number, kind, blocks):
    """Mixing weights, means and scatters of a type from sums of squares and numbers of rows."""
    tied = kind.startswith("tied")
    if tied:
        scatter, number = scatter.sum(axis=0, keepdims=True), number.sum(axis=0, keepdims=True)
    out = np.zeros_like(scatter)
    for c in range(len(scatter)):
        for columns in blocks.features:
            view = np.ix_(columns, columns)
            if kind in ("full", "tied"):
                out[c][view] = scatter[c][view] / number[c, columns[0]]
            elif kind.endswith("diag"):
                out[c][view] = np.diag(scatter[c][columns, columns] / number[c, columns])
            else:
                mean = scatter[c][columns, columns].sum() / number[c, columns].sum()
                out[c][view] = mean * np.eye(len(columns))
    return g.sum(axis=0) / g.sum(), means, np.broadcast_to(out, (len(means), *out.shape[1:]))


def case(kind, seed, holes, blocks=BLOCKS, k=2):
    rng = np.random.default_rng(seed)
    X = clusters(seed, 60, blocks.n_features, k) * rng.gamma(2, 0.5, (60, 1)) ** -0.5
    if holes:
        X = with_holes(X, seed)
        X[:7, blocks.features[0]] = np.nan
        X[:7, blocks.features[1][0]] = 0.3
    return X, random_mixture(rng, blocks, kind, k), rng.uniform(2, 9, (k, blocks.n_blocks)), rng


@over(kind=COVARIANCE_TYPES, holes=[False, True], seed=[0, 1])
def test_a_step_is_that_of_the_textbooks(kind, holes, seed):
    X, mixture, dof, rng = case(kind, seed, holes)
    weights = rng.uniform(0.5, 2, len(X))
    terms = student_terms(X, kind, row_weights=weights)
    found, after, new_dof = one_step(terms, mixture, dof)
    wanted = step_by_rows(X, weights, kind, BLOCKS, mixture.assembled_weights, *dense(mixture), dof)
    means, scatters = dense(after)
    got = (found, after.assembled_weights, means, scatters, new_dof)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


@over(kind=COVARIANCE_TYPES, holes=[False, True])
def test_the_likelihood_never_falls(kind, holes):
    X, mixture, dof, _ = case(kind, 4, holes, k=3)
    terms = student_terms(X, kind)
    before = -np.inf
    for _ in range(60):
        found, mixture, dof = one_step(terms, mixture, dof)
        assert found >= before - 1e-9 * abs(found)
        before = found
    assert np.ptp(dof) > 0


def test_degrees_of_freedom_solve_their_equation_within_the_bounds():
    dof = np.geomspace(LEAST_DOF, MOST_DOF, 200)
    gaps = np.log(dof / 2) - digamma(dof / 2)
    np.testing.assert_allclose(degrees_of_freedom(gaps), dof, rtol=1e-9)
    ends = degrees_of_freedom(np.array([np.inf, 50.0, 1e-9, 0.0, -1.0]))
    np.testing.assert_allclose(ends, [LEAST_DOF] * 2 + [MOST_DOF] * 3)
