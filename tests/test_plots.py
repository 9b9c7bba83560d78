"""Pictures show what is in the model: densities, ellipses, counts."""

import io
import itertools
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgb
from matplotlib.patches import Ellipse
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter, FixedLocator
from scipy.linalg import eigh

from vpem.errors import InputError
from vpem.files.models import Model, assembled
from vpem.files.results import StoredClustering
from vpem.network.partition import Blocks
from vpem.pictures import densities, network, scatters
from vpem.pictures.figure import (
    COLOURS,
    CONTENDERS,
    HUBS,
    colour,
    hatch,
    line,
    marker,
    new_figure,
    render,
    shorten_numbers,
    words,
)
from vpem.pictures.page import KINDS as PICTURES
from vpem.pictures.page import draw, kinds_of, next_kinds
from vpem.pictures.saved import DrawnParts, EvaluationData, choose_rows, saved_of
from vpem.pictures.scatters import separating_plane
from vpem.terms.mixture import Mixture
from vpem.terms.units import Scaling

from .pictures_support import FITS, load, shared_folder
from .tables import each


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return shared_folder(tmp_path_factory)


# ---- every kind on every recipe -----------------------------------------------------------------


OF_NETWORK = ("history", "graph", "sparsity", "communication")
"""Kinds that differ with the network; others are drawn of some fits."""


@pytest.mark.parametrize("name", FITS)
def test_every_kind_is_drawn_or_says_why_not(home, name):
    saved, rows = load(home, name)
    of_all = name in ("graph", "one", "kmeans")
    for kind in PICTURES:
        if kind not in kinds_of(saved):
            with pytest.raises(InputError, match=f"{kind} is drawn of .*, and .* holds"):
                draw(kind, saved, rows)
        elif name == "one" and kind == "communication":
            with pytest.raises(InputError, match="nothing was sent"):
                draw(kind, saved, rows)
        elif of_all or kind in OF_NETWORK:
            picture = draw(kind, saved, rows)
            assert picture.figure.axes
            assert picture.alt.endswith(".")
            if kind in ("history", "communication", "graph") and name in ("graph", "rows"):
                refuse_cut(picture.figure)


