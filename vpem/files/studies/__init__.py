"""What members of a study agree on, and what each has of its own."""
