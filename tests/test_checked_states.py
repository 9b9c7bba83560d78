"""No field of a saved state can be of another type, shape or range, whatever loop has saved it."""

import re
from functools import cache

import numpy as np
import pytest

from vpem import (
    connect,
    connect_workers,
    fit_em,
    fit_fedem,
    fit_imputation,
    fit_saem,
    fit_vpem,
    kmeans_features,
    kmeans_rows,
    make_graph,
)
from vpem.errors import FileError
from vpem.files.checkpoints import read_state, write_state
from vpem.fits.selection.search import Record, facts_of, grid, search
from vpem.fits.selection.trials import Problem
from vpem.network.partition import contiguous, evenly
from vpem.saem.individuals import from_matrix
from vpem.terms.lowrank.observations import Observations

from .cli_support import done, make_data, overlapping, run
from .resume_support import Breaking, Broken
from .tables import each

pytestmark = pytest.mark.filterwarnings("ignore::vpem.VpemWarning")

X, _ = overlapping(30, 6, 2, seed=4)
HOLES = np.where(np.random.default_rng(0).random(X.shape) < 0.1, np.nan, X)
SEEN = Observations(
    tuple(np.arange(42)[first::2] for first in range(2)), (np.arange(21.0),) * 2,
    tuple("abcdefg"), tuple("uvwxyz"), ("one", "two"),
)  # fmt: skip

GROWTH = from_matrix(X[:, :3])
DRAWS = {"n_conditional": 2, "n_importance": 10}

EM = {"n_components": 2, "max_iter": 4, "tol": 0, "n_threads": 1, "reg_covar": 1e-3}
KMEANS = {"n_clusters": 3, "init": "random", "n_init": 2, "n_threads": 1, "max_iter": 4}
FED = {"n_components": 2, "max_iter": 4, "n_threads": 1, "compress": "qsgd:8bits"}


def agents(topology="star", **how):
    return connect(make_graph(topology, 6), contiguous(6, 6), hops=0, n_threads=1, **how)


def workers(topology="star", **how):
    return connect_workers(make_graph(topology, 3), **how)


def vpem(network=None, data=X, **options):
    joined = network or agents()
    return lambda saver: fit_vpem(data, joined, saver=saver, **EM | options)


def rows(network, **options):
    return lambda saver: fit_em(X, evenly(30, 3), network, saver=saver, **EM | options)


def fedem(network=None, **options):
    return lambda saver: fit_fedem(X, evenly(30, 3), network, saver=saver, **FED | options)


def impute(**options):
    options = {"law": "poisson", "ridge": 0.3, "max_iter": 4, "tol": 0, "n_threads": 1, **options}
    return lambda saver: fit_imputation(SEEN, saver=saver, **options)


def saem(**options):
    options = {"devices": 3, "n_iter": 4, "n_chains": 2, **DRAWS, **options}
    return lambda saver: fit_saem(GROWTH, saver=saver, **options)