@each(("ending", "kind"), [("png", "pairs"), ("svg", "graph"), ("pdf", "confusion")])
def test_figures_are_drawn_once_to_the_bytes_of_matplotlib(home, kind, ending):
    saved, rows = load(home, "graph")
    made = []
    with mpl.rc_context({"svg.hashsalt": "vpem"}):
        for own in (True, False):
            stream, figure = io.BytesIO(), draw(kind, saved, rows).figure
            if own:
                render(figure, stream, ending, 70)
            else:
                told = {"png": None, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
                figure.savefig(stream, format=ending, dpi=70, metadata=told[ending])
            made.append(stream.getvalue())
    assert made[0] == made[1]


# ---- nothing is cut, and what is whole has whole numbers ---------------------------------------


LONG = "a very long name of a feature"


def made_of(d, k, *, of_clusters=False, names=LONG, unit=1.0):
    """A model or clustering of so many features and components, and data for it."""
    rng = np.random.default_rng([d, k])
    means = unit * rng.normal(0, 3, (k, d))
    labels = np.arange(90) % k
    X = means[labels] + unit * rng.normal(size=(90, d))
    names = tuple(f"{names} {j}" for j in range(d))
    if of_clusters:
        stored = StoredClustering(means, labels.astype(np.int32), np.zeros(90), names)
    else:
        blocks = Blocks((np.arange(d),), (0,), ((0,),))
        mixture = Mixture(
            blocks, "diag", np.full((1, k), 1 / k), means, np.full((k, d), unit**2), Scaling.none(d)
        )
        stored = Model(mixture, names, {}, np.zeros((1, 1)))
    return saved_of("m.h5", stored), EvaluationData(
        X, np.array([f"{LONG} {c}" for c in labels]), "d.h5"
    )


def refuse_cut(figure):
    """Every artist lies within the figure; letters have 6 points where it is 16 cm wide."""
    figure.draw_without_rendering()
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(box.x0, box.y0) > -0.01
    assert box.x1 < width + 0.01
    assert box.y1 < height + 0.01
    letters = [one.get_fontsize() for one in figure.findobj(Text) if one.get_text().strip()]
    assert min(letters) * min(1.0, 16 / 2.54 / width) > 5.95


@each(
    ("d", "k", "of_clusters", "kinds"),
    [
        (1, 1, False, "marginals responsibilities confusion"),
        (2, 12, False, "profile projection pairs"),
        (3, 3, False, "confusion"),
        (30, 12, False, "responsibilities"),
        (30, 12, True, "marginals pairs"),
    ],
)
def test_nothing_is_cut_off(d, k, of_clusters, kinds):
    saved, rows = made_of(d, k, of_clusters=of_clusters)
    for kind in kinds.split():
        refuse_cut(draw(kind, saved, rows).figure)


@each(("unit", "kind", "d"), [(1e-7, "marginals", 9), (900.0, "pairs", 2), (1e6, "pairs", 4)])
def test_panels_leave_room_for_numbers_of_any_size(unit, kind, d):
    figure = draw(kind, *made_of(d, 3, names="name", unit=unit)).figure
    refuse_cut(figure)
    boxes = [axes.get_tightbbox() for axes in figure.axes if axes.axison]
    for one, two in itertools.combinations(boxes, 2):
        assert min(one.x1, two.x1) <= max(one.x0, two.x0) or min(one.y1, two.y1) <= max(
            one.y0, two.y0
        )
    for axes in figure.axes:
        label, numbers = axes.yaxis.label, axes.yaxis.get_ticklabels()
        if label.get_text():
            told = min(number.get_window_extent().x0 for number in numbers)
            assert label.get_window_extent().x1 < told


def test_characters_that_no_picture_can_hold_are_replaced_wherever_they_stand():
    figure = new_figure(5, 4)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], label="a\x1b")
    axes.set(title="b\x1b", xlabel="c\x1b", ylabel="d\x1b")
    axes.annotate("e\x1b", (0.5, 0.5))
    axes.xaxis.set_major_locator(FixedLocator([0.2, 0.8]))
    axes.xaxis.set_major_formatter(FixedFormatter(["f\x1b", "g\x1b"]))
    axes.legend(title="h\x1b")
    figure.suptitle("i\x1b")
    figure.colorbar(ScalarMappable(), ax=axes, label="j\x1b")
    stream = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none"}):
        render(figure, stream, "svg", 50)
    drawn = stream.getvalue().decode("utf-8")
    assert "\x1b" not in drawn
    for letter in "abcdefghij":
        assert f">{letter}\N{REPLACEMENT CHARACTER}<" in drawn


# ---- marginals, pairs ---------------------------------------------------------------------------


def test_heights_of_histograms_integrate_to_one(home):
    rng = np.random.default_rng(0)
    for values in (rng.normal(size=50), rng.standard_cauchy(3000), np.ones(7), np.array([2.0]),
                   rng.integers(0, 2, 40) * 1.0, 1e9 + rng.normal(size=30)):  # fmt: skip
        heights, edges = densities.histogram(values)
        assert (heights * np.diff(edges)).sum() == pytest.approx(1)
        assert edges[0] <= values.min() <= values.max() <= edges[-1]
        assert len(heights) <= densities.MOST_BINS
    saved, rows = load(home, "kmeans")  # those of clusters are stacked
    steps = draw("marginals", saved, rows).figure.axes[0].patches
    assert len(steps) == 3
    top = steps[-1].get_data()
    assert (top.values * np.diff(top.edges)).sum() == pytest.approx(1)
    np.testing.assert_allclose(steps[1].get_data().baseline, steps[0].get_data().values)


