"""What a network will do before it does it: hubs, mixing, rounds, messages and bytes."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from vpem.checks import check_int
from vpem.errors import InputError, VpemWarning, check_choice
from vpem.fits.cost import Work, iteration_time, message_size
from vpem.fits.factored import check_sums_of_factors
from vpem.fits.likely_hubs import check_choice_of_hubs
from vpem.fits.rows import charge_scaling
from vpem.fits.settings import PlanSettings
from vpem.network.graph import Graph
from vpem.network.hubs import Hub, diameter, foretell_hubs
from vpem.network.ledger import Ledger
from vpem.network.links import Link, parse_link
from vpem.network.mixing import mixing_matrix, mixing_rate
from vpem.network.partition import Partition
from vpem.network.schema import Report
from vpem.settings import ACCELERATIONS, SPLITS, WEIGHTS, SumSettings
from vpem.steps.factors import numbers_of_a_component
from vpem.steps.streams import ROW_BYTES
from vpem.sums.connect import Network, along_a_tree, connect, connect_workers
from vpem.sums.consensus import ConsensusSum, consensus_error_bound, rounds_needed
from vpem.sums.counted import add_vectors
from vpem.sums.forecast import communication, labels_sent
from vpem.sums.quantizer import ITEM
from vpem.table import refusal

ROUNDS = (10, 30, 100, 300)
"""Rounds after which the consensus error is given, beside those that were chosen."""

ERRORS = (1e-3, 1e-6, 1e-9)
"""Consensus errors for which the rounds are given."""

SMALL = 50
"""Agents up to which the fastest weights are shown unasked."""

MOST_WORK = 3e8
"""Multiplications beyond which a number of rounds, or an error, is bounded instead of found."""

MOST_PARTITIONED = 0.5
"""Share of sums in which the network falls apart beyond which a plan warns."""

USUAL_SAMPLES = 1000
"""Rows of a plan that does not say how many there are."""

ITEM_BYTES = {"float64": 8, "float32": 4}


def plan(
    graph: Graph,
    partition: Partition | Sequence[int],
    settings: PlanSettings | None = None,
    *,
    split: str = "features",
    **changes: Any,
) -> Report:
    """Describe a network and what a fit on it will send.

    The messages are counted by the methods that a fit calls, on a ledger of its own: the prediction
    is the fit's accounting.

    Parameters
    ----------
    graph : Graph
        Communication graph of the agents, or a star around a server.
    partition : Partition or sequence of int
        Features of each agent, or only how many; of workers together how many there are.
    settings : PlanSettings, optional
        How they sum, and what is fitted; None: the defaults.
    split : {"features", "rows"}
        What agents hold: some features of all rows, or all features of some of the rows (workers,
        full covariances), of which each has as many.
    **changes
        Settings that differ from these.

    Returns
    -------
    dict
        Values that JSON can hold. ``hubs``, ``degrees``, ``diameter``; ``mixing``: rate and
        spectral gap for each weighting; ``consensus_errors``: ``max |C - 1|`` after some numbers of
        rounds; ``rounds_needed``: the fewest for some errors, or ("_is_bound") a number that will
        do where finding the fewest takes long, both of rounds that are a fixed operator;
        ``communication``: what the ``setup`` sends, one ``iteration``, the ``last`` E-step, which
        finds the log-likelihood of the model, and ``labels``, which are sent to all if anybody
        wants them (`vpem.network.ledger.Ledger.summary`);
        ``first_fit``: of an iteration of the fit without hops by which hubs are chosen, where they
        are by likelihood; the hubs are then those by size, as they depend on the data;
        ``along_a_tree``: messages, bytes and rounds of an iteration that sums along a tree in place
        of rounds, or None where it cannot be.

        A fit of n iterations that starts at given rows sends the setup, n iterations and the last
        E-step; other starts add sums to the setup, and a component placed anew adds an agreement.
        With ``batch_size`` there is ``batch``, the E-step of one batch, and an iteration is a pass
        over all of them. Where links or agents fail, or compressed rounds go on until agents agree,
        no two sums send the same: ``is_expected`` says that all but the setup are estimates, of
        faults means over ``n_drawn`` sums drawn as the fit draws its first ones, and
        ``partitioned`` is the share of them in which the network fell apart. With
        ``link`` there is ``time``, what an iteration takes (`vpem.fits.cost.iteration_time`).

    Raises
    ------
    InputError
        If the graph is not connected, has another number of agents, or an option is out of range
        or makes no sense with another.

    Warns
    -----
    VpemWarning
        As `vpem.connect` does; and if the network falls apart in most sums.
    """
    asked = PlanSettings.of(settings, **changes)
    n_samples = asked.n_samples or USUAL_SAMPLES
    held = partition if isinstance(partition, Partition) else _of_widths(graph, partition)
    link = None if asked.link is None else parse_link(asked.link)
    network = _network(graph, held, asked, split)
    work = _work(network, held, asked, n_samples, split)
    sent = _sent(network, work, asked, n_samples, split)
    if sent["partitioned"] > MOST_PARTITIONED:
        warnings.warn(
            f"the network falls apart in {sent['partitioned']:.0%} of the sums, which change "
            "nothing; take more rounds, or links and agents that fail less often",
            VpemWarning,
            stacklevel=2,
        )
    degrees = graph.degrees[: graph.n_agents] if graph.has_server else graph.degrees
    return {
        **network.describe("topology"),
        "n_agents": graph.n_agents,
        "n_edges": graph.n_edges,
        "agent_names": list(graph.names or held.names),
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
        "first_fit": None if network.chosen is None else _without_hops(graph, held, asked),
        "split": split,
        "n_features": held.n_features,
        "n_samples": n_samples,
        "n_components": asked.n_components,
        "n_factors": asked.n_factors,
        "dtype": asked.dtype,
        "batch_size": asked.batch_size,
        **network.describe(
            "compress",
            "faults",
            "sum",
            "tree",
            "weights",
            "acceleration",
            "rounds",
            "consensus_tol",
            "mixing_rate",
            "consensus_error",
            "consensus_error_is_bound",
            "secure_sum",
        ),
        **_mixing(network),
        "communication": sent,
        "along_a_tree": _instead(network, held, asked, n_samples, split),
        **({} if link is None else {"time": _time(network, sent, link, work)}),
    }


def _time(network: Network, sent: Report, link: Link, work: Work) -> Report:
    """Foretell how long an iteration takes, with factors also of the rounds ahead of the rows'."""
    if not work.n_factors:
        return iteration_time(network, sent, link, work)
    shape = work.n_samples, work.values[1], work.itemsize
    rows = communication(network, *shape, n_scalars=work.n_scalars)
    ahead = sent["iteration"]["rounds"] - rows["iteration"]["rounds"]
    return iteration_time(network, rows, link, work, ahead=ahead)


