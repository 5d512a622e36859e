"""Planners that prove their plans optimal."""

from parenvs.agents.exact.partition import exact_partition
from parenvs.agents.exact.pipeline import exact_full, exact_pruned
from parenvs.agents.exact.points import exact_points

__all__ = ["exact_full", "exact_partition", "exact_points", "exact_pruned"]
