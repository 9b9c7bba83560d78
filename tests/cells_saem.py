"""SAEM, every way (see test_table.py)."""

import csv
import io
import json
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

import vpem_cli
from vpem import connect_workers, fit_em, fit_saem, make_graph, read_individuals
from vpem.errors import InputError
from vpem.files.data import read_dataset
from vpem.files.datasets import Dataset, write_dataset
from vpem.network.partition import evenly, from_worker_of_row
from vpem.saem.formats.individuals import chain
from vpem.saem.individuals import from_long, from_matrix
from vpem.saem.results import collect
from vpem.sums.connect import spread_workers

from .cells_support import first_of, lost_messages, over_members
from .resume_support import check_resumes
from .thread_engine import together

DATA = Path(__file__).resolve().parents[1] / "data" / "oxford_boys.csv"
BOYS = read_individuals(DATA)
THEO = read_individuals(DATA.with_name("theophylline.csv"))
NAMES = ("east", "north", "west")
TOP = np.array([149.372, 6.525, 62.790, 8.375, 2.712, 0.4355])
"""Maximum likelihood of the boys: intercept, slope, variances and covariance, residual variance."""

HELD = from_worker_of_row(np.arange(26) % 7 % 3, NAMES)
SHORT = {"n_iter": 8, "burn_in": 4, "n_conditional": 2, "n_importance": 10}
ENOUGH = {"n_iter": 100, "burn_in": 20, "tol": 0.0, "n_chains": 20}

MASKED = {"secure_sum": True}
COMPRESSED = {"codec": "qsgd:8bits"}
ABSENT = {"participation": 0.6}
FAILING = {"topology": "complete", "network": {"link_failure": 0.2, "stragglers": 0.1}}
FEW_ROUNDS = FAILING | {"network": FAILING["network"] | {"n_rounds": 6}}


def holed(values, seed):
    """A table that lacks a tenth of its values."""
    rng = np.random.default_rng(seed)
    there = rng.random(values.shape) < 0.9
    there[~there.any(axis=1)] = True
    rows, items = np.nonzero(there)
    return from_long(rows, items, values[there])


def tables():
    """Individuals that lack items, by model, and its options."""
    rng = np.random.default_rng(0)
    factors, groups = rng.normal(size=(200, 3)), np.repeat([0, 1], 3)
    items = factors[:, :1] + 0.8 * factors[:, 1 + groups] + 0.6 * rng.normal(size=(200, 6))
    mixed = rng.normal(size=(60, 2)) + 4 * (np.arange(60) % 2)[:, None]
    return {
        "bifactor": (holed(items, 1), {"model_options": {"groups": groups}}),
        "gmm": (holed(mixed, 2), {"model_options": {"n_components": 2}}),
    }


TABLES = tables()
DOSES = {
    "data": THEO.take(np.arange(7)), "held": evenly(7, 3, NAMES), "model": "one-compartment",
    "sampler": "mala",
}  # fmt: skip
TOPICS = {
    "data": from_long(np.repeat(np.arange(20), 6), np.tile(np.arange(6.0), 20),
                      np.random.default_rng(0).integers(1, 9, 120).astype(float)),
    "held": evenly(20, 3, NAMES), "model": "lda", "model_options": {"n_topics": 2, "n_words": 6},
}  # fmt: skip
MIXED = {
    "data": from_matrix(np.random.default_rng(5).normal(size=(30, 2)) ** 3),
    "held": evenly(30, 3, NAMES), "model": "gmm", "model_options": {"n_components": 2},
}  # fmt: skip


def fit(topology="star", network=None, engine=None, held=HELD, data=BOYS, **options):
    """Three devices, on the ranks of an engine or in one process."""
    joined = connect_workers(make_graph(topology, held.n_workers), **(network or {}))
    if engine is not None:
        joined = spread_workers(joined, engine)
        rows = [held.rows[device] for device in joined.total.holders.own]
        data = data.take(np.concatenate([np.empty(0, np.intp), *rows]))
    options = {"n_chains": 2, "tol": 0.0, **SHORT, **options}
    found = fit_saem(data, devices=held, network=joined, **options)
    return found if engine is None else collect(found, held, joined.total.holders)


