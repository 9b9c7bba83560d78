"""Studies whose members meet inside a job of NVFlare: before it, in it, and as it is cut short."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from vpem._core.threads import one_blas_thread
from vpem.engines.tls.server import free_port
from vpem.files.models import read_model
from vpem.files.studies.study import read_study, write_job

from . import over_fits, over_missing, over_sums
from .cli_support import done, run
from .forks import environment, interpreter
from .nvflare_support import CallError, Job, carried, stand_in
from .study_support import make_study
from .tables import each
from .tls_support import at_once

NAMES = ("hub", "clinic", "lab")
SITES = ("server", "site-1", "site-2")
FIT = {"align": "none", "components": 2, "topology": "star", "hops": 0, "accelerate": "local:8",
       "seed": 1, "secure-sum": False}  # fmt: skip


@pytest.fixture(scope="module")
def collab():
    with stand_in() as made:
        made[0].LOOK_EVERY = 0.1
        yield made


# ---- before a job --------------------------------------------------------------------------------


@pytest.fixture
def hub(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done(capsys, "party", "init", "--name", "hub")
    return tmp_path


def begun(capsys, *words):
    return done(capsys, "study", "init", "heart", "--engine", "nvflare", "--align", "ids", *words)


def test_a_study_says_that_its_members_meet_in_a_job(capsys, hub):
    said = begun(capsys, "-k", 2, "--hops", 0)
    assert "engine      nvflare\n" in said.out
    assert "The NVFlare federation passes sealed messages on: its server learns who" in said.out
    assert "--accelerate local:8" in said.out
    study = read_study("heart.toml")
    assert (study.engine, study.describe()["engine"]) == ("nvflare", "nvflare")
    assert study.roster.members[0].address is None
    assert "not checked" in done(capsys, "party", "check", "heart.toml").out
    done(capsys, "study", "job", "heart.toml", "--folder", "new")
    files = {
        file.name: json.loads(file.read_text()) for file in hub.joinpath("new").rglob("*.json")
    }
    assert sorted(files) == ["config_fed_client.json", "config_fed_server.json", "meta.json"]
    for name, kind in (("client", "Site"), ("server", "Server")):
        (component,) = files[f"config_fed_{name}.json"]["components"]
        assert component["path"] == f"vpem.engines.nvflare.{kind}"
        assert component["args"] == {"study": "heart", "command": "fit"}
    assert not [*hub.joinpath("new").rglob("custom")]


@each(
    ("words", "pace"),
    [
        (("--accelerate", "none"), None),
        (("--accelerate=none", "--hops", "0"), None),
        (("--accelerate=squarem",), "squarem"),
        (("--batch-size", "50"), None),
        ((), "local:8"),
    ],
)
def test_fits_have_fewer_sums_there_unless_they_say_so_or_cannot(capsys, hub, words, pace):
    for file in hub.glob("heart.*"):
        file.unlink()
    said = begun(capsys, "-k", 2, *words)
    assert read_study("heart.toml").options["fit"].get("accelerate") == pace
    assert ("without --accelerate local:8" in said.err) == ("--batch-size" in words)


@each(
    ("words", "sentence"),
    [
        ("study init x --engine nvflare --star a:1 -k 2", "has the links of a federation"),
        ("study init x --engine nvflare --relay a:1 -k 2", "has the links of a federation"),
        ("fit --study heart.toml", "submit it"),
        ("fit --study heart.toml --engine tls", "by --engine nvflare, not tls"),
        ("fit --study heart.toml --listen 99", "--listen has no effect in a job"),
        ("fit x.csv --engine nvflare", "--engine nvflare is for members of a study"),
        ("party request heart.toml --address a:1", "none is dialled; leave out --address"),
        ("study job heart.toml --command kmeans", "--command must be one of fit"),
        ("study job heart.toml --folder .", ". exists; give a new folder"),
        ("study job heart.toml --folder no/where", "no/where cannot be made: No such file"),
    ],
)
def test_what_has_no_effect_there_is_refused(capsys, tmp_path, monkeypatch, words, sentence):
    if not (tmp_path / "hub").exists():
        make_study(tmp_path, "lab", "clinic", address=None, engine="nvflare")
    monkeypatch.chdir(tmp_path / "hub")
    assert sentence in run(capsys, *words.split()).sentence


def test_a_study_of_links_has_no_job(capsys, tmp_path, monkeypatch):
    study = make_study(tmp_path, "lab")["hub"]
    monkeypatch.chdir(study.folder)
    said = run(capsys, "study", "job", "heart.toml").sentence
    assert said.startswith("members of heart reach each other by --engine tls, without a job")
    assert b"engine" not in study.path.read_bytes()


# ---- links that are carried ----------------------------------------------------------------------


@pytest.fixture
def members(collab, tmp_path):
    with carried(collab, tmp_path, 3) as made:
        yield made


def exchanged(engine):
    """What a member gets of all that engines do."""
    own = np.random.default_rng(engine.rank).standard_normal(100_001)
    found = [engine.allreduce(own), engine.allreduce(own, "max")]
    found += [engine.gather(engine.rank, 1), engine.allgather(own[:3]), engine.bcast("all", 2)]
    others = [rank for rank in range(engine.size) if rank != engine.rank]
    received = np.empty(10)
    engine.neighbours(others)(own[:10], [5, 5], received, [5, 5])()
    engine.barrier()
    return [*found, received]


def test_carried_links_bring_what_was_sent(members):
    job, engines = members
    seen = job.facade.carried = []
    found = at_once([partial(exchanged, engine) for engine in engines])
    own = [np.random.default_rng(rank).standard_normal(100_001) for rank in range(3)]
    for rank, (total, most, gathered, parts, said, received) in enumerate(found):
        np.testing.assert_array_equal(total, own[0] + own[1] + own[2])
        np.testing.assert_array_equal(most, np.max(own, axis=0))
        assert gathered == ([0, 1, 2] if rank == 1 else None)
        np.testing.assert_array_equal(parts, [one[:3] for one in own])
        assert said == "all"
        theirs = [own[other][5 * (rank > other) :][:5] for other in range(3) if other != rank]
        expected = [own[o][5 * (rank - (rank > o)) :][:5] for o in range(3) if o != rank]
        assert len(theirs) == len(expected)
        np.testing.assert_array_equal(received, np.concatenate(expected))
    # What a federation's server could read has no value of a member in it.
    everything = b"".join(seen)
    assert len(everything) > 6 * own[0].nbytes
    assert not any(value.tobytes() in everything for value in own[1][:100])
    # A stream that is cut is opened again, and nothing is lost.
    for site in job.sites.values():
        for line in [*site._streams.values()]:
            with suppress(OSError):  # its other end is closed, and with it this one
                line.shutdown(2)
    again = at_once([partial(engine.allreduce, own[0]) for engine in engines])
    np.testing.assert_array_equal(again, [own[0] + own[0] + own[0]] * 3)


def test_sites_take_nothing_but_streams_of_theirs(members):
    job, engines = members
    at_once([engine.barrier for engine in engines])
    call, (key, *_) = job.facade.call, job.sites["server"]._streams
    assert key[2]  # opened by a party
    other = next(site for site in SITES if site not in (key[0], "server"))
    assert call(job, "server", other, "carry", 10**6, False, b"x") is False
    assert call(job, "server", key[0], "carry", key[1], False, "text") is False
    assert call(job, "server", key[0], "carry", key[1], False, bytes(1 << 20)) is False
    assert call(job, "server", key[0], "open", key[1]) is False  # it is there already
    assert call(job, "server", key[0], "carry", [1], {}, b"x") is False
    assert call(job, "server", "site-9", "open", 1) is False
    with pytest.raises(CallError, match="only the server begins"):
        call(job, "server", "site-1", "begin", {})


# ---- a job ---------------------------------------------------------------------------------------


def make_job(collab, tmp_path, timeout=120.0, **fit):
    """Sites with what they need, and the files of parties."""
    module, facade = collab
    studies = make_study(
        tmp_path, *NAMES[1:], address=None, options={"fit": FIT | fit}, engine="nvflare",
        timeout=timeout,
    )  # fmt: skip
    X = np.random.default_rng(0).standard_normal((200, 4)) + 4.0 * (np.arange(200) % 2)[:, None]
    files = []
    for name, site, columns in zip(NAMES, SITES, ([], [0, 1], [2, 3]), strict=True):
        for folder in ("job", "local"):
            (tmp_path / site / folder).mkdir(parents=True, exist_ok=True)
        home = shutil.move(studies[name].folder, tmp_path / site / "local" / "vpem")
        if columns:
            files.append(home / f"{name}.csv")
            head = ",".join(f"x{column}" for column in columns)
            np.savetxt(files[-1], X[:, columns], delimiter=",", header=head, comments="")
            (home / "vpem.toml").write_text(f'[fit]\ndata = ["{name}.csv"]\n')
    sites = {name: module.Site("heart", "fit") for name in SITES[1:]}
    return Job(facade, tmp_path, {"server": module.Server("heart", "fit"), **sites}), files


@pytest.fixture
def forks(monkeypatch):
    monkeypatch.setattr("sys.executable", interpreter())
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def check_alike(capsys, found, files, tmp_path):
    """A model is that of one process that has the files of all parties."""
    words = [word for name, value in FIT.items() if value for word in (f"--{name}", value)]
    done(capsys, "fit", *files, "--parties", *words, "-o", tmp_path / "one.h5")
    alone = read_model(tmp_path / "one.h5")
    np.testing.assert_allclose(found.history, alone.history, rtol=1e-12)
    np.testing.assert_allclose(found.mixture.means, alone.mixture.means, rtol=1e-12)


def log_of(tmp_path, site):
    return (tmp_path / site / "job" / "vpem.log").read_text()


def test_a_job_finds_what_one_process_does(capsys, collab, forks, tmp_path):
    job, files = make_job(collab, tmp_path)
    job.main()
    models = [(tmp_path / site / "job" / "heart.h5") for site in SITES]
    assert len({path.read_bytes() for path in models}) == 1, log_of(tmp_path, "server")
    found = read_model(models[0])
    assert found.options["accelerate"] == "local:8"
    assert (found.report["engine"], found.report["study"]) == ("nvflare", "heart")
    check_alike(capsys, found, files, tmp_path)


def test_a_policy_that_refuses_ends_the_job_for_all(collab, forks, tmp_path):
    job, _ = make_job(collab, tmp_path)
    (tmp_path / "site-2/local/vpem/policy.toml").write_text("fewest-parties = 5\n")
    with pytest.raises(CallError, match=r"server \(2\), site-1 \(2\), site-2 \(2\)"):
        job.main()
    assert "5 parties" in log_of(tmp_path, "site-2")
    assert "lab ended: " in log_of(tmp_path, "site-1")
    assert "policy.toml" not in log_of(tmp_path, "site-1")
    assert not [*tmp_path.rglob("heart.h5")]


def test_a_site_has_one_member_and_a_member_one_site(collab, tmp_path):
    job, _ = make_job(collab, tmp_path)
    key = tmp_path / "site-2/local/vpem/lab.key"
    copy = shutil.copy(key, tmp_path / "server/local/vpem")
    with pytest.raises(CallError, match="server has the key of hub and of lab; a site has that of"):
        job.main()
    Path(copy).unlink()
    shutil.copy(key, tmp_path / "site-1/local/vpem")
    (tmp_path / "site-1/local/vpem/clinic.key").unlink()
    with pytest.raises(CallError, match=r"site-2 has the key of lab; .* no other site has"):
        job.main()
    assert not [*tmp_path.rglob("vpem.log")]


def test_a_site_that_has_done_its_work_may_go_while_others_run(collab, tmp_path, monkeypatch):
    job, _ = make_job(collab, tmp_path)
    monkeypatch.setattr(collab[0], "LOOK_EVERY", 0.0)
    answers = {site: iter([None] * 20 + [0]) for site in SITES} | {"site-1": iter([3])}
    for site, one in job.sites.items():
        monkeypatch.setattr(one, "begin", lambda where: None)
        monkeypatch.setattr(one, "ended", partial(next, answers[site]))
    job.main()
    answers["server"], answers["site-1"] = iter([0]), iter([])
    monkeypatch.setattr(job.sites["server"], "ended", partial(next, answers["server"]))
    monkeypatch.setattr(job.sites["site-1"], "ended", partial(next, answers["site-1"]))
    monkeypatch.setattr(job.sites["site-2"], "ended", lambda: 0)
    with pytest.raises(CallError, match=r"its work at site-1 \(lost\): "):
        job.main()


ENDLESS = {"tol": 0.0, "max-iter": 10**6}


def once_it_runs(tmp_path):
    log, until = tmp_path / "server" / "job" / "vpem.log", time.monotonic() + 120.0
    while not (log.exists() and "rows together" in log.read_text()):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_killed_member_is_named(collab, forks, tmp_path, monkeypatch):
    monkeypatch.setenv("TESTS_LINGER", "0.5")  # the others say the same, and lab hears nothing
    job, _ = make_job(collab, tmp_path, timeout=2.0, **ENDLESS)

    def kill():
        once_it_runs(tmp_path)
        job.sites["site-2"]._process.kill()

    found, _ = at_once([job.main, kill])
    assert "server (4), site-1 (4), site-2 (-9)" in str(found)
    for site in SITES[:2]:
        assert "nothing has been heard of lab for 2 s" in log_of(tmp_path, site)


def test_members_outlive_the_job_by_as_long_as_they_need_to_say_so(collab, forks, tmp_path):
    job, _ = make_job(collab, tmp_path, **ENDLESS)

    def abort():
        once_it_runs(tmp_path)
        lab = job.sites["site-2"]
        assert os.getpgid(lab._process.pid) != os.getpgid(0)  # which NVFlare kills
        job.facade.call(job, "site-2", "site-2", "end")
        assert lab._process.returncode == 4

    found, nothing = at_once([job.main, abort])
    assert nothing is None
    assert "server (4), site-1 (4), site-2 (4)" in str(found)
    sentence = "the job of NVFlare that carries messages of lab ended"
    assert f"error: {sentence}" in log_of(tmp_path, "site-2")
    for site in SITES[:2]:
        assert f"error: lab ended: {sentence}" in log_of(tmp_path, site)


# ---- where NVFlare is installed ------------------------------------------------------------------

NVFLARE = Path(sys.executable).with_name("nvflare")


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """NVFlare's proof of concept, a server and two clients, which allow the classes of jobs."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NVFLARE_POC_WORKSPACE", str(tmp_path / "poc"))
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])

    def nvflare(*words):
        words = (NVFLARE, *words)
        return subprocess.run(words, check=True, capture_output=True, text=True, timeout=120).stdout

    nvflare("poc", "prepare", "-n", "2")
    project = tmp_path / "project.yml"
    text = (tmp_path / "poc" / "project.yml").read_text()
    project.write_text(text.replace("8002", str(free_port())))
    nvflare("poc", "prepare", "-i", str(project), "--force")
    home = tmp_path / "poc" / "example_project" / "prod_00"
    for site in SITES:
        local = home / site / "local"
        allowed = json.loads((local / "resources.json.default").read_text())
        allowed["class_allow_list"] += ["nvflare.collab.runtime", "vpem.engines.nvflare"]
        (local / "resources.json").write_text(json.dumps(allowed))
    nvflare("poc", "start")
    yield home, nvflare
    with suppress(subprocess.SubprocessError):  # on a busy machine it gives up
        nvflare("poc", "stop")
    for file in (*home.glob("*/daemon_pid.fl"), *home.glob("*/pid.fl")):
        with suppress(OSError, ValueError):
            number = int(file.read_text())
            if os.fsencode(home) in Path(f"/proc/{number}/cmdline").read_bytes():
                os.kill(number, signal.SIGKILL)


