"""Answers and pictures of fits of several families: what is told, and how it is drawn."""

import json

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import trapezoid

import vpem_cli
from vpem.errors import InputError
from vpem.fits.answer import Answer, as_table
from vpem.pictures.page import KINDS, draw
from vpem.pictures.saved import EvaluationData, densities_of, in_a_plane, read_saved
from vpem.terms.families.kinds import Kinds
from vpem.terms.families.mixed import MixedTerms

from .missing_support import network

FAMILIES = {
    "temp": "t", "press": "t", "noise": "gaussian", "colour": "categorical",
    "smoker": "bernoulli", "visits": "poisson", "claims": "negative-binomial",
    "wait": "exponential", "cost": "log-normal", "weight": "gamma",
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A table of every family, and a model of it."""
    folder, rng = tmp_path_factory.mktemp("families"), np.random.default_rng(3)
    rows = []
    for k in rng.integers(2, size=150):
        tails = rng.standard_normal(2) / np.sqrt(rng.gamma(1.5, 1 / 1.5)) + [2 * k, k]
        numbers = (
            rng.standard_normal() + k,
            rng.exponential(1 + k),
            rng.lognormal(k),
            rng.gamma(2 + 3 * k),
        )
        colour = rng.choice(["red", "green", "blue"], p=[[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]][k])
        counts = int(rng.random() < 0.3 + 0.4 * k), rng.poisson(1 + 4 * k)
        noise, wait, cost, weight = (f"{value + 1e-3:.5f}" for value in numbers)
        rows.append([*tails, noise, colour, *counts, rng.negative_binomial(2, 0.4), wait, cost,
                     weight])  # fmt: skip
    table = [",".join(FAMILIES), *(",".join(map(str, row)) for row in rows)]
    (folder / "m.csv").write_text("\n".join(table) + "\n")
    said = ",".join(f"{name}={family}" for name, family in FAMILIES.items())
    words = ["fit", folder / "m.csv", "--family", said, "-k", "2", "--agents", "3", "--max-iter",
             "8", "-o", folder / "m.h5", "--quiet"]  # fmt: skip
    assert vpem_cli.run(list(map(str, words))) == 0
    return folder


@pytest.fixture(scope="module")
def saved(files):
    return read_saved(str(files / "m.h5"))


def test_levels_and_degrees_of_freedom_are_told(files, saved, capsys):
    assert vpem_cli.run(["model", "show", str(files / "m.h5"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["components"]
    found = Answer.of_mixture(saved.mixture, saved.feature_names, 150.0)
    (one,) = (each for each in found.differences(0, 10) if each.feature == "colour")
    own = found.levels[3]
    level = own.names.index(one.level)
    assert sorted(own.names) == ["blue", "green", "red"]
    assert own.shares[0, level] - own.shares[1, level] == (own.shares[0] - own.shares[1]).max()
    assert one.share == own.shares[0, level]
    assert str(one) == f"colour {one.level} {one.share:.0%} (all {one.share_of_all:.0%})"
    assert one.describe().keys() == {"feature", "deviations", "level", "share", "share_of_all"}
    assert told == json.loads(json.dumps(found.describe()))
    table = as_table(told)
    assert table.heads[-1] == "degrees of freedom"
    assert table.rows[0][-1] == f"{told[0]['degrees_of_freedom'][0]:.1f}"
    assert told[0]["degrees_of_freedom"][1:] == [None, None]


def test_a_category_of_two_levels_differs_as_zeros_and_ones_do():
    rng = np.random.default_rng(0)
    X = (rng.random((80, 2)) < [[0.3, 0.6]]).astype(float)
    blocks, found = network([[0], [1]]).blocks, []
    for family, counts in (("categorical", (2, 2)), ("bernoulli", (0, 0))):
        terms = MixedTerms(X, blocks, "full", kinds=Kinds((family,) * 2, counts))
        mixture = terms.start(np.array([[0.0, 1.0], [1.0, 0.0]]))
        found.append(Answer.of_mixture(mixture, ("a", "b")))
    np.testing.assert_allclose(found[0].standardized, np.abs(found[1].standardized))
    np.testing.assert_allclose(found[0].telling_shares, found[1].telling_shares)


def test_curves_are_densities(saved):
    parts, mixture = saved.parts(), saved.mixture
    for j, family in enumerate(FAMILIES.values()):
        if family in ("categorical", "bernoulli"):
            continue
        grid, densities = densities_of(saved, j, None, parts)
        total = densities.sum(axis=0)
        whole = family in ("poisson", "negative-binomial")
        assert (total.sum() if whole else trapezoid(total, grid)) == pytest.approx(1, abs=0.03)
        if family == "gamma":
            tables = next(part.tables for part in mixture.parts if part.family == "gamma")
            shape, mean = tables["shapes"][0, 0], tables["means"][0, 0]
            wanted = parts.weights[0] * stats.gamma(shape, scale=mean / shape).pdf(grid)
            np.testing.assert_allclose(densities[0], wanted, rtol=1e-9)


@pytest.mark.parametrize("kind", ["marginals", "profile", "pairs", "projection", "sparsity"])
def test_every_feature_is_drawn_or_left_out_with_a_word(saved, files, kind):
    X, _ = saved.mixture.sample(60, np.random.default_rng(0))
    rows = None if KINDS[kind].data == "no" else EvaluationData(X, None, "rows")
    picture = draw(kind, saved, rows)
    if kind == "marginals":
        bars = picture.figure.axes[3]
        labels = [label.get_text() for label in bars.get_xticklabels()]
        assert labels == ["blue", "green", "red"]
        tops = [bar.get_height() for bar in bars.containers[0]]
        np.testing.assert_allclose(tops, np.bincount(X[:, 3].astype(int), minlength=3) / 60)
    elif kind == "profile":
        drawn = {label.get_text() for label in picture.figure.axes[0].get_yticklabels()}
        assert {"temp", "colour: red", "colour: blue", "smoker"} <= drawn
    else:
        assert any("colour" in note for note in picture.notes)


def test_what_lies_along_no_axis_is_refused_where_it_is_asked_for(saved):
    with pytest.raises(InputError, match="colour is categorical, whose levels have no order"):
        draw("pairs", saved, features=["colour", "temp"])
    assert in_a_plane(saved, None, []) == [0, 1, 2, 5, 6, 7, 8, 9]
