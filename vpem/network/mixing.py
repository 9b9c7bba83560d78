"""How agents add up: along a tree to the centre of their graph, or by mixing in consensus rounds.

Mixing weights, how fast they mix, and that rate as agents find it themselves by power iterations.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from inspect import signature
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from vpem.checks import as_array, check_int, read_float
from vpem.errors import InputError, Setting, VpemWarning, check_choice
from vpem.network.faults import weighted
from vpem.network.graph import Graph, check_connected
from vpem.network.hubs import NUMBER_BYTES, Hub, Routes, eccentricities, find_routes
from vpem.network.ledger import Ledger
from vpem.settings import WEIGHTS, SumSettings

if TYPE_CHECKING:
    from scipy.sparse import csr_array

CHOSEN_BYTES = 1
"""Of the message by which an agent informs another that it is its parent."""

MOST_FASTEST = 150
"""Agents up to which the fastest weights are looked for: seconds for 100, a minute for 150."""

SOLVED = 1e-6  # the rate of the fastest weights is found to within this

DENSE = 400  # up to this many nodes eigenvalues come from the whole matrix
TREELIKE = 3.2  # with fewer nonzeros a row than this, factorising costs next to nothing
RATE_ZERO = 1e-13  # a mixing rate below this is rounding
ROWS_OFF = 1e-9  # by how much a matrix of the user's may be off its rules, of rounding in a file
NO_GAP = 1e-12  # a spectral gap below this is none
LEAST_GAP = 1e-6  # of weights of the user's, relative to that of Metropolis weights

VALUE_BYTES = 8
"""Of the one number in each message of a power iteration."""

MARGIN = 0.2
"""An estimated rate lies above the one seen by this part of the rate or of the gap, the smaller."""

LEAST = 1e-7
"""Least rate returned for two agents or more: double precision cannot tell less from 0."""

FALLEN = 1e-7
"""The iterations end when the values have fallen to this part of what they were."""

MOST_ITERATIONS = 1 << 20


def grow_tree(graph: Graph, ledger: Ledger | None = None) -> Routes:
    """Return shortest ways from every agent to the centre of a connected graph without a server.

    The centre is the agent whose farthest one is nearest, of several that of the smallest number.
    On a way every agent takes the neighbour of smallest number that is nearer. Without a ledger
    agents know the whole graph already, and each finds the same tree. With one, where messages are
    counted ("flooding"), they know their neighbours and nothing else, and grow the tree in three
    steps.

    * Every agent floods its number: in each round it passes on to all its neighbours the numbers
      that it heard for the first time in the round before. Each number goes over each link once
      in either direction. An agent hears of all that are r hops away in round r, and of no new
      agent in one round only after the last; so it knows its eccentricity, and for every other
      agent which of its neighbours are nearer to it.
    * Every agent floods the least of the pairs (eccentricity, number) that it knows of, in as many
      rounds as the diameter: the least of all is the centre.
    * Every other agent informs its parent, in one message.
    """
    if graph.is_directed:
        raise InputError(
            "a tree needs links that lead both ways, up with sums and down with the total, but "
            "this graph is directed; take ",
            Setting("sum", "consensus"),
        )
    reach = eccentricities(graph)
    centre = int(reach.argmin())
    tree = find_routes(graph, [Hub(centre, tuple(range(graph.n_agents)))])
    if ledger is None:
        return tree
    rounds = reach + 1  # in which an agent has something new to pass on
    ledger.send("flooding", 0, times=rounds[ledger.sources], rounds=int(rounds.max()))
    ledger.grow("flooding", NUMBER_BYTES * graph.n_agents)
    widest = int(reach.max())
    ledger.send("flooding", 2 * NUMBER_BYTES, times=widest, rounds=widest)
    if len(tree.leaves):
        ledger.send("flooding", CHOSEN_BYTES, links=tree.links_up(ledger), rounds=1)
    return tree


def mixing_matrix(graph: Graph, weights: Any = "metropolis") -> csr_array:
    """Return the matrix of one consensus round (Valdeira et al., section 3).

    Parameters
    ----------
    graph : Graph
        A graph without a server.
    weights : str, float or array of shape (n_agents, n_agents)
        "metropolis": ``W_ij = 1 / (1 + max(deg_i, deg_j))``; "laplacian": ``W = I - alpha L``
        with the fastest constant, ``alpha = 2 / (lambda_2(L) + lambda_max(L))``; "max-degree":
        the same with ``alpha = 1 / (1 + max degree)``; "fastest": the weights of the edges, some
        of them perhaps negative, with which the mixing rate is least (Xiao and Boyd 2004), found
        by cvxpy (``pip install 'vpem[sdp]'``). A number is a constant alpha of one's own,
        ``0 < alpha < 2 / lambda_max(L)``; an array, also a sparse one, is the matrix itself. Where
        links of the graph go one way, ``W_ij = 1 / (1 + outdegree of j)``, whose columns sum to 1.

    Returns
    -------
    csr_array of shape (n_agents, n_agents)
        Symmetric, each row summing to 1, nonzero on the edges and (stored) on the diagonal.

    Raises
    ------
    InputError
        For unknown weights, a graph with a server, "laplacian" or "fastest" on a disconnected
        graph, or "fastest" without cvxpy or for more than `MOST_FASTEST` agents; for a matrix that
        is not symmetric, whose rows do not sum to 1, that is not 0 off the edges, or with which
        (as with an alpha out of bounds) the agents never agree.

    Warns
    -----
    VpemWarning
        If the solver of "fastest" falls short, and simpler weights that mix faster are taken.
    """
    alpha = constant_of(weights)
    is_matrix = not isinstance(weights, str) and alpha is None
    if alpha is None and not is_matrix:
        check_choice("weights", weights, WEIGHTS)
    if graph.has_server:
        raise InputError(
            "a star has no mixing weights: its server takes the exact sum; to mix among the agents"
            " take another topology"
        )
    if graph.is_directed:
        return _pushed(graph)
    if is_matrix:
        return _of_matrix(graph, weights)
    if alpha is not None:
        return _of_constant(graph, alpha)
    if weights in ("laplacian", "fastest"):
        check_connected(graph)
    if weights == "fastest":
        return _fastest(graph)
    one, two = graph.edges.T
    most = graph.degrees.max()
    if weights == "metropolis":
        return weighted(graph, 1.0 / (1.0 + np.maximum(graph.degrees[one], graph.degrees[two])))
    matrix = weighted(graph, np.full(len(one), 1.0 / (1.0 + most)))
    if weights == "max-degree" or graph.n_agents == 1:
        return matrix
    second, last = _extreme(matrix, +1), _extreme(matrix, -1)
    alpha = 2.0 / ((1.0 + most) * (2.0 - second - last))
    return weighted(graph, np.full(len(one), alpha))


def constant_of(weights: Any) -> float | None:
    """Return the alpha that weights are, as a number or as text; None where they are none."""
    if isinstance(weights, str):
        return read_float(weights)
    number = isinstance(weights, int | float | np.number) and not isinstance(weights, bool)
    return float(weights) if number else None


def weights_name(weights: Any, graph: Graph) -> str:
    """Return what to call mixing weights in reports: two matrices have different names."""
    if graph.is_directed:
        return "push-sum"
    if (alpha := constant_of(weights)) is not None:
        return f"alpha={alpha!r}"
    if isinstance(weights, str):
        return weights
    return f"own-{crc32(mixing_matrix(graph, weights).data.tobytes()):08x}"


def _of_constant(graph: Graph, alpha: float) -> csr_array:
    """``I - alpha L``, where the agents come to agree with it."""
    check_connected(graph)
    matrix = weighted(graph, np.full(graph.n_edges, alpha))
    mixes = 0.0 < alpha < np.inf and mixing_rate(matrix) < 1.0 - NO_GAP
    if graph.n_agents > 1 and not mixes:
        most = 1.0 + graph.degrees.max()
        fastest = _extreme(weighted(graph, np.full(graph.n_edges, 1.0 / most)), -1)
        raise InputError(
            Setting("weights"),
            f" must be a constant above 0 and below 2 / lambda_max(L) = "
            f"{2.0 / (most * (1.0 - fastest)):.6g} on this graph, got {alpha:g}; ",
            Setting("weights", "laplacian"),
            " takes the best one",
        )
    return _in_time(graph, matrix)


def _of_matrix(graph: Graph, weights: Any) -> csr_array:
    """Return a matrix of the user's, checked, on the pattern of the graph."""
    from scipy.sparse import csr_array, issparse

    name, n = Setting("weights"), graph.n_agents
    given = weights if issparse(weights) else as_array("mixing weights", weights)
    if given.dtype.kind not in "iuf" or given.shape != (n, n):
        raise InputError(
            name, f" must be {', '.join(WEIGHTS)}, a number or a matrix of real numbers of shape "
            f"({n}, {n}), got shape {given.shape} of type {given.dtype}",
        )  # fmt: skip
    given = csr_array(given).astype(np.float64)
    if bad := np.count_nonzero(~np.isfinite(given.data)):
        raise InputError(name, f" must be finite, but {bad} of its numbers are NaN or infinite")
    sums, apart = given.sum(axis=1), abs(given - given.T).max()
    row = int(np.abs(sums - 1.0).argmax())
    if apart > ROWS_OFF or abs(sums[row] - 1.0) > ROWS_OFF:
        raise InputError(
            name, " must be symmetric with rows that sum to 1, but the row of agent "
            f"{graph.name(row)} sums to {sums[row]:.12g}, and W and its transpose differ by "
            f"{apart:.3g}; correct it, or take (W + W^T) / 2",
        )  # fmt: skip
    mean = ((given + given.T) / 2.0).tocoo()
    row, column = mean.coords
    off = (row < column) & (mean.data != 0)
    row, column, values = row[off], column[off], mean.data[off]
    edges, codes = graph.edges @ [n, 1], row.astype(np.intp) * n + column
    stray = np.flatnonzero(~np.isin(codes, edges))
    if len(stray):
        i, j = (graph.name(int(ends[stray[0]])) for ends in (row, column))
        raise InputError(
            name, f" has {values[stray[0]]:.6g} for agents {i} and {j}, which are no neighbours; "
            "set it to 0, or add the edge to the graph",
        )  # fmt: skip
    check_connected(graph)
    between = np.zeros(graph.n_edges)
    between[np.searchsorted(edges, codes)] = values
    matrix = weighted(graph, between)
    rate = mixing_rate(matrix)
    if rate >= 1.0 - NO_GAP:
        raise InputError(
            name, f" must have a spectral gap above 0, but the mixing rate of this matrix is "
            f"{rate:.12g}: with it agents never come to agree; edges of weight 0 join no agents",
        )  # fmt: skip
    return _in_time(graph, matrix)