def _network(graph: Graph, held: Partition, asked: PlanSettings, split: str) -> Network:
    """Set up the network."""
    how = asked.into(SumSettings)
    if check_choice("split", split, SPLITS) == "features":
        if how.hubs == "size":
            return connect(graph, held, how)
        check_choice_of_hubs(graph)
        sizes = asked.n_samples or USUAL_SAMPLES, asked.n_components
        widths = [len(columns) for columns in held.features]
        return connect(
            graph, held, how, chosen=foretell_hubs(graph, how.hops, widths, sizes, how.seed)
        )
    network = connect_workers(graph, how)
    if network.compress is not None:
        raise refusal("em-rows", "compressed")
    return network


def _instead(
    network: Network, held: Partition, asked: PlanSettings, n_samples: int, split: str
) -> Report | None:
    """What an iteration would send along a tree in place of rounds; None where none could be."""
    tree = along_a_tree(network)
    if tree is None:
        return None
    work = _work(tree, held, asked, n_samples, split)
    sent = _sent(tree, work, asked, n_samples, split)["iteration"]
    return {name: sent[name] for name in ("messages", "bytes", "rounds")}


def _without_hops(graph: Graph, held: Partition, asked: PlanSettings) -> Report:
    """What an iteration of the fit that chooses hubs sends."""
    asked = asked.changed(hops=0, hubs="size")
    network = _network(graph, held, asked, "features")
    n_samples = asked.n_samples or USUAL_SAMPLES
    work = _work(network, held, asked, n_samples, "features")
    sent = _sent(network, work, asked, n_samples, "features")["iteration"]
    return {name: sent[name] for name in ("messages", "bytes", "rounds")}


def _work(
    network: Network, held: Partition, asked: PlanSettings, n_samples: int, split: str
) -> Work:
    """Say what the busiest agent does for a sum, if there can be one."""
    shape = (n_samples, asked.n_components)
    if split == "rows":
        return Work.of_rows(network, *shape, held.n_features, asked.batch_size)
    check_sums_of_factors(asked, network)
    itemsize = ITEM_BYTES[asked.dtype]
    return Work.of(network, *shape, itemsize, asked.batch_size, asked.n_factors)


