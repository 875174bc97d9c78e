"""Benchmarks on real pairs, and the fixtures that let them run on any machine."""
