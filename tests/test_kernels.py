"""Every kernel is its NumPy twin, by one law; and what kernels promise at their limits."""

import inspect

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import gammaln

from vpem._core import assign as assigning
from vpem._core import (
    axes,
    balls,
    cholesky,
    consensus,
    covariances,
    families,
    mahalanobis,
    masks,
    missing,
    moments,
    normalise,
    rising,
    sweep,
)
from vpem._core import differences as hubs
from vpem._core.threads import one_blas_thread
from vpem.network.graph import from_networkx, make_graph
from vpem.network.masks import _powers_of
from vpem.network.mixing import mixing_matrix
from vpem.network.partition import Blocks
from vpem.terms.missing import pattern_plan

from .tables import each, over
from .twins import assign, codecs, mixture, models
from .twins import axes as turns

DTYPES = (np.float64, np.float32)


@pytest.fixture(autouse=True, scope="module")
def blas():
    """Keep BLAS out of the kernels' way, as a fit does."""
    with one_blas_thread():
        yield


def offsets_of(*widths):
    return np.concatenate([[0], np.cumsum(widths)]).astype(np.intp)


# ---- the law ------------------------------------------------------------------------------------


class Case:
    """Sizes that hypothesis chooses, and random arrays of them."""

    def __init__(self, seed, m, widths, k, tied, own, single, chance):
        self.rng = np.random.default_rng(seed)
        self.m, self.widths, self.k, self.chance = m, widths, k, chance
        self.d, self.n_hubs = sum(widths), len(widths)
        self.offsets, self.dtype = offsets_of(*widths), np.float32 if single else np.float64
        self.copies, self.roots = 1 if tied else k, self.n_hubs if own else 1

    def __repr__(self):
        return f"Case({ {name: one for name, one in vars(self).items() if name != 'rng'} })"

    def normal(self, *shape, about=0.0, scale=1.0):
        return (about + scale * self.rng.normal(size=shape)).astype(self.dtype)

    def uniform(self, *shape):
        return self.rng.uniform(0.2, 4, shape).astype(self.dtype)

    def row_weights(self):
        return self.rng.gamma(1.0, size=self.m) if self.chance else np.empty(0)

    def shares(self):
        """Responsibilities (R, m, K); rows and components may have none."""
        shares = self.rng.dirichlet(np.full(self.k, 0.3), (self.roots, self.m))
        if self.chance:
            shares[:, ::3], shares[..., 0] = 0, 0
        return np.ascontiguousarray(shares, dtype=self.dtype)

    def symmetric(self, squares=None):
        """Flat blocks, positive definite; or, with means (K, d), moments of rows about 0."""
        parts = []
        for a, b in zip(self.offsets, self.offsets[1:], strict=False):
            root = self.rng.normal(size=(self.copies, b - a, b - a)) / np.sqrt(max(b - a, 1))
            block = root @ root.swapaxes(1, 2) + 0.5 * np.eye(b - a)
            if squares is not None:
                own = squares[:, a:b, None] * squares[:, None, a:b]
                block += own if self.copies > 1 or self.k == 1 else own.sum(axis=0)
            parts.append(block.ravel())
        return np.concatenate([np.empty(0), *parts])

    def holed(self, values):
        """Values of which some are missing."""
        return np.where(self.rng.random(values.shape) < 0.2, np.nan, values).astype(self.dtype)

    @property
    def lower(self):
        """Which numbers of flat blocks kernels promise: those up to the diagonals."""
        masks = [np.tile(np.tri(width, dtype=bool).ravel(), self.copies) for width in self.widths]
        return np.concatenate([np.empty(0, bool), *masks])


def upper_unread(c):
    given, out = factoring(c)
    given["covariances"][~c.lower] = np.nan
    return given, out


def factoring(c, dtype=None):
    given = {"covariances": c.symmetric().astype(dtype or c.dtype), "offsets": c.offsets}
    log_dets = np.full((c.copies, c.n_hubs), 7, dtype or c.dtype)
    failed = np.full(log_dets.shape, 7, np.uint8)
    whiteners = np.full_like(given["covariances"], 7)
    out = {"whiteners": whiteners, "log_dets": log_dets, "failed": failed}
    return given | {"n_copies": c.copies}, out


def whitened(c, dtype=None):
    given, out = factoring(c, dtype)
    mixture.cholesky_blocks(**given, **out)
    return given["covariances"], out["whiteners"], out["log_dets"]


def near(c):
    """Rows and means in the same place, away from 0."""
    return {
        "rows": c.normal(c.m, c.d, about=3), "offsets": c.offsets,
        "means": c.normal(c.k, c.d, about=3),
    }  # fmt: skip


