"""Families: what each is alone, a step at a time, is its textbook EM; t and log-normal besides."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq
from scipy.special import digamma, gammaln, logsumexp
from scipy.stats import kstest, lognorm
from scipy.stats import t as univariate_t
from sklearn.datasets import load_breast_cancer

from vpem import connect, fit_vpem, make_graph
from vpem.network.partition import Blocks, from_lists
from vpem.settings import COVARIANCE_TYPES
from vpem.terms.families.counts import LARGEST_SHAPE, LARGEST_SIZE, shape_of
from vpem.terms.families.family import Part
from vpem.terms.families.kinds import LAWS, Kinds
from vpem.terms.families.mixed import MixedTerms
from vpem.terms.families.mixture import MixedMixture
from vpem.terms.families.student import LEAST_DOF, MOST_DOF, degrees_of_freedom
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import variances_of
from vpem.terms.units import Scaling

from .missing_support import clusters, dense, random_mixture, with_holes
from .tables import each, over

K, D, LEVELS = 3, 4, (2, 3, 4, 1)
HUBS = ([2, 0], [], [1, 3])
FAMILIES = {n: law for n, law in LAWS.items() if not law.has_core and n != "covariate"}


def test_an_independent_family_of_changed_values_is_refused_where_it_is_made():
    with pytest.raises(TypeError, match="Logs has a change, but independent features may have no"):
        type("Logs", (type(LAWS["exponential"]),), {"change": staticmethod(np.log)})
    assert type("Plain", (type(LAWS["exponential"]),), {}).change is None


def kinds_of(name):
    return Kinds((name,) * D, LEVELS if name == "categorical" else ())


def features_of(name, hubs=HUBS):
    parts = tuple(np.array(hub, dtype=np.intp) for hub in hubs)
    blocks = Blocks(parts, tuple(range(len(hubs))), tuple((b,) for b in range(len(hubs))))
    return kinds_of(name).features(name, blocks)


def parameters_of(name, rng, features, k=K):
    """Components that overlap."""
    shape = (k, features.n_features)
    means = rng.gamma(4, 2, shape)
    if name == "categorical":
        own = [rng.dirichlet(np.ones(count), k) for count in features.n_levels]
        return {"probabilities": np.concatenate(own, axis=1)}
    return {
        "bernoulli": {"probabilities": rng.uniform(0.05, 0.95, shape)},
        "poisson": {"rates": means},
        "negative-binomial": {"means": 4 * means, "sizes": rng.gamma(3, 2, shape)},
        "exponential": {"means": means},
        "gamma": {"means": means, "shapes": rng.gamma(3, 2, shape)},
    }[name]


def drawn(name, seed, m=400, holes=0.1):
    """Rows of a mixture in the user's order, some values missing, and their components."""
    rng = np.random.default_rng(seed)
    features = features_of(name, (list(range(D)),))
    labels = rng.integers(0, K, m)
    part = Part(FAMILIES[name], features, parameters_of(name, rng, features))
    X = FAMILIES[name].draw(part, labels, rng)[:, features.blocks.position]
    X[rng.random(X.shape) < holes] = np.nan
    X[np.isnan(X).all(axis=1), 0] = 1
    return X, labels


def alone(*parts):
    net = connect(make_graph("star", len(parts)), from_lists(parts, D), hops=0)
    return net


# ---- textbook -----------------------------------------------------------------------------------


def log_density(name, x, cells):
    """Of values of one feature, given its parameters in one component."""
    if name == "categorical":
        return np.log(cells["probabilities"])[x.astype(int)]
    first, second = [*cells.values(), None][:2]
    return {
        "bernoulli": lambda: stats.bernoulli.logpmf(x, first),
        "poisson": lambda: stats.poisson.logpmf(x, first),
        "negative-binomial": lambda: stats.nbinom.logpmf(x, second, second / (second + first)),
        "exponential": lambda: stats.expon.logpdf(x, scale=first),
        "gamma": lambda: stats.gamma.logpdf(x, second, scale=first / second),
    }[name]()


