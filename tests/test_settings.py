"""One place a setting, an option wherever options are, with one default by every door.

A door is a command, a recipe or an estimator. What a setting is called there is in `NAMES`; what
only some kinds have, and why, in `ALONE` and `LACKING`; defaults that are spelt otherwise in
`SPELT`. A setting that is in none of these and does not agree with the others is a failure, as is
an entry of `LACKING` or `ALONE` that nothing needs.
"""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import fields
from typing import Annotated, get_args

import numpy as np
import pytest
import typer

import vpem
import vpem_cli.app
from vpem import Dataset, FitSettings, InputError, KmeansSettings, SumSettings, write_dataset
from vpem.errors import Setting
from vpem.files.models import read_model
from vpem.fits.plan import plan
from vpem.fits.selection.search import search
from vpem.fits.settings import PrivacySettings
from vpem.network.codecs import parse_codec
from vpem.network.hubs import find_hubs
from vpem.network.partition import contiguous, evenly
from vpem.records import Settings, _checked, changed, describe_field, setting
from vpem.saem.saem import run_saem
from vpem.settings import FedMixtureSettings, GraphSettings, HoldingSettings, SaemSettings
from vpem.steps.fedem import run_fedem
from vpem.terms.lowrank.entries import from_matrices
from vpem_cli.app import command, tree
from vpem_cli.commands.fit import FitChoices
from vpem_cli.data import ComponentSettings
from vpem_cli.names import key_of, leaves
from vpem_cli.options import Given, Without, flags_of, word_of

from .cli_support import ROOT, done, overlapping
from .tables import each
from .test_docs import rows_of

RECORDS = (SumSettings, GraphSettings, HoldingSettings, ComponentSettings)
"""Of `vpem fit`."""


@pytest.fixture(scope="module")
def fit():
    return dict(leaves(command()))[("fit",)]


def fields_of_fit():
    """Fields of these records, as the command has them where it says more of one."""
    own = {one.name: one for one in FitChoices.fields()}
    shared = {one.name: one for record in RECORDS for one in record.fields()}
    return [own.get(name, one) for name, one in shared.items()]


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
            offered = [*words, *(code for code in known.also if code not in words)]
            assert [one.value for one in param.shell_complete(None, "")] == offered


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


def test_a_record_is_itself_where_nothing_changes():
    one = Toy(level=7)
    assert one.changed() is one.changed(level=7, colour=None) is one
    assert one.changed(level=8) == Toy(level=8)
    for unknown in (..., 7):  # no value stands for one that is not there
        with pytest.raises(TypeError, match="Toy has no setting 'loudness'"):
            one.changed(loudness=unknown)


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


def test_defaults_are_what_checks_would_make_of_them():
    """Records check what is no default, and nothing has to be done about what is one."""
    kinds = [Settings]
    for kind in kinds:
        kinds += kind.__subclasses__()
        for one in kind.fields():
            found = _checked(one, one.default)
            assert (type(found), found) == (type(one.default), one.default), (kind, one.name)
    assert len(kinds) > 20
    before = SaemSettings()  # of a pickle from before there was this setting
    del vars(before)["tol"]
    before.refuse_idle()


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
        (KmeansSettings, {"method": "grid", "n_init": 4}, "n_init is at least 4 in one shot"),
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


@each(("record", "name"), [(SumSettings, "compress"), (SaemSettings, "codec")])
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


# ---- the doors ----------------------------------------------------------------------------------

FAMILIES = {
    "features": ["fit", "topology describe", vpem.connect, vpem.fit_vpem, plan, find_hubs,
                 vpem.VPEM],
    "rows": ["fit", vpem.connect, vpem.fit_em, vpem.DistributedGaussianMixture],
    "selection": ["select", "fit", vpem.connect, vpem.fit_vpem, search],
    "kmeans": ["kmeans", vpem.connect, vpem.kmeans_rows, vpem.kmeans_features,
               vpem.DistributedKMeans],
    "fedem": ["fedem", vpem.connect, vpem.fit_fedem, run_fedem, vpem.FedEM],
    "imputation": ["impute", vpem.connect, vpem.fit_imputation, vpem.FedMissEM],
    "saem": ["saem", vpem.connect, vpem.fit_saem, run_saem],
}  # fmt: skip

NAMES = {
    "components": "n_components",
    "clusters": "n_clusters",
    "covariance": "covariance_type",
    "rounds": "n_rounds",
    "consensus": "path",
    "random_state": "seed",
    "threads": "n_threads",
    "epochs": "n_epochs",
    "codec": "compress",
    "chains": "n_chains",
    "iterations": "n_iter",
    "conditional_draws": "n_conditional",
    "importance_draws": "n_importance",
    "sampler_codec": "gradient_codec",
    "sampler_n_threads": "n_threads",
    "samples": "n_samples",
    "topology": "graph",
    "n_workers": "workers",
}
"""Names in a shell, or of scikit-learn, of what recipes call otherwise."""

