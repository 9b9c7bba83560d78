"""The house: every kernel is built and has a twin, and arrows between the rooms run one way."""

import ast
import importlib
import inspect
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import vpem

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "vpem" / "_core"
KERNELS = sorted(path.stem for path in CORE.glob("*.pyx"))
TWINS = ("reference", "reference_assign", "reference_codecs", "reference_graph",
         "reference_langevin", "reference_missing", "reference_proposals")  # fmt: skip


def module_name(path):
    """Dotted name of a source file of the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path):
    """Dotted names that a source file imports, wherever in it, relative ones resolved."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []  # what only type checkers see
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            home = ".".join([*base, *([node.module] if node.module else [])])
            yield home
            yield from (f"{home}.{alias.name}" for alias in node.names)


def inside(name, *rooms):
    """Whether a dotted name lies in one of the rooms."""
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


# ---- kernels and twins --------------------------------------------------------------------------


def public_functions(name):
    """The Python functions that a compiled module defines itself."""
    module = importlib.import_module(f"vpem._core.{name}")
    source = (CORE / f"{name}.pyx").read_text(encoding="utf-8")
    found = [line[4:].split("(")[0] for line in source.splitlines() if line.startswith("def ")]
    return {word: getattr(module, word) for word in found if not word.startswith("_")}


def parameters(function):
    """Names of a function's parameters."""
    return list(inspect.signature(function).parameters)


def test_there_are_kernels():
    assert len(KERNELS) >= 5


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_is_built_from_its_source(name):
    module = importlib.import_module(f"vpem._core.{name}")
    assert Path(module.__file__).suffix in (".so", ".pyd")
    assert public_functions(name)
    assert module.__doc__


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_has_a_twin_of_the_same_arguments(name):
    twins = [importlib.import_module(f"vpem._core.{twin}") for twin in TWINS]
    for word, kernel in public_functions(name).items():
        if not parameters(kernel):  # tells how it was built, computes nothing
            continue
        found = [getattr(twin, word) for twin in twins if word in twin.__all__]
        assert len(found) == 1, f"{word} needs one twin"
        assert parameters(kernel) == parameters(found[0]), word
        assert found[0].__doc__


def test_every_twin_has_a_kernel():
    kernels = {word for name in KERNELS for word in public_functions(name)}
    for twin in TWINS:
        module = importlib.import_module(f"vpem._core.{twin}")
        assert set(module.__all__) <= kernels


# ---- who imports whom ---------------------------------------------------------------------------

LIBRARY = sorted((ROOT / "vpem").rglob("*.py"))


def test_this_test_reads_imports(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "vpem" / "sums").mkdir(parents=True)
    path = tmp_path / "vpem" / "sums" / "x.py"
    path.write_text("def f():\n    from ..terms import features\n    import vpem.steps.em as e\n")
    assert set(imports(path)) == {"vpem.terms", "vpem.terms.features", "vpem.steps.em"}


GROUND = {"errors", "checks", "settings", "schema"}
BELOW = {
    "_core": "",
    "network": "_core",
    "engines": "network",
    "terms": "network _core",
    "sums": "engines network _core",
    "steps": "terms sums engines network _core",
    "files": "terms engines network _core",
    "saem": "steps sums files terms engines network _core",
    "fits": "steps sums files terms engines network _core",
    "pictures": "fits saem files steps terms network _core",
}
"""What each room may import besides the ground."""


@pytest.mark.parametrize("room", BELOW)
def test_arrows_run_one_way(room):
    may = {*GROUND, room, *BELOW[room].split()}
    files = sorted((ROOT / "vpem" / room).rglob("*.py"))
    assert files
    for path in files:
        found = {name.split(".")[1] for name in imports(path) if name.startswith("vpem.")}
        found &= {*GROUND, *BELOW}
        assert found <= may, f"{path} imports {found - may}"


