"""Where a command meets its surroundings: streams, interrupts, files given twice, foreign text."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import h5py
import numpy as np
import pytest

import vpem_cli
from vpem.errors import printable
from vpem.files.data import read_dataset
from vpem.files.models import read_model, write_model
from vpem.terms.units import Scaling

from .cli_support import MAIN, NAMES, done, listing, make_data, run, spawn
from .forks import environment, interpreter
from .tables import each


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("boundary")
    make_data(folder / "d.h5", n_samples=60)
    words = ["fit", str(folder / "d.h5"), "--max-iter", "5", "--tol", "10", "-q"]
    assert vpem_cli.run([*words, "-o", str(folder / "m.h5")]) == 0
    return folder


@pytest.fixture
def folder(tmp_path, sound, monkeypatch):
    """The working directory: a dataset and a model fitted to it."""
    for name in ("d.h5", "m.h5"):
        (tmp_path / name).write_bytes((sound / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ---- streams ------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["score m.h5 d.h5", "--help"])
def test_a_full_disk_behind_stdout(folder, words):
    with open("/dev/full", "w") as full:
        found = subprocess.run(
            [sys.executable, "-c", MAIN, *words.split()],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False,
        )  # fmt: skip
    assert found.returncode == 2
    said = "vpem: error: standard output cannot be written: No space left on device\n"
    assert found.stderr == said


def shell(line, *words):
    """Run a shell line in which "$@" is the command."""
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}", "bash", interpreter(), "-c", MAIN, *words],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_stdout_is_closed(folder):
    found = shell('"$@" >&-', "fit", "d.h5", "--json", "-q", "--max-iter", "3")
    assert found.returncode == 2
    assert found.stderr == "vpem: error: standard output cannot be written: it is closed\n"


def test_a_closed_stdout_is_no_matter_where_nothing_is_printed(folder):
    assert shell('"$@" >&-', "predict", "m.h5", "d.h5", "-q", "-o", "p.csv").returncode == 0
    assert len((folder / "p.csv").read_text().splitlines()) == 61


@pytest.mark.parametrize("words", ["predict m.h5 d.h5 --json", "sample m.h5 -n 20000"])
def test_a_reader_that_does_not_read(folder, words):
    found = shell('"$@" | true', *words.split())
    assert (found.returncode, found.stderr) == (0, "")


def test_nobody_reads_the_messages(folder):
    words = ("predict", "m.h5", "d.h5", "-o", "p.csv")
    for line in ('"$@" 2>/dev/full', '"$@" 2>&- --force', '"$@" --force 2>&1 | true'):
        found = shell(line, *words)
        assert found.returncode in (0, 120)  # Python's own flush of stderr
        assert len((folder / "p.csv").read_text().splitlines()) == 61


def test_a_home_that_cannot_be_written_is_no_matter(folder):
    words = ["plot", "m.h5", "--kind", "graph", "-o", "g.png", "-q"]
    result = spawn(*words, env=environment(HOME="/proc", XDG_CACHE_HOME="/proc"))
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps a folder that is used")
@pytest.mark.parametrize(
    ("words", "before"),
    [
        ("DATA -o m.h5", "m.h5 cannot be written: [Errno 2] No such file or directory; "),
        ("DATA --checkpoint c", ""),
        ("d.h5", "'d.h5' does not exist; "),
        ("DATA", None),
    ],
)
def test_a_working_folder_that_was_removed(capsys, folder, monkeypatch, words, before):
    (folder / "gone").mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(folder / "gone")
        (folder / "gone").rmdir()
        given = words.replace("DATA", str(folder / "d.h5")).split()
        result = run(capsys, "fit", *given, "--max-iter", 2, "--tol", 10, "-q")
    if before is None:
        assert result.code == 0
    else:
        assert result.code == 2
        assert result.sentence == (
            f"{before}the working folder has been removed: go to one that exists"
        )


def test_names_beyond_the_encoding_of_the_terminal(folder):
    with h5py.File("d.h5", "a") as file:
        del file["feature_names"]
        file["feature_names"] = ["größe", *NAMES[1:]]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    found = spawn("data", "describe", "d.h5", env=environment)
    assert (found.returncode, found.stderr) == (0, "")
    assert r"gr\xf6\xdfe" in found.stdout
    found = spawn("score", "m.h5", "d.h5", env=environment)
    assert found.returncode == 2
    found = spawn("score", "größe.h5", "d.h5", env=environment)
    assert found.stderr == "vpem: error: 'gr\\xf6\\xdfe.h5' does not exist\n"


@pytest.mark.parametrize(("words", "path"), [("", "vpem"), ("data", "vpem data"),
                                             ("model", "vpem model")])  # fmt: skip
def test_a_group_alone_prints_its_help(capsys, words, path):
    wanted = done(capsys, *words.split(), "--help").out
    result = run(capsys, *words.split())
    assert (result.code, result.out) == (2, "")
    assert result.err.rstrip() == wanted.rstrip()
    assert result.err.startswith(f"Usage: {path} [OPTIONS] COMMAND")


# ---- interrupts ---------------------------------------------------------------------------------

INTERRUPTED = """
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
"""


@pytest.mark.parametrize("module", ["typer", "numpy", "vpem.files.models"])
def test_an_interrupt_of_an_import(folder, module):
    before = listing(folder)
    program = INTERRUPTED.replace("MODULE", repr(module)) + MAIN
    found = subprocess.run(
        [sys.executable, "-c", program, "fit", "d.h5", "-o", "new.h5"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (found.returncode, found.stdout) == (130, "")
    assert found.stderr == "vpem: error: interrupted; nothing was written\n"
    assert listing(folder) == before


# Shells start what runs in the background with Ctrl-C ignored; a foreground process has it.
FOREGROUND = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {MAIN}"


def test_ctrl_c_ends_a_long_fit_and_leaves_nothing(folder):
    """The progress, shown in a terminal after a second, says when the fit is on its way."""
    before = listing(folder)
    words = ["fit", "d.h5", "--max-iter", str(10**8), "--tol", "0", "-o", "new.h5"]
    terminal, its_end = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen(
        [sys.executable, "-c", FOREGROUND, *words],
        stdout=subprocess.PIPE, stderr=its_end, cwd=folder, env=environment,
    ) as process:  # fmt: skip
        os.close(its_end)
        read_until(terminal, b"/s")
        process.send_signal(signal.SIGINT)
        shown = read_until(terminal, None)
        assert process.stdout.read() == b""
        assert process.wait(timeout=300) == 130
    os.close(terminal)
    assert b"Traceback" not in shown
    assert shown.count(b"vpem: error: interrupted; nothing was written\r\n") == 1
    assert shown.count(b"error") == 1
    assert b"\x1b[?25l" not in shown  # the cursor was never hidden
    assert shown.endswith(b"\r\x1b[Jvpem: error: interrupted; nothing was written\r\n")
    assert listing(folder) == before


def read_until(terminal, word):
    """Read what a terminal shows until a word or, with None, its end."""
    shown = b""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            part = b""
        shown += part
        if not part or (word is not None and word in shown):
            break
    assert word is None or word in shown
    return shown


# ---- one file twice -----------------------------------------------------------------------------


def test_a_model_is_continued_in_its_own_file(capsys, folder):
    before = read_model("m.h5")
    done(capsys, "fit", "d.h5", "--init-model", "m.h5", "-o", "m.h5", "--force", "-q")
    assert read_model("m.h5").report["log_likelihood"] > before.report["log_likelihood"]


# ---- foreign text -------------------------------------------------------------------------------


def test_text_is_made_one_line_without_control_characters():
    assert printable("größe, 身長 (cm)") == "größe, 身長 (cm)"
    assert printable("a\nb\tc\r\n") == "a b c  "
    assert printable("\x1b[2J\x07\x9b\u202e\udc80\0") == "�[2J�����"
    assert printable(3.5) == "3.5"


def test_emoji_codes_in_names_stay_as_they_are(capsys, folder):
    with h5py.File("d.h5", "a") as file:
        del file["feature_names"]
        file["feature_names"] = [":cat:", "[red]", *NAMES[2:]]
    out = done(capsys, "data", "describe", "d.h5").out
    assert ":cat:" in out
    assert "[red]" in out


# ---- models that another hand has changed -------------------------------------------------------

REPORTS = {
    "agent_names": 3, "log_likelihood": "x", "n_samples": [1], "data": {}, "topology": 1,
    "hops": 1.5, "rounds": "\x1b", "converged": 1, "agent_names.1": [1, None],
    "communication": [], "communication.messages": {"messages": "many"},
    "communication.by_kind": {"by_kind": {"sums": 3}}, "alignment": {"rows": 1},
}  # fmt: skip


def test_a_report_without_anything_is_shown_as_far_as_it_goes(capsys, folder):
    model = read_model("m.h5")
    model.report, model.options = {"topology": None}, {"seed": [1]}
    write_model("m.h5", model, force=True)
    out = done(capsys, "model", "show", "m.h5").out
    assert re.search("quality +not said\n", out)
    assert re.search("read from +not said\n", out)
    assert not re.search("^ (data|mixture|network|seed) ", out, re.MULTILINE)
    assert done(capsys, "model", "show", "m.h5", "--json").json["report"] == model.report


@pytest.mark.parametrize("name", REPORTS)
def test_what_a_report_tells_in_another_type_is_refused(capsys, folder, name):
    key = name.split(".")[0]
    with h5py.File("m.h5", "a") as file:
        report = json.loads(file["report"][()].tobytes()) | {key: REPORTS[name]}
        del file["report"]
        file["report"] = np.frombuffer(json.dumps(report).encode(), dtype=np.uint8)
    for words in ("model show m.h5", "plot m.h5 --kind graph -o p.svg", "report m.h5 -o r.html"):
        sentence = run(capsys, *words.split()).sentence
        assert f"m.h5: report.{key}" in sentence
        assert "\x1b" not in sentence
    assert not {"p.svg", "r.html"} & {file.name for file in folder.iterdir()}


def test_one_of_each(capsys, folder):
    model = read_model("m.h5")
    model.report |= {"hops": 1, "rounds": 1, "n_samples": 1, "n_iter": 1}
    model.history = model.history[:1]
    write_model("m.h5", model, force=True)
    out = done(capsys, "model", "show", "m.h5").out
    assert re.search(" sum +1 round", out)
    assert "1 row x " in out
    assert re.search("iterations +1, ", out)


# ---- numbers near the end of the range ----------------------------------------------------------


def test_huge_values_draw_no_warning(capsys, folder):
    done(capsys, "fit", "d.h5", "--scale", "standard", "-q", "-o", "n.h5")
    with h5py.File("d.h5", "a") as file:
        file["X"][...] *= 1e300
    for words in ("predict n.h5 d.h5", "score n.h5 d.h5 --json", "data describe d.h5"):
        assert done(capsys, *words.split()).err == ""


def test_parameters_beyond_the_range_are_not_exported(capsys, folder):
    model = read_model("m.h5")
    scaling = Scaling(np.zeros(6), np.full(6, 1e200))
    model.mixture = replace(model.mixture, scaling=scaling)
    write_model("m.h5", model, force=True)
    before = listing(folder)
    for name in ("n.json", "n.npz"):
        said = run(capsys, "model", "export", "m.h5", "-o", name).sentence
        assert said == "the covariances are too large for a number in the units of the data"
    assert listing(folder) == before


def test_warnings_are_one_line_each(capsys, folder, monkeypatch):
    import warnings

    from vpem.errors import Setting, VpemWarning
    from vpem.terms.mixture import Mixture

    plain = Mixture.predict_proba

    def warned(self, X, **options):
        told = VpemWarning("a larger\nreg_covar\x1b, a smaller ", Setting("missing"))
        warnings.warn(told, stacklevel=2)
        return plain(self, X, **options)

    monkeypatch.setattr(Mixture, "predict_proba", warned)
    told = "vpem: warning: a larger reg_covar\N{REPLACEMENT CHARACTER}, a smaller --missing\n"
    assert done(capsys, "predict", "m.h5", "d.h5").err == told


# ---- what others have set ----------------------------------------------------------------------


@each("text", ["²", "9" * 5000, "-1", "0", "x", ""])
def test_variables_of_others_that_hold_no_numbers(capsys, monkeypatch, folder, text):
    for name in ("COLUMNS", "LINES", "OMP_NUM_THREADS", "PMI_SIZE"):
        monkeypatch.setenv(name, text)
    done(capsys, "fit", "d.h5", "--max-iter", 2, "--tol", 10)


def test_a_process_ends_with_the_code_and_no_traceback(folder):
    before = listing(folder)
    result = spawn("fit", "d.h5", "--topology", "cyle", "-o", "new.h5", cwd=folder)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("vpem: error: --topology must be one of ")
    assert listing(folder) == before


# ---- names --------------------------------------------------------------------------------------


def test_samples_keep_a_feature_called_component(capsys, folder):
    with h5py.File("d.h5", "a") as file:
        del file["feature_names"]
        file["feature_names"] = ["component", "component_", *NAMES[2:]]
    done(capsys, "fit", "d.h5", "-q", "-o", "n.h5")
    out = done(capsys, "sample", "n.h5", "-n", 3).out
    assert out.splitlines()[0].split(",") == ["component", "component_", *NAMES[2:], "component__"]
    done(capsys, "sample", "n.h5", "-n", 3, "-o", "s.h5")
    assert read_dataset("s.h5").feature_names == ("component", "component_", *NAMES[2:])


WITHOUT = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("cryptography", "websockets", "mnemonic"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
import vpem_cli
vpem_cli.main(sys.argv[1:])
"""
"""The command line where optional libraries are not installed."""


@pytest.mark.parametrize(
    ("words", "extra"),
    [("fit DATA --secure-sum", "secure"), ("party init --name x", "tls")],
)
def test_a_library_that_is_not_installed_is_named(tmp_path, words, extra):
    (tmp_path / "x.csv").write_text("a,b,c\n1,2,3\n2,3,5\n4,4,4\n6,1,2\n")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *words.replace("DATA", "x.csv").split()],
        capture_output=True, text=True, cwd=tmp_path, env=environment(), timeout=100,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("vpem: error: ")
    assert done.stderr.count("\n") == 1
    assert f"pip install 'vpem[{extra}]'" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]
