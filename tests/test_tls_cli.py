"""Commands of members of a study, each a process with a folder of its own, who talk over TLS."""

import json
import os
import shutil
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest

from vpem.engines.engine import Engine
from vpem.engines.placement import Placement
from vpem.engines.tls.engine import introduced
from vpem.errors import FileError, InputError, VpemError
from vpem.files.datasets import Home
from vpem.files.models import read_model
from vpem.files.studies.identities import make_identity
from vpem.files.studies.logs import COUNTS, messages, read_log
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


def test_a_fit_is_that_of_one_process_and_all_have_it(fitted, company, tmp_path, capsys):
    data = [company.folders[name] / f"{name}.csv" for name in HELD]
    words = [word for name, value in FIT.items() for word in (f"--{name}", value)]
    whole = tmp_path / "whole.h5"
    told = done(capsys, "fit", *data, "--parties", *IDS, *words, "-o", whole, "--json").json
    ours, lab = read_model(fitted.models["lab"]), fitted.reports["lab"]
    np.testing.assert_allclose(ours.history, read_model(whole).history, rtol=1e-12)
    assert lab["communication"]["bytes"] == told["communication"]["bytes"] + labels_bytes(lab)
    assert fitted.models["clinic"].read_bytes() == fitted.models["lab"].read_bytes()
    for name, report in fitted.reports.items():
        own = {"data": f"{name}.csv", "model": "model.h5"}
        own |= {"labels_files": ["labels.csv"] if name == "lab" else []}
        if name == "hub":
            own |= {"data": "study heart", "model": None}
        assert {key: report[key] for key in own} == own
        assert all(report[key] == lab[key] for key in lab if key not in {*own, "warnings"})


def test_how_rows_are_matched_is_said_where_a_party_has_ids(tmp_path):
    """Else all hear that, before anything of ids is told; by word they go by their places."""
    options = {name: value for name, value in FIT.items() if name != "align"} | {"max-iter": 2}
    made = make_company(tmp_path, list(HELD), {"fit": options})
    X, _ = overlapping()
    for turn, (name, columns) in enumerate(HELD.items()):
        write_rows(made.folders[name] / f"{name}.csv", X, columns, range(turn, 100 + turn))
    try:
        found = made.run("fit", own=files())
        assert {result.code for result in found.values()} == {2}
        ends = (
            "only clinic can change the options of heart: vpem study change heart.toml --align ids"
        )
        for result in found.values():
            sentence = result.err.splitlines()[-1]
            assert (
                "party 'clinic' has ids, but whether to match rows by them was not specified"
                in sentence
            )
            assert sentence.endswith(ends)
        said = {"align": "none"}
        found = made.signed(options={"fit": options | said}).run("fit", own=files())
        assert {result.code for result in found.values()} == {0}
        for result in found.values():
            assert "party 'lab' has other ids than party 'clinic'; rows are joined by" in result.err
            assert "100 rows together (align none)" in result.err
    finally:
        made.end()


def labels_bytes(report):
    """What labels cost of what was sent."""
    return report["communication"]["by_kind"]["labels"]["bytes"]


def test_nothing_of_one_member_is_in_what_others_have(fitted, company):
    assert not (company.folders["clinic"] / "labels.csv").exists()
    ids = (company.folders["lab"] / "lab.csv").read_text().splitlines()[1:]
    labels = (company.folders["lab"] / "labels.csv").read_text().splitlines()[1:]
    assert [line.split(",")[0] for line in labels] == [line.split(",")[0] for line in ids]
    for path in fitted.models.values():
        content = path.read_bytes()
        for own in (b".csv", b"patient", b"p001", os.fsencode(str(company.folders["hub"].parent))):
            assert own not in content
        assert read_model(path).options["data"] is None


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


