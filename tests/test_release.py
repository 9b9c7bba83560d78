"""Models of features with noise in every M-step: what a row can move, and what is told."""

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import adjusted_rand_score

from vpem import VPEM, connect, fit_vpem, write_model
from vpem.errors import InputError, VpemWarning
from vpem.fits.privacy import ITERATIONS_OF_RELEASE, TAKEN, check_private
from vpem.fits.settings import PrivacySettings
from vpem.network.graph import make_graph
from vpem.network.partition import contiguous
from vpem.records import describe_field
from vpem.settings import COVARIANCE_TYPES, FitSettings, KmeansSettings
from vpem.steps.private import NoisyEM, scales_of_hubs
from vpem.terms.features import FeatureTerms
from vpem.terms.row_statistics import Grid, Parts, Residuals, ResidualSums
from vpem.terms.units import Scaling

from .cli_support import done, run
from .tables import each

pytestmark = pytest.mark.filterwarnings("ignore:its noise can be repeated")

PRIVATE = {"release_epsilon": 4.0, "delta": 1e-5, "bounds": (-12, 12), "repeatable_noise": 5}


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


def parts_of(kind, width, rng, k=3):
    """Components of some features with spreads of their own, but where all have one."""
    copies = 1 if kind.startswith("tied") else k
    spreads = rng.uniform(0.1, 0.6, size=(copies, width))
    if kind.endswith("spherical"):
        spreads[:] = spreads[:, :1]
    spreads = np.repeat(spreads, k // copies, axis=0)
    if kind in ("full", "tied"):
        spreads = np.stack([np.diag(one) for one in spreads])
    return Parts(np.full(k, 1 / k), rng.uniform(-1, 1, size=(k, width)), spreads, kind)


@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_no_row_moves_the_sums_of_all_hubs_by_more_than_1_and_some_nearly_does(kind):
    rng, widths = np.random.default_rng(3), (3, 1, 0, 2)
    scales, norms = scales_of_hubs(np.array(widths), kind, 3), []
    parts = {hub: parts_of(kind, widths[hub], rng) for hub in scales}
    for trial in range(60):
        shares = np.eye(3)[trial % 3] if trial % 2 else rng.dirichlet(np.full(3, 0.3))
        far, squares = rng.choice([0, 0.1, 9.0]), 0.0
        for hub, part in parts.items():
            layout = Residuals(kind, 3, widths[hub])
            sums = ResidualSums(layout, Grid.for_size(1000, 3))
            # Along one axis of a component squares are farthest off.
            row = part.means[trial % 3] + np.eye(widths[hub])[0] * far
            sums.add([part.residuals(row[None], one) for one in range(3)], shares[None])
            packed = layout.packed(sums.counts, sums.firsts, sums.seconds)
            own = np.square(sums.grid.sent(packed) / layout.deviations(scales[hub]))
            # Counts are the same for all, and once released.
            squares += own[3:].sum() + own[:3].sum() * (hub == 0)
        norms.append(np.sqrt(squares))
    assert 0.5 < max(norms) <= 1 + 1e-6


def test_noise_is_as_large_as_its_multiplier_says(clusters, star):
    terms = FeatureTerms(clusters[0], star.blocks, "full", scaling=Scaling.none(6))
    run = NoisyEM(terms, star.total, star.blocks, 3, noise_seed=1)
    nothing = np.zeros(4000, dtype=np.int64)
    drawn = run._noisy(nothing, np.full(4000, 2.0), 5.0, run._noise[0]) * run.grid.unit
    assert stats.kstest(drawn / 10.0, "norm").pvalue > 1e-3


def test_hubs_that_round_have_noise_for_the_rounding_of_all(clusters):
    """A row moves the numbers of all hubs by a unit more, not those of one hub alone."""
    blocks = connect(make_graph("star", 6), contiguous(6, 6)).blocks
    terms = FeatureTerms(clusters[0], blocks, "diag", scaling=Scaling.none(6))
    run = NoisyEM(terms, connect(make_graph("star", 6), contiguous(6, 6)).total, blocks, 3)
    run.grid, multiplier = Grid(12, 10, 6), 5.0
    every = []
    for hub, scales in scales_of_hubs(blocks.widths, "diag", 3).items():
        deviations = Residuals("diag", 3, 1).deviations(scales)[3 * (hub > 0) :]
        every.append((run.scales(deviations, multiplier), deviations))
    found, deviations = (np.concatenate(some) for some in zip(*every, strict=True))
    moved = np.sqrt(np.square(multiplier / found).sum())
    assert (found * run.grid.unit >= multiplier * deviations * (1 + moved)).all()


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


def test_the_estimator_releases_what_the_recipe_does(clusters):
    X, labels = clusters
    given = {name: PRIVATE[name] for name in ("release_epsilon", "delta", "bounds")}
    model = VPEM(3, agents=3, **given).fit(X)
    assert adjusted_rand_score(labels, model.predict(X)) > 0.9
    assert model.kept().report["privacy"]["noise_by"] == "hubs"
    assert (model.n_iter_, model.history_.size) == (ITERATIONS_OF_RELEASE, 0)
    assert np.isnan(model.lower_bound_)
    with pytest.raises(InputError, match="for every batch"):
        model.partial_fit(X)


def test_a_reader_of_the_file_learns_what_is_promised_and_why_there_is_no_history(
    clusters, star, tmp_path, capsys
):
    found = fit_vpem(clusters[0], star, n_components=3, privacy=PrivacySettings(**PRIVATE))
    names = list("abcdef")
    write_model(tmp_path / "m.h5", found.kept(names, found.describe(names, list("ABC")), {}))
    shown = " ".join(done(capsys, "model", "show", tmp_path / "m.h5").out.split())
    for said in ("epsilon 4, delta 1e-05", "outsiders who see the model alone",
                 "this gives no privacy", "quality not published, to protect rows"):  # fmt: skip
        assert said in shown
    failed = run(capsys, "plot", tmp_path / "m.h5", "--kind", "history", "-o", tmp_path / "x.png")
    assert failed.code == 2
    assert "its rows are protected by noise" in failed.err


REFUSED = {
    "tol": ({"tol": 1e-3}, {}, "when to stop would depend on the data"),
    "restarts": ({"n_init": 2}, {}, "every restart, and the choice of the best"),
    "batches": ({"batch_size": 100}, {}, "every batch"),
    "accelerate": ({"accelerate": "squarem"}, {}, "depends on the data"),
    "init": ({"init": "random"}, {}, "looks at no single row"),
    "rows": ({"init": [0, 1, 2]}, {}, "looks at no single row"),
    "scale": ({"scale": "standard"}, {}, "looks at the data without noise"),
    "missing": ({"missing": "marginalize"}, {}, "looks at the data without noise"),
    "weights": ({"sample_weight": np.ones(4000)}, {}, "a row would do more"),
    "least rows": ({"least_rows": 3}, {}, "least_rows has no effect with release_epsilon"),
    "every weight": ({"every_weight": True}, {}, "every_weight has no effect with release"),
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


def another(one):
    """A value of a setting that is not its default."""
    known = describe_field(one)
    choices = [word for word in (*known.choices, *known.words) if word != one.default]
    if choices or not isinstance(one.default, bool | int | float):
        return next(iter(choices), 2)
    return not one.default if isinstance(one.default, bool) else one.default + 1


@each(
    ("algorithm", "record"),
    [("em-rows", FitSettings), ("kmeans-rows", KmeansSettings), ("vp-em", FitSettings)],
)
def test_a_private_fit_takes_what_it_names_and_refuses_all_else(algorithm, record):
    assert TAKEN[algorithm] <= {*record.settings_by_name}
    for name, one in record.settings_by_name.items():
        try:
            check_private(algorithm, record(**{name: another(one)}))
        except InputError:
            assert name not in TAKEN[algorithm]
        else:
            assert name in TAKEN[algorithm], name


@pytest.mark.parametrize(
    "how", [{"topology": "cycle"}, {"topology": "star", "compress": "float32"}]
)
def test_sums_that_are_not_exact_are_refused(clusters, how):
    more = {"compress": how["compress"]} if "compress" in how else {}
    network = connect(make_graph(how["topology"], 3), contiguous(6, 3), **more)
    with pytest.raises(InputError, match="one exact sum"):
        fit_vpem(clusters[0], network, n_components=3, privacy=PrivacySettings(**PRIVATE))
