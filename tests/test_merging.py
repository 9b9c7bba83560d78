"""Components merged to clusters by entropy, against mclust's clustCombi and the definition."""

import json

import numpy as np
import pytest
from scipy.special import entr
from sklearn.metrics import adjusted_rand_score

from vpem import VPEM, merge_components, read_dataset, read_model
from vpem.errors import InputError
from vpem.terms.merging import merged, name_groups, read_groups

from .cli_support import done, make_data, run


def shares(n=40, k=5):
    i, c = np.arange(n)[:, None], np.arange(k)
    scores = 3 * np.sin(1.7 * i + 0.9 * c * c) + 2 * np.cos(0.3 * i * c) + c / 3
    proba = np.exp(scores)
    return proba / proba.sum(axis=1, keepdims=True)


# R: fit <- Mclust(iris[, 1:4], G=5, modelNames="VVV"); fit$z <- p; fit$n <- 40
#    fit$data <- fit$data[1:40, ]; combi <- clustCombi(fit)
#    sapply(combi$combiz, function(z) -sum(z * log(z))); combi$combiM
ENTROPIES = [0, 6.9924578906, 15.8842564318, 21.3705650303, 27.2897157736]
GROUPS = {4: "0,1,2,3+4", 3: "0,1,2+3+4", 2: "0+2+3+4,1", 1: "0+1+2+3+4"}


def test_merges_and_entropies_are_those_of_clustcombi():
    merging = merge_components(shares())
    np.testing.assert_allclose(merging.entropies, ENTROPIES, rtol=1e-10)
    assert {n: name_groups(merging.groups(n)) for n in GROUPS} == GROUPS
    assert name_groups(merging.groups(5)) == "0,1,2,3,4"


@pytest.mark.parametrize("k", [1, 2, 7])
def test_each_merge_takes_away_most(k):
    proba = shares(60, k)
    merging = merge_components(proba)
    for merge in merging.merges:
        groups = merging.groups(merge.n_clusters + 1)
        tried = {
            (one, two): entr(
                merged(proba, (*(g for g in groups if g not in (one, two)), one + two))
            ).sum()
            for i, one in enumerate(groups)
            for two in groups[i + 1 :]
        }
        assert merge.entropy == pytest.approx(min(tried.values()), abs=1e-9)
        assert min(tried, key=tried.get) == (merge.one, merge.other)
        left = merging.predict_proba(merge.n_clusters)
        np.testing.assert_allclose(left.sum(axis=1), 1)
        assert entr(left).sum() == pytest.approx(merge.entropy, abs=1e-9)
    assert sorted(merging.leaves()) == list(range(k))
    assert merging.predict(k).tolist() == proba.argmax(axis=1).tolist()


def test_weights_count_as_copies_and_zero_not_at_all():
    weights = np.arange(40) % 4
    weighted = merge_components(shares(), weights)
    copied = merge_components(np.repeat(shares(), weights, axis=0))
    np.testing.assert_allclose(weighted.entropies, copied.entropies)
    assert all(weighted.groups(n) == copied.groups(n) for n in range(1, 6))
    # Which differ from those of rows that count alike.
    assert abs(weighted.entropies[1:] - merge_components(shares()).entropies[1:]).min() > 1


def test_a_component_without_rows_takes_nothing_away():
    proba = np.insert(shares(), 2, 0.0, axis=1)
    merging = merge_components(proba)
    np.testing.assert_allclose(np.delete(merging.entropies, [0, 1]), ENTROPIES[1:], rtol=1e-9)


@pytest.mark.parametrize(
    ("proba", "words"),
    [([0.5, 0.5], "shape"), ([[0.5, 0.6]], "sum to 1"), ([[1.5, -0.5]], "at least 0"),
     ([[np.nan, 1.0]], "at least 0"), (np.empty((0, 2)), "shape"), ([["a", "b"]], "numbers")],
)  # fmt: skip
def test_what_are_no_responsibilities_is_refused(proba, words):
    with pytest.raises(InputError, match=words):
        merge_components(proba)


@pytest.mark.parametrize(
    "text", ["", "x", "0", "4", "0+1", "0+1,1+2", "0,1,2,3", "-1", "1.5", "+", "9" * 5000]
)
def test_groups_that_cannot_be_are_refused(text):
    with pytest.raises(InputError, match="merge_to"):
        read_groups(text, 3)


def test_groups_are_read_as_they_are_named():
    groups = ((0, 2), (1,))
    assert read_groups(name_groups(groups), 3) == groups
    assert read_groups("1, 2+0", 3) == groups
    assert read_groups("2", 3) == 2


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_data(
        tmp_path / "d.h5",
    )
    return tmp_path


def test_commands_label_rows_at_any_level(home, capsys):
    done(capsys, "fit", "d.h5", "-k", 4, "-o", "m.h5", "--quiet")
    told = json.loads(
        done(capsys, "model", "merge", "m.h5", "d.h5", "--json", "--plot", "t.png").out
    )
    X = read_dataset("d.h5").X
    merging = read_model("m.h5").merge_components(X)
    assert told["entropy"] == pytest.approx(merging.entropy)
    assert [one["entropy"] for one in told["merges"]] == pytest.approx(
        [one.entropy for one in merging.merges]
    )
    assert (home / "t.png").read_bytes().startswith(b"\x89PNG")
    done(capsys, "model", "merge", "m.h5", "d.h5", "-o", "all.csv")
    every = np.genfromtxt("all.csv", delimiter=",", names=True)
    for count in range(1, 5):
        assert every[f"clusters_{count}"].tolist() == merging.predict(count).tolist()
    groups = name_groups(merging.groups(2))
    for level in ("2", groups):
        done(capsys, "predict", "m.h5", "d.h5", "--merge-to", level, "--proba", "-o", "p.csv",
             "--force")  # fmt: skip
        found = np.genfromtxt("p.csv", delimiter=",", names=True)
        assert found["label"].tolist() == merging.predict(2).tolist()
        np.testing.assert_allclose(found["proba_1"], merging.predict_proba(2)[:, 1], atol=1e-6)
        told = json.loads(
            done(capsys, "evaluate", "m.h5", "d.h5", "--merge-to", level, "--json").out
        )
        labels, groups = read_dataset("d.h5").labels, [list(one) for one in merging.groups(2)]
        assert told["groups"] == groups
        agrees = adjusted_rand_score(labels, merging.predict(2))
        assert told["adjusted_rand_index"] == pytest.approx(agrees)


def test_commands_refuse_what_has_no_components_to_merge(home, capsys):
    done(capsys, "kmeans", "d.h5", "-k", 2, "-o", "c.h5", "--quiet")
    result = run(capsys, "predict", "c.h5", "d.h5", "--merge-to", 2)
    assert result.code == 2
    assert "--merge-to merges components of a mixture" in result.sentence
    assert run(capsys, "model", "merge", "c.h5", "d.h5").code == 2
    done(capsys, "fit", "d.h5", "-k", 2, "-o", "m.h5", "--quiet")
    assert run(capsys, "predict", "m.h5", "d.h5", "--merge-to", 3).code == 2
    assert run(capsys, "model", "merge", "m.h5", "d.h5", "--plot", "t.txt").code == 2


def test_estimators_merge():
    X = np.random.default_rng(3).normal(size=(80, 4)) + 3 * (np.arange(80) % 2)[:, None]
    model = VPEM(n_components=4, random_state=0, max_iter=200).fit(X)
    merging = model.merge_components(X)
    assert merging.predict(4).tolist() == model.predict(X).tolist()
    assert repr(merging) == "Merging(4 components)"