def test_bins_of_whole_numbers_have_them_in_their_middle(home):
    rng = np.random.default_rng(0)
    for values, widest in (
        (rng.integers(1, 6, 500), 1), (rng.integers(18, 90, 178), 9), (rng.poisson(3, 2000), 1),
        (np.full(9, 4), 1), (np.r_[rng.poisson(3, 999), 5000], 4994),
    ):  # fmt: skip
        edges = densities.histogram(values * 1.0)[1]
        assert (edges % 1 == 0.5).all()
        assert np.diff(edges).max() <= widest
        assert len(set(np.diff(edges[:-1]))) == 1 or len(edges) < 4
    saved, _ = load(home, "graph")
    X = rng.integers(1, 6, (90, 4)) * 1.0
    for kind in ("marginals", "pairs"):
        figure = draw(kind, saved, EvaluationData(X, None, "d.h5")).figure
        for axes in (one for one in figure.axes if one.axison):
            assert (np.asarray(axes.get_xticks()) % 1 == 0).all()


def test_components_as_high_as_the_frame_are_drawn_all_the_same():
    for peaks, room, wanted in (
        ([50.0] * 7 + [0.01] * 3, 0.31, (24, [0, 1, 2, 3, 4, 5, 6])), ([9.0] * 10, 1.0, (1, [])),
    ):  # fmt: skip
        assert densities._raised(np.array(peaks), room) == wanted
    saved, rows = made_of(2, 16, names="name")
    weights = np.where(np.isin(np.arange(16), [0, 5]), 20.0, 1.0)
    mixture = replace(spread_out_less(saved).stored.mixture, weights=weights[None] / weights.sum())
    saved = saved_of("m.h5", replace(saved.stored, mixture=mixture))
    for axes in draw("marginals", saved, rows).figure.axes:
        said = [
            line.split("\N{MULTIPLICATION SIGN}") for line in axes.texts[0].get_text().split("\n")
        ]
        own = np.where(weights > 1, int(said[1][1]), int(said[0][1]))
        assert said[1][0].strip().split(" ", 1)[1] == "0, 5"
        *components, total = [one.get_ydata() for one in axes.lines]
        np.testing.assert_allclose(total, sum(np.array(components) / own[:, None]))
        assert max(map(max, components)) < axes.get_ylim()[1]


def spread_out_less(saved, by=6):
    """The same model with components that lie on one another."""
    mixture = saved.stored.mixture
    near = replace(mixture, means=mixture.means / by)
    return saved_of("m.h5", replace(saved.stored, mixture=near))


@each("name", ["graph", "star"])
def test_marginal_densities_are_those_of_the_mixture(home, name):
    saved, rows = load(home, name)
    figure = draw("marginals", saved, rows).figure
    parts = saved.parts()
    for j, axes in enumerate(figure.axes[:4]):
        *components, total = [one.get_xydata().T for one in axes.lines]
        assert len(components) == saved.n_components
        areas = [np.trapezoid(y, x) for x, y in components]
        np.testing.assert_allclose(areas, parts.weights, atol=2e-3)
        np.testing.assert_allclose(total[1], sum(y for _, y in components))
        # By the first moment too.
        mean = np.trapezoid(total[0] * total[1], total[0])
        assert mean == pytest.approx(rows.X[:, j].mean(), abs=0.4)


@each("name", ["graph", "star"])
def test_axes_of_ellipses_are_those_of_covariances(home, name):
    saved, rows = load(home, name)
    figure = draw("pairs", saved, rows, features=["pulse", "3"]).figure
    shapes = [one for one in figure.axes[0].patches if isinstance(one, Ellipse)]
    assert len(shapes) == 2 * saved.n_components
    one = assembled(saved.stored.mixture)
    for number, shape in enumerate(shapes):
        component, deviations = number // 2, 1 + number % 2
        covariance = one["covariances"][component]
        pair = np.diag(covariance[[2, 3]]) if name == "star" else covariance[2:, 2:]
        lengths = np.array([shape.width, shape.height]) / 2
        np.testing.assert_allclose(
            np.sort(lengths**2), deviations**2 * np.linalg.eigvalsh(pair), rtol=1e-9
        )
        turn = np.radians(shape.angle)
        long = np.array([np.cos(turn), np.sin(turn)])
        np.testing.assert_allclose(
            pair @ long, (shape.width / 2 / deviations) ** 2 * long, atol=1e-9
        )
        np.testing.assert_allclose(shape.center, one["means"][component, 2:])


