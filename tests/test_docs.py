"""Pages: those made of the code are as it is now, and all run as they stand."""

import importlib.util
import inspect
import json
import re
import shlex
import subprocess
from types import SimpleNamespace

import nbformat
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp
from sklearn.metrics import adjusted_rand_score

import vpem
from vpem.saem.prediction import Predictor
from vpem_cli import run as run_cli
from vpem_cli.app import command
from vpem_cli.names import key_of

from .forks import environment, interpreter
from .pages_support import ROOT, agrees, check, comparable, makers, pictures, sessions
from .tables import each

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]

# ---- pages and notebooks run ---------------------------------------------------------------------


@pytest.mark.parametrize("page", sessions())
def test_session(page, tmp_path):
    check(page, tmp_path)


def test_what_is_printed_is_compared_with_what_is_shown():
    printed = comparable("one  0.5 s\n\ntwo\nthree\n")
    assert agrees(printed, comparable("one 0.7 s\ntwo\nthree"))
    assert agrees(printed, comparable("one 0.7 s\n...\nthree"))
    assert not agrees(printed, comparable("one 0.7 s\nthree"))
    assert not agrees(printed, comparable("one 0.7 s\n...\nfour"))


NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))

# A kernel, and messages to it, take longer than what most notebooks do.
RUN = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

shell, printed = InteractiveShell.instance(), []
# What a last line has made is drawn, as it would be to be shown, and not printed.
shell.display_trap.hook = lambda value: value is None or shell.display_formatter.format(value)
for source in json.load(sys.stdin):
    with capture_output() as found:
        shell.run_cell(source).raise_error()
    printed.append(found.stdout)
    assert not found.stderr, found.stderr
json.dump(printed, sys.stdout)
"""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path, tmp_path):
    cells = [one for one in nbformat.read(path, as_version=4).cells if one.cell_type == "code"]
    shown = [
        "".join(out.text for out in cell.outputs if out.output_type == "stream") for cell in cells
    ]
    assert any(shown)
    done = subprocess.run(
        [interpreter(), "-c", RUN], cwd=tmp_path, input=json.dumps([cell.source for cell in cells]),
        env=environment(IPYTHONDIR=str(tmp_path)), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == shown


# ---- pictures and links --------------------------------------------------------------------------


def test_pictures_are_small_made_by_commands_of_their_pages_and_told_in_words():
    found = pictures()
    assert set(found) == set((ROOT / "docs" / "pictures").iterdir())
    assert (ROOT / "README.md") in {page for pages in found.values() for page in pages}
    for picture, pages in found.items():
        assert picture.stat().st_size < 80_000, picture
        assert makers(picture, pages), f"no session of {pages} says: wrote {picture.name}"
        assert all(len(words) > 40 for words in pages.values()), picture


def test_links_between_pages_lead_somewhere():
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("data/*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), (page.name, target)


def test_the_two_commands_of_the_readme_are_targets_of_the_makefile():
    readme, makefile = ((ROOT / name).read_text("utf-8") for name in ("README.md", "Makefile"))
    for target in ("demo", "test"):
        assert f"make {target}" in readme
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)
    counts = {kind: readme.count(f"```{kind}") for kind in ("console", "python", "text")}
    assert counts.pop("console") >= 4
    assert counts == {"python": 1, "text": 1}


# ---- commands that pages show exist --------------------------------------------------------------

FENCES = re.compile(r"^```([a-z]*)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
PROMPT = re.compile(r"\w*\$ ")


def shown(page):
    """Lines of a page's code that call vpem."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    fenced = [
        line for kind, block in FENCES.findall(text) for line in block.splitlines()
        if kind != "console" or PROMPT.match(line)  # the rest is what commands print
    ]  # fmt: skip
    indented = [line[4:] for line in FENCES.sub("", text).splitlines() if line.startswith("    ")]
    for line in (*fenced, *indented):
        plain = PROMPT.sub("", line.strip(), count=1).removesuffix(" &")
        found = re.match(r"(?:mpiexec .*?|srun .*?)?\bvpem ([a-z][a-z-]* .*)", plain)
        if found and "[OPTIONS]" not in line:
            yield found.group(1)