def _in_time(graph: Graph, matrix: csr_array) -> csr_array:
    """Return weights of the user's, if rounds by them end in a reasonable time."""
    gap, usual = (1.0 - mixing_rate(one) for one in (matrix, mixing_matrix(graph)))
    if gap < LEAST_GAP * usual:
        tolerance = SumSettings.consensus_tol
        raise InputError(
            Setting("weights"), f" of these values take {np.log(1 / tolerance) / gap:.2g} plain "
            f"rounds for a consensus error of {tolerance:g}, where Metropolis weights take "
            f"{np.log(1 / tolerance) / usual:.2g}; take larger ones, or ",
            Setting("weights", "laplacian"),
        )  # fmt: skip
    return matrix


def _pushed(graph: Graph) -> csr_array:
    """Weights of push-sum (Kempe, Dobra and Gehrke 2003): each agent sends equal parts.

    One to itself, and one over each of its links out, so that columns sum to 1.
    """
    from scipy.sparse import csr_array

    source, target = graph.arcs
    n, every = graph.n_agents, np.arange(graph.n_agents)
    part = 1.0 / (1.0 + np.bincount(source, minlength=n))
    data = np.concatenate([part[source], part])
    places = np.concatenate([target, every]), np.concatenate([source, every])
    matrix = csr_array((data, places), shape=(n, n))
    matrix.sort_indices()
    return matrix