def numbers_drawn(figure):
    """Boxes (K, 4) of the numbers in each panel, as they were drawn."""
    figure.draw_without_rendering()
    for axes in (one for one in figure.axes if one.axison):
        boxes = [one.get_bbox_patch().get_window_extent().extents for one in axes.texts]
        yield axes, np.array(boxes)


@each(
    ("k", "of_clusters", "kind", "with_rows"),
    [(3, False, "pairs", True), (10, False, "projection", True), (24, True, "projection", False)],
)
def test_numbers_of_components_never_hide_one_another(k, of_clusters, kind, with_rows):
    """In figures with rows and without."""
    saved, rows = made_of(3, k, of_clusters=of_clusters, names="name")
    if of_clusters:  # all centres but one at the same place
        saved.stored.centres[1:] = saved.stored.centres[1]
    else:
        saved = spread_out_less(saved)
    for axes, boxes in numbers_drawn(draw(kind, saved, rows if with_rows else None).figure):
        low, high = np.split(boxes, 2, axis=1)
        apart = (low[:, None] >= high).any(axis=2)
        assert (apart | apart.T | np.eye(k, dtype=bool)).all()
        assert (low >= axes.bbox.min - 1).all()
        assert (high <= axes.bbox.max + 1).all()


def test_of_many_components_ellipses_hold_no_centre_of_another():
    saved, rows = made_of(2, 10, names="name")
    saved = spread_out_less(saved, by=2)
    means = saved.parts().means
    for data, fewer in ((rows, True), (None, False)):
        axes = draw("pairs", saved, data).figure.axes[0]
        shapes = [one for one in axes.patches if isinstance(one, Ellipse)]
        assert (len(shapes) < 10) is fewer
        held = [one.get_patch_transform().inverted().transform(means) for one in shapes]
        assert shapes
        inside = [(np.linalg.norm(points, axis=1) < 1).sum() for points in held]
        assert (max(inside) == 1) == fewer


@pytest.mark.parametrize("of_clusters", [False, True])
def test_two_features_are_shown_as_they_are(of_clusters):
    saved, rows = made_of(2, 3, of_clusters=of_clusters)
    assert next(iter(kinds_of(saved))) == "pairs"
    axes = draw("projection", saved, rows).figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == tuple(map(words, saved.feature_names))
    marks = [one for one in axes.collections if isinstance(one, PathCollection)]
    drawn = np.concatenate([one.get_offsets() for one in marks])
    np.testing.assert_array_equal(drawn[np.lexsort(drawn.T)], rows.X[np.lexsort(rows.X.T)])


def test_pairs_choose_features_that_do_not_tell_the_same():
    share = np.array([0.9, 0.89, 0.3, 0.1])
    correlation = np.eye(4)
    correlation[0, 1] = correlation[1, 0] = 0.99
    assert scatters._apart_from_each_other(share, correlation, 2) == [0, 2]


def test_features_are_found_by_name_and_by_number(home):
    saved, _ = load(home, "graph")
    assert densities.pick_features(saved, ["age", "0", "$x_1$ & <b>"], 8) == [3, 0, 1]
    for asked, told in ((["hight"], "did you mean 'height'"), (["9"], "from 0 to 3"),
                        (["²"], "no feature '²'"), (["9" * 5000], "no feature '9{60}"),
                        (["0", "height"], "once each"), ([], "once each")):  # fmt: skip
        with pytest.raises(InputError, match=told):
            densities.pick_features(saved, asked, 8)
    with pytest.raises(InputError, match="room for 2"):
        densities.pick_features(saved, ["0", "1", "2"], 2)
    with pytest.raises(InputError, match="two features"):
        draw("pairs", saved, None, features=["age"])
    with pytest.raises(InputError, match="not for graph"):
        draw("graph", saved, None, features=["age"])


