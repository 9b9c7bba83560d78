from itertools import permutations

import h5py
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score, confusion_matrix, normalized_mutual_info_score

from vpem.errors import FileError, InputError
from vpem.fits.answer import compare, read_labels

from .tables import over


def noisy(n_labels, n_clusters, seed, n=60):
    rng = np.random.default_rng(seed)
    truth = np.concatenate([np.arange(n_labels), rng.integers(n_labels, size=n - n_labels)])
    clusters = np.where(rng.random(n) < 0.6, truth % n_clusters, rng.integers(n_clusters, size=n))
    return truth, clusters


def best_accuracy(truth, clusters, n_labels, n_clusters):
    """Try every one-to-one mapping."""
    size = max(n_labels, n_clusters)
    return max(
        np.mean(np.array(mapping)[clusters] == truth) for mapping in permutations(range(size))
    )


@over(seed=range(5), sizes=[(3, 3), (2, 5), (5, 2), (1, 3), (4, 1)])
def test_measures_against_their_definitions(sizes, seed):
    n_labels, n_clusters = sizes
    truth, clusters = noisy(n_labels, n_clusters, seed)
    found = compare(truth, clusters, n_clusters)
    assert found.accuracy == best_accuracy(truth, clusters, n_labels, n_clusters)
    assert found.adjusted_rand_index == pytest.approx(adjusted_rand_score(truth, clusters))
    assert found.normalized_mutual_information == pytest.approx(
        normalized_mutual_info_score(truth, clusters)
    )
    wanted = confusion_matrix(truth, clusters, labels=range(max(n_labels, n_clusters)))
    np.testing.assert_array_equal(found.confusion, wanted[:n_labels, :n_clusters])
    assert found.classes.tolist() == list(range(n_labels))


@over(seed=range(5), sizes=[(3, 3), (2, 5), (5, 2)])
def test_the_mapping_is_one_to_one_and_earns_the_accuracy(sizes, seed):
    n_labels, n_clusters = sizes
    truth, clusters = noisy(n_labels, n_clusters, seed)
    found = compare(truth, clusters, n_clusters)
    assert len(found.mapping) == len(set(found.mapping.values())) == min(n_labels, n_clusters)
    given = np.array([found.mapping.get(cluster, -1) for cluster in clusters.tolist()])
    assert np.mean(given == truth) == found.accuracy


def test_the_order_of_clusters_is_of_no_account():
    truth, clusters = noisy(3, 3, 0)
    one = compare(truth, clusters, 3)
    other = compare(truth, np.array([2, 0, 1])[clusters], 3)
    assert one.accuracy == other.accuracy
    assert one.adjusted_rand_index == pytest.approx(other.adjusted_rand_index)


def test_labels_may_be_words_and_clusters_may_be_empty():
    found = compare(np.array(["well", "ill", "ill"]), np.array([3, 1, 1]), 4)
    assert found.accuracy == 1
    assert found.mapping[3] == "well"
    assert found.mapping[1] == "ill"
    assert found.confusion.tolist() == [[0, 2, 0, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize(("truth", "clusters"), [([0, 1], [0]), ([], []), ([[0], [1]], [0, 1])])
def test_rows_without_labels_are_refused(truth, clusters):
    with pytest.raises(InputError, match="need as many labels"):
        compare(np.array(truth), np.array(clusters), 2)


def test_labels_that_all_differ_draw_no_warning():
    found = compare(np.arange(40) + 0.5, np.arange(40) % 2, 2)
    assert found.accuracy == 2 / 40


# ---- where labels come from ---------------------------------------------------------------------


@pytest.fixture
def data(tmp_path):
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["X"] = np.ones((3, 2))
        file["other/truth"] = [5, 6, 5]
        file["words"] = ["a", "b", "a"]
        file["table"] = np.ones((3, 2))
    return tmp_path / "d.h5"


@pytest.mark.parametrize(
    "content", ["x\ny\nx\n", "x\ny\nx", "x\r\ny\r\nx\r\n"], ids=["lines", "no end", "dos"]
)
def test_labels_from_a_text_file(tmp_path, data, content):
    (tmp_path / "labels.txt").write_bytes(content.encode())
    found = read_labels(str(tmp_path / "labels.txt"), data, 3)
    assert found.tolist() == ["x", "y", "x"]


def test_labels_from_the_dataset_file(data):
    assert read_labels("other/truth", data, 3).tolist() == [5, 6, 5]
    assert read_labels("words", data, 3).tolist() == ["a", "b", "a"]


def test_labels_that_are_nowhere(data):
    with pytest.raises(FileError, match="neither a file 'nowhere' nor such a dataset"):
        read_labels("nowhere", data, 3)


def test_a_name_too_long_for_a_file(data):
    with pytest.raises(FileError, match="neither a file"):
        read_labels("x" * 5000, data, 3)


@pytest.mark.parametrize("where", ["table", "other"])
def test_labels_that_are_no_column(data, where):
    with pytest.raises(FileError, match=where):
        read_labels(where, data, 3)


def test_another_number_of_labels(tmp_path, data):
    (tmp_path / "labels.txt").write_text("x\ny\n")
    with pytest.raises(InputError, match=r"has 3 rows, .*labels.txt has 2 labels"):
        read_labels(str(tmp_path / "labels.txt"), data, 3)
    with pytest.raises(InputError, match="has 4 rows, words has 3 labels"):
        read_labels("words", data, 4)


def test_labels_that_are_not_text(tmp_path, data):
    (tmp_path / "labels.bin").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(FileError, match="is not UTF-8 text"):
        read_labels(str(tmp_path / "labels.bin"), data, 3)