SPELT = {
    # Flags and words of a shell, which cannot be what a program gives.
    ("components", None): 2,  # or the starting model's
    ("n_components", "1-8"): 2,  # of a search: several at a time
    ("n_components", "2"): 2,  # or several, of which the best is kept
    ("n_components", "1"): 1,
    ("hops", "0"): 0,
    ("covariance", None): "diagonal",  # of vpem saem: of one of its models
    ("graph", None): "star",  # or that of the dataset
    ("topology", None): "star",
    ("workers", None): 1,  # or those of the dataset
    ("devices", None): 1,
    ("shares", None): "individuals",
    ("split", None): "random",  # of --workers in vpem impute
    ("n_jobs", None): 1,  # a shell may take the whole machine, a program has its own processes
    ("samples", None): 1000,
    ("dtype", np.float64): "float64",
}
"""What a default means that a door has to spell otherwise."""

DIFFER = {
    ("features", "graph_seed"): "None is the seed of the fit, which a network alone has not",
}
"""Settings of a family that share a name and are not the same."""

ALONE = {
    "files, and what a shell prints": """
        align align_key checkpoint checkpoint_every config data dataset digits fix_from force
        init_model help help_all init_rows json missing_parties output parties plot quiet resume
        resume_if_any
        show_config
        publish_anyway
        state strict traces worker_rows device_individuals id time value covariates doses
        init_individuals quote_formulas labels_file vocabulary min_documents max_share
        topics trace
    """,
    "how tables are read, which recipes are given as arrays": """
        features drop id_column label_column worker_column na decimal thousands encoding delimiter
        no_header
    """,
    "what columns are, which recipes are given as an object": "family kinds",
    "labels that a fit takes, which are arguments of an estimator's fit": """
        labels_for_fit labels_at
    """,
    "where a command runs": "engine ranks shards timeout memory_limit study member listen log "
    "scheduler client",
    "objects that only a program has": """
        X basis callback cells chosen feature_names first_codec known_covariance ledger
        labels model model_options network observations partition problem record rng sample_weight
        sampler_options saver server start tell warn
    """,
    "a graph that is made, which programs make by make_graph": "graph_seed mean_degree radius "
    "directed",
    "who holds what, which recipes are given as objects": "agents sort_by_label source",
    "a choice between recipes": "split one_standard_error holdout",
    "options of a model or a sampler, which recipes take as mappings": """
        error first groups random slopes sampler_decay sampler_n_steps sampler_precondition
        sampler_step sampler_target
    """,
    "of noise, which recipes take as a record of its own": "privacy",
    "scikit-learn's": """
        init_params means_init precisions_init verbose verbose_interval warm_start weights_init
        keep_trace
    """,
    "of searches, which do restarts one by one": "first_restart",
}
"""Settings that doors of one kind alone may have, by the reason."""

LACKING = {
    "an estimator computes in the type of its data": {"features rows kmeans": "dtype"},
    "a plan alone foretells how long an iteration takes": {"features": "link"},
    "a plan has no data": {"features": "n_samples"},
    "of vpem fit --split rows": {"features selection": "workers"},
    "of mixtures, in which alone features are joint in a hub": {"kmeans": "hubs release_epsilon"},
    "of tests: both ways give the same": {"kmeans fedem imputation saem": "path"},
    "participation is what they have for it": {"fedem imputation saem": "agent_dropout"},
    "statistics need no estimate of the mixing rate": {"fedem imputation saem": "eigenvalue"},
    "nobody shows rows or entries to others": {"fedem imputation saem": "hops hubs"},
    "experts set it, in Python": {"fedem": "floor", "imputation": "alpha memory"},
    "a recipe is given observations that were dealt out": {"imputation": "workers"},
    "each worker adds all of the noise to its own rows": {"fedem": "colluding release_epsilon"},
    "an option of some models": {"saem": """
        covariance_type n_components reg_covar curve effects parameters alpha eta
    """},
}  # fmt: skip
"""Settings that a kind of door (shell, recipe, estimator) lacks in some families, by the reason."""

REQUIRED = inspect.Parameter.empty


def defaults_of(door):
    """Defaults of a door by the names of recipes; without what must be given."""
    if isinstance(door, str):
        found = vpem_cli.app.command()
        for word in door.split():
            found = found.commands[word]
        given = {param.name: param.default for param in found.params}
    else:
        kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        found = inspect.signature(door, eval_str=True).parameters
        given = {name: param.default for name, param in found.items() if param.kind not in kinds}
        for name in {"settings", "options"} & set(given):
            del given[name]
            record = get_args(found[name].annotation)[0]
            own = record.fields() if issubclass(record, Settings) else fields(record)
            given |= {one.name: one.default for one in own}
        if "privacy" in given:
            given |= {one.name: one.default for one in PrivacySettings.fields()}
    return {
        NAMES.get(name, name): SPELT.get((name, value), value)
        if isinstance(value, str | int | float | type | None.__class__)
        else value
        for name, value in given.items()
    }