# ---- profile, projection ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["star", "kmeans"])
def test_a_profile_has_the_means_in_standard_deviations(home, name):
    saved, rows = load(home, name)
    picture = draw("profile", saved)
    axes = picture.figure.axes[0]
    shown = np.asarray(axes.images[0].get_array())
    names = [tick.get_text().replace(r"\$", "$") for tick in axes.get_yticklabels()]
    order = [saved.feature_names.index(one) for one in names]
    np.testing.assert_array_equal(shown, saved.answer.standardized[:, order].T)
    written = [float(one.get_text().replace("\N{MINUS SIGN}", "-")) for one in axes.texts]
    np.testing.assert_allclose(np.reshape(written, shown.shape), shown, atol=0.051)
    highest = shown.argmax(axis=1)
    assert (np.diff(highest) >= 0).all()
    for component in range(3):
        assert (np.diff(shown[highest == component, component]) <= 0).all()
    assert f"differs most in {saved.answer.differences(0)[0]}" in picture.alt
    chosen = draw("profile", saved, rows, features=["age", "0"]).figure.axes[0]
    assert [tick.get_text() for tick in chosen.get_yticklabels()] == ["age", "height"]


def test_of_a_hundred_features_those_are_drawn_that_tell_most():
    saved, _ = made_of(100, 3, names="name")
    for kind, most in (("profile", 30), ("marginals", 18), ("pairs", 4)):
        picture = draw(kind, saved)
        assert f"{most} of 100 features are drawn" in picture.notes[0]
        assert "--features names others" in picture.notes[0]
    axes = draw("profile", saved).figure.axes[0]
    shown = {tick.get_text() for tick in axes.get_yticklabels()}
    assert shown == {f"name {j}" for j in saved.answer.telling[:30]}


@each("k", [1, 2, 5])
def test_the_plane_is_that_of_linear_discriminants(k):
    rng = np.random.default_rng(k)
    d, weights = 4, rng.dirichlet(np.full(k, 5.0))
    means, roots = 3 * rng.normal(size=(k, d)), rng.normal(size=(k, d, d))
    full = roots @ roots.transpose(0, 2, 1) + np.eye(d)
    parts = DrawnParts(weights, means, np.diagonal(full, axis1=1, axis2=2), full)
    directions, correlations, share = separating_plane(parts)
    within = np.tensordot(weights, full, axes=1)
    away = means - weights @ means
    between = away.T @ np.diag(weights) @ away
    np.testing.assert_allclose(directions.T @ within @ directions, np.eye(2), atol=1e-6)
    best = eigh(between, within, eigvals_only=True)[::-1]
    found = np.diagonal(directions.T @ between @ directions)
    np.testing.assert_allclose(found, best[:2], rtol=1e-6, atol=1e-6)
    assert share == pytest.approx(best[:2].sum() / best.sum() if k > 1 else 0.0, abs=1e-6)
    assert np.abs(correlations).max() <= 1 + 1e-9
    # Units of the features do not matter.
    unit = np.array([1e-3, 1.0, 7.0, 1e4])
    scaled = full * unit[:, None] * unit
    other = DrawnParts(weights, means * unit, np.diagonal(scaled, axis1=1, axis2=2), scaled)
    turned = separating_plane(other)[0] * unit[:, None]
    np.testing.assert_allclose(turned, directions, rtol=1e-5, atol=1e-8)


def test_rows_of_a_projection_lie_where_the_plane_has_them(home):
    saved, rows = load(home, "star")
    axes = draw("projection", saved, rows).figure.axes[0]
    parts = saved.parts()
    directions = separating_plane(parts)[0]
    seen = (rows.X - parts.weights @ parts.means) @ directions
    marks = [one for one in axes.collections if isinstance(one, PathCollection)]
    labels = saved.assign(rows.X)
    # The largest component lies below the others.
    for c, one in zip(np.argsort(-np.bincount(labels), kind="stable"), marks, strict=True):
        np.testing.assert_allclose(one.get_offsets(), seen[labels == c])
    centres = [shape.center for shape in axes.patches if isinstance(shape, Ellipse)][::2]
    np.testing.assert_allclose(centres, (parts.means - parts.weights @ parts.means) @ directions)
    X = rows.X.copy()
    X[::3, 1] = np.nan
    holes = EvaluationData(X, None, "data.h5")
    for name in ("graph", "star"):
        notes = draw("projection", load(home, name)[0], holes).notes
        assert notes == ["missing values stand at the mean of their row's component"]
    assert "only centres are drawn" in draw("projection", load(home, "kmeans")[0]).notes[0]