def same(found, wanted, tolerance=1e-9):
    """Iteration by iteration, and all that is told at the end."""
    np.testing.assert_allclose(found.trace, wanted.trace, tolerance)
    for name in ("means", "covariances", "shrinkage"):
        ours, theirs = getattr(found.given, name), getattr(wanted.given, name)
        np.testing.assert_allclose(ours, theirs, tolerance, tolerance)
    assert found.names == wanted.names
    likelihoods = (found.log_likelihood.each, wanted.log_likelihood.each)
    np.testing.assert_allclose(*likelihoods, 10 * tolerance)
    assert abs(found.log_likelihood.value - wanted.log_likelihood.value) < 1e-6
    # Second differences of a log-density have half as many digits.
    np.testing.assert_allclose(found.standard_errors, wanted.standard_errors, 1e-6)


@cache
def plain():
    """A fit at a server, of enough iterations."""
    return fit(**ENOUGH)


def near(within=0.05, **how):
    """At the end, so far from the plain one at most, in standard errors."""
    found, wanted = fit(**ENOUGH | how), plain()
    assert (np.abs(found.theta - wanted.theta) < within * wanted.standard_errors).all()
    return found


def server(folder):
    """Averaged statistics are what one machine has; of one device nothing is sent."""
    alone = fit_saem(BOYS, devices=1, n_chains=2, tol=0.0, **SHORT)
    same(fit(), alone)
    assert alone.ledger.bytes == 0
    for how in (DOSES, TOPICS):
        options = {name: value for name, value in how.items() if name not in ("data", "held")}
        same(fit(**how), fit_saem(how["data"], n_chains=2, tol=0.0, **SHORT, **options), 1e-8)


def tree(folder):
    found = fit("path", {"sum": "tree"}, **ABSENT)
    same(found, fit(**ABSENT))
    assert found.network["sum"] == "tree"


def consensus(folder):
    found = fit("path", {"consensus_tol": 1e-12})
    same(found, fit(), 1e-8)
    assert 0 < found.network["disagreement"] < 1e-10
    same(fit("path", {"consensus": "rounds"}), fit("path", {"consensus": "operator"}))


def compressed(folder):
    few = near(**COMPRESSED)
    sent = [one.ledger.of_kind("server")["bytes"] for one in (few, plain())]
    assert sent[0] < 0.8 * sent[1]
    assert near(topology="path", network={"compress": "natural:12bits"}).network["compress"]


def absent(folder):
    near(0.3, **ABSENT)
    near(topology="path", **ABSENT)
    same(fit(participation=1 - 1e-12), fit())


