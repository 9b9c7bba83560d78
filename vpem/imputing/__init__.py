"""FedMissEM: low-rank imputation from partial matrices."""
