"""The house: arrows between rooms run down only, and a package is imported where it is declared."""

import ast
import importlib
import importlib.util
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import vpem

from .tables import each

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def script():
    """The script that counts and draws."""
    spec = importlib.util.spec_from_file_location("house", ROOT / "docs" / "house.py")
    sys.modules["house"] = module = importlib.util.module_from_spec(spec)  # for its dataclass
    spec.loader.exec_module(module)
    yield module
    del sys.modules["house"]


@pytest.fixture(scope="module")
def house(script):
    """This house, read."""
    return script.House(ROOT)


@pytest.fixture(scope="module")
def counts(house):
    return house.counts()


TINY = {
    "vpem/__init__.py": "import vpem.sums\n",
    "vpem/errors.py": "",
    "vpem/em.py": "from vpem import errors\ndef f():\n    from vpem.saem.models import x\n",
    "vpem/sums/__init__.py": "",
    "vpem/sums/deep/here.py": "def f():\n    if f:\n        from ...terms import features\n",
    "vpem/terms/features.py": "if TYPE_CHECKING:\n    import vpem.em\nimport vpem._core.x as x\n",
    "vpem/_core/x.py": "from .. import errors\nfrom . import y\n",
    "vpem/_core/y.py": "",
    "vpem/saem/models/__init__.py": "from ...em import f\n",
    "cli/commands/fit.py": "from vpem_cli.other import x\nimport vpem.em\nfrom ..data import y\n",
    "cli/data.py": "from .runner import x\ndef f():\n    from vpem_cli.commands.fit import x\n",
    "cli/names.py": "def f():\n    from importlib import import_module as load\n",
    "cli/app.py": "from importlib import import_module\nfrom .study import party\n",
}


def test_every_import_is_read_and_wrong_arrows_are_found(script, tmp_path):
    for name, text in TINY.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    tiny = script.House(tmp_path)
    assert set(tiny.graph.edges) == {
        ("em", "saem"), ("saem", "em"), ("sums", "terms"), ("terms", "_core"), ("cli", "em"),
    }  # fmt: skip
    assert tiny.graph.edges["sums", "terms"]["where"] == [
        "vpem/sums/deep/here.py: vpem.terms.features"
    ]
    assert tiny.circles() == [["em", "saem"]]
    assert set(tiny.wrong()) == {("em", "saem"), ("saem", "em"), ("sums", "terms")}
    assert tiny.floors() == [["_core", "em", "saem"], ["cli", "terms"], ["sums"]]
    assert (tiny.folders, tiny.loose) == (["_core", "saem", "sums", "terms"], ["em", "errors"])
    assert tiny.rooms()["terms"] == (3, 1)
    assert tiny.rooms()["ground"] == (4, 3)
    assert tiny.circles_of_files() == [
        ["cli.commands.fit", "cli.data"],
        ["vpem.em", "vpem.saem.models"],
    ]
    assert tiny.climbs() == [
        "cli/commands/fit.py: vpem_cli.other.x", "cli/data.py: cli.runner.x",
        "cli/data.py: vpem_cli.commands.fit.x", "cli/names.py: importlib.import_module",
    ]  # fmt: skip


def test_arrows_run_down_only(script, house):
    assert set(house.graph) == set(script.ALLOWED)
    wrong = [house.graph.edges[edge]["where"] for edge in house.wrong()]
    assert not wrong
    assert not house.circles()
    assert len(house.floors()) <= 8
    assert not house.climbs()


def test_a_newcomer_reads_the_folders_in_one_glance(script, house):
    assert len(house.folders) <= 10
    assert set(house.loose) <= set(script.GROUND)


def test_functions_and_files_have_bounds(counts):
    assert not counts["functions of more than 100 lines"]
    assert not counts["functions of more than 12 parameters"]
    large = counts["files of more than 800 lines"]
    assert not large


BUDGET = {
    "ground": (2_870, 7), "_core": (9_080, 23), "network": (4_780, 12), "engines": (5_510, 17),
    "terms": (11_120, 32), "sums": (4_820, 13), "steps": (7_150, 18), "files": (15_060, 41),
    "saem": (11_060, 29), "fits": (18_220, 41), "pictures": (7_340, 17), "cli": (11_750, 29),
}  # fmt: skip
"""Lines and files of each room: whoever raises one says why in CONTRIBUTING.md."""


def test_rooms_keep_to_their_budgets(house):
    rooms = house.rooms()
    assert set(rooms) == set(BUDGET)
    over = {room: size for room, size in rooms.items()
            if size[0] > BUDGET[room][0] or size[1] > BUDGET[room][1]}  # fmt: skip
    assert not over


def test_files_are_subjects(counts):
    assert not counts["files of less than 120 lines"]
    assert not counts["circles of files"]
    assert not counts["names of two classes"]
    assert counts["words that are not the field's"] <= 20