def _fastest(graph: Graph) -> csr_array:
    """Return the fastest mixing of a connected graph.

    Where simpler weights are as fast up to what the solver can tell, they are taken: on graphs
    whose edges are all alike, such as cycles, the best constant is the optimum.
    """
    if graph.n_agents > MOST_FASTEST:
        raise InputError(
            f"the fastest weights are looked for among at most {MOST_FASTEST} agents, the graph has"
            f" {graph.n_agents}; try laplacian weights"
        )
    simpler = [mixing_matrix(graph, name) for name in ("laplacian", "metropolis")]
    rates = [mixing_rate(matrix) for matrix in simpler]
    best = int(np.argmin(rates))
    if rates[best] == 0.0:
        _load_solver()  # the answer shall not depend on the graph where cvxpy is absent
        return simpler[best]
    matrix = weighted(graph, _solved(graph))
    rate = mixing_rate(matrix)
    if rate < rates[best] - SOLVED * (1.0 - rates[best]):
        return matrix
    if rate > rates[best] + SOLVED:
        warnings.warn(
            f"the solver of the fastest weights fell short (mixing rate {rate:.6f}):"
            f" {('laplacian', 'metropolis')[best]} weights are taken, whose mixing rate is"
            f" {rates[best]:.6f}",
            VpemWarning,
            stacklevel=3,
        )
    return simpler[best]


