"""Baseline planners: exact solvers, heuristics and learning agents."""
