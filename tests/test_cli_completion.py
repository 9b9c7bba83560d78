"""Completion in shells by its protocol, and the choices that it offers."""

import os
import subprocess
import sys

import pytest

import vpem_cli
from vpem import settings
from vpem.files import examples
from vpem.network.codecs import CODECS, parse_codec
from vpem.pictures import page
from vpem.records import describe_field
from vpem.saem.models import model
from vpem.saem.models.population import COVARIANCES
from vpem.saem.samplers import AUTO, SAMPLERS
from vpem_cli.app import command
from vpem_cli.commands import model as models
from vpem_cli.commands.saem import ModelSettings
from vpem_cli.names import is_flag, key_of, leaves
from vpem_cli.options import OFFERED

from .cli_support import MAIN
from .tables import each

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
        timeout=60, check=False,
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
        "data copy name": examples.EXAMPLES, "data fetch name": examples.OPEN,
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