def test_pictures_of_one_panel_are_drawn_into_axes_of_others(home):
    saved, rows = load(home, "graph")
    whole = new_figure(10, 8)
    for kind, axes in zip(
        ("profile", "projection", "confusion", "graph"), whole.subplots(2, 2).flat, strict=True
    ):
        assert draw(kind, saved, rows, ax=axes).figure is whole
        assert axes.get_title() or axes.get_title(loc="left")
    with pytest.raises(InputError, match="ax are for"):
        draw("marginals", saved, rows, ax=axes)


# ---- responsibilities, confusion ----------------------------------------------------------------


def test_the_map_of_responsibilities_is_sorted(home):
    saved, rows = load(home, "star")
    upper, lower = draw("responsibilities", saved, rows).figure.axes[:2]
    shown = np.asarray(upper.images[0].get_array())
    np.testing.assert_allclose(shown.sum(axis=0), 1)
    best = shown.argmax(axis=0)
    assert (np.diff(best) >= 0).all()
    for component in range(3):
        assert (np.diff(shown[component, best == component]) <= 0).all()
    proba = saved.stored.mixture.predict_proba(rows.X)
    np.testing.assert_allclose(np.sort(shown.ravel()), np.sort(proba.ravel()))
    labels = [tick.get_text() for tick in upper.get_yticklabels()]
    sizes = np.bincount(proba.argmax(axis=1), minlength=3)
    assert labels == [f"{k} ({size} rows)" for k, size in enumerate(sizes)]
    assert lower.get_ylim()[1] >= 1 - shown.max(axis=0).min()


@pytest.mark.parametrize("name", ["star", "kmeans", "lloyd"])
def test_counts_of_the_confusion_are_all_rows(home, name):
    saved, rows = load(home, name)
    axes = draw("confusion", saved, rows).figure.axes[0]
    counts = [int(one.get_text()) for one in axes.texts]
    assert sum(counts) == len(rows)
    table = np.reshape(counts, (3, saved.n_components))
    classes, sizes = np.unique(rows.labels, return_counts=True)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == classes.tolist()
    assert table.sum(axis=1).tolist() == sizes.tolist()
    matched = [(box.get_x() + 0.46, box.get_y() + 0.46) for box in axes.patches]
    agreed = sum(table[round(y), round(x)] for x, y in matched)
    assert f"accuracy {agreed / 90:.4f}" in axes.get_title().replace("\n", " ")


def test_what_rows_and_labels_are_needed_for_and_missing_values_are_left_out(home):
    saved, rows = load(home, "graph")
    for kind in ("responsibilities", "confusion"):
        with pytest.raises(InputError, match="give the data after the model"):
            draw(kind, saved)
    with pytest.raises(InputError, match="has no labels"):
        draw("confusion", saved, EvaluationData(rows.X, None, "data.h5"))
    big = EvaluationData(np.tile(rows.X, (3, 1)), np.arange(270), "data.h5")
    with pytest.raises(InputError, match="270 different values"):
        draw("confusion", saved, big)
    with pytest.raises(InputError, match="give the data"):
        draw("marginals", load(home, "kmeans")[0])
    assert draw("marginals", saved).figure.axes[0].lines
    assert draw("pairs", saved).figure.axes[0].patches
    X = rows.X.copy()
    X[::3, 1] = np.nan
    holes = EvaluationData(X, rows.labels, "data.h5")
    for kind in ("marginals", "pairs", "responsibilities", "confusion"):
        assert draw(kind, saved, holes).figure.axes


# ---- style --------------------------------------------------------------------------------------


def test_a_colour_means_one_thing_and_clusters_of_one_differ_in_hatches():
    colours = [*COLOURS, *HUBS, *CONTENDERS, *set(network.SHADES.values())]
    assert len(set(colours)) == len(colours)
    for grey in network.SHADES.values():
        assert np.ptp(to_rgb(grey)) < 0.15
    assert len({(colour(c), hatch(c)) for c in range(80)}) == 80


