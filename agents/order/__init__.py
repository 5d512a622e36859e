"""Orders of micro-batches that are proven optimal, or how far any order is from it at least."""

from parenvs.agents.order.bounds import path_bound, relaxed_bound
from parenvs.agents.order.search import exact_order

__all__ = ["exact_order", "path_bound", "relaxed_bound"]
