"""Choosing the number of components, the hops and the covariance of a mixture."""