RUNS = {
    "restarts": vpem(n_init=3, init="random"),
    "tied": vpem(covariance_type="tied-diag", dtype=np.float32),
    "missing": vpem(data=HOLES, missing="marginalize"),
    "accelerated": vpem(accelerate="local:4,squarem", max_iter=8, tol=1e-3),
    "rows, accelerated": rows(workers("cycle", n_rounds=5), accelerate="squarem", max_iter=6),
    "links fail": vpem(agents("complete", link_failure=0.2, agent_dropout=0.1, n_rounds=12)),
    "gossip": vpem(agents("complete", compress="qsgd:8bits", link_failure=0.2, n_rounds=12)),
    "server": vpem(agents(compress="natural:12bits")),
    "batches": vpem(batch_size=10),
    "gossip in batches": vpem(
        agents("complete", compress="qsgd:8bits", link_failure=0.2, n_rounds=12), batch_size=20
    ),
    "server in batches": vpem(agents(compress="natural:12bits"), batch_size=20),
    "responsibilities": vpem(batch_size=2, dtype=np.float32),
    "stochastic": vpem(batch_size=10, step_size=0.7),
    "rows": rows(workers("cycle", n_rounds=5)),
    "rows in batches": rows(workers("cycle", n_rounds=5), batch_size=4),
    "rows, stochastic": rows(workers(), batch_size=4, step_size=0.7),
    "rows, restarts": rows(workers(), n_init=2, init="random"),
    "kmeans": lambda saver: kmeans_rows(X, evenly(30, 3), workers(), saver=saver, **KMEANS),
    "kmeans over features": lambda saver: kmeans_features(X, agents(), saver=saver, **KMEANS),
    "fedem": fedem(batch_size=5),
    "vr": fedem(variance_reduction=True, batch_size=5),
    "vr on a graph": fedem(
        workers("cycle", n_rounds=6), compress=None, variance_reduction=True, batch_size=5
    ),
    "saem": saem(codec="qsgd:8bits", participation=0.7),
    "saem on a graph": saem(network=workers("cycle", n_rounds=6), batch_size=4),
    "saem, models": saem(average="models", sampler="metropolis"),
    "imputation": impute(),
    "imputation, vr": impute(variance_reduction=True, batch_size=5),
}


@cache
def saved(name):
    """Return the state in which a run was broken off at its last offer but one."""
    fit = RUNS[name]
    counting = Breaking()
    fit(counting)
    breaking = Breaking(counting.offers - 1)
    with pytest.raises(Broken):
        fit(breaking)
    return breaking.state


def fields(state, path=()):
    """Yield every field and where it stands; of lists the last item."""
    yield path, state
    if isinstance(state, dict):
        for name, item in state.items():
            yield from fields(item, (*path, name))
    elif isinstance(state, list | tuple) and state:
        yield from fields(state[-1], (*path, len(state) - 1))


def put(state, path, value):
    """Return the state with another value there."""
    if not path:
        return value
    first, *rest = path
    if isinstance(state, dict):
        return {**state, first: put(state[first], rest, value)}
    items = list(state)
    items[first] = put(items[first], rest, value)
    return type(state)(items)


def wrong(path, value):
    """Yield what a field must not be."""
    yield np.ones((2, 2), dtype=bool) if isinstance(value, str | int) else b"\x00"
    if isinstance(value, np.ndarray):
        yield value[None]
        yield value.astype("f4" if value.dtype != np.float32 else "f8")
        if value.dtype.kind == "f" and value.size and "history" not in path:
            yield np.full_like(value, np.nan)
        if value.dtype.kind == "i" and value.size:
            yield np.full_like(value, -1)
    elif isinstance(value, float):
        yield float("nan")
    elif type(value) is int:
        yield -1
        yield float(value)
    elif isinstance(value, dict) and value:
        yield {**value, "more": 1}
    elif isinstance(value, tuple):
        yield value[:-1]


@pytest.mark.parametrize("name", RUNS)
def test_no_field_can_be_something_else(name):
    fit = RUNS[name]
    state = saved(name)
    count = 0
    for path, value in fields(state):
        for other in wrong(path, value) if path else ():
            with pytest.raises(FileError) as caught:
                fit(Breaking(saved=put(state, path, other)))
            told = ".".join(map(str, ("run", *path)))
            assert re.match(f"the checkpoint: {re.escape(told)}( |\\.more )", str(caught.value))
            assert str(caught.value).endswith("; start again with force=True instead of resume")
            count += 1
    assert count > 50


@pytest.mark.parametrize("name", RUNS)
def test_no_field_can_be_gone(name):
    fit = RUNS[name]
    state = saved(name)
    for path, value in fields(state):
        for gone in value if isinstance(value, dict) else ():
            less = {key: item for key, item in value.items() if key != gone}
            told = re.escape(".".join(map(str, ("run", *path, gone))))
            with pytest.raises(FileError, match=f"^the checkpoint: {told} is missing; "):
                fit(Breaking(saved=put(state, path, less)))


