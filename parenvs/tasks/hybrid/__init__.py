"""Hybrid plans: pipeline, data and tensor parallelism together, with sharded optimizer states."""