def _sent(network: Network, work: Work, asked: PlanSettings, n_samples: int, split: str) -> Report:
    """Count what a fit sends; of workers also where it starts, at rows that they tell all."""
    size = asked.batch_size
    if split == "features":
        k, width = asked.n_components, work.values[1]
        ahead = k * numbers_of_a_component(asked.n_factors)
        sent = communication(network, n_samples, width, work.itemsize, size, work.n_scalars, ahead)
        return sent | {"labels": labels_sent(network, n_samples, k, width, ahead)}
    n_values = message_size(asked.n_components, work.width)
    sent = communication(network, 1, n_values, work.itemsize)
    if size is not None:
        n_sums, last = int(work.n_sums), sent["last"]
        sent = {**communication(network, n_sums, work.values[1], work.itemsize, 1), "last": last}
    ledger = Ledger(network.graph)
    total = network.total.on(ledger)
    network.charge_setup(ledger, n_samples, work.itemsize)
    charge_scaling(total, work.width)
    for row in range(asked.n_components):
        place = row % network.graph.n_agents
        total.agree("flooding", ROW_BYTES + ITEM * work.width, place)
    add_vectors(total, np.zeros((network.graph.n_agents, message_size(1, work.width))), "setup")
    return sent | {"setup": ledger.summary(), "labels": Ledger(network.graph).summary()}


def _of_widths(graph: Graph, widths: Sequence[int]) -> Partition:
    """Hand out columns in order, so many to each agent."""
    counts = [check_int("the number of features of an agent", width, least=0) for width in widths]
    ends = np.cumsum(counts)
    parts = [np.arange(end - count, end) for end, count in zip(ends, counts, strict=True)]
    names = graph.names or tuple(f"agent {agent}" for agent in range(len(counts)))
    if len(names) != len(counts):
        raise InputError(
            f"the graph has {graph.n_agents} agents, but {len(counts)} counts of features are given"
        )
    return Partition(tuple(parts), names)


def _mixing(network: Network) -> Report:
    """How fast each weighting mixes, and what the chosen one reaches in how many rounds."""
    if network.n_rounds is None:
        return {"mixing": [], "consensus_errors": [], "rounds_needed": []}
    graph, hubs = network.graph, network.hubs
    assert network.mixing_rate is not None
    assert network.weights is not None
    matrices = {network.weights: _matrix(graph, network.weights)}
    rates = {network.weights: network.mixing_rate}
    for name in WEIGHTS:
        if name not in matrices and (name != "fastest" or _fastest_is_at_hand(graph)):
            matrices[name] = _matrix(graph, name)
            rates[name] = mixing_rate(matrices[name])
    mixing, rate = matrices[network.weights], network.mixing_rate
    fixed = network.compress is None and network.faults is None
    return {
        "mixing": [
            {"weights": name, "rate": rates[name], "spectral_gap": 1.0 - rates[name]}
            for name in WEIGHTS
            if name in rates
        ],
        "consensus_errors": [
            {"rounds": count, **_errors(mixing, hubs, rate, count)}
            for count in sorted({*ROUNDS, *([network.n_rounds] if fixed else [])})
        ],
        "rounds_needed": [
            {"consensus_error": error, **_needed(mixing, hubs, rate, error)} for error in ERRORS
        ],
    }


def _matrix(graph: Graph, weights: str) -> Any:
    """Return mixing weights again, of which `connect` has warned already."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        return mixing_matrix(graph, weights)


def _fastest_is_at_hand(graph: Graph) -> bool:
    there = all(importlib.util.find_spec(name) is not None for name in ("cvxpy", "cvxopt"))
    return there and graph.n_agents <= SMALL


def _errors(mixing: Any, hubs: Sequence[Hub], rate: float, n_rounds: int) -> Report:
    """Consensus error after some rounds, with and without acceleration."""
    found: Report = {}
    for name in ACCELERATIONS:
        accelerated = name == "chebyshev"
        error = None
        if n_rounds * mixing.nnz * len(hubs) <= MOST_WORK:
            error = ConsensusSum(mixing, hubs, n_rounds, rate=rate if accelerated else None).error
        found[name] = error
        found[f"{name}_is_bound"] = error is None
        if error is None:
            found[name] = consensus_error_bound(
                rate, hubs, mixing.shape[0], n_rounds, accelerated=accelerated
            )
    return found


def _needed(mixing: Any, hubs: Sequence[Hub], rate: float, error: float) -> Report:
    """Fewest rounds for an error, with and without acceleration."""
    found: Report = {}
    for name in ACCELERATIONS:
        accelerated = name == "chebyshev"
        most = rounds_needed(mixing, hubs, rate, error, accelerated=accelerated, by_bound=True)
        bounded = most * mixing.nnz * len(hubs) > MOST_WORK
        found[name] = most
        if not bounded:
            found[name] = rounds_needed(mixing, hubs, rate, error, accelerated=accelerated)
        found[f"{name}_is_bound"] = bounded
    return found