@each("page", PAGES)
def test_commands_that_a_page_shows_exist(page):
    for line in shown(page):
        if "--config" in line or "--study" in line:  # the rest may stand in the file
            continue
        # A variable of the shell may be any number.
        words = shlex.split(re.sub(r"\$\{?\w+\}?", "1", line), comments=True)
        ends = [i for i, word in enumerate(words) if word in (">", "|", "&&", ";", "2>", "<", "||")]
        words = words[: min(ends, default=len(words))]
        parse(command(), "vpem", words, line)


def parse(member, name, words, line):
    """Parse words as the command does, without a run."""
    try:
        with member.make_context(name, list(words)) as context:
            if hasattr(member, "commands"):
                rest = [*context._protected_args, *context.args]
                inner, found, rest = member.resolve_command(context, rest)
                parse(found, inner, rest, line)
    except Exception as error:
        if hasattr(error, "format_message"):
            pytest.fail(f"{line}: {error.format_message()}")
        raise


# ---- pages that are made of the code -------------------------------------------------------------


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs/make_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@each("page", ["cli.md", "python.md", "table.md"])
def test_reference_is_up_to_date(maker, page):
    text = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
    assert text == maker.PAGES[page](), "run `make docs`"


def test_every_public_name_is_described():
    """Public names, and what their classes and the bases of these bring a user."""
    silent = []
    for name in vpem.__all__:
        value = getattr(vpem, name)
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            continue
        silent += [] if inspect.getdoc(value) else [name]
        for base in inspect.getmro(value) if inspect.isclass(value) else ():
            if base.__module__.startswith("vpem"):
                silent += [
                    f"{name}.{key}"
                    for key, member in vars(base).items()
                    if not key.startswith("_")
                    and (callable(member) or isinstance(member, property))
                    if not inspect.getdoc(getattr(value, key))
                ]
    assert not silent


def rows_of(page, path, option):
    """Rows of the page that describe an option of a command: its own, or those it shares."""
    page = page.replace("\\|", "/")
    section = page.partition(f"\n## {' '.join(path)}\n")[2].partition("\n## ")[0]
    names = re.escape(f"`--{key_of(option)}`")
    own = re.findall(rf"^\| [^|]*{names}[^|]*\| (.*) \|$", section, flags=re.MULTILINE)
    if own:
        return own
    (heading,) = re.findall(rf"^\* \[(.*)\]\(#.*{names}(?:,|$)", section, flags=re.MULTILINE)
    shared = page.partition("\n## Options of several commands\n")[2]
    shared = shared.partition(f"\n### {heading}\n")[2].partition("\n### ")[0]
    found = re.findall(rf"^\| [^|]*{names}([^|]*)\| (.*) \|$", shared, flags=re.MULTILINE)
    whose = f"`{' '.join(path[1:])}`"
    return [text for users, text in found if " of " not in users or whose in users]


def test_every_command_has_help_with_an_example_and_every_option_is_described_once(maker):
    page, count = maker.reference(), 0
    for path, member in maker.leaves(command(), ("vpem",)):
        assert "Example: vpem " in member.help, path
        assert all(one.help for one in member.params), path
        for option in member.params:
            if option.param_type_name != "option" or option.hidden:
                continue
            if option.rich_help_panel == "Configuration":
                assert f"`--{key_of(option)}" in page.partition("\n## ")[0]
                continue
            (text,) = rows_of(page, path, option)
            text = text.replace("vpem COMMAND", " ".join(path))
            assert option.help.replace("|", "/") in text, (path, option.name)
            assert maker.default_of(option) in text, (path, option.name)
            count += 1
    assert count > 500