def _load_solver() -> ModuleType:
    try:
        import cvxopt  # noqa: F401
        import cvxpy
    except ImportError as error:
        raise InputError(
            "the fastest weights need cvxpy and its solver CVXOPT, which are not installed: pip"
            " install 'vpem[sdp]', or take laplacian weights"
        ) from error
    solver: ModuleType = cvxpy
    return solver


def _solved(graph: Graph) -> NDArray[np.float64]:
    """Weights of the edges (n_edges,) by which ``||W - 11^T/N||_2`` is least.

    A semidefinite program, in ``W = I - sum_e w_e a_e a_e^T`` with ``a_e`` 1 and -1 at the ends of
    edge e.
    """
    from scipy.sparse import csr_array

    cvxpy = _load_solver()
    n, n_edges = graph.n_agents, graph.n_edges
    one, two = graph.edges.T
    edge = np.tile(np.arange(n_edges), 4)
    places = np.concatenate([one * n + one, two * n + two, one * n + two, two * n + one])
    signs = np.repeat([1.0, -1.0], 2 * n_edges)
    outer = csr_array((signs, (places, edge)), shape=(n * n, n_edges))
    weight, norm = cvxpy.Variable(n_edges), cvxpy.Variable()
    rest = np.eye(n) - 1.0 / n - cvxpy.reshape(outer @ weight, (n, n), order="F")
    bound = norm * np.eye(n)
    problem = cvxpy.Problem(cvxpy.Minimize(norm), [bound - rest >> 0, bound + rest >> 0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what comes out is looked at by the caller
        try:
            problem.solve(solver=cvxpy.CVXOPT, kktsolver="chol")
        except (cvxpy.error.SolverError, ArithmeticError, ValueError):
            weight.value = None
    if weight.value is None or not np.isfinite(weight.value).all():
        return np.zeros(n_edges)  # the identity, which never mixes
    return np.asarray(weight.value, dtype=np.float64)


def mixing_rate(W: csr_array | NDArray[np.float64]) -> float:
    """Return the second largest eigenvalue modulus, by which the error falls in each round.

    Parameters
    ----------
    W : sparse array or ndarray of shape (n_agents, n_agents)
        A symmetric matrix whose rows sum to 1.

    Returns
    -------
    float
        ``max(|lambda_2|, |lambda_N|)``; 0 if one round is exact up to rounding, 1 (or more) if
        the agents never come to agree.

    Raises
    ------
    InputError
        If the matrix is not square and symmetric with rows that sum to 1.
    """
    from scipy.sparse import csr_array

    matrix = csr_array(W, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"a mixing matrix must be square, got shape {matrix.shape}")
    wrong = max(abs(matrix - matrix.T).max(), np.abs(matrix.sum(axis=1) - 1.0).max())
    if not wrong < 1e-9:
        raise InputError(
            f"a mixing matrix must be symmetric with rows that sum to 1, this one is off by {wrong}"
        )
    if matrix.shape[0] == 1:
        return 0.0
    rate = abs(_extreme(matrix, +1))
    if -_bound(matrix, -1) > rate:
        rate = max(rate, abs(_extreme(matrix, -1)))
    return 0.0 if rate < RATE_ZERO else rate


def push_rate(A: csr_array) -> float:
    """Return the second largest eigenvalue modulus of weights of push-sum, whose columns sum to 1.

    What weights of the start leave behind falls by it in each round, once there were many.
    """
    n = A.shape[0]
    if n == 1:
        return 0.0
    if n <= DENSE:
        sizes = np.sort(np.abs(np.linalg.eigvals(A.toarray())))
    else:
        from scipy.sparse.linalg import eigs

        start = np.random.default_rng(0).random(n)
        sizes = np.sort(np.abs(eigs(A, k=3, v0=start, return_eigenvectors=False)))
    rate = float(min(sizes[-2], 1.0))
    return 0.0 if rate < RATE_ZERO else rate


def chebyshev_steps(rate: float, n_rounds: int) -> NDArray[np.float64]:
    """Return how far each of S rounds goes when they are accelerated by Chebyshev's polynomials.

    Round s + 1 takes ``z^{s+1} = step (W z^s - z^{s-1}) + z^{s-1}``; after S rounds the states are
    ``T_S(W / rate) / T_S(1 / rate)`` times where they started. ``rate`` is W's mixing rate or a
    bound of it below 1; with 0 one plain round is exact, and all are plain. The first step is 1.
    """
    return np.fromiter(islice(chebyshev(rate), n_rounds), dtype=np.float64, count=n_rounds)


def chebyshev(rate: float) -> Iterator[float]:
    """Yield these steps without end: how many rounds there are does not matter to them."""
    step = 2.0
    yield 1.0
    while True:
        step = 1.0 / (1.0 - 0.25 * rate**2 * step) if rate > 0 else 1.0
        yield step


def chebyshev_bound(rate: float, n_rounds: int) -> float:
    """Return by what accelerated rounds reduce the distance to the mean at least.

    ``1 / T_S(1 / rate)``, 1 for no rounds and 0 where one round is exact.
    """
    if n_rounds == 0:
        return 1.0
    if rate <= 0:
        return 0.0
    growth = np.arccosh(1.0 / rate) * n_rounds
    return float(2.0 * np.exp(-growth) / (1.0 + np.exp(-2.0 * growth)))


def _bound(matrix: csr_array, end: int) -> float:
    """Return Gershgorin's bound of the eigenvalues, from above (end = 1) or below (end = -1)."""
    diagonal = matrix.diagonal()
    around = abs(matrix).sum(axis=1) - np.abs(diagonal)
    return float(end * np.max(end * diagonal + around))


def _extreme(matrix: csr_array, end: int) -> float:
    """Return the greatest (end = 1) or least (end = -1) eigenvalue but that of the ones.

    Large matrices are never made dense. Lanczos comes first, quick where mixing is. Where it does
    not converge, and on trees, paths and rings, the matrix is factorised about its Gershgorin
    bound, cheap on such graphs, and Lanczos runs on the inverse. The constant vector is deflated
    and the start vector fixed, so that results are reproducible.
    """
    n = matrix.shape[0]
    away = 2.0 * abs(matrix).sum(axis=1).max()  # takes the ones to the other end of the spectrum
    if n <= DENSE:
        return end * float(np.linalg.eigvalsh(end * matrix.toarray() - away / n)[-1])
    from scipy.sparse import eye_array  # takes long to load
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh, splu

    start = np.random.default_rng(0).standard_normal(n)
    restarts: dict[str, Any] = {}
    if "rng" in signature(eigsh).parameters:  # SciPy 1.17 draws at some restarts
        restarts = {"rng": np.random.default_rng(0)}

    def lanczos(apply: Callable[[NDArray[np.float64]], NDArray[np.float64]], **more: int) -> float:
        linear = LinearOperator(matrix.shape, matvec=apply, dtype=np.float64)
        options = {"k": 1, "which": "LA", "v0": start - start.mean(), "tol": 1e-11, **restarts}
        return float(eigsh(linear, return_eigenvectors=False, **options, **more)[0])

    if matrix.nnz > TREELIKE * n:
        try:  # on I + end W, whose eigenvalues stay away from 0, where tol would mean nothing
            top = lanczos(lambda x: x + end * (matrix @ x) - away * x.mean(), ncv=32, maxiter=200)
            return end * (top - 1.0)
        except ArpackNoConvergence:
            pass
    shift = _bound(matrix, end) + end * 1e-9
    factor = splu(
        (end * (shift * eye_array(n) - matrix)).tocsc(),
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )

    def inverse(x: NDArray[np.float64]) -> NDArray[np.float64]:
        y = factor.solve(x)
        return np.asarray(y - y.mean())

    return shift - end / lanczos(inverse)


def estimate_rate(
    mixing: csr_array,  # W (N, N), symmetric, rows sum to 1
    graph: Graph,  # without a server
    ledger: Ledger,
    *,
    n_rounds: int | None = None,
    seed: int = 0,
    diameter: int,  # hops between the agents farthest apart
) -> float:
    """Estimate the mixing rate as the agents of a network can, each knowing its own weights only.

    Every agent draws a number from a stream of its own, (seed, n). One round of ``I - W`` takes the
    mean away; then rounds of W leave what falls slowest. At the 2nd, 4th, 8th, ... of them the
    agents learn, by flooding, the largest absolute value now and two rounds before: the root of the
    ratio is what was kept a round, and all divide by the largest value, so that nothing underflows.
    By default rounds of W end when values have fallen to `FALLEN`, after some 5 to 15 / (1 - rate):
    as many as it takes to tell the slowest mode from the others. They are counted as "setup", 8
    bytes over every link, and the maxima as "flooding", ``diameter`` rounds of 8 bytes. The result,
    from 0 (a single agent) to below 1, has a margin of `MARGIN` over the rate seen: power
    iterations see one that is too small rather than too large, and the two errors do not cost the
    same.

    For rounds accelerated with a rate ``r`` in place of the true one ``t`` the distance to the mean
    falls to ``T_S(t / r) / T_S(1 / r)``. Where ``r >= t`` that is at most ``1 / T_S(1 / r)``, the
    bound that counts the rounds, and a gap narrowed to 0.8 of its width costs 12 % more rounds.
    Where ``r < t`` the slowest mode leaves the interval on which the polynomial is small: the mean
    is kept and the states still agree, but later than the bound says.
    """
    if graph.has_server:
        raise InputError("a star has no mixing rate: its server takes the exact sum")
    seed = check_int("seed", seed, least=0)
    most = MOST_ITERATIONS
    if n_rounds is not None:
        most = check_int("rounds of power iteration", n_rounds, least=2, most=MOST_ITERATIONS)
    if graph.n_agents == 1:
        return 0.0
    drawn = [np.random.default_rng([seed, n]).standard_normal() for n in range(graph.n_agents)]
    values = np.array(drawn)
    values = values - mixing @ values
    ledger.send("setup", VALUE_BYTES, times=1, rounds=1)
    start = np.abs(values).max()
    if start == 0.0:
        return LEAST
    values = values / start
    done, fallen, rate = 0, 1.0, LEAST
    while done < most:
        # They compare after twice as many rounds, or after those needed, if these are fewer.
        mark = max(2 * done, 2)
        if done and rate < 1.0 and n_rounds is None and fallen < np.inf:
            needed = np.log(FALLEN / fallen) / np.log(max(rate, LEAST))
            mark = min(mark, done + max(2, int(np.ceil(needed))))
        mark = most if mark + 2 > most else mark
        for _ in range(mark - done - 2):
            values = mixing @ values
        before = values
        values = mixing @ (mixing @ values)
        # The rounds, and two maxima.
        ledger.send("setup", VALUE_BYTES, times=mark - done, rounds=mark - done)
        ledger.send("flooding", VALUE_BYTES, times=2 * diameter, rounds=2 * diameter)
        large, largest = float(np.abs(before).max()), float(np.abs(values).max())
        done = mark
        rate = np.sqrt(largest / large)
        fallen *= largest
        if fallen > 2.0 * np.sqrt(graph.n_agents):  # more than a sum of squares that falls allows
            raise InputError("with these mixing weights the agents never come to agree")
        if largest == 0.0 or (n_rounds is None and fallen < FALLEN):
            break
        values = values / largest
    rate = min(max(rate, LEAST), 1.0 - 1e-15)
    return float(rate + MARGIN * min(rate, 1.0 - rate))
