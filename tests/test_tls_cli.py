"""Commands of members of a study, each a process with a folder of its own, who talk over TLS."""

import json
import os
import shutil
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest

from vpem import example_path, read_dataset
from vpem.engines.engine import Engine
from vpem.engines.placement import Placement
from vpem.engines.tls.engine import introduced
from vpem.errors import FileError, InputError, VpemError
from vpem.files.datasets import Home
from vpem.files.models import read_model
from vpem.files.studies.identities import make_identity
from vpem.files.studies.logs import COUNTS, log_beside, messages, read_log
from vpem_cli.outputs import LabelFile, Output
from vpem_cli.study.member import Meeting, check_introduced

from .cli_support import NAMES, done, overlapping, run
from .company_support import SECONDS, ended, make_company
from .forks import ROOT
from .tables import each

HELD = {"clinic": (0, 3, 1), "lab": (2, 4, 5)}
FIT = {"align": "ids", "components": 3, "topology": "star", "max-iter": 40, "tol": 0.0, "seed": 1}
SELECT = {"align": "ids", "components": "1-2", "topology": "star", "tol": 1e-2, "folds": 2,
          "criterion": "heldout"}  # fmt: skip
SAEM = {"iterations": 5, "seed": 1}
IDS = ("--id-column", "patient")


def write_rows(path, X, columns, rows):
    """Write a table with the ids of rows, in an order of its own."""
    lines = [f"{NAMES[j]}" for j in columns]
    with path.open("w") as file:
        print("patient", *lines, sep=",", file=file)
        for row in rows:
            print(f"p{row:03d}", *(repr(float(X[row, j])) for j in columns), sep=",", file=file)


@pytest.fixture(scope="module")
def company(tmp_path_factory):
    """A server, and two parties with files of their own."""
    folder = tmp_path_factory.mktemp("study")
    options = {"fit": FIT, "impute": {}, "select": SELECT, "saem": SAEM}
    made = make_company(folder, list(HELD), options, server="hub")
    X, _ = overlapping()
    for turn, (name, columns) in enumerate(HELD.items()):
        rows = np.random.default_rng(turn).permutation(len(X))
        write_rows(made.folders[name] / f"{name}.csv", X, columns, rows)
    yield made
    made.end()


def files(*more, **own):
    """What each party says itself, besides what all say."""
    return {name: (f"{name}.csv", *IDS, *more, *own.get(name, ())) for name in HELD}


@pytest.fixture(scope="module")
def fitted(company):
    """All members have fitted, and lab wants labels, hub no model."""
    own = files("-o", "model.h5", lab=("--labels", "labels.csv"))
    found = company.run("fit", "--json", own=own)
    assert [result.code for result in found.values()] == [0, 0, 0], found
    return SimpleNamespace(
        reports={name: json.loads(result.out) for name, result in found.items()},
        models={name: company.folders[name] / "model.h5" for name in HELD},
    )


def of_one_process(company, capsys, command, options, *more):
    """The report of one process that has all files."""
    data = [company.folders[name] / f"{name}.csv" for name in HELD]
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    return done(capsys, command, *data, "--parties", *IDS, *words, "--json", *more).json


def test_a_fit_is_that_of_one_process_and_all_have_it(fitted, company, tmp_path, capsys):
    told = of_one_process(company, capsys, "fit", FIT, "-o", tmp_path / "whole.h5")
    ours, lab = read_model(fitted.models["lab"]), fitted.reports["lab"]
    np.testing.assert_allclose(ours.history, read_model(tmp_path / "whole.h5").history, rtol=1e-12)
    of_labels = lab["communication"]["by_kind"]["labels"]["bytes"]
    assert lab["communication"]["bytes"] == told["communication"]["bytes"] + of_labels
    assert fitted.models["clinic"].read_bytes() == fitted.models["lab"].read_bytes()
    for name, report in fitted.reports.items():
        own = {"data": f"{name}.csv", "model": "model.h5"}
        own |= {"labels_files": ["labels.csv"] if name == "lab" else []}
        if name == "hub":
            own |= {"data": "study heart", "model": None}
        assert {key: report[key] for key in own} == own
        assert all(report[key] == lab[key] for key in lab if key not in {*own, "warnings"})
    # Nothing of one member is in what others have.
    assert not (company.folders["clinic"] / "labels.csv").exists()
    ids, labels = (
        [line.split(",")[0] for line in (company.folders["lab"] / file).read_text().splitlines()]
        for file in ("lab.csv", "labels.csv")
    )
    assert ids[1:] == labels[1:]
    for path in fitted.models.values():
        content = path.read_bytes()
        for own in (b".csv", b"patient", b"p001", os.fsencode(str(company.folders["hub"].parent))):
            assert own not in content
        assert read_model(path).options["data"] is None


