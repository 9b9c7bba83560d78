"""SAEM: stochastic approximation EM of models with latent variables that must be sampled."""
