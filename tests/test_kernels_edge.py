"""The kernels at their limits: nothing to do, extreme scales, infinities, singular blocks."""

import numpy as np
import pytest

from vpem._core.cholesky import cholesky_blocks
from vpem._core.consensus import consensus_rounds
from vpem._core.covariances import covariances_diag, covariances_full
from vpem._core.mahalanobis import mahalanobis_diag, mahalanobis_full
from vpem._core.moments import moments_diag, moments_full
from vpem._core.normalise import differences, normalise
from vpem._core.threads import one_blas_thread
from vpem.network.graph import make_graph
from vpem.network.mixing import mixing_matrix

from .tables import each, over
from .twins import mixture as twins

DTYPES = (np.float64, np.float32)


@pytest.fixture(autouse=True, scope="module")
def blas():
    """Keep BLAS out of the kernels' way, as a fit does."""
    with one_blas_thread():
        yield


def offsets_of(*widths):
    return np.concatenate([[0], np.cumsum(widths)]).astype(np.intp)


def factor(blocks, kernel=cholesky_blocks):
    """Whiteners, log-determinants and failures of one component with these blocks."""
    offsets = offsets_of(*(len(block) for block in blocks))
    flat = np.concatenate([np.ravel(block) for block in blocks])
    whiteners = np.full_like(flat, 7)
    log_dets = np.full((1, len(blocks)), 7, dtype=flat.dtype)
    failed = np.full((1, len(blocks)), 7, dtype=np.uint8)
    kernel(flat, offsets, 1, whiteners, log_dets, failed)
    return whiteners, log_dets, failed


# ---- no rows, no features -----------------------------------------------------------------------


@over(dtype=DTYPES, n_threads=[1, 2], shape=[(0, (2, 1)), (3, (0, 0)), (0, (0,))])
def test_nothing_to_do(dtype, n_threads, shape):
    m, widths = shape
    offsets = offsets_of(*widths)
    d = sum(widths)
    squares = sum(width**2 for width in widths)
    rows, means = np.ones((m, d), dtype), np.zeros((2, d), dtype)
    log_dets = np.arange(2 * len(widths), dtype=dtype).reshape(2, -1)
    flat, diagonal = np.ones(2 * squares, dtype), np.ones((2, d), dtype)
    for kernel, factors in ((mahalanobis_full, flat), (mahalanobis_diag, diagonal)):
        terms = np.full((len(widths), m, 2), np.nan, dtype)
        kernel(rows, offsets, means, factors, log_dets, terms, n_threads)
        np.testing.assert_array_equal(terms, np.broadcast_to(log_dets.T[:, None], terms.shape))
    shares = np.ones((1, m, 2), dtype)
    for kernel, shape in ((moments_full, (2 * squares,)), (moments_diag, (2, d))):
        first, second = np.full((2, d), 0.5), np.full(shape, 0.25)
        kernel(rows, shares, offsets, means, first, second, n_threads)
        assert (first == 0.5).all()
        assert (second == 0.25).all()


@each("dtype", DTYPES)
def test_normalise_without_rows(dtype):
    empty = np.empty((1, 0, 2), dtype)
    normalise(empty, np.log([[0.5, 0.5]]), empty.copy(), np.empty((1, 0)), 2)


def test_an_agent_alone_keeps_its_state():
    mixing = mixing_matrix(make_graph("cycle", 1))
    states = np.array([[3.25, -1.5]])
    csr = (mixing.indptr.astype(np.int32), mixing.indices.astype(np.int32), mixing.data)
    consensus_rounds(*csr, states, np.ones(50), 2)
    assert states.tolist() == [[3.25, -1.5]]


# ---- factors ------------------------------------------------------------------------------------

SINGULAR = {
    "zero": np.zeros((2, 2)),
    "rank one": np.ones((2, 2)),
    "negative": -np.eye(3),
    "indefinite": np.array([[1.0, 2.0], [2.0, 1.0]]),
    "nan": np.full((2, 2), np.nan),
    "nan later": np.array([[1.0, 0.0], [0.0, np.nan]]),
    "infinite": np.array([[np.inf]]),
    "negative number": np.array([[-1.0]]),
}


@over(dtype=DTYPES, name=SINGULAR)
def test_blocks_that_are_not_positive_definite_are_flagged(name, dtype):
    good = np.array([[4.0, 1.0], [1.0, 3.0]])
    blocks = [block.astype(dtype) for block in (good, SINGULAR[name], good)]
    whiteners, log_dets, failed = factor(blocks)
    assert failed.tolist() == [[0, 1, 0]]
    assert log_dets[0, 1] == 0
    middle = slice(4, 4 + SINGULAR[name].size)
    assert (whiteners[middle] == 0).all()
    np.testing.assert_array_equal(whiteners[:4], whiteners[-4:])
    assert log_dets[0, 0] == pytest.approx(np.log(11), rel=1e-6)
    twin = factor(blocks, twins.cholesky_blocks)
    np.testing.assert_array_equal(twin[2], failed)
    np.testing.assert_allclose(whiteners, twin[0], rtol=1e-5)


