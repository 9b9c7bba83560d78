"""What tests of FedEM share: three overlapping clusters, and a fit of them."""

import numpy as np

from vpem import fit_fedem
from vpem.network.holdings import Workers, evenly
from vpem.terms.scaling import Scaling

ROWS = [3, 90, 170]
EXACT = {"step_size": 1.0, "memory": "none"}


def run(X, workers=7, **options):
    # As many iterations as are asked for, whatever they bring.
    options = {"max_iter": 100, "tol": 0.0, **options}
    held = workers if isinstance(workers, Workers) else evenly(len(X), workers)
    return fit_fedem(X, held, **{"n_components": 3, "init": ROWS, **options})


def mixture_model(X, workers=7):
    from vpem.terms.mixture_statistics import MixtureStatistics

    shift = X.mean(axis=0)
    held = evenly(len(X), workers)
    centred = X - shift
    return MixtureStatistics(
        centred,
        held.runs,
        3,
        "full",
        scaling=Scaling(shift, np.ones(X.shape[1])),
        second=centred.T @ centred / len(X),
    )
