"""One place a setting: a field of a record is an option wherever options are."""

from __future__ import annotations

import json
import re
from typing import Annotated

import numpy as np
import pytest
import typer

from vpem import Dataset, FitSettings, InputError, KmeansSettings, SumSettings, write_dataset
from vpem.errors import Setting
from vpem.files.models import read_model
from vpem.network.codecs import parse_codec
from vpem.records import Settings, changed, describe_field, setting
from vpem.settings import FedMixtureSettings, GraphSettings, HoldingSettings, SaemSettings
from vpem_cli.app import command, tree
from vpem_cli.data import ComponentSettings
from vpem_cli.names import key_of, leaves
from vpem_cli.options import Given, Without, flags_of, word_of

from .cli_support import ROOT, done
from .tables import each
from .test_docs import rows_of

RECORDS = (SumSettings, GraphSettings, HoldingSettings, ComponentSettings)
"""Of `vpem fit`."""


@pytest.fixture(scope="module")
def fit():
    return dict(leaves(command()))[("fit",)]


def fields_of_fit():
    return {one.name: one for record in RECORDS for one in record.fields()}.values()


def test_a_field_of_a_record_of_fit_is_in_its_help_its_reference_and_its_completion(fit, capsys):
    shown = done(capsys, "fit", "--help-all").out
    page = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    params = {param.name: param for param in fit.params}
    for one in fields_of_fit():
        known, param = describe_field(one), params[one.name]
        (text,) = rows_of(page, ("vpem", "fit"), param)
        assert known.help.replace("|", "/") in text
        assert all(flag in shown for flag in flags_of(one))
        words = known.choices or known.words
        if words:
            assert [one.value for one in param.shell_complete(None, "")] == list(words)


def test_a_field_of_a_record_of_fit_is_in_configurations_variables_and_models(
    fit, capsys, tmp_path, monkeypatch
):
    path, output = tmp_path / "few.h5", tmp_path / "model.h5"
    rng = np.random.default_rng(0)
    write_dataset(path, Dataset(rng.normal(size=(60, 2)), ("a", "b")))
    params = {param.name: param for param in fit.params}
    values = {"n_components": "3", "init": "random", "scale": "standard", "seed": "4"}
    config = tmp_path / "fit.toml"
    for one in fields_of_fit():
        name, key = one.name, key_of(params[one.name])
        monkeypatch.setenv(f"VPEM_FIT_{key.upper().replace('-', '_')}", values.get(name, ""))
    shown = done(capsys, "fit", path, "--show-config", "--json").json["options"]
    for one in fields_of_fit():
        told = shown[key_of(params[one.name])]
        if one.name in values:
            assert told["source"] == "environment"
            assert str(told["value"]) == values[one.name]
        else:
            assert told["value"] == one.default
        monkeypatch.delenv(told["from"] or "", raising=False)
    lines = [f"{key_of(params[name])} = {json.dumps(value)}" for name, value in values.items()]
    config.write_text("\n".join(["[fit]", *lines]))
    done(capsys, "fit", path, "--config", config, "-o", output, "--quiet")
    kept = read_model(output).options
    for one in fields_of_fit():
        wanted = values.get(one.name, one.default)
        if one.name == "graph_seed":
            wanted = values["seed"]
        assert str(kept[word_of(one)]) == str(wanted), one.name


# ---- a record of one's own -----------------------------------------------------------------------


class Base(Settings, heading="Start"):
    """What a toy is told."""

    level: int = setting(3, "How loud.", flags="-l --loudness", least=1, most=9)
    colour: str | None = setting(None, "Which.", choices=("red", "green"))
    pause: int | str = setting("auto", "How long.", choices=("auto",), least=0)


class Toy(Base, heading="Start"):
    """Another toy, louder."""

    level: int = changed(Base, "level", 5)
    once: bool = setting(
        False, "Only once.",
        idle=(lambda given: given["pause"] != "auto", (" is without ", Setting("pause"))),
    )  # fmt: skip


def toy(
    own: Annotated[int, typer.Option(help="The command's own.")] = 1,
    *,
    louder: Toy,
    base: Annotated[Base, Without("colour")],
    given: Given,
) -> None:
    told = {"own": own, "louder": louder.values(), "base": base.values()}
    print(json.dumps(told | {"given": "level" in given.names, "kept": given.record}))