@over(dtype=DTYPES, d=[2, 5, 40], part=[0.25, 4.0], unit=[1e-6, 1.0, 1e6])
def test_a_column_that_others_leave_nothing_but_rounding_of_is_singular(dtype, d, part, unit):
    # The last column follows from the others but for this part of its variance.
    eps = float(np.finfo(dtype).eps)
    left = part * 64 * d * eps
    shape = np.eye(d)
    shape[-1, 0], shape[-1, -1] = np.sqrt(1 - left), np.sqrt(left)
    block = shape @ shape.T
    block *= np.outer(*[np.r_[np.ones(d - 1), unit]] * 2)
    block = block.astype(dtype)
    for kernel in (cholesky_blocks, twins.cholesky_blocks):
        assert factor([block], kernel)[2].tolist() == [[int(part < 1)]]


@each("scale", [1e-280, 1e-20, 1.0, 1e20, 1e280])
def test_factors_at_every_scale(scale):
    base = np.array([[2.0, 0.5], [0.5, 1.0]])
    whiteners, log_dets, failed = factor([base * scale, np.array([[scale]])])
    assert not failed.any()
    unscaled = factor([base, np.array([[1.0]])])
    np.testing.assert_allclose(whiteners * np.sqrt(scale), unscaled[0], rtol=1e-12)
    wanted = unscaled[1] + np.array([[2, 1]]) * np.log(scale)
    np.testing.assert_allclose(log_dets, wanted, rtol=1e-12, atol=1e-12)


def test_only_the_lower_triangle_of_a_covariance_is_read():
    whiteners, log_dets, _ = factor([np.array([[4.0, 1.0], [1.0, 3.0]])])
    again = factor([np.array([[4.0, np.nan], [1.0, 3.0]])])
    np.testing.assert_array_equal(again[0], whiteners)
    np.testing.assert_array_equal(again[1], log_dets)


# ---- terms --------------------------------------------------------------------------------------


@each("scale", [1e-120, 1e-6, 1e6, 1e120])
def test_terms_do_not_depend_on_the_units(scale):
    rng = np.random.default_rng(5)
    rows, means = rng.normal(size=(300, 3)), rng.normal(size=(2, 3))
    covariance = np.array([[2.0, 0.5], [0.5, 1.0]])
    flat = np.concatenate([np.tile(covariance.ravel(), 2), [1.0, 3.0]])
    offsets = offsets_of(2, 1)
    results = []
    for unit in (1.0, scale):
        whiteners, log_dets = np.empty_like(flat), np.empty((2, 2))
        failed = np.empty((2, 2), np.uint8)
        cholesky_blocks(flat * unit**2, offsets, 2, whiteners, log_dets, failed)
        terms = np.empty((2, 300, 2))
        arguments = (rows * unit, offsets, means * unit, whiteners, log_dets)
        mahalanobis_full(*arguments, terms, 2)
        results.append(terms - 2 * np.log(unit) * np.array([2, 1])[:, None, None])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-9, atol=1e-9)


@each("dtype", DTYPES)
def test_terms_far_away_keep_their_size(dtype):
    far = dtype(1e15)
    rows = np.array([[far, 0.0]], dtype)
    offsets, means = offsets_of(2), np.zeros((1, 2), dtype)
    terms = np.empty((1, 1, 1), dtype)
    mahalanobis_full(rows, offsets, means, np.eye(2, dtype=dtype).ravel(), terms[0] * 0, terms, 1)
    assert terms[0, 0, 0] == pytest.approx(1e30, rel=1e-6)


# ---- responsibilities ---------------------------------------------------------------------------


def normalised(sums, weights, dtype=np.float64, kernel=normalise):
    sums = np.asarray(sums, dtype)[None]
    with np.errstate(divide="ignore", invalid="ignore"):
        log_weights = np.log(np.asarray([weights], dtype=np.float64))
        responsibilities = np.full((1, sums.shape[1], len(weights)), 7, dtype=dtype)
        log_likelihoods = np.full(sums.shape[:2], 7.0)
        kernel(sums, log_weights, responsibilities, log_likelihoods, 1)
    return responsibilities[0], log_likelihoods[0]