def links(folder):
    found = near(**FAILING)
    assert lost_messages(found.ledger.of_kind("estep"), len(found.ledger.targets) // 2)


def batches(folder):
    same(fit(batch_size=26), fit())
    near(batch_size=4, n_iter=200, burn_in=40)


def missing(folder):
    """A line without a value says as much as no line, and tables lose what is not there."""
    there = np.random.default_rng(0).random(BOYS.n_rows) < 0.9
    ids = np.array(BOYS.names)[BOYS.individual_of]
    holes = from_long(ids, BOYS.times, np.where(there, BOYS.values, np.nan), missing=True)
    left = from_long(ids[there], BOYS.times[there], BOYS.values[there])
    same(fit(data=holes, missing="marginalize"), fit(data=left), 1e-12)
    data, options = TABLES["gmm"]
    many = {**ENOUGH, "n_importance": 10, "devices": 3, "missing": "marginalize"}
    found = fit_saem(data, "gmm", **many | options)
    held, star = evenly(60, 1), connect_workers(make_graph("star", 1))
    how = {"n_components": 2, "init": [0, 59], "missing": "marginalize"}
    em = fit_em(data.table(data.items()), held, star, **how)
    assert 0 <= em.history[-1].sum() - found.log_likelihood.value < 0.01


def weights(folder):
    """An individual that counts thrice is three of them."""
    once, thrice = fit(), fit(data=replace(BOYS, weights=np.full(26, 3.0)))
    np.testing.assert_allclose(thrice.trace, once.trace, 1e-9)
    np.testing.assert_allclose(thrice.information, 3 * once.information, 1e-3)
    assert abs(thrice.log_likelihood.value - 3 * once.log_likelihood.value) < 1e-6
    counts = 1.0 + np.arange(26) % 3
    found = fit(data=replace(BOYS, weights=counts), **ENOUGH)
    at_top(found, lambda theta: (counts * found.model.marginal(theta)).sum())
    copies = [replace(BOYS.take([one]), names=(f"{one}.{copy}",))
              for one, count in enumerate(counts) for copy in range(int(count))]  # fmt: skip
    several = fit_saem(chain(copies), devices=3, n_chains=20, **SHORT)
    assert several.model.counts == found.model.counts
    errors = fit(data=replace(BOYS, weights=counts), n_chains=20).standard_errors
    np.testing.assert_allclose(errors, several.standard_errors, 0.05)


def disk(folder):
    write_dataset(folder / "table.h5", Dataset(np.eye(26), tuple(map(str, range(26)))))
    fit_saem(read_dataset(folder / "table.h5", memory_limit=0).X, devices=HELD)


def at_top(found, likelihood):
    """No parameter alone gains anything worth its standard error."""
    assert np.isfinite(found.standard_errors).all()
    for one, step in zip(np.eye(len(found.theta)), 0.5 * found.standard_errors, strict=True):
        for sign in (-1, 1):
            assert likelihood(found.theta + sign * step * one) < likelihood(found.theta)


def checkpoint(folder):
    for options in (
        {**COMPRESSED, **ABSENT, "batch_size": 4},
        {"average": "models", **ABSENT, "sampler": "metropolis"},
        {"codec": "topk:0.5", "feedback": "error", "sampler": "mala"},
        {**DOSES, **FAILING, **ABSENT},
        {**TOPICS, "codec": "topk:0.3", **ABSENT, "batch_size": 4},
        {**TOPICS, "codec": "topk:0.3", "feedback": "error", "tol": 1e3, "window": 1},
        {**TOPICS, "average": "models"},
    ):
        check_resumes(lambda saver, options=options: fit(saver=saver, **options))


def masked(folder):
    """As without masks, whatever is averaged; along a tree, and going on, to the bit."""
    factors = TABLES["bifactor"][0]
    whole = factors.take(np.flatnonzero(factors.counts == 6))
    other = {"model": "bifactor", "data": whole, **TABLES["bifactor"][1]}
    other["held"] = evenly(whole.n_individuals, 3, NAMES)
    for how in ({"missing": "marginalize"}, {"average": "models"}, DOSES, other):
        found = fit(network=MASKED, **how)
        same(found, fit(**how), 1e-8)
    along = fit("path", MASKED | {"sum": "tree"}, **how)
    np.testing.assert_array_equal(along.trace, found.trace)
    check_resumes(lambda saver: fit(network=MASKED, saver=saver))
    for how, words in (
        (ABSENT, "totals over changing sets of workers"),
        (COMPRESSED, "and cannot be added"),
        ({**MIXED, "missing": "marginalize"}, "which items of a gmm"),
        ({"data": replace(BOYS, weights=np.ones(26))}, "weights of individuals show all"),
        ({**MIXED, "model_options": {"n_components": 2, "rows": [0, 1]}}, "rows to start"),
    ):
        with pytest.raises(InputError, match=words):
            fit(network=MASKED, **how)


def shell(*words):
    """The report of a command."""
    said = io.StringIO()
    with redirect_stdout(said):
        assert vpem_cli.run(["saem", *map(str, words), "--json", "--quiet", *FLAGS]) == 0
    return json.loads(said.getvalue())


FLAGS = (
    "--iterations", "8", "--burn-in", "4", "--tol", "0", "--chains", "2",
    "--conditional-draws", "4", "--importance-draws", "10",
)  # fmt: skip


def shared(folder):
    """A file of each party, and one of all, in which individuals are called as parties' are."""
    head, *lines = list(csv.reader(DATA.read_text().splitlines()))
    device = dict(zip(BOYS.names, (NAMES[one] for one in HELD.worker_of), strict=True))
    files, whole = [], [head]
    for name in NAMES:
        rows = [line for line in lines if device[line[0]] == name]
        whole += [[f"{name}/{line[0]}", *line[1:]] for line in rows]
        files.append(folder / f"{name}.csv")
        files[-1].write_text("\n".join(",".join(row) for row in [head, *rows]))
    pooled = folder / "pooled.csv"
    pooled.write_text("\n".join(",".join(row) for row in whole))
    holdings = folder / "devices.json"
    ids = dict.fromkeys(line[0] for line in whole[1:])
    holdings.write_text(json.dumps({
        name: [one for one in ids if one.startswith(f"{name}/")] for name in NAMES
    }))  # fmt: skip
    return files, (pooled, "--device-individuals", holdings)


def parties(folder):
    files, pooled = shared(folder)
    found, wanted = shell(*files, "--parties"), shell(*pooled)
    assert found["device_names"] == list(NAMES)
    for name in ("estimates", "standard_errors", "traces", "individuals", "device_individuals"):
        assert found[name] == wanted[name]


OVER_RANKS = {
    "server": {},
    "tree": {"topology": "path", "network": {"sum": "tree"}},
    "consensus": {"topology": "path", "network": {"n_rounds": 6}},
    "compressed": COMPRESSED,
    "feedback": {"codec": "qsgd:4bits", "feedback": "error"},
    "absent": ABSENT,
    "models": {"average": "models", **ABSENT},
    "batches": {"batch_size": 3},
    "masked": {"network": MASKED},
    "masked, gmm": {"network": MASKED, **MIXED},
    "masked tree, langevin": {
        **DOSES,
        "topology": "path",
        "network": MASKED | {"sum": "tree"},
        "sampler": "langevin",
    },
    "doses on a graph that fails": DOSES | FEW_ROUNDS,
    "topics, masked": TOPICS | {"network": MASKED},
    "topics, compressed": {**TOPICS, "codec": "topk:0.3", **ABSENT},
    "sampler": {"sampler": "metropolis"},
    "rounds compressed": {"topology": "path", "network": {"compress": "natural:12bits"}},
    "links": FEW_ROUNDS,
    "weights": {"data": replace(BOYS, weights=1.0 + np.arange(26) % 3)},
    **{
        f"missing, {model}": {
            "model": model,
            "data": data,
            "missing": "marginalize",
            "held": evenly(data.n_individuals, 3, NAMES),
            **options,
        }
        for model, (data, options) in TABLES.items()
    },
}
"""What is compared with one process, by name."""


def mpi(folder):
    compare_over(partial(together, 2), OVER_RANKS)


def tls(folder):
    few = ("feedback", "weights", "missing, gmm", "links", "masked tree, langevin")
    ways = {way: OVER_RANKS[way] for way in few}
    compare_over(partial(over_members, 3), ways, resumes=False)


def compare_over(run, ways, resumes=True):
    """Compare fits in several processes with one process."""
    few = {"n_iter": 3, "burn_in": 2}
    runs = [few | how for how in ways.values()]

    def everything(engine):
        found = [fit(engine=engine, **how) for how in runs]
        if resumes:
            found.append(check_resumes(lambda saver: fit(engine=engine, saver=saver, **few)))
        return found

    wanted = [fit(**how) for how in (*runs, *[few] * resumes)]
    found = first_of(run(everything))
    for ours, theirs in zip(found, wanted, strict=True):
        if len(ours.names) == len(theirs.names):
            same(ours, theirs)
        assert ours.ledger.summary() == theirs.ledger.summary()
        if ours.network and ours.network.get("secure_sum"):
            np.testing.assert_array_equal(ours.trace, theirs.trace)


TRIED = (
    server, tree, consensus, compressed, absent, links, batches, missing, disk, weights, checkpoint,
    masked, parties, mpi, tls,
)  # fmt: skip
CELLS = {way.__name__: way for way in TRIED}
