"""Where agents live: in one process, or on the ranks of an MPI job."""