def full_terms(c):
    _, whiteners, log_dets = whitened(c)
    given = near(c) | {"whiteners": whiteners, "log_dets": log_dets}
    return given, {"terms": np.full((c.n_hubs, c.m, c.k), np.nan, c.dtype)}


def diagonal_terms(c):
    own = {"precisions": c.uniform(c.copies, c.d), "log_dets": c.normal(c.copies, c.n_hubs)}
    return near(c) | own, {"terms": np.full((c.n_hubs, c.m, c.k), np.nan, c.dtype)}


def normalising(c):
    implied = 1 if c.chance and c.k > 1 else 0
    given = {
        "sums": c.normal(c.roots, c.m, c.k - implied, scale=30),
        "log_weights": np.log(c.rng.dirichlet(np.ones(c.k), c.roots)),
    }
    shares = np.full((c.roots, c.m, c.k), np.nan, c.dtype)
    return given, {"responsibilities": shares, "log_likelihoods": np.full((c.roots, c.m), np.nan)}


def differing(c):
    given = {"terms": c.normal(c.n_hubs, c.m, c.k, scale=30), "row_weights": c.row_weights()}
    given["limit"] = c.rng.choice([20.0, np.inf])
    out = np.full((c.n_hubs, c.m, c.k - 1), np.nan, c.dtype)
    return given, {"out": out, "firsts": np.ones(c.n_hubs)}


def summing(c, second):
    given = near(c)
    given["shifts"] = given.pop("means")
    given["responsibilities"] = c.shares()
    return given, {"first_moment": np.full((c.k, c.d), 0.5), "second_moment": second}


def full_moments(c):
    return summing(c, c.symmetric() * c.lower)


def diagonal_moments(c):
    return summing(c, np.full((c.copies, c.d), 0.25))


def maximising(c):
    """Moments about 0 of rows that components may have none of, as each root counts them."""
    counts = c.rng.gamma(2.0, size=(c.roots, c.k))
    if c.chance:
        counts[:, 0] = 0
    means = np.sqrt(np.repeat(np.broadcast_to(counts, (c.n_hubs, c.k)), c.widths, axis=0)).T
    first = means * c.rng.normal(size=means.shape)
    squares = np.divide(first, np.where(means > 0, means, 1))
    given = {"first_moment": first, "second_moment": c.symmetric(squares), "counts": counts}
    return given | {"offsets": c.offsets, "reg_covar": 1e-3 * np.arange(1.0, c.d + 1)}


def full_covariances(c):
    given = maximising(c)
    return given, {"covariances": np.full_like(given["second_moment"], np.nan)}


def variances(c):
    given = maximising(c)
    diagonal = [np.tile(np.eye(width, dtype=bool).ravel(), c.copies) for width in c.widths]
    parts = np.split(given["second_moment"], np.cumsum([mask.size for mask in diagonal])[:-1])
    parts = [part[mask].reshape(c.copies, -1) for part, mask in zip(parts, diagonal, strict=True)]
    given |= {"second_moment": np.concatenate(parts, axis=1), "spherical": c.chance}
    return given, {"variances": np.full((c.copies, c.d), np.nan)}


def mixing(c):
    matrix = mixing_matrix(make_graph("path", c.n_hubs))
    given = {"indptr": matrix.indptr.astype(np.int32), "indices": matrix.indices.astype(np.int32)}
    given |= {
        "weights": matrix.data.astype(c.dtype),
        "steps": np.array([1.0, 1.7, 1.4, 1.3][: c.k]),
    }
    return given, {"states": c.normal(c.n_hubs, c.m)}


def sweeping(c):
    diagonal = bool(c.chance)
    _, inverse, log_dets = whitened(c)
    if diagonal:
        inverse = c.uniform(c.copies * c.d)
    mix = np.ones((c.roots, c.n_hubs))
    if c.roots > 1:
        mix += 0.05 * c.rng.normal(size=mix.shape)
    given = near(c) | {
        "row_weights": c.row_weights(), "inverse": inverse, "diagonal": diagonal,
        "log_dets": log_dets, "mix": mix, "least": 0.0,
        "log_weights": np.log(c.rng.dirichlet(np.ones(c.k), size=c.roots)),
    }  # fmt: skip
    second = np.zeros(len(inverse))
    counts = np.zeros((c.roots, c.k))
    return given, {"counts": counts, "first_moment": np.zeros((c.k, c.d)), "second_moment": second}


def swept_by(instructions):
    """The sweep as for a machine with no more instructions than these; or with its best."""

    def run(**arguments):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VPEM_INSTRUCTIONS", instructions)
            return sweep.sweep(**arguments)

    return run


