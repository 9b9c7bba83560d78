"""Policies of parties: what they refuse, in whose words, and what a policy may say."""

import tomllib
from pathlib import Path

import numpy as np
import pytest

from vpem.errors import InputError
from vpem.files.studies.policy import (
    EXAMPLE,
    RULES,
    Case,
    ESteps,
    Policy,
    PolicyError,
    policy_beside,
    read_policy,
)
from vpem.fits.rows import fit_em
from vpem.fits.spread import fit_spread
from vpem.network.graph import make_graph
from vpem.network.masks import Masks
from vpem.network.partition import contiguous, evenly
from vpem.sums.connect import connect, connect_workers, spread, spread_workers

from . import test_masked_crossings
from .cli_support import done
from .study_support import make_study
from .tables import each, over
from .test_masked_crossings import FITS
from .thread_engine import together

ASKED = {"hops": 0, "align": None, "topology": None, "graph": None, "split": "features"}


def policy_of(tmp_path, text):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return read_policy(path)


def check(policy, command="fit", n_parties=3, result="all", if_lost="wait", **asked):
    known = ("n_components", "models", "epsilons")
    facts = {name: asked.pop(name) for name in known if name in asked}
    options = {name: value for name, value in (ASKED | asked).items() if name != "split" or value}
    policy.check(Case(command, options, n_parties, result, if_lost, **facts))


REFUSED = [
    ("largest-hops = 1", {"hops": 2}, "allows at most 1 hop", "hops=2"),
    ("fewest-parties = 4", {}, "requires at least 4 parties", "the study has 3 with data"),
    ("commands = ['fit', 'score']", {"command": "saem"}, "allows only the command fit or score",
     "'vpem saem'"),
    ("align = ['psi']", {}, "allows only the alignment psi", "align='none'"),
    ("align = ['psi', 'hmac']", {"align": "ids"}, "allows only the alignment psi or hmac",
     "align='ids'"),
    ("topologies = ['star']", {"topology": "cycle"}, "allows only the topology star",
     "topology='cycle'"),
    ("topologies = ['star']", {"graph": "g.txt"}, "allows only the topology star",
     "graph='g.txt'"),
    ("results = ['shards']", {}, "allows only the result shards", "the study says 'all'"),
    ("masked-sums = true", {}, "requires masked sums", "'vpem fit' runs without secure_sum=True"),
    ("if-lost = ['wait']", {"if_lost": "without"}, "allows only if-lost = 'wait'",
     "the study says 'without'"),
    ("most-components = 3", {"n_components": 4}, "allows at most 3 components",
     "'vpem fit' has 4"),
    ("smallest-batch = 50", {"batch_size": 49}, "requires batches of 50 rows", "batch_size=49"),
    (f"models = ['{'a' * 64}']", {"models": {"m.h5": "b" * 64}}, "does not allow this model",
     f"m.h5, whose SHA-256 is {'b' * 64}"),
    ("largest-epsilon = 2", {"epsilons": {"worker": 2.1, "outsider": 1.5}},
     "requires differential privacy with epsilon 2 or less against another party", "is 2.1"),
    ("largest-epsilon = 2\nepsilon-against = 'outsider'", {}, "requires differential privacy with "
     "epsilon 2 or less against an outsider", "'vpem fit' runs without the noise that epsilon"),
    ("largest-epsilon = 2", {"epsilons": {"outsider": 1.0}}, "requires differential privacy with "
     "epsilon 2 or less against another party",
     "from whom the noise of this run does not protect"),
]  # fmt: skip


@each(("text", "asked", "rule", "found"), REFUSED)
def test_what_is_refused_is_told_in_full_here_and_by_name_elsewhere(
    tmp_path, text, asked, rule, found
):
    policy = policy_of(tmp_path, text)
    with pytest.raises(PolicyError) as refused:
        check(policy, **asked)
    told = str(refused.value)
    assert told.startswith(f"{tmp_path}/policy.toml {rule}, ")
    assert found in told
    assert refused.value.elsewhere("lab") == f"lab's policy {rule}; ask there"


ALLOWED = [
    ("# nothing", {"hops": 9, "command": "saem"}),
    ("largest-hops = 1", {"hops": 1}),
    ("largest-hops = 0", {"hops": None}),
    ("largest-hops = 0\nalign = ['psi']", {"split": "rows", "hops": 1}),
    ("fewest-parties = 3\ncommands = ['fit']", {}),
    ("align = ['none']\ntopologies = ['star', 'path']", {"topology": "path"}),
    ("results = ['shards']", {"result": "shards"}),
    ("largest-hops = 0\nalign = ['psi']", {"command": "kmeans", "split": None}),
    ("masked-sums = false", {}),
    ("masked-sums = true", {"secure_sum": True}),
    ("if-lost = ['wait', 'without']", {"if_lost": "without"}),
    ("most-components = 3\nsmallest-batch = 50", {"n_components": 3, "batch_size": 50}),
    ("smallest-batch = 50", {"batch_size": None}),
    (f"models = ['{'A' * 64}', '{'b' * 64}']", {"models": {"m.h5": "a" * 64, "c.h5": "b" * 64}}),
    ("largest-epsilon = 2", {"epsilons": {"worker": 2.0000001}}),
    ("largest-epsilon = 2\nepsilon-against = 'outsider'", {"epsilons": {"outsider": 2.0}}),
]


