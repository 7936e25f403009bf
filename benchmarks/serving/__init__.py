"""Parts of `benchmarks.serve`, each with one subject."""
