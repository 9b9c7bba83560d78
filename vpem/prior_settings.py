"""Settings of a prior: see `vpem.fits.settings`."""

from __future__ import annotations

from vpem.errors import Setting
from vpem.records import Rule, Settings, setting

WEIGHT_PRIORS = ("dirichlet_process", "dirichlet_distribution")
"""Priors of mixing weights, as scikit-learn calls them."""

MAP = "map"
"""Prior under which EM finds the mode; under the others there is a posterior."""

PRIORS = (*WEIGHT_PRIORS, MAP)

WITHOUT_PRIOR: Rule = (
    lambda given: given.get("weight_concentration_prior_type") is None,
    (" is of a prior, but EM has none; add ",
     Setting("weight_concentration_prior_type", "dirichlet_process"), ", or leave it out"),
)  # fmt: skip

OF_WEIGHTS: Rule = (
    lambda given: given.get("weight_concentration_prior_type") == MAP,
    (" is of mixing weights, which have no prior beside ",
     Setting("weight_concentration_prior_type", MAP), "; leave it out"),
)  # fmt: skip


# fmt: off
class PriorSettings(Settings, heading="Prior"):
    """What is believed of a mixture before its rows are seen."""

    weight_concentration_prior_type: str | None = setting(None, "Variational Bayes: a Dirichlet "
        "process, or distribution, of the mixing weights and normal-Wishart hubs, so that "
        "components which the rows do not need end empty. map: EM to the mode under a prior of "
        "hubs alone, as mclust's, which keeps small components proper. Default: none, EM.",
        flags="--prior",
        choices=PRIORS)
    weight_concentration_prior: float | None = setting(None, "Concentration of the mixing weights; "
        "the less, the fewer components are in use. Default: 1/K.", flags="--concentration",
        least=0.0, above=True, idle=[WITHOUT_PRIOR, OF_WEIGHTS])
    mean_precision_prior: float | None = setting(None, "Rows that the prior mean of a hub, that of "
        "all rows, is worth in each component. Default: 1; with --prior map 0.01.",
        flags="--mean-precision", least=0.0, above=True, idle=WITHOUT_PRIOR)
    degrees_of_freedom_prior: float | None = setting(None, "Degrees of freedom of a hub's prior "
        "covariance, above its number of features less 1; of a diagonal one, of each variance. "
        "Default: that number of features, 1 of a variance; with --prior map 2 more.",
        flags="--degrees-of-freedom", least=0.0, above=True, idle=WITHOUT_PRIOR)
    prior_covariance: float | None = setting(None, "Prior scale matrix of a hub, in sample "
        "covariances of all its rows. The less, the smaller components may be. Default: 1; with "
        "--prior map K^(-2/d) of a hub of d features, K^-2 of a variance.", least=0.0, above=True,
        idle=WITHOUT_PRIOR)