# ---- mclust --------------------------------------------------------------------------------------


def test_the_page_for_users_of_mclust(tmp_path, capsys, monkeypatch):
    """Mclust(iris[, 1:4], G = 3, modelNames = "VVV") of mclust 6.0.0, and MclustDR of it."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/how-to/mclust.md").read_text(encoding="utf-8")
    names = {}
    exec(re.search(r"```python\n(.*?)```", page, flags=re.DOTALL).group(1), names)
    printed = dict(line.split(" ", 1) for line in capsys.readouterr().out.splitlines())
    assert float(printed["log-likelihood"]) == pytest.approx(-180.1858, abs=1e-3)
    assert float(printed["BIC"]) == pytest.approx(580.8396, abs=5e-3)
    assert json.loads(printed["rows"]) == [45, 50, 55]
    assert json.loads(printed["directions"]) == pytest.approx([1.8793, 0.0725], abs=1e-4)
    assert np.loadtxt("scores.csv", delimiter=",", skiprows=1).shape == (150, 2)


def test_the_page_for_single_cells(tmp_path, capsys, monkeypatch):
    """Groups of the AnnData, a real one where it is installed, are those of its file in a shell."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/how-to/single-cells.md").read_text(encoding="utf-8")
    names = {}
    exec(re.search(r"```python\n(.*?)```", page, flags=re.DOTALL).group(1), names)
    cells, model = names["adata"], names["model"]
    assert adjusted_rand_score(names["types"], cells.obs["groups"]) > 0.7
    proba = cells.obsm["groups_proba"]
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    np.testing.assert_array_equal(proba.argmax(axis=1).astype(str), cells.obs["groups"])
    assert cells.obsm["groups_directions"].shape == (900, model.n_components - 1)
    assert np.nanmin(cells.uns["groups_bic"]) == pytest.approx(model.bic(cells.obsm["X_pca"]))
    if type(cells) is SimpleNamespace:
        return
    said = ["predict", "cells.h5", "cells.h5ad", "--dataset", "obsm/X_pca", "-o", "groups.csv"]
    assert run_cli(said) == 0
    found = np.loadtxt("groups.csv", delimiter=",", skiprows=1, usecols=1, dtype=int)
    np.testing.assert_array_equal(found.astype(str), cells.obs["groups"])


# ---- a model of one's own for SAEM -------------------------------------------------------------


def test_own_model_reaches_the_top_of_its_likelihood(tmp_path, capsys):
    """Against the likelihood by quadrature."""
    page = (ROOT / "docs/how-to/saem-model.md").read_text(encoding="utf-8")
    names = {}
    exec(re.search(r"## A class.*?```python\n(.*?)```", page, flags=re.DOTALL).group(1), names)
    assert "variance" in capsys.readouterr().out
    fit = names["fit"]
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)

    def value(mean, variance):
        z = mean + np.sqrt(variance) * nodes
        rows = fit.model.total[:, None] * z - 3 * np.exp(z) - fit.model.constant[:, None]
        return logsumexp(rows, b=weights / weights.sum(), axis=1).sum()

    found = minimize(lambda at: -value(*at), (1.0, 0.3), bounds=[(-5, 5), (1e-3, 5)])
    np.testing.assert_allclose(fit.theta, found.x, rtol=0.01)
    assert abs(fit.log_likelihood.value - value(*fit.theta)) < 5 * fit.log_likelihood.error
    vpem.save_saem(tmp_path / "own.h5", fit)
    predictor = Predictor(vpem.read_saem(tmp_path / "own.h5"), names["PoissonModel"])
    some = names["data"].take([0, 1])
    curves = predictor.curves(some, [1.0])
    np.testing.assert_allclose(curves.fitted, np.exp(predictor.latents(some).means[:, 0]))
    assert predictor.population([1.0]).fitted[0] == pytest.approx(np.exp(fit.theta[0]))
