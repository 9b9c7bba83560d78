"""Logs of a party: its messages, whole lines only; and what runs have disclosed of its data."""

import hashlib
import json
import os
import re
import stat
from contextlib import closing
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from vpem.errors import FileError, InputError
from vpem.files.models import read_model
from vpem.files.studies.logs import (
    COUNTS,
    MessageLog,
    Ran,
    Spent,
    log_beside,
    messages,
    read_log,
)
from vpem.files.studies.signed import now
from vpem.fits.guard import Guard, epsilon_in_all
from vpem.fits.privacy import Budget, spent
from vpem.fits.spread import fit_spread
from vpem.network.graph import make_graph
from vpem.network.partition import contiguous
from vpem.sums.connect import connect, spread

from .cli_support import done
from .company_support import make_company
from .study_support import make_study
from .tables import each
from .test_writing import room_for
from .thread_engine import over_queues, together
from .tls_support import a_study, at_once, posts


def message(payload=b"1234", sent=True, peer="hub", topic="estep", time=1.5):
    digest = hashlib.sha256(payload).hexdigest()
    return SimpleNamespace(
        time=time, sent=sent, peer=peer, topic=topic, size=len(payload), digest=digest
    )


MESSAGE = {
    "time": "2026-01-01T00:00:00Z", "way": "sent", "peer": "hub", "kind": "estep", "bytes": 4,
    "hmac": 64 * "0",
}  # fmt: skip


@pytest.fixture
def path(tmp_path):
    return log_beside(tmp_path / "heart.toml", "lab")


def counts(found, kind, peer):
    """What was sent and received of a kind, to and from a peer."""
    (row,) = (row for row in found["totals"] if (row["kind"], row["peer"]) == (kind, peer))
    return tuple(row[name] for name in COUNTS)


def test_messages_are_noted_and_summed_up(path):
    assert path.name == "lab-heart.log"
    with closing(MessageLog(path, command="fit", edition=3)) as log:
        log.record_message(message(b"a" * 10))
        log.record_message(message(b"b" * 20, sent=False))
        log.record_message(message(b"c", topic="setup", peer="bank \x1b[31m"))
        assert log.size == path.stat().st_size  # at once, not at the end
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    line = json.loads(path.read_text().splitlines()[1])
    assert line == {
        "time": "1970-01-01T00:00:01.500000Z", "way": "sent", "peer": "hub", "kind": "estep",
        "bytes": 10, "hmac": hashlib.sha256(b"a" * 10).hexdigest(),
    }  # fmt: skip
    with closing(MessageLog(path, command="predict")) as log:  # is added to
        log.record_message(message(time=2.0))
    found = read_log([path])
    assert [run["command"] for run in found["runs"]] == ["fit", "predict"]
    assert counts(found, "estep", "hub") == (2, 1, 14, 20)
    assert (found["first"], found["last"]) == (line["time"], "1970-01-01T00:00:02.000000Z")
    last = read_log([path], last_run=True)
    assert (len(last["runs"]), len(last["totals"])) == (1, 1)
    assert counts(last, "estep", "hub") == (1, 0, 4, 0)
    assert [one["bytes"] for one in messages([path])] == [10, 20, 1, 4]


def test_a_long_log_is_set_aside(path, monkeypatch):
    monkeypatch.setattr("vpem.files.studies.logs.LARGEST", 450)
    path.with_name("lab-heart.1.log").write_text("another's")
    with closing(MessageLog(path)) as log:
        for size in range(5):
            log.record_message(message(b"x" * size))
    names = ["lab-heart.2.log", "lab-heart.3.log", "lab-heart.log"]
    files = [path.with_name(name) for name in names]
    assert all(file.stat().st_size <= 450 for file in files)
    found = read_log(files)
    assert (len(found["runs"]), counts(found, "estep", "hub")) == (1, (5, 0, 10, 0))
    assert path.with_name("lab-heart.1.log").read_text() == "another's"


