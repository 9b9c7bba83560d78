"""What a row adds where a low-rank matrix of parameters is fitted to what was observed."""