installed = pytest.mark.skipif(not NVFLARE.exists(), reason="needs vpem[nvflare], and a minute")


@installed
@pytest.mark.parametrize(
    ("suite", "size", "seats"),
    [(over_sums, 3, None), (over_missing, 4, (1, 2, 3)), (over_fits, 4, (1, 2, 3))],
)
@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
def test_members_in_a_job_find_what_one_process_does(collab, tmp_path, suite, size, seats):
    with carried(collab, tmp_path, size, seats) as (_, engines), one_blas_thread():
        first, *others = at_once([partial(suite.main, engine) for engine in engines])
    assert isinstance(first, str), first
    assert int(first.split()[1]) > 0
    assert all(isinstance(other, str) for other in others), others


@installed
def test_a_federation_finds_what_one_process_does(capsys, collab, federation, tmp_path):
    home, nvflare = federation
    _, files = make_job(collab, home)
    write_job(read_study(home / "server/local/vpem/heart.toml"), "fit", tmp_path / "heart-job")
    number = re.search("job_id: (.*)", nvflare("job", "submit", "-j", str(tmp_path / "heart-job")))
    models = [home / site / number[1] / "heart.h5" for site in SITES]
    until = time.monotonic() + 90.0
    while not all(model.exists() for model in models) and time.monotonic() < until:
        time.sleep(0.5)
    # The server's goes into the job's store with the rest of its folder.
    assert models[1].read_bytes() == models[2].read_bytes()
    found = read_model(models[1])
    assert (found.report["engine"], found.options["accelerate"]) == ("nvflare", "local:8")
    check_alike(capsys, found, files, tmp_path)
