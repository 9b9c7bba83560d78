"""Noise: on integers, its accountant, noisy sums over rows, and models that are released."""

import warnings

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import adjusted_rand_score

from vpem import VPEM, connect, fit_vpem, write_model
from vpem.errors import InputError, VpemWarning
from vpem.fits.privacy import (
    ITERATIONS_OF_RELEASE,
    Budget,
    Guarantee,
    bounds_of,
    check_grid,
    check_private,
    foretell,
    spent,
)
from vpem.fits.settings import PrivacySettings
from vpem.network.graph import make_graph
from vpem.network.noise import REACH, Noise, beyond_reach, ratio_to_gaussian, share
from vpem.network.partition import contiguous
from vpem.records import describe_field
from vpem.rules import TAKEN
from vpem.settings import COVARIANCE_TYPES, FitSettings, KmeansSettings
from vpem.steps.private import (
    NoisyEM,
    Releases,
    length_of,
    run_private,
    scales_of,
    scales_of_hubs,
    shares_of,
    step,
)
from vpem.sums.connect import connect_workers
from vpem.sums.private import Noisy
from vpem.terms.features import FeatureTerms
from vpem.terms.row_statistics import BoundedRows, Grid, Parts, Residuals, ResidualSums
from vpem.terms.rows import MemoryRows
from vpem.terms.units import Scaling

from .cli_support import done, run
from .tables import each

pytestmark = pytest.mark.filterwarnings("ignore:its noise can be repeated")

SEED = 20


def law(scale):
    """Integers out to 7 scales, and their probabilities."""
    values = np.arange(-7 * scale, 7 * scale + 1)
    weights = np.exp(-(values**2) / (2.0 * scale**2))
    return values, weights / weights.sum()


@each("scale", [1, 2, 3, 16])
def test_small_noise_has_the_exact_law(scale):
    found = Noise(SEED).gaussian(scale, 50_000)
    values, chances = law(scale)
    often = chances * len(found) > 10
    counts = np.array([(found == value).sum() for value in values[often]])
    observed = np.append(counts, len(found) - counts.sum())
    expected = np.append(chances[often], 1 - chances[often].sum()) * len(found)
    assert stats.chisquare(observed, expected).pvalue > 1e-3


@each("scale", [2**20, 3**29 + 2, 2**52])
def test_large_noise_has_the_moments_and_low_bits_of_the_law(scale):
    found = Noise(SEED).gaussian(scale, 20_000)
    assert stats.kstest(found / scale, "norm").pvalue > 1e-3
    low = np.bincount(found & 15, minlength=16)
    assert stats.chisquare(low).pvalue > 1e-3


def test_noise_of_the_system_differs_and_noise_with_a_seed_does_not():
    first, second = Noise(), Noise()
    assert not first.repeatable
    assert (first.gaussian(2**30, 50) != second.gaussian(2**30, 50)).all()
    again = [Noise(3, agent).gaussian(2**30, 50) for agent in (0, 0, 1)]
    np.testing.assert_array_equal(again[0], again[1])
    assert (again[0] != again[2]).all()
    assert Noise(3).repeatable


def test_shares_have_together_what_is_needed():
    for scale, n in ((10, 4), (10, 3), (2**40, 7), (1, 5)):
        own = share(scale, n)
        assert n * own**2 >= scale**2 > n * (own - 1) ** 2


def test_bounds_of_what_is_not_gaussian_hold_for_the_exact_laws():
    scale, n = 4, 3
    # Three laws of scale 4, folded, beside one of scale 4 sqrt(3).
    values, chances = law(scale)
    together = np.convolve(np.convolve(chances, chances), chances)
    far = np.arange(-3 * values[-1], 3 * values[-1] + 1)
    one = np.exp(-(far**2) / (2.0 * n * scale**2))
    near = np.abs(far) <= 4 * scale  # where rounding of floats is small beside the chances
    ratio = np.log(together / (one / one.sum()))[near]
    # Kairouz, Liu and Steinke (2021), Theorem 1; see `vpem.network.noise.share`.
    assert np.abs(ratio).max() <= 10 * (n - 1) * np.exp(-((np.pi * scale) ** 2)) + 1e-10
    scale = 64
    values, chances = law(scale)
    rounded = np.diff(stats.norm.cdf(np.append(values, values[-1] + 1) - 0.5, scale=scale))
    nats = np.abs(np.log(rounded / chances))[np.abs(values) <= 5 * scale]
    # The bound is quadratic in how far a value is, and holds out to its reach.
    bound = ratio_to_gaussian(scale, 1) * (5**2 + 1) / (REACH**2 + 1)
    assert 0.1 * bound < nats.max() <= bound
    assert beyond_reach(10) == pytest.approx(20 * stats.norm.pdf(REACH) * np.sqrt(2 * np.pi))