def test_how_rows_are_matched_is_said_where_a_party_has_ids(tmp_path):
    """Else all hear that, before anything of ids is told; by word they go by their places."""
    options = {name: value for name, value in FIT.items() if name != "align"} | {"max-iter": 2}
    made = make_company(tmp_path, list(HELD), {"fit": options | {"components": 1}})
    X, _ = overlapping()
    for turn, (name, columns) in enumerate(HELD.items()):
        write_rows(made.folders[name] / f"{name}.csv", X, columns, range(turn, 100 + turn))
    try:
        found = made.run("fit", own=files())
        assert {result.code for result in found.values()} == {2}
        for result in found.values():
            sentence = result.err.splitlines()[-1]
            assert "'clinic' has ids, but whether to match rows by them was not spec" in sentence
            assert sentence.endswith(
                "only clinic can change the options of heart: vpem study change heart.toml --align "
                "ids"
            )
        said = {"align": "none"}
        found = made.signed(options={"fit": options | said}).run("fit", own=files())
        assert {result.code for result in found.values()} == {0}
        for result in found.values():
            assert "party 'lab' has other ids than party 'clinic'; rows are joined by" in result.err
            assert "100 rows together (align none)" in result.err
    finally:
        made.end()


def test_logs_tell_what_went_and_what_all_have_alike(fitted, company):
    logs = {n: read_log([path / f"{n}-heart.log"], True) for n, path in company.folders.items()}
    sent = sum(own["bytes_sent"] for log in logs.values() for own in log["totals"])
    received = sum(own["bytes_received"] for log in logs.values() for own in log["totals"])
    assert sent == received > 0
    handed = fitted.reports["lab"]["handed"]
    of_sums = [
        own["bytes_sent"] for log in logs.values() for own in log["totals"]
        if own["kind"] in {"server", "labels"}
    ]  # fmt: skip
    assert sum(of_sums) == sum(handed[kind]["by_tls"] for kind in ("server", "labels"))
    every = list(messages([path / f"{name}-heart.log" for name, path in company.folders.items()]))
    ends = [sorted(one["hmac"] for one in every if one["way"] == way) for way in COUNTS[:2]]
    assert ends[0] == ends[1]


def test_a_search_is_that_of_one_process_and_each_keeps_its_state(company, capsys):
    found = company.run("select", "--json", "--state", "kept.h5", own=files("-o", "best.h5"))
    told = of_one_process(company, capsys, "select", SELECT, "--jobs", 1)
    for name, result in found.items():
        assert result.code == 0, result.err
        report = json.loads(result.out)
        for one, other in zip(report["cells"], told["cells"], strict=True):
            np.testing.assert_allclose(one["folds"], other["folds"], rtol=1e-10)
            assert one["bytes"] == other["bytes"]
        assert (report["best"], report["state"]) == (told["best"], "kept.h5")
        assert (company.folders[name] / "kept.h5").exists()
    one, other = (company.folders[name] / "best.h5" for name in HELD)
    assert one.read_bytes() == other.read_bytes()


# ---- refusals -----------------------------------------------------------------------------------


def test_other_options_at_one_member_are_refused_at_all(company):
    found = company.run("fit", own=files(lab=("--seed", "2", "-o", "none.h5")))
    for result in found.values():
        assert result.code == 2
        assert result.sentence == (
            "--seed is set differently: hub has 1 (heart.toml), lab has 2 (command line); all "
            "members of heart must have the same"
        )
        assert not result.out
    assert not (company.folders["lab"] / "none.h5").exists()


