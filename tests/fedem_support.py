"""What tests of FedEM share: three overlapping clusters, and a fit of them."""

import numpy as np

from vpem import FitSettings, fit_fedem
from vpem.network.partition import Blocks, Workers, evenly
from vpem.steps.em import fit
from vpem.sums.server import ServerSum
from vpem.terms.features import FeatureTerms
from vpem.terms.fedem_statistics import MixtureStatistics
from vpem.terms.units import Scaling

ROWS = [3, 90, 170]
REG = 1e-6
EXACT = {"step_size": 1.0, "memory": "none"}


def run(X, workers=7, **options):
    # As many iterations as are asked for, whatever they bring.
    options = {"max_iter": 100, "tol": 0.0, **options}
    held = workers if isinstance(workers, Workers) else evenly(len(X), workers)
    return fit_fedem(X, held, **{"n_components": 3, "init": ROWS, **options})


def mixture_model(
    X, workers=7, k=3, covariance_type="full", reg_covar=1e-6, row_weights=None, **options
):
    """The model of complete rows in memory."""
    d = X.shape[1]
    scaling = Scaling(X.mean(axis=0), np.ones(d))
    centred = scaling.apply(X)
    second = centred.T @ centred / len(X)
    terms = FeatureTerms(
        X, Blocks.one(d), covariance_type, scaling=scaling, row_weights=row_weights,
        reg_covar=reg_covar,
    )  # fmt: skip
    return MixtureStatistics(terms, evenly(len(X), workers).runs, k, second, **options)


def em(X, n_iter, covariance_type):
    """EM of pooled rows: its log-likelihoods a row before each step, and the mixture."""
    terms = FeatureTerms(
        X, Blocks.one(X.shape[1]), covariance_type, scaling=Scaling.none(X.shape[1]), reg_covar=REG
    )
    wanted = fit(terms, ServerSum(1), terms.start(X[ROWS]), FitSettings(tol=0, max_iter=n_iter),
                 draw_row=lambda: 0)  # fmt: skip
    return [float(value[0]) / len(X) for value in wanted.history], wanted.mixture
