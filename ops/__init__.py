"""Everything an operator runs: the command line, the process supervisor, profiling, benchmarks."""