@pytest.fixture
def played(capsys):
    app = typer.Typer(add_completion=False)
    app.callback()(lambda: None)
    root = tree(app, {"toy": (toy, "", None)})

    def play(*words):
        with root.make_context("vpem", ["toy", *map(str, words)]) as context:
            root.invoke(context)
        return json.loads(capsys.readouterr().out)

    return play


def test_a_record_is_options_and_a_record_again(played):
    told = played("--own", 2, "-l", 7, "--pause", 30)
    assert told["own"] == 2
    assert told["louder"] == {"level": 7, "colour": None, "pause": 30, "once": False}
    assert told["base"] == {"level": 7, "colour": None, "pause": 30}
    assert told["kept"] == {"loudness": 7, "colour": None, "pause": 30, "once": False}
    assert told["given"]


def test_what_is_not_given_is_the_default_of_the_record_that_comes_first(played, monkeypatch):
    told = played()
    assert (told["louder"]["level"], told["base"]["level"], told["given"]) == (5, 5, False)
    monkeypatch.setenv("VPEM_TOY_LOUDNESS", "8")
    assert played()["base"]["level"] == 8


@each(
    ("words", "said"),
    [
        (("--loudness", 10), "level must be an integer of at least 1 and at most 9, got 10"),
        (("--colour", "gren"), "colour must be one of red, green, got 'gren' (did you mean"),
        (("--pause", "soon"), "pause must be an integer of at least 0, or auto, got 'soon'"),
        (("--pause", 3, "--once"), "--once is without pause"),
    ],
)
def test_a_record_is_checked_when_it_is_made(played, words, said):
    with pytest.raises(InputError, match=re.escape(said)):
        played(*words)


@each(
    ("record", "bad", "said"),
    [
        (Base, {"level": 0}, "level must be an integer of at least 1 and at most 9, got 0"),
        (Base, {"level": True}, "level must be an integer"),
        (Base, {"pause": 1.5}, "pause must be an integer"),
        (Toy, {"pause": 2, "once": True}, "once is without pause"),
        (FitSettings, {"step_size": 0.7}, "there are no batches; give batch_size"),
        (FitSettings, {"step_size": 0.5, "batch_size": 9}, "step_size must be a number above 0.5"),
        (FitSettings, {"n_init": 2, "init": [1, 2]}, "n_init starts again from other rows"),
        (GraphSettings, {"topology": "star", "graph": "g.txt"}, "give topology or graph, not both"),
        (SumSettings, {"n_rounds": 9, "consensus_tol": 1e-3}, "the number of rounds is given"),
        (SumSettings, {"sum": "tree", "n_rounds": 9}, "n_rounds is about consensus rounds"),
        (SumSettings, {"compress": "float32", "consensus_tol": 1e-3}, "depends on the codec"),
        (KmeansSettings, {"method": "grid", "n_init": 2}, "n_init is at least 4 in one shot"),
        (
            KmeansSettings,
            {"method": "grid", "init": np.array([3, 1])},
            "init is for method='lloyd'",
        ),
        (FedMixtureSettings, {"alpha": 0.5}, "alpha corrects for noise of codecs"),
        (FedMixtureSettings, {"memory": "zero"}, "memory corrects for noise of codecs"),
        (SaemSettings, {"tol": 0, "window": 9}, "window is how often to check"),
    ],
)
def test_programs_are_refused_the_same(record, bad, said):
    with pytest.raises(InputError, match=re.escape(said)):
        record(**bad)
    with pytest.raises(InputError, match=re.escape(said)):
        record.resolve(record(), **bad)


@pytest.mark.parametrize(("record", "name"), [(SumSettings, "compress"), (SaemSettings, "codec")])
def test_an_array_is_no_codec_but_rules_beside_it_say_nothing(record, name):
    odd = np.array([1, 2])
    assert getattr(record(**{name: odd}), name) is odd
    with pytest.raises(InputError, match="the codec must be one of"):
        parse_codec(odd)


def test_settings_of_another_kind_are_refused():
    with pytest.raises(InputError, match="settings must be FitSettings, got KmeansSettings"):
        FitSettings.resolve(KmeansSettings())
    with pytest.raises(TypeError, match="n_component"):
        FitSettings(n_component=3)
