"""Whatever is kept in a file may hold anything in any field: it is refused in a sentence, or used.

One law over all records: states of every loop, files of results and data, studies and requests,
policies, logs and ledgers. A record is a tree; each of its fields is changed, one at a time.
"""

import json
import re
import shutil
import tomllib
from contextlib import closing
from functools import cache, reduce
from operator import getitem

import h5py
import numpy as np
import pytest

import vpem_cli
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
from vpem.errors import FileError, VpemError
from vpem.files.checkpoints import read_state, write_state
from vpem.files.data import read_dataset
from vpem.files.json_text import as_toml
from vpem.files.models import read_model
from vpem.files.observations import read_observations, write_observations
from vpem.files.parties.opening import KEYS, read_manifest
from vpem.files.results import read_clustering, read_imputed
from vpem.files.studies.identities import key_of, read_identity, read_request, write_request
from vpem.files.studies.logs import MessageLog, Spent, read_log
from vpem.files.studies.policy import EXAMPLE, read_policy
from vpem.files.studies.signed import Signed, signed_text, table_of
from vpem.files.studies.study import read_study
from vpem.fits.selection.search import Record, facts_of, grid, search
from vpem.fits.selection.trials import Problem
from vpem.network.partition import contiguous, evenly
from vpem.saem.formats.fits import read_saem
from vpem.saem.formats.individuals import read_individuals, write_individuals
from vpem.saem.individuals import from_matrix
from vpem.terms.lowrank.observations import Observations

from .cli_support import done, make_data, overlapping, run
from .resume_support import Breaking, Broken
from .study_support import make_study
from .tables import each
from .test_logs import message, ran

pytestmark = pytest.mark.filterwarnings("ignore::vpem.VpemWarning")


def fields(record, path=()):
    """Yield every field and where it stands; of lists the last item."""
    if path:
        yield path, record
    if isinstance(record, dict):
        for name, item in record.items():
            yield from fields(item, (*path, name))
    elif isinstance(record, list | tuple) and record:
        yield from fields(record[-1], (*path, len(record) - 1))


def put(record, path, value):
    """Return a record with another value there."""
    if not path:
        return value
    first, *rest = path
    if isinstance(record, dict):
        return {**record, first: put(record.get(first), rest, value)}
    items = list(record)
    items[first] = put(items[first], rest, value)
    return type(record)(items)


def without(record, path):
    """Return a record without the field there."""
    *above, name = path
    for step in above:
        record = record[step]
    return {key: item for key, item in record.items() if key != name}


# ---- states: what a loop has offered -------------------------------------------------------------

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
FAULTS = {"compress": "qsgd:8bits", "link_failure": 0.2, "n_rounds": 12}


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
    "gossip": vpem(agents("complete", **FAULTS)),
    "server": vpem(agents(compress="natural:12bits")),
    "batches": vpem(batch_size=10),
    "gossip in batches": vpem(agents("complete", **FAULTS), batch_size=20),
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
    "saem": saem(codec="qsgd:8bits", participation=0.7, tol=0.0),
    "saem on a graph": saem(network=workers("cycle", n_rounds=6), batch_size=4, tol=0.0),
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


def wrong(path, value):
    """Yield what a field of a state must not be; first what is of another type."""
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


MET = set()
"""Fields of states that were changed: their places and kinds, also with what stands beside them."""


@pytest.mark.parametrize("name", RUNS)
def test_no_field_of_a_state_can_be_something_else_or_gone(name):
    """A field of another type in every record, and all fields where others stand beside them.

    In all other ways one of each kind is changed.
    """
    fit, state = RUNS[name], saved(name)

    def refused(other, told):
        with pytest.raises(FileError) as caught:
            fit(Breaking(saved=other))
        sentence = str(caught.value)
        assert re.match(f"the checkpoint: {re.escape(told)}( |\\.more )", sentence)
        assert sentence.endswith("; start again with force=True instead of resume")
        return sentence

    records = set()
    for path, value in fields(state):
        told = ".".join(map(str, ("run", *path)))
        array = isinstance(value, np.ndarray)
        kind = (value.dtype, value.ndim) if array else type(value)
        known = (tuple(one for one in path if isinstance(one, str)), kind)
        record = reduce(getitem, path[:-1], state)
        here = (*known, frozenset(record) if isinstance(record, dict) else None)
        if here in MET and path[:-1] in records:
            continue
        first, *others = wrong(path, value)
        for other in [first] if known in MET else [first, *others]:
            refused(put(state, path, other), told)
        since = path[-1] == "counts"  # states of before go on
        if known not in MET and isinstance(path[-1], str) and not since:
            less = put(state, path[:-1], without(state, path))
            assert f"{told} is missing; " in refused(less, told)
        records.add(path[:-1])
        MET.update((known, here))
    assert len(records) > 4


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
def test_fields_of_a_state_are_held_to_each_other(name, path, value, told):
    steps = [int(step) if step.isdecimal() else step for step in path.split(".")]
    with pytest.raises(FileError, match=re.escape(told)) as caught:
        RUNS[name](Breaking(saved=put(saved(name), steps, value)))
    assert str(caught.value).startswith(f"the checkpoint: run.{path} must be ")


