"""Discriminant analysis, with scikit-learn's interface of classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from vpem.checks import Floats
from vpem.errors import InputError
from vpem.files.models import Model
from vpem.fits.answer import classes_in
from vpem.fits.discriminant import DiscriminantFit, fit_discriminant
from vpem.fits.estimators.base import ALL_OR_EACH, OnGraph, Rows, stored_in, with_settings
from vpem.fits.labels import label_name
from vpem.fits.settings import parse_covariances, parse_numbers
from vpem.records import setting
from vpem.settings import DiscriminantSettings, FitSettings, SumSettings
from vpem.sums.connect import connect
from vpem.terms.mixture import Mixture


def numbers_of(n_components: Any) -> list[int]:
    """Return numbers of components: 3, "1-5", or several."""
    if isinstance(n_components, Integral):
        n_components = str(n_components)
    if not isinstance(n_components, str):
        n_components = ",".join(map(str, n_components))
    return parse_numbers("n_components", n_components, least=1)


@with_settings(
    DiscriminantSettings,
    FitSettings,
    SumSettings,
    first=("model_type", "n_components", "covariance_type", "agents", "graph", "hops"),
    without={
        "fix": "each class has its own mixture",
        "hubs": "hubs are those of all classes",
        **dict.fromkeys(
            ("n_factors", "noise", "trim"), "it is of one mixture, but each class has its own"
        ),
        "penalty": "it is for rows; a model of features has weight_concentration_prior_type map",
    },
)
class DiscriminantAnalysis(ClassifierMixin, OnGraph):
    """Classifier by a Gaussian mixture of each class, over agents that hold features.

    MclustDA and EDDA of mclust: of each class BIC chooses the number of components and the
    covariance type, or of all classes a common type of one component each. All agents know the
    labels; features stay where they are, as with `vpem.VPEM`.

    Attributes
    ----------
    classes_ : ndarray of shape (C,)
        Labels, ascending.
    priors_ : ndarray of shape (C,)
        Shares of the classes.
    class_of_component_ : ndarray of shape (K,)
        The number of each component's class.
    chosen_ : list of dict
        Of each class the number of components, the covariance type, and BIC, lower being better.
    mixture_ : Mixture
        Components of all classes, weighted by class and component.
    fit_ : DiscriminantFit
        The full result, messages included.
    converged_, n_iter_
        Whether the mixtures of all classes converged, and their iterations together.

    Examples
    --------
    >>> import numpy as np
    >>> from vpem import DiscriminantAnalysis
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> X[:30] += 4
    >>> model = DiscriminantAnalysis("edda", agents=2).fit(X, ["sick"] * 30 + ["well"] * 30)
    >>> model.predict([[4.0, 4.0], [0.0, 0.0]]).tolist()
    ['sick', 'well']
    """

    agents: object = setting(None, ALL_OR_EACH)
    graph: Any = setting(
        None, "The communication graph: a topology's name, a networkx.Graph or a vpem.Graph."
    )
    fit_: DiscriminantFit
    mixture_: Mixture
    _result = "mixture_", "fit_"
    _also: ClassVar = {
        "n_components": "Or a number, or several.",
        "covariance_type": "Or several.",
        "init": "The name of a start: each class has its own.",
    }

    def fit(  # type: ignore[override]
        self, X: Rows, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> DiscriminantAnalysis:
        """Fit the mixtures of the classes.

        Parameters
        ----------
        X : array of shape (M, d), data frame or Dataset
            One row per sample.
        y : array of shape (M,)
            The class of each row.
        sample_weight : array of shape (M,), optional
            Weight of each row.

        Returns
        -------
        DiscriminantAnalysis
            This estimator.

        Raises
        ------
        InputError
            A ValueError, if the data or a parameter cannot be used.
        NumericalError
            If a computation has no finite answer.
        """
        if y is None:
            raise InputError(
                "DiscriminantAnalysis requires y to be passed, but the target y is None"
            )
        data = self._validate(X, reset=True)
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        classes, codes = np.unique(labels, return_inverse=True)
        choices = self._settings(DiscriminantSettings)
        seed, stored = self._seed(), stored_in(X)
        sums = self._settings(SumSettings, seed=seed)
        agents = stored.partition if self.agents is None and stored is not None else self.agents
        networked = self.graph is not None or sums.is_asked
        partition = self._partition_of(agents, data.shape[1], networked)
        network = connect(self._graph(partition.n_agents, seed), partition, sums)
        settings = self._settings(
            FitSettings, seed=seed, dtype=data.dtype, n_components=1, covariance_type="full"
        )
        types = choices.covariance_type
        types = types if isinstance(types, str) else ",".join(map(str, types))
        fit = fit_discriminant(
            data, codes, network, settings, model_type=choices.model_type,
            n_components=numbers_of(choices.n_components),
            covariance_type=parse_covariances(types, settings, "covariance_type"),
            sample_weight=self._weights_of(X, sample_weight),
            feature_names=self._given_names, callback=self._lines(),
        )  # fmt: skip
        fit.classes = classes
        named = [label_name(one) for one in classes.tolist()]
        fit.labels_for_fit = {
            **(fit.labels_for_fit or {}),
            "names": [named[c] for c in fit.class_of],
        }
        self.fit_, self._holders = fit, network.graph.names or partition.names
        self.converged_, self.n_iter_ = fit.converged, fit.total_iterations
        self._take(fit.mixture, fit.classes, fit.class_of, fit.chosen)
        return self

    def _take(
        self, mixture: Mixture, classes: Any, class_of: NDArray[np.intp], chosen: Sequence[Any]
    ) -> None:
        self.mixture_, self.classes_ = mixture, classes
        self.class_of_component_, self.chosen_ = class_of, list(chosen)
        self.priors_ = np.bincount(class_of, mixture.assembled_weights, len(classes))

    def predict_proba(self, X: Rows) -> NDArray[np.float64]:
        """Probability of each class, of each row of X (M, d), shape (M, C)."""
        self._check_fitted("mixture_")
        data: Floats = self._validate(X, reset=False)
        shares = self.mixture_.predict_proba(data, missing=self.missing)
        return np.asarray(shares @ np.eye(len(self.classes_))[self.class_of_component_])

    def predict(self, X: Rows) -> Any:
        """Most probable class of each row of X (M, d), shape (M,)."""
        shares = self.predict_proba(X)
        return self.classes_[shares.argmax(axis=1)]


def discriminant_of(stored: Model) -> DiscriminantAnalysis:
    """Return a fitted classifier of a model in a file; its classes are text."""
    found = classes_in(stored.report, stored.n_components)
    assert found is not None
    names, members = found
    estimator = DiscriminantAnalysis.of_stored(stored)
    chosen = stored.report["discriminant"].get("chosen")
    chosen = chosen if isinstance(chosen, list) else []
    estimator._take(stored.mixture, np.array(names), members.argmax(axis=1), chosen)
    estimator.converged_ = bool(stored.report.get("converged"))
    return estimator
