"""The warning of fits that have not converged, as those know it who have loaded scikit-learn."""

from __future__ import annotations

from sklearn.exceptions import ConvergenceWarning

from vpem import errors


class NotConvergedWarning(errors.NotConvergedWarning, ConvergenceWarning):
    """The log-likelihood was still changing when the iterations ran out.

    It is scikit-learn's ``ConvergenceWarning``, by which filters find it.
    """
