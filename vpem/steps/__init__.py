"""How far statistics move: EM, batches, FedEM, Lloyd, and where each starts."""