def test_a_full_disk_leaves_whole_lines_and_a_sentence(path):
    with closing(MessageLog(path)) as log:
        log.record_message(message())
        with (
            room_for(log.size + 50),
            pytest.raises(FileError, match=r"noted in .*lab-heart.log: .*--log"),
        ):
            log.record_message(message(b"lost"))
        log.record_message(message(b"farewell"))  # nothing follows a gap
        assert log.n_messages == 1
    assert [one["bytes"] for one in messages([path])] == [4]
    with closing(MessageLog(path)) as log, room_for(log.size):
        pass
    with room_for(path.stat().st_size), pytest.raises(FileError, match="noted"):
        MessageLog(path)


NO_LOGS = [
    "x = 1\n", '{"time":"2026-01-01T00:00:00Z"}\n', "[" * 3000 + "\n",
    '{"time":"2026-01-01","run":{"id":"0123456789abcdef"}}\n',
    '{"time":"2026-01-01T00:00:00Z","run":{"id":"0123456789abcdef"}}',
]  # fmt: skip
LINE = '{"time":"2026-01-01T00:00:00Z","run":{"id":"0123456789abcdef"}}\n'
WRONG = [("way", "lost"), ("bytes", -1), ("hmac", "00"), ("time", "noon")]


@each("content", [*NO_LOGS, *(f"{LINE}{json.dumps(MESSAGE | dict([one]))}\n" for one in WRONG)])
def test_what_is_no_log_is_refused_and_a_damaged_line_is_named(path, content):
    """That no field can be of another type, `tests/test_saved.py` tells of all."""
    path.write_text(content)
    line = content.count("\n", 0, -1) + 1
    with pytest.raises(FileError, match=f"no log of messages, or is damaged in line {line}"):
        read_log([path])


def test_nothing_is_added_to_what_is_no_log(path):
    path.write_text("name,value\n")
    with pytest.raises(FileError, match="no log of messages, and nothing is added"):
        MessageLog(path)
    assert path.read_text() == "name,value\n"
    path.unlink()
    path.mkdir()
    with pytest.raises(FileError, match="cannot be written"):
        MessageLog(path)


def test_a_line_that_was_cut_short_is_told(path):
    with closing(MessageLog(path)) as log:
        log.record_message(message())
        log.record_message(message(b"cut"))
    path.write_bytes(path.read_bytes()[:-9])  # the machine went down
    assert (read_log([path])["cut"], counts(read_log([path]), "estep", "hub")[0]) == (1, 1)
    with closing(MessageLog(path)) as log:
        log.record_message(message())
    assert (read_log([path])["cut"], counts(read_log([path]), "estep", "hub")[0]) == (1, 2)


def test_both_ends_note_the_same(tmp_path):
    roster, identities, sockets = a_study(tmp_path, ("hub", "lab"))
    logs = [MessageLog(log_beside(tmp_path / name / "heart.toml", name)) for name in identities]
    with posts(roster, identities, sockets) as (hub, lab):
        hub._note, lab._note = (log.record_message for log in logs)

        def one():
            for tag, size in enumerate((0, 10, 3_000_000)):
                lab.put(0, tag, b"x" * size, "estep")
            return lab.receive(0, 9)

        def other():
            for tag in range(3):
                hub.receive(1, tag)
            hub.put(1, 9, b"all", "server")

        assert bytes(at_once([one, other])[0]) == b"all"
    for log in logs:
        log.close()
    here, there = (list(messages([log.path])) for log in logs)
    sizes = [("estep", 0), ("estep", 10), ("estep", 3_000_000), ("server", 3)]
    assert [(one["kind"], one["bytes"]) for one in here] == sizes
    for one, other in zip(here, there, strict=True):
        assert [one[key] for key in ("kind", "bytes", "hmac")] == [
            other[key] for key in ("kind", "bytes", "hmac")
        ]
        assert one["way"] != other["way"]
        assert (one["peer"], other["peer"]) == ("lab", "hub")


