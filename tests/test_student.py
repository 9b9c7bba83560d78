"""Student t features: terms are log-densities of t, and steps those of the textbooks."""

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma, gammaln, logsumexp
from scipy.stats import kstest, multivariate_normal, multivariate_t
from scipy.stats import t as univariate_t
from sklearn.datasets import load_breast_cancer

from vpem.network.partition import Blocks
from vpem.settings import COVARIANCE_TYPES
from vpem.terms.families.family import Part
from vpem.terms.families.kinds import LAWS, Kinds
from vpem.terms.families.mixed import MixedTerms
from vpem.terms.families.mixture import MixedMixture
from vpem.terms.families.student import LEAST_DOF, MOST_DOF, degrees_of_freedom
from vpem.terms.mixture import variances_of

from .missing_support import clusters, dense, random_mixture, with_holes
from .tables import over

BLOCKS = Blocks((np.array([3, 0]), np.array([1, 4, 2])), (0, 1), ((0,), (1,)))


def student_terms(X, kind, blocks=BLOCKS, scale="none", dtype=np.float64, **options):
    kinds = Kinds(("t",) * X.shape[1])
    return MixedTerms(
        X, blocks, kind, kinds=kinds, misses=bool(np.isnan(X).any()), scale=scale, dtype=dtype,
        **{"reg_covar": 0.0, **options},
    )  # fmt: skip


def mixture_of(core, dof):
    kinds = Kinds(("t",) * core.n_features)
    part = Part(LAWS["t"], kinds.features("t", core.blocks), {"dof": dof}, core)
    return MixedMixture(core.blocks, kinds, core.covariance_type, core.weights, (part,))


def one_step(terms, mixture, roots=1):
    """Log-likelihood, and the mixture after one step of EM by an exact sum."""
    mixture = mixture.convert_to(terms.blocks, mixture.covariance_type, terms.scaling)
    mix = np.ones((roots, mixture.blocks.n_blocks))
    statistics = terms.empty(mixture.means, roots)
    found = terms.sweep(mixture, terms.prepare(mixture), mix, statistics)
    return found[0], terms.update(statistics)


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
                away = X[m, own] - means[k, own]
                delta = away @ np.linalg.solve(part, away)
                all_of = (nu + len(own)) / 2
                logs[m, k] += gammaln(all_of) - gammaln(nu / 2) - all_of * np.log1p(delta / nu)
                logs[m, k] -= (len(own) * np.log(nu * np.pi) + np.linalg.slogdet(part)[1]) / 2
                scales[m, k, b] = (nu + len(own)) / (nu + delta)
                log_scales[m, k, b] = digamma((nu + len(own)) / 2) - np.log((nu + delta) / 2)
    totals = logsumexp(logs, axis=1)
    g = np.exp(logs - totals[:, None]) * weights[:, None]
    new_means, divided, new_dof = means.copy(), np.zeros((K, d, d)), dof.copy()
    number = np.zeros((K, d))
    full = kind in ("full", "tied")
    for b, columns in enumerate(blocks.features):
        has = there[:, columns].any(axis=1)
        for k in range(K):
            own = g[:, k] * has
            u = np.array([scales[m, k, b] for m in range(M)])
            mean_u = own @ u / own.sum()
            mean_log = own @ [log_scales[m, k, b] for m in range(M)] / own.sum()
            right = mean_log - mean_u + 1

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
            divided[k][np.ix_(columns, columns)] = moment
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


@over(kind=COVARIANCE_TYPES, holes=[False, True], roots=[1, 2])
def test_a_step_is_that_of_the_textbooks(kind, holes, roots):
    X, core, dof, rng = case(kind, 0, holes)
    weights = rng.uniform(0.5, 2, len(X))
    found, after = one_step(
        student_terms(X, kind, row_weights=weights), mixture_of(core, dof), roots
    )
    means, scatters = dense(core)
    wanted = step_by_rows(X, weights, kind, BLOCKS, core.assembled_weights, means, scatters, dof)
    part = after.parts[0]
    got = (found, after.assembled_weights, *dense(part.core), part.tables["dof"])
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


@over(kind=COVARIANCE_TYPES, holes=[False, True])
def test_the_likelihood_never_falls(kind, holes):
    X, core, dof, _ = case(kind, 4, holes, k=3)
    terms, mixture, before = student_terms(X, kind), mixture_of(core, dof), -np.inf
    for _ in range(40):
        found, mixture = one_step(terms, mixture)
        assert found >= before - 1e-9 * abs(found)
        before = found
    assert np.ptp(mixture.parts[0].tables["dof"]) > 0
    scores = mixture.score_samples(X, missing="marginalize").sum()
    assert scores >= before


