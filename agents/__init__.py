"""Planners: ``solve``, exact solvers, heuristics, agents that learn, and their evaluation."""

from parenvs.agents.answer import Answer
from parenvs.agents.planners import solve

__all__ = ["Answer", "solve"]
