"""Where agents live: in one process, on the ranks of an MPI job, or at the members of a study."""
