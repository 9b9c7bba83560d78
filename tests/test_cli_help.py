"""Help answers at once, and its examples are true; completion in shells; `vpem doctor`."""

import ast
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import vpem_cli
from vpem import connect, fit_vpem, make_graph, settings
from vpem._core import sweep
from vpem._core.threads import thread_count
from vpem.files import examples as data_to_begin_with
from vpem.files.data import read_dataset
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.studies.logs import MessageLog
from vpem.fits.parts import shard_path, write_shard
from vpem.network.codecs import CODECS, parse_codec
from vpem.network.partition import contiguous
from vpem.pictures import installation, page
from vpem.records import describe_field
from vpem.saem.models import model
from vpem.saem.models.population import COVARIANCES
from vpem.saem.samplers import AUTO, SAMPLERS
from vpem_cli import app
from vpem_cli.app import command, in_brief, often
from vpem_cli.commands import model as models
from vpem_cli.commands.saem import ModelSettings
from vpem_cli.names import is_flag, key_of, leaves
from vpem_cli.options import OFFERED

from .cli_support import MAIN, ROOT, done, run
from .pages_support import UNDRAWN
from .study_support import folder_of, make_study
from .tables import each, over


def commands(member, path=()):
    """Every command and group of commands: its words and its help."""
    yield path, member.help
    for name, below in getattr(member, "commands", {}).items():
        yield from commands(below, (*path, name))


HELP = dict(commands(command()))
SHARED = ("model", "show"), ("topology", "describe")
"""Commands that have another, shorter name."""


def member_of(path):
    """A command, or a group of commands."""
    node = command()
    for name in path:
        node = node.commands[name]
    return node


def examples(path):
    """Words of the examples in a command's help."""
    lines = [line for line in HELP[path].splitlines() if line.startswith("Example: ")]
    assert lines
    return [shlex.split(line.removeprefix("Example: ")) for line in lines]


@over(path=HELP, flag=["--help", "-h", "--help-all", None])
def test_help_has_usage_options_and_an_example(capsys, path, flag):
    result = done(capsys, *path, flag) if flag else done(capsys, "help", *path)
    assert result.err == ""
    assert result.out.startswith(f"Usage: {' '.join(('vpem', *path))} ")
    assert "Example: vpem " in result.out
    assert "--help" in result.out
    assert "\x1b" not in result.out


@each("path", HELP)
def test_commands_that_need_words_say_which(capsys, path):
    needed = [one for one in member_of(path).params if one.required]
    if needed:
        result = run(capsys, *path)
        assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
        assert result.err.startswith(f"vpem: error: missing {needed[0].param_type_name} '")
        assert result.err.endswith(f"; see 'vpem {' '.join(path)} --help'\n")


@each("path", HELP)
def test_help_is_short_and_all_of_it_a_flag_away(capsys, monkeypatch, path):
    monkeypatch.setenv("COLUMNS", "80")
    node, text = member_of(path), done(capsys, *path, "--help").out
    whole = done(capsys, *path, "--help-all").out
    assert done(capsys, "help", "--all", *path).out == whole
    if path:
        assert text.count("\n") <= 48, path  # a screen of 50 lines, with the prompt
        assert all(len(line) <= 80 or "Example: " in line for line in text.splitlines())
    wanted = often(node)
    if wanted is None:
        assert path == () or text == whole or hasattr(node, "commands")
        return
    shown = re.findall(r"^  (?:-\w, )?--([\w-]+)", text, re.MULTILINE)
    assert shown == [key_of(one) for one in wanted]
    known = {f"--{key_of(one)}" for one in node.params if not one.hidden}
    known -= {f"--{key_of(one)}" for one in node.params if one.param_type_name == "argument"}
    assert len(set(shown) - {"output", "force", "json", "quiet"}) <= 11
    assert len(shown) <= (10 if path == ("fit",) else 14), path
    assert set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", whole, re.MULTILINE)) == known
    assert f"{len(known) - len(shown)} more options: vpem {' '.join(path)} --help-all" in text


@each(
    ("text", "told"),
    [("Maximum number of iterations.", "Maximum number of iterations."),
     ("One. Two. Default: 4. But 5.", "One.  [default: 4]"),
     ("Up to 0.5 (e.g. here), or more. Yes.", "Up to 0.5 (e.g. here), or more.")],
)  # fmt: skip
def test_help_in_brief(text, told):
    assert in_brief(text) == told