def kind_of(door):
    return "shell" if isinstance(door, str) else "class" if inspect.isclass(door) else "recipe"


@each("family", FAMILIES)
def test_every_door_has_the_same_defaults(family):
    doors = {str(door): defaults_of(door) for door in FAMILIES[family]}
    for one in {name for found in doors.values() for name in found}:
        if (family, one) in DIFFER:
            continue
        told = {
            name: found[one]
            for name, found in doors.items()
            if one in found and found[one] is not REQUIRED
        }
        assert len({(type(value), value) for value in told.values()}) <= 1, (one, told)
    # No raw feature travels unless it is asked for.
    assert {found.get("hops", 0) for found in doors.values()} <= {0, REQUIRED}


def test_what_a_kind_of_door_lacks_is_known():
    known = {name for names in ALONE.values() for name in names.split()}
    gaps = set()
    for family, doors in FAMILIES.items():
        kinds = {kind_of(door): set() for door in doors}
        for door in doors:
            kinds[kind_of(door)] |= set(defaults_of(door))
        every = set().union(*kinds.values())
        # An estimator says itself what it lacks, and why.
        for door in doors:
            kinds[kind_of(door)] |= set(getattr(door, "_without", ())) & every
        gaps |= {(family, name) for name in every if any(name not in one for one in kinds.values())}
    lacking = {
        (family, name)
        for where in LACKING.values()
        for families, names in where.items()
        for family in families.split()
        for name in names.split()
    }
    assert {gap for gap in gaps if gap[1] not in known} == lacking
    assert known <= {name for _, name in gaps}


# ---- the same results ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def X():
    return overlapping(n_samples=60, n_features=4)[0]


@pytest.fixture(scope="module")
def file(X, tmp_path_factory):
    path = tmp_path_factory.mktemp("defaults") / "bare.h5"
    write_dataset(path, Dataset(X, tuple("abcd")))
    return path


def by_features(X):
    network = vpem.connect(vpem.make_graph("star", 1), contiguous(4, 1))
    return vpem.fit_vpem(X, network).log_likelihood


def one_worker(X, recipe, **options):
    network = vpem.connect_workers(vpem.make_graph("star", 1))
    return recipe(X, evenly(len(X), 1), network, **options)


RESULTS = {
    "features": (
        ("fit",), "log_likelihood", by_features,
        lambda X: vpem.VPEM().fit(X).fit_.log_likelihood,
    ),
    "rows": (
        ("fit", "--split", "rows"), "log_likelihood",
        lambda X: one_worker(X, vpem.fit_em).log_likelihood,
        lambda X: vpem.DistributedGaussianMixture().fit(X).fit_.log_likelihood,
    ),
    "kmeans": (
        ("kmeans",), "inertia",
        lambda X: one_worker(X, vpem.kmeans_rows).inertia,
        lambda X: vpem.DistributedKMeans().fit(X).inertia_,
    ),
    "fedem": (
        ("fedem",), "log_likelihood",
        lambda X: one_worker(X, vpem.fit_fedem).log_likelihood,
        lambda X: vpem.FedEM().fit(X).fit_.log_likelihood,
    ),
    "impute": (
        ("impute",), "log_likelihood",
        lambda X: vpem.fit_imputation(from_matrices(X)).log_likelihood,
        lambda X: vpem.FedMissEM().fit(X).log_likelihood_,
    ),
}  # fmt: skip


@each("name", RESULTS)
def test_every_door_gives_the_same_result_by_default(name, X, file, capsys):
    (command, *words), key, recipe, estimator = RESULTS[name]
    shell = done(capsys, command, file, *words, "--json", "--quiet").json[key]
    assert recipe(X) == estimator(X) == shell


def test_an_estimator_of_several_agents_is_the_shells_and_shows_nobody_a_feature(X, file, capsys):
    shell = done(capsys, "fit", file, "--agents", "3", "--json").json
    ours = vpem.VPEM(agents=3).fit(X)
    assert ours.fit_.log_likelihood == shell["log_likelihood"]
    assert [hub.agents for hub in ours.hubs_] == [(0,), (1,), (2,)]
    assert ours.graph_.topology == "star"


@pytest.mark.filterwarnings("ignore::vpem.errors.NotConvergedWarning")
def test_saem_of_the_shell_is_the_recipe(tmp_path, capsys):
    path = tmp_path / "few.csv"
    rng = np.random.default_rng(0)
    rows = [f"{who},{t},{3 + rng.normal() + t:.4f}" for who in range(12) for t in range(4)]
    path.write_text("\n".join(["id,time,value", *rows]))
    shell = done(capsys, "saem", path, "--json", "--quiet").json
    ours = vpem.fit_saem(vpem.read_individuals(path))
    assert shell["iterations"] == ours.n_iter
    assert shell["log_likelihood"]["value"] == ours.log_likelihood.value
