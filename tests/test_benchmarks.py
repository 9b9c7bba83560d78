"""The benchmarks and the fuzzer run, and write what they say. No time is judged here."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import measure, mpi, table
from tests.forks import environment, interpreter
from tests.tables import each

ROOT = Path(__file__).parents[1]


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """Function: run parts at a tiny size, return the exit code and what was written."""
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.__main__ import main

    monkeypatch.setattr(measure, "DGEMM_SIZE", 64)
    measure._square.cache_clear()
    # Processes are forked: their numbers are of no interest.
    found, forked = mpi.launcher(), interpreter()
    monkeypatch.setattr(mpi, "launcher", lambda: found)

    def run(*words):
        size = ("--size", "tiny", "--repeats", "1", "--threads", "1")
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", forked)
            code = main([*words, *size, "--folder", str(tmp_path)])
        written = sorted(tmp_path.glob("*.json"))
        return code, json.loads(written[-1].read_text()) if written else None

    return run


def check(result):
    assert set(result) >= {"name", "case", "base", "median", "seconds", "times_as_fast", "absent"}
    assert set(result["median"]) == set(result["times_as_fast"]) <= set(result["seconds"])
    assert all(len(times) == 1 for times in result["seconds"].values())
    if result["median"]:
        assert result["times_as_fast"][result["base"]] == pytest.approx(1.0)


PARTS = ("agents", "scaling", "outofcore", "missing", "masks", "mpi", "busy",
         "accelerate", "pooled")  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_part_writes_what_it_measured(bench, part):
    code, written = bench(part)
    assert code == 0
    assert written["size"] == "tiny"
    assert written["environment"]["threads"] == 1
    assert list(written["parts"]) == [part]
    assert written["parts"][part]
    for result in written["parts"][part]:
        check(result)


OTHERS = {"One block, an EM iteration", "Two threads beside one",
          "Whole fits, start included, to the same log-likelihood"}  # fmt: skip
"""Parts of the table that are parts by themselves."""


def test_the_table_has_a_row_for_every_peer_and_names_those_that_are_absent(
    bench, monkeypatch, tmp_path
):
    gone = dict.fromkeys(("R", "nlme", "lme4", "mclust"), "absent")
    monkeypatch.setattr(table, "r_packages", lambda: gone)
    monkeypatch.setattr(table, "PARTS", {part: run for part, run in table.PARTS.items()
                                         if part not in OTHERS})  # fmt: skip
    page = tmp_path / "times.md"
    page.write_text("# Times\n\n" + "\nold\n".join(table.ENDS) + "\nThe end.\n")
    monkeypatch.setattr(table, "PAGE", page)
    monkeypatch.setattr(table, "KEPT", tmp_path / "kept.json")
    code, written = bench("table", "--keep")
    assert code == 0
    found = written["parts"]["table"]
    assert {result["part"] for result in found} == set(table.PARTS)
    for result in found:
        check(result)
    assert set(written["absent"]) >= {"nlme", "lme4", "mclust"}
    text = page.read_text()
    assert text.startswith("# Times\n\n")
    assert text.endswith("\nThe end.\n")
    assert "old" not in text
    assert re.search(r"\| -k 1-2 .* \| mclust \| absent: not installed \| \|", text)
    assert re.search(r"csv \| \S+ m?s \| pyarrow, reading alone \| \S+ m?s \| \S+ \(", text)
    assert re.search(r"in memory, 10 agents \| \S+ times \| scikit-learn \| ", text)
    assert json.loads(table.KEPT.read_text())["size"] == "tiny"


def test_what_fails_has_a_row_and_loses_no_other(monkeypatch):
    def gone():
        raise RuntimeError("gone | away\nfor good")

    def peers(options, folder):
        timed = {"vpem": lambda: 2.0, "peer": gone, "other": lambda: 4.0}
        yield measure.compare(options, "a", "case", "peer", timed)

    def own(options, folder):
        yield measure.compare(options, "a", "case", "other", {"other": gone})
        yield measure.compare(options, "a", "case", "vpem", {"vpem": gone})

    monkeypatch.setattr(table, "PARTS", {"One": peers, "Two": own, "Three": peers})
    found = list(table.measure(measure.Options(repeats=2)))
    why = "absent: it failed: gone / away for good | |"
    told = ["| case | 2 s | other | 4 s | 2 (2 to 2) |", f"|  |  | peer | {why}"]
    lost = [f"| case |  | other | {why}", f"| what follows |  | Two | {why}"]
    assert [row for result in found for row in table.rows(result)] == [*told, *lost, *told]
    assert [result["part"] for result in found] == ["One", "Two", "Two", "Three"]
    assert found[2]["failed"] == ["Two: it failed: gone | away for good"]


@each("fails", ["large", "little"])
def test_a_command_that_fails_leaves_times_and_memory_of_the_others(fails, monkeypatch):
    asked = []

    def usage(path, who):
        asked.append(who)
        if (path, who) == (fails, "other"):
            raise RuntimeError("gone")
        return measure.Usage(1.0, 2.0, 500.0 if path == "large" else 100.0, "3.5")

    monkeypatch.setattr(table, "usage", usage)
    commands = {who: [table.TABLE, who] for who in ("vpem", "other")}
    options = measure.Options(repeats=2)
    found = list(table.processes(options, "a", "b", commands, ("large", "little", 100), same=0))
    assert [one["seconds"]["vpem"] for one in found] == [[1.0] * 2, [2.0] * 2, [4.0] * 2]
    assert list(table.rows(found[0])) == ["| b | 1 s | other | absent: it failed: gone | |"]
    assert asked.count("vpem") == 4
    assert found[0]["absent"] == {"other": "it failed: gone"}


def test_a_line_beside_r_has_a_row_for_what_is_not_run_without_the_other(monkeypatch, tmp_path):
    gone = {"R": "4", "nlme": "1", "lme4": "absent", "mclust": "1"}
    monkeypatch.setattr(table, "r_packages", lambda: gone)
    options = measure.Options("tiny", 1, 1)
    first, second = table.rows(table.line(options, "Oxboys", tmp_path))
    assert first.endswith("| lme4 | absent: not installed | |")
    assert second.endswith("| nlme | absent: not run without lme4 | |")


def test_a_fit_that_no_seed_compares_has_a_row():
    pooled = {"scikit-learn": [2.0], "vpem": [], "vpem, squarem": [1.0]}
    result = {"case": "wine", "absent": {}, "seconds": pooled, "facts": {"ratios": {"vpem": []}},
              "median": {"scikit-learn": 2.0, "vpem, squarem": 1.0}}  # fmt: skip
    assert list(table.rows(result)) == ["| wine |  | scikit-learn | 2 s | not compared |"]


def test_the_page_of_times_is_of_what_was_kept():
    kept = json.loads(table.KEPT.read_text(encoding="utf-8"))
    text = "\n".join(table.lines(kept))
    assert f"{table.ENDS[0]}{text}\n{table.ENDS[1]}" in table.PAGE.read_text(encoding="utf-8")
    assert {result["part"] for result in kept["parts"]["table"]} == set(table.PARTS)


def test_kernels_have_twins_and_a_limit(bench):
    results = bench("kernels")[1]["parts"]["kernels"]
    names = {result["name"] for result in results}
    assert names >= {"sweep", "mahalanobis_full", "moments_full", "normalise", "ball"}
    for result in results:
        check(result)
        assert set(result["median"]) == {"kernel", "twin"}
        if result["name"] in ("sweep", "mahalanobis_full", "moments_full"):
            assert result["facts"]["of the limit"] > 0


def test_absent_peer_is_reported(bench, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "daal4py", None)
    _, written = bench("peers")
    assert "scikit-learn-intelex" in written["absent"]["daal4py"]
    for result in written["parts"]["peers"][:-1]:
        check(result)
        assert "daal4py" not in result["median"]
        assert set(result["median"]) == {"vpem", "vpem, every weight", "scikit-learn"}
        assert len(set(result["facts"]["log_likelihood"])) == 4
    assert "absent: daal4py" in capsys.readouterr().out


def test_instructions_are_compared_with_the_guard(bench, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: name)
    from benchmarks import instructions

    before = json.loads(instructions.GUARD.read_text())["counts"]
    monkeypatch.setattr(instructions, "callgrind", lambda: dict(before))
    assert bench("instructions")[0] == 0
    more = before | {"sweep": int(1.06 * before["sweep"])}
    monkeypatch.setattr(instructions, "callgrind", lambda: more)
    code, written = bench("instructions")
    assert code == 1
    assert written["parts"]["instructions"][0]["failed"][0].startswith("sweep: ")


def test_callgrind_file_is_read(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.instructions import counts

    text = """fn=(1) main
