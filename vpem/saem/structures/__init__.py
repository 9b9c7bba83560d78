"""Curves of nonlinear mixed models: what an individual would be measured at, without error."""
