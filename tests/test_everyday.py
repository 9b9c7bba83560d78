"""What estimators do beside their fits, and how Python programs keep, open and draw them."""

import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from matplotlib.figure import Figure
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

import vpem
from vpem import VPEM, DistributedGaussianMixture, DistributedKMeans, FedEM, FedMissEM, InputError
from vpem.files.checkpoints import write_state
from vpem.fits.estimators.base import workers_of
from vpem.network.partition import evenly
from vpem.records import Shown

from .tables import each

NAMES = ("ast", "alt", "age", "bmi")
AGENTS = {"lab": ["ast", "bmi"], "ward": ["age", "alt"]}


@pytest.fixture(scope="module")
def X(overlapping):
    return overlapping(0, 120, 4)


@pytest.fixture(scope="module")
def frame(X):
    """A data frame as scikit-learn knows them."""
    return pa.table(dict(zip(NAMES, X.T, strict=True)))


ESTIMATORS = {
    "features": lambda: VPEM(2, AGENTS, tol=1e-3),
    "rows": lambda: DistributedGaussianMixture(2, {"a": range(50), "b": range(50, 120)}, tol=1e-3),
    "fedem": lambda: FedEM(2, 2, tol=1e-4),
    "kmeans": lambda: DistributedKMeans(2, workers=[0] * 40 + [1] * 80),
    "kmeans of features": lambda: DistributedKMeans(
        2, "features", agents=AGENTS, scale="standard", n_init="auto"
    ),
}


@pytest.fixture(scope="module", params=ESTIMATORS)
def fitted(request, frame):
    return ESTIMATORS[request.param]().fit(frame)


# ---- files ---------------------------------------------------------------------------------------


def test_what_is_saved_is_opened_as_it_was(fitted, frame, X, tmp_path):
    path, again = tmp_path / "model.h5", tmp_path / "again.h5"
    fitted.save(path)
    opened = vpem.load(path, type(fitted))
    assert type(opened) is type(fitted)
    np.testing.assert_array_equal(opened.predict(frame), fitted.predict(frame))
    assert opened.score(frame) == pytest.approx(fitted.score(frame), rel=1e-12)
    assert opened.feature_names_in_.tolist() == list(NAMES)
    assert opened.n_iter_ == fitted.n_iter_
    assert opened.summary() == fitted.summary()
    told, ours = opened.get_params(), fitted.get_params()
    assert {name for name in ours if told[name] != ours[name]} <= {"workers"}
    with pytest.raises(vpem.FileError, match="exists"):
        fitted.save(path)
    opened.save(again)
    assert vpem.load(again).summary() == fitted.summary()
    opened.fit(frame)


def fit_of(estimator):
    """What the recipe returned, with what it knows of the rows."""
    return estimator.clustering_ if hasattr(estimator, "clustering_") else estimator.fit_


def test_what_a_recipe_returns_predicts_and_is_saved_as_its_estimator(fitted, frame, X, tmp_path):
    found, path = fit_of(fitted), tmp_path / "fit.h5"
    np.testing.assert_array_equal(found.predict(X), fitted.predict(frame))
    found.save(path)
    opened = vpem.load(path)
    assert type(opened) is type(fitted)
    assert opened.kept().report["n_features"] == 4
    np.testing.assert_array_equal(opened.predict(X), found.predict(X))
    np.testing.assert_array_equal(opened.kept().predict(X), found.predict(X))
    with pytest.raises(vpem.FileError, match="exists"):
        found.save(path)
    with pytest.raises(InputError, match="4 features"):
        found.predict(X[:, :3])
    holed = np.where(np.arange(4) == 1, np.nan, X)
    with pytest.raises(InputError, match="feature 1 is NaN"):
        found.predict(holed)
    if hasattr(found, "centres"):
        return
    for name in ("predict_proba", "score_samples"):
        wanted = getattr(fitted.mixture_, name)(holed, missing="marginalize")
        np.testing.assert_array_equal(getattr(found, name)(holed, missing="marginalize"), wanted)
    rows, components = found.sample(5, seed=3)
    np.testing.assert_array_equal(opened.kept().sample(5, seed=3)[0], rows)
    assert (rows.shape, components.shape) == ((5, 4), (5,))