def test_the_accountant_agrees_with_that_of_the_library():
    import dp_accounting

    epsilon, delta, n = 4.0, 1e-6, 10
    shares = np.arange(1, n + 1) / (n * (n + 1) / 2)
    multipliers = Budget.parse(epsilon, delta, 1000).multipliers(shares)
    theirs = dp_accounting.pld.PLDAccountant()
    events = [dp_accounting.GaussianDpEvent(float(one)) for one in multipliers]
    theirs.compose(dp_accounting.ComposedDpEvent(events))
    ours = spent(multipliers, delta)
    # Theirs rounds losses up to a grid of 1e-4.
    assert ours <= theirs.get_epsilon(delta) <= ours + 1e-4
    assert 0.999 * epsilon < ours < epsilon


NO_SCALE, FINITE = "an integer from 1 to 2\\^52", "a finite number above 0"
PROMISE_NOTHING = [
    *((lambda scale=scale: Noise().gaussian(scale, 3), NO_SCALE)
      for scale in (0, -1, 2**52 + 1, 2.0, None)),
    *((lambda one=one: Budget.parse(*one, 100), said) for one, said in [
        ((0, 1e-6), FINITE), ((-1, 1e-6), FINITE), ((np.inf, 1e-6), FINITE), ((1, 0), FINITE),
        ((1e3, 1e-6), "1 to 10 is common"), ((1e-4, 1e-6), "1 to 10 is common"),
        ((1, None), "epsilon needs delta"), ((1, 0.01), "delta must be below 1 / 100"),
    ]),
    (lambda: Budget(4.0, 1e-6).check_grid(2**10, 100), "too coarse"),
    (lambda: Budget(20.0, 1e-30).check_grid(2**32, 10**7), "too small for noise"),
    *((lambda given=given: bounds_of(given, 2), "bounds") for given in
      [None, "a", "1", "3,1", "1,2,3", "0,1;2,3;4,5", (0, np.inf), [1, 2, 3], 7]),
]  # fmt: skip


@each(("call", "said"), PROMISE_NOTHING)
def test_what_promises_nothing_is_refused(call, said):
    with pytest.raises(InputError, match=said):
        call()


def test_a_budget_cannot_be_spent_twice():
    with pytest.raises(ValueError, match="at most 1 in all"):
        Budget(1.0, 1e-6).multipliers([0.6, 0.6])


@each(("n_samples", "n_features"), [(10**6, 40), (10**8, 10)])
def test_a_grid_is_fine_enough_for_many_rows_and_a_delta_that_is_common(n_samples, n_features):
    private = PrivacySettings(epsilon=4.0, delta=0.01 / n_samples)
    Budget(4.0, 1e-6).check_grid(2**32, 10**7)
    foretold = foretell(FitSettings(n_components=3), private, n_samples, n_features)
    check_grid(foretold, Grid.for_size(n_samples, n_features))


def test_a_guarantee_says_what_it_is_worth():
    budget = Budget(2.0, 1e-6)
    guarantee = Guarantee(budget, tuple(budget.multipliers([0.5, 0.5])), "server")
    found = guarantee.describe()
    assert found["epsilon_of_change"] > 2 * budget.epsilon
    assert "warning" not in found
    assert "no privacy" in Guarantee(budget, (1.0,), "hubs", repeatable=True).describe()["warning"]


def test_bounds_are_of_all_features_or_of_each():
    np.testing.assert_array_equal(bounds_of("-3,3", 2), [[-3, -3], [3, 3]])
    np.testing.assert_array_equal(bounds_of("0,1;2,3", 2), [[0, 2], [1, 3]])
    np.testing.assert_array_equal(bounds_of(([0, 2], 5), 2), [[0, 2], [5, 5]])


def rows_of(*parts, n_samples=5000):
    d = parts[0].shape[1]
    bounds = np.stack([-np.ones(d), np.ones(d)])
    held = [MemoryRows.wrap(np.ascontiguousarray(part)) for part in parts]
    return BoundedRows(held, bounds, Grid.for_size(n_samples, d))


def parts_of(kind, k, d, rng, width=0.2):
    shape = (1, d, d) if kind in ("full", "tied") else (1, d)
    copies = 1 if kind.startswith("tied") else k
    spreads = width * np.exp(0.3 * rng.normal(size=(copies, *shape[1:])))
    if len(shape) == 3:
        spreads = np.tril(0.3 * spreads, -1) + spreads * np.eye(d)
    elif kind.endswith("spherical"):
        spreads[:] = spreads[:, :1]
    spreads = np.broadcast_to(spreads, (k, *shape[1:])).copy()
    return Parts(rng.dirichlet(np.ones(k)), rng.uniform(-1, 1, (k, d)), spreads, kind)