def test_every_room_is_in_the_table():
    rooms = {p.parent.name for p in (ROOT / "vpem").glob("*/__init__.py")}
    assert rooms == set(BELOW)
    assert {p.stem for p in (ROOT / "vpem").glob("*.py")} - {"__init__"} <= GROUND


def test_nothing_in_the_library_imports_the_command_line():
    assert LIBRARY
    for path in LIBRARY:
        wrong = [n for n in imports(path) if inside(n, "cli", "vpem_cli", "typer", "rich", "tests")]
        assert not wrong, f"{path.name} imports {wrong}"


def top_level_imports(path):
    """What is imported when the module is, and not only for type checkers."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.split(".")[0]


ESTIMATORS = ("estimators.py", "fitted.py", "row_estimators.py", "clustering.py", "federated.py",
              "completion.py", "on_graph.py")  # fmt: skip


def test_scikit_learn_is_for_estimators_only():
    for path in LIBRARY:
        if path.name not in ESTIMATORS:
            assert not set(top_level_imports(path)) & {"sklearn", "networkx", "pyarrow"}, path.name


# ---- what is installed --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def ended(program, folder, **variables):
    """What a Python program prints in a folder, which must go well."""
    done = subprocess.run(
        [sys.executable, *program], cwd=folder, env=os.environ | variables, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A source distribution, unpacked and installed from its folder: one kernel, to be quick."""
    folder = tmp_path_factory.mktemp("clone")
    skipped = shutil.ignore_patterns("*.so", "*.pyd", "*.c", "__pycache__")
    for name in ("vpem", "cli"):
        shutil.copytree(ROOT / name, folder / name, ignore=skipped)
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for path in (folder / "vpem" / "_core").glob("*.pyx"):
        if path.stem != "consensus":
            path.unlink()
    ended(["-c", "from setuptools import build_meta; build_meta.build_sdist('dist')"], folder)
    (archive,) = (folder / "dist").glob("vpem-*.tar.gz")
    shutil.unpack_archive(archive, folder / "dist", filter="data")
    (clone,) = (path for path in (folder / "dist").iterdir() if path.is_dir())
    site = folder / "site"
    pip = ["-m", "pip", "install", "-qq", "--no-deps", "--no-build-isolation", "--target", site]
    ended([*pip, "."], clone)
    return clone, site


FOUND = "import vpem._core.consensus as kernel; print(kernel.__file__)"


def test_python_finds_kernels_in_the_folder_it_was_installed_from(installed):
    clone, site = installed
    assert ended(["-c", FOUND], clone).startswith(f"{clone}{os.sep}")
    assert ended(["-c", FOUND], site.parent / "dist", PYTHONPATH=str(site)).startswith(str(site))


def test_every_room_is_installed_and_no_module_called_cli(installed):
    _, site = installed
    assert {path.name.split("-")[0] for path in site.iterdir()} == {"bin", "vpem", "vpem_cli"}
    for folder, home in (("vpem", "vpem"), ("cli", "vpem_cli")):
        ours = {path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*.py")}
        assert ours == {path.relative_to(site / home) for path in (site / home).rglob("*.py")}


def test_the_version_is_said_once_more_and_the_same(project):
    assert project["project"]["version"] == vpem.__version__


def test_what_is_imported_is_what_is_required(project):
    required = {
        requirement.split(">")[0].strip().lower()
        for requirement in project["project"]["dependencies"]
    }
    extras = project["project"]["optional-dependencies"]
    for extra in ("sdp", "plot", "mpi", "psi", "fetch"):
        required |= {requirement.split(">")[0].strip().lower() for requirement in extras[extra]}
    names = {"scikit-learn": "sklearn", "openmined-psi": "private_set_intersection"}
    declared = {names.get(name, name) for name in required}
    used = set()
    for path in [*LIBRARY, *sorted((ROOT / "cli").glob("*.py"))]:
        used |= {name.split(".")[0] for name in imports(path) if name}
    outside = used - set(sys.stdlib_module_names) - {"vpem", "cli"}
    assert outside == declared