@over(kind=["full", "tied-diag"], holes=[False, True], scale=["none", "standard"])
def test_units_and_single_precision_change_nothing_beyond_rounding(kind, holes, scale):
    X, core, dof, _ = case(kind, 5, holes)
    X = 3 * X + 10
    wanted, _ = one_step(student_terms(X, kind), mixture_of(core, dof))
    single = student_terms(X, kind, scale=scale, dtype=np.float32)
    moved = mixture_of(core, dof).convert_to(BLOCKS, kind, single.scaling)
    found, _ = one_step(single, moved)
    np.testing.assert_allclose(found, wanted, rtol=2e-5)


def test_terms_are_log_densities_of_t_and_of_gaussians_where_tails_are_light():
    X, core, dof, _ = case("full", 2, False)
    means, scatters = dense(core)
    for degrees, like in (
        (dof, multivariate_t),
        (np.full_like(dof, MOST_DOF), multivariate_normal),
    ):
        terms, _ = mixture_of(core, degrees).terms_of(X[:9], np.ones((9, 5), bool))
        for b, columns in enumerate(BLOCKS.features):
            for k, (mean, scatter) in enumerate(zip(means, scatters, strict=True)):
                more = (degrees[k, b],) if like is multivariate_t else ()
                own = like(mean[columns], scatter[np.ix_(columns, columns)], *more)
                close = 1e-10 if more else 1e-2
                wanted = -2 * own.logpdf(X[:9, columns])
                np.testing.assert_allclose(terms[b, :, k], wanted, rtol=close)


def test_rows_that_are_drawn_have_the_quantiles_of_t():
    core = random_mixture(np.random.default_rng(0), BLOCKS, "full", 2)
    mixture = mixture_of(core, np.array([[1.5, 4.0], [3.0, 30.0]]))
    X, labels = mixture.sample(20000, np.random.default_rng(1))
    means, scatters = dense(core)
    for k in range(2):
        for b, columns in enumerate(BLOCKS.features):
            nu, j = mixture.parts[0].tables["dof"][k, b], columns[0]
            away = (X[labels == k, j] - means[k, j]) / np.sqrt(scatters[k, j, j])
            assert kstest(away, univariate_t(nu).cdf).pvalue > 1e-3


def test_a_mixture_of_breast_cancers_is_that_of_another_package():
    """Figures of StudentTMixture 1.11: `EMStudentMixture(2, tol=1e-9, reg_covar=0, df=5.0,
    fixed_df=False, max_iter=3000)` of the same columns, each by its standard deviation.
    """
    X = load_breast_cancer().data[:, [0, 1, 10]]
    X = X / X.std(axis=0)
    terms = student_terms(X, "full", Blocks.one(3), scale="none")
    mixture = terms.start(np.array([[3.5, 4.2, 1.0], [5.2, 5.0, 2.4]]))
    for _ in range(250):
        found, mixture = one_step(terms, mixture)
    part = mixture.parts[0]
    np.testing.assert_allclose(found, -1927.8377, atol=2e-4)
    np.testing.assert_allclose(mixture.assembled_weights, [0.71446, 0.28554], atol=2e-4)
    np.testing.assert_allclose(part.tables["dof"].ravel(), [14.0, 5.125], atol=0.1)
    locations = [[3.55025, 4.24137, 1.00824], [5.18378, 4.97224, 2.40346]]
    np.testing.assert_allclose(mixture.assembled_means, locations, atol=2e-4)
    variances = [[0.26009, 0.76520, 0.10645], [0.55982, 0.59246, 0.72730]]
    np.testing.assert_allclose(variances_of(part.core), variances, atol=1e-3)


def test_degrees_of_freedom_solve_their_equation_within_the_bounds():
    dof = np.geomspace(LEAST_DOF, MOST_DOF, 200)
    gaps = np.log(dof / 2) - digamma(dof / 2)
    np.testing.assert_allclose(degrees_of_freedom(gaps), dof, rtol=1e-9)
    ends = degrees_of_freedom(np.array([1e3, 50.0, 1e-9, 0.0, -1.0]))
    np.testing.assert_allclose(ends, [LEAST_DOF] * 2 + [MOST_DOF] * 3)