@each("kind", COVARIANCE_TYPES)
def test_a_row_moves_a_message_by_at_most_one_deviation_of_the_noise(kind):
    rng = np.random.default_rng(0)
    k, d = 3, 4
    layout, others = Residuals(kind, k, d), rng.uniform(-1, 1, (7, d))
    assert layout.deviations().shape == (layout.size,)
    worst = 0.0
    for trial in range(36):
        parts = parts_of(kind, k, d, rng, width=10.0 ** rng.uniform(-3, 0))
        # Rows anywhere, far beyond the bounds, at a centre, and along one axis of a component.
        row = rng.normal(size=d) * 10.0 ** rng.uniform(-1, 6)
        if trial % 3 == 1:
            row = parts.means[0].copy()
        if trial % 3 == 2:
            row = parts.means[0] + (parts.spreads[0][..., 0] * np.eye(d)[0]) * 50
        found = []
        for data in (others, np.vstack([others, row])):
            held = rows_of(data)
            found.append(held.grid.sent(held.residuals(0, parts, layout)))
        change = (found[1] - found[0]) / layout.deviations()
        assert np.linalg.norm(change) <= 1 + 1e-6
        worst = max(worst, float(np.linalg.norm(change)))
    assert worst > 0.5  # and not by far less


def test_what_a_row_adds_does_not_depend_on_others_nor_on_who_holds_it():
    rng = np.random.default_rng(1)
    X = rng.uniform(-1.2, 1.2, (5000, 3))
    parts, layout = parts_of("full", 4, 3, rng), Residuals("full", 4, 3)
    whole = rows_of(X).residuals(0, parts, layout)
    cut = rows_of(X[:2048], X[2048:2049], X[2049:])
    assert np.array_equal(whole, sum(cut.residuals(worker, parts, layout) for worker in range(3)))
    assert cut.clipped[1] <= 1
    assert sum(cut.clipped) == (np.abs(X) > 1).any(axis=1).sum()
    # The grid is fine: sums are what they are without it, but for responsibilities rounded down.
    z = [parts.residuals(np.clip(X, -1, 1), component) for component in range(4)]
    shares = parts.responsibilities(np.stack([(one**2).sum(axis=1) for one in z], axis=1))
    counts = layout.unpacked(whole * 2.0**-32)[0]
    assert np.abs(counts - shares.sum(axis=0)).max() < 5000 * 2.0**-12


def test_a_coarser_grid_has_noise_for_what_it_rounds():
    fine, coarse = Grid.for_size(5000, 4), Grid.for_size(10**8, 10)
    assert not fine.rounds
    assert coarse.rounds
    assert coarse.message_bits < 32
    deviations = np.full(20, 2.0)
    less, more = (scales_of(deviations, 5.0, coarse.unit, rounds=on) for on in (False, True))
    moved = np.ones(20) / less  # by a unit each
    assert (more >= less).all()
    assert 5.0 * np.linalg.norm(moved) <= (more / less)[0] - 1 + 1e-6


@each(
    ("graph", "how", "by"),
    [
        ("star", {}, "server"),
        ("cycle", {"sum": "tree"}, "root"),
        ("star", {"secure_sum": True}, "workers"),
        ("cycle", {"sum": "tree", "secure_sum": True}, "workers"),
    ],
)
def test_the_noise_of_a_sum_is_as_large_whoever_adds_it(graph, how, by):
    network = connect_workers(make_graph(graph, 4), **how)
    noisy = Noisy(network.total.server, seed=3)
    values = np.zeros((4, 8000))
    scales = np.repeat([1 << 20, 3 << 20], 4000)
    found = noisy.add(values, scales, 2.0**-20) * np.repeat([1, 1 / 3], 4000)
    assert noisy.by == by
    assert abs(found.mean()) < 0.05
    assert abs(found.std() - 1) < 0.03
    again = noisy.add(values, scales, 2.0**-20)
    assert np.corrcoef(found, again)[0, 1] < 0.05
    # What others learn must not depend on whether sums of many rows fit.
    large = noisy.add(np.full((4, 1), 2.0**31), np.ones(1, dtype=np.int64), 2.0**-20)
    assert abs(large[0] - 2.0**33) < 2.0**-16
    if by != "workers":
        assert not values.any()


def test_iterations_share_what_the_start_leaves_and_their_steps_end_in_a_mean():
    assert shares_of(10, 3) == pytest.approx([0.1, 0.1, 0.2, *[0.06] * 10])
    assert sum(shares_of(4, 1)) == pytest.approx(1)
    assert [length_of(t, 6) for t in range(1, 7)] == [1, 1, 1, 1 / 2, 1 / 3, 1 / 4]


