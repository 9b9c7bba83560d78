"""`vpem select`: its table and JSON, the model it writes, what it keeps and what it refuses."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
from multiprocessing.process import BaseProcess

import numpy as np
import pytest

import vpem_cli
from vpem import VpemError, read_model
from vpem.files.checkpoints import FileSaver, read_state
from vpem.fits.selection.search import _Process, waiting
from vpem.fits.settings import PrivacySettings
from vpem_cli.commands.select import stopping

from .cli_support import done, make_data, run
from .forks import interpreter
from .tables import each


def without_times(cells):
    return [{name: value for name, value in cell.items() if name != "seconds"} for cell in cells]


GRID = ("-k", "1-3", "--jobs", 1, "--tol", 1e-4)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data") / "patients.h5")


@pytest.fixture
def select(capsys, data):
    """Function: run `vpem select` on the data and return its JSON."""

    def call(*words, source=data):
        return done(capsys, "select", source, *GRID, "--json", *words).json

    return call


# ---- the model ----------------------------------------------------------------------------------


def untimed(report, *without):
    left_out = {"seconds", "iterations_per_second", *without}
    return {name: value for name, value in report.items() if name not in left_out}


def same_models(*paths):
    """Read two models, and hold them against each other to the bit."""
    one, two = map(read_model, paths)
    for name in ("weights", "means", "covariances"):
        assert np.array_equal(getattr(one.mixture, name), getattr(two.mixture, name)), name
    assert np.array_equal(one.history, two.history)
    assert of_search(one.options) == of_search(two.options)
    return one, two


def of_search(options):
    """Return the options that a search has, too: others are as nobody asked for them here."""
    others = {"hubs": "size", "labels_at": None, "labels_for_fit": None} | vars(PrivacySettings())
    others |= {"concentration": None, "fix": None}
    assert {options.get(name, others[name]) == others[name] for name in others} == {True}
    return {name: value for name, value in options.items() if name not in others}


@each(
    "words",
    [
        ("--topology", "cycle", "--hops", "0-1", "--covariance", "full,diag"),
        ("--criterion", "heldout", "--folds", 2, "--topology", "star", "--dtype", "float32"),
        ("--split", "rows", "--workers", 3, "--topology", "cycle", "--criterion", "icl"),
        ("--batch-size", 50, "--missing", "marginalize", "--criterion", "aic"),
    ],
)
def test_the_model_is_that_of_vpem_fit(capsys, data, select, tmp_path, words):
    found = select(*words, "-o", tmp_path / "best.h5", "--force")
    cell = found["cells"][found["best"]]
    assert found["better"] == ("higher" if found["criterion"] == "heldout" else "lower")
    own = {"--hops", "--covariance", "--criterion", "--folds"}
    pairs = [words[i : i + 2] for i in range(0, len(words), 2)]
    rest = [("--n-init" if word == "--restarts" else word, value) for word, value in pairs]
    same = [str(word) for pair in rest if pair[0] not in own for word in pair]
    if found["split"] == "features":
        same += ["--hops", cell["hops"]]
    fit = done(
        capsys, "fit", data, "-k", cell["n_components"], "--covariance", cell["covariance_type"],
        "--threads", 1, "--tol", 1e-4, *same, "-o", tmp_path / "fit.h5", "--force", "--json",
    ).json  # fmt: skip
    one, two = same_models(tmp_path / "best.h5", tmp_path / "fit.h5")
    assert untimed(one.report) == untimed(two.report)
    missing = ["--missing", "marginalize"] if "--missing" in words else []
    score = done(capsys, "score", tmp_path / "best.h5", data, "--json", *missing).json
    assert score["n_parameters"] == cell["n_parameters"]
    if found["criterion"] != "heldout":
        for name in ("log_likelihood", "bic", "aic"):
            assert cell[name] == pytest.approx(score[name], rel=1e-12)
            # Roots find it by sums of their own.
            assert cell[name] == pytest.approx(fit[name], rel=1e-5)
        assert cell["restart"] == fit["restart"]
        assert cell["icl"] >= cell["bic"]


# ---- what is shown ------------------------------------------------------------------------------


def test_what_did_not_converge_or_failed_is_shown_and_told(capsys, tmp_path):
    source = make_data(tmp_path / "few.h5", n_samples=20)
    words = ("select", source, "-k", "1,3,30", "--max-iter", 2, "--jobs", 1)
    result, found = done(capsys, *words), done(capsys, *words, "--json").json
    states = ["converged", "not converged", "failed"]
    assert [cell["status"] for cell in found["cells"]] == states
    assert all(state in result.out for state in states)
    assert found["best"] == 0
    lines = result.err.splitlines()
    assert lines[0].startswith("vpem: warning: 1 of 3 models failed; the first, K = 30, 0 hops")
    assert len(found["warnings"]) == len(lines)
    assert run(capsys, *words, "--strict").code == 3
    assert run(capsys, "select", source, "-k", 1, "--jobs", 1, "--strict").code == 0


def test_a_better_one_that_did_not_converge_is_passed_over_aloud(capsys, tmp_path):
    source = make_data(tmp_path / "far.h5", gap=2.5, n_components=3)
    result = done(capsys, "select", source, "-k", "1,3", "--max-iter", 3, "--jobs", 1)
    assert "did not converge, and was passed over; try more --max-iter" in result.err
    best = next(line for line in result.out.splitlines() if line.lstrip().startswith("best"))
    assert best.split()[1] == "1"
    none = done(capsys, "select", source, "-k", "3", "--max-iter", 2, "--jobs", 1)
    assert "no model converged; K = 3, 0 hops, full is the best;" in none.err


# ---- what is kept -------------------------------------------------------------------------------


def test_a_second_run_fits_nothing_anew_and_another_search_is_refused(
    capsys, select, data, tmp_path
):
    words, state = ("-o", tmp_path / "best.h5", "--restarts", 2), tmp_path / "best.select.h5"
    first = select(*words)
    assert first["state"] == str(state)
    assert (first["n_fits"], first["n_kept"]) == (6, 0)
    again = done(capsys, "select", data, *GRID, *words, "--json", "--force")
    assert again.json["n_kept"] == 6
    assert "6 of 6 fits are in" in again.err
    assert again.json["cells"] == first["cells"]
    more = select("-k", "1-4", "--state", state, "--restarts", 2)
    assert (more["n_fits"], more["n_kept"]) == (8, 6)
    before, words = state.read_bytes(), ("select", data, *GRID, "--state", state)
    for change, said in (
        (("--tol", 1e-3), "another selection: tol was 0.0001, now it is 0.001"),
        (("--topology", "complete"), "who is joined in the graph is not the same"),
        (("--agents", 2), "belongs to another selection"),
    ):
        refused = run(capsys, *words, *change)
        assert (refused.code, said in refused.err) == (2, True)
        assert state.read_bytes() == before
    assert select("--state", state, "--tol", 1e-3, "--force")["n_kept"] == 0
    assert select("--state", state, "--tol", 1e-3)["n_kept"] == 3


SEARCH = ("-k", "1-3", "--restarts", 2, "--json", "-q")

PAUSING = """
import sys, time
import vpem.fits.selection.trials as holding, vpem.fits.selection.search as jobs
def pausing(method):
    calls = []
    def call(*words, **options):
        calls.append(1)
        if len(calls) > 2:
            print("now", file=sys.stderr, flush=True)
            time.sleep(60)
        return method(*words, **options)
    return call
