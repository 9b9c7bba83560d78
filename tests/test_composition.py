"""Every combination of options works, or is refused in one sentence that says why."""

from itertools import product

import numpy as np
import pytest

from vpem import InputError, connect, fit_vpem, make_graph
from vpem.network.partition import contiguous

from .tables import pairwise

WAYS = {"server": ("star", None), "tree": ("cycle", "tree"), "consensus": ("cycle", None)}
CODECS = (None, "qsgd:8bits", "topk:0.2")
LOSSY = ("topk:0.2",)
FAULTS = (None, "link_failure", "agent_dropout", "stragglers")
OTHERS = tuple(
    product(
        (None, "none", "chebyshev"),  # acceleration
        ("auto", "operator", "rounds"),  # path
        ("computed", "estimated"),  # eigenvalue
        ("auto", 30),  # rounds
        ((None, None), (35, None), (35, 0.6), (None, 0.6)),  # batch and step size
    )
)


def reasons(way, codec, fault, acceleration, path, eigenvalue, n_rounds, batch, step):
    """Why it cannot be had, as docs/reference/communication.md has it; any of them may be given."""
    fixed = codec is None and fault is None
    found = set()
    exact = way != "consensus"
    if way == "server" and fault is not None:
        found.add("needs every agent")
    if way == "tree" and fault == "agent_dropout":
        found.add("one path joins two agents")
    of_rounds = (acceleration, path, n_rounds, eigenvalue)
    if exact and of_rounds != (None, "auto", "auto", "computed"):
        found.add("a sum at a server or along a tree takes none")
    if not exact and codec in LOSSY and n_rounds == "auto":
        found.add("and so sends")
    if not exact and fault is not None and acceleration == "chebyshev":
        found.add("Chebyshev acceleration needs")
    if not exact and not fixed and path == "operator":
        found.add("have to be run")
    if eigenvalue == "estimated":
        if acceleration == "none" or (not exact and acceleration is None and fault):
            found.add("which is off")
        if not exact and codec is not None:
            found.add("noise of the codec")
    if step is not None and batch is None:
        found.add("there are no batches")
    return found


@pytest.mark.filterwarnings("ignore::vpem.VpemWarning")
@pairwise(fault=FAULTS, codec=CODECS, way=WAYS)
def test_the_whole_grid(way, codec, fault, overlapping):
    X = overlapping(1, 60, 5)
    topology, asked = WAYS[way]
    graph, held = make_graph(topology, 5, seed=0), contiguous(5, 5)
    fitted = refused = 0
    for acceleration, path, eigenvalue, n_rounds, (batch, step) in OTHERS:
        why = reasons(way, codec, fault, acceleration, path, eigenvalue, n_rounds, batch, step)
        how = {"acceleration": acceleration, "consensus": path, "eigenvalue": eigenvalue}
        how["sum"] = asked
        if fault is not None:
            how[fault] = 0.1
        said = None
        try:
            network = connect(graph, held, hops=0, n_rounds=n_rounds, compress=codec, **how)
            fit = fit_vpem(
                X, network, init=[3, 40], max_iter=2, batch_size=batch, step_size=step, n_threads=1
            )
        except InputError as error:
            said = str(error)
        assert (said is not None) == bool(why), (how, batch, step, said)
        if said is not None:
            assert any(reason in said for reason in why), (how, batch, step, said)
            refused += 1
            continue
        assert np.isfinite(fit.log_likelihood)
        assert np.isfinite(fit.mixture.means).all()
        assert fit.communication["bytes"] > 0
        fitted += 1
    assert refused > 0
    possible = {"server": fault is None, "tree": fault != "agent_dropout", "consensus": True}
    assert (fitted > 0) == possible[way]