def test_a_search_is_that_of_one_process_and_each_keeps_its_state(company, tmp_path, capsys):
    own = files("-o", "best.h5")
    found = company.run("select", "--json", "--state", "kept.h5", own=own)
    data = [company.folders[name] / f"{name}.csv" for name in HELD]
    words = [word for name, value in SELECT.items() for word in (f"--{name}", value)]
    told = done(capsys, "select", *data, "--parties", *IDS, *words, "--jobs", 1, "--json").json
    for name, result in found.items():
        assert result.code == 0, result.err
        report = json.loads(result.out)
        for one, other in zip(report["cells"], told["cells"], strict=True):
            np.testing.assert_allclose(one["folds"], other["folds"], rtol=1e-10)
            assert one["bytes"] == other["bytes"]
        assert (report["best"], report["state"]) == (told["best"], "kept.h5")
        assert (company.folders[name] / "kept.h5").exists()
    best = [company.folders[name] / "best.h5" for name in HELD]
    assert best[0].read_bytes() == best[1].read_bytes()


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
    ("theirs", "sentence"),
    [
        (["kmeans", {}, []], "a runs 'vpem fit' and b 'vpem kmeans'"),
        (["fit", {"--tol": ["0.1", "default"]}, []], "a has 0.2 (x.toml), b has 0.1 (default)"),
        (["fit", {}, []], "a has 0.2 (x.toml), b has nothing (default)"),
    ],
)
def test_what_differs_is_named_with_both_members(theirs, sentence):
    with pytest.raises(InputError) as error:
        check_introduced(["a", "b"], [["fit", {"--tol": ["0.2", "x.toml"]}, []], theirs], "heart")
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
    result = SimpleNamespace(apart=False)
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
    result = SimpleNamespace(apart=False, tell=lambda: {"rows": 2}, write=write_a_word)
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


def begin(company, *more, names=("hub", *HELD)):
    """Start a fit at some members."""
    own = {"hub": (), **files()}
    return {name: company.begin(name, "fit", *own[name], *KEPT, *more) for name in names}


def wait_for(path):
    until = time.monotonic() + SECONDS
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert path.exists()


def without(made, own, lost, n_messages):
    """Fit, and kill a member that has logged so many messages: what each left behind."""
    try:
        processes = {name: made.begin(name, "fit", *words) for name, words in own.items()}
        log = made.folders[lost] / f"{lost}-heart.log"
        wait_for(log)
        while log.read_bytes().count(b"\n") < n_messages and processes[lost].poll() is None:
            time.sleep(0.01)
        processes[lost].kill()
        return {name: ended(process) for name, process in processes.items()}
    finally:
        made.end()


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


def test_whoever_comes_back_before_all_have_met_is_welcome():
    words = [("nothing", "default"), ("if any", "command line"), ("True", "command line")]
    fresh, back, on = (["fit", {"--resume": list(word)}, []] for word in words)
    alike = [check_introduced(["a", "b"], [fresh, one], "heart") for one in (fresh, back)]
    assert alike == [False, True]
    with pytest.raises(InputError, match="--resume is set differently"):
        check_introduced(["a", "b"], [fresh, on], "heart")


def test_a_killed_member_comes_back_to_the_same_bits(company, fitted):
    processes = begin(company, "--resume-if-any")
    wait_for(company.folders["lab"] / "point.h5.before")
    processes["lab"].kill()
    processes["lab"].wait()
    processes |= begin(company, "--resume-if-any", names=["lab"])
    for process in processes.values():
        result = ended(process)
        assert result.code == 0, result.err
    ours, theirs = (
        read_model(company.folders["clinic"] / name) for name in ("again.h5", "model.h5")
    )
    np.testing.assert_array_equal(ours.history, theirs.history)
    np.testing.assert_array_equal(ours.mixture.means, theirs.mixture.means)


def test_the_others_go_on_without_a_member_that_is_lost(tmp_path):
    """Two go on without the third, from where they are, in new images of their processes."""
    names = ("clinic", "lab", "imaging")
    options = {**FIT, "init": "random", "max-iter": 50}
    made = make_company(tmp_path, names, {"fit": options}, timeout=60.0).signed(if_lost="without")
    X, _ = overlapping()
    for place, name in enumerate(names):
        columns = (2 * place, 2 * place + 1)
        write_rows(made.folders[name] / f"{name}.csv", X, columns, np.arange(len(X)))
    own = {name: (f"{name}.csv", *IDS, "--json") for name in names}
    own["clinic"] += ("--timeout", "3")  # others may have to wait as long for a processor
    found = without(made, own, "imaging", 60)
    assert [found[name].code for name in ("clinic", "lab")] == [0, 0], found
    report = json.loads(found["lab"].out)
    (lost,) = report["without"]
    assert lost["member"] == "imaging"
    assert lost["since_iteration"] > 1
    assert (report["n_features"], report["n_iter"]) == (4, 50)
    assert "clinic goes on without imaging, as heart says" in found["lab"].err


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