EXTREMES = {
    "one unreachable": ([[1.0, np.inf, 3.0]], (0.2, 0.3, 0.5)),
    "one reachable": ([[np.inf, 4.0, np.inf]], (0.2, 0.3, 0.5)),
    "none reachable": ([[np.inf, np.inf, np.inf]], (0.2, 0.3, 0.5)),
    "huge": ([[1e300, 1e300, 1e300]], (0.2, 0.3, 0.5)),
    "huge and not": ([[1e300, 5.0, 1e300]], (0.2, 0.3, 0.5)),
    "very negative": ([[-1e300, 0.0, 1e300]], (0.2, 0.3, 0.5)),
    "largest": ([[1.7e308, -1.7e308, 0.0]], (0.2, 0.3, 0.5)),
    "no weight": ([[1.0, 2.0, 3.0]], (0.0, 1.0, 0.0)),
    "no weight where likely": ([[-1e300, 2.0, 3.0]], (0.0, 0.5, 0.5)),
    "weight only where unreachable": ([[1.0, np.inf, 2.0]], (0.0, 1.0, 0.0)),
    "far apart": ([[0.0, 5000.0, -5000.0]], (0.2, 0.3, 0.5)),
}


@each("name", EXTREMES)
def test_normalise_with_extreme_sums(name):
    sums, weights = EXTREMES[name]
    responsibilities, log_likelihoods = normalised(sums, weights)
    twin = normalised(sums, weights, kernel=twins.normalise)
    shares = twin[0] / twin[0].sum()
    np.testing.assert_allclose(responsibilities, shares, rtol=1e-13, atol=1e-300)
    np.testing.assert_allclose(log_likelihoods, twin[1], rtol=1e-13)
    assert responsibilities.sum() == pytest.approx(1, rel=1e-14)
    assert not np.isnan(log_likelihoods).any()


FARTHEST = {np.float64: 2.0**36, np.float32: 2.0**16}


def differ(sums, dtype=np.float64, kernel=differences):
    """Differences of one block's sums, and the sum of the first ones."""
    sums = np.asarray(sums, dtype)[None]
    out, firsts = np.empty((1, *np.subtract(sums.shape[1:], (0, 1))), dtype), np.zeros(1)
    with np.errstate(invalid="ignore"):
        kernel(sums, np.empty(0), out, firsts, FARTHEST[dtype], 1)
    return out[0], firsts[0]


FAR = {f"the first at {far:g}": ([[far, 4.0, 3.0]], (0.2, 0.3, 0.5)) for far in (1e5, 1e12, np.inf)}


@over(name=EXTREMES | FAR, dtype=DTYPES)
def test_differences_of_extreme_sums_have_the_same_responsibilities(name, dtype):
    sums, weights = (EXTREMES | FAR)[name]
    with np.errstate(over="ignore"):
        sums = np.maximum(np.asarray(sums, dtype), -1e4)  # terms are not below log-determinants
    wanted, whole = normalised(sums, weights, dtype)
    if (sums == sums[0, 0]).all():  # weights that rounding hides beside whole terms are left
        wanted = [weights]
    found, firsts = differ(sums, dtype)
    twin, same = differ(sums, dtype, twins.differences)
    np.testing.assert_allclose(found, twin, rtol=1e-6 if dtype == np.float32 else 1e-14)
    assert firsts == pytest.approx(same, rel=1e-14)
    assert np.isfinite(found).all()
    shares, log_likelihoods = normalised(found, weights, dtype)
    tolerance = 2e-2 if dtype == np.float32 else 1e-4
    np.testing.assert_allclose(shares, wanted, rtol=tolerance, atol=1e-30)
    if np.isinf(whole[0]):
        assert firsts == np.inf or weights[1] == 1
    else:
        found = log_likelihoods[0] - firsts / 2
        assert found == pytest.approx(whole[0], rel=tolerance, abs=tolerance)


def test_a_row_that_no_component_reaches_has_the_mixing_weights():
    responsibilities, log_likelihoods = normalised([[np.inf, np.inf]], (0.25, 0.75))
    np.testing.assert_allclose(responsibilities, [[0.25, 0.75]], rtol=1e-15)
    assert log_likelihoods.tolist() == [-np.inf]


@each("bad", [np.nan, -np.inf])
def test_what_is_no_number_is_not_hidden(bad):
    for sums in ([[bad, 1.0]], [[1.0, bad]]):
        _, log_likelihoods = normalised(sums, (0.5, 0.5))
        assert not np.isfinite(log_likelihoods).any()
        some, firsts = differ(sums)
        _, log_likelihoods = normalised(some, (0.5, 0.5))
        assert not np.isfinite(log_likelihoods - firsts / 2).any()


def test_normalise_in_single_precision_keeps_the_log_likelihood_in_double():
    sums = np.array([[3e38, 3e38], [1e-3, 2e-3]], np.float32)
    responsibilities, log_likelihoods = normalised(sums, (0.5, 0.5), np.float32)
    assert responsibilities.dtype == np.float32
    np.testing.assert_allclose(responsibilities.sum(axis=1), 1, rtol=1e-6)
    assert log_likelihoods[0] == pytest.approx(-0.5 * float(np.float32(3e38)), rel=1e-14)