@each(
    ("name", "path", "value", "told"),
    [
        ("rows", "going.loop.iteration", 2, "must be 3, as many as there are in the record, got 2"),
        ("restarts", "restart", 3, "must be an integer from 0 to 2, got 3"),
        ("restarts", "going.loop.mixture.weights", np.ones((1, 2)), "that sum to 1, got a sum of"),
        ("restarts", "going.more.rows", np.array([0, 30]), "from 0 to 29, got 30 among them"),
        ("restarts", "going.stream.bit_generator", "MT19937", "must be 'PCG64', got 'MT19937'"),
        ("batches", "going.loop.order", np.array([0, 1, 3]), "from 0 to 2, got 3 among them"),
        ("batches", "going.loop.fitting.total", None, "must be a table of counts, first"),
        ("rows in batches", "going.loop.workers.0.total", None, "must be a table of counts, first"),
        ("gossip", "going.loop.sum.memory.inputs", np.zeros((6, 1)), "must be 6 x 31 finite real"),
        ("kmeans", "going.loop.labels", np.full(30, 3, dtype="i4"), "from 0 to 2, got 3 among"),
        ("kmeans", "best.run.history", [], "must be a list of at least 1, got a list of 0"),
        ("vr", "loop.estimates.seen.0", 9, "must be 0, got 9"),
        ("vr", "loop.history.bytes", [1], "must be a list of 3, got a list of 1"),
        ("imputation", "loop.model.U", np.zeros((7, 3)), "must be 1 x 7 x 2 finite real"),
    ],
)
def test_fields_are_held_to_each_other(name, path, value, told):
    state = saved(name)
    steps = [int(step) if step.isdecimal() else step for step in path.split(".")]
    with pytest.raises(FileError, match=re.escape(told)) as caught:
        RUNS[name](Breaking(saved=put(state, steps, value)))
    assert str(caught.value).startswith(f"the checkpoint: run.{path} must be ")


@pytest.mark.parametrize("criterion", ["bic", "heldout"])
def test_a_record_of_a_search_is_checked(tmp_path, criterion):
    path = tmp_path / "state.h5"
    networks = {0: agents()}
    problem = Problem(X, networks, None, {"max_iter": 3})
    record = Record(path, facts_of(problem))
    search(problem, grid([1], [0], ["diag"]), criterion=criterion, n_folds=2, record=record)
    state = read_state(path)
    for place, value in fields(state):
        if place[:1] not in (("results",), ("kind",)):
            continue
        for other in wrong(place, value):
            write_state(path, put(state, place, other))
            told = re.escape(".".join(map(str, place)))
            with pytest.raises(FileError, match=f"{told}.* give another state"):
                Record(path, facts_of(problem))
    write_state(path, state)
    assert Record(path, facts_of(problem)).results == state["results"]


def test_the_command_line_says_which_file_and_field(capsys, tmp_path):
    data, file, model = (tmp_path / name for name in ("data.h5", "run.ckpt", "model.h5"))
    make_data(data, n_samples=30)
    command = ("fit", data, "--max-iter", 3, "--tol", 0, "--checkpoint", file, "-q", "-o", model)
    done(capsys, *command)
    model.unlink()
    state = read_state(file)
    counts = np.ones((2, 2), dtype=bool)
    write_state(file, put(state, ("run", "going", "loop", "iteration"), counts))
    refused = run(capsys, *command, "--resume")
    assert (refused.code, model.exists()) == (2, False)
    assert refused.sentence == (
        f"the checkpoint {file}: run.going.loop.iteration must be an integer of at least 0, got "
        "2 x 2 true/false values; start again with --force instead of --resume"
    )
    write_state(file, put(state, ("facts", "seed"), counts))
    assert "facts.seed must be a plain value" in run(capsys, *command, "--resume").sentence