def test_a_fit_goes_on_from_a_file(X, tmp_path):
    VPEM(2, agents=1, tol=1e-6, warm_start=True).fit(X).save(tmp_path / "m.h5")
    opened = vpem.load(tmp_path / "m.h5")
    with pytest.raises(InputError, match="warm_start"):
        opened.partial_fit(X)
    assert opened.fit(X).n_iter_ == 1


def test_any_file_of_ours_is_opened_and_others_are_refused(X, tmp_path):
    path = tmp_path / "data.h5"
    vpem.write_dataset(path, vpem.Dataset(X, NAMES))
    assert isinstance(vpem.load(path), vpem.Dataset)
    with pytest.raises(vpem.FileError, match="opens as Dataset, not as VPEM; leave the kind out"):
        vpem.load(path, VPEM)
    holes = X.copy()
    holes[0, 0] = np.nan
    imputed = FedMissEM(1, max_iter=2, tol=1.0).fit(holes)
    imputed.save(tmp_path / "i.h5")
    assert vpem.load(tmp_path / "i.h5").values.shape == (120, 4)
    assert "rank 1, 120 x 4" in imputed.summary()
    with pytest.raises(vpem.FileError):
        vpem.load(tmp_path / "none.h5")
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4.5\n")
    assert vpem.load(tmp_path / "t.csv").feature_names == ("a", "b")
    write_state(tmp_path / "c.ckpt", {})
    with pytest.raises(vpem.FileError, match="is a checkpoint"):
        vpem.load(tmp_path / "c.ckpt")
    for unfitted in (VPEM(), DistributedKMeans(), FedMissEM()):
        with pytest.raises(InputError, match="not fitted"):
            unfitted.save(tmp_path / "u.h5")
        assert "nothing" not in unfitted._repr_html_()
    assert not (tmp_path / "u.h5").exists()


# ---- pictures ------------------------------------------------------------------------------------


