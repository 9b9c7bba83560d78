"""Distributed k-means, over rows and over features."""
