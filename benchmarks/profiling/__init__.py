"""Parts of `benchmarks.profile`, each with one subject."""
