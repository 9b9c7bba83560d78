"""Models of features with noise in every M-step: what a row can move, and what is told."""

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import adjusted_rand_score

from vpem import connect, fit_vpem
from vpem.errors import InputError, VpemWarning
from vpem.fits.settings import PrivacySettings
from vpem.network.blocks import Blocks
from vpem.network.holdings import contiguous
from vpem.network.topologies import make_graph
from vpem.settings import COVARIANCE_TYPES
from vpem.steps.noisy_em import NoisyEM
from vpem.sums.server import ServerSum
from vpem.terms.clipped import Clip, ClippedMoments, moved
from vpem.terms.features import FeatureTerms
from vpem.terms.scaling import Scaling

WIDTHS = (3, 1, 0, 2)
pytestmark = pytest.mark.filterwarnings("ignore:its noise can be repeated")

PRIVATE = {"release_epsilon": 4.0, "delta": 1e-5, "bounds": (-12, 12), "repeatable_noise": 5}


def blocks():
    columns = np.split(np.arange(sum(WIDTHS)), np.cumsum(WIDTHS)[:-1])
    return Blocks(tuple(columns), tuple(range(4)), tuple((b,) for b in range(4)))


def terms_of(X, kind):
    return FeatureTerms(X, blocks(), kind, scaling=Scaling.none(6), reg_covar=0.0)


def mixture_about(X, kind, rng, k=3):
    """A mixture whose components have sensible covariances of their own."""
    terms = terms_of(X, kind)
    statistics = terms.empty(np.zeros((k, 6)), 1)
    shares = rng.dirichlet(np.full(k, 0.5), len(X))
    terms.summarize(statistics, np.ascontiguousarray(shares[None]), slice(0, len(X)))
    return terms, statistics, shares, terms.update(statistics)


@pytest.fixture(scope="module")
def clusters():
    """Three clusters of six features, and where each row is."""
    rng = np.random.default_rng(2)
    labels = rng.integers(3, size=4000)
    centres = 3.0 * rng.standard_normal((3, 6))
    return centres[labels] + rng.standard_normal((4000, 6)), labels


@pytest.fixture(scope="module")
def star():
    return connect(make_graph("star", 3), contiguous(6, 3))


def contribution(mixture, clip, row, shares):
    """All that one row adds, counts included."""
    moments = ClippedMoments(mixture, clip)
    moments.add(row[None], shares[None])
    parts = [moments.block(b) for b in range(4)]
    return np.concatenate([clip.counts * moments.counts, *parts])


@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_no_row_moves_all_moments_by_more_than_1_and_some_nearly_does(kind):
    rng = np.random.default_rng(3)
    mixture = mixture_about(rng.standard_normal((60, 6)), kind, rng)[3]
    clip = Clip.of(np.array(WIDTHS), kind, 3)
    hard = np.eye(3)
    norms = []
    for size in (0.0, 0.5, 2.0, 1e6):
        for _ in range(20):
            shares = rng.dirichlet(np.full(3, 0.3)) if rng.random() < 0.5 else hard[rng.integers(3)]
            # In every block along one axis of a component: there squares are farthest off.
            row = mixture.means[rng.integers(3)] + size * rng.standard_normal(6)
            norms.append(np.linalg.norm(contribution(mixture, clip, row, shares)))
    assert 0.9 < max(norms) <= 1 + 1e-12


@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_without_noise_or_clipping_it_is_the_m_step(kind):
    rng = np.random.default_rng(4)
    X = rng.standard_normal((500, 6))
    _, _, _, before = mixture_about(X, kind, rng)
    clip = Clip.of(np.array(WIDTHS), kind, 3)
    far = Clip(np.full(4, 1e9), np.ones(4), clip.counts, clip.first, clip.second)
    _, _, shares, wanted = mixture_about(X, kind, rng)
    moments = ClippedMoments(before, far)
    moments.add(X, shares)
    box = np.array([np.full(6, -9.0), np.full(6, 9.0)])
    found = moved(moments, moments.counts, [moments.block(b) for b in range(4)], box, 0.0)
    for name in ("weights", "means", "covariances"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), atol=1e-9)