def test_every_command_is_listed_somewhere(capsys):
    rows = done(capsys, "--help-all").out.partition("Commands:\n")[2]
    assert all(f"\n  {' '.join(path)} " in f"\n{rows}" for path in HELP if path)


@each("group", [path for path in HELP if hasattr(member_of(path), "commands")])
def test_lists_of_commands_have_whole_sentences(capsys, monkeypatch, group):
    monkeypatch.setenv("COLUMNS", "80")
    rows = done(capsys, *group, "--help").out.partition("Commands:\n")[2]
    rows = rows.partition("\n\n")[0].splitlines()
    below = [path for path in HELP if len(path) == len(group) + 1 and path[:-1] == group]
    assert len(rows) == len(below)
    for path, row in zip(below, rows, strict=True):
        name, told = row.split(maxsplit=1)
        assert name == path[-1]
        assert told == HELP[path].partition("\n\n")[0]
        assert told.endswith(".")
        assert len(row) < 80


def test_only_the_command_that_is_asked_for_is_made():
    parser = app.command.__wrapped__()
    assert list(parser.commands)[:2] == ["fit", "select"]
    made = {name for name, member in parser.commands.data.items() if member is not None}
    assert made <= {"data", "model", "topology"}
    assert parser.commands["saem"] is parser.commands["saem"]
    assert parser.commands.data["fit"] is None


@each("path", HELP)
def test_flags_mean_the_same_everywhere(path):
    """Short names, and what they stand for; what is alike is called alike."""
    node = member_of(path)
    short = {"-o": "--output", "-q": "--quiet", "-k": None, "-n": None, "-j": "--jobs",
             "-h": "--help", "-V": "--version", "-r": "--rank", "-d": "--features",
             "-p": None}  # fmt: skip
    for param in getattr(node, "params", []):
        for opt in param.opts:
            if opt.startswith("-") and not opt.startswith("--"):
                assert opt in short
                assert short[opt] is None or short[opt] in param.opts
        if "--n-init" in param.opts:
            assert "--restarts" in param.opts
        if param.name in ("output", "quiet") and param.param_type_name == "option":
            assert any(not opt.startswith("--") for opt in param.opts), param.opts