@each(
    ("numbers", "written"),
    [
        ([0.0, 0.02, 0.04], ["0", "0.02", "0.04"]),
        ([0, 1500, 3000], ["0", "1500", "3000"]),
        ([8e-4, 1.6e-3], ["0.0008", "0.0016"]),
        ([2e-7, 4e-7], ["2e\N{MINUS SIGN}7", "4e\N{MINUS SIGN}7"]),
        ([-1.5, 0.1 + 0.2 - 0.3], ["\N{MINUS SIGN}1.5", "0"]),
        ([100000.1, 100000.2], ["100000.1", "100000.2"]),
        ([8e-5, 1.6e-4], ["8e\N{MINUS SIGN}5", "1.6e\N{MINUS SIGN}4"]),
        ([9e4, 1.2e5], ["9e4", "1.2e5"]),
        ([999995.0, 1e6], ["999995", "1000000"]),
        ([5e-5, 0.5], ["0.00005", "0.5"]),
        ([1234.5, 1234.6], ["1234.5", "1234.6"]),
        ([], []),
    ],
)
def test_numbers_at_axes_are_short_and_told_apart(numbers, written):
    assert shorten_numbers(numbers) == written


def test_neighbours_differ_in_grey_or_in_line():
    def grey(number):
        return np.dot(to_rgb(colour(number)), (0.299, 0.587, 0.114))

    for k in range(11):
        assert abs(grey(k) - grey(k + 1)) > 0.02 or line(k) != line(k + 1)
        assert line(k) != line(k + 1)
        assert marker(k) != marker(k + 1)
    assert abs(grey(0) - grey(1)) > 0.25
    assert len({colour(k) for k in range(10)}) == len(COLOURS)
    assert len({(colour(k), str(line(k))) for k in range(70)}) == 70


# To what the eye sees where it lacks cones of one kind, of light itself (Machado and others 2009).
SIGHTS = (
    np.eye(3),
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
     [-0.01182, 0.04294, 0.968881]],
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
     [-0.003882, -0.048116, 1.051998]],
)  # fmt: skip


def test_colours_of_components_are_seen_on_white_and_told_apart_by_the_colour_blind():
    values = np.array([to_rgb(one) for one in COLOURS])
    light = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    # As the guidelines of web contents (1.4.11) ask of what is no text.
    assert (1.05 / (light @ (0.2126, 0.7152, 0.0722) + 0.05)).min() >= 3
    cones = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.63]])
    oklab = np.array(
        [[0.2105, 0.7936, -0.0041], [1.978, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
    )
    for sight in SIGHTS:
        seen = np.cbrt(np.clip(light @ np.transpose(sight), 0, 1) @ cones.T) @ oklab.T
        apart = np.linalg.norm(seen[:, None] - seen, axis=2)
        assert apart[np.triu_indices(len(seen), 1)].min() > 0.06


def test_names_are_drawn_in_one_line_and_as_they_are():
    assert words("a\nb\x1b[2J") == "a b\N{REPLACEMENT CHARACTER}[2J"
    assert words("$x$") == r"\$x\$"
    assert len(words("x" * 99)) == 28
    assert words("x" * 99 + " (g/dL)").endswith("\N{HORIZONTAL ELLIPSIS}xx (g/dL)")
    assert choose_rows(5, 9).tolist() == [0, 1, 2, 3, 4]
    rows = choose_rows(1000, 100)  # once each, in order
    assert len(set(rows)) == 100
    assert (np.diff(rows) > 0).all()
    assert rows.tolist() == choose_rows(1000, 100).tolist()


def test_what_to_look_at_next(home):
    saved, rows = load(home, "graph")
    assert next_kinds("history", saved, rows) == {
        "": [kind for kind in kinds_of(saved) if kind != "history"]
    }
    found = next_kinds("graph", saved, None)
    assert found["DATA with labels"] == ["confusion"]
    listed = ["projection", "marginals", "pairs", "boundaries", "responsibilities"]
    assert found["DATA"] == listed
    clusters = next_kinds("graph", load(home, "kmeans")[0], None)
    assert "sparsity" not in {kind for kinds in clusters.values() for kind in kinds}
