"""What a network will do before it does it: hubs, mixing, rounds, messages, bytes, and the time.

How long an iteration takes is what agents compute, what they send, and what they wait for.
The model has these parts. *Computing*: the flops of the widest hub's E-step and M-step, and the
numbers that are added up, by rates measured on this machine. *Handling*: messages that the busiest
sends and takes in, of which each takes a processor some time. *Masking*: masks with every other
party. *Latency*: messages of one round are on their way together, so that a round takes one; rows
that are summed in several chunks take the rounds for each `IN_FLIGHT` of them; and where agents do
not have the same total they agree on stopping and, after every sum, on components that collapsed.
*Transfer*: the bytes of the busiest agent by the bandwidth of its link. While one chunk travels the
next is computed.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from timeit import repeat
from typing import Any

import numpy as np

from vpem._core.threads import one_blas_thread
from vpem.checks import check_int
from vpem.errors import InputError, VpemWarning, check_choice, warn
from vpem.files.studies.study import MOST_MEMBERS
from vpem.fits.likely_hubs import check_choice_of_hubs
from vpem.fits.results import SUMMED
from vpem.fits.rows import charge_scaling
from vpem.fits.settings import PlanSettings
from vpem.fits.vpem import WORKING, check_sums_of_factors
from vpem.network.graph import Graph
from vpem.network.hubs import Hub, LikelyHubs, charge_meetings, diameter, find_hubs, find_meetings
from vpem.network.ledger import Ledger
from vpem.network.messages import LinkSpeed, parse_link
from vpem.network.mixing import mixing_matrix, mixing_rate
from vpem.network.partition import Blocks, Partition
from vpem.network.schema import Report
from vpem.rules import refuse
from vpem.settings import ACCELERATIONS, SPLITS, WEIGHTS, SumSettings
from vpem.steps.em import numbers_of_a_component, numbers_of_a_row
from vpem.steps.row_sampling import ROW_BYTES
from vpem.sums.connect import Network, along_a_tree, connect, connect_workers, way_of
from vpem.sums.consensus import ConsensusSum, consensus_error_bound, rounds_needed
from vpem.sums.forecast import communication, labels_sent
from vpem.sums.quantizer import ITEM
from vpem.sums.server import IN_FLIGHT
from vpem.terms.features import FeatureTerms
from vpem.terms.rows import CHUNK_BYTES
from vpem.terms.units import Scaling

EXPONENTIAL = 20
"""Flops that an exponential and its share of a row's normalisation count as."""

HANDLED = 4e-4
"""Processor seconds in which a member of a study sends a message, or takes one in."""

PADDED, PADDED_NUMBER = 3.5e-5, 2.5e-9
"""Processor seconds of a mask between two parties, and of each number under it."""

PAIRED = 5e-5
"""Processor seconds in which two parties agree on keys for their masks."""

LINKED, KEPT_OF_PAIR = 1 << 18, 500
"""Bytes that a member keeps for a link to another, and for keys that it shares with one."""