def levels(c):
    """Categories, of which some are no level, and where each feature's begin."""
    n_levels = np.arange(c.d) % 4 + 1
    values = c.rng.integers(0, n_levels, (c.m, c.d)).astype(float)
    odd = c.rng.random(values.shape) < 0.05
    values[odd] = c.rng.choice([-1, 4, 1e30, np.inf, -np.inf], odd.sum())
    return {"rows": c.holed(values), "offsets": c.offsets, "firsts": offsets_of(*n_levels)}


def added(c):
    return {"terms": c.normal(c.n_hubs, c.m, c.k)}


def cell_terms(c):
    given = levels(c)
    table = c.rng.normal(size=(given["firsts"][-1] + 2, c.k))
    table[-2] = 0
    return given | {"table": table}, added(c)


def cell_moments(c):
    given = levels(c)
    return given | {"responsibilities": c.shares()}, {
        "counts": np.full((given["firsts"][-1], c.k), 0.5)
    }


def spread(c, whole):
    """Positive numbers of all sizes, or counts."""
    values = 10.0 ** c.rng.uniform(-3, 6, (c.m, c.d))
    return {"rows": c.holed(np.floor(values) if whole else values), "offsets": c.offsets}


def products(c):
    """Plain values, counts, or those with logarithms, and how many functions these have."""
    kind = int(c.rng.integers(3))
    return spread(c, kind == 1) | {"kind": kind}, (3 if kind == 2 else 2, c.d, c.k)


def product_terms(c):
    given, shape = products(c)
    return given | {"table": c.rng.normal(size=shape)}, added(c)


def product_moments(c):
    given, shape = products(c)
    return given | {"responsibilities": c.shares()}, {"sums": np.full(shape, 0.5)}


def rising_terms(c):
    own = {"sizes": 10 ** c.rng.uniform(-4, 4, (c.d, c.k)), "first": 64.0}
    return spread(c, True) | own | {"line": c.rng.normal(size=(c.d, 2, c.k))}, added(c)


def rising_moments(c):
    own = {"sizes": 10 ** c.rng.uniform(-4, 4, (c.d, c.k)), "edges": np.array([64.0, 256, 1024])}
    given = spread(c, True) | own | {"responsibilities": c.shares()}
    return given, {"sums": np.full((c.d, 3, 3, c.k), 0.5)}


def observed(c):
    """Rows that miss values, in block order, and parameters in double precision."""
    share = c.rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])
    there = (c.rng.random((c.m, c.d)) > share).astype(np.uint8)
    return {
        "rows": c.normal(c.m, c.d), "observed": there, "offsets": c.offsets,
        "means": c.rng.normal(size=(c.k, c.d)),
    }  # fmt: skip


def planned(c):
    given, parts = observed(c), np.split(np.arange(c.d), c.offsets[1:-1])
    blocks = Blocks(tuple(parts), tuple(range(c.n_hubs)), ((0,),) * c.n_hubs)
    plan = pattern_plan(given["observed"], blocks)
    given |= dict(zip(("tiles", "order", "pattern"), plan, strict=True))
    given["covariances"], given["whiteners"], log_dets = whitened(c, np.float64)
    return given, log_dets


def marginal_full(c):
    given, log_dets = planned(c)
    terms = np.zeros((c.n_hubs, c.m, c.k), c.dtype)
    return given | {"log_dets": log_dets}, {"terms": terms}


def marginal_moments_full(c):
    given, _ = planned(c)
    shares = c.shares()
    own = {"responsibilities": shares, "shifts": (given["means"] + 0.1).astype(c.dtype)}
    own["spread_weights"] = c.uniform(*shares.shape) * (shares > 0)
    first, seen = np.full((c.k, c.d), 0.5), np.full((c.n_hubs, c.k), 0.5)
    return given | own, {
        "first_moment": first, "second_moment": c.symmetric() * c.lower, "seen": seen,
    }  # fmt: skip


def marginal_diag(c):
    precisions, log_variances = c.rng.uniform(0.5, 2, (2, c.copies, c.d))
    given = observed(c) | {"precisions": precisions, "log_variances": log_variances}
    return given, {"terms": np.full((c.n_hubs, c.m, c.k), np.nan, c.dtype)}


def marginal_moments_diag(c):
    given = observed(c)
    given |= {"shifts": given.pop("means").astype(c.dtype), "responsibilities": c.shares()}
    first, seen, second = np.full((3, c.k, c.d), 0.5)
    return given, {"first_moment": first, "second_moment": second[: c.copies].copy(), "seen": seen}


def placing(c):
    return {"rows": c.normal(c.m, c.d, about=3), "centres": c.rng.normal(size=(c.k, c.d)) + 3}


def nearest_rows(c):
    labels = np.full(c.m, -1, dtype=np.int32)
    return placing(c), {"labels": labels, "distances": np.full(c.m, np.nan)}


def distances_to(c):
    given = placing(c)
    given["points"] = given.pop("centres")
    return given, {"out": np.full((c.k, c.m), np.nan)}