@pytest.mark.parametrize(
    ("topology", "how", "more", "kinds"),
    [
        ("star", {}, {"dtype": "float32"}, ("server", "setup")),
        ("path", {"sum": "tree"}, {}, ("estep", "setup")),
    ],
)
def test_what_sums_send_is_what_the_ledger_counts(topology, how, more, kinds):
    X, partition = np.random.default_rng(0).normal(size=(60, 6)), contiguous(6, 3)
    network = connect(make_graph(topology, 3), partition, **how)
    first = int(topology == "star")

    def work(engine):
        part = X[:, partition.features[engine.rank - first]] if engine.rank >= first else None
        found = fit_spread(
            part, spread(network, engine), n_components=2, init="k-means++", max_iter=4, tol=0.0,
            **more,
        )  # fmt: skip
        return found.communication["by_kind"], engine._post.sent

    parts = together(first + 3, work, over_queues, seats=tuple(range(first, first + 3)))
    for kind in kinds:
        sent = [size for _, messages in parts for _, topic, size in messages if topic == kind]
        assert sum(sent) == parts[0][0][kind]["bytes"] > 0
    topics = {topic for _, messages in parts for _, topic, _ in messages}
    assert topics <= {*kinds, "agreement", "result"}


# ---- what was spent ---------------------------------------------------------------------------

PARTIES = ("clinic", "lab", "ward")
PRIVATE = {
    "split": "rows", "components": 2, "epsilon": 8.0, "delta": 1e-4, "bounds": "-8,8",
    "max-iter": 2, "covariance": "spherical",
}  # fmt: skip


def ran(number=0, data=("lab.csv", "a"), **more):
    """A run of a member; ``data`` are the path and a digit of the digest."""
    about = {"study": "0" * 32, "edition": 1, "command": "fit", "parties": 3, "masked": False}
    read = {data[0]: 64 * data[1]}
    return Ran(**(about | {"run": f"{number:016x}", "time": now(), "data": read} | more))


def private(number, epsilon=4.0, delta=1e-6, protects="all", **more):
    multiplier = Budget(epsilon, delta).multiplier
    noise = {"epsilon": epsilon, "delta": delta, "multiplier": multiplier}
    return ran(number, noise=noise, protects=protects, **more)


def test_what_begins_and_ends_is_kept_and_who_was_interrupted_has_spent(tmp_path):
    ledger = Spent(tmp_path)
    assert ledger.runs() == []
    runs = [ran(0), private(1), ran(2), private(3)]
    for one in runs:
        ledger.begin(one, lambda: None)
    ledger.end(runs[0], 17)
    ledger.end(runs[2], 0)  # nothing was sent
    kept = ledger.runs()
    assert [one.run for one in kept] == [runs[0].run, runs[1].run, runs[3].run]
    assert [one.sums for one in kept] == [17, None, None]
    assert kept[1] == runs[1]
    assert stat.S_IMODE(os.stat(ledger.path).st_mode) == 0o600


def test_what_a_check_refuses_is_not_noted(tmp_path):
    ledger = Spent(tmp_path)

    def refuse():
        raise FileError("no more")

    with pytest.raises(FileError, match="no more"):
        ledger.begin(ran(), refuse)
    assert ledger.runs() == []