def size_step(x, shares, mean, old):
    """Size from an old one: where the slope of the bound of the likelihood is zero."""
    below = np.arange(x.max())[:, None]
    ratios = np.where(below < x, old / (old + below), 0)
    slope, bends = (shares * ratios).sum(), (shares * ratios * (1 - ratios)).sum(axis=1)
    edges = 4.0 ** np.arange(9)

    def slope_at(step):
        size, bent = old * np.exp(step), slope
        for first, after in pairwise(edges):
            c = first if step > 0 else after - 1
            curve = bends[(below[:, 0] >= first) & (below[:, 0] < after)].sum()
            bent += curve * np.expm1(step) * (c + old) / (c + size)
        return bent - shares.sum() * size * np.log1p(mean / size)

    low, high = (0.0, 40.0) if slope_at(0) > 0 else (-15.0, 0.0)
    return min(old * np.exp(brentq(slope_at, low, high, xtol=1e-15)), LARGEST_SIZE)


def estimate(name, x, shares, old):
    """M-step of one feature and component."""
    mean = shares @ x / shares.sum()
    if name == "categorical":
        return {"probabilities": np.bincount(x.astype(int), shares, len(old["probabilities"]))
                / shares.sum()}  # fmt: skip
    if name == "gamma":
        gap = np.log(mean) - shares @ np.log(x) / shares.sum()
        shape = brentq(lambda a: np.log(a) - digamma(a) - gap, 1e-3, 1e6, xtol=1e-14, rtol=1e-14)
        return {"means": mean, "shapes": shape}
    if name == "negative-binomial":
        return {"means": mean, "sizes": size_step(x, shares, mean, old["sizes"])}
    return {next(iter(old)): mean}


def textbook(name, X, weights, cells, n_iter, row_weights):
    """EM of a mixture, feature by feature; ``cells[k][j]`` are parameters by name."""
    for _ in range(n_iter):
        log = np.log(np.tile(weights, (len(X), 1)))
        seen = ~np.isnan(X)
        for k in range(K):
            for j in range(D):
                log[seen[:, j], k] += log_density(name, X[seen[:, j], j], cells[k][j])
        likelihood = logsumexp(log, axis=1)
        shares = np.exp(log - likelihood[:, None]) * row_weights[:, None]
        weights = shares.sum(axis=0) / shares.sum()
        cells = [
            [estimate(name, X[seen[:, j], j], shares[seen[:, j], k], cells[k][j])
             for j in range(D)] for k in range(K)
        ]  # fmt: skip
    return weights, cells, likelihood


def cells_of_features(name, features):
    return features.n_levels if name == "categorical" else np.ones(D, dtype=np.intp)


def cells_of(mixture):
    """Parameters of a fit by component and feature, in the user's order."""
    part = mixture.parts[0]
    features, counts = part.features, cells_of_features(part.family, part.features)
    found = [[{} for _ in range(D)] for _ in range(K)]
    for name, table in part.tables.items():
        ends = np.cumsum(counts)
        for place, j in enumerate(features.ordered):
            own = table[:, ends[place] - counts[place] : ends[place]]
            for k in range(K):
                found[k][j][name] = own[k] if part.family == "categorical" else own[k, 0]
    return found


