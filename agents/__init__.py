"""Planners: ``plan``, exact solvers, heuristics, agents that learn, and their evaluation."""