@each(("text", "asked"), ALLOWED)
def test_what_is_allowed(tmp_path, text, asked):
    check(policy_of(tmp_path, text), **asked)


def test_rows_are_looked_at_once_they_are_known(tmp_path):
    policy = policy_of(tmp_path, "fewest-rows = 100")
    policy.check_rows(100)
    with pytest.raises(PolicyError, match="requires at least 100 rows, but the parties have 99 "):
        policy.check_rows(99)
    policy = policy_of(tmp_path, "fewest-rows-per-component = 10")
    policy.check_rows(30, 3)
    with pytest.raises(PolicyError, match="10 rows for each component, but the parties have 29 "):
        policy.check_rows(29, 3)


def test_runs_before_count(tmp_path):
    policy = policy_of(tmp_path, "most-runs = 2\nin-days = 7\nmost-epsilon-in-all = 6")
    policy.check_runs(1)
    with pytest.raises(PolicyError, match="allows at most 2 runs in 7 days, and there were 2"):
        policy.check_runs(2)
    policy.check_spent("fit", "lab.csv", 6.0)
    for epsilon, told in (
        (6.1, "lab.csv would have disclosed 6.1"),
        (np.inf, "would disclose sums of lab.csv without noise"),
    ):
        with pytest.raises(PolicyError, match=f"allows at most epsilon 6 of a data file.*{told}"):
            policy.check_spent("fit", "lab.csv", epsilon)


def test_esteps_are_counted_as_sums_begin(tmp_path):
    policy = policy_of(tmp_path, "most-esteps = 2")
    steps = ESteps(policy, n_rows=10)
    for kind, rows in (("setup", 5), ("setup", 1), ("estep", 5), ("estep", 1), ("estep", 10)):
        steps.begin(kind, rows)
    assert steps.taken == 2
    with pytest.raises(PolicyError, match="allows at most 2 E-steps in a run, which have been"):
        steps.begin("check", 10)
    assert steps.taken == 2  # nothing more was shown
    over_rows = ESteps(policy, n_rows=1)
    for kind, rows in (("setup", 1), ("setup", 0), ("check", 1)):
        over_rows.begin(kind, rows)
    for kind in ("setup", "estep", "sum"):
        with pytest.raises(PolicyError):
            over_rows.begin(kind, 1)
    free = ESteps(Policy(tmp_path), 10)
    for _ in range(1000):
        free.begin("estep", 10)


@each(
    ("text", "told"),
    [
        ("largest-hop = 1", "has no rule 'largest-hop' (did you mean 'largest-hops'?)"),
        ("largest_hops = 1", "has no rule 'largest_hops' (did you mean 'largest-hops'?)"),
        ("largest-hops = -1", "largest-hops must be a whole number of at least 0, got -1"),
        ("fewest-rows = 0", "fewest-rows must be a whole number of at least 1, got 0"),
        ("commands = 'fit'", "commands must be a list of fit, select, "),
        ("commands = ['fitt']", "commands may have fit, select, "),
        ("align = [1]", "align may have none, ids, hmac, psi, got 1"),
        ("results = ['shard']", "got 'shard' (did you mean 'shards'?)"),
        ("masked-sums = 'yes'", "masked-sums must be true or false, got 'yes'"),
        ("[fit]\nhops = 1", "has no rule 'fit'"),
        ("most-component = 1", "(did you mean 'most-components'?)"),
        ("largest-epsilon = 0", "largest-epsilon must be a number above 0, got 0"),
        ("most-epsilon-in-all = inf", "must be a number above 0, got inf"),
        ("epsilon-against = 'server'", "must be worker or outsider, got 'server'"),
        ("models = ['abc']", "must be a list of SHA-256 in 64 hexadecimal digits"),
        ("in-days = 0", "must be a whole number of at least 1 and at most 36500, got 0"),
    ],
)
def test_a_policy_is_read_strictly(tmp_path, text, told):
    with pytest.raises(InputError) as refused:
        policy_of(tmp_path, text)
    assert told in str(refused.value)


def test_the_example_is_a_policy_and_has_every_rule(tmp_path):
    policy = policy_of(tmp_path, EXAMPLE)
    assert (policy.largest_hops, policy.most_esteps, policy.commands) == (0, 500, None)
    every = "\n".join(line.removeprefix("# ") for line in EXAMPLE.splitlines() if "=" in line)
    assert set(tomllib.loads(every)) == set(RULES)
    policy_of(tmp_path, every)
    assert policy_beside(tmp_path / "heart.toml").path == tmp_path / "policy.toml"
    (tmp_path / "policy.toml").unlink()
    assert policy_beside(tmp_path / "heart.toml") is None
    (tmp_path / "policy.toml").symlink_to("nowhere")  # no rules must not be for want of a file
    with pytest.raises(OSError, match=r"policy.toml"):
        policy_beside(tmp_path / "heart.toml")


