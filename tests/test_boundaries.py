"""Decision boundaries: the log-ratio of posteriors, as coefficients and as a picture."""

import json
from itertools import combinations

import numpy as np
import pytest

from vpem import InputError
from vpem.fits.answer import boundaries
from vpem.pictures.page import draw
from vpem.pictures.saved import read_saved

from .cli_support import done, run

RNG = np.random.default_rng(2)
SCALE = np.array([1.0, 1e4, 1e-3])
X = np.concatenate([
    RNG.multivariate_normal(mean, spread * np.eye(3) + 0.3, 60)
    for mean, spread in (([0, 0, 0], 1.0), ([3, 1, 0], 0.5), ([0, 3, 3], 2.0))
]) * SCALE + 5 * SCALE  # fmt: skip


def log_density(x, mean, covariance):
    off = x - mean
    quadratic = np.einsum("mi,ij,mj->m", off, np.linalg.inv(covariance), off)
    return -0.5 * (quadratic + np.linalg.slogdet(2 * np.pi * covariance)[1])


@pytest.fixture
def fitted(tmp_path, capsys):
    """Fit in a shell, and return the file."""
    rows = "\n".join(",".join(map(repr, row)) for row in X.tolist())
    (tmp_path / "x.csv").write_text("a,b,c\n" + rows)

    def fit(words):
        command, *options = words.split()
        done(capsys, command, tmp_path / "x.csv", "-k", 3, *options, "-q", "-o", tmp_path / "m.h5")
        return tmp_path / "m.h5"

    return fit


@pytest.mark.parametrize("kind", ["full", "diag", "spherical", "tied", "tied-diag"])
def test_they_are_log_ratios_of_posteriors(kind, fitted):
    file = fitted(f"fit --covariance {kind} --init-rows 5,70,130 --max-iter 9 --agents 1")
    weights, means, covariances = read_saved(file).gaussians()
    for columns in ([0, 1, 2], [2, 0]):
        here = covariances[:, columns][:, :, columns]
        found = boundaries(weights, means[:, columns], here)
        assert [(one.one, one.two) for one in found] == list(combinations(range(3), 2))
        for one in found:
            wanted = np.log(weights[one.one] / weights[one.two])
            wanted = wanted + log_density(X[:, columns], means[one.one, columns], here[one.one])
            wanted = wanted - log_density(X[:, columns], means[one.two, columns], here[one.two])
            np.testing.assert_allclose(one.at(X[:, columns]), wanted, rtol=1e-8, atol=1e-8)
            assert (one.quadratic is None) == kind.startswith("tied")
    found = boundaries(weights, means, covariances)
    first = (found[0].at(X) > 0) & (found[1].at(X) > 0)
    np.testing.assert_array_equal(first, read_saved(file).assign(X) == 0)


def test_equal_variances_have_the_line_of_the_slides():
    """``c + w^T x`` with ``w = (mu_i - mu_j) / sigma^2``, as "Distributed Clustering" has it."""
    weights, means, variance = np.array([0.3, 0.7]), np.array([[1.0, 2.0], [-1.0, 0.5]]), 1.7
    [line] = boundaries(weights, means, np.tile(variance * np.eye(2), (2, 1, 1)))
    constant = np.log(0.3 / 0.7) - (means[0] @ means[0] - means[1] @ means[1]) / (2 * variance)
    np.testing.assert_allclose(line.linear, (means[0] - means[1]) / variance, rtol=1e-14)
    assert line.constant == pytest.approx(constant, rel=1e-13)
    assert line.quadratic is None
    assert boundaries(np.array([1.0, 0.0]), means, np.tile(np.eye(2), (2, 1, 1))) == []


@pytest.mark.parametrize("scale", ["none", "standard"])
def test_clusters_are_divided_halfway(scale, fitted, capsys):
    file = fitted(f"kmeans --workers 2 --scale {scale}")
    lines = boundaries(*read_saved(file).gaussians())
    nearer = np.stack([one.at(X) > 0 for one in lines])  # of 0 to 1, 0 to 2, 1 to 2
    labels = np.where(nearer[0] & nearer[1], 0, np.where(nearer[2], 1, 2))
    np.testing.assert_array_equal(labels, read_saved(file).stored.labels)
    shown = done(capsys, "model", "boundaries", file, "--features", "c,a").out
    assert shown.count("linear") == 3


def test_the_shell_shows_and_draws_them(fitted, capsys):
    file = fitted("fit --agents 1")
    report = json.loads(done(capsys, "model", "boundaries", file, "--json").out)
    [first, *_] = report["boundaries"]
    weights, means, covariances = read_saved(file).gaussians()
    wanted = boundaries(weights, means, covariances)[0]
    np.testing.assert_allclose(first["quadratic"], wanted.quadratic)
    assert (first["kind"], report["features"]) == ("quadratic", ["a", "b", "c"])
    shown = done(capsys, "model", "boundaries", file, "--features", "a,c").out
    assert "a * c" in shown
    assert run(capsys, "model", "boundaries", file, "--features", "z").code == 2
    picture = draw("boundaries", read_saved(file), None, features=["a", "c"])
    assert "curves" in picture.alt
    with pytest.raises(InputError, match="name two"):
        draw("boundaries", read_saved(file), None, features=["a", "b", "c"])
    refused = run(capsys, "model", "boundaries", fitted("fit --prior dirichlet_process --force"))
    assert refused.code == 2
    assert "variational" in refused.err