def test_fits_are_drawn_with_data_of_any_form(frame, X, tmp_path):
    model = VPEM(2, AGENTS, tol=1e-3).fit(frame)
    path = tmp_path / "m.h5"
    model.save(path)
    shuffled = vpem.Dataset(X[:, ::-1], NAMES[::-1], labels=np.arange(120) // 60)
    drawn = [
        vpem.plot(model, "marginals", frame, features=["age"]).alt,
        vpem.plot(path, "marginals", shuffled, features=["age"]).alt,
        vpem.plot(model.kept(), "marginals", X, features=[2]).alt,
    ]
    assert len(set(drawn)) == 1
    assert vpem.plot(model.fit_, "history").alt == vpem.plot(model, "history").alt
    assert (
        vpem.plot(path, "confusion", shuffled).alt
        == vpem.plot(model, "confusion", frame, np.arange(120) // 60).alt
    )
    own = Figure().add_subplot()
    assert vpem.plot(model, "profile", ax=own).figure is own.figure
    with pytest.raises(InputError, match="not for history"):
        vpem.plot(model, "history", ax=own)
    assert vpem.plot(model)._repr_png_().startswith(b"\x89PNG")
    vpem.plot(model).save(tmp_path / "p.svg")
    small = VPEM(2, 1, tol=1.0).fit(X[:, :1])  # of which there are few pictures
    assert vpem.report(small, path=tmp_path / "r.html") == tmp_path / "r.html"
    holes = np.where(np.eye(120, 4, dtype=bool), np.nan, X)
    assert vpem.plot(FedMissEM(1, max_iter=2, tol=1.0).fit(holes)).alt


@each(
    ("given", "match"),
    [
        ((3,), "a fitted estimator"),
        ((VPEM(),), "not fitted"),
        (("model", "mean"), "kind must be one of"),
        (("model", "confusion"), "give the data"),
        (("model", None, None, [1]), "give X too"),
        (("model", "pairs", "wine.csv"), r"give vpem.read_dataset\('wine.csv'\)"),
    ],
)
def test_what_cannot_be_drawn_is_refused(given, match, X):
    first = VPEM(2, agents=1, tol=1.0).fit(X) if given[0] == "model" else given[0]
    with pytest.raises(InputError, match=match):
        vpem.plot(first, *given[1:])


# ---- names, lines, and what is shown -------------------------------------------------------------


@each("kind", list(ESTIMATORS))
def test_a_dataset_brings_names_and_weights(kind, X, frame):
    weights = np.linspace(0.5, 2, 120)
    whole = vpem.Dataset(X, NAMES, sample_weight=weights)
    ours, same = ESTIMATORS[kind]().fit(whole), ESTIMATORS[kind]().fit(frame, sample_weight=weights)
    assert ours.summary() == same.summary()
    other = vpem.Dataset(X[:, ::-1], NAMES[::-1])
    np.testing.assert_array_equal(ours.predict(other), same.predict(frame))
    with pytest.raises(InputError, match="lack features of the model: 'bmi'"):
        ours.predict(vpem.Dataset(X[:, :3], NAMES[:3]))


def test_agents_by_names_need_names(frame, X):
    model = VPEM(2, AGENTS, tol=1e-3).fit(frame)
    assert [one.tolist() for one in model.mixture_.blocks.features] == [[0, 3], [1, 2]]
    assert model.kept().report["agent_names"] == ["lab", "ward"]
    with pytest.raises(InputError, match="have no names"):
        VPEM(2, AGENTS).fit(X)


def test_workers_are_a_column_of_names_or_masks(X):
    site = pa.array(np.where(np.arange(120) < 50, "a", "b"))
    column = pa.chunked_array([site])
    masks = {name: np.asarray(site) == name for name in "ab"}
    for workers in (column, masks, np.asarray(site)):
        found = workers_of(workers, 120)
        assert [len(part) for part in found.rows] == [50, 70]
        assert found.names == ("a", "b")


@each(
    ("given", "words"),
    [
        ({"k": 3}, "it is called n_components"),
        ({"seed": 3}, "it is called random_state"),
        ({"covarance_type": "full"}, "did you mean 'covariance_type'"),
    ],
)
def test_parameters_that_there_are_not_are_refused_with_the_right_name(given, words):
    with pytest.raises(TypeError, match=words):
        VPEM(**given)
    with pytest.raises(TypeError, match="'tol': it stops when no row changes"):
        DistributedKMeans(2, tol=1e-4)

    class Own(VPEM):
        def __init__(self, colour="red", **options):
            super().__init__(**options)
            self.colour = colour

    assert Own("blue", tol=1.0).tol == 1.0


@each("kind", list(ESTIMATORS))
def test_verbose_fits_say_how_far_they_are(kind, frame, capsys):
    said = []
    for how in ({"verbose": 1, "verbose_interval": 2}, {"verbose": 2}, {}):
        ESTIMATORS[kind]().set_params(**how).fit(frame)
        said.append(f"\n{capsys.readouterr().out}")
    assert "\niteration 2, " in said[0]
    assert "\niteration 3, " not in said[0]
    assert "\niteration 1, " in said[1]
    assert "converged after" in said[0].splitlines()[-1]
    assert said[2] == "\n"


def test_restarts_are_counted(X, capsys):
    part, whole = {"means_init": X[:2], "n_init": 2, "tol": 1e-2}, {"weights_init": [0.5, 0.5]}
    whole["precisions_init"] = PRECISIONS["full"]
    for given, count in (({}, 1), (whole, 0)):  # of a start that is given whole there is one
        VPEM(2, 1, verbose=1, **part, **given).fit(X)
        assert capsys.readouterr().out.count("restart 2 of 2") == count
    VPEM(2, 1, n_init=2, tol=1.0, verbose=1, init="random").fit(X)
    assert capsys.readouterr().out.splitlines()[:2] == ["restart 1 of 2", "restart 2 of 2"]


def test_summaries_name_what_differs(fitted):
    lines = fitted.summary().splitlines()
    assert len(lines) == 5
    assert lines[2].split()[:3] == [fitted._noun, "size", "share"]
    assert " sd" in lines[3]
    assert lines[3].split()[-3] in NAMES
    shown = fitted._repr_mimebundle_()
    assert "differs most in" in shown["text/html"]
    assert "differs most in" in fitted._repr_html_()


def test_objects_show_facts_and_no_arrays(X):
    model = VPEM(2, 2, tol=1e-3).fit(X)
    clusters = DistributedKMeans(2).fit(X)
    facts = {
        repr(model.graph_): "Graph(2 agents, 2 edges, star)",
        repr(model.mixture_): "Mixture(2 components, 4 features, full)",
        repr(model.kept()): "Model(2 components, 4 features)",
        repr(evenly(4, 1)): "Workers(1 worker, 4 rows)",
        repr(clusters.kept()): "StoredClustering(2 clusters, 4 features)",
        repr(vpem.Dataset(X, NAMES)): "Dataset(120 rows, 4 features, data)",
    }
    assert list(facts) == list(facts.values())
    assert repr(model.fit_).startswith("Fit(2 components, 4 features, converged after ")
    assert "<table" in model.mixture_._repr_html_()

    class Odd(Shown, facts="{name}"):
        name = "<b>\n"

    assert "<b>" not in Odd()._repr_html_()
    assert "\n" not in repr(Odd())


def test_a_notebook_shows_the_tables_of_what_has_no_estimator(tmp_path):
    growth = vpem.fit_saem(
        vpem.read_individuals(vpem.example_path("oxford_boys")), n_iter=5, burn_in=2, tol=0
    )
    vpem.save_saem(tmp_path / "growth.h5", growth)
    for fit in (growth, vpem.load(tmp_path / "growth.h5")):
        shown = fit._repr_html_()
        assert all(f">{one}<" in shown for one in ("Estimates", "s.e.", "intercept"))
    gaps = np.random.default_rng(0).normal(size=(30, 4))
    gaps[::4, 1] = np.nan
    filled = FedMissEM(1, ridge=0.1, max_iter=3, tol=1.0).fit(gaps).imputation_
    assert "30 rows x 4 columns" in filled._repr_html_()


# ---- as scikit-learn's GaussianMixture -----------------------------------------------------------

PRECISIONS = {
    "full": np.stack([np.diag([1.0, 2, 3, 4])] * 2),
    "tied": np.diag([1.0, 2, 3, 4]),
    "diag": np.array([[1.0, 2, 3, 4]] * 2),
    "spherical": np.array([1.0, 2]),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@each("kind", list(PRECISIONS))
def test_given_starts_are_those_of_scikit_learn(kind, X):
    start = {"weights_init": [0.3, 0.7], "means_init": X[[0, 100]]}
    start |= {"precisions_init": PRECISIONS[kind], "covariance_type": kind}
    how = {"max_iter": 4, "tol": 0.0, "reg_covar": 1e-6, **start}
    theirs = GaussianMixture(2, **how).fit(X)
    for ours in (VPEM(2, 1, **how), DistributedGaussianMixture(2, 3, **how)):
        ours.fit(X)
        for name in ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_"):
            np.testing.assert_allclose(
                getattr(ours, name), getattr(theirs, name), rtol=1e-6, atol=1e-12
            )
        np.testing.assert_allclose(ours.lower_bounds_, theirs.lower_bounds_, rtol=1e-9)


@each("graph", ["star", "cycle"])
def test_a_start_is_given_in_part_over_hubs_and_units(graph, X):
    how = {"graph": graph, "scale": "standard", "max_iter": 0, "covariance_type": "diag"}
    precisions = PRECISIONS["diag"]
    ours = VPEM(2, 4, means_init=X[[3, 4]], precisions_init=precisions, **how).fit(X)
    drawn = VPEM(2, 4, **how).fit(X)
    np.testing.assert_allclose(ours.means_, X[[3, 4]])
    np.testing.assert_allclose(ours.precisions_, precisions)
    np.testing.assert_allclose(ours.weights_, drawn.weights_)
    assert ours.n_iter_ == 0
    assert not ours.converged_
    assert ours.history_.shape == (0, 4)
    assert ours.lower_bound_ == pytest.approx(ours.score(X))
    with pytest.raises(AttributeError, match="no setter"):
        ours.means_ = X[:2]
    rows = DistributedGaussianMixture(2, 3, graph, weights_init=[0.25, 0.75], max_iter=0).fit(X)
    np.testing.assert_allclose(rows.weights_, [0.25, 0.75])


REST = {"ward": ["age", "alt"]}
PRIVATE = {"release_epsilon": 5.0, "delta": 1e-3, "bounds": "-9,9"}
REFUSED = [
    *((VPEM, {"agents": agents}, match) for agents, match in (
        ({"lab": ["ast", "bmj"], **REST}, "did you mean 'bmi'"),
        ({"lab": ["ast"], **REST}, "misses feature 'bmi'"),
        ({"lab": ["ast", "age"], "ward": ["age", "alt", "bmi"]}, "repeats feature 'age'"),
        ({"lab": "ast", "ward": ["age", "alt", "bmi"]}, "'lab' must have a list of features"),
        ({"lab": slice(2), "ward": ["age", "bmi"]}, "'lab' must have a list of features"),
        ({"lab": [["ast"]], "ward": ["age", "alt", "bmi"]}, "'lab': features are given by"),
        ({"lab": [0, -1], "ward": [1, 2]}, "names feature -1"),
    )),
    *((DistributedGaussianMixture, {"workers": workers}, match) for workers, match in (
        ({"a": range(60), "b": range(59, 120)}, "row 59 is given twice"),
        ({"a": range(60)}, "row 60 has no worker"),
        ({"a": range(121)}, "beyond those of the data"),
        ({"a": [0.5]}, "row numbers"),
        ({"a": np.ones(100, bool)}, "of 120 truth values, got bool"),
    )),
    *((VPEM, {"agents": 1, **options}, match) for options, match in (
        ({"weights_init": [0.5, 0.6]}, "add up to 1"),
        ({"weights_init": [1.0]}, r"shape \(2,\)"),
        ({"means_init": [[0.0] * 3] * 2}, r"shape \(2, 4\)"),
        ({"means_init": [[np.nan] * 4] * 2}, "finite"),
        ({"means_init": "x"}, "must be numbers"),
        ({"precisions_init": -PRECISIONS["full"]}, "positive definite"),
        ({"precisions_init": -PRECISIONS["diag"], "covariance_type": "diag"}, "positive"),
        ({"init_params": "best"}, "init_params must be one of"),
        ({"init_params": "random", "init": "random"}, "give one of them"),
        ({"verbose": -1}, "verbose"),
        ({"verbose": "x"}, "verbose must be"),
        ({"warm_start": "no"}, "true or false"),
        ({"means_init": np.zeros((2, 4)), **PRIVATE}, "leave out init"),
        ({"max_iter": 0, **PRIVATE}, "at least 1"),
    )),
]  # fmt: skip


@each(("kind", "how", "match"), REFUSED)
def test_what_cannot_be_is_refused(kind, how, match, frame):
    with pytest.raises(InputError, match=match):
        kind(2, **how).fit(frame)


def test_warnings_of_fits_that_have_not_converged_are_scikit_learns(X):
    assert issubclass(vpem.NotConvergedWarning, ConvergenceWarning)
    for short in (VPEM(2, max_iter=1), FedEM(2, max_iter=1), DistributedKMeans(2, max_iter=1)):
        with pytest.warns(ConvergenceWarning) as caught:
            short.fit(X)
        assert isinstance(caught[0].message, vpem.NotConvergedWarning)


@each("graph", ["star", "cycle"])
def test_single_precision_is_kept_and_survives_pickling(graph, X):
    ours = VPEM(2, 2, graph, tol=1e-3).fit(X.astype(np.float32))
    again = pickle.loads(pickle.dumps(ours))
    for name in ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_"):
        assert getattr(again, name).dtype == np.float32, name
    assert ours.predict_proba(X.astype(np.float32)).dtype == np.float32
    filling = FedMissEM(max_iter=3, tol=1.0)
    assert filling.fit_transform(X.astype(np.float32)).dtype == np.float32
    assert filling.transform(X[:3].astype(np.float32)).dtype == np.float32
    assert filling.transform(X[:3]).dtype == np.float64
    assert ours.score_samples(X).dtype == np.float64


# ---- data frames that hold more than measurements ------------------------------------------------


@pytest.mark.parametrize("kind", [VPEM, DistributedKMeans, FedEM])
def test_text_in_a_data_frame_is_named_with_the_way_on(kind):
    frame = pa.table({"a": np.arange(9.0) % 4, "sex": ["m", "f", "m"] * 3})
    with pytest.raises(InputError, match=r"'sex' of X holds 'm', .*drop.*family='auto'"):
        kind(2).fit(frame)
    rows = [["m", 1.0], ["f", 2.0], ["m", 3.0]]
    with pytest.raises(
        InputError, match=r"column 0 of X holds 'm', .*: np.delete\(X, 0, axis=1\)$"
    ):
        kind(2).fit(rows)
    model = kind(1).fit(pa.table({"a": np.arange(9.0) % 4, "sex": np.arange(9.0) % 2}))
    with pytest.raises(InputError, match=r"column 'sex' of X holds 'm', which is no number$"):
        model.predict(frame)


@pytest.mark.parametrize(
    ("cells", "content"),
    [
        (pd.date_range("2024-01-01", periods=2), "dates or times"),
        (pd.date_range("2024-01-01", periods=2, tz="UTC"), "dates or times"),
        (pd.to_timedelta([1, 2], "h"), "dates or times"),
        (pd.period_range("2024-01", periods=2, freq="M"), "2024-01"),
        (pd.arrays.IntervalArray.from_breaks([0, 1, 2]), r"\(0, 1\]"),
        ([1.0 + 1j, 2.0], r"\(1\+1j\)"),
        ([None, [1, 2]], r"\[1, 2\]"),
        ([pd.NA, b"a"], "b'a'"),
    ],
    ids=str,
)
def test_cells_that_are_no_numbers_are_named(cells, content):
    with pytest.raises(InputError, match=rf"'q' of X holds {content}, which .*columns='q'\)$"):
        VPEM(2).fit(pd.DataFrame({"a": [1.0, 2.0], "q": cells}))


@pytest.mark.parametrize("how", [{}, {"family": "auto"}], ids=str)
def test_columns_of_one_name_in_a_data_frame_are_told_apart(X, how):
    frame = pd.DataFrame(X[:, :2], columns=["a", "a"])
    with pytest.warns(vpem.VpemWarning, match="further ones are called 'a.1'"):
        model = VPEM(2, **how).fit(frame)
    assert list(model.feature_names_in_) == ["a", "a.1"]
    np.testing.assert_allclose(model.means_, VPEM(2).fit(X[:, :2]).means_, rtol=1e-6)
    with pytest.warns(vpem.VpemWarning, match=r"'a.1'"):
        assert len(model.predict(frame)) == len(X)


def test_columns_of_a_data_frame_that_are_no_measurements_are_warned_of():
    rng = np.random.default_rng(0)
    frame = {"patient": rng.permutation(90)[:40], "a": rng.normal(size=40), "class": [0, 1] * 20}
    said = r"'patient' .an id .* 'class' .known .* not: X.drop\(columns=.'patient', 'class'.\)"
    with pytest.warns(vpem.VpemWarning, match=said) as told:
        model = VPEM(2, reg_covar=0.1).fit(pa.table(frame))
    assert len([one for one in told if "patient" in str(one.message)]) == 1
    model.predict(pa.table(frame))
    with pytest.warns(vpem.VpemWarning, match="'patient' .an id or code"):
        VPEM(2, family="auto", reg_covar=0.1).fit(pa.table(frame))
    del frame["class"]
    VPEM(2, family={"patient": "gaussian"}).fit(pa.table(frame))
    frame["a"][[2, 7]] = -999
    with pytest.warns(vpem.VpemWarning, match="column 0 .row numbers. is fitted"):
        VPEM(1).fit(np.column_stack([np.arange(40), rng.normal(size=40)]))
    with pytest.warns(vpem.VpemWarning, match="-999 in 'a': far .* missing='marginalize'"):
        VPEM(1).fit(pa.table({"a": frame["a"]}))


def test_a_dataset_is_fitted_on_the_network_that_it_has():
    """As the command fits it."""
    held = vpem.read_dataset(vpem.example_path("breast_cancer"))
    made = VPEM(2).fit(held)
    assert made.graph_.topology == "dataset"
    assert [list(hub.agents) for hub in made.hubs_] == [[n] for n in range(held.partition.n_agents)]
    assert VPEM(2, agents=1).fit(held).graph_.topology == "star"
    assert VPEM(2).fit(held.X).graph_.n_agents == 1
    assert VPEM(2, graph="cycle").fit(held.X).graph_.n_agents == held.n_features