def bounded(c):
    """Workers' rows, each worker with centres of its own or all with the same."""
    bounds = np.sort(c.rng.integers(0, c.m + 1, c.n_hubs + 1)).astype(np.intp)
    bounds[0], bounds[-1] = 0, c.m
    return bounds, c.rng.normal(size=(c.roots, c.k, c.d)) + 3


def measure_rows(c):
    bounds, centres = bounded(c)
    given = placing(c) | {"weights": c.row_weights(), "bounds": bounds, "centres": centres}
    given["labels"] = c.rng.integers(c.k, size=c.m).astype(np.int32)
    return given, {"distances": np.full(c.m, np.nan), "inertias": np.ones(c.n_hubs)}


def inertias_of(c):
    totals = c.rng.normal(size=(c.n_hubs, 2, c.k + c.k * c.d + 1))
    given = {"totals": totals, "about": c.rng.normal(size=c.d), "centres": bounded(c)[1]}
    return given, {"inertias": np.full(c.n_hubs, np.nan)}


def assign_features(c):
    """In single precision centres lie apart: else a row may go to another one nearly as near."""
    centres = c.rng.normal(size=(c.k, c.d)) + 5
    rows = c.normal(c.m, c.d, about=5)
    if c.dtype == np.float32:
        centres = 9.0 * np.arange(1, c.k + 1)[:, None] + np.zeros(c.d)
        rows = (centres[c.rng.integers(c.k, size=c.m)] + c.normal(c.m, c.d)).astype(c.dtype)
    there = (c.rng.random((c.m if c.chance else 0, c.d)) > 0.3).astype(np.uint8)
    mix = np.ones((c.roots, c.n_hubs))
    if c.roots > 1:
        mix += 0.05 * c.rng.standard_normal(mix.shape)
    given = {"rows": rows, "observed": there, "weights": c.row_weights(), "offsets": c.offsets}
    given |= {"centres": centres, "mix": mix}
    sums, seen = np.ones((2, c.k, c.d))
    out = {"labels": np.full((c.roots, c.m), -1, dtype=np.int32), "counts": np.ones((c.roots, c.k))}
    out |= {"sums": sums, "there": seen, "first": np.ones(c.n_hubs), "least": np.ones(c.roots)}
    return given, out | {"changes": np.ones(c.roots, dtype=np.intp)}


def hops_from(c):
    """Most graphs have parts that are not reached."""
    n = c.k + c.n_hubs
    graph = nx.gnp_random_graph(n, 2.0 / n, seed=int(c.rng.integers(99)))
    indptr, indices = from_networkx(graph, n).adjacency
    given = {"indptr": indptr, "indices": indices, "root": n - 1, "queue": np.empty(n, np.int32)}
    return given, {"steps": np.full(n, 77, dtype=np.int32)}


def adding(c):
    """Halves that round to even, both zeros, subnormal numbers, and the ends of the range."""
    unit, tiny = 2.0**-32, float(np.finfo(c.dtype).smallest_subnormal)
    odd = [0.0, -0.0, tiny, -tiny, 1 / 3, 2.0**28, -(2.0**28), *(k * unit / 2 for k in (-5, -1, 3))]
    values = c.rng.normal(size=16 * c.m) * 2.0 ** c.rng.integers(-50, 25, 16 * c.m)
    values[: len(odd)] = odd[: values.size]
    n = 1 if c.copies == 1 else values.size
    scales = np.ldexp(1.0, c.rng.integers(-60, 33, n)) if n > 1 else np.array([2.0**32])
    given = {"values": values.astype(c.dtype), "scales": scales, "limit": 2.0**60}
    return given, {"ring": np.arange(values.size, dtype=np.uint64)}


def taking_off(c):
    words = c.rng.integers(0, 2**64, 16 * c.m, dtype=np.uint64)
    words[-1:] = 2**62 + 2**10
    n = 1 if c.copies == 1 else words.size
    given = {"ring": words, "scales": np.ldexp(1.0, c.rng.integers(-60, 33, n))}
    return given | {"most": 2.0 ** (62 + c.chance)}, {"values": np.empty(words.size)}


def tagging(c):
    point = int(c.rng.choice([1, 2, 3])) if c.chance else 3 ** int(c.rng.integers(1, 80))
    ring = c.rng.integers(0, 2**64, c.m, dtype=np.uint64)
    if c.copies == 1:
        ring[:] = c.rng.choice(np.array([0, 2**63 - 1, 2**63, 2**64 - 1], dtype=np.uint64))
    given = {"ring": ring, "powers": _powers_of(point)}
    return given, {"tag": np.array([2**64 - 1, 2**63 - 2], dtype=np.uint64)}