@each("name", FAMILIES)
def test_alone_it_is_textbook_em(name):
    X, _ = drawn(name, 1)
    row_weights = np.random.default_rng(2).uniform(0.5, 2, len(X))
    rows = {"init": [5, 60, 200], "n_components": K, "sample_weight": row_weights}
    net, kinds = alone([2, 0], [1, 3]), kinds_of(name)
    given = {"kinds": kinds, "tol": 0, "missing": "marginalize"}
    start = fit_vpem(X, net, max_iter=0, **rows, **given).mixture
    with pytest.warns(UserWarning, match="converge"):
        fit = fit_vpem(X, net, max_iter=12, **rows, **given)
    cells = cells_of(start)
    weights, cells, _ = textbook(name, X, start.weights[0], cells, 12, row_weights)
    _, _, likelihood = textbook(name, X, weights, cells, 1, row_weights)
    np.testing.assert_allclose(fit.mixture.weights[0], weights, rtol=1e-10)
    for found, wanted in zip(cells_of(fit.mixture), cells, strict=True):
        for own, one in zip(found, wanted, strict=True):
            for word, value in one.items():
                np.testing.assert_allclose(own[word], value, rtol=1e-10, atol=1e-14)
    total = row_weights @ likelihood / row_weights.sum()
    assert fit.log_likelihood == pytest.approx(total, rel=1e-10)
    scores = fit.mixture.score_samples(X, missing="marginalize")
    np.testing.assert_allclose(scores, likelihood, rtol=1e-10, atol=1e-13)


# ---- one family at a time ------------------------------------------------------------------------


@each("name", FAMILIES)
def test_rows_that_are_drawn_tell_the_parameters(name):
    family, features, rng = FAMILIES[name], features_of(name), np.random.default_rng(3)
    truth = parameters_of(name, rng, features)
    labels = np.repeat(np.arange(K), 20_000)
    part = Part(FAMILIES[name], features, truth)
    X = family.draw(part, labels, rng)
    assert not family.wrong(X.ravel()).any()
    statistics, shares = family.empty(features, K), np.eye(K)[labels][None]
    family.add_moments(statistics, None, features, X, shares, 2)
    found = family.update(statistics, features, None)
    for word, values in truth.items():
        np.testing.assert_allclose(found[word], values, rtol=0.08, atol=0.01)
    if name not in ("categorical", "bernoulli"):
        np.testing.assert_allclose(X[labels == 1].mean(axis=0), family.means(part)[1],
                                   rtol=0.02)  # fmt: skip
    n_cells = len(family.domains) * int(cells_of_features(name, features).sum())
    assert family.n_parameters(part) == K * (n_cells - (D if name == "categorical" else 0))


@each("name", FAMILIES)
def test_parameters_at_rows_and_of_components_without_any(name):
    family, features = FAMILIES[name], features_of(name)
    X, labels = drawn(name, 4, m=60)
    X = features.blocks.arrange(X, np.float64)
    X[labels == 2, 1] = np.nan  # one component has nothing of a feature
    statistics, one = family.empty(features, K), family.empty(features, 1)
    family.add_moments(statistics, None, features, X, np.eye(K)[labels][None], 1)
    family.add_moments(one, None, features, X, np.ones((1, len(X), 1)), 1)
    pooled = family.update(one, features, None)
    found = family.update(statistics, features, pooled)
    counts = cells_of_features(name, features)
    for word, table in found.items():
        own = np.repeat(np.arange(D), counts) == 1
        np.testing.assert_array_equal(table[2, own], pooled[word][0, own])
        assert not np.array_equal(table[0, own], pooled[word][0, own])
    near = family.start_near(X[:K], features, pooled)
    out = np.zeros((features.blocks.n_blocks, len(X), K))
    family.add_terms(family.ready(near, features), features, X, out, 1)
    assert np.isfinite(out).all()
    assert (out[1] == 0).all()  # a hub without any
    assert {word: table.shape for word, table in near.items()} == {
        word: table.shape for word, table in found.items()
    }


@over(name=FAMILIES, dtype=[np.float64, np.float32])
def test_one_repeated_value_has_finite_terms(name, dtype):
    family, features = FAMILIES[name], features_of(name)
    for value in (0, 1) if name in ("categorical", "bernoulli") else (0, 1, 7, 1e6):
        if family.wrong(np.array([value])).any():
            continue
        X = np.full((20, D), 0 if name == "categorical" else value, dtype=dtype)
        others = np.concatenate([X, np.ones((20, D), dtype=dtype) - (name == "categorical")])
        labels = np.repeat([0, 1], 20)
        statistics, one = family.empty(features, 2), family.empty(features, 1)
        shares = np.ascontiguousarray(np.eye(2, dtype=dtype)[labels][None])
        family.add_moments(statistics, None, features, others, shares, 1)
        family.add_moments(one, None, features, others, np.ones((1, 40, 1), dtype=dtype), 1)
        pooled = family.update(one, features, None)
        ready = family.ready(family.update(statistics, features, pooled), features)
        out = np.zeros((3, 40, 2), dtype=dtype)
        family.add_terms(ready, features, others, out, 1)
        assert np.isfinite(out).all()


