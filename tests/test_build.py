"""What is built, installed and loaded: every kernel with a twin, every room, and what is used."""

import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from ast import literal_eval
from pathlib import Path

import numpy as np
import pytest

import vpem
import vpem_cli
from vpem import saem
from vpem._core import CALL_BLAS, WAITING, consensus
from vpem_cli.app import command
from vpem_cli.names import leaves

from .tables import each
from .twins import assign, axes, codecs, mixture, models

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "vpem" / "_core"
SOURCES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(CORE.glob("*.pyx"))}
TWINS = [assign, axes, codecs, mixture, models]

WAITS = "OPENBLAS_THREAD_TIMEOUT"
WORDS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", WAITS)


def python(program, folder=None, **variables):
    """Run a program in a folder, without what the tests' own environment says of threads."""
    env = {name: value for name, value in os.environ.items() if name not in WORDS}
    return subprocess.run(
        [sys.executable, *program], cwd=folder, env=env | variables, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip


def printed(program, folder=None, **variables):
    """What a program prints, which must go well."""
    ended = python(program, folder, **variables)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


# ---- kernels and twins --------------------------------------------------------------------------


PATHS = {
    "langevin": ("vpem.saem.samplers", "Langevin"),
    "propose": ("vpem.saem.samplers", "propose"),
}
"""Kernels whose twins move the latents of models that have no kernel."""


def public_functions(name):
    """The Python functions and classes that a compiled module defines itself."""
    module = importlib.import_module(f"vpem._core.{name}")
    found = re.findall(r"^(?:def|cdef class) (\w+)", SOURCES[name], re.MULTILINE)
    return {word: getattr(module, word) for word in found if not word.startswith("_")}


def parameters(function):
    """Names of a function's parameters."""
    return list(inspect.signature(function).parameters)


def test_every_kernel_is_built_from_its_source_and_has_a_twin_of_the_same_arguments():
    kernels, twins = set(), {}
    for home in TWINS:
        own = {word: made for word, made in vars(home).items() if word[0] != "_"
               and getattr(made, "__module__", "") == home.__name__}  # fmt: skip
        assert not own.keys() & twins.keys()
        twins |= own
    for name in SOURCES:
        module = importlib.import_module(f"vpem._core.{name}")
        assert Path(module.__file__).suffix in (".so", ".pyd")
        assert module.__doc__
        assert public_functions(name)
        for word, kernel in public_functions(name).items():
            kernels.add(word)
            if word in PATHS:
                home, twin = PATHS[word]
                assert hasattr(importlib.import_module(home), twin)
                continue
            if isinstance(kernel, type):  # a law that kernels read: its twin has the same name
                assert word == "Latents" or word in twins
                continue
            if not parameters(kernel):  # tells how it was built, computes nothing
                continue
            if word.endswith("_transmit"):  # held to be encode and decode (test_codecs.py)
                assert {word.replace("transmit", one) for one in ("encode", "decode")} <= kernels
                continue
            assert word in twins, f"{word} needs a twin"
            assert parameters(kernel) == parameters(twins[word]), word
    assert len(SOURCES) >= 5
    assert set(twins) <= kernels


def test_kernels_that_call_blas_are_listed():
    """Those that are not would load all of `scipy.linalg`."""
    words = "scipy.linalg.cython_", "vpem._core.blas", "vpem._core.lapack"
    calling = {name for name, text in SOURCES.items() if any(word in text for word in words)}
    assert calling == {*CALL_BLAS}


def test_kernels_are_watched_by_tests_that_there_are():
    named = re.search("KERNEL_TESTS := (.*)", (ROOT / "Makefile").read_text("utf-8"))[1].split()
    assert "kernels" in named
    assert all((ROOT / "tests" / f"test_{name}.py").is_file() for name in named)


# ---- what is installed --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


BUILD = """
import os, shutil
from setuptools import build_meta
archive = build_meta.build_sdist("dist")
shutil.unpack_archive(f"dist/{archive}", "dist", filter="data")
os.chdir(f"dist/{archive.removesuffix('.tar.gz')}")
build_meta.build_wheel("..")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A source distribution, unpacked, and its wheel, unpacked.

    To be quick it has one kernel, which does nothing, and is built by one process.
    """
    folder = tmp_path_factory.mktemp("clone")
    skipped = shutil.ignore_patterns("*.so", "*.pyd", "*.c", "__pycache__")
    for name in ("vpem", "cli", "data"):
        shutil.copytree(ROOT / name, folder / name, ignore=skipped)
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for path in (folder / "vpem" / "_core").glob("*.pyx"):
        if path.stem != "consensus":
            path.unlink()
        else:
            path.write_text('"""Stands for a kernel."""\n', encoding="utf-8")
    text = (folder / "setup.py").read_text(encoding="utf-8")
    for slow, quick in (('"-O3"', '"-O0"'), ("nthreads=self.parallel", "nthreads=0")):
        assert text.count(slow) == 1
        text = text.replace(slow, quick)
    (folder / "setup.py").write_text(text, encoding="utf-8")
    printed(["-c", BUILD], folder)  # what pip does, in one process instead of six
    (clone,) = (path for path in (folder / "dist").iterdir() if path.is_dir())
    (wheel,) = (folder / "dist").glob("vpem-*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return clone, folder / "site"


FOUND = """
import vpem._core.consensus as kernel
from vpem import example_path
print(kernel.__file__, example_path('wine').parent, sep='\\n')
"""


def test_kernels_and_datasets_are_found_where_they_were_installed(installed):
    """Datasets once, and with what is said of them; the note that types are known."""
    clone, site = installed
    kernel, data = printed(["-c", FOUND], clone).splitlines()
    assert kernel.startswith(f"{clone}{os.sep}")
    assert Path(data) == clone / "data"
    elsewhere = site.parent / "dist"
    kernel, data = printed(["-c", FOUND], elsewhere, PYTHONPATH=str(site)).splitlines()
    assert kernel.startswith(str(site))
    assert Path(data) == site / "vpem" / "examples"
    ours = {path.name for path in (ROOT / "data").iterdir() if path.is_file()}
    assert ours == {path.name for path in Path(data).iterdir()}
    core = {path.suffix for path in (site / "vpem" / "_core").rglob("*") if path.is_file()}
    assert sorted(core - {".pyc"}) == [".py", Path(consensus.__file__).suffix]
    assert (site / "vpem" / "py.typed").is_file()


def test_every_room_is_installed_and_no_module_called_cli(installed):
    _, site = installed
    assert {path.name.split("-")[0] for path in site.iterdir()} == {"vpem", "vpem_cli"}
    (scripts,) = site.glob("vpem-*/entry_points.txt")
    assert "vpem = vpem_cli:main" in scripts.read_text(encoding="utf-8")
    for folder, home in (("vpem", "vpem"), ("cli", "vpem_cli")):
        ours = {path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*.py")}
        assert ours == {path.relative_to(site / home) for path in (site / home).rglob("*.py")}


def test_wheels_are_built_for_every_python_that_is_named_and_tried(project):
    """And the version is said twice more and the same."""
    assert project["project"]["version"] == vpem.__version__
    assert f"\nversion: {vpem.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    wheels = project["tool"]["cibuildwheel"]
    named = [each.rpartition(" ")[2] for each in project["project"]["classifiers"]]
    versions = [each for each in named if each.startswith("3.")]
    assert wheels["build"] == " ".join(f"cp{each.replace('.', '')}-*" for each in versions)
    assert project["project"]["requires-python"] == f">={versions[0]}"
    tests = [word for word in wheels["test-command"][0].split() if word.startswith("{project}")]
    assert tests
    assert all(Path(word.format(project=ROOT)).is_file() for word in tests)


# ---- a folder without kernels, and what OpenMP is told -------------------------------------------


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A folder as it is cloned: the package as Python, no kernel built."""
    folder = tmp_path_factory.mktemp("clone")
    skipped = shutil.ignore_patterns("*.so", "*.pyd", "*.c", "__pycache__")
    shutil.copytree(ROOT / "vpem", folder / "vpem", ignore=skipped)
    (folder / "conftest.py").write_text("from vpem import fit_vpem\n")
    return folder


@each("program", [["-c", "import vpem; vpem.fit_vpem"], ["-m", "pytest", "-p", "no:cacheprovider"]])
def test_a_folder_without_kernels_says_what_to_do(clone, program):
    """What needs no kernels works without."""
    ended = python(program, clone)
    assert ended.returncode != 0
    sentence = f"ImportError: the folder {clone} holds vpem without compiled kernels; leave it "
    assert sentence in ended.stdout + ended.stderr
    printed(["-W", "error", "-c", "import vpem; print(vpem.__version__, vpem.InputError)"], clone)


TOLD = """
import atexit, os
import vpem_cli
def tell():
    import vpem._core
    print([vpem._core.waiting(), dict(os.environ)])
atexit.register(tell)
vpem_cli.main(["--version"])
"""


@each(
    ("variables", "policy", "spins", "blas"),
    [
        ({}, "PASSIVE", "1000", "16"),
        ({"OMP_WAIT_POLICY": "active"}, "ACTIVE", "", "16"),
        ({"GOMP_SPINCOUNT": "77", WAITS: "20"}, "", "77", "20"),
    ],
)
def test_threads_wait_as_the_user_says_or_give_way(variables, policy, spins, blas):
    """Those of BLAS do in commands."""
    ended = python(["-c", TOLD], OMP_DISPLAY_ENV="VERBOSE", OMP_NUM_THREADS="1", **variables)
    assert ended.returncode == 0, ended.stderr
    version, told = ended.stdout.splitlines()
    assert version.startswith("vpem ")
    waiting, environment = literal_eval(told)
    own = {name: value for name, value in variables.items() if name != WAITS}
    assert waiting == (own or WAITING)
    assert {name: environment[name] for name in WAITING if name in environment} == own
    assert environment[WAITS] == blas
    if "GOMP_SPINCOUNT" in ended.stderr:  # GCC's OpenMP, which tells what it was told
        assert f"OMP_WAIT_POLICY = '{policy}" in ended.stderr
        assert f"GOMP_SPINCOUNT = '{spins}" in ended.stderr


@each("first", ["vpem._core", "scipy.linalg"])
def test_what_kernels_took_of_scipy_is_whole_for_others(first):
    program = f"""
import sys, {first}
import vpem._core.cholesky, scipy.linalg.cython_blas, scipy.linalg.cython_lapack
print(scipy.linalg.cython_blas is sys.modules["scipy.linalg.cython_blas"])
print(len(scipy.linalg.cython_lapack.__pyx_capi__) > 100, scipy.linalg.det([[2.0, 1], [1, 2]]))
"""
    assert printed(["-c", program]).split() == ["True", "True", "3.0"]


@each("alone", [True, False])
def test_what_saem_took_of_scipy_is_whole_for_others(alone):
    """And is taken whole where another thread might ask for it meanwhile."""
    program = f"""
import sys, threading
done = threading.Event()
{alone} or threading.Thread(target=done.wait).start()
from vpem.saem import special
print("scipy.special" not in sys.modules)
import scipy.special, scipy.special.cython_special
print(scipy.special.expit is special.expit, scipy.special.softmax([0.0, 0.0])[0])
print(scipy.special.cython_special.ndtri(0.5), scipy.special.ndtri(0.3) == special.ndtri(0.3))
done.set()
"""
    assert printed(["-c", program]).split() == [str(alone), "True", "0.5", "0.0", "True"]


@each("instead", ["ModuleSpec(name, None)", "ModuleSpec(name, None, is_package=True)"])
def test_saem_loads_scipy_special_whole_where_functions_are_kept_elsewhere(instead):
    """Where there is no such module, or it holds none of them."""
    program = f"""
import sys
from importlib.machinery import ModuleSpec
class Elsewhere:
    def find_spec(name, *where):
        if name == "scipy.special._ufuncs" and sys.modules["scipy.special"].__spec__ is None:
            return {instead}
sys.meta_path.insert(0, Elsewhere)
from vpem.saem import special
import scipy, vpem._core.latents
print(special is scipy.special, special.ndtri(0.5))
"""
    assert printed(["-c", program]).split() == ["True", "0.0"]


def test_what_saem_calls_of_scipy_special_is_listed():
    sources = [
        path.read_text(encoding="utf-8") for path in Path(saem.__file__).parent.rglob("*.py")
    ]
    assert set(re.findall(r"\bspecial\.([a-z]\w+)", " ".join(sources))) == saem.FUNCTIONS


# ---- what is loaded is what is used -------------------------------------------------------------

LIBRARIES = {"numpy", "h5py", "scipy", "sklearn", "networkx", "matplotlib", "pandas", "pyarrow"}
"""None of them is needed to say what there is."""

UNUSED = {
    "sklearn", "networkx", "matplotlib", "pandas", "scipy.linalg", "scipy.special", "scipy.sparse",
    "scipy.stats", "numpy.f2py", "numpy.testing", "pyarrow.compute", "pydantic", "ssl",
    "vpem.saem.results", "vpem.fits.selection.trials", "vpem.files.parties.joining",
    "vpem.files.networks",
}  # fmt: skip
"""What numbers of which Gaussians are fitted do not need."""

FIT = ["fit", "numbers.csv", "-k", "2"]
HELPS = [[*path, "--help"] for path, _ in leaves(command())]

LOADED = {
    "version": ([["--version"]], LIBRARIES | {"typer", "rich", "pydantic", "vpem.errors"}),
    "help": (
        [["--help"]],
        LIBRARIES | {"rich", "pydantic", "vpem_cli.commands.fit", "vpem.settings"},
    ),
    "every help": ([*HELPS, ["--help-all"], ["help", "saem"]], LIBRARIES | {"rich", "pydantic"}),
    "fit": (
        [[*FIT, "--quiet", "--seed", "3", "-o", "again.h5"]],
        UNUSED | {"concurrent.futures", "rich"},
    ),
    "fit on a graph": (
        [[*FIT, "--topology", "cycle", "--hops", "1"]],
        UNUSED - {"scipy.sparse", "scipy.linalg", "numpy.f2py", "numpy.testing"},
    ),
    "fit with gaps, and use": (
        [
            ["fit", "gaps.csv", "-k", "2", "--missing", "marginalize"],
            ["predict", "model.h5", "numbers.csv"],
            ["score", "model.h5", "numbers.csv"],
        ],
        UNUSED,
    ),
    "fit HDF5, and show": (
        [["fit", "data.h5", "-k", "2"], ["model", "show", "model.h5"]], UNUSED | {"pyarrow"},
    ),
    "fit with text": (
        [["fit", "text.csv", "-k", "2", "--label-column", "kind"]], UNUSED - {"pyarrow.compute"},
    ),
    "plot": (
        [["plot", "model.h5", "-o", "picture.png"]],
        UNUSED - {"matplotlib"} | {"matplotlib.pyplot", "pyarrow"},
    ),
    "saem": (
        [["saem", "long.csv", "--model", "curve", "--curve", "logistic", "--iterations", "2"]],
        UNUSED - {"vpem.saem.results"}
        | {"pyarrow", "vpem.fits.labels", "vpem.pictures.saved", "vpem.saem.models.linear"},
    ),
    "import": ("import vpem", LIBRARIES | {"typer", "rich"}),
    "names": ("import vpem; vpem.load; vpem.fit_vpem; vpem.connect", UNUSED | {"pyarrow", "h5py"}),
    "estimator": (
        "import vpem; from numpy.random import default_rng\n"
        "vpem.VPEM(2, random_state=None).fit(default_rng(0).normal(size=(60, 3)))",
        UNUSED - {"vpem.fits.selection.trials", "vpem.files.networks"} | {"pyarrow", "h5py"},
    ),
    "estimator of a data frame, or a list": (
        "import numpy, pandas, vpem; X = numpy.random.default_rng(0).normal(size=(60, 3))\n"
        "for one in (pandas.DataFrame(X, columns=[*'xyz']), X.tolist(), (9 * X).astype(int)):\n"
        "    vpem.VPEM(2, random_state=0).fit(one).predict(one)",
        {"sklearn", "h5py"},
    ),
    "load a model": (
        "import vpem; vpem.load('model.h5')", {"matplotlib", "networkx", "vpem.saem.results"},
    ),
}  # fmt: skip
"""Commands, or a program, and what must not be loaded after them."""


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A folder with a table of numbers, one with gaps, one with text, and a model."""
    folder = tmp_path_factory.mktemp("tables")
    X = np.random.default_rng(0).normal(size=(60, 3)).round(3)
    X[::2, 0] += 4
    for name, hidden, kinds in (("numbers", 0, ""), ("gaps", 9, ""), ("text", 0, "ab")):
        rows = X.astype(str)
        rows[:hidden, 1] = ""
        lines = [",".join([*row, *kinds[i % 2 : i % 2 + 1]]) for i, row in enumerate(rows)]
        head = ",".join(["x", "y", "z", *(["kind"] if kinds else [])])
        (folder / f"{name}.csv").write_text("\n".join([head, *lines, ""]))
    rises = [f"{i},{t},{(4 + i) / (1 + 2**-t):.3f}" for i in range(3) for t in range(-3, 6)]
    (folder / "long.csv").write_text("\n".join(["id,time,value", *rises, ""]))
    numbers = str(folder / "numbers.csv")
    for made in (
        ["fit", numbers, "-k", "2", "-o", str(folder / "model.h5"), "-q"],
        ["data", "import", numbers, "-o", str(folder / "data.h5"), "-q"],
    ):
        assert vpem_cli.run(made) == 0
    return folder


BARE = ("version", "help", "every help", "import", "saem")
"""Those that must not load what names of `vpem` load."""

FORKED = """
import os, sys
for case, program in {programs}:
    if not case:  # what those that follow are forked from
        exec(program)
    elif os.fork():
        os.wait()
    else:
        exec(program, {{"__name__": "__main__"}})
        with open(case + ".loaded", "w") as file:
            print(*sys.modules, file=file)
        os._exit(0)
"""
COMMANDS = "import vpem_cli; assert not any([vpem_cli.run(words) for words in {}])"


@pytest.fixture(scope="module")
def loaded(tables):
    """Function: what is loaded after a case, which is run in a process of its own.

    Most are forked from a process that has loaded names of `vpem`, as they do: that counts, too.
    """
    programs = {
        case: COMMANDS.format(done) if isinstance(done, list) else done
        for case, (done, _) in LOADED.items()
    }
    walk = [(case, programs[case]) for case in BARE]
    walk += [("", programs["names"]), *(one for one in programs.items() if one[0] not in BARE)]
    ended = python(["-c", FORKED.format(programs=walk)], tables)

    def found(case):
        told = tables / f"{case}.loaded"
        assert told.is_file(), ended.stderr
        return told.read_text().split()

    return found


@each("case", LOADED)
def test_what_is_loaded_is_what_is_used(loaded, case):
    names, unused = loaded(case), LOADED[case][1]
    assert "vpem" in names
    assert {name for name in unused for one in names if f"{one}.".startswith(f"{name}.")} == set()


ASKS = ["import sklearn.base", "assert repr(model)[-2:] == ').'", "model._repr_html_()"]


def test_estimators_are_scikit_learns_as_soon_as_it_is_loaded():
    """All that it loads itself is there before, or it would be loaded four times."""
    program = f"""
import inspect, os, pickle, sys, warnings, joblib, numpy, pandas, scipy.stats, vpem
if os.fork():
    assert os.wait()[1] == 0
else:
    from vpem import FedMissEM, DistributedKMeans
    from sklearn.base import BaseEstimator
    made = FedMissEM(), DistributedKMeans(), vpem.VPEM()
    print(*[isinstance(one, BaseEstimator) for one in made], flush=True)
    os._exit(0)
class Named:
    heard = []
    def __init_subclass__(cls, *, name="again"): cls.heard.append(name)
class Mine(vpem.VPEM, Named, name="mine"):
    def __init__(self, n_components=1, *, random_state=0, **others):
        super().__init__(n_components, random_state=random_state, **others)
    def __repr__(self): return super().__repr__() + "."
    def score(self, X, y=None, *, site=None): return super().score(X)
with warnings.catch_warnings(record=True) as said:
    model = Mine(3, max_iter=1).fit(numpy.random.default_rng(0).normal(size=(60, 3)))
kept, given = pickle.dumps(model), model.get_params()
for asks in {ASKS}:
    print("sklearn" in sys.modules, flush=True)
    if not os.fork():
        break
    assert os.wait()[1] == 0, asks
else:
    os._exit(0)
exec(asks)
from sklearn.base import BaseEstimator, DensityMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import get_tags
kinds = vpem.NotConvergedWarning, ConvergenceWarning
print(*[isinstance(said[0].message, kind) for kind in kinds])
print(isinstance(model, BaseEstimator), issubclass(vpem.FedEM, DensityMixin))
print(Named.heard == ["mine"], "site" in inspect.signature(model.set_score_request).parameters)
print(clone(model).get_params() == given == model.get_params(), hasattr(model, "set_fit_request"))
print(get_tags(pickle.loads(kept)).estimator_type, repr(model.set_params(n_components=2)))
"""
    told = ["False", *["True"] * 8, "density_estimator", "Mine(n_components=2)."]
    assert printed(["-c", program]).split() == [*["True"] * 3, *len(ASKS) * told]