@each(
    ("others", "sentence"),
    [
        (["kmeans", {}, []], "a runs 'vpem fit' and b 'vpem kmeans'"),
        (["fit", {"--tol": ["0.1", "default"]}, []], "a has 0.2 (x.toml), b has 0.1 (default)"),
        (["fit", {}, []], "a has 0.2 (x.toml), b has nothing (default)"),
        (["fit", {"--resume": ["True", "command line"]}, []], "--resume is set differently"),
    ],
)
def test_what_differs_is_named_with_both_members(others, sentence):
    own = ["fit", {"--tol": ["0.2", "x.toml"]}, []]
    if "resume" in sentence:
        own = ["fit", {"--resume": ["nothing", "default"]}, []]
        back = ["fit", {"--resume": ["if any", "command line"]}, []]
        alike = [check_introduced(["a", "b"], [own, one], "heart") for one in (own, back)]
        assert alike == [False, True]  # whoever comes back before all have met is welcome
    with pytest.raises(InputError) as error:
        check_introduced(["a", "b"], [own, others], "heart")
    assert sentence in str(error.value)


def test_what_a_file_holds_is_told_where_it_is(company):
    table = company.folders["lab"] / "lab.csv"
    kept = table.read_text()
    table.write_text(kept.replace("\np", "\np9,secret,1,1\np", 1))
    try:
        found = company.run("fit", own=files("-o", "none.h5"))
    finally:
        table.write_text(kept)
    assert [result.code for result in found.values()] == [2, 2, 2]
    assert "secret" in found["lab"].sentence
    for name in ("hub", "clinic"):
        assert found[name].sentence == "lab ended: it cannot use its data; ask there"