def test_what_a_family_cannot_have():
    values = np.array([-1.0, 0.0, 0.5, 1.0, 2.0, np.inf])
    wrong = {name: family.wrong(values).astype(int).tolist() for name, family in FAMILIES.items()}
    assert wrong == {
        "categorical": [1, 0, 1, 0, 0, 1], "bernoulli": [1, 0, 1, 0, 1, 1],
        "poisson": [1, 0, 1, 0, 0, 1], "negative-binomial": [1, 0, 1, 0, 0, 1],
        "exponential": [1, 0, 0, 0, 0, 1], "gamma": [1, 1, 0, 0, 0, 1],
    }  # fmt: skip
    assert LAWS["log-normal"].wrong(values).astype(int).tolist() == [1, 1, 0, 0, 0, 1]


def test_levels_that_no_row_had_change_no_responsibility():
    family, features = FAMILIES["categorical"], features_of("categorical", ([0, 1, 2, 3],))
    parameters = parameters_of("categorical", np.random.default_rng(0), features)
    known, unknown, missing = [1.0, 2, 3, 0], [1.0, 2, 4, 0], [1.0, 2, np.nan, 0]
    X = np.array([known, unknown, missing, [1, 2, -1, 0]])
    out = np.zeros((1, 4, K))
    family.add_terms(family.ready(parameters, features), features, X, out, 1)
    np.testing.assert_allclose(out[0, 1] - out[0, 2], -2 * np.log(1e-300))
    np.testing.assert_array_equal(out[0, 3], out[0, 1])
    assert (out[0, 0] < out[0, 1]).all()


def test_shapes_solve_their_equation():
    shapes = np.geomspace(1e-3, 1e5, 200)
    gaps = np.log(shapes) - digamma(shapes)
    np.testing.assert_allclose(shape_of(gaps), shapes, rtol=1e-9)
    assert (shape_of(np.array([0.0, -1e-17])) == LARGEST_SHAPE).all()


COUNTS = {
    "few": lambda rng: rng.negative_binomial(3, 0.2, 500),
    "clumped": lambda rng: rng.negative_binomial(0.1, 0.002, 500),
    "large": lambda rng: rng.negative_binomial(30, 0.01, 500),
    "huge": lambda rng: rng.negative_binomial(5, 1e-5, 500),
    "hardly dispersed": lambda rng: rng.negative_binomial(40, 0.85, 500),
}
UNDER = {
    "binomial": lambda rng: rng.binomial(10, 0.8, 300),
    "one value": lambda rng: np.full(50, 7),
    "none": lambda rng: np.zeros(50),
    "zeros and ones": lambda rng: np.arange(50) % 2,
    "large": lambda rng: rng.binomial(1000, 0.99, 300),
}


def sizes_along(counts, size, steps=100):
    """Means, sizes and log-likelihoods per row along steps of negative binomials, one component."""
    family = FAMILIES["negative-binomial"]
    features = Kinds(("negative-binomial",)).features("negative-binomial", Blocks.one(1))
    X, shares = np.asarray(counts, dtype=np.float64)[:, None], np.ones((1, len(counts), 1))
    found = {"means": X.mean(axis=0, keepdims=True), "sizes": np.full((1, 1), size)}
    sizes, likelihoods = [], []
    for _ in range(steps):
        ready = family.ready(found, features)
        out, statistics = np.zeros((1, len(X), 1)), family.empty(features, 1)
        family.add_terms(ready, features, X, out, 1)
        sizes.append(found["sizes"][0, 0])
        likelihoods.append(-out.sum() / 2 / len(X))
        family.add_moments(statistics, ready, features, X, shares, 1)
        found = family.update(statistics, features, None)
        if abs(np.log(found["sizes"][0, 0] / sizes[-1])) < 1e-9:
            break
    return X.mean(), sizes, likelihoods


