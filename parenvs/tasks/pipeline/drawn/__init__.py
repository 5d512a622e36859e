"""Drawn problems of ``PipelinePlan-v0`` by number: the sequence of a seed, and a pool of them."""