def test_the_study_says_options_and_whose_key_there_is(company, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(company.folders["hub"])
    own = tmp_path / "own.toml"
    own.write_text("[fit]\nthreads = 1\n")
    words = ("--study", "heart.toml", "--seed", "3", "--config", own, "--show-config")
    shown = done(capsys, "fit", *words).out
    lines = {line.split(" =")[0]: line for line in shown.splitlines() if " = " in line}
    assert "components = " in lines["components"]
    assert lines["components"].endswith("# file heart.toml")
    assert lines["seed"].endswith("# command line")
    assert lines["threads"].endswith(f"# file {own}")
    assert 'engine = "tls"' in lines["engine"]
    for path in company.folders["hub"].iterdir():
        shutil.copy(path, tmp_path)
    make_identity(tmp_path, "other")
    monkeypatch.chdir(tmp_path)
    assert "pass --as NAME" in run(capsys, "fit", "--study", "heart.toml").sentence


class Said:
    """An engine in which the first member says what it likes."""

    names = ("hub", "lab")
    rank = 1

    def __init__(self, *said):
        self.said = list(said)

    def bcast(self, value, root=0):
        return self.said.pop(0)


@each(
    ("said", "sentence"),
    [
        (7, "hub has sent no result of a fit; do all run the same version?"),
        ([{}], "hub has sent no result of a fit"),
        ([7, b""], "hub has sent no result of a fit"),
        ([{}, None], "hub has sent no result of a fit"),
        ([{}, "many"], "hub has sent no result of a fit"),
        ([{}, b""], "hub has sent a file of 0 bytes"),
        ([{}, b"too many"], "hub has sent a file of 8 bytes"),
        ([{}, b"none"], "what hub has sent is not the result of a fit"),
    ],
)
def test_what_the_first_member_sends_is_checked(said, sentence, tmp_path, monkeypatch):
    monkeypatch.setattr("vpem_cli.study.member.MOST", 7)
    result = SimpleNamespace(in_file=True)
    lab = object.__new__(Meeting)
    lab.engine, lab._first = Said(said), "hub"
    with pytest.raises(VpemError) as error:
        lab.receive(result, Output(output=tmp_path / "model.h5"))
    assert sentence in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_model_that_the_first_member_cannot_write_is_sent_all_the_same(tmp_path):
    class Noted(Meeting):
        def __setattr__(self, name, value):
            if name == "_delivered":
                over.append(len(hub.said))
            super().__setattr__(name, value)

    hub, over = Said(), []
    first = object.__new__(Noted)
    first.engine = hub
    hub.bcast = lambda value, root=0: hub.said.append(value)
    result = SimpleNamespace(in_file=True, tell=lambda: {"rows": 2}, write=write_a_word)
    for path in (tmp_path / "there.h5", None):
        hub.said = []
        assert first.send(result, Output(output=path)) == {"rows": 2}
        assert hub.said == [[{"rows": 2}, b"word"]]
    hub.said = []
    with pytest.raises(FileError, match=r"gone.model.h5 could not be written"):
        first.send(result, Output(output=tmp_path / "gone" / "model.h5"))
    assert hub.said == [[{"rows": 2}, b"word"]]
    assert over == [1, 1, 1]  # others had all when it was said


def write_a_word(path, report):
    if not path.parent.exists():
        raise FileError(f"{path} could not be written: {report}")
    path.write_bytes(b"word")


@each(
    "found",
    [
        ["fit", {}, [], 1],
        ["fit", {"--tol": [1, "x"]}, [], 1, b"", b""],
        ["fit", {"--tol": ["1"]}, [], 1, b"", b""],
        ["fit", {"--tol": 1}, [], 1, b"", b""],
        [1, {}, [], 1, b"", b""],
        ["fit", [], [], 1, b"", b""],
        ["fit", {}, [2], 1, b"", b""],
        ["fit", {}, [], True, b"", b""],
        ["fit", {}, [], 1, b"", "signature"],
        ["fit", {}, [], 1, "random", b""],
        ["fit", {}, [], 1, b""],
    ],
)
def test_members_introduce_themselves_in_plain_words(found):
    said = ["fit", {"--tol": ["1", "default"]}, ["output"], 3, b"", b""]
    assert introduced(said, "lab") == said
    with pytest.raises(InputError, match="lab has sent no introduction"):
        introduced(found, "lab")


def test_labels_that_cannot_be_written_are_spoken_of_in_the_end(tmp_path):
    path = tmp_path / "gone" / "labels.csv"
    screen = SimpleNamespace(say=lambda *_: None)
    where = SimpleNamespace(own_users=True, anybody=lambda *_: True, screen=screen)
    out = SimpleNamespace(labels_file=path, force=False, quote_formulas=False, digits=7)
    labels = LabelFile(out, where, True)
    columns = {0: {"label": np.zeros(2, np.int64)}}
    everybody = Placement.evenly(Engine(), 1)
    labels.write_homes({0: Home.whole(None, 2, "lab")}, ["lab"], columns, everybody)
    with pytest.raises(FileError, match=r"gone.labels.csv"):  # once all have what was found
        labels.written  # noqa: B018


# ---- members that end ---------------------------------------------------------------------------

KEPT = ("--checkpoint", "point.h5", "--checkpoint-every", "1", "--quiet", "-o", "again.h5")


def begin(company, *more, names=("hub", *HELD), **how):
    """Start a fit at some members."""
    own = {"hub": (), **files()}
    return {name: company.begin(name, "fit", *own[name], *KEPT, *more, **how) for name in names}


def wait_for(path):
    until = time.monotonic() + SECONDS
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert path.exists()


@pytest.fixture
def slower(company):
    """A study of more iterations than there is time for."""
    before = company.study
    company.signed(options={**before.options, "fit": {**FIT, "max-iter": 100000}})
    yield company
    company.signed(options=before.options)
    for folder in company.folders.values():
        for path in folder.glob("point.h5*"):
            path.unlink()


def test_one_more_interrupt_ends_the_wait_for_others_and_not_the_sentence(capsys):
    def close():
        raise KeyboardInterrupt

    meeting = object.__new__(Meeting)
    meeting.study = None
    meeting._delivered, meeting._met = True, False
    meeting._post = SimpleNamespace(close=close)
    meeting.engine, meeting.member = SimpleNamespace(rank=1), SimpleNamespace(name="lab")
    meeting._deal_with, meeting._options = lambda error: error, {}
    meeting.guard = SimpleNamespace(end=lambda: None)

    assert meeting.interrupted(130) == 130
    assert meeting.fail(InputError("no such file"), "no such file") == 2
    said = [line.rpartition("error: ")[2] for line in capsys.readouterr().err.splitlines()]
    assert said == ["interrupted; nothing was written", "no such file"]


def test_a_member_that_is_interrupted_ends_all_of_them(slower):
    processes = begin(slower)
    wait_for(slower.folders["lab"] / "point.h5.before")
    processes["lab"].send_signal(signal.SIGINT)
    for process in processes.values():
        result = ended(process)
        assert result.code == 130
        assert "interrupted by Ctrl-C; the state after" in result.sentence
    assert (slower.folders["clinic"] / "point.h5").exists()


KILLED = """
import os, signal, sys
import vpem_cli

replace, left = os.replace, [{n_times}]

def last(source, target):
    left[0] -= os.fspath(target).endswith("point.h5")
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)

os.replace = last
vpem_cli.main(sys.argv[1:])
"""
"""A command that is killed before its checkpoint of that number is in place."""


@pytest.mark.parametrize("n_times", [3, FIT["max-iter"]])
def test_a_killed_member_comes_back_to_the_same_bits(company, fitted, n_times):
    """By itself, since a fit may end before a test on a busy machine sees a file of it."""
    processes = begin(company, "--resume-if-any", names=["hub", "clinic"])
    main = KILLED.format(n_times=n_times)
    killed = begin(company, "--resume-if-any", names=["lab"], main=main)["lab"]
    assert killed.wait(SECONDS) == -signal.SIGKILL
    processes |= begin(company, "--resume-if-any", names=["lab"])
    for process in processes.values():
        result = ended(process)
        assert result.code == 0, result.err
    ours, theirs = (
        read_model(company.folders["clinic"] / name) for name in ("again.h5", "model.h5")
    )
    np.testing.assert_array_equal(ours.history, theirs.history)
    np.testing.assert_array_equal(ours.mixture.means, theirs.mixture.means)
    for folder in company.folders.values():
        for path in (*folder.glob("point.h5*"), *folder.glob("again.h5")):
            path.unlink()


FOUR = ["clinic", "lab", "imaging", "gp"]


@pytest.mark.parametrize(
    ("names", "masked", "n_messages"), [(FOUR[:3], False, 60), (FOUR, True, 90)]
)
def test_members_of_a_study_go_on_without_one_that_is_killed(tmp_path, names, masked, n_messages):
    """In new images of their processes, under masks from parameters that were not summed with it.

    It is killed once it has logged so many messages.
    """
    options = {**FIT, "init": "random", "max-iter": 40}
    made = make_company(
        tmp_path, names, {"fit": options | ({"secure-sum": True} if masked else {})}
    ).signed(if_lost="without")
    X, _ = overlapping()
    own = {name: (f"{name}.csv", *IDS, "--json") for name in names}
    own["clinic"] += ("--timeout", "3")  # others may have to wait as long for a processor
    lost, *left = names[::-1]
    log = made.folders[lost] / f"{lost}-heart.log"
    try:
        for name, columns in zip(names, ((0, 1), (2,), (3, 4), (5,)), strict=False):
            write_rows(made.folders[name] / f"{name}.csv", X, columns, np.arange(len(X)))
        processes = {name: made.begin(name, "fit", *words) for name, words in own.items()}
        wait_for(log)
        while log.read_bytes().count(b"\n") < n_messages and processes[lost].poll() is None:
            time.sleep(0.01)
        processes[lost].kill()
        found = {name: ended(process) for name, process in processes.items()}
    finally:
        made.end()
    assert [found[name].code for name in left] == [0] * len(left), found
    report = json.loads(found["lab"].out)
    ((member, since),) = (tuple(one.values()) for one in report["without"])
    assert (member, since > 1) == (lost, True)
    assert (report["n_features"], report["n_iter"]) == (5 if masked else 3, 40)
    assert f"clinic goes on without {lost}, as heart says" in found["lab"].err


def test_each_keeps_its_own_part_where_the_study_says_so(company, fitted, tmp_path, capsys):
    before = company.study
    company.signed(result="shards")
    try:
        found = company.run("fit", "--json", own=files("-o", "part.h5"))
    finally:
        company.signed(result=before.result)
    assert [result.code for result in found.values()] == [0, 0, 0], found
    parts = {name: company.folders[name] / "part.h5" for name in HELD}
    assert read_model(parts["lab"]).feature_names == tuple(NAMES[j] for j in HELD["lab"])
    whole = tmp_path / "whole.h5"
    done(capsys, "model", "join", *parts.values(), "-o", whole)
    ours, theirs = read_model(whole), read_model(fitted.models["lab"])
    np.testing.assert_array_equal(ours.mixture.means, theirs.mixture.means)
    assert json.loads(found["lab"].out)["model"] == "part.h5"


def test_a_server_need_not_bring_individuals(company, tmp_path, capsys):
    head, *lines = (ROOT / "data" / "oxford_boys.csv").read_text().splitlines()
    kept = []
    for turn, name in enumerate(HELD):
        kept.append(company.folders[name] / f"boys/{name}.csv")
        kept[-1].parent.mkdir()
        own = [line for line in lines if int(line.split(",")[0]) % 2 == turn]
        # A column that one party reads, and others do not.
        extra = [f"{line},{7 if name == 'lab' else ''}" for line in own]
        kept[-1].write_text("\n".join([f"{head},age", *extra]) + "\n")
    own = {name: (path,) for name, path in zip(HELD, kept, strict=True)}
    own["lab"] += ("--covariates", "age")
    found = company.run("saem", "--json", own=own)
    assert [result.code for result in found.values()] == [0, 0, 0], found
    wanted = json.loads(done(capsys, "saem", *kept, "--parties", "--iterations", 5, "--seed", 1,
                             "--json").out)  # fmt: skip
    for result in found.values():
        report = json.loads(result.out)
        assert report["n_individuals"] == wanted["n_individuals"]
        assert report["communication"] == wanted["communication"]
        for name, value in wanted["log_likelihood"].items():
            close = value if value is None else pytest.approx(value, rel=1e-9)
            assert report["log_likelihood"][name] == close, name


# ---- policies -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def careful(tmp_path_factory):
    """Two parties with tables of the wines, of whom the first adds up, and their rows."""
    X = read_dataset(example_path("wine")).X
    few = {"components": 20, "seed": 0, "max-iter": 15}
    options = {"fit": few, "kmeans": {"clusters": 60, "split": "features"}}
    made = make_company(tmp_path_factory.mktemp("wines"), ["clinic", "lab"], options)
    flag, heavy = (np.arange(178) % 3 == 0) * 1.0, np.where(np.arange(178) == 7, 400.0, 1.0)
    for name, own, more in (("clinic", X[:, :6], heavy), ("lab", X[:, 6:], flag)):
        for file, table in (("own", own), ("more", np.column_stack([own, more]))):
            heads = ",".join(f"{name}{j}" for j in range(table.shape[1]))
            path = made.folders[name] / f"{file}.csv"
            np.savetxt(path, table, delimiter=",", comments="", header=heads)
        lines = [f"p{row},{one!r}" for row, one in enumerate(own[:50, 0].tolist())]
        for file, some in (("ids", lines), ("few", lines[:4])):
            head = f"id,{name}1"
            (made.folders[name] / f"{file}.csv").write_text("\n".join([head, *some]) + "\n")
    yield made, X
    made.end()


@each(
    ("policy", "rule", "align", "shown"),
    [
        ("most-esteps = 3", "allows at most 3 E-steps in a run", "none", 3),
        ("fewest-rows = 5", "requires at least 5 rows", "ids", 0),
        ("largest-ratio-of-rows = 12", "allows others at most 12 times as many ids as it has",
         "psi", 0),
    ],
)  # fmt: skip
def test_a_refusal_is_told_in_full_and_named_elsewhere(careful, policy, rule, align, shown):
    company, _ = careful
    folder = company.folders["lab"]
    (folder / "policy.toml").write_text(policy)
    log = log_beside(folder / "heart.toml", "lab")
    log.unlink(missing_ok=True)
    own = {"clinic": ["ids.csv"], "lab": ["ids.csv" if align == "none" else "few.csv"]}
    words = "-k 2 --tol 0 --max-iter 9 --init-rows 0,1 --covariance diag --align"
    found = company.run("fit", *words.split(), align, own=own)
    (folder / "policy.toml").unlink()
    assert {one.code for one in found.values()} == {2}
    assert found["lab"].sentence.startswith(f"policy.toml {rule}, ")
    told = found["clinic"].sentence.removeprefix("lab ended: ")
    assert told == f"lab's policy {rule}; ask there"
    sent = [one for one in messages([log]) if one["way"] == "sent" and one["kind"] == "server"]
    assert len(sent) == shown


def test_no_model_leaves_that_tells_of_few_rows(careful):
    """Of 178 wines 20 components would have some of one row, whose means are that row."""
    made, X = careful
    data = {name: ["own.csv"] for name in made.names}

    def rows_and_means(*words):
        """How many rows components have, and how many means are a row."""
        own = {name: ["own.csv", "-o", "m.h5", "--force"] for name in made.names}
        found = made.run("fit", *words, own=own)
        assert {one.code for one in found.values()} == {0}, found
        model = read_model(made.folders["lab"] / "m.h5").mixture
        apart = np.abs(X[:, None] - model.assembled_means).max(axis=2)
        alike = apart.min(axis=0) < 1e-6 * np.abs(X).max()
        return model.assembled_weights * len(X), int(alike.sum())

    rows, alike = rows_and_means()
    assert ((rows == 0) | (rows >= 5 * (1 - 1e-9))).all()
    assert (rows >= 5).any()
    assert alike == 0
    for command, words, said, linger in (
        ("kmeans", (), "clusters of fewer than 5 rows: ", "5"),
        ("fit", ("--publish-anyway",), "publish-anyway", "0.1"),  # which each refuses by itself
    ):
        for found in made.run(command, *words, own=data, TESTS_LINGER=linger).values():
            assert found.code == 2
            assert said in found.err
    for name in made.names:
        (made.folders[name] / "policy.toml").write_text("publish-anyway = true\n")
    rows, alike = rows_and_means("--publish-anyway")
    for name in made.names:
        (made.folders[name] / "policy.toml").unlink()
    assert (rows < 2.5).any()
    assert alike > 0


def test_what_was_left_out_is_no_row_and_neither_starts_nor_heavy_rows_leave(careful):
    made, X = careful

    def run(*words, **drop):
        own = {name: ["more.csv", "-o", "m.h5", "--force"] for name in made.names}
        for name, column in drop.items():
            own[name] += ["--drop", column]
        return made.run("fit", *words, own=own).values()

    told = run("--family", "auto", clinic="clinic6")
    assert [one.err for one in told if one.code] == []
    mixture = read_model(made.folders["lab"] / "m.h5").mixture
    cores = [part.core.assembled_means for part in mixture.parts if part.core is not None]
    assert (mixture.assembled_weights == 0).any()
    assert np.abs(X[:, None] - np.concatenate(cores, axis=1)).max(axis=2).min() > 1e-6
    start = run("--max-iter", "0", "--init-rows", "0,60", "-k", "2", clinic="clinic6", lab="lab7")
    weighs = run("--sample-weight", "clinic6", "-k", "1", "--covariance", "diag", lab="lab7")
    for found, sentence in ((start, "the start of a fit"), (weighs, "than 5 rows: 0 (1.44)")):
        assert [one.code for one in found] == [2] * 2
        assert all(sentence in one.err for one in found)