@each("counts", COUNTS.values())
def test_sizes_come_to_be_the_likeliest(counts):
    values = counts(np.random.default_rng(5))
    for start in (1e-3, 1.0, LARGEST_SIZE):
        mean, sizes, likelihoods = sizes_along(values, start)
        assert np.diff(likelihoods).min() > -1e-9
        size = sizes[-1]

        def slope(size, mean=mean):
            ahead = digamma(values + size) - digamma(size)
            return ahead.mean() - np.log1p(mean / size)

        assert slope(size * (1 - 1e-6)) > 0 > slope(size * (1 + 1e-6))
        assert len(sizes) < 60


@each("counts", UNDER.values())
def test_counts_that_vary_less_are_poisson(counts):
    values = counts(np.random.default_rng(6))
    mean, sizes, likelihoods = sizes_along(values, 5.0)
    assert sizes[-1] == LARGEST_SIZE
    assert len(sizes) < 80
    poisson = stats.poisson.logpmf(values, mean).mean()
    assert likelihoods[-1] == pytest.approx(poisson, abs=(1 + mean**2) / LARGEST_SIZE)


# ---- Student t ----------------------------------------------------------------------------------

PAIR = Blocks((np.array([3, 0]), np.array([1, 4, 2])), (0, 1), ((0,), (1,)))


def student_terms(X, kind, blocks=PAIR, scale="none", dtype=np.float64, **options):
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


def case(kind, seed, holes, blocks=PAIR, k=2):
    rng = np.random.default_rng(seed)
    X = clusters(seed, 60, blocks.n_features, k) * rng.gamma(2, 0.5, (60, 1)) ** -0.5
    if holes:
        X = with_holes(X, seed)
        X[:7, blocks.features[0]] = np.nan
        X[:7, blocks.features[1][0]] = 0.3
    return X, random_mixture(rng, blocks, kind, k), rng.uniform(2, 9, (k, blocks.n_blocks)), rng


@over(kind=COVARIANCE_TYPES, holes=[False, True], roots=[1, 2])
def test_a_step_of_t_is_that_of_the_textbooks(kind, holes, roots):
    X, core, dof, rng = case(kind, 0, holes)
    weights = rng.uniform(0.5, 2, len(X))
    found, after = one_step(
        student_terms(X, kind, row_weights=weights), mixture_of(core, dof), roots
    )
    means, scatters = dense(core)
    wanted = step_by_rows(X, weights, kind, PAIR, core.assembled_weights, means, scatters, dof)
    part = after.parts[0]
    got = (found, after.assembled_weights, *dense(part.core), part.tables["dof"])
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


@over(kind=COVARIANCE_TYPES, holes=[False, True])
def test_the_likelihood_of_t_never_falls(kind, holes):
    X, core, dof, _ = case(kind, 4, holes, k=3)
    terms, mixture, before = student_terms(X, kind), mixture_of(core, dof), -np.inf
    for _ in range(20):
        found, mixture = one_step(terms, mixture)
        assert found >= before - 1e-9 * abs(found)
        before = found
    assert np.ptp(mixture.parts[0].tables["dof"]) > 0
    scores = mixture.score_samples(X, missing="marginalize").sum()
    assert scores >= before


@over(kind=["full", "tied-diag"], holes=[False, True], scale=["none", "standard"])
def test_units_and_single_precision_change_nothing_of_t_beyond_rounding(kind, holes, scale):
    X, core, dof, _ = case(kind, 5, holes)
    X = 3 * X + 10
    wanted, _ = one_step(student_terms(X, kind), mixture_of(core, dof))
    single = student_terms(X, kind, scale=scale, dtype=np.float32)
    moved = mixture_of(core, dof).convert_to(PAIR, kind, single.scaling)
    found, _ = one_step(single, moved)
    np.testing.assert_allclose(found, wanted, rtol=2e-5)


