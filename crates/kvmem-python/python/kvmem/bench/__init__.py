"""Benchmarks: `python -m kvmem.bench.NAME`."""
