"""Intra-operator parallelism: problems in the format of the ASPLOS 2025 contest (IOPDDL)."""