@pytest.mark.parametrize("criterion", ["bic", "heldout"])
def test_a_record_of_a_search_is_checked(tmp_path, criterion):
    path = tmp_path / "state.h5"
    problem = Problem(X, {0: agents()}, None, {"max_iter": 3})
    record = Record(path, facts_of(problem))
    search(problem, grid([1], [0], ["diag"]), criterion=criterion, n_folds=2, record=record)
    state = read_state(path)
    for place, value in fields(state):
        for other in wrong(place, value) if place[0] in ("results", "kind") else ():
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


# ---- HDF5: results and data ----------------------------------------------------------------------

QUICK = "-q --max-iter 2"
FILES = {
    "model": (
        f"fit d.h5 -k 2 --topology cycle --scale standard {QUICK} -o model.h5", read_model,
    ),
    "clusters": (
        f"kmeans d.h5 -k 2 --workers 2 --scale standard {QUICK} -o clusters.h5", read_clustering,
    ),
    "saem": ("saem long.csv --burn-in 2 --iterations 4 -q -o saem.h5", read_saem),
    "imputation": (f"impute entries.csv -r 1 {QUICK} -o imputation.h5", read_imputed),
    "observations": (lambda: write_observations(
        "observations.h5", read_observations("entries.csv")), read_observations),
    "individuals": (lambda: write_individuals(
        "individuals.h5", read_individuals("long.csv")), read_individuals),
    "dataset": (lambda: make_data("dataset.h5", n_samples=12), read_dataset),
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A small file of each kind."""
    folder = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_data(folder / "d.h5", n_samples=30)
        rng = np.random.default_rng(0)
        lines = [f"{n},{t},{5 + n + t * (1 + n % 3) + rng.normal(0, 0.2):.3f}\n"
                 for n in range(6) for t in range(4)]  # fmt: skip
        (folder / "long.csv").write_text("id,time,value\n" + "".join(lines))
        cells = [f"{(i + j) % 2},{i},{j},{rng.normal():.3f}\n" for i in range(5) for j in range(4)]
        (folder / "entries.csv").write_text("observer,row,column,value\n" + "".join(cells))
        for how, _ in FILES.values():
            if callable(how):
                how()
            else:
                assert vpem_cli.run(how.split()) == 0, how
    return folder


def contents(path):
    """The record in a file: attributes by ``@name``, JSON as what it says."""
    record = {}

    def note(name, item):
        for one, value in item.attrs.items():
            record[f"{name}@{one}"] = value
        if isinstance(item, h5py.Dataset):
            values = np.asarray(item[()])
            is_json = values.dtype == np.uint8 and values.ndim == 1
            record[name] = json.loads(values.tobytes()) if is_json else values

    with h5py.File(path) as file:
        note("", file)
        file.visititems(note)
    described = {
        f"{name}@{one}" for name in record for one in ("encoding-type", "encoding-version")
    }
    return {name: value for name, value in record.items() if name not in described - {"@"}}


def replace_in(path, record, field, value):
    """Change one field of a file; None takes it out."""
    name, *inside = field
    where, at, attribute = name.partition("@")
    with h5py.File(path, "a") as file:
        if at:
            del file[where or "/"].attrs[attribute]
            if value is not None:
                file[where or "/"].attrs[attribute] = value
            return
        if isinstance(record[name], dict):
            content = put(record[name], inside, value)
            if value is None and inside and isinstance(inside[-1], str):
                content = put(record[name], inside[:-1], without(record[name], inside))
            value = np.frombuffer(json.dumps(content).encode(), np.uint8)
        del file[name]
        if value is not None:
            file.create_dataset(name, data=value)


def some(values, value):
    made = values.copy()
    made.reshape(-1)[:1] = value
    return made


NUMBERS = {
    "as text": lambda v: np.full(v.shape, b"x"),
    "as true": lambda v: np.ones(v.shape, bool),
    "as complex": lambda v: v.astype(complex),
    "as integers": lambda v: np.nan_to_num(v).astype("i8"),
    "as bytes": lambda v: np.nan_to_num(v).astype("u1"),
    "as unsigned": lambda v: np.full(v.shape, 2**64 - 1, "u8"),
    "as long double": lambda v: np.full(v.shape, np.finfo(np.longdouble).max),
    "as float16": lambda v: v.astype("f2"),
    "flat": lambda v: v.reshape(-1),
    "one more dimension": lambda v: v[None],
    "shorter": lambda v: v.reshape(-1)[:-1] if v.ndim < 2 else v[:-1],
    "transposed": lambda v: v.T,
    "none": lambda v: v.reshape(-1)[:0],
    "empty": lambda v: h5py.Empty("f8"),
    "negated": lambda v: -v,
    "huge": lambda v: some(v, np.iinfo(v.dtype).max if v.dtype.kind in "iu" else 1e308),
    "nan": lambda v: some(v.astype(float), np.nan),
    "infinite": lambda v: some(v.astype(float), np.inf),
    "zero": lambda v: v * 0,
    "a number": lambda v: 3.5,
}
TEXTS = {
    "a number": lambda v: 3.5,
    "as numbers": lambda v: np.arange(len(v)),
    "no UTF-8": lambda v: np.full(v.shape, b"\xff\xfe"),
    "shorter": lambda v: v[:-1],
    "one only": lambda v: np.full(v.shape, v[:1]),
    "a table": lambda v: v[None],
    "empty text": lambda v: np.full(v.shape, b""),
}
ATTRIBUTES = (b"x", "", 0, -1, 2**62, 1.5, np.nan, True, np.arange(3), h5py.Empty("f8"), 1j)
ODD = ("x", -1, 2**70, 1.5, True, [], [None], [[1], [1, 2]], {}, {"x": 1}, {"x": {}})


def changes(field, value):
    """Yield what a field of a file is changed to, by how; of JSON it is every fifth thing."""
    if "@" in field[0]:
        yield from ((repr(one), one) for one in ATTRIBUTES)
    elif len(field) > 1:
        yield from ((repr(one), one) for one in (*ODD, None)[len(str(field)) % 5 :: 5])
    elif isinstance(value, np.ndarray):
        for how, change in (NUMBERS if value.dtype.kind in "iufb" else TEXTS).items():
            with np.errstate(all="ignore"):
                yield how, change(value)


OF_ANY_LENGTH = {
    "history", "hubs/0/agents", "graph/edges",
    "covariates", "covariate_names",  # of none there are none
    "fitted", "factors/rows", "factors/columns", "factors/singular_values",  # for other programs
}  # fmt: skip
"""What is as long as it is: nothing else in the file has this size."""


@pytest.mark.parametrize("kind", FILES)
def test_any_field_of_a_file_may_be_anything(files, tmp_path, monkeypatch, capsys, kind):
    """Of a model nothing may be gone, and no attribute another but a count or yes or no."""
    monkeypatch.chdir(tmp_path)
    seed, read = files / f"{kind}.h5", FILES[kind][1]
    record = contents(seed)
    places = [one for one in fields(record) if not one[0][0].startswith(("hubs/1", "hubs/2"))]
    # What is shorter, and of the rest every fifth or 15th, for time: how goes around with what
    # is changed.
    table = [(field, *one) for field, value in places for one in changes(field, value)]
    step = 5 if len(table) < 200 else 15
    table = [one for n, one in enumerate(table) if n % step == 0 or one[1] == "shorter"]
    table += [(field, "gone", None) for field, _ in places if len(field) == 1]
    said, taken = [], []
    for field, how, value in table:
        shutil.copyfile(seed, "one.h5")
        with np.errstate(all="ignore"):
            replace_in("one.h5", record, field, value)
        try:
            read("one.h5")
        except VpemError as error:
            said.append((field, how, str(error)))
            continue
        taken.append((field, how))
        # Printed of some only, for time; what is printed is the same code for all.
        if len(taken) % 20 == 0 and kind in ("model", "clusters", "saem"):
            result = run(capsys, "model", "show", "one.h5")
            assert result.code in (0, 2), (field, how, result.err)
    assert not [one for one in said if "one.h5" not in one[-1] or "\n" in one[-1]]
    assert min(len(said), len(taken)) > 5
    assert {field[0] for field, how in taken if how == "shorter"} <= OF_ANY_LENGTH
    if kind == "model":
        taken = [one for one in taken if one[1] == "gone" or "@" in one[0][0]]
        assert {how for _, how in taken} <= {"0", "True"}, taken


# ---- lines and tables of text -------------------------------------------------------------------


def others(value):
    """Yield what is of another type than a value of JSON or TOML."""
    for other in (3.5, "x", True, [1]):
        numbers = isinstance(value, int | float) and isinstance(other, float)
        if type(other) is not type(value) and not numbers:
            yield other


def of_messages(folder):
    """A log of one message: what each of its lines must have, and what reads it."""
    with closing(MessageLog(folder / "lab-heart.log", command="fit")) as log:
        log.record_message(message())
    return log.path, lambda: read_log([log.path]), {"command"}


def of_ledger(folder):
    ledger = Spent(folder)
    ledger.begin(ran(), lambda: None)
    ledger.end(ran(), 3)
    return ledger.path, ledger.runs, {"lab.csv"}


@pytest.mark.parametrize("make", [of_messages, of_ledger])
def test_no_field_of_a_line_can_be_something_else_or_gone(tmp_path, make):
    path, read, free = make(tmp_path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]

    def refused(number, line):
        changed = [*lines[:number], line, *lines[number + 1 :]]
        path.write_text("".join(json.dumps(one) + "\n" for one in changed))
        with pytest.raises(FileError, match=r"is damaged in line [12]"):
            read()

    for number, line in enumerate(lines):
        for field, value in fields(line):
            if free.isdisjoint(field):
                for other in others(value):
                    refused(number, put(line, field, other))
                refused(number, put(line, field[:-1], without(line, field)))
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    assert read()


def of_study(folder):
    made = make_study(folder, "lab", "clinic", runs=("vpem fit -k 2",), shows=("one",))["hub"]
    return made.path, read_study, "study", read_identity(made.folder, "hub")


def of_request(folder):
    made = make_study(folder, "lab")["lab"]
    asked = write_request(made, "lab", address="lab.org:443", features=("a", "b"))
    return asked.path, read_request, "request", read_identity(made.folder, "lab")


MAY_LACK = {"address", "listen", "features", "data", "runs", "shows", "if-lost", "before"}


@pytest.mark.parametrize("make", [of_study, of_request])
def test_no_field_of_what_is_signed_can_be_something_else_or_gone(tmp_path, make):
    path, read, kind, identity = make(tmp_path)
    keys = {"ed25519": key_of(identity)}
    record = tomllib.loads(Signed(path, kind).body)

    def refused(changed, *told):
        tables = [
            table_of(f"[[{name}]]" if isinstance(table, list) else f"[{name}]", one)
            for name, table in changed.items()
            for one in (table if isinstance(table, list) else [table])
        ]
        path.write_text(signed_text(kind, "\n".join(tables), keys))
        with pytest.raises(VpemError) as caught:
            read(path)
        assert all(one in str(caught.value) for one in (str(path), *told))

    count = 0
    for field, value in fields(record):
        *table, name = field
        if not table or not isinstance(name, str) or field[0] == "fit":
            continue
        for other in others(value):
            refused(put(record, field, other), name)
            count += 1
        if name not in MAY_LACK:
            refused(put(record, table, without(record, field)), name)
        if name == "name":
            refused(put(record, (*table, "more"), 1), "'more'")
    assert count > 25


def of_policy():
    every = "\n".join(line.removeprefix("# ") for line in EXAMPLE.splitlines() if "=" in line)
    return tomllib.loads(every), read_policy, ""


def of_manifest():
    return dict.fromkeys(KEYS, "x"), read_manifest, "[[party]]\n"


@pytest.mark.parametrize("make", [of_policy, of_manifest])
def test_no_key_of_what_people_write_can_be_something_else(tmp_path, make):
    record, read, head = make()
    path = tmp_path / "one.toml"
    for name, value in record.items():
        for other in (*others(value), [], [[1]]):
            if head and (other == [1] or other is (name == "no_header")):
                continue  # a place is a column, too
            file = 'file = "x.csv"\n' if head and name != "file" else ""
            path.write_text(f"{head}{file}{name} = {as_toml(other)}")
            with pytest.raises(VpemError, match=f"{path}: (party 0: )?{name} (must|may have) "):
                read(path)
