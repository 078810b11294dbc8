"""Workloads: drawn from job classes, or replayed from public traces, as one struct of arrays either way."""
