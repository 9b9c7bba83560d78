"""What can be had together where agents sum, and why the rest cannot."""

from __future__ import annotations

from dataclasses import asdict

from vpem.checks import check_int
from vpem.errors import InputError, Setting
from vpem.idle import MASKED_BY_ROUNDS, WITHOUT_ROUNDS
from vpem.network.codecs import Codec, parse_codec
from vpem.network.faults import Faults
from vpem.network.graph import Graph
from vpem.settings import SumSettings
from vpem.sums.rounds import MOST_GOSSIP_ROUNDS

MOST_ROUNDS = {"none": 10**9, "chebyshev": 10**6}
"""By acceleration."""

OF_ROUNDS = ("n_rounds", "weights", "acceleration", "consensus_tol", "consensus")
"""Settings that a sum without rounds has no use for."""

SUMS_OF_A_STAR = (None, "server", "tree")
"""Its links are a tree around the server already."""


def way_of(graph: Graph, how: SumSettings) -> str:
    """Return how agents sum on a graph, one of `vpem.settings.SUMS`, by default what it allows."""
    if graph.has_server:
        if how.sum not in SUMS_OF_A_STAR:
            raise InputError(
                "agents that reach nobody but a server have no neighbours to agree with; leave ",
                Setting("sum", how.sum),
                " out, or take a graph of agents, such as the topology cycle",
            )
        return "server"
    if how.sum == "server":
        raise InputError(
            Setting("sum", "server"),
            " needs a server that every agent reaches, but this graph has none; take the topology "
            "star, or ",
            Setting("sum", "tree"),
            ", which is as exact",
        )
    return how.sum or "consensus"


def settled(graph: Graph, how: SumSettings) -> tuple[SumSettings, Codec | None, Faults | None]:
    """Return settings with the way of summing and the acceleration that a graph lets them have.

    And the codec and the faults that they name.
    """
    codec = None if how.compress is None else parse_codec(how.compress)
    failing = Faults(how.link_failure, how.agent_dropout, how.stragglers)
    faults = failing if failing.any else None
    how = how.changed(sum=way_of(graph, how))
    if how.secure_sum and how.sum == "consensus":
        raise InputError(Setting("secure_sum"), *MASKED_BY_ROUNDS)
    if how.sum != "consensus":
        _refuse_without_rounds(faults, how)
    else:
        if how.acceleration is None:
            how = how.changed(acceleration="chebyshev" if faults is None else "none")
        _refuse_what_makes_no_sense(codec, faults, how)
    return how, codec, faults


def _refuse_without_rounds(faults: Faults | None, how: SumSettings) -> None:
    """Raise InputError where a setting makes no sense for an exact sum, saying why."""
    server = how.sum == "server"
    for name in OF_ROUNDS:
        if getattr(how, name) != getattr(SumSettings, name):
            raise InputError(Setting(name), *WITHOUT_ROUNDS)
    if how.eigenvalue == "estimated":
        raise InputError(
            f"a sum {'at a server' if server else 'along a tree'} is exact: there is no mixing "
            "rate to estimate"
        )
    if faults is None:
        return
    given = next(name for name, value in asdict(faults).items() if value)
    if server:
        raise InputError(
            Setting(given),
            " makes links fail or agents silent, but a server's sum needs every agent; leave it "
            "out, or take a graph of agents, such as the topology cycle",
        )
    if faults.agent_dropout:
        raise InputError(
            Setting("agent_dropout"),
            " makes agents silent for a whole sum, but in a tree one path joins two agents, and "
            "all below a silent one would be missing in the sum; leave it out, or take ",
            Setting("sum", "consensus"),
        )


def _refuse_what_makes_no_sense(
    codec: Codec | None, faults: Faults | None, how: SumSettings
) -> None:
    """Raise InputError where two settings of rounds cannot both be had, saying why."""
    fixed = codec is None and faults is None
    most = MOST_ROUNDS[how.acceleration or "none"] if fixed else MOST_GOSSIP_ROUNDS
    if how.n_rounds != "auto":
        check_int("n_rounds", how.n_rounds, least=1, most=most)
    why = f"{'compressed rounds' if faults is None else 'rounds with faults'} are no fixed operator"
    if how.acceleration == "chebyshev" and faults is not None:
        raise InputError(
            f"{why}, which Chebyshev acceleration needs: its polynomial would enlarge what each "
            "change of the links adds; take ",
            Setting("acceleration", "none"),
        )
    if how.consensus == "operator" and not fixed:
        raise InputError(
            f"{why}: they have to be run; take ",
            Setting("consensus", "auto"),
            " or ",
            Setting("consensus", "rounds"),
        )
    if faults is not None and how.weights != "metropolis":
        raise InputError(
            f"rounds with faults take the Metropolis weights of the links that are up, got weights "
            f"{how.weights!r}; take ",
            Setting("weights", "metropolis"),
        )
    if how.eigenvalue == "estimated":
        _refuse_to_estimate(codec, how)


def _refuse_to_estimate(codec: Codec | None, how: SumSettings) -> None:
    """Raise InputError where no mixing rate can be estimated, saying why."""
    computed = Setting("eigenvalue", "computed")
    if codec is not None:
        raise InputError(
            "compressed rounds go by the spectral gap and the noise of the codec together, for "
            "which the mixing rate must be known; take ",
            computed,
        )
    if how.acceleration != "chebyshev":
        raise InputError(
            "the mixing rate is estimated for Chebyshev acceleration, which is not asked for; "
            "take ",
            computed,
        )
