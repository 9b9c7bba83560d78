"""What is read and written: datasets, models, and the safe HDF5 under them."""