def test_the_ground_stands_on_itself_only(script, house):
    for one in house.modules:
        if one.room in script.GROUND and one.name != "vpem":
            ours = {name.split(".")[1] for name in one.imports if name.startswith("vpem.")}
            assert ours <= set(script.GROUND), one.path


def test_nothing_in_the_library_imports_the_command_line(house):
    for one in house.modules:
        if one.room != "cli":
            outside = {name.split(".")[0] for name in one.imports}
            assert not outside & {"cli", "vpem_cli", "typer", "rich", "tests"}, one.path


# ---- what is imported of others -----------------------------------------------------------------


def at_the_top(module):
    """What is imported when the module is, and not only for type checkers."""
    for node in module.tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def test_heavy_packages_are_loaded_when_they_are_used(house):
    top = {one.name: set(at_the_top(one)) for one in house.modules if one.room != "cli"}
    packages = {"sklearn", "networkx", "pyarrow"}
    heavy = {name for name, loaded in top.items() if packages & {x.split(".")[0] for x in loaded}}
    for name in top.keys() - heavy:
        assert not top[name] & heavy or ".estimators" in name, name


def test_what_is_imported_is_what_is_required(house):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = list(project["dependencies"])
    for extra in ("sdp", "mpi", "tls", "nvflare", "dask", "ray", "secure", "psi", "fetch"):
        needed += project["optional-dependencies"][extra]
    names = {"scikit-learn": "sklearn", "openmined-psi": "private_set_intersection"}
    required = {one.split(">")[0].split("[")[0].strip().lower() for one in needed}
    used = {name.split(".")[0] for one in house.modules for name in one.imports}
    ours = {*sys.stdlib_module_names, "vpem", "vpem_cli", "cli"}
    assert used - ours == {names.get(name, name) for name in required}


# ---- names of before ----------------------------------------------------------------------------

OF_BEFORE = {
    "vpem.network.holdings": "contiguous", "vpem.sums.spread": "spread",
    "vpem.sums.tree": "TreeSum",
    "vpem.saem.structures.own": "curve", "vpem.saem.corpus": "from_counts",
    "vpem.saem.formats.corpora": "write_corpus", "vpem.table": "refusal", "vpem.idle": "refusal",
    "vpem.convergence": "NotConvergedWarning",
    "vpem.fits.estimators.federated": "FedEM",
    "vpem.fits.estimators.row_estimators": "DistributedGaussianMixture",
    "vpem.fits.estimators.rows": "FedEM", "vpem.fits.private": "fit_private_rows",
    "vpem.saem.topics": "Topics", "vpem.steps.row_batches": "fit_row_batches",
}  # fmt: skip
"""Modules that pages once named, and a name in each."""


def test_modules_of_before_are_found_with_a_warning(monkeypatch):
    assert set(OF_BEFORE) == set(vpem._Moved.homes)
    for module, name in OF_BEFORE.items():
        home = vpem._Moved.homes[module]
        monkeypatch.delitem(sys.modules, module, raising=False)
        with pytest.warns(DeprecationWarning, match=f"^{module} is {home} now$") as warned:
            before = importlib.import_module(module)
        assert warned[0].filename == importlib.__file__
        assert getattr(before, name) is getattr(importlib.import_module(home), name)


@each(
    ("owner", "called"),
    [(vpem.InputError("no"), "sentence_with"), (vpem.Kinds(("poisson",)), "summary")],
)
def test_an_attribute_of_before_is_found_with_a_warning(owner, called):
    with pytest.warns(DeprecationWarning, match=f"^told is {called} now$") as warned:
        assert owner.told == getattr(owner, called)
    assert warned[0].filename == __file__


@each(
    ("kind", "before", "called"),
    [
        (vpem.Mixture, "at", "replace_parameters"),
        (vpem.Mixture, "over", "convert_to"),
        (vpem.SaemModel, "about", "expand_about"),
        (vpem.SaemModel, "take", "take_individuals"),
        (vpem.Kinds, "of", "take_features"),
    ],
)
def test_a_method_of_before_is_found_with_a_warning(kind, before, called):
    assert callable(getattr(kind, called))
    owner = SimpleNamespace(**{called: "the method"})
    with pytest.warns(DeprecationWarning, match=f"^{before} is {called} now$"):
        assert getattr(kind, before).__get__(owner) == "the method"


def test_models_may_have_methods_under_former_names():
    with pytest.warns(DeprecationWarning, match="^(about|take) is") as warned:

        class Before(vpem.SaemModel):
            def about(self, theta):
                return "expanded"

            def take(self, which):
                return "some"

    told = [str(one.message) for one in warned]
    assert told == ["about is expand_about now", "take is take_individuals now"]
    assert Before.expand_about(None, None) == "expanded"
    assert Before.take_individuals(None, []) == "some"
    assert "take_individuals" not in Before.__abstractmethods__
    assert warned[0].filename == __file__
    settings = vpem.TableSettings(family="auto")
    with pytest.warns(DeprecationWarning, match="^of is resolve now$"):
        assert vpem.TableSettings.of(settings) == settings
