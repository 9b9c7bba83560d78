"""Discriminant analysis over the ranks of any engine finds what one process does."""

import numpy as np

from tests.over_fits import overlapping
from tests.over_selection import HELD
from tests.over_sums import agents_on
from vpem.fits.discriminant import fit_discriminant, held_out_classes, labels_of_all
from vpem.fits.parts import gathered
from vpem.fits.spread import own_columns
from vpem.network.graph import make_graph
from vpem.network.partition import from_lists
from vpem.sums.connect import connect, spread

QUICK = {"tol": 1e-3, "seed": 2}
CASES = [
    ("star", {}, {"n_components": [1, 2, 40], "covariance_type": ["full", "diag"]}),
    ("path", {"hops": 1}, {"model_type": "edda", "covariance_type": ["tied", "VEE"]}),
    ("star", {}, {"n_components": [2], "covariance_type": ["spherical"], "missing": "marginalize"}),
]


def main(engine):
    X = overlapping(n_samples=90, n_features=6)
    y = np.where(X[:, 0] + X[:, 3] > 0, "sick", "well")
    weights = np.random.default_rng(4).integers(1, 3, size=len(X)).astype(float)
    holes = np.where(np.random.default_rng(1).random(X.shape) < 0.1, np.nan, X)
    n_agents = agents_on(engine)
    labelled = n_agents - 1  # of whom others hear
    compared = 0
    for topology, how, options in CASES:
        rows = holes if "missing" in options else X
        network = connect(make_graph(topology, n_agents), from_lists(HELD[n_agents], 6), **how)
        ranked = spread(network, engine)
        columns = own_columns(ranked)
        own = np.ascontiguousarray(rows[:, columns]) if len(columns) else None
        theirs = y if ranked.agents.mine(labelled) else None
        known, agent = labels_of_all(theirs, labelled, ranked)
        assert (known.tolist(), agent) == (y.tolist(), labelled)
        options = {**QUICK, **options, "labelled_by": labelled}
        missing = options.get("missing", "refuse")
        own_weights = weights if ranked.agents.mine(0) else None
        found = fit_discriminant(own, known, ranked, sample_weight=own_weights, **options)
        shares = found.predict_classes(own, missing)

        def fit(some, ranked=ranked, own=own, options=options):
            part = None if own is None else own[some]
            return fit_discriminant(part, y[some], ranked, **options)

        wrong = [part.tolist() for _, part in held_out_classes(fit, own, y, 2, 0, missing)]
        whole = gathered(found) if engine.apart else found
        if engine.rank:
            continue

        def fit_alone(some, network=network, rows=rows, options=options):
            return fit_discriminant(rows[some], y[some], network, **options)

        alone = fit_discriminant(rows, y, network, sample_weight=weights, **options)
        assert whole.n_parameters == alone.n_parameters
        assert whole.communication == alone.communication
        for one, other in zip(whole.chosen, alone.chosen, strict=True):
            assert one["covariance_type"] == other["covariance_type"]
            np.testing.assert_allclose(one["bic"], other["bic"], rtol=1e-9)
        for name in ("assembled_means", "assembled_covariances", "assembled_weights"):
            ours, others = getattr(whole.mixture, name), getattr(alone.mixture, name)
            np.testing.assert_allclose(ours, others, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(shares, alone.predict_classes(rows, missing), atol=1e-8)
        expected = held_out_classes(fit_alone, rows, y, 2, 0, missing)
        assert wrong == [part.tolist() for _, part in expected]
        compared += 1
    return f"compared {compared}"
