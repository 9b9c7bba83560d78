"""What holds of mixtures of every kind: however hubs sum, wherever they live, once broken off."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from vpem import InputError, Kinds, connect, fit_vpem, make_graph
from vpem.fits.spread import fit_spread, own_columns
from vpem.network.partition import contiguous
from vpem.sums.connect import spread
from vpem.terms.statistics import leaves

from .missing_support import clusters, with_holes
from .resume_support import check_resumes, check_same
from .tables import each, over
from .thread_engine import over_queues, together

pytestmark = pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")

X = clusters(3, 99, 6, 3)
CODES = np.digitize(X[:, 1], np.quantile(X[:, 1], [0.3, 0.6])).astype(float)
MIXED = np.column_stack([
    X[:, 0], CODES, np.floor(np.exp(0.5 * X[:, 2])), X[:, 3], np.exp(X[:, 4]), X[:, 5] > 0,
])  # fmt: skip
FAMILIES = Kinds(
    ("gaussian", "categorical", "poisson", "t", "log-normal", "bernoulli"),
    levels={1: ("low", "middle", "high")},
)
GAPS = {"missing": "marginalize"}
SMALL = {"mean_precision_prior": 1.0, "weight_concentration_prior": 0.5}

KINDS = {
    "Gaussian": (X, {}),
    "with gaps": (with_holes(X, 1, 0.2), GAPS),
    "with factors": (X, {"n_factors": 1, "reg_covar": 0.0}),
    "of families": (MIXED, {"kinds": FAMILIES}),
    "of families, with gaps": (with_holes(MIXED, 1, 0.2), {"kinds": FAMILIES, **GAPS}),
    "a posterior": (X, {"weight_concentration_prior_type": "dirichlet_process", **SMALL}),
    "a mode": (X, {"weight_concentration_prior_type": "map"}),
}
START = [1, 22, 41]
"""Rows that weigh 1 or 2 where rows weigh 0, 1, 2, 0, ..."""


def fit(kind, topology="star", network=None, engine=None, data=None, **options):
    """Three agents of two features, in one process or over the ranks of an engine."""
    own, given = KINDS[kind]
    data = own if data is None else data
    held = contiguous(6, 3)
    options = {"n_components": 3, "init": START, "max_iter": 3, "tol": 0.0, "n_threads": 1,
               **given, **options}  # fmt: skip
    joined = connect(make_graph(topology, 3), held, **{"hops": 0, **(network or {})})
    if engine is None:
        return fit_vpem(data, joined, **options)
    ranked = spread(joined, engine)
    columns = own_columns(ranked)
    if "kinds" in options:
        options["kinds"] = options["kinds"].take_features(columns)
    return fit_spread(data[:, columns] if len(columns) else None, ranked, **options)


def same(found, wanted, tolerance):
    """Iteration by iteration, and at the end."""
    np.testing.assert_allclose(found.history, wanted.history + 0 * found.history, tolerance)
    np.testing.assert_allclose(found.log_prior, wanted.log_prior, 100 * tolerance)
    arrays = (leaves(one.mixture.arrays()) for one in (found, wanted))
    for ours, theirs in zip(*arrays, strict=True):
        np.testing.assert_allclose(ours, theirs + 0 * ours, 100 * tolerance, 100 * tolerance)


SUMS = {
    "tree": ("path", {"sum": "tree"}, 1e-10),
    "rounds": ("cycle", {"n_rounds": 60, "consensus": "rounds"}, 1e-8),
    "operator": ("cycle", {"n_rounds": 60, "consensus": "operator"}, 1e-8),
    "masks": ("star", {"secure_sum": True}, 1e-6),
    "lossless": ("star", {"compress": "float64"}, 1e-10),
    "codec": ("star", {"compress": "natural:24bits"}, 1e-2),
    "links": ("complete", {"link_failure": 0.1, "n_rounds": 40}, 1e-6),
    "absent": ("complete", {"agent_dropout": 1e-9}, 1e-5),
}
OF_FACTORS = {"links": "by which agents were heard", "absent": "which agents were heard"}
"""Why mixtures with factors refuse a sum."""


@cache
def at_a_server(kind, covariance_type="full"):
    return fit(kind, covariance_type=covariance_type)


@over(kind=KINDS, way=SUMS, covariance_type=["full", "tied-diag"])
def test_however_hubs_sum(kind, way, covariance_type):
    topology, network, tolerance = SUMS[way]
    if kind == "with factors" and way in OF_FACTORS:
        with pytest.raises(InputError, match=OF_FACTORS[way]):
            fit(kind, topology, network)
        return
    found = fit(kind, topology, network, covariance_type=covariance_type)
    same(found, at_a_server(kind, covariance_type), tolerance)


AT_QUEUES = {"engine": over_queues, "seats": (1, 2, 3)}
ENGINES = {
    "server": ("star", {}, partial(together, 2)),
    "tree": ("path", {"sum": "tree"}, partial(together, 2)),
    "rounds": ("cycle", {}, partial(together, 2)),
    "hubs": ("path", {"hops": 1}, partial(together, 2)),
    "masks": ("star", {"secure_sum": True}, partial(together, 4, **AT_QUEUES)),
}


def turned(ways, times):
    """Every kind in so many ways, which take turns."""
    ways = [*ways]
    return [
        (kind, ways[(at + 2 * step) % len(ways)]) for at, kind in enumerate(KINDS)
        for step in range(times)
    ]  # fmt: skip


@each(("kind", "way"), turned(ENGINES, 3))
def test_processes_find_what_one_does(kind, way):
    topology, network, run = ENGINES[way]
    how = {"init": START if way in ("tree", "hubs") else "kmeans", "seed": 3}
    found = run(lambda engine: fit(kind, topology, network, engine, **how))[0]
    same(found, fit(kind, topology, network, **how), 1e-7 if way == "masks" else 1e-10)
    assert found.mixture.kinds == KINDS[kind][1].get("kinds")


@each(("kind", "how"), [
    *((kind, {"batch_size": 50}) for kind in KINDS),
    ("a posterior", {"covariance_type": "tied"}),
    *turned([
        {}, {"accelerate": "squarem", "n_init": 2, "init": "kmeans"},
        {"accelerate": "local:2,squarem"}, {"covariance_type": "tied", "init": "k-means++"},
    ], 1),
])  # fmt: skip
def test_resumed_is_uninterrupted_to_the_bit(kind, how):
    if kind == "with factors" and ("batch_size" in how or "local" in how.get("accelerate", "")):
        how = {"network": {"compress": "natural:12bits"}}
    found = check_resumes(lambda saver: fit(kind, saver=saver, **how), check_same)
    if "batch_size" not in how and "network" not in how:
        assert (np.diff(found.history[:, 0]) > -1e-9 * abs(found.history[0, 0])).all()


@over(
    kind=KINDS, accelerate=[None, "squarem"], covariance_type=["full", "tied-diag"],
    way=[{}, {"topology": "cycle", "network": {"n_rounds": 60}}],
)  # fmt: skip
def test_weights_are_copies_and_single_precision_is_near(kind, accelerate, covariance_type, way):
    data, times = KINDS[kind][0], np.arange(len(X)) % 3
    how = {"accelerate": accelerate, "covariance_type": covariance_type, **way}
    weights = times.astype(float)
    weighed = fit(kind, sample_weight=weights, **how)
    places = np.repeat(np.arange(len(X)), times)
    start = [int(np.searchsorted(places, row)) for row in START]
    copies = fit(kind, data=data[places], init=start, **how)
    same(weighed, copies, 1e-8)
    assert weighed.total_weight == copies.total_weight == times.sum()
    if kind != "with factors":
        single = fit(kind, sample_weight=weights, dtype="float32", **how)
        assert single.log_likelihood == pytest.approx(weighed.log_likelihood, abs=1e-3)
        if accelerate is None:  # what a kind knows besides travels in the terms
            plain = fit("Gaussian", sample_weight=weights, **how)
            assert weighed.communication == plain.communication


@each("kind", KINDS)
def test_components_that_coincide_are_found_by_processes_without_a_hub_too(kind):
    found, network = fit(kind, "path", {"hops": 1}).mixture, {"hops": 1}
    twice = found.permuted(np.array([0, 0, 2]))
    start = replace(twice, weights=twice.weights / twice.weights.sum(axis=1, keepdims=True))
    wanted = fit(kind, "path", network, init=start).copies
    assert wanted == ([] if kind == "a posterior" else [1])
    ranks = together(2, lambda engine: fit(kind, "path", network, engine, init=start))
    assert [one.copies for one in ranks] == [wanted] * 2
