"""The log of messages: every one in a line, whole lines only, and what they come to."""

import hashlib
import json
import stat
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest

from vpem.errors import FileError
from vpem.files.studies.logs import COUNTS, MessageLog, log_beside, messages, read_log
from vpem.fits.spread import fit_spread
from vpem.network.graph import make_graph
from vpem.network.partition import contiguous
from vpem.sums.connect import connect, spread

from .test_full_disk import room_for
from .thread_engine import over_queues, together
from .tls_support import a_study, at_once, posts


def message(payload=b"1234", sent=True, peer="hub", topic="estep", time=1.5):
    digest = hashlib.sha256(payload).hexdigest()
    return SimpleNamespace(
        time=time, sent=sent, peer=peer, topic=topic, size=len(payload), digest=digest
    )


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


@pytest.mark.parametrize(
    "content",
    [
        "x = 1\n",
        '{"time":"2026-01-01T00:00:00Z"}\n',
        '{"time":"2026-01-01T00:00:00Z","run":{"id":3}}\n',
        '{"time":"2026-01-01","run":{"id":"0123456789abcdef"}}\n',
        '{"time":"2026-01-01T00:00:00Z","run":{"id":"0123456789abcdef"}}',
        "[" * 3000 + "\n",
    ],
)
def test_what_is_no_log_is_refused(path, content):
    path.write_text(content)
    with pytest.raises(FileError, match="no log of messages, or is damaged in line 1"):
        read_log([path])


@pytest.mark.parametrize(
    ("key", "value"),
    [("way", "lost"), ("peer", 3), ("kind", None), ("bytes", -1), ("bytes", True),
     ("hmac", "00"), ("time", "noon")],
)  # fmt: skip
def test_a_damaged_line_is_named(path, key, value):
    with closing(MessageLog(path)) as log:
        log.record_message(message())
    first, line = path.read_text().splitlines()
    path.write_text(f"{first}\n{json.dumps(json.loads(line) | {key: value})}\n")
    with pytest.raises(FileError, match="line 2"):
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
    assert [(one["kind"], one["bytes"]) for one in here] == [
        ("estep", 0), ("estep", 10), ("estep", 3_000_000), ("server", 3)
    ]  # fmt: skip
    for one, other in zip(here, there, strict=True):
        assert [one[key] for key in SHARED] == [other[key] for key in SHARED]
        assert one["way"] != other["way"]
        assert (one["peer"], other["peer"]) == ("lab", "hub")


SHARED = ("kind", "bytes", "hmac")
"""What both ends note alike."""

SUMMED = [
    ("star", {}, {}, ("server", "setup")),
    ("star", {}, {"dtype": "float32"}, ("server", "setup")),
    ("cycle", {}, {}, ("estep", "setup")),
    ("path", {"sum": "tree"}, {}, ("estep", "setup")),
]


@pytest.mark.parametrize(("topology", "how", "more", "kinds"), SUMMED)
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

    seats = tuple(range(first, first + 3))
    parts = together(first + 3, work, over_queues, seats=seats)
    for kind in kinds:
        sent = [size for _, messages in parts for _, topic, size in messages if topic == kind]
        assert sum(sent) == parts[0][0][kind]["bytes"] > 0
    topics = {topic for _, messages in parts for _, topic, _ in messages}
    assert topics <= {*kinds, "agreement", "result"}
