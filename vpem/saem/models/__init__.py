"""Models of the curved exponential family, and the protocol that makes one of a user's own."""
