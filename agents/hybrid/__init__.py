"""Planners that prove hybrid plans optimal."""

from parenvs.agents.hybrid.solve import (
    exact,
    exact_hybrid,
    exact_uniform,
    infeasible,
    ranked,
    robust,
)

__all__ = ["exact", "exact_hybrid", "exact_uniform", "infeasible", "ranked", "robust"]
