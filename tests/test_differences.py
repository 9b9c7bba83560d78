"""K - 1 numbers a row: every sum of differences finds what the sum of whole terms does."""

from functools import partial

import numpy as np
import pytest

from vpem import connect, make_graph
from vpem._core.threads import one_blas_thread
from vpem.errors import PartitionedError
from vpem.network.codecs import parse_codec
from vpem.network.ledger import Ledger
from vpem.network.partition import contiguous
from vpem.steps.em import log_likelihood
from vpem.steps.summing import summed
from vpem.sums.compressed_server import CompressedServerSum
from vpem.sums.consensus import NATS
from vpem.sums.forecast import communication
from vpem.sums.gossip import GossipSum
from vpem.sums.sum import Scalars
from vpem.terms.features import FeatureTerms
from vpem.terms.units import Scaling

from .missing_support import with_holes
from .tables import each, over

pytestmark = pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")

M, D = 200, 6

LINEAR = {
    "server": ("star", {}),
    "tree": ("path", {"sum": "tree"}),
    "operator": ("cycle", {"n_rounds": 6}),
    "operator of ones": ("complete", {}),
    "plain rounds": ("cycle", {"n_rounds": 6, "consensus": "rounds", "acceleration": "none"}),
    "hubs": ("path", {"n_rounds": 8, "consensus": "rounds", "hops": 1}),
    "links that fail": ("cycle", {"link_failure": 0.1, "stragglers": 0.1}),
    "silent agents": ("complete", {"agent_dropout": 0.3, "n_rounds": 9}),
    "rounds with float64": ("cycle", {"compress": "float64"}),
    "server with float64": ("star", {"compress": "float64"}),
    "tree with float64": ("path", {"sum": "tree", "compress": "float64"}),
}
"""Sums that change terms by nothing but a linear map."""

CODECS = {
    "server": ("star", {"compress": "natural:12bits"}),
    "server, much left out": ("star", {"compress": "topk:0.2"}),
    "rounds": ("cycle", {"compress": "qsgd:8bits"}),
    "tree": ("path", {"sum": "tree", "compress": "natural:12bits"}),
    "hubs": ("path", {"compress": "natural:12bits", "hops": 1}),
    "links that fail": ("geometric", {"compress": "qsgd:8bits", "link_failure": 0.1}),
}


@pytest.fixture(autouse=True)
def blas():
    with one_blas_thread():
        yield


def joined(topology, how):
    graph = make_graph(topology, D, seed=1)
    return connect(graph, contiguous(D, D), **{"hops": 0, **how})


def begun(total, begin):
    """Begin a sum, as often as the network falls apart."""
    for _ in range(50):
        try:
            return begin(total)
        except PartitionedError:
            continue
    raise AssertionError("the network falls apart in every draw")


def terms_of(network, *, dtype, weighted, missing):
    rng = np.random.default_rng(3)
    X = 5 + rng.standard_normal((M, D)) + 2 * rng.integers(2, size=(M, 1))
    X = with_holes(X, 1, 0.2) if missing else X
    weights = rng.gamma(1.0, size=M) if weighted else None
    return FeatureTerms(
        X, network.blocks, "full", scaling=Scaling.none(D), row_weights=weights, dtype=dtype,
        reg_covar=1e-3, missing=missing,
    )  # fmt: skip


def by_differences(terms, total, mixture):
    """One E-step: responsibilities and log-likelihood as each root finds them."""
    begun(total, lambda one: one.begin("estep", M, mixture.n_components - 1, 8, 1))
    kept = np.zeros((total.n_roots, M, mixture.n_components), dtype=f"f{terms.itemsize}")
    found = log_likelihood(terms, total, mixture, terms.prepare(mixture), None, kept)
    return kept, found


def by_whole_terms(terms, total, mixture):
    """The same of a sum that has all K terms."""
    k = mixture.n_components
    begun(total, lambda one: one.begin("estep", M, k, 8))
    kept, found = np.zeros((total.n_roots, M, k)), np.zeros(total.n_roots)
    local = partial(terms.local, terms.prepare(mixture))
    for rows, sums in summed(terms, total, k, local):
        kept[:, rows], more = terms.responsibilities(mixture, sums, rows)
        found += more
    return kept, found