USED = {ITEM: CHUNK_BYTES // 2, ITEM // 2: CHUNK_BYTES + CHUNK_BYTES // 2}
"""Bytes that kernels work with beside the rows, by those of a number: doubles of single ones."""

WIDEST, MOST_COMPONENTS = 256, 64
"""Features of the block, and components, whose flops a second are measured, at most."""

TRIAL_FLOPS = 2e7
"""Of one measurement."""

TRIAL_NUMBERS = 1 << 21
"""Numbers that are added to others, in one measurement."""

TRIALS = 5
"""Measurements, of which the fastest counts."""


@dataclass(frozen=True)
class Work:
    """What the busiest agent does for one sum, of which batches take several in an iteration.

    It computes with rows, components and features (``width``). ``values`` are rows and columns of
    the numbers that it adds to a sum: M x (K - 1) differences of terms, or a row of statistics.
    There are ``n_sums`` in an iteration, as many as all rows are batches; ``n_scalars`` are exact
    numbers of a message besides.
    """

    n_samples: int
    n_components: int
    width: int
    values: tuple[int, int]
    itemsize: int
    n_sums: float = 1.0
    n_scalars: int = 0
    n_factors: int = 0

    @property
    def samples(self) -> float:
        """Rows of all batches."""
        return self.n_samples * self.n_sums

    @property
    def flops(self) -> float:
        """Of an E-step and M-step with full covariances.

        For every row and component a triangular solve and an outer product, ``d^2`` each, and what
        grows with ``d``; with q factors features are projected on them and regressed on them, ``2
        d q`` each, and their moments take ``4 q^2``.
        """
        q = self.n_factors
        a_row = 2.0 * self.width**2 + (6.0 + 4.0 * q) * self.width + 4.0 * q**2 + EXPONENTIAL
        return float(self.n_samples) * self.n_components * a_row


def message_size(n_components: int, n_features: int) -> int:
    """Numbers of a worker's statistics with full covariances, and of its log-likelihood."""
    return n_components * (1 + n_features + n_features * (n_features + 1) // 2) + 1


Rates = tuple[float, float]
"""Flops of an E-step and M-step that one thread does in a second, and numbers of 8 bytes that it
adds to others in memory."""


def measure_rates(width: int, n_components: int) -> Rates:
    """Measure this machine, on rows of so many features (at most `WIDEST`) that are drawn."""
    width, n_components = max(1, min(width, WIDEST)), min(n_components, MOST_COMPONENTS)
    one = Work(1, n_components, width, (1, n_components), ITEM)
    n_samples = max(64, int(TRIAL_FLOPS / one.flops))
    rng = np.random.default_rng(0)
    blocks = Blocks.one(width)
    rows, units = rng.standard_normal((n_samples, width)), Scaling.none(width)
    terms = FeatureTerms(rows, blocks, "full", scaling=units, reg_covar=1.0)
    means = terms.at_rows(np.arange(n_components) % n_samples)
    mixture, mix = terms.start(means), np.ones((1, 1))

    def sweep() -> None:
        statistics = terms.empty(mixture.means, 1)
        terms.sweep(mixture, terms.prepare(mixture), mix, statistics)
        terms.update(statistics)

    some, more = np.ones(TRIAL_NUMBERS), np.ones(TRIAL_NUMBERS)

    with one_blas_thread():
        swept, added = (
            max(min(repeat(work, number=1, repeat=TRIALS)), 1e-9)
            for work in (sweep, partial(np.add, some, more, out=some))
        )
    return n_samples * one.flops / swept, TRIAL_NUMBERS / added


def iteration_time(
    network: Network,
    sent: Report,
    link: LinkSpeed,
    work: Work,
    rates: Rates | None = None,
    ahead: float = 0,
) -> Report:
    """Foretell how long an iteration takes where every agent has a machine and a link of its own.

    ``work`` is that of the busiest agent, ``sent`` what `vpem.sums.forecast.communication` says,
    and ``ahead`` the rounds of small sums that come before that of the rows and are not in it;
    without ``rates`` this machine's are measured. It returns seconds ``computing``, ``handling``
    of messages, ``masking``, ``latency``, ``transfer`` and, of a whole ``iteration``; and what
    they are made of: ``flops`` and ``additions`` of the busiest, its ``bytes``, ``messages`` and
    ``pads`` (masks with one other), the ``latencies`` one after the other, and ``chunks`` of rows.
    """
    computed, added = rates or measure_rates(work.width, work.n_components)
    one: Report = sent["batch"] if "batch" in sent else sent["iteration"]
    kinds, agreed = one["by_kind"], sent["iteration"]["by_kind"]["stopping"]["rounds"]
    if network.total.is_alike and "batch" not in sent:
        agreed = 0  # all go on by the total, or by what comes with it
    n_rounds = kinds["estep"]["rounds"] + kinds["server"]["rounds"]
    others = one["rounds"] - n_rounds - kinds["stopping"]["rounds"]
    n_values = float(work.values[0]) * work.values[1]
    most, n_bytes = _busiest(network, one)
    terms = float(work.values[0]) * (work.values[1] + 1) * work.itemsize
    chunks = 1 if work.values[0] == 1 else _chunks(network, terms)
    flights = ceil(chunks / IN_FLIGHT)
    # Where totals differ all agree on components that collapsed after every sum, and on stopping.
    waits = ahead + work.n_sums * (n_rounds * flights + others + agreed) + agreed
    flops, additions = work.n_sums * work.flops, work.n_sums * n_values * most
    computing = flops / computed + additions / added
    handled = 2 * work.n_sums * most * chunks
    pads = (parties_of(network) - 1) * work.n_sums if network.agents.masks is not None else 0.0
    handling = handled * HANDLED
    masking = pads * (chunks * PADDED + n_values * PADDED_NUMBER)
    n_bytes = round(work.n_sums * n_bytes)
    latency, transfer = link.latency * waits, link.transfer(n_bytes)
    working = computing + handling + masking
    longer, shorter = sorted((working, latency + transfer), reverse=True)
    return {
        "bandwidth": link.bandwidth,
        "one_way_latency": link.latency,
        "flops": flops,
        "flops_per_second": computed,
        "additions": additions,
        "additions_per_second": added,
        "latencies": waits,
        "chunks": chunks,
        "bytes": n_bytes,
        "messages": handled,
        "pads": pads * chunks,
        "computing": computing,
        "handling": handling,
        "masking": masking,
        "latency": latency,
        "transfer": transfer,
        "iteration": longer + shorter / flights,
    }


def parties_of(network: Network) -> int:
    """Agents that hold something: each pair of them shares keys, where sums are masked."""
    return sum(len(columns) > 0 for columns in network.features)


def memory(network: Network, work: Work, data: tuple[int, int]) -> Report:
    """Foretell the bytes that a fit needs of ``data``, so many rows and columns altogether.

    Of an ``agent``, the busiest: its rows, as they were read and as the kernels have them, chunks
    of terms, what it keeps of its links and of each pair of keys, and what codecs work with. Of a
    ``server``, which has what all send it at a time. Of ``one_process`` that simulates all. The
    program itself takes about 0.1 GB besides.
    """
    n_agents, n_rows, itemsize = network.graph.n_agents, round(work.samples), work.itemsize
    each, used = ITEM + itemsize, USED[itemsize]
    codec = 0
    if network.compress is not None:
        kept = network.total.kept_bytes(n_rows * work.values[1] + 1)
        numbers = work.values[0] * (work.values[1] + 1)
        codec = kept + WORKING * ITEM * network.total.values_per_item * numbers
    pairs = parties_of(network) - 1 if network.agents.masks is not None else 0
    degree = int(network.graph.degrees[:n_agents].max(initial=0))
    server = None
    if network.graph.has_server:
        message = min(work.values[0] * work.values[1] * itemsize, CHUNK_BYTES // 2)
        server = n_agents * (LINKED + message) + codec // 2
    one_agent = n_rows * work.width * each + degree * LINKED + pairs * KEPT_OF_PAIR
    pairs_of_all = pairs * (pairs + 1) // 2 * KEPT_OF_PAIR
    return {
        "agent": one_agent + used + codec // n_agents,
        "server": server,
        "one_process": data[0] * data[1] * each + pairs_of_all + used + codec,
    }


def _busiest(network: Network, sent: Report) -> tuple[int, int]:
    """Terms that are added up one after the other, and bytes that travel so.

    A server has all terms before it sends their sum: its link carries first one direction, then
    the other. Along a tree the parents of one depth wait for all their children's sums, and those
    of the next for theirs. Rounds among neighbours take both directions at once.
    """
    total, n_agents = network.total, network.graph.n_agents
    up, down = (np.array(sent["by_agent"][f"bytes_{way}"]) for way in ("sent", "received"))
    if network.graph.has_server:
        return n_agents, int((up + down).max(initial=0))
    if total.tree is not None:
        leaves, parent = total.tree.leaves, total.tree.parent
        children = np.bincount(parent[leaves], minlength=len(parent))
        depth = total.tree.depth
        most = sum(int(children[depth == hops].max(initial=0)) for hops in range(total.tree.hops))
        messages = max(1, sent["by_kind"]["estep"]["messages"])
        return most, 2 * most * (sent["by_kind"]["estep"]["bytes"] // messages)
    rounds = sent["by_kind"]["estep"]["rounds"]
    most = rounds * (int(network.graph.degrees.max(initial=0)) + 1)
    return most, int(np.maximum(up, down).max(initial=0))


def _chunks(network: Network, n_bytes: float) -> int:
    """Chunks of rows whose sums are taken one after the other, of terms of so many bytes."""
    if network.total.whole:
        return 1
    shared = network.graph.has_server or network.total.tree is not None
    states = 2 if shared else 3 * (1 + int(network.graph.degrees.max(initial=0)))
    return max(1, ceil(n_bytes * IN_FLIGHT * states / CHUNK_BYTES))


ROUNDS = (10, 30, 100, 300)
"""Rounds after which the consensus error is given, beside those that were chosen."""

ERRORS = (1e-3, 1e-6, 1e-9)
"""Consensus errors for which the rounds are given."""

SMALL = 50
"""Agents up to which the fastest weights are shown without a request."""

MOST_WORK = 3e8
"""Multiplications beyond which a number of rounds, or an error, is bounded instead of found."""

MOST_EXACT = 1000
"""Agents beyond which the same holds for the error of the fit's own rounds."""

MOST_LINKS = 500_000
"""Of a graph that is planned."""

MOST_PARTITIONED = 0.5
"""Share of sums in which the network is disconnected beyond which a plan warns."""

USUAL_SAMPLES = 1000
"""Rows of a plan that does not say how many there are."""

ITEM_BYTES = {"float64": 8, "float32": 4}


def plan(
    graph: Graph,
    partition: Partition | Sequence[int],
    settings: PlanSettings | None = None,
    *,
    split: str = "features",
    **changes: object,
) -> Report:
    """Describe a network and what a fit on it will send.

    The messages are counted by the methods that a fit calls, on a ledger of its own: the prediction
    is the fit's accounting. The partition may be features of each agent, or only how many (of
    workers together how many there are). With the ``split`` "rows" workers have all features of as
    many rows each, with full covariances.

    The report, in values that JSON can hold, has ``hubs``, ``degrees``, ``diameter``; ``mixing``:
    rate and spectral gap for each weighting; ``consensus_errors``: ``max |C - 1|`` after some
    numbers of rounds; ``rounds_needed``: the fewest for some errors, or ("_is_bound") a number that
    will do where finding the fewest takes long, both of rounds that are a fixed operator;
    ``communication``: what the ``setup`` sends, one ``iteration``, the ``last`` E-step, which finds
    the log-likelihood of the model, and ``labels``, which are sent to all if any agent wants them
    (`vpem.network.ledger.Ledger.summary`); ``first_fit``: of an iteration of the fit without hops
    by which hubs are chosen, where they are by likelihood; the hubs are then those by size, as they
    depend on the data; ``along_a_tree``: messages, bytes and rounds of an iteration that sums along
    a tree in place of rounds, or None where it cannot be.

    A fit of n iterations that starts at given rows sends the setup, n iterations and the last
    E-step; other starts add sums to the setup, and a component that is reinitialised an agreement.
    With ``batch_size`` there is ``batch``, the E-step of one batch, and an iteration is a pass over
    all of them; of workers the first is a single sum instead. Where links or agents fail, or
    compressed rounds go on until agents agree, no two sums send the same: ``is_expected`` says that
    all but the setup are estimates, of faults means over ``n_drawn`` sums drawn as the fit draws
    its first ones, and ``partitioned`` is the share of them in which the network was disconnected,
    of which it warns. With ``link`` there is ``time``, what an iteration takes (`iteration_time`);
    ``memory`` is what it needs (`memory`).
    """
    settings = PlanSettings.resolve(settings, **changes)
    check_links(graph.n_edges, graph.topology)
    n_samples = settings.n_samples or USUAL_SAMPLES
    if isinstance(partition, Partition):
        agents = partition
    else:  # columns in order, so many to each agent
        what = "the number of features of an agent"
        counts = [check_int(what, width, least=0) for width in partition]
        names = graph.names or tuple(f"agent {agent}" for agent in range(len(counts)))
        if len(names) != len(counts):
            raise InputError(
                f"the graph has {graph.n_agents} agents, but {len(counts)} counts of features are "
                "given"
            )
        columns = np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1]) if counts else []
        agents = Partition(tuple(columns), names)
    link = None if settings.link is None else parse_link(settings.link)
    network = _network(graph, agents, settings, split)
    work = _work(network, agents, settings, n_samples, split)
    sent = _sent(network, work, settings, n_samples, split)
    if sent["partitioned"] > MOST_PARTITIONED:
        warn(
            f"the network is disconnected in {sent['partitioned']:.0%} of the sums, which change "
            "nothing; take more rounds, or links and agents that fail less often",
            level=2,
        )
    time: Report = {}
    if link is not None and work.n_factors:  # with the rounds ahead of the rows'
        shape = work.n_samples, work.values[1], work.itemsize
        rows = communication(network, *shape, n_scalars=work.n_scalars)
        ahead = sent["iteration"]["rounds"] - rows["iteration"]["rounds"]
        time = {"time": iteration_time(network, rows, link, work, ahead=ahead)}
    elif link is not None:
        time = {"time": iteration_time(network, sent, link, work)}
    degrees = graph.degrees[: graph.n_agents] if graph.has_server else graph.degrees
    first_fit = None
    if network.chosen is not None:
        plain = settings.changed(hops=0, hubs="size")
        without_hops = _network(graph, agents, plain, "features")
        first_fit = _iteration(without_hops, agents, plain, n_samples, "features")
    needed = memory(network, work, (n_samples, agents.n_features))
    tree, instead = along_a_tree(network), None
    if tree is not None:
        instead = _iteration(tree, agents, settings, n_samples, split)
    return {
        **network.describe("topology"),
        "n_agents": graph.n_agents,
        "n_parties": parties_of(network),
        "most_members": MOST_MEMBERS,
        "n_edges": graph.n_edges,
        "agent_names": list(graph.names or agents.names),
        **network.describe("server", "edges"),
        "degrees": {
            "min": int(degrees.min()),
            "mean": float(degrees.mean()),
            "max": int(degrees.max()),
        },
        "diameter": diameter(graph),
        "hops": network.hops,
        "hubs": [
            {"root": int(hub.root), "agents": list(hub.agents), "n_features": len(columns)}
            for hub, columns in zip(network.hubs, network.blocks.features, strict=True)
        ],
        **network.describe("hubs_chosen"),
        "first_fit": first_fit,
        "split": split,
        "n_features": agents.n_features,
        "n_samples": n_samples,
        "n_components": settings.n_components,
        "n_factors": settings.n_factors,
        "dtype": settings.dtype,
        "batch_size": settings.batch_size,
        **network.describe("compress", "faults", *SUMMED),
        **_mixing(network, settings.weights),
        "communication": sent,
        "along_a_tree": instead,
        "memory": needed,
        **time,
    }


def check_links(n_edges: int, topology: str) -> None:
    """Raise InputError where links are too many to be counted one by one."""
    if n_edges > MOST_LINKS:
        raise InputError(
            f"a plan counts every link, at most {MOST_LINKS:,}, but the graph ({topology}) has "
            f"{n_edges:,}; take fewer agents, or a graph with fewer links"
        )


def _network(graph: Graph, partition: Partition, settings: PlanSettings, split: str) -> Network:
    sums = settings.into(SumSettings)
    if graph.n_agents > MOST_EXACT and way_of(graph, sums).has_rounds and sums.consensus == "auto":
        sums = sums.changed(consensus="rounds")  # whose error is bounded where it would take long
    if check_choice("split", split, SPLITS) == "features":
        if sums.hubs == "size":
            return connect(graph, partition, sums)
        check_choice_of_hubs(graph)
        sizes = settings.n_samples or USUAL_SAMPLES, settings.n_components
        widths = [len(columns) for columns in partition.features]
        # Hubs by size, and what it takes to choose by likelihood, but for the first fit.
        meetings, sent = find_meetings(graph, sums.hops), Ledger(graph)
        charge_meetings(sent, graph, sums.hops, meetings, widths, sizes)
        hubs = find_hubs(graph, sums.hops, sums.seed)
        return connect(graph, partition, sums, chosen=LikelyHubs(hubs, None, meetings, sent))
    network = connect_workers(graph, sums)
    if network.compress is not None:
        refuse({"algorithm": "em-rows"}, ["compress"])
    return network


def _iteration(
    network: Network, partition: Partition, settings: PlanSettings, n_samples: int, split: str
) -> Report:
    work = _work(network, partition, settings, n_samples, split)
    sent = _sent(network, work, settings, n_samples, split)["iteration"]
    return {name: sent[name] for name in ("messages", "bytes", "rounds")}


def _work(
    network: Network, partition: Partition, settings: PlanSettings, n_samples: int, split: str
) -> Work:
    """Say what the busiest agent does for a sum, if there can be one."""
    k, size = settings.n_components, settings.batch_size
    if split == "rows":  # a worker has a share of them
        n_features = partition.n_features
        share = ceil(n_samples / network.graph.n_agents)
        n_rows = share if size is None else min(size, share)
        # Where all share an exact sum, those of batches have the entropy of the rows besides.
        entropy = size is not None and network.total.exact and network.total.roots.n_agents == 1
        values = (1, message_size(k, n_features) + int(entropy))
        return Work(n_rows, k, n_features, values, ITEM, ceil(share / n_rows))
    check_sums_of_factors(settings, network)
    width, n_factors = int(max(network.blocks.widths, default=1)), settings.n_factors
    n_rows = n_samples if size is None else min(size, n_samples)
    beside = int(settings.noise or settings.trim > 0)
    values = n_rows, numbers_of_a_row(k, n_factors) + beside
    itemsize = ITEM_BYTES[settings.dtype]
    return Work(n_rows, k, width, values, itemsize, n_samples / n_rows, 1, n_factors)


def _sent(
    network: Network, work: Work, settings: PlanSettings, n_samples: int, split: str
) -> Report:
    """Count what a fit sends; of workers also where it starts, at rows that they send to all."""
    size = settings.batch_size
    if split == "features":
        k, width = settings.n_components, work.values[1]
        k += settings.noise or settings.trim > 0
        ahead = settings.n_components * numbers_of_a_component(settings.n_factors)
        sent = communication(network, n_samples, width, work.itemsize, size, work.n_scalars, ahead)
        return sent | {"labels": labels_sent(network, n_samples, k, width, ahead)}
    n_values = message_size(settings.n_components, work.width)
    sent = communication(network, 1, n_values, work.itemsize)
    if size is not None:
        n_sums, last = int(work.n_sums), sent["last"]
        sent = {**communication(network, n_sums, work.values[1], work.itemsize, 1), "last": last}
    ledger = Ledger(network.graph)
    total = network.total.counted_on(ledger)
    network.charge_setup(ledger, n_samples, work.itemsize)
    charge_scaling(total, work.width)
    for row in range(settings.n_components):
        place = row % network.graph.n_agents
        total.agree("flooding", ROW_BYTES + ITEM * work.width, place)
    total.begin("setup", 1, message_size(1, work.width), ITEM)
    return sent | {"setup": ledger.summary(), "labels": Ledger(network.graph).summary()}


def _mixing(network: Network, weights: Any) -> Report:
    if network.n_rounds is None:
        return {"mixing": [], "consensus_errors": [], "rounds_needed": []}
    graph, hubs = network.graph, network.hubs
    assert network.mixing_rate is not None
    assert network.weights is not None
    mixing, rate = _matrix(graph, weights), network.mixing_rate
    tables = not graph.is_directed and graph.turns is None  # of one symmetric matrix
    rates = {network.weights: rate}
    for name in WEIGHTS if tables else ():
        # The fastest weights are computed where that takes no time, and their solvers are there.
        at_hand = graph.n_agents <= SMALL and all(
            importlib.util.find_spec(solver) is not None for solver in ("cvxpy", "cvxopt")
        )
        if name not in rates and (name != "fastest" or at_hand):
            rates[name] = mixing_rate(_matrix(graph, name))
    fixed = network.compress is None and network.faults is None
    return {
        "mixing": [
            {"weights": name, "rate": rates[name], "spectral_gap": 1.0 - rates[name]}
            for name in dict.fromkeys((*WEIGHTS, network.weights))
            if name in rates
        ],
        "consensus_errors": [
            {"rounds": count, **_errors(mixing, hubs, rate, count)}
            for count in sorted({*ROUNDS, *([network.n_rounds] if fixed else [])})
            if tables
        ],
        "rounds_needed": [
            {"consensus_error": error, **_needed(mixing, hubs, rate, error)}
            for error in ERRORS
            if tables
        ],
    }


def _matrix(graph: Graph, weights: Any) -> Any:
    """Return mixing weights again, of which `connect` has warned already."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        return mixing_matrix(graph, weights)


def _errors(mixing: Any, hubs: Sequence[Hub], rate: float, n_rounds: int) -> Report:
    errors: Report = {}
    for name in ACCELERATIONS:
        fast, error = name == "chebyshev", None
        if n_rounds * mixing.nnz * len(hubs) <= MOST_WORK:
            error = ConsensusSum(mixing, hubs, n_rounds, rate=rate if fast else None).error
        bound = consensus_error_bound(rate, hubs, mixing.shape[0], n_rounds, accelerated=fast)
        errors |= {name: bound if error is None else error, f"{name}_is_bound": error is None}
    return errors


def _needed(mixing: Any, hubs: Sequence[Hub], rate: float, error: float) -> Report:
    needed: Report = {}
    for name in ACCELERATIONS:
        fewest = partial(rounds_needed, mixing, hubs, rate, error, accelerated=name == "chebyshev")
        most = fewest(by_bound=True)
        bounded = most * mixing.nnz * len(hubs) > MOST_WORK
        needed |= {name: most if bounded else fewest(), f"{name}_is_bound": bounded}
    return needed
