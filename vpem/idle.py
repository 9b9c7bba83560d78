"""Combinations: a table of algorithms by sums, data and engines, and rules of settings.

A cell of the table that mathematics forbids has one sentence that says why: the code refuses with
it, the documentation prints it, and a test tries every cell.

A rule (`vpem.records.About.idle`) says when a setting has no effect, and why, by the values of all
settings by name. In a shell these are all options of a command, in Python those of one record, so
that a rule looks at names that may not be there by ``get``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vpem.errors import InputError, Setting
from vpem.records import Rule, Sentence

ALGORITHMS = {
    "vp-em": "VP-EM",
    "em-rows": "EM over rows",
    "kmeans-rows": "k-means over rows",
    "kmeans-features": "k-means over features",
    "fedem": "FedEM",
    "vr-fedem": "VR-FedEM",
    "fedmissem": "FedMissEM",
    "saem": "SAEM",
}
"""Rows of the table, by the names that reports give."""


@dataclass(frozen=True)
class Way:
    """A column of the table."""

    title: str  # its heading
    flags: tuple[str, ...]  # options of the command line that ask for it


WAYS = {
    "server": Way("server", ("--topology star",)),
    "tree": Way("tree", ("--sum tree",)),
    "consensus": Way("consensus", ("--topology cycle",)),
    "masked": Way("masked", ("--secure-sum",)),
    "compressed": Way("compressed", ("--compress",)),
    "absent": Way("some absent", ("--agent-dropout", "--participation")),
    "links": Way("links fail", ("--link-failure", "--stragglers")),
    "batches": Way("batches", ("--batch-size",)),
    "missing": Way("missing values", ("--missing",)),
    "disk": Way("larger than memory", ("--memory-limit",)),
    "weights": Way("sample weights", ("--sample-weight",)),
    "checkpoint": Way("checkpoint", ("--checkpoint",)),
    "parties": Way("parties' files", ("--parties",)),
    "mpi": Way("MPI", ("--engine mpi",)),
    "tls": Way("TLS", ("--engine tls",)),
}
"""Columns of the table."""

REFUSED: dict[tuple[str, str], tuple[str | Setting, ...]] = {
    ("em-rows", "compressed"): (
        "second moments that a codec has rounded need not be those of any rows, so covariances "
        "made of them need not be positive definite; FedEM is EM over rows that corrects this: "
        "vpem fedem --compress",
    ),
    ("fedmissem", "disk"): (
        "every iteration changes the filled matrix, a number for each entry of the data: there is "
        "no smaller statistic that could stay in memory while the data are read",
    ),
    ("saem", "disk"): (
        "its state is a Markov chain of the latents of every individual, and every iteration moves "
        "all of them: there is no smaller statistic from which they could be drawn again; spread "
        "the devices over processes, whose memories add up",
    ),
}
"""Cells that mathematics forbids, by algorithm and way, and the sentence that says why."""


def refusal(algorithm: str, way: str) -> InputError:
    """Return the error that says why an algorithm cannot run this way."""
    return InputError(*REFUSED[algorithm, way])


LEAST_STARTS = 4
"""Starts of the k-means of each party and of the server, in one shot: one plain, for the proof,
then greedy."""

RANDOM_GRAPHS = ("geometric", "erdos-renyi", "small-world", "scale-free", "tree")

FAULTS = ("link_failure", "agent_dropout", "stragglers")

LEAVE = "; leave it out"

# ---- data and starts -----------------------------------------------------------------------------

BY_FEATURES: Rule = (
    lambda given: given.get("split") == "rows",
    (f" is for data split by features{LEAVE}",),
)
OF_SUMS_OVER_HUBS: Rule = (
    lambda given: given.get("split") == "rows",
    (
        " add a term to the sum over hubs of features; with ",
        Setting("split", "rows"),
        f" what is summed are moments, and there is no such term{LEAVE}",
    ),
)
UNPROTECTED: Rule = (
    lambda given: given.get("epsilon") is not None or given.get("release_epsilon") is not None,
    (f" are data too, which noise in the M-steps of features would not protect{LEAVE}",),
)
BY_ROWS: Rule = (
    lambda given: given.get("split") == "features",
    (" is for data split by rows; add ", Setting("split", "rows")),
)
STARTED: Rule = (
    lambda given: given.get("init_rows") is not None or given.get("init_model") is not None,
    (f" is how a start is found, but --init-rows or --init-model gives it{LEAVE}",),
)
RESTARTED: Rule = (
    lambda given: (
        STARTED[0](given) or not isinstance(getattr(given["init"], "init", given["init"]), str)
    ),
    (f" starts again from other rows, but the start is given{LEAVE}",),
)
IN_BATCHES: Rule = (
    lambda given: given.get("batch_size") is not None,
    (
        " needs the log-likelihood of all rows, since no sum over a batch shows whether a step was "
        "too long; leave it out, or ",
        Setting("batch_size"),
    ),
)
FEW_STARTS: Rule = (
    lambda given: given["method"] == "grid" and given["n_init"] <= LEAST_STARTS,
    (f" is at least {LEAST_STARTS} in one shot; give more, or leave it out",),
)
HELD_OUT: Rule = (
    lambda given: given["criterion"] != "heldout",
    (" is for ", Setting("criterion", "heldout"), LEAVE),
)

# ---- graphs and sums -----------------------------------------------------------------------------

WITHOUT_ROUNDS: Sentence = (
    " is about consensus rounds, but a sum at a server or along a tree takes none; leave it out, "
    "or take a graph of agents, such as the topology cycle, and ",
    Setting("sum", "consensus"),
)
ROUNDS: Rule = (
    lambda given: given["sum"] in ("server", "tree") or given.get("topology") == "star",
    WITHOUT_ROUNDS,
)
AUTOMATIC: Rule = (
    lambda given: given["n_rounds"] != "auto",
    (
        " is what ",
        Setting("n_rounds", "auto"),
        " reaches, but the number of rounds is given; leave one out",
    ),
)
CODED: Rule = (
    lambda given: given.get("compress") is not None,
    (f" sets the number of exact rounds, but that of compressed ones depends on the codec{LEAVE}",),
)


MASKED_CODES: Sentence = (
    " adds whole numbers under masks, but compressed messages have scales of their own and cannot "
    "be added; leave it out, or ",
    Setting("compress"),
)
MASKED_ABSENT: Sentence = (
    " shows totals, and totals over changing sets of workers differ by the terms of single ones; "
    "leave it out, or ",
    Setting("participation"),
)
MASKED_HOPS: Sentence = (
    " hides the terms of agents, but ",
    Setting("hops"),
    " above 0 shows their features to a root; leave one out",
)
MASKED_BY_ROUNDS: Sentence = (
    " is for sums in which masks are added up until they cancel, but rounds of consensus multiply "
    "states by mixing weights; take the topology star, or ",
    Setting("sum", "tree"),
)
MASKS: list[Rule] = [
    (lambda given: given.get("compress") is not None, MASKED_CODES),
    (lambda given: given.get("codec") is not None, MASKED_CODES),
    (lambda given: str(given.get("hops", 0)) != "0", MASKED_HOPS),
    (lambda given: given.get("sum") == "consensus", MASKED_BY_ROUNDS),
]
"""Settings that masked sums exclude."""


def _is_undrawn(given: Any) -> bool:
    """Whether nothing is drawn that belongs to a graph; False where that is not known."""
    if "hops" not in given or "topology" not in given:
        return False
    named = {given["topology"], given.get("source")}
    noisy = given.get("compress") is not None or any(given.get(fault) for fault in FAULTS)
    drawn = noisy or given.get("eigenvalue") == "estimated" or str(given["hops"]) != "0"
    return not drawn and named.isdisjoint(RANDOM_GRAPHS)


WITHOUT_HOPS: Rule = (
    lambda given: given.get("hops", 0) in (0, "0"),
    (
        " decides which agents share a hub, but without hops none do; give ",
        Setting("hops", 1),
        " or more, or leave it out",
    ),
)

UNDRAWN: Rule = (
    _is_undrawn,
    (f" seeds random graphs, ties between hubs, codecs and faults, but there are none{LEAVE}",),
)

# ---- FedEM and SAEM ------------------------------------------------------------------------------


def _is_exact(given: Any) -> bool:
    """Whether all workers send corrections as they are; False where that is not known."""
    on_a_graph = given.get("graph") or given.get("topology") not in (None, "star")
    coded = given.get("compress", "unknown") is not None and not on_a_graph
    return not coded and given["participation"] == 1


EXACT_SENTENCE: Sentence = (
    " corrects for noise of codecs and absent workers, but here all send exact corrections, which "
    "no memory changes; leave it out, or take ",
    Setting("compress"),
    " or ",
    Setting("participation"),
)
EXACT: Rule = (_is_exact, EXACT_SENTENCE)
EXACT_ZERO: Rule = (
    lambda given: given["memory"] == "zero" and _is_exact(given),
    EXACT_SENTENCE,
)
NEVER: Rule = (
    lambda given: given["tol"] == 0,
    (" is how often to check for convergence, but ", Setting("tol", 0), f" never stops{LEAVE}"),
)
OF_MODELS: Rule = (
    lambda given: given["average"] != "models",
    (" weighs models: it needs ", Setting("average", "models")),
)
