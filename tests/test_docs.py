"""The pages that are made from the code are those the code makes now."""

import importlib.util
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp

import vpem
from vpem_cli.app import command
from vpem_cli.names import key_of

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs/make_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["cli.md", "python.md", "table.md"])
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


def test_every_command_has_help_with_an_example(maker):
    commands = list(maker.leaves(command(), ("vpem",)))
    assert len(commands) >= 10
    for path, member in commands:
        assert "Example: vpem " in member.help, path
        for parameter in member.params:
            assert parameter.help, (path, parameter.name)


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


def test_every_option_of_every_command_is_described_once(maker):
    page, count = maker.reference(), 0
    for path, member in maker.leaves(command(), ("vpem",)):
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


def test_links_between_pages_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("data/*.md")]
    assert len(pages) >= 5
    for page in pages:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), (page.name, target)


# ---- a model of one's own for SAEM -------------------------------------------------------------


@pytest.fixture(scope="module")
def saem_blocks():
    page = (ROOT / "docs/how-to/saem-model.md").read_text(encoding="utf-8")
    page = page[page.index("## A class") :]
    return re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)


def test_own_model_reaches_the_top_of_its_likelihood(saem_blocks, tmp_path, capsys):
    """Against the likelihood by quadrature."""
    from vpem import read_saem, save_saem
    from vpem.saem.prediction import Predictor

    names = {}
    exec(saem_blocks[0], names)
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
    steps = 1e-3 * np.eye(2)
    bend = [
        [
            value(*(found.x + a + b)) - value(*(found.x + a - b)) - value(*(found.x - a + b))
            + value(*(found.x - a - b))
            for b in steps
        ]
        for a in steps
    ]  # fmt: skip
    errors = np.sqrt(np.diag(np.linalg.inv(-np.array(bend) / 4e-6)))
    np.testing.assert_allclose(fit.standard_errors, errors, rtol=0.05)
    save_saem(tmp_path / "own.h5", fit)
    predictor = Predictor(read_saem(tmp_path / "own.h5"), names["PoissonModel"])
    some = names["data"].take([0, 1])
    curves = predictor.curves(some, [1.0])
    np.testing.assert_allclose(curves.fitted, np.exp(predictor.latents(some).means[:, 0]))
    assert predictor.population([1.0]).fitted[0] == pytest.approx(np.exp(fit.theta[0]))