def turning(c):
    """Covariances that differ, and axes of each and of their sum to begin at."""
    w = min(max(c.widths), 9) or 1
    roots = c.rng.normal(size=(c.k, w, 2 * w))
    shares, covariances = c.rng.dirichlet(np.ones(c.k)), roots @ roots.swapaxes(1, 2) / w
    starts = np.linalg.eigh(np.stack([np.tensordot(shares, covariances, 1), *covariances]))[1]
    given = {"covariances": covariances, "shares": shares, "starts": starts}
    given |= {"equal": bool(c.chance), "most": 6, "settled": 1e-12}
    return given, {"axes": np.zeros((w, w)), "spreads": np.zeros((c.k, w))}


HALF = 1
"""A seed with which half of the values are missing where some are."""
TIGHT, IN_DOUBLE = (1e-14, 6e-6), (1e-12, 1e-12)
"""Parts of the largest number that kernels of rows in double and in single precision may be off."""
SLOW = ("marginal_full", "marginal_moments_full")

LAW = {
    "cholesky_blocks": (cholesky, mixture, upper_unread, (1e-13, 3e-5)),
    "mahalanobis_full": (mahalanobis, mixture, full_terms, TIGHT),
    "mahalanobis_diag": (mahalanobis, mixture, diagonal_terms, TIGHT),
    "normalise": (normalise, mixture, normalising, TIGHT),
    "differences": (normalise, mixture, differing, (1e-13, 6e-6)),
    "moments_full": (moments, mixture, full_moments, TIGHT),
    "moments_diag": (moments, mixture, diagonal_moments, TIGHT),
    "covariances_full": (covariances, mixture, full_covariances, IN_DOUBLE),
    "covariances_diag": (covariances, mixture, variances, IN_DOUBLE),
    "consensus_rounds": (consensus, mixture, mixing, TIGHT),
    "sweep": (sweep, mixture, sweeping, (1e-11, 5e-4)),
    "cell_terms": (families, models, cell_terms, TIGHT),
    "cell_moments": (families, models, cell_moments, IN_DOUBLE),
    "product_terms": (families, models, product_terms, TIGHT),
    "product_moments": (families, models, product_moments, IN_DOUBLE),
    "rising_terms": (rising, models, rising_terms, TIGHT),
    "rising_moments": (rising, models, rising_moments, (6e-6, 6e-6)),
    "marginal_full": (missing, assign, marginal_full, (1e-9, 1e-4)),
    "marginal_moments_full": (missing, assign, marginal_moments_full, (1e-9, 1e-4)),
    "marginal_diag": (missing, assign, marginal_diag, (1e-12, 1e-5)),
    "marginal_moments_diag": (missing, assign, marginal_moments_diag, (1e-12, 1e-5)),
    "nearest_rows": (assigning, assign, nearest_rows, IN_DOUBLE),
    "distances_to": (assigning, assign, distances_to, IN_DOUBLE),
    "measure_rows": (assigning, assign, measure_rows, IN_DOUBLE),
    "inertias_of": (assigning, assign, inertias_of, IN_DOUBLE),
    "assign_features": (hubs, assign, assign_features, (1e-10, 1e-4)),
    "common_axes": (axes, turns, turning, (1e-9, 1e-9)),
    "hops_from": (balls, codecs, hops_from, IN_DOUBLE),
    "add_scaled": (masks, codecs, adding, (0, 0)),
    "values_of": (masks, codecs, taking_off, (0, 0)),
    "add_tag": (masks, codecs, tagging, (0, 0)),
}

cases = st.builds(
    Case,
    seed=st.integers(0, 2**32 - 1),
    m=st.sampled_from((0, 1, 31, 32, 33, 63, 65, 255, 256, 257, 511, 513, 1024, 1025, 1300))
    | st.integers(0, 40),  # the edges of tiles
    widths=st.lists(st.integers(0, 5), min_size=1, max_size=5).map(tuple)
    | st.sampled_from(((7,), (1, 40), (101,), (0, 27, 28), (1,) * 7)),
    k=st.integers(1, 9),
    tied=st.booleans(),
    own=st.booleans(),
    single=st.booleans(),
    chance=st.booleans(),  # weights, zeros, what else there are two ways of
)


