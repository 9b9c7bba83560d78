"""Families of densities: what features that are not Gaussian add to the sum."""