@over(
    sums=LINEAR,
    k=[1, 2, 5],
    dtype=[np.float64, np.float32],
    weighted=[False, True],
    missing=[False, True],
    chunk=[1, 1 << 24],
)
def test_differences_find_what_whole_terms_do(sums, k, dtype, weighted, missing, chunk):
    network = joined(*LINEAR[sums])
    terms = terms_of(network, dtype=dtype, weighted=weighted, missing=missing)
    mixture = terms.start(np.nan_to_num(terms.at_rows(np.arange(k))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vpem.terms.rows.CHUNK_BYTES", chunk)
        ours, theirs = (network.total.counted_on(Ledger(network.graph)) for _ in range(2))
        found, wanted = by_differences(terms, ours, mixture), by_whole_terms(terms, theirs, mixture)
    heard = slice(None) if ours.silent is None else ~ours.silent
    tolerance = 1e-11 if dtype == np.float64 else 2e-4
    if network.compress is not None:  # rounds end as soon as agents agree
        tolerance = max(tolerance, NATS)
    np.testing.assert_allclose(found[0][heard], wanted[0][heard], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(found[1][heard], wanted[1][heard], rtol=tolerance)


@over(sums=CODECS, n_values=[0, 3])
def test_a_codec_leaves_the_number_exact(sums, n_values):
    """Whatever a codec draws: of a server to the last bit, by rounds as far as these agree."""
    topology, how = CODECS[sums]
    network = joined(topology, how)
    found = []
    for seed in (0, 1):
        rng = np.random.default_rng(2)
        total = network.total.counted_on(Ledger(network.graph))
        if network.faults is None:  # which are drawn from it too
            total.seed = seed
        for _ in range(3):
            terms = rng.gamma(1.0, size=(len(network.hubs), 50, n_values))
            scalars = Scalars.empty(len(terms), total.n_roots)
            scalars.own[:] = rng.gamma(1.0, 1e6, size=scalars.own.shape)
            begun(total, lambda one: one.begin("estep", 50, n_values, 8, 1))
            found.append((total.reduce(terms, scalars=scalars), scalars.found))
            exact = scalars.own.sum()
            tolerance = 1e-14 if isinstance(total, CompressedServerSum) else 1e-3
            np.testing.assert_allclose(scalars.found, exact, rtol=tolerance)
    first, second = found[:3], found[3:]
    for (values, numbers), (others, same) in zip(first, second, strict=True):
        np.testing.assert_array_equal(numbers, same)
        if n_values and network.faults is None and isinstance(total, GossipSum):
            assert not np.array_equal(values, others)


@each("sums", [*LINEAR.values(), *CODECS.values()])
def test_a_message_has_k_minus_1_numbers_a_row_and_one_more(sums):
    """Of one component it is the one number; what is foretold is what is counted."""
    network = joined(*sums)
    for k, itemsize in ((1, 8), (2, 4), (3, 8)):
        total = network.total.counted_on(Ledger(network.graph))
        if isinstance(total, CompressedServerSum):
            total.n_rounds = 1
        total.begin("check", M, k - 1, itemsize, 1)
        if total.whole:
            local = np.ones((len(network.hubs), M, k - 1))
            total.reduce(local, scalars=Scalars.empty(len(local), total.n_roots))
        size = M * (k - 1) * itemsize
        if network.compress is not None:
            size = parse_codec(network.compress).message_size(M * (k - 1)) if k > 1 else 0
        sent = {name: total.ledger.of_kind(name) for name in ("estep", "server")}
        messages, n_bytes = (
            sum(kind[what] for kind in sent.values()) for what in ("messages", "bytes")
        )
        waiting = network.faults is not None and network.compress is not None
        if not waiting:  # else messages over links that are down go with the next ones
            assert n_bytes == messages * (size + 8) > 0
        if network.faults is None and network.compress is None:
            told = communication(network, M, k - 1, itemsize, n_scalars=1)["last"]
            assert told["bytes"] == total.ledger.bytes