@pytest.mark.parametrize("name", [*LAW, "sweep avx2", "sweep base"])
@given(c=cases)
@settings(max_examples=32, deadline=None, derandomize=True)
def test_a_kernel_is_its_twin_and_threads_do_not_show(name, c):
    name, _, instructions = name.partition(" ")
    home, twins, make, tolerance = LAW[name]
    if name in SLOW:
        widths = tuple(min(width, 12) for width in c.widths)
        c.__init__(c.rng, min(c.m, 300), widths, min(c.k, 3), c.copies == 1, c.roots > 1,
                   c.dtype == np.float32, c.chance)  # fmt: skip
    # Without features this one does nothing, and nobody asks it to.
    assume(c.d or name != "assign_features")
    kernel, twin = getattr(home, name), getattr(twins, name)
    given, out = make(c)
    threads = "n_threads" in inspect.signature(kernel).parameters
    if instructions:
        kernel = swept_by(instructions)
    found = []
    for function, number in ((kernel, 1), (kernel, 2), (twin, 1)):
        own = {one: array.copy() for one, array in out.items()}
        more = {"n_threads": number} if threads else {}
        own["returned"] = np.asarray(function(**given, **own, **more), dtype=float)
        if name.endswith(("moments_full", "sweep")) and own["second_moment"].size == c.lower.size:
            own["second_moment"] *= c.lower
        found.append(own)
    one, two, wanted = found
    allowed = tolerance[c.dtype == np.float32]
    for word, array in wanted.items():
        size = np.abs(array).max(initial=1.0)
        np.testing.assert_allclose(one[word], array, allowed, allowed * size, err_msg=word)
        if name in SLOW:
            np.testing.assert_allclose(two[word], one[word], 1e-12, 1e-11, err_msg=word)
        else:
            np.testing.assert_array_equal(two[word], one[word], err_msg=word)


ELSEWHERE = {
    "follow_rows", "neighbour_round", "ball", "Curves", "Lines", "curves", "bound_of_topics",
    "density_of_topics", "means_of_topics", "sweep_topics",
}  # fmt: skip
"""Twins that tests of passes, rounds, hubs, individuals and topics compare; and codecs' are
compared by theirs."""


def test_every_pair_is_under_the_law_or_in_a_test_of_its_own():
    homes = {home.__name__: vars(home).items() for home in (assign, turns, codecs, mixture, models)}
    twins = {
        word for home, names in homes.items() for word, one in names
        if word[0] != "_" and getattr(one, "__module__", "") == home
    }  # fmt: skip
    coding = {word for word in twins if word.endswith("code")}
    assert twins == LAW.keys() | ELSEWHERE | coding


# ---- factors and terms --------------------------------------------------------------------------


def factor(blocks, kernel=cholesky.cholesky_blocks):
    """Whiteners, log-determinants and failures of one component with these blocks."""
    flat = np.concatenate([np.ravel(block) for block in blocks])
    whiteners = np.full_like(flat, 7)
    log_dets = np.full((1, len(blocks)), 7, dtype=flat.dtype)
    failed = np.full((1, len(blocks)), 7, dtype=np.uint8)
    kernel(flat, offsets_of(*map(len, blocks)), 1, whiteners, log_dets, failed)
    return whiteners, log_dets, failed


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
    assert (whiteners[4 : 4 + SINGULAR[name].size] == 0).all()
    for one, twin in zip(
        (whiteners, log_dets), factor(blocks, mixture.cholesky_blocks), strict=False
    ):
        np.testing.assert_allclose(one, twin, rtol=1e-5)


@over(dtype=DTYPES, d=[2, 5, 40], part=[0.25, 4.0], unit=[1e-6, 1.0, 1e6])
def test_a_column_that_others_leave_nothing_but_rounding_of_is_singular(dtype, d, part, unit):
    # The last column follows from the others but for this part of its variance.
    left = part * 64 * d * float(np.finfo(dtype).eps)
    shape = np.eye(d)
    shape[-1, 0], shape[-1, -1] = np.sqrt(1 - left), np.sqrt(left)
    block = shape @ shape.T * np.outer(*[np.r_[np.ones(d - 1), unit]] * 2)
    for kernel in (cholesky.cholesky_blocks, mixture.cholesky_blocks):
        assert factor([block.astype(dtype)], kernel)[2].tolist() == [[int(part < 1)]]


@each("scale", [1e-140, 1e-6, 1e6, 1e140])
def test_terms_and_moments_do_not_depend_on_the_units(scale):
    rng = np.random.default_rng(5)
    rows, means, shares = (
        rng.normal(size=(300, 2)),
        rng.normal(size=(1, 2)),
        rng.random((1, 300, 1)),
    )
    covariance, offsets, results = np.array([[2.0, 0.5], [0.5, 1.0]]), offsets_of(2), []
    for unit in (1.0, scale):
        whiteners, log_dets, failed = factor([covariance * unit**2])
        assert not failed.any()
        terms, first, second = np.empty((1, 300, 1)), np.zeros((1, 2)), np.zeros(4)
        own = (rows * unit, offsets, means * unit)
        mahalanobis.mahalanobis_full(*own, whiteners, log_dets, terms, 2)
        moments.moments_full(own[0], shares, *own[1:], first, second, 2)
        together = np.concatenate([first[0] / unit, second[[0, 2, 3]] / unit**2])
        results.append((terms - 4 * np.log(unit), together))
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


