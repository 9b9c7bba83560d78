"""Networks as users ask for them: what they are warned of, and what fits on them tell."""

import numpy as np
import pytest

from vpem import (
    NotConvergedWarning,
    VpemWarning,
    connect,
    fit_vpem,
    make_graph,
    read_model,
)
from vpem.files.models import Model, write_model
from vpem.network.partition import contiguous

from .cli_support import done, make_data
from .tables import each


def joined(topology="cycle", n=6, **how):
    return connect(make_graph(topology, n, seed=0), contiguous(n, n), hops=0, **how)


@pytest.fixture
def X(overlapping):
    return overlapping(3, 200, 6)


@each(("fault", "seed"), [("link_failure", 0), ("stragglers", 1)])
def test_fits_with_faults_stop_where_fits_without_do(fault, seed, X):
    exact = fit_vpem(X, joined(), init=[3, 150])
    failing = fit_vpem(X, joined(seed=seed, **{fault: 0.2}), init=[3, 150])
    assert failing.converged
    assert abs(failing.log_likelihood - exact.log_likelihood) < 1e-6


def test_a_silent_root_has_no_log_likelihood(X, tmp_path):
    network = joined("complete", agent_dropout=0.3, seed=1)
    heard = []
    with pytest.warns(NotConvergedWarning):
        fit = fit_vpem(X, network, init=[3, 150], max_iter=8, callback=heard.append)
    missing = np.isnan(fit.history)
    assert missing.any()
    assert not missing.all(axis=1).any()
    means = np.nanmean(fit.history, axis=1) / fit.total_weight
    np.testing.assert_allclose([one.log_likelihood for one in heard], means)
    assert np.isfinite(fit.log_likelihood)
    names = tuple("abcdef")
    report = fit.describe(names, names)
    report.pop("history")
    write_model(tmp_path / "m.h5", Model(fit.mixture, names, report, fit.history))
    np.testing.assert_array_equal(read_model(tmp_path / "m.h5").history, fit.history)


def test_roots_that_disagree_are_warned_of(X):
    network = joined(link_failure=0.1, n_rounds=3)
    with pytest.warns(VpemWarning, match="rounds of a sum are too few"):
        fit_vpem(X, network, init=[3, 150], max_iter=3, tol=1e9)


def test_compressed_rounds_go_on_however_few_were_asked_for(X):
    found = fit_vpem(X, joined(compress="float32", n_rounds=1), init=[3, 150], max_iter=3, tol=1e9)
    assert np.ptp(found.root_log_likelihood) < 1e-4 * len(X)


def test_compressed_rounds_are_accelerated_unless_asked_not_to(X):
    found = {}
    for acceleration in (None, "chebyshev", "none"):
        network = joined(compress="float32", acceleration=acceleration)
        assert network.acceleration == (acceleration or "chebyshev")
        found[acceleration] = fit_vpem(X, network, init=[3, 150])
    assert found[None].network.n_rounds == found["chebyshev"].network.n_rounds
    assert found["none"].network.n_rounds > found[None].network.n_rounds
    np.testing.assert_array_equal(found[None].history, found["chebyshev"].history)
    assert found["none"].log_likelihood == pytest.approx(found[None].log_likelihood, abs=1e-5)
    few = {"compress": "float32", "n_rounds": 9}
    slow, quick = (
        fit_vpem(X, joined(**few, **how), init=[3, 150], max_iter=3, tol=1e9)
        for how in ({"acceleration": "none"}, {})
    )
    assert np.ptp(slow.root_log_likelihood) > np.ptp(quick.root_log_likelihood)


@each(
    ("how", "said"),
    [
        ({"compress": "topk:1e-12"}, "keeps only"),
        ({"stragglers": 0.999}, "too much fails"),
        ({"n_rounds": 10**9, "link_failure": 0.1}, "rounds must be an integer"),
    ],
)
def test_what_would_never_end_is_refused(how, said):
    with pytest.raises(ValueError, match=said):
        joined(**how)


def test_an_agent_called_as_an_option_keeps_its_name(capsys, tmp_path):
    make_data(tmp_path / "d.h5")
    (tmp_path / "p.json").write_text('{"radius": [0, 1], "n_init": [2, 3], "c": [4, 5]}')
    words = ["fit", tmp_path / "d.h5", "--partition", tmp_path / "p.json", "--topology", "path",
             "--rounds", 1, "--link-failure", 0.5, "--max-iter", 5, "--seed", 2,
             "--json"]  # fmt: skip
    found = done(capsys, *words).json
    told = " ".join(found["warnings"])
    assert "--radius" not in told
    assert "'radius'" in told
