"""What is built and installed: every kernel, each with a twin, and every room."""

import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import vpem
from vpem._core import consensus

from .twins import assign, codecs, mixture, models

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "vpem" / "_core"
KERNELS = sorted(path.stem for path in CORE.glob("*.pyx"))
TWINS = [assign, codecs, mixture, models]


# ---- kernels and twins --------------------------------------------------------------------------


PATHS = {
    "langevin": ("vpem.saem.samplers", "Langevin"),
    "propose": ("vpem.saem.samplers", "propose"),
}
"""Kernels whose twins move the latents of models that have no kernel."""


def public_functions(name):
    """The Python functions and classes that a compiled module defines itself."""
    module = importlib.import_module(f"vpem._core.{name}")
    source = (CORE / f"{name}.pyx").read_text(encoding="utf-8")
    found = re.findall(r"^(?:def|cdef class) (\w+)", source, re.MULTILINE)
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
    for word, kernel in public_functions(name).items():
        if word in PATHS:
            module, twin = PATHS[word]
            assert hasattr(importlib.import_module(module), twin)
            continue
        if isinstance(kernel, type):  # a law that kernels read: its twin has the same name
            assert word == "Latents" or any(word in twin.__all__ for twin in TWINS)
            continue
        if not parameters(kernel):  # tells how it was built, computes nothing
            continue
        found = [getattr(twin, word) for twin in TWINS if word in twin.__all__]
        assert len(found) == 1, f"{word} needs one twin"
        assert parameters(kernel) == parameters(found[0]), word
        assert found[0].__doc__


def test_every_twin_has_a_kernel():
    kernels = {word for name in KERNELS for word in public_functions(name)}
    for twin in TWINS:
        assert set(twin.__all__) <= kernels


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
    """A source distribution, unpacked, and its wheel, unpacked: one kernel, to be quick."""
    folder = tmp_path_factory.mktemp("clone")
    skipped = shutil.ignore_patterns("*.so", "*.pyd", "*.c", "__pycache__")
    for name in ("vpem", "cli", "data"):
        shutil.copytree(ROOT / name, folder / name, ignore=skipped)
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for path in (folder / "vpem" / "_core").glob("*.pyx"):
        if path.stem != "consensus":
            path.unlink()
    ended(["-c", "from setuptools import build_meta; build_meta.build_sdist('dist')"], folder)
    (archive,) = (folder / "dist").glob("vpem-*.tar.gz")
    subprocess.run(["tar", "-xf", archive, "-C", folder / "dist"], check=True)
    (clone,) = (path for path in (folder / "dist").iterdir() if path.is_dir())
    # What pip does, without the four processes that it takes.
    ended(["-c", "from setuptools import build_meta; build_meta.build_wheel('..')"], clone)
    (wheel,) = (folder / "dist").glob("vpem-*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return clone, folder / "site"


FOUND = "import vpem._core.consensus as kernel; print(kernel.__file__)"


def test_python_finds_kernels_in_the_folder_it_was_installed_from(installed):
    clone, site = installed
    assert ended(["-c", FOUND], clone).startswith(f"{clone}{os.sep}")
    assert ended(["-c", FOUND], site.parent / "dist", PYTHONPATH=str(site)).startswith(str(site))


def test_every_room_is_installed_and_no_module_called_cli(installed):
    _, site = installed
    assert {path.name.split("-")[0] for path in site.iterdir()} == {"vpem", "vpem_cli"}
    (scripts,) = site.glob("vpem-*/entry_points.txt")
    assert "vpem = vpem_cli:main" in scripts.read_text(encoding="utf-8")
    for folder, home in (("vpem", "vpem"), ("cli", "vpem_cli")):
        ours = {path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*.py")}
        assert ours == {path.relative_to(site / home) for path in (site / home).rglob("*.py")}


def test_the_version_is_said_twice_more_and_the_same(project):
    assert project["project"]["version"] == vpem.__version__
    assert f"\nversion: {vpem.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_wheels_are_built_for_every_python_that_is_named_and_tried(project):
    wheels = project["tool"]["cibuildwheel"]
    named = [each.rpartition(" ")[2] for each in project["project"]["classifiers"]]
    versions = [each for each in named if each.startswith("3.")]
    assert wheels["build"] == " ".join(f"cp{each.replace('.', '')}-*" for each in versions)
    assert project["project"]["requires-python"] == f">={versions[0]}"
    tests = [word for word in wheels["test-command"][0].split() if word.startswith("{project}")]
    assert tests
    assert all(Path(word.format(project=ROOT)).is_file() for word in tests)


DATA = "from vpem import example_path; print(example_path('wine').parent)"


def test_what_else_is_installed(installed):
    """Datasets, once and with what is said of them; the note that types are known."""
    clone, site = installed
    assert (site / "vpem" / "py.typed").is_file()
    core = {path.suffix for path in (site / "vpem" / "_core").rglob("*") if path.is_file()}
    assert sorted(core - {".pyc"}) == [".py", Path(consensus.__file__).suffix]
    assert Path(ended(["-c", DATA], clone).strip()) == clone / "data"
    folder = Path(ended(["-c", DATA], site, PYTHONPATH=str(site)).strip())
    assert folder == site / "vpem" / "examples"
    ours = {path.name for path in (ROOT / "data").iterdir() if path.is_file()}
    assert ours == {path.name for path in folder.iterdir()}