@each("kind", COVARIANCE_TYPES)
def test_statistics_that_no_rows_could_have_are_repaired(kind):
    rng = np.random.default_rng(2)
    parts, layout = parts_of(kind, 3, 2, rng), Residuals(kind, 3, 2)
    for size in (1.0, 1e3, 1e9):
        parts = step(parts, layout, size * rng.normal(size=layout.size), 1000, 1.0)
        assert (parts.weights > 0).all()
        assert parts.weights.sum() == pytest.approx(1)
        assert np.abs(parts.means).max() <= 1
        spreads = parts.spreads
        diagonal = spreads if spreads.ndim == 2 else np.diagonal(spreads, axis1=1, axis2=2)
        assert (diagonal > 0).all()
        assert np.isfinite(spreads).all()


@each("kind", ["full", "tied-spherical"])
def test_with_hardly_any_noise_it_is_em(kind):
    rng = np.random.default_rng(4)
    means = np.array([[0.5, 0.5], [-0.5, 0.0]])
    X = np.concatenate([m + 0.1 * rng.normal(size=(500, 2)) for m in means])
    rows = rows_of(X[:300], X[300:], n_samples=1000)
    network = connect_workers(make_graph("star", 2))
    releases = Releases(rows, Noisy(network.total.server, seed=0), [1e-3] * 13)
    found = run_private(releases, Residuals(kind, 2, 2), 1000, 10)
    order = np.argsort(-found.means[:, 0])
    assert np.allclose(found.means[order], means, atol=0.01)
    assert np.allclose(found.weights, 0.5, atol=0.01)
    spreads = found.spreads
    diagonal = spreads if spreads.ndim == 2 else np.diagonal(spreads, axis1=1, axis2=2)
    assert np.allclose(diagonal, 0.1, atol=0.01)
    assert not releases.multipliers


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


def parts_of_hub(kind, width, rng, k=3):
    """Components of some features with spreads of their own, but where all have one."""
    copies = 1 if kind.startswith("tied") else k
    spreads = rng.uniform(0.1, 0.6, size=(copies, width))
    if kind.endswith("spherical"):
        spreads[:] = spreads[:, :1]
    spreads = np.repeat(spreads, k // copies, axis=0)
    if kind in ("full", "tied"):
        spreads = np.stack([np.diag(one) for one in spreads])
    return Parts(np.full(k, 1 / k), rng.uniform(-1, 1, size=(k, width)), spreads, kind)


@each("kind", COVARIANCE_TYPES)
def test_no_row_moves_the_sums_of_all_hubs_by_more_than_1_and_some_nearly_does(kind):
    rng, widths = np.random.default_rng(3), (3, 1, 0, 2)
    scales, norms = scales_of_hubs(np.array(widths), kind, 3), []
    parts = {hub: parts_of_hub(kind, widths[hub], rng) for hub in scales}
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


@pytest.fixture(scope="module")
def released(clusters, star):
    """A private model of the clusters, whose noise can be repeated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        return fit_vpem(clusters[0], star, n_components=3, privacy=PrivacySettings(**PRIVATE))


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


def test_a_private_model_finds_clusters_and_tells_nothing_else(clusters, star, released):
    (X, labels), found = clusters, released
    assert adjusted_rand_score(labels, found.mixture.predict(X)) > 0.9
    again = fit_vpem(X, star, n_components=3, privacy=PrivacySettings(**PRIVATE))
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
    released, tmp_path, capsys
):
    names = list("abcdef")
    report = released.describe(names, list("ABC"))
    write_model(tmp_path / "m.h5", released.kept(names, report, {}))
    shown = " ".join(done(capsys, "model", "show", tmp_path / "m.h5").out.split())
    for said in ("epsilon 4, delta 1e-05", "outsiders who see the model alone",
                 "this gives no privacy", "quality not published, to protect rows"):  # fmt: skip
        assert said in shown
    failed = run(capsys, "plot", tmp_path / "m.h5", "--kind", "history", "-o", tmp_path / "x.png")
    assert failed.code == 2
    assert "its rows are protected by noise" in failed.err


REFUSED = {
    "restarts": ({"n_init": 2}, {}, "every restart, and the choice of the best"),
    "epsilon": ({}, {"release_epsilon": None, "epsilon": 1.0}, "would have to hide every row"),
    "delta": ({}, {"delta": None}, "needs delta"),
    "large delta": ({}, {"delta": 0.1}, "below 1 / 4000"),
    "bounds": ({}, {"bounds": None}, "needs bounds"),
    "nothing left": ({}, {"release_epsilon": 0.01}, "leave nothing at release_epsilon"),
}


@each("case", REFUSED)
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


@each(("topology", "how"), [("cycle", {}), ("star", {"compress": "float32"})])
def test_sums_that_are_not_exact_are_refused(clusters, topology, how):
    network = connect(make_graph(topology, 3), contiguous(6, 3), **how)
    with pytest.raises(InputError, match="one exact sum"):
        fit_vpem(clusters[0], network, n_components=3, privacy=PrivacySettings(**PRIVATE))