@each("path", HELP)
def test_an_example_is_of_the_command_it_stands_at(path):
    for words in examples(path):
        assert words[0] == "vpem"
        made = path == ("outcomes",) and words[1] == "predict"  # what it reads
        assert tuple(words[1 : 1 + len(path)]) == path or path in SHARED or made


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder such as a newcomer has: datasets, smaller here, a table, a fitted model."""
    home = tmp_path_factory.mktemp("home")
    (home / "data").mkdir()
    for name, step in (("breast_cancer.h5", 6), ("wine.h5", 2)):  # some rows and features
        whole = read_dataset(ROOT / "data" / name)
        rows, names = whole.X[::3, ::step], whole.feature_names[::step]
        write_dataset(home / "data" / name, Dataset(rows, names, labels=whole.labels[::3]))
    for name, n_lines in (("oxford_boys.csv", 73), ("theophylline.csv", 56)):  # a few people
        lines = (ROOT / "data" / name).read_text().splitlines()[:n_lines]
        (home / "data" / name).write_text("\n".join(lines) + "\n")
    rng = np.random.default_rng(0)
    table = np.column_stack([rng.standard_normal((50, 8)), np.arange(50) % 2])
    np.savetxt(home / "pulsars.csv", table, delimiter=",")
    few = ["--max-iter", "3"]
    made = [examples((name,))[0][1:] for name in ("fit", "kmeans")]  # others' examples need them
    made.append([*examples(("saem",))[0][1:], "--iterations", "60"])
    made += [["fit", "data/wine.h5", "--agents", "2", *few, "-o", "vpem.h5"],
             ["fit", "data/wine.h5", *few, "-o", "em.h5"]]  # fmt: skip
    made += [["fedem", "data/wine.h5", "--workers", "2", *few, "--tol", "0", "--seed", f"{seed}",
              "--trace", f"seed{seed}.jsonl"] for seed in range(3)]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        assert [vpem_cli.run([*words, "--quiet"]) for words in made] == [0] * len(made)
    (home / "fits").mkdir()
    for number in range(2):
        shutil.copy(home / "model.h5", home / f"fits/{number}.h5")
    cut_in_shards(home, ("hospital", "lab"))
    return home


def cut_in_shards(home, names):
    """Shards as ranks of MPI leave them."""
    X = np.random.default_rng(0).standard_normal((40, 4))
    network = connect(make_graph("cycle", 2), contiguous(4, 2, names), hops=0)
    fit = fit_vpem(X, network, tol=1e-2)
    for place, name in enumerate(names):
        features = [f"feature {j}" for j in network.blocks.features[place]]
        write_shard(shard_path(home / "model.h5", name), fit, place, names, features, {})


SERVING = {("relay",), ("party", "check"), ("study", "demo"), ("demo",)}
"""Commands that need others, or run long; tests of their own run them."""


@pytest.fixture(scope="module")
def meeting(tmp_path_factory):
    """Where examples of studies run: a folder with a key alone, and two with a study."""
    top = tmp_path_factory.mktemp("meeting")
    options = {"fit": {"topology": "star", "hops": 0, "components": 2, "align": "ids"}}
    made = make_study(top, "lab", options=options)["hub"].folder
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder_of(top, "lab"))
        (top / "lab" / "lab.csv").write_text("patient,iron\na,1\nb,2\n")
        assert vpem_cli.run(["party", "request", "heart.toml"]) == 0
        MessageLog("lab-heart.log").close()
        shutil.copy("lab.request", made)
        patch.chdir(folder_of(top, "alone"))
        assert vpem_cli.run(["party", "init", "--name", "hub"]) == 0
        patch.chdir(folder_of(top, "federation"))
        assert vpem_cli.run(["party", "init", "--name", "hub"]) == 0
        words = "study init heart --engine nvflare --align ids --hops 0 -k 2"
        assert vpem_cli.run(words.split()) == 0
    return top


MEETING = {"party init": "new", "study init": "alone", "study approve": "hub",
           "study job": "federation",
           "study revoke": "hub", "study change": "hub", "party": "newer",
           "study": "hub"}  # fmt: skip
"""In which folder examples of studies run; others in that of a member."""


FEWER = {"--replicates": "9", "--draws": "2"}
"""Of what examples have many of."""


@pytest.mark.parametrize("path", [path for path in HELP if path not in SERVING], ids=" ".join)
def test_examples_run(capsys, monkeypatch, home, meeting, path):
    monkeypatch.chdir(home)
    for name, value in UNDRAWN.items():
        monkeypatch.setattr(name, value)
    if path[:1] in (("party",), ("study",)):
        monkeypatch.chdir(folder_of(meeting, MEETING.get(" ".join(path), "lab")))
        monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    for _, *words in examples(path):
        words = [FEWER.get(before, word) for before, word in pairwise(["", *words])]
        words += ["--iterations", "60"] if path == ("saem",) else []
        made = [words[place + 1] for place, word in enumerate(words) if word in ("-o", "--output")]
        there = any((home / file).exists() for file in made)
        done(capsys, *words, *(["--force"] if there else []))
        for file in made:
            assert (home / file).stat().st_size > 0


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self):
        return True


# ---- names in Python ----------------------------------------------------------------------------


def test_public_names_are_there_and_listed():
    import vpem

    for name in vpem.__all__:
        assert getattr(vpem, name) is not None
    assert dir(vpem) == sorted(vpem.__all__)
    tree = ast.parse(Path(vpem.__file__).read_text(encoding="utf-8"))
    typed = {
        name.name: one.module
        for one in ast.walk(tree) if isinstance(one, ast.ImportFrom) and one.module[:5] == "vpem."
        for name in one.names
    }  # fmt: skip
    assert typed == vpem._HOMES
    with pytest.raises(AttributeError, match="no attribute 'VPEN'"):
        _ = vpem.VPEN


# ---- completion in shells, by its protocol, and the choices that it offers ----------------------

LEAVES = dict(leaves(command()))


@pytest.fixture
def completed(capsys, monkeypatch):
    """Function: what a shell is told at the end of a line, one entry a line."""
    # Completion goes without it, for the rest of its process.
    monkeypatch.setitem(sys.modules, "rich", sys.modules.get("rich"))

    def call(words, shell="bash"):
        line = f"vpem {words}"
        for name, value in {
            "_VPEM_COMPLETE": f"complete_{shell}",
            "COMP_WORDS": line,
            "COMP_CWORD": str(line.count(" ")),
            "_TYPER_COMPLETE_ARGS": line,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        }.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as end:
            vpem_cli.run([])
        assert end.value.code == 0
        told = capsys.readouterr()
        assert told.err == ""
        return told.out

    return call


@each(
    ("words", "wanted"),
    [
        ("ev", {"evaluate"}),
        ("data im", {"import"}),
        ("fit --cons", {"--consensus", "--consensus-tol"}),
        ("fit --js", {"--json"}),
        ("fit --no-js", {"--no-json"}),
        ("fit d.h5 --topology s", {"star", "small-world", "scale-free"}),
        ("kmeans d.h5 --hops x --init k", {"k-means++"}),
        ("data import --missing ", {"refuse", "keep"}),
        ("topology describe c", {"cycle", "complete"}),
        ("plot m.h5 --kind c", {"communication", "confusion", "curves"}),
        ("saem d.csv --sampler m", {"metropolis", "mala"}),
        ("saem d.csv --model ", set(settings.SAEM_MODELS)),
        ("saem d.csv --covariance ", {"diagonal", "full"}),
        ("saem d.csv --feedback e", {"error"}),
        ("saem d.csv --average m", {"models"}),
        ("saem d.csv --shares d", {"devices"}),
        ("select d.h5 --criterion h", {"heldout"}),
        ("model best --criterion ", {"log-likelihood", "bic", "aic"}),
        ("data fetch h", {"htru2"}),
        ("fit --graph ", set()),
        ("fit ", set()),
    ],
)
def test_bash_is_told(completed, words, wanted):
    assert set(completed(words).split()) == wanted


def test_zsh_and_fish_are_told_with_help(completed):
    told = completed("fit --compress qsgd", "zsh")
    assert told.startswith("_arguments")
    assert "qsgd:8bits" in told.replace("\\", "")
    assert completed("fit --graph ", "zsh").strip() == "_files"
    assert "Fit a Gaussian mixture" in completed("fi", "zsh")
    assert set(completed("fit --covariance diag", "fish").split()) == {"diag"}
    assert completed("model sh", "fish").startswith("show\t")


def test_completion_loads_nothing_that_takes_long():
    # The oldest Typer loads Rich by itself.
    tell = "import atexit, sys, typer; own = {*sys.modules};"
    tell += "atexit.register(lambda: print(*({*sys.modules} - own), file=sys.stderr));"
    environment = {**os.environ, "_VPEM_COMPLETE": "complete_zsh",
                   "_TYPER_COMPLETE_ARGS": "vpem fit --"}  # fmt: skip
    found = subprocess.run(
        [sys.executable, "-c", tell + MAIN], env=environment, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert "--topology" in found.stdout
    loaded = {*found.stderr.split()}
    assert "vpem_cli" in loaded
    assert not loaded & {"numpy", "scipy", "h5py", "pydantic", "networkx", "rich.console"}


@each("shell", ["bash", "zsh", "fish"])
def test_a_script_for_every_shell(capsys, monkeypatch, shell):
    monkeypatch.setenv("_VPEM_COMPLETE", f"source_{shell}")
    monkeypatch.setitem(sys.modules, "rich", sys.modules.get("rich"))
    with pytest.raises(SystemExit):
        vpem_cli.run([])
    assert f"_VPEM_COMPLETE=complete_{shell}" in capsys.readouterr().out


def test_values_of_the_environment_do_not_disturb(completed, monkeypatch):
    for name, value in (("NOTHING", "1"), ("HOPS", "x"), ("CONFIG", "nowhere.toml")):
        monkeypatch.setenv(f"VPEM_FIT_{name}", value)
    assert set(completed("fit --scale ").split()) == {"none", "standard", "power"}


def test_choices_are_those_of_the_library():
    wanted = {
        "data copy name": data_to_begin_with.EXAMPLES, "data fetch name": data_to_begin_with.OPEN,
        "plot kind": page.KINDS, "model best criterion": models.CRITERIA,
        "topology describe source": settings.TOPOLOGIES,
    }  # fmt: skip
    for name, words in wanted.items():
        assert set(OFFERED[name]) == set(words), name
    assert set(OFFERED) - set(wanted) == {"study change if_lost"}
    assert tuple(model.MODELS) == settings.SAEM_MODELS
    assert (AUTO, *SAMPLERS) == settings.SAMPLERS
    covariance = ModelSettings.settings_by_name["covariance"]
    assert describe_field(covariance).choices == COVARIANCES
    assert {word.partition(":")[0] for word in settings.CODECS} == set(CODECS)
    assert all(parse_codec(word) for word in settings.CODECS)


def test_defaults_are_among_the_choices():
    for path, member in LEAVES.items():
        for param in member.params:
            if path == ("help",):
                continue
            words = [one.value for one in param.shell_complete(None, "")]
            if words and isinstance(param.default, str):
                assert param.default in words, (path, key_of(param))
            assert not (words and is_flag(param))


# ---- facts of this installation, and problems that are found when they are there ----------------


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
