"""The algorithms as scikit-learn estimators."""