def test_terms_of_large_sizes_are_those_of_a_poisson():
    x = np.array([64.0, 100, 1000, 1e6])[:, None]
    size, terms = np.full((1, 1), 1e8), np.zeros((1, 4, 1))
    exact = np.array([sum(np.log1p(np.arange(64, int(v)) / 1e8)) for v in x[:3, 0]])
    rising.rising_terms(x, 64.0, np.array([0, 1]), np.zeros((1, 2, 1)), size, terms, 1)
    ahead = (x[:3, 0] - 64) * np.log1p(64 / 1e8)
    wanted = 2 * (gammaln(x[:3, 0] + 1) - (exact - ahead))
    np.testing.assert_allclose(terms[0, :3, 0], wanted, rtol=1e-14)


# ---- responsibilities ---------------------------------------------------------------------------


def normalised(sums, weights, dtype=np.float64, kernel=normalise.normalise):
    sums = np.asarray(sums, dtype)[None]
    with np.errstate(divide="ignore", invalid="ignore"):
        log_weights = np.log(np.asarray([weights], dtype=np.float64))
        responsibilities = np.full((1, sums.shape[1], len(weights)), 7, dtype=dtype)
        log_likelihoods = np.full(sums.shape[:2], 7.0)
        kernel(sums, log_weights, responsibilities, log_likelihoods, 1)
    return responsibilities[0], log_likelihoods[0]


FARTHEST = {np.float64: 2.0**36, np.float32: 2.0**16}


def differ(sums, dtype=np.float64, kernel=normalise.differences):
    """Differences of one block's sums, and the sum of the first ones."""
    sums = np.asarray(sums, dtype)[None]
    out, firsts = np.empty((1, *np.subtract(sums.shape[1:], (0, 1))), dtype), np.zeros(1)
    with np.errstate(invalid="ignore"):
        kernel(sums, np.empty(0), out, firsts, FARTHEST[dtype], 1)
    return out[0], firsts[0]


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
    **{
        f"the first at {far:g}": ([[far, 4.0, 3.0]], (0.2, 0.3, 0.5)) for far in (1e5, 1e12, np.inf)
    },
}


@over(name=EXTREMES, dtype=DTYPES)
def test_extreme_sums_and_their_differences_have_the_same_responsibilities(name, dtype):
    sums, weights = EXTREMES[name]
    found, whole = normalised(sums, weights)
    twin, same = normalised(sums, weights, kernel=mixture.normalise)
    np.testing.assert_allclose(found, twin / twin.sum(), rtol=1e-13, atol=1e-300)
    np.testing.assert_allclose(whole, same, rtol=1e-13)
    assert found.sum() == pytest.approx(1, rel=1e-14)
    if np.isinf(sums).all():
        np.testing.assert_allclose(found, [weights], rtol=1e-15)
    with np.errstate(over="ignore"):
        sums = np.maximum(np.asarray(sums, dtype), -1e4)  # terms are not below log-determinants
    wanted, whole = normalised(sums, weights, dtype)
    if (sums == sums[0, 0]).all():  # weights that rounding hides beside whole terms are left
        wanted = [weights]
    found, firsts = differ(sums, dtype)
    twin, same = differ(sums, dtype, mixture.differences)
    np.testing.assert_allclose(found, twin, rtol=1e-6 if dtype == np.float32 else 1e-14)
    assert firsts == pytest.approx(same, rel=1e-14)
    assert np.isfinite(found).all()
    shares, log_likelihoods = normalised(found, weights, dtype)
    tolerance = 2e-2 if dtype == np.float32 else 1e-4
    np.testing.assert_allclose(shares, wanted, rtol=tolerance, atol=1e-30)
    if np.isinf(whole[0]):
        assert firsts == np.inf or weights[1] == 1
    else:
        assert log_likelihoods[0] - firsts / 2 == pytest.approx(whole[0], tolerance, tolerance)


@each("bad", [np.nan, -np.inf])
def test_what_is_no_number_is_not_hidden(bad):
    for sums in ([[bad, 1.0]], [[1.0, bad]]):
        assert not np.isfinite(normalised(sums, (0.5, 0.5))[1]).any()
        some, firsts = differ(sums)
        assert not np.isfinite(normalised(some, (0.5, 0.5))[1] - firsts / 2).any()


def test_normalise_in_single_precision_keeps_the_log_likelihood_in_double():
    sums = np.array([[3e38, 3e38], [1e-3, 2e-3]], np.float32)
    responsibilities, log_likelihoods = normalised(sums, (0.5, 0.5), np.float32)
    assert responsibilities.dtype == np.float32
    assert log_likelihoods[0] == pytest.approx(-0.5 * float(np.float32(3e38)), rel=1e-14)