holding.fit_vpem = pausing(holding.fit_vpem)
jobs._Process.answer = pausing(jobs._Process.answer)
if __name__ == "__main__":
    import vpem_cli
    vpem_cli.main(sys.argv[1:])
"""
"""Does two fits, and is then busy with the third for a minute."""


@pytest.fixture(scope="module")
def whole(data):
    """JSON of the search that nobody ends."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert vpem_cli.run(["select", str(data), *map(str, SEARCH), "--jobs", "1"]) == 0
    return json.loads(out.getvalue())


@pytest.mark.parametrize(
    ("sign", "jobs", "code"),
    [(signal.SIGINT, 1, 130), (signal.SIGTERM, 2, 143), (signal.SIGKILL, 1, -9)],
    ids=["Ctrl-C", "SIGTERM", "SIGKILL"],
)
def test_a_search_that_is_ended_goes_on(capsys, data, whole, tmp_path, sign, jobs, code):
    state = tmp_path / "state.h5"
    words = ["select", data, *SEARCH, "--state", state, "--jobs"]
    process = subprocess.Popen(
        [interpreter(), "-c", PAUSING, *map(str, words), str(jobs)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr.readline() == "now\n"
    process.send_signal(sign)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (code, "")
    assert len(read_state(state)["results"]) == 2
    if sign != signal.SIGKILL:
        name = "Ctrl-C" if sign == signal.SIGINT else "SIGTERM"
        assert err == (
            f"vpem: error: interrupted by {name}; 2 of 6 fits are in {state}: give the same "
            "command to go on\n"
        )
    again = done(capsys, *words, 1).json
    assert again["n_kept"] == 2
    assert without_times(again["cells"]) == without_times(whole["cells"])
    assert again["best"] == whole["best"]


def test_a_search_that_is_ended_before_its_first_fit_says_so(capsys, data, tmp_path, monkeypatch):
    def stopped(*_, **__):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("vpem.fits.selection.search.search", stopped)
    state = tmp_path / "state.h5"
    told = run(capsys, "select", data, *SEARCH, "--state", state)
    assert (told.code, told.out) == (143, "")
    assert told.err == "vpem: error: interrupted by SIGTERM; no fit was finished yet\n"
    assert not state.exists()


def test_signals_wait_until_a_process_has_been_begun(monkeypatch):
    """One that comes while the problem is being sent would leave it truncated."""
    begun = []
    start = BaseProcess.start

    def interrupted(process):
        os.kill(os.getpid(), signal.SIGTERM)
        start(process)
        begun.append(process)

    def raising(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(BaseProcess, "start", interrupted)
    before = signal.signal(signal.SIGTERM, raising)
    try:
        with pytest.raises(KeyboardInterrupt):
            _Process(None)
    finally:
        signal.signal(signal.SIGTERM, before)
    (process,) = begun
    assert process.exitcode == -signal.SIGKILL


def test_signals_wait_for_what_is_being_written():
    written = []

    def disturbed():
        with stopping(lambda: f"{len(written)} is kept"):
            with waiting():
                signal.raise_signal(signal.SIGTERM)
                written.append("one")
            written.append("another")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(VpemError, match="interrupted by SIGTERM; 1 is kept") as caught:
        disturbed()
    assert caught.value.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) is before


# ---- data that weigh, or stay on disk -----------------------------------------------------------


def test_data_may_stay_on_disk(capsys, select, data):
    held = ("--criterion", "heldout", "--folds", 2)
    words = ("-k", "1-3", "--tol", 1e-4, "--memory-limit", "1KB")
    stored = done(capsys, "select", data, *words, *held, "--json").json
    assert stored["jobs"] == 1
    for one, two in zip(stored["cells"], select(*held)["cells"], strict=True):
        assert one["heldout"] == pytest.approx(two["heldout"], rel=1e-9)
    refused = run(capsys, "select", data, *words, "--jobs", 2)
    assert refused.sentence.startswith("--jobs 2 is for data in memory, but these are read from")


# ---- vpem fit -k 1-3 ----------------------------------------------------------------------------

SEVERAL = ("-k", "1-3", "--tol", 1e-4, "--threads", 1)


@each(
    "words",
    [
        ("--restarts", 2, "--init", "random"),
        ("--split", "rows", "--workers", 3, "--labels", "labels.csv", "--scale", "standard"),
    ],
)
def test_a_fit_of_several_is_what_select_and_a_fit_of_the_best_find(
    capsys, data, tmp_path, monkeypatch, words
):
    monkeypatch.chdir(tmp_path)
    found = done(capsys, "fit", data, *SEVERAL, *words, "-o", "several.h5", "--force", "--json")
    same = [word for word in words if word not in ("--labels", "labels.csv")]
    grid = done(capsys, "select", data, *GRID, *same, "--json").json
    best, kept = grid["cells"][grid["best"]], found.json["selection"]
    assert (kept["criterion"], kept["best"]) == ("bic", grid["best"])
    assert [cell["bic"] for cell in kept["cells"]] == [cell["bic"] for cell in grid["cells"]]
    lines = [line for line in found.err.splitlines() if line.startswith("BIC by components")]
    assert f"{best['n_components']}: {best['bic']:.2f}, kept" in lines[0]
    table = (tmp_path / "labels.csv").read_text() if "--labels" in words else None
    (tmp_path / "labels.csv").unlink(missing_ok=True)
    count = best["n_components"]
    one = ("-o", "one.h5", "--force", "--json")
    alone = done(capsys, "fit", data, "-k", count, *SEVERAL[2:], *words, *one)
    same_models("several.h5", "one.h5")
    assert untimed(found.json, "selection", "model") == untimed(alone.json, "selection", "model")
    if table is not None:
        assert (tmp_path / "labels.csv").read_text() == table


def test_each_of_several_goes_on_from_a_state_of_its_own(capsys, data, tmp_path, monkeypatch):
    words = ("fit", data, *SEVERAL, "--checkpoint-every", 1, "--json")
    whole = done(capsys, *words, "--checkpoint", tmp_path / "whole.ckpt").json
    offer, offers = FileSaver.offer, []

    def ending(saver, *given, **more):
        offers.append(saver.path.name)
        if offers.count("run.k2.ckpt") == 3:
            saver.signal = signal.SIGTERM
        offer(saver, *given, **more)

    monkeypatch.setattr(FileSaver, "offer", ending)
    words = (*words, "--checkpoint", tmp_path / "run.ckpt")
    ended = run(capsys, *words)
    assert (ended.code, ended.out) == (143, "")
    assert "the state after 3 iterations is in" in ended.err
    assert sorted(p.name for p in tmp_path.glob("run.*")) == ["run.k1.ckpt", "run.k2.ckpt"]
    monkeypatch.setattr(FileSaver, "offer", offer)
    assert "run.k1.ckpt exists" in run(capsys, *words).sentence
    again = done(capsys, *words, "--resume").json
    for name in ("history", "bic", "n_iter", "mixing_weights"):
        assert again[name] == whole[name]
    assert without_times(again["selection"]["cells"]) == without_times(whole["selection"]["cells"])


# ---- what is refused ----------------------------------------------------------------------------


def test_diagonal_models_are_fitted_once_for_all_hops(capsys, data, select):
    words = ("--topology", "cycle", "--hops", "0-1", "--covariance", "full,diag,tied-diag,tied")
    found = select("-k", 2, *words)
    cells = {(cell["covariance_type"], tuple(cell["stands_for_hops"])) for cell in found["cells"]}
    assert cells == {("full", (0,)), ("full", (1,)), ("tied", (0,)), ("tied", (1,)),
                     ("diag", (0, 1)), ("tied-diag", (0, 1))}  # fmt: skip
    assert found["n_fits"] == 6
    cell = next(one for one in found["cells"] if one["covariance_type"] == "diag")
    for hops in (0, 1):
        fit = done(capsys, "fit", data, "-k", 2, *words[:2], "--hops", hops, "--covariance", "diag",
                   "--tol", 1e-4, "--json").json  # fmt: skip
        assert fit["log_likelihood"] == pytest.approx(cell["log_likelihood"], abs=1e-5)
        assert fit["n_parameters"] == cell["n_parameters"]
    # So are those of hops by which one hub has everybody.
    star = ("--hops", "0-2,9", "--topology", "star", *words[4:])
    shown = done(capsys, "select", data, "-k", 2, "--jobs", 1, *star)
    assert re.search(r"fits +6$", shown.out, re.MULTILINE)
    assert " 0-2, 9 " in shown.out
    assert shown.err.count("centralizes") == 1
    # Noisy sums tell hubs apart.
    assert select("-k", 2, *words, "--compress", "qsgd:8bits", "--max-iter", 3)["n_fits"] == 8


def test_held_out_rows_judge_many_covariance_types(capsys, data):
    words = ("-k", "1-2", "--covariance", "diag,tied-diag,spherical", "--criterion", "heldout")
    shown = done(capsys, "select", data, *words, "--folds", 2, "--jobs", 1, "--max-iter", 20).out
    assert "held-out" in shown
    best = shown.partition("The best three")[2]
    assert "s.e." in best
    assert "+0.0000, 0.0000" in best
    assert "rel. entropy" not in best