FITTED = [
    ("star", {}, {}),
    ("cycle", {}, {}),
    ("path", {"sum": "tree"}, {}),
    ("star", {"compress": "qsgd:8bits"}, {}),
    ("cycle", {"compress": "qsgd:8bits"}, {}),
    ("path", {"sum": "tree", "compress": "qsgd:8bits"}, {}),
    ("cycle", {"agent_dropout": 0.1}, {}),
    ("star", {}, {"batch_size": 20}),
]


@each(("topology", "how", "more"), FITTED)
def test_every_sum_over_features_is_watched(tmp_path, topology, how, more):
    X, partition = np.random.default_rng(0).normal(size=(60, 4)), contiguous(4, 2)
    network = connect(make_graph(topology, 2), partition, **how)
    policy = Policy(tmp_path, most_esteps=6)

    def work(engine):
        steps = ESteps(policy, len(X))
        engine.watch = steps.begin
        part = X[:, partition.features[engine.rank]]
        start = {"n_components": 2, "init": [0, 1], "tol": 0.0, **more}
        fit_spread(part, spread(network, engine), max_iter=5, **start)
        with pytest.raises(PolicyError, match="at most 6 E-steps in a run, which have been taken"):
            fit_spread(part, spread(network, engine), max_iter=1, **start)
        return steps.taken

    assert together(2, work) == [6, 6]


@each("topology", ["star", "cycle"])
def test_every_sum_over_rows_is_watched(tmp_path, topology):
    X, workers = np.random.default_rng(0).normal(size=(60, 2)), evenly(60, 2)
    network = connect_workers(make_graph(topology, 2))
    begun = [[], []]

    def work(engine):
        engine.watch = lambda kind, n_rows: begun[engine.rank].append((kind, n_rows))
        own = spread_workers(network, engine)
        part, start = X[30 * engine.rank :][:30], {"n_components": 2, "init": [0, 1]}
        fit_em(part, workers, own, max_iter=5, tol=0.0, **start)

    assert together(2, work) == [None, None]
    assert begun[0] == begun[1]
    assert begun[0].count(("estep", 1)) + begun[0].count(("check", 1)) == 6


TRAVELLING = [
    "rows in batches", "rows along a tree", "rows collapsed", "k-means of rows in batches",
    "search of rows", "VR-FedEM", "imputation", "mixture imputation of rows", "SAEM",
]  # fmt: skip
PLAIN = ["rows in batches", "k-means of rows in batches"]


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
@over(fit=[*((name, True) for name in TRAVELLING), *((name, False) for name in PLAIN)])
def test_over_rows_all_sums_in_which_data_travel_are_counted_once(fit, monkeypatch):
    name, masked = fit
    how = dict(FITS[name])
    work, data, travelled = how.pop("work"), how.pop("data"), [0, 0, 0]
    if masked:  # a sum has a tag, and what is agreed on by yes and no has none

        def noting(hide):
            def hidden(masks, values, **more):
                travelled[masks.here[0]] += more.get("tag") is not None
                return hide(masks, values, **more)

            return hidden

        monkeypatch.setattr(Masks, "hide", noting(Masks.hide))
    else:
        open_ = lambda graph, secure_sum, **more: connect_workers(graph, **more)  # noqa: E731
        monkeypatch.setattr(test_masked_crossings, "connect_workers", open_)

    def fitted(engine):
        steps = ESteps(Policy(Path()), 1)
        engine.watch = steps.begin
        if not masked:
            monkeypatch.setattr(engine, "iallreduce", counted(engine.iallreduce, engine.rank))
        work(engine, data, **how)
        return steps.taken

    def counted(add, rank):
        def adding(values, op="sum", **how):
            travelled[rank] += op == "sum" and values.dtype.kind == "f"
            return add(values, op, **how)

        return adding

    assert together(3, fitted) == travelled
    assert travelled[0] > 10


# ---- as commands say it, and as others hear it ---------------------------------------------------


def test_a_study_and_a_request_say_what_the_policy_refuses(capsys, tmp_path, monkeypatch):
    folder = make_study(tmp_path, "lab", "clinic", options={"fit": {"hops": 1, "align": "ids"}})
    monkeypatch.chdir(folder["lab"].folder)
    policy = "largest-hops = 0\nalign = ['psi']\nfewest-parties = 3\n"
    (folder["lab"].folder / "policy.toml").write_text(policy)
    hops = "policy.toml allows at most 0 hops, but got --hops 1; this member will refuse 'vpem fit'"
    align = "policy.toml allows only the alignment psi, but got --align ids; this member will"
    few = "policy.toml requires at least 3 parties, but the study has 2 with data; this member"
    for words, count in (("study show heart.toml", 3), ("party request heart.toml", 2)):
        told = done(capsys, *words.split()).err
        lines = [line for line in told.splitlines() if line.startswith("vpem: warning: policy")]
        assert len(lines) == count
        assert hops in told
        assert align in told
        assert (few in told) == (count == 3)