def test_data_are_told_apart_by_content_under_a_key_of_ones_own(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    file = tmp_path / "lab.csv"
    file.write_text("x\n1\n")
    ledger, other = Spent(tmp_path / "one"), Spent(tmp_path / "other")
    (digest,) = ledger.digests([file]).values()
    assert ledger.digests([file]) == {str(file): digest}
    assert {*other.digests([file]).values()}.isdisjoint({digest})
    key = tmp_path / "one" / "data.spent.key"
    assert stat.S_IMODE(os.stat(key).st_mode) == 0o600
    key.write_bytes(b"short")
    with pytest.raises(FileError, match=r"data.spent.key is damaged"):
        ledger.digests([file])


def test_files_of_one_path_or_one_content_are_the_same():
    lab = ran(0, ("lab.csv", "a"))
    for names, same in (({"lab.csv"}, True), ({"copy.csv", 64 * "a"}, True), ({"x.csv"}, False)):
        assert lab.has_read(names) == same


DAMAGED = [
    lambda lines: lines[0][:-9],
    lambda lines: lines[0] + lines[0],
    lambda lines: lines[0] + lines[1].replace("0000000000000000", "0000000000000009"),
    lambda lines: lines[0].replace('"edition":1', '"edition":-1'),
    lambda lines: lines[0].replace('"edition":1', '"edition":1,"more":1'),
    lambda lines: lines[0].replace('"noise":null', '"noise":{"epsilon":4.0}'),
    lambda lines: lines[0].replace('"noise":null', '"noise":{}'),
    lambda lines: lines[0].replace("aaaa", "zzzz"),
    lambda lines: lines[0] + lines[1].replace('"sums":3', '"sums":-1'),
    lambda lines: lines[0].replace('"fit"', '"\\u001b[31m"'),
    lambda lines: "[" * 100000 + "\n",
    lambda lines: "\x00\n",
    lambda lines: "7\n",
]


@each("damage", DAMAGED)
def test_a_damaged_line_is_one_sentence(tmp_path, damage):
    ledger = Spent(tmp_path)
    ledger.path.unlink(missing_ok=True)
    ledger.begin(ran(), lambda: None)
    ledger.end(ran(), 3)
    lines = ledger.path.read_text().splitlines(keepends=True)
    ledger.path.write_text(damage(lines))
    with pytest.raises(FileError, match=r"data.spent is damaged in line [12], so that what was"):
        ledger.runs()


def test_runs_compose_as_one_gaussian_release_does():
    runs = [private(0), private(1), private(2, 1.0, 1e-7)]
    exact = spent([one.noise["multiplier"] for one in runs], 1e-6)
    assert exact <= epsilon_in_all(runs, "worker") <= 1.002 * exact
    assert 5.5 < epsilon_in_all(runs[:2], "worker") < 6.2  # less than the sum
    assert epsilon_in_all(runs[:1], "worker") == 4.0
    released = private(3, protects="outsiders")
    assert np.isinf(epsilon_in_all([released], "worker"))
    assert epsilon_in_all([released], "outsider") == 4.0
    assert np.isinf(epsilon_in_all([*runs, ran(4)], "outsider"))
    assert epsilon_in_all([], "worker") == 0.0


OWN = {name: ["own.csv", "--quiet"] for name in ("clinic", "lab")}


@pytest.fixture(scope="module")
def company(tmp_path_factory):
    rng = np.random.default_rng(0)
    made = make_company(
        tmp_path_factory.mktemp("company"), [*OWN],
        {"fit": PRIVATE, "kmeans": {"clusters": 2}}, server="hub",
    )  # fmt: skip
    for name in OWN:
        rows = rng.normal(size=(700, 2)) + 6 * rng.integers(2, size=(700, 1)) - 3
        np.savetxt(made.folders[name] / "own.csv", rows, "%.4f", ",", header="one,two", comments="")
    return made


def told(capsys, folder, *words):
    return json.loads(done(capsys, "party", "budget", folder, "--json", *words).out)["data"]


def test_runs_are_noted_and_refused_when_nothing_is_left(company, capsys):
    lab = company.folders["lab"]
    model = company.folders["lab"] / "model.h5"
    own = OWN | {"lab": ["own.csv", "-o", "model.h5"], "hub": ["--quiet"]}
    assert {one.code for one in company.run("fit", own=own).values()} == {0}
    (one,) = told(capsys, lab)
    assert one["file"] == str(lab / "own.csv")
    assert one["epsilon"] == {"outsider": 8.0, "worker": 8.0}
    assert (one["runs"], one["without_noise"], one["not_ended"]) == ({"fit": 1}, 0, 0)
    assert one["sums"] == len(read_model(model).report["privacy"]["noise_multipliers"])
    assert not (company.folders["hub"] / "data.spent").exists()  # it has no data

    policy = lab / "policy.toml"
    policy.write_text("most-epsilon-in-all = 11\n")
    found = company.run("fit", own=OWN)
    assert {found["lab"].code, found["hub"].code} == {2}
    rule = "allows at most epsilon 11 of a data file in all its runs"
    assert found["lab"].sentence.startswith(
        f"policy.toml {rule}, but with this 'vpem fit' own.csv would have disclosed 12."
    )
    assert found["hub"].sentence == f"lab ended: lab's policy {rule}; ask there"
    (one,) = told(capsys, lab, "--data", lab / "own.csv")
    assert one["runs"] == {"fit": 1}  # what did not begin has told nothing
    assert 4 < one["left"] < 7
    policy.unlink()
    assert {one.code for one in company.run("kmeans", own=OWN).values()} == {0}
    (one,) = told(capsys, lab)
    assert (one["with_noise"], one["without_noise"]) == (1, 1)
    shown = done(capsys, "party", "budget", lab / "heart.toml").out
    assert "1 run, together epsilon 8, delta 0.0001, against all" in shown
    assert "1 run: no epsilon bounds what was disclosed" in shown


GUARDED = [
    ("", {}, None),
    ("", {"repeatable_noise": 0}, "repeatable_noise is for tests on one machine: in a study all"),
    ("most-runs = 1", {}, "allows at most 1 runs in 30 days, and there were 1"),
    ("most-runs = 1\nin-days = 1", {"days": 2}, None),
    ("most-epsilon-in-all = 6", {"epsilon": 4.0}, None),
    ("most-epsilon-in-all = 6", {"epsilon": 4.1}, "own.csv would have disclosed 6.01"),
    ("most-epsilon-in-all = 6", {"epsilon": 4.1, "other": True}, None),
    ("most-epsilon-in-all = 6", {"release_epsilon": 1.0}, "would disclose sums of own.csv"),
    ("most-epsilon-in-all = 6\nepsilon-against = 'outsider'", {"release_epsilon": 1.0}, None),
    ("most-epsilon-in-all = 6", {"delta": None}, "would disclose sums"),
    ("largest-epsilon = 4", {"epsilon": 4.0}, None),
    ("largest-epsilon = 4", {"epsilon": 4.1, "secure_sum": True}, "but that of this run is 4.1"),
    ("largest-epsilon = 4\nepsilon-against = 'outsider'",
     {"epsilon": 4.1, "secure_sum": True}, None),
    ("most-components = 5", {"n_components": "2-5"}, None),
    ("most-components = 5", {"n_components": "2-6"}, "at most 5 components, but 'vpem fit' has 6"),
    ("most-components = 5", {"n_clusters": 6}, "at most 5 components, but 'vpem fit' has 6"),
    ("most-components = 2", {"model": 3}, "at most 2 components, but 'vpem fit' has 3"),
    ("most-components = 3", {"model": 3}, None),
    ("most-components = 2", {"init_model": 3}, "at most 2 components, but 'vpem fit' has 3"),
    ("models = ['{0}']", {"model": 3}, None),
    (f"models = ['{'0' * 64}']", {"init_model": 3}, "does not allow this model, "),
    (f"models = ['{'0' * 64}']", {"init_model": 3}, "whose SHA-256 is {0}"),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "asked", "refused"), GUARDED)
