"""Models used on rows of which processes have features of their own are as in one process."""

import numpy as np
import pytest

from vpem.engines.placement import Placement
from vpem.errors import InputError
from vpem.fits.spread_rows import SpreadRows
from vpem.network.partition import Blocks, from_lists
from vpem.settings import COVARIANCE_TYPES
from vpem.terms.missing import nearest
from vpem.terms.units import Scaling

from .missing_support import clusters, random_mixture, with_holes
from .tables import each, each_once
from .thread_engine import over_queues, together

BLOCKS = Blocks((np.array([4, 0]), np.array([1, 5, 2]), np.array([3])), (0, 1, 2), ((0,),) * 3)
PARTIES = from_lists([[6, 2], [0, 4, 7], [1], [3, 5]], 8, ("a", "b", "c", "d"))
COLUMNS = [5, 1, 0, 6, 2, 3]
"""Of the joined data, of which columns 4 and 7 are none of the model's: those of its features."""
NAMES = tuple("uvwxyz")
X = np.zeros((90, 8))
X[:, COLUMNS] = clusters(1, 90, 6, 3)


def over_ranks(n_ranks, work, data=X, **options):
    """Call ``work(rows)`` on each rank, with what its parties have; the first of five has none."""

    def run(engine):
        place = Placement.evenly(engine, 4, PARTIES.names)
        own = [PARTIES.features[party] for party in place.own]
        held = data[:, np.concatenate([np.empty(0, dtype=int), *own])]
        return work(SpreadRows(held, PARTIES, COLUMNS, place, NAMES, **options))

    if n_ranks == 5:
        return together(n_ranks, run, over_queues, seats=(1, 2, 3, 4))
    return together(n_ranks, run)


@each_once(
    kind=COVARIANCE_TYPES,
    n_ranks=[1, 2, 5, 4],
    missing=["refuse", "marginalize"],
    dtype=[np.float64, np.float32],
)
def test_posteriors(kind, n_ranks, missing, dtype):
    mixture = random_mixture(np.random.default_rng(3), BLOCKS, kind, 3)
    data = X.astype(dtype)
    if missing == "marginalize":
        data = with_holes(data, 4).astype(dtype)
        data[7], data[20:40, [6, 2]] = np.nan, np.nan
    found = over_ranks(
        n_ranks, lambda rows: (*rows.posteriors(mixture), rows.n_blank, rows.communication),
        data, missing=missing,
    )  # fmt: skip
    own = data[:, COLUMNS]
    for proba, scores, n_blank, sent in found:
        wanted = mixture.predict_proba(own, missing=missing)
        np.testing.assert_allclose(proba, wanted, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(scores, mixture.score_samples(own, missing=missing), rtol=1e-12)
        assert n_blank == int(np.isnan(own).all(axis=1).sum())
        # The first hub is of a's y and d's u, the second of c's v, d's z and b's w.
        assert sent["sums"] == {"messages": 6, "bytes": 6 * 90 * 3 * 8, "rounds": 2}
        assert sent["features"] == {"messages": 3, "bytes": 3 * 90 * np.dtype(dtype).itemsize}


@each("n_ranks", [1, 3])
def test_nearest_centres(n_ranks):
    scaling = Scaling(np.arange(6.0), np.linspace(0.5, 2, 6))
    own = X[:, COLUMNS]
    centres = own[[3, 40, 80]]
    labels, squared = nearest(own, centres, scaling, 1)
    for ours, distances in over_ranks(n_ranks, lambda rows: rows.nearest(centres, scaling)):
        np.testing.assert_array_equal(ours, labels)
        np.testing.assert_allclose(distances, squared, rtol=1e-10, atol=1e-12)


def test_values_that_are_not_finite_are_refused_alike():
    data = X.copy()
    data[11, COLUMNS[2]] = np.nan
    for error in over_ranks(2, lambda rows: None, data):
        assert isinstance(error, InputError)
        with pytest.raises(InputError, match=r"row 11, .*'w'.* is NaN"):
            raise error