def test_rows_that_are_drawn_have_the_quantiles_of_t():
    core = random_mixture(np.random.default_rng(0), PAIR, "full", 2)
    mixture = mixture_of(core, np.array([[1.5, 4.0], [3.0, 30.0]]))
    X, labels = mixture.sample(20000, np.random.default_rng(1))
    means, scatters = dense(core)
    for k in range(2):
        for b, columns in enumerate(PAIR.features):
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


# ---- log-normal ---------------------------------------------------------------------------------

TWO, SUM = Blocks((np.array([3, 0]), np.array([1, 2])), (0, 1), ((0,), (1,))), np.ones((1, 2))


def lognormal_terms(X, kind, **options):
    kinds, misses = Kinds(("log-normal",) * X.shape[1]), bool(np.isnan(X).any())
    return MixedTerms(X, TWO, kind, kinds=kinds, misses=misses, reg_covar=0.0, **options)


@over(kind=COVARIANCE_TYPES, holes=[False, True])
def test_log_normal_steps_are_those_of_the_logarithms(kind, holes):
    scale = "none" if kind.endswith("spherical") else "standard"  # a sphere has units
    logs = clusters(1, 80, 4, 2)
    logs = with_holes(logs, 2) if holes else logs
    X, weights = np.exp(logs), np.random.default_rng(0).uniform(0.5, 2, 80)
    gaussian = FeatureTerms(
        logs, TWO, kind, missing=holes, scaling=Scaling.none(4), reg_covar=0.0,
        row_weights=weights,
    )  # fmt: skip
    terms = lognormal_terms(X, kind, row_weights=weights, scale=scale)
    mixture = terms.start(terms.scaling.apply(np.nan_to_num(logs[:2]))[:, TWO.order])
    wanted = gaussian.start(np.nan_to_num(logs[:2])[:, TWO.order])
    log_x = float(weights @ np.nan_to_num(logs).sum(axis=1))
    for _ in range(3):
        found, likelihoods = [], []
        for own, start in ((terms, mixture), (gaussian, wanted)):
            statistics = own.empty(start.means, 1)
            likelihoods.append(own.sweep(start, own.prepare(start), SUM, statistics)[0])
            found.append(own.update(statistics))
        np.testing.assert_allclose(
            likelihoods[0], likelihoods[1] + gaussian.log_constant - log_x, rtol=1e-10
        )
        mixture, wanted = found
        core = mixture.parts[0].core
        np.testing.assert_allclose(mixture.weights, wanted.weights, rtol=1e-9)
        np.testing.assert_allclose(core.assembled_means, wanted.assembled_means, atol=1e-9)
    scores = mixture.score_samples(X, missing="marginalize")
    others = wanted.score_samples(logs, missing="marginalize") - np.nan_to_num(logs).sum(axis=1)
    np.testing.assert_allclose(scores, others, rtol=1e-8)


def test_expected_values_and_draws_are_those_of_a_log_normal():
    X = np.exp(0.5 * clusters(3, 200, 4, 2))
    terms = lognormal_terms(X, "full", scale="standard")
    mixture = terms.start(terms.at_rows(np.array([0, 100])))
    core = mixture.parts[0].core
    deviations = np.sqrt(np.diagonal(core.assembled_covariances, axis1=1, axis2=2))
    wanted = lognorm(deviations, scale=np.exp(core.assembled_means)).mean()
    np.testing.assert_allclose(mixture.assembled_means, wanted, rtol=1e-12)
    rows, labels = mixture.sample(40000, np.random.default_rng(0))
    np.testing.assert_allclose(rows[labels == 1].mean(axis=0), wanted[1], rtol=0.1)