# ---- moments and covariances --------------------------------------------------------------------


@over(dtype=DTYPES, full=[True, False])
def test_rows_without_responsibility_add_nothing(dtype, full):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 3)).astype(dtype)
    shares = rng.uniform(size=(1, 300, 2)).astype(dtype)
    shares[0, ::3] = 0
    shares[0, :, 1] = 0
    kernel = moments_full if full else moments_diag
    results = []
    for kept in (np.arange(300), np.flatnonzero(shares[0, :, 0])):
        first, second = np.zeros((2, 3)), np.zeros(2 * 5 if full else (2, 3))
        some = np.ascontiguousarray(rows[kept]), np.ascontiguousarray(shares[:, kept])
        kernel(*some, offsets_of(1, 2), np.zeros((2, 3), dtype), first, second, 1)
        results.append((first, second))
    for whole, part in zip(*results, strict=True):
        np.testing.assert_allclose(whole, part, rtol=1e-5 if dtype is np.float32 else 1e-12)
    assert (results[0][0][1] == 0).all()


@each("scale", [1e-100, 1e100])
def test_moments_at_every_scale(scale):
    rng = np.random.default_rng(1)
    rows, shares = rng.normal(size=(300, 2)), rng.uniform(size=(1, 300, 1))
    results = []
    for unit in (1.0, scale):
        first, second = np.zeros((1, 2)), np.zeros(4)
        shift = np.full((1, 2), 0.5 * unit)
        moments_full(rows * unit, shares, offsets_of(2), shift, first, second, 2)
        results.append(np.concatenate([first[0] / unit, second[[0, 2, 3]] / unit**2]))
    np.testing.assert_allclose(results[1], results[0], rtol=1e-12)


def test_a_shift_near_the_mean_saves_digits():
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(2000, 1)) + 1e8
    shares = np.ones((1, 2000, 1))
    first, second, out = np.zeros((1, 1)), np.zeros(1), np.zeros(1)
    shift = np.full((1, 1), 1e8 + 1.0)
    moments_full(rows, shares, offsets_of(1), shift, first, second, 1)
    covariances_full(first, second, np.array([[2000.0]]), offsets_of(1), np.zeros(1), out)
    assert out[0] == pytest.approx(rows.var(), rel=1e-10)


@over(tied=[False, True], twin=[False, True])
def test_components_without_weight(tied, twin):
    offsets = offsets_of(2)
    copies = 1 if tied else 2
    counts = np.array([[0.0, 4.0]])
    first = np.array([[0.0, 0.0], [4.0, 8.0]])
    scatter = np.array([20.0, 0.0, 10.0, 24.0])
    second = scatter if tied else np.concatenate([np.zeros(4), scatter])
    out = np.full(4 * copies, np.nan)
    full = twins.covariances_full if twin else covariances_full
    full(first, second, counts, offsets, np.full(2, 0.5), out)
    expected = [4.5, 0.5, 0.5, 2.5]
    assert out.tolist() == (expected if tied else [0.5, 0, 0, 0.5, *expected])
    diagonal = second.reshape(copies, 4)[:, [0, 3]].copy()
    variances = np.full((copies, 2), np.nan)
    diag = twins.covariances_diag if twin else covariances_diag
    diag(first, diagonal, counts, offsets, np.full(2, 0.5), False, variances)
    assert variances.tolist() == ([[4.5, 2.5]] if tied else [[0.5, 0.5], [4.5, 2.5]])


def test_a_variance_lost_to_rounding_is_not_negative():
    first, counts = np.array([[1.0]]), np.array([[1.0]])
    second = np.array([np.nextafter(1.0, 0)])
    out = np.empty(1)
    covariances_full(first, second, counts, offsets_of(1), np.zeros(1), out)
    assert out[0] == 0
    variances = np.empty((1, 1))
    covariances_diag(first, second[None], counts, offsets_of(1), np.zeros(1), False, variances)
    assert variances[0, 0] == 0


def test_each_root_divides_by_its_own_counts():
    offsets = offsets_of(1, 1)
    first, second = np.zeros((1, 2)), np.array([8.0, 8.0])
    out = np.empty(2)
    covariances_full(first, second, np.array([[2.0], [4.0]]), offsets, np.zeros(2), out)
    assert out.tolist() == [4.0, 2.0]
    variances = np.empty((1, 2))
    counts = np.array([[2.0], [4.0]])
    covariances_diag(first, second[None].copy(), counts, offsets, np.zeros(2), False, variances)
    assert variances.tolist() == [[4.0, 2.0]]