cfn=(2) __pyx_pw_4vpem_5_core_5sweep_3sweep
calls=1 0
5 1000
fn=(2)
cfn=(3) __pyx_fuse_1__pyx_pw_4vpem_5_core_5sweep_9sweep
calls=1 0
+4 900
fn=(1)
cfn=(3)
calls=1 0
* 50
cfn=(4) __pyx_pw_4vpem_5_core_11covariances_1covariances_full
calls=2 0
7 30
"""
    assert counts(text) == {"sweep": 950, "covariances_full": 30}


def test_profile_names_the_tools_and_once_runs_ours_alone(bench, capsys, monkeypatch):
    assert bench("agents", "--once") == (0, None)
    bench("agents", "--profile")
    printed = capsys.readouterr().out
    assert "perf record" in printed
    assert "cumulative" in printed
    with pytest.raises(SystemExit):
        bench("kernel")
    monkeypatch.setattr("shutil.which", lambda name: None)
    code, written = bench("instructions")
    assert code == 0
    assert "no instructions" in written["absent"]["valgrind"]


@pytest.mark.parametrize("part", ["oxford", "averages", "steps", "bifactor", "speed", "moves"])
def test_saem_experiments_say_what_they_found(monkeypatch, tmp_path, part):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import saem

    assert saem.main(["--only", part, "--folder", str(tmp_path)]) == 0
    written = json.loads((tmp_path / f"saem-{part}-small.json").read_text())
    assert written["says"].endswith(".")
    assert written["rows"]
    assert (tmp_path / f"saem-{part}-small.png").stat().st_size > 10_000


def test_saem_likelihoods_of_curves_agree(monkeypatch):
    """Quadrature against a fine grid, of one person."""
    monkeypatch.syspath_prepend(ROOT)
    import numpy as np

    from benchmarks.saem_curves import NLME, quadrature, theophylline_data
    from vpem.saem.models.mixed import OneCompartmentModel

    model = OneCompartmentModel(theophylline_data().take([2]), random=("ka", "cl"))
    middle = NLME[:2]
    sd = np.sqrt(NLME[3:5])
    axes = [np.linspace(m - 5 * s, m + 5 * s, 45) for m, s in zip(middle, sd, strict=True)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 1, 2)
    cell = np.prod([axis[1] - axis[0] for axis in axes])
    logs = model.log_complete(grid, NLME)[:, 0]
    exact = np.log(np.exp(logs - logs.max()).sum() * cell) + logs.max()
    assert quadrature(model, NLME, 9)[0] == pytest.approx(exact, abs=1e-3)


def test_masks_leave_nothing_to_guess_from_but_totals(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import attacks

    monkeypatch.setattr(attacks, "DRAWS", 3)
    wine = attacks.read_dataset(ROOT / "data" / "wine.h5")
    rows = attacks.rows_of("wine", wine, 13, 12, n_components=2, max_iter=20)
    found = {row.pop("name").partition(": ")[2]: [*map(float, row.values())] for row in rows}
    assert min(found["one message, plain"] + found["21 messages, plain"]) > 0.9
    assert max(found["one message, masked"] + found["21 messages, masked"]) < 0.6
    assert found["21 totals"][-1] > 0.9  # which the page owns up to


def test_hubs_by_likelihood_are_held_against_those_by_size():
    from benchmarks.hubs import measure, table
    from benchmarks.measure import Options

    (found,) = measure(Options("small"))
    assert found["graphs"] == 2
    assert found["BIC"]["likelihood"] <= found["BIC"]["size"]
    assert "| wine, 2 cycle |" in table([found])


def test_mixed_data_have_parties_for_all_features_and_a_table():
    from benchmarks.mixed import measure, shown

    found = list(measure(size="small"))
    told = {row["fit"]: row["found"] for row in found}
    assert found[0]["missing"] == 6
    assert told["families, 3 parties"][0] > told["Gaussian on codes, 3 parties"][0]
    peer = told["the same, StepMix from the same start"]
    own = told["Gaussian (diagonal) and categories, one agent"]
    if not isinstance(peer, str):  # it is installed
        assert peer[1] == pytest.approx(own[1], abs=1e-4)
    assert len(list(shown(iter(found)))) == 2 + len(found)


# ---- the fuzzer of files -------------------------------------------------------------------------


PLAIN = "from benchmarks.fuzz.__main__ import main; import sys; sys.exit(main({words!r}))"
PLANTED = {
    "exit code 1": "def planted(*words): raise KeyError('planted')",
    "signal 11": "def planted(*words): import os; os.kill(os.getpid(), 11)",
    "memory": "def planted(*words): return (b'x' * (11 * 10**8))[0]",
    "left a temporary file": "def planted(*words): open('.vpem-left.h5', 'w')",
}


def fuzz(*words, planted=""):
    """Run the program in a process of its own, from which it forks."""
    script = planted + PLAIN.format(words=[*map(str, words), "--json"])
    done = subprocess.run(
        [interpreter(), "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=300,
        env=environment(),
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout or "null"), done.stderr


@pytest.mark.parametrize(
    ("runs", "kinds", "refused"),
    [(6, ("partition", "options"), None), (60, ("handshake", "link"), "link")],
)
def test_a_short_run_finds_nothing_wrong(runs, kinds, refused):
    """Doors stand whoever comes."""
    code, found, err = fuzz("--runs", runs, *(f"--only={kind}" for kind in kinds))
    assert (code, err, found["defects"]) == (0, "", [])
    tallies = found["kinds"]
    assert runs <= sum(tally["runs"] for tally in tallies.values()) <= runs + 12
    assert tallies[refused]["refused"] if refused else sum(t["refused"] for t in tallies.values())


def test_what_is_planted_is_counted_and_kept(tmp_path):
    plant = (
        "import itertools, vpem_cli; numbers = itertools.count();\n"
        f"sorts = {list(PLANTED.values())!r}\n"
        "def run(words):\n"
        "    space = {}\n"
        "    exec(sorts[int(open('../number').read()) % 4], space)\n"
        "    space['planted']()\n"
        "    return 0\n"
        "import benchmarks.fuzz.__main__ as program\n"
        "chosen = program._next\n"
        "def next_run(number, *rest):\n"
        "    run, prepare = chosen(number, *rest)\n"
        "    def prepared(work):\n"
        "        (work.parent / 'number').write_text(str(number))\n"
        "        vpem_cli.run = globals()['run']\n"
        "        return prepare(work)\n"
        "    return run, prepared\n"
        "program._next = next_run\n"
    )
    code, found, err = fuzz("--runs", 4, "--only", "key", "--keep", tmp_path, planted=plant)
    assert code == 1, err
    assert [defect["defects"][0] for defect in found["defects"]] == list(PLANTED)
    for number in range(4):
        note = (tmp_path / f"run-{number}" / "command.txt").read_text().splitlines()
        assert (
            note[0] == f"cd {tmp_path}/run-{number}/work && {found['defects'][number]['command']}"
        )
        assert (tmp_path / f"run-{number}" / "work").is_dir()


@each("family", ["hdf5", "text", "json"])
def test_a_number_makes_the_same_damage(monkeypatch, tmp_path, family):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.fuzz.mutations import change_file
    from benchmarks.fuzz.seeds import _dataset, _table, as_json

    make, name = {
        "hdf5": (_dataset, "data.h5"), "text": (_table, "t.csv"),
        "json": (as_json({"a": [1, 2], "b": {"c": "d"}}), "p.json"),
    }[family]  # fmt: skip
    same = 0
    for number in range(12):
        found = []
        for turn in ("one", "two"):
            (tmp_path / f"{turn}{number}{family}").mkdir()
            path = tmp_path / f"{turn}{number}{family}" / name
            make(path)
            whole = path.read_bytes()
            told = change_file(path, family, np.random.default_rng(number))
            found.append((told, path.read_bytes() if path.is_file() else None))
        assert found[0] == found[1]
        same += found[0][1] == whole
    assert same < 6
