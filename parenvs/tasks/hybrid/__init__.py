"""Hybrid plans: pipeline, data and tensor parallelism together, with sharded optimiser states."""
