"""`vpem doctor`: facts of this installation, and problems that are found when they are there."""

import json
import sys

import numpy as np
import pytest

from vpem._core import sweep
from vpem._core.threads import thread_count
from vpem.pictures import installation

from .cli_support import done, run
from .tables import each


@pytest.fixture
def light(monkeypatch):
    """Leave out what takes long to load: it is looked at once, by the first test."""
    for name in list(installation.NEEDED):
        if name not in ("numpy", "h5py"):
            monkeypatch.delitem(installation.NEEDED, name)
    monkeypatch.setattr("vpem.pictures.installation.EXTRAS", {})
    monkeypatch.setattr("vpem.pictures.installation.mpi", mpi)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def mpi(report):
    """Stands for the check of MPI, which takes long."""
    report["mpi"] = {"library": None, "mpiexec": None, "launcher": None}
    return ()


def advised(capsys):
    """Exit code, and problems with whether they are of what is needed."""
    result = run(capsys, "doctor", "--json")
    found = result.json
    assert found["works"] == (result.code == 0)
    return result.code, [(one["needed"], one["advice"]) for one in found["problems"]]


def test_this_installation_works(capsys):
    result = done(capsys, "doctor", "--json")
    found = result.json
    assert (found["works"], result.err) == (True, "")
    assert not [one for one in found["problems"] if one["needed"]]
    assert found["libraries"]["numpy"] == np.__version__
    assert found["libraries"]["python"] == sys.version.split()[0]
    assert found["processors"]["threads"] == thread_count(None)
    assert found["kernels"]["instructions"] == sweep.instruction_set()
    assert "sweep" in found["kernels"]["built"]
    assert 0 <= found["kernels"]["largest_error"] <= 1
    assert {one["user_api"] for one in found["blas"]} >= {"blas"}
    assert found["extras"]["mpi4py"]["version"] is not None
    assert found["mpi"]["launcher"] in ("MPICH", "Open MPI")


def test_facts_and_options_in_variables_for_a_reader(capsys, light, monkeypatch):
    out = done(capsys, "doctor").out
    for word in ("numpy", "threads of the kernels", "agree with NumPy", "temporary folder"):
        assert word in out
    for name in ("VPEM_FIT_COMPONENTS", "VPEM_CACHE"):
        monkeypatch.setenv(name, "3")
        found = done(capsys, "doctor", "--json").json
        assert found["variables"][name] == "3"
        assert not [one for one in found["problems"] if name in one["advice"]]


# ---- problems -----------------------------------------------------------------------------------


def test_a_library_that_cannot_be_loaded(capsys, light, monkeypatch):
    monkeypatch.setitem(installation.NEEDED, "nothing", "vpem_nothing_of_this_name")
    code, problems = advised(capsys)
    assert code == 2
    assert problems[0][0] is True
    assert problems[0][1].startswith("nothing cannot be loaded: No module named")
    first = run(capsys, "doctor")
    assert first.code == 2
    assert first.out.startswith("broken: nothing cannot be loaded")


def test_kernels_that_fail_or_compute_something_else(capsys, light, monkeypatch):
    kernel = sweep.sweep

    def failing(*arguments):
        raise ValueError("Buffer dtype mismatch\nmore")

    def wrong(*arguments):
        found = kernel(*arguments)
        arguments[9][...] *= 1 + 1e-6
        return found

    for made, said in (
        (failing, "the kernels fail: Buffer dtype mismatch; build them again"),
        (wrong, "do not agree with NumPy"),
    ):
        monkeypatch.setattr(sweep, "sweep", made)
        code, problems = advised(capsys)
        assert code == 2
        assert [needed for needed, advice in problems if said in advice] == [True]


@each(
    ("name", "value", "said"),
    [
        ("OMP_NUM_THREADS", "1000", "1000 threads would share"),
        ("OMP_NUM_THREADS", "many", "OMP_NUM_THREADS is 'many', which is not a number"),
        ("VPEM_INSTRUCTIONS", "sse", "VPEM_INSTRUCTIONS is 'sse'; it may be base or avx2"),
        ("VPEM_FIT_COMPONENT", "3", "(did you mean 'VPEM_FIT_COMPONENTS'?); unset it"),
    ],
)
def test_variables_that_do_harm_are_notes(capsys, light, monkeypatch, name, value, said):
    with monkeypatch.context() as patch:
        patch.setenv(name, value)
        code, problems = advised(capsys)
    assert code == 0
    assert [needed for needed, advice in problems if said in advice] == [False]


def test_a_temporary_folder_that_is_not_there(capsys, light, monkeypatch, tmp_path):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    code, problems = advised(capsys)
    assert code == 2
    assert any("set TMPDIR" in advice for _, advice in problems)


@each(
    ("variable", "usable", "limit", "threads", "why"),
    [
        ("3,2", 4, None, 3, "OMP_NUM_THREADS"),
        ("many", 4, 1.5, 2, "what the container may use"),
        ("", 4, 6.0, 4, "processors that the process may run on"),
        ("", 8, None, 8, "one per processor"),
        ("2", 4, 0.5, 2, "OMP_NUM_THREADS"),
    ],
)
def test_why_so_many_threads(monkeypatch, variable, usable, limit, threads, why):
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr("vpem._core.threads.processor_limit", lambda: limit)
    monkeypatch.setattr("vpem._core.threads._sharing", [])
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(usable)), raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    found = {}
    told = list(installation.processors(found))
    found = found["processors"]
    assert (found["threads"], found["why"]) == (threads, why)
    if limit == 0.5:
        assert told == [
            "note: 2 threads would share 0.5 processors that the container may use; set "
            "OMP_NUM_THREADS=1"
        ]


def test_a_launcher_of_another_mpi(monkeypatch):
    said = {"-c": "Open MPI v5.0.1, package", "--version": "HYDRA build details:"}
    monkeypatch.setattr("vpem.pictures.installation._output", lambda *words: said[words[1]])
    monkeypatch.setattr(installation.shutil, "which", lambda *_, **__: "/somewhere/mpiexec")
    found = {}
    problems = list(installation.mpi(found))
    assert found["mpi"]["launcher"] == "MPICH"
    assert problems[0].startswith(
        "note: mpi4py is built for Open MPI, but /somewhere/mpiexec belongs"
    )
    said["--version"] = "mpiexec (OpenRTE) 5.0"
    assert list(installation.mpi({})) == []


def test_an_extra_that_is_broken_is_a_note(monkeypatch):
    monkeypatch.setattr(installation, "EXTRAS", {"numpy": ("vpem_no_module", "plot", "pictures"),
                                            "not-there": ("x", "sdp", "weights")})  # fmt: skip
    found = {}
    problems = list(installation.extras(found))
    found = found["extras"]
    assert found["not-there"]["version"] is None
    assert found["not-there"]["install"] == "pip install 'vpem[sdp]'"
    assert [problem[:5] for problem in problems] == ["note:"]
    assert json.dumps(found)
