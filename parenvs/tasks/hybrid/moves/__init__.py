"""The moves from a plan to its neighbors, and what these cost, compiled: a plan at a time."""
