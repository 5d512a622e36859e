"""Planners: ``solve``, exact solvers, heuristics, agents that learn, and their evaluation."""

from parenvs.agents.planners import solve
from parenvs.core.answer import Answer

__all__ = ["Answer", "solve"]