def test_noise_is_as_large_as_its_multiplier_says(clusters):
    terms = terms_of(clusters[0], "full")
    box = np.array([np.full(6, -9.0), np.full(6, 9.0)])
    run = NoisyEM(terms, ServerSum(4), blocks(), box, 3, noise_seed=1)
    drawn = run._values(run._noisy(np.zeros(4000), run.scale(5.0), run._noise[0]))
    assert stats.kstest(drawn / 5.0, "norm").pvalue > 1e-3
    assert run.scale(5.0) >= 5 * 2**run.fraction_bits


def test_a_private_model_finds_clusters_and_tells_nothing_else(clusters, star):
    X, labels = clusters
    asked = {"n_components": 3, "privacy": PrivacySettings(**PRIVATE)}
    found = fit_vpem(X, star, **asked)
    assert adjusted_rand_score(labels, found.mixture.predict(X)) > 0.9
    again = fit_vpem(X, star, **asked)
    np.testing.assert_array_equal(found.mixture.means, again.mixture.means)
    system = PrivacySettings(**{**PRIVATE, "repeatable_noise": None})
    other = fit_vpem(X, star, n_components=3, privacy=system)
    assert (found.mixture.means != other.mixture.means).all()
    assert "warning" not in other.describe(list("abcdef"), list("ABC"))["privacy"]
    report = found.describe(list("abcdef"), list("ABC"))
    assert report["privacy"]["n_releases"] == 1 + report["n_iter"]
    assert "no privacy" in report["privacy"]["warning"]
    assert not report["history"]
    assert report["log_likelihood"] is None
    kept = found.kept(list("abcdef"), {**report, "warnings": ["a value"]}, {})
    assert "warnings" not in kept.report
    assert kept.history.size == 0


def test_values_beyond_the_bounds_are_clipped_and_counted(clusters, star):
    X = clusters[0]
    near = PrivacySettings(**{**PRIVATE, "bounds": (-2, 2)})
    beyond = int((np.abs(X) > 2).sum())
    with pytest.warns(VpemWarning, match=f"{beyond} of {X.size} values lie beyond"):
        found = fit_vpem(X, star, n_components=3, privacy=near)
    assert np.abs(found.mixture.assembled_means).max() <= 2


REFUSED = {
    "tol": ({"tol": 1e-3}, {}, "when to stop would depend on the data"),
    "restarts": ({"n_init": 2}, {}, "every restart would be paid for"),
    "batches": ({"batch_size": 100}, {}, "each batch"),
    "accelerate": ({"accelerate": "squarem"}, {}, "depends on the data"),
    "init": ({"init": "random"}, {}, "looks at no row"),
    "rows": ({"init": [0, 1, 2]}, {}, "looks at no row"),
    "scale": ({"scale": "standard"}, {}, "looks at the data without noise"),
    "missing": ({"missing": "marginalize"}, {}, "looks at the data without noise"),
    "weights": ({"sample_weight": np.ones(4000)}, {}, "a row would do more"),
    "epsilon": ({}, {"release_epsilon": None, "epsilon": 1.0}, "would have to hide every row"),
    "delta": ({}, {"delta": None}, "needs delta"),
    "large delta": ({}, {"delta": 0.1}, "below 1 / 4000"),
    "bounds": ({}, {"bounds": None}, "needs bounds"),
    "nothing left": ({}, {"release_epsilon": 0.01}, "leave nothing at release_epsilon"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_noise_cannot_go_with_is_refused(clusters, star, case):
    options, changes, said = REFUSED[case]
    privacy = PrivacySettings(**{**PRIVATE, **changes})
    with pytest.raises(InputError, match=said):
        fit_vpem(clusters[0], star, n_components=3, privacy=privacy, **options)


@pytest.mark.parametrize(
    "how", [{"topology": "cycle"}, {"topology": "star", "compress": "float32"}]
)
def test_sums_that_are_not_exact_are_refused(clusters, how):
    more = {"compress": how["compress"]} if "compress" in how else {}
    network = connect(make_graph(how["topology"], 3), contiguous(6, 3), **more)
    with pytest.raises(InputError, match="one exact sum"):
        fit_vpem(clusters[0], network, n_components=3, privacy=PrivacySettings(**PRIVATE))