def test_what_a_guard_refuses_before_any_work(tmp_path, policy, asked, refused):
    """After a private run with epsilon 4 of the same data."""
    made = make_study(tmp_path, *PARTIES)["lab"]
    for name in ("own.csv", "other.csv"):
        (made.folder / name).write_text(f"{name}\n1.0\n")
    data = [made.folder / ("other.csv" if asked.get("other") else "own.csv")]
    options = {"data": data, "delta": 1e-6, **asked}
    for name in {"model", "init_model"} & {*asked}:
        options[name] = made.folder / "model.h5"
        with h5py.File(options[name], "w") as file:
            if name == "model":
                file.attrs["n_components"] = asked[name]
            else:  # a clustering
                file["centres"], file.attrs["n_components"] = np.ones((asked[name], 2)), "many"
        digest = hashlib.sha256(options[name].read_bytes()).hexdigest()
        policy, refused = policy.replace("{0}", digest), refused and refused.replace("{0}", digest)
    if policy:
        (made.folder / "policy.toml").write_text(policy)
    before = Spent(made.folder)
    when = datetime.now(UTC) - timedelta(days=asked.get("days", 0))
    read = (str(made.folder / "own.csv"), "a")
    before.begin(private(1, study=made.id, time=when.isoformat(), data=read), lambda: None)
    guard = Guard(made)
    if refused is None:
        guard.check("fit", options, made.member("lab"), data)
    else:
        with pytest.raises(InputError, match=re.escape(refused)):
            guard.check("fit", options, made.member("lab"), data)