# ---- moments, covariances, rounds ---------------------------------------------------------------


@over(full=[True, False], tied=[False, True], gaps=[False, True])
def test_moments_of_a_hub_are_the_same_bits_whatever_hubs_are_beside_it(full, tied, gaps):
    case, found = Case(HALF, 6000, (1,) * 8, 3, tied, False, False, False), []
    name = f"{'marginal_' if gaps else ''}moments_{'full' if full else 'diag'}"
    home, _, make, _ = LAW[name]
    given, _ = make(case)
    for n in (1, 8):
        columns = {"rows", "observed", "means", "shifts"} & given.keys()
        own = given | {word: np.ascontiguousarray(given[word][:, :n]) for word in columns}
        own["offsets"] = np.arange(n + 1)
        if "tiles" in own:
            blocks = Blocks(tuple(np.arange(n)[:, None]), tuple(range(n)), ((0,),) * n)
            plan = pattern_plan(own["observed"], blocks)
            own |= dict(zip(("tiles", "order", "pattern"), plan, strict=True))
            own |= {word: own[word][: n * case.copies] for word in ("covariances", "whiteners")}
        second = np.zeros(n * case.copies if full else (case.copies, n))
        more = {"seen": np.zeros((n, 3) if full else (3, n))} if gaps else {}
        first = np.zeros((3, n))
        getattr(home, name)(**own, first_moment=first, second_moment=second, **more, n_threads=1)
        found.append((first[:, 0], second[: case.copies] if full else second[:, 0]))
    for alone, beside in zip(*found, strict=True):
        np.testing.assert_array_equal(alone, beside)


def test_a_shift_near_the_mean_saves_digits_and_no_variance_is_negative():
    rows, shares = np.random.default_rng(2).normal(size=(2000, 1)) + 1e8, np.ones((1, 2000, 1))
    first, second, out = np.zeros((1, 1)), np.zeros(1), np.zeros(1)
    moments.moments_full(rows, shares, offsets_of(1), np.full((1, 1), 1e8 + 1.0), first, second, 1)
    covariances.covariances_full(
        first, second, np.array([[2000.0]]), offsets_of(1), np.zeros(1), out
    )
    assert out[0] == pytest.approx(rows.var(), rel=1e-10)
    one, lost = np.ones((1, 1)), np.array([np.nextafter(1.0, 0)])
    covariances.covariances_full(one, lost, one, offsets_of(1), np.zeros(1), out)
    spread = np.empty((1, 1))
    covariances.covariances_diag(one, lost[None], one, offsets_of(1), np.zeros(1), False, spread)
    assert out[0] == spread[0, 0] == 0


@over(dtype=DTYPES, n_threads=[1, 2])
def test_neighbour_rounds_are_those_of_all_agents(dtype, n_threads):
    """Two processes with the states of each other's agents run the rounds of one."""
    matrix = mixing_matrix(make_graph("geometric", 9, seed=2))
    memory = np.zeros((2, 9 * 64 + 64), dtype=dtype)
    here, there = (
        row[-row.ctypes.data % 64 // row.itemsize :][: 9 * 64].reshape(9, 64) for row in memory
    )
    here[...] = np.random.default_rng(0).standard_normal((9, 64))
    start, wanted = here.copy(), here.copy()
    csr = (matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32))
    weights, loose = matrix.data.astype(dtype), 1e-4 if dtype == np.float32 else 1e-12
    for steps in (np.array([1.0, 1.7, 1.4, 1.3]), np.ones(3)):
        here[...], wanted[...] = start, start
        mixture.consensus_rounds(*csr, weights, wanted, steps, 1)
        for step in steps:
            twin = there.copy()
            for rows in (slice(0, 4), slice(4, 9)):
                indptr = csr[0][rows.start : rows.stop + 1]
                inner = slice(indptr[0], indptr[-1])
                part = (indptr - indptr[0], csr[1][inner], weights[inner], here)
                mixture.neighbour_round(*part, twin[rows], step, 1)
                consensus.neighbour_round(*part, there[rows], step, n_threads)
            np.testing.assert_allclose(there, twin, rtol=loose, atol=loose)
            here, there = there, here
        np.testing.assert_allclose(here, wanted, rtol=loose, atol=loose)
    power = np.linalg.matrix_power(matrix.toarray(), 3) @ start
    np.testing.assert_allclose(here, power, rtol=loose, atol=loose)
    one = (np.array([0, 1], dtype=np.int32), np.zeros(1, dtype=np.int32), np.ones(1, dtype))
    with pytest.raises(ValueError, match="aligned"):
        consensus.neighbour_round(*one, np.zeros((1, 5), dtype), np.zeros((1, 5), dtype), 1.0, 1)
