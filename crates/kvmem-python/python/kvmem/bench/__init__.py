"""Benchmarks of kvmem with the engines around it: ``python -m kvmem.bench NAME``."""
